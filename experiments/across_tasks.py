"""Do the same heads matter across seeds, across tasks and by other measures? (Kovaleva et al. 2019, 4.6, 5)

Reads directories written by `head_ablation` (or `layer_ablation`) for models fine-tuned with several seeds on one or
more tasks. It reports on one mode, the paper's by default:

- For each task, over its seeds: the mean effect of each head, with an interval and a test that treat seeds and examples
  as random (q over the heads); in how many seeds the head's own test finds it; the effect of a random head; how well
  two seeds agree, each on a different half of the examples, and how much of the order of heads is more than the noise
  of the examples.
- For each pair of tasks: the rank correlation of the effects, with an interval over examples; p from permuting the
  heads (all, and within layers); the highest correlation that the noise allows; and which heads both tasks have among
  the tenth with the largest losses, and among the tenth with the largest gains.
- With --frames, --patterns or --map, for each task and each other measure of heads: the rank correlation between the
  measure and the cost of disabling a head, and the mean loss of the heads that it marks against the others'. --frames
  is the paper's question whether heads with frame relations matter for tasks (section 5): weights between elements and
  predicate, how far these exceed the same key's weight from other words, and the heads that nulls and controls leave.
  The maps may come from another model than the one whose heads were disabled, such as the one it was fine-tuned from.

All tasks side by side are the paper's figures 8 and 9. No model is needed.

    python -m experiments.across_tasks mrpc-0 mrpc-1 rte-0 rte-1 --frames FRAMES/numbers.json --output DIR

For the results see `RESULTS.md`, 4.6.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.cli import Parser, positive
from bertjax.errors import InputError
from bertjax.evidence import METRICS, Q, benjamini_hochberg
from bertjax.paths import user_path
from bertjax.jobs import available_modes
from experiments.disabling.agreement import draw_agreement
from experiments.disabling.effects import short_or_none
from experiments.disabling.head_maps import HeadMap, read_frames, read_map, read_patterns
from experiments.disabling.joined import TESTS, joined_lines, measures_table, pairs_table, seeds_table
from experiments.disabling.joins import compare_marked, correlate, join_seeds, join_tasks
from experiments.disabling.panels import EffectPanel, draw_effect_bars, draw_effect_maps
from experiments.disabling.runs import TaskEffects, group_by_task, measure_task, read_run
from experiments.shared.program import Outcome, run_joining, whole

SPLITS = 100  # of the examples into halves


def compute(options: argparse.Namespace) -> Outcome:
    """Join the runs. Raises `InputError` where a directory holds no such run, or the runs do not belong together."""
    runs = [read_run(user_path(name, InputError), options.mode) for name in options.directories]
    tasks = group_by_task(runs)
    first = runs[0].results
    shape = first["layers"], first["heads"]
    maps = _read_maps(options, list(tasks), first["kind"], shape)
    layers = np.array([int(name.partition(".")[0]) for name in first["names"]])
    measured = {
        task: measure_task(task, seeds, options.resamples, SPLITS, options.seed) for task, seeds in tasks.items()
    }
    numbers: dict[str, Any] = {"kind": first["kind"], "mode": options.mode, "layers": shape[0], "heads": shape[1]}
    numbers |= {"names": first["names"], "resamples": options.resamples, "permutations": options.permutations}
    numbers["tasks"] = {task: join_seeds(effects) for task, effects in measured.items()}
    pairs = [
        join_tasks(left, right, layers, options.permutations, options.seed)
        for left, right in combinations(measured.values(), 2)
    ]
    for p, q in TESTS:
        pairs = _with_q(pairs, p, q)
    numbers["pairs"] = pairs
    numbers["measures"] = _join_maps(options, measured, maps, layers)
    pictures = figures({"results": numbers})
    values = {f"changes_{task}".replace("/", "_"): effects.change for task, effects in measured.items()}
    return Outcome(numbers, values, pictures.pop("figure"), joined_lines(numbers), pictures)


def _read_maps(options: argparse.Namespace, tasks: Sequence[str], kind: str, shape: tuple[int, int]) -> list[HeadMap]:
    if kind != "head" and (options.map or options.frames or options.patterns):
        raise InputError(f"--frames, --patterns and --map are measures of heads, and these runs are of {kind}s")
    maps = [read_map(spec, tasks, shape) for spec in options.map]
    if options.frames:
        maps += read_frames(options.frames, shape)
    if options.patterns:
        maps += read_patterns(options.patterns, tasks, shape)
    return maps


def _join_maps(
    options: argparse.Namespace, measured: Mapping[str, TaskEffects], maps: Sequence[HeadMap], layers: Any
) -> list[dict[str, Any]]:
    """The cost of disabling a head, compared with other measures of it; q over all comparisons."""
    joins: list[dict[str, Any]] = []
    comparisons: list[dict[str, Any]] = []
    for task, effects in measured.items():
        for head_map in maps:
            values, marks = head_map.of(task), head_map.marks_of(task)
            if values is None:
                continue
            draws = [(-mean, values) for mean in effects.drawn_mean]
            joined = correlate(-effects.mean, values, layers, draws, options.permutations, options.seed)
            joins.append({"task": task, "measure": head_map.name, **joined, "marked": None})
            if marks is not None and (
                comparison := compare_marked(-effects.mean, marks, layers, options.permutations, options.seed)
            ):
                comparisons.append({"place": len(joins) - 1, **comparison})
    for p, q in TESTS:
        comparisons = _with_q(comparisons, p, q)
    for comparison in comparisons:
        joins[comparison.pop("place")]["marked"] = comparison
    return _with_q(joins, "p", "q")


def _with_q(rows: Sequence[Mapping[str, Any]], p: str, q: str) -> list[dict[str, Any]]:
    """The same rows, each with q (over all rows) added."""
    values = benjamini_hochberg(np.array([np.nan if row[p] is None else row[p] for row in rows]))
    return [{**row, q: short_or_none(value)} for row, value in zip(rows, values, strict=True)]


def figures(numbers: Mapping[str, Any]) -> dict[str, Callable[[Path], None]]:
    """The pictures by name, from `numbers.json` alone: figure 8 or 9 of all tasks, and how well the tasks agree."""
    results = numbers["results"]
    tasks = results["tasks"].values()
    metrics, models = {task["metric"] for task in tasks}, {model for task in tasks for model in task["models"]}
    several_metrics = len(metrics) > 1
    seeds = sorted({task["seeds"] for task in tasks})
    panels = [_panel(results, name, task, several_metrics) for name, task in results["tasks"].items()]
    mean_note = ", mean over seeds" if seeds[-1] > 1 else ""
    seeds_note = f", {' or '.join(map(str, seeds))} seed{'s' if seeds[-1] > 1 else ''} each"
    texts: dict[str, Any] = {
        "title": f"Disabling one {results['kind']} at a time ({results['mode']}){mean_note}",
        "subtitle": next(iter(models))
        if len(models) == 1
        else f"models fine-tuned on each task{seeds_note}; its main metric",
        "label": "score" if several_metrics else METRICS[next(iter(metrics))].label,
    }
    if results["kind"] == "head":
        pictures: dict[str, Callable[[Path], None]] = {"figure": partial(draw_effect_maps, panels=panels, **texts)}
    else:
        bars = partial(draw_effect_bars, panels=panels, names=results["names"], **texts, what=results["kind"])
        pictures = {"figure": bars}
    if results["pairs"]:
        pictures["agreement"] = partial(draw_agreement, results=results)
    return pictures


def _panel(results: Mapping[str, Any], task: str, numbers: Mapping[str, Any], metric: bool) -> EffectPanel:
    """A task's map or bars; the title names the metric if `metric` is true."""
    arrays = {name: np.array([np.nan if v is None else v for v in numbers[name]], np.float64) for name in ("mean", "q")}
    significant = np.nan_to_num(arrays["q"], nan=1.0) < Q
    title = f"{task} ({numbers['metric']})" if metric else task
    if results["kind"] == "head":
        shape = results["layers"], results["heads"]
        return EffectPanel(title, arrays["mean"].reshape(shape), significant.reshape(shape))
    ends = np.array([[np.nan if v is None else v for v in numbers[name]] for name in ("low", "high")], np.float64)
    return EffectPanel(title, arrays["mean"], significant, ends)


