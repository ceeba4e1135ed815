"""Scores of masked words as functions of sums: each output is the true word's log-probability and its rank.

The log-probability is in nats, over the whole vocabulary; rank 1 is the likeliest word. Pseudo-perplexity is the
exponential of the mean of negative log-probabilities, each word masked by itself (Salazar et al. 2020).
"""

import numpy as np
from jaxtyping import Float, Num

from bertjax.evidence.resampling import Sums

Words = Float[np.ndarray, "runs words 2"]
Terms = Float[np.ndarray, "runs words 2"]


def _log_probabilities(outputs: Words, labels: Num[np.ndarray, " words"], positive: int) -> Terms:
    return np.stack([outputs[..., 0], np.ones(outputs.shape[:2])], axis=-1)


def _hits(outputs: Words, labels: Num[np.ndarray, " words"], positive: int) -> Terms:
    return np.stack([(outputs[..., 1] == 1).astype(np.float64), np.ones(outputs.shape[:2])], axis=-1)


def _mean(sums: Float[np.ndarray, "*draws 2"]) -> Float[np.ndarray, "*draws"]:
    with np.errstate(invalid="ignore"):  # no word
        mean: Float[np.ndarray, "*draws"] = sums[..., 0] / sums[..., 1]
    return mean


NUMBERS = ("log-probability", "rank")
CROSS_ENTROPY = Sums(_log_probabilities, lambda sums: -_mean(sums), NUMBERS)
PSEUDO_PERPLEXITY = Sums(_log_probabilities, lambda sums: np.exp(-_mean(sums)), NUMBERS)
WORD_ACCURACY = Sums(_hits, _mean, NUMBERS)
