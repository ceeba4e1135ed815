"""The attention maps of an encoder, computed layer by layer."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float

from bertjax.engine import place_on_mesh
from bertjax.model import AttentionRecord, Context, Inputs
from bertjax.probes import norm_shares

Weights: TypeAlias = Float[Array, "batch heads query key"]


@dataclass(frozen=True)
class Encoder:
    """A model's embeddings and layers as pairs of graph and parameters.

    Single layers, not the whole model, are compiled for each shape, so that batches can have many widths.
    """

    embeddings: tuple[Any, Any]
    layers: list[tuple[Any, Any]]
    context: Callable[[Inputs], Context]
    norms: bool = False

    @classmethod
    def of(cls, body: Any, mesh: Mesh | None = None, *, norms: bool = False) -> "Encoder":
        """The parts of an encoder, on every device of a mesh.

        Args:
            norms: whether maps are of the norms of what is added up, in place of weights.
        """
        embeddings, *layers = (
            (graph, place_on_mesh(state, mesh))
            for graph, state in map(nnx.split, [body.embeddings, *body.encoder.applications()])
        )
        return cls(embeddings, layers, body.encoder.context, norms)

    def attend(self, inputs: Inputs) -> Float[Array, "layers batch heads query key"]:
        """The attention weights of all layers, or shares of norms."""
        hidden, context = _embed(*self.embeddings, inputs), self.context(inputs)
        maps = []
        for layer in self.layers[:-1]:
            hidden, weights = _layer(*layer, hidden, context, self.norms)
            maps.append(weights)
        return _stack(*maps, _weights(*self.layers[-1], hidden, context, self.norms))


@partial(jax.jit, static_argnums=0)
def _embed(graph: Any, state: Any, inputs: Inputs) -> Float[Array, "batch token embed"]:
    return nnx.merge(graph, state)(inputs)


@partial(jax.jit, static_argnums=(0, 4), donate_argnums=2)
def _layer(
    graph: Any, state: Any, hidden: Array, context: Context, norms: bool
) -> tuple[Float[Array, "batch token embed"], Weights]:
    layer = nnx.merge(graph, state)
    hidden, inside, _ = layer(hidden, context)
    return hidden, _maps(layer, inside, norms)


@partial(jax.jit, static_argnums=(0, 4))
def _weights(graph: Any, state: Any, hidden: Array, context: Context, norms: bool) -> Weights:
    """The maps of the last layer; the compiler removes whatever they do not need."""
    layer = nnx.merge(graph, state)
    return _maps(layer, layer(hidden, context)[1], norms)


def _maps(layer: Any, inside: AttentionRecord, norms: bool) -> Weights:
    """Weights, or the shares that keys have of the norms of what a head adds up (Kobayashi et al. 2020)."""
    weights = inside.weights
    assert weights is not None  # attention is explicit
    if not norms:
        return weights
    kernel = layer.attention.output.kernel[...]  # heads, head_dim, embed; removed heads add nothing
    own = jnp.einsum("hde,hce->hdc", kernel, kernel, precision="highest")
    heads = jnp.array(layer.attention.kind.heads, jnp.int32)
    products = jnp.zeros((weights.shape[1], *own.shape[1:]), own.dtype).at[heads].set(own)
    return norm_shares(weights[None], inside.values[None], products[None])[0]


@jax.jit
def _stack(*maps: Weights) -> Float[Array, "layers batch heads query key"]:
    """Stack the maps in a function of its own: compiled into its consumer, stacking would be repeated at every read."""
    return jnp.stack(maps)
