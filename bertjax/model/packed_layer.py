"""One layer in a sweep: of one run, of many runs that branch off one parent, and the last layer at [CLS] alone.

Free functions on a layer's weights; `engine/compiled_steps.py` compiles them for blocks of runs. Rows hold several
examples (`engine/packing.py`); `segments` says which tokens belong together.

Two forms compute less than a layer's full work, both exactly. `branch` runs attention once for all runs that differ
from one parent in this layer: the output projection is linear in the heads' outputs, so a run adds only what its
changed heads change. `last_advance` and `last_branch` compute only [CLS], where nothing else is read: one query for
each example, and since `q . (W_K x) = (W_K' q) . x` and `sum_t a_t (W_V x_t) = W_V (sum_t a_t x_t)`, no other token's
key or value.
"""

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.model import fused_attention, ops
from bertjax.model.encoder import Layer
from bertjax.model.layer import AfterAttention, Recipe, after_attention
from bertjax.model.types import Numerics, record


@record
class LayerWeights:
    """One layer's parameters, as the steps read them: kernels in the dtype of computation, the rest in wide floats."""

    qkv_kernel: Float[Array, "embed three heads head_dim"]
    qkv_bias: Float[Array, "three heads head_dim"]
    output_kernel: Float[Array, "heads head_dim embed"]
    output_bias: Float[Array, "embed"]
    after: AfterAttention


def layer_weights(layer: Layer, numerics: Numerics) -> LayerWeights:
    """A layer's parameters, read once for a whole sweep."""
    attention, parts = layer.attention, (layer.attention.query, layer.attention.key, layer.attention.value)
    after = layer.weights_after_attention()
    inner, outer = (kernel.astype(numerics.dtype) for kernel in (after.inner_kernel, after.outer_kernel))
    return LayerWeights(
        jnp.stack([part.kernel[...] for part in parts], axis=1).astype(numerics.dtype),
        jnp.stack([part.bias[...] for part in parts]),
        attention.output.kernel[...].astype(numerics.dtype),
        attention.output.bias[...],
        replace(after, inner_kernel=inner, outer_kernel=outer),
    )


@record
class Changes:
    """What several runs change in one layer; None where no run of the whole sweep does such a thing.

    A head's output becomes
    `(1 - uniform - removed) * own + uniform * (output of uniform weights) + mean * means + patched * donors`.

    Args:
        uniform, removed, mean, patched: for each run and head.
        means: the heads' mean outputs in this layer.
        donors: the heads' outputs on the donors of these rows, at every token (or at [CLS] in a short last layer).
    """

    uniform: Float[Array, "runs heads"] | None
    removed: Float[Array, "runs heads"] | None
    mean: Float[Array, "runs heads"] | None
    patched: Float[Array, "runs heads"] | None
    means: Float[Array, "heads head_dim"] | None
    donors: Float[Array, "batch place heads head_dim"] | None


@record
class Rows:
    """Where the examples of some rows are; as in `packing.Packed`."""

    segments: Int[Array, "batch token"]
    starts: Int[Array, "batch places"]


def advance(
    weights: LayerWeights,
    hidden: Float[Array, "batch token embed"],
    rows: Rows,
    changes: Changes | None,
    recipe: Recipe,
) -> Float[Array, "batch token embed"]:
    """One layer for rows that each have hidden states, and changes, of their own."""
    own, uniform = _attention(weights, hidden, rows, recipe.numerics)
    if changes is not None:
        own = _change(own, uniform, changes)
    merged = _merge(own, weights, recipe.numerics)
    return after_attention(merged + hidden.astype(merged.dtype), weights.after, recipe)


def branch(
    weights: LayerWeights,
    hidden: Float[Array, "batch token embed"],
    rows: Rows,
    changes: Changes,
    recipe: Recipe,
) -> Float[Array, "runs batch token embed"]:
    """One layer for several runs that all start from the same hidden states: attention is computed once."""
    own, uniform = _attention(weights, hidden, rows, recipe.numerics)
    merged = _merge(own, weights, recipe.numerics)
    attended = (merged + hidden.astype(merged.dtype))[None]
    for share, difference in _differences(own, uniform, changes):
        through = ops.contract("bthd,hde->hbte", difference, weights.output_kernel, recipe.numerics)
        attended = attended + jnp.einsum("rh,hbte->rbte", share, through, precision="highest")
    return after_attention(attended, weights.after, recipe)


