"""Cells of maps of changes: colours, dots in significant cells, and numbers."""

from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from bertjax.formatting import format_change
from bertjax.plots.canvas import (
    COLOURS,
    INK,
    PAGE,
    PALE,
    Frame,
    add_axes,
    choose_ticks,
    clear_axes,
    colours_of,
    draw_as_shapes,
    size_of,
)
from bertjax.statistics import Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOT, MARGIN = 1.5, 4.2  # points: the largest radius of a dot, and its distance from the edges of a cell with a number
OUTLIER = 3.0  # the colour scale ends at this multiple of the 90th percentile of changes
LETTER = 0.075  # inches of a letter of the caption
DARKEST = 0.2  # luminance above which dark letters are as readable as white ones

Map = Float[np.ndarray, "layers heads"]
# Red, green and blue of each cell, 0 to 1.
Colours = Float[np.ndarray, "layers heads 3"]


def colour_limit(changes: Float[np.ndarray, "..."], measure: Measure) -> float:
    """The end of the colour scale: the largest change unless it is an outlier."""
    sizes = np.abs(changes[np.isfinite(changes)])
    if not sizes.size:
        return 1.0
    largest, bound = float(sizes.max()), OUTLIER * float(np.quantile(sizes, 0.9, method="lower"))
    return max(min(largest, bound) if bound > 0 else largest, measure.smallest_range)


def colour_cells(shares: Map) -> Colours:
    """Red, green and blue from 0 to 1.

    Args:
        shares: positions on the colour scale from 0 to 1; 0.5 is no change, and NaN (undefined) is light grey.
    """
    import matplotlib

    colours: Colours = matplotlib.colormaps[COLOURS](shares)[..., :3]
    return np.where(np.isnan(shares)[..., None], np.array(matplotlib.colors.to_rgb(PALE)), colours)


def draw_cells(
    axes: "Axes",
    changes: Map,
    limit: float,
    measure: Measure,
    significant: Bool[np.ndarray, "layers heads"] | None = None,
    *,
    size: float | None = None,
    digits: int = 2,
    edges: float = 0.8,
) -> None:
    """Draw the cells of a map in their colours; significant cells have a dot.

    Args:
        changes: the changes as printed; NaN where undefined.
        limit: the largest change of the colour scale.
        significant: which changes are significant; None if they are not tested.
        size: the font size of the numbers in the cells, in points; None writes none.
        digits: decimals of changes below 10.
        edges: the width of the white lines between cells.
    """
    colours = colour_cells(measure.sign * changes / (2 * limit) + 0.5)
    axes.pcolormesh(colours, edgecolors="white" if edges else "none", linewidth=edges)
    if significant is not None:
        _mark_cells(axes, significant & np.isfinite(changes), colours, has_numbers=size is not None)
    if size is not None:
        _write_changes(axes, changes, colours, size, digits, plus=measure.printed_change(1.0).startswith("+"))


def _mark_cells(axes: "Axes", cells: Bool[np.ndarray, "layers heads"], colours: Colours, *, has_numbers: bool) -> None:
    """Draw a dot in cells: in the upper right corner of cells with numbers, else in the middle.

    Args:
        cells: which cells get a dot.
        has_numbers: whether the cells have numbers.
    """
    rows, columns = np.nonzero(cells)
    size = 72 * np.array(size_of(axes)) / cells.shape[::-1]  # of a cell, in points
    x, y = (1 - MARGIN / size[0], MARGIN / size[1]) if has_numbers else (0.5, 0.5)
    inks = np.where(_is_light(colours), INK, "white")[cells]
    diameter = 2 * min(DOT, 0.25 * float(size.min()))
    axes.scatter(columns + x, rows + y, s=diameter**2, c=inks.tolist(), linewidths=0)


def _is_light(colours: Colours) -> Bool[np.ndarray, "layers heads"]:
    """Whether dark letters are as readable as white ones."""
    return np.asarray(colours**2.2 @ np.array([0.2126, 0.7152, 0.0722]) > DARKEST)


def _write_changes(axes: "Axes", changes: Map, colours: Colours, size: float, digits: int, *, plus: bool) -> None:
    """Write the changes in their cells: white on dark colours, dark on light ones.

    Args:
        plus: whether positive changes have a sign.
    """
    light = _is_light(colours)
    for layer, head in np.argwhere(np.isfinite(changes)):
        text = format_change(changes[layer, head], digits)
        axes.text(
            head + 0.5,
            layer + 0.5,
            text if plus else text.removeprefix("+"),
            fontsize=size,
            color=INK if light[layer, head] else "white",
            ha="center",
            va="center_baseline",
        )


def draw_scale(
    figure: "Figure",
    axes: "Axes",
    changes: Float[np.ndarray, "..."],
    limit: float,
    measure: Measure,
    *,
    base: float = 0.0,
    between: float = 0.0,
    frame: Frame = PAGE,
) -> None:
    """Draw the colour scale of a map: scores as they are printed, with a line across at the base.

    Args:
        between: the width between map and scale on a page, in inches.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    low = -limit if measure.tested or not measure.of_effects else 0.0  # half of the colours for what cannot be below 0
    below, above = (changes < low).any(), (changes > limit).any()
    extend = {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[int(below), int(above)]
    colours = ScalarMappable(norm=Normalize(-limit, limit), cmap=colours_of(measure))
    caption = measure.caption.replace(" in ", "\nin ") if measure.unit else measure.caption.replace(" (", "\n(")
    if frame.ax is None:
        box, (width, height) = axes.get_position(), figure.get_size_inches()
        left = box.x1 * width + between + 0.2
        place: dict[str, Any] = {"cax": add_axes(figure, left, box.y0 * height, 0.17, box.height * height)}
        lines = [part for line in caption.split("\n") for part in wrap(line, int((width - left) / LETTER))]
        figure.text(left / width, box.y0 - 0.1 / height, "\n".join(lines), fontsize=8.5, color=INK, va="top")
    else:
        place = {"ax": axes, "label": caption}
    bar = figure.colorbar(colours, **place, extend=extend, extendfrac=0.06)
    draw_as_shapes(bar)
    clear_axes(bar.ax)
    bar.ax.set_ylim(low, limit)
    bar_height = size_of(bar.ax)[1]
    most = max(4 if bar_height >= 1 else 2, min(10, int(2.6 * bar_height)))
    ticks, labels = choose_ticks(low, limit, base, measure, most=most, separator="  ")
    bar.set_ticks(ticks, labels=labels)
    bar.ax.get_yticklabels()[ticks.index(0.0)].set_fontweight("bold")
    bar.ax.axhline(0, color=INK, linewidth=1.6)
