"""Attention without stored weights, selected by `Numerics.attention`: `jax.nn`'s implementation or the Pallas kernel.

Both support overrides of whole heads: gates, uniform weights, factors, replacement outputs. Overrides of single weights
require explicit attention. `jax.nn`'s implementation is XLA's, which still computes all weights, or cuDNN's flash
attention in half precision on NVIDIA GPUs from Ampere on.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from bertjax.errors import InputError, OverrideError
from bertjax.models import ops
from bertjax.models.types import Numerics, Overrides

Implementation = Literal["xla", "cudnn"]
# For each head of a layer: the factor on its learned weights, and the fraction of uniform weights.
Gates = tuple[Float[Array, " heads"], Float[Array, " heads"]] | None


def attend(
    queries: Float[Array, "batch query heads head_dim"],
    keys: Float[Array, "batch key heads head_dim"],
    values: Float[Array, "batch key heads head_dim"],
    keep: Float[Array, "batch #query key"],
    overrides: Overrides | None,
    layer: ArrayLike,
    *,
    numerics: Numerics,
    scale: float | None = None,
    bias: Float[Array, "#batch heads query key"] | None = None,
) -> Float[Array, "batch query heads head_dim"]:
    """Head outputs after overrides, in wide floats; 0 for a query that may attend to no key.

    Args:
        queries: query vectors, `[batch, query, heads, head_dim]`.
        keys: key vectors, `[batch, key, heads, head_dim]`.
        values: value vectors, `[batch, key, heads, head_dim]`.
        keep: mask of the keys of each query, `[batch, query, key]` or `[batch, 1, key]`; 1 to keep.
        overrides: overrides of all layers.
        layer: index of the layer in the overrides.
        numerics: dtypes, precision and attention implementation.
        scale: factor on the products of queries and keys; None for 1/sqrt(head_dim).
        bias: bias of the scores.

    Raises:
        OverrideError: overrides of weights or edges.
        InputError: a mask `[batch, query, key]`, a bias or another scale for the Pallas kernel.
    """
    if overrides is not None and (overrides.weights is not None or overrides.edges is not None):
        what = "single weights" if overrides.weights is None else "weights"
        raise OverrideError(f"overrides of {what} need attention='explicit', found {numerics.attention!r}")
    if overrides is not None and overrides.tokens is not None:
        raise OverrideError(f"overrides at single tokens need attention='explicit', found {numerics.attention!r}")
    gates = None if overrides is None else (overrides.weights_gate[layer], overrides.uniform[layer])
    if numerics.attention == "pallas":
        outputs = _pallas(queries, keys, values, keep, gates, numerics)
    else:
        outputs = _gated(queries, keys, values, keep, gates, numerics, scale=scale, bias=bias)
    return outputs if overrides is None else ops.override_outputs(outputs, overrides, layer)


def _pallas(queries: Array, keys: Array, values: Array, keep: Array, gates: Gates, numerics: Numerics) -> Array:
    from bertjax.models.kernels import pallas_attention

    if keep.shape[1] != 1:
        raise InputError(
            "attention='pallas' supports only an attention_mask [batch, token]; for [batch, query, key] use "
            "'explicit' or 'fused'"
        )
    key_segments = (keep[:, 0] > 0).astype(jnp.int32)
    # Padding attends to the real tokens, as in explicit attention.
    query_segments = jnp.ones(queries.shape[:2], jnp.int32)
    head_gates = None if gates is None else pallas_attention.HeadGates(*gates, jnp.ones(queries.shape[2]))
    return pallas_attention.attend(queries, keys, values, (query_segments, key_segments), head_gates, numerics)


def attend_in_rows(
    queries: Float[Array, "batch token heads head_dim"],
    keys: Float[Array, "batch token heads head_dim"],
    values: Float[Array, "batch token heads head_dim"],
    segments: Int[Array, "batch token"],
    numerics: Numerics,
    *,
    keep: Float[Array, "batch token token"] | None = None,
    scale: float | None = None,
    bias: Float[Array, "#batch heads token token"] | None = None,
) -> Float[Array, "batch token heads head_dim"]:
    """Head outputs in rows that hold several examples, in wide floats; finite at padding (segment 0).

    Args:
        queries: query vectors, `[batch, token, heads, head_dim]`.
        keys: key vectors, `[batch, token, heads, head_dim]`.
        values: value vectors, `[batch, token, heads, head_dim]`.
        segments: example of each token, from 1; 0 for padding.
        numerics: dtypes, precision and attention implementation.
        keep: mask, if a query does not attend to its whole example.
        scale: factor on the products of queries and keys, as in `attend`.
        bias: bias of the scores, as in `attend`.
    """
    if numerics.attention == "pallas":
        from bertjax.models.kernels import pallas_attention

        return pallas_attention.attend(queries, keys, values, (segments, segments), None, numerics)
    implementation: Implementation = "cudnn" if has_cudnn(numerics, queries.shape[-1]) else "xla"
    keep = ops.same_segment(segments, numerics.wide) if keep is None else keep
    options: Any = {"scale": scale, "bias": bias, "implementation": implementation}
    return _jax(queries, keys, values, keep, numerics, **options)


def has_cudnn(numerics: Numerics, head_dim: int) -> bool:
    """Whether cuDNN's flash attention is available: half precision, head_dim up to 128, GPU from Ampere on.

    Args:
        numerics: dtypes of the computation.
        head_dim: width of a head.
    """
    if numerics.dtype not in ("bfloat16", "float16") or head_dim % 8 or head_dim > 128:
        return False
    version = re.fullmatch(r"(\d+)\.\d+", str(getattr(jax.local_devices()[0], "compute_capability", "")))
    return version is not None and int(version[1]) >= 8  # AMD GPUs have other version names


def _gated(
    queries: Array,
    keys: Array,
    values: Array,
    keep: Array,
    gates: Gates,
    numerics: Numerics,
    *,
    scale: float | None,
    bias: Array | None,
) -> Array:
    learned = _jax(queries, keys, values, keep, numerics, scale=scale, bias=bias)
    has_keys = jnp.max(keep, axis=-1) > 0  # without keys the output would be the mean over padding
    learned = jnp.where(has_keys[:, :, None, None], learned, 0)
    if gates is None:
        return learned
    gate, share = (part[None, None, :, None].astype(learned.dtype) for part in gates)
    mean = ops.contract("bqk,bkhd->bqhd", ops.uniform_weights(keep), values, numerics)
    return ops.blend(gate, learned, share * mean)


def _jax(
    queries: Array,
    keys: Array,
    values: Array,
    keep: Array,
    numerics: Numerics,
    *,
    implementation: Implementation = "xla",
    scale: float | None = None,
    bias: Array | None = None,
) -> Array:
    plain = scale is None and bias is None
    # jax.nn mixes dtypes internally, which strict promotion would refuse.
    with jax.default_matmul_precision(numerics.precision), jax.numpy_dtype_promotion("standard"):
        if plain and keep.shape[1] == 1 and has_cudnn(numerics, queries.shape[-1]):
            learned = real_keys_first(queries, keys, values, keep[:, 0], "cudnn")
        else:
            mask = (keep > 0)[:, None]
            attend_to = partial(jax.nn.dot_product_attention, mask=mask, scale=scale, implementation=implementation)
            if bias is not None and implementation == "cudnn":
                bias = bias.astype(queries.dtype)
            learned = attend_to(queries, keys, values, bias=bias)
    return learned.astype(numerics.wide)


def real_keys_first(
    queries: Float[Array, "batch query heads head_dim"],
    keys: Float[Array, "batch key heads head_dim"],
    values: Float[Array, "batch key heads head_dim"],
    keep: Float[Array, "batch key"],
    implementation: Implementation,
) -> Float[Array, "batch query heads head_dim"]:
    """Attention with a number of keys in place of a mask, which therefore is never allocated.

    Attention does not depend on the order of keys, so real keys are moved to the front. The output of a row without
    keys is finite.
    """
    order = jnp.argsort(keep <= 0, axis=1, stable=True)[:, :, None, None]
    keys, values = (jnp.take_along_axis(part, order, axis=1) for part in (keys, values))
    count = jnp.maximum(jnp.sum(keep > 0, axis=1, dtype=jnp.int32), 1)
    return _attend_to_first(queries, keys, values, count, implementation)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attend_to_first(
    queries: Array, keys: Array, values: Array, count: Int[Array, " batch"], implementation: Implementation
) -> Array:
    """Attention to the first `count` keys; once differentiable, in reverse mode."""
    return _batchable(partial(_call, implementation=implementation))(queries, keys, values, count)


def _attend_forward(*arguments: Any) -> tuple[Array, Any]:
    return _attend_to_first(*arguments), arguments[:4]


def _attend_backward(implementation: Implementation, kept: Any, cotangent: Array) -> Any:
    def pull(queries: Array, keys: Array, values: Array, count: Array, cotangent: Array) -> Any:
        call = partial(_call, count=count, implementation=implementation)
        return jax.vjp(call, queries, keys, values)[1](cotangent)

    return (*_batchable(pull)(*kept, cotangent), None)


_attend_to_first.defvjp(_attend_forward, _attend_backward)


def _call(queries: Array, keys: Array, values: Array, count: Array, implementation: Implementation) -> Array:
    # cuDNN's gradient requires even lengths; the added keys are beyond `count`.
    tokens, query_count = queries.shape[1], jnp.full_like(count, queries.shape[1])
    queries, keys, values = (_even(part) for part in (queries, keys, values))
    attend = partial(jax.nn.dot_product_attention, query_seq_lengths=query_count, key_value_seq_lengths=count)
    return attend(queries, keys, values, implementation=implementation)[:, :tokens]


def _batchable(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of batches that merges the axis of `jax.vmap` into the batch; cuDNN's rule fails in some cases."""
    batchable = jax.custom_batching.custom_vmap(function)

    @batchable.def_vmap
    def _several(size: int, batched: list[bool], *parts: Array) -> tuple[Any, Any]:
        every = [
            part if several else jnp.broadcast_to(part, (size, *part.shape))
            for part, several in zip(parts, batched, strict=True)
        ]
        outputs = _batchable(function)(*(part.reshape(-1, *part.shape[2:]) for part in every))
        apart = jax.tree.map(lambda part: part.reshape(size, -1, *part.shape[1:]), outputs)
        return apart, jax.tree.map(lambda _: True, apart)

    return batchable


def _even(part: Float[Array, "batch token heads head_dim"]) -> Float[Array, "batch longer heads head_dim"]:
    return jnp.pad(part, ((0, 0), (0, part.shape[1] % 2), (0, 0), (0, 0)))
