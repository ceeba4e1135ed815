"""Compare results of several seeds, tasks, checkpoints or modes: `bertjax compare DIR DIR ...`."""

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.text import Text

from bertjax.console import PIPE_WIDTH, PlainConsole, PlainTable
from bertjax.errors import InputError
from bertjax.formatting import count_of, format_change, format_p, plural
from bertjax.results.contents import Contents
from bertjax.results.table import Row, column, significant
from bertjax.statistics import Q, rank_correlation

SHOWN = 12  # ablations on which results agree, in the table


@dataclass(frozen=True)
class Pair:
    """The comparison of two results on the ablations they share.

    Args:
        first: label of the first results.
        second: label of the second results.
        common: the number of shared ablations.
        correlation: Spearman's correlation of the effects; NaN if it is undefined.
        low: lower end of its 95 % interval, from ablations drawn with replacement; NaN for fewer than ten ablations.
        high: upper end of the interval.
        found: the number of significant effects (q < 0.05) in each.
        both: the number of effects that are significant in both, with the same sign.
        opposite: the number of effects that are significant in both, with opposite signs.
        chance: the probability that two random sets of these sizes share at least as many; NaN if one was not tested.
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
        """`both` divided by the number of effects that are significant in either; NaN if there are none."""
        union = sum(self.found) - self.both - self.opposite
        return self.both / union if union else float("nan")


def label_results(results: Sequence[Contents]) -> list[str]:
    """Labels that distinguish results: the properties that differ (model, task, mode ...), or else the directories."""
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
    """The names of the ablations that all results share, and their rows in each, by a metric or the main metric.

    Raises:
        InputError: there are fewer than two results, they measure different quantities, they share fewer than two
            ablations, one lacks the metric, or a shared name means different heads.
    """
    if len(results) < 2:
        raise InputError("give at least two directories of results")
    quantities = [result.quantity(metric) for result in results]
    for result, quantity in zip(results, quantities, strict=True):
        if quantity.compared_as != quantities[0].compared_as:
            raise InputError(
                f"{results[0].source} measures {quantities[0]}, {result.source} {quantity}: they cannot be compared; "
                "give results of one analysis, or a metric (--metric) that all have"
            )
    tables = [{row.name: row for row in result.rows_of(metric)} for result in results]
    for name in set.intersection(*map(set, tables)):
        if len({tuple(table[name].heads) for table in tables}) > 1:
            raise InputError(f"{name!r} means different heads in these results: give different sets different names")
    names = [name for name in tables[0] if all(name in table for table in tables)]
    if len(names) < 2:
        kinds = ", ".join(f"{result.source} has {count_of(len(result.names), result.noun)}" for result in results)
        raise InputError(f"the results share fewer than two ablations: {kinds}")
    return names, [[table[name] for name in names] for table in tables]


def compare(results: Sequence[Contents], metric: str | None = None, seed: int = 0) -> list[Pair]:
    """Compare every pair of results by a metric, by default the main one of each.

    A change is positive if the score gets better. Contributions (Shapley values) count with the opposite sign, as
    effects of ablating the heads.

    Raises:
        InputError: as for `align`.
    """
    labels, (_, tables) = label_results(results), align(results, metric)
    gains = [_gains(*each, metric) for each in zip(results, tables, strict=True)]
    return [_pair(*pair, seed) for pair in combinations(zip(labels, tables, gains, strict=True), 2)]


def _gains(result: Contents, rows: Sequence[Row], metric: str | None) -> Float[np.ndarray, " ablations"]:
    """Changes of the score, positive if it gets better without the heads."""
    return result.measure(metric).sign * result.quantity(metric).sign * column(rows, "difference")


_Effects: TypeAlias = tuple[str, Sequence[Row], np.ndarray]  # label, rows and gains


def _pair(first: _Effects, second: _Effects, seed: int) -> Pair:
    from scipy.stats import hypergeom

    tables, gains = (first[1], second[1]), (first[2], second[2])
    correlation, low, high = rank_correlation(*gains, seed)
    are_significant = [significant(rows) for rows in tables]
    in_both = are_significant[0] & are_significant[1]
    same_sign = np.sign(gains[0]) == np.sign(gains[1])
    found = int(are_significant[0].sum()), int(are_significant[1].sum())
    tested = all(any(row.q is not None for row in rows) for rows in tables)
    chance = float(hypergeom.sf(in_both.sum() - 1, len(in_both), *found)) if tested else float("nan")
    both, opposite = int((in_both & same_sign).sum()), int((in_both & ~same_sign).sum())
    return Pair(first[0], second[0], len(in_both), correlation, low, high, found, both, opposite, chance)


def describe_quantities(results: Sequence[Contents], metric: str | None = None) -> str:
    """A note if results measure different quantities; empty if they measure the same."""
    quantities = [result.quantity(metric) for result in results]
    if len({*quantities}) < 2:
        return ""
    named = ", ".join(f"{number} {quantity}" for number, quantity in enumerate(quantities, 1))
    opposite = len({quantity.sign for quantity in quantities}) > 1
    signs = "; contributions count with the opposite sign, as the effect of ablating the head" if opposite else ""
    return f"different quantities: {named}{signs}"


def share_examples(results: Sequence[Contents]) -> bool:
    """Whether any two results share examples of the same task and split."""
    data = [result.summary["data"] for result in results]
    ids = [{str(example["id"]) for example in result.examples} for result in results]
    sources = [(one["task"], one["split"], known) for one, known in zip(data, ids, strict=True)]
    return any(first[:2] == second[:2] and first[2] & second[2] for first, second in combinations(sources, 2))


def agreeing(results: Sequence[Contents], metric: str | None = None) -> list[tuple[str, list[float], int]]:
    """Ablations with significant effects of the same sign in several results: name, printed changes, number of results.

    Sorted by the number of results, then by the size of the mean effect.
    """
    names, tables = align(results, metric)
    factors = np.array([[result.measure(metric).factor] for result in results])
    changes = factors * np.stack([column(rows, "difference") for rows in tables])
    gains = factors * np.stack([_gains(*each, metric) for each in zip(results, tables, strict=True)])
    are_significant = np.stack([significant(rows) for rows in tables])
    counts = np.stack([(are_significant & (sign * gains > 0)).sum(0) for sign in (1, -1)]).max(0)
    order = sorted(range(len(names)), key=lambda index: (-counts[index], -abs(np.nanmean(gains[:, index]))))
    return [(names[index], changes[:, index].tolist(), int(counts[index])) for index in order if counts[index] > 1]


def compare_table(results: Sequence[Contents], metric: str | None = None) -> Group:
    """A table for terminals: the numbered results, a row for each pair, and the ablations on which results agree.

    Args:
        results: the results to compare, at least two.
        metric: the metric that is compared; by default the main metric of each.
    """
    labels, noun = label_results(results), results[0].noun
    numbers = [str(number) for number in range(1, len(labels) + 1)]
    table = PlainTable(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("results", "common", "rank correlation", "found", "both", "opposite", "chance"):
        table.add_column(name, justify="right", no_wrap=True)
    for pair, pair_numbers in zip(compare(results, metric), combinations(numbers, 2), strict=True):
        table.add_row(
            *(", ".join(pair_numbers), str(pair.common), _correlation(pair)),
            *(
                (f"{pair.found[0]}, {pair.found[1]}", str(pair.both), str(pair.opposite), format_p(pair.chance))
                if pair.chance == pair.chance
                else ("not tested", "", "", "")
            ),
        )
    note = (
        "rank correlation of effects with 95 % interval (for at least ten); "
        f"found: {plural(noun)} with q < {Q} in each; both: with the same sign; "
        "chance: probability that random sets of these sizes share at least as many"
    )
    legend = [Text(f"{number}  {label}") for number, label in zip(numbers, labels, strict=True)]
    parts: list[Any] = [*legend, table, Text(note), *map(Text, _warnings(results, metric))]
    agreements = agreeing(results, metric)
    parts.append(Text(f"\n{count_of(len(agreements), noun)} found in several, with the same sign", style="bold"))
    if agreements:
        agreement_table = PlainTable(box=SIMPLE_HEAD, pad_edge=False)
        for name in (noun, "found in", *(f"change in {number}" for number in numbers)):
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


def _warnings(results: Sequence[Contents], metric: str | None) -> list[str]:
    """Warnings on results that are equal, measure different quantities, or share examples."""
    lines = []
    for (first, one), (second, other) in combinations(enumerate(results, 1), 2):
        if one.printed(metric=metric).tolist() == other.printed(metric=metric).tolist():
            lines.append(f"{first} and {second} are the same results")
    if different := describe_quantities(results, metric):
        lines.append(different)
    if share_examples(results):
        lines.append("some of these results share examples: agreement may be due to those examples")
    return lines


def _correlation(pair: Pair) -> str:
    if np.isnan(pair.correlation):
        return "undefined"
    interval = "" if np.isnan(pair.low) else f" ({pair.low:.2f} to {pair.high:.2f})"
    return f"{pair.correlation:.2f}{interval}".replace("-", "−")


def compare_data(results: Sequence[Contents], metric: str | None = None) -> dict[str, Any]:
    """All pairs, and all ablations on which results agree, for `--format json`.

    Args:
        results: the results to compare, at least two.
        metric: the metric that is compared; by default the main metric of each.
    """
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
    """The comparison of results; printed, it is the table of `bertjax compare`.

    Args:
        results: at least two.
        metric: the metric that is compared; by default the main metric of each.
    """

    results: tuple[Contents, ...]
    metric: str | None = None

    def __post_init__(self) -> None:
        align(self.results, self.metric)

    @property
    def pairs(self) -> list[Pair]:
        """The comparison of each pair of results."""
        return compare(self.results, self.metric)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as `bertjax compare --format json` prints it."""
        return compare_data(self.results, self.metric)

    def __str__(self) -> str:
        text = io.StringIO()
        # A str is never coloured or displayed, whatever environment variables say.
        console = PlainConsole(
            file=text, width=PIPE_WIDTH, force_jupyter=False, force_terminal=False, color_system=None
        )
        console.print(compare_table(self.results, self.metric))
        return text.getvalue().rstrip()

    def __repr__(self) -> str:
        return str(self)
