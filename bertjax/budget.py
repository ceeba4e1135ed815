"""Amounts of memory: as people write them, what this process holds, what is free, and what may still be taken."""

import math
import re
from pathlib import Path

from bertjax import arguments
from bertjax.errors import InputError

# Of what is free, when the user gives no budget.
SHARE = 0.8
UNKNOWN = 2**62  # bytes, where the system does not say
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_bytes(text: str) -> int:
    """Bytes from '8GB', '500 MB' or a plain number.

    Raises:
        InputError: it is none of these, nothing, or more than any machine has.

    >>> parse_bytes("1.5GB")
    1500000000
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)B?\s*", text, re.IGNORECASE | re.ASCII)
    size = math.nan if found is None else float(found[1]) * UNITS[found[2].upper()]
    if not 1 <= size <= UNKNOWN:
        raise InputError(f"{text[:40]!r} is no amount of memory: write 8GB or 500MB")
    return int(size)


def read_budget(memory: int | str | None) -> int | None:
    """An amount of memory as bytes, whether given as bytes or in words ('4GB'); None for no limit.

    Raises:
        InputError: it is neither.
    """
    if memory is None:
        return None
    return parse_bytes(memory) if isinstance(memory, str) else arguments.whole_number(memory, "memory", 1)


def format_bytes(count: int | float) -> str:
    """Bytes for people, in decimal units.

    >>> format_bytes(1_540_000_000)
    '1.54 GB'
    """
    for unit, digits in (("TB", 12), ("GB", 9), ("MB", 6), ("kB", 3)):
        if count >= 10**digits:
            return f"{float(f'{count / 10**digits:.3g}'):,g} {unit}"
    return f"{count:.0f} bytes"


def resident_memory() -> int:
    """Bytes that are resident of this process; 0 where the system does not say."""
    return _kilobytes(Path("/proc/self/status"), "VmRSS") or 0


def peak_resident(process: int | None = None) -> int | None:
    """The most bytes that were resident of a process, by default this one; None where the system does not say."""
    return _kilobytes(Path(f"/proc/{process or 'self'}/status"), "VmHWM")


def free_memory() -> int:
    """Bytes that are free beside the accelerator's; a very large number where the system does not say."""
    available = _kilobytes(Path("/proc/meminfo"), "MemAvailable")
    return min((size for size in (available, _free_in_group()) if size is not None), default=UNKNOWN)


def room(budget: int | None = None) -> int:
    """Bytes that this process may still take.

    Args:
        budget: bytes that it may hold; None for most of what is free.
    """
    if budget is None:
        return int(SHARE * free_memory())
    return max(0, budget - resident_memory())


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
