"""Do the same heads matter across seeds, across tasks and by other measures? (Kovaleva et al. 2019, 4.6 and 5)

Reads directories of `fig8_heads` (or `fig9_layers`) for models fine-tuned with several seeds on one or more tasks:

- For each task, over its seeds: the mean effect of each head, with an interval and a test that treat seeds and examples
  as random (q over the heads); how many seeds find it; the effect of a random head; how far the order of heads is kept
  on other examples, and by another seed on other examples.
- For each pair of tasks: the rank correlation of the effects, with an interval over examples; p from permuting heads
  (all, and within layers); the highest correlation that the noise allows; and which of a tenth of the heads they share.
- For each other measure of heads: its rank correlation with the loss, and the mean loss of the heads that it marks.
  --frames takes results of `fig3_frames`, --patterns of `fig2_patterns`, and --map any map in a `numbers.json`.

    python -m experiments.beyond.across_tasks mrpc-0 mrpc-1 rte-0 rte-1 --frames FRAMES/numbers.json --output DIR
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.data import split_named
from bertjax.plots import COLOURS, Panel
from bertjax.statistics import METRICS, Q, benjamini_hochberg
from bertjax.tasks import task_named
from experiments.shared.figures import Texts, draw_effect_bars, draw_effect_maps, draw_maps
from experiments.shared.head_maps import SIMILARITY, HeadMap, read_frames, read_map, read_results
from experiments.shared.joined_tables import measures_table, pairs_table, seeds_table
from experiments.shared.joins import TaskEffects, compare_marked, correlate, join_seeds, join_tasks, measure_task
from experiments.shared.run import Figures, Found, Numbers, Run, Runs, array, make_reader, run_script, short

TESTS = (("p", "q"), ("p_within_layers", "q_within_layers"))
SPLITS = 100


def name_task(results: Numbers) -> str:
    """The name of a run's task, with its split and kind of outputs unless they are the usual ones."""
    usual = "validation", split_named(task_named(results["task"]), "validation")
    split = "" if results["split"] in usual else f":{results['split']}"
    return f"{results['task']}{split}{SIMILARITY if results['outputs'] == 'similarity' else ''}"


def read_tasks(directories: Sequence[str], mode: str, draws: int, seed: int) -> dict[str, TaskEffects]:
    """The effects of each task over its seeds, which must have the same examples."""
    runs: dict[str, list[Any]] = {}
    for directory in directories:
        results, values = read_results(Path(directory) / "numbers.json"), np.load(Path(directory) / "values.npz")
        runs.setdefault(name_task(results), []).append((results, values[mode], values["labels"], values["ids"]))
    measured = {}
    for task, seeds in runs.items():
        runs_of_seeds, outputs, labels, ids = zip(*seeds, strict=True)
        if not all(np.array_equal(ids[0], other) for other in ids):
            raise SystemExit(f"{task}: the seeds have different examples")
        options: dict[str, Any] = {"mode": mode, "draws": draws, "splits": SPLITS, "seed": seed}
        measured[task] = measure_task(task, runs_of_seeds, outputs, labels[0], **options)
    return measured


def compute(run: Run) -> Found:
    """Join the seeds of each task, compare tasks, and compare effects with other measures."""
    options = run.options
    tasks = read_tasks(options.directories, options.mode, options.resamples, options.seed)
    first = next(iter(tasks.values())).runs[0]
    maps = [read_map(argument) for argument in options.map]
    maps += read_frames(read_results(options.frames)) if options.frames else []
    if options.patterns:
        corrected = "corrected.{task}.by_head"
        classes = read_results(options.patterns)["classes"]
        maps += [read_map(f"share of {name}={options.patterns}:{corrected}.{name}") for name in classes]
    layers = np.array([int(name.partition(".")[0]) for name in first["names"]])
    draws = options.permutations, options.seed
    pairs = [join_tasks(one, other, layers, *draws) for one, other in combinations(tasks.values(), 2)]
    for p, q in TESTS:
        pairs = _with_q(pairs, p, q)
    numbers = {name: first[name] for name in ("kind", "layers", "heads", "names")}
    numbers |= {"mode": options.mode, "resamples": options.resamples, "permutations": options.permutations}
    numbers |= {"tasks": {task: join_seeds(effects) for task, effects in tasks.items()}, "pairs": pairs}
    numbers["measures"] = _join_maps(tasks, maps, layers, draws)
    return numbers, {task: effects.change for task, effects in tasks.items()}


