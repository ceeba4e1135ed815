"""How heads treat the links between words, and [CLS] the features: all that section 4.5 needs, in one pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from experiments.shared.attention import (
    at_pairs,
    largest_of_pairs,
    mean_of_pairs,
    reduce_attention,
    stack_pairs,
    stream_attention,
)
from experiments.shared.program import Run
from experiments.words.annotated import AnnotatedSample
from experiments.words.features import FEATURES, feature_masks, fit_width, largest_of, published_masks
from experiments.words.positions import hits_of, margin_of, start_profile, sum_diagonals
from experiments.words.relations import (
    RELATIONS,
    Linked,
    best_distance,
    best_nearest,
    count_sources,
    join_words,
    member_masks,
    published_pairs,
    token_pairs,
)


@dataclass(frozen=True)
class Found:
    """What was taken of each example.

    Args:
        words: its words and the links between them.
        sources: how many words are sources.
        largest: the largest weight of a relation; 0 without it.
        hits: how many sources attend most to their target.
        excess: the mean weight less what the head gives at the same distances; 0 without the relation.
        row: the largest weight of [CLS] on a feature; 0 without it.
        row_mean: the mean of these weights.
        masks: which tokens are a feature.
    """

    words: list[Linked]
    sources: Int[np.ndarray, "examples relations"]
    largest: Float[np.ndarray, "examples relations layers heads"]
    hits: Float[np.ndarray, "examples relations layers heads"]
    excess: Float[np.ndarray, "examples relations layers heads"]
    row: Float[np.ndarray, "examples features layers heads"]
    row_mean: Float[np.ndarray, "examples features layers heads"]
    masks: Bool[np.ndarray, "examples features token"]


def link_statistics(
    maps: Float[Array, "layers batch heads query key"],
    keep: Int[Array, "batch token"],
    pairs: Int[Array, "batch relations pairs 2"],
    links: Int[Array, "batch relations links 2"],
    members: Bool[Array, "batch word own"],
    inner: Bool[Array, "batch own"],
    masks: Bool[Array, "batch features own"],
) -> Float[Array, "batch statistics layers heads"]:
    """All that is taken of a batch, one after the other: of pairs the largest and the mean, hits, [CLS], diagonals."""
    width = maps.shape[-1]
    real = (links[..., 0] >= 0).astype(maps.dtype)
    best = at_pairs(hits_of(maps, fit_width(members, width)), links)
    hits = jnp.einsum("brn,brnlh->brlh", real, best)
    row, own = jnp.moveaxis(maps[:, :, :, 0], 0, 1), fit_width(masks, width).astype(maps.dtype)
    mean = jnp.einsum("bfk,blhk->bflh", own, row) / jnp.maximum(own.sum(-1), 1)[..., None, None]
    of_pairs = [largest_of_pairs(maps, keep, pairs), mean_of_pairs(maps, keep, pairs)]
    parts = [*of_pairs, hits, largest_of(row, masks), mean, sum_diagonals(maps, fit_width(inner, width))]
    return jnp.concatenate(parts, axis=1)


def published_statistics(
    maps: Float[Array, "layers batch heads query key"],
    keep: Int[Array, "batch token"],
    pairs: Int[Array, "batch relations pairs 2"],
    masks: Bool[Array, "batch features own"],
) -> Float[Array, "batch statistics layers heads"]:
    """The largest weight of each relation's pairs, then of [CLS]'s row on each feature."""
    row = jnp.moveaxis(maps[:, :, :, 0], 0, 1)
    return jnp.concatenate([largest_of_pairs(maps, keep, pairs), largest_of(row, masks)], axis=1)


def follow_links(run: Run, sample: AnnotatedSample) -> Found:
    """All statistics of the corrected form, in one pass over the examples."""
    config, texts = run.model.config, sample.texts
    words = [join_words(*both) for both in zip(texts, sample.annotations, strict=True)]
    pairs = stack_pairs([token_pairs(one.tokens, one.links) for one in words])
    width = max(len(text) for text in texts)
    inner = np.zeros((len(texts), width), bool)
    for example, text in enumerate(texts):
        inner[example, : len(text)] = [start < end for start, end in text.offsets]
    members, masks = member_masks(words, width), feature_masks(sample)
    extras = [pairs, stack_pairs([one.links for one in words]), members, inner, masks]
    heads = config.num_hidden_layers * config.num_attention_heads
    size = 4 * heads * (members.shape[1] * (width + 2 * members.shape[1]) + 4 * width * width + 4 * pairs.shape[2])
    profile = start_profile(width - 1, config.num_hidden_layers, config.num_attention_heads)
    kept = np.zeros((len(texts), 3 * len(RELATIONS) + 2 * len(FEATURES), *profile.total.shape[1:]), np.float32)
    several = partial(_rows, extras)
    for places, values in stream_attention(
        run.model, texts, link_statistics, several, example_bytes=size, report=run.report
    ):
        kept[places] = values[:, : kept.shape[1]]
        profile.add(values[:, kept.shape[1] :], inner[places])
    ends = np.cumsum([len(RELATIONS)] * 3 + [len(FEATURES)])
    largest, mean, hits, row, row_mean = np.split(kept, ends, axis=1)
    excess = (mean - profile.predict(pairs)).astype(np.float32)
    return Found(words, count_sources(words), largest, hits, excess, row, row_mean, masks)


def _rows(extras: Sequence[np.ndarray], places: np.ndarray) -> list[np.ndarray]:
    return [extra[places] for extra in extras]


def measure(run: Run, found: Found) -> dict[str, dict[str, Any]]:
    """For each relation that occurs: its map, how often heads find a target, and the margins over position."""
    measured = {}
    for number, relation in enumerate(RELATIONS):
        some = np.flatnonzero(found.sources[:, number])
        if not len(some):
            continue
        sources, hits = found.sources[some, number], found.hits[some, number].astype(np.float64)
        words = [found.words[example] for example in some]
        margin = partial(margin_of, draws=run.options.draws, rng=np.random.default_rng((run.options.seed, number)))
        distance, near = best_distance(words, number)
        side, nearest = best_nearest(words, number)
        measured[relation] = {
            "examples": len(some),
            "sources": int(sources.sum()),
            "mean": found.largest[some, number].astype(np.float64).mean(0),
            "share": hits.sum(0) / sources.sum(),
            "best_distance": distance,
            "best_distance_share": float(near.sum() / sources.sum()),
            "margin": margin(hits - near[:, None, None], sources),
            "nearest": side,
            "nearest_share": float(nearest.sum() / sources.sum()),
            "nearest_margin": margin(hits - nearest[:, None, None], sources),
            "excess": margin(found.excess[some, number].astype(np.float64), np.ones(len(some), int)),
        }
    return measured


def attend_from_cls(found: Found, lengths: Int[np.ndarray, " examples"]) -> dict[str, dict[str, np.ndarray]]:
    """The last layer's [CLS] row on each feature that occurs, in three forms: a value for each head."""
    rows: dict[str, dict[str, np.ndarray]] = {"largest": {}, "largest_by_uniform": {}, "mean_by_uniform": {}}
    for number, feature in enumerate(FEATURES):
        some = found.masks[:, number].any(-1)
        if not some.any():
            continue
        largest, mean = (values[some, number, -1].astype(np.float64) for values in (found.row, found.row_mean))
        rows["largest"][feature] = largest.mean(0)
        rows["largest_by_uniform"][feature] = (largest * lengths[some, None]).mean(0)
        rows["mean_by_uniform"][feature] = (mean * lengths[some, None]).mean(0)
    return rows


def follow_published(
    run: Run, sample: AnnotatedSample
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray]:
    """What the authors' code computes.

    Returns:
        The map of each relation, 0 for an example without it; the last layer's [CLS] row on each feature
        that occurs, a value for each head; and the values of each example `[examples, relations + features, layers,
        heads]`.
    """
    several = zip(sample.texts, sample.annotations, strict=True)
    pairs = stack_pairs([published_pairs(encoding, texts, run.tokenizer) for encoding, texts in several])
    masks = published_masks(sample, run.tokenizer)
    config = run.model.config
    size = 4 * config.num_hidden_layers * config.num_attention_heads * 4 * (pairs.shape[2] + masks.shape[-1])
    values = reduce_attention(
        run.model, sample.texts, published_statistics, [pairs, masks], example_bytes=size, report=run.report
    )
    exact, last = values.astype(np.float64), len(values[0, 0]) - 1
    maps = {relation: exact[:, number].mean(0) for number, relation in enumerate(RELATIONS)}
    row = {}
    for number, feature in enumerate(FEATURES):
        have = np.flatnonzero(masks[:, number].sum(-1))
        if len(have):
            row[feature] = exact[have, len(RELATIONS) + number, last].mean(0)
    return maps, row, values
