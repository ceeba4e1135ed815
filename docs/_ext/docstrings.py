"""Adapts docstrings and signatures of bertjax for the reference."""

import inspect
import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.inspect import stringify_signature

RETURNS = re.compile(r"(Returns|Yields):\s*(.*)")
# Modules of types are left out; types of bertjax become links.
FROM = re.compile(r"~?(?:jaxlib\._jax|jax|jaxtyping|numpy|pathlib|collections\.abc|typing|builtins)\.(?=\w)")
ARRAY_LIKE = "Array | ndarray | bool | number | bool | int | float | complex"


def returns_as_field(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Turn `Returns: text` into a field, with the text on the same line or below.

    Napoleon supports only the second form, and reads words before a colon as a type.
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
    """Shorten a signature; for a Flax module use that of its constructor instead of its metaclass."""
    if what == "class" and signature and signature.startswith("(*args"):
        found = inspect.signature(value.__init__)
        found = found.replace(parameters=list(found.parameters.values())[1:], return_annotation=inspect.Signature.empty)
        signature = stringify_signature(found, unqualified_typehints=True)
    return shorten(signature), shorten(returns)


def shorten(types: str | None) -> str | None:
    """Types without their modules."""
    return types and FROM.sub("", types).replace(ARRAY_LIKE, "ArrayLike")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the events, before Napoleon."""
    app.connect("autodoc-process-docstring", returns_as_field, priority=400)
    app.connect("autodoc-process-signature", shorten_signature)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
