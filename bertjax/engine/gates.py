"""How the loss of each example changes with a gate on each head, from one pass back through the model.

A gate of 1 leaves a head as it is, and 0 puts in its place what an ablation puts there. Examples know nothing of each
other, so the gradient of the sum of their losses with respect to gates at single tokens, summed over a text's tokens,
is that of each text: what `vmap(grad)` over examples gives, for packed rows.

Groups of examples go forward, layer by layer, and then back. What a layer's products gave is kept until then, so that
only what is cheap is computed again: about two forward passes of work. A last layer of which [CLS] alone is read is
computed there alone, and of what the lowest layer reads nobody asks for slopes. Where one example alone has too many
texts for that, the hidden states alone are kept, and each layer is computed once more.
"""

from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Int32, Shaped

from bertjax.checkpoints import BertConfig
from bertjax.data import Encoding
from bertjax.engine import compiled_steps
from bertjax.engine.blocks import BlockRunner, whole_chunks
from bertjax.engine.compiled_steps import Block, BlockRows, Parameters, Structure, Targets, flat
from bertjax.engine.packing import Packed, first_fit, pack, total_lengths
from bertjax.engine.sharding import over_rows
from bertjax.engine.sizes import Blocks, choose_length, default_tokens
from bertjax.engine.sweep_input import SweepInput, make_sweep_input
from bertjax.errors import InputError
from bertjax.interventions import Ablation, Readout
from bertjax.models import LayerInterventions, LayerWeights, PretrainedModel, Recipe, packed_layer, record
from bertjax.progress import Progress, silent

# What a group of examples may hold of all layers, in bytes; twice that where an example is so large.
GROUP_BYTES = 768 * 2**20
Grade = Callable[[int, Shaped[np.ndarray, "texts ..."]], tuple[float, Shaped[np.ndarray, "texts ..."]]]


@dataclass(frozen=True)
class GateGradients:
    """What a pass back through the model gives.

    Args:
        losses: of each example; NaN where it has none.
        gradients: of each example's loss with respect to each head's gate.
        absolute: the same with the absolute value taken at each token, before the sum over tokens.
    """

    losses: Float[np.ndarray, " examples"]
    gradients: Float[np.ndarray, "layers heads examples"]
    absolute: Float[np.ndarray, "layers heads examples"]


@dataclass(frozen=True)
class GateTexts:
    """The texts of all examples, those of an example together.

    Args:
        encodings: tokenised.
        examples: the example of each, in ascending order.
        count: how many examples there are; some may have no text.
        at: tokens of each at which the readout is taken; None for all.
        targets: what it takes there beside the model's output.
    """

    encodings: Sequence[Encoding]
    examples: Int[np.ndarray, " texts"]
    count: int
    at: Int[np.ndarray, "texts wanted"] | None = None
    targets: Int[np.ndarray, "texts wanted"] | None = None


