"""Do the heads with frame relations matter for tasks? (Kovaleva et al. 2019, section 5: 4.2 joined with 4.6)

The paper disables the two heads of its frame map, sees no fall of the scores, and says that these relations are of no
use to the tasks. Two heads say little; here all heads do. The results of `frame_semantics` give each head's weight from
elements to the predicate and back, how far that is above the same key's weight from other words, and the heads that
nulls and controls leave. The results of `bertjax ablate --ablate heads`, or of `head_ablation`, give what disabling
each head costs, in points of the main metric. For each task and map:

- Spearman's correlation of the two over the heads, with a 95 % interval by drawing heads;
- the mean loss of the heads that are left against that of all others, with interval, and how often random heads are as
  far apart (10,000 draws, two-sided).

    python -m experiments.frame_effects --frames DIR --results DIR ... --output DIR

Both must be of models with as many layers and heads; whether the weights are the same is said, since a fine-tuned model
has others than the one whose maps were taken.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.cli import Parser, guarded
from bertjax.errors import InputError
from bertjax.metrics import METRICS
from bertjax.page import GREY, INK, WIDTH, add_axes, add_note, save_page, start_page
from bertjax.progress import say
from bertjax.provenance import command_line
from bertjax.results import check_directory, finite
from bertjax.saved import read_results
from experiments.frames.effects import DRAWS, join_maps, losses_of
from experiments.frames.links import DIRECTIONS
from experiments.frames.report import named
from experiments.shared.program import Outcome, tell_settings, whole, write_outcome

PAPERS_MODE = "uniform"  # a run of head_ablation has a directory for each mode
EITHER = "either_direction"
TITLES = {
    "element_to_predicate": "elements to predicate",
    "predicate_to_element": "predicate to elements",
    "element_to_predicate_above": "elements to predicate, above other words",
    "predicate_to_element_above": "predicate to elements, above other words",
    EITHER: "the larger of both, left in either direction",
}
COLUMNS, PANEL, LEFT, BOTTOM, GAP = 3, 1.75, 0.75, 0.85, 0.65  # inches
FILES = ("numbers.json", "values.npz", "figure.png", "figure.pdf")


def read_frames(directory: str) -> dict[str, Any]:
    """What `frame_semantics` wrote into a directory.

    Raises:
        InputError: there are no such results, or they are damaged or of an older version.
    """
    path = Path(directory).expanduser() / FILES[0]
    try:
        numbers = json.loads(path.read_text(encoding="utf-8"))
        results = numbers["results"]
        frame_maps(results)
        left_of(results)
        return {**numbers, "weights": numbers["model"]["weights_sha256"]}
    except OSError as error:
        raise InputError(f"{directory} holds no results of frame_semantics ({error.strerror or error})") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(
            f"{path} is no result of this version of frame_semantics ({type(error).__name__}: {error}): run it again"
        ) from error


def frame_maps(results: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The maps of `frame_semantics` that are joined: weights, and how far they are above the same key's from others."""
    same_key = {name: np.array(results["controls"]["same_key"][name], np.float64) for name in ("links", "others")}
    above = same_key["links"] - same_key["others"]
    maps = {name: np.array(results["maps"][name], np.float64) for name in DIRECTIONS}
    return maps | {f"{name}_above": one for name, one in zip(DIRECTIONS, above, strict=True)}


