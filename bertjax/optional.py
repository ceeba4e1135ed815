"""Packages that are asked for when they are needed, not installed with bertjax."""

from types import ModuleType

from bertjax.errors import MissingDependencyError


def import_pandas() -> ModuleType:
    """The package pandas.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise MissingDependencyError("to_pandas needs pandas, which is not installed: pip install pandas") from None
    return pandas
