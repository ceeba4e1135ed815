"""The steps of a sweep on blocks, compiled: one for each kind of step, whatever runs and chunks are in a block.

On a mesh of devices each has its own rows of a block (`sharding.py`).
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, ArrayLike, Float, Int, Shaped

from bertjax.engine.sharding import over_rows, place_on_mesh
from bertjax.interventions import Readout
from bertjax.models import (
    Graph,
    Inputs,
    LayerInterventions,
    LayerWeights,
    ModelOutput,
    PretrainedModel,
    Recipe,
    Rows,
    packed_layer,
    record,
)

Block: TypeAlias = Float[Array, "runs rows token embed"]
FirstTokens: TypeAlias = Float[Array, "runs rows places embed"]
Parameters: TypeAlias = Sequence[Array]
Targets: TypeAlias = Shaped[Array, "runs rows places ..."] | None
Sources: TypeAlias = dict[str, Float[Array, "slots rows place ..."]] | None


class Structure:
    """A module without its parameters, known when a step is compiled.

    Every call of a compiled step asks for the hash of what it was compiled for. That of a module's graph takes longer
    than a short step: it is made once.
    """

    def __init__(self, graphdef: Graph, tree: jax.tree_util.PyTreeDef):
        self.parts = graphdef, tree
        self._hash = hash(self.parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Structure) and self.parts == other.parts)

    def with_parameters(self, parameters: Sequence[Array]) -> Any:
        """The module."""
        graphdef, tree = self.parts
        return nnx.merge(graphdef, jax.tree.unflatten(tree, parameters))


def take_apart(module: nnx.Module) -> tuple[Structure, list[Any]]:
    """A module's structure, and its parameters one after another: arrays, or their shapes where it has no more."""
    graphdef, state = nnx.split(module)
    parameters, tree = jax.tree.flatten(state)
    return Structure(graphdef, tree), parameters


@dataclass(frozen=True)
class Prepared:
    """The weights of all steps of a sweep, on its devices.

    Args:
        layers: of each application of a layer; those that are applied several times are there once.
        embeddings, head: what is below the layers, and the whole model, whose head reads what they give: a structure
            and its parameters each.
    """

    layers: list[LayerWeights]
    embeddings: tuple[Structure, list[Any]]
    head: tuple[Structure, list[Any]]


@dataclass(frozen=True)
class _Kept:
    """What was prepared of a model, and what tells whether the model is still the same."""

    parameters: list[Any]
    settings: tuple[Any, ...]
    prepared: Prepared

    def is_of(self, parameters: list[Any], settings: tuple[Any, ...]) -> bool:
        """Whether it was made of these very arrays."""
        alike = len(parameters) == len(self.parameters) and settings == self.settings
        return alike and all(own is given for own, given in zip(self.parameters, parameters, strict=True))


_KEPT: weakref.WeakKeyDictionary[PretrainedModel, _Kept] = weakref.WeakKeyDictionary()


def prepare(model: PretrainedModel, mesh: Mesh | None) -> Prepared:
    """The weights of a model on the devices of a mesh.

    Making them is hundreds of small operations, on a fast accelerator a tenth of a sweep. They are kept for the sweeps
    to come, until the model is gone or is prepared with other parameters, settings or devices. What can be written
    into, as an array of NumPy's, is read anew each time.
    """
    parameters, tree = jax.tree.flatten(model)
    settings = tree, mesh
    kept = _KEPT.get(model)
    if kept is not None and kept.is_of(parameters, settings):
        return kept.prepared
    prepared = _prepare(model, mesh)
    _KEPT.pop(model, None)
    if all(isinstance(parameter, jax.Array) for parameter in parameters):
        _KEPT[model] = _Kept(parameters, settings, prepared)
    return prepared


def _prepare(model: PretrainedModel, mesh: Mesh | None) -> Prepared:
    encoder = model.body.encoder
    table = None if encoder.relative is None else encoder.relative()
    sets = [packed_layer.layer_weights(layer, model.numerics, table) for layer in encoder.layers]
    placed: list[LayerWeights] = place_on_mesh(sets, mesh)
    (below, own), (whole, every) = map(take_apart, (model.body.embeddings, model))
    layers = [placed[number] for number in model.config.architecture.parameters_of]
    return Prepared(layers, (below, place_on_mesh(own, mesh)), (whole, place_on_mesh(every, mesh)))


@record
class BlockRows:
    """`packed_layer.Rows` of every slot of a block, or of the one slot from which runs branch off."""

    segments: Int[Array, "slots rows token"]
    starts: Int[Array, "slots rows places"]
    asked: Int[Array, "slots rows pick"] | None = None
    spans: Int[Array, "slots rows token"] | None = None

    def flat(self) -> Rows:
        """One slot's rows after another's."""
        asked, spans = (None if part is None else flat(part) for part in (self.asked, self.spans))
        return Rows(flat(self.segments), flat(self.starts), asked, spans)