def left_of(results: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The heads that are left, by direction."""
    like = np.array(results["maps"][DIRECTIONS[0]])
    return {name: named(results["heads_left"][name], like) for name in DIRECTIONS}


def read_losses(directory: str, shape: tuple[int, int]) -> dict[str, Any]:
    """What disabling each head costs, of results of `bertjax ablate` or of a run of `head_ablation`.

    Raises:
        InputError: there are none, they are damaged, not of single heads, or of a model of another size.
    """
    path = Path(directory).expanduser()
    inner = path / PAPERS_MODE
    if (path / FILES[0]).is_file() and not (inner / "summary.json").is_file():
        model, found, names, changes = _read_recorded(path)
    else:
        model, found, names, changes = _read_saved(inner if inner.is_dir() else path)
    if (model["layers"], model["heads"]) != shape:
        sizes = f"{model['layers']} layers x {model['heads']} heads", f"{shape[0]} x {shape[1]}"
        raise InputError(f"{directory}: a model of {sizes[0]}; the frame maps are of one of {sizes[1]}")
    if len(names) < 2:
        raise InputError(f"{directory}: no single heads were disabled; give results of --ablate heads")
    weights = {"model": model["name"], "weights": model["weights_sha256"]}
    return {**found, **weights, "losses": losses_of(names, changes, shape)}


Read = tuple[dict[str, Any], dict[str, Any], list[str], list[float | None]]


def _read_saved(path: Path) -> Read:
    """The model, what was measured, the heads and their changes in points, of results of `bertjax ablate`."""
    summary = read_results(path).summary
    single = [entry for entry in summary["ablations"] if entry["head"] is not None]
    changes = [None if entry["delta"] is None else 100 * entry["delta"] for entry in single]
    data, names = summary["data"], [f"{entry['layer']}.{entry['head']}" for entry in single]
    found = {"task": data["task"], "examples": data["examples"]}
    return (
        summary["model"],
        {**found, "metric": summary["metric"]["label"], "mode": summary["mode"]["name"]},
        names,
        changes,
    )


def _read_recorded(path: Path) -> Read:
    """The same of the `numbers.json` of a run of `head_ablation`, whose other files may be gone."""
    try:
        numbers = json.loads((path / FILES[0]).read_text(encoding="utf-8"))
        results, model = numbers["results"], numbers["model"]
        metric = results["metric"]
        changes = results["effects"][metric][PAPERS_MODE]["change"]
        single = results["kind"] == "head"
        found = {"task": results["task"], "examples": results["examples"]}
        found |= {"metric": METRICS[metric].label, "mode": PAPERS_MODE}
        return model, found, results["names"] if single else [], changes
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise InputError(f"{path} holds no results of bertjax ablate or head_ablation ({why})") from error


def compute(options: argparse.Namespace) -> Outcome:
    """Every task with every map."""
    frames = read_frames(options.frames)
    maps, left = frame_maps(frames["results"]), left_of(frames["results"])
    shape, either = maps[DIRECTIONS[0]].shape, np.logical_or(*left.values())
    tasks, values = [], {}
    for number, directory in enumerate(options.results):
        found = read_losses(directory, (shape[0], shape[1]))
        losses, weights = found.pop("losses"), found.pop("weights")
        joined = {
            name: join_maps(one, losses, left[name.removesuffix("_above")], options.seed) for name, one in maps.items()
        }
        joined[EITHER] = join_maps(np.maximum(*(maps[name] for name in DIRECTIONS)), losses, either, options.seed)
        found |= {"same_weights": weights == frames["weights"], "losses": losses.round(6).tolist(), "joined": joined}
        tasks.append(found)
        values[f"losses_{number}"] = losses
    numbers = {
        "frames": {"model": frames["settings"]["model"], "source": frames["settings"]["source"]},
        "heads_left": frames["results"]["heads_left"],
        "maps": {name: one.round(6).tolist() for name, one in maps.items()},
        "tasks": finite(tasks),
        "draws": DRAWS,
    }
    told = {"results": numbers}
    pictures = figures(told)
    return Outcome(numbers, {**values, **maps}, pictures["figure"], [*_lines(told)])


def _lines(numbers: Mapping[str, Any]) -> Iterator[str]:
    for one in numbers["results"]["tasks"]:
        same = "" if one["same_weights"] else "; other weights than those of the maps"
        yield f"{one['task']} ({one['examples']} examples, {one['metric']}, {one['mode']}; {one['model']}{same})"
        for name, joined in one["joined"].items():
            yield f"  {TITLES[name]}: {_say_ranks(joined)}; {_say_groups(joined)}"


def _say_ranks(joined: Mapping[str, Any]) -> str:
    if joined["rank_correlation"] is None:
        return "rank correlation undefined"
    between = "" if None in joined["interval"] else " ({:.2f} to {:.2f})".format(*joined["interval"])
    return f"rank correlation {joined['rank_correlation']:.2f}{between}".replace("-", "−")


def _say_groups(joined: Mapping[str, Any]) -> str:
    if joined["difference"] is None:
        return f"{joined['chosen_heads']} of {joined['heads']} heads are left: nothing to compare"
    between = joined["difference_interval"]
    ends = "" if between is None else " ({:+.2f} to {:+.2f})".format(*between)
    heads = "1 head left loses" if joined["chosen_heads"] == 1 else f"{joined['chosen_heads']} heads left lose"
    said = f"{heads} {joined['chosen']:+.2f} points, the others {joined['others']:+.2f}"
    return f"{said}: {joined['difference']:+.2f}{ends}, p = {joined['p']:.3f}".replace("-", "−")


def tables(numbers: Mapping[str, Any]) -> str:
    """Markdown: a row for each task and map.

    Args:
        numbers: what `numbers.json` holds.
    """
    rows = ["| task | map | rank correlation with the loss | heads left against the others |", "|---|---|---|---|"]
    for one in numbers["results"]["tasks"]:
        for name, title in TITLES.items():
            joined = one["joined"][name]
            ranks = _say_ranks(joined).removeprefix("rank correlation ")
            task = f"{one['task']} ({one['examples']:,}, {one['metric']}, {one['mode']})"
            rows.append(f"| {task} | {title} | {ranks} | {_say_groups(joined)} |")
    return "\n".join(rows)


def figures(numbers: Mapping[str, Any]) -> dict[str, Callable[[Path], None]]:
    """The picture of a run: each head's weight and loss, a panel for each task.

    Args:
        numbers: what `numbers.json` holds.
    """
    return {"figure": partial(_draw, numbers["results"])}


def _draw(results: Mapping[str, Any], path: Path) -> None:
    from matplotlib.style import context

    tasks = results["tasks"]
    columns = min(COLUMNS, len(tasks))
    rows = -(-len(tasks) // columns)
    title = "Points lost without a head, by its attention along frames"
    with context("default"):
        figure = start_page(
            title, f"weights of {results['frames']['model']}", BOTTOM, rows * (PANEL + GAP) - GAP + 0.25
        )
        step = (WIDTH - LEFT - 0.2) / columns
        for number, one in enumerate(tasks):
            row, column = divmod(number, columns)
            below = BOTTOM + (rows - 1 - row) * (PANEL + GAP)
            axes = add_axes(figure, LEFT + column * step, below, step - GAP, PANEL)
            _draw_task(axes, results, one)
            axes.set_ylabel("" if column else "points lost", fontsize=8.5, color=INK)
        add_note(figure, "filled: left by nulls and controls, elements to predicate (4.2)")
        save_page(figure, path)


def _draw_task(axes: Any, results: Mapping[str, Any], one: Mapping[str, Any]) -> None:
    name = DIRECTIONS[0]
    weights, losses = np.array(results["maps"][name]), np.array(one["losses"], np.float64)
    left = named(results["heads_left"][name], weights)
    axes.axhline(0, color=GREY, linewidth=0.6)
    axes.scatter(weights[~left], losses[~left], s=14, facecolors="none", edgecolors="#2171b5", linewidths=0.8)
    axes.scatter(weights[left], losses[left], s=22, color="#d7301f")
    axes.set_title(f"{one['task']} ({one['mode']}): {_say_ranks(one['joined'][name])}", fontsize=8.5, color=INK)
    axes.set_xlabel("mean weight from elements to predicate", fontsize=8.5, color=INK)
    axes.spines[["left", "bottom"]].set_visible(True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    look = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="python -m experiments.frame_effects", description=__doc__, formatter_class=look)
    add = parser.add_argument
    add("--frames", required=True, metavar="DIR", help="results of frame_semantics")
    add("--results", required=True, nargs="+", metavar="DIR", help="results of bertjax ablate, or of head_ablation")
    add("--output", metavar="DIR", default="experiment-frame_effects", help="directory (default %(default)s)")
    add("--overwrite", action="store_true", help="replace results that are in DIR")
    add("--seed", type=whole, default=0, metavar="S", help="of everything that is drawn (default 0)")

    def program() -> int:
        options, started = parser.parse_args(arguments), time.monotonic()
        directory = Path(options.output).expanduser()
        check_directory(directory, options.overwrite, FILES[0])
        outcome = compute(options)
        facts = {"program": "frame_effects", "settings": tell_settings(options), "command": command_line()}
        write_outcome(directory, outcome, {**facts, "seconds": round(time.monotonic() - started, 1)})
        for line in [*outcome.lines, f"results in {directory}"]:
            say(line)
        return 0

    return guarded(parser.prog, program)


if __name__ == "__main__":
    raise SystemExit(main())
