"""Curves of scores by number of heads left: read from results of `bertjax prune`, and drawn."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import bertjax
from bertjax.plots import Curve, make_curves, save_page
from bertjax.results import pruning_curves
from bertjax.statistics import Measure
from experiments.shared.run import array, short, short_name


def describe_pruning(saved: bertjax.Results) -> dict[str, Any]:
    """The numbers of results of `bertjax prune`."""
    curves, summary, measure = pruning_curves(saved), saved.summary, saved.measure()
    worse = {row.name for row in saved.rows_of() if row.significant and measure.sign * (row.difference or 0.0) < 0}
    pruning, model = summary["pruning"], summary["model"]
    first = {
        order["name"]: next((left for left, name in order["runs"].items() if name in worse), None)
        for order in pruning["orders"]
    }
    return {
        "model": short_name(model["name"]),
        "task": summary["data"]["task"],
        "mode": summary["mode"]["name"],
        "chosen_on": pruning["chosen_on"],
        "judged_on": summary["data"]["examples"],
        "heads": len(pruning["orders"][0]["heads"]) if pruning["orders"] else model["layers"] * model["heads"],
        "measure": {"label": measure.label, "unit": measure.unit, "greater_is_better": measure.greater_is_better},
        "base": short(measure.factor * (saved.base or 0.0), 5),
        "points": pruning["points"],
        "curves": [describe_curve(curve) for curve in curves],
        "first_worse": {name: None if left is None else int(left) for name, left in first.items()},
    }


def describe_curve(curve: Curve) -> dict[str, Any]:
    """A curve as JSON holds it."""
    ends, left = curve.ends, curve.left
    return {
        "name": curve.name,
        "scores": [[short(value, 5) for value in draw] for draw in curve.scores.tolist()],
        "ends": None if ends is None else [[short(value, 5) for value in end] for end in ends.tolist()],
        "left": None if left is None else left.tolist(),
    }


def curve_of(described: Mapping[str, Any]) -> Curve:
    """The curve that `describe_curve` described."""
    ends, left = described["ends"], described["left"]
    return Curve(
        described["name"],
        array(described["scores"]),
        None if ends is None else np.array(ends, np.float64),
        None if left is None else np.array(left),
    )


def draw_pruning(found: Mapping[str, Any], more: Sequence[Mapping[str, Any]] = ()) -> Callable[[Path], None]:
    """A function that draws the curves of one model and task.

    Args:
        more: curves in addition to those that `bertjax prune` left.
    """
    return partial(_draw, found, more)


def _draw(found: Mapping[str, Any], more: Sequence[Mapping[str, Any]], path: Path) -> None:
    measure = Measure(**found["measure"])
    title = f"{measure.label} by number of heads left, {found['task']}"
    subtitle = f"{found['model']}; mode {found['mode']}, evaluated on {found['judged_on']:,} held-out examples"
    curves = [curve_of(one) for one in [*found["curves"], *more]]
    every = found["heads"], found["base"]
    save_page(make_curves(np.array(found["points"]), curves, every, title, subtitle, measure=measure), path)
