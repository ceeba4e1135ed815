"""Outputs and labels made up at random, to score and to weigh."""

import numpy as np

from bertjax.evidence.metrics import METRICS

DRAWS = 999


def draw_outputs(rng, metric, runs, examples, classes=3):
    """Outputs and labels; of values some are equal, and words have log-probabilities and ranks."""
    if METRICS[metric].reads == "outputs":
        numbers = -rng.exponential(size=(runs, examples)).round(1), rng.integers(1, 4, (runs, examples))
        return np.stack(numbers, axis=-1), rng.integers(0, 99, examples)
    if METRICS[metric].reads == "predictions":
        return rng.normal(size=(runs, examples, classes)), rng.integers(0, classes, examples)
    labels = (
        rng.normal(size=examples).round(1) if METRICS[metric].targets == "numbers" else rng.integers(0, 2, examples)
    )
    return rng.normal(size=(runs, examples)).round(1), labels


def paired(rng, examples, gain, loss, positive=0.6, right=0.8):
    """Labels, and predictions before and after flips that gain or lose with these probabilities."""
    labels = (rng.random(examples) < positive).astype(int)
    base_right = rng.random(examples) < right
    base = np.where(base_right, labels, 1 - labels)
    flips = rng.random(examples) < np.where(base_right, loss / right, gain / (1 - right))
    return labels, base, np.where(flips, 1 - base, base)


def logits(predictions):
    return np.eye(2)[predictions]
