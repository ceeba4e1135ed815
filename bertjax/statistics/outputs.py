"""Checks of a sweep's outputs before they are scored, and their conversion to predictions or values."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int, Num, Shaped

from bertjax import arguments
from bertjax.errors import DataError


def as_numbers(values: Any, name: str) -> Num[np.ndarray, "..."]:
    """Convert an array or nested lists to an array of real numbers.

    Raises:
        DataError: rows of different lengths, or values that are not numbers.
    """
    array = np.asarray(arguments.as_array(values, name, DataError))
    if array.dtype.kind == "c":
        raise DataError(f"{name} must be real numbers, found {arguments.describe(array)}")
    return array


def check_shapes(outputs: Shaped[np.ndarray, "..."], labels: Shaped[np.ndarray, "..."]) -> None:
    """Raise `DataError` if outputs and labels do not have the same examples."""
    fits = outputs.ndim in (2, 3) and labels.ndim == 1 and outputs.shape[1] == len(labels)
    if not fits:
        raise DataError(
            f"outputs of shape {list(outputs.shape)} and labels of shape {list(labels.shape)} don't fit:"
            " give outputs [ablations, examples] or [ablations, examples, labels] and labels [examples]"
        )


def check_finite(outputs: Float[np.ndarray, "..."]) -> None:
    """Raise `DataError` if an output is NaN or infinite."""
    finite = np.isfinite(outputs)
    if not finite.all():
        first = tuple(np.argwhere(~finite)[0])
        raise DataError(
            f"the output of ablation {first[0]} for example {first[1]} is {outputs[first]} ({(~finite).sum()}"
            " such values in all): scores need finite outputs, so look at that ablation's replacement"
        )


def predictions_from_logits(logits: Float[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
    """The predicted class ids: the index of the largest logit, the first among equal ones.

    Args:
        logits: `[ablations, examples, labels]`, two labels or more.

    Returns:
        `[ablations, examples]`.

    Raises:
        DataError: `logits` does not have this shape.

    >>> predictions_from_logits(np.array([[[0.2, 1.5], [3.0, -1.0]]])).tolist()
    [[1, 0]]
    """
    if logits.ndim != 3 or logits.shape[-1] < 2:
        raise DataError(
            f"class predictions need logits [ablations, examples, labels] of two labels or more,"
            f" found outputs of shape {list(logits.shape)}: choose a metric that reads real values"
        )
    return np.argmax(logits, axis=-1)


def values_of(outputs: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """One real value for each example. Raises `DataError` for logits of several classes."""
    if outputs.ndim == 3 and outputs.shape[-1] != 1:
        raise DataError(
            f"this metric reads one real value per example, found outputs of shape {list(outputs.shape)}:"
            " choose a metric that reads class predictions, or pass one column of the logits"
        )
    return np.asarray(outputs, dtype=np.float64).reshape(outputs.shape[:2])
