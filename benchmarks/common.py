"""Shared by the benchmarks: the machine they run on, their inputs, and a clock for jobs that take turns."""

import importlib.util
import json
import platform
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.checkpoints import BertConfig
from bertjax.data import Encoding

K = TypeVar("K", bound=Hashable)
SIZES: dict[str, dict[str, Any]] = {
    "base": {},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
}
# What config.json says of well-known models of other families.
_PRETRAINED = {"type_vocab_size": 1, "max_position_embeddings": 514, "layer_norm_eps": 1e-5}
_DEBERTA: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
_DEBERTA |= {"relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True}
_ALBERT = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
FAMILY_SIZES: dict[str, dict[str, Any]] = {
    "roberta-base": {"model_type": "roberta", **_PRETRAINED},
    "distilbert-base": {"model_type": "distilbert"},
    "electra-base": {"model_type": "electra", "embedding_size": 768, **_ALBERT},
    "mpnet-base": {"model_type": "mpnet", "max_position_embeddings": 514, "layer_norm_eps": 1e-5},
    "albert-base": {"model_type": "albert", **_ALBERT},
    "deberta-v3-base": {
        **{"model_type": "deberta-v2", "pos_att_type": "p2c|c2p", "position_biased_input": False, "type_vocab_size": 0},
        **_DEBERTA,
    },
    "modernbert-base": {"model_type": "modernbert"},
}
TASKS = ("mrpc", "qnli")


def config_of(size: str, **changes: Any) -> BertConfig:
    """The config of a size, with what is changed in it by `BertConfig`'s names."""
    settings = {"model_type": "bert", **SIZES[size]} if size in SIZES else FAMILY_SIZES[size]
    return replace(BertConfig.from_dict(settings), **changes)


def describe_machine() -> str:
    """Device, what it has for matrix products, and versions, in one line."""
    device = jax.devices()[0]
    present = [name for name in ("jax", "jaxlib", "flax", "numpy", "torch") if importlib.util.find_spec(name)]
    names = ", ".join(f"{name} {version(name)}" for name in present)
    kind = f"{device.device_kind}, {platform.machine()}{_instructions() if device.platform == 'cpu' else ''}"
    return f"{device.platform} {kind}, Python {platform.python_version()}, {names}"


def _instructions() -> str:
    """What a CPU has for matrix products beyond those of all, as Linux says; nothing elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    flags = {flag for line in lines if line.startswith("flags") for flag in line.partition(":")[2].split()}
    names = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX-512 BF16", "amx_bf16": "AMX BF16"}
    found = [name for flag, name in names.items() if flag in flags]
    return f" with {', '.join(found)}" if found else ""


def matmul_rate(dtype: str = "float32", repeats: int = 20) -> float:
    """FLOP/s of a large product of random matrices in the form that the engine uses: the best of several.

    In half precision its sums are float32, and on a CPU what it returns too: there a product that returns bfloat16
    takes another path, without the CPU's own instructions.
    """
    size = 2048 if jax.default_backend() == "cpu" else 8192
    returned = "float32" if jax.default_backend() == "cpu" else dtype
    square = jax.random.normal(jax.random.key(0), (size, size)).astype(dtype)
    precision = "highest" if dtype == "float32" else "default"
    options: dict[str, Any] = {"precision": precision, "preferred_element_type": returned}
    product = jax.jit(lambda left, right: jnp.matmul(left, right, **options))
    best = float("inf")
    for _ in range(repeats + 1):
        started = time.perf_counter()
        product(square, square).block_until_ready()
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def draw_lengths(task: str, count: int) -> list[int]:
    """Lengths of a task's validation pairs in word pieces of bert-base-uncased, drawn with seed 0."""
    lengths = json.loads((Path(__file__).parent / "lengths.json").read_text())[task]
    return np.random.default_rng(0).choice(lengths, count, replace=count > len(lengths)).tolist()


def random_examples(lengths: Sequence[int], vocabulary: int) -> list[Encoding]:
    """Texts of random tokens."""
    rng = np.random.default_rng(0)
    texts = [tuple(rng.integers(0, vocabulary, length).tolist()) for length in lengths]
    return [Encoding(ids, (0,) * len(ids), ("",) * len(ids), ((0, 0),) * len(ids), False) for ids in texts]


def time_in_turns(jobs: Mapping[K, Callable[[], Any]], rounds: int) -> dict[K, float]:
    """Median seconds of each job; in each round all take their turn, and the first, which compiles, does not count."""
    seconds: dict[K, list[float]] = {name: [] for name in jobs}
    for number in range(rounds + 1):
        for name, run in jobs.items():
            started = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(taken) for name, taken in seconds.items()}
