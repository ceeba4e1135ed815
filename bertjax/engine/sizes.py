"""The sizes of rows, chunks, blocks and parts: the fastest on the device that fit into memory.

Memory is the resident memory of the whole process on a CPU, and the device's memory on an accelerator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Int32

from bertjax import arguments
from bertjax.checkpoints import BertConfig, LayerKind
from bertjax.engine.packing import LANES, STEP, choose_row_length, examples_of_rows, round_up, total_lengths
from bertjax.engine.sweep_input import SweepInput
from bertjax.errors import InputError
from bertjax.formatting import format_bytes
from bertjax.machine import SHARE, UNKNOWN, free_memory, peak_resident, resident_memory
from bertjax.models import packed_layer

# Memory that XLA's compiler keeps in the process that uses it (measured: `benchmarks/RESULTS.md`).
COMPILER_BYTES = 200 * 10**6
STEPS_BYTES = 25 * 10**6  # memory of the programs for one more width of picks
# The size of the activations inside a feed-forward layer at which a CPU is fastest: about 10 MB of float32.
CACHED_FLOATS = 2_500_000
# Steps of a part, after which its outputs are saved: some seconds on a CPU, and on an accelerator with its short steps.
STEPS_OF_PART = {"cpu": 96, "other": 2048}
# Tokens of a step on an accelerator; more on one with much memory, to shorten the gaps between kernels.
TOKENS, MANY_TOKENS, MUCH_MEMORY = 65_536, 131_072, 32 * 10**9
AHEAD = 8  # steps that the host hands to the device before it waits for the first of them


@dataclass(frozen=True)
class Blocks:
    """The sizes of chunks and blocks.

    Args:
        rows: rows of a chunk.
        runs: slots of a block.
    """

    rows: int
    runs: int


@dataclass(frozen=True)
class Sizes:
    """All sizes of a sweep. Sweeps with equal sizes have outputs of equal bytes.

    Args:
        row_length: tokens of a row.
        rows: rows of a chunk.
        runs: slots of a block.
        steps_of_part: steps of a part, after which its outputs are saved.
        one_per_row: whether each row holds one example.
        devices: number of devices that share the rows of a chunk.
    """

    row_length: int
    rows: int
    runs: int
    steps_of_part: int
    one_per_row: bool = False
    devices: int = 1

    @property
    def blocks(self) -> Blocks:
        """The sizes of chunks and blocks."""
        return Blocks(self.rows, self.runs)

    def to_dict(self) -> dict[str, int]:
        """For a journal."""
        return {name: int(value) for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, recorded: Mapping[str, int]) -> "Sizes":
        """The inverse of `to_dict`."""
        numbers = {name: value for name, value in recorded.items() if name != "one_per_row"}
        return cls(one_per_row=bool(recorded["one_per_row"]), **numbers)


def choose_blocks(rows: int, row_length: int, heads: int, tokens: int) -> Blocks:
    """Blocks of about `tokens` tokens; the heads of a layer fill a whole number of blocks.

    >>> choose_blocks(rows=1000, row_length=128, heads=12, tokens=1536)
    Blocks(rows=1, runs=12)
    """
    fit = max(1, tokens // row_length)
    runs = -(-heads // -(-heads // fit))
    chunks = -(-rows // max(1, round(tokens / row_length / runs)))
    return Blocks(-(-rows // chunks), runs)


def choose_sizes(
    sweep_input: SweepInput,
    *,
    row_length: int | None = None,
    one_per_row: bool = False,
    tokens_at_once: int | None = None,
    memory: int | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Sizes:
    """The sizes of a new sweep; the arguments are those of `sweep`.

    Raises:
        InputError: too little memory, or an example longer than a row.
    """
    config, numerics, lengths = sweep_input.model.config, sweep_input.model.numerics, total_lengths(sweep_input.texts)
    for name, value in (("row_length", row_length), ("tokens_at_once", tokens_at_once), ("memory", memory)):
        if value is not None:
            arguments.check_int(value, name, 1)
    arguments.check_bool(one_per_row, "one_per_row")
    length = row_length or choose_length(config, lengths)
    rows = examples_of_rows(lengths, length, one_per_row)
    readings = sweep_input.readings.tolist()
    row_bytes = sweep_input.row_bytes(round_up(max(sum(readings[example] for example in row) for row in rows)), AHEAD)
    tokens, itemsize = tokens_at_once or default_tokens(config), np.dtype(numerics.dtype).itemsize
    count = len(jax.local_devices() if devices is None else devices)
    blocks = fit_blocks(
        config,
        itemsize,
        rows=len(rows),
        row_length=length,
        tokens=tokens,
        output_bytes=sweep_input.output_bytes,
        budget=memory,
        row_bytes=row_bytes,
        devices=count,
        source_blocks=sweep_input.plan.source_blocks,
        models=sweep_input.models,
    )
    steps = STEPS_OF_PART.get(jax.default_backend(), STEPS_OF_PART["other"])
    return Sizes(length, blocks.rows, blocks.runs, steps, one_per_row, count)


def choose_length(config: BertConfig, lengths: Int32[np.ndarray, " examples"]) -> int:
    """The row length that costs least for examples of these lengths on this device."""
    step = LANES if jax.default_backend() == "tpu" else STEP
    return choose_row_length(lengths, config.hidden_size, config.intermediate_size, step=step)


def default_tokens(config: BertConfig) -> int:
    """The number of tokens of a step on each device.

    A CPU is fastest if the widest activations of a step, inside the feed-forward layer, fit into its caches (measured:
    `benchmarks/RESULTS.md`). An accelerator needs many tokens to be busy.
    """
    if jax.default_backend() == "cpu":
        return max(64, CACHED_FLOATS // config.intermediate_size)
    return MANY_TOKENS if (_device_stats() or {}).get("bytes_limit", 0) >= MUCH_MEMORY else TOKENS


def memory_in_use() -> int:
    """Bytes in use by this process, or on its device; 0 if the system does not report it."""
    stats = _device_stats()
    return stats["bytes_in_use"] if stats else resident_memory()


def peak_memory() -> dict[str, int | None]:
    """Peak memory in bytes, resident and on an accelerator; None if the system does not report it."""
    stats = {} if jax.default_backend() == "cpu" else jax.local_devices()[0].memory_stats() or {}
    return {"resident": peak_resident(), "device": stats.get("peak_bytes_in_use")}


def default_budget() -> int:
    """The memory in use and most of the free memory; a very large number if the system does not report it."""
    stats = _device_stats()
    if stats:
        return int(stats["bytes_in_use"] + SHARE * (stats["bytes_limit"] - stats["bytes_in_use"]))
    free = free_memory()
    return memory_in_use() + int(SHARE * free) if free < UNKNOWN else UNKNOWN


def _device_stats() -> dict[str, int] | None:
    """Memory statistics of an accelerator; None on a CPU."""
    if jax.default_backend() == "cpu":
        return None
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats if {"bytes_in_use", "bytes_limit"} <= set(stats) else None


def most_blocks(layers: int, runs: int) -> int:
    """An upper bound of the number of blocks in memory: a few for each layer, more if a block mixes many parents.

    `tests/engine/test_memory.py` checks the bound on plans of every kind.
    """
    return int((layers + 1) * (2 + runs / 2)) + AHEAD


def sweep_bytes(
    config: BertConfig,
    itemsize: int,
    row_length: int,
    blocks: Blocks,
    row_bytes: int = 0,
    *,
    alive: int | None = None,
    source_blocks: int = 0,
    models: int = 1,
) -> int:
    """An upper bound of the bytes that a sweep needs on one device, besides the model and the outputs.

    Args:
        config: the config of the model.
        itemsize: bytes of a number in the dtype of computation.
        row_length: number of tokens of a row, with padding.
        blocks: sizes on one device.
        row_bytes: bytes that a readout needs for a row.
        alive: number of blocks of hidden states in memory; by default `most_blocks`.
        source_blocks: number of blocks of source activations (`Plan.source_blocks`).
        models: number of models whose layers run.
    """
    layers, kinds, embed = config.num_hidden_layers, config.architecture.layers, config.hidden_size
    alive = most_blocks(layers, blocks.runs) if alive is None else alive
    slots = blocks.runs * blocks.rows * row_length
    hidden = slots * embed * (alive * itemsize + max(0, source_blocks - layers) * max(4, itemsize))
    step = blocks.rows * max(step_floats(config, kind, row_length, blocks.runs) for kind in set(kinds))
    sets, products = models * config.parameter_sets, 3 if kinds[0].gated else 2
    square, inner = embed**2, products * embed * config.intermediate_size
    kernels = sets * (4 * square + inner) * itemsize if itemsize < 4 else sets * 3 * square * itemsize
    compiler = COMPILER_BYTES if jax.default_backend() == "cpu" else 0
    return hidden + max(step * max(4, itemsize), blocks.runs * blocks.rows * row_bytes) + kernels + compiler


def step_floats(config: BertConfig, kind: LayerKind, row_length: int, runs: int) -> int:
    """An upper bound of the intermediate values of a step for each row of a chunk, from XLA's reports.

    The values of attention, of the feed-forward layer and of forking are in memory one after another.
    """
    embed, heads, in_blocks = config.hidden_size, config.num_attention_heads, packed_layer.has_blocks(row_length, kind)
    at_once = packed_layer.QUERIES if in_blocks else row_length
    scores = heads * at_once * packed_layer.compared_slots(row_length, kind)
    filled = -(-row_length // at_once) * at_once
    attention = 2 * scores + filled * embed * (8 if in_blocks else 5)
    relative = kind.relative
    if relative is not None and relative.form == "disentangled":
        terms, distances = relative.content_to_position + relative.position_to_content, 2 * row_length
        attention += terms * heads * row_length * min(distances, 2 * relative.buckets)
    feed_forward = row_length * (config.intermediate_size * (3 if kind.gated else 2) + 2 * embed)
    forking = row_length * embed * (heads + 2 + runs)
    return max(runs * attention, runs * feed_forward, forking)


def fit_blocks(
    config: BertConfig,
    itemsize: int,
    *,
    rows: int,
    row_length: int,
    tokens: int,
    output_bytes: int,
    budget: int | None,
    row_bytes: int = 0,
    devices: int = 1,
    source_blocks: int = 0,
    models: int = 1,
) -> Blocks:
    """The largest blocks of at most `tokens` tokens on each device that fit into the memory budget.

    Args:
        itemsize: bytes of a number in the dtype of computation.
        rows: number of rows of the packed examples.
        row_length: number of tokens of a row, with padding.
        output_bytes: bytes of all outputs.
        budget: bytes of the whole process (on CPUs) or of each device; by default `default_budget`.
        row_bytes: bytes that a readout needs for a row, as in `sweep_bytes`.
        source_blocks: number of blocks of source activations, as in `sweep_bytes`.
        models: number of models whose layers run, as in `sweep_bytes`.
        devices: number of devices that share the rows.

    Raises:
        InputError: not even the smallest blocks fit.
    """
    budget = default_budget() if budget is None else budget
    taken = memory_in_use() + 2 * output_bytes  # there are two copies while they are saved
    sharing = devices if jax.default_backend() == "cpu" else 1  # devices that share the budget
    while True:
        blocks = choose_blocks(-(-rows // devices), row_length, config.num_attention_heads, tokens)
        needed = taken + sharing * sweep_bytes(
            config, itemsize, row_length, blocks, row_bytes, source_blocks=source_blocks, models=models
        )
        if needed <= budget:
            return Blocks(blocks.rows * devices, blocks.runs)
        if blocks.rows * blocks.runs == 1:
            raise InputError(
                f"the sweep needs about {format_bytes(needed)} of memory ({format_bytes(2 * output_bytes)} of it for "
                f"outputs), but the budget is {format_bytes(budget)}"
            )
        tokens = min(tokens, blocks.rows * blocks.runs * row_length) * 3 // 4
