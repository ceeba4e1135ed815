"""Maps in rows and columns with comparable colours: adjacent rows can share one scale."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.style import context

from bertjax.plots import COLOURS, GREY, INK, WIDTH, Panel, add_axes, save_page, start_page, strike_through

LETTER = 0.062  # width of a letter of a label, inches


@dataclass(frozen=True)
class Scale:
    """A colour scale.

    Args:
        label: label of the bar.
        low: where the colours begin.
        high: where they end; values beyond get the last colour.
        ratio: colours follow logarithms around 1, which is white; without it, the lowest value is white.
    """

    label: str
    low: float
    high: float
    ratio: bool = False

    def place(self, values: Float[np.ndarray, "..."]) -> Any:
        """Positions of values on the scale."""
        return np.log2(np.maximum(values, 1e-9)) if self.ratio else values

    def colours(self) -> tuple[Any, Any]:
        """The colours, and their ends."""
        colours = matplotlib.colormaps[COLOURS if self.ratio else "Blues"].with_extremes(bad="#dddddd")
        low, high = (float(self.place(np.array(end))) for end in (self.low, self.high))
        return colours, Normalize(low, high)


@dataclass(frozen=True)
class MapRow:
    """Maps of one shape side by side; None leaves a gap."""

    label: str
    scale: Scale
    panels: Sequence[Panel | None]
    lines: Sequence[str] = ()  # names of the lines of a map, if they are not layers


def ratio_scale(label: str, most: float = 8.0) -> Scale:
    """A scale of ratios to white, from 1/most to most."""
    return Scale(label, 1 / most, most, ratio=True)


def plain_scale(label: str, values: Sequence[Float[np.ndarray, "..."]]) -> Scale:
    """A scale from 0 to the largest value; values below 0 are white."""
    return Scale(label, 0.0, max((float(np.nanmax(array)) for array in values), default=0.0) or 1.0)


def draw_table(path: Path, rows: Sequence[MapRow], title: str, subtitle: str, note: str = "") -> None:
    """Draw rows of maps, layer 0 at the top of each, and a bar beside the rows that share a scale.

    Args:
        path: PNG or PDF, by its suffix.
        rows: at least one, with at least one panel.
        note: lines that explain dots and strokes.
    """
    columns = max(2, *(len(row.panels) for row in rows))  # a single map is no wider than one of two
    labels = [line for row in rows for text in (row.label, *row.lines) for line in text.split("\n")]
    left, gap = 0.6 + LETTER * max(map(len, labels)), 0.3 if columns < 5 else 0.12
    heads = max(panel.values.shape[1] for row in rows for panel in row.panels if panel)
    width = min((WIDTH - left - 1.0 - gap * (columns - 1)) / columns, 0.24 * heads)
    cell = min(max(width / heads, 0.09), 0.16)
    heights = [cell * next(panel.values.shape[0] for panel in row.panels if panel) for row in rows]
    steps = [
        height + (0.32 if any(p and p.title for p in row.panels) else 0.08)
        for row, height in zip(rows, heights, strict=True)
    ]
    bottom = 0.46 + 0.16 * (note.count("\n") + bool(note))
    below = [bottom + sum(steps[number + 1 :]) for number in range(len(rows))]
    with context("default"):
        figure = start_page(title, subtitle, bottom, sum(steps) + 0.05)
        for number, row in enumerate(rows):
            for column, panel in enumerate(row.panels):
                if panel is not None:
                    axes = add_axes(figure, left + column * (width + gap), below[number], width, heights[number])
                    _draw_map(axes, panel, row.scale, 7.5 if columns > 4 else 9.0)
                    _name_axes(axes, row, panel.values.shape, last=number == len(rows) - 1, first=not column)
        edge = left + max(len(row.panels) for row in rows) * (width + gap) - gap + 0.12
        for scale, group in groupby(range(len(rows)), key=lambda number: rows[number].scale):
            numbers = list(group)
            upper = below[numbers[0]] + heights[numbers[0]]
            length = min(upper - below[numbers[-1]], 1.6)
            _draw_bar(add_axes(figure, edge, upper - length, 0.1, length), scale, max(10, int(length / LETTER)))
        figure.text(0.2 / WIDTH, 0.1 / float(figure.get_size_inches()[1]), note, fontsize=8, color=GREY)
        save_page(figure, path)


def _draw_map(axes: Any, panel: Panel, scale: Scale, size: float) -> None:
    colours, norm = scale.colours()
    axes.imshow(scale.place(panel.values), cmap=colours, norm=norm, aspect="auto")
    if panel.struck is not None:
        strike_through(axes, panel.struck, -0.5)
    axes.set_title(panel.title.replace(":", ":\n", 1), fontsize=size, color=INK, pad=3, linespacing=1.0)
    for spine in axes.spines.values():  # mark the edge of the map, since pale cells are nearly white
        spine.set(visible=True, color="#cccccc", linewidth=0.5)
    if panel.marked is not None:
        places, heads = np.nonzero(panel.marked)
        axes.scatter(heads, places, s=7, color="#111111", edgecolors="white", linewidths=0.5)


def _name_axes(axes: Any, row: MapRow, shape: tuple[int, ...], *, last: bool, first: bool) -> None:
    lines, heads = shape
    axes.set_xticks(range(0, heads, 5 if heads > 8 else 2))
    axes.tick_params(length=0, labelsize=7, colors=INK, pad=1, labelbottom=last, labelleft=first)
    axes.set_yticks(range(0, lines, 1 if row.lines else max(1, lines - 1)))
    if row.lines:
        axes.set_yticklabels(row.lines)
    axes.set_xlabel("head" if last else "", fontsize=7.5, color=INK, labelpad=1)
    if first and row.label:
        axes.set_ylabel(row.label, fontsize=8, color=INK, rotation=0, ha="right", va="center", labelpad=8)


def _draw_bar(axes: Any, scale: Scale, letters: int) -> None:
    colours, norm = scale.colours()
    bar = axes.figure.colorbar(ScalarMappable(norm, colours), cax=axes)
    bar.outline.set_visible(False)
    if scale.ratio:
        ends = range(round(norm.vmin), round(norm.vmax) + 1)
        bar.set_ticks(list(ends), labels=[f"{2**end}" if end >= 0 else f"1/{2**-end}" for end in ends])
    bar.set_label(fill(scale.label, letters), fontsize=7.5, color=INK)
    axes.tick_params(length=0, labelsize=7, colors=INK, pad=1)
