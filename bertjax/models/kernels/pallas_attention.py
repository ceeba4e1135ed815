"""Attention whose weights are never written to memory: a Pallas kernel for TPU, with overrides of heads.

For a query and the n keys of its segment:

    w(k)   = weights_gate * softmax_k(query . key / sqrt(head_dim)) + (1 - weights_gate) * uniform / n
    output = output_gate * sum_k w(k) value(k)

Without overrides, as in a sweep, all keys of a row are on the chip at once if they fit and if heads fill the lanes; all
heads are in one axis, the layout of the projections. Otherwise a block of queries iterates over blocks of keys with a
running maximum and sum (Milakov and Gimelshein 2018; Dao et al. 2022, FlashAttention), so that memory grows linearly
with the length. The output of uniform attention is the mean of a segment's values, computed once for all queries. The
gradient recomputes the weights of one block of queries at a time. On a GPU XLA computes the outputs in the same blocks:
Pallas' compiler for all NVIDIA GPUs (Triton) is deprecated, the other requires Hopper, and in half precision cuDNN was
faster ('fused'). On other platforms the kernel is interpreted for tests, which is slow.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from bertjax.models import ops
from bertjax.models.types import Numerics, record


@record
class HeadGates:
    """Overrides of whole heads in one layer, as in `Overrides`; 1, 0 and 1 leave a head unchanged."""

    weights: Float[Array, "heads"]
    uniform: Float[Array, "heads"]
    output: Float[Array, "heads"]


def attend(
    queries: Float[Array, "batch query heads head_dim"],
    keys: Float[Array, "batch key heads head_dim"],
    values: Float[Array, "batch key heads head_dim"],
    segments: tuple[Int[Array, "batch query"], Int[Array, "batch key"]],
    gates: HeadGates | None,
    numerics: Numerics,
    *,
    places: int = 1,
) -> Float[Array, "batch query heads head_dim"]:
    """Head outputs, in wide floats; 0 for a query whose segment has no key.

    Args:
        queries: query vectors, `[batch, query, heads, head_dim]`.
        keys: key vectors, `[batch, key, heads, head_dim]`.
        values: value vectors, `[batch, key, heads, head_dim]`.
        segments: segment of each query and of each key, from 1; 0 for padding.
        gates: overrides of heads, or None.
        numerics: dtype and precision of the products.
        places: largest number of segments in a row.
    """
    return _attend(queries, keys, values, gates, segments, numerics, places)


@partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _attend(
    queries: Array, keys: Array, values: Array, gates: HeadGates | None, segments: Any, numerics: Numerics, places: int
) -> Array:
    kernel = partial(_attend_by_kernel, numerics=numerics, places=places)
    return by_platform(kernel, partial(attend_by_blocks, numerics=numerics), queries, keys, values, segments, gates)


def _attend_by_kernel(
    queries: Array,
    keys: Array,
    values: Array,
    segments: Any,
    gates: HeadGates | None,
    *,
    numerics: Numerics,
    places: int,
    interpret: bool,
) -> Array:
    tokens, head_dim = queries.shape[1], queries.shape[3]
    part = None if gates is not None else choose_part(queries.shape, keys.shape[1], numerics)
    if part is not None:
        return _attend_in_whole_rows(queries, keys, values, segments, part, numerics=numerics, interpret=interpret)
    scaled = [by_head(part.astype(numerics.dtype)) for part in (queries, keys, values)]
    marks = pad(segments[0], 1)[:, :, None], pad(segments[1], 1)[:, None]
    shares = [] if gates is None else _shares(gates, values, segments[1], numerics, places)
    settings: dict[str, Any] = {
        "scale": ops.score_scale(head_dim),
        "numerics": numerics,
        "overridden": gates is not None,
    }
    outputs = _call_attend(*scaled, *marks, *shares, **settings, interpret=interpret)
    return outputs[:, :, :tokens, :head_dim].swapaxes(1, 2)


def _attend_forward(*arguments: Any) -> tuple[Array, Any]:
    return _attend(*arguments), arguments[:5]


def _attend_backward(numerics: Numerics, places: int, kept: Any, cotangent: Array) -> Any:
    del places
    *arrays, segments = kept

    def recompute(queries: Array, keys: Array, values: Array, gates: HeadGates | None) -> Array:
        return attend_by_blocks(queries, keys, values, segments, gates, numerics)

    _, pull = jax.vjp(recompute, *arrays)
    return (*pull(cotangent), None)


_attend.defvjp(_attend_forward, _attend_backward)


def attend_by_blocks(
    queries: Float[Array, "batch query heads head_dim"],
    keys: Float[Array, "batch key heads head_dim"],
    values: Float[Array, "batch key heads head_dim"],
    segments: tuple[Int[Array, "batch query"], Int[Array, "batch key"]],
    gates: HeadGates | None,
    numerics: Numerics,
) -> Float[Array, "batch query heads head_dim"]:
    """`attend` without a kernel, for one block of queries at a time, also in the gradient.

    Args:
        queries: query vectors, `[batch, query, heads, head_dim]`.
        keys: key vectors, `[batch, key, heads, head_dim]`.
        values: value vectors, `[batch, key, heads, head_dim]`.
        segments: segment of each query and of each key, from 1; 0 for padding.
        gates: overrides of heads, or None.
        numerics: dtype and precision of the products.
    """
    size = block_size(queries.shape[1])

    @jax.checkpoint
    def one(block: tuple[Array, Array]) -> Array:
        block_queries, marks = block
        keep = ((marks[:, :, None] == segments[1][:, None]) & (segments[1] > 0)[:, None]).astype(numerics.wide)
        weights = ops.attention_weights(ops.attention_scores(block_queries, keys, numerics), keep[:, None])
        if gates is not None:
            gate, share = (part[None, :, None, None].astype(weights.dtype) for part in (gates.weights, gates.uniform))
            weights = ops.blend(gate, weights, share * ops.uniform_weights(keep)[:, None])
        mixed = ops.mix(weights, values, numerics)
        return mixed if gates is None else mixed * gates.output[None, None, :, None].astype(mixed.dtype)

    blocks = [cut(pad(part, 1), size) for part in (queries, segments[0])]
    outputs = jax.lax.map(one, tuple(blocks)).swapaxes(0, 1)
    return outputs.reshape(outputs.shape[0], -1, *outputs.shape[3:])[:, : queries.shape[1]]


def _call_attend(*arrays: Array, scale: float, numerics: Numerics, overridden: bool, interpret: bool) -> Array:
    """The kernel of `attend` on padded arrays: queries, keys, values, marks and, if overridden, shares and means."""
    queries, keys = arrays[:2]
    batch, heads, tokens, width = queries.shape
    block = min(BLOCK, tokens)
    whole = (1, 1, keys.shape[2], width)
    specs = [
        pl.BlockSpec((1, 1, block, width), lambda b, h, i: (b, h, i, 0)),
        *[pl.BlockSpec(whole, lambda b, h, i: (b, h, 0, 0))] * 2,
        pl.BlockSpec((1, block, 1), lambda b, h, i: (b, i, 0)),
        pl.BlockSpec((1, 1, keys.shape[2]), lambda b, h, i: (b, 0, 0)),
    ]
    if overridden:
        specs += [pl.BlockSpec((1, 1, 1), lambda b, h, i: (h, 0, 0))] * 3
        specs += [pl.BlockSpec((1, 1, *arrays[8].shape[2:]), lambda b, h, i: (b, h, 0, 0))]
    return pl.pallas_call(
        partial(_attend_kernel, block=min(block, keys.shape[2]), scale=scale, numerics=numerics),
        jax.ShapeDtypeStruct(queries.shape, numerics.wide),
        grid=(batch, heads, tokens // block),
        in_specs=specs,
        out_specs=specs[0],
        interpret=interpret,
    )(*arrays)


def _attend_kernel(
    queries: Any,
    keys: Any,
    values: Any,
    query_segments: Any,
    key_segments: Any,
    *rest: Any,
    block: int,
    scale: float,
    numerics: Any,
) -> None:
    """One block of queries of one head; `rest` is shares and means, if any, and the outputs."""
    query, segment = queries[0, 0], query_segments[0]
    start = running(query.shape[0], numerics)

    def step(index: Array, carry: Any) -> Any:
        highest, total, mixed = carry
        window = pl.ds(index * block, block)
        scores, allowed = score_block(query, keys[0, 0, window], segment, key_segments[0, :, window], scale, numerics)
        peak = jnp.maximum(highest, scores.max(-1, keepdims=True))
        share = jnp.where(allowed, jnp.exp(scores - peak), 0)
        shrink = jnp.exp(highest - peak)
        added = product(share.astype(numerics.dtype), values[0, 0, window], 0, numerics)
        return peak, total * shrink + share.sum(-1, keepdims=True), mixed * shrink + added

    mixed = jnp.zeros(query.shape, numerics.wide)
    _, total, mixed = jax.lax.fori_loop(0, keys.shape[2] // block, step, (*start, mixed))
    outputs = mixed / jnp.where(total > 0, total, 1)
    *shares, output = rest
    if shares:
        gate, uniform, factor, means = (part[0] for part in shares)
        places = jax.lax.broadcasted_iota(jnp.int32, (1, means.shape[1]), 1) + 1
        mean = product((segment == places).astype(numerics.wide), means[0], 0, numerics)
        outputs = factor * (gate * outputs + (1 - gate) * uniform * mean)
    output[0, 0] = outputs


def fills_lanes(head_dim: int) -> bool:
    """Whether one or several heads of this size fill a TPU's lanes, so that whole rows can be computed."""
    return head_dim % 8 == 0 and (BLOCK % head_dim == 0 or head_dim % BLOCK == 0)


