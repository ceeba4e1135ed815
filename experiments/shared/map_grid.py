"""Maps in rows and columns, each with its own scale: for figures with more maps than fit side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.page import COLOURS, GREY, INK, WIDTH, add_axes, save_page, start_page
from experiments.shared.maps import Panel

LEFT, RIGHT, GAP, BOTTOM, TITLE, AXIS = 0.6, 0.62, 0.72, 0.5, 0.24, 0.26  # inches
CELL, SCALE = 0.24, 0.09


def draw_grid(
    path: Path,
    rows: Sequence[Sequence[Panel]],
    title: str,
    subtitle: str,
    note: str = "",
    *,
    shared: bool = False,
    names: Sequence[str] = (),
    power: float = 1.0,
) -> None:
    """Draw maps; those with values of both signs in red and blue around white.

    Args:
        path: a PNG or PDF, by its suffix.
        rows: the maps of each row, layer 0 at the top; all of one shape.
        note: what a dot stands for, and whatever else belongs below.
        shared: maps of one row have one scale, apart from those of both signs.
        names: what the lines of a map are, where they are not layers.
        power: of values that colours stand for; below 1, small ones are told apart better.
    """
    from matplotlib.style import context

    layers, heads = rows[0][0].values.shape
    columns = max(2, *(len(row) for row in rows))
    start = LEFT + (0.35 if names else 0.0)
    step = (WIDTH - start - RIGHT + GAP) / columns
    cell = min((step - GAP) / heads, CELL)
    high = layers * cell + TITLE + AXIS
    with context("default"):
        bottom = BOTTOM + 0.15 * note.count("\n")
        figure = start_page(title, subtitle, bottom, len(rows) * high)
        for number, row in enumerate(rows):
            largest = max((float(np.nanmax(panel.values)) for panel in row if panel.values.min() >= 0), default=0.0)
            for column, panel in enumerate(row):
                left, below = start + column * step, bottom + (len(rows) - 1 - number) * high + AXIS
                axes = add_axes(figure, left, below, heads * cell, layers * cell)
                scale = add_axes(figure, left + heads * cell + 0.07, below, SCALE, layers * cell)
                image = _draw_map(axes, panel, largest if shared else 0.0, power)
                if names:
                    axes.set_yticks(range(len(names)), [] if column else names)
                figure.colorbar(image, cax=scale).outline.set_visible(False)
                scale.tick_params(length=0, labelsize=7, colors=INK, pad=1)
                axes.set_xlabel("head" if number == len(rows) - 1 else "", fontsize=8, color=INK)
                axes.set_ylabel("" if column or names else "layer", fontsize=8, color=INK)
        if note:
            figure.text(LEFT / WIDTH, 0.12 / float(figure.get_size_inches()[1]), note, fontsize=8.5, color=GREY)
        save_page(figure, path)


def _draw_map(axes: Any, panel: Panel, largest: float, power: float) -> Any:
    """One map, up to its own largest value or, where it has no negative ones, to that given."""
    from matplotlib.colors import Normalize, PowerNorm

    own = float(np.nanmax(np.abs(panel.values))) or 1.0
    signed = bool(np.nanmin(panel.values) < 0)
    low, high, colours = (-own, own, COLOURS) if signed else (0.0, largest or own, "Blues")
    scale = Normalize(low, high) if signed or power == 1 else PowerNorm(power, low, high)
    image = axes.imshow(panel.values, cmap=colours, norm=scale, aspect="auto")
    layers, heads = panel.values.shape
    axes.set_xticks(range(0, heads, 2))
    axes.set_yticks(range(0, layers, 1 if layers < 8 else 2))
    axes.tick_params(length=0, labelsize=7, colors=INK, pad=1)
    axes.set_title(panel.title, fontsize=9, color=INK, pad=3)
    if panel.marked is not None:
        places, columns = np.nonzero(panel.marked)
        axes.scatter(columns, places, s=7, color="#d7301f", edgecolors="white", linewidths=0.5)
    return image
