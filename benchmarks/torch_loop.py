"""Do the ablated scores equal those of a loop in PyTorch, and how long does each take?

Every head of the default model is disabled on pairs of a task (STS-B by default), once by `bertjax` and once by a
loop over `transformers` with a patched eager attention, sorted by length, batch 32. Prints the largest difference
of a score over all heads, the largest difference of a similarity, and the ratio of the times.

    python -m benchmarks.torch_loop --data GLUE_DIR --limit 300        about 5 minutes on two CPU cores
"""

import argparse
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import bertjax
from benchmarks.common import describe_machine
from bertjax.checkpoints import DEFAULT_MODEL, BertConfig, locate
from bertjax.engine import SweepResult
from bertjax.interventions import overrides, single_heads
from bertjax.jobs import sweep_examples, torch_reference
from bertjax.models import PretrainedModel
from bertjax.statistics import score
from bertjax.tasks import (
    EncodedDataset,
    batch_encodings,
    cosine,
    encode_examples,
    load_examples,
    metrics_of,
    positive_label,
)

BATCH = 32


def torch_similarities(
    reference: Any, config: BertConfig, encoded: EncodedDataset, head: tuple[int, int] | None, mode: str
) -> np.ndarray:
    """Cosine similarities of all pairs, mean pooling, in PyTorch; one head disabled, or none."""
    vectors = np.zeros((len(encoded.encodings), reference.config.hidden_size), np.float32)
    for indices, inputs in batch_encodings(encoded, range(len(encoded.encodings)), BATCH, 512):
        real = inputs["attention_mask"].astype(bool)
        if head is None:
            hidden = torch_reference.run_torch(reference, inputs).last_hidden_state.numpy()
        else:
            with torch_reference.overridden_head(reference, config, head, mode, real):
                hidden = torch_reference.run_torch(reference, inputs).last_hidden_state.numpy()
        vectors[list(indices)] = (hidden * real[..., None]).sum(1) / real.sum(1, keepdims=True)
    return cosine(*np.split(vectors, 2))


def run_both(
    model: PretrainedModel, reference: Any, encoded: EncodedDataset, mode: str
) -> tuple[SweepResult, SweepResult, float, float]:
    """Outputs and seconds of both sides."""
    heads = overrides.every_head(model.config)
    start = time.perf_counter()
    ours = sweep_examples(model, encoded, single_heads(model.config, mode))
    middle = time.perf_counter()
    base, *ablated = (torch_similarities(reference, model.config, encoded, head, mode) for head in (None, *heads))
    theirs = SweepResult(base, np.stack(ablated))
    return ours, theirs, middle - start, time.perf_counter() - middle


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--task", default="stsb")
    parser.add_argument("--data", help="GLUE directory")
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument("--mode", default="uniform", choices=["uniform", "zero"])
    options = parser.parse_args()
    directory = locate(DEFAULT_MODEL)
    model = bertjax.load(directory)
    examples = load_examples(options.task, data=options.data, limit=options.limit, seed=0)
    encoded = encode_examples(model, bertjax.Tokenizer.from_pretrained(directory), examples)
    ours, theirs, our_time, their_time = run_both(
        model, torch_reference.load_torch(model, directory), encoded, options.mode
    )
    table = Table(title=f"{options.task}, {len(examples)} pairs, mode {options.mode}; {describe_machine()}")
    for name in ("metric", "base here", "base PyTorch", "largest difference of a head's score"):
        table.add_column(name, justify="right")
    for metric in metrics_of(encoded.form, examples.task):
        positive = positive_label(encoded.form, examples.task)
        scores = [score(metric, swept.outputs, examples.labels, positive) for swept in (ours, theirs)]
        bases = [score(metric, swept.base[None], examples.labels, positive)[0] for swept in (ours, theirs)]
        table.add_row(metric.name, *(f"{base:.6f}" for base in bases), f"{np.abs(scores[0] - scores[1]).max():.1e}")
    Console().print(table)
    difference = max(np.abs(ours.outputs - theirs.outputs).max(), np.abs(ours.base - theirs.base).max())
    print(f"largest difference of one of {ours.outputs.shape[0] + 1} x {len(examples)} similarities: {difference:.1e}")
    ratio = their_time / our_time
    print(f"bertjax {our_time:.0f} s with compilation, PyTorch loop {their_time:.0f} s: {ratio:.2f} times")


if __name__ == "__main__":
    main()
