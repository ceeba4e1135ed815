"""The same heads? Results of several seeds, tasks, checkpoints or modes side by side: `bertjax compare DIR DIR ...`."""

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.text import Text

from bertjax.console import PlainConsole, PlainTable
from bertjax.errors import InputError
from bertjax.evidence import Q, rank_correlation
from bertjax.formatting import count_of, format_change, format_p
from bertjax.results.contents import Contents
from bertjax.results.table import Row, column, significant

SHOWN = 12  # ablations that agree, in the table


@dataclass(frozen=True)
class Pair:
    """Two results on the ablations that both have.

    Args:
        first, second: their labels.
        common: how many ablations both have.
        correlation: Spearman's, of the effects; NaN where it is undefined.
        low, high: its 95 % interval, by drawing ablations with replacement; NaN where there are fewer than ten.
        found: how many ablations each found at q < 0.05.
        both: how many both found, with the same sign.
        opposite: how many both found, with opposite signs.
        chance: how probable it is that two such sets, drawn at random, share as many.
    """

    first: str
    second: str
    common: int
    correlation: float
    low: float
    high: float
    found: tuple[int, int]
    both: int
    opposite: int
    chance: float

    @property
    def jaccard(self) -> float:
        """What both found over what either found; NaN where neither found anything."""
        together = self.both + self.opposite
        either = sum(self.found) - together
        return self.both / either if either else float("nan")


def label_results(several: Sequence[Contents]) -> list[str]:
    """What tells the results apart: whichever of model, task, mode and so on differ, or else their directories."""
    facts = [
        {
            "model": one.summary["model"]["name"],
            "task": one.summary["data"]["task"],
            "split": one.summary["data"]["split"],
            "metric": one.summary["metric"]["label"],
            "mode": one.summary["mode"]["name"],
            "seed": f"seed {one.summary['settings'].get('seed')}",
            "examples": count_of(one.summary["data"]["examples"], "example"),
        }
        for one in several
    ]
    differing = [name for name in facts[0] if len({fact[name] for fact in facts}) > 1]
    labels = [", ".join(fact[name] for name in differing) for fact in facts]
    if len(set(labels)) == len(labels):
        return labels
    paths = [(one.directory or Path("not written")).absolute() for one in several]
    shared = os.path.commonpath([path.parent for path in paths])
    return [os.path.relpath(path, shared) for path in paths]


def align(several: Sequence[Contents], metric: str | None = None) -> tuple[list[str], list[list[Row]]]:
    """The ablations that all results have, and each result's rows of them by a metric, by default its main one.

    Raises:
        InputError: fewer than two results, they have fewer than two ablations in common, or one lacks the metric.
    """
    if len(several) < 2:
        raise InputError("give two directories of results at least")
    tables = [{row.name: row for row in one.rows_of(metric)} for one in several]
    for name in set.intersection(*map(set, tables)):
        if len({tuple(table[name].heads) for table in tables}) > 1:
            raise InputError(f"{name!r} is not the same heads in all results: give sets of other heads other names")
    names = [name for name in tables[0] if all(name in table for table in tables)]
    if len(names) < 2:
        kinds = ", ".join(f"{one.source} has {count_of(len(one.names), one.kind)}" for one in several)
        raise InputError(f"the results have fewer than two ablations in common: {kinds}")
    return names, [[table[name] for name in names] for table in tables]


def compare(several: Sequence[Contents], metric: str | None = None, seed: int = 0) -> list[Pair]:
    """Every pair of results, by a metric or each by its main one.

    Raises:
        InputError: as `align`.
    """
    labels, (names, tables) = label_results(several), align(several, metric)
    return [
        _pair(labels[first], labels[second], tables[first], tables[second], len(names), seed)
        for first, second in combinations(range(len(several)), 2)
    ]


def _pair(first: str, second: str, here: Sequence[Row], there: Sequence[Row], common: int, seed: int) -> Pair:
    from scipy.stats import hypergeom

    effects = [column(rows, "difference") for rows in (here, there)]
    found = [significant(rows) for rows in (here, there)]
    correlation, low, high = rank_correlation(effects[0], effects[1], seed)
    together = found[0] & found[1]
    same = np.sign(effects[0]) == np.sign(effects[1])
    sizes = int(found[0].sum()), int(found[1].sum())
    chance = float(hypergeom.sf(together.sum() - 1, common, *sizes))
    both, opposite = int((together & same).sum()), int((together & ~same).sum())
    return Pair(
        first=first,
        second=second,
        common=common,
        correlation=correlation,
        low=low,
        high=high,
        found=sizes,
        both=both,
        opposite=opposite,
        chance=chance,
    )


def share_examples(several: Sequence[Contents]) -> bool:
    """Whether any two have examples of the same task and split in common."""
    found = [(one.summary["data"]["task"], one.summary["data"]["split"], _ids(one)) for one in several]
    return any(first[:2] == other[:2] and first[2] & other[2] for first, other in combinations(found, 2))


