"""Gradients of each example's loss with respect to a gate on each head, from one backward pass through the model.

A gate of 1 leaves a head as it is; at 0, the head is replaced as by an ablation. Examples are independent, so the
gradient of the sum of their losses with respect to gates at single tokens, summed over the tokens of a text, is the
gradient for that text: the result of `vmap(grad)` over examples, for packed rows.

Groups of examples run forward, layer by layer, and then backward. The results of matrix products are kept in between,
and only cheap operations are recomputed: about the work of two forward passes. If the readout needs the last layer only
at [CLS], it is computed only there, and no gradient is computed for the input of the lowest layer. If a single example
has too many texts for this, only hidden states are kept, and each layer is recomputed.
"""

from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Int32, Shaped

from bertjax.checkpoints import BertConfig
from bertjax.data import Encoding
from bertjax.engine import compiled_steps
from bertjax.engine.blocks import BlockRunner, whole_chunks
from bertjax.engine.compiled_steps import AfterLayer, Block, BlockRows, Parameters, Reading, Structure, flat
from bertjax.engine.packing import Packed, first_fit, pack, total_lengths
from bertjax.engine.sharding import over_rows
from bertjax.engine.sizes import Blocks, choose_length, default_tokens
from bertjax.engine.sweep_input import SweepInput, make_sweep_input
from bertjax.errors import InputError
from bertjax.interventions import Ablation, Readout
from bertjax.models import LayerInterventions, LayerWeights, PretrainedModel, Recipe, packed_layer, record
from bertjax.progress import Progress, silent

# Bytes that a group of examples may keep for all layers; twice that if a single example needs it.
GROUP_BYTES = 768 * 2**20
Grade = Callable[[int, Shaped[np.ndarray, "texts ..."]], tuple[float, Shaped[np.ndarray, "texts ..."]]]


@dataclass(frozen=True)
class GateGradients:
    """The result of a backward pass.

    Args:
        losses: losses of each example; NaN if it has no text.
        gradients: gradients of each example's loss with respect to the gate of each head.
        absolute: the same with absolute values at each token, before the sum over tokens.
    """

    losses: Float[np.ndarray, " examples"]
    gradients: Float[np.ndarray, "layers heads examples"]
    absolute: Float[np.ndarray, "layers heads examples"]


@dataclass(frozen=True)
class GateTexts:
    """The texts of all examples, sorted by example.

    Args:
        encodings: tokenised texts of all examples.
        examples: the example of each text, in ascending order.
        count: number of examples; some may have no text.
        at: token positions of each text that the readout reads; None for all.
        targets: second argument of the readout, for each text.
    """

    encodings: Sequence[Encoding]
    examples: Int[np.ndarray, " texts"]
    count: int
    at: Int[np.ndarray, "texts targets"] | None = None
    targets: Int[np.ndarray, "texts targets"] | None = None


class GatePasses:
    """Forward and backward passes on the same texts, for gates that change; attention is explicit.

    Args:
        model: the model.
        texts: texts of all examples.
        replaced: an ablation of all heads: what replaces a head if its gate is 0.
        readout: computes the outputs of each text.
        grade: takes the index of an example and the readouts of its texts. Returns the example's loss, and the gradient
            of the loss with respect to the readouts.
        means: the heads' mean outputs, for mode 'mean'.
        tokens: approximate number of tokens of a group; by default as many as memory allows.

    Attributes:
        groups: the examples of each group; examples without any text are in none.

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
        """The losses and gradients of all examples; NaN and 0 for examples without any text.

        Args:
            gate: the gates at which the gradient is taken: one for all heads or one for each. 1 is the model as it is.
            progress: called with the number of texts done and in all, each counted twice: forward and backward.

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

        for index, examples in enumerate(self.groups):
            result = self.run(index, gate, report)
            losses[examples], found[0][..., examples] = result.losses, result.gradients
            found[1][..., examples] = result.absolute
        return GateGradients(losses, found[0], found[1])

    def run(
        self,
        index: int,
        gate: float | Float[np.ndarray, "layers heads"] | Float[np.ndarray, "layers heads examples"] = 1.0,
        report: Callable[[int], None] = lambda texts: None,
    ) -> GateGradients:
        """The losses and gradients of one group's examples, in the order of `groups`.

        Args:
            index: index of the group.
            gate: one for all heads, one for each, or one for each head of each of the group's examples.
            report: called with the number of texts after the forward pass, and after the backward pass.

        Raises:
            InputError: outputs that are not finite.
        """
        texts, group, examples = self._texts, self._pass.groups[index], self.groups[index]
        of_texts = np.searchsorted(examples, texts.examples[group.texts.start : group.texts.stop])
        by_text = np.asarray(gate)[..., of_texts] if np.ndim(gate) == 3 else gate
        outputs = self._pass.forward(group, by_text)
        losses, slopes = np.full(len(examples), np.nan), np.zeros(outputs.shape, outputs.dtype)
        starts = np.flatnonzero(np.diff(of_texts, prepend=-1))
        for place, (start, end) in enumerate(pairwise([*starts.tolist(), len(of_texts)])):
            losses[place], slopes[start:end] = self._grade(int(examples[place]), outputs[start:end])
        if not np.isfinite(outputs).all():
            raise InputError("outputs are not finite without any override: look for NaN or infinity in the weights")
        report(len(outputs))
        found = np.add.reduceat(self._pass.backward(group, slopes), starts, axis=-1)
        report(len(outputs))
        return GateGradients(losses, found[0], found[1])