def _join_maps(tasks: Mapping[str, TaskEffects], maps: Sequence[HeadMap], layers: Any, draws: Any) -> list[Any]:
    """The cost of each head compared with other measures of it; q over all comparisons."""
    joins: list[dict[str, Any]] = []
    marked: list[dict[str, Any]] = []
    for task, effects in tasks.items():
        for head_map in maps:
            if (values := head_map.of(task)) is None:
                continue
            drawn = [(-mean, values) for mean in effects.drawn_mean]
            joined = correlate(-effects.mean, values, layers, drawn, *draws)
            joins.append({"task": task, "measure": head_map.name, **joined, "marked": None})
            marks = head_map.marked if head_map.least is None else values > head_map.least
            if marks is not None and (comparison := compare_marked(-effects.mean, marks, layers, *draws)):
                marked.append({"place": len(joins) - 1, **comparison})
    for p, q in TESTS:
        marked = _with_q(marked, p, q)
    for comparison in marked:
        joins[comparison.pop("place")]["marked"] = comparison
    return _with_q(joins, "p", "q")


def _with_q(rows: Sequence[Mapping[str, Any]], p: str, q: str) -> list[dict[str, Any]]:
    """The same rows, each with q over all rows."""
    values = benjamini_hochberg(array([row[p] for row in rows]))
    return [{**row, q: short(value)} for row, value in zip(rows, values, strict=True)]


def figures(numbers: Numbers) -> Figures:
    """The effects on all tasks, and how well tasks agree."""
    results = numbers["results"]
    tasks, shape = results["tasks"], (results["layers"], results["heads"])
    seeds = sorted({task["seeds"] for task in tasks.values()})
    subtitle = f"models fine-tuned on each task, mean over {' or '.join(map(str, seeds))} seeds; its main metric"
    texts = Texts(f"Ablating one {results['kind']} at a time ({results['mode']})", subtitle, "change in points")
    columns = {
        f"{task} ({METRICS[one['metric']].label})": [array(one[name]) for name in ("mean", "low", "high", "q")]
        for task, one in tasks.items()
    }
    found = {title: (*values[:3], np.nan_to_num(values[3], nan=1.0) < Q) for title, values in columns.items()}
    if results["kind"] == "head":
        maps = {title: (values[0].reshape(shape), values[3].reshape(shape)) for title, values in found.items()}
        pictures = {"figure": partial(draw_effect_maps, maps=maps, texts=texts)}
    else:
        pictures = {"figure": partial(draw_effect_bars, names=results["names"], bars=found, texts=texts)}
    return pictures | ({"agreement": partial(_draw_agreement, results=results)} if results["pairs"] else {})


def _draw_agreement(path: Path, results: Numbers) -> None:
    """Draw the rank correlations of all pairs of tasks, with each task's reliability on the diagonal."""
    tasks = list(results["tasks"])
    values, found = np.full((len(tasks), len(tasks)), np.nan), np.zeros((len(tasks), len(tasks)), bool)
    np.fill_diagonal(values, array([one["reliability"] for one in results["tasks"].values()]))
    for pair in results["pairs"]:
        first, second = (tasks.index(name) for name in pair["tasks"])
        for index, name in (((first, second), "q_within_layers"), ((second, first), "q")):
            values[index], found[index] = array(pair["spearman"]), pair[name] is not None and pair[name] < Q
    names = ", ".join(f"{number} {task}" for number, task in enumerate(tasks))
    title = f"Do the same {results['kind']}s matter for all tasks? ({results['mode']})"
    texts = Texts(title, f"rank correlation of mean effects over seeds; tasks: {names}", "Spearman")
    note = f"dot: q < {Q}; above the diagonal against permutations within layers; diagonal: the task on other examples"
    options: dict[str, Any] = {"note": note, "scale": (-1.0, 1.0), "colours": COLOURS, "axis": "task"}
    draw_maps(path, [Panel("", values, found)], texts, **options)


def tables(runs: Runs) -> str:
    """Tasks; of the first run also pairs of tasks and other measures."""
    results = [numbers["results"] for numbers in runs.values()]
    parts = [seeds_table(results)]
    parts += [pairs_table(results[0])] if results[0]["pairs"] else []
    parts += [measures_table(results[0])] if results[0]["measures"] else []
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_reader(__doc__)
    add = parser.add_argument
    add("directories", nargs="+", metavar="DIR", help="results of fig8_heads or fig9_layers")
    add("--mode", default="uniform", help="of ablation (default uniform)")
    add("--frames", metavar="FILE", help="numbers.json of fig3_frames")
    add("--patterns", metavar="FILE", help="numbers.json of fig2_patterns")
    add(
        "--map",
        action="append",
        default=[],
        metavar="NAME=FILE:PATH[>LEAST]",
        help="any map; heads above LEAST are marked",
    )
    add("--resamples", type=int, default=2000, metavar="N", help="draws of examples (default %(default)s)")
    add("--permutations", type=int, default=10000, metavar="N", help="draws of the nulls (default %(default)s)")
    add("--seed", type=int, default=0)
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
