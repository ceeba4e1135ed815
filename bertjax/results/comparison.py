"""Compare results of several seeds, tasks, checkpoints or modes: `bertjax compare DIR DIR ...`."""

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.text import Text

from bertjax.console import PIPE_WIDTH, PlainConsole, PlainTable
from bertjax.errors import InputError
from bertjax.formatting import count_of, format_change, format_p
from bertjax.results.contents import Contents
from bertjax.results.table import Row, column, significant
from bertjax.statistics import Q, rank_correlation

SHOWN = 12  # agreeing ablations in the table


@dataclass(frozen=True)
class Pair:
    """Two results compared on the ablations they share.

    Args:
        first, second: their labels.
        common: the number of shared ablations.
        correlation: Spearman's correlation of the effects; NaN where undefined.
        low, high: its 95 % interval, by drawing ablations with replacement; NaN with fewer than ten.
        found: the number of ablations each found at q < 0.05.
        both: the number that both found with the same sign.
        opposite: the number that both found with opposite signs.
        chance: the probability that two random sets of these sizes share at least as many; NaN if one was untested.
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
        """The number that both found over the number that either found; NaN where neither found any."""
        intersection = self.both + self.opposite
        union = sum(self.found) - intersection
        return self.both / union if union else float("nan")


def label_results(results: Sequence[Contents]) -> list[str]:
    """Labels that distinguish the results: whichever of model, task, mode and so on differ, else the directories."""
    facts = [
        {
            "model": result.summary["model"]["name"],
            "task": result.summary["data"]["task"],
            "split": result.summary["data"]["split"],
            "metric": result.summary["metric"]["label"],
            "mode": result.summary["mode"]["name"],
            "seed": f"seed {result.summary['settings'].get('seed')}",
            "examples": count_of(result.summary["data"]["examples"], "example"),
        }
        for result in results
    ]
    differing = [name for name in facts[0] if len({fact[name] for fact in facts}) > 1]
    labels = [", ".join(fact[name] for name in differing) for fact in facts]
    if len(set(labels)) == len(labels):
        return labels
    paths = [(result.directory or Path("not written")).absolute() for result in results]
    shared = os.path.commonpath([path.parent for path in paths])
    return [os.path.relpath(path, shared) for path in paths]


def align(results: Sequence[Contents], metric: str | None = None) -> tuple[list[str], list[list[Row]]]:
    """The ablations that all results share, and each result's rows for them by a metric, by default its main one.

    Raises:
        InputError: there are fewer than two results, they measure different things, they share fewer than two
            ablations, one lacks the metric, or a shared name stands for different heads.
    """
    if len(results) < 2:
        raise InputError("give two directories of results at least")
    quantities = [result.quantity(metric) for result in results]
    for result, quantity in zip(results, quantities, strict=True):
        if quantity.compared_as != quantities[0].compared_as:
            raise InputError(
                f"{results[0].source} measures {quantities[0]}, {result.source} {quantity}: they cannot be compared; "
                "give results of one analysis, or a metric (--metric) that all of them have"
            )
    tables = [{row.name: row for row in result.rows_of(metric)} for result in results]
    for name in set.intersection(*map(set, tables)):
        if len({tuple(table[name].heads) for table in tables}) > 1:
            raise InputError(f"{name!r} is not the same heads in all results: give sets of other heads other names")
    names = [name for name in tables[0] if all(name in table for table in tables)]
    if len(names) < 2:
        kinds = ", ".join(f"{result.source} has {count_of(len(result.names), result.kind)}" for result in results)
        raise InputError(f"the results have fewer than two ablations in common: {kinds}")
    return names, [[table[name] for name in names] for table in tables]


def compare(results: Sequence[Contents], metric: str | None = None, seed: int = 0) -> list[Pair]:
    """Compare every pair of results by a metric, by default the main one of each; signs are those of gains.

    Contributions (Shapley values) count with the opposite sign, as the effects of ablating what contributes.

    Raises:
        InputError: as for `align`.
    """
    labels, (_, tables) = label_results(results), align(results, metric)
    signs = [_sign_of_gains(result, metric) for result in results]
    effects = [_Effects(*each) for each in zip(labels, tables, signs, strict=True)]
    return [_pair(first, second, seed) for first, second in combinations(effects, 2)]


@dataclass(frozen=True)
class _Effects:
    """The effects of the shared ablations in one of several results."""

    label: str
    rows: Sequence[Row]
    sign: int

    @property
    def gains(self) -> Float[np.ndarray, " ablations"]:
        """Differences of scores, above 0 where the score gets better."""
        return self.sign * column(self.rows, "difference")


def _sign_of_gains(result: Contents, metric: str | None) -> int:
    """1 where a value above 0 of these results means that the score is better without the heads, else -1."""
    return result.measure(metric).sign * result.quantity(metric).sign


def describe_quantities(results: Sequence[Contents], metric: str | None = None) -> str:
    """What results measure, where they do not measure the same; empty where they do."""
    quantities = [result.quantity(metric) for result in results]
    if len({*quantities}) < 2:
        return ""
    named = ", ".join(f"{number} {quantity}" for number, quantity in enumerate(quantities, 1))
    opposite = len({quantity.sign for quantity in quantities}) > 1
    signs = "; contributions count with the opposite sign, as the effect of ablating the head" if opposite else ""
    return f"different quantities: {named}{signs}"


def _pair(first: _Effects, second: _Effects, seed: int) -> Pair:
    from scipy.stats import hypergeom

    effects, common = [first.gains, second.gains], len(first.rows)
    are_significant = [significant(one.rows) for one in (first, second)]
    correlation, low, high = rank_correlation(effects[0], effects[1], seed)
    in_both = are_significant[0] & are_significant[1]
    same_sign = np.sign(effects[0]) == np.sign(effects[1])
    sizes = int(are_significant[0].sum()), int(are_significant[1].sum())
    tested = all(any(row.q is not None for row in one.rows) for one in (first, second))
    chance = float(hypergeom.sf(in_both.sum() - 1, common, *sizes)) if tested else float("nan")
    both, opposite = int((in_both & same_sign).sum()), int((in_both & ~same_sign).sum())
    return Pair(
        first=first.label,
        second=second.label,
        common=common,
        correlation=correlation,
        low=low,
        high=high,
        found=sizes,
        both=both,
        opposite=opposite,
        chance=chance,
    )


def share_examples(results: Sequence[Contents]) -> bool:
    """Whether any two results share examples of the same task and split."""
    sources = [(result.summary["data"]["task"], result.summary["data"]["split"], _ids(result)) for result in results]
    return any(first[:2] == second[:2] and first[2] & second[2] for first, second in combinations(sources, 2))


def _ids(result: Contents) -> set[str]:
    return {str(example["id"]) for example in result.examples}


def agreeing(results: Sequence[Contents], metric: str | None = None) -> list[tuple[str, list[float], int]]:
    """Ablations that more than one result found to be gains, or losses: name, changes as printed, number of results.

    Sorted by how often they were found, then by the size of the mean effect.
    """
    names, tables = align(results, metric)
    measures = [result.measure(metric) for result in results]
    changes = np.stack(
        [measure.factor * column(rows, "difference") for rows, measure in zip(tables, measures, strict=True)]
    )
    gains = np.array([[_sign_of_gains(result, metric)] for result in results]) * changes
    are_significant = np.stack([significant(rows) for rows in tables])
    counts = np.stack([(are_significant & (sign * gains > 0)).sum(0) for sign in (1, -1)]).max(0)
    order = sorted(range(len(names)), key=lambda place: (-counts[place], -abs(np.nanmean(gains[:, place]))))
    return [(names[place], changes[:, place].tolist(), int(counts[place])) for place in order if counts[place] > 1]


def compare_table(results: Sequence[Contents], metric: str | None = None) -> Group:
    """The numbered results, a row for each pair, and the ablations on which results agree, for a terminal."""
    labels, kind = label_results(results), results[0].kind
    numbers = [str(number) for number in range(1, len(labels) + 1)]
    table = PlainTable(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("results", "common", "rank correlation", "found", "both", "opposite", "chance"):
        table.add_column(name, justify="right", no_wrap=True)
    for pair, pair_numbers in zip(compare(results, metric), combinations(numbers, 2), strict=True):
        table.add_row(
            *(", ".join(pair_numbers), str(pair.common), _correlation(pair)),
            *(_shared(pair) if pair.chance == pair.chance else ("not tested", "", "", "")),
        )
    note = (
        f"rank correlation of effects with 95 % interval (of ten and more); found: {kind}s at q < {Q} in each; both: "
        "with the same sign; chance: probability that random sets of these sizes share at least as many"
    )
    legend = [Text(f"{number}  {label}") for number, label in zip(numbers, labels, strict=True)]
    parts: list[Any] = [*legend, table, Text(note), *map(Text, _remarks(results, metric))]
    agreements = agreeing(results, metric)
    parts.append(Text(f"\n{count_of(len(agreements), kind)} found in more than one, with the same sign", style="bold"))
    if agreements:
        agreement_table = PlainTable(box=SIMPLE_HEAD, pad_edge=False)
        for name in (kind, "found in", *(f"change in {number}" for number in numbers)):
            agreement_table.add_column(name, justify="right")
        for name, changes, count in agreements[:SHOWN]:
            agreement_table.add_row(
                name,
                str(count),
                *(
                    "" if np.isnan(change) else format_change(change, result.measure(metric).digits)
                    for change, result in zip(changes, results, strict=True)
                ),
            )
        parts.append(agreement_table)
        if len(agreements) > SHOWN:
            parts.append(Text(f"and {len(agreements) - SHOWN} more (--format json)"))
    return Group(*parts)


def _remarks(results: Sequence[Contents], metric: str | None) -> list[str]:
    """What must be known of several results before their comparison is believed."""
    lines = []
    for (first, one), (second, other) in combinations(enumerate(results, 1), 2):
        if one.printed(metric=metric).tolist() == other.printed(metric=metric).tolist():
            lines.append(f"{first} and {second} are the same results twice")
    if different := describe_quantities(results, metric):
        lines.append(different)
    if share_examples(results):
        lines.append("some of these results share examples: agreement may be due to those examples")
    return lines


def _shared(pair: Pair) -> tuple[str, str, str, str]:
    """How many each found, both found with the same and with opposite signs, and how probable that is by chance."""
    return f"{pair.found[0]}, {pair.found[1]}", str(pair.both), str(pair.opposite), format_p(pair.chance)


def _correlation(pair: Pair) -> str:
    if np.isnan(pair.correlation):
        return "undefined"
    interval = "" if np.isnan(pair.low) else f" ({pair.low:.2f} to {pair.high:.2f})"
    return f"{pair.correlation:.2f}{interval}".replace("-", "−")


def compare_data(results: Sequence[Contents], metric: str | None = None) -> dict[str, Any]:
    """All pairs and all ablations on which results agree, for other programs."""
    labels = label_results(results)
    written = {row.name: row.to_dict()["name"] for row in results[0].rows_of(metric)}
    return {
        "results": [
            {
                "label": label,
                "directory": result.source,
                "quantity": str(result.quantity(metric)),
                "sign": result.quantity(metric).sign,
            }
            for label, result in zip(labels, results, strict=True)
        ],
        "pairs": [{**vars(pair), "jaccard": pair.jaccard} for pair in compare(results, metric)],
        "share_examples": share_examples(results),
        "agreeing": [
            {"name": written[name], "found_in": count, "changes": dict(zip(labels, changes, strict=True))}
            for name, changes, count in agreeing(results, metric)
        ],
    }


@dataclass(frozen=True)
class Comparison:
    """Several results side by side; printed, the table of `bertjax compare`.

    Args:
        several: two or more results.
        metric: the metric they are compared by; by default the main one of each.
    """

    several: tuple[Contents, ...]
    metric: str | None = None

    def __post_init__(self) -> None:
        align(self.several, self.metric)

    @property
    def pairs(self) -> list[Pair]:
        """The comparison of every two results."""
        return compare(self.several, self.metric)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as `bertjax compare --format json` prints it."""
        return compare_data(self.several, self.metric)

    def __str__(self) -> str:
        text = io.StringIO()
        # A text is neither shown by a notebook nor coloured, whatever the surroundings ask of consoles.
        console = PlainConsole(
            file=text, width=PIPE_WIDTH, force_jupyter=False, force_terminal=False, color_system=None
        )
        console.print(compare_table(self.several, self.metric))
        return text.getvalue().rstrip()

    def __repr__(self) -> str:
        return str(self)
