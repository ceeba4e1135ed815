"""Maps of heads side by side: the layout of figures 3, 5 and 6 of Kovaleva et al. 2019."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from bertjax.errors import DataError
from bertjax.plots.canvas import GREY, INK, PAGE, WIDTH, Frame, add_axes, start_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GAP, LEFT, RIGHT, BOTTOM, CAPTION, AXIS = 0.45, 0.62, 1.0, 0.75, 0.3, 0.35  # inches
COLUMNS = 3
STROKE = "#7f7f7f"  # visible on all colours


@dataclass(frozen=True)
class Panel:
    """One map, layer 0 at the top.

    Args:
        title: the name of the map.
        values: the values of heads.
        marked: heads with a dot.
        struck: heads with a stroke, such as those that are not significant.
    """

    title: str
    values: Float[np.ndarray, "layers heads"]
    marked: Bool[np.ndarray, "layers heads"] | None = None
    struck: Bool[np.ndarray, "layers heads"] | None = None


def make_panels(
    panels: Sequence[Panel],
    title: str,
    subtitle: str,
    label: str,
    note: str = "",
    *,
    scale: tuple[int | float, int | float] | None = None,
    colours: str = "Blues",
    frame: Frame = PAGE,
) -> "Figure":
    """Draw panels with one colour scale, at most three in a row.

    Args:
        panels: panels of the same shape.
        title: title of the figure.
        subtitle: line below the title.
        label: the meaning of the colours.
        note: the meaning of dots and strokes.
        scale: where the colours begin and end; by default 0 and the largest value.
        colours: a matplotlib colormap.
        frame: title and size of the figure.

    Raises:
        DataError: there is no panel.

    >>> panels = [Panel(title, np.array([[0.2, 0.4]])) for title in ("to [CLS]", "to [SEP]")]
    >>> [axes.get_title() for axes in make_panels(panels, "A model", "", "share").axes]
    ['to [CLS]', 'to [SEP]', '']
    """
    from matplotlib.style import context

    if not panels:
        raise DataError("there is no map to draw")
    layers, heads = panels[0].values.shape
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    cell = min((WIDTH - LEFT - RIGHT - GAP * (columns - 1)) / columns / heads, 0.55)
    step = layers * cell + CAPTION + AXIS
    total = rows * step - AXIS
    low, high = scale or (0.0, max(float(np.nanmax(panel.values)) for panel in panels) or 1.0)
    bottom = BOTTOM + 0.15 * note.count("\n")
    with context("default"):
        figure = start_page(title, subtitle, bottom, total, frame)
        for number, panel in enumerate(panels):
            row, column = divmod(number, columns)
            left, below = LEFT + column * (heads * cell + GAP), bottom + total - CAPTION - layers * cell - row * step
            axes = add_axes(figure, left, below, heads * cell, layers * cell)
            image = axes.imshow(panel.values, cmap=colours, vmin=low, vmax=high, aspect="auto")
            if panel.struck is not None:
                _strike_through(axes, panel.struck)
            axes.set_xticks(range(0, heads, 1 if cell > 0.2 else 2))
            axes.set_yticks(range(layers))
            axes.set_title(panel.title, fontsize=9.5, color=INK)
            axes.set_xlabel("head" if number + columns >= len(panels) else "", fontsize=9, color=INK)
            axes.set_ylabel("" if column else "layer", fontsize=9, color=INK)
            if panel.marked is not None:
                places, heads_marked = np.nonzero(panel.marked)
                axes.scatter(heads_marked, places, s=9, color="#d7301f", edgecolors="white", linewidths=0.5)
        edge = LEFT + columns * (heads * cell + GAP) - GAP
        bar = add_axes(figure, edge + 0.15, bottom, 0.13, total - CAPTION)
        figure.colorbar(image, cax=bar).set_label(label, fontsize=9, color=INK)
        bar.tick_params(length=0, labelsize=8.5, colors=INK)
        if note:
            figure.text(LEFT / WIDTH, 0.14 / float(figure.get_size_inches()[1]), note, fontsize=8.5, color=GREY)
    return figure


def _strike_through(axes: "Axes", cells: Bool[np.ndarray, "layers heads"]) -> None:
    """Draw a stroke through cells."""
    from matplotlib.collections import LineCollection

    corners = np.argwhere(cells)[:, None, ::-1] - 0.5
    axes.add_collection(
        LineCollection(list(corners + np.array([[0, 1], [1, 0]])), colors=STROKE, linewidths=0.6), autolim=False
    )
