"""Do the same heads of one model matter for several tasks, and in several modes?

Reads directories of `bertjax ablate` for single heads of one model, of any tasks and modes. Tables: tasks and modes;
rank correlations of the heads between modes of a task and between tasks in a mode, with intervals over heads; groups
(BLiMP's paradigms). The figure maps changes in accuracy, or in the first score in points.

    python -m experiments.beyond.tasks_and_modes DIR DIR ... --output DIR
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

import bertjax
from bertjax.statistics import POINTS, Measure, Q, rank_correlation
from experiments.shared.figures import Texts, draw_effect_maps
from experiments.shared.run import Figures, Found, Numbers, Run, Runs, array, make_reader, run_script, short, short_name
from experiments.shared.tables import make_table

KEPT = ("difference", "low", "high", "q")
ACCURACIES = ("accuracy", "word_accuracy")


def compute(run: Run) -> Found:
    """Read the results."""
    results = [bertjax.read_results(name) for name in run.options.directories]
    model = results[0].summary["model"]
    numbers = {"names": results[0].names, "layers": model["layers"], "heads": model["heads"]}
    numbers |= {"model": short_name(model["name"]), "runs": [_describe(one) for one in results]}
    return numbers, {f"{one['task']}_{one['mode']}": _changes(one, _main(one)) for one in numbers["runs"]}


def _describe(run: bertjax.Results) -> dict[str, Any]:
    """What is kept of some results: by metric score and changes, with their intervals."""
    summary = run.summary
    metrics = {}
    for name in summary["metrics"]:
        rows, measure = run.rows_of(name), run.measure(name)
        metrics[name] = {
            "label": measure.label,
            "unit": measure.unit,
            "greater_is_better": measure.greater_is_better,
            "base": rows[0].base,
            **{column: [short(getattr(row, column), 5) for row in rows] for column in KEPT},
        }
    return {
        "task": summary["data"]["task"],
        "mode": summary["mode"]["name"],
        "examples": summary["data"]["examples"],
        "seconds": summary["seconds"],
        "metrics": metrics,
    }


def _main(run: Mapping[str, Any]) -> str:
    """The main metric's name."""
    return str(next(iter(run["metrics"])))


def _measure(metric: Mapping[str, Any]) -> Measure:
    return Measure(metric["label"], metric["unit"], metric["greater_is_better"])


def _changes(run: Mapping[str, Any], name: str) -> np.ndarray:
    """The change of each head, above 0 where the score gets better."""
    metric = run["metrics"][name]
    return np.asarray(array(metric["difference"]) * _measure(metric).sign)


def _found(metric: Mapping[str, Any]) -> np.ndarray:
    """Which heads are found."""
    return np.nan_to_num(array(metric["q"]), nan=1.0) < Q


def figures(numbers: Numbers) -> Figures:
    """Changes in points, a map for each run."""
    results = numbers["results"]
    shape, maps = (results["layers"], results["heads"]), {}
    for run in results["runs"]:
        name, metric = _drawn(run)
        change, found = 100 * _changes(run, name), _found(metric)
        maps[f"{run['task']}, {run['mode']}: {metric['label']}"] = change.reshape(shape), found.reshape(shape)
    texts = Texts("Ablating one head at a time", results["model"], "change in points")
    return {"figure": partial(draw_effect_maps, maps=maps, texts=texts)}


def _drawn(run: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The metric in the figure, whose panels have one scale: an accuracy, or else the first in points."""
    metrics = run["metrics"]
    names = [name for name in [*ACCURACIES, *metrics] if name in metrics and metrics[name]["unit"] == POINTS]
    return names[0], metrics[names[0]]


def tables(runs: Runs) -> str:
    """Tasks and modes; correlations of the first run's."""
    headings = ["task (examples)", "mode", "base", f"losses (q < {Q})", f"gains (q < {Q})"]
    rows = [row for numbers in runs.values() for row in _tasks(numbers["results"])]
    table = make_table([*headings, "largest loss", "largest gain"], rows)
    return "\n\n".join([table, _correlations(next(iter(runs.values()))["results"])])


def _tasks(results: Mapping[str, Any]) -> list[list[str]]:
    """A row for each run: how many heads are found, and the largest changes."""
    rows = []
    for run in results["runs"]:
        metric = run["metrics"][_main(run)]
        measure, gains, found = _measure(metric), _changes(run, _main(run)), _found(metric)
        rows.append(
            [
                f"{run['task']} ({run['examples']:,})",
                run["mode"],
                f"{measure.label} {measure.with_unit(measure.score(metric['base']))}",
                *(f"{int((found & (sign * gains > 0)).sum())}" for sign in (-1, 1)),
                *(_extreme(results, metric, int(index)) for index in (gains.argmin(), gains.argmax())),
            ]
        )
    return rows


def _extreme(results: Mapping[str, Any], metric: Mapping[str, Any], index: int) -> str:
    """A head with its change and interval."""
    measure = _measure(metric)
    change, low, high = (measure.change(metric[name][index]) for name in ("difference", "low", "high"))
    return f"{results['names'][index]}: {change} ({low} to {high})"


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
    return make_table(["first", "second", "rank correlation of heads", "losses in both"], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_reader(__doc__)
    parser.add_argument("directories", nargs="+", metavar="DIR", help="results of bertjax ablate")
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