@dataclass
class _Group:
    """Examples that run forward and backward together.

    Args:
        texts: their texts.
        chunks: chunks of rows that hold the texts.
        tapes: for each chunk, the backward function of each layer and the last hidden states; emptied by the backward
            pass.
    """

    texts: range
    chunks: range
    tapes: list[tuple[list["_Backward"], "AfterLayer"]]


# From the slopes of a layer's output to those of its input (None for the lowest layer) and of its gates.
_Backward: TypeAlias = Callable[[AfterLayer], tuple[AfterLayer | None, Float[Array, "two rows places heads"]]]


@record
class _LayerInputs:
    """The inputs of a layer besides hidden states."""

    weights: LayerWeights
    rows: BlockRows
    gates: Float[Array, "runs rows token heads"]
    changes: LayerInterventions | None


@dataclass(frozen=True)
class _LayerOptions:
    """The static arguments of a layer's steps.

    Args:
        recipe: static settings of the layer.
        lowest: whether it is the lowest layer, whose input needs no gradient.
        cls_only: whether it is the last layer and computed only at [CLS].
    """

    recipe: Recipe
    lowest: bool
    cls_only: bool


class _Pass:
    """The compiled forward and backward steps."""

    def __init__(self, sweep_input: SweepInput, replaced: Ablation, texts: GateTexts, tokens: int | None):
        self.sweep_input, config = sweep_input, sweep_input.model.config
        layout = _lay_out(sweep_input, texts.examples, tokens)
        self.groups = layout.groups
        self.runner = BlockRunner(sweep_input, layout.packed, None, Blocks(layout.rows, 1))
        self.keeps = layout.keeps and self.runner.mesh is None
        self.cls_only = self.runner.cls_only and self.runner.first_only
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
        """The readouts of each text of a group.

        Args:
            gate: one gate for all heads, one for each head, or one for each head in each text of the group.
        """
        readouts, of_each = [], np.ndim(gate) == 3
        by_text = np.broadcast_to(gate, (*self.columns, len(group.texts)) if of_each else self.columns)
        for chunk in group.chunks:
            hidden, tape = self.runner.embed([chunk]), list[_Backward]()
            of_tokens = by_text[..., self._owners(chunk, group.texts.start)] if of_each else by_text[..., None, None]
            for layer in range(len(self.changes)):
                gates = self._gates(layer, of_tokens[layer])
                hidden, backward = self._step(layer, hidden, self.runner.rows([chunk]), gates)
                tape.append(backward)
            group.tapes.append((tape, hidden))
            reading = self.runner.reading([chunk], self.cls_only)
            options = self.runner.read_options(reading)
            readouts.append(compiled_steps.read(*self.runner.head, hidden, reading, **options))
        arrays = [self._filled(np.asarray(readout)[0]) for readout in readouts]
        return np.concatenate(arrays)[self._readout_cells(group)]

    def backward(
        self, group: _Group, slopes: Shaped[np.ndarray, "texts ..."]
    ) -> Float[np.ndarray, "two layers heads texts"]:
        """Gradients with respect to the gates in each text of a group, and the same with absolute values per token."""
        texts, cells = self._text_cells(group), self._readout_cells(group)
        rows = len(group.chunks) * self.runner.blocks.rows
        placed = np.zeros((rows, self._width, *slopes.shape[cells[1].ndim :]), slopes.dtype)
        np.add.at(placed, cells, slopes)  # (repeated tokens, which fill up the positions of a text, have slopes of 0)
        by_chunk = placed.reshape(len(group.chunks), 1, -1, *placed.shape[1:])
        heads = self.runner.config.num_attention_heads
        found = np.zeros((2, len(self.changes), heads, len(slopes)))
        summed: list[list[Array]] = []
        for index, chunk in enumerate(group.chunks):
            tape, hidden = group.tapes[index]
            reading = self.runner.reading([chunk], self.cls_only)
            width = None if reading.rows is None else reading.rows.starts.shape[2]
            of_readout = by_chunk[index][:, :, :width]
            if self.runner.picks is not None:
                of_readout = of_readout[:, :, :, None]
            arrays, options = (hidden, reading, jax.device_put(of_readout)), self.runner.read_options(reading)
            slope = _read_backward(*self.runner.head, *arrays, **options)
            summed.append([])
            while tape:
                slope, by_text = tape.pop()(slope)
                summed[-1].append(by_text)
        group.tapes.clear()
        for below_last, chunks in enumerate(zip(*summed, strict=True)):
            both = np.concatenate([np.asarray(chunk) for chunk in chunks], axis=1)  # [two, rows, places, heads]
            layer = len(self.changes) - 1 - below_last
            found[:, layer, self.runner.heads[layer]] = both[:, *texts].swapaxes(1, 2)
        return found

    @property
    def _width(self) -> int:
        """The largest number of readouts of a row: one for each text, or for each token that is read by itself."""
        picks = self.runner.picks
        return self.runner.packed.starts.shape[1] if picks is None else picks.tokens.shape[1]

    def _filled(self, readouts: Shaped[np.ndarray, "rows places ..."]) -> Shaped[np.ndarray, "rows width ..."]:
        """Readouts padded to `_width`; those of picks without their axis of length 1."""
        values = readouts if self.runner.picks is None else readouts[:, :, 0]
        return np.pad(values, [(0, 0), (0, self._width - values.shape[1]), *[(0, 0)] * (values.ndim - 2)])

    def _readout_cells(self, group: _Group) -> tuple[np.ndarray, np.ndarray]:
        """Row, counted from the group's first, and place of each readout: of each text, or of each of its tokens."""
        picks = self.runner.picks
        if picks is None:
            return self._text_cells(group)
        texts = slice(group.texts.start, group.texts.stop)
        places = picks.places[texts]
        rows = picks.rows[texts] - group.chunks.start * self.runner.blocks.rows
        return np.broadcast_to(rows[:, None], places.shape), places

    def _text_cells(self, group: _Group) -> tuple[np.ndarray, np.ndarray]:
        """Row, counted from the group's first, and place of each text."""
        first, last = (end * self.runner.blocks.rows for end in (group.chunks.start, group.chunks.stop))
        row, place = np.nonzero(self.runner.packed.examples[first:last] >= 0)
        order = np.argsort(self.runner.packed.examples[first:last][row, place])
        return row[order], place[order]

    def _owners(self, chunk: int, first: int) -> Int[np.ndarray, "rows token"]:
        """The text, counted from the group's first, of each token of a chunk; arbitrary for padding."""
        packed, (where,) = self.runner.packed, self.runner.where([chunk])
        places = np.maximum(packed.segments[where] - 1, 0)
        texts = np.maximum(packed.examples[where] - first, 0)
        return np.asarray(np.take_along_axis(texts, places, axis=1))

    def _gates(
        self, layer: int, gates: Float[np.ndarray, " all_heads #rows #token"]
    ) -> Float[Array, "runs rows token heads"]:
        """A layer's gates at the tokens of a chunk."""
        rows, heads = self.runner.blocks.rows, self.runner.heads[layer]
        by_token = np.broadcast_to(gates[heads], (len(heads), rows, self.runner.packed.row_length))
        return jax.device_put(np.moveaxis(by_token, 0, -1)[None].astype(self.sweep_input.numerics.wide))

    def _step(
        self, layer: int, hidden: Block, rows: BlockRows, gates: Float[Array, "runs rows token heads"]
    ) -> tuple[AfterLayer, "_Backward"]:
        """Apply a layer; also returns its backward function."""
        cls_only, mesh = self.cls_only and layer == len(self.changes) - 1, self.runner.mesh
        options = _LayerOptions(self.runner.recipes[layer], layer == 0, cls_only)
        inputs = _LayerInputs(self.runner.weights[layer], rows, gates, self.changes[layer])
        if self.keeps:
            after, backward = _forward_keeping(inputs, hidden, options=options)
            return after, partial(_backward_kept, backward, rows)
        after = _forward(inputs, hidden, options=options, mesh=mesh)
        return after, partial(_backward, inputs, hidden, options=options, mesh=mesh)


