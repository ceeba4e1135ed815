"""How far tasks need the same heads: a figure of their correlations."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.plots import COLOURS, GREY, INK, add_axes, add_note, save_page, start_page

LEFT, BOTTOM, CELL, LARGEST = 1.6, 0.95, 0.62, 5.6  # inches
SURE = 0.05


def draw_agreement(path: Path, results: Mapping[str, Any]) -> None:
    """Draw the results of `joins.join_tasks` for all pairs, with each task's reliability on the diagonal.

    Args:
        path: PNG or PDF, by its suffix.
        results: with 'tasks', 'pairs', 'kind' and 'mode'.
    """
    from matplotlib.style import context

    tasks = list(results["tasks"])
    count = len(tasks)
    values, significant = np.full((count, count), np.nan), np.zeros((count, count), bool)
    for number, result in enumerate(results["tasks"].values()):
        values[number, number] = np.nan if result["reliability"] is None else result["reliability"]
    for pair in results["pairs"]:
        first, second = (tasks.index(name) for name in pair["tasks"])
        for place, name in (((first, second), "q_within_layers"), ((second, first), "q")):
            values[place] = np.nan if pair["spearman"] is None else pair["spearman"]
            significant[place] = pair[name] is not None and pair[name] < SURE
    side = min(CELL, LARGEST / count)
    title = f"Do the same {results['kind']}s matter for several tasks? ({results['mode']})"
    subtitle = "rank correlation of mean effects over seeds; grey, on the diagonal: of the same task on other examples"
    with context("default"):
        figure = start_page(title, subtitle, BOTTOM, count * side)
        axes = add_axes(figure, LEFT, BOTTOM, count * side, count * side)
        _draw(axes, values, significant)
        axes.set_xticks(range(count), tasks, rotation=30, ha="right")
        axes.set_yticks(range(count), tasks)
        add_note(figure, f"full colour: q < {SURE} over the pairs; above the diagonal against orders within layers")
        save_page(figure, path)


def _draw(axes: Any, values: np.ndarray, significant: np.ndarray) -> None:
    import matplotlib

    full = matplotlib.colormaps[COLOURS](0.5 + np.nan_to_num(values) / 2)[..., :3]
    strength = np.where(significant, 1.0, 0.25)[..., None]
    colours = full * strength + 1 - strength
    np.einsum("iic->ic", colours)[:] = 0.93
    axes.imshow(colours, aspect="auto")
    for row, column in np.argwhere(np.isfinite(values)):
        dark = significant[row, column] and abs(values[row, column]) > 0.6
        ink = GREY if row == column else "white" if dark else INK
        text = f"{values[row, column]:.2f}".replace("-", "−")
        axes.text(column, row, text, fontsize=9, color=ink, ha="center", va="center_baseline")
