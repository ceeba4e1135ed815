"""Blocks: what a sweep computes together, and the compiled steps that they go through.

A block is `runs` slots, each the hidden states of one run on one chunk of rows. It goes through a layer in one
compiled step, whatever runs and chunks are in it; so each kind of step is compiled once.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Shaped

from bertjax.checkpoints import BertConfig, LayerKind
from bertjax.engine import compiled_steps
from bertjax.engine.compiled_steps import BlockRows
from bertjax.engine.packing import Packed, Picks, make_picks, pack_spans
from bertjax.engine.plan import Node, Plan
from bertjax.engine.sharding import make_mesh
from bertjax.engine.sizes import Blocks
from bertjax.engine.sweep_input import SweepInput
from bertjax.errors import InputError
from bertjax.interventions import HEAD_OUTPUTS, Change
from bertjax.models import (
    SITES,
    Inputs,
    LayerInterventions,
    Numerics,
    PretrainedModel,
    Recipe,
    Replacement,
    count_positions,
    describe_limit,
    prepare_inputs,
)

KEPT_ROWS = 64  # blocks of which it is kept on the device where their texts are: the same come again and again
BEFORE_ATTENTION = ("hidden_states", "queries", "keys", "values")  # sites from which a layer's attention is made


def is_worth_branching(children: int, runs: int, short: bool, share: float) -> bool:
    """Whether a step that shares attention costs less for this many children than one full layer for each.

    Args:
        runs: slots of a block; the step computes all of them.
        short: whether it is computed at [CLS] alone, where attention is nearly all there is.
        share: of the slots from which on it is worth it (`branch_share`).
    """
    return children > (1 if short else share * runs)


def branch_share(config: BertConfig) -> float:
    """The share of a block's slots from which on runs should branch off together.

    A branch computes the feed-forward layer for every slot, but attention once. That of BERT is 8 of a layer's 12
    products of embed x embed; a twelfth more makes up for what a branch adds.
    """
    inner = feed_forward_flops(config, config.architecture.layers[0])
    total = inner + 8 * config.hidden_size**2
    return (inner + total / 12) / total


def feed_forward_flops(config: BertConfig, kind: LayerKind) -> int:
    """Operations of a feed-forward layer for each token: two products, or three where it is gated."""
    return (6 if kind.gated else 4) * config.hidden_size * config.intermediate_size


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


def whole_source(several: Sequence[Step]) -> Array | None:
    """The block whose slots these steps start from, each from the one that has its own number; None if there is none.

    What other slots it has does no harm: nobody reads what a step makes of them.
    """
    block = several[0].source.block
    alike = all(step.source.block is block and step.source.index == number for number, step in enumerate(several))
    return block if alike else None


class Runner(ABC):
    """What goes through a plan in the order of a `Schedule`: by computing each step, or by counting it.

    Args:
        config: of the model.
        plan: of the sweep.
        blocks: how large the pieces are.
        short_last: whether the last layer is computed at [CLS], or at what the readout asks for, alone.
    """

    def __init__(self, config: BertConfig, plan: Plan, blocks: Blocks, short_last: bool):
        self.config, self.plan, self.blocks, self.short_last = config, plan, blocks, short_last
        self.layers, self.branch_share = plan.layers, branch_share(config)

    def is_short(self, layer: int) -> bool:
        """Whether only some tokens are computed in this layer."""
        return self.short_last and layer == self.layers - 1

    def is_worth_branching(self, layer: int, children: int) -> bool:
        """Whether this many children should branch off in a step of their own."""
        return is_worth_branching(children, self.blocks.runs, self.is_short(layer), self.branch_share)

    def shares_attention(self, child: Node) -> bool:
        """Whether a run that branches off computes the same attention as its parent, up to heads' outputs."""
        return not any(change.site in BEFORE_ATTENTION for change in child.changes)

    @abstractmethod
    def take_sources(self, chunks: range) -> None:
        """Run the sources of a group of chunks, and keep what their heads give to the layers that are patched."""

    @abstractmethod
    def embed(self, chunks: Sequence[int]) -> Array:
        """A block of the embeddings of chunks."""

    @abstractmethod
    def advance(self, layer: int, several: Sequence[Step]) -> Array:
        """A block after a layer. Fewer than `runs` steps are filled up by the last."""

    @abstractmethod
    def branch(self, layer: int, parent: Slot, children: Sequence[Node]) -> Array:
        """A block of runs that branch off one parent in this layer."""

    @abstractmethod
    def read(self, hidden: Array, chunks: Sequence[int]) -> Array:
        """The readout of a block: `[runs, rows, places, *readout]`."""


