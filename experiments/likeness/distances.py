"""The distance of two heads' attention on a text: the Jensen-Shannon divergence of their rows, mean over queries.

As in "What does BERT look at?" (Clark et al. 2019, section 6); in bits, so from 0 to 1. All pairs of heads at once, a
head against all others at a time, so that nothing larger than the maps of two texts is in memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy
from jaxtyping import Array, Bool, Float, Int

from bertjax.data import Encoding
from experiments.likeness.partners import Partners
from experiments.shared.attention import WIDTHS, reduce_attention, whole_maps
from experiments.shared.program import Run

MAPS_BYTES = 128 * 10**6  # of texts and their partners together


@dataclass(frozen=True)
class Distances:
    """Mean distances in bits, of each text.

    Args:
        same: of each pair of heads, both on the text.
        other: of each pair, one on the text and one on a partner; mean of both ways round and of all partners.
        own: of each head on the text and itself on a partner; mean over partners.
        heads: of a layer.
    """

    same: Float[np.ndarray, "texts pairs"]
    other: Float[np.ndarray, "texts pairs"]
    own: Float[np.ndarray, "texts places"]
    heads: int

    @property
    def names(self) -> list[str]:
        """Of the heads."""
        return [f"{place // self.heads}.{place % self.heads}" for place in range(self.own.shape[1])]


@jax.jit
def compare_heads(
    one: Float[Array, "places token token"], other: Float[Array, "places token token"], keep: Bool[Array, " token"]
) -> Float[Array, "places places"]:
    """The distance of each map of one text to each of another of the same number of tokens.

    JSD(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2, in bits; rows of tokens that are not kept do not count.
    """

    real = keep.astype(one.dtype)

    def information(rows: Array) -> Array:
        return (xlogy(rows, rows).sum(-1) * real[None]).sum(-1) / (real.sum() * jnp.log(2.0))

    mixed = jax.lax.map(lambda rows: information((rows[None] + other) / 2), one)
    both = (information(one)[:, None] + information(other)[None]) / 2
    return jnp.maximum(both - mixed, 0.0)


def measure_distances(run: Run, texts: Sequence[Encoding], partners: Partners) -> Distances:
    """The distances of all pairs of heads, on each text that has partners and against these.

    Args:
        texts: all texts; those without partners are left out.
    """
    config = run.model.config
    places = config.num_hidden_layers * config.num_attention_heads
    upper = np.triu_indices(places, 1)
    count = len(partners.texts)
    same, other = (np.zeros((count, len(upper[0])), np.float32) for _ in range(2))
    own, done = np.zeros((count, places), np.float32), 0
    for members, width in _chunks(texts, partners, places):
        several = [one for number in members for one in (texts[partners.texts[number]], *partners.drawn[number])]
        maps = reduce_attention(run.model, several, whole_maps, length=width)
        maps = maps.reshape(len(members), -1, places, width, width)
        for number, group in zip(members, maps, strict=True):
            keep = np.arange(width) < len(texts[partners.texts[number]])
            same[number] = np.asarray(compare_heads(group[0], group[0], keep))[upper]
            apart = np.mean([np.asarray(compare_heads(group[0], one, keep)) for one in group[1:]], axis=0)
            other[number], own[number] = ((apart + apart.T) / 2)[upper], np.diagonal(apart)
        done += len(members)
        run.report(float(done), float(count))
    return Distances(same, other, own, config.num_attention_heads)


def _chunks(texts: Sequence[Encoding], partners: Partners, places: int) -> Iterator[tuple[list[int], int]]:
    """Texts of similar length, as many as fit, and the width to which all of them are padded."""
    lengths = [len(texts[place]) for place in partners.texts]
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    together = 1 + max((len(drawn) for drawn in partners.drawn), default=0)
    while order:
        longest = lengths[order[-1]]
        width = next((width for width in WIDTHS if width >= longest), longest)
        size = max(1, MAPS_BYTES // (4 * together * places * width**2))
        yield order[-size:], width
        del order[-size:]


def square(
    values: Float[np.ndarray, " pairs"], places: int, diagonal: float = 0.0
) -> Float[np.ndarray, "places places"]:
    """Values of pairs as a symmetric matrix.

    >>> square(np.array([1.0, 2.0, 3.0]), 3)[0].tolist()
    [0.0, 1.0, 2.0]
    """
    full, upper = np.full((places, places), diagonal, np.float64), np.triu_indices(places, 1)
    full[upper] = full.T[upper] = values
    return full


def nearest_heads(same: Float[np.ndarray, " pairs"], places: int) -> Int[np.ndarray, " places"]:
    """The nearest other head of each."""
    return np.asarray(square(same, places, np.inf).argmin(1))


def pair_layers(places: int, heads: int) -> Int[np.ndarray, "2 pairs"]:
    """The layers of both heads of each pair."""
    return np.array(np.triu_indices(places, 1)) // heads
