"""How well labels of maps agree: with each other, and with a classifier's."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.metrics import cohen_kappa_score

DRAWS = 2000


def score_agreement(first: Sequence[str], second: Sequence[str], groups: Sequence[str]) -> dict[str, Any]:
    """Cohen's kappa of two rounds of labels, with an interval over examples."""
    one, other = np.array(first), np.array(second)
    score = lambda rows: float(cohen_kappa_score(one[rows], other[rows]))
    return {"kappa": score(np.arange(len(one))), "interval": bootstrap(score, groups)}


def bootstrap(score: Callable[[np.ndarray], float], groups: Sequence[str], seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of a score of rows, by drawing groups of rows (examples) with replacement."""
    members = [np.flatnonzero(np.array(groups) == group) for group in sorted(set(groups))]
    rng = np.random.default_rng(seed)
    drawn = (rng.integers(0, len(members), len(members)) for _ in range(DRAWS))
    scores = [score(np.concatenate([members[group] for group in groups_drawn])) for groups_drawn in drawn]
    low, high = np.nanpercentile(scores, [2.5, 97.5])
    return float(low), float(high)
