"""This machine: its memory, the cache of compiled programs, installed packages, and the shard of a scheduler."""

import hashlib
import math
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from filelock import FileLock

from bertjax import arguments
from bertjax.errors import InputError, MissingDependencyError

# The default budget, as a share of free memory.
SHARE = 0.8
UNKNOWN = 2**62  # bytes, if the system does not report it
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
LARGEST = 2 * 1024**3  # bytes of cached programs; the least recently used are removed first
AUTO = "auto"
# Environment variables of schedulers: index of this job, number of jobs, first index.
SCHEDULERS = {
    "a Slurm array": ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ""),
    "a Kubernetes Job": ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", ""),
    "Slurm": ("SLURM_PROCID", "SLURM_NTASKS", ""),
}


def parse_bytes(text: str) -> int:
    """Bytes from '8GB', '500 MB' or a plain number.

    Args:
        text: an amount with a unit (B, kB, MB, GB ...), or a number of bytes.

    Raises:
        InputError: not an amount of memory, or more than any machine has.

    >>> parse_bytes("1.5GB")
    1500000000
    """
    matched = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)B?\s*", text, re.IGNORECASE | re.ASCII)
    size = math.nan if matched is None else float(matched[1]) * UNITS[matched[2].upper()]
    if not 1 <= size <= UNKNOWN:
        raise InputError(f"{text[:40]!r} is not an amount of memory: write 8GB or 500MB")
    return int(size)


def read_budget(memory: int | str | None) -> int | None:
    """An amount of memory in bytes, from an int or a str such as '4GB'; None for no limit.

    Args:
        memory: an amount of memory.

    Raises:
        InputError: any other value.
    """
    if memory is None:
        return None
    return parse_bytes(memory) if isinstance(memory, str) else arguments.check_int(memory, "memory", 1)


def resident_memory() -> int:
    """Resident bytes of this process; 0 if the system does not report them."""
    return _kilobytes(Path("/proc/self/status"), "VmRSS") or 0


def peak_resident(process: int | None = None) -> int | None:
    """Peak resident bytes of a process, by default this one; None if the system does not report them.

    Args:
        process: the id of the process.
    """
    return _kilobytes(Path(f"/proc/{process or 'self'}/status"), "VmHWM")


def free_memory() -> int:
    """Free bytes of host memory; `UNKNOWN` if the system does not report them."""
    available = _kilobytes(Path("/proc/meminfo"), "MemAvailable")
    return min((size for size in (available, _free_in_group()) if size is not None), default=UNKNOWN)


def memory_left(budget: int | None = None) -> int:
    """Bytes that this process may still allocate.

    Args:
        budget: the limit of resident bytes; None for `SHARE` of free memory.
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
    """Free bytes within the limit of a container (cgroup v2); None without a limit."""
    try:
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text().strip() for name in ("max", "current"))
        return None if limit == "max" else max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return None


def use_compile_cache(directory: str | Path | None = None) -> Path | None:
    """Cache compiled programs on disk, so that a sweep of known shapes starts without compilation.

    This changes `jax.config` for the whole process. The commands of bertjax call it; its functions do not. A cache that
    is already set (`jax_compilation_cache_dir`, `JAX_COMPILATION_CACHE_DIR`) is not changed.

    Args:
        directory: parent of a folder for this kind of machine; by default in the user's cache directory.

    Returns: the directory in use; None if it cannot be written.
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    configured = getattr(jax.config, "jax_compilation_cache_dir", None)
    if configured:
        return Path(configured)
    try:
        parent = _user_cache() / "bertjax" / "compiled" if directory is None else Path(directory).expanduser()
        directory = parent / _machine()
        str(directory).encode()  # XLA takes no other name
        directory.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(directory)
    except (OSError, RuntimeError, ValueError):
        return None  # no cache: the home directory is missing or read-only, or its name is not UTF-8
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_compilation_cache_max_size", LARGEST)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # JAX looks for a cache only once, at the first compilation
    return directory


def _remove_unfinished(directory: Path) -> None:
    """Remove entries that a killed process left incomplete, which fail in every later run.

    JAX writes an entry under its final name, and then, in a cache of limited size, the time of its use.

    Raises:
        OSError: the directory cannot be written, or another process holds its lock.
    """
    with FileLock(directory / ".lockfile", timeout=10):  # JAX's own
        for entry in directory.glob("*-cache"):
            if not entry.with_name(entry.name.removesuffix("cache") + "atime").exists():
                entry.unlink()


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _machine() -> str:
    """Architecture and instruction sets of this CPU: machines that share a home directory may differ in them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()}-{hashlib.sha256(flags.encode()).hexdigest()[:8]}"


def package_version(name: str) -> str:
    """The version of a package, or 'not installed'.

    Args:
        name: the name of the package in its registry.
    """
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def import_pandas() -> ModuleType:
    """The package pandas.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise MissingDependencyError("to_pandas needs pandas, which is not installed: pip install pandas") from None
    return pandas


def parse_shard(text: str) -> tuple[int, int]:
    """Index (from 1) and count of a shard.

    Args:
        text: index and count, such as '3/16'.

    Raises:
        InputError: not a shard.

    >>> parse_shard("3/16")
    (3, 16)
    """
    matched = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text, re.ASCII)
    number, count = (0, 0) if matched is None else (int(matched[1]), int(matched[2]))
    if not 1 <= number <= count:
        raise InputError(f"{text[:40]!r} is not a shard: write 3/16 for the third of sixteen, or {AUTO}")
    return number, count


def find_shard() -> tuple[int, int]:
    """Index and count of the shard of this job, from Slurm, Open MPI, Kubernetes or a TPU pod.

    Raises:
        InputError: none of these defines a shard.
    """
    for scheduler, (index, count, first) in SCHEDULERS.items():
        if index in os.environ:
            values = [os.environ.get(name, "") if name else "0" for name in (index, count, first)]
            if not all(re.fullmatch(r"\d{1,9}", value, re.ASCII) for value in values):
                expected = ", ".join(name for name in (index, count, first) if name)
                raise InputError(f"--shard {AUTO}: {scheduler} must set {expected} to numbers, found {values}")
            own, size, least = map(int, values)
            last = int(os.environ.get("SLURM_ARRAY_TASK_MAX", least + size - 1)) if first else size - 1
            if least > 1 or last != least + size - 1:
                raise InputError(
                    f"--shard {AUTO} needs a Slurm array of consecutive ids from 0 or 1: give --shard 3/16"
                )
            return parse_shard(f"{own - least + 1}/{size}")
    pod = _host_of_pod()
    if pod is not None:
        return pod
    names = ", ".join(index for index, *_ in SCHEDULERS.values())
    raise InputError(f"--shard {AUTO} found no {names} and no TPU pod: give the shard, such as --shard 3/16")


def _host_of_pod() -> tuple[int, int] | None:
    """Index (from 1) and count of this host in a TPU pod; None elsewhere."""
    import jax

    if not jax.distributed.is_initialized():
        if find_spec("libtpu") is None:
            return None
        try:
            jax.distributed.initialize()
        except (ValueError, RuntimeError):  # no pod, or the backend is already initialized
            return None
    return jax.process_index() + 1, jax.process_count()
