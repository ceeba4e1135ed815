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
