"""Attention of the kept examples, small enough for a page: in steps of 1/255, compressed, the first that fit."""

import base64
import gzip
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from bertjax.results.directory import SavedResults

BUDGET = 3_000_000  # characters


def pack_attention(saved: SavedResults, budget: int = BUDGET) -> dict[str, Any]:
    """Tokens and weights of the kept examples, base and ablated.

    An ablated run is kept from the first layer in which it differs on: below, it is the base.

    Returns: `runs`: names, the base first; `first_layers`: of each run; `kept`: how many examples there are in the
        files; `samples`: for each example its number, and for each of its texts tokens and packed weights
        `[layers, heads, query, key]` of all runs, one after another; none where `attention.npz` is missing.
    """
    if not saved.has_attention:
        return {"runs": ["base"], "first_layers": [0], "kept": 0, "samples": []}
    arrays = saved.attention
    numbers, runs = arrays["examples"].tolist(), arrays["runs"].tolist()
    first_layers = [0] * len(runs)
    for run in range(1, len(runs)):
        same = [
            (arrays[name][run] == arrays[name][0]).all(axis=(1, 2, 3)) for name in arrays if name.startswith("weights_")
        ]
        first_layers[run] = int(np.argmin(np.append(np.all(same, axis=0), False)))
    samples: list[dict[str, Any]] = []
    for sample, number in enumerate(numbers):
        packed = {"example": number, "texts": []}
        for text in range(saved.texts):
            weights = arrays[f"weights_{sample}_{text}"]
            parts = [_bytes(weights[run, first:]) for run, first in enumerate(first_layers)]
            tokens = [str(token) for token in arrays[f"tokens_{sample}_{text}"]]
            packed["texts"].append({"tokens": tokens, "weights": _pack(b"".join(parts))})
        size = sum(len(one["weights"]) for one in packed["texts"])
        if samples and size > budget:
            break
        budget -= size
        samples.append(packed)
    return {"runs": runs, "first_layers": first_layers, "kept": len(numbers), "samples": samples}


def _bytes(weights: Float[np.ndarray, "layers heads query key"]) -> bytes:
    steps: UInt8[np.ndarray, "layers heads query key"] = np.round(255 * weights).clip(0, 255).astype(np.uint8)
    return steps.tobytes()


def _pack(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()