def _ids(results: Contents) -> set[str]:
    return {str(one["id"]) for one in results.examples}


def agreeing(several: Sequence[Contents], metric: str | None = None) -> list[tuple[str, list[float], int]]:
    """Ablations found in more than one result with the same sign: name, changes in points, in how many found.

    Those found most often come first, then those of the largest mean effect.
    """
    names, tables = align(several, metric)
    changes = np.stack([100 * column(rows, "difference") for rows in tables])
    found = np.stack([significant(rows) for rows in tables])
    times = np.stack([(found & (sign * changes > 0)).sum(0) for sign in (1, -1)]).max(0)
    order = sorted(range(len(names)), key=lambda place: (-times[place], -abs(np.nanmean(changes[:, place]))))
    return [(names[place], changes[:, place].tolist(), int(times[place])) for place in order if times[place] > 1]


def compare_table(several: Sequence[Contents], metric: str | None = None) -> Group:
    """For a terminal: the results numbered, a row for each pair, and the ablations on which results agree."""
    labels, kind = label_results(several), several[0].kind
    numbers = [str(number) for number in range(1, len(labels) + 1)]
    table = PlainTable(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("results", "common", "rank correlation", "found", "both", "opposite", "chance"):
        table.add_column(name, justify="right", no_wrap=True)
    for pair, places in zip(compare(several, metric), combinations(numbers, 2), strict=True):
        table.add_row(
            *(", ".join(places), str(pair.common), _correlation(pair)),
            *(f"{pair.found[0]}, {pair.found[1]}", str(pair.both), str(pair.opposite), format_p(pair.chance)),
        )
    note = (
        f"rank correlation of effects with 95 % interval (of ten and more); found: {kind}s at q < {Q} in each; both: "
        "with the same sign; chance: that sets of these sizes share as many"
    )
    named = [Text(f"{number}  {label}") for number, label in zip(numbers, labels, strict=True)]
    parts: list[Any] = [*named, table, Text(note)]
    for (first, here), (second, there) in combinations(zip(numbers, several, strict=True), 2):
        if here.points(metric=metric).tolist() == there.points(metric=metric).tolist():
            parts.append(Text(f"{first} and {second} are the same results twice"))
    if share_examples(several):
        parts.append(Text("some of these results share examples: that they agree may be the luck of those examples"))
    agreed = agreeing(several, metric)
    parts.append(Text(f"\n{count_of(len(agreed), kind)} found in more than one, with the same sign", style="bold"))
    if agreed:
        shared = PlainTable(box=SIMPLE_HEAD, pad_edge=False)
        for name in (kind, "found in", *(f"change in {number}" for number in numbers)):
            shared.add_column(name, justify="right")
        for name, changes, times in agreed[:SHOWN]:
            shared.add_row(name, str(times), *("" if np.isnan(one) else format_change(one) for one in changes))
        parts.append(shared)
        if len(agreed) > SHOWN:
            parts.append(Text(f"and {len(agreed) - SHOWN} more (--format json)"))
    return Group(*parts)


def _correlation(pair: Pair) -> str:
    if np.isnan(pair.correlation):
        return "undefined"
    interval = "" if np.isnan(pair.low) else f" ({pair.low:.2f} to {pair.high:.2f})"
    return f"{pair.correlation:.2f}{interval}".replace("-", "−")


def compare_data(several: Sequence[Contents], metric: str | None = None) -> dict[str, Any]:
    """For other programs: all pairs, and every ablation that results agree on."""
    labels = label_results(several)
    return {
        "results": [{"label": label, "directory": one.source} for label, one in zip(labels, several, strict=True)],
        "pairs": [{**vars(pair), "jaccard": pair.jaccard} for pair in compare(several, metric)],
        "share_examples": share_examples(several),
        "agreeing": [
            {"name": name, "found_in": times, "changes": dict(zip(labels, changes, strict=True))}
            for name, changes, times in agreeing(several, metric)
        ],
    }


@dataclass(frozen=True)
class Comparison:
    """Several results side by side; printed, the table of `bertjax compare`.

    Args:
        several: two or more.
        metric: by which they are compared; default the main one of each.
    """

    several: tuple[Contents, ...]
    metric: str | None = None

    def __post_init__(self) -> None:
        align(self.several, self.metric)

    @property
    def pairs(self) -> list[Pair]:
        """Every two of them."""
        return compare(self.several, self.metric)

    def to_dict(self) -> dict[str, Any]:
        """As `bertjax compare --format json` prints it."""
        return compare_data(self.several, self.metric)

    def __str__(self) -> str:
        console = PlainConsole(file=io.StringIO(), width=100)
        console.print(compare_table(self.several, self.metric))
        return str(console.file.getvalue()).rstrip()  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return str(self)
