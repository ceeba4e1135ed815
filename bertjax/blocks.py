"""Blocks: what a sweep computes together, and the compiled steps that they go through.

A block is `runs` slots, each the hidden states of one run on one chunk of rows. It goes through a layer in one
compiled step, whatever runs and chunks are in it; so each kind of step is compiled once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int, Shaped

from bertjax import steps
from bertjax.ablations import Change
from bertjax.checks import prepare_inputs
from bertjax.errors import InputError
from bertjax.packing import Packed
from bertjax.plan import Node, Plan
from bertjax.pretrained import PretrainedModel
from bertjax.steps import Changes, LayerWeights, Recipe, Rows
from bertjax.types import Inputs, ModelOutput

Readout = Callable[[ModelOutput], Array]

# A branch computes 8 of a layer's 12 products of embed x embed for every slot, and the other 4 once.
BRANCH_SHARE = 0.75


@dataclass(frozen=True)
class Blocks:
    """How large the pieces are in which a sweep is computed.

    Args:
        rows: rows of a chunk.
        runs: slots of a block, each one run on one chunk.
    """

    rows: int
    runs: int


def choose_blocks(rows: int, row_length: int, heads: int, tokens: int) -> Blocks:
    """Blocks of about `tokens` tokens, in which the heads of a layer have whole numbers of blocks.

    >>> choose_blocks(rows=1000, row_length=128, heads=12, tokens=1536)
    Blocks(rows=1, runs=12)
    """
    fit = max(1, tokens // row_length)
    runs = -(-heads // -(-heads // fit))
    chunks = -(-rows // max(1, round(tokens / row_length / runs)))
    return Blocks(-(-rows // chunks), runs)


def is_worth_branching(children: int, runs: int, short: bool) -> bool:
    """Whether a step that shares attention costs less for so many children than one full layer for each.

    Args:
        runs: slots of a block; the step computes all of them.
        short: whether it is computed at [CLS] alone, where attention is nearly all there is.
    """
    return children > (1 if short else BRANCH_SHARE * runs)


@dataclass(frozen=True)
class Slot:
    """Where the hidden states of one run on one chunk are: one entry of a block."""

    block: Shaped[Array, "runs rows token embed"]
    index: int
    node: Node
    chunk: int


@dataclass(frozen=True)
class Step:
    """A run that goes through a layer, from a slot that is its own or its parent's."""

    source: Slot
    node: Node
    changes: tuple[Change, ...]


