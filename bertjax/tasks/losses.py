"""Losses: what a model of each task is trained to make small, and how it changes with what the model gives.

The gradients are in closed form, in float64: what a model gives for an example's texts is small, and how its heads
change that is left to the engine. Losses are those with which such models are trained: cross-entropy in nats, and for
similarities the squared error (`CosineSimilarityLoss` of sentence-transformers).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Num, Shaped
from scipy.special import expit, log_softmax

from bertjax.interventions import Readout

Graded = tuple[float, np.ndarray]


@dataclass(frozen=True)
class Objective:
    """What gradients are taken of.

    Args:
        readout: what is kept of each text.
        grade: takes an example's number and what the readout gave for its texts, `[texts, ...]`; returns the example's
            loss, NaN where it has no label, and the loss's gradient with respect to what was given.
        definition: of the loss, in words.
        unit: of the loss; empty where it has none.
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
    """The cosine similarity of a vector to others, and the gradients with respect to the first and to each other."""
    lengths = np.maximum(np.linalg.norm(others, axis=-1), 1e-12)[:, None]
    length = max(float(np.linalg.norm(first)), 1e-12)
    units, unit = others / lengths, first / length
    cosines = units @ unit
    return cosines, (units - cosines[:, None] * unit) / length, (unit - cosines[:, None] * units) / lengths


def grade_logits(
    labels: Num[np.ndarray, " examples"],
    order: Sequence[int],
    classes: bool,
    example: int,
    given: Float[np.ndarray, "texts labels"],
) -> Graded:
    """A classifier's cross-entropy, or a regression's squared error.

    Args:
        order: column of the model's output for each of the task's labels.
        classes: whether labels are classes.
    """
    gradient = np.zeros(given.shape)
    if classes:
        if labels[example] < 0:
            return np.nan, gradient
        loss, gradient[0, list(order)] = cross_entropy(given[0, list(order)], int(labels[example]))
        return loss, gradient
    loss, gradient[0, 0] = squared_error(float(given[0, 0]), float(labels[example]))
    return loss, gradient


def grade_score(targets: Float[np.ndarray, " examples"], example: int, given: Float[np.ndarray, "texts 1"]) -> Graded:
    """A cross-encoder's binary cross-entropy, of its logit.

    Args:
        targets: from 0 to 1.
    """
    loss, gradient = binary_cross_entropy(given[0], targets[example : example + 1])
    return loss, gradient[None]


def grade_similarity(
    targets: Float[np.ndarray, " examples"], example: int, given: Float[np.ndarray, "two embed"]
) -> Graded:
    """The squared error of a pair's cosine similarity.

    Args:
        targets: from 0 to 1.
    """
    exact = given.astype(np.float64)
    cosines, of_first, of_second = cosine_and_gradients(exact[0], exact[1:])
    loss, slope = squared_error(float(cosines[0]), float(targets[example]))
    return loss, slope * np.concatenate([of_first, of_second])


def to_unit_range(
    labels: Num[np.ndarray, " examples"], positive: int | None, scale: tuple[float, float] | None = None
) -> Float[np.ndarray, " examples"]:
    """Labels as targets from 0 to 1: 1 for the class that counts as yes, or of ratings their place on their scale.

    Args:
        positive: the class; None for ratings. Unlabelled examples have NaN.
        scale: the lowest and highest rating; None where no example has one.

    >>> to_unit_range(np.array([2.0, 3.0]), None, (0.0, 5.0)).tolist()
    [0.4, 0.6]
    """
    if positive is not None:
        return np.where(labels < 0, np.nan, labels == positive).astype(np.float64)
    low, high = scale or (0.0, 1.0)
    return np.asarray((labels.astype(np.float64) - low) / (high - low if high > low else 1.0))
