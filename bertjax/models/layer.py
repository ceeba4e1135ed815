"""What precedes and what follows attention in a layer: the one place that says it.

Three forms of a layer read it: `encoder.Layer`, which keeps all that happens inside, `packed_layer`, which computes
many runs at once, and training, which drops units. What a layer computes is said by its `LayerKind`;
docs/guides/families.md says which families differ in what.
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
    """Drop nothing: what happens outside of training."""
    return outputs


@runtime_checkable
class Dropout(Protocol):
    """What training does inside a layer: units set to 0 at random, the rest scaled."""

    def weights(self, weights: Array) -> Array:
        """Attention weights `[batch, heads, query, key]` with some of them dropped."""

    def attended(self, outputs: Array) -> Array:
        """What attention is about to add to the hidden states, some units dropped."""

    def inner(self, activations: Array) -> Array:
        """The feed-forward layer's activations, some dropped."""

    def mlp(self, outputs: Array) -> Array:
        """What the feed-forward layer is about to add to the hidden states, some units dropped."""

    def distances(self, table: Array) -> Array:
        """A table of vectors of positions, some numbers dropped."""


@dataclass(frozen=True)
class Recipe:
    """What a layer computes and in which number formats, known when a step is compiled.

    Args:
        kind: what the layer computes.
        numerics: in which number formats.
    """

    kind: LayerKind
    numerics: Numerics


@record
class Norms:
    """Scale and bias of a layer's two norms: after the sums, or before attention and feed-forward layer."""

    attention_scale: Float[Array, "embed"] | None
    attention_bias: Float[Array, "embed"] | None
    output_scale: Float[Array, "embed"]
    output_bias: Float[Array, "embed"] | None


@record
class AfterAttention:
    """A layer's parameters beyond those of its attention; None for those that its kind has not.

    `inner` is as wide as the feed-forward layer, or twice as wide where it is gated.
    """

    norms: Norms
    inner_kernel: Float[Array, "embed inner"]
    inner_bias: Float[Array, "inner"] | None
    outer_kernel: Float[Array, "mlp embed"]
    outer_bias: Float[Array, "embed"] | None


def before_attention(
    hidden: Float[Array, "*batch embed"], weights: AfterAttention, recipe: Recipe
) -> Float[Array, "*batch embed"]:
    """What attention reads: the hidden states themselves, or their norm where norms come before."""
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
    """A layer's output: with `h = norm(total)`, `norm(h + W2 activation(W1 h + b1) + b2)`.

    With norms before, `total + W2 activation(W1 norm(total))`. A gated layer multiplies the activation of the first
    half of `W1 h` by the second half (Shazeer 2020). Source: Devlin et al. 2019 and HuggingFace's models.

    Args:
        total: what the layer was given plus what attention adds to it, in wide floats.
        dropout: what training does; None outside of it.
        visit: sees what the feed-forward layer reads and adds, by the place's name, and says what it is from there on:
            where it differs between runs that were alike until then, for each of them.
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
    """What the feed-forward layer adds, in wide floats."""
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
