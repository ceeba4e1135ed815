"""The mathematics of BERT as free functions on arrays; no parameters, no Flax.

Source: Vaswani et al. 2017 (attention), Devlin et al. 2019 (BERT), Hendrycks and Gimpel 2016 (GELU), and
HuggingFace's `modeling_bert.py` for the details that checkpoints rely on. Overrides follow Kovaleva et al.
2019 (uniform weights), Michel et al. 2019 (a factor on a head's output) and Geva et al. 2023 (forbidden edges).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, DTypeLike, Float, Int

from bertjax.models.types import AttentionRecord, Edges, HeadOutputs, HeadWeights, Numerics, Overrides

# exp of this is finite in float32, so that times the factor 0 of a masked key it is 0.
LARGEST_EXPONENT = 80.0

# Coefficients, lowest power first, of a polynomial p with p(u)^-8 close to the upper tail of the standard normal
# distribution for 0 <= u <= 8, fitted to minimize the largest error of u * p(u)^-8 (5e-8).
TAIL = (
    1.0905077457427979,
    0.108759805560112,
    0.048836808651685715,
    0.00938353780657053,
    0.0010520112700760365,
    0.00013297646364662796,
    0.00010217211820418015,
    -1.745529516483657e-05,
    3.1359377317130566e-06,
)


def gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`x/2 * (1 + erf(x / sqrt(2)))`: x times the standard normal distribution function.

    float64 uses XLA's function. Narrower floats use a polynomial in float32, whose error (at most 4e-7 for x between -9
    and 9) is that of PyTorch, in less than half the time on a CPU.

    Args:
        x: input of any shape.

    >>> gelu(jnp.array([-1.0, 0.0, 2.0])).round(4).tolist()
    [-0.15869998931884766, 0.0, 1.9544999599456787]
    """
    if x.dtype == jnp.float64:
        return jax.nn.gelu(x, approximate=False)
    wide = x.astype(jnp.float32)
    distance = jnp.minimum(jnp.abs(wide), 8.0)
    root = jnp.zeros_like(distance)
    for coefficient in reversed(TAIL):
        root = root * distance + coefficient
    beyond = 1 / root**8
    return (wide * jnp.where(wide < 0, beyond, 1 - beyond)).astype(x.dtype)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu_new": partial(jax.nn.gelu, approximate=True),
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


def contract(subscripts: str, left: Array, right: Array, numerics: Numerics, *, passed_on: bool = False) -> Array:
    """Einsum of two arrays in `numerics.dtype`, accumulated and returned in `numerics.wide`.

    Args:
        subscripts: subscripts of the einsum.
        left: the first operand.
        right: the second operand.
        numerics: dtypes and precision.
        passed_on: whether the output feeds another product, so that it may be rounded (`Numerics.narrow`).
    """
    product = jnp.einsum(
        subscripts,
        left.astype(numerics.dtype),
        right.astype(numerics.dtype),
        precision=numerics.precision,
        preferred_element_type=numerics.dtype if passed_on and numerics.narrow else numerics.wide,
    )
    return product.astype(numerics.wide)


def layer_norm(
    x: Float[Array, "*batch embed"],
    scale: Float[Array, "embed"],
    bias: Float[Array, "embed"] | None,
    epsilon: float,
    numerics: Numerics,
) -> Float[Array, "*batch embed"]:
    """`scale * (x - mean) / sqrt(variance + epsilon) + bias` over the last axis, in wide floats.

    The variance is the mean of squared deviations: the faster `E[x^2] - E[x]^2` loses digits in float32.

    Args:
        x: input, `[..., embed]`.
        scale: factor of each feature, `[embed]`.
        bias: bias, `[embed]`, or None.
        epsilon: number added to the variance.
        numerics: dtypes and precision.

    Returns: array of x's shape in `numerics.dtype`.
    """
    x = x.astype(numerics.wide)
    return add_bias(jnp.expand_dims(scale, range(x.ndim - 1)) * normalise(x, epsilon), bias).astype(numerics.dtype)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def normalise(x: Float[Array, "*batch embed"], epsilon: float) -> Float[Array, "*batch embed"]:
    """`(x - mean) / sqrt(variance + epsilon)` over the last axis.

    The derivative is explicit, `P(w) = w - mean(w) - y mean(w y)` with `w = dx / sqrt(variance + epsilon)`: jaxlib
    0.12.0 miscompiles JAX's derivative for CPUs from a few thousand rows on. (jaxlib 0.10.2 miscompiles both forms in
    `jax.jacrev`, that is `jax.vmap` over cotangents of one input: use `jax.jacfwd` there.)

    Args:
        x: input, `[..., embed]`.
        epsilon: number added to the variance.
    """
    return _normalised(x, epsilon)[0]