class BlockRunner(Runner):
    """The compiled steps for one sweep and one packing of its texts and sources.

    Args:
        devices: share the rows of each chunk; default all of this process.
    """

    def __init__(
        self,
        sweep_input: SweepInput,
        packed: Packed,
        sources: Packed | None,
        blocks: Blocks,
        devices: Sequence[jax.Device] | None = None,
    ):
        model, config, numerics = sweep_input.model, sweep_input.model.config, sweep_input.numerics
        super().__init__(config, sweep_input.plan, blocks, sweep_input.short_last)
        self.numerics, self.recipes = numerics, [_recipe(kind, numerics) for kind in config.architecture.layers]
        self.heads = [list(kind.heads) for kind in config.architecture.layers]
        self.means = None if sweep_input.means is None else self._means_of_layers(sweep_input.means)
        self.mesh = make_mesh(devices, blocks.rows)
        prepared = compiled_steps.prepare(model, self.mesh)
        self.weights, self.embeddings, self.head = prepared.layers, prepared.embeddings, prepared.head
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
        self._rows: dict[tuple[tuple[int, ...], bool], BlockRows] = {}
        self.picks: Picks | None = None
        if sweep_input.by_token:
            assert self.positions is not None
            self.picks = make_picks(self.packed, self.positions, self.targets)

    @property
    def devices(self) -> int:
        """How many share the rows of a chunk."""
        return 1 if self.mesh is None else self.mesh.size

    def rows(self, chunks: Sequence[int], short: bool = False) -> BlockRows:
        """Where the examples of some chunks' rows are; for a short last layer also at what it is computed."""
        key = tuple(chunks), short
        if key not in self._rows:
            if len(self._rows) >= KEPT_ROWS:
                self._rows.pop(next(iter(self._rows)))  # the oldest
            self._rows[key] = self._make_rows(*key)
        return self._rows[key]

    def _make_rows(self, chunks: tuple[int, ...], short: bool) -> BlockRows:
        where = self.where(chunks)
        asked = jax.device_put(self.picked(where)[0]) if short and self.picks is not None else None
        spans = None if self.spans is None else jax.device_put(self.spans.slots[where])
        return BlockRows(
            jax.device_put(self.packed.segments[where]), jax.device_put(self.packed.starts[where]), asked, spans
        )

    def picked(self, where: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The picked tokens of some rows, and their targets: as many as the row with most needs, filled up."""
        assert self.picks is not None
        tokens, targets = self.picks.tokens, self.picks.targets
        # (What sources give is gathered from other blocks, which must be alike.)
        width = tokens.shape[1] if self.sources is not None else self.picks.width(where)
        return tokens[where][..., :width], None if targets is None else targets[where][:, :, :width]

    def where(self, chunks: Sequence[int]) -> np.ndarray:
        """The rows of each of some chunks."""
        return np.asarray(chunks)[:, None] * self.blocks.rows + np.arange(self.blocks.rows)

    def _filled(self, chunks: Sequence[int]) -> list[int]:
        """Chunks for all slots of a block: the last again where there are too few."""
        return [*chunks, *[chunks[-1]] * (self.blocks.runs - len(chunks))]

    def embed(self, chunks: Sequence[int]) -> Array:
        """A block of the embeddings of chunks."""
        return self._embed(self.inputs, self._filled(chunks))

    def _embed(self, inputs: Inputs, chunks: Sequence[int]) -> Array:
        where = self.where(chunks)
        return compiled_steps.embed(*self.embeddings, jax.tree.map(lambda array: array[where], inputs), self.mesh)

    def take_sources(self, chunks: range) -> None:
        """Run the sources of a group of chunks, and keep what their heads give to the layers that are patched."""
        if self.sources is None:
            return
        wanted = self.plan.source_sites
        filled = self._filled(chunks)
        hidden = self._embed(self.sources, filled)
        self.source_activations, self.first_source = [], chunks.start
        for layer in range(max(wanted, default=-1) + 1):
            short, sites = self.is_short(layer), wanted.get(layer, ())
            rows = self.rows(filled, short)
            given = {"recipe": self.recipes[layer], "mesh": self.mesh}
            activations = compiled_steps.source_activations(
                self.weights[layer], hidden, rows, sites=sites, short=short, **given
            )
            self.source_activations.append(activations)
            if not short:
                hidden = compiled_steps.advance(
                    self.weights[layer], hidden, rows, None, None, recipe=self.recipes[layer], mesh=self.mesh
                )

    def _sources_of(self, layer: int, chunks: Sequence[int]) -> dict[str, Array] | None:
        """What sources give to a layer, for the rows of some chunks of the group; None where nothing is patched."""
        if layer >= len(self.source_activations) or not self.source_activations[layer]:
            return None
        places = np.array([chunk - self.first_source for chunk in chunks])
        activations = self.source_activations[layer]
        return {name: compiled_steps.gather([own] * len(chunks), places) for name, own in activations.items()}

    def _means_of_layers(self, means: Float[np.ndarray, "layers heads head_dim"]) -> list[Array]:
        """The mean outputs of each layer's heads."""
        several = zip(means, self.heads, strict=True)
        return [jax.device_put(own[heads].astype(self.numerics.wide)) for own, heads in several]

    def changes(self, layer: int, several: Sequence[tuple[Change, ...]]) -> LayerInterventions | None:
        """The arrays of what several runs change in a layer, without sources; None if they change nothing."""
        if not any(several):
            return None
        shape, heads = (*self._shape_of_shares(len(several)), self.plan.heads), self.heads[layer]
        shares = {name: np.zeros(shape, self.numerics.wide) for name in sorted(self.replacements)}
        removed = np.zeros(shape, self.numerics.wide)
        for number, changes in enumerate(several):
            for change in changes:
                if change.site == HEAD_OUTPUTS:
                    where = (*self._where(number, change), change.head)
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
            self._replaced(layer, several) or None,
        )

    def _shape_of_shares(self, runs: int) -> tuple[int, ...]:
        """Axes of shares of runs: with spans one more for these, and for what lies between them."""
        return (runs,) if self.spans is None else (runs, self.spans.count + 1)

    def _where(self, run: int, change: Change) -> tuple[Any, ...]:
        """Where a change is among shares; at all tokens if it names no spans."""
        return (run,) if self.spans is None else (run, list(change.at) if change.at else slice(None))

    def _replaced(self, layer: int, several: Sequence[tuple[Change, ...]]) -> dict[str, Replacement]:
        """What runs replace in a layer at other sites than heads' outputs."""
        found = {}
        for name in self.plan.sites(layer):
            of_heads = SITES[name].of_heads
            shape = (*self._shape_of_shares(len(several)), *((self.plan.heads,) if of_heads else ()))
            removed, patched = np.zeros((2, *shape), self.numerics.wide)
            for number, changes in enumerate(several):
                for change in changes:
                    if change.site == name:
                        where = (*self._where(number, change), *((change.head,) if of_heads else ()))
                        removed[where] = change.replaced
                        patched[where] = change.replaced * (change.replacement == "source")
            own = self.heads[layer] if of_heads else slice(None)
            found[name] = Replacement(*(jax.device_put(part[..., own]) for part in (removed, patched)))
        return found

    def advance(self, layer: int, several: Sequence[Step]) -> Array:
        """A block after a layer. Fewer than `runs` steps are filled up by the last."""
        filled = [*several, *[several[-1]] * (self.blocks.runs - len(several))]
        hidden = whole_source(several)
        if hidden is None:
            places = np.array([step.source.index for step in filled])
            hidden = compiled_steps.gather([step.source.block for step in filled], places)
        chunks = [step.source.chunk for step in filled]
        changes = self.changes(layer, [step.changes for step in filled])
        sources = None if changes is None else self._sources_of(layer, chunks)
        step = compiled_steps.last_advance if self.is_short(layer) else compiled_steps.advance
        rows = self.rows(chunks, self.is_short(layer))
        return step(self.weights[layer], hidden, rows, changes, sources, recipe=self.recipes[layer], mesh=self.mesh)

    def branch(self, layer: int, parent: Slot, children: Sequence[Node]) -> Array:
        """A block of runs that branch off one parent in this layer."""
        several = [child.changes for child in children]
        several += [()] * (self.blocks.runs - len(several))
        changes = self.changes(layer, several)
        assert changes is not None
        step = compiled_steps.last_branch if self.is_short(layer) else compiled_steps.branch
        rows, sources = self.rows([parent.chunk], self.is_short(layer)), self._sources_of(layer, [parent.chunk])
        weights, recipe = self.weights[layer], self.recipes[layer]
        return step(weights, parent.block, parent.index, rows, changes, sources, recipe=recipe, mesh=self.mesh)

    def read(self, hidden: Array, chunks: Sequence[int]) -> Array:
        """The readout of a block: `[runs, rows, places, *readout]`; of picks with a 1 behind `places`."""
        filled, given = self._filled(chunks), {"readout": self.readout, "mesh": self.mesh}
        rows, where = self.rows(filled), self.where(filled)
        if self.picks is not None:
            picked, asked_for = self.picked(where)
            known = None if asked_for is None else jax.device_put(asked_for)
            if self.short_last:
                return compiled_steps.read_first(*self.head, hidden, known, **given)
            alone, own = (
                BlockRows(rows.segments, jax.device_put(picked)),
                jax.device_put(np.zeros((*picked.shape, 1), np.int32)),
            )
            return compiled_steps.read_at(*self.head, hidden, alone, own, known, **given)
        targets = None if self.targets is None else jax.device_put(self.targets[self.packed.examples[where]])
        if self.first_only:
            return compiled_steps.read_first(*self.head, hidden, targets, **given)
        if self.positions is not None:
            wanted = jax.device_put(self.positions[self.packed.examples[where]].astype(np.int32))
            return compiled_steps.read_at(*self.head, hidden, rows, wanted, targets, **given)
        lengths = jax.device_put(self.packed.lengths[where])
        return compiled_steps.read(*self.head, hidden, rows, lengths, targets, longest=self.longest, **given)

    def examples(self, chunk: int) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """The examples of a chunk, and for each where in what `read` gives of it its texts are `[examples, texts]`."""
        where = self.where([chunk])[0]
        numbers, texts = self.packed.examples[where].reshape(-1), self.packed.texts[where].reshape(-1)
        order = np.lexsort((texts, numbers))[(numbers < 0).sum() :]
        members = np.unique(numbers[order])
        if self.picks is None:
            return members, np.divmod(order.reshape(len(members), -1), self.packed.examples.shape[1])
        row, place = self.picks.rows[members] - where[0], self.picks.places[members][:, None]
        return members, (row[:, None, None], place, np.zeros_like(place))