def last_advance(
    weights: LayerWeights,
    hidden: Float[Array, "batch token embed"],
    rows: Rows,
    changes: Changes | None,
    recipe: Recipe,
) -> Float[Array, "batch places embed"]:
    """The last layer at [CLS] alone, for rows that each have hidden states, and changes, of their own."""
    first, own, uniform = _first_tokens(weights, hidden, rows, recipe.numerics)
    if changes is not None:
        own = _change(own, uniform, changes)
    merged = _merge(own, weights, recipe.numerics)
    return after_attention(merged + first.astype(merged.dtype), weights.after, recipe)


def last_branch(
    weights: LayerWeights,
    hidden: Float[Array, "batch token embed"],
    rows: Rows,
    changes: Changes,
    recipe: Recipe,
) -> Float[Array, "runs batch places embed"]:
    """The last layer at [CLS] alone, for several runs that all start from the same hidden states."""
    first, own, uniform = _first_tokens(weights, hidden, rows, recipe.numerics)
    changed = _change(own[None], uniform[None], changes)
    merged = _merge(changed, weights, recipe.numerics)
    return after_attention(merged + first.astype(merged.dtype)[None], weights.after, recipe)


def head_outputs(
    weights: LayerWeights, hidden: Float[Array, "batch token embed"], rows: Rows, numerics: Numerics
) -> Float[Array, "batch token heads head_dim"]:
    """All heads' outputs at every token: what a donor gives."""
    return _attention(weights, hidden, rows, numerics)[0]


def first_head_outputs(
    weights: LayerWeights, hidden: Float[Array, "batch token embed"], rows: Rows, numerics: Numerics
) -> Float[Array, "batch places heads head_dim"]:
    """All heads' outputs at each example's [CLS]."""
    return _first_tokens(weights, hidden, rows, numerics)[1]


def tokens_at(
    hidden: Float[Array, "batch token embed"], rows: Rows, positions: Int[Array, "batch places wanted"]
) -> Float[Array, "examples wanted embed"]:
    """Hidden states at some tokens of each example, counted from its own first."""
    batch, tokens, embed = hidden.shape
    places = jnp.minimum(rows.starts[:, :, None] + positions, tokens - 1)
    chosen = jnp.take_along_axis(hidden, places.reshape(batch, -1)[:, :, None], axis=1)
    return chosen.reshape(-1, positions.shape[2], embed)


def examples_apart(
    hidden: Float[Array, "batch token embed"], rows: Rows, lengths: Int[Array, "batch places"], longest: int
) -> tuple[Float[Array, "examples longest embed"], Float[Array, "examples 1 longest"]]:
    """Packed hidden states as one padded example after another, and a mask of the real tokens.

    Args:
        lengths: tokens of each place, 0 where a row has fewer examples.
        longest: tokens of the longest example.
    """
    batch, tokens, embed = hidden.shape
    offsets = jnp.arange(longest, dtype=rows.starts.dtype)[None, None]
    places = jnp.minimum(rows.starts[:, :, None] + offsets, tokens - 1)
    apart = jnp.take_along_axis(hidden, places.reshape(batch, -1)[:, :, None], axis=1)
    keep = (offsets < lengths[:, :, None]).astype(jnp.float32)
    return apart.reshape(-1, longest, embed), keep.reshape(-1, 1, longest)


def _attention(
    weights: LayerWeights, hidden: Float[Array, "batch token embed"], rows: Rows, numerics: Numerics
) -> tuple[Float[Array, "batch token heads head_dim"], Float[Array, "batch token heads head_dim"]]:
    """All heads' outputs: their own, and those that uniform weights would give."""
    projected = ops.contract("bte,eshd->btshd", hidden, weights.qkv_kernel, numerics) + weights.qkv_bias[None, None]
    queries, keys, values = (projected[:, :, part].astype(numerics.dtype) for part in range(3))
    means = _segment_means(values, rows, numerics)
    if numerics.attention != "explicit":
        return fused_attention.attend_in_rows(queries, keys, values, rows.segments, numerics), means
    keep = ops.same_segment(rows.segments, numerics.wide)
    learned = ops.attention_weights(ops.attention_scores(queries, keys, numerics), keep[:, None])
    return ops.mix(learned, values, numerics), means


def _membership(rows: Rows, numerics: Numerics) -> Float[Array, "batch places token"]:
    """1 where a token belongs to a place's example."""
    numbers = 1 + jnp.arange(rows.starts.shape[1], dtype=rows.segments.dtype)
    return (rows.segments[:, None] == numbers[None, :, None]).astype(numerics.wide)


