"""How heads treat the links between words, in one pass over the examples (section 4.5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.model import PretrainedModel
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
from experiments.words.features import (
    FEATURES,
    PUBLISHED_FEATURES,
    fit_width,
    largest_of,
    published_masks,
)
from experiments.words.positions import hits_of, margin_of, start_profile, sum_diagonals
from experiments.words.relations import (
    RELATIONS,
    SAME_KEY,
    Linked,
    best_distance,
    best_nearest,
    count_sources,
    join_words,
    member_masks,
    other_words,
    published_pairs,
    token_pairs,
)

# What finds targets without following the relation: the best fixed distance, the nearest word of the target's kind,
# and the head itself from other words.
CONTROLS = ("distance", "nearest", *SAME_KEY)
PUBLISHED_ROW = (*PUBLISHED_FEATURES, "[CLS]", "[SEP]")


@dataclass(frozen=True)
class Found:
    """What was taken of each example.

    Args:
        words: its words and the links between them.
        sources: how many words are sources.
        largest: the largest weight of a relation; 0 without it.
        hits: how many sources attend most to their target.
        same_key: how many of these hits there would be if the sources attended as other words do that are no sources
            of the target, by control (`SAME_KEY`).
        excess: the mean weight less what the head gives at the same distances; 0 without the relation.
    """

    words: list[Linked]
    sources: Int[np.ndarray, "examples relations"]
    largest: Float[np.ndarray, "examples relations layers heads"]
    hits: Float[np.ndarray, "examples relations layers heads"]
    same_key: Float[np.ndarray, "examples controls relations layers heads"]
    excess: Float[np.ndarray, "examples relations layers heads"]


def link_statistics(
    maps: Float[Array, "layers batch heads query key"],
    keep: Int[Array, "batch token"],
    pairs: Int[Array, "batch relations pairs 2"],
    links: Int[Array, "batch relations links 2"],
    others: Float[Array, "batch controls relations links word"],
    members: Bool[Array, "batch word own"],
    inner: Bool[Array, "batch own"],
) -> Float[Array, "batch statistics layers heads"]:
    """All that is taken of a batch, one after the other: of pairs the largest and the mean, hits, diagonals.

    Args:
        others: the shares of the words with which a link's target is asked for, for each control of `SAME_KEY`.
    """
    width = maps.shape[-1]
    real = (links[..., 0] >= 0).astype(maps.dtype)
    best = hits_of(maps, fit_width(members, width))
    hits = jnp.einsum("brn,brnlh->brlh", real, at_pairs(best, links))

    def expected(best: Array, links: Array, others: Array) -> Array:
        return jnp.einsum("crnv,lhvrn->crlh", others, best[..., links[..., 1]])

    control = jax.vmap(expected, in_axes=(1, 0, 0))(best, links, others)
    control = control.reshape(len(control), -1, *control.shape[3:])
    of_pairs = [largest_of_pairs(maps, keep, pairs), mean_of_pairs(maps, keep, pairs)]
    return jnp.concatenate([*of_pairs, hits, control, sum_diagonals(maps, fit_width(inner, width))], axis=1)


def published_statistics(
    maps: Float[Array, "layers batch heads query key"],
    keep: Int[Array, "batch token"],
    pairs: Int[Array, "batch relations pairs 2"],
    masks: Bool[Array, "batch features own"],
) -> Float[Array, "batch statistics layers heads"]:
    """The largest weight of each relation's pairs, then of [CLS]'s row on each feature."""
    row = jnp.moveaxis(maps[:, :, :, 0], 0, 1)
    return jnp.concatenate([largest_of_pairs(maps, keep, pairs), largest_of(row, masks)], axis=1)


def follow_links(run: Run, model: PretrainedModel, sample: AnnotatedSample) -> Found:
    """All statistics of the corrected form, in one pass over the examples."""
    config, texts = model.config, sample.texts
    words = [join_words(*both) for both in zip(texts, sample.annotations, strict=True)]
    pairs = stack_pairs([token_pairs(one.tokens, one.links) for one in words])
    links = stack_pairs([one.links for one in words])
    width = max(len(text) for text in texts)
    inner = np.zeros((len(texts), width), bool)
    for example, text in enumerate(texts):
        inner[example, : len(text)] = [start < end for start, end in text.offsets]
    members = member_masks(words, width)
    extras = [pairs, links, other_words(words, links, members.shape[1]), members, inner]
    heads, count = config.num_hidden_layers * config.num_attention_heads, members.shape[1]
    size = count * (width + (2 + links.shape[1] * links.shape[2]) * count) + 4 * width * width + 4 * pairs.shape[2]
    profile = start_profile(width - 1, config.num_hidden_layers, config.num_attention_heads)
    kept = np.zeros((len(texts), (3 + len(SAME_KEY)) * len(RELATIONS), *profile.total.shape[1:]), np.float32)
    several = partial(_rows, extras)
    for places, values in stream_attention(
        model, texts, link_statistics, several, example_bytes=4 * heads * size, report=run.report
    ):
        kept[places] = values[:, : kept.shape[1]]
        profile.add(values[:, kept.shape[1] :], inner[places])
    largest, mean, hits, *controls = np.split(kept, 3 + len(SAME_KEY), axis=1)
    excess = (mean - profile.predict(pairs)).astype(np.float32)
    return Found(words, count_sources(words), largest, hits, np.stack(controls, axis=1), excess)


def _rows(extras: Sequence[np.ndarray], places: np.ndarray) -> list[np.ndarray]:
    return [extra[places] for extra in extras]


def measure(run: Run, found: Found) -> dict[str, dict[str, Any]]:
    """For each relation that occurs: its map, how often heads find a target, and what controls find.

    `shares` and `margins` have an entry for each control of `CONTROLS`: how often it finds a target, a number or a map,
    and how much more often the heads do.
    """
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
        others = [found.same_key[some, control, number].astype(np.float64) for control in range(len(SAME_KEY))]
        controls = dict(zip(CONTROLS, [near[:, None, None], nearest[:, None, None], *others], strict=True))
        measured[relation] = {
            "examples": len(some),
            "sources": int(sources.sum()),
            "mean": found.largest[some, number].astype(np.float64).mean(0),
            "share": hits.sum(0) / sources.sum(),
            "best_distance": distance,
            "nearest": side,
            "shares": {name: np.squeeze(one.sum(0) / sources.sum()) for name, one in controls.items()},
            "margins": {name: margin(hits - one, sources) for name, one in controls.items()},
            "excess": margin(found.excess[some, number].astype(np.float64), np.ones(len(some), int)),
        }
    return measured


def follow_published(
    run: Run, model: PretrainedModel, sample: AnnotatedSample
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
    config = model.config
    size = 4 * config.num_hidden_layers * config.num_attention_heads * 4 * (pairs.shape[2] + masks.shape[-1])
    values = reduce_attention(
        model, sample.texts, published_statistics, [pairs, masks], example_bytes=size, report=run.report
    )
    exact, last = values.astype(np.float64), len(values[0, 0]) - 1
    maps = {relation: exact[:, number].mean(0) for number, relation in enumerate(RELATIONS)}
    row = {}
    for number, feature in enumerate(FEATURES):
        have = np.flatnonzero(masks[:, number].sum(-1))
        if len(have) and feature in PUBLISHED_ROW and feature not in sample.unknown:
            row[feature] = exact[have, len(RELATIONS) + number, last].mean(0)
    return maps, row, values
