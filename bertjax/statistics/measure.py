"""The name, unit and direction of a score, how it is printed, and standardised effect sizes (Cohen 1988)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from bertjax.formatting import format_change

Runs = Float[np.ndarray, " runs"]
Counts = Int[np.ndarray, " runs"]
ROUNDING = 1e-6  # relative to a change: a smaller spread is rounding of float32

POINTS = "points"
"""The unit of shares and correlations, which are printed times 100."""


@dataclass(frozen=True)
class Measure:
    """The name, unit and direction of a score, and how it is printed.

    Attributes:
        label: name in tables and figures.
        unit: 'points' is 100 times the score. In any other unit, such as 'nats', and without a unit, scores are printed
            unchanged.
        greater_is_better: False for losses and errors, such as a cross-entropy.
        of_effects: whether scores are effects themselves, such as Shapley values, and not scores of a model.
        compared_with: the reference that scores are compared with, such as 'uniform attention', if it is not the model
            without ablation. Scores are then those of a head itself.
        tested: whether changes are tested against 0. False for scores whose changes have one sign by construction, such
            as means of absolute values.
        by: the cause of changes: 'ablation', 'patching', 'restoring', 'redrawing', or 'gradients', which predict them;
            'comparison' for scores of pairs, which nothing changes.

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
        """The factor of printed scores."""
        return 100.0 if self.unit == POINTS else 1.0

    @property
    def sign(self) -> int:
        """1 if greater is better, else -1: a change times this is a gain if it is above 0."""
        return 1 if self.greater_is_better else -1

    @property
    def digits(self) -> int:
        """The number of printed decimals."""
        return 2 if self.unit == POINTS else 3

    @property
    def least(self) -> float:
        """Smaller values are printed as 0."""
        return 0.5 * 10**-self.digits

    @property
    def smallest_range(self) -> float:
        """The smallest range of a figure's colours and axes: a smaller one would show rounding."""
        return 10 * self.least

    @property
    def direction(self) -> str:
        """A note for scores of which lower is better; else empty."""
        return "" if self.greater_is_better else "lower is better"

    @property
    def base(self) -> str:
        """A description of the base score, such as 'without ablation'."""
        if self.compared_with:
            return f"of {self.compared_with}"
        of_model = dict.fromkeys(("gradients", "restoring", "redrawing"), "of the model as it is")
        return {"patching": "without patches", **of_model}.get(self.by, "without ablation")

    @property
    def is_of_model(self) -> bool:
        """Whether changes are losses and gains of a model, and not properties of heads."""
        return not self.of_effects and not self.compared_with

    @property
    def names_of_changes(self) -> tuple[str, str]:
        """The names of a change for the worse and for the better. ('A loss' of a loss would be misleading.)"""
        return ("loss", "gain") if self.greater_is_better else ("rise", "fall")

    @property
    def order(self) -> int:
        """1 if tables start with the lowest change, -1 if they start with the highest: the most important first."""
        return -1 if self.of_effects and not self.tested else self.sign

    @property
    def name_of_change(self) -> str:
        """The heading of a column of changes."""
        if self.of_effects:
            return "effect" if self.tested else "value"
        return "difference" if self.compared_with else "change"

    @property
    def untested(self) -> str:
        """The reason why changes are not tested; empty if they are."""
        if self.tested:
            return ""
        if self.of_effects:
            return "never below 0, so not tested"
        return f"differences from {self.compared_with or 'the base'} have one sign, so they are not tested"

    @property
    def caption(self) -> str:
        """The label of an axis of scores and their changes."""
        if self.of_effects:
            return self.label_in_unit
        return f"{self.label_in_unit} ({'difference' if self.compared_with else 'change'})"

    @property
    def label_in_unit(self) -> str:
        """Its label and its unit."""
        return f"{self.label}{f' in {self.unit}' if self.unit else ''}"

    def with_unit(self, text: str) -> str:
        """A printed number with its unit.

        Args:
            text: the formatted number.
        """
        return f"{text} {self.unit}".rstrip()

    def score(self, value: float | None) -> str:
        """Format a score, without its unit.

        Args:
            value: the score, as the metric defines it; None if it is undefined.
        """
        if value is None or math.isnan(value):
            return "undefined"
        return f"{self.factor * value:.{self.digits}f}"

    def change(self, difference: float) -> str:
        """Format a difference of scores, with its sign and without its unit.

        Args:
            difference: a difference of scores, as the metric defines them.
        """
        return self.printed_change(self.factor * difference)

    def printed_change(self, change: float) -> str:
        """Format a change that is multiplied by `factor` already; without a plus sign if no change can be below 0.

        Args:
            change: the change in the printed unit.
        """
        text = format_change(change, self.digits)
        return text.removeprefix("+") if self.of_effects and not self.tested else text


SCORE = Measure()
"""The default: greater is better, printed in points."""


@dataclass(frozen=True)
class EffectSize:
    """A standardised effect size, comparable between data sets.

    Attributes:
        text: description in tables and figures.
        function: takes the base score, the scores `[runs]`, the standard deviation of the examples' contributions to
            each difference, and the numbers of predictions that each run gains and loses (0 for values); returns
            `[runs]`.
    """

    text: str
    function: Callable[[float, Runs, Runs, Counts, Counts], Runs]


def _cohens_d(base: float, scores: Runs, spread: Runs, gains: Counts, losses: Counts) -> Runs:
    """NaN if all examples change equally: the effect size is not defined without spread."""
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
