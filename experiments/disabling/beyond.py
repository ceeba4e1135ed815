"""What two places change together beyond the sum of what each changes alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import norm

from bertjax.evidence import benjamini_hochberg, percentile
from experiments.disabling.effects import rounded_or_none, short_or_none

Pairs = Float[np.ndarray, " pairs"]


@dataclass(frozen=True)
class Beyond:
    """Of each pair, in points.

    Args:
        beyond: the sum of what each of the two changes.
        low, high: ends of its 95 % interval over examples.
        p, q: of its being 0, two-sided by normal theory, and after Benjamini and Hochberg over the pairs.
        drawn: it on drawn examples.
    """

    beyond: Pairs
    low: Pairs
    high: Pairs
    p: Pairs
    q: Pairs
    drawn: Float[np.ndarray, "draws pairs"]


def measure_beyond(
    change: Float[np.ndarray, " places"],
    drawn: Float[np.ndarray, "draws places"],
    both: Sequence[int],
    first: Sequence[int],
    second: Sequence[int],
) -> Beyond:
    """What both change less what each changes alone.

    Args:
        change: of each place, in points.
        drawn: the same on drawn examples.
        both: which places are two together.
        first, second: which places are these two alone.
    """
    beyond = change[both] - change[first] - change[second]
    beyond_drawn = drawn[:, both] - drawn[:, first] - drawn[:, second]
    low, high = percentile(beyond_drawn)
    spread = beyond_drawn.std(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(spread > 0, 2 * norm.sf(np.abs(beyond) / spread), np.where(beyond == 0, 1.0, np.nan))
    return Beyond(beyond, low, high, p, benjamini_hochberg(p), beyond_drawn)


def tell_beyond(found: Beyond) -> dict[str, Any]:
    """For `numbers.json`: points to 1/10,000, p and q in four digits, None for what is undefined."""
    points = {name: [rounded_or_none(value) for value in getattr(found, name)] for name in ("beyond", "low", "high")}
    return points | {name: [short_or_none(value) for value in getattr(found, name)] for name in ("p", "q")}
