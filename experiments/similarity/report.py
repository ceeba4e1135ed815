"""The results of `repeated_patterns` as figures, tables and lines, from `numbers.json` alone."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.style import context

from bertjax.plots import INK, WIDTH, add_axes, add_note, save_page, start_page
from bertjax.statistics import Q
from experiments.shared.figures import Texts, draw_effect_bars
from experiments.shared.run import Figures, Numbers, Runs, array, short_name
from experiments.shared.tables import format_estimate, format_p, make_table
from experiments.similarity.distances import square
from experiments.similarity.groups import order_heads
from experiments.similarity.parts import read_means

LEFT, BOTTOM, RIGHT = 0.75, 0.8, 0.9  # inches


def figures(numbers: Numbers) -> Figures:
    """The figures of a run by name: the matrix of distances, and disabled pairs.

    Args:
        numbers: the contents of `numbers.json`.
    """
    results = numbers["results"]
    pictures = {"figure": partial(_draw_matrix, results=results)}
    if "disabled" in results:
        pictures["disabled"] = partial(_draw_disabled, results=results)
    return pictures


def _draw_matrix(path: Path, results: Numbers) -> None:
    """Draw the matrix of distances: above the diagonal on the same text, below it on different ones, on it each head
    compared with itself on another text."""
    means, names = read_means(results), results["names"]
    places, order = len(names), order_heads(means.same)
    matrix = np.triu(square(means.same)[np.ix_(order, order)], 1)
    matrix += np.tril(square(means.other)[np.ix_(order, order)], -1) + np.diag(means.own[order])
    side, ordered = WIDTH - LEFT - RIGHT, [names[place] for place in order]
    title = "How far heads' attention patterns are apart"
    subtitle = f"{_what(results)}; above the diagonal on the same text, below it and on it on another text"
    with context("default"):
        figure = start_page(title, subtitle, BOTTOM, side)
        axes = add_axes(figure, LEFT, BOTTOM, side, side)
        image = axes.imshow(matrix, cmap="Blues_r", vmin=0, interpolation="nearest")
        axes.set_yticks(range(places), ordered, fontsize=4)
        axes.set_xticks(range(places), ordered, fontsize=4, rotation=90)
        for group in results["groups"]["members"]:
            start, size = min(ordered.index(name) for name in group) - 0.5, len(group)
            style: dict[str, Any] = {"fill": False, "edgecolor": "#d7301f"}
            axes.add_patch(Rectangle((start, start), size, size, **style))
        bar = figure.colorbar(image, cax=add_axes(figure, LEFT + side + 0.15, BOTTOM, 0.13, side))
        bar.set_label("mean Jensen-Shannon divergence, bits", fontsize=9, color=INK)
        add_note(figure, "frames: groups at the mean distance of a head from itself on another text")
        save_page(figure, path)


def _draw_disabled(path: Path, results: Numbers) -> None:
    disabled, bars = results["disabled"], {}
    for kind, title in (("alike", "nearest heads"), ("controls", "heads of the same layers, far apart")):
        beyond, low, high, q = (array(disabled[kind][name]) for name in ("beyond", "low", "high", "q"))
        bars[title] = beyond, low, high, np.nan_to_num(q, nan=1.0) < Q
    pairs = zip(disabled["alike"]["pairs"], disabled["controls"]["pairs"], strict=True)
    names = ["+".join(pair) + "; " + "+".join(control) for pair, control in pairs]
    title = f"Two heads ablated: change beyond the sum of both ({disabled['mode']})"
    texts = Texts(title, f"{_what(results)}; rows: pair; its control", f"{disabled['metric']}, points")
    draw_effect_bars(path, names, bars, texts)


def _what(results: Numbers) -> str:
    return f"{results['model']}, {results['texts']:,} texts of {results['task']}"


def tables(runs: Runs) -> str:
    """Distances of runs side by side, and disabled pairs."""
    results, rows = [numbers["results"] for numbers in runs.values()], []
    for one in results:
        row = [f"{one['task']} ({one['texts']:,}), {short_name(one['model'])}"]
        row += [
            _estimate(one["summary"][name]) for name in ("all: same", "nearest heads: same", "nearest heads: other")
        ]
        row += [_estimate(one["summary"][name]) for name in ("all: shared", "nearest heads: shared", "by_place")]
        rows.append([*row, _estimate(one["summary"]["groups"], 0)])
    head = ["task (texts), model", "all pairs", "nearest heads", "nearest, another text", "correlation of all pairs"]
    head += ["correlation of nearest", "share by mean patterns", "groups"]
    return "\n\n".join([make_table(head, rows), *(_table_of_disabled(one) for one in results if "disabled" in one)])


def _estimate(estimate: Mapping[str, Any], digits: int = 2) -> str:
    """A number with its interval."""
    low, high = estimate["interval"]
    mean = "undefined" if estimate["mean"] is None else f"{estimate['mean']:.{digits}f}"
    return mean if low is None or high is None else f"{mean} ({low:.{digits}f} to {high:.{digits}f})"


def _table_of_disabled(results: Numbers) -> str:
    disabled, rows = results["disabled"], []
    for kind, title in (("alike", "nearest heads"), ("controls", "controls")):
        kind_results = disabled[kind]
        q = np.array([1.0 if value is None else value for value in kind_results["q"]])
        beyond = np.array([0.0 if value is None else value for value in kind_results["beyond"]])
        largest_pair = int(np.abs(beyond).argmax())
        largest = format_estimate(
            beyond[largest_pair], (kind_results["low"][largest_pair], kind_results["high"][largest_pair])
        )
        mean, *ends = kind_results["mean"]
        found_pairs = f"{int(((q < Q) & (beyond < 0)).sum())}; {int(((q < Q) & (beyond > 0)).sum())}"
        cells = [format_estimate(kind_results["alone"]), format_estimate(mean, ends), found_pairs]
        rows.append([f"{title} ({len(q)})", *cells, f"{'+'.join(kind_results['pairs'][largest_pair])} {largest}"])
    difference = disabled["difference"]
    difference_text = (
        f"{format_estimate(difference['mean'], difference['interval'])}; p = {format_p(difference['p'])} over pairs"
    )
    beyond_head = f"beyond the sum, {disabled['metric']} in points"
    head = ["pairs", "one head alone", beyond_head, f"larger losses; smaller losses (q < {Q})", "largest"]
    return make_table(head, [*rows, ["difference", "", difference_text, "", ""]])
