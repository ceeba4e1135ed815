"""How docstrings and signatures of bertjax become those of the reference."""

import inspect
import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.inspect import stringify_signature

RETURNS = re.compile(r"(Returns|Yields):\s*(.*)")
# Where types come from says nothing to readers; bertjax's own become links.
FROM = re.compile(r"~?(?:jaxlib\._jax|jax|jaxtyping|numpy|pathlib|collections\.abc|typing|builtins)\.(?=\w)")
ARRAY_LIKE = "Array | ndarray | bool | number | bool | int | float | complex"


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
    return shorten(signature), shorten(returns)


def shorten(types: str | None) -> str | None:
    """Types by their names alone."""
    return types and FROM.sub("", types).replace(ARRAY_LIKE, "ArrayLike")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect, before Napoleon."""
    app.connect("autodoc-process-docstring", returns_as_field, priority=400)
    app.connect("autodoc-process-signature", shorten_signature)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