def _kept_bytes(config: BertConfig, row_length: int) -> int:
    """Bytes of a token's hidden states and results of products in all layers."""
    inner = config.intermediate_size * (2 if config.architecture.layers[0].gated else 1)
    numbers = 8 * config.hidden_size + inner + config.num_attention_heads * row_length
    return 4 * numbers * config.num_hidden_layers


@dataclass(frozen=True)
class _Layout:
    """The groups and rows of all examples.

    Args:
        keeps: whether the results of products are kept for the backward pass.
        groups: groups of examples.
        packed: their texts; each group fills whole chunks.
        rows: rows of a chunk.
    """

    keeps: bool
    groups: list[_Group]
    packed: Packed
    rows: int


def _lay_out(sweep_input: SweepInput, examples: Int[np.ndarray, " texts"], tokens: int | None) -> _Layout:
    """Groups as large as memory allows, each in whole chunks of rows.

    Args:
        tokens: approximate maximum of a group, which is then a single chunk.
    """
    config, lengths = sweep_input.model.config, total_lengths(sweep_input.texts)
    row_length = choose_length(config, lengths)
    largest = int(np.bincount(examples, lengths).max())
    keeps = largest * _kept_bytes(config, row_length) <= 2 * GROUP_BYTES
    token_bytes = _kept_bytes(config, row_length) if keeps else 4 * config.hidden_size * config.num_hidden_layers
    rows = max(1, default_tokens(config) // row_length)
    most = max(1, GROUP_BYTES // (rows * row_length * token_bytes)) * rows
    if tokens is not None:
        most = rows = max(1, min(most, tokens // row_length))
    texts = [*_split(examples, lengths, row_length, most)]
    packed = [pack(sweep_input.texts[group.start : group.stop], row_length) for group in texts]
    rows = min(rows, max(group.rows for group in packed))
    packed = [whole_chunks(group, rows) for group in packed]
    ends = np.cumsum([group.rows // rows for group in packed]).tolist()
    chunks = pairwise([0, *ends])
    groups = [_Group(group, range(*ends_of_group), []) for group, ends_of_group in zip(texts, chunks, strict=True)]
    return _Layout(keeps, groups, _join(texts, packed), rows)


def _split(
    examples: Int[np.ndarray, " texts"], lengths: Int32[np.ndarray, " texts"], row_length: int, most: int
) -> Iterator[range]:
    """Split texts between examples, into groups that fit into `most` rows. A single example may need more."""
    ends = [*np.flatnonzero(np.diff(examples)).tolist(), len(examples) - 1]
    tokens = np.cumsum(lengths)
    start, before = 0, 0  # first text of a group, and the number of tokens before it
    while start < len(examples):
        first = bisect(ends, start - 1)
        last = max(first, bisect(ends, int(np.searchsorted(tokens, before + most * row_length, "right")) - 1) - 1)
        while last > first and len(first_fit(lengths[start : ends[last] + 1], row_length)) > most:
            last -= 1
        yield range(start, ends[last] + 1)
        start, before = ends[last] + 1, int(tokens[ends[last]])


def _join(texts: Sequence[range], groups: Sequence[Packed]) -> Packed:
    """Join the rows of several groups of texts."""
    places = max(group.starts.shape[1] for group in groups)
    arrays: dict[str, list[np.ndarray]] = {}
    for texts_of_group, group in zip(texts, groups, strict=True):
        for name, array in vars(group).items():
            joined = array
            if name in ("starts", "lengths", "examples", "texts"):
                padding = -1 if name == "examples" else 0
                joined = np.pad(joined, ((0, 0), (0, places - joined.shape[1])), constant_values=padding)
            if name == "examples":
                joined = np.where(joined < 0, -1, joined + texts_of_group.start).astype(joined.dtype)
            arrays.setdefault(name, []).append(joined)
    return Packed(**{name: np.concatenate(of_groups) for name, of_groups in arrays.items()})


def _layer(inputs: _LayerInputs, hidden: Block, gates: Array, options: _LayerOptions) -> AfterLayer:
    arrays = inputs.weights, flat(hidden), inputs.rows.flat(), inputs.changes
    after = packed_layer.apply_layer(*arrays, options.recipe, gates=flat(gates), cls_only=options.cls_only)
    return after.reshape(*hidden.shape[:2], *after.shape[1:])


@partial(jax.jit, static_argnames=("options", "mesh"))
def _forward(inputs: _LayerInputs, hidden: Block, *, options: _LayerOptions, mesh: Mesh | None) -> AfterLayer:
    def local(
        hidden: Block, rows: BlockRows, gates: Array, weights: LayerWeights, changes: LayerInterventions | None
    ) -> AfterLayer:
        return _layer(_LayerInputs(weights, rows, gates, changes), hidden, gates, options)

    return over_rows(local, mesh, [hidden, inputs.rows, inputs.gates], [inputs.weights, inputs.changes])


@partial(jax.jit, static_argnames=("options",))
def _forward_keeping(
    inputs: _LayerInputs, hidden: Block, *, options: _LayerOptions
) -> tuple[AfterLayer, Callable[[AfterLayer], tuple[Array, ...]]]:
    """Apply a layer; also returns its backward function, which keeps the results of matrix products."""
    step = jax.checkpoint(
        lambda gates, hidden: _layer(inputs, hidden, gates, options), policy=jax.checkpoint_policies.dots_saveable
    )
    if options.lowest:
        after, backward = jax.vjp(lambda gates: step(gates, hidden), inputs.gates)
    else:
        after, backward = jax.vjp(step, inputs.gates, hidden)
    return after, backward


@jax.jit
def _backward_kept(
    backward: Callable[[AfterLayer], tuple[Array, ...]], rows: BlockRows, slope: AfterLayer
) -> tuple[Block | None, Float[Array, "two rows places heads"]]:
    of_gates, *before = backward(slope)
    return before[0] if before else None, _sum_by_text(of_gates, rows)


@partial(jax.jit, static_argnames=("options", "mesh"))
def _backward(
    inputs: _LayerInputs, hidden: Block, slope: AfterLayer, *, options: _LayerOptions, mesh: Mesh | None
) -> tuple[Block, Float[Array, "two rows places heads"]]:
    """The backward pass through a layer, which is recomputed."""

    def local(
        hidden: Block,
        slope: AfterLayer,
        rows: BlockRows,
        gates: Array,
        weights: LayerWeights,
        changes: LayerInterventions | None,
    ) -> tuple[Block, Array]:
        on_device = _LayerInputs(weights, rows, gates, changes)
        _, backward = jax.vjp(lambda hidden, gates: _layer(on_device, hidden, gates, options), hidden, gates)
        before, of_gates = backward(slope)
        return before, _sum_by_text(of_gates, rows)

    arrays = [hidden, slope, inputs.rows, inputs.gates]
    return over_rows(local, mesh, arrays, [inputs.weights, inputs.changes])


def _sum_by_text(
    of_gates: Float[Array, "runs rows token heads"], rows: BlockRows
) -> Float[Array, "two rows places heads"]:
    """The slopes of gates and their absolute values, summed over the tokens of each text."""
    segments = 1 + jnp.arange(rows.starts.shape[2], dtype=rows.segments.dtype)
    members = (rows.segments[0][..., None] == segments[None, None]).astype(of_gates.dtype)
    both = jnp.stack([of_gates[0], jnp.abs(of_gates[0])])
    return jnp.einsum("srth,rtp->srph", both, members, precision="highest")


@partial(jax.jit, static_argnames=("structure", "longest", "readout", "mesh"))
def _read_backward(
    structure: Structure, parameters: Parameters, hidden: AfterLayer, reading: Reading, slope: Array, **options: Any
) -> AfterLayer:
    """The slopes of hidden states, from those of a readout; `options` are the static ones of `compiled_steps.read`."""
    _, backward = jax.vjp(lambda hidden: compiled_steps.read(structure, parameters, hidden, reading, **options), hidden)
    return backward(slope)[0]
