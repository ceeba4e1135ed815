"""One encoder layer of a sweep, on rows that hold several examples (`engine/packing.py`).

`apply_layer` computes rows of one run each, `fork_from_parent` many runs that share their hidden states until this
layer. They are free functions on a layer's weights, which `engine/compiled_steps.py` compiles. `segments` says which
tokens of a row belong to the same example. Positions count from the first token of each example; distances and windows
are differences of indices, which are the same within an example.

Two forms do less than a layer's full work; both are exact. `fork_from_parent` computes attention once for all runs: the
output projection is linear in the head outputs, so a run adds only the difference that its interventions make. With
`cls_only=True` the last layer is computed at [CLS] only: one query for each example, and since
`q . (W_K x) = (W_K' q) . x` and `sum_t a_t (W_V x_t) = W_V (sum_t a_t x_t)`, no keys or values of other tokens. If keys
depend on their positions (rotary positions, vectors of distances) the first identity does not hold, and the keys of all
tokens are computed, but no values.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.checkpoints import LayerKind
from bertjax.models import ops, positions
from bertjax.models.encoder import Dense, Layer, value_of
from bertjax.models.interventions import (
    LayerInterventions,
    TokenInterventions,
    intervene_on_outputs,
    output_differences,
)
from bertjax.models.kernels import fused_attention
from bertjax.models.layer import AfterAttention, Recipe, after_attention, before_attention
from bertjax.models.positions import DistanceWeights
from bertjax.models.types import Numerics, record

# Longer rows are computed in blocks of `QUERIES` queries, so that memory grows linearly with the length.
WHOLE_ROWS = 1024
QUERIES = 256


@record
class LayerWeights:
    """Parameters of one layer: kernels in `numerics.dtype`, all others in `numerics.wide`.

    Args:
        qkv_kernel: kernel of queries, keys and values, `[embed, 3, heads, head_dim]`.
        qkv_bias: bias of queries, keys and values, or None.
        output_kernel: kernel of the output projection, `[heads, head_dim, embed]`.
        output_bias: bias of the output projection, or None.
        distances: parameters of scores by distance, or None.
        after: parameters of the rest of the layer.
    """

    qkv_kernel: Float[Array, "embed three heads head_dim"]
    qkv_bias: Float[Array, "three heads head_dim"] | None
    output_kernel: Float[Array, "heads head_dim embed"]
    output_bias: Float[Array, "embed"] | None
    distances: DistanceWeights | None
    after: AfterAttention


def layer_weights(layer: Layer, numerics: Numerics, table: Float[Array, "buckets width"] | None = None) -> LayerWeights:
    """Read the parameters of a layer, once for a sweep.

    Args:
        layer: the layer.
        numerics: dtypes and precision.
        table: distance table that all layers share (`Encoder.relative`), or None.
    """
    attention, parts = layer.attention, (layer.attention.query, layer.attention.key, layer.attention.value)
    after = layer.weights_after_attention()
    inner, outer = (kernel.astype(numerics.dtype) for kernel in (after.inner_kernel, after.outer_kernel))
    return LayerWeights(
        qkv_kernel=jnp.stack([part.kernel[...] for part in parts], axis=1).astype(numerics.dtype),
        qkv_bias=_stacked_biases(parts),
        output_kernel=attention.output.kernel[...].astype(numerics.dtype),
        output_bias=value_of(attention.output.bias),
        distances=None if table is None else attention.distance_weights(table),
        after=replace(after, inner_kernel=inner, outer_kernel=outer),
    )


def _stacked_biases(parts: tuple[Dense, ...]) -> Float[Array, "three heads head_dim"] | None:
    biases = [part.bias[...] for part in parts if part.bias is not None]
    return jnp.stack(biases) if biases else None


@record
class Rows:
    """Layout of the examples in packed rows, as in `packing.Packed`.

    Args:
        segments: example of each token, from 1; 0 for padding.
        starts: first token of each example.
        targets: tokens at which a last layer with `cls_only` is computed; None for [CLS] of each example.
        spans: span of each token, where interventions act at single tokens.
    """

    segments: Int[Array, "batch token"]
    starts: Int[Array, "batch places"]
    targets: Int[Array, "batch pick"] | None = None
    spans: Int[Array, "batch token"] | None = None

    @property
    def last(self) -> Int[Array, "batch places"]:
        """Tokens at which a last layer with `cls_only` is computed."""
        return self.starts if self.targets is None else self.targets


def apply_layer(
    weights: LayerWeights,
    hidden: Float[Array, "batch token embed"],
    rows: Rows,
    interventions: LayerInterventions | None,
    recipe: Recipe,
    *,
    gates: Float[Array, "batch token heads"] | None = None,
    cls_only: bool = False,
) -> Float[Array, "batch token_or_place embed"]:
    """Apply a layer to rows that each have their own hidden states and interventions.

    Args:
        weights: parameters of the layer.
        hidden: hidden states, `[batch, token, embed]`.
        rows: positions, segments and masks of the rows.
        interventions: one run for each row; None for none.
        recipe: static settings of the layer.
        gates: the share of each head's learned output that is kept at each token, from 0 to 1; None for 0.
        cls_only: compute only `rows.last`, for a last layer; gates at other tokens are ignored.
    """
    at_tokens = None if interventions is None else TokenInterventions(interventions, rows.spans)
    hidden = hidden if at_tokens is None else at_tokens.replace("hidden_states", hidden)
    if cls_only:
        hidden, learned, uniform = _first_tokens(weights, hidden, rows, recipe)
        at_tokens = None if interventions is None else TokenInterventions(interventions, _spans_of_last(rows))
        gates = None if gates is None else jnp.take_along_axis(gates, rows.last[:, :, None], axis=1)
    else:
        learned, uniform = _attention(weights, hidden, rows, recipe, at_tokens)
    return _finish(weights, learned, uniform, hidden, at_tokens, recipe, gates=gates)


def fork_from_parent(
    weights: LayerWeights,
    hidden: Float[Array, "batch token embed"],
    rows: Rows,
    interventions: LayerInterventions,
    recipe: Recipe,
    *,
    cls_only: bool = False,
) -> Float[Array, "runs batch token_or_place embed"]:
    """Apply a layer for several runs that start from the same hidden states: attention is computed once.

    Args:
        weights: parameters of the layer.
        hidden: hidden states of the parent, `[batch, token, embed]`.
        rows: positions, segments and masks of the rows.
        interventions: interventions of each run.
        recipe: static settings of the layer.
        cls_only: compute only `rows.last`, for a last layer.
    """
    if cls_only:
        first, learned, uniform = _first_tokens(weights, hidden, rows, recipe)
        at_tokens = TokenInterventions(interventions, _spans_of_last(rows), shared=True)
        return _finish(weights, learned[None], uniform[None], first[None], at_tokens, recipe)
    at_tokens = TokenInterventions(interventions, rows.spans, shared=True)
    learned, uniform = _attention(weights, hidden, rows, recipe)
    merged = _merge(learned, weights, recipe.numerics)
    stream, separate = hidden.astype(merged.dtype), at_tokens.replaces("attention_outputs")
    total = (merged if separate else merged + stream)[None]  # one addition for all runs where that is possible
    for fractions, difference in output_differences(learned, uniform, at_tokens.layer):
        projected = ops.contract("bthd,hde->hbte", difference, weights.output_kernel, recipe.numerics)
        axes = "rh,hbte->rbte" if fractions.ndim == 2 else "rbth,hbte->rbte"
        total = total + jnp.einsum(axes, fractions, projected, precision="highest")
    if separate:
        total = at_tokens.replace("attention_outputs", total) + stream[None]
    return after_attention(total, weights.after, recipe, visit=at_tokens.replace)


def _finish(
    weights: LayerWeights,
    learned: Array,
    uniform: Array,
    hidden: Array,
    at_tokens: TokenInterventions | None,
    recipe: Recipe,
    *,
    gates: Array | None = None,
) -> Array:
    """The layer from the head outputs on, with interventions on these and on later sites."""
    visit = None
    if at_tokens is not None:
        replaced, visit = intervene_on_outputs(learned, uniform, at_tokens.layer), at_tokens.replace
        learned = replaced if gates is None else ops.blend(gates[..., None].astype(learned.dtype), learned, replaced)
    merged = _merge(learned, weights, recipe.numerics)
    merged = merged if at_tokens is None else at_tokens.replace("attention_outputs", merged)
    return after_attention(merged + hidden.astype(merged.dtype), weights.after, recipe, visit=visit)


def _spans_of_last(rows: Rows) -> Int[Array, "batch places"] | None:
    """The span of each token of `rows.last`."""
    return None if rows.spans is None else jnp.take_along_axis(rows.spans, rows.last, axis=1)


def source_activations(
    weights: LayerWeights,
    hidden: Float[Array, "batch token embed"],
    rows: Rows,
    recipe: Recipe,
    *,
    sites: tuple[str, ...],
    short: bool,
) -> dict[str, Float[Array, "batch place ..."]]:
    """Activations at some sites of a layer, to be patched into other runs.

    Args:
        weights: parameters of the layer.
        hidden: hidden states, `[batch, token, embed]`.
        rows: positions, segments and masks of the rows.
        recipe: static settings of the layer.
        sites: names in `sites.SITES`.
        short: compute only `rows.last`, for a last layer.
    """
    activations: dict[str, Array] = {"hidden_states": hidden}
    if {*sites} & {"queries", "keys", "values"}:
        parts = _project(weights, before_attention(hidden, weights.after, recipe), rows, recipe)
        activations |= dict(zip(("queries", "keys", "values"), parts, strict=True))
    if {*sites} & {"head_outputs", "attention_outputs", "feed_forward_outputs"}:
        if short:
            hidden, learned, _ = _first_tokens(weights, hidden, rows, recipe)
        else:
            learned, _ = _attention(weights, hidden, rows, recipe)
        merged = _merge(learned, weights, recipe.numerics)
        activations |= {"head_outputs": learned, "attention_outputs": merged}

        def keep(name: str, states: Array) -> Array:
            activations[name] = states
            return states

        after_attention(merged + hidden.astype(merged.dtype), weights.after, recipe, visit=keep)
    return {name: activations[name] for name in sites}


def tokens_at(
    hidden: Float[Array, "batch token embed"], rows: Rows, positions: Int[Array, "batch places chosen_tokens"]
) -> Float[Array, "examples chosen_tokens embed"]:
    """Hidden states at some tokens of each example, counted from the example's first token."""
    batch, tokens, embed = hidden.shape
    indices = jnp.minimum(rows.starts[:, :, None] + positions, tokens - 1)
    chosen = jnp.take_along_axis(hidden, indices.reshape(batch, -1)[:, :, None], axis=1)
    return chosen.reshape(-1, positions.shape[2], embed)


