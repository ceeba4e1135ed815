"""Shared by the benchmarks: the machine they run on, and their inputs."""

import importlib.util
import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax.data import Encoding

SIZES: dict[str, dict[str, Any]] = {
    "base": {},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
}
TASKS = ("mrpc", "qnli")


def describe_machine() -> str:
    """Device and versions in one line."""
    device = jax.devices()[0]
    present = [name for name in ("jax", "jaxlib", "flax", "numpy", "torch") if importlib.util.find_spec(name)]
    names = ", ".join(f"{name} {version(name)}" for name in present)
    return f"{device.platform} {device.device_kind}, {platform.machine()}, Python {platform.python_version()}, {names}"


def draw_lengths(task: str, count: int) -> list[int]:
    """Lengths of a task's validation pairs in word pieces of bert-base-uncased, drawn with seed 0."""
    lengths = json.loads((Path(__file__).parent / "lengths.json").read_text())[task]
    return np.random.default_rng(0).choice(lengths, count, replace=count > len(lengths)).tolist()


def random_examples(lengths: Sequence[int], vocabulary: int) -> list[Encoding]:
    """Texts of random tokens."""
    rng = np.random.default_rng(0)
    texts = [tuple(rng.integers(0, vocabulary, length).tolist()) for length in lengths]
    return [Encoding(ids, (0,) * len(ids), ("",) * len(ids), ((0, 0),) * len(ids), False) for ids in texts]
