"""Do the same heads matter for several seeds, for several tasks, and by other measures? (Kovaleva et al. 2019, 4.6, 5)

Takes directories that `head_ablation` (or `layer_ablation`) wrote, of models fine-tuned with several seeds on one task
or several, and asks of one mode, the paper's by default:

- Of each task, over its seeds: the mean effect of each head with interval and test that take seeds and examples for
  random (q over the heads); in how many seeds its own test finds it; what a random head does; how far two seeds agree,
  each on another half of the examples, and how far the order of heads is more than the noise of the examples.
- Of each pair of tasks: the rank correlation of the effects with an interval over examples, p by changing heads for
  each other (all, and within layers), the highest correlation that the noise leaves, and which of a tenth of the heads,
  those of the largest losses and gains, both share.
- With --frames, --patterns or --map, of each task and another measure of heads: the rank correlation of what disabling
  a head costs with it, and the mean loss of heads that it marks against the others'. --frames is the paper's question
  whether heads with frame relations matter for tasks (section 5): weights between elements and predicate, how far these
  are above the same key's weight from other words, and the heads that nulls and controls leave. The maps may be of
  another model than the one whose heads were disabled, such as the one it was fine-tuned from.

All tasks side by side are the paper's figures 8 and 9. No model is needed.

    python -m experiments.across_tasks mrpc-0 mrpc-1 rte-0 rte-1 --frames FRAMES/numbers.json --output DIR

What came out: `RESULTS.md`, 4.6.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.cli import Parser, guarded, positive
from bertjax.errors import InputError, OutputError
from bertjax.evidence import METRICS, Q, benjamini_hochberg
from bertjax.paths import user_path
from bertjax.progress import say
from bertjax.results import check_directory
from bertjax.study import available_modes, command_line, versions
from experiments.disabling.agreement import draw_agreement
from experiments.disabling.effects import short_or_none
from experiments.disabling.head_maps import HeadMap, read_frames, read_map, read_patterns
from experiments.disabling.joined import TESTS, measures_table, pairs_table, say_joined, seeds_table
from experiments.disabling.joins import compare_marked, correlate, join_seeds, join_tasks
from experiments.disabling.panels import EffectPanel, draw_effect_bars, draw_effect_maps
from experiments.disabling.runs import TaskEffects, group_by_task, measure_task, read_run
from experiments.shared.program import FILES, Outcome, tell_settings, whole, write_outcome

SPLITS = 100  # of the examples in halves


def compute(options: argparse.Namespace) -> Outcome:
    """Join the runs. Raises `InputError` where a directory holds no such run, or they do not belong together."""
    runs = [read_run(user_path(name, InputError), options.mode) for name in options.directories]
    tasks = group_by_task(runs)
    first = runs[0].results
    shape = first["layers"], first["heads"]
    maps = _read_maps(options, list(tasks), first["kind"], shape)
    layers = np.array([int(name.partition(".")[0]) for name in first["names"]])
    measured = {
        task: measure_task(task, several, options.resamples, SPLITS, options.seed) for task, several in tasks.items()
    }
    numbers: dict[str, Any] = {"kind": first["kind"], "mode": options.mode, "layers": shape[0], "heads": shape[1]}
    numbers |= {"names": first["names"], "resamples": options.resamples, "permutations": options.permutations}
    numbers["tasks"] = {task: join_seeds(one) for task, one in measured.items()}
    pairs = [
        join_tasks(one, other, layers, options.permutations, options.seed)
        for one, other in combinations(measured.values(), 2)
    ]
    for p, q in TESTS:
        pairs = _with_q(pairs, p, q)
    numbers["pairs"] = pairs
    numbers["measures"] = _join_maps(options, measured, maps, layers)
    pictures = figures({"results": numbers})
    values = {f"changes_{task}".replace("/", "_"): one.change for task, one in measured.items()}
    return Outcome(numbers, values, pictures.pop("figure"), say_joined(numbers), pictures)


def _read_maps(options: argparse.Namespace, tasks: Sequence[str], kind: str, shape: tuple[int, int]) -> list[HeadMap]:
    if kind != "head" and (options.map or options.frames or options.patterns):
        raise InputError(f"--frames, --patterns and --map are measures of heads, and these runs are of {kind}s")
    found = [read_map(given, tasks, shape) for given in options.map]
    if options.frames:
        found += read_frames(options.frames, shape)
    if options.patterns:
        found += read_patterns(options.patterns, tasks, shape)
    return found


def _join_maps(
    options: argparse.Namespace, measured: Mapping[str, TaskEffects], maps: Sequence[HeadMap], layers: Any
) -> list[dict[str, Any]]:
    """What disabling a head costs, held against other measures of it; q over all of these."""
    found: list[dict[str, Any]] = []
    several: list[dict[str, Any]] = []
    for task, one in measured.items():
        for other in maps:
            values, marks = other.of(task), other.marks_of(task)
            if values is None:
                continue
            drawn = [(-mean, values) for mean in one.drawn_mean]
            joined = correlate(-one.mean, values, layers, drawn, options.permutations, options.seed)
            found.append({"task": task, "measure": other.name, **joined, "marked": None})
            if marks is not None and (
                compared := compare_marked(-one.mean, marks, layers, options.permutations, options.seed)
            ):
                several.append({"place": len(found) - 1, **compared})
    for p, q in TESTS:
        several = _with_q(several, p, q)
    for compared in several:
        found[compared.pop("place")]["marked"] = compared
    return _with_q(found, "p", "q")


def _with_q(found: Sequence[Mapping[str, Any]], p: str, q: str) -> list[dict[str, Any]]:
    """The same with q over all of them beside their p."""
    values = benjamini_hochberg(np.array([np.nan if one[p] is None else one[p] for one in found]))
    return [{**one, q: short_or_none(value)} for one, value in zip(found, values, strict=True)]


def figures(numbers: Mapping[str, Any]) -> dict[str, Callable[[Path], None]]:
    """The pictures by name, from `numbers.json` alone: figure 8 or 9 of all tasks, and how far these agree."""
    results = numbers["results"]
    tasks = results["tasks"].values()
    metrics, models = {one["metric"] for one in tasks}, {model for one in tasks for model in one["models"]}
    several = len(metrics) > 1
    seeds = sorted({one["seeds"] for one in tasks})
    panels = [_panel(results, task, one, several) for task, one in results["tasks"].items()]
    mean = ", mean over seeds" if seeds[-1] > 1 else ""
    each = f", {' or '.join(map(str, seeds))} seed{'s' if seeds[-1] > 1 else ''} each"
    texts: dict[str, Any] = {
        "title": f"Disabling one {results['kind']} at a time ({results['mode']}){mean}",
        "subtitle": next(iter(models))
        if len(models) == 1
        else f"models fine-tuned on each task{each}; its main metric",
        "label": "score" if several else METRICS[next(iter(metrics))].label,
    }
    if results["kind"] == "head":
        drawn: dict[str, Callable[[Path], None]] = {"figure": partial(draw_effect_maps, panels=panels, **texts)}
    else:
        bars = partial(draw_effect_bars, panels=panels, names=results["names"], **texts, what=results["kind"])
        drawn = {"figure": bars}
    if results["pairs"]:
        drawn["agreement"] = partial(draw_agreement, results=results)
    return drawn


def _panel(results: Mapping[str, Any], task: str, one: Mapping[str, Any], metric: bool) -> EffectPanel:
    """A task's map or bars, whose title names its metric if asked to."""
    arrays = {name: np.array([np.nan if v is None else v for v in one[name]], np.float64) for name in ("mean", "q")}
    found = np.nan_to_num(arrays["q"], nan=1.0) < Q
    title = f"{task} ({one['metric']})" if metric else task
    if results["kind"] == "head":
        shape = results["layers"], results["heads"]
        return EffectPanel(title, arrays["mean"].reshape(shape), found.reshape(shape))
    ends = np.array([[np.nan if v is None else v for v in one[name]] for name in ("low", "high")], np.float64)
    return EffectPanel(title, arrays["mean"], found, ends)


def tables(numbers: Mapping[str, Any]) -> str:
    """The tables in Markdown, from `numbers.json` alone: tasks, pairs of tasks, other measures."""
    results = numbers["results"]
    found = [seeds_table(results)]
    found += [pairs_table(results)] if results["pairs"] else []
    found += [measures_table(results)] if results["measures"] else []
    return "\n\n".join(found)


def make_options() -> Parser:
    """The parser of the command line."""
    look = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="python -m experiments.across_tasks", description=__doc__, formatter_class=look)
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
    parser = make_options()

    def program() -> int:
        started = time.monotonic()
        options = parser.parse_args(arguments)
        directory = user_path(options.output, OutputError)
        check_directory(directory, options.overwrite, FILES[-1])
        outcome = compute(options)
        facts: dict[str, Any] = {
            "program": "across_tasks",
            "settings": tell_settings(options),
            "command": command_line(),
        }
        facts |= {"versions": versions(), "seconds": round(time.monotonic() - started, 1)}
        write_outcome(directory, outcome, facts)
        for line in [*outcome.lines, f"results in {directory}"]:
            say(line)
        return 0

    return guarded(parser.prog, program)


if __name__ == "__main__":
    raise SystemExit(main())