def _recipe(kind: LayerKind, numerics: Numerics) -> Recipe:
    """How a layer is computed; its weights' shapes say how many heads it has, so layers with equal shapes are alike."""
    form = numerics if kind.heads else replace(numerics, attention="explicit")  # no kernel takes no head
    return Recipe(replace(kind, heads=()), form)


def _check(model: PretrainedModel, packed: Packed) -> Inputs:
    """What the embeddings read, in memory of the host. Raises `InputError` where it does not fit the model."""
    config, longest = model.config, int(packed.lengths.max())
    if longest > config.max_tokens:
        raise InputError(f"an example has {longest} tokens, but the model {describe_limit(config)}")
    position_ids = packed.position_ids
    if config.architecture.embeddings.positions == "tokens":
        position_ids = count_positions(config, packed.input_ids, packed.segments)
    inputs = prepare_inputs(
        config, model.numerics, packed.input_ids, token_type_ids=packed.token_type_ids, position_ids=position_ids
    )
    return jax.tree.map(np.asarray, inputs)  # (To choose rows of JAX's would be compiled for each number of them.)


def whole_chunks(packed: Packed, rows: int) -> Packed:
    """Fill up with empty rows to whole chunks."""
    missing = -packed.rows % rows
    arrays = {name: np.pad(array, ((0, missing), (0, 0))) for name, array in vars(packed).items()}
    if missing:
        arrays["examples"][-missing:] = -1
    return Packed(**arrays)
