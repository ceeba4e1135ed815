"""The sweep: all ablations of a plan on all examples, each hidden state computed once.

Where a run has many children in a layer, they are branched off in one step that runs attention once; a run that goes
on alone waits until a block is full, whatever other runs are in it. Full blocks of the deepest layer go first, so
that few hidden states are alive at a time.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Shaped

from bertjax.ablations import Ablation
from bertjax.blocks import BlockRunner, Readout, Slot, Step, choose_blocks
from bertjax.errors import InputError, OverrideError
from bertjax.packing import choose_row_length, pack, total_lengths
from bertjax.plan import Node, Plan, make_plan
from bertjax.pretrained import PretrainedModel
from bertjax.tokenizer import Encoding

# Steps that the host hands to the device before it waits for the first of them.
AHEAD = 8
# Activations inside the feed-forward layer for which a CPU is fastest: about 10 MB of float32.
CACHED_FLOATS = 2_500_000

Combine = Callable[..., np.ndarray]
Progress = Callable[[float, float], None]


@dataclass(frozen=True)
class SweepResult:
    """What a sweep gives.

    Args:
        base: outputs without any override.
        outputs: outputs of each ablation, in the order of the examples.
        ablations: what was run, in the order of `outputs`.
        plan: how it was run.
        seconds: wall-clock time, compilation included.
    """

    base: Shaped[np.ndarray, "examples *readout"]
    outputs: Shaped[np.ndarray, "ablations examples *readout"]
    ablations: tuple[Ablation, ...]
    plan: Plan
    seconds: float


def sweep(
    model: PretrainedModel,
    examples: Sequence[Encoding] | Sequence[Sequence[Encoding]],
    ablations: Sequence[Ablation],
    readout: Readout,
    *,
    combine: Combine | None = None,
    means: Float[np.ndarray, "layers heads head_dim"] | None = None,
    row_length: int | None = None,
    one_per_row: bool = False,
    tokens_at_once: int | None = None,
    progress: Progress = lambda done, total: None,
) -> SweepResult:
    """Run every ablation on every example.

    Args:
        model: any model of bertjax.
        examples: tokenised texts or pairs; or for each example several that are run apart, equally many everywhere.
        ablations: sets of heads (`bertjax.ablations`).
        readout: what to keep of each run; a function defined once, since each new one is compiled anew.
        combine: makes one output of the readouts of an example's texts, `[examples, *readout]` each: a similarity.
        means: the heads' outputs that mode 'mean' puts in place of their own.
        row_length: slots of a row; default what costs least for these examples.
        one_per_row: do not pack several examples into a row.
        tokens_at_once: size of a step; default what suits the device.
        progress: is told the work done and the work in all, in layers of one run on one chunk of rows.

    Raises:
        OverrideError: a head that the model does not have, or mode 'mean' without means.
        InputError: examples that do not fit the model, or outputs that are not finite without any override.
    """
    started = time.monotonic()
    config = model.config
    plan = make_plan(config, ablations)
    if means is None and "mean" in plan.modes():
        raise OverrideError("mode 'mean' replaces heads by their mean outputs: give means")
    texts = [(one,) if isinstance(one, Encoding) else tuple(one) for one in examples]
    length = row_length or choose_row_length(total_lengths(texts), config.hidden_size, config.intermediate_size)
    packed = pack(texts, length, one_per_row=one_per_row)
    tokens = tokens_at_once or default_tokens(config.intermediate_size)
    blocks = choose_blocks(packed.rows, length, config.num_attention_heads, tokens)
    runner = BlockRunner(model, packed, plan, readout, blocks, means)
    results = _Results(len(examples), len(ablations), runner, combine or only_text)
    pace = _Pace(sum(plan.states()) * runner.chunks, progress)
    for start in range(0, runner.chunks, blocks.runs):
        _Schedule(runner, results, pace).run(range(start, min(start + blocks.runs, runner.chunks)))
    pace.finish()
    results.drain()
    return SweepResult(*results.arrays(), tuple(ablations), plan, time.monotonic() - started)


def only_text(vectors: Shaped[np.ndarray, "*readout"]) -> Shaped[np.ndarray, "*readout"]:
    """What stands for an example of a single text: its readout."""
    return vectors


def default_tokens(intermediate_size: int) -> int:
    """How many tokens a step should hold.

    A CPU is fastest when the widest activations of a step, those inside the feed-forward layer, stay in its caches
    (measured: `benchmarks/RESULTS.md`); an accelerator needs many tokens to be busy.
    """
    return max(64, CACHED_FLOATS // intermediate_size) if jax.default_backend() == "cpu" else 65536


class _Results:
    """The outputs, filled in as readouts arrive."""

    def __init__(
        self,
        examples: int,
        ablations: int,
        runner: BlockRunner,
        combine: Combine,
    ):
        self.size, self.runner, self.combine = (ablations + 1, examples), runner, combine
        self.waiting: deque[tuple[Array, list[tuple[Node, int]]]] = deque()
        self.outputs: Any = None

    def add(self, found: Array, slots: list[tuple[Node, int]]) -> None:
        """A readout of a block whose slots are these runs on these chunks."""
        self.waiting.append((found, slots))
        if len(self.waiting) > AHEAD:  # by then the device has come that far
            self._fill(*self.waiting.popleft())

    def drain(self) -> None:
        """Wait for all readouts."""
        while self.waiting:
            self._fill(*self.waiting.popleft())

    def _fill(self, found: Array, slots: list[tuple[Node, int]]) -> None:
        values = np.asarray(found)
        for slot, (node, chunk) in enumerate(slots):
            members, places = self.runner.examples(chunk)
            texts = values[slot].reshape(-1, *values.shape[3:])[places]
            here = self.combine(*np.moveaxis(texts, 1, 0))
            if self.outputs is None:
                self.outputs = np.zeros((*self.size, *here.shape[1:]), here.dtype)
            if -1 in node.ablations and not np.isfinite(here).all():
                raise InputError("the model's own outputs are not finite: look for NaN or infinity in its weights")
            self.outputs[np.array(node.ablations)[:, None] + 1, members[None]] = here

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Outputs of the base run and of the ablations."""
        return self.outputs[0], self.outputs[1:]


