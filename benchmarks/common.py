"""What the benchmarks share: where they ran."""

import platform
from importlib.metadata import version

import jax


def describe_machine() -> str:
    """Device and versions in one line."""
    device = jax.devices()[0]
    names = ", ".join(f"{name} {version(name)}" for name in ("jax", "flax", "numpy"))
    return f"{device.platform} {device.device_kind}, {platform.machine()}, Python {platform.python_version()}, {names}"