class BlockRunner:
    """The compiled steps for one model, one packing and one readout."""

    def __init__(
        self,
        model: PretrainedModel,
        packed: Packed,
        plan: Plan,
        readout: Readout,
        blocks: Blocks,
        means: Float[np.ndarray, "layers heads head_dim"] | None,
    ):
        config, numerics = model.config, model.numerics
        self.plan, self.blocks, self.config, self.layers = plan, blocks, config, config.num_hidden_layers
        self.recipe = Recipe(config.hidden_act, config.layer_norm_eps, numerics)
        self.weights = [steps.layer_weights(layer, numerics) for layer in model.body.encoder.layers]
        self.embeddings, self.head = nnx.split(model.body.embeddings), nnx.split(model)
        self.packed = _whole_chunks(packed, blocks.rows)
        self.inputs = _check(model, self.packed)
        self.chunks = self.packed.rows // blocks.rows
        self.modes = plan.modes()
        self.means = None if means is None else jnp.asarray(means, numerics.wide)
        self.readout = readout
        self.longest = int(packed.lengths.max())
        self.first_only, _ = inspect_readout(model, readout, self.longest)

    def rows(self, chunks: Sequence[int]) -> Rows:
        """Where the examples of some chunks' rows are."""
        where = self._where(chunks)
        return Rows(jnp.asarray(self.packed.segments[where]), jnp.asarray(self.packed.starts[where]))

    def _where(self, chunks: Sequence[int]) -> np.ndarray:
        """The rows of some chunks."""
        return (np.asarray(chunks)[:, None] * self.blocks.rows + np.arange(self.blocks.rows)).reshape(-1)

    def embed(self, chunks: Sequence[int]) -> Array:
        """A block of the embeddings of chunks."""
        where = self._where(chunks)
        return _embed(*self.embeddings, jax.tree.map(lambda array: array[where], self.inputs), len(chunks))

    def changes(self, layer: int, several: Sequence[tuple[Change, ...]]) -> Changes | None:
        """The arrays of what several runs change in a layer; None if they change nothing."""
        if not any(several):
            return None
        shares = np.zeros((3, len(several), self.plan.heads), self.recipe.numerics.wide)
        for number, changes in enumerate(several):
            for change in changes:
                shares[:, number, change.head] = change.coefficients
        uniform, removed, mean = (jnp.asarray(share) for share in shares)
        other = self.modes & {"zero", "mean"}
        return Changes(
            uniform if "uniform" in self.modes else None,
            removed if other else None,
            mean if "mean" in self.modes else None,
            None if self.means is None or "mean" not in self.modes else self.means[layer],
        )

    def is_short(self, layer: int) -> bool:
        """Whether only [CLS] is computed in this layer."""
        return self.first_only and layer == self.layers - 1

    def is_worth_branching(self, layer: int, children: int) -> bool:
        """Whether so many children should branch off in a step of their own."""
        return is_worth_branching(children, self.blocks.runs, self.is_short(layer))

    def advance(self, layer: int, several: Sequence[Step]) -> Array:
        """A block after a layer. Fewer than `runs` steps are filled up by the last."""
        filled = [*several, *[several[-1]] * (self.blocks.runs - len(several))]
        hidden = _gather([step.source.block for step in filled], np.array([step.source.index for step in filled]))
        changes = self.changes(layer, [step.changes for step in filled])
        rows = self.rows([step.source.chunk for step in filled])
        step = _last_advance if self.is_short(layer) else _advance
        return step(self.weights[layer], hidden, rows, changes, self.recipe)

    def branch(self, layer: int, parent: Slot, children: Sequence[Node]) -> Array:
        """A block of runs that branch off one parent in this layer."""
        several = [child.changes for child in children]
        several += [()] * (self.blocks.runs - len(several))
        changes = self.changes(layer, several)
        assert changes is not None
        step = _last_branch if self.is_short(layer) else _branch
        rows = self.rows([parent.chunk])
        return step(self.weights[layer], parent.block, parent.index, rows, changes, self.recipe)

    def read(self, hidden: Array, chunks: Sequence[int]) -> Array:
        """The readout of a block: `[runs, rows, places, *readout]`."""
        where = self._where([*chunks, *[chunks[-1]] * (self.blocks.runs - len(chunks))])
        if self.first_only:
            return _read_first(*self.head, hidden, self.readout)
        rows = Rows(jnp.asarray(self.packed.segments[where]), jnp.asarray(self.packed.starts[where]))
        return _read(*self.head, hidden, rows, jnp.asarray(self.packed.lengths[where]), self.longest, self.readout)

    def examples(self, chunk: int) -> tuple[np.ndarray, np.ndarray]:
        """The examples of a chunk, and for each the places `[examples, texts]` of its texts, rows flattened."""
        where = self._where([chunk])
        numbers, texts = self.packed.examples[where].reshape(-1), self.packed.texts[where].reshape(-1)
        order = np.lexsort((texts, numbers))[(numbers < 0).sum() :]
        members = np.unique(numbers[order])
        return members, order.reshape(len(members), -1)


def _check(model: PretrainedModel, packed: Packed) -> Inputs:
    """What the embeddings read. Raises `InputError` where it does not fit the model."""
    longest, most = int(packed.lengths.max()), model.config.max_position_embeddings
    if longest > most:
        raise InputError(f"an example has {longest} tokens, but the model has max_position_embeddings {most}")
    return prepare_inputs(
        model.config,
        model.numerics,
        packed.input_ids,
        token_type_ids=packed.token_type_ids,
        position_ids=packed.position_ids,
    )


def _whole_chunks(packed: Packed, rows: int) -> Packed:
    """Fill up with empty rows to whole chunks."""
    missing = -packed.rows % rows
    arrays = {name: np.pad(array, ((0, missing), (0, 0))) for name, array in vars(packed).items()}
    if missing:
        arrays["examples"][-missing:] = -1
    return Packed(**arrays)


