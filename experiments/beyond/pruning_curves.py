"""How many heads can be removed from several models, and in which order?

Reads directories of `bertjax prune`: half of each task's examples choose the orders, the other half evaluates them.
Table: how many heads are removed before the first significant loss (q < 0.05, over all points and orders). A figure for
each directory: the score at each number of heads left.

    python -m experiments.beyond.pruning_curves DIR DIR ... --output DIR
"""

from collections.abc import Mapping, Sequence
from typing import Any

import bertjax
from experiments.shared.curves import describe_pruning, draw_pruning
from experiments.shared.run import Figures, Found, Numbers, Run, Runs, make_reader, run_script
from experiments.shared.tables import make_table


def compute(run: Run) -> Found:
    """Read the directories."""
    return {"runs": [describe_pruning(bertjax.read_results(name)) for name in run.options.directories]}, {}


def _name(found: Mapping[str, Any]) -> str:
    return f"{found['model']}_{found['task']}_{found['mode']}"


def tables(runs: Runs) -> str:
    """How many heads can be removed by each order."""
    found = [one for numbers in runs.values() for one in numbers["results"]["runs"]]
    orders = list(dict.fromkeys(name for one in found for name in one["first_worse"] if "random" not in name))
    rows = [[f"{one['model']}, {one['task']}", *(_spared(one, order) for order in orders)] for one in found]
    return make_table(["heads removed before the first significant loss", *orders], rows)


def _spared(found: Mapping[str, Any], order: str) -> str:
    """How many heads are gone at the last point before the first that is significantly worse."""
    if order not in found["first_worse"]:
        return ""
    first, counts = found["first_worse"][order], [found["heads"], *found["points"]]
    last = counts[-1] if first is None else counts[counts.index(first) - 1]
    return f"{found['heads'] - last} of {found['heads']}"


def figures(numbers: Numbers) -> Figures:
    """The curves of the first directory, and of each other."""
    runs = numbers["results"]["runs"]
    return {"figure" if place == 0 else _name(one): draw_pruning(one) for place, one in enumerate(runs)}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_reader(__doc__)
    parser.add_argument("directories", nargs="+", metavar="DIR", help="results of bertjax prune")
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
