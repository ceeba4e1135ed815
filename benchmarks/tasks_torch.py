"""The loop in PyTorch that `benchmarks.tasks` compares with: one pass for each head, texts sorted by length.

A head is disabled by zeroing its slice of the output projection, which costs a pass nothing. The vocabulary's scores
are computed at the target tokens only.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertForMaskedLM

from bertjax import collate
from bertjax.tasks import EncodedDataset, TargetPositions, TokenEncodings

Head = tuple[int, int]


@dataclass(frozen=True)
class Batch:
    """Texts of similar length.

    Args:
        numbers: which texts these are.
        inputs: what the model reads; no mask where no text is padded.
        rows, places: of the target tokens.
        words: the target words.
    """

    numbers: list[int]
    inputs: dict[str, torch.Tensor]
    rows: torch.Tensor
    places: torch.Tensor
    words: torch.Tensor


@dataclass(frozen=True)
class Loop:
    """A model in PyTorch, and its batches."""

    name: str
    model: Any
    encoded: EncodedDataset
    batches: list[Batch]

    def run(self, head: Head | None) -> np.ndarray:
        """Outputs of a run as metrics read them; a head is disabled, or none."""
        assert isinstance(self.encoded, TokenEncodings)
        positions = self.encoded.positions
        with_ranks = self.encoded.form.name == "words"
        values_of_run = np.zeros((1, *positions.at.shape, 2) if with_ranks else (1, *positions.at.shape), np.float32)
        with torch.no_grad(), without_head(self.model, head):
            for batch in self.batches:
                values = read(self.model, batch, with_ranks)
                at_targets = np.zeros_like(positions.real)
                at_targets[batch.numbers] = positions.real[batch.numbers]
                values_of_run[0][at_targets] = values[_in_order(batch)]
        return self.encoded.collect(values_of_run).outputs[0]

    def time(self, heads: Sequence[Head]) -> tuple[float, float]:
        """Seconds of a run, on average over some heads, and those of all its threads."""
        started, before = time.perf_counter(), time.process_time()
        for head in heads:
            self.run(head)
        spent = time.perf_counter() - started, time.process_time() - before
        return spent[0] / len(heads), spent[1] / len(heads)


def _in_order(batch: Batch) -> np.ndarray:
    """A batch's words in the order of its texts' numbers, and within a text as they stand."""
    return np.argsort(np.array(batch.numbers)[batch.rows.numpy()], kind="stable")


def read(model: Any, batch: Batch, with_ranks: bool) -> np.ndarray:
    """Log-probabilities of a batch's words, and their ranks."""
    hidden = model.bert(**batch.inputs).last_hidden_state
    scores = model.cls(hidden[batch.rows, batch.places])
    target_scores = scores.gather(1, batch.words[:, None])
    log_probabilities = target_scores[:, 0] - torch.logsumexp(scores, 1)
    if not with_ranks:
        return log_probabilities.numpy()
    return torch.stack([log_probabilities, (1 + (scores > target_scores).sum(1)).float()], 1).numpy()


@contextmanager
def without_head(model: Any, head: Head | None) -> Iterator[None]:
    """The model with what one head adds to the hidden states set to zero."""
    if head is None:
        yield
        return
    layer, number = head
    width = model.config.hidden_size // model.config.num_attention_heads
    kernel = model.bert.encoder.layer[layer].attention.output.dense.weight
    own = kernel.data[:, number * width : (number + 1) * width]
    kept = own.clone()
    own.zero_()
    try:
        yield
    finally:
        own.copy_(kept)


def make_batches(encoded: EncodedDataset, size: int) -> list[Batch]:
    """Texts sorted by length, each batch padded to its longest."""
    assert isinstance(encoded, TokenEncodings)
    order = np.argsort(encoded.lengths, kind="stable").tolist()
    groups = (order[start : start + size] for start in range(0, len(order), size))
    return [_batch(encoded, encoded.positions, numbers) for numbers in groups]


def _batch(encoded: EncodedDataset, positions: TargetPositions, numbers: list[int]) -> Batch:
    inputs = {
        name: torch.as_tensor(array).long()
        for name, array in collate([encoded.encodings[number] for number in numbers], None, encoded.pad_id).items()
    }
    if inputs["attention_mask"].all():
        del inputs["attention_mask"]
    real = positions.real[numbers]
    places, words = (torch.as_tensor(array[numbers][real]).long() for array in (positions.at, positions.targets))
    return Batch(numbers, inputs, torch.as_tensor(np.nonzero(real)[0]), places, words)


def make_loops(directory: Path, encoded: EncodedDataset, sizes: Sequence[int]) -> list[Loop]:
    """Eager attention and SDPA, each with batches of several sizes."""
    loops = []
    for attention in ("eager", "sdpa"):
        model = BertForMaskedLM.from_pretrained(directory, attn_implementation=attention).eval()
        for size in dict.fromkeys(min(size, len(encoded.encodings)) for size in sizes):
            loops.append(Loop(f"PyTorch {attention}, batch {size}", model, encoded, make_batches(encoded, size)))
    return loops


def choose_loop(loops: Sequence[Loop], rounds: int = 2) -> tuple[Loop, dict[str, float]]:
    """The fastest, and the seconds of a run of each: the least of several rounds, after one that is not timed."""
    seconds: dict[str, float] = {}
    for number in range(rounds + 1):
        for loop in loops:
            spent, _ = loop.time([(0, 0)])
            if number:
                seconds[loop.name] = min(spent, seconds.get(loop.name, spent))
    return min(loops, key=lambda loop: seconds[loop.name]), seconds