@partial(jax.jit, static_argnums=(0, 3))
def embed(structure: Structure, parameters: Parameters, inputs: Any, mesh: Mesh | None) -> Block:
    """Embeddings of the rows of a block. The arrays of `inputs` are those of `Inputs`, for each slot."""

    def local(inputs: Any, parameters: Parameters) -> Array:
        hidden = structure.with_parameters(parameters)(Inputs(*(flat(part) for part in vars(inputs).values())))
        return hidden.reshape(*inputs.input_ids.shape[:2], *hidden.shape[1:])

    return over_rows(local, mesh, [inputs], [parameters])


@jax.jit
def gather(blocks: Sequence[Array], indices: Int[Array, "runs"]) -> Float[Array, "runs ..."]:
    """A block of slots that lie in several."""
    slots = [jax.lax.dynamic_index_in_dim(block, indices[slot], keepdims=False) for slot, block in enumerate(blocks)]
    return jnp.stack(slots)


def _over_rows(changes: LayerInterventions | None, rows: int, sources: Sources) -> LayerInterventions | None:
    """Changes of runs as changes of their rows, one run's rows after another's."""
    if changes is None:
        return None
    repeated: LayerInterventions = jax.tree.map(
        lambda share: jnp.repeat(share, rows, axis=0), replace(changes, means=None)
    )
    return _with(replace(repeated, means=changes.means), sources)


def _with(changes: LayerInterventions, sources: Sources) -> LayerInterventions:
    return changes if sources is None else replace(changes, sources={name: flat(own) for name, own in sources.items()})


def flat(array: Array) -> Array:
    """The first two axes as one."""
    return array.reshape(-1, *array.shape[2:])


def _advance(
    step: Callable[..., Array],
    weights: LayerWeights,
    hidden: Block,
    rows: BlockRows,
    changes: LayerInterventions | None,
    sources: Sources,
    *,
    recipe: Recipe,
    mesh: Mesh | None,
) -> Float[Array, "runs rows place embed"]:
    def local(
        hidden: Block, rows: BlockRows, sources: Sources, weights: LayerWeights, changes: LayerInterventions | None
    ) -> Array:
        after = step(weights, flat(hidden), rows.flat(), _over_rows(changes, hidden.shape[1], sources), recipe)
        return after.reshape(*hidden.shape[:2], *after.shape[1:])

    return over_rows(local, mesh, [hidden, rows, sources], [weights, changes])


@partial(jax.jit, static_argnames=("recipe", "mesh"))
def advance(
    weights: LayerWeights,
    hidden: Block,
    rows: BlockRows,
    changes: LayerInterventions | None,
    sources: Sources,
    *,
    recipe: Recipe,
    mesh: Mesh | None,
) -> Block:
    """A layer, each run from hidden states of its own."""
    return _advance(packed_layer.apply_layer, weights, hidden, rows, changes, sources, recipe=recipe, mesh=mesh)


@partial(jax.jit, static_argnames=("recipe", "mesh"))
def last_advance(
    weights: LayerWeights,
    hidden: Block,
    rows: BlockRows,
    changes: LayerInterventions | None,
    sources: Sources,
    *,
    recipe: Recipe,
    mesh: Mesh | None,
) -> FirstTokens:
    """A last layer at [CLS] alone."""
    return _advance(
        partial(packed_layer.apply_layer, cls_only=True),
        weights,
        hidden,
        rows,
        changes,
        sources,
        recipe=recipe,
        mesh=mesh,
    )


def _branch(
    step: Callable[..., Array],
    weights: LayerWeights,
    block: Block,
    index: ArrayLike,
    rows: BlockRows,
    changes: LayerInterventions,
    *,
    sources: Sources,
    recipe: Recipe,
    mesh: Mesh | None,
) -> Array:
    def local(
        block: Block,
        rows: BlockRows,
        sources: Sources,
        index: ArrayLike,
        weights: LayerWeights,
        changes: LayerInterventions,
    ) -> Array:
        return step(weights, block[index], rows.flat(), _with(changes, sources), recipe)

    return over_rows(local, mesh, [block, rows, sources], [index, weights, changes])


@partial(jax.jit, static_argnames=("recipe", "mesh"))
def branch(
    weights: LayerWeights,
    block: Block,
    index: ArrayLike,
    rows: BlockRows,
    changes: LayerInterventions,
    sources: Sources,
    *,
    recipe: Recipe,
    mesh: Mesh | None,
) -> Block:
    """A layer for runs that all start from one slot of a block.

    Args:
        index: of the slot.
        rows, sources: of the slot.
        changes: of the runs.
    """
    return _branch(
        packed_layer.fork_from_parent, weights, block, index, rows, changes, sources=sources, recipe=recipe, mesh=mesh
    )


