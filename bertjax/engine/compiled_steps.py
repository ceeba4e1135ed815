"""The compiled steps of a sweep. Each takes a block, whichever runs and chunks are in it, so each is compiled once.

On a mesh, every device computes its share of a block's rows (`sharding.py`).
"""

import weakref
from collections.abc import Sequence
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
    PretrainedModel,
    Recipe,
    Rows,
    packed_layer,
    record,
)

Block: TypeAlias = Float[Array, "runs rows token embed"]
# What a layer returns: hidden states at every token, or at those that a `cls_only` layer computes.
AfterLayer: TypeAlias = Float[Array, "runs rows place embed"]
Parameters: TypeAlias = Sequence[Array]
Sources: TypeAlias = dict[str, Float[Array, "slots rows place ..."]] | None


class Structure:
    """A module without its parameters: a static argument of compiled steps.

    Each call of a compiled step hashes its static arguments. Hashing a module's graph takes longer than a short step,
    so the hash is computed once.
    """

    def __init__(self, graphdef: Graph, tree: jax.tree_util.PyTreeDef):
        self.parts = graphdef, tree
        self._hash = hash(self.parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Structure) and self.parts == other.parts)

    def with_parameters(self, parameters: Sequence[Array]) -> Any:
        """The module with these parameters."""
        graphdef, tree = self.parts
        return nnx.merge(graphdef, jax.tree.unflatten(tree, parameters))


def take_apart(module: nnx.Module) -> tuple[Structure, list[Any]]:
    """Split a module into its structure and a flat list of its parameters (arrays, or shapes of an abstract module)."""
    graphdef, state = nnx.split(module)
    parameters, tree = jax.tree.flatten(state)
    return Structure(graphdef, tree), parameters


@dataclass(frozen=True)
class Prepared:
    """The weights of a sweep, on its devices.

    Args:
        layers: weights of each layer; layers that share parameters share the arrays.
        embeddings: structure and parameters of the embeddings.
        head: structure and parameters of the whole model, whose task head is applied to the last hidden states.
    """

    layers: list[LayerWeights]
    embeddings: tuple[Structure, list[Any]]
    head: tuple[Structure, list[Any]]


@dataclass(frozen=True)
class _CacheEntry:
    """The prepared weights of a model, with the arrays and settings that they were made from."""

    parameters: list[Any]
    settings: tuple[Any, ...]
    prepared: Prepared

    def matches(self, parameters: list[Any], settings: tuple[Any, ...]) -> bool:
        """Whether the entry was made from exactly these arrays and settings."""
        return (
            settings == self.settings
            and len(parameters) == len(self.parameters)
            and all(old is new for old, new in zip(self.parameters, parameters, strict=True))
        )


_CACHE: weakref.WeakKeyDictionary[PretrainedModel, _CacheEntry] = weakref.WeakKeyDictionary()


def prepare(model: PretrainedModel, mesh: Mesh | None) -> Prepared:
    """Put the weights of a model on the devices of a mesh, in the form that the compiled steps take.

    This takes hundreds of small operations, a tenth of a sweep on a fast accelerator. The result is cached until the
    model is deleted, or is prepared with other parameters, settings or devices. Models with NumPy parameters, which can
    be changed in place, are not cached.
    """
    parameters, tree = jax.tree.flatten(model)
    settings = tree, mesh
    cached = _CACHE.get(model)
    if cached is not None and cached.matches(parameters, settings):
        return cached.prepared
    prepared = _prepare(model, mesh)
    _CACHE.pop(model, None)
    if all(isinstance(parameter, jax.Array) for parameter in parameters):
        _CACHE[model] = _CacheEntry(parameters, settings, prepared)
    return prepared


def _prepare(model: PretrainedModel, mesh: Mesh | None) -> Prepared:
    embeddings, head = (
        (structure, place_on_mesh(parameters, mesh))
        for structure, parameters in map(take_apart, (model.body.embeddings, model))
    )
    return Prepared(prepare_layers(model, model, mesh), embeddings, head)


