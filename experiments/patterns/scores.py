"""How well labels of maps agree: with each other, and with a classifier's."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import nnls
from sklearn.metrics import cohen_kappa_score, confusion_matrix

from experiments.patterns.maps import NAMES

DRAWS = 1000


def score_agreement(first: Sequence[str], second: Sequence[str], groups: Sequence[str]) -> dict[str, Any]:
    """Cohen's kappa of two rounds of labels, with an interval over examples."""
    one, other = np.array(first), np.array(second)

    def score(rows: np.ndarray) -> float:
        with warnings.catch_warnings():  # kappa is undefined, NaN, where both rounds know one class alone
            warnings.simplefilter("ignore")
            return float(cohen_kappa_score(one[rows], other[rows]))

    return {"kappa": score(np.arange(len(one))), "interval": bootstrap(score, groups)}


def score_classes(
    true: Int[np.ndarray, " maps"], found: Int[np.ndarray, " maps"], groups: Sequence[str]
) -> dict[str, Any]:
    """F1 of each class and their mean, with an interval over examples, and the confusion matrix (rows are labels)."""
    each = _confusions(true, found, groups)
    f1 = f1_of(each.sum(0))
    return {
        "macro_f1": float(np.nanmean(f1)),
        "interval": np.percentile(_drawn_f1(each), [2.5, 97.5]).tolist(),
        "f1": dict(zip(NAMES, np.nan_to_num(f1).tolist(), strict=True)),
        "accuracy": float((true == found).mean()),
        "confusion": each.sum(0).tolist(),
    }


def compare_classes(
    true: Int[np.ndarray, " maps"],
    found: Int[np.ndarray, " maps"],
    other: Int[np.ndarray, " maps"],
    groups: Sequence[str],
) -> dict[str, Any]:
    """Macro F1 of one classifier minus another's, with an interval: each draw of examples scores both."""
    one, two = (_confusions(true, said, groups) for said in (found, other))
    apart = np.nanmean(f1_of(one.sum(0))) - np.nanmean(f1_of(two.sum(0)))
    interval = np.percentile(_drawn_f1(one) - _drawn_f1(two), [2.5, 97.5])
    return {"macro_f1": float(apart), "interval": interval.tolist()}


def score_accuracy(
    true: Int[np.ndarray, " maps"], found: Int[np.ndarray, " maps"], groups: Sequence[str]
) -> dict[str, Any]:
    """How many maps are right, with an interval over examples; of no map, no share."""
    right = true == found
    if not len(right):
        return {"maps": 0, "right": 0, "accuracy": None, "interval": None}
    interval = bootstrap(lambda rows: float(right[rows].mean()), groups)
    return {"maps": len(right), "right": int(right.sum()), "accuracy": float(right.mean()), "interval": interval}


def _confusions(
    true: Int[np.ndarray, " maps"], found: Int[np.ndarray, " maps"], groups: Sequence[str]
) -> Int[np.ndarray, "groups classes classes"]:
    """The confusion matrix of each group."""
    every = range(len(NAMES))
    return np.stack([confusion_matrix(true[rows], found[rows], labels=every) for rows in members_of(groups)])


def _drawn_f1(each: Int[np.ndarray, "groups classes classes"]) -> Float[np.ndarray, " draws"]:
    """Macro F1 of each draw of groups; the draws are the same for all classifiers."""
    return np.nanmean(f1_of(each[draw_groups(len(each))].sum(1)), axis=-1)


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
    """Draws of so many groups with replacement."""
    return np.random.default_rng(seed).integers(0, count, (DRAWS, count))


def bootstrap(score: Callable[[np.ndarray], float], groups: Sequence[str]) -> list[float]:
    """The 95 % interval of a score of rows, by drawing groups of rows (examples) with replacement."""
    members = members_of(groups)
    scores = [score(np.concatenate([members[group] for group in drawn])) for drawn in draw_groups(len(members))]
    return [float(end) for end in np.nanpercentile(scores, [2.5, 97.5])]


def correct_shares(
    shares: Float[np.ndarray, " classes"], confusion: Int[np.ndarray, "classes classes"]
) -> Float[np.ndarray, " classes"]:
    """The shares that a classifier with this confusion (rows are labels) would have found as these, as near as can be.

    It holds as far as the classifier errs here as it did on the labelled maps.

    >>> correct_shares(np.array([0.5, 0.5]), np.array([[8, 2], [0, 10]])).round(3).tolist()
    [0.625, 0.375]
    """
    rates = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    found, _ = nnls(rates.T, shares.astype(np.float64))
    return found / found.sum()
