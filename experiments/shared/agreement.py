"""The agreement of two maps with a number for each head."""

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import spearmanr


def compare_maps(first: Float[np.ndarray, "..."], second: Float[np.ndarray, "..."]) -> dict[str, Any]:
    """The largest difference, and Spearman's correlation over heads, None if a map is constant."""
    constant = np.ptp(first) == 0 or np.ptp(second) == 0
    return {
        "largest_difference": float(np.abs(first - second).max()),
        "rank_correlation": None if constant else float(spearmanr(first.ravel(), second.ravel()).statistic),
    }


def format_agreement(name: str, agreement: dict[str, Any]) -> str:
    """One line for the result of `compare_maps`.

    >>> format_agreement("nouns", {"largest_difference": 0.0271, "rank_correlation": 0.999})
    'nouns as published against corrected: rank correlation 1.00, largest difference 0.027'
    """
    ranks = agreement["rank_correlation"]
    correlation = "undefined" if ranks is None else f"{ranks:.2f}"
    return f"{name} as published against corrected: rank correlation {correlation}, largest difference " + (
        f"{agreement['largest_difference']:.3f}"
    )
