"""The engine's side of `benchmarks.tasks`, in a process of its own, so that what it holds is the sweep's alone."""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import bertjax
from bertjax.data import Tokenizer
from bertjax.engine import Estimate, plan_sweep
from bertjax.interventions import Ablation, single_heads
from bertjax.jobs import sweep_examples
from bertjax.machine import peak_resident
from bertjax.models import PretrainedModel
from bertjax.tasks import EncodedDataset, encode_examples, load_examples


@dataclass(frozen=True)
class Job:
    """What is swept.

    Args:
        directory: a checkpoint with a masked-LM head, and its tokenizer.
        task: `minimal-pairs` or `mlm`.
        data: its examples; None for those that come with bertjax.
        examples: how many of them are drawn.
    """

    directory: Path
    task: str
    data: Path | None
    examples: int

    def encode(self, model: PretrainedModel) -> EncodedDataset:
        """The examples as the model reads them."""
        examples = load_examples(self.task, data=self.data, limit=self.examples, seed=0)
        return encode_examples(model, Tokenizer.from_pretrained(self.directory), examples)

    def ablations(self, model: PretrainedModel) -> list[Ablation]:
        """Every head by itself, zero."""
        return single_heads(model.config, "zero")


@dataclass(frozen=True)
class Swept:
    """One sweep.

    Args:
        seconds: that it took.
        processor: seconds of all threads, which other jobs do not lengthen.
        base, outputs: of the base and of all ablations, as metrics read them.
    """

    seconds: float
    processor: float
    base: np.ndarray
    outputs: np.ndarray


def plan(pipe: Connection, job: Job) -> None:
    """Send the `Estimate`, as `bertjax plan` makes it."""
    model = bertjax.load(job.directory)
    encoded = job.encode(model)
    texts, readout, at = encoded.texts, encoded.read_form.readout, encoded.at
    pipe.send(plan_sweep(model, texts, job.ablations(model), readout, at=at, targets=encoded.targets))


def serve(pipe: Connection, job: Job) -> None:
    """Compile, then send a `Swept` for each `True` received, and for a `False` the most bytes that were resident."""
    model = bertjax.load(job.directory)
    encoded, ablations = job.encode(model), job.ablations(model)
    first = model.config.num_hidden_layers - 2
    sweep_examples(model, encoded, [ablation for ablation in ablations if ablation.changes[0].layer >= first])
    pipe.send(True)
    while pipe.recv():
        before = time.process_time()
        result = sweep_examples(model, encoded, ablations)
        pipe.send(Swept(result.seconds, time.process_time() - before, result.base, result.outputs))
    pipe.send(peak_resident())


@contextmanager
def started(work: Callable[[Connection, Job], None], job: Job) -> Iterator[Connection]:
    """A process that does some work; it ends with the context. Raises `EOFError` on reading where it broke off."""
    spawning = multiprocessing.get_context("spawn")
    pipe, other = spawning.Pipe()
    process = spawning.Process(target=work, args=(other, job), daemon=True)
    process.start()
    other.close()  # else nobody would notice that the process has ended
    try:
        yield pipe
    finally:
        pipe.close()
        process.join()


def ask_plan(job: Job) -> Estimate:
    """What `bertjax plan` says of a job."""
    with started(plan, job) as pipe:
        estimate: Any = pipe.recv()
    assert isinstance(estimate, Estimate)
    return estimate
