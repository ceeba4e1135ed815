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
