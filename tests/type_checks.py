"""Types are checked at every call in tests, and shapes where a function names any.

jaxtyping binds the arguments anew, checks them, and checks them once more with the result: a hundred times what a short
function takes. What names no shape needs only the check of types itself, and most functions name none.
"""

import functools
import types
import typing
from collections.abc import Callable
from typing import Any

import jaxtyping

# The decorator that jaxtyping's import hook writes before each function and class, looked up when they are defined.
with_shapes = jaxtyping.jaxtyped


def without_needless_shapes(function: Any = None, *, typechecker: Callable) -> Any:
    """Check a function's shapes as jaxtyping does, or its types alone where it names no shape."""
    if function is None:
        return functools.partial(without_needless_shapes, typechecker=typechecker)
    if isinstance(function, type) and any(base.__name__ == "Options" for base in function.__mro__):
        return function  # options check and convert their values themselves: a list becomes a tuple
    if not isinstance(function, types.FunctionType) or any(map(names_shape, function.__annotations__.values())):
        return with_shapes(function, typechecker=typechecker)
    checked = typechecker(function)

    @functools.wraps(function)
    def called(*args, **kwargs):
        return (function if jaxtyping.config.jaxtyping_disable else checked)(*args, **kwargs)

    return called


def names_shape(annotation: Any) -> bool:
    """Whether a shape is named anywhere in a type; of one that is still a string nobody knows."""
    if isinstance(annotation, (str, typing.ForwardRef)):
        return True
    if getattr(annotation, "__module__", "").startswith("jaxtyping"):
        return True
    if isinstance(annotation, list):  # the parameters of a Callable
        return any(map(names_shape, annotation))
    return any(map(names_shape, typing.get_args(annotation)))


jaxtyping.jaxtyped = without_needless_shapes