class GatePasses:
    """Passes back through a model on the same texts, as often as gates change; attention is explicit.

    Args:
        texts: of all examples.
        replaced: all heads, each with what takes its place where its gate is 0.
        readout: what is kept of each text.
        grade: takes an example's number and what the readout gave for its texts; returns the example's loss, and its
            gradient with respect to that.
        means: the heads' outputs that mode 'mean' puts in place of their own.
        tokens: that a group of examples has, about; default as many as memory allows.

    Attributes:
        groups: the examples of each group; those without any text are in none.

    Raises:
        InputError: texts that do not fit the model.
        OverrideError: a head that the model does not have, or mode 'mean' without means.
    """

    def __init__(
        self,
        model: PretrainedModel,
        texts: GateTexts,
        replaced: Ablation,
        readout: Readout,
        grade: Grade,
        *,
        means: Float[np.ndarray, "layers heads head_dim"] | None = None,
        tokens: int | None = None,
    ):
        sweep_input = make_sweep_input(
            model,
            [(text,) for text in texts.encodings],
            [replaced],
            readout,
            means=means,
            at=texts.at,
            targets=texts.targets,
            attention="explicit",
        )
        self._texts, self._grade = texts, grade
        self._pass = _Pass(sweep_input, replaced, texts, tokens)
        self.groups = [np.unique(texts.examples[group.texts.start : group.texts.stop]) for group in self._pass.groups]

    def run_all(
        self, gate: float | Float[np.ndarray, "layers heads"] = 1.0, progress: Progress = silent
    ) -> GateGradients:
        """The losses and gradients of all examples; NaN and 0 for those without any text.

        Args:
            gate: at which the gradient is taken, one for all heads or one for each: 1 is the model as it is.
            progress: called with the texts done and all texts, each twice: forward and back.

        Raises:
            InputError: outputs that are not finite.
        """
        texts, config = self._texts, self._pass.runner.config
        losses = np.full(texts.count, np.nan)
        found = np.zeros((2, config.num_hidden_layers, config.num_attention_heads, texts.count))
        done, total = 0, float(2 * len(texts.encodings))

        def report(texts: int) -> None:
            nonlocal done
            done += texts
            progress(float(done), total)

        for number, examples in enumerate(self.groups):
            part = self.run(number, gate, report)
            losses[examples], found[0][..., examples] = part.losses, part.gradients
            found[1][..., examples] = part.absolute
        return GateGradients(losses, found[0], found[1])

    def run(
        self,
        number: int,
        gate: float | Float[np.ndarray, "layers heads"] | Float[np.ndarray, "layers heads examples"] = 1.0,
        report: Callable[[int], None] = lambda texts: None,
    ) -> GateGradients:
        """The losses and gradients of one group's examples, in the order of `groups`.

        Args:
            number: of the group.
            gate: one for all heads, one for each, or one for each head of each of the group's examples.
            report: called with how many texts went one way, forward or back.

        Raises:
            InputError: outputs that are not finite.
        """
        texts, group, examples = self._texts, self._pass.groups[number], self.groups[number]
        own = np.searchsorted(examples, texts.examples[group.texts.start : group.texts.stop])
        by_text = np.asarray(gate)[..., own] if np.ndim(gate) == 3 else gate
        given = self._pass.forward(group, by_text)
        losses, slopes = np.full(len(examples), np.nan), np.zeros(given.shape, given.dtype)
        for place, (example, members) in enumerate(_of_examples(texts.examples, group.texts)):
            losses[place], slopes[members] = self._grade(example, given[members])
        if not np.isfinite(given).all():
            raise InputError("outputs are not finite without any override: look for NaN or infinity in the weights")
        report(len(given))
        found = np.add.reduceat(self._pass.back(group, slopes), np.flatnonzero(np.diff(own, prepend=-1)), axis=-1)
        report(len(given))
        return GateGradients(losses, found[0], found[1])


def _of_examples(examples: Int[np.ndarray, " texts"], texts: range) -> Iterator[tuple[int, slice]]:
    """Each example of some texts, and which of these are its own."""
    own = examples[texts.start : texts.stop]
    starts = np.flatnonzero(np.diff(own, prepend=-1))
    for start, end in pairwise([*starts.tolist(), len(own)]):
        yield int(own[start]), slice(start, end)


@dataclass
class _Group:
    """Examples that go forward and back together.

    Args:
        texts: of theirs.
        chunks: of rows that hold them.
        trails: of each chunk the way back through each layer, and the last hidden states, until they have gone back.
    """

    texts: range
    chunks: range
    trails: list[tuple[list["_Way"], "_After"]]


# What a layer gives: all hidden states, or those of [CLS].
_After: TypeAlias = Float[Array, "runs rows slot embed"]
# From the slopes of a layer's output to those of its input (none below the lowest layer), and of its gates.
_Way: TypeAlias = Callable[[_After], tuple[_After | None, Float[Array, "two rows places heads"]]]


@record
class _Given:
    """What a layer reads beside hidden states."""

    weights: LayerWeights
    rows: BlockRows
    gates: Float[Array, "runs rows token heads"]
    changes: LayerInterventions | None


@record
class _Known:
    """What a readout needs of a chunk beside its hidden states."""

    parameters: Parameters
    rows: BlockRows
    lengths: Int[Array, "runs rows places"]
    at: Int[Array, "runs rows places wanted"] | None
    targets: Targets


