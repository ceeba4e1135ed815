"""Attention from a word to the same word in the other text of a pair.

For a word that occurs in both texts: the share of its attention (the mean over its tokens) that goes to the same word
in the other text (the sum over its tokens), in the same form or in another form of the same stem (nltk's English
Snowball stemmer). Three controls ask what else gives such weights, with words of another stem at one end:

    same query   the same word to the other words of the other text: a head that looks there wherever the word is
    same place   other words of its text to words of the other text, as many places further on as in the link
    same key     other words of its text to the same word of the other text: a word that all words look at

All are linear in the weights, so each example needs four matrices over its tokens.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from nltk.stem.snowball import SnowballStemmer

from bertjax.data import Encoding
from experiments.words.annotated import Annotated, word_pieces
from experiments.words.estimates import estimate

KINDS = ("same word", "other form")
CONTROLS = ("same query", "same place", "same key")


@dataclass(frozen=True)
class Shared:
    """For each example with words in both texts: weights of the links, then of each control.

    Args:
        values: means over the links of an example.
        links: the number of links of each kind; 0 for none.
    """

    values: Float[np.ndarray, "examples kinds measures layers heads"]
    links: Int[np.ndarray, "examples kinds"]


@cache
def stem(form: str) -> str:
    """The stem of a word in lower case.

    >>> stem("Companies") == stem("company"), stem("run") == stem("rung")
    (True, False)
    """
    return str(SnowballStemmer("english").stem(form.lower()))


def link_shares(
    encoding: Encoding, texts: Sequence[Annotated]
) -> tuple[Float[np.ndarray, "kinds measures token token"], list[int]]:
    """How much each weight counts in the links and in the controls of an example, and the number of links of each kind.

    A link without one of its controls is left out, so that all measures cover the same links.
    """
    words = [
        (segment, position, word.form.lower(), pieces)
        for segment, (text, text_pieces) in enumerate(zip(texts, word_pieces(encoding, texts), strict=True))
        for position, (word, pieces) in enumerate(zip(text.words, text_pieces, strict=True))
        if pieces and re.search(r"\w", word.form)
    ]
    size = len(encoding)
    shares, counts = np.zeros((len(KINDS), 1 + len(CONTROLS), size, size), np.float32), [0] * len(KINDS)
    if len(texts) < 2 or not words:
        return shares, counts
    sides, positions = (np.array([word[field] for word in words]) for field in (0, 1))
    forms, stems = ([word[2] for word in words], [stem(word[2]) for word in words])
    same_form, same_stem = (np.equal.outer(labels, labels) for labels in (np.array(forms), np.array(stems)))
    across = sides[:, None] != sides
    reading = np.zeros((len(words), size), np.float32)
    receiving = np.zeros((len(words), size), np.float32)
    for index, word in enumerate(words):
        reading[index, word[3]], receiving[index, word[3]] = 1 / len(word[3]), 1
    offsets = (
        positions[None] - positions[:, None] + 2 * (positions.max() + 1) * sides[:, None]
    )  # distance and direction
    for kind, linked in enumerate((across & same_form, across & same_stem & ~same_form)):
        weights = _controls(linked, across & ~same_stem, offsets)
        counts[kind] = int(weights[0].sum())
        if counts[kind]:
            shares[kind] = np.einsum("cvw,vq,wk->cqk", weights / counts[kind], reading, receiving, optimize=True)
    return shares, counts


def _controls(
    linked: Bool[np.ndarray, "word word"],
    unrelated: Bool[np.ndarray, "word word"],
    offsets: Int[np.ndarray, "word word"],
) -> Float[np.ndarray, "measures word word"]:
    """How much each pair of words counts: each link 1, then for each control a total of 1 for each link."""
    groups = offsets - offsets.min()
    on_diagonal = np.bincount(groups[unrelated], minlength=groups.max() + 1)
    kept = linked & unrelated.any(1, keepdims=True) & unrelated.any(0) & (on_diagonal[groups] > 0)
    diagonals = np.bincount(groups[kept], minlength=len(on_diagonal)) / np.maximum(on_diagonal, 1)
    by_query = kept.sum(1)[:, None] / np.maximum(unrelated.sum(1), 1)[:, None]
    by_key = kept.sum(0) / np.maximum(unrelated.sum(0), 1)
    return np.stack([kept, unrelated * by_query, unrelated * diagonals[groups], unrelated * by_key]).astype(np.float32)


def shared_weights(
    maps: Float[Array, "layers batch heads query key"], shares: Float[Array, "batch kinds measures size size"]
) -> Float[Array, "batch kinds measures layers heads"]:
    """The mean weight of the links, then of each control."""
    size = maps.shape[-1]
    padding = max(0, size - shares.shape[-1])
    padded = jnp.pad(shares, ((0, 0),) * 3 + ((0, padding),) * 2)[..., :size, :size]
    return jnp.einsum("bmcqk,lbhqk->bmclh", padded, maps)


def report_shared(shared: Shared) -> dict[str, Any]:
    """For each kind that occurs: the share of attention along links, and how far it is above each control."""
    report: dict[str, Any] = {}
    for index, kind in enumerate(KINDS):
        present = shared.links[:, index] > 0
        if present.any():
            linked, *controls = np.moveaxis(shared.values[present, index].astype(np.float64), 1, 0)
            report[kind] = {"examples": int(present.sum()), "links": int(shared.links[:, index].sum())}
            report[kind]["share"] = estimate(linked).to_dict()
            margins = zip(CONTROLS, controls, strict=True)
            report[kind]["margins"] = {name: estimate(linked - control).to_dict() for name, control in margins}
    return report


def report_change(base: Shared, tuned: Sequence[Shared]) -> dict[str, Any]:
    """What fine-tuning changed in each kind's share, averaged over the models."""
    report = {}
    for index, kind in enumerate(KINDS):
        present = base.links[:, index] > 0
        if present.any():
            after = np.mean([shared.values[present, index, 0].astype(np.float64) for shared in tuned], axis=0)
            report[kind] = estimate(after - base.values[present, index, 0]).to_dict()
    return report
