"""Blocks, which compiled steps take through the layers. `bertjax.engine` defines block, slot, chunk and step."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Shaped

from bertjax.checkpoints import BertConfig, LayerKind
from bertjax.engine import compiled_steps
from bertjax.engine.compiled_steps import BlockRows, Reading
from bertjax.engine.packing import Packed, Picks, make_picks, pack_spans
from bertjax.engine.plan import Node, Plan
from bertjax.engine.sharding import make_mesh
from bertjax.engine.sizes import Blocks
from bertjax.engine.sweep_input import SweepInput
from bertjax.errors import InputError
from bertjax.interventions import HEAD_OUTPUTS, Change, take_parameters
from bertjax.models import (
    SITES,
    Inputs,
    LayerInterventions,
    LayerWeights,
    Numerics,
    PretrainedModel,
    Recipe,
    Replacement,
    count_positions,
    describe_limit,
    prepare_inputs,
)

CACHED_ROWS = 64  # blocks whose `BlockRows` stay on the device, since the same chunks come again and again


def feed_forward_flops(config: BertConfig, kind: LayerKind) -> int:
    """FLOPs of a feed-forward layer for each token: two matrix products, or three if it is gated."""
    return (6 if kind.gated else 4) * config.hidden_size * config.intermediate_size


def fewest_children(config: BertConfig, runs: int, cls_only: bool) -> float:
    """The number of children above which one forked step costs less than a full layer for each child.

    A forked step computes attention once, but the feed-forward layer for every slot of a block. In BERT, the latter is
    8 of a layer's 12 products of embed x embed; a twelfth more makes up for what forking adds. At [CLS] alone,
    attention is nearly all there is to compute.

    Args:
        runs: slots of a block.
        cls_only: whether the layer is computed at [CLS], or at the tokens that the readout reads, and nowhere else.
    """
    feed_forward = feed_forward_flops(config, config.architecture.layers[0])
    total = feed_forward + 8 * config.hidden_size**2
    return 1.0 if cls_only else (feed_forward + total / 12) / total * runs


@dataclass(frozen=True)
class Slot:
    """An entry of a block: the hidden states of one run on one chunk."""

    block: Shaped[Array, "runs rows token embed"]
    index: int
    node: Node
    chunk: int


@dataclass(frozen=True)
class Step:
    """One run through one layer, from its own slot or its parent's."""

    source: Slot
    node: Node
    changes: tuple[Change, ...]

    @cached_property
    def activations(self) -> tuple[Change, ...]:
        """Changes of activations."""
        return tuple(change for change in self.changes if not change.of_parameters)

    @cached_property
    def parameters(self) -> tuple[Change, ...]:
        """Changes of parameters. Steps that differ in these have other weights, so no block may hold both."""
        return tuple(change for change in self.changes if change.of_parameters)


def common_block(steps: Sequence[Step]) -> Array | None:
    """The block from which every step starts, each at the slot with the step's index; None if there is no such block.

    A block with more slots than steps is fine: the results at the other slots are not read.
    """
    block = steps[0].source.block
    in_order = all(step.source.block is block and step.source.index == index for index, step in enumerate(steps))
    return block if in_order else None


class Runner(ABC):
    """Takes the steps of a plan in the order of a `Schedule`: computes them, or only counts them.

    Args:
        config: config of the model.
        plan: plan of the sweep.
        blocks: sizes of chunks and blocks.
        cls_only: whether the last layer is computed at [CLS], or at the tokens that the readout reads, and nowhere
            else.
    """

    def __init__(self, config: BertConfig, plan: Plan, blocks: Blocks, cls_only: bool):
        self.config, self.plan, self.blocks, self.cls_only = config, plan, blocks, cls_only
        self.layers = plan.layers

    def is_cls_only(self, layer: int) -> bool:
        """Whether a layer is computed at [CLS], or at the tokens that the readout reads, and nowhere else."""
        return self.cls_only and layer == self.layers - 1

    def is_worth_forking(self, layer: int, children: int) -> bool:
        """Whether one forked step costs less than a full layer for each child."""
        return children > fewest_children(self.config, self.blocks.runs, self.is_cls_only(layer))

    @abstractmethod
    def take_sources(self, chunks: range) -> None:
        """Run the sources of some chunks, and keep their activations at the sites that are patched."""

    @abstractmethod
    def embed(self, chunks: Sequence[int]) -> Array:
        """The embeddings of chunks, as a block."""

    @abstractmethod
    def apply_layer(self, layer: int, steps: Sequence[Step]) -> Array:
        """Apply a layer to at most `runs` steps; fewer are filled up with copies of the last."""

    @abstractmethod
    def fork_from_parent(self, layer: int, parent: Slot, children: Sequence[Node]) -> Array:
        """Apply a layer for several children of one parent, whose attention is computed once."""

    @abstractmethod
    def read(self, hidden: Array, chunks: Sequence[int]) -> Array:
        """The readout of a block: `[runs, rows, places, *readout]`."""


