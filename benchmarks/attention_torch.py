"""The PyTorch side of `attention_statistics.py`, in a process of its own that imports no JAX.

Eager attention with `output_attentions=True`; statistics of each batch at once, its maps then let go. Sorted by length,
or as the authors of the paper do it: one example at a time, padded to 200. Each line on standard input, the name of a
statistic, is answered by a line with the seconds that it took; values go to a file.
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
    """4.3: cosine similarities of two models' maps `[batch, heads, query, key]` of a layer, own and other heads."""
    one, other = ((maps * real[:, None, :, None]).flatten(2) for maps in (base, tuned))
    cosines = (one @ other.transpose(1, 2)) / (one.norm(dim=-1)[:, :, None] * other.norm(dim=-1)[:, None])
    own = cosines.diagonal(dim1=1, dim2=2)
    return torch.stack([own, (cosines.sum(-1) - own) / (cosines.shape[-1] - 1)], dim=1)


def feature_columns(maps: torch.Tensor, real: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """4.4: the largest column mean over the real queries among each feature's tokens, of a layer."""
    means = (maps * real[:, None, :, None]).sum(2) / real.sum(-1)[:, None, None]
    return torch.where(masks[:, :, None], means[:, None], 0.0).amax(-1)


def run_statistic(
    name: str, models: list[Any], inputs: dict[str, np.ndarray], batches: list[tuple[np.ndarray, int]]
) -> np.ndarray:
    """A statistic of every example, `[examples, ..., layers, heads]`."""
    found: Any = None
    for places, width in batches:
        ids = torch.from_numpy(inputs["ids"][places, :width]).long()
        real = (torch.arange(width)[None] < torch.from_numpy(inputs["lengths"][places])[:, None]).float()
        with torch.inference_mode():
            every = [model(input_ids=ids, attention_mask=real.long(), output_attentions=True) for model in models]
            several = [output.attentions for output in every]
            if name == "4.3":
                layers = [compare_maps(one, other, real) for one, other in zip(*several, strict=True)]
            else:
                masks = torch.from_numpy(inputs["masks"][places, :, :width])
                layers = [feature_columns(maps, real, masks) for maps in several[0]]
            values = torch.stack(layers, dim=2).numpy()
        found = np.zeros((len(inputs["ids"]), *values.shape[1:]), np.float32) if found is None else found
        found[places] = values
    return found


def make_batches(lengths: np.ndarray, size: int, padded: int) -> list[tuple[np.ndarray, int]]:
    """Places and width of each batch: sorted by length, or the first `padded` examples alone at full width."""
    if padded:
        return [(np.array([place]), PADDED) for place in range(padded)]
    order = np.argsort(lengths, kind="stable")
    cut = [order[start : start + size] for start in range(0, len(order), size)]
    return [(places, int(lengths[places].max())) for places in cut]


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