@partial(jax.jit, static_argnames=("recipe", "mesh"))
def last_branch(
    weights: LayerWeights,
    block: Block,
    index: ArrayLike,
    rows: BlockRows,
    changes: LayerInterventions,
    sources: Sources,
    *,
    recipe: Recipe,
    mesh: Mesh | None,
) -> FirstTokens:
    """A last layer at [CLS] alone for runs that all start from one slot; arguments are those of `branch`."""
    return _branch(
        partial(packed_layer.fork_from_parent, cls_only=True),
        weights,
        block,
        index,
        rows,
        changes,
        sources=sources,
        recipe=recipe,
        mesh=mesh,
    )


@partial(jax.jit, static_argnames=("structure", "readout", "mesh"))
def read_first(
    structure: Structure,
    parameters: Parameters,
    hidden: FirstTokens,
    targets: Targets = None,
    *,
    readout: Readout,
    mesh: Mesh | None,
) -> Shaped[Array, "runs rows places *readout"]:
    """The readout of a block that holds [CLS] alone, or other tokens that the readout reads one at a time."""

    def local(hidden: FirstTokens, targets: Targets, parameters: Parameters) -> Array:
        model = structure.with_parameters(parameters)
        first = hidden.reshape(-1, 1, hidden.shape[-1])
        output = model.finish(first, jnp.ones((first.shape[0], 1, 1), model.numerics.wide))
        outputs = _read(readout, output, targets)
        return outputs.reshape(*hidden.shape[:3], *outputs.shape[1:])

    return over_rows(local, mesh, [hidden, targets], [parameters])


def _read(readout: Readout, output: ModelOutput, targets: Targets) -> Array:
    """The readout of texts one after another, whose targets are those of a block."""
    return readout(output) if targets is None else readout(output, flat(flat(targets)))


@partial(jax.jit, static_argnames=("structure", "longest", "readout", "mesh"))
def read(
    structure: Structure,
    parameters: Parameters,
    hidden: Block,
    rows: BlockRows,
    lengths: Int[Array, "runs rows places"],
    targets: Targets = None,
    *,
    longest: int,
    readout: Readout,
    mesh: Mesh | None,
) -> Shaped[Array, "runs rows places *readout"]:
    """The readout of a block, each example apart."""

    def local(hidden: Block, rows: BlockRows, lengths: Array, targets: Targets, parameters: Parameters) -> Array:
        model = structure.with_parameters(parameters)
        apart, keep = packed_layer.unpack_examples(flat(hidden), rows.flat(), flat(lengths), longest)
        outputs = _read(readout, model.finish(apart, keep.astype(model.numerics.wide)), targets)
        return outputs.reshape(*hidden.shape[:2], -1, *outputs.shape[1:])

    return over_rows(local, mesh, [hidden, rows, lengths, targets], [parameters])


@partial(jax.jit, static_argnames=("structure", "readout", "mesh"))
def read_at(
    structure: Structure,
    parameters: Parameters,
    hidden: Block,
    rows: BlockRows,
    positions: Int[Array, "runs rows places wanted"],
    targets: Targets = None,
    *,
    readout: Readout,
    mesh: Mesh | None,
) -> Shaped[Array, "runs rows places *readout"]:
    """The readout at some tokens of each example."""

    def local(hidden: Block, rows: BlockRows, positions: Array, targets: Targets, parameters: Parameters) -> Array:
        model = structure.with_parameters(parameters)
        tokens = packed_layer.tokens_at(flat(hidden), rows.flat(), flat(positions))
        output = model.finish(tokens, jnp.ones((tokens.shape[0], 1, tokens.shape[1]), model.numerics.wide))
        outputs = _read(readout, output, targets)
        return outputs.reshape(*hidden.shape[:2], -1, *outputs.shape[1:])

    return over_rows(local, mesh, [hidden, rows, positions, targets], [parameters])


@partial(jax.jit, static_argnames=("recipe", "sites", "short", "mesh"))
def source_activations(
    weights: LayerWeights,
    hidden: Block,
    rows: BlockRows,
    *,
    recipe: Recipe,
    sites: tuple[str, ...],
    short: bool,
    mesh: Mesh | None,
) -> dict[str, Float[Array, "runs rows place ..."]]:
    """Activations of the sources in a layer, by site."""

    def local(hidden: Block, rows: BlockRows, weights: LayerWeights) -> dict[str, Array]:
        given = packed_layer.source_activations(weights, flat(hidden), rows.flat(), recipe, sites=sites, short=short)
        return {name: own.reshape(*hidden.shape[:2], *own.shape[1:]) for name, own in given.items()}

    return over_rows(local, mesh, [hidden, rows], [weights])