class BlockRunner(Runner):
    """Computes the steps of one sweep on its packed texts and sources.

    Args:
        sweep_input: the sweep.
        packed: the packed texts.
        sources: the packed source texts; None if no run is patched.
        blocks: sizes of chunks and blocks.
        devices: devices that share the rows of each chunk; by default all devices of this process.
        one_per_row: whether each row holds one example, so that shapes depend on the row length and not on the texts.
    """

    def __init__(
        self,
        sweep_input: SweepInput,
        packed: Packed,
        sources: Packed | None,
        blocks: Blocks,
        devices: Sequence[jax.Device] | None = None,
        *,
        one_per_row: bool = False,
    ):
        model, config, numerics = sweep_input.model, sweep_input.model.config, sweep_input.numerics
        super().__init__(config, sweep_input.plan, blocks, sweep_input.cls_only)
        self.numerics, self.recipes = numerics, [_recipe(kind, numerics) for kind in config.architecture.layers]
        self.heads = [list(kind.heads) for kind in config.architecture.layers]
        self.means = None if sweep_input.means is None else self._layer_means(sweep_input.means)
        self.mesh = make_mesh(devices, blocks.rows)
        prepared = compiled_steps.prepare(model, self.mesh)
        self.weights, self.embeddings, self.head = prepared.layers, prepared.embeddings, prepared.head
        self.source_weights: list[LayerWeights] = []
        if sweep_input.source_model is not None:
            self.source_weights = compiled_steps.prepare_layers(model, sweep_input.source_model, self.mesh)
        self.packed = whole_chunks(packed, blocks.rows)
        self.inputs = _check(model, self.packed)
        self.sources = None if sources is None else _check(model, whole_chunks(sources, blocks.rows))
        self.source_activations: list[dict[str, Array]] = []
        self.first_source = 0
        self.chunks = self.packed.rows // blocks.rows
        self.replacements = sweep_input.plan.replacements()
        self.spans = None if sweep_input.spans is None else pack_spans(self.packed, sweep_input.spans)
        self.readout, self.positions, self.targets = sweep_input.readout, sweep_input.positions, sweep_input.targets
        self.longest, self.first_only = int(packed.lengths.max()), sweep_input.first_only
        if one_per_row and sweep_input.ignores_padding:  # each value compiles a program
            self.longest = packed.row_length
        self._rows: dict[tuple[tuple[int, ...], bool], BlockRows] = {}
        self.picks: Picks | None = None
        if sweep_input.by_token:
            assert self.positions is not None
            self.picks = make_picks(self.packed, self.positions, self.targets)

    @property
    def devices(self) -> int:
        """The number of devices that share the rows of a chunk."""
        return 1 if self.mesh is None else self.mesh.size

    def rows(self, chunks: Sequence[int], cls_only: bool = False) -> BlockRows:
        """The `BlockRows` of chunks; for a `cls_only` layer with the tokens that it computes."""
        key = tuple(chunks), cls_only
        if key not in self._rows:
            if len(self._rows) >= CACHED_ROWS:
                self._rows.pop(next(iter(self._rows)))  # the oldest
            self._rows[key] = self._make_rows(*key)
        return self._rows[key]

    def _make_rows(self, chunks: tuple[int, ...], cls_only: bool) -> BlockRows:
        where = self.where(chunks)
        tokens = self.picked(where)[0] if cls_only and self.picks is not None else None
        spans = None if self.spans is None else self.spans.slots[where]
        return BlockRows(*jax.device_put((self.packed.segments[where], self.packed.starts[where], tokens, spans)))

    def picked(self, where: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The picked tokens of rows, and their targets, padded to the number of picks of the fullest row."""
        assert self.picks is not None
        tokens, targets = self.picks.tokens, self.picks.targets
        # (Activations of sources are gathered from other blocks, so all blocks need the same width.)
        width = tokens.shape[1] if self.sources is not None else self.picks.width(where)
        return tokens[where][..., :width], None if targets is None else targets[where][:, :, :width]

    def where(self, chunks: Sequence[int]) -> np.ndarray:
        """Indices of the rows of each chunk, `[chunks, rows]`."""
        return np.asarray(chunks)[:, None] * self.blocks.rows + np.arange(self.blocks.rows)

    def _filled(self, chunks: Sequence[int]) -> list[int]:
        """Chunks for all slots of a block: the last is repeated."""
        return [*chunks, *[chunks[-1]] * (self.blocks.runs - len(chunks))]

    def embed(self, chunks: Sequence[int]) -> Array:
        """The embeddings of chunks, as a block."""
        return self._embed(self.inputs, self._filled(chunks))

    def _embed(self, inputs: Inputs, chunks: Sequence[int]) -> Array:
        where = self.where(chunks)
        return compiled_steps.embed(*self.embeddings, jax.tree.map(lambda array: array[where], inputs), self.mesh)

    def take_sources(self, chunks: range) -> None:
        """Run the sources of some chunks, and keep their activations at the sites that are patched."""
        if self.sources is None:
            return
        sites, filled = self.plan.source_sites, self._filled(chunks)
        hidden = self._embed(self.sources, filled)
        self.source_activations, self.first_source = [], chunks.start
        for layer in range(max(sites, default=-1) + 1):
            cls_only, options = self.is_cls_only(layer), {"recipe": self.recipes[layer], "mesh": self.mesh}
            rows = self.rows(filled, cls_only)
            activations = compiled_steps.source_activations(
                self.weights[layer], hidden, rows, sites=sites.get(layer, ()), short=cls_only, **options
            )
            self.source_activations.append(activations)
            if not cls_only:
                hidden = compiled_steps.apply_layer(self.weights[layer], hidden, rows, None, None, **options)

    def _sources(self, layer: int, chunks: Sequence[int]) -> dict[str, Array] | None:
        """The activations of the sources in a layer, for some chunks of the group; None if none are used there."""
        if layer >= len(self.source_activations) or not self.source_activations[layer]:
            return None
        indices = np.array([chunk - self.first_source for chunk in chunks])
        activations = self.source_activations[layer]
        return {site: compiled_steps.gather([block] * len(chunks), indices) for site, block in activations.items()}

    def _layer_means(self, means: Float[np.ndarray, "layers heads head_dim"]) -> list[Array]:
        """The mean outputs of the heads that each layer has."""
        pairs = zip(means, self.heads, strict=True)
        return [jax.device_put(of_layer[heads].astype(self.numerics.wide)) for of_layer, heads in pairs]

    def changes(self, layer: int, runs: Sequence[tuple[Change, ...]]) -> LayerInterventions | None:
        """The changes of several runs in a layer as arrays, without sources; None if nothing is changed."""
        if not any(runs):
            return None
        shape, heads = (*self._shape_of_shares(len(runs)), self.plan.heads), self.heads[layer]
        shares = {name: np.zeros(shape, self.numerics.wide) for name in sorted(self.replacements)}
        removed = np.zeros(shape, self.numerics.wide)
        for run, changes in enumerate(runs):
            for change in changes:
                if change.site == HEAD_OUTPUTS:
                    where = (*self._where(run, change), change.head)
                    shares[change.replacement][where] = change.replaced
                    if change.replacement != "uniform":  # which replaces the weights, not what they multiply
                        removed[where] = change.replaced
        names = ("uniform", "mean", "source") if self.plan.changes_outputs(layer) else ()
        uniform, mean, patched = (
            jax.device_put(shares[name][..., heads]) if name in names and name in shares else None
            for name in ("uniform", "mean", "source")
        )
        return LayerInterventions(
            uniform,
            jax.device_put(removed[..., heads]) if names and self.replacements - {"uniform"} else None,
            mean,
            patched,
            None if self.means is None or mean is None else self.means[layer],
            None,
            self._replaced(layer, runs) or None,
        )

    def _shape_of_shares(self, runs: int) -> tuple[int, ...]:
        """The shape of shares: with spans, an axis of the spans and one entry for tokens in no span."""
        return (runs,) if self.spans is None else (runs, self.spans.count + 1)

    def _where(self, run: int, change: Change) -> tuple[Any, ...]:
        """The index of a change in shares; without spans it acts at all tokens."""
        return (run,) if self.spans is None else (run, list(change.at) if change.at else slice(None))

    def _replaced(self, layer: int, runs: Sequence[tuple[Change, ...]]) -> dict[str, Replacement]:
        """The replacements of several runs in a layer, at sites other than heads' outputs."""
        found = {}
        for site in self.plan.sites(layer):
            of_heads = SITES[site].of_heads
            shape = (*self._shape_of_shares(len(runs)), *((self.plan.heads,) if of_heads else ()))
            removed, patched = np.zeros((2, *shape), self.numerics.wide)
            for run, changes in enumerate(runs):
                for change in changes:
                    if change.site == site:
                        where = (*self._where(run, change), *((change.head,) if of_heads else ()))
                        removed[where] = change.replaced
                        patched[where] = change.replaced * (change.replacement == "source")
            heads = self.heads[layer] if of_heads else slice(None)
            found[site] = Replacement(*(jax.device_put(share[..., heads]) for share in (removed, patched)))
        return found

    def apply_layer(self, layer: int, steps: Sequence[Step]) -> Array:
        """Apply a layer to at most `runs` steps; fewer are filled up with copies of the last."""
        filled = [*steps, *[steps[-1]] * (self.blocks.runs - len(steps))]
        hidden = common_block(steps)
        if hidden is None:
            indices = np.array([step.source.index for step in filled])
            hidden = compiled_steps.gather([step.source.block for step in filled], indices)
        chunks = [step.source.chunk for step in filled]
        changes = self.changes(layer, [step.activations for step in filled])
        sources = None if changes is None else self._sources(layer, chunks)
        rows = self.rows(chunks, self.is_cls_only(layer))
        weights = self._weights(layer, steps[0].parameters)
        return compiled_steps.apply_layer(weights, hidden, rows, changes, sources, **self._layer_options(layer))

    def _weights(self, layer: int, changes: Sequence[Change]) -> LayerWeights:
        """The weights of a layer after changes of its parameters."""
        if not changes:
            return self.weights[layer]
        heads = np.isin(self.heads[layer], [change.head for change in changes if change.of_heads])
        sites = {change.site for change in changes}
        chosen = heads if heads.any() else None
        return take_parameters(self.weights[layer], self.source_weights[layer], sites, chosen)

    def fork_from_parent(self, layer: int, parent: Slot, children: Sequence[Node]) -> Array:
        """Apply a layer for several children of one parent, whose attention is computed once."""
        runs = [child.changes for child in children]
        changes = self.changes(layer, runs + [()] * (self.blocks.runs - len(runs)))
        assert changes is not None
        rows, sources = self.rows([parent.chunk], self.is_cls_only(layer)), self._sources(layer, [parent.chunk])
        arrays = self.weights[layer], parent.block, parent.index, rows, changes, sources
        return compiled_steps.fork_from_parent(*arrays, **self._layer_options(layer))

    def _layer_options(self, layer: int) -> dict[str, Any]:
        """The static arguments of a layer's steps."""
        return {"recipe": self.recipes[layer], "mesh": self.mesh, "cls_only": self.is_cls_only(layer)}

    def read(self, hidden: Array, chunks: Sequence[int]) -> Array:
        """The readout of a block: `[runs, rows, places, *readout]`; of picks `[runs, rows, picks, 1, *readout]`."""
        reading = self.reading(self._filled(chunks), self.cls_only)
        return compiled_steps.read(*self.head, hidden, reading, **self.read_options(reading))

    def reading(self, chunks: Sequence[int], cls_only: bool) -> Reading:
        """Where the readout of some chunks reads.

        Args:
            chunks: the chunk of each slot of a block.
            cls_only: whether the last layer computed only the tokens that are read.
        """
        where, rows = self.where(chunks), None if cls_only else self.rows(chunks)
        if self.picks is not None:
            picked, targets = jax.device_put(self.picked(where))
            if rows is None:
                return Reading(targets=targets)
            first = jax.device_put(np.zeros((*picked.shape, 1), np.int32))
            return Reading(BlockRows(rows.segments, picked), first, targets=targets)  # each pick is a text of one token
        at, targets = (
            None if array is None else jax.device_put(array[self.packed.examples[where]])
            for array in (self.positions, self.targets)
        )
        # (At least one token: the mean over none would have no gradient.)
        lengths = None if cls_only or at is not None else jax.device_put(np.maximum(self.packed.lengths[where], 1))
        return Reading(rows, at, lengths, targets)

    def read_options(self, reading: Reading) -> dict[str, Any]:
        """The static arguments of a readout.

        Args:
            reading: where it reads.
        """
        longest = 0 if reading.lengths is None else self.longest  # each value compiles a program
        return {"longest": longest, "readout": self.readout, "mesh": self.mesh}

    def compile_steps(self) -> Iterator[None]:
        """Run each compiled step on the first chunk, so that other sweeps of the same shapes and modes compile nothing.

        An iteration is one layer.
        """
        changed = (change for one in self.plan.ablations for change in one.changes if not change.of_parameters)
        mode = next((change.mode for change in changed), None)
        hidden, seen = self.embed([0]), set[Any]()
        for layer in range(self.layers):
            key = self.recipes[layer], len(self.heads[layer]), self.is_cls_only(layer)
            if key not in seen:
                seen.add(key)
                after = self._compile_layer(layer, hidden, mode)
            yield
        self.read(after if self.is_cls_only(self.layers - 1) else hidden, [0]).block_until_ready()

    def _compile_layer(self, layer: int, hidden: Array, mode: str | None) -> Array:
        """Run the steps of a layer: without changes, with changes, from several blocks, and forked."""
        root = self.plan.root
        slot, last = Slot(hidden, 0, root, 0), Slot(hidden, self.blocks.runs - 1, root, 0)
        after = self.apply_layer(layer, [Step(slot, root, ())])
        self.apply_layer(layer, [Step(last, root, ())])  # gathered, if there are several slots
        if mode is not None and self.heads[layer]:
            change = (Change(layer, self.heads[layer][0], mode),)
            after = self.apply_layer(layer, [Step(slot, root, change)])
            after = self.fork_from_parent(layer, slot, [Node(layer, change)])
        return after.block_until_ready()

    def examples(self, chunk: int) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """The examples of a chunk, and the index arrays `[examples, texts]` of their texts in the result of `read`."""
        where = self.where([chunk])[0]
        examples, texts = self.packed.examples[where].reshape(-1), self.packed.texts[where].reshape(-1)
        order = np.lexsort((texts, examples))[(examples < 0).sum() :]
        members = np.unique(examples[order])
        if self.picks is None:
            return members, np.divmod(order.reshape(len(members), -1), self.packed.examples.shape[1])
        row, place = self.picks.rows[members] - where[0], self.picks.places[members][:, None]
        return members, (row[:, None, None], place, np.zeros_like(place))


def _recipe(kind: LayerKind, numerics: Numerics) -> Recipe:
    """The recipe of a layer. It leaves out the heads, so that layers whose weights have equal shapes share programs."""
    numerics = numerics if kind.heads else replace(numerics, attention="explicit")  # no kernel takes a layer of no head
    return Recipe(replace(kind, heads=()), numerics)


def _check(model: PretrainedModel, packed: Packed) -> Inputs:
    """The inputs of the embeddings, in host memory. Raises `InputError` if they do not fit the model."""
    config, longest = model.config, int(packed.lengths.max())
    if longest > config.max_tokens:
        raise InputError(f"an example has {longest} tokens, but the model {describe_limit(config)}")
    position_ids = packed.position_ids
    if config.architecture.embeddings.positions == "tokens":
        position_ids = count_positions(config, packed.input_ids, packed.segments)
    inputs = prepare_inputs(
        config, model.numerics, packed.input_ids, token_type_ids=packed.token_type_ids, position_ids=position_ids
    )
    return jax.tree.map(np.asarray, inputs)  # (Indexing JAX arrays would compile a program for each number of rows.)


def whole_chunks(packed: Packed, rows: int) -> Packed:
    """Add empty rows until the last chunk is full."""
    missing = -packed.rows % rows
    arrays = {name: np.pad(array, ((0, missing), (0, 0))) for name, array in vars(packed).items()}
    if missing:
        arrays["examples"][-missing:] = -1
    return Packed(**arrays)
