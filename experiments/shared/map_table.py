"""Maps in rows and columns with comparable colours: adjacent rows can share one scale."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from jaxtyping import Float

from bertjax.plots import COLOURS, GREY, INK, STRENGTH, WIDTH, Panel, add_axes, draw_as_shapes, save_page, start_page

EDGE, RIGHT, BAR, AXIS, TITLE = 0.2, 0.98, 0.1, 0.34, 0.2  # inches
CELL, LOWEST, HIGHEST = 0.24, 0.09, 0.16  # width, and lowest and highest height of a cell, inches
LETTER = 0.062  # width of a letter of a label, inches


@dataclass(frozen=True)
class Scale:
    """A colour scale.

    Args:
        label: label of the bar.
        low: where the colours begin.
        high: where they end; values beyond get the last colour.
        centre: the value shown white, with red below and blue above; without it, the lowest value is white.
        ratio: colours follow logarithms, and low, high and centre are ratios.
    """

    label: str
    low: float
    high: float
    centre: float | None = None
    ratio: bool = False

    def place(self, values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Positions of values on the scale."""
        return np.asarray(np.log2(np.maximum(values, 1e-9))) if self.ratio else values


@dataclass(frozen=True)
class MapRow:
    """Maps of one shape side by side; None leaves a gap."""

    label: str
    scale: Scale
    panels: Sequence[Panel | None]
    lines: Sequence[str] = ()  # names of the lines of a map, if they are not layers


def ratio_scale(label: str, most: float = 8.0) -> Scale:
    """A scale of ratios to white, from 1/most to most."""
    return Scale(label, 1 / most, most, 1.0, ratio=True)


def plain_scale(label: str, values: Sequence[Float[np.ndarray, "..."]]) -> Scale:
    """A scale from 0 to the largest value; values below 0 are white."""
    return Scale(label, 0.0, max((float(np.nanmax(array)) for array in values), default=0.0) or 1.0)


def draw_table(path: Path, rows: Sequence[MapRow], title: str, subtitle: str, note: str = "") -> None:
    """Draw rows of maps, layer 0 at the top of each, and a bar beside the rows that share a scale.

    Args:
        path: PNG or PDF, by its suffix.
        rows: at least one, with at least one panel.
        note: lines that explain dots and pale colours.
    """
    from matplotlib.style import context

    filled_columns = max(len(row.panels) for row in rows)
    columns = max(2, filled_columns)  # a single map is no wider than one of two
    labels = [line for row in rows for text in (row.label, *row.lines) for line in text.split("\n")]
    left = EDGE + 0.4 + LETTER * max((len(label) for label in labels), default=0)
    gap = 0.3 if columns < 5 else 0.12
    heads = max(panel.values.shape[1] for row in rows for panel in row.panels if panel)
    cell_width = min((WIDTH - left - RIGHT - gap * (columns - 1)) / columns / heads, CELL)
    cell_height = min(max(cell_width, LOWEST), HIGHEST)
    bottom = AXIS + 0.12 + 0.16 * (note.count("\n") + bool(note))
    tops, total = [], 0.0
    for row in reversed(rows):
        lines = next(panel.values.shape[0] for panel in row.panels if panel)
        tops.append((bottom + total, lines * cell_height))
        title_breaks = [
            _folded(panel.title, heads * cell_width).count("\n") for panel in row.panels if panel and panel.title
        ]
        total += lines * cell_height + (TITLE + 0.12 * max(title_breaks) if title_breaks else 0.08)
    tops.reverse()
    with context("default"):
        figure = start_page(title, subtitle, bottom, total + 0.05)
        for row, (below, height) in zip(rows, tops, strict=True):
            for column, panel in enumerate(row.panels):
                if panel is not None:
                    axes = add_axes(
                        figure, left + column * (heads * cell_width + gap), below, heads * cell_width, height
                    )
                    _draw_map(axes, panel, row.scale, narrow=columns > 4)
                    _name_axes(axes, row, last=row is rows[-1], first=not column)
        edge = left + filled_columns * (heads * cell_width + gap) - gap + 0.12
        for scale, row_group in groupby(zip(rows, tops, strict=True), key=lambda pair: pair[0].scale):
            places = [place for _, place in row_group]
            upper = places[0][0] + places[0][1]
            length = min(upper - places[-1][0], 1.6)
            label = fill(scale.label, max(10, int(length / LETTER)))
            _draw_bar(add_axes(figure, edge, upper - length, BAR, length), scale, label)
        if note:
            figure.text(EDGE / WIDTH, 0.1 / float(figure.get_size_inches()[1]), note, fontsize=8, color=GREY)
        save_page(figure, path)