def unpack_examples(
    hidden: Float[Array, "batch token embed"], rows: Rows, lengths: Int[Array, "batch places"], longest: int
) -> tuple[Float[Array, "examples longest embed"], Float[Array, "examples 1 longest"]]:
    """Unpack hidden states into one padded row for each example, with a mask of the real tokens.

    Args:
        hidden: hidden states of rows with several examples, `[batch, token, embed]`.
        rows: positions, segments and masks of the rows.
        lengths: number of tokens of each example, 0 where a row has fewer examples.
        longest: number of tokens of the longest example.
    """
    batch, tokens, embed = hidden.shape
    offsets = jnp.arange(longest, dtype=rows.starts.dtype)[None, None]
    indices = jnp.minimum(rows.starts[:, :, None] + offsets, tokens - 1)
    unpacked = jnp.take_along_axis(hidden, indices.reshape(batch, -1)[:, :, None], axis=1)
    keep = (offsets < lengths[:, :, None]).astype(jnp.float32)
    return unpacked.reshape(-1, longest, embed), keep.reshape(-1, 1, longest)


def _attention(
    weights: LayerWeights,
    hidden: Float[Array, "batch token embed"],
    rows: Rows,
    recipe: Recipe,
    at_tokens: TokenInterventions | None = None,
) -> tuple[Float[Array, "batch token heads head_dim"], Float[Array, "batch token heads head_dim"]]:
    """Learned outputs of all heads, and their outputs with uniform weights."""
    kind, numerics, tokens = recipe.kind, recipe.numerics, hidden.shape[1]
    queries, keys, values = _project(weights, before_attention(hidden, weights.after, recipe), rows, recipe)
    if at_tokens is not None:
        queries, keys, values = (
            at_tokens.replace(name, part)
            for name, part in zip(("queries", "keys", "values"), (queries, keys, values), strict=True)
        )
    by_blocks = numerics.attention == "explicit" or (numerics.attention == "fused" and kind.window is not None)
    if by_blocks and has_blocks(tokens, kind):
        return _attend_in_blocks(queries, keys, values, rows.segments, recipe)
    keep = None
    if kind.window is not None:
        keep = ops.same_segment(rows.segments, numerics.wide)
        keep = keep * positions.within_window(tokens, kind.window, numerics.wide)
        means = _spread(ops.uniform_weights(keep), values, numerics)
    else:
        means = _segment_means(values, rows, numerics)
    products, biases = None, None
    if kind.relative is not None:
        assert weights.distances is not None
        products, biases = positions.distance_scores(queries, keys, weights.distances, kind.relative, numerics)
        products = None if products is None else products * kind.scale
    if numerics.attention != "explicit":
        scale, bias = ops.other_scale(kind.scale, queries.shape[-1]), products if biases is None else biases
        attend = partial(fused_attention.attend_in_rows, keep=keep, scale=scale, bias=bias)
        return attend(queries, keys, values, rows.segments, numerics), means
    keep = ops.same_segment(rows.segments, numerics.wide) if keep is None else keep
    scores = ops.attention_scores(queries, keys, numerics, kind.scale)
    for added in (products, biases):
        scores = scores if added is None else scores + added
    return ops.mix(ops.attention_weights(scores, keep[:, None]), values, numerics), means