@dataclass(frozen=True)
class _How:
    """How a layer is computed, known when a step is compiled.

    Args:
        recipe: of the layer.
        lowest: whether nobody asks for the slopes of what it reads.
        short: whether it is the last and computed at [CLS] alone.
    """

    recipe: Recipe
    lowest: bool
    short: bool


@dataclass(frozen=True)
class _Read:
    """The readout of a chunk, at all tokens or at some; of [CLS] alone where the last layer is short."""

    structure: Structure
    longest: int
    readout: Readout
    mesh: Mesh | None
    short: bool

    def __call__(self, hidden: _After, known: _Known) -> Shaped[Array, "runs rows places ..."]:
        whole, how = (self.structure, known.parameters, hidden), {"readout": self.readout, "mesh": self.mesh}
        if self.short:
            return compiled_steps.read_first(*whole, known.targets, **how)
        if known.at is None:
            return compiled_steps.read(*whole, known.rows, known.lengths, known.targets, longest=self.longest, **how)
        return compiled_steps.read_at(*whole, known.rows, known.at, known.targets, **how)


class _Pass:
    """The compiled steps forward and back."""

    def __init__(
        self,
        sweep_input: SweepInput,
        replaced: Ablation,
        texts: GateTexts,
        tokens: int | None,
    ):
        self.sweep_input, config = sweep_input, sweep_input.model.config
        layout = _lay_out(sweep_input, texts.examples, tokens)
        self.groups = layout.groups
        self.runner = BlockRunner(sweep_input, layout.packed, None, Blocks(layout.rows, 1))
        self.keeps = layout.keeps and self.runner.mesh is None
        structure, self.parameters = self.runner.head
        self.short = self.runner.short_last and self.runner.first_only
        self.read = _Read(structure, self.runner.longest, sweep_input.readout, self.runner.mesh, self.short)
        self.changes = [
            self.runner.changes(layer, [tuple(change for change in replaced.changes if change.layer == layer)])
            for layer in range(config.num_hidden_layers)
        ]
        self.columns = (config.num_hidden_layers, config.num_attention_heads)

    def forward(
        self,
        group: _Group,
        gate: float | Float[np.ndarray, "layers heads"] | Float[np.ndarray, "layers heads texts"],
    ) -> Shaped[np.ndarray, "texts ..."]:
        """What the readout gives for each text of a group.

        Args:
            gate: for all heads, for each, or for each in each of the group's texts.
        """
        given, of_each = [], np.ndim(gate) == 3
        by_text = np.broadcast_to(gate, (*self.columns, len(group.texts)) if of_each else self.columns)
        for chunk in group.chunks:
            hidden, trail = self.runner.embed([chunk]), list[_Way]()
            of_tokens = by_text[..., self._owners(chunk, group.texts.start)] if of_each else by_text[..., None, None]
            for layer in range(len(self.changes)):
                hidden, way = self._step(layer, hidden, self.runner.rows([chunk]), self._gates(layer, of_tokens[layer]))
                trail.append(way)
            group.trails.append((trail, hidden))
            given.append(self.read(hidden, self._known(chunk)))
        arrays = [self._filled(np.asarray(part)[0]) for part in given]
        return np.concatenate(arrays)[self._places(group)]

    def back(
        self, group: _Group, slopes: Shaped[np.ndarray, "texts ..."]
    ) -> Float[np.ndarray, "two layers heads texts"]:
        """Gradients with respect to gates of each text of a group, and the same with absolute values at each token."""
        where, asked = self._texts_of(group), self._places(group)
        rows = len(group.chunks) * self.runner.blocks.rows
        placed = np.zeros((rows, self._width, *slopes.shape[asked[1].ndim :]), slopes.dtype)
        np.add.at(placed, asked, slopes)  # (the last token of a text with few may be asked again, for 0)
        by_chunk = placed.reshape(len(group.chunks), 1, -1, *placed.shape[1:])
        heads = self.runner.config.num_attention_heads
        found = np.zeros((2, len(self.changes), heads, len(slopes)))
        summed: list[list[Array]] = []
        for number, chunk in enumerate(group.chunks):
            trail, hidden = group.trails[number]
            known = self._known(chunk)
            width = known.rows.starts.shape[2]
            of_readout = by_chunk[number][:, :, :width]
            if self.runner.picks is not None:
                of_readout = of_readout[:, :, :, None]
            slope = _read_back(self.read, hidden, known, jax.device_put(of_readout))
            summed.append([])
            while trail:
                slope, by_place = trail.pop()(slope)
                summed[-1].append(by_place)
        group.trails.clear()
        for layer, parts in enumerate(zip(*summed, strict=True)):
            both = np.concatenate([np.asarray(part) for part in parts], axis=1)  # [two, rows, places, heads]
            number = len(self.changes) - 1 - layer
            found[:, number, self.runner.heads[number]] = both[:, *where].swapaxes(1, 2)
        return found

    @property
    def _width(self) -> int:
        """How often the readout is taken in a row at most: for each text, or for each token where it reads those."""
        picks = self.runner.picks
        return self.runner.packed.starts.shape[1] if picks is None else picks.tokens.shape[1]

    def _filled(self, given: Shaped[np.ndarray, "rows places ..."]) -> Shaped[np.ndarray, "rows width ..."]:
        """What the readout gave, filled up to as many places as the row with most has; of tokens without their axis."""
        own = given if self.runner.picks is None else given[:, :, 0]
        return np.pad(own, [(0, 0), (0, self._width - own.shape[1]), *[(0, 0)] * (own.ndim - 2)])

    def _places(self, group: _Group) -> tuple[np.ndarray, np.ndarray]:
        """Row, counted from the group's first, and place at which each text's readout is, or that of each token."""
        picks = self.runner.picks
        if picks is None:
            return self._texts_of(group)
        own = slice(group.texts.start, group.texts.stop)
        places = picks.places[own]
        rows = picks.rows[own] - group.chunks.start * self.runner.blocks.rows
        return np.broadcast_to(rows[:, None], places.shape), places

    def _texts_of(self, group: _Group) -> tuple[np.ndarray, np.ndarray]:
        """Row, counted from the group's first, and place of each of its texts."""
        first, last = (end * self.runner.blocks.rows for end in (group.chunks.start, group.chunks.stop))
        row, place = np.nonzero(self.runner.packed.examples[first:last] >= 0)
        order = np.argsort(self.runner.packed.examples[first:last][row, place])
        return row[order], place[order]

    def _known(self, chunk: int) -> _Known:
        """What the readout needs of a chunk."""
        packed, where = self.runner.packed, self.runner.where([chunk])
        if self.runner.picks is not None:  # every token by itself, as a text of one
            tokens, wanted = self.runner.picked(where)
            rows = BlockRows(self.runner.rows([chunk]).segments, jax.device_put(tokens))
            first = jax.device_put(np.zeros((*tokens.shape, 1), np.int32))
            ones = jax.device_put(np.ones(tokens.shape, np.int32))
            return _Known(self.parameters, rows, ones, first, None if wanted is None else jax.device_put(wanted))
        at, targets = (
            None if array is None else jax.device_put(array[packed.examples[where]])
            for array in (self.sweep_input.positions, self.sweep_input.targets)
        )
        lengths = np.maximum(packed.lengths[where], 1)  # the mean of no token would have no gradient
        return _Known(self.parameters, self.runner.rows([chunk]), jax.device_put(lengths), at, targets)

    def _owners(self, chunk: int, first: int) -> Int[np.ndarray, "rows token"]:
        """The text, counted from the group's first, of each token of a chunk; of empty slots any."""
        packed, (where,) = self.runner.packed, self.runner.where([chunk])
        places = np.maximum(packed.segments[where] - 1, 0)
        texts = np.maximum(packed.examples[where] - first, 0)
        return np.asarray(np.take_along_axis(texts, places, axis=1))

    def _gates(
        self, layer: int, gates: Float[np.ndarray, " all_heads #rows #token"]
    ) -> Float[Array, "runs rows token heads"]:
        """A layer's gates at the tokens of a chunk."""
        rows, heads = self.runner.blocks.rows, self.runner.heads[layer]
        whole = np.broadcast_to(gates[heads], (len(heads), rows, self.runner.packed.row_length))
        return jax.device_put(np.moveaxis(whole, 0, -1)[None].astype(self.sweep_input.numerics.wide))

    def _step(
        self, layer: int, hidden: Block, rows: BlockRows, gates: Float[Array, "runs rows token heads"]
    ) -> tuple[_After, "_Way"]:
        """A layer, and the way back through it."""
        how = _How(self.runner.recipes[layer], layer == 0, self.short and layer == len(self.changes) - 1)
        given, mesh = _Given(self.runner.weights[layer], rows, gates, self.changes[layer]), self.runner.mesh
        if self.keeps:
            after, back = _forward_keeping(given, hidden, how=how)
            return after, partial(_back_kept, back, rows)
        return _forward(given, hidden, how=how, mesh=mesh), partial(_back, given, hidden, how=how, mesh=mesh)