class _Pace:
    """Keeps the host a few steps ahead of the device, no more, and tells how far the device has come."""

    def __init__(self, total: int, progress: Progress):
        self.done, self.total, self.progress = 0, total, progress
        self.running: deque[tuple[Array, int]] = deque()
        progress(0.0, float(total))

    def add(self, block: Array, runs: int) -> None:
        """A step for so many runs was handed to the device."""
        self.running.append((block, runs))
        while len(self.running) > AHEAD:
            self._wait()

    def finish(self) -> None:
        """Wait for all steps."""
        while self.running:
            self._wait()

    def _wait(self) -> None:
        block, runs = self.running.popleft()
        block.block_until_ready()
        self.done += runs
        self.progress(float(self.done), float(self.total))


class _Schedule:
    """The order in which a plan runs on a group of chunks."""

    def __init__(self, runner: BlockRunner, results: _Results, pace: _Pace):
        self.runner, self.results, self.pace, self.layers = runner, results, pace, runner.layers
        self.size = runner.blocks.runs
        self.steps: list[deque[Step]] = [deque() for _ in range(self.layers)]
        self.branches: list[tuple[int, Slot, list[Node]]] = []

    def run(self, chunks: Sequence[int]) -> None:
        """All runs on these chunks."""
        root = self.runner.plan.root
        self._arrive(
            0,
            self.runner.embed([*chunks, *[chunks[-1]] * (self.size - len(chunks))]),
            [(root, chunk) for chunk in chunks],
        )
        while True:
            full = [layer for layer in range(self.layers) if len(self.steps[layer]) >= self.size]
            some = [layer for layer in range(self.layers) if self.steps[layer]]
            if full:
                self._advance(full[-1])
            elif self.branches:
                self._branch(*self.branches.pop())
            elif some:
                self._advance(some[0])
            else:
                break

    def _arrive(self, layer: int, block: Array, slots: list[tuple[Node, int]]) -> None:
        """A block that is about to enter a layer, or has left the last."""
        if layer == self.layers:
            reached = [(node, chunk) for node, chunk in slots]
            self.results.add(self.runner.read(block, [chunk for _, chunk in reached]), reached)
            return
        for index, (node, chunk) in enumerate(slots):
            slot = Slot(block, index, node, chunk)
            if node.ends(self.layers) > layer:
                self.steps[layer].append(Step(slot, node, ()))
            children = list(node.children.get(layer, ()))
            while self.runner.is_worth_branching(layer, len(children)):
                self.branches.append((layer, slot, children[: self.size]))
                children = children[self.size :]
            self.steps[layer] += [Step(slot, child, child.changes) for child in children]

    def _advance(self, layer: int) -> None:
        count = min(self.size, len(self.steps[layer]))
        several = [self.steps[layer].popleft() for _ in range(count)]
        block = self.runner.advance(layer, several)
        self.pace.add(block, count)
        self._arrive(layer + 1, block, [(step.node, step.source.chunk) for step in several])

    def _branch(self, layer: int, parent: Slot, children: list[Node]) -> None:
        block = self.runner.branch(layer, parent, children)
        self.pace.add(block, len(children))
        self._arrive(layer + 1, block, [(child, parent.chunk) for child in children])