def _project(
    weights: LayerWeights, read: Float[Array, "batch token embed"], rows: Rows, recipe: Recipe
) -> tuple[Float[Array, "batch token heads head_dim"], ...]:
    """Queries, keys and values; queries and keys are rotated if positions are rotary."""
    numerics = recipe.numerics
    if numerics.attention == "pallas":
        queries, keys, values = (_project_flat(weights, read, part, numerics) for part in range(3))
    else:
        projected = ops.contract("bte,eshd->btshd", read, weights.qkv_kernel, numerics, passed_on=True)
        if weights.qkv_bias is not None:
            projected = projected + weights.qkv_bias[None, None]
        queries, keys, values = (projected[:, :, part].astype(numerics.dtype) for part in range(3))
    if recipe.kind.rotation is not None:
        token_positions = _positions(rows)
        queries, keys = (
            positions.rotate(part, token_positions, recipe.kind.rotation, numerics) for part in (queries, keys)
        )
    return queries, keys, values


def _project_flat(
    weights: LayerWeights, read: Float[Array, "batch token embed"], part: int, numerics: Numerics
) -> Float[Array, "batch token heads head_dim"]:
    """Queries, keys or values with all heads in one axis during the product: the layout of the TPU kernel."""
    kernel = weights.qkv_kernel[:, part]
    flat = ops.contract("bte,ef->btf", read, kernel.reshape(kernel.shape[0], -1), numerics, passed_on=True)
    flat = ops.add_bias(flat, None if weights.qkv_bias is None else weights.qkv_bias[part].reshape(-1))
    return flat.astype(numerics.dtype).reshape(*flat.shape[:2], *kernel.shape[1:])