def prepare_layers(model: PretrainedModel, source: PretrainedModel, mesh: Mesh | None) -> list[LayerWeights]:
    """The weights of each layer of `source`, in the numerics and with the distance table of `model`."""
    encoder = model.body.encoder
    table = None if encoder.relative is None else encoder.relative()
    sets = [packed_layer.layer_weights(layer, model.numerics, table) for layer in source.body.encoder.layers]
    placed: list[LayerWeights] = place_on_mesh(sets, mesh)
    return [placed[index] for index in model.config.architecture.parameters_of]


@record
class BlockRows:
    """`packed_layer.Rows` for every slot of a block, or for the one slot of a parent."""

    segments: Int[Array, "slots rows token"]
    starts: Int[Array, "slots rows places"]
    targets: Int[Array, "slots rows pick"] | None = None
    spans: Int[Array, "slots rows token"] | None = None

    def flat(self) -> Rows:
        """The rows of all slots, one after another."""
        targets, spans = (None if array is None else flat(array) for array in (self.targets, self.spans))
        return Rows(flat(self.segments), flat(self.starts), targets, spans)


@partial(jax.jit, static_argnums=(0, 3))
def embed(structure: Structure, parameters: Parameters, inputs: Any, mesh: Mesh | None) -> Block:
    """The embeddings of a block, from `Inputs` with a leading axis for its slots."""

    def local(inputs: Any, parameters: Parameters) -> Array:
        hidden = structure.with_parameters(parameters)(Inputs(*(flat(part) for part in vars(inputs).values())))
        return hidden.reshape(*inputs.input_ids.shape[:2], *hidden.shape[1:])

    return over_rows(local, mesh, [inputs], [parameters])


@jax.jit
def gather(blocks: Sequence[Array], indices: Int[Array, "runs"]) -> Float[Array, "runs ..."]:
    """Build a block from one slot of each of several blocks."""
    slots = [jax.lax.dynamic_index_in_dim(block, indices[slot], keepdims=False) for slot, block in enumerate(blocks)]
    return jnp.stack(slots)


def _for_rows(changes: LayerInterventions, rows: int) -> LayerInterventions:
    """Repeat the changes of each run for each of its rows."""
    repeated: LayerInterventions = jax.tree.map(
        lambda share: jnp.repeat(share, rows, axis=0), replace(changes, means=None)
    )
    return replace(repeated, means=changes.means)


def _with_sources(changes: LayerInterventions, sources: Sources) -> LayerInterventions:
    if sources is None:
        return changes
    return replace(changes, sources={name: flat(activations) for name, activations in sources.items()})


def flat(array: Array) -> Array:
    """Merge the first two axes."""
    return array.reshape(-1, *array.shape[2:])


@partial(jax.jit, static_argnames=("recipe", "mesh", "cls_only"))
def apply_layer(
    weights: LayerWeights,
    hidden: Block,
    rows: BlockRows,
    changes: LayerInterventions | None,
    sources: Sources,
    *,
    recipe: Recipe,
    mesh: Mesh | None,
    cls_only: bool = False,
) -> AfterLayer:
    """Apply a layer to every slot of a block.

    Args:
        weights: parameters of the layer.
        hidden: hidden states of the block, `[runs, rows, token, embed]`.
        rows: packed examples of the block.
        changes: interventions of each run; None for none.
        sources: source activations by site; None if no run needs them.
        recipe: static settings of the layer.
        mesh: mesh of the devices that share rows; None for one device.
        cls_only: compute the output at [CLS], or at the tokens that the readout reads, and nowhere else.
    """

    def local(
        hidden: Block, rows: BlockRows, sources: Sources, weights: LayerWeights, changes: LayerInterventions | None
    ) -> Array:
        of_rows = None if changes is None else _with_sources(_for_rows(changes, hidden.shape[1]), sources)
        after = packed_layer.apply_layer(weights, flat(hidden), rows.flat(), of_rows, recipe, cls_only=cls_only)
        return after.reshape(*hidden.shape[:2], *after.shape[1:])

    return over_rows(local, mesh, [hidden, rows, sources], [weights, changes])


