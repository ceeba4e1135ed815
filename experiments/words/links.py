"""How heads treat the links between words, measured in one pass over the examples (section 4.5)."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from bertjax.models import PretrainedModel
from experiments.published import published_masks, published_pairs
from experiments.shared.attention import (
    at_pairs,
    largest_of_pairs,
    reduce_attention,
    stack_pairs,
)
from experiments.shared.run import Run
from experiments.words.annotated import AnnotatedSample
from experiments.words.features import (
    FEATURES,
    PUBLISHED_FEATURES,
    fit_width,
    largest_of,
)
from experiments.words.positions import hits_of, margin_of
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
    token_pairs,
)

# Ways to find targets without following the relation: the best fixed distance, the nearest word of the target's kind,
# and the same head looking from other words.
CONTROLS = ("distance", "nearest", *SAME_KEY)
PUBLISHED_ROW = (*PUBLISHED_FEATURES, "[CLS]", "[SEP]")


@dataclass(frozen=True)
class Found:
    """What was measured for each example.

    Args:
        words: its words and the links between them.
        sources: the number of words that are sources.
        largest: the largest weight of a relation; 0 without it.
        hits: how many sources attend most to their target.
        same_key: how many of these hits to expect if the sources attended like other words that are not sources of the
            target, by control (`SAME_KEY`).
    """

    words: list[Linked]
    sources: Int[np.ndarray, "examples relations"]
    largest: Float[np.ndarray, "examples relations layers heads"]
    hits: Float[np.ndarray, "examples relations layers heads"]
    same_key: Float[np.ndarray, "examples controls relations layers heads"]


class BatchLinks(NamedTuple):
    """The words and links of a batch's examples, a row for each.

    Attributes:
        pairs: of tokens, source and target.
        links: of words, source and target.
        others: for each control of `SAME_KEY`, the shares of the words that look for a link's target instead of its
            source.
        members: the word that each token belongs to.
    """

    pairs: Int[Array, "batch relations pairs 2"]
    links: Int[Array, "batch relations links 2"]
    others: Float[Array, "batch controls relations links word"]
    members: Bool[Array, "batch word width"]


def link_statistics(
    maps: Float[Array, "layers batch heads query key"], keep: Int[Array, "batch token"], *arrays: Shaped[Array, "..."]
) -> Float[Array, "batch statistics layers heads"]:
    """All statistics of a batch, one after the other: the largest of pairs, hits, and their controls.

    Args:
        arrays: those of `BatchLinks`.
    """
    pairs, links, others, members = BatchLinks(*arrays)
    real = (links[..., 0] >= 0).astype(maps.dtype)
    best = hits_of(maps, fit_width(members, maps.shape[-1]))
    hits = jnp.einsum("brn,brnlh->brlh", real, at_pairs(best, links))

    def expected(best: Array, links: Array, others: Array) -> Array:
        return jnp.einsum("crnv,lhvrn->crlh", others, best[..., links[..., 1]])

    control = jax.vmap(expected, in_axes=(1, 0, 0))(best, links, others)
    control = control.reshape(len(control), -1, *control.shape[3:])
    return jnp.concatenate([largest_of_pairs(maps, keep, pairs), hits, control], axis=1)


def published_statistics(
    maps: Float[Array, "layers batch heads query key"],
    keep: Int[Array, "batch token"],
    pairs: Int[Array, "batch relations pairs 2"],
    masks: Bool[Array, "batch features width"],
) -> Float[Array, "batch statistics layers heads"]:
    """The largest weight of each relation's pairs, then the largest of [CLS]'s row on each feature."""
    row = jnp.moveaxis(maps[:, :, :, 0], 0, 1)
    return jnp.concatenate([largest_of_pairs(maps, keep, pairs), largest_of(row, masks)], axis=1)


def follow_links(run: Run, model: PretrainedModel, sample: AnnotatedSample) -> Found:
    """All statistics of the corrected form, in one pass over the examples."""
    config, texts = model.config, sample.texts
    words = [join_words(*example) for example in zip(texts, sample.annotations, strict=True)]
    pairs = stack_pairs([token_pairs(linked.tokens, linked.links) for linked in words])
    links = stack_pairs([linked.links for linked in words])
    width = max(len(text) for text in texts)
    members = member_masks(words, width)
    extras = [pairs, links, other_words(words, links, members.shape[1]), members]  # as in `BatchLinks`
    heads, count = config.num_hidden_layers * config.num_attention_heads, members.shape[1]
    size = count * (width + (2 + links.shape[1] * links.shape[2]) * count) + 4 * width * width + 4 * pairs.shape[2]
    options: dict[str, Any] = {"example_bytes": 4 * heads * size, "norms": run.norms}
    statistics = reduce_attention(model, texts, link_statistics, extras, **options)
    largest, hits, *controls = np.split(statistics, 2 + len(SAME_KEY), axis=1)
    return Found(words, count_sources(words), largest, hits, np.stack(controls, axis=1))


def measure(run: Run, statistics: Found) -> dict[str, dict[str, Any]]:
    """For each relation that occurs: its map, how often heads find a target, and what controls find.

    `shares` and `margins` have an entry for each control of `CONTROLS`: how often it finds a target (a number or a
    map), and how much more often the heads do.
    """
    measured = {}
    for index, relation in enumerate(RELATIONS):
        present = np.flatnonzero(statistics.sources[:, index])
        if not len(present):
            continue
        sources, hits = statistics.sources[present, index], statistics.hits[present, index].astype(np.float64)
        words = [statistics.words[example] for example in present]
        margin = partial(margin_of, draws=run.options.draws, rng=np.random.default_rng((run.options.seed, index)))
        distance, distance_hits = best_distance(words, index)
        side, nearest_hits = best_nearest(words, index)
        same_key_hits = [
            statistics.same_key[present, control, index].astype(np.float64) for control in range(len(SAME_KEY))
        ]
        controls = dict(
            zip(CONTROLS, [distance_hits[:, None, None], nearest_hits[:, None, None], *same_key_hits], strict=True)
        )
        measured[relation] = {
            "examples": len(present),
            "sources": int(sources.sum()),
            "mean": statistics.largest[present, index].astype(np.float64).mean(0),
            "share": hits.sum(0) / sources.sum(),
            "best_distance": distance,
            "nearest": side,
            "shares": {
                name: np.squeeze(control_hits.sum(0) / sources.sum()) for name, control_hits in controls.items()
            },
            "margins": {name: margin(hits - control_hits, sources) for name, control_hits in controls.items()},
        }
    return measured


def follow_published(
    run: Run, model: PretrainedModel, sample: AnnotatedSample
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray]:
    """What the authors' code computes.

    Returns:
        The map of each relation, counting 0 for an example without it; the last layer's [CLS] row on each feature
        that occurs, a value for each head; and the values of each example `[examples, relations + features, layers,
        heads]`.
    """
    annotated = zip(sample.texts, sample.annotations, strict=True)
    pairs = stack_pairs([published_pairs(encoding, texts, run.tokenizer) for encoding, texts in annotated])
    masks = published_masks(sample, run.tokenizer)
    config = model.config
    size = 4 * config.num_hidden_layers * config.num_attention_heads * 4 * (pairs.shape[2] + masks.shape[-1])
    values = reduce_attention(model, sample.texts, published_statistics, [pairs, masks], example_bytes=size)
    exact, last = values.astype(np.float64), len(values[0, 0]) - 1
    maps = {relation: exact[:, index].mean(0) for index, relation in enumerate(RELATIONS)}
    row = {}
    for index, feature in enumerate(FEATURES):
        present = np.flatnonzero(masks[:, index].sum(-1))
        if len(present) and feature in PUBLISHED_ROW and feature not in sample.unknown:
            row[feature] = exact[present, len(RELATIONS) + index, last].mean(0)
    return maps, row, values