class _Recording(ModelOutput):
    """A model's output that writes down which of its fields are asked for."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            object.__getattribute__(self, "asked").add(name)
        return object.__getattribute__(self, name)


def inspect_readout(model: PretrainedModel, readout: Readout, longest: int) -> tuple[bool, jax.ShapeDtypeStruct]:
    """What a readout asks for and gives, without running it.

    Args:
        longest: tokens of the longest text.

    Returns: whether it asks for nothing but fields that the model computes from [CLS]; and what it gives for a
        single text, `[1, *readout]`.
    """
    asked: set[str] = set()
    hidden = jax.ShapeDtypeStruct((1, longest, model.config.hidden_size), model.numerics.dtype)

    def probe(hidden: Array) -> Array:
        output = model.finish(hidden, jnp.ones((1, 1, longest), model.numerics.wide))
        watched = object.__new__(_Recording)
        object.__setattr__(watched, "asked", asked)
        for name, value in vars(output).items():
            object.__setattr__(watched, name, value)
        return readout(watched)

    given = jax.eval_shape(probe, hidden)
    return asked - {"asked"} <= model.fields_of_first_token, given


Block: TypeAlias = Float[Array, "runs rows token embed"]
FirstTokens: TypeAlias = Float[Array, "runs rows places embed"]


@partial(jax.jit, static_argnums=(0, 3))
def _embed(graphdef: Any, state: Any, inputs: Inputs, runs: int) -> Block:
    hidden = nnx.merge(graphdef, state)(inputs)
    return hidden.reshape(runs, -1, *hidden.shape[1:])


@jax.jit
def _gather(blocks: Sequence[Array], indices: Int[Array, "runs"]) -> Block:
    """A block of slots that lie in several."""
    slots = [jax.lax.dynamic_index_in_dim(block, indices[slot], keepdims=False) for slot, block in enumerate(blocks)]
    return jnp.stack(slots)


def _over_rows(changes: Changes | None, rows: int) -> Changes | None:
    """Changes of runs as changes of their rows, one run's rows after another's."""
    if changes is None:
        return None
    uniform, removed, mean = (
        None if share is None else jnp.repeat(share, rows, axis=0)
        for share in (changes.uniform, changes.removed, changes.mean)
    )
    return Changes(uniform, removed, mean, changes.means)


def _flat(hidden: Array) -> Float[Array, "batch token embed"]:
    return hidden.reshape(-1, *hidden.shape[2:])


@partial(jax.jit, static_argnums=4, donate_argnums=1)
def _advance(weights: LayerWeights, hidden: Block, rows: Rows, changes: Changes | None, recipe: Recipe) -> Block:
    after = steps.advance(weights, _flat(hidden), rows, _over_rows(changes, hidden.shape[1]), recipe)
    return after.reshape(hidden.shape)


@partial(jax.jit, static_argnums=4)
def _last_advance(
    weights: LayerWeights, hidden: Block, rows: Rows, changes: Changes | None, recipe: Recipe
) -> FirstTokens:
    after = steps.last_advance(weights, _flat(hidden), rows, _over_rows(changes, hidden.shape[1]), recipe)
    return after.reshape(*hidden.shape[:2], *after.shape[1:])


@partial(jax.jit, static_argnums=5)
def _branch(
    weights: LayerWeights, block: Block, index: ArrayLike, rows: Rows, changes: Changes, recipe: Recipe
) -> Block:
    return steps.branch(weights, block[index], rows, changes, recipe)


@partial(jax.jit, static_argnums=5)
def _last_branch(
    weights: LayerWeights, block: Block, index: ArrayLike, rows: Rows, changes: Changes, recipe: Recipe
) -> FirstTokens:
    return steps.last_branch(weights, block[index], rows, changes, recipe)


@partial(jax.jit, static_argnums=(0, 3))
def _read_first(
    graphdef: Any, state: Any, hidden: FirstTokens, readout: Readout
) -> Shaped[Array, "runs rows places *readout"]:
    model = nnx.merge(graphdef, state)
    first = hidden.reshape(-1, 1, hidden.shape[-1])
    found = readout(model.finish(first, jnp.ones((first.shape[0], 1, 1), model.numerics.wide)))
    return found.reshape(*hidden.shape[:3], *found.shape[1:])


@partial(jax.jit, static_argnums=(0, 5, 6))
def _read(
    graphdef: Any,
    state: Any,
    hidden: Block,
    rows: Rows,
    lengths: Int[Array, "batch places"],
    longest: int,
    readout: Readout,
) -> Shaped[Array, "runs rows places *readout"]:
    model = nnx.merge(graphdef, state)
    apart, keep = steps.examples_apart(_flat(hidden), rows, lengths, longest)
    found = readout(model.finish(apart, keep.astype(model.numerics.wide)))
    return found.reshape(*hidden.shape[:2], -1, *found.shape[1:])
