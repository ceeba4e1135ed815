"""Parts: pieces of a sweep that can be computed, written down and read back each by itself.

A part is some of the runs that branch off the base run, with all that branches off them, on a group of chunks. Its
outputs depend on nothing that was computed before it but the base run, so they are the same bytes whenever it runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from bertjax.engine.plan import Node, Plan


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
        found = list(self.base)
        for children in self.children.values():
            for child in children:
                found += [number for node in child.subtree() for number in node.ablations]
        return sorted(found)


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


def _batches(plan: Plan, runs: int, most: int) -> Iterator[tuple[dict[int, list[Node]], int]]:
    """Children of the root in batches of about `most` layers of work; at least one batch."""
    batch: dict[int, list[Node]] = {}
    amount, given = 0, False
    for layer, some in _slices(plan, runs, most):
        batch.setdefault(layer, []).extend(some)
        amount += sum(child.work(plan.layers) for child in some)
        if amount >= most:
            yield batch, amount
            batch, amount, given = {}, 0, True
    if batch or not given:
        yield batch, amount


def _slices(plan: Plan, runs: int, most: int) -> Iterator[tuple[int, list[Node]]]:
    """Children of the root that branch off together: as many as a block has slots, or one where one is work enough."""
    for layer, children in sorted(plan.root.children.items()):
        for start in range(0, len(children), runs):
            some = children[start : start + runs]
            large = sum(child.work(plan.layers) for child in some) > most
            yield from ((layer, [child]) for child in some) if large else ((layer, some),)
