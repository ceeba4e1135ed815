"""Attention that keeps no weights, chosen by `Numerics.attention`: `jax.nn`'s form, or the Pallas kernel.

Both take overrides of whole heads: gates, uniform weights, factors, given outputs. What needs the weights of single
queries and keys needs the explicit form. `jax.nn`'s form is XLA's own, which makes all weights and is no more than
another way to write the explicit one; or, in half precision on an NVIDIA GPU from Ampere on, cuDNN's flash attention.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from bertjax import ops
from bertjax.errors import InputError, OverrideError
from bertjax.types import Numerics, Overrides

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
    numerics: Numerics,
) -> Float[Array, "batch query heads head_dim"]:
    """Each head's outputs after overrides, in wide floats; 0 for a query that may attend to no key.

    Raises:
        OverrideError: overrides of weights or edges.
        InputError: a mask `[batch, query, key]` for the Pallas kernel.
    """
    if overrides is not None and (overrides.weights is not None or overrides.edges is not None):
        what = "single weights" if overrides.weights is None else "given weights"
        raise OverrideError(f"overrides of {what} need attention='explicit', found {numerics.attention!r}")
    gates = None if overrides is None else (overrides.weights_gate[layer], overrides.uniform[layer])
    form = _pallas if numerics.attention == "pallas" else _jax
    outputs = form(queries, keys, values, keep, gates, numerics)
    return outputs if overrides is None else ops.override_outputs(outputs, overrides, layer)


def _pallas(queries: Array, keys: Array, values: Array, keep: Array, gates: Gates, numerics: Numerics) -> Array:
    from bertjax import kernels  # Pallas is loaded by those who use it

    if keep.shape[1] != 1:
        raise InputError(
            "attention='pallas' takes an attention_mask of whole tokens, [batch, token]; for [batch, query, key] use "
            "'explicit' or 'fused'"
        )
    marks = (keep[:, 0] > 0).astype(jnp.int32)
    asking = jnp.ones(queries.shape[:2], jnp.int32)  # padding attends to the real tokens, as in the explicit form
    whole = None if gates is None else kernels.HeadGates(*gates, jnp.ones(queries.shape[2]))
    return kernels.attend(queries, keys, values, (asking, marks), whole, numerics)


def attend_in_rows(
    queries: Float[Array, "batch token heads head_dim"],
    keys: Float[Array, "batch token heads head_dim"],
    values: Float[Array, "batch token heads head_dim"],
    segments: Int[Array, "batch token"],
    numerics: Numerics,
) -> Float[Array, "batch token heads head_dim"]:
    """Each head's outputs in rows that hold several examples, in wide floats; 0 at padding, whose segment is 0."""
    if numerics.attention == "pallas":
        from bertjax import kernels

        return kernels.attend(queries, keys, values, (segments, segments), None, numerics)
    implementation: Implementation = "cudnn" if has_cudnn(numerics, queries.shape[-1]) else "xla"
    return _jax(queries, keys, values, ops.same_segment(segments, numerics.wide), None, numerics, implementation)


def has_cudnn(numerics: Numerics, head_dim: int) -> bool:
    """Whether cuDNN's flash attention can run here: half precision, heads of at most 128, an Ampere GPU or newer."""
    if numerics.dtype not in ("bfloat16", "float16") or head_dim % 8 or head_dim > 128:
        return False
    (device, *_) = jax.local_devices()
    return device.platform == "gpu" and float(getattr(device, "compute_capability", 0)) >= 8


def _jax(
    queries: Array,
    keys: Array,
    values: Array,
    keep: Array,
    gates: Gates,
    numerics: Numerics,
    implementation: Implementation = "xla",
) -> Array:
    # Inside, jax.nn mixes dtypes of its own, which a caller's strict promotion would refuse.
    with jax.default_matmul_precision(numerics.precision), jax.numpy_dtype_promotion("standard"):
        if keep.shape[1] == 1 and has_cudnn(numerics, queries.shape[-1]):
            learned = real_keys_first(queries, keys, values, keep[:, 0], "cudnn")
        else:
            mask = (keep > 0)[:, None]
            learned = jax.nn.dot_product_attention(queries, keys, values, mask=mask, implementation=implementation)
    some = jnp.max(keep, axis=-1) > 0  # without keys it would be the mean over padding
    learned = jnp.where(some[:, :, None, None], learned, 0).astype(numerics.wide)
    if gates is None:
        return learned
    gate, share = (part[None, None, :, None].astype(learned.dtype) for part in gates)
    mean = ops.contract("bqk,bkhd->bqhd", ops.uniform_weights(keep), values, numerics)
    return ops.blend(gate, learned, share * mean)


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
    return jax.nn.dot_product_attention(
        queries, keys, values, key_value_seq_lengths=count, implementation=implementation
    )
