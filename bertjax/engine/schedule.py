"""The order in which the runs of a plan are computed.

If a run has many children in a layer, one forked step computes them and runs attention once. All other runs wait until
a block is full, whichever runs are in it. Full blocks of the deepest layer go first, so that few hidden states are in
memory at a time. A `DryRun` follows the same order and computes nothing.
"""

import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count

import jax.numpy as jnp
from jaxtyping import Array

from bertjax.checkpoints import BertConfig
from bertjax.engine.blocks import Runner, Slot, Step, common_block
from bertjax.engine.plan import Node, Plan
from bertjax.engine.sizes import AHEAD, Blocks
from bertjax.interventions import Change
from bertjax.progress import Progress

Collect = Callable[[Array, list[tuple[Node, int]]], None]


@dataclass(frozen=True)
class Part:
    """Some runs on some chunks, whose outputs are saved together.

    Args:
        index: index of the part, from 0, in the order in which parts run.
        chunks: the group of chunks that fill the slots of a block.
        children: runs that branch off the base run, by layer.
        base: ids of the ablations that equal the base run, if its outputs belong to this part.
        work: layers of one run on one chunk, without the base run.
    """

    index: int
    chunks: range
    children: dict[int, list[Node]]
    base: list[int]
    work: int

    @cached_property
    def ablations(self) -> list[int]:
        """Ids of its ablations, sorted; -1 is the base run."""
        nodes = (node for children in self.children.values() for child in children for node in child.subtree())
        return sorted([*self.base, *(ablation for node in nodes for ablation in node.ablations)])


