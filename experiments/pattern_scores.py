"""How well labels of maps agree: with each other, and with a classifier's."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import nnls
from sklearn.metrics import cohen_kappa_score, confusion_matrix, f1_score

from experiments.pattern_maps import NAMES

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
    every = range(len(NAMES))
    # A class that a draw of examples lacks, and nobody found there, has no F1 and is left out of the mean.
    f1 = partial(f1_score, labels=every, zero_division=np.nan)

    def score(rows: np.ndarray) -> float:
        return float(f1(true[rows], found[rows], average="macro"))

    return {
        "macro_f1": score(np.arange(len(true))),
        "interval": bootstrap(score, groups),
        "f1": dict(zip(NAMES, np.nan_to_num(f1(true, found, average=None)).tolist(), strict=True)),
        "accuracy": float((true == found).mean()),
        "confusion": confusion_matrix(true, found, labels=every).tolist(),
    }


def bootstrap(score: Callable[[np.ndarray], float], groups: Sequence[str], seed: int = 0) -> list[float]:
    """The 95 % interval of a score of rows, by drawing groups of rows (examples) with replacement."""
    members = [np.flatnonzero(np.array(groups) == group) for group in sorted(set(groups))]
    rng = np.random.default_rng(seed)
    draws = rng.integers(0, len(members), (DRAWS, len(members)))
    scores = [score(np.concatenate([members[group] for group in drawn])) for drawn in draws]
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
