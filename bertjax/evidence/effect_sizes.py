"""Effects of a metric without its unit, comparable with effects on other data (Cohen 1988)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

Runs = Float[np.ndarray, " runs"]
Counts = Int[np.ndarray, " runs"]
ROUNDING = 1e-6  # of a change: a smaller spread is that of float32


@dataclass(frozen=True)
class EffectSize:
    """A standardised effect of a metric, comparable with effects on other data.

    Attributes:
        text: its description, for people.
        function: takes the base's score, the scores `[runs]`, the spread of one example's share in each difference,
            and the numbers of predictions each run gains and loses (0 for values); returns `[runs]`.
    """

    text: str
    function: Callable[[float, Runs, Runs, Counts, Counts], Runs]


def _cohens_d(base: float, scores: Runs, spread: Runs, gains: Counts, losses: Counts) -> Runs:
    """NaN where all examples change alike: a change without spread is of no size that has a name."""
    changes = scores - base
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(spread > ROUNDING * np.abs(changes), changes / spread, np.where(changes == 0, 0.0, np.nan))


def _cohens_q(base: float, scores: Runs, spread: Runs, gains: Counts, losses: Counts) -> Runs:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.arctanh(scores) - np.arctanh(base)


def _cohens_g(base: float, scores: Runs, spread: Runs, gains: Counts, losses: Counts) -> Runs:
    return np.where(gains + losses > 0, gains / np.maximum(gains + losses, 1) - 0.5, 0.0)


COHENS_D = EffectSize(
    "Cohen's d: the difference over its standard error, over the root of the number of examples", _cohens_d
)
COHENS_G = EffectSize("Cohen's g: the share of flips that gain, less one half", _cohens_g)
COHENS_Q = EffectSize("Cohen's q: the difference of Fisher's z", _cohens_q)
