"""The sweep as its rivals do it in PyTorch: one pass for each head, or all masks at once with `torch.func.vmap`.

A rival's passes cost the same whichever head is disabled, so some are timed and scaled to all. The timed passes of
`torch_rival` disable no head: a head mask costs a rival nothing worth counting.
"""

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForSequenceClassification
from transformers.utils import logging

from bertjax import BertConfig, collate
from bertjax.data import Encoding

PADDED, BATCH = 128, 32
# PyTorch's device: a GPU only where JAX has one too.
DEVICE = "cuda" if torch.cuda.is_available() and jax.default_backend() == "gpu" else "cpu"
# Of its loop over texts sorted by length: which is fastest depends on the device.
TORCH_BATCHES = (8, 32) if DEVICE == "cpu" else (32, 128, 408)


@dataclass
class Rival:
    """A way of doing the whole sweep.

    Args:
        name: for the table.
        timed: how many of all runs one call of `run` times.
        run: performs that many and returns the seconds that all would take.
        warm: whatever must be done once beforehand.
    """

    name: str
    timed: int
    run: Callable[[], float]
    warm: Callable[[], Any] = lambda: None


def wait() -> None:
    """Wait until PyTorch's GPU, if any, has finished."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def torch_batches(examples: Sequence[Encoding], size: int, width: int | None) -> list[dict[str, torch.Tensor]]:
    """Batches in order and padded to `width`, or sorted by length and padded to the longest text of each batch."""
    ordered = examples if width else sorted(examples, key=len)
    chunks = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    return [
        {name: torch.as_tensor(array).long().to(DEVICE) for name, array in collate(chunk, width).items()}
        for chunk in chunks
    ]


def torch_rival(
    name: str,
    directory: Path,
    attention: str,
    dtype: torch.dtype,
    batches: list[dict[str, Any]],
    *,
    runs: int,
    timed: int,
) -> Rival:
    """`transformers`' model, one pass for each run."""
    model = AutoModelForSequenceClassification.from_pretrained(directory, attn_implementation=attention, dtype=dtype)
    model.eval().to(DEVICE)
    taken = inspect.signature(model.forward).parameters
    batches = [{name: array for name, array in batch.items() if name in taken} for batch in batches]

    def run() -> float:
        started = time.perf_counter()
        with torch.inference_mode():
            for _ in range(timed):
                for batch in batches:
                    model(**batch)
            wait()
        return (time.perf_counter() - started) / timed * runs

    return Rival(f"{name} ({DEVICE})", timed, run)


def vmap_rival(directory: Path, batches: list[dict[str, Any]], runs: int, timed: int) -> Rival:
    """`torch.func.vmap` of a masked model over a stack of head masks."""
    masks: list[torch.Tensor] = []

    def masked(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **rest: Any) -> Any:
        scores = query @ key.transpose(2, 3) * scaling
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        outputs = weights @ value * masks[0][module.layer_idx][None, :, None, None]
        return outputs.transpose(1, 2), weights

    AttentionInterface.register("masked", masked)
    model = AutoModelForSequenceClassification.from_pretrained(directory, attn_implementation="masked").eval()
    model.to(DEVICE)
    config = model.config
    stack = torch.ones(timed, config.num_hidden_layers, config.num_attention_heads, device=DEVICE)
    for number in range(timed):
        stack[number, number // config.num_attention_heads, number % config.num_attention_heads] = 0

    def run_masked(mask: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        masks[:] = [mask]
        keep = batch["attention_mask"][:, None, None].to(mask.dtype)
        return model(**{**batch, "attention_mask": (1 - keep) * -1e9}).logits

    def run() -> float:
        started = time.perf_counter()
        with torch.no_grad():
            for batch in batches:
                torch.func.vmap(run_masked, in_dims=(0, None))(stack, batch)
            wait()
        return (time.perf_counter() - started) / timed * runs

    return Rival(f"torch.func.vmap, batch 8 ({DEVICE})", timed, run)


def make_checkpoint(directory: Path, config: BertConfig) -> None:
    """A random checkpoint of these sizes; speed does not depend on the weights."""
    logging.disable_progress_bar()
    torch.manual_seed(0)
    settings = AutoConfig.for_model(**config.to_dict())
    AutoModelForSequenceClassification.from_config(settings).eval().save_pretrained(directory)