def _normalised(x: Float[Array, "*batch embed"], epsilon: float) -> tuple[Array, Float[Array, "*batch 1"]]:
    """`normalise`, and the factor on the deviations."""
    deviation = x - jnp.mean(x, axis=-1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.mean(deviation * deviation, axis=-1, keepdims=True) + epsilon)
    return deviation * scale, scale


@normalise.defjvp
def _normalise_jvp(epsilon: float, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    y, scale = _normalised(primals[0], epsilon)
    w = scale * tangents[0]
    return y, w - jnp.mean(w, axis=-1, keepdims=True) - y * jnp.mean(w * y, axis=-1, keepdims=True)


def add_bias(x: Float[Array, "*batch outputs"], bias: Float[Array, "outputs"] | None) -> Float[Array, "*batch outputs"]:
    """`x + bias`, or x without a bias.

    Args:
        x: input, `[..., outputs]`.
        bias: bias, `[outputs]`, or None.
    """
    return x if bias is None else x + jnp.expand_dims(bias, range(x.ndim - 1))


def dense(
    x: Float[Array, "*batch inputs"],
    kernel: Float[Array, "inputs outputs"],
    bias: Float[Array, "outputs"] | None,
    numerics: Numerics,
) -> Float[Array, "*batch outputs"]:
    """`x @ kernel + bias`, returned in wide floats.

    Args:
        x: input, `[..., inputs]`.
        kernel: kernel, `[inputs, outputs]`.
        bias: bias, `[outputs]`, or None.
        numerics: dtypes and precision.
    """
    return add_bias(contract("...i,io->...o", x, kernel, numerics, passed_on=True), bias)


def split_heads(
    x: Float[Array, "batch token embed"],
    kernel: Float[Array, "embed heads head_dim"],
    bias: Float[Array, "heads head_dim"] | None,
    numerics: Numerics,
) -> Float[Array, "batch token heads head_dim"]:
    """Project hidden states to a vector for each head (queries, keys or values).

    Args:
        x: hidden states, `[batch, token, embed]`.
        kernel: kernel, `[embed, heads, head_dim]`.
        bias: bias, `[heads, head_dim]`, or None.
        numerics: dtypes and precision.
    """
    projected = contract("bte,ehd->bthd", x, kernel, numerics)
    return (projected if bias is None else projected + bias[None, None]).astype(numerics.dtype)


def merge_heads(
    head_outputs: Float[Array, "batch query heads head_dim"],
    kernel: Float[Array, "heads head_dim embed"],
    bias: Float[Array, "embed"] | None,
    numerics: Numerics,
) -> Float[Array, "batch query embed"]:
    """The output projection: the sum of all head outputs, each projected by the kernel of its head.

    Args:
        head_outputs: outputs of the heads, `[batch, query, heads, head_dim]`.
        kernel: kernel of the output projection, `[heads, head_dim, embed]`.
        bias: bias of the output projection, or None.
        numerics: dtypes and precision.
    """
    return add_bias(contract("bqhd,hde->bqe", head_outputs, kernel, numerics), bias)


def attention_scores(
    queries: Float[Array, "batch query heads head_dim"],
    keys: Float[Array, "batch key heads head_dim"],
    numerics: Numerics,
    scale: float | None = None,
) -> Float[Array, "batch heads query key"]:
    """`queries . keys * scale` in wide floats; the default scale is 1/sqrt(head_dim).

    Args:
        queries: query vectors, `[batch, query, heads, head_dim]`.
        keys: key vectors, `[batch, key, heads, head_dim]`.
        numerics: dtypes and precision.
        scale: factor on the products; None for 1/sqrt(head_dim).
    """
    products = contract("bqhd,bkhd->bhqk", queries, keys, numerics)
    return products * (score_scale(queries.shape[-1]) if scale is None else scale)


def score_scale(head_dim: int) -> float:
    """Default factor on the product of a query and a key: 1/sqrt(head_dim) (Vaswani et al. 2017).

    Args:
        head_dim: width of a head.
    """
    return float(head_dim**-0.5)


def other_scale(scale: float, head_dim: int) -> float | None:
    """A scale other than `score_scale`, which kernels assume; None if it is the same.

    Args:
        scale: factor on the products of queries and keys.
        head_dim: width of a head.
    """
    return None if scale == score_scale(head_dim) else scale


def attention_weights(
    scores: Float[Array, "batch heads query key"], keep: Float[Array, "batch #heads #query key"]
) -> Float[Array, "batch heads query key"]:
    """Softmax over keys with a factor `keep` on each exponential.

    `w_k = keep_k exp(s_k) / sum_j keep_j exp(s_j)`: the weight is exactly 0 where keep is 0, and a row whose keys are
    all masked is 0 (not NaN). Differentiable in `keep`, also at 0. Scores without a defined softmax (infinity, NaN, or
    minus infinity at every kept key) result in NaN, as in PyTorch.

    Args:
        scores: attention scores, `[batch, heads, query, key]`.
        keep: factors on the exponentials; 0 for masked keys.
    """
    allowed = keep > 0
    highest = jnp.max(jnp.where(allowed, scores, -jnp.inf), axis=-1, keepdims=True)
    highest = jax.lax.stop_gradient(jnp.where(jnp.any(allowed, axis=-1, keepdims=True), highest, 0))
    share = jnp.exp(jnp.minimum(scores - highest, LARGEST_EXPONENT)) * keep
    total = jnp.sum(share, axis=-1, keepdims=True)
    return share / jnp.where(total <= 0, 1, total)  # NaN stays


def same_segment(segments: Int[Array, "batch token"], dtype: DTypeLike) -> Float[Array, "batch query key"]:
    """1 where query and key belong to the same example of a row; segments count examples from 1, 0 is padding.

    Args:
        segments: example of each token, from 1; 0 for padding.
        dtype: dtype of the result.
    """
    same = (segments[:, :, None] == segments[:, None]) & (segments > 0)[:, None]
    return same.astype(dtype)


def uniform_weights(keep: Float[Array, "batch #query key"]) -> Float[Array, "batch #query key"]:
    """1/n for each of the n keys that a query may attend to, else 0 (Kovaleva et al. 2019, section 4.6).

    Args:
        keep: attention mask, 1 for keys that a query may attend to.
    """
    return keep / jnp.maximum(jnp.sum(keep, axis=-1, keepdims=True), 1)


def mix(
    weights: Float[Array, "batch heads query key"],
    values: Float[Array, "batch key heads head_dim"],
    numerics: Numerics,
) -> Float[Array, "batch query heads head_dim"]:
    """Output of each head: the weighted sum of values.

    Args:
        weights: attention weights, `[batch, heads, query, key]`.
        values: value vectors, `[batch, key, heads, head_dim]`.
        numerics: dtypes and precision.
    """
    return contract("bhqk,bkhd->bqhd", weights, values, numerics, passed_on=True)


def blend(gate: Array, learned: Array, replacement: Array) -> Array:
    """`gate * learned + (1 - gate) * replacement`, differentiable in the gate also at 0 and 1.

    Args:
        gate: share of the learned values, from 0 to 1.
        learned: values of the unchanged model.
        replacement: values at gate 0.
    """
    return gate * learned + (1 - gate) * replacement


def pick_heads(overrides: Overrides, heads: Sequence[int], all_heads: int) -> Overrides:
    """Overrides of the heads that a layer still has, by position in the layer.

    Args:
        overrides: overrides by original index of the head.
        heads: original indices of the layer's heads.
        all_heads: number of heads before any were removed.
    """
    kept, table = jnp.array(heads, jnp.int32), np.full(all_heads, len(heads), np.int32)  # removed heads: out of bounds
    table[list(heads)] = np.arange(len(heads))
    position = jnp.asarray(table)
    picked: dict[str, Any] = {
        name: value[:, kept]
        for name in ("weights_gate", "uniform", "output_gate", "tokens")
        if (value := getattr(overrides, name)) is not None
    }
    for name in ("weights", "outputs", "edges", "vectors"):
        if (entries := getattr(overrides, name)) is not None:
            picked[name] = replace(entries, head=position[entries.head])
    return replace(overrides, **picked)


def spread_record(record: AttentionRecord, heads: Sequence[int], all_heads: int) -> AttentionRecord:
    """The record of a layer by original index of the heads; removed heads are 0.

    Args:
        record: record of the remaining heads.
        heads: original index of each remaining head.
        all_heads: number of heads before any were removed.
    """
    kept = jnp.array(heads, jnp.int32)

    def spread(part: Array | None, axis: int) -> Any:
        if part is None:
            return None
        shape = (*part.shape[:axis], all_heads, *part.shape[axis + 1 :])
        return jnp.zeros(shape, part.dtype).at[(slice(None),) * axis + (kept,)].set(part)

    names = ("queries", "keys", "values", "weights", "head_outputs")
    return AttentionRecord(**{name: spread(getattr(record, name), 1 if name == "weights" else 2) for name in names})


def override_keep(
    keep: Float[Array, "batch #query key"], edges: Edges | None, layer: ArrayLike, heads: int, tokens: int
) -> Float[Array, "batch #heads #query key"]:
    """The factor `keep` of `attention_weights`: the mask and the edges that are forbidden in this layer.

    Args:
        keep: attention mask, 1 for keys that a query may attend to.
        edges: overrides of single edges, or None.
        layer: index of the layer.
        heads: number of heads of the layer.
        tokens: number of tokens, with padding.
    """
    if edges is None:
        return keep[:, None]
    batch = keep.shape[0]
    factor = jnp.where(_active(edges, layer, batch), edges.keep[None].astype(keep.dtype), 1)
    ones = jnp.ones((batch, heads, tokens, tokens), keep.dtype)
    return keep[:, None] * ones.at[:, edges.head, edges.query, edges.key].multiply(factor, mode="drop")


def override_weights(
    learned: Float[Array, "batch heads query key"],
    keep: Float[Array, "batch #query key"],
    overrides: Overrides,
    layer: ArrayLike,
) -> Float[Array, "batch heads query key"]:
    """Attention weights of a layer after the overrides of weights and single edges.

    Args:
        learned: weights of the unchanged heads, `[batch, heads, query, key]`.
        keep: attention mask, 1 for keys that a query may attend to.
        overrides: overrides of all layers.
        layer: index of the layer.
    """
    gate = _gate_at_tokens(overrides.weights_gate, overrides, layer)[..., None].astype(learned.dtype)
    share = overrides.uniform[layer][None, :, None, None].astype(learned.dtype)
    replacement = share * uniform_weights(keep)[:, None]
    if overrides.weights is not None:
        replacement = _place(jnp.broadcast_to(replacement, learned.shape), overrides.weights, layer)
        replacement = jnp.where(keep[:, None] > 0, replacement, 0)  # padding never gets a weight
    return _override_edges(blend(gate, learned, replacement), keep, overrides.edges, layer)


def override_outputs(
    learned: Float[Array, "batch query heads head_dim"], overrides: Overrides, layer: ArrayLike
) -> Float[Array, "batch query heads head_dim"]:
    """Head outputs of a layer after the overrides of outputs.

    Args:
        learned: outputs of the unchanged heads, `[batch, query, heads, head_dim]`.
        overrides: overrides of all layers.
        layer: index of the layer.
    """
    gate = _gate_at_tokens(overrides.output_gate, overrides, layer).swapaxes(1, 2)[..., None].astype(learned.dtype)
    if overrides.outputs is None:
        return gate * learned
    replacement = _place(jnp.zeros_like(learned).transpose(0, 2, 1, 3), overrides.outputs, layer)
    return blend(gate, learned, replacement.transpose(0, 2, 1, 3))


def _gate_at_tokens(
    gates: Float[Array, "layers heads"], overrides: Overrides, layer: ArrayLike
) -> Float[Array, "#batch heads #query"]:
    """Gates of a layer, 1 at queries at which they do not act."""
    gate = gates[layer][None, :, None]
    return gate if overrides.tokens is None else 1 - overrides.tokens[layer].swapaxes(0, 1) * (1 - gate)


def _place(
    into: Float[Array, "batch heads query _"], entries: HeadWeights | HeadOutputs, layer: ArrayLike
) -> Float[Array, "batch heads query _"]:
    """Add the entries of this layer to their heads."""
    values = jnp.moveaxis(entries.values.astype(into.dtype), 0, 1)
    in_layer = (entries.layer == layer)[None, :, None, None]
    return into.at[:, entries.head].add(jnp.where(in_layer, values, 0), mode="drop")


def _active(edges: Edges, layer: ArrayLike, batch: int) -> Array:
    """Whether an edge applies to an example in this layer: `[batch, edges]`, bool."""
    rows: Int[Array, "batch"] = jnp.arange(batch, dtype=edges.example.dtype)
    every = edges.example[None] < 0
    return (edges.layer == layer)[None] & (every | (edges.example[None] == rows[:, None]))


def _override_edges(
    weights: Float[Array, "batch heads query key"],
    keep: Float[Array, "batch #query key"],
    edges: Edges | None,
    layer: ArrayLike,
) -> Float[Array, "batch heads query key"]:
    """Blend single weights with the values of edges."""
    if edges is None:
        return weights
    active = _active(edges, layer, weights.shape[0])
    where = (slice(None), edges.head, edges.query, edges.key)
    gate = jnp.where(active, edges.gate[None].astype(weights.dtype), 1)
    added = jnp.where(active, ((1 - edges.gate) * edges.value)[None].astype(weights.dtype), 0)
    changed = weights.at[where].multiply(gate, mode="drop").at[where].add(added, mode="drop")
    return jnp.where(keep[:, None] > 0, changed, 0)  # padding never gets a weight
