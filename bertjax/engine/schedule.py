"""The order in which the runs of a plan are computed.

Where a run has many children in a layer, they are branched off in one step that runs attention once; a run that goes
on alone waits until a block is full, whatever other runs are in it. Full blocks of the deepest layer go first, so
that few hidden states are alive at a time. A `DryRun` goes through the same order without computing anything.
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
from bertjax.engine.blocks import Runner, Slot, Step, whole_source
from bertjax.engine.plan import Node, Plan
from bertjax.engine.sizes import AHEAD, Blocks
from bertjax.progress import Progress

Collect = Callable[[Array, list[tuple[Node, int]]], None]


@dataclass(frozen=True)
class Part:
    """Some runs on some chunks.

    Args:
        number: from 0, in the order in which parts run.
        chunks: the group of chunks that fill the slots of a block.
        children: runs that branch off the base run, by layer.
        base: numbers of the ablations that are the base run itself, if its outputs belong to this part.
        work: layers of one run on one chunk, the base run's not counted.
    """

    number: int
    chunks: range
    children: dict[int, list[Node]]
    base: list[int]
    work: int

    @cached_property
    def ablations(self) -> list[int]:
        """Numbers of the ablations that are in it, -1 for the base; sorted."""
        numbers = list(self.base)
        for children in self.children.values():
            for child in children:
                numbers += [number for node in child.subtree() for number in node.ablations]
        return sorted(numbers)


def split_into_parts(plan: Plan, chunks: int, runs: int, work: int) -> list[Part]:
    """All of a sweep in parts.

    Args:
        chunks: how many there are.
        runs: slots of a block.
        work: layers of one run on one chunk that a part should have, about.
    """
    parts: list[Part] = []
    for start in range(0, chunks, runs):
        group = range(start, min(start + runs, chunks))
        for number, (children, amount) in enumerate(_batches(plan, runs, max(1, work // len(group)))):
            base = plan.root.ablations if number == 0 else []
            parts.append(Part(len(parts), group, children, base, amount * len(group)))
    return parts


def share_parts(parts: Sequence[Part], count: int) -> list[list[Part]]:
    """The parts of each shard: consecutive ones of about equal work; shards beyond the number of parts are empty.

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
    amount, given = 0, False
    for layer, group in _slices(plan, runs, most):
        batch.setdefault(layer, []).extend(group)
        amount += sum(child.work(plan.layers) for child in group)
        if amount >= most:
            yield batch, amount
            batch, amount, given = {}, 0, True
    if batch or not given:
        yield batch, amount


def _slices(plan: Plan, runs: int, most: int) -> Iterator[tuple[int, list[Node]]]:
    """Children of the root that branch off together: as many as a block has slots, or one where one is work enough."""
    for layer, children in sorted(plan.root.children.items()):
        for start in range(0, len(children), runs):
            batch = children[start : start + runs]
            large = sum(child.work(plan.layers) for child in batch) > most
            yield from ((layer, [child]) for child in batch) if large else ((layer, batch),)


class Throttle:
    """Keeps the host a few steps ahead of the device, no more, and tells how far the device has come."""

    def __init__(self, done: int, total: int, progress: Progress):
        self.done, self.total, self.progress = done, total, progress
        self.running: deque[tuple[Array, int]] = deque()
        progress(float(done), float(total))

    def add(self, block: Array, runs: int) -> None:
        """A step for this many runs was handed to the device."""
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


def run_base(runner: Runner, chunks: range, pace: Throttle) -> list[Array]:
    """The base run on a group of chunks: its hidden states before each layer and after the last."""
    root = runner.plan.root
    runner.take_sources(chunks)
    blocks = [runner.embed(chunks)]
    for layer in range(runner.layers):
        steps = [Step(Slot(blocks[-1], index, root, chunk), root, ()) for index, chunk in enumerate(chunks)]
        blocks.append(runner.advance(layer, steps))
        pace.add(blocks[-1], len(chunks))
    return blocks


