"""Activations of texts at every layer, computed once in packed rows; on disk if they do not fit into memory."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.data import Encoding
from bertjax.engine import (
    BlockRunner,
    Blocks,
    choose_row_length,
    compiled_steps,
    default_tokens,
    make_sweep_input,
    pack,
)
from bertjax.errors import InputError
from bertjax.interventions import Ablation, readouts
from bertjax.machine import memory_left
from bertjax.models import PretrainedModel
from bertjax.progress import Progress, silent

SHARE_OF_MEMORY = 0.4  # larger activations are stored on disk
ROWS_AHEAD = 2  # chunks that the host hands to the device before it copies the first


@dataclass(frozen=True)
class Activations:
    """Activations of the units of texts (word pieces, or words) at every layer.

    Args:
        hidden_states: before the first layer (the embeddings) and after each layer, the last one after
            the final norm if the model has one.
        head_outputs: outputs of the heads of each layer, before the output projection; None if they were not computed.
        starts: index of each text's first unit; the last entry is the number of units.
    """

    hidden_states: Float[np.ndarray, "layers_plus_1 units embed"]
    head_outputs: Float[np.ndarray, "layers units heads head_dim"] | None
    starts: Int[np.ndarray, " texts_plus_1"]

    @property
    def texts(self) -> Int[np.ndarray, " units"]:
        """The index of each unit's text."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def units_of(self, texts: Sequence[int] | Int[np.ndarray, " some"]) -> Int[np.ndarray, " some_units"]:
        """The indices of the units of some texts, in their order."""
        return np.concatenate([np.arange(self.starts[text], self.starts[text + 1]) for text in texts])


