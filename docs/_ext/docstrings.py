"""How docstrings and signatures of bertjax become those of the reference."""

import inspect
import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.inspect import stringify_signature

RETURNS = re.compile(r"(Returns|Yields):\s*(.*)")
# Types whose names are long and say nothing to readers.
SHORTER = (
    ("Array | ndarray | bool | number | bool | int | float | complex", "ArrayLike"),
    ("jaxlib._jax.Array", "Array"),
    ("jax.Array", "Array"),
    ("~", ""),
)


def returns_as_field(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """`Returns: text` as a field of the description, whether the text begins on the same line or below.

    Napoleon knows the second form alone, and takes words before a colon for a type.
    """
    changed: list[str] = []
    inside = False
    for line in lines:
        if found := RETURNS.fullmatch(line):
            inside = True
            changed.append(f":{found[1].lower()}: {found[2]}".rstrip())
        elif inside and line.strip() and not line.startswith(" "):
            inside = False
            changed += ["", line]
        else:
            changed.append(line)
    lines[:] = changed


def shorten_signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """A signature in short names; that of a Flax module is its constructor's, not its metaclass's."""
    if what == "class" and signature and signature.startswith("(*args"):
        own = inspect.signature(value.__init__)
        own = own.replace(parameters=list(own.parameters.values())[1:], return_annotation=inspect.Signature.empty)
        signature = stringify_signature(own, unqualified_typehints=True)
    for long, short in SHORTER:
        signature = signature and signature.replace(long, short)
        returns = returns and returns.replace(long, short)
    return signature, returns


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect, before Napoleon."""
    app.connect("autodoc-process-docstring", returns_as_field, priority=400)
    app.connect("autodoc-process-signature", shorten_signature)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
