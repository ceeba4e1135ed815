"""The sizes in which a sweep is computed: what suits examples and device, and what fits into memory.

On a CPU memory is the process's resident memory, all of it; on an accelerator the device's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Int32

from bertjax import arguments
from bertjax.checkpoints import BertConfig, LayerKind
from bertjax.engine.packing import LANES, STEP, choose_row_length, first_fit, round_up, total_lengths
from bertjax.engine.sweep_input import SweepInput
from bertjax.errors import InputError
from bertjax.formatting import format_bytes
from bertjax.machine import SHARE, UNKNOWN, free_memory, peak_resident, resident_memory
from bertjax.models import packed_layer

# What XLA's compiler leaves behind in the process that uses it (measured: `benchmarks/RESULTS.md`).
COMPILER_BYTES = 200 * 10**6
STEPS_BYTES = 25 * 10**6  # of a further width at which a last layer is computed at asked tokens
# Activations inside the feed-forward layer for which a CPU is fastest: about 10 MB of float32.
CACHED_FLOATS = 2_500_000
# Steps after which the outputs are written down: seconds on a CPU and on an accelerator, whose steps are short.
STEPS_OF_PART = {"cpu": 96, "other": 2048}
# Tokens of a step on an accelerator, and on one with much memory, where more of them leave less time between kernels.
TOKENS, MANY_TOKENS, MUCH_MEMORY = 65_536, 131_072, 32 * 10**9
# Steps that the host hands to the device before it waits for the first of them.
AHEAD = 8


@dataclass(frozen=True)
class Blocks:
    """How large the pieces are in which a sweep is computed.

    Args:
        rows: rows of a chunk.
        runs: slots of a block, each one run on one chunk.
    """

    rows: int
    runs: int


@dataclass(frozen=True)
class Sizes:
    """The sizes of all pieces of a sweep; with the same sizes it gives the same bytes.

    Args:
        row_length: slots of a row.
        rows: rows of a chunk.
        runs: slots of a block, each one run on one chunk.
        steps_of_part: steps after which outputs are written down.
        one_per_row: whether each example has a row of its own.
        devices: that were to share the rows of a chunk.
    """

    row_length: int
    rows: int
    runs: int
    steps_of_part: int
    one_per_row: bool = False
    devices: int = 1

    @property
    def blocks(self) -> Blocks:
        """Rows of a chunk and slots of a block."""
        return Blocks(self.rows, self.runs)

    def to_dict(self) -> dict[str, int]:
        """For a journal."""
        return {name: int(value) for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, recorded: Mapping[str, int]) -> "Sizes":
        """As `to_dict` gave it."""
        numbers = {name: value for name, value in recorded.items() if name != "one_per_row"}
        return cls(one_per_row=bool(recorded["one_per_row"]), **numbers)


def choose_blocks(rows: int, row_length: int, heads: int, tokens: int) -> Blocks:
    """Blocks of about `tokens` tokens, in which the heads of a layer have whole numbers of blocks.

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
    """The sizes of all pieces, for a sweep that begins: see `sweep`.

    Raises:
        InputError: too little memory, or an example longer than a row.
    """
    config, numerics, lengths = sweep_input.model.config, sweep_input.model.numerics, total_lengths(sweep_input.texts)
    for name, value in (("row_length", row_length), ("tokens_at_once", tokens_at_once), ("memory", memory)):
        if value is not None:
            arguments.check_int(value, name, 1)
    arguments.check_bool(one_per_row, "one_per_row")
    length = row_length or choose_length(config, lengths)
    if length < lengths.max():
        raise InputError(
            f"an example has {lengths.max()} tokens, but a row only {length}: give a larger row_length, or encode "
            f"with max_length={length}"
        )
    rows = [[number] for number in range(len(lengths))] if one_per_row else first_fit(lengths, length)
    asked = sweep_input.asked.tolist()
    row_bytes = sweep_input.row_bytes(round_up(max(sum(asked[number] for number in row) for row in rows)), AHEAD)
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
    )
    steps = STEPS_OF_PART.get(jax.default_backend(), STEPS_OF_PART["other"])
    return Sizes(length, blocks.rows, blocks.runs, steps, one_per_row, count)


def choose_length(config: BertConfig, lengths: Int32[np.ndarray, " examples"]) -> int:
    """The row length that suits examples of these lengths on this device."""
    step = LANES if jax.default_backend() == "tpu" else STEP
    return choose_row_length(lengths, config.hidden_size, config.intermediate_size, step=step)


