"""Do heads attend from a word to the same word in the other text of a pair?

For a word that both texts hold: the share of its attention (the mean over its tokens) that goes to the same word in the
other text (the sum over its tokens), be it the same form or another of the same stem (nltk's English Snowball stemmer).
Three controls ask what else gives such weights, with words of another stem at one end:

    same query   the same word to the other words of the other text: a head that looks there wherever the word is
    same place   other words of its text to the words as many places further on in the other text as the link's
    same key     other words of its text to the same word of the other text: one that all words look at

All are linear in the weights, so that for each example they are four matrices over its tokens.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.data import Encoding
from experiments.words.annotated import Annotated, import_optional, word_pieces
from experiments.words.estimates import estimate

KINDS = ("same word", "other form")
CONTROLS = ("same query", "same place", "same key")


@dataclass(frozen=True)
class Shared:
    """For each example that has words that both texts hold: weights of the links, then of each control.

    Args:
        values: means over the links of an example.
        links: how many there are of each kind, 0 where there is none.
    """

    values: Float[np.ndarray, "examples kinds measures layers heads"]
    links: Int[np.ndarray, "examples kinds"]


@cache
def stem(form: str) -> str:
    """The stem of a word in lower case.

    >>> stem("Companies") == stem("company"), stem("run") == stem("rung")
    (True, False)
    """
    import_optional("nltk", "pip install nltk")
    from nltk.stem.snowball import SnowballStemmer

    return str(SnowballStemmer("english").stem(form.lower()))


def link_shares(
    encoding: Encoding, texts: Sequence[Annotated]
) -> tuple[Float[np.ndarray, "kinds measures token token"], list[int]]:
    """How much each weight counts in the links and in the controls of an example, and how many links of each kind.

    A link without one of its controls is left out, so that all are of the same links.
    """
    words = [
        (segment, place, word.form.lower(), pieces)
        for segment, (text, own) in enumerate(zip(texts, word_pieces(encoding, texts), strict=True))
        for place, (word, pieces) in enumerate(zip(text.words, own, strict=True))
        if pieces and re.search(r"\w", word.form)
    ]
    size = len(encoding)
    shares, counts = np.zeros((len(KINDS), 1 + len(CONTROLS), size, size), np.float32), [0] * len(KINDS)
    if len(texts) < 2 or not words:
        return shares, counts
    side, place = (np.array([word[number] for word in words]) for number in (0, 1))
    forms, stems = ([word[2] for word in words], [stem(word[2]) for word in words])
    same_form, same_stem = (np.equal.outer(several, several) for several in (np.array(forms), np.array(stems)))
    across = side[:, None] != side
    reading = np.zeros((len(words), size), np.float32)
    receiving = np.zeros((len(words), size), np.float32)
    for number, word in enumerate(words):
        reading[number, word[3]], receiving[number, word[3]] = 1 / len(word[3]), 1
    apart = place[None] - place[:, None] + 2 * (place.max() + 1) * side[:, None]  # how many places, and which way
    for kind, linked in enumerate((across & same_form, across & same_stem & ~same_form)):
        several = _controls(linked, across & ~same_stem, apart)
        counts[kind] = int(several[0].sum())
        if counts[kind]:
            shares[kind] = np.einsum("cvw,vq,wk->cqk", several / counts[kind], reading, receiving, optimize=True)
    return shares, counts


def _controls(
    linked: Bool[np.ndarray, "word word"], others: Bool[np.ndarray, "word word"], apart: Int[np.ndarray, "word word"]
) -> Float[np.ndarray, "measures word word"]:
    """How much each pair of words counts: links 1 each, then each control 1 for each link."""
    groups = apart - apart.min()
    on_diagonal = np.bincount(groups[others], minlength=groups.max() + 1)
    kept = linked & others.any(1, keepdims=True) & others.any(0) & (on_diagonal[groups] > 0)
    diagonals = np.bincount(groups[kept], minlength=len(on_diagonal)) / np.maximum(on_diagonal, 1)
    by_query = kept.sum(1)[:, None] / np.maximum(others.sum(1), 1)[:, None]
    by_key = kept.sum(0) / np.maximum(others.sum(0), 1)
    return np.stack([kept, others * by_query, others * diagonals[groups], others * by_key]).astype(np.float32)


def shared_weights(
    maps: Float[Array, "layers batch heads query key"], shares: Float[Array, "batch kinds measures own own"]
) -> Float[Array, "batch kinds measures layers heads"]:
    """The links' mean weight, then that of each control."""
    size = maps.shape[-1]
    missing = max(0, size - shares.shape[-1])
    wide = jnp.pad(shares, ((0, 0),) * 3 + ((0, missing),) * 2)[..., :size, :size]
    return jnp.einsum("bmcqk,lbhqk->bmclh", wide, maps)


def report_shared(found: Shared) -> dict[str, Any]:
    """For each kind that occurs: the share of attention along links, and how far above each control."""
    report: dict[str, Any] = {}
    for number, kind in enumerate(KINDS):
        some = found.links[:, number] > 0
        if some.any():
            own, *controls = np.moveaxis(found.values[some, number].astype(np.float64), 1, 0)
            report[kind] = {"examples": int(some.sum()), "links": int(found.links[:, number].sum())}
            report[kind]["share"] = estimate(own).told()
            margins = zip(CONTROLS, controls, strict=True)
            report[kind]["margins"] = {name: estimate(own - control).told() for name, control in margins}
    return report


def report_change(base: Shared, tuned: Sequence[Shared]) -> dict[str, Any]:
    """What fine-tuning changed of each kind's share, on average over the models."""
    report = {}
    for number, kind in enumerate(KINDS):
        some = base.links[:, number] > 0
        if some.any():
            after = np.mean([one.values[some, number, 0].astype(np.float64) for one in tuned], axis=0)
            report[kind] = estimate(after - base.values[some, number, 0]).told()
    return report