def _kept_bytes(config: BertConfig, row_length: int) -> int:
    """Bytes that are kept of a token in all layers on the way back: its hidden states, and what products gave."""
    inner = config.intermediate_size * (2 if config.architecture.layers[0].gated else 1)
    numbers = 8 * config.hidden_size + inner + config.num_attention_heads * row_length
    return 4 * numbers * config.num_hidden_layers


def _hidden_bytes(config: BertConfig, row_length: int) -> int:
    """Bytes of a token's hidden states in all layers."""
    return 4 * config.hidden_size * config.num_hidden_layers


@dataclass(frozen=True)
class _Layout:
    """How examples go forward and back.

    Args:
        keeps: whether what products gave is kept.
        groups: of examples.
        packed: their texts, each group's in whole chunks of its own.
        rows: of a chunk.
    """

    keeps: bool
    groups: list[_Group]
    packed: Packed
    rows: int


def _lay_out(sweep_input: SweepInput, examples: Int[np.ndarray, " texts"], tokens: int | None) -> _Layout:
    """Groups as large as memory allows, each filling whole chunks of rows as far as its examples let it.

    Args:
        tokens: that a group has at most, about; a chunk then is a group.
    """
    config, lengths = sweep_input.model.config, total_lengths(sweep_input.texts)
    row_length = choose_length(config, lengths)
    largest = int(np.bincount(examples, lengths).max())
    keeps = largest * _kept_bytes(config, row_length) <= 2 * GROUP_BYTES
    token_bytes = (_kept_bytes if keeps else _hidden_bytes)(config, row_length)
    rows = max(1, default_tokens(config) // row_length)
    most = max(1, GROUP_BYTES // (rows * row_length * token_bytes)) * rows
    if tokens is not None:
        most = rows = max(1, min(most, tokens // row_length))
    groups = [*_cut(examples, lengths, row_length, most)]
    parts = [pack(sweep_input.texts[group.start : group.stop], row_length) for group in groups]
    rows = min(rows, max(part.rows for part in parts))
    parts = [whole_chunks(part, rows) for part in parts]
    ends = np.cumsum([part.rows // rows for part in parts]).tolist()
    several = zip(groups, pairwise([0, *ends]), strict=True)
    return _Layout(
        keeps, [_Group(group, range(*chunks), []) for group, chunks in several], _joined(groups, parts), rows
    )


def _cut(
    examples: Int[np.ndarray, " texts"], lengths: Int32[np.ndarray, " texts"], row_length: int, most: int
) -> Iterator[range]:
    """Texts of whole examples, as many as so many rows hold; a single example may need more."""
    ends = [*np.flatnonzero(np.diff(examples)).tolist(), len(examples) - 1]
    tokens = np.cumsum(lengths)
    start, held = 0, 0  # text, and tokens before it
    while start < len(examples):
        first = bisect(ends, start - 1)
        last = max(first, bisect(ends, int(np.searchsorted(tokens, held + most * row_length, "right")) - 1) - 1)
        while last > first and len(first_fit(lengths[start : ends[last] + 1], row_length)) > most:
            last -= 1
        yield range(start, ends[last] + 1)
        start, held = ends[last] + 1, int(tokens[ends[last]])


def _joined(groups: Sequence[range], parts: Sequence[Packed]) -> Packed:
    """Packed texts of several groups, one after another."""
    places = max(part.starts.shape[1] for part in parts)
    arrays: dict[str, list[np.ndarray]] = {}
    for group, part in zip(groups, parts, strict=True):
        for name, array in vars(part).items():
            own = array
            if name in ("starts", "lengths", "examples", "texts"):
                filling = -1 if name == "examples" else 0
                own = np.pad(own, ((0, 0), (0, places - own.shape[1])), constant_values=filling)
            if name == "examples":
                own = np.where(own < 0, -1, own + group.start).astype(own.dtype)
            arrays.setdefault(name, []).append(own)
    return Packed(**{name: np.concatenate(several) for name, several in arrays.items()})


def _layer(given: _Given, hidden: Block, gates: Array, how: _How) -> _After:
    parts = given.weights, flat(hidden), given.rows.flat()
    if given.changes is None:  # a layer without heads
        after = packed_layer.apply_layer(*parts, None, how.recipe, cls_only=how.short)
    else:
        gated = packed_layer.apply_gated_layer
        after = gated(*parts, flat(gates), given.changes, how.recipe, cls_only=how.short)
    return after.reshape(*hidden.shape[:2], *after.shape[1:])


@partial(jax.jit, static_argnames=("how", "mesh"))
def _forward(given: _Given, hidden: Block, *, how: _How, mesh: Mesh | None) -> _After:
    def local(
        hidden: Block, rows: BlockRows, gates: Array, weights: LayerWeights, changes: LayerInterventions | None
    ) -> _After:
        return _layer(_Given(weights, rows, gates, changes), hidden, gates, how)

    return over_rows(local, mesh, [hidden, given.rows, given.gates], [given.weights, given.changes])


@partial(jax.jit, static_argnames=("how",))
def _forward_keeping(
    given: _Given, hidden: Block, *, how: _How
) -> tuple[_After, Callable[[_After], tuple[Array, ...]]]:
    """A layer, and the way back through it, which holds what its products gave."""
    step = jax.checkpoint(
        lambda gates, hidden: _layer(given, hidden, gates, how), policy=jax.checkpoint_policies.dots_saveable
    )
    if how.lowest:
        after, back = jax.vjp(lambda gates: step(gates, hidden), given.gates)
    else:
        after, back = jax.vjp(step, given.gates, hidden)
    return after, back


@jax.jit
def _back_kept(
    back: Callable[[_After], tuple[Array, ...]], rows: BlockRows, slope: _After
) -> tuple[Block | None, Float[Array, "two rows places heads"]]:
    of_gates, *before = back(slope)
    return before[0] if before else None, _by_place(of_gates, rows)


@partial(jax.jit, static_argnames=("how", "mesh"))
def _back(
    given: _Given, hidden: Block, slope: _After, *, how: _How, mesh: Mesh | None
) -> tuple[Block, Float[Array, "two rows places heads"]]:
    """The way back through a layer, which is computed once more."""

    def local(
        hidden: Block,
        slope: _After,
        rows: BlockRows,
        gates: Array,
        weights: LayerWeights,
        changes: LayerInterventions | None,
    ) -> tuple[Block, Array]:
        own = _Given(weights, rows, gates, changes)
        _, back = jax.vjp(lambda hidden, gates: _layer(own, hidden, gates, how), hidden, gates)
        before, of_gates = back(slope)
        return before, _by_place(of_gates, rows)

    return over_rows(local, mesh, [hidden, slope, given.rows, given.gates], [given.weights, given.changes])


def _by_place(
    of_gates: Float[Array, "runs rows token heads"], rows: BlockRows
) -> Float[Array, "two rows places heads"]:
    """Slopes of gates summed over the tokens of each place, and their absolute values."""
    numbers = 1 + jnp.arange(rows.starts.shape[2], dtype=rows.segments.dtype)
    members = (rows.segments[0][..., None] == numbers[None, None]).astype(of_gates.dtype)
    both = jnp.stack([of_gates[0], jnp.abs(of_gates[0])])
    return jnp.einsum("srth,rtp->srph", both, members, precision="highest")


@partial(jax.jit, static_argnames=("read",))
def _read_back(read: "_Read", hidden: _After, known: "_Known", slope: Array) -> _After:
    """Slopes of hidden states from those of what a readout gives."""
    _, back = jax.vjp(lambda hidden: read(hidden, known), hidden)
    return back(slope)[0]
