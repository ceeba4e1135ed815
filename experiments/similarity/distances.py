"""The distance of two heads' attention on a text: the Jensen-Shannon divergence of their rows, averaged over queries.

As in "What does BERT look at?" (Clark et al. 2019, section 6), in bits and so from 0 to 1. All pairs of heads are
compared, one head against all others at a time, so that nothing larger than the maps of two texts is in memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy
from jaxtyping import Array, Bool, Float, Int, Num
from scipy.spatial.distance import squareform

from bertjax.data import Encoding
from experiments.shared.attention import WIDTHS, reduce_attention, whole_maps
from experiments.shared.run import Run
from experiments.similarity.partners import Partners

MAPS_BYTES = 128 * 10**6  # for texts and their partners together


@dataclass(frozen=True)
class Distances:
    """Mean distances in bits for each text.

    Args:
        same: for each pair of heads, both on the text.
        other: for each pair, one head on the text and one on a partner; mean over both orders and all partners.
        own: for each head on the text and the same head on a partner; mean over partners.
        heads: number per layer.
    """

    same: Float[np.ndarray, "texts pairs"]
    other: Float[np.ndarray, "texts pairs"]
    own: Float[np.ndarray, "texts places"]
    heads: int

    @property
    def names(self) -> list[str]:
        """The names of the heads."""
        return [f"{place // self.heads}.{place % self.heads}" for place in range(self.own.shape[1])]


@jax.jit
def compare_heads(
    first: Float[Array, "places token token"], second: Float[Array, "places token token"], keep: Bool[Array, " token"]
) -> Float[Array, "places places"]:
    """The distance of each map of one text from each map of another with the same number of tokens.

    JSD(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2, in bits; rows of tokens not in `keep` do not count.
    """

    real = keep.astype(first.dtype)

    def information(rows: Array) -> Array:
        return (xlogy(rows, rows).sum(-1) * real[None]).sum(-1) / (real.sum() * jnp.log(2.0))

    mixed_information = jax.lax.map(lambda rows: information((rows[None] + second) / 2), first)
    mean_information = (information(first)[:, None] + information(second)[None]) / 2
    return jnp.maximum(mean_information - mixed_information, 0.0)


def measure_distances(run: Run, texts: Sequence[Encoding], partners: Partners) -> Distances:
    """The distances of all pairs of heads on each text that has partners, and between the text and its partners.

    Args:
        texts: all texts; those without partners are omitted.
    """
    config = run.model.config
    places = config.num_hidden_layers * config.num_attention_heads
    upper = np.triu_indices(places, 1)
    count = len(partners.texts)
    same, other = (np.zeros((count, len(upper[0])), np.float32) for _ in range(2))
    own = np.zeros((count, places), np.float32)
    for members, width in _chunks(texts, partners, places):
        encodings = [
            encoding for index in members for encoding in (texts[partners.texts[index]], *partners.drawn[index])
        ]
        maps = reduce_attention(run.model, encodings, whole_maps, length=width)
        maps = maps.reshape(len(members), -1, places, width, width)
        for index, group in zip(members, maps, strict=True):
            keep = np.arange(width) < len(texts[partners.texts[index]])
            same[index] = np.asarray(compare_heads(group[0], group[0], keep))[upper]
            distances = np.mean([np.asarray(compare_heads(group[0], partner, keep)) for partner in group[1:]], axis=0)
            other[index], own[index] = ((distances + distances.T) / 2)[upper], np.diagonal(distances)
    return Distances(same, other, own, config.num_attention_heads)


def _chunks(texts: Sequence[Encoding], partners: Partners, places: int) -> Iterator[tuple[list[int], int]]:
    """Batches of texts of similar length that fit in memory, each with the width to which it is padded."""
    lengths = [len(texts[place]) for place in partners.texts]
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    texts_per_group = 1 + max((len(drawn) for drawn in partners.drawn), default=0)
    while order:
        longest = lengths[order[-1]]
        width = next((width for width in WIDTHS if width >= longest), longest)
        size = max(1, MAPS_BYTES // (4 * texts_per_group * places * width**2))
        yield order[-size:], width
        del order[-size:]


def square(values: Num[np.ndarray, " pairs"], diagonal: float = 0.0) -> Num[np.ndarray, "places places"]:
    """Values of pairs as a symmetric matrix.

    >>> square(np.array([1.0, 2.0, 3.0]))[0].tolist()
    [0.0, 1.0, 2.0]
    """
    full = squareform(values.astype(np.float64))
    np.fill_diagonal(full, diagonal)
    return full


def nearest_heads(same: Float[np.ndarray, " pairs"]) -> Int[np.ndarray, " places"]:
    """The nearest other head of each head."""
    return np.asarray(square(same, np.inf).argmin(1))


def pair_layers(places: int, heads: int) -> Int[np.ndarray, "2 pairs"]:
    """The layers of the two heads of each pair."""
    return np.array(np.triu_indices(places, 1)) // heads
