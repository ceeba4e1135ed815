"""Statistics of attention weights that are never written to memory: entropy, mass on columns, column means.

Kernels for TPU, as in `pallas_attention.py`: a block of queries goes through its keys twice, first for the softmax's
sum, then for the weights, after overrides of heads; a block of keys then goes through the queries. They have no
gradient. On a GPU the weights of one block of queries at a time are made by XLA.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from bertjax.model import ops
from bertjax.model.kernels.pallas_attention import (
    BLOCK,
    HeadGates,
    block_size,
    by_head,
    by_platform,
    cut,
    pad,
    product,
    running,
    score_block,
    widen,
)
from bertjax.model.types import Numerics, record


@record
class Statistics:
    """What is known of attention weights, after overrides, without keeping them.

    Args:
        entropy: of each query's weights, in nats; 0 for padding.
        mass: each query's weight on the given columns.
        column_means: what each key gets, mean over its segment's queries; 0 for padding.
    """

    entropy: Float[Array, "batch heads query"]
    mass: Float[Array, "batch heads query columns"]
    column_means: Float[Array, "batch heads key"]


def measure(
    queries: Float[Array, "batch token heads head_dim"],
    keys: Float[Array, "batch token heads head_dim"],
    segments: Int[Array, "batch token"],
    columns: Float[Array, "batch token columns"],
    gates: HeadGates | None,
    numerics: Numerics,
) -> Statistics:
    """Statistics of the weights of real queries.

    Args:
        queries: of all heads.
        keys: likewise.
        segments: which segment each token belongs to, counted from 1; 0 is padding.
        columns: what a key counts for in each mass, such as 1 for each [SEP].
        gates: overrides of heads, or None.
        numerics: dtype and precision of the product.
    """
    heads = queries.shape[2]
    if gates is None:
        ones, zeros = jnp.ones(heads, numerics.wide), jnp.zeros(heads, numerics.wide)
        gates = HeadGates(ones, zeros, ones)
    kernel, blocks = (partial(form, numerics=numerics) for form in (_measure_by_kernel, measure_by_blocks))
    return by_platform(kernel, blocks, queries, keys, segments, columns, gates)


def measure_by_blocks(
    queries: Float[Array, "batch token heads head_dim"],
    keys: Float[Array, "batch token heads head_dim"],
    segments: Int[Array, "batch token"],
    columns: Float[Array, "batch token columns"],
    gates: HeadGates,
    numerics: Numerics,
) -> Statistics:
    """The same as `measure` without a kernel: weights of one block of queries at a time."""
    tokens, size = queries.shape[1], block_size(queries.shape[1])
    gate, share = (part[None, :, None, None].astype(numerics.wide) for part in (gates.weights, gates.uniform))

    def one(block: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        asking, marks = block
        keep = ((marks[:, :, None] == segments[:, None]) & (segments > 0)[:, None]).astype(numerics.wide)
        weights = ops.attention_weights(ops.attention_scores(asking, keys, numerics), keep[:, None])
        weights = ops.blend(gate, weights, share * ops.uniform_weights(keep)[:, None])
        entropy = -(weights * jnp.log(jnp.where(weights > 0, weights, 1))).sum(-1)
        mass = jnp.einsum("bhqk,bkc->bhqc", weights, columns.astype(numerics.wide), precision="highest")
        return entropy, mass, weights.sum(2)

    def joined(part: Float[Array, "blocks batch heads query *rest"]) -> Array:
        whole = jnp.moveaxis(part, 0, 2)
        return whole.reshape(*whole.shape[:2], -1, *whole.shape[4:])[:, :, :tokens]

    entropy, mass, sums = jax.lax.map(one, tuple(cut(pad(part, 1), size) for part in (queries, segments)))
    return Statistics(joined(entropy), joined(mass), sums.sum(0) * _equal(segments, numerics)[:, None])


def _equal(segments: Int[Array, "batch token"], numerics: Numerics) -> Float[Array, "batch token"]:
    """What uniform attention gives to each key of a token's segment."""
    same = (segments[:, :, None] == segments[:, None]) & (segments > 0)[:, None]
    return (1 / jnp.maximum(same.sum(-1), 1)).astype(numerics.wide)


def _measure_by_kernel(
    queries: Array,
    keys: Array,
    segments: Array,
    columns: Array,
    gates: HeadGates,
    *,
    numerics: Numerics,
    interpret: bool,
) -> Statistics:
    tokens, head_dim = queries.shape[1], queries.shape[3]
    equal = _equal(segments, numerics)
    asked = [by_head(part.astype(numerics.dtype)) for part in (queries, keys)]
    marks = pad(segments, 1)
    given = widen(pad(columns.astype(numerics.wide), 1), 2)
    shares = [part.astype(numerics.wide)[:, None, None] for part in (gates.weights, gates.uniform)]
    arrays = *asked, marks[:, :, None], marks[:, None], *shares, pad(equal, 1)[:, :, None], given
    settings: dict[str, Any] = {"scale": ops.score_scale(head_dim), "numerics": numerics, "interpret": interpret}
    entropy, mass, sums = _call_measure(*arrays, **settings)
    means = sums[:, :, 0, :tokens] * equal[:, None]
    return Statistics(entropy[:, :, :tokens, 0], mass[:, :, :tokens, : columns.shape[2]], means)


