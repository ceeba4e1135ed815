"""Interaction of two sites: the change from disabling both, less the sum of the changes from each alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import norm

from bertjax.statistics import benjamini_hochberg, percentile
from experiments.shared.run import rounded, short

Pairs = Float[np.ndarray, " pairs"]


@dataclass(frozen=True)
class Beyond:
    """The interaction of each pair, in points.

    Args:
        beyond: the change from both, less the sum of the changes from each.
        low, high: its 95 % interval over examples.
        p, q: of the two-sided normal test that it is 0, before and after correction by Benjamini and Hochberg over the
            pairs.
        drawn: its value in each draw of examples.
    """

    beyond: Pairs
    low: Pairs
    high: Pairs
    p: Pairs
    q: Pairs
    drawn: Float[np.ndarray, "draws pairs"]


def measure_beyond(
    change: Float[np.ndarray, " sites"],
    drawn: Float[np.ndarray, "draws sites"],
    joint: Sequence[int],
    first: Sequence[int],
    second: Sequence[int],
) -> Beyond:
    """The change from both less the changes from each alone.

    Args:
        change: of each site, in points.
        drawn: the change in each draw of examples.
        joint: indices of the sites that disable two together.
        first, second: indices of the sites that disable either of the two alone.
    """
    beyond = change[joint] - change[first] - change[second]
    beyond_drawn = drawn[:, joint] - drawn[:, first] - drawn[:, second]
    low, high = percentile(beyond_drawn)
    spread = beyond_drawn.std(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(spread > 0, 2 * norm.sf(np.abs(beyond) / spread), np.where(beyond == 0, 1.0, np.nan))
    return Beyond(beyond, low, high, p, benjamini_hochberg(p), beyond_drawn)


def describe_beyond(beyond: Beyond) -> dict[str, Any]:
    """For `numbers.json`: points to 1/10,000, p and q to four digits, None where undefined."""
    points = {name: [rounded(value) for value in getattr(beyond, name)] for name in ("beyond", "low", "high")}
    return points | {name: [short(value) for value in getattr(beyond, name)] for name in ("p", "q")}