def tables(numbers: Mapping[str, Any]) -> str:
    """The tables in Markdown, from `numbers.json` alone: tasks, pairs of tasks, other measures."""
    results = numbers["results"]
    parts = [seeds_table(results)]
    parts += [pairs_table(results)] if results["pairs"] else []
    parts += [measures_table(results)] if results["measures"] else []
    return "\n\n".join(parts)


def make_options() -> Parser:
    """The parser of the command line."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="python -m experiments.across_tasks", description=__doc__, formatter_class=formatter)
    add = parser.add_argument
    add("directories", nargs="+", metavar="DIR", help="results of head_ablation, or of layer_ablation")
    add(
        "--mode",
        choices=available_modes(),
        default="uniform",
        help="what took the place of attention (default uniform)",
    )
    add("--frames", metavar="FILE", help="numbers.json of frame_semantics: do heads with frame relations matter?")
    add("--patterns", metavar="FILE", help="numbers.json of attention_patterns: do heads of some pattern matter?")
    text = (
        "another measure of heads: numbers of FILE at PATH below its results, in which {task} stands for the task; "
        "heads above LEAST are marked, and their loss is held against the others'"
    )
    add("--map", action="append", default=[], metavar="NAME=FILE:PATH[>LEAST]", help=text)
    add("--resamples", type=positive, default=2000, metavar="N", help="draws of examples (default %(default)s)")
    add("--permutations", type=positive, default=10000, metavar="N", help="draws of the nulls (default %(default)s)")
    add("--seed", type=whole, default=0, metavar="S", help="of everything that is drawn (default 0)")
    add("--output", metavar="DIR", default="experiment-across_tasks", help="for the results (default %(default)s)")
    add("--overwrite", action="store_true", help="replace results that are in DIR")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    return run_joining(make_options(), "across_tasks", compute, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
