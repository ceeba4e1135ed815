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
from bertjax.model import Context, Inputs

Weights: TypeAlias = Float[Array, "batch heads query key"]


@dataclass(frozen=True)
class Encoder:
    """A model's embeddings and layers as pairs of graph and parameters.

    Single layers, not the whole model, are compiled for each shape, so that batches can have many widths.
    """

    embeddings: tuple[Any, Any]
    layers: list[tuple[Any, Any]]
    context: Callable[[Inputs], Context]

    @classmethod
    def of(cls, body: Any, mesh: Mesh | None = None) -> "Encoder":
        """The parts of an encoder, on every device of a mesh."""
        embeddings, *layers = (
            (graph, place_on_mesh(state, mesh))
            for graph, state in map(nnx.split, [body.embeddings, *body.encoder.applications()])
        )
        return cls(embeddings, layers, body.encoder.context)

    def attend(self, inputs: Inputs) -> Float[Array, "layers batch heads query key"]:
        """The attention weights of all layers."""
        hidden, context = _embed(*self.embeddings, inputs), self.context(inputs)
        maps = []
        for layer in self.layers[:-1]:
            hidden, weights = _layer(*layer, hidden, context)
            maps.append(weights)
        return _stack(*maps, _weights(*self.layers[-1], hidden, context))


@partial(jax.jit, static_argnums=0)
def _embed(graph: Any, state: Any, inputs: Inputs) -> Float[Array, "batch token embed"]:
    return nnx.merge(graph, state)(inputs)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def _layer(
    graph: Any, state: Any, hidden: Array, context: Context
) -> tuple[Float[Array, "batch token embed"], Weights]:
    hidden, inside = nnx.merge(graph, state)(hidden, context)
    return hidden, inside.weights


@partial(jax.jit, static_argnums=0)
def _weights(graph: Any, state: Any, hidden: Array, context: Context) -> Weights:
    """The weights of the last layer; the compiler removes whatever they do not need."""
    return nnx.merge(graph, state)(hidden, context)[1].weights


@jax.jit
def _stack(*maps: Weights) -> Float[Array, "layers batch heads query key"]:
    """Stack the maps in a function of its own: compiled into its consumer, stacking would be repeated at every read."""
    return jnp.stack(maps)