def compute_activations(
    model: PretrainedModel,
    texts: Sequence[Encoding],
    *,
    units: Sequence[Int[np.ndarray, " _"]] | None = None,
    heads: bool = False,
    directory: str | Path | None = None,
    tokens_at_once: int | None = None,
    progress: Progress = silent,
) -> Activations:
    """Compute the activations of texts at every layer.

    Texts are packed into rows, as in a sweep. Activations that need more than 40 % of the free memory are stored in a
    temporary file, which is removed when the arrays are no longer used.

    Args:
        texts: tokenised texts or pairs.
        units: the unit of each token of each text, from 0 in every text, -1 for tokens that are left out. A unit's
            activation is the mean over its tokens. By default every token is a unit, special tokens included.
        heads: whether to compute the outputs of heads too.
        directory: the directory of the temporary file; by default that of the system.
        tokens_at_once: approximate number of tokens of a step; by default what is fastest on the device.
        progress: called with the number of texts done and in total.

    Returns: the activations, in float32, or float64 for a float64 model.

    Raises:
        InputError: no texts, a text that the model cannot read, or units that do not fit the tokens of a text.

    >>> import bertjax
    >>> model = bertjax.Study().model
    >>> found = compute_activations(model, model.tokenizer.encode(["A man eats.", "Dogs bark."]))
    >>> found.hidden_states.shape, found.starts.tolist()
    ((7, 11, 384), [0, 6, 11])
    """
    lengths = np.array([len(text) for text in texts], np.int32)
    sweep_input = make_sweep_input(model, [*texts], [Ablation("base", ())], readouts.hidden_state)
    groups = _check_units(lengths, units)
    counts = np.array([group.max(initial=-1) + 1 for group in groups])
    starts = np.concatenate([[0], np.cumsum(counts)])
    row_length = choose_row_length(lengths, model.config.hidden_size, model.config.intermediate_size)
    packed = pack(sweep_input.texts, row_length)
    tokens = tokens_at_once or default_tokens(model.config)
    blocks = Blocks(min(packed.rows, max(1, tokens // row_length)), 1)
    runner = BlockRunner(sweep_input, packed, None, blocks, jax.local_devices()[:1])
    collector = _Collector(model, runner, groups, starts, _allocate(model, int(starts[-1]), heads, directory))
    done = 0
    for chunk in range(runner.chunks):
        collector.take(chunk)
        done += len(runner.examples(chunk)[0])
        progress(float(done), float(len(texts)))
    return collector.finish()


def words_of_pieces(text: Encoding) -> Int[np.ndarray, " token"]:
    """The unit of each token for `compute_activations(units=...)`: the index of its word among the words with pieces.

    Args:
        text: a text from `Tokenizer.encode_words`, which records the word of each piece.

    >>> words_of_pieces(Encoding((1, 5, 6, 7, 2), (0,) * 5, (), (), False, word_ids=(None, 0, 0, 2, None)))
    array([-1,  0,  0,  1, -1])
    """
    order: dict[int, int] = {}
    return np.array([-1 if word is None else order.setdefault(word, len(order)) for word in text.word_ids])


def _check_units(
    lengths: Int[np.ndarray, " texts"], units: Sequence[Int[np.ndarray, " _"]] | None
) -> list[Int[np.ndarray, " _"]]:
    """The unit of each token. Raises `InputError` unless the units of each text are 0, 1, ... without gaps."""
    if units is None:
        return [np.arange(length) for length in lengths]
    if len(units) != len(lengths):
        raise InputError(f"there are units for {len(units)} texts, but there are {len(lengths)} texts")
    groups = [np.asarray(group) for group in units]
    for index, (group, length) in enumerate(zip(groups, lengths, strict=True)):
        found = np.unique(group[group >= 0])
        if group.shape != (length,) or group.dtype.kind not in "iu" or not np.array_equal(found, np.arange(len(found))):
            raise InputError(f"units of text {index} must be integers 0, 1, ... or -1, one for each of {length} tokens")
    return groups


def _allocate(
    model: PretrainedModel, units: int, heads: bool, directory: str | Path | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Zeros for hidden states and, with `heads`, heads' outputs, in memory or in temporary files."""
    config, dtype = model.config, model.numerics.wide
    shapes: list[tuple[int, ...]] = [(config.num_hidden_layers + 1, units, config.hidden_size)]
    if heads:
        shapes.append((config.num_hidden_layers, units, config.num_attention_heads, config.head_dim))
    size = sum(int(np.prod(shape)) * dtype.itemsize for shape in shapes)
    if size <= SHARE_OF_MEMORY * memory_left():
        arrays = [np.zeros(shape, dtype) for shape in shapes]
    else:
        arrays = [_on_disk(shape, dtype, directory) for shape in shapes]
    return arrays[0], arrays[1] if heads else None


def _on_disk(shape: tuple[int, ...], dtype: np.dtype, directory: str | Path | None) -> np.ndarray:
    """Zeros in a temporary file, which the system removes when the array is deleted."""
    with tempfile.TemporaryFile(dir=directory, prefix="bertjax-") as file:
        return np.memmap(file, dtype, "w+", shape=shape)


class _Collector:
    """Runs chunks through all layers, and adds their activations to the arrays of all units."""

    def __init__(
        self,
        model: PretrainedModel,
        runner: BlockRunner,
        groups: Sequence[Int[np.ndarray, " _"]],
        starts: Int[np.ndarray, " texts_plus_1"],
        arrays: tuple[np.ndarray, np.ndarray | None],
    ):
        self.runner, self.starts = runner, starts
        self.states, self.outputs = arrays
        self.final_norm = model.body.final_norm
        packed = runner.packed
        self.units = np.full(packed.segments.shape, -1)  # the unit of each token of each row
        for row, place in np.argwhere(packed.examples >= 0).tolist():
            text, start = packed.examples[row, place], packed.starts[row, place]
            group = groups[text]
            self.units[row, start : start + len(group)] = np.where(group < 0, -1, starts[text] + group)
        self.waiting: list[tuple[int, list[Array], list[Array]]] = []

    def take(self, chunk: int) -> None:
        """Hand a chunk to the device, and collect the chunk that was handed over `ROWS_AHEAD` chunks before."""
        runner, hidden = self.runner, self.runner.embed([chunk])
        states, outputs, rows = [hidden], [], runner.rows([chunk])
        for layer in range(runner.layers):
            options = {"recipe": runner.recipes[layer], "mesh": runner.mesh}
            weights = runner.weights[layer]
            if self.outputs is not None:
                found = compiled_steps.source_activations(
                    weights, hidden, rows, sites=("head_outputs",), short=False, **options
                )
                outputs.append(found["head_outputs"])
            hidden = compiled_steps.apply_layer(weights, hidden, rows, None, None, **options)
            states.append(hidden)
        if self.final_norm is not None:
            states[-1] = self.final_norm(hidden)
        self.waiting.append((chunk, states, outputs))
        if len(self.waiting) > ROWS_AHEAD:
            self._collect(*self.waiting.pop(0))

    def finish(self) -> Activations:
        """Collect all chunks."""
        while self.waiting:
            self._collect(*self.waiting.pop(0))
        return Activations(self.states, self.outputs, self.starts)

    def _collect(self, chunk: int, states: list[Array], outputs: list[Array]) -> None:
        units = self.units[self.runner.where([chunk])[0]]
        row, token = np.nonzero(units >= 0)
        order = np.argsort(units[row, token], kind="stable")
        row, token = row[order], token[order]
        found, first, sizes = np.unique(units[row, token], return_index=True, return_counts=True)
        for layer, block in enumerate(states):
            self.states[layer][found] = _means(np.asarray(block)[0, row, token], first, sizes)
        for layer, block in enumerate(outputs):
            assert self.outputs is not None
            means = _means(np.asarray(block)[0, row, token], first, sizes)
            self.outputs[layer][np.ix_(found, np.array(self.runner.heads[layer], int))] = means


def _means(
    values: Float[np.ndarray, "tokens ..."], first: Int[np.ndarray, " units"], sizes: Int[np.ndarray, " units"]
) -> Float[np.ndarray, "units ..."]:
    """The mean over the tokens of each unit, which begin at `first`."""
    if len(first) == len(values):
        return values
    totals = np.add.reduceat(values, first, axis=0)
    return totals / sizes.reshape(-1, *[1] * (values.ndim - 1)).astype(values.dtype)
