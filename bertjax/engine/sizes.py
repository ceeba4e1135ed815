"""How much memory there is, how much a sweep takes at most, and the largest steps that fit.

On a CPU memory is the process's resident memory, all of it; on an accelerator the device's.
"""

import jax

from bertjax.checkpoints import BertConfig
from bertjax.engine.blocks import Blocks, choose_blocks
from bertjax.engine.schedule import AHEAD
from bertjax.errors import InputError
from bertjax.formatting import format_bytes
from bertjax.machine import SHARE, UNKNOWN, free_memory, peak_resident, resident_memory

# What XLA's compiler leaves behind in the process that uses it (measured: `benchmarks/RESULTS.md`).
COMPILER_BYTES = 200 * 10**6


def memory_in_use() -> int:
    """Bytes that this process, or its device, holds now; 0 where the system does not say."""
    stats = _device_stats()
    return stats["bytes_in_use"] if stats else resident_memory()


def peak_memory() -> dict[str, int | None]:
    """The most bytes held so far, resident and on an accelerator; None where nobody says."""
    stats = {} if jax.default_backend() == "cpu" else jax.local_devices()[0].memory_stats() or {}
    return {"resident": peak_resident(), "device": stats.get("peak_bytes_in_use")}


def default_budget() -> int:
    """Most of what is free, and what is in use already; a very large number where the system does not say."""
    stats = _device_stats()
    if stats:
        return int(stats["bytes_in_use"] + SHARE * (stats["bytes_limit"] - stats["bytes_in_use"]))
    free = free_memory()
    return memory_in_use() + int(SHARE * free) if free < UNKNOWN else UNKNOWN


def budget_of_texts(budget: int | None) -> int | None:
    """Of a job's budget, what holds for reading and tokenising: on an accelerator it is of other memory."""
    return budget if jax.default_backend() == "cpu" else None


def _device_stats() -> dict[str, int] | None:
    """Memory of an accelerator; None on a CPU."""
    if jax.default_backend() == "cpu":
        return None
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats if {"bytes_in_use", "bytes_limit"} <= set(stats) else None


def most_blocks(layers: int, runs: int) -> int:
    """Blocks that are alive at a time at most: a few for each layer, more where runs of many parents meet.

    The bound is checked by `tests/test_memory.py` on plans of every kind.
    """
    return int((layers + 1) * (2 + runs / 2)) + AHEAD


def sweep_bytes(config: BertConfig, itemsize: int, row_length: int, blocks: Blocks, row_bytes: int = 0) -> int:
    """Bytes that a sweep takes at most beside the model and the outputs, on one device.

    Args:
        itemsize: bytes of a number in the dtype of computation.
        blocks: as large as they are on one device.
        row_bytes: what a readout takes for the texts of a row.
    """
    embed, mlp = config.hidden_size, config.intermediate_size
    layers, tokens = config.num_hidden_layers, blocks.runs * blocks.rows * row_length
    alive = most_blocks(layers, blocks.runs) * tokens * embed * itemsize
    inside = tokens * (12 * embed + 3 * mlp + 3 * config.num_attention_heads * row_length) * max(4, itemsize)
    kernels = layers * embed * (4 * embed + 2 * mlp) * itemsize if itemsize < 4 else layers * 3 * embed**2 * itemsize
    compiler = COMPILER_BYTES if jax.default_backend() == "cpu" else 0
    return alive + max(inside, blocks.runs * blocks.rows * row_bytes) + kernels + compiler


def fit_blocks(
    config: BertConfig,
    itemsize: int,
    rows: int,
    row_length: int,
    tokens: int,
    output_bytes: int,
    budget: int | None,
    row_bytes: int = 0,
    devices: int = 1,
) -> Blocks:
    """The largest blocks of at most `tokens` tokens on each device with which a sweep stays within a budget.

    Args:
        rows: of the packing.
        output_bytes: of all outputs.
        budget: bytes, of the whole process (on CPUs) or of each device; None for most of what is free.
        row_bytes: what a readout takes for the texts of a row.
        devices: how many share the rows.

    Raises:
        InputError: not even the smallest blocks fit.
    """
    budget = default_budget() if budget is None else budget
    taken = memory_in_use() + 2 * output_bytes  # twice: while they are written
    here = devices if jax.default_backend() == "cpu" else 1  # of those in the memory that the budget is of
    while True:
        blocks = choose_blocks(-(-rows // devices), row_length, config.num_attention_heads, tokens)
        needed = taken + here * sweep_bytes(config, itemsize, row_length, blocks, row_bytes)
        if needed <= budget:
            return Blocks(blocks.rows * devices, blocks.runs)
        if blocks.rows * blocks.runs == 1:
            raise InputError(
                f"the sweep needs about {format_bytes(needed)} of memory ({format_bytes(2 * output_bytes)} of it for "
                f"outputs), but the budget is {format_bytes(budget)}"
            )
        tokens = min(tokens, blocks.rows * blocks.runs * row_length) * 3 // 4
