"""Agreement of map labels with each other and with the predictions of a classifier."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import nnls
from sklearn.metrics import confusion_matrix

from experiments.patterns.maps import NAMES

DRAWS = 1000


def score_classes(
    true: Int[np.ndarray, " maps"], predicted: Int[np.ndarray, " maps"], groups: Sequence[str]
) -> dict[str, Any]:
    """F1 of each class, their mean with an interval over examples, and the confusion matrix (rows are labels)."""
    confusions = _confusions(true, predicted, groups)
    f1 = f1_of(confusions.sum(0))
    return {
        "macro_f1": float(np.nanmean(f1)),
        "interval": np.percentile(_drawn_f1(confusions), [2.5, 97.5]).tolist(),
        "f1": dict(zip(NAMES, np.nan_to_num(f1).tolist(), strict=True)),
        "accuracy": float((true == predicted).mean()),
        "confusion": confusions.sum(0).tolist(),
    }


def compare_classes(
    true: Int[np.ndarray, " maps"],
    predicted: Int[np.ndarray, " maps"],
    other_predicted: Int[np.ndarray, " maps"],
    groups: Sequence[str],
) -> dict[str, Any]:
    """Macro F1 of one classifier minus that of another, with an interval from draws of examples shared by both."""
    confusions, other_confusions = (_confusions(true, labels, groups) for labels in (predicted, other_predicted))
    difference = np.nanmean(f1_of(confusions.sum(0))) - np.nanmean(f1_of(other_confusions.sum(0)))
    interval = np.percentile(_drawn_f1(confusions) - _drawn_f1(other_confusions), [2.5, 97.5])
    return {"macro_f1": float(difference), "interval": interval.tolist()}


def score_accuracy(
    true: Int[np.ndarray, " maps"], predicted: Int[np.ndarray, " maps"], groups: Sequence[str]
) -> dict[str, Any]:
    """How many maps are classified correctly, with an interval over examples; accuracy is None if there are no maps."""
    right = true == predicted
    if not len(right):
        return {"maps": 0, "right": 0, "accuracy": None, "interval": None}
    interval = bootstrap(lambda rows: float(right[rows].mean()), groups)
    return {"maps": len(right), "right": int(right.sum()), "accuracy": float(right.mean()), "interval": interval}


def _confusions(
    true: Int[np.ndarray, " maps"], predicted: Int[np.ndarray, " maps"], groups: Sequence[str]
) -> Int[np.ndarray, "groups classes classes"]:
    """The confusion matrix of each group."""
    labels = range(len(NAMES))
    return np.stack([confusion_matrix(true[rows], predicted[rows], labels=labels) for rows in members_of(groups)])


def _drawn_f1(confusions: Int[np.ndarray, "groups classes classes"]) -> Float[np.ndarray, " draws"]:
    """Macro F1 in each draw of groups; all classifiers share the draws."""
    return np.nanmean(f1_of(confusions[draw_groups(len(confusions))].sum(1)), axis=-1)


def f1_of(confusion: Int[np.ndarray, "*draws classes classes"]) -> Float[np.ndarray, "*draws classes"]:
    """F1 of each class, 2 hits / (labelled + found); NaN for a class that is neither labelled nor found.

    >>> f1_of(np.array([[3, 1], [0, 2]])).round(3).tolist()
    [0.857, 0.8]
    """
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    total = confusion.sum(-1) + confusion.sum(-2)
    return np.where(total > 0, 2 * hits / np.maximum(total, 1), np.nan)


def members_of(groups: Sequence[str]) -> list[Int[np.ndarray, " rows"]]:
    """The rows of each group."""
    return [np.flatnonzero(np.array(groups) == group) for group in sorted(set(groups))]


def draw_groups(count: int, seed: int = 0) -> Int[np.ndarray, "draws groups"]:
    """Draws of `count` groups with replacement."""
    return np.random.default_rng(seed).integers(0, count, (DRAWS, count))


def bootstrap(score: Callable[[np.ndarray], float], groups: Sequence[str]) -> list[float]:
    """The 95 % interval of a score of rows, from drawing groups of rows (examples) with replacement."""
    members = members_of(groups)
    scores = [score(np.concatenate([members[group] for group in drawn])) for drawn in draw_groups(len(members))]
    return [float(end) for end in np.nanpercentile(scores, [2.5, 97.5])]


def correct_shares(
    shares: Float[np.ndarray, " classes"], confusion: Int[np.ndarray, "classes classes"]
) -> Float[np.ndarray, " classes"]:
    """The true shares that best explain the observed ones, for a classifier with this confusion (rows are labels).

    This assumes that the classifier errs here as it did on the labelled maps.

    >>> correct_shares(np.array([0.5, 0.5]), np.array([[8, 2], [0, 10]])).round(3).tolist()
    [0.625, 0.375]
    """
    rates = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    corrected, _ = nnls(rates.T, shares.astype(np.float64))
    return corrected / corrected.sum()
