"""Attention that keeps no weights, chosen by `Numerics.attention`: `jax.nn`'s form, or the Pallas kernel.

Both take overrides of whole heads: gates, uniform weights, factors, given outputs. What needs the weights of single
queries and keys needs the explicit form. `jax.nn`'s form is XLA's own, which makes all weights and is no more than
another way to write the explicit one; or, in half precision on an NVIDIA GPU from Ampere on, cuDNN's flash attention.
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
# Of each head of a layer: what its learned weights are multiplied by, and the share of uniform weights.
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
    """Each head's outputs after overrides, in wide floats; 0 for a query that may attend to no key.

    Args:
        scale: of the products of queries and keys; None for 1/sqrt(head_dim).
        bias: what is added to them.

    Raises:
        OverrideError: overrides of weights or edges.
        InputError: a mask `[batch, query, key]`, a bias or another scale for the Pallas kernel.
    """
    if overrides is not None and (overrides.weights is not None or overrides.edges is not None):
        what = "single weights" if overrides.weights is None else "given weights"
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
            "attention='pallas' takes an attention_mask of whole tokens, [batch, token]; for [batch, query, key] use "
            "'explicit' or 'fused'"
        )
    marks = (keep[:, 0] > 0).astype(jnp.int32)
    asking = jnp.ones(queries.shape[:2], jnp.int32)  # padding attends to the real tokens, as in the explicit form
    whole = None if gates is None else pallas_attention.HeadGates(*gates, jnp.ones(queries.shape[2]))
    return pallas_attention.attend(queries, keys, values, (asking, marks), whole, numerics)


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
    """Each head's outputs in rows that hold several examples, in wide floats.

    At padding, whose segment is 0, something finite: nothing attends to it, so that it does no harm.

    Args:
        keep: which keys each query may attend to, where that is not its whole example.
        scale, bias: as in `attend`.
    """
    if numerics.attention == "pallas":
        from bertjax.models.kernels import pallas_attention

        return pallas_attention.attend(queries, keys, values, (segments, segments), None, numerics)
    implementation: Implementation = "cudnn" if has_cudnn(numerics, queries.shape[-1]) else "xla"
    keep = ops.same_segment(segments, numerics.wide) if keep is None else keep
    options: Any = {"scale": scale, "bias": bias, "implementation": implementation}
    return _jax(queries, keys, values, keep, numerics, **options)


def has_cudnn(numerics: Numerics, head_dim: int) -> bool:
    """Whether cuDNN's flash attention can run here: half precision, heads of at most 128, an Ampere GPU or newer."""
    if numerics.dtype not in ("bfloat16", "float16") or head_dim % 8 or head_dim > 128:
        return False
    version = re.fullmatch(r"(\d+)\.\d+", str(getattr(jax.local_devices()[0], "compute_capability", "")))
    return version is not None and int(version[1]) >= 8  # AMD's are named otherwise


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
    has_keys = jnp.max(keep, axis=-1) > 0  # without keys it would be the mean over padding
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
    # Inside, jax.nn mixes dtypes of its own, which a caller's strict promotion would refuse.
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
    """Attention whose mask is a number of keys, so that none of its size is made.

    Attention does not ask for the order of keys: those that are not padding go first, wherever they stand. A row
    without any key gets something finite.
    """
    order = jnp.argsort(keep <= 0, axis=1, stable=True)[:, :, None, None]
    keys, values = (jnp.take_along_axis(part, order, axis=1) for part in (keys, values))
    count = jnp.maximum(jnp.sum(keep > 0, axis=1, dtype=jnp.int32), 1)
    return _attend_to_first(queries, keys, values, count, implementation)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attend_to_first(
    queries: Array, keys: Array, values: Array, count: Int[Array, " batch"], implementation: Implementation
) -> Array:
    """Attention to the first `length` keys; differentiable once, in reverse."""
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
    # cuDNN's gradient wants even lengths; the keys that fill up are beyond the number of keys.
    tokens, asking = queries.shape[1], jnp.full_like(count, queries.shape[1])
    queries, keys, values = (_even(part) for part in (queries, keys, values))
    attend = partial(jax.nn.dot_product_attention, query_seq_lengths=asking, key_value_seq_lengths=count)
    return attend(queries, keys, values, implementation=implementation)[:, :tokens]


def _batchable(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of batches that takes several under `jax.vmap` as one; cuDNN's own rule refuses some of them."""
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
