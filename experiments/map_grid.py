"""Maps in rows and columns, each with its own scale: for figures with more maps than fit side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.page import COLOURS, GREY, INK, WIDTH, add_axes, save_page, start_page
from experiments.maps import Panel

LEFT, RIGHT, GAP, BOTTOM, TITLE, AXIS = 0.6, 0.62, 0.72, 0.45, 0.3, 0.4  # inches
CELL, SCALE = 0.24, 0.09


def draw_grid(
    path: Path, rows: Sequence[Sequence[Panel]], title: str, subtitle: str, note: str = "", shared: bool = False
) -> None:
    """Draw maps; those with values of both signs in red and blue around white.

    Args:
        path: a PNG or PDF, by its suffix.
        rows: the maps of each row, layer 0 at the top; all of one shape.
        note: what a dot stands for, and whatever else belongs below.
        shared: maps of one row have one scale, apart from those of both signs.
    """
    from matplotlib.style import context

    layers, heads = rows[0][0].values.shape
    columns = max(2, *(len(row) for row in rows))
    step = (WIDTH - LEFT - RIGHT + GAP) / columns
    cell = min((step - GAP) / heads, CELL)
    high = layers * cell + TITLE + AXIS
    with context("default"):
        figure = start_page(title, subtitle, BOTTOM, len(rows) * high)
        for number, row in enumerate(rows):
            largest = max((float(np.nanmax(panel.values)) for panel in row if panel.values.min() >= 0), default=0.0)
            for column, panel in enumerate(row):
                left, below = LEFT + column * step, BOTTOM + (len(rows) - 1 - number) * high + AXIS
                axes = add_axes(figure, left, below, heads * cell, layers * cell)
                scale = add_axes(figure, left + heads * cell + 0.07, below, SCALE, layers * cell)
                image = _draw_map(axes, panel, largest if shared else 0.0)
                figure.colorbar(image, cax=scale).outline.set_visible(False)  # type: ignore[operator]
                scale.tick_params(length=0, labelsize=7, colors=INK, pad=1)
                axes.set_xlabel("head" if number == len(rows) - 1 else "", fontsize=8, color=INK)
                axes.set_ylabel("" if column else "layer", fontsize=8, color=INK)
        if note:
            figure.text(LEFT / WIDTH, 0.12 / float(figure.get_size_inches()[1]), note, fontsize=8.5, color=GREY)
        save_page(figure, path)


def _draw_map(axes: Any, panel: Panel, largest: float) -> Any:
    """One map, up to its own largest value or, where it has no negative ones, to that given."""
    own = float(np.nanmax(np.abs(panel.values))) or 1.0
    signed = bool(np.nanmin(panel.values) < 0)
    low, high, colours = (-own, own, COLOURS) if signed else (0.0, largest or own, "Blues")
    image = axes.imshow(panel.values, cmap=colours, vmin=low, vmax=high, aspect="auto")
    layers, heads = panel.values.shape
    axes.set_xticks(range(0, heads, 2))
    axes.set_yticks(range(0, layers, 1 if layers < 8 else 2))
    axes.tick_params(length=0, labelsize=7, colors=INK, pad=1)
    axes.set_title(panel.title, fontsize=9, color=INK, pad=3)
    if panel.marked is not None:
        places, columns = np.nonzero(panel.marked)
        axes.scatter(columns, places, s=7, color="#d7301f", edgecolors="white", linewidths=0.5)
    return image
