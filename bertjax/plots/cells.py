"""Cells of maps of changes: their colours, pale where a change is not told from 0, and the numbers in them."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from bertjax.formatting import format_change
from bertjax.plots.canvas import COLOURS, INK, PALE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STRENGTH = 0.22  # what is left of the colour of a change that is not told from 0
PALE_INK = "#5a5a5a"  # of numbers in pale cells: read on all of them
DARKEST = 0.2  # luminance above which dark letters are read as well as white ones

Map = Float[np.ndarray, "layers heads"]
Colours = Float[np.ndarray, "layers heads 3"]


def colour_cells(shares: Map, found: Bool[np.ndarray, "layers heads"]) -> Colours:
    """Red, green and blue from 0 to 1: noise that has full colours looks like a finding.

    Args:
        shares: places on the scale of colours from 0 to 1, where 0.5 is no change; NaN where undefined: light grey.
        found: which changes are more than chance: the others are pale.

    >>> colours = colour_cells(np.array([[0.0, 0.0, np.nan]]), np.array([[True, False, False]]))
    >>> [bool(low < high) for low, high in zip(colours[0, 0], colours[0, 1])]
    [True, True, True]
    """
    import matplotlib

    full = matplotlib.colormaps[COLOURS](shares)[..., :3]
    strength = np.where(found, 1.0, STRENGTH)[..., None]
    undefined = np.array(matplotlib.colors.to_rgb(PALE))
    return np.where(np.isnan(shares)[..., None], undefined, full * strength + 1 - strength)


def write_changes(
    axes: "Axes",
    changes: Map,
    colours: Colours,
    found: Bool[np.ndarray, "layers heads"],
    size: float,
    middle: float = 0.5,
) -> None:
    """The changes in their cells, in white on dark colours and dark on light ones, grey on pale ones.

    Args:
        changes: in points; nothing is written where they are NaN.
        colours: of the cells (`colour_cells`).
        found: which changes are more than chance.
        size: of the letters in points of type.
        middle: of cell 0.
    """
    light = colours**2.2 @ np.array([0.2126, 0.7152, 0.0722]) > DARKEST
    for layer, head in np.argwhere(np.isfinite(changes)):
        ink = (INK if found[layer, head] else PALE_INK) if light[layer, head] else "white"
        text, place = format_change(changes[layer, head]), (head + middle, layer + middle)
        axes.text(*place, text, fontsize=size, color=ink, ha="center", va="center_baseline")