@partial(jax.jit, static_argnames=("recipe", "mesh", "cls_only"))
def fork_from_parent(
    weights: LayerWeights,
    block: Block,
    index: ArrayLike,
    rows: BlockRows,
    changes: LayerInterventions,
    sources: Sources,
    *,
    recipe: Recipe,
    mesh: Mesh | None,
    cls_only: bool = False,
) -> AfterLayer:
    """Apply a layer for several runs that share one parent, whose attention is computed once.

    Args:
        weights: parameters of the layer.
        block: hidden states of the parents, `[runs, rows, token, embed]`.
        index: the parent's slot in the block.
        rows: packed examples of the parent's slot.
        sources: source activations of the parent's slot, by site.
        recipe: static settings of the layer.
        mesh: mesh of the devices that share rows; None for one device.
        changes: interventions of the runs.
        cls_only: whether to compute only [CLS] or the tokens that the readout reads, as in `apply_layer`.
    """

    def local(
        block: Block,
        rows: BlockRows,
        sources: Sources,
        index: ArrayLike,
        weights: LayerWeights,
        changes: LayerInterventions,
    ) -> Array:
        changes = _with_sources(changes, sources)
        return packed_layer.fork_from_parent(weights, block[index], rows.flat(), changes, recipe, cls_only=cls_only)

    return over_rows(local, mesh, [block, rows, sources], [index, weights, changes])


@record
class Reading:
    """Where the readout of a block reads, and with which targets; all arrays have an entry for each slot of the block.

    Args:
        rows: packing of the rows; None if a `cls_only` layer computed only the tokens that are read.
        at: positions in each text of the tokens that are read; None for all tokens.
        lengths: number of tokens of each text, if all are read.
        targets: the readout's targets for each text; None for none.
    """

    rows: BlockRows | None = None
    at: Int[Array, "slots rows places targets"] | None = None
    lengths: Int[Array, "slots rows places"] | None = None
    targets: Shaped[Array, "slots rows places ..."] | None = None


@partial(jax.jit, static_argnames=("structure", "longest", "readout", "mesh"))
def read(
    structure: Structure,
    parameters: Parameters,
    hidden: AfterLayer,
    reading: Reading,
    *,
    longest: int,
    readout: Readout,
    mesh: Mesh | None,
) -> Shaped[Array, "runs rows places *readout"]:
    """The readout of a block; texts have at most `longest` tokens, if all are read."""

    def local(hidden: AfterLayer, reading: Reading, parameters: Parameters) -> Array:
        model, keep = structure.with_parameters(parameters), None
        if reading.rows is None:
            states = hidden.reshape(-1, 1, hidden.shape[-1])
        elif reading.at is not None:
            states = packed_layer.tokens_at(flat(hidden), reading.rows.flat(), flat(reading.at))
        else:
            assert reading.lengths is not None
            parts = flat(hidden), reading.rows.flat(), flat(reading.lengths)
            states, keep = packed_layer.unpack_examples(*parts, longest)
        keep = jnp.ones((states.shape[0], 1, states.shape[1])) if keep is None else keep  # [texts, 1, tokens]
        output = model.finish(states, keep.astype(model.numerics.wide))
        outputs = readout(output) if reading.targets is None else readout(output, flat(flat(reading.targets)))
        return outputs.reshape(*hidden.shape[:2], -1, *outputs.shape[1:])

    return over_rows(local, mesh, [hidden, reading], [parameters])


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
    """The activations of the sources in a layer, by site."""

    def local(hidden: Block, rows: BlockRows, weights: LayerWeights) -> dict[str, Array]:
        found = packed_layer.source_activations(weights, flat(hidden), rows.flat(), recipe, sites=sites, short=short)
        return {name: array.reshape(*hidden.shape[:2], *array.shape[1:]) for name, array in found.items()}

    return over_rows(local, mesh, [hidden, rows], [weights])
