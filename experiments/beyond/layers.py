"""What does each layer encode, and do the layers that encode it matter for a task?

Reads directories of analyses with a row for each layer: `bertjax probe`, `structure` and `geometry`, and on tasks
`ablate --ablate layers` and `restore`. DIR:METRIC takes another metric than the main one. Tables: the score of each
layer by each analysis, and its difference from the embeddings, or from the unchanged model, with 95 % intervals; and
Spearman's correlation over layers of what they encode with what their ablation or restoration costs, for results of one
model.

The p-value is over orders of the layers. With six layers a correlation must exceed 0.83 for p < 0.05: that one is not
significant shows little.

    python -m experiments.beyond.layers DIR DIR:METRIC ... --output DIR
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import bertjax
from experiments.shared.figures import Texts, draw_effect_bars
from experiments.shared.joins import permute, spearman
from experiments.shared.run import Figures, Found, Numbers, Run, Runs, array, make_reader, run_script, short, short_name
from experiments.shared.tables import format_estimate, format_p, make_table

OF_TASKS = ("ablation", "restore")  # analyses whose differences are costs on a task
ORDERS = 20_000


def compute(run: Run) -> Found:
    """Read the directories, and correlate what layers encode with what they cost."""
    found = [describe(name) for name in run.options.directories]
    costs = [one for one in found if one["analysis"] in OF_TASKS]
    encoded = [one for one in found if one["analysis"] not in OF_TASKS]
    pairs = [correlate(one, cost) for cost in costs for one in encoded if one["model"] == cost["model"]]
    return {"runs": found, "correlations": pairs}, {}


def describe(name: str) -> dict[str, Any]:
    """The scores of layers by one metric of a directory, in the unit of its tables.

    Args:
        name: the directory, or DIRECTORY:METRIC.
    """
    directory, _, metric = name.partition(":")
    results = bertjax.read_results(directory)
    measure, rows = results.measure(metric or None), results.rows_of(metric or None)
    base = next((row.base for row in rows if row.base is not None), None)
    numbers = [
        {
            "name": row.name,
            "score": _scaled(row.score, measure.factor),
            "difference": [_scaled(value, measure.factor) for value in (row.difference, row.low, row.high)],
            "significant": row.significant,
        }
        for row in rows
    ]
    summary = results.summary
    return {
        "analysis": results.analysis,
        "model": short_name(summary["model"]["name"]),
        "data": Path(summary["data"]["source"].split(" (")[0]).name if "source" in summary["data"] else "",
        "task": summary["data"]["task"],
        "label": measure.label,
        "unit": measure.unit,
        "base": _scaled(base, measure.factor),
        "rows": numbers,
    }


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else short(factor * value, 5)


def correlate(encoded: Mapping[str, Any], cost: Mapping[str, Any]) -> dict[str, Any]:
    """Spearman's correlation over layers of a score with the loss on a task, and its p over orders of the layers."""
    losses = {row["name"]: -array(row["difference"][0]) for row in cost["rows"]}
    shared = [row for row in encoded["rows"] if row["name"] in losses]
    scores = array([row["score"] for row in shared])
    loss = array([losses[row["name"]] for row in shared])
    groups = np.zeros(len(shared), np.int64)
    return {
        "encoded": _name(encoded),
        "cost": _name(cost),
        "layers": len(shared),
        "spearman": short(spearman(scores, loss)),
        "p": short(permute(scores, loss, groups, ORDERS, 0)),
    }


def _name(one: Mapping[str, Any]) -> str:
    return f"{one['label']}, {one['task'] if one['analysis'] in OF_TASKS else one['analysis']}, {one['model']}"


def tables(runs: Runs) -> str:
    """The scores of layers; and the correlations, if there are any."""
    found = [one for numbers in runs.values() for one in numbers["results"]["runs"]]
    layers = list(dict.fromkeys(row["name"] for one in found for row in one["rows"]))
    lines = [[_name(one), _number(one["base"]), *_cells(one, layers)] for one in found]
    text = make_table(["score: difference (95 % interval)", "base", *(f"layer {name}" for name in layers)], lines)
    pairs = [pair for numbers in runs.values() for pair in numbers["results"]["correlations"]]
    if not pairs:
        return text
    rows = [[pair["encoded"], pair["cost"], format_estimate(pair["spearman"]), format_p(pair["p"])] for pair in pairs]
    return f"{text}\n\n{make_table(['layers encode', 'loss without them', 'correlation', 'p'], rows)}"


def _cells(one: Mapping[str, Any], layers: Sequence[str]) -> list[str]:
    rows = {row["name"]: row for row in one["rows"]}
    cells = []
    for name in layers:
        row = rows.get(name)
        mark = "*" if row and row["significant"] else ""
        change = format_estimate(row["difference"][0], row["difference"][1:]) if row else ""
        cells.append(f"{_number(row['score'])}{mark}: {change}" if row else "")
    return cells


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def figures(numbers: Numbers) -> Figures:
    """Bars of the differences of the layers: a figure for the analyses of each unit."""
    by_unit: dict[str, list[Mapping[str, Any]]] = {}
    for one in numbers["results"]["runs"]:
        by_unit.setdefault(one["unit"], []).append(one)
    return {
        f"figure_{unit}" if place else "figure": partial(_draw, found)
        for place, (unit, found) in enumerate(by_unit.items())
    }


def _draw(found: Sequence[Mapping[str, Any]], path: Path) -> None:
    names = list(dict.fromkeys(row["name"] for one in found for row in one["rows"]))
    bars = {}
    for one in found:
        rows = {row["name"]: row for row in one["rows"]}
        ends = [rows[name]["difference"] if name in rows else [None] * 3 for name in names]
        marks = np.array([name in rows and rows[name]["significant"] for name in names])
        bars[f"{one['label']}\n{one['model']}"] = (*array(ends).T, marks)
    texts = Texts("What layers encode", "95 % intervals; layer 0 at the top", f"difference, {found[0]['unit']}")
    draw_effect_bars(path, names, bars, texts)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_reader(__doc__)
    parser.add_argument("directories", nargs="+", metavar="DIR", help="results of bertjax, or DIR:METRIC")
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
