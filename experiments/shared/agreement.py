"""The agreement of two maps with a number for each head."""

from collections.abc import Mapping
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


def format_difference(difference: Mapping[str, Any]) -> str:
    """How far two maps differ.

    >>> format_difference({"rank_correlation": 0.987, "largest_difference": 0.0123})
    'rank correlation .99, largest difference .012'
    """
    ranks = difference["rank_correlation"]
    correlation = "undefined" if ranks is None else f"{ranks:.2f}"
    return f"rank correlation {correlation}, largest difference {difference['largest_difference']:.3f}".replace(
        " 0.", " ."
    )