def _segment_means(
    values: Float[Array, "batch token heads head_dim"], rows: Rows, numerics: Numerics
) -> Float[Array, "batch token heads head_dim"]:
    """At each token the mean of all values of its example."""
    members = _membership(rows, numerics)
    means = ops.contract("bpt,bthd->bphd", members, values, numerics)
    means = means / jnp.maximum(members.sum(-1), 1)[:, :, None, None]
    return jnp.einsum("bpt,bphd->bthd", members, means, precision="highest")


def _first_tokens(
    weights: LayerWeights, hidden: Float[Array, "batch token embed"], rows: Rows, numerics: Numerics
) -> tuple[
    Float[Array, "batch places embed"],
    Float[Array, "batch places heads head_dim"],
    Float[Array, "batch places heads head_dim"],
]:
    """Hidden states of each example's [CLS], and all heads' outputs there: their own, and those of uniform weights.

    The bias of the keys adds the same to all scores of a query, which a softmax does not see.
    """
    query_kernel, key_kernel, value_kernel = (weights.qkv_kernel[:, part] for part in range(3))
    first = jnp.take_along_axis(hidden, rows.starts[:, :, None], axis=1)
    queries = ops.contract("bpe,ehd->bphd", first, query_kernel, numerics) + weights.qkv_bias[0][None, None]
    reaching = ops.contract("bphd,ehd->bphe", queries.astype(numerics.dtype), key_kernel, numerics)
    scores = ops.contract("bphe,bte->bhpt", reaching, hidden, numerics) * ops.score_scale(queries.shape[-1])
    members = _membership(rows, numerics)
    learned = ops.attention_weights(scores, members[:, None])
    equal = members / jnp.maximum(members.sum(-1, keepdims=True), 1)

    # (XLA's CPU backend has no bfloat16 product whose output has its axes in the order that comes next.)
    mixed = ops.contract("bhpt,bte->bhpe", learned, hidden, numerics).swapaxes(1, 2)
    own = ops.contract("bphe,ehd->bphd", mixed, value_kernel, numerics) + weights.qkv_bias[2][None, None]
    mean = ops.contract("bpt,bte->bpe", equal, hidden, numerics)
    uniform = ops.contract("bpe,ehd->bphd", mean, value_kernel, numerics) + weights.qkv_bias[2][None, None]
    return first, own, uniform


def _per_head(share: Float[Array, "runs heads"], outputs: Array) -> Array:
    """Shares with axes of length 1 where head outputs `[runs, ..., heads, head_dim]` have more."""
    runs, heads = share.shape
    return share.reshape(runs, *[1] * (outputs.ndim - 3), heads, 1).astype(outputs.dtype)


def _change(own: Array, uniform: Array, changes: Changes) -> Array:
    """Head outputs after the changes; the first axis of all is `runs`, or 1."""
    kept: Array | float = 1.0
    added: list[Array] = []
    if changes.uniform is not None:
        share = _per_head(changes.uniform, own)
        kept = kept - share
        added.append(share * uniform)
    if changes.removed is not None:
        kept = kept - _per_head(changes.removed, own)
    if changes.mean is not None and changes.means is not None:
        means = changes.means.reshape(*[1] * (own.ndim - 2), *changes.means.shape).astype(own.dtype)
        added.append(_per_head(changes.mean, own) * means)
    if changes.patched is not None and changes.donors is not None:
        donors = changes.donors.reshape(*[1] * (own.ndim - 4), *changes.donors.shape).astype(own.dtype)
        added.append(_per_head(changes.patched, own) * donors)
    return sum(added, start=kept * own)


def _differences(own: Array, uniform: Array, changes: Changes) -> list[tuple[Array, Array]]:
    """What `_change` adds to the heads' own outputs: pairs of shares `[runs, heads]` and what they are shares of."""
    pairs = []
    if changes.uniform is not None:
        pairs.append((changes.uniform, uniform - own))
    if changes.removed is not None:
        pairs.append((changes.removed, -own))
    if changes.mean is not None and changes.means is not None:
        pairs.append((changes.mean, jnp.broadcast_to(changes.means[None, None].astype(own.dtype), own.shape)))
    if changes.patched is not None and changes.donors is not None:
        pairs.append((changes.patched, changes.donors.astype(own.dtype)))
    return pairs


def _merge(outputs: Float[Array, "... heads head_dim"], weights: LayerWeights, numerics: Numerics) -> Array:
    """The output projection."""
    merged = ops.contract("...hd,hde->...e", outputs, weights.output_kernel, numerics)
    return merged + jnp.expand_dims(weights.output_bias, range(merged.ndim - 1))