def default_tokens(config: BertConfig) -> int:
    """How many tokens a step should hold on each device.

    A CPU is fastest when the widest activations of a step, those inside the feed-forward layer, stay in its caches
    (measured: `benchmarks/RESULTS.md`); an accelerator needs many tokens to be busy.
    """
    if jax.default_backend() == "cpu":
        return max(64, CACHED_FLOATS // config.intermediate_size)
    return MANY_TOKENS if (_device_stats() or {}).get("bytes_limit", 0) >= MUCH_MEMORY else TOKENS


def memory_in_use() -> int:
    """Bytes that this process, or its device, holds now; 0 where the system does not say."""
    stats = _device_stats()
    return stats["bytes_in_use"] if stats else resident_memory()


def peak_memory() -> dict[str, int | None]:
    """The most bytes held so far, resident and on an accelerator; None where the system does not report it."""
    stats = {} if jax.default_backend() == "cpu" else jax.local_devices()[0].memory_stats() or {}
    return {"resident": peak_resident(), "device": stats.get("peak_bytes_in_use")}


def default_budget() -> int:
    """Most of what is free, and what is in use already; a very large number where the system does not say."""
    stats = _device_stats()
    if stats:
        return int(stats["bytes_in_use"] + SHARE * (stats["bytes_limit"] - stats["bytes_in_use"]))
    free = free_memory()
    return memory_in_use() + int(SHARE * free) if free < UNKNOWN else UNKNOWN


def _device_stats() -> dict[str, int] | None:
    """Memory of an accelerator; None on a CPU."""
    if jax.default_backend() == "cpu":
        return None
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats if {"bytes_in_use", "bytes_limit"} <= set(stats) else None


def most_blocks(layers: int, runs: int) -> int:
    """Blocks that are alive at a time at most: a few for each layer, more where runs of many parents meet.

    The bound is checked by `tests/engine/test_memory.py` on plans of every kind.
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
) -> int:
    """Bytes that a sweep takes at most beside the model and the outputs, on one device.

    Args:
        itemsize: bytes of a number in the dtype of computation.
        blocks: as large as they are on one device.
        row_bytes: what a readout takes for the texts of a row.
        alive: blocks of hidden states that there are at a time; None for the most that there may be.
        source_blocks: blocks that sources give beyond one for each layer (`Plan.source_sites`).
    """
    layers, kinds, embed = config.num_hidden_layers, config.architecture.layers, config.hidden_size
    alive = most_blocks(layers, blocks.runs) if alive is None else alive
    slots = blocks.runs * blocks.rows * row_length
    hidden = slots * embed * (alive * itemsize + max(0, source_blocks - layers) * max(4, itemsize))
    step = blocks.rows * max(step_floats(config, kind, row_length, blocks.runs) for kind in set(kinds))
    sets, products = config.parameter_sets, 3 if kinds[0].gated else 2
    square, inner = embed**2, products * embed * config.intermediate_size
    kernels = sets * (4 * square + inner) * itemsize if itemsize < 4 else sets * 3 * square * itemsize
    compiler = COMPILER_BYTES if jax.default_backend() == "cpu" else 0
    return hidden + max(step * max(4, itemsize), blocks.runs * blocks.rows * row_bytes) + kernels + compiler


def step_floats(config: BertConfig, kind: LayerKind, row_length: int, runs: int) -> int:
    """Numbers inside a step of a layer at most, for each row of a chunk, as XLA reports them for compiled steps.

    Attention, the feed-forward layer and what heads add in a branch are alive one after another.
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
    branch = row_length * embed * (heads + 2 + runs)
    return max(runs * attention, runs * feed_forward, branch)


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
) -> Blocks:
    """The largest blocks of at most `tokens` tokens on each device with which a sweep stays within a budget.

    Args:
        itemsize: bytes of a number in the dtype of computation.
        rows, row_length: of the packing.
        output_bytes: of all outputs.
        budget: bytes, of the whole process (on CPUs) or of each device; None for most of what is free.
        row_bytes: what a readout takes for the texts of a row.
        devices: how many share the rows.
        source_blocks: as in `sweep_bytes`.

    Raises:
        InputError: not even the smallest blocks fit.
    """
    budget = default_budget() if budget is None else budget
    taken = memory_in_use() + 2 * output_bytes  # twice: while they are written
    sharing = devices if jax.default_backend() == "cpu" else 1  # of those in the memory that the budget is of
    while True:
        blocks = choose_blocks(-(-rows // devices), row_length, config.num_attention_heads, tokens)
        needed = taken + sharing * sweep_bytes(
            config, itemsize, row_length, blocks, row_bytes, source_blocks=source_blocks
        )
        if needed <= budget:
            return Blocks(blocks.rows * devices, blocks.runs)
        if blocks.rows * blocks.runs == 1:
            raise InputError(
                f"the sweep needs about {format_bytes(needed)} of memory ({format_bytes(2 * output_bytes)} of it for "
                f"outputs), but the budget is {format_bytes(budget)}"
            )
        tokens = min(tokens, blocks.rows * blocks.runs * row_length) * 3 // 4
