"""How many heads can go, of several models and tasks, and in which order?

Reads directories of `bertjax prune`: half of each task's examples chose the orders, the other half judges them. Tables:
the score at each number of heads left, for each order, the first one that is significantly worse than all heads (q <
0.05, corrected over all points and orders) in bold; how many heads go before that; learned gates, a set for each price.
A picture for each directory. No model is needed.

    python -m experiments.pruning_curves DIR DIR ... --output DIR

For the results see `RESULTS.md`.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import bertjax
from bertjax.errors import InputError
from experiments.disabling.summary_lines import table_of
from experiments.shared.curves import describe_pruning, draw_pruning, pruning_table
from experiments.shared.program import Outcome, make_joining_parser, run_joining


def compute(options: argparse.Namespace) -> Outcome:
    """Read the directories. Raises `InputError` for what is not of `bertjax prune`, or two of one model and task."""
    found = [describe_pruning(bertjax.read_results(name)) for name in options.directories]
    names = [_name(one) for one in found]
    if len(set(names)) < len(names):
        raise InputError("two directories are of one model, task and mode: give each once")
    numbers = {"runs": found}
    pictures = figures({"results": numbers})
    values = {
        f"{name} {curve['name']}": np.array(curve["scores"])
        for name, one in zip(names, found, strict=True)
        for curve in one["curves"]
    }
    return Outcome(numbers, values, pictures.pop("figure"), tables({"results": numbers}).split("\n"), pictures)


def _name(found: Mapping[str, Any]) -> str:
    return f"{found['model']}_{found['task']}_{found['mode']}"


def tables(numbers: Mapping[str, Any]) -> str:
    """The tables in Markdown, from `numbers.json` alone: how many heads can go, and the curves of each directory."""
    runs = numbers["results"]["runs"]
    orders = list(dict.fromkeys(name for one in runs for name in one["first_worse"] if "random" not in name))
    rows = [[f"{one['model']}, {one['task']}", *(_spared(one, order) for order in orders)] for one in runs]
    return "\n\n".join([table_of(["heads gone before the first loss found", *orders], rows), *map(pruning_table, runs)])


def _spared(found: Mapping[str, Any], order: str) -> str:
    """How many heads are gone at the last point before the first that is significantly worse."""
    if order not in found["first_worse"]:
        return ""
    first, counts = found["first_worse"][order], [found["heads"], *found["points"]]
    last = counts[-1] if first is None else counts[counts.index(first) - 1]
    return f"{found['heads'] - last} of {found['heads']}"


def figures(numbers: Mapping[str, Any]) -> dict[str, Callable[[Path], None]]:
    """The pictures, from `numbers.json` alone: the curves of the first directory, and of each other."""
    runs = numbers["results"]["runs"]
    return {"figure" if place == 0 else _name(one): draw_pruning(one) for place, one in enumerate(runs)}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_joining_parser("pruning_curves", __doc__, "results of bertjax prune")
    return run_joining(parser, "pruning_curves", compute, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
