"""Cells of maps of changes: their colours, pale where a change is not significant, and the numbers in them."""

from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from bertjax.formatting import format_change
from bertjax.plots.canvas import COLOURS, INK, PALE, add_axes, choose_ticks, colours_of, draw_as_shapes
from bertjax.statistics import Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STRENGTH = 0.22  # the share of its colour that a change keeps if it is not significant
PALE_INK = "#5a5a5a"  # for numbers in pale cells, readable on all of them
OUTLIER = 3.0  # times the 90th percentile of the changes: the colour scale extends no further
LETTER = 0.075  # inches, of the scale's caption
DARKEST = 0.2  # luminance above which dark letters are as readable as white ones

Map = Float[np.ndarray, "layers heads"]
# Red, green and blue of each cell, 0 to 1.
Colours = Float[np.ndarray, "layers heads 3"]


def colour_limit(changes: Float[np.ndarray, "..."], measure: Measure) -> float:
    """Where the colours end on both sides of the base: at the largest change unless it is an outlier."""
    sizes = np.abs(changes[np.isfinite(changes)])
    if not sizes.size:
        return 1.0
    largest, bound = float(sizes.max()), OUTLIER * float(np.quantile(sizes, 0.9, method="lower"))
    return max(min(largest, bound) if bound > 0 else largest, measure.smallest_range)


def colour_cells(shares: Map, significant: Bool[np.ndarray, "layers heads"]) -> Colours:
    """Red, green and blue from 0 to 1; noise in full colours would look like a finding.

    Args:
        shares: positions on the colour scale from 0 to 1, where 0.5 is no change; NaN (undefined) is light grey.
        significant: which changes are more than chance; the others are pale.

    >>> colours = colour_cells(np.array([[0.0, 0.0, np.nan]]), np.array([[True, False, False]]))
    >>> [bool(low < high) for low, high in zip(colours[0, 0], colours[0, 1])]
    [True, True, True]
    """
    import matplotlib

    full = matplotlib.colormaps[COLOURS](shares)[..., :3]
    strength = np.where(significant, 1.0, STRENGTH)[..., None]
    undefined = np.array(matplotlib.colors.to_rgb(PALE))
    return np.where(np.isnan(shares)[..., None], undefined, full * strength + 1 - strength)


def write_changes(
    axes: "Axes",
    changes: Map,
    colours: Colours,
    significant: Bool[np.ndarray, "layers heads"],
    *,
    size: float,
    digits: int = 2,
    middle: float = 0.5,
    plus: bool = True,
) -> None:
    """Write the changes in their cells: white on dark colours, dark on light ones, grey on pale ones.

    Args:
        changes: as they are printed; nothing is written where they are NaN.
        colours: of the cells (`colour_cells`).
        significant: which changes are more than chance.
        size: the font size in points.
        digits: decimals of changes below 10.
        middle: the centre of cell 0.
        plus: whether changes above 0 have their sign.
    """
    light = colours**2.2 @ np.array([0.2126, 0.7152, 0.0722]) > DARKEST
    for layer, head in np.argwhere(np.isfinite(changes)):
        ink = (INK if significant[layer, head] else PALE_INK) if light[layer, head] else "white"
        text, place = format_change(changes[layer, head], digits), (head + middle, layer + middle)
        text = text if plus else text.removeprefix("+")
        axes.text(*place, text, fontsize=size, color=ink, ha="center", va="center_baseline")


def draw_scale(
    figure: "Figure",
    axes: "Axes",
    changes: Float[np.ndarray, "..."],
    limit: float,
    measure: Measure,
    *,
    base: float = 0.0,
    beside: float = 0.0,
) -> None:
    """Draw the scale beside the map: scores as they are printed, with a line across at the base."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    box, (width, height) = axes.get_position(), figure.get_size_inches()
    bar_height = box.height * height
    left = box.x1 * width + beside + 0.2
    bar_axes = add_axes(figure, left, box.y0 * height, 0.17, bar_height)
    low = -limit if measure.tested or not measure.of_effects else 0.0  # what cannot be below 0 has half of the colours
    below, above = (changes < low).any(), (changes > limit).any()
    extend = {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[int(below), int(above)]
    colours = ScalarMappable(norm=Normalize(-limit, limit), cmap=colours_of(measure))
    bar = figure.colorbar(colours, cax=bar_axes, extend=extend, extendfrac=0.06)
    draw_as_shapes(bar)
    bar_axes.set_ylim(low, limit)
    fewest = 4 if bar_height >= 1 else 2
    ticks, labels = choose_ticks(
        low, limit, base, measure, most=max(fewest, min(10, int(2.6 * bar_height))), separator="  "
    )
    bar.set_ticks(ticks, labels=labels)
    bar_axes.get_yticklabels()[ticks.index(0.0)].set_fontweight("bold")
    bar_axes.axhline(0, color=INK, linewidth=1.6)
    caption = measure.caption.replace(" in ", "\nin ") if measure.unit else measure.caption.replace(" (", "\n(")
    room = int((width - left) / LETTER)
    lines = [part for line in caption.split("\n") for part in wrap(line, room)]
    figure.text(left / width, box.y0 - 0.1 / height, "\n".join(lines), fontsize=8.5, color=INK, va="top")
