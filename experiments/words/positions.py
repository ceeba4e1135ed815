"""Attention by position: the baseline for heads that seem to follow a relation.

A head that looks at the previous word finds many subjects of verbs. So links are compared with the best fixed distance
in words, and their weights with what the same head gives at the same distances in tokens anyway (Clark et al. 2019,
section 4.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.stats import false_discovery_control

from experiments.shared.sign_test import sign_test


def sum_diagonals(
    maps: Float[Array, "layers batch heads query key"], inner: Bool[Array, "batch token"]
) -> Float[Array, "batch offsets layers heads"]:
    """The sums of weights at each distance key - query, from 1 - tokens to tokens - 1, where both are inner tokens.

    Each row is shifted right by one place less than the row before, so that diagonals become columns.
    """
    size = maps.shape[-1]
    real = inner.astype(maps.dtype)
    masked = jnp.einsum("lbhqk,bq,bk->lbhqk", maps, real, real)[:, :, :, ::-1]
    flat = jnp.pad(masked, ((0, 0),) * 4 + ((0, size),)).reshape(*maps.shape[:3], 2 * size * size)
    sheared = flat[..., : size * (2 * size - 1)].reshape(*maps.shape[:3], size, 2 * size - 1)
    return jnp.moveaxis(sheared.sum(3), (1, 3), (0, 1))


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


@dataclass
class Profile:
    """A head's mean weight at each distance in tokens, accumulated batch by batch.

    Args:
        reach: the largest distance.
        total: sums of weights by distance, from -reach upwards.
        count: the number of pairs of tokens at each distance.
    """

    reach: int
    total: Float[np.ndarray, "offsets layers heads"]
    count: Int[np.ndarray, " offsets"]

    def add(
        self, sums: Float[np.ndarray, "batch offsets layers heads"], inner: Bool[np.ndarray, "batch token"]
    ) -> None:
        """Add the `sum_diagonals` of a batch with these inner tokens."""
        reach = min(sums.shape[1] // 2, self.reach)  # anything farther is padding
        middle, centre = sums.shape[1] // 2, self.reach
        self.total[centre - reach : centre + reach + 1] += sums[:, middle - reach : middle + reach + 1].sum(0)
        for mask in inner:
            places = np.flatnonzero(mask)
            distances = (places[None] - places[:, None]).ravel() + centre
            self.count += np.bincount(distances, minlength=len(self.count))

    def predict(
        self, pairs: Int[np.ndarray, "examples sets pairs 2"]
    ) -> Float[np.ndarray, "examples sets layers heads"]:
        """The mean, over each set of pairs (query, key), of the profile at their distances; 0 for an empty set."""
        means = self.total / np.maximum(self.count, 1)[:, None, None]
        spread = np.zeros((*pairs.shape[:2], len(self.count)))
        example, group, pair = np.nonzero(pairs[..., 0] >= 0)
        query, key = pairs[example, group, pair].T
        np.add.at(spread, (example, group, key - query + self.reach), 1)
        spread /= np.maximum(spread.sum(-1, keepdims=True), 1)
        return np.einsum("eso,olh->eslh", spread, means)


def start_profile(reach: int, layers: int, heads: int) -> Profile:
    """An empty profile."""
    return Profile(reach, np.zeros((2 * reach + 1, layers, heads)), np.zeros(2 * reach + 1, int))


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
