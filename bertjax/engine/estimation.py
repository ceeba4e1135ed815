"""What a sweep will cost, before it runs: work, memory, and time from the measured rate of this device."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from bertjax import arguments
from bertjax.data import Tokenizer
from bertjax.engine.blocks import BlockRunner, Blocks, Slot, Step
from bertjax.engine.costs import Cost, Work, flops, price
from bertjax.engine.examples import Examples, read_texts
from bertjax.engine.memory import memory_in_use
from bertjax.engine.run import choose_sizes, make_runner, runner_bytes
from bertjax.engine.sweep_input import Combine, make_job
from bertjax.interventions import Ablation, Readout
from bertjax.machine import read_budget, use_compile_cache
from bertjax.model import PretrainedModel

TIMED_STEPS = 5


@dataclass(frozen=True)
class Estimate:
    """The price of a sweep on this device.

    Args:
        cost: operations, and runs with hidden states of their own.
        ablations, duplicates: how many sets there are, and how many of them are run with another.
        examples, tokens: how many.
        rows, row_length, filled: of the packing; the share of slots that hold a token.
        blocks: the pieces in which it is computed.
        peak_bytes: resident memory (of the process, or of an accelerator) at most.
        output_bytes: of all outputs.
        rate: operations a second, measured with one layer.
        seconds, plain_seconds: what the sweep, and a full pass for each ablation, take at that rate; compilation and
            loading come on top.
    """

    cost: Cost
    ablations: int
    duplicates: int
    examples: int
    tokens: int
    rows: int
    row_length: int
    filled: float
    blocks: Blocks
    peak_bytes: int
    output_bytes: int
    rate: float
    seconds: float
    plain_seconds: float


def estimate(
    model: PretrainedModel,
    examples: Examples,
    ablations: Sequence[Ablation],
    readout: Readout,
    *,
    combine: Combine | None = None,
    memory: int | str | None = None,
    attention: str = "auto",
    tokenizer: Tokenizer | None = None,
) -> Estimate:
    """What `bertjax.sweep` would cost with the same arguments; one layer is run to measure the device's rate.

    Raises:
        InputError: examples that do not fit the model, or too little memory.
        OverrideError: a head that the model does not have.
    """
    use_compile_cache()
    arguments.instance(model, "model", PretrainedModel, "a model of bertjax (bertjax.load)")
    examples = read_texts(examples, tokenizer)
    zeros = np.zeros((model.config.num_hidden_layers, model.config.num_attention_heads, model.config.head_dim))
    means = zeros.astype(model.numerics.wide)
    given: dict[str, Any] = {"combine": combine, "means": means, "donors": examples, "attention": attention}
    job = make_job(model, examples, ablations, readout, **given)
    config, sizes = model.config, choose_sizes(job, memory=read_budget(memory))
    blocks, row_length, runner = Blocks(sizes["rows"], sizes["runs"]), sizes["row_length"], make_runner(job, sizes)
    packed, texts, plan = runner.packed, job.texts, job.plan
    lengths = [len(text) for several in texts for text in several]
    cost = price(plan, config, blocks, packed.rows, row_length, lengths, runner.first_only)
    rate = measure_rate(runner)
    return Estimate(
        cost,
        *(len(ablations), plan.duplicates, len(texts), sum(lengths)),
        *(packed.rows, row_length, packed.filled, blocks),
        *(memory_in_use() + runner_bytes(runner, job) + 2 * job.output_bytes, job.output_bytes),
        *(rate, cost.flops / rate, cost.plain / rate),
    )


def measure_rate(runner: BlockRunner) -> float:
    """Operations a second of the first layer on one block: a median."""
    root, runs, row_length = runner.plan.root, runner.blocks.runs, runner.packed.row_length
    block = runner.embed([0] * runs)
    steps = [Step(Slot(block, index, root, 0), root, ()) for index in range(runs)]
    seconds = []
    for _ in range(TIMED_STEPS + 1):
        started = time.perf_counter()
        runner.advance(0, steps).block_until_ready()
        seconds.append(time.perf_counter() - started)
    tokens = float(runs * runner.blocks.rows * row_length)
    work = Work(last_full=1) if runner.is_short(0) else Work(full=1)
    return flops(work, runner.config, tokens, row_length, runs * runner.blocks.rows) / median(seconds[1:])
