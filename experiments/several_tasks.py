"""Do the same heads of one model matter for several tasks, and in several modes?

Reads directories that `bertjax ablate` wrote, of any tasks and modes: what is kept are the score with nothing ablated,
each head's change by the main metric and by the accuracy, with intervals and q, and the same of each group (BLiMP's
paradigms). Tables: tasks and modes; rank correlations of the heads between modes of a task and between tasks in a mode,
with intervals over heads; groups. The picture maps the changes of the accuracies, of a task that has none those of its
first score in points. No model is needed.

    python -m experiments.several_tasks DIR DIR ... --output DIR

For the results see `RESULTS.md`.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

import bertjax
from bertjax.errors import InputError
from bertjax.evidence import POINTS, Measure, Q, rank_correlation
from bertjax.formatting import finite
from experiments.disabling.panels import EffectPanel, draw_effect_maps
from experiments.disabling.summary_lines import table_of
from experiments.shared.program import Outcome, make_joining_parser, run_joining, short_name

KEPT = ("difference", "low", "high", "q")
ACCURACIES = ("accuracy", "word_accuracy")


def compute(options: argparse.Namespace) -> Outcome:
    """Read the results. Raises `InputError` where one cannot be read, or they are not all of a model's single heads."""
    runs = [bertjax.read_results(name) for name in options.directories]
    models = {(run.summary["model"]["weights_sha256"], tuple(run.names)) for run in runs}
    if len(models) > 1:
        raise InputError("the results are not of one model and the same ablations: give those of one")
    if {run.analysis for run in runs} != {"ablation"}:
        raise InputError("the results are not all effects of ablations: give results of bertjax ablate")
    if None in {run.summary["ablations"][0]["head"] for run in runs}:
        raise InputError("the results are not of single heads")
    model = runs[0].summary["model"]
    numbers = {
        "names": runs[0].names,
        "layers": model["layers"],
        "heads": model["heads"],
        "model": short_name(model["name"]),
        "runs": [_describe(run) for run in runs],
    }
    pictures = figures({"results": numbers})
    values = {f"{one['task']}_{one['mode']}": _changes(one, _main(one)) for one in numbers["runs"]}
    return Outcome(numbers, values, pictures.pop("figure"), tables({"results": numbers}).split("\n"), pictures)


def _describe(run: bertjax.Results) -> dict[str, Any]:
    """What is kept of some results: by metric score and changes, with their doubt."""
    summary = run.summary
    metrics = {}
    for name in summary["metrics"]:
        rows, measure = run.rows_of(name), run.measure(name)
        metrics[name] = {
            "label": measure.label,
            "unit": measure.unit,
            "greater_is_better": measure.greater_is_better,
            "base": finite(rows[0].base),
            **{column: [_short(getattr(row, column)) for row in rows] for column in KEPT},
        }
    return {
        "task": summary["data"]["task"],
        "mode": summary["mode"]["name"],
        "examples": summary["data"]["examples"],
        "seconds": summary["seconds"],
        "metrics": metrics,
    }


