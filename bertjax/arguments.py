"""Checks of the arguments of public functions: one function for each kind of argument.

Each returns the value in the form that bertjax uses, or raises one of bertjax's errors in one line: the name of the
argument, what was expected, what was found.
"""

import re
import reprlib
import sys
from collections.abc import Collection, Mapping
from operator import index
from typing import Any, NoReturn, Protocol, TypeVar, runtime_checkable

import ml_dtypes
import numpy as np

from bertjax.errors import BertjaxError, InputError, library_errors, some_of

T = TypeVar("T")
LONGEST_NUMBER = 200  # bits; a longer number is not printed
LARGEST_INTEGER = 2**63 - 1  # of a NumPy array and of a Parquet column


@runtime_checkable
class HoldsArray(Protocol):
    """Anything that NumPy converts to an array: arrays of NumPy and JAX, tensors of PyTorch."""

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        """Return a NumPy array."""


def describe(value: Any) -> str:
    """A value in a few words.

    >>> describe("abc"), describe([1, "x"]), describe(np.zeros((2, 3)))
    ("the string 'abc'", 'a list that begins with 1', 'an array of shape (2, 3) and dtype float64')
    """
    kind = type(value).__name__
    if isinstance(value, str):
        return f"the string {reprlib.repr(value)}"
    if isinstance(value, int) and value.bit_length() > LONGEST_NUMBER:
        return "a very large number"
    if value is None or isinstance(value, bool | int | float | complex | bytes | np.generic):
        return reprlib.repr(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of shape {tuple(value.shape)} and dtype {value.dtype}"
    if isinstance(value, Mapping):
        return f"{_article(kind)} with {some_of([str(key) for key in value], most=4)}" if value else "an empty dict"
    if isinstance(value, list | tuple):
        return f"{_article(kind)} that begins with {describe(value[0])}" if value else f"an empty {kind}"
    if isinstance(value, type):
        return f"the class {value.__name__} itself"
    return f"the function {value.__name__}" if hasattr(value, "__name__") else _article(kind)


def brief(value: Any) -> str:
    """The shortened repr of a value; its description if it contains an integer of thousands of digits."""
    try:
        return reprlib.repr(value)
    except ValueError:
        return describe(value)


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiouAEIO' else 'a'} {kind}"


def is_traced(array: Any) -> bool:
    """Whether an array is a tracer of JAX, which has a shape but no values."""
    jax = sys.modules.get("jax")  # only code that imported JAX can trace
    return jax is not None and isinstance(array, jax.core.Tracer)


def refuse(name: str, expected: str, value: Any, error: type[Exception] = InputError) -> NoReturn:
    """Raise an error: an argument must be `expected`, and `value` was found."""
    raise error(f"{name} must be {expected}, found {describe(value)}")


def check_int(value: Any, name: str, least: int | None = None, error: type[Exception] = InputError) -> int:
    """An integer of Python, NumPy or JAX. True and False are refused."""
    expected = "an integer" if least is None else f"an integer of at least {least}"
    try:
        number = index(value)
    except TypeError:  # also for a tracer
        refuse(name, expected, value, error)
    if isinstance(value, bool | np.bool_) or (least is not None and number < least):
        refuse(name, expected, value, error)
    if number.bit_length() > 63:
        refuse(name, f"{expected} that fits 64 bits", value, error)
    return number


def check_choice(value: Any, name: str, choices: Collection[str], error: type[Exception] = InputError) -> str:
    """A str that is one of the choices."""
    if not isinstance(value, str):
        refuse(name, f"one of {', '.join(choices)}", value, error)
    if value not in choices:
        raise error(f"{name} {reprlib.repr(value)} is not one of {', '.join(choices)}")
    return value


def check_bool(value: Any, name: str, error: type[Exception] = InputError) -> bool:
    """A bool of Python or NumPy."""
    if not isinstance(value, bool | np.bool_):
        refuse(name, "True or False", value, error)
    return bool(value)


def check_instance(value: Any, name: str, kind: type[T], expected: str, error: type[Exception] = InputError) -> T:
    """An instance of a class. `expected` describes it in the error."""
    if not isinstance(value, kind):
        refuse(name, expected, value, error)
    return value


def check_function(value: T, name: str, expected: str, error: type[Exception] = InputError) -> T:
    """A callable. `expected` describes it in the error."""
    if not callable(value):
        refuse(name, expected, value, error)
    return value


def check_sequence(
    values: Any,
    name: str,
    expected: str,
    kind: Any = object,
    error: type[Exception] = InputError,
) -> tuple[Any, ...]:
    """The items of an iterable as a tuple. A str, bytes or a dict is refused.

    Args:
        expected: description of the iterable for the error, such as 'a list of str'.
        kind: class of the items, or a union of classes.
    """
    if isinstance(values, str | bytes | Mapping):
        refuse(name, expected, values, error)
    try:
        items = tuple(values)
    except TypeError:
        refuse(name, expected, values, error)
    for number, value in enumerate(items):
        if not isinstance(value, kind):
            raise error(f"{name} must be {expected}, but item {number} (from 0) is {describe(value)}")
    return items


def as_array(values: Any, name: str, error: type[BertjaxError] = InputError) -> Any:
    """An array of numbers: arrays of JAX stay as they are, anything else becomes an array of NumPy.

    Tensors of PyTorch on any device, lists of tensors, and nested lists are converted too.

    Raises:
        BertjaxError: rows of different lengths, values that are not numbers, or a tensor that records gradients or has
            no values.
    """
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(values, jax.Array):
        return values
    is_list = isinstance(values, list | tuple)
    with library_errors(f"{name} cannot be read from this tensor of PyTorch", error):
        parts = [_from_torch(part) for part in values] if is_list else _from_torch(values)
    try:
        converted = np.asarray(parts)
    except (ValueError, TypeError) as problem:
        if jax is not None and isinstance(problem, jax.errors.TracerArrayConversionError):  # in a list
            return jax.numpy.asarray(parts)
        if is_list:
            how = "pad them (a tokenizer with padding=True, or bertjax.collate)"
            raise error(f"{name} has rows of different lengths: {how}") from problem
        refuse(name, "an array of numbers", values, error)
    if converted.dtype.kind not in "biufc" and not hasattr(ml_dtypes, converted.dtype.name):  # bfloat16 and the like
        refuse(name, "an array of numbers", values, error)
    return converted if converted.dtype.isnative else converted.astype(converted.dtype.newbyteorder("="))


def _from_torch(value: Any) -> Any:
    """A tensor of PyTorch as an array of NumPy, without an import of PyTorch; any other value unchanged."""
    if not hasattr(value, "requires_grad"):
        return value
    if str(value.dtype) == "torch.bfloat16":  # which PyTorch does not convert to NumPy
        return value.cpu().float().numpy().astype(ml_dtypes.bfloat16)
    return value.cpu().numpy()


def parse_head_name(name: str) -> tuple[int, int] | None:
    """Layer and head index in the name of a head; None if the text is not such a name.

    >>> parse_head_name("3.10"), parse_head_name("L3H10")
    ((3, 10), (3, 10))
    """
    matched = re.fullmatch(r"(?:(\d{1,9})\.|L(\d{1,9})H)(\d{1,9})", name.strip(), re.ASCII)
    return None if matched is None else (int(matched[1] or matched[2]), int(matched[3]))


def plain_head_name(name: Any) -> Any:
    """The name of a head as LAYER.HEAD. Any other value is returned unchanged.

    >>> plain_head_name("L3H10"), plain_head_name((3, 10)), plain_head_name("first 2")
    ('3.10', '3.10', 'first 2')
    """
    parsed = parse_head_name(name) if isinstance(name, str) else _pair(name)
    return name if parsed is None else f"{parsed[0]}.{parsed[1]}"


def _pair(head: Any) -> tuple[int, int] | None:
    """A pair (layer, head) of integers of Python or NumPy; None for any other value."""
    try:
        layer, number = map(index, head)
    except (TypeError, ValueError):
        return None
    is_head = layer >= 0 and number >= 0 and not any(isinstance(part, bool | np.bool_) for part in head)
    return (layer, number) if is_head else None
