"""The parts of a layer before and after attention.

Three implementations of a layer share them: `encoder.Layer`, which records all activations, `packed_layer`, which
computes many runs at once, and training, which applies dropout. `LayerKind` describes the layer;
docs/guides/families.md lists how families differ.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.checkpoints import LayerKind
from bertjax.models import ops
from bertjax.models.types import Numerics, record

Drop: TypeAlias = Callable[[Array], Array]
Visit: TypeAlias = Callable[[str, Array], Array]


def keep_all(outputs: Array) -> Array:
    """The identity, in place of dropout."""
    return outputs


@runtime_checkable
class Dropout(Protocol):
    """Dropout inside a layer in training."""

    def weights(self, weights: Array) -> Array:
        """Drop attention weights `[batch, heads, query, key]`."""

    def attended(self, outputs: Array) -> Array:
        """Drop units of the output of attention."""

    def inner(self, activations: Array) -> Array:
        """Drop activations of the feed-forward layer."""

    def mlp(self, outputs: Array) -> Array:
        """Drop units of the output of the feed-forward layer."""

    def distances(self, table: Array) -> Array:
        """Drop units of a table of position vectors."""


@dataclass(frozen=True)
class Recipe:
    """Static description of a layer, known when a step is compiled.

    Args:
        kind: the kind of layer.
        numerics: dtypes, precision and attention implementation.
    """

    kind: LayerKind
    numerics: Numerics


@record
class Norms:
    """Scale and bias of the two norms of a layer."""

    attention_scale: Float[Array, "embed"] | None
    attention_bias: Float[Array, "embed"] | None
    output_scale: Float[Array, "embed"]
    output_bias: Float[Array, "embed"] | None


@record
class AfterAttention:
    """Parameters of a layer outside attention; None for those that its kind lacks.

    `inner` is the width of the feed-forward layer, or twice that if it is gated.
    """

    norms: Norms
    inner_kernel: Float[Array, "embed inner"]
    inner_bias: Float[Array, "inner"] | None
    outer_kernel: Float[Array, "mlp embed"]
    outer_bias: Float[Array, "embed"] | None


def before_attention(
    hidden: Float[Array, "*batch embed"], weights: AfterAttention, recipe: Recipe
) -> Float[Array, "*batch embed"]:
    """Input of attention: the hidden states, or their norm in a pre-norm layer."""
    kind, norms = recipe.kind, weights.norms
    if kind.norms == "after" or not kind.norm_of_input:
        return hidden
    assert norms.attention_scale is not None
    return ops.layer_norm(hidden, norms.attention_scale, norms.attention_bias, kind.epsilon, recipe.numerics)


def after_attention(
    total: Float[Array, "*batch embed"],
    weights: AfterAttention,
    recipe: Recipe,
    dropout: Dropout | None = None,
    visit: Visit | None = None,
) -> Float[Array, "... embed"]:
    """Output of a layer: with `h = norm(total)`, `norm(h + W2 activation(W1 h + b1) + b2)`.

    In a pre-norm layer `total + W2 activation(W1 norm(total))`. A gated layer multiplies the activation of the first
    half of `W1 h` by the second half (Shazeer 2020). Source: Devlin et al. 2019 and HuggingFace's models.

    Args:
        total: sum of the hidden states and the output of attention, in wide floats.
        weights: parameters of the layer.
        recipe: description of the layer.
        dropout: dropout in training, or None.
        visit: called with the site's name and the input and output of the feed-forward layer; returns the activations
            to use, which may have an additional first axis of runs.
    """
    kind, norms = recipe.kind, weights.norms
    norm = partial(ops.layer_norm, epsilon=kind.epsilon, numerics=recipe.numerics)
    if kind.norms == "before":
        read = norm(total, norms.output_scale, norms.output_bias)
        added = _feed_forward(read, weights, recipe, dropout=dropout, visit=visit)
        return (total + added).astype(recipe.numerics.dtype)
    assert norms.attention_scale is not None
    hidden = norm(total, norms.attention_scale, norms.attention_bias)
    added = _feed_forward(hidden, weights, recipe, dropout=dropout, visit=visit)
    return norm(added + hidden.astype(added.dtype), norms.output_scale, norms.output_bias)


def _feed_forward(
    hidden: Float[Array, "*batch embed"],
    weights: AfterAttention,
    recipe: Recipe,
    *,
    dropout: Dropout | None,
    visit: Visit | None,
) -> Float[Array, "... embed"]:
    """Output of the feed-forward layer, in wide floats."""
    hidden = hidden if visit is None else visit("feed_forward_inputs", hidden)
    inner = ops.dense(hidden, weights.inner_kernel, weights.inner_bias, recipe.numerics)
    activation = ops.ACTIVATIONS[recipe.kind.activation]
    if recipe.kind.gated:
        first, gate = jnp.split(inner, 2, axis=-1)
        inner = activation(first) * gate
    else:
        inner = activation(inner)
    if dropout is not None:
        inner = dropout.inner(inner)
    outer = ops.dense(inner, weights.outer_kernel, weights.outer_bias, recipe.numerics)
    outer = outer if dropout is None else dropout.mlp(outer)
    return outer if visit is None else visit("feed_forward_outputs", outer)
