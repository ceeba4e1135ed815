"""Linear probes: how well a linear classifier reads the label of a word from its activations.

A probe is multinomial logistic regression on standardised activations, with the strength of regularisation that is best
on a selection set. Its accuracy alone says little, since a probe can memorise words. Two controls exist:

- a control task (Hewitt and Liang 2019): every word type has a random label, drawn from the distribution of the
  labels; selectivity is the accuracy on the labels minus the accuracy on the control task;
- the description length of the labels by online coding (Voita and Titov 2020), which also counts how many labels a
  probe needs to learn from.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from bertjax.errors import InputError

STRENGTHS = (0.001, 0.01, 0.1)
"""Inverse strengths of regularisation (scikit-learn's C). The best one on the selection set is used."""
PORTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
"""Shares of the data after which a probe is trained anew for online coding (Voita and Titov 2020, section 4)."""
SHARES = (0.6, 0.2)  # of texts for training and selection; the rest tests
STEPS = 200  # of L-BFGS at most
TOLERANCE = 1e-3  # of the largest entry of the gradient, as in scikit-learn


@dataclass(frozen=True)
class Split:
    """Texts that train a probe, select its regularisation, and test it.

    Args:
        train: indices of the texts that train, in ascending order.
        select: indices of the texts that select; none of them trains.
        test: indices of the texts that test; none of them trains or selects.
    """

    train: Int[np.ndarray, " train"]
    select: Int[np.ndarray, " select"]
    test: Int[np.ndarray, " test"]


def split_texts(count: int, seed: int = 0) -> Split:
    """Split texts at random: 60 % train, 20 % select, 20 % test.

    Args:
        count: the number of texts.
        seed: seed of the random order.

    Raises:
        InputError: fewer than 5 texts.

    >>> [len(part) for part in vars(split_texts(10)).values()]
    [6, 2, 2]
    """
    if count < 5:
        raise InputError(f"a probe needs texts to train, select and test: 5 or more, found {count}")
    order = np.random.default_rng(seed).permutation(count)
    ends = np.round(np.cumsum(SHARES) * count).astype(int)
    return Split(*(np.sort(part) for part in np.split(order, ends)))


def control_labels(words: Sequence[str], labels: Int[np.ndarray, " words"], seed: int = 0) -> Int[np.ndarray, " words"]:
    """Labels of a control task: a random label for each word type, drawn from the distribution of `labels`.

    Args:
        words: the words; equal str are of one type.
        labels: class ids of the words.
        seed: seed of the random draw.

    >>> control_labels(["a", "b", "a"], np.array([0, 1, 0]), seed=0).tolist()
    [0, 1, 0]
    """
    _, types = np.unique(np.array(words, np.str_), return_inverse=True)
    drawn = np.random.default_rng(seed).choice(labels, types.max(initial=-1) + 1)
    return np.asarray(drawn[types])


@dataclass(frozen=True)
class LinearProbe:
    """A linear classifier of activations.

    Args:
        mean: mean of each dimension in training.
        scale: standard deviation of each dimension in training; 1 for constant dimensions.
        model: the fitted `LogisticRegression` of scikit-learn; the class id if there is only one.
        classes: the number of classes, including classes that do not occur in training.
        trained: the number of units that trained the model.
    """

    mean: Float[np.ndarray, " width"]
    scale: Float[np.ndarray, " width"]
    model: Any
    classes: int
    trained: int

    def predict(self, features: Float[np.ndarray, "units width"]) -> Int[np.ndarray, " units"]:
        """The most likely class of each unit."""
        if isinstance(self.model, int):
            return np.full(len(features), self.model)
        return np.asarray(self.model.predict((features - self.mean) / self.scale))

    def code_lengths(
        self, features: Float[np.ndarray, "units width"], labels: Int[np.ndarray, " units"]
    ) -> Float[np.ndarray, " units"]:
        """The length in bits of each label's code: the negative binary logarithm of its probability.

        The probability is that of the probe mixed with the uniform distribution, which has the weight 1 / (n + 1) after
        n units of training. So a class that did not occur in training has a finite code.
        """
        probabilities = np.zeros((len(features), self.classes))
        if isinstance(self.model, int):
            probabilities[:, self.model] = 1
        else:
            probabilities[:, self.model.classes_] = self.model.predict_proba((features - self.mean) / self.scale)
        share = 1 / (self.trained + 1)
        mixed = (1 - share) * probabilities[np.arange(len(labels)), labels] + share / self.classes
        return np.asarray(-np.log2(mixed))


def fit_probe(
    features: Float[np.ndarray, "units width"],
    labels: Int[np.ndarray, " units"],
    train: Int[np.ndarray, " train"],
    select: Int[np.ndarray, " select"],
    *,
    classes: int | None = None,
    strengths: Sequence[float] = STRENGTHS,
    shortest: bool = False,
) -> LinearProbe:
    """Train a linear probe with each strength of regularisation, and keep the best one on the selection set.

    Of equally good probes the most regularised one is kept.

    Args:
        features: the activations of all units.
        labels: class ids of all units.
        train: indices of the units that train.
        select: indices of the units that select.
        classes: the number of classes; by default the largest label plus 1.
        strengths: inverse strengths of regularisation (scikit-learn's C).
        shortest: keep the probe with the shortest code of the selected labels, not the most accurate one.

    Raises:
        InputError: nothing to train on.
    """
    from sklearn.exceptions import ConvergenceWarning  # scikit-learn loads pandas, if it is there
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    if not len(train):
        raise InputError("a probe needs at least one word to train on")
    inside, known = features[train], labels[train]
    mean, scale = inside.mean(axis=0, dtype=np.float64), inside.std(axis=0, dtype=np.float64)
    mean, scale = (values.astype(features.dtype) for values in (mean, np.where(scale > 0, scale, 1.0)))
    count = int(labels.max()) + 1 if classes is None else classes
    if len(np.unique(known)) == 1:
        return LinearProbe(mean, scale, int(known[0]), count, len(train))
    inside, outside, true = (inside - mean) / scale, features[select], labels[select]
    best, best_score = None, -np.inf
    for strength in sorted(strengths):
        # (More threads than idle cores take ten times as long for matrices of this size.)
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore", ConvergenceWarning)  # few steps are regularisation too
            model = LogisticRegression(C=strength, max_iter=STEPS, tol=TOLERANCE).fit(inside, known)
        probe = LinearProbe(mean, scale, model, count, len(train))
        if not len(true):
            return probe  # nothing selects: the most regularised one
        scores = -probe.code_lengths(outside, true) if shortest else probe.predict(outside) == true
        if (score := float(scores.sum())) > best_score:
            best, best_score = probe, score
    assert best is not None
    return best


@dataclass(frozen=True)
class Description:
    """The description length of labels by online coding.

    Args:
        bits: the length of the code of all labels.
        uniform_bits: the length of a uniform code.
        portions: the number of units that each probe was trained on.
        bits_of_portions: the length of the code of the labels that follow each portion; the first entry is the uniform
            code of the first portion.
    """

    bits: float
    uniform_bits: float
    portions: tuple[int, ...]
    bits_of_portions: tuple[float, ...]

    @property
    def compression(self) -> float:
        """The length of the uniform code over the length of the code: 1 means that the activations say nothing."""
        return self.uniform_bits / self.bits


def description_length(
    features: Float[np.ndarray, "units width"],
    labels: Int[np.ndarray, " units"],
    order: Sequence[Int[np.ndarray, " _"]],
    select: Int[np.ndarray, " select"],
    *,
    classes: int | None = None,
    strengths: Sequence[float] = STRENGTHS,
) -> Description:
    """The description length of labels by online coding (Voita and Titov 2020, equation 3).

    The labels of the first portion have a uniform code. A probe that is trained on each portion encodes the labels up
    to the end of the next one: L = n_1 log2 K - sum_i log2 p_i(labels n_i + 1 to n_(i+1)).

    Args:
        features: the activations of all units.
        labels: class ids of all units.
        order: the units of each text, in the order in which texts are encoded. Portions end with a text.
        select: indices of the units that select the strength of regularisation: that of their shortest code.
        classes: the number of classes, K; by default the largest label plus 1.
        strengths: inverse strengths of regularisation (scikit-learn's C).
    """
    count = int(labels.max()) + 1 if classes is None else classes
    ends = np.unique([max(1, round(share * len(order))) for share in PORTIONS])
    units = [np.concatenate(order[:end]) for end in ends.tolist()]
    bits = [len(units[0]) * np.log2(count)]
    for before, after in pairwise(units):
        probe = fit_probe(features, labels, before, select, classes=count, strengths=strengths, shortest=True)
        following = after[len(before) :]
        bits.append(float(probe.code_lengths(features[following], labels[following]).sum()))
    total = len(units[-1]) * np.log2(count)
    return Description(float(sum(bits)), float(total), tuple(map(len, units)), tuple(map(float, bits)))
