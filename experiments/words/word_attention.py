"""Attention between words, sentence by sentence."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Float

from bertjax.data import Encoding
from experiments.shared.attention import stream_attention, whole_maps
from experiments.shared.run import Run

T = TypeVar("T")
Pieces = Sequence[Sequence[int]]


def read_words(
    run: Run,
    encodings: Sequence[Encoding],
    pieces: Sequence[Pieces],
    read: Callable[[int, Float[np.ndarray, "all_heads word other"]], T],
) -> list[T]:
    """A function of each sentence's attention between words, in the order of the sentences.

    Args:
        pieces: of each sentence the tokens of each word.
        read: takes a sentence's number and its maps, those of all heads layer by layer.
    """
    found = dict[int, T]()
    if not encodings:
        return []
    for indices, batch in stream_attention(run.model, encodings, whole_maps, norms=run.norms):
        for index, maps in zip(indices.tolist(), batch, strict=True):
            length = len(encodings[index])
            all_heads = maps.reshape(-1, *maps.shape[2:])[:, :length, :length].astype(np.float64)
            found[index] = read(index, word_maps(all_heads, pieces[index]))
    return [found[index] for index in sorted(found)]


def word_maps(
    maps: Float[np.ndarray, "all_heads query key"], pieces: Pieces
) -> Float[np.ndarray, "all_heads word other"]:
    """Attention between words: the mean over the pieces of one, the sum over those of the other.

    Args:
        pieces: the tokens of each word.
    """
    belong = np.zeros((len(pieces), maps.shape[-1]))
    for word, tokens in enumerate(pieces):
        belong[word, list(tokens)] = 1.0
    mean = belong / belong.sum(axis=1, keepdims=True)
    return np.asarray(np.einsum("vq,hqk,wk->hvw", mean, maps, belong, optimize=True))
