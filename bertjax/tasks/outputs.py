"""Output specs, which describe the outputs of a model for a task and which metrics can score them; and losses.

Losses are the usual training losses: cross-entropies in nats, and for similarities the squared error
(`CosineSimilarityLoss` of sentence-transformers). Their gradients with respect to the readout are computed in closed
form in float64; the engine propagates them to the heads.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Num, Shaped
from scipy.special import expit, log_softmax

from bertjax.data import DatasetSpec
from bertjax.engine import Combine, SweepResult
from bertjax.interventions import Readout
from bertjax.results import Display
from bertjax.statistics import Metric

Graded = tuple[float, np.ndarray]


@dataclass(frozen=True)
class OutputSpec:
    """The outputs that metrics read: of a model for a task (`Form`), or of an analysis.

    Args:
        name: the name in `summary.json`.
        called: the noun for outputs in messages; empty if it depends on the labels.
        numbers: the names of each output's numbers, for metrics that read them all; empty for one number per label or a
            single number.
        of_each_label: the names of further numbers for each of the task's labels.
        counted: the noun for target positions; empty for outputs of whole texts.
        predicts: whether the largest number is the predicted class, if labels are classes.
        by_rank: whether outputs are scored by metrics of ranks, in place of the task's metrics.
        sized: the number of first numbers whose changes are comparable in size; None for all.
        display: the display of examples on the page.
    """

    name: str
    called: str = field(default="", kw_only=True)
    numbers: tuple[str, ...] = field(default=(), kw_only=True)
    of_each_label: tuple[str, ...] = field(default=(), kw_only=True)
    counted: str = field(default="", kw_only=True)
    predicts: bool = field(default=False, kw_only=True)
    by_rank: bool = field(default=False, kw_only=True)
    sized: int | None = field(default=None, kw_only=True)
    display: type[Display] = field(default=Display, kw_only=True)

    def sizes(self, result: SweepResult) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of base and ablated outputs whose changes are comparable in size.

        Args:
            result: the outputs of the task.
        """
        if self.sized is None:
            return result.base, result.outputs
        return result.base[..., : self.sized], result.outputs[..., : self.sized]

    def fits(self, metric: Metric, spec: DatasetSpec) -> bool:
        """Whether a metric can score these outputs with the labels of a task.

        Args:
            metric: a metric of any kind.
            spec: the labels of the dataset.
        """
        classes, two_classes = spec.kind == "classification", len(spec.label_names or (0, 0)) == 2
        if metric.reads == "outputs":
            sums = metric.sums
            return sums is None or (sums.numbers, sums.of_each_label) == (self.numbers, self.of_each_label)
        if metric.scale_of_labels and self.by_rank:
            return False
        if (metric.targets == "classes") != classes or not (self.by_rank or self.predicts):
            return False
        predicts = classes and self.predicts
        if metric.reads != ("predictions" if predicts else "values"):
            return False
        return two_classes or not predicts or not metric.of_one_label


@dataclass(frozen=True)
class Form(OutputSpec):
    """The outputs of a model for an example.

    Args:
        readout: computes the outputs of each text.
        combine: computes the outputs of an example from those of its texts, if it has several.
    """

    readout: Readout
    combine: Combine | None = None


@dataclass(frozen=True)
class Objective:
    """A loss and its gradient.

    Args:
        readout: computes the values of each text.
        grade: maps an example's index and the values of its texts, `[texts, ...]`, to the example's loss (NaN without a
            label) and the gradient of the loss with respect to the values.
        definition: the definition of the loss.
        unit: the unit of the loss; empty for no unit.
    """

    readout: Readout
    grade: Callable[[int, Shaped[np.ndarray, "texts ..."]], Graded]
    definition: str
    unit: str = "nats"


def cross_entropy(logits: Float[np.ndarray, " choices"], true: int) -> Graded:
    """`-log softmax(logits)[true]`, and its gradient.

    >>> loss, gradient = cross_entropy(np.array([0.0, 0.0]), 1)
    >>> round(loss, 4), gradient.tolist()
    (0.6931, [0.5, -0.5])
    """
    shares = log_softmax(logits.astype(np.float64))
    gradient = np.exp(shares)
    gradient[true] -= 1
    return -float(shares[true]), gradient


def binary_cross_entropy(logits: Float[np.ndarray, " labels"], true: Num[np.ndarray, " labels"]) -> Graded:
    """The mean over labels of `log(1 + exp(logit)) - true * logit`, and its gradient.

    >>> loss, gradient = binary_cross_entropy(np.array([0.0, 0.0]), np.array([1.0, 0.0]))
    >>> round(loss, 4), gradient.tolist()
    (0.6931, [-0.25, 0.25])
    """
    exact = logits.astype(np.float64)
    losses = np.logaddexp(0, exact) - true * exact
    return float(losses.mean()), (expit(exact) - true) / len(exact)


def squared_error(value: float, true: float) -> tuple[float, float]:
    """`(value - true)^2`, and its derivative.

    >>> squared_error(3.0, 1.0)
    (4.0, 4.0)
    """
    return (value - true) ** 2, 2 * (value - true)


def cosine_and_gradients(
    first: Float[np.ndarray, " embed"], others: Float[np.ndarray, "texts embed"]
) -> tuple[Float[np.ndarray, " texts"], Float[np.ndarray, "texts embed"], Float[np.ndarray, "texts embed"]]:
    """The cosine similarities of one vector to others, and their gradients with respect to the first and the others."""
    lengths = np.maximum(np.linalg.norm(others, axis=-1), 1e-12)[:, None]
    length = max(float(np.linalg.norm(first)), 1e-12)
    units, unit = others / lengths, first / length
    cosines = units @ unit
    return cosines, (units - cosines[:, None] * unit) / length, (unit - cosines[:, None] * units) / lengths
