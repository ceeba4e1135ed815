"""How much memory there is, how much a sweep takes at most, and the largest steps that fit.

On a CPU memory is the process's resident memory, all of it; on an accelerator the device's.
"""

import re
from pathlib import Path

import jax

from bertjax.blocks import Blocks, choose_blocks
from bertjax.config import BertConfig
from bertjax.errors import InputError
from bertjax.schedule import AHEAD

# Of what is free, when the user gives no budget.
SHARE = 0.8
# What XLA's compiler leaves behind in the process that uses it (measured: `benchmarks/RESULTS.md`).
COMPILER_BYTES = 200 * 10**6
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_bytes(text: str) -> int:
    """Bytes from '8GB', '500 MB' or a plain number.

    Raises:
        InputError: it is none of these.

    >>> parse_bytes("1.5GB")
    1500000000
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)B?\s*", text, re.IGNORECASE)
    if found is None or float(found[1]) == 0:
        raise InputError(f"{text!r} is no amount of memory: write 8GB or 500MB")
    return int(float(found[1]) * UNITS[found[2].upper()])


def format_bytes(count: int | float) -> str:
    """Bytes for people, in decimal units.

    >>> format_bytes(1_540_000_000)
    '1.54 GB'
    """
    for unit in ("GB", "MB", "kB"):
        size = 10.0 ** {"GB": 9, "MB": 6, "kB": 3}[unit]
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def memory_in_use() -> int:
    """Bytes that this process, or its device, holds now; 0 where the system does not say."""
    stats = _device_stats()
    return stats["bytes_in_use"] if stats else _status("VmRSS")


def peak_memory() -> dict[str, int | None]:
    """The most bytes held so far, resident and on an accelerator; None where nobody says."""
    stats = {} if jax.default_backend() == "cpu" else jax.local_devices()[0].memory_stats() or {}
    return {"resident": peak_resident(), "device": stats.get("peak_bytes_in_use")}


def peak_resident(process: int | None = None) -> int | None:
    """The most bytes that were resident of a process, by default this one; None where the system does not say."""
    return _kilobytes(Path(f"/proc/{process or 'self'}/status"), "VmHWM")


def default_budget() -> int:
    """Most of what is free, and what is in use already; a very large number where the system does not say."""
    stats = _device_stats()
    if stats:
        return int(stats["bytes_in_use"] + SHARE * (stats["bytes_limit"] - stats["bytes_in_use"]))
    free = [size for size in (_available(), _free_in_group()) if size is not None]
    return memory_in_use() + int(SHARE * min(free)) if free else 2**62


def _device_stats() -> dict[str, int] | None:
    """Memory of an accelerator; None on a CPU."""
    if jax.default_backend() == "cpu":
        return None
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats if {"bytes_in_use", "bytes_limit"} <= set(stats) else None


def _status(name: str) -> int:
    return _kilobytes(Path("/proc/self/status"), name) or 0


def _available() -> int | None:
    return _kilobytes(Path("/proc/meminfo"), "MemAvailable")


def _kilobytes(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":")), None)


def _free_in_group() -> int | None:
    """What a container's limit leaves; None where there is none (cgroup v2)."""
    try:
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text().strip() for name in ("max", "current"))
        return None if limit == "max" else max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return None


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