def _call_measure(*arrays: Array, scale: float, numerics: Numerics, interpret: bool) -> tuple[Array, ...]:
    """The kernels of `measure` on padded arrays: rows first, then columns, which need the rows' sums."""
    queries, keys, marks, asked, gate, uniform, equal, columns = arrays
    batch, heads, tokens, width = queries.shape
    block = min(BLOCK, tokens)
    own = pl.BlockSpec((1, 1, block, width), lambda b, h, i: (b, h, i, 0))
    every = pl.BlockSpec((1, 1, tokens, width), lambda b, h, i: (b, h, 0, 0))
    head_block = pl.BlockSpec((1, 1, 1), lambda b, h, i: (h, 0, 0))
    row, rows = (pl.BlockSpec((1, size, 1), _at(size == block)) for size in (block, tokens))
    line = pl.BlockSpec((1, 1, tokens), lambda b, h, i: (b, 0, 0))
    piece = pl.BlockSpec((1, 1, block), lambda b, h, i: (b, 0, i))
    given = pl.BlockSpec((1, tokens, columns.shape[2]), lambda b, h, i: (b, 0, 0))
    sums_of_rows = pl.BlockSpec((1, 1, tokens, 1), lambda b, h, i: (b, h, 0, 0))
    shape, wide = (batch, heads, tokens), numerics.wide
    options: dict[str, Any] = {"block": block, "scale": scale, "numerics": numerics}
    outputs = [pl.BlockSpec((1, 1, block, size), lambda b, h, i: (b, h, i, 0)) for size in (1, columns.shape[2], 1)]
    entropy, mass, logs = pl.pallas_call(
        partial(_rows_kernel, **options),
        [jax.ShapeDtypeStruct((*shape, size), wide) for size in (1, columns.shape[2], 1)],
        grid=(batch, heads, tokens // block),
        in_specs=[own, every, row, line, head_block, head_block, row, given],
        out_specs=outputs,
        interpret=interpret,
    )(queries, keys, marks, asked, gate, uniform, equal, columns)
    sums = pl.pallas_call(
        partial(_columns_kernel, **options),
        jax.ShapeDtypeStruct((batch, heads, 1, tokens), wide),
        grid=(batch, heads, tokens // block),
        in_specs=[every, own, rows, piece, head_block, head_block, rows, sums_of_rows],
        out_specs=pl.BlockSpec((1, 1, 1, block), lambda b, h, i: (b, h, 0, i)),
        interpret=interpret,
    )(queries, keys, marks, asked, gate, uniform, equal, logs)
    return entropy, mass, sums


def _at(moving: bool) -> Callable[..., tuple[Any, int, int]]:
    """Where a block of rows is that is the grid's third axis, or all of them."""
    return (lambda b, h, i: (b, i, 0)) if moving else (lambda b, h, i: (b, 0, 0))


def _rows_kernel(
    queries: Any, keys: Any, asking: Any, asked: Any, gate: Any, uniform: Any, equal: Any, columns: Any,
    entropy: Any, mass: Any, logs: Any, *, block: int, scale: float, numerics: Any,
) -> None:  # fmt: skip
    """Entropy, mass and the logarithm of the softmax's sum, of one block of queries of one head."""
    query, mark, steps = queries[0, 0], asking[0], keys.shape[2] // block

    def scores_at(number: Array) -> tuple[Any, Array, Array]:
        window = pl.ds(number * block, block)
        return window, *score_block(query, keys[0, 0, window], mark, asked[0, :, window], scale, numerics)

    def total(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        highest, summed = carry
        _, scores, allowed = scores_at(number)
        peak = jnp.maximum(highest, scores.max(-1, keepdims=True))
        share = jnp.where(allowed, jnp.exp(scores - peak), 0)
        return peak, summed * jnp.exp(highest - peak) + share.sum(-1, keepdims=True)

    highest, summed = jax.lax.fori_loop(0, steps, total, running(query.shape[0], numerics))
    log = highest + jnp.log(jnp.where(summed > 0, summed, 1))

    def gather(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        window, scores, allowed = scores_at(number)
        weights = _weights(scores, log, allowed, gate[0], uniform[0], equal[0])
        spread = -weights * jnp.log(jnp.where(weights > 0, weights, 1))
        return (
            carry[0] + spread.sum(-1, keepdims=True),
            carry[1] + product(weights, columns[0, window], 0, numerics, jax.lax.Precision.HIGHEST),
        )

    zeros = [jnp.zeros((query.shape[0], size), numerics.wide) for size in (1, columns.shape[2])]
    entropy[0, 0], mass[0, 0] = jax.lax.fori_loop(0, steps, gather, tuple(zeros))
    logs[0, 0] = log


def _columns_kernel(
    queries: Any, keys: Any, asking: Any, asked: Any, gate: Any, uniform: Any, equal: Any, logs: Any,
    sums: Any, *, block: int, scale: float, numerics: Any,
) -> None:  # fmt: skip
    """What one block of keys of one head gets from all queries."""
    key, mark = keys[0, 0], asked[0]

    def add(number: Array, carry: Array) -> Array:
        window = pl.ds(number * block, block)
        scores, allowed = score_block(queries[0, 0, window], key, asking[0, window], mark, scale, numerics)
        weights = _weights(scores, logs[0, 0, window], allowed, gate[0], uniform[0], equal[0, window])
        return carry + weights.sum(0, keepdims=True)

    start = jnp.zeros((1, key.shape[0]), numerics.wide)
    sums[0, 0] = jax.lax.fori_loop(0, queries.shape[2] // block, add, start)


def _weights(scores: Array, log: Array, allowed: Array, gate: Array, uniform: Array, equal: Array) -> Array:
    """Weights after overrides, of a block whose softmax's sum is known."""
    learned = jnp.exp(scores - log)
    return jnp.where(allowed, gate * learned + (1 - gate) * uniform * equal, 0)
