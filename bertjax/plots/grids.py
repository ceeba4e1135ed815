"""Grids of patches: layers or heads as rows, spans of the text as columns, a grid for each site."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from bertjax.errors import DataError
from bertjax.plots.canvas import (
    INK,
    LEFT,
    PAGE,
    PALE,
    RIGHT,
    WIDTH,
    Frame,
    add_axes,
    add_note,
    shorten_name,
    start_page,
    text_width,
)
from bertjax.plots.cells import colour_limit, draw_cells, draw_scale
from bertjax.statistics import Measure, Q

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTION = 0.38  # inches above a grid
TALLEST, LOWEST = 0.3, 0.085  # inches of a cell
SHORTEST = 0.7  # inches of a grid, as needed by the labels of the scale
MOST_WRITTEN = 14  # spans of a grid with numbers in cells
NAMED = 26  # rows that are all named; of more rows only the first one of each layer is named
LONGEST = 16  # characters of a span's name
FONT, SMALLEST, LINE = 8.5, 6.0, 1.25  # points of names, points at least, and how high a line is for each point


@dataclass(frozen=True)
class Grid:
    """The effects of patches at a site.

    Args:
        title: the site.
        rows: the names of layers or heads.
        changes: the changes as printed; NaN if undefined.
        significant: which changes are significant; their cells have a dot.
        kind: the kind of rows: 'layer' or 'head'.
    """

    title: str
    rows: Sequence[str]
    changes: Float[np.ndarray, "rows spans"]
    significant: Bool[np.ndarray, "rows spans"]
    kind: str = "layer"


TITLES = {
    "hidden_states": "residual stream, before the layer",
    "attention_outputs": "what attention adds",
    "feed_forward_outputs": "what the feed-forward layer adds",
    "head_outputs": "outputs of heads",
}


def grids_of_cells(
    cells: Sequence[Mapping[str, Any]],
    spans: int,
    changes: Float[np.ndarray, " cells"],
    significant: Bool[np.ndarray, " cells"],
) -> list[Grid]:
    """Make a grid for each site, in the order of the cells.

    Args:
        cells: site, layer, head (None for sites of whole layers) and span of each cell.
        spans: the number of spans.
        changes: the change of each cell, as in `Grid`.
        significant: whether the change of each cell is significant.

    >>> cells = [{"place": "keys", "layer": 1, "head": 2, "span": span} for span in (0, 1)]
    >>> (grid,) = grids_of_cells(cells, 2, np.array([5.0, 6.0]), np.array([True, False]))
    >>> grid.title, grid.rows, grid.changes.tolist(), grid.kind
    ('keys of heads', ['1.2'], [[5.0, 6.0]], 'head')
    """
    grids = []
    for site in dict.fromkeys(cell["place"] for cell in cells):
        numbers = [number for number, cell in enumerate(cells) if cell["place"] == site]
        of_heads = cells[numbers[0]]["head"] is not None
        name = "{layer}.{head}" if of_heads else "{layer}"
        names = [name.format(**cells[number]) for number in numbers]
        rows = {name: row for row, name in enumerate(dict.fromkeys(names))}
        values, found = np.full((len(rows), spans), np.nan), np.zeros((len(rows), spans), np.bool_)
        where = [rows[name] for name in names], [cells[number]["span"] for number in numbers]
        values[where], found[where] = changes[numbers], significant[numbers]
        title, kind = TITLES.get(site, f"{site} of heads"), "head" if of_heads else "layer"
        grids.append(Grid(title, [*rows], values, found, kind))
    return grids


def make_grids(
    grids: Sequence[Grid],
    spans: Sequence[str],
    title: str,
    subtitle: str,
    note: str = "",
    *,
    measure: Measure,
    limit: float | None = None,
    frame: Frame = PAGE,
) -> "Figure":
    """Draw all grids with one colour scale.

    Args:
        grids: grids with the same spans.
        spans: the names of the spans, in the order of the text.
        title: title of the figure.
        subtitle: line below the title.
        note: replaces the note about dots, for changes that are not tested.
        measure: the measure of the changes.
        limit: where colours end; None for the largest change, unless that is an outlier.
        frame: title and size of the figure.

    Raises:
        DataError: there is no grid.

    >>> grid = Grid("residual stream", ["0", "1"], np.array([[0.0, 99.0], [1.0, 2.0]]), np.ones((2, 2), bool))
    >>> figure = make_grids([grid], ["0 [CLS]", "1 boys/boy"], "Where", "a model", measure=Measure())
    >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
    ['0 [CLS]', '1 boys/boy']
    """
    from matplotlib.style import context

    if not grids or not spans:
        raise DataError("there is no grid of patches to draw")
    changes = np.concatenate([grid.changes.ravel() for grid in grids])
    heights = [len(grid.rows) * _cell(len(grid.rows)) for grid in grids]
    total, width = sum(heights) + CAPTION * len(grids), WIDTH - LEFT - RIGHT
    limit = limit or colour_limit(changes, measure)
    found = sum(int((grid.significant & np.isfinite(grid.changes)).sum()) for grid in grids)
    digits = min(measure.digits, max(1, 2 - math.floor(math.log10(limit))))  # three of the largest change's at most
    with context("default"):
        names = _names_of_spans(spans)
        below = 0.5 + (max(text_width(name, names.size) for name in names.texts) if names.turned else 0.0)
        figure = start_page(title, subtitle, below, total, frame)
        top = below + total - CAPTION
        for number, (grid, height) in enumerate(zip(grids, heights, strict=True)):
            axes = add_axes(figure, LEFT, top - height, width, height)
            size = 7.5 if len(spans) <= MOST_WRITTEN and height / len(grid.rows) >= 0.2 else None
            draw_cells(axes, grid.changes, limit, measure, grid.significant, size=size, digits=digits, edges=0.4)
            _label(axes, grid, height / len(grid.rows), names if number == len(grids) - 1 else None)
            top -= height + CAPTION
        draw_scale(figure, figure.axes[0], changes, limit, replace(measure, of_effects=True))
        count = int(np.isfinite(changes).sum())
        lines = [note or f"dot: significant (q < {Q}), {found:,} of {count:,} cells"]
        add_note(figure, "; ".join([*lines, "grey: cannot act"] if count < changes.size else lines))
    return figure


def _cell(rows: int) -> float:
    """The height of a cell in inches."""
    return max(LOWEST, min(TALLEST, 4.5 / rows), SHORTEST / rows)


@dataclass(frozen=True)
class _Names:
    """The names below a grid, which do not overlap.

    Args:
        columns: the columns with a name.
        texts: the names.
        size: the font size in points.
        turned: whether the names are rotated.
    """

    columns: range
    texts: Sequence[str]
    size: float
    turned: bool


def _names_of_spans(spans: Sequence[str]) -> _Names:
    """The names of spans, rotated if one is wider than its column; of many spans only every second, third and so on."""
    names, column = [shorten_name(name, LONGEST) for name in spans], (WIDTH - LEFT - RIGHT) / len(spans)
    if all(text_width(name, FONT) + FONT / 72 <= column for name in names):
        return _Names(range(len(names)), names, FONT, False)
    size = min(FONT, max(SMALLEST, 72 * column / LINE))
    every = _every(column, size)
    return _Names(range(0, len(names), every), names[::every], size, True)


def _every(step: float, size: float) -> int:
    """The smallest number of steps of this size in inches into which a line of a font fits."""
    return max(1, math.ceil(LINE * size / 72 / step - 1e-9))


def _label(axes: "Axes", grid: Grid, height: float, spans: _Names | None) -> None:
    """Name the rows, which have this height in inches, and spans below the last grid."""
    count, columns = grid.changes.shape
    size = FONT if count <= 14 else 7.0
    if count <= NAMED:
        heights, names = np.arange(count) + 0.5, list(grid.rows)
    else:
        layers = [name.split(".")[0] for name in grid.rows]
        firsts = [row for row in range(count) if row == 0 or layers[row] != layers[row - 1]]
        named = firsts[:: _every(height * count / len(firsts), size)]
        heights, names = np.array(named) + 0.5, [grid.rows[row] for row in named]
        if len(firsts) < count:
            for row in firsts[1:]:
                axes.axhline(row, color=INK, linewidth=0.5)
    axes.set_yticks(heights, names, fontsize=size)
    axes.set_xticks([])
    if spans is not None:
        style: dict[str, Any] = {"fontsize": spans.size, "parse_math": False, "rotation": 90 if spans.turned else 0}
        axes.set_xticks(np.array(spans.columns) + 0.5, spans.texts, **style)
    axes.tick_params(length=0)
    axes.set_ylim(count, 0)
    axes.set_xlim(0, columns)
    axes.set_ylabel(grid.kind, fontsize=9, color=INK)
    axes.set_title(grid.title, fontsize=9.5, color=INK, loc="left")
    axes.set_facecolor(PALE)
