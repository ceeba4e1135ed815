"""What heads attend to by position alone: the measure for heads that seem to follow a relation.

A head that looks at the word before finds many subjects of verbs. So links are compared with the best fixed distance
in words, and their weights with what the same head gives at the same distances in tokens anyway (Clark et al. 2019,
section 4.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.stats import false_discovery_control

from experiments.shared.signs import sign_test


def sum_diagonals(
    maps: Float[Array, "layers batch heads query key"], inner: Bool[Array, "batch token"]
) -> Float[Array, "batch offsets layers heads"]:
    """The sums of weights at each distance key - query, from 1 - tokens to tokens - 1, both among some tokens.

    Each row is moved to the right by one place less than the row before, so that diagonals become columns.
    """
    size = maps.shape[-1]
    some = inner.astype(maps.dtype)
    among = jnp.einsum("lbhqk,bq,bk->lbhqk", maps, some, some)[:, :, :, ::-1]
    flat = jnp.pad(among, ((0, 0),) * 4 + ((0, size),)).reshape(*maps.shape[:3], 2 * size * size)
    sheared = flat[..., : size * (2 * size - 1)].reshape(*maps.shape[:3], size, 2 * size - 1)
    return jnp.moveaxis(sheared.sum(3), (1, 3), (0, 1))


def hits_of(
    maps: Float[Array, "layers batch heads query key"], members: Bool[Array, "batch word token"]
) -> Float[Array, "layers batch heads word other"]:
    """1 where a word attends most to another, 0 elsewhere; several where they are equal, none where all are 0.

    Weights of a word are the means over its tokens, those to a word the sums (Clark et al. 2019, section 3).
    """
    belong = members.astype(maps.dtype)
    mean = belong / jnp.maximum(belong.sum(-1, keepdims=True), 1)
    words = jnp.einsum("bvq,lbhqk,bwk->lbhvw", mean, maps, belong)
    largest = words.max(-1, keepdims=True)
    return ((words >= largest) & (largest > 0)).astype(maps.dtype)


@dataclass
class Profile:
    """A head's mean weight at each distance in tokens, gathered batch by batch.

    Args:
        reach: the largest distance.
        total: sums of weights, by distance from -reach on.
        count: how many pairs of tokens are that far apart.
    """

    reach: int
    total: Float[np.ndarray, "offsets layers heads"]
    count: Int[np.ndarray, " offsets"]

    def add(
        self, sums: Float[np.ndarray, "batch offsets layers heads"], inner: Bool[np.ndarray, "batch token"]
    ) -> None:
        """Take in `sum_diagonals` of a batch, of these tokens."""
        reach = min(sums.shape[1] // 2, self.reach)  # what is farther is padding
        middle, center = sums.shape[1] // 2, self.reach
        self.total[center - reach : center + reach + 1] += sums[:, middle - reach : middle + reach + 1].sum(0)
        for own in inner:
            places = np.flatnonzero(own)
            apart = (places[None] - places[:, None]).ravel() + center
            self.count += np.bincount(apart, minlength=len(self.count))

    def predict(
        self, pairs: Int[np.ndarray, "examples sets pairs 2"]
    ) -> Float[np.ndarray, "examples sets layers heads"]:
        """The mean, over each set of pairs (query, key), of the profile at their distances; 0 for an empty set."""
        means = self.total / np.maximum(self.count, 1)[:, None, None]
        spread = np.zeros((*pairs.shape[:2], len(self.count)))
        example, number, place = np.nonzero(pairs[..., 0] >= 0)
        query, key = pairs[example, number, place].T
        np.add.at(spread, (example, number, key - query + self.reach), 1)
        spread /= np.maximum(spread.sum(-1, keepdims=True), 1)
        return np.einsum("eso,olh->eslh", spread, means)


def start_profile(reach: int, layers: int, heads: int) -> Profile:
    """An empty profile."""
    return Profile(reach, np.zeros((2 * reach + 1, layers, heads)), np.zeros(2 * reach + 1, int))


@dataclass(frozen=True)
class Margin:
    """A mean difference for each head.

    Args:
        mean: the difference.
        interval: half the width of its 95 % interval.
        q_values: of its being at most 0, corrected over heads (Benjamini and Hochberg 1995).
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
    """Whether differences summed by example are above 0: per unit of `counts`, examples taken as drawn at random.

    The interval is the linearised one of a ratio of means. The p-values are those of `sign_test`.
    """
    units = np.asarray(counts, np.float64)
    examples, total = len(units), units.sum()
    mean = differences.sum(0) / total
    rest = differences - mean * units[:, None, None]
    interval = 1.96 * np.sqrt((rest**2).sum(0) * examples / max(examples - 1, 1)) / total
    q_values = false_discovery_control(sign_test(differences, draws, rng), axis=None).reshape(mean.shape)
    return Margin(mean, interval, q_values)
