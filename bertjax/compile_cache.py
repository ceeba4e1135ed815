"""Compiled steps are kept between processes, so that a sweep of known shapes begins at once."""

import hashlib
import os
import platform
from pathlib import Path

import jax
from filelock import FileLock
from jax.experimental.compilation_cache import compilation_cache

SWITCH = "BERTJAX_COMPILE_CACHE"
LARGEST = 2 * 1024**3  # bytes that are kept; what was used longest ago goes first


def use_compile_cache() -> Path | None:
    """Let JAX keep what it compiles in the user's cache directory, unless the user has chosen otherwise.

    The environment variable `BERTJAX_COMPILE_CACHE` names another directory, or is `off`. A cache that JAX has been
    given already (`jax_compilation_cache_dir`, `JAX_COMPILATION_CACHE_DIR`) stays.

    Returns: the directory in use, or None.
    """
    wanted, given = os.environ.get(SWITCH, ""), getattr(jax.config, "jax_compilation_cache_dir", None)
    if given or wanted == "off":
        return Path(given) if given else None
    try:
        directory = (Path(wanted).expanduser() if wanted else _user_cache() / "bertjax" / "compiled") / _machine()
        str(directory).encode()  # XLA takes no other name
        directory.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(directory)
    except (OSError, RuntimeError, ValueError):
        return None  # a home that is read-only, none at all, or a name that is no UTF-8 must not stop a sweep
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_compilation_cache_max_size", LARGEST)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # JAX looks for a cache once, at the first compilation, which may have been
    return directory


def _remove_unfinished(directory: Path) -> None:
    """Remove what a killed process left half-written, which JAX would stumble over in every run.

    JAX writes an entry under its final name, and then, where the cache is limited, when it was used.

    Raises:
        OSError: the directory cannot be written, or another process holds it for long.
    """
    with FileLock(directory / ".lockfile", timeout=10):  # JAX's own
        for entry in directory.glob("*-cache"):
            if not entry.with_name(entry.name.removesuffix("cache") + "atime").exists():
                entry.unlink()


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _machine() -> str:
    """What compiled code for a CPU depends on: machines that share a home directory may differ in instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()}-{hashlib.sha256(flags.encode()).hexdigest()[:8]}"
