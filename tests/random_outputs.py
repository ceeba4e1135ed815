"""Random outputs and labels for tests of scores and statistics."""

import numpy as np

from bertjax.statistics import ratios
from bertjax.statistics.metrics import METRICS

DRAWS = 999


def draw_outputs(rng, metric, runs, examples, classes=3):
    """Outputs and labels; some values are equal, and tasks without labels have other numbers."""
    if METRICS[metric].reads == "outputs":
        numbers = draw_numbers(rng, METRICS[metric].sums.numbers, (runs, examples), classes)
        return np.stack(numbers, axis=-1), rng.integers(0, 99, examples)
    if METRICS[metric].reads == "predictions":
        return rng.normal(size=(runs, examples, classes)), rng.integers(0, classes, examples)
    labels = (
        rng.normal(size=examples).round(1) if METRICS[metric].targets == "numbers" else rng.integers(0, 2, examples)
    )
    return rng.normal(size=(runs, examples)).round(1), labels


def draw_numbers(rng, names, shape, classes=3):
    """The numbers of outputs: possible counts, probabilities, and log-probabilities with some equal values."""
    chance = -rng.exponential(size=shape).round(1)
    if names == ratios.WORDS:
        return chance, rng.integers(1, 4, shape)
    if names == ratios.LIKELIHOODS:
        return chance, -rng.exponential(size=shape).round(1)
    if names == ratios.ANSWERS:
        exact = rng.integers(0, 2, shape)
        return chance, exact, np.maximum(exact, rng.random(shape).round(1))
    if names == ratios.RANKINGS:
        recalls = np.sort(rng.random((3, *shape)).round(1), axis=0)
        return chance, rng.random(shape).round(1), 1 / rng.integers(1, 11, shape), *recalls
    if names == ratios.LABEL_SETS:
        found = rng.integers(0, 2, (classes, *shape))
        true = np.broadcast_to(rng.integers(0, 2, (classes, 1, *shape[1:])), found.shape)
        by_label = [number for label in zip(found & true, found, true, strict=True) for number in label]
        return chance, (found == true).all(axis=0), *by_label
    assert names == ratios.TAGS
    words = np.broadcast_to(rng.integers(1, 9, shape[1:]), shape)
    counts = [rng.integers(0, words + 1), words]
    for _ in ("strict", "default"):
        found, true = rng.integers(0, 4, shape), np.broadcast_to(rng.integers(0, 4, shape[1:]), shape)
        counts += [rng.integers(0, np.minimum(found, true) + 1), found, true]
    return chance, *counts


def paired(rng, examples, gain, loss, positive=0.6, right=0.8):
    """Labels, and predictions before and after flips that gain or lose with these probabilities."""
    labels = (rng.random(examples) < positive).astype(int)
    base_right = rng.random(examples) < right
    base = np.where(base_right, labels, 1 - labels)
    flips = rng.random(examples) < np.where(base_right, loss / right, gain / (1 - right))
    return labels, base, np.where(flips, 1 - base, base)


def logits(predictions):
    return np.eye(2)[predictions]
