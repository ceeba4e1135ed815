"""The PyTorch side of `attention_statistics.py`, in its own process without JAX.

Eager attention with `output_attentions=True`; the statistics of each batch are computed at once and its maps released.
Sorted by length, or as the authors of the paper do it: one example at a time, padded to 200. Each line on standard
input names a statistic; the answer is a line with the seconds it took. Values go to a file.
"""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertModel
from transformers.utils import logging

PADDED = 200


def compare_maps(base: torch.Tensor, tuned: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """4.3: cosine similarities of two models' maps `[batch, heads, query, key]` of a layer, to own and other heads."""
    base_maps, tuned_maps = ((maps * real[:, None, :, None]).flatten(2) for maps in (base, tuned))
    cosines = (base_maps @ tuned_maps.transpose(1, 2)) / (
        base_maps.norm(dim=-1)[:, :, None] * tuned_maps.norm(dim=-1)[:, None]
    )
    own = cosines.diagonal(dim1=1, dim2=2)
    return torch.stack([own, (cosines.sum(-1) - own) / (cosines.shape[-1] - 1)], dim=1)


def feature_columns(maps: torch.Tensor, real: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """4.4: the largest column mean, over the real queries, among each feature's tokens, for one layer."""
    means = (maps * real[:, None, :, None]).sum(2) / real.sum(-1)[:, None, None]
    return torch.where(masks[:, :, None], means[:, None], 0.0).amax(-1)


def run_statistic(
    name: str, models: list[Any], inputs: dict[str, np.ndarray], batches: list[tuple[np.ndarray, int]]
) -> np.ndarray:
    """A statistic of every example, `[examples, ..., layers, heads]`."""
    result: Any = None
    for indices, width in batches:
        ids = torch.from_numpy(inputs["ids"][indices, :width]).long()
        real = (torch.arange(width)[None] < torch.from_numpy(inputs["lengths"][indices])[:, None]).float()
        with torch.inference_mode():
            outputs = [model(input_ids=ids, attention_mask=real.long(), output_attentions=True) for model in models]
            attentions = [output.attentions for output in outputs]
            if name == "4.3":
                layers = [compare_maps(base, tuned, real) for base, tuned in zip(*attentions, strict=True)]
            else:
                masks = torch.from_numpy(inputs["masks"][indices, :, :width])
                layers = [feature_columns(maps, real, masks) for maps in attentions[0]]
            values = torch.stack(layers, dim=2).numpy()
        result = np.zeros((len(inputs["ids"]), *values.shape[1:]), np.float32) if result is None else result
        result[indices] = values
    return result


def make_batches(lengths: np.ndarray, size: int, padded: int) -> list[tuple[np.ndarray, int]]:
    """Indices and width of each batch: sorted by length, or the first `padded` examples one by one at full width."""
    if padded:
        return [(np.array([index]), PADDED) for index in range(padded)]
    order = np.argsort(lengths, kind="stable")
    chunks = [order[start : start + size] for start in range(0, len(order), size)]
    return [(indices, int(lengths[indices].max())) for indices in chunks]


def main() -> None:
    """Answer lines of standard input."""
    folder, threads, size, padded = Path(sys.argv[1]), *(int(number) for number in sys.argv[2:5])
    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    inputs = dict(np.load(folder / "inputs.npz"))
    models = [
        BertModel.from_pretrained(folder / name, attn_implementation="eager").eval() for name in ("base", "tuned")
    ]
    batches = make_batches(inputs["lengths"], size, padded)
    for line in sys.stdin:
        name = line.strip()
        started = time.perf_counter()
        values = run_statistic(name, models if name == "4.3" else models[:1], inputs, batches)
        seconds = time.perf_counter() - started
        np.save(folder / f"{'padded' if padded else f'sorted-{size}'}-{name}.npy", values)
        print(seconds, flush=True)


if __name__ == "__main__":
    main()
