"""What does each layer encode, and do the layers that encode it matter for a task?

Reads directories of analyses with a row for each layer: `bertjax probe`, `probe-edges`, `structure` and `geometry`, and
on tasks `ablate --ablate layers` and `restore`. DIR:METRIC takes another metric than the main one. Tables: the score of
each layer, and its difference from the embeddings, or from the unchanged model, with 95 % intervals; mixes of layers;
and Spearman's correlation over layers of what they encode with what their ablation or restoration costs, for results of
one model.

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
from experiments.shared.tables import format_estimate, format_interval, format_p, make_table

OF_TASKS = ("ablation", "restore")  # analyses whose differences are costs on a task
ORDERS = 20_000


def compute(run: Run) -> Found:
    """Read the directories, and correlate what layers encode with what they cost."""
    found = [describe(name) for name in run.options.directories]
    costs = [one for one in found if one["analysis"] in OF_TASKS]
    encoded = [one for one in found if one["analysis"] not in OF_TASKS]
    joined = [(one, cost) for cost in costs for one in encoded if one["model"] == cost["model"]]
    pairs = [correlate(*pair) for pair in joined if _names(pair[0]) == _names(pair[1])]
    return {"runs": found, "correlations": pairs}, {}


def _names(one: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(row["name"] for row in one["rows"])


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
        "name": short_name(name),
        "analysis": results.analysis,
        "model": short_name(summary["model"]["name"]),
        "data": Path(summary["data"]["source"].split(" (")[0]).name if "source" in summary["data"] else "",
        "task": summary["data"]["task"],
        "label": measure.label,
        "unit": measure.unit,
        "greater_is_better": measure.greater_is_better,
        "base": _scaled(base, measure.factor),
        "rows": numbers,
        "mix": _mix(summary.get("probe", {})) if not metric else None,
    }


def _mix(probe: Mapping[str, Any]) -> dict[str, Any] | None:
    """What edge probes of mixes of layers found, of an analysis that has them."""
    if "mix" not in probe:
        return None
    mix, expected = probe["mix"], probe["expected_layer"]
    return {
        "accuracy": _scaled(mix["accuracy"], 100),
        "centre_of_gravity": short(mix["centre_of_gravity"]),
        "expected_layer": [expected["layer"], *(expected["interval"] or ())],
    }


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else short(factor * value, 5)


def correlate(encoded: Mapping[str, Any], cost: Mapping[str, Any]) -> dict[str, Any]:
    """Spearman's correlation over layers of a score with the loss on a task, and its p over orders of the layers."""
    scores = array([row["score"] for row in encoded["rows"]])
    sign = -1.0 if cost["greater_is_better"] else 1.0
    loss = sign * array([row["difference"][0] for row in cost["rows"]])
    groups = np.zeros(len(loss), np.int64)
    return {
        "encoded": _name(encoded),
        "cost": _name(cost),
        "layers": len(loss),
        "spearman": short(spearman(scores, loss)),
        "p": short(permute(scores, loss, groups, ORDERS, 0)),
    }


def _name(one: Mapping[str, Any]) -> str:
    return f"{one['name'].partition(':')[0]}: {one['label']}"


def tables(runs: Runs) -> str:
    """The scores of layers, a table for runs with the same rows; and the correlations, if there are any."""
    found: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for numbers in runs.values():
        for one in numbers["results"]["runs"]:
            found.setdefault(_names(one), []).append(one)
    head = ["score: difference (95 % interval)", "model", "base"]
    texts = [make_table([*head, *names], [_line(one) for one in group]) for names, group in found.items()]
    mixes = [one for group in found.values() for one in group if one["mix"]]
    if mixes:
        head = ["edge probes of mixes of layers", "accuracy", "centre of gravity", "expected layer (95 % interval)"]
        texts.append(make_table(head, [_mix_line(one) for one in mixes]))
    pairs = [pair for numbers in runs.values() for pair in numbers["results"]["correlations"]]
    if pairs:
        rows = [
            [pair["encoded"], pair["cost"], format_estimate(pair["spearman"]), format_p(pair["p"])] for pair in pairs
        ]
        texts.append(make_table(["layers encode", "loss without them", "correlation", "p"], rows))
    return "\n\n".join(texts)


def _mix_line(one: Mapping[str, Any]) -> list[str]:
    mix, (expected, *ends) = one["mix"], one["mix"]["expected_layer"]
    interval = format_interval(expected, ends) if ends else f"{expected:.2f} (undefined)"
    return [one["name"], f"{mix['accuracy']:.1f}", f"{mix['centre_of_gravity']:.2f}", interval]


def _line(one: Mapping[str, Any]) -> list[str]:
    base = one["base"] or None  # a comparison has none: its intervals are those of scores
    cells = [_name(one), one["model"], _number(base)]
    for row in one["rows"]:
        change, *ends = row["difference"]
        found = format_estimate(change, ends) if base else f"{_number(ends[0])} to {_number(ends[1])}"
        cells.append(f"{_number(row['score'])}{'*' * row['significant']}: {found}")
    return cells


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def figures(numbers: Numbers) -> Figures:
    """Bars of the differences of the layers: a figure for the runs with the same unit and rows."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for one in numbers["results"]["runs"]:
        groups.setdefault((one["unit"], *_names(one)), []).append(one)
    return {
        f"figure_{place}" if place else "figure": partial(_draw, found) for place, found in enumerate(groups.values())
    }


def _draw(found: Sequence[Mapping[str, Any]], path: Path) -> None:
    bars = {}
    for one in found:
        ends = array([row["difference"] for row in one["rows"]])
        bars[one["name"]] = (*ends.T, np.array([row["significant"] for row in one["rows"]]))
    texts = Texts("Scores by layer", "from the embeddings, or from the unchanged model", f"change, {found[0]['unit']}")
    draw_effect_bars(path, _names(found[0]), bars, texts)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_reader(__doc__)
    parser.add_argument("directories", nargs="+", metavar="DIR", help="results of bertjax, or DIR:METRIC")
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