def _colours(scale: Scale) -> tuple[Any, Any]:
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    colours = colormaps["Blues" if scale.centre is None else COLOURS].with_extremes(bad="#dddddd")
    low, high = (float(scale.place(np.array(end))) for end in (scale.low, scale.high))
    return colours, Normalize(low, high)


def _folded(title: str, width: float) -> str:
    r"""A title, split in two lines at its colon (before the part of a task's data) if it is wider than its map.

    >>> _folded("qqp:held-out-2000", 0.9)
    'qqp:\nheld-out-2000'
    >>> _folded("qqp:train", 0.9)
    'qqp:train'
    """
    return title.replace(":", ":\n", 1) if len(title) * LETTER > width else title


def _draw_map(axes: Any, panel: Panel, scale: Scale, narrow: bool) -> None:
    colours, norm = _colours(scale)
    alpha = None if panel.pale is None else np.where(panel.pale, STRENGTH, 1.0)
    axes.imshow(scale.place(panel.values), cmap=colours, norm=norm, alpha=alpha, aspect="auto")
    width = axes.get_position().width * WIDTH
    axes.set_title(_folded(panel.title, width), fontsize=7.5 if narrow else 9, color=INK, pad=3, linespacing=1.0)
    for spine in axes.spines.values():  # mark the edge of the map, since pale cells are nearly white
        spine.set_visible(True)
        spine.set_color("#cccccc")
        spine.set_linewidth(0.5)
    if panel.marked is not None:
        places, heads = np.nonzero(panel.marked)
        axes.scatter(heads, places, s=7, color="#111111", edgecolors="white", linewidths=0.5)


def _name_axes(axes: Any, row: MapRow, last: bool, first: bool) -> None:
    high, low = axes.get_ylim()
    lines, heads = int(high - low), int(axes.get_xlim()[1] + 0.5)
    step = 2 if axes.get_position().width * WIDTH / heads > 0.11 else 5
    axes.set_xticks(range(0, heads, step), [str(head) for head in range(0, heads, step)] if last else [])
    if row.lines:
        axes.set_yticks(range(len(row.lines)), row.lines if first else [])
    else:
        step = 1 if lines < 4 else lines - 1 if lines < 8 else 5
        axes.set_yticks(range(0, lines, step), [str(line) for line in range(0, lines, step)] if first else [])
    axes.tick_params(length=0, labelsize=7, colors=INK, pad=1)
    if last:
        axes.set_xlabel("head", fontsize=7.5, color=INK, labelpad=1)
    if first and row.label:
        axes.set_ylabel(row.label, fontsize=8, color=INK, rotation=0, ha="right", va="center", labelpad=8)


def _draw_bar(axes: Any, scale: Scale, label: str) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.ticker import MaxNLocator

    colours, norm = _colours(scale)
    bar = axes.figure.colorbar(ScalarMappable(norm, colours), cax=axes)
    draw_as_shapes(bar)
    if scale.ratio:
        ends = range(round(norm.vmin), round(norm.vmax) + 1)
        labels = [f"{2**end}" if end >= 0 else f"1/{2**-end}" for end in ends]
        if scale.centre is not None:
            labels[0], labels[-1] = f"≤ {labels[0]}", f"≥ {labels[-1]}"  # values beyond get the last colour
        bar.set_ticks(list(ends), labels=labels)
    else:
        bar.locator = MaxNLocator(4)
        bar.update_ticks()
    bar.set_label(label, fontsize=7.5, color=INK)
    axes.tick_params(length=0, labelsize=7, colors=INK, pad=1)