def choose_part(shape: Sequence[int], keys: int, numerics: Numerics) -> tuple[int, int, int] | None:
    """Numbers of rows, queries and lanes that are computed at once; None if no part fits.

    Args:
        shape: shape of the queries.
        keys: number of keys in a row.
        numerics: dtypes and precision.
    """
    batch, tokens, heads, head_dim = shape
    if not fills_lanes(head_dim):
        return None
    count = BLOCK if tokens > 2 * BLOCK and tokens % BLOCK == 0 else tokens
    embed, width = heads * head_dim, max(head_dim, BLOCK)
    narrower = range(embed - width, 0, -width) if embed % width == 0 else ()
    lanes = [embed, *(size for size in narrower if embed % size == 0)]
    few = max(1, TOKENS_AT_ONCE // tokens)
    rows = [size for size in range(min(few, batch), 0, -1) if batch % size == 0]
    parts = ((several, count, some) for some in lanes for several in rows)
    return next((part for part in parts if part_bytes(part, keys, numerics) <= KERNEL_BYTES), None)


def part_bytes(part: tuple[int, int, int], keys: int, numerics: Numerics) -> int:
    """Approximate memory of a part on the chip, with the next part, which is loaded during the computation."""
    rows, count, lanes = part
    wide, narrow = numerics.wide.itemsize, np.dtype(numerics.dtype).itemsize
    result = narrow if numerics.narrow else wide
    scores = 8 * count * keys * wide  # and shares and masks, of a head or two
    return 2 * rows * lanes * ((count + 2 * keys) * narrow + count * result) + scores


def _attend_in_whole_rows(
    queries: Array,
    keys: Array,
    values: Array,
    segments: Any,
    part: tuple[int, int, int],
    *,
    numerics: Numerics,
    interpret: bool,
) -> Array:
    """`attend` without overrides if whole rows fit; inputs and outputs have all heads in one axis."""
    batch, tokens, heads, head_dim = queries.shape
    rows, count, lanes = part
    flat = [each.astype(numerics.dtype).reshape(*each.shape[:2], -1) for each in (queries, keys, values)]
    arrays = [*flat, segments[0][:, None], segments[1][:, None]]
    result = jax.ShapeDtypeStruct(flat[0].shape, numerics.dtype if numerics.narrow else numerics.wide)
    of_queries = pl.BlockSpec((rows, count, lanes), lambda row, head, block: (row, block, head))
    of_keys = pl.BlockSpec((rows, keys.shape[1], lanes), lambda row, head, block: (row, 0, head))
    scores = batch * heads * tokens * keys.shape[1]
    outputs = pl.pallas_call(
        partial(_whole_rows_kernel, head_dim=head_dim, numerics=numerics),
        result,
        grid=(batch // rows, heads * head_dim // lanes, tokens // count),
        in_specs=[
            *(of_queries, of_keys, of_keys),
            pl.BlockSpec((rows, 1, count), lambda row, head, block: (row, 0, block)),
            pl.BlockSpec((rows, 1, keys.shape[1]), lambda row, head, block: (row, 0, 0)),
        ],
        out_specs=of_queries,
        cost_estimate=pl.CostEstimate(
            flops=4 * scores * head_dim,
            transcendentals=scores,
            bytes_accessed=sum(array.size * array.dtype.itemsize for array in (*arrays, result)),
        ),
        interpret=interpret,
    )(*arrays)
    return outputs.astype(numerics.wide).reshape(queries.shape)


def _whole_rows_kernel(
    queries: Any,
    keys: Any,
    values: Any,
    query_segments: Any,
    key_segments: Any,
    outputs: Any,
    *,
    head_dim: int,
    numerics: Numerics,
) -> None:
    """Some rows, with all heads in these lanes.

    A TPU's products are 128 lanes wide. Heads that share them are computed at that width: for each head, keys are 0 in
    the lanes of other heads, which do not contribute to its scores, and its lanes of the output are kept.
    """
    lanes = queries.shape[2]
    width, scale = min(max(head_dim, BLOCK), lanes), ops.score_scale(head_dim)

    def row(index: Array, carry: None) -> None:
        segments = query_segments[index].swapaxes(0, 1), key_segments[index]
        for start in range(0, lanes, width):
            some = pl.ds(start, min(width, lanes - start))
            query, key, value = (part[index, :, some] for part in (queries, keys, values))
            head_of_lane = jax.lax.broadcasted_iota(jnp.int32, (1, query.shape[1]), 1) // head_dim
            mixed = jnp.zeros(query.shape, numerics.wide)
            for head in range(query.shape[1] // head_dim):
                of_head = head_of_lane == head
                scores, allowed = score_block(
                    query, jnp.where(of_head, key, jnp.zeros_like(key)), *segments, scale, numerics
                )
                shares = jnp.where(allowed, jnp.exp(scores - scores.max(-1, keepdims=True)), 0)
                total = shares.sum(-1, keepdims=True)
                weights = (shares / jnp.where(total > 0, total, 1)).astype(numerics.dtype)
                mixed = jnp.where(of_head, product(weights, value, 0, numerics), mixed)
            outputs[index, :, some] = mixed.astype(outputs.dtype)
        return carry

    jax.lax.fori_loop(0, queries.shape[0], row, None)


def _shares(gates: HeadGates, values: Array, segments: Array, numerics: Numerics, places: int) -> list[Array]:
    """Gates of each head, and the mean of each segment's values."""
    indices = 1 + jnp.arange(places, dtype=segments.dtype)
    members = (segments[:, None] == indices[None, :, None]).astype(numerics.wide)
    members = members / jnp.maximum(members.sum(-1, keepdims=True), 1)
    means = ops.contract("bpt,bthd->bhpd", members, values, numerics)
    parts = (gates.weights, gates.uniform, gates.output)
    return [part.astype(numerics.wide)[:, None, None] for part in parts] + [widen(widen(means, 3), 2)]


BLOCK = 128  # tokens; a TPU's lanes
LEAST = 16  # smallest side of a matrix product
MASKED = -1e30  # score of a masked key
KERNEL_BYTES = 12 * 2**20  # for a part of rows, of the 16 MiB that the compiler assigns to a kernel
TOKENS_AT_ONCE = 512  # in several short rows


def by_platform(kernel: Callable[..., Any], blocks: Callable[..., Any], *arrays: Any) -> Any:
    """Run the kernel on a TPU and `blocks` on a GPU; on other platforms the kernel is interpreted."""
    return jax.lax.platform_dependent(
        *arrays,
        tpu=partial(kernel, interpret=False),
        cuda=blocks,
        rocm=blocks,
        default=partial(kernel, interpret=True),
    )


def by_head(part: Array) -> Array:
    """`[batch, heads, token, head_dim]`, padded to whole blocks."""
    return widen(pad(part, 1).swapaxes(1, 2), 3)


def block_size(tokens: int) -> int:
    """Number of tokens in a block, for a row of this length."""
    return min(BLOCK, max(LEAST, 1 << (tokens - 1).bit_length()))


def pad(part: Array, axis: int) -> Array:
    """Pad an axis of tokens with zeros to a multiple of the block size."""
    return extend(part, axis, -part.shape[axis] % block_size(part.shape[axis]))


def widen(part: Array, axis: int) -> Array:
    """Pad an axis with zeros to a power of two."""
    size = part.shape[axis]
    return extend(part, axis, max(LEAST, 1 << (size - 1).bit_length()) - size)


def extend(part: Array, axis: int, count: int) -> Array:
    """Append zeros to an axis."""
    return jnp.pad(part, [(0, count if index == axis else 0) for index in range(part.ndim)])


def cut(part: Array, size: int) -> Array:
    """Split the second axis into blocks: `[blocks, batch, size, ...]`."""
    batch, tokens, *rest = part.shape
    return part.reshape(batch, tokens // size, size, *rest).swapaxes(0, 1)


def running(rows: int, numerics: Numerics) -> tuple[Array, Array]:
    """Initial maximum and sum."""
    return jnp.full((rows, 1), MASKED, numerics.wide), jnp.zeros((rows, 1), numerics.wide)


def score_block(
    query: Array, key: Array, query_segments: Array, key_segments: Array, scale: float, numerics: Numerics
) -> tuple[Array, Array]:
    """Scores of a block, and whether the query may attend to the key."""
    allowed = (query_segments == key_segments) & (key_segments > 0)
    return jnp.where(allowed, product(query, key, 1, numerics) * scale, MASKED), allowed


def product(left: Array, right: Array, axis: int, numerics: Numerics, precision: Any = None) -> Array:
    """A matrix product over the left's last axis and the right's `axis`, accumulated in wide floats.

    Products of 16-bit floats are exact at any precision, and the TPU's compiler rejects a higher one for them.
    """
    exact = left.dtype.itemsize < 4
    precision = precision or (jax.lax.Precision.DEFAULT if exact else numerics.precision)
    return jax.lax.dot_general(
        left,
        right,
        (((1,), (axis,)), ((), ())),
        precision=precision,
        preferred_element_type=numerics.wide,
    )
