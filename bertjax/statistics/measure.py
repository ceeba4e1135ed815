"""How a score is called and printed, which way is better, and the standardised size of its changes (Cohen 1988)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from bertjax.formatting import format_change

Runs = Float[np.ndarray, " runs"]
Counts = Int[np.ndarray, " runs"]
ROUNDING = 1e-6  # of a change: a smaller spread is that of float32

# The unit of scores that are printed times 100.
POINTS = "points"
"""The unit of scores that are shares or correlations: they are printed as 100 times what the metric defines."""


@dataclass(frozen=True)
class Measure:
    """How a score is called and printed, and which way is better.

    Attributes:
        label: its name for people.
        unit: what it is printed in. 'points' is 100 times the score; in any other unit, such as 'nats', and where it is
            empty, the score is printed as it is.
        greater_is_better: False for losses and errors, such as a cross-entropy.
        of_effects: whether its scores are themselves effects, of which 0 is none, such as a Shapley value: there is no
            score without an ablation that they would be a change of.
        compared_with: what scores are compared with where that is not the model without ablation, such as 'uniform
            attention': then they are of a head itself, not of the model without it.
        tested: whether a test of changes against 0 means anything. False for scores whose changes have one sign by
            construction, such as a mean of absolute values, which is never below 0.
        by: how changes come about: 'ablation', 'gradients' that predict them, or 'patching'.

    >>> Measure("Accuracy").with_unit(Measure("Accuracy").change(-0.0123))
    '−1.23 points'
    >>> Measure("Cross-entropy", "nats", greater_is_better=False).change(0.0123)
    '+0.012'
    """

    label: str = "Score"
    unit: str = POINTS
    greater_is_better: bool = True
    of_effects: bool = False
    compared_with: str = ""
    tested: bool = True
    by: str = "ablation"

    @property
    def factor(self) -> float:
        """What scores are multiplied by when they are printed."""
        return 100.0 if self.unit == POINTS else 1.0

    @property
    def sign(self) -> int:
        """1 where greater is better, else -1: a change times this is a gain where it is above 0."""
        return 1 if self.greater_is_better else -1

    @property
    def digits(self) -> int:
        """Decimals that are printed."""
        return 2 if self.unit == POINTS else 3

    @property
    def least(self) -> float:
        """What is smaller is printed as 0."""
        return 0.5 * 10**-self.digits

    @property
    def smallest_range(self) -> float:
        """Below this, a picture's colours and axes would show nothing but rounding."""
        return 10 * self.least

    @property
    def direction(self) -> str:
        """What a reader must know of the sign; empty where greater is better, as usual."""
        return "" if self.greater_is_better else "lower is better"

    @property
    def base(self) -> str:
        """Of what the score is that all others are compared with."""
        if self.compared_with:
            return f"of {self.compared_with}"
        return {"gradients": "of the model as it is", "patching": "without patches"}.get(self.by, "without ablation")

    @property
    def is_of_model(self) -> bool:
        """Whether changes are losses and gains of a model without some heads, and not facts about heads."""
        return not self.of_effects and not self.compared_with

    @property
    def names_of_changes(self) -> tuple[str, str]:
        """What a change for the worse and one for the better are called: of a loss, 'loss' would say the opposite."""
        return ("loss", "gain") if self.greater_is_better else ("rise", "fall")

    @property
    def order(self) -> int:
        """1 where tables begin with the lowest change, -1 where they begin with the highest: what matters first."""
        return -1 if self.of_effects and not self.tested else self.sign

    @property
    def name_of_change(self) -> str:
        """What a column of changes is called."""
        if self.of_effects:
            return "effect" if self.tested else "value"
        return "difference" if self.compared_with else "change"

    @property
    def untested(self) -> str:
        """Why changes are not tested; empty where they are."""
        if self.tested:
            return ""
        if self.of_effects:
            return "never below 0, so not tested"
        return f"differences from {self.compared_with or 'the base'} have one sign, so they are not tested"

    @property
    def caption(self) -> str:
        """What an axis of scores, with their changes, is called."""
        if self.of_effects:
            return self.label_in_unit
        return f"{self.label_in_unit} ({'difference' if self.compared_with else 'change'})"

    @property
    def label_in_unit(self) -> str:
        """Its label and its unit."""
        return f"{self.label}{f' in {self.unit}' if self.unit else ''}"

    def with_unit(self, text: str) -> str:
        """A printed number with its unit."""
        return f"{text} {self.unit}".rstrip()

    def score(self, value: float | None) -> str:
        """A score as it is printed, without unit."""
        if value is None or math.isnan(value):
            return "undefined"
        return f"{self.factor * value:.{self.digits}f}"

    def change(self, difference: float) -> str:
        """A difference of scores as it is printed, with its sign and without unit."""
        return self.printed_change(self.factor * difference)

    def printed_change(self, change: float) -> str:
        """A change in the unit of prints; without a plus sign where no change is below 0."""
        text = format_change(change, self.digits)
        return text.removeprefix("+") if self.of_effects and not self.tested else text


# A score in points, of which more is better.
SCORE = Measure()
"""What a score is where nothing is said of it: better when greater, and printed in points."""


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