class Schedule:
    """Runs one part after another on a group of chunks."""

    def __init__(self, runner: Runner, collect: Collect, pace: Throttle):
        self.runner, self.collect, self.pace, self.layers = runner, collect, pace, runner.layers
        self.size = runner.blocks.runs
        self.steps: list[deque[Step]] = [deque() for _ in range(self.layers)]
        self.branches: list[tuple[int, Slot, list[Node]]] = []

    def run(self, part: Part, base: Sequence[Array]) -> None:
        """All runs of a part, from the base run's hidden states."""
        root = self.runner.plan.root
        for layer, children in part.children.items():
            for index, chunk in enumerate(part.chunks):
                self._branch_off(layer, Slot(base[layer], index, root, chunk), children)
        if part.base:
            self._arrive(self.layers, base[-1], [(root, chunk) for chunk in part.chunks])
        while True:
            full = [layer for layer in range(self.layers) if len(self.steps[layer]) >= self.size]
            layers = [layer for layer in range(self.layers) if self.steps[layer]]
            if full:
                self._advance(full[-1])
            elif self.branches:
                self._branch(*self.branches.pop())
            elif layers:
                self._advance(layers[0])
            else:
                break

    def _arrive(self, layer: int, block: Array, runs: list[tuple[Node, int]]) -> None:
        """A block of runs on chunks that is about to enter a layer, or has left the last."""
        if layer == self.layers:
            self.collect(self.runner.read(block, [chunk for _, chunk in runs]), runs)
            return
        for index, (node, chunk) in enumerate(runs):
            slot = Slot(block, index, node, chunk)
            if node.ends(self.layers) > layer:
                self.steps[layer].append(Step(slot, node, ()))
            self._branch_off(layer, slot, node.children.get(layer, []))

    def _branch_off(self, layer: int, slot: Slot, children: list[Node]) -> None:
        """Children of the run in a slot: several in one step, or each in a step with whatever else there is."""
        together = [child for child in children if self.runner.shares_attention(child)]
        alone = [child for child in children if not self.runner.shares_attention(child)]
        while self.runner.is_worth_branching(layer, len(together)):
            self.branches.append((layer, slot, together[: self.size]))
            together = together[self.size :]
        self.steps[layer] += [Step(slot, child, child.changes) for child in [*together, *alone]]

    def _advance(self, layer: int) -> None:
        size = min(self.size, len(self.steps[layer]))
        several = [self.steps[layer].popleft() for _ in range(size)]
        block = self.runner.advance(layer, several)
        self.pace.add(block, size)
        self._arrive(layer + 1, block, [(step.node, step.source.chunk) for step in several])

    def _branch(self, layer: int, parent: Slot, children: list[Node]) -> None:
        block = self.runner.branch(layer, parent, children)
        self.pace.add(block, len(children))
        self._arrive(layer + 1, block, [(child, parent.chunk) for child in children])


class DryRun(Runner):
    """A `Runner` that counts steps and blocks instead of computing them; its blocks hold a single number.

    Args:
        labels: what is put behind the name of a step, for each layer; nothing where there are none.
        short_last: whether the last layer is computed at some tokens alone.
    """

    def __init__(
        self, config: BertConfig, plan: Plan, blocks: Blocks, labels: Sequence[str] = (), *, short_last: bool = True
    ):
        super().__init__(config, plan, blocks, short_last)
        self.labels, self.taken, self.most = labels, Counter[str](), 0
        self._alive: dict[int, weakref.ref[Array]] = {}  # (a WeakSet would ask for arrays' hashes)
        self._numbers = count()

    def run(self, chunks: int, steps_of_part: int) -> None:
        """Go through the whole plan on so many chunks, as the engine's own schedule does."""
        pace = Throttle(0, 1, lambda done, total: None)
        schedule = Schedule(self, lambda values, runs: None, pace)
        base: list[Array] = []
        group = range(0)
        for part in split_into_parts(self.plan, chunks, self.blocks.runs, steps_of_part * self.blocks.runs):
            if part.chunks != group:
                base, group = run_base(self, part.chunks, pace), part.chunks
            schedule.run(part, base)

    def take_sources(self, chunks: range) -> None:
        """Take none."""

    def embed(self, chunks: Sequence[int]) -> Array:
        """One step."""
        return self._step("embed", -1)

    def advance(self, layer: int, several: Sequence[Step]) -> Array:
        """One step, or two where the slots are gathered first."""
        if whole_source(several) is None:
            self.taken["gather"] += 1
        return self._step("changed advance" if any(step.changes for step in several) else "advance", layer)

    def branch(self, layer: int, parent: Slot, children: Sequence[Node]) -> Array:
        """One step."""
        return self._step("branch", layer)

    def read(self, hidden: Array, chunks: Sequence[int]) -> Array:
        """One step, whose outputs are no hidden states."""
        self.taken["read first" if self.short_last else "read"] += 1
        return jnp.zeros((1, 1, 1))

    def _step(self, name: str, layer: int) -> Array:
        label = self.labels[layer] if self.labels and layer >= 0 else ""
        short = self.is_short(layer)
        self.taken["last " * short + name + label] += 1
        block = jnp.zeros((1, 1, 1, 1))
        if not short:
            number = next(self._numbers)
            self._alive[number] = weakref.ref(block, lambda _: self._alive.pop(number))
            self.most = max(self.most, len(self._alive))
        return block
