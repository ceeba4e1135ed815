"""How far two maps of a number for each head are apart."""

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import spearmanr


def compare_maps(one: Float[np.ndarray, "..."], other: Float[np.ndarray, "..."]) -> dict[str, Any]:
    """The largest difference, and Spearman's correlation over heads; None where a map is the same everywhere."""
    constant = np.ptp(one) == 0 or np.ptp(other) == 0
    return {
        "largest_difference": float(np.abs(one - other).max()),
        "rank_correlation": None if constant else float(spearmanr(one.ravel(), other.ravel()).statistic),
    }


def say_agreement(name: str, found: dict[str, Any]) -> str:
    """One line of it.

    >>> say_agreement("nouns", {"largest_difference": 0.0271, "rank_correlation": 0.999})
    'nouns as published against corrected: rank correlation 1.00, largest difference 0.027'
    """
    ranks = found["rank_correlation"]
    said = "undefined" if ranks is None else f"{ranks:.2f}"
    return f"{name} as published against corrected: rank correlation {said}, largest difference " + (
        f"{found['largest_difference']:.3f}"
    )
