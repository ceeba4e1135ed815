"""What follows attention in a layer, and what all layers have in common: the one place that says it.

Three forms of a layer read it: `encoder.Layer`, which keeps all that happens inside, `packed_layer`, which computes
many runs at once, and training, which drops units. docs/families.md says what other families of encoders change here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from jaxtyping import Array, Float

from bertjax.model import ops
from bertjax.model.types import Numerics, record

Drop: TypeAlias = Callable[[Array], Array]


@dataclass(frozen=True)
class Recipe:
    """What all layers of a model have in common, known when a step is compiled.

    Args:
        activation: between the two products of the feed-forward layer: a name in `ops.ACTIVATIONS`.
        epsilon: of the norms.
        numerics: in which number formats a layer computes.
    """

    activation: str
    epsilon: float
    numerics: Numerics


@record
class AfterAttention:
    """A layer's parameters beyond those of its attention."""

    norm_scale: Float[Array, "embed"]
    norm_bias: Float[Array, "embed"]
    inner_kernel: Float[Array, "embed mlp"]
    inner_bias: Float[Array, "mlp"]
    outer_kernel: Float[Array, "mlp embed"]
    outer_bias: Float[Array, "embed"]
    outer_norm_scale: Float[Array, "embed"]
    outer_norm_bias: Float[Array, "embed"]


def after_attention(
    total: Float[Array, "*batch embed"],
    weights: AfterAttention,
    recipe: Recipe,
    drop: Drop = lambda outputs: outputs,
) -> Float[Array, "*batch embed"]:
    """A layer's output: with `h = norm(total)`, `norm(h + W2 activation(W1 h + b1) + b2)`.

    Source: Devlin et al. 2019 and HuggingFace's `modeling_bert.py` (norms after the sums).

    Args:
        total: what the layer was given plus what attention adds to it, in wide floats.
        drop: what training does to the feed-forward layer's output before it is added.
    """
    norm = partial(ops.layer_norm, epsilon=recipe.epsilon, numerics=recipe.numerics)
    hidden = norm(total, weights.norm_scale, weights.norm_bias)
    inner = ops.dense(hidden, weights.inner_kernel, weights.inner_bias, recipe.numerics)
    inner = ops.ACTIVATIONS[recipe.activation](inner)
    outer = drop(ops.dense(inner, weights.outer_kernel, weights.outer_bias, recipe.numerics))
    return norm(outer + hidden.astype(outer.dtype), weights.outer_norm_scale, weights.outer_norm_bias)
