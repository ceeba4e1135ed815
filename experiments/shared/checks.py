"""Published numbers checked against numbers found here."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from experiments.shared.agreement import compare_maps

STANDARD_ERRORS = 4  # among some 1,700 values, one run in ten has one this far off by chance
ROUNDING = 1e-6  # so that 0.005 does not exceed 0.005


@dataclass(frozen=True)
class Check:
    """Published numbers, and the numbers found here.

    Args:
        name: what the numbers are.
        places: what each number is.
        published: the published numbers.
        allowed: how far each may be off.
        found: the numbers found; None where the check was not run.
        reason: why it was not run.
        ranks: the least rank correlation required, or None for no requirement.
        highest: the place that must have the largest number, if any.
    """

    name: str
    places: Sequence[str]
    published: Float[np.ndarray, "entries"]
    allowed: Float[np.ndarray, "entries"]
    found: Float[np.ndarray, "entries"] | None = None
    reason: str = ""
    ranks: float | None = None
    highest: str = ""

    @property
    def verdict(self) -> str:
        """Whether all numbers are within tolerance and in order; NaN never is."""
        if self.found is None:
            return "not run"
        return "pass" if self.within() == len(self.places) and not list(self.disorder()) else "FAIL"

    def within(self, slack: float = 0) -> int:
        """How many numbers are within tolerance, widened by `slack`."""
        return int((np.abs(self.found - self.published) <= self.allowed + slack + ROUNDING).sum())

    @property
    def rank_correlation(self) -> float | None:
        """Rank correlation of the found with the published numbers; None where it is undefined."""
        if self.found is None or not np.isfinite(self.found).all():
            return None
        return compare_maps(self.found, self.published)["rank_correlation"]

    def disorder(self) -> Iterator[str]:
        """What is wrong with the order of the numbers, one message for each fault."""
        ranks = self.rank_correlation
        if self.ranks is not None and (ranks is None or ranks < self.ranks):
            message = "no rank correlation" if ranks is None else f"a rank correlation of {ranks:.2f}"
            yield f"{message}, {self.ranks} is required"
        highest = self.places[int(np.asarray(self.found).argmax())]
        if self.highest and highest != self.highest:
            yield f"{highest} is highest, not {self.highest}"


def reading_error(
    published: Float[np.ndarray, "layers heads"], uppermost: float, anchors: Mapping[str, Any]
) -> Float[np.ndarray, "layers heads"]:
    """How far each number of a map may be off because it was read from a picture.

    By one step of its colours, plus the effect of their unknown lower bound: full at the lowest number, zero at the
    value of the uppermost colour.

    >>> reading_error(np.array([[0.1, 0.2, 0.3]]), 0.3, {"allowed": 0.03, "steps": 100}).round(3)
    array([[0.032, 0.017, 0.002]])
    """
    width = uppermost - published.min()
    return width / anchors["steps"] + anchors["allowed"] * (uppermost - published) / width


def mean_and_error(
    values: Float[np.ndarray, "examples ..."], examples: int
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """The mean (NaN for fewer than two values), and how far the mean of another sample of `examples` may differ."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan), np.zeros(values.shape[1:])
    error = values.std(0, ddof=1) * np.sqrt(1 / len(values) + 1 / examples)
    return values.mean(0), STANDARD_ERRORS * error


def check_map(
    name: str,
    published: Float[np.ndarray, "layers heads"],
    allowed: Float[np.ndarray, "*some"],
    found: Float[np.ndarray, "layers heads"] | None,
) -> Check:
    """The check of a map with a number for each head; not run without `found`."""
    places = [f"{layer}.{head}" for layer, head in np.ndindex(*published.shape)]
    tolerances = np.broadcast_to(allowed, published.shape).ravel()
    return Check(name, places, published.ravel(), tolerances, None if found is None else found.ravel())