def _short(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else float(f"{value:.5g}")


def _main(run: Mapping[str, Any]) -> str:
    """The main metric's name."""
    return str(next(iter(run["metrics"])))


def _measure(metric: Mapping[str, Any]) -> Measure:
    return Measure(metric["label"], metric["unit"], metric["greater_is_better"])


def _changes(run: Mapping[str, Any], name: str) -> np.ndarray:
    """The change of each head, above 0 where the score gets better."""
    metric = run["metrics"][name]
    changes = np.array([np.nan if value is None else value for value in metric["difference"]], np.float64)
    return np.asarray(changes * _measure(metric).sign)


def _found(metric: Mapping[str, Any]) -> np.ndarray:
    """Which heads are found."""
    return np.array([1.0 if q is None else q for q in metric["q"]]) < Q


def figures(numbers: Mapping[str, Any]) -> dict[str, Callable[[Path], None]]:
    """The picture, from `numbers.json` alone: changes in points, tasks below each other.

    Raises:
        InputError: a run has no score in points.
    """
    results = numbers["results"]
    shape = results["layers"], results["heads"]
    drawn = [_drawn(run) for run in results["runs"]]
    labels = {"Accuracy" if name in ACCURACIES else metric["label"] for name, metric in drawn}
    panels = []
    for run, (name, metric) in zip(results["runs"], drawn, strict=True):
        change, found = 100 * _changes(run, name), _found(metric)
        more = f": {metric['label']}" if len(labels) > 1 else ""
        panels.append(EffectPanel(f"{run['task']}, {run['mode']}{more}", change.reshape(shape), found.reshape(shape)))
    label = labels.pop() if len(labels) == 1 else "Score"
    texts = {"title": "Disabling one head at a time", "subtitle": results["model"], "label": label}
    return {"figure": partial(draw_effect_maps, panels=panels, **texts)}


def _drawn(run: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The metric that the picture shows, since all panels have one scale: an accuracy, else the first in points."""
    metrics = run["metrics"]
    for name in [*ACCURACIES, *metrics]:
        if name in metrics and metrics[name]["unit"] == POINTS:
            return name, metrics[name]
    raise InputError(f"{run['task']}, {run['mode']}: the picture is in points, and none of {', '.join(metrics)} is")


def tables(numbers: Mapping[str, Any]) -> str:
    """The tables in Markdown, from `numbers.json` alone: tasks and modes; correlations; groups."""
    results = numbers["results"]
    return "\n\n".join([_tasks(results), _correlations(results), *_groups(results)])


def _tasks(results: Mapping[str, Any]) -> str:
    """A row for each run: how many heads are found, and the largest changes."""
    rows = []
    for run in results["runs"]:
        metric = run["metrics"][_main(run)]
        measure, gains, found = _measure(metric), _changes(run, _main(run)), _found(metric)
        others = [
            f"{_measure(other).label} {_measure(other).score(other['base'])}"
            for name, other in run["metrics"].items()
            if ":" not in name and name != _main(run)
        ]
        rows.append(
            [
                f"{run['task']} ({run['examples']:,})",
                run["mode"],
                f"{measure.label} {measure.with_unit(measure.score(metric['base']))} ({', '.join(others)})",
                *(f"{int((found & (sign * gains > 0)).sum())}" for sign in (-1, 1)),
                *(_extreme(results, metric, int(place)) for place in (gains.argmin(), gains.argmax())),
            ]
        )
    headings = ["task (examples)", "mode", "nothing ablated", f"worse (q < {Q})", f"better (q < {Q})"]
    return table_of([*headings, "most worse", "most better"], rows)


def _extreme(results: Mapping[str, Any], metric: Mapping[str, Any], place: int) -> str:
    """A head with its change and interval."""
    measure = _measure(metric)
    change, low, high = (measure.change(metric[name][place]) for name in ("difference", "low", "high"))
    return f"{results['names'][place]}: {change} ({low} to {high})"


def _correlations(results: Mapping[str, Any]) -> str:
    """Rank correlations of the changes by the main metrics, of runs with the same task or the same mode."""
    rows = []
    for first, second in combinations(results["runs"], 2):
        if first["task"] != second["task"] and first["mode"] != second["mode"]:
            continue
        changes = [_changes(run, _main(run)) for run in (first, second)]
        correlation, low, high = rank_correlation(changes[0], changes[1], 0)
        interval = "" if np.isnan(low) else f" ({low:.2f} to {high:.2f})"  # of fewer than ten heads there is none
        both = [
            _found(run["metrics"][_main(run)]) & (change < 0)
            for run, change in zip((first, second), changes, strict=True)
        ]
        names = [f"{run['task']}, {run['mode']}" for run in (first, second)]
        rows.append([*names, f"{correlation:.2f}{interval}", f"{int((both[0] & both[1]).sum())}"])
    return table_of(["first", "second", "rank correlation of heads", "worse without, in both"], rows)


def _groups(results: Mapping[str, Any]) -> list[str]:
    """For each task with groups a table: the score of each, and how many heads are found by it in each mode."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for run in results["runs"]:
        if any(":" in name for name in run["metrics"]):
            found.setdefault(run["task"], []).append(run)
    parts = []
    for task, runs in found.items():
        names = [name for name in runs[0]["metrics"] if ":" in name]
        rows = [[name.partition(":")[2].replace("_", " "), *_group(results, runs, name)] for name in names]
        modes = [f"{run['mode']}: worse, better; most worse" for run in runs]
        parts.append(table_of([f"{task}, by paradigm", "accuracy", *modes], rows))
    return parts


def _group(results: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    cells = [_measure(runs[0]["metrics"][name]).score(runs[0]["metrics"][name]["base"])]
    for run in runs:
        metric, gains = run["metrics"][name], _changes(run, name)
        counts = [int((_found(metric) & (sign * gains > 0)).sum()) for sign in (-1, 1)]
        worst = int(np.nanargmin(gains))
        change = _measure(metric).change(metric["difference"][worst])
        cells.append(f"{counts[0]}, {counts[1]}; {results['names'][worst]} {change}")
    return cells


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_joining_parser("several_tasks", __doc__, "results of bertjax ablate")
    return run_joining(parser, "several_tasks", compute, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
