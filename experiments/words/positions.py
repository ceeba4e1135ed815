"""Attention by position: the baseline for heads that seem to follow a relation.

A head that looks at the previous word finds many subjects of verbs. So links are compared with the best fixed distance
in words (Clark et al. 2019, section 4.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.stats import false_discovery_control

from experiments.shared.sign_test import sign_test


def hits_of(
    maps: Float[Array, "layers batch heads query key"], members: Bool[Array, "batch word token"]
) -> Float[Array, "layers batch heads word other"]:
    """1 where a word attends most to another, 0 elsewhere; tied words all get 1, and a row of zeros has none.

    Weights from a word are the means over its tokens, weights to a word the sums (Clark et al. 2019, section 3).
    """
    belong = members.astype(maps.dtype)
    mean = belong / jnp.maximum(belong.sum(-1, keepdims=True), 1)
    words = jnp.einsum("bvq,lbhqk,bwk->lbhvw", mean, maps, belong)
    largest = words.max(-1, keepdims=True)
    return ((words >= largest) & (largest > 0)).astype(maps.dtype)


@dataclass(frozen=True)
class Margin:
    """A mean difference for each head.

    Args:
        mean: the mean difference.
        interval: half the width of its 95 % interval.
        q_values: for the difference being at most 0, corrected over heads (Benjamini and Hochberg 1995).
    """

    mean: Float[np.ndarray, "layers heads"]
    interval: Float[np.ndarray, "layers heads"]
    q_values: Float[np.ndarray, "layers heads"]


def margin_of(
    differences: Float[np.ndarray, "examples layers heads"],
    counts: Sequence[int] | Int[np.ndarray, " examples"],
    draws: int,
    rng: np.random.Generator,
) -> Margin:
    """Whether differences summed by example are above 0, per unit of `counts`; examples count as drawn at random.

    The interval is the linearised one of a ratio of means. The p-values are those of `sign_test`.
    """
    units = np.asarray(counts, np.float64)
    examples, total = len(units), units.sum()
    mean = differences.sum(0) / total
    residuals = differences - mean * units[:, None, None]
    interval = 1.96 * np.sqrt((residuals**2).sum(0) * examples / max(examples - 1, 1)) / total
    q_values = false_discovery_control(sign_test(differences, draws, rng), axis=None).reshape(mean.shape)
    return Margin(mean, interval, q_values)