def split_into_parts(plan: Plan, chunks: int, runs: int, work: int) -> list[Part]:
    """Split a sweep into parts.

    Args:
        chunks: number of chunks.
        runs: slots of a block.
        work: approximate work of a part, in layers of one run on one chunk.
    """
    parts: list[Part] = []
    for start in range(0, chunks, runs):
        group = range(start, min(start + runs, chunks))
        for index, (children, amount) in enumerate(_batches(plan, runs, max(1, work // len(group)))):
            base = plan.root.ablations if index == 0 else []
            parts.append(Part(len(parts), group, children, base, amount * len(group)))
    return parts


def share_parts(parts: Sequence[Part], count: int) -> list[list[Part]]:
    """The parts of each shard: consecutive parts of about equal work. If there are few parts, some shards are empty.

    Consecutive parts have the same chunks, so few base runs are repeated.
    """
    shares: list[list[Part]] = [[] for _ in range(count)]
    total, before = sum(1 + part.work for part in parts), 0
    for part in parts:
        middle = 2 * before + 1 + part.work
        shares[middle * count // (2 * total)].append(part)
        before += 1 + part.work
    return shares


def _batches(plan: Plan, runs: int, most: int) -> Iterator[tuple[dict[int, list[Node]], int]]:
    """Children of the root in batches of about `most` layers of work; at least one batch."""
    batch: dict[int, list[Node]] = {}
    amount, batches = 0, 0
    for layer, group in _slices(plan, runs, most):
        batch.setdefault(layer, []).extend(group)
        amount += sum(child.work(plan.layers) for child in group)
        if amount >= most:
            yield batch, amount
            batch, amount, batches = {}, 0, batches + 1
    if batch or not batches:
        yield batch, amount


def _slices(plan: Plan, runs: int, most: int) -> Iterator[tuple[int, list[Node]]]:
    """Children of the root that fork together: as many as a block has slots, or single ones if they have much work."""
    for layer, children in sorted(plan.root.children.items()):
        for start in range(0, len(children), runs):
            batch = children[start : start + runs]
            large = sum(child.work(plan.layers) for child in batch) > most
            yield from ((layer, [child]) for child in batch) if large else ((layer, batch),)


class Throttle:
    """Keeps the host at most `AHEAD` steps ahead of the device, and reports the device's progress."""

    def __init__(self, done: int, total: int, progress: Progress):
        self.done, self.total, self.progress = done, total, progress
        self.running: deque[tuple[Array, int]] = deque()
        progress(float(done), float(total))

    def add(self, block: Array, runs: int) -> None:
        """Register a step that was handed to the device, and its number of runs."""
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


def run_base(runner: Runner, chunks: range, throttle: Throttle) -> list[Array]:
    """The base run on a group of chunks: its hidden states before each layer and after the last."""
    root = runner.plan.root
    runner.take_sources(chunks)
    blocks = [runner.embed(chunks)]
    for layer in range(runner.layers):
        steps = [Step(Slot(blocks[-1], index, root, chunk), root, ()) for index, chunk in enumerate(chunks)]
        blocks.append(runner.apply_layer(layer, steps))
        throttle.add(blocks[-1], len(chunks))
    return blocks


class Schedule:
    """Runs one part after another on a group of chunks."""

    def __init__(self, runner: Runner, collect: Collect, throttle: Throttle):
        self.runner, self.collect, self.throttle, self.layers = runner, collect, throttle, runner.layers
        self.size = runner.blocks.runs
        # Steps that wait, by layer and by the changes of parameters that they share.
        self.steps: list[dict[tuple[Change, ...], deque[Step]]] = [{} for _ in range(self.layers)]
        self.forks: list[tuple[int, Slot, list[Node]]] = []

    def run(self, part: Part, base: Sequence[Array]) -> None:
        """Compute all runs of a part, from the hidden states of the base run."""
        root = self.runner.plan.root
        for layer, children in part.children.items():
            for index, chunk in enumerate(part.chunks):
                self._add_children(layer, Slot(base[layer], index, root, chunk), children)
        if part.base:
            self._arrive(self.layers, base[-1], [(root, chunk) for chunk in part.chunks])
        while True:
            waiting = [(layer, parameters) for layer in range(self.layers) for parameters in self.steps[layer]]
            full = [key for key in waiting if len(self.steps[key[0]][key[1]]) >= self.size]
            if full:
                self._apply_layer(*full[-1])
            elif self.forks:
                self._fork(*self.forks.pop())
            elif waiting:
                self._apply_layer(*waiting[0])
            else:
                break

    def _arrive(self, layer: int, block: Array, runs: list[tuple[Node, int]]) -> None:
        """Queue the next steps of a block that is about to enter a layer, or read it after the last layer."""
        if layer == self.layers:
            self.collect(self.runner.read(block, [chunk for _, chunk in runs]), runs)
            return
        for index, (node, chunk) in enumerate(runs):
            slot = Slot(block, index, node, chunk)
            if node.ends(self.layers) > layer:
                self._queue(layer, Step(slot, node, ()))
            self._add_children(layer, slot, node.children.get(layer, []))

    def _add_children(self, layer: int, slot: Slot, children: list[Node]) -> None:
        """Queue the children of the run in a slot: many in forked steps, the others in single steps."""
        together = [child for child in children if child.shares_attention]
        single = [child for child in children if not child.shares_attention]
        while self.runner.is_worth_forking(layer, len(together)):
            self.forks.append((layer, slot, together[: self.size]))
            together = together[self.size :]
        for child in [*together, *single]:
            self._queue(layer, Step(slot, child, child.changes))

    def _queue(self, layer: int, step: Step) -> None:
        self.steps[layer].setdefault(step.parameters, deque()).append(step)

    def _apply_layer(self, layer: int, parameters: tuple[Change, ...]) -> None:
        queue = self.steps[layer][parameters]
        size = min(self.size, len(queue))
        steps = [queue.popleft() for _ in range(size)]
        if not queue:
            del self.steps[layer][parameters]
        block = self.runner.apply_layer(layer, steps)
        self.throttle.add(block, size)
        self._arrive(layer + 1, block, [(step.node, step.source.chunk) for step in steps])

    def _fork(self, layer: int, parent: Slot, children: list[Node]) -> None:
        block = self.runner.fork_from_parent(layer, parent, children)
        self.throttle.add(block, len(children))
        self._arrive(layer + 1, block, [(child, parent.chunk) for child in children])


class DryRun(Runner):
    """A `Runner` that counts steps and blocks and computes nothing; its blocks hold a single number.

    Args:
        config: the config of the model.
        plan: the plan of the sweep.
        blocks: sizes of chunks and blocks.
        labels: suffix of the names of a layer's steps, for each layer; none by default.
        cls_only: whether the last layer is computed only at [CLS], as in `Runner`.

    Attributes:
        taken: the number of steps of each kind, by name.
        most: the largest number of blocks in memory at a time.
    """

    def __init__(
        self, config: BertConfig, plan: Plan, blocks: Blocks, labels: Sequence[str] = (), *, cls_only: bool = True
    ):
        super().__init__(config, plan, blocks, cls_only)
        self.labels, self.taken, self.most = labels, Counter[str](), 0
        self._alive: dict[int, weakref.ref[Array]] = {}  # (a WeakSet would need hashable arrays)
        self._ids = count()

    def run(self, chunks: int, steps_of_part: int) -> None:
        """Follow the whole plan on this many chunks, in the order of the engine."""
        throttle = Throttle(0, 1, lambda done, total: None)
        schedule = Schedule(self, lambda values, runs: None, throttle)
        base: list[Array] = []
        group = range(0)
        for part in split_into_parts(self.plan, chunks, self.blocks.runs, steps_of_part * self.blocks.runs):
            if part.chunks != group:
                base, group = run_base(self, part.chunks, throttle), part.chunks
            schedule.run(part, base)

    def take_sources(self, chunks: range) -> None:
        """Not counted."""

    def embed(self, chunks: Sequence[int]) -> Array:
        """Count one step."""
        return self._step("embed", -1)

    def apply_layer(self, layer: int, steps: Sequence[Step]) -> Array:
        """Count one step, or two if the slots are gathered first."""
        if common_block(steps) is None:
            self.taken["gather"] += 1
        return self._step("changed layer" if any(step.activations for step in steps) else "layer", layer)

    def fork_from_parent(self, layer: int, parent: Slot, children: Sequence[Node]) -> Array:
        """Count one step."""
        return self._step("fork", layer)

    def read(self, hidden: Array, chunks: Sequence[int]) -> Array:
        """Count one step, which makes no hidden states."""
        self.taken["read first" if self.cls_only else "read"] += 1
        return jnp.zeros((1, 1, 1))

    def _step(self, name: str, layer: int) -> Array:
        label = self.labels[layer] if self.labels and layer >= 0 else ""
        cls_only = self.is_cls_only(layer)
        self.taken["last " * cls_only + name + label] += 1
        block = jnp.zeros((1, 1, 1, 1))
        if not cls_only:
            block_id = next(self._ids)
            self._alive[block_id] = weakref.ref(block, lambda _: self._alive.pop(block_id))
            self.most = max(self.most, len(self._alive))
        return block
