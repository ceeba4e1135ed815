"""The steps of a sweep on blocks, compiled: one for each kind of step, whatever runs and chunks are in a block."""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int, Shaped

from bertjax import steps
from bertjax.readouts import Readout
from bertjax.steps import Changes, LayerWeights, Recipe, Rows
from bertjax.types import Inputs, Numerics

Block: TypeAlias = Float[Array, "runs rows token embed"]
FirstTokens: TypeAlias = Float[Array, "runs rows places embed"]


@partial(jax.jit, static_argnums=(0, 3))
def embed(graphdef: Any, state: Any, inputs: Inputs, runs: int) -> Block:
    """Embeddings of some rows, as a block."""
    hidden = nnx.merge(graphdef, state)(inputs)
    return hidden.reshape(runs, -1, *hidden.shape[1:])


@jax.jit
def gather(blocks: Sequence[Array], indices: Int[Array, "runs"]) -> Float[Array, "runs ..."]:
    """A block of slots that lie in several."""
    slots = [jax.lax.dynamic_index_in_dim(block, indices[slot], keepdims=False) for slot, block in enumerate(blocks)]
    return jnp.stack(slots)


def _over_rows(changes: Changes | None, rows: int) -> Changes | None:
    """Changes of runs as changes of their rows, one run's rows after another's."""
    if changes is None:
        return None
    uniform, removed, mean, patched = (
        None if share is None else jnp.repeat(share, rows, axis=0)
        for share in (changes.uniform, changes.removed, changes.mean, changes.patched)
    )
    return Changes(uniform, removed, mean, patched, changes.means, changes.donors)


def _flat(hidden: Array) -> Float[Array, "batch token embed"]:
    return hidden.reshape(-1, *hidden.shape[2:])


@partial(jax.jit, static_argnums=4, donate_argnums=1)
def advance(weights: LayerWeights, hidden: Block, rows: Rows, changes: Changes | None, recipe: Recipe) -> Block:
    """A layer, each run from hidden states of its own; `hidden` is given away."""
    after = steps.advance(weights, _flat(hidden), rows, _over_rows(changes, hidden.shape[1]), recipe)
    return after.reshape(hidden.shape)


@partial(jax.jit, static_argnums=4)
def last_advance(
    weights: LayerWeights, hidden: Block, rows: Rows, changes: Changes | None, recipe: Recipe
) -> FirstTokens:
    """A last layer at [CLS] alone, each run from hidden states of its own."""
    after = steps.last_advance(weights, _flat(hidden), rows, _over_rows(changes, hidden.shape[1]), recipe)
    return after.reshape(*hidden.shape[:2], *after.shape[1:])


@partial(jax.jit, static_argnums=5)
def branch(
    weights: LayerWeights, block: Block, index: ArrayLike, rows: Rows, changes: Changes, recipe: Recipe
) -> Block:
    """A layer for runs that all start from one slot of a block."""
    return steps.branch(weights, block[index], rows, changes, recipe)


@partial(jax.jit, static_argnums=5)
def last_branch(
    weights: LayerWeights, block: Block, index: ArrayLike, rows: Rows, changes: Changes, recipe: Recipe
) -> FirstTokens:
    """A last layer at [CLS] alone for runs that all start from one slot."""
    return steps.last_branch(weights, block[index], rows, changes, recipe)


@partial(jax.jit, static_argnums=(0, 3))
def read_first(
    graphdef: Any, state: Any, hidden: FirstTokens, readout: Readout
) -> Shaped[Array, "runs rows places *readout"]:
    """The readout of a block that holds [CLS] alone."""
    model = nnx.merge(graphdef, state)
    first = hidden.reshape(-1, 1, hidden.shape[-1])
    found = readout(model.finish(first, jnp.ones((first.shape[0], 1, 1), model.numerics.wide)))
    return found.reshape(*hidden.shape[:3], *found.shape[1:])


@partial(jax.jit, static_argnums=(0, 5, 6))
def read(
    graphdef: Any,
    state: Any,
    hidden: Block,
    rows: Rows,
    lengths: Int[Array, "batch places"],
    longest: int,
    readout: Readout,
) -> Shaped[Array, "runs rows places *readout"]:
    """The readout of a block, each example apart."""
    model = nnx.merge(graphdef, state)
    apart, keep = steps.examples_apart(_flat(hidden), rows, lengths, longest)
    found = readout(model.finish(apart, keep.astype(model.numerics.wide)))
    return found.reshape(*hidden.shape[:2], -1, *found.shape[1:])


@partial(jax.jit, static_argnums=(0, 5))
def read_at(
    graphdef: Any, state: Any, hidden: Block, rows: Rows, positions: Int[Array, "batch places wanted"], readout: Readout
) -> Shaped[Array, "runs rows places *readout"]:
    """The readout at some tokens of each example."""
    model = nnx.merge(graphdef, state)
    found = steps.tokens_at(_flat(hidden), rows, positions)
    found = readout(model.finish(found, jnp.ones((found.shape[0], 1, found.shape[1]), model.numerics.wide)))
    return found.reshape(*hidden.shape[:2], -1, *found.shape[1:])


@partial(jax.jit, static_argnums=(3, 4))
def head_outputs(
    weights: LayerWeights, hidden: Block, rows: Rows, numerics: Numerics, short: bool
) -> Float[Array, "runs rows place heads head_dim"]:
    """What donors give to a layer: all heads' outputs, of a short last layer at [CLS] alone."""
    step = steps.first_head_outputs if short else steps.head_outputs
    found = step(weights, _flat(hidden), rows, numerics)
    return found.reshape(*hidden.shape[:2], *found.shape[1:])