def _positions(rows: Rows) -> Int[Array, "batch token"]:
    """Position of each token within its example, from 0; 0 for padding."""
    index = jnp.arange(rows.segments.shape[1], dtype=rows.starts.dtype)[None]
    starts = jnp.take_along_axis(rows.starts, jnp.maximum(rows.segments - 1, 0), axis=1)
    return jnp.where(rows.segments > 0, index - starts, 0)


def has_blocks(tokens: int, kind: LayerKind) -> bool:
    """Whether attention is computed in blocks of queries: for long rows, and for windows much shorter than the row."""
    if kind.relative is not None:
        return False
    seen = QUERIES + 2 * (kind.window or 0)
    return tokens > WHOLE_ROWS or (kind.window is not None and tokens >= 2 * seen)


def may_ask_anywhere(kind: LayerKind) -> bool:
    """Whether `cls_only` also works at tokens other than [CLS]: no score may depend on positions."""
    return kind.rotation is None and kind.relative is None and kind.window is None


def compared_slots(tokens: int, kind: LayerKind) -> int:
    """Number of keys with which each query is compared."""
    if not has_blocks(tokens, kind):
        return tokens
    reach = tokens if kind.window is None else kind.window
    return min(QUERIES + 2 * reach, -(-tokens // QUERIES) * QUERIES)


def _attend_in_blocks(
    queries: Float[Array, "batch token heads head_dim"],
    keys: Float[Array, "batch token heads head_dim"],
    values: Float[Array, "batch token heads head_dim"],
    segments: Int[Array, "batch token"],
    recipe: Recipe,
) -> tuple[Float[Array, "batch token heads head_dim"], Float[Array, "batch token heads head_dim"]]:
    """`_attention` for one block of queries after another, each with the keys within its window."""
    tokens, window, numerics = queries.shape[1], recipe.kind.window, recipe.numerics
    reach = tokens if window is None else window
    blocks, span = -(-tokens // QUERIES), compared_slots(tokens, recipe.kind)
    filled = blocks * QUERIES - tokens

    def pad_end(array: Array) -> Array:
        return jnp.pad(array, [(0, 0), (0, filled), *[(0, 0)] * (array.ndim - 2)])

    queries, keys, values, segments = (pad_end(array) for array in (queries, keys, values, segments))

    def block(index: Array) -> tuple[Array, Array]:
        first = index * QUERIES
        start = jnp.clip(first - reach, 0, blocks * QUERIES - span)
        queried = partial(jax.lax.dynamic_slice_in_dim, start_index=first, slice_size=QUERIES, axis=1)
        seen = partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=span, axis=1)
        query_segments, key_segments = queried(segments)[:, :, None], seen(segments)[:, None]
        keep = ((query_segments == key_segments) & (key_segments > 0)).astype(numerics.wide)
        if window is not None:
            query_offsets, key_offsets = (jnp.arange(count, dtype=index.dtype) for count in (QUERIES, span))
            distance = (first + query_offsets)[:, None] - (start + key_offsets)[None]
            keep = keep * (jnp.abs(distance) <= window)[None].astype(numerics.wide)
        scores = ops.attention_scores(queried(queries), seen(keys), numerics, recipe.kind.scale)
        mixed = ops.mix(ops.attention_weights(scores, keep[:, None]), seen(values), numerics)
        return mixed, _spread(ops.uniform_weights(keep), seen(values), numerics)

    def joined(array: Float[Array, "blocks batch queries heads head_dim"]) -> Array:
        return jnp.moveaxis(array, 0, 1).reshape(array.shape[1], -1, *array.shape[3:])[:, :tokens]

    mixed, means = jax.lax.map(block, jnp.arange(blocks, dtype=segments.dtype))
    return joined(mixed), joined(means)


def _spread(
    weights: Float[Array, "batch query key"], values: Float[Array, "batch key heads head_dim"], numerics: Numerics
) -> Float[Array, "batch query heads head_dim"]:
    """Outputs of all heads for attention weights that they share."""
    return ops.contract("bqk,bkhd->bqhd", weights, values, numerics)


def _membership(rows: Rows, numerics: Numerics) -> Float[Array, "batch places token"]:
    """1 where a token belongs to the example of this index."""
    indices = 1 + jnp.arange(rows.starts.shape[1], dtype=rows.segments.dtype)
    return (rows.segments[:, None] == indices[None, :, None]).astype(numerics.wide)


def _same_example(
    segments: Int[Array, "batch token"], at: Int[Array, "batch places"], numerics: Numerics
) -> Float[Array, "batch places token"]:
    """1 where a token belongs to the same example as the token `at`."""
    segment = jnp.take_along_axis(segments, at, axis=1)[:, :, None]
    return ((segments[:, None] == segment) & (segment > 0)).astype(numerics.wide)


def _segment_means(
    values: Float[Array, "batch token heads head_dim"], rows: Rows, numerics: Numerics
) -> Float[Array, "batch token heads head_dim"]:
    """For each token the mean of all values of its example."""
    members = _membership(rows, numerics)
    means = ops.contract("bpt,bthd->bphd", members, values, numerics)
    means = means / jnp.maximum(members.sum(-1), 1)[:, :, None, None]
    return jnp.einsum("bpt,bphd->bthd", members, means, precision="highest")


def _first_tokens(
    weights: LayerWeights, hidden: Float[Array, "batch token embed"], rows: Rows, recipe: Recipe
) -> tuple[
    Float[Array, "batch places embed"],
    Float[Array, "batch places heads head_dim"],
    Float[Array, "batch places heads head_dim"],
]:
    """Hidden states, learned head outputs and head outputs with uniform weights, all at the tokens `rows.last`."""
    numerics, first = recipe.numerics, jnp.take_along_axis(hidden, rows.last[:, :, None], axis=1)
    read = before_attention(hidden, weights.after, recipe)
    members = (
        _membership(rows, numerics) if rows.targets is None else _same_example(rows.segments, rows.targets, numerics)
    )
    if recipe.kind.window is not None:
        members = members * (_positions(rows) <= recipe.kind.window)[:, None].astype(numerics.wide)
    learned = ops.attention_weights(_first_scores(weights, read, rows, recipe), members[:, None])
    equal = members / jnp.maximum(members.sum(-1, keepdims=True), 1)
    value_kernel = weights.qkv_kernel[:, 2]
    bias = None if weights.qkv_bias is None else weights.qkv_bias[2][None, None]

    # XLA's CPU backend has no bfloat16 product with the order of output axes that the next line needs.
    mixed = ops.contract("bhpt,bte->bhpe", learned, read, numerics).swapaxes(1, 2)
    head_outputs = ops.contract("bphe,ehd->bphd", mixed, value_kernel, numerics)
    mean = ops.contract("bpt,bte->bpe", equal, read, numerics)
    uniform = ops.contract("bpe,ehd->bphd", mean, value_kernel, numerics)
    return first, head_outputs if bias is None else head_outputs + bias, uniform if bias is None else uniform + bias


def _first_scores(
    weights: LayerWeights, read: Float[Array, "batch token embed"], rows: Rows, recipe: Recipe
) -> Float[Array, "batch heads places token"]:
    """Scores of the queries at `rows.last` with all tokens of the row; those with other examples have no meaning.

    If keys do not depend on positions, queries are projected by the kernel of keys instead of computing keys. The bias
    of keys adds a constant to all scores of a query, which the softmax cancels.
    """
    kind, numerics = recipe.kind, recipe.numerics
    query_kernel, key_kernel = weights.qkv_kernel[:, 0], weights.qkv_kernel[:, 1]
    last = jnp.take_along_axis(read, rows.last[:, :, None], axis=1)
    queries = ops.contract("bpe,ehd->bphd", last, query_kernel, numerics)
    if weights.qkv_bias is not None:
        queries = queries + weights.qkv_bias[0][None, None]
    queries = queries.astype(numerics.dtype)
    if kind.rotation is None and (kind.relative is None or kind.relative.form == "bias"):
        reaching = ops.contract("bphd,ehd->bphe", queries, key_kernel, numerics)
        scores = ops.contract("bphe,bte->bhpt", reaching, read, numerics) * kind.scale
        if kind.relative is None:
            return scores
        assert weights.distances is not None
        assert weights.distances.bias is not None
        return scores + positions.biases_from_first(_positions(rows), weights.distances.bias, kind.relative)
    keys = ops.contract("bte,ehd->bthd", read, key_kernel, numerics)
    if weights.qkv_bias is not None:
        keys = keys + weights.qkv_bias[1][None, None]
    keys = keys.astype(numerics.dtype)
    if kind.rotation is not None:  # a query at position 0 does not rotate
        keys = positions.rotate(keys, _positions(rows), kind.rotation, numerics)
        return ops.contract("bphd,bthd->bhpt", queries, keys, numerics) * kind.scale
    assert weights.distances is not None
    assert kind.relative is not None
    keys, added = positions.keys_from_first(keys, _positions(rows), weights.distances, kind.relative, numerics)
    return (ops.contract("bphd,bthd->bhpt", queries, keys, numerics) + added) * kind.scale


def _merge(outputs: Float[Array, "... heads head_dim"], weights: LayerWeights, numerics: Numerics) -> Array:
    """The output projection."""
    kernel = weights.output_kernel
    if numerics.attention == "pallas":  # whose outputs have all heads in one axis
        flat = outputs.reshape(*outputs.shape[:-2], -1)
        merged = ops.contract("...f,fe->...e", flat, kernel.reshape(flat.shape[-1], -1), numerics, passed_on=True)
    else:
        merged = ops.contract("...hd,hde->...e", outputs, kernel, numerics, passed_on=True)
    return ops.add_bias(merged, weights.output_bias)
