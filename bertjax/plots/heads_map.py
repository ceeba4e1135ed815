"""The map of heads: the effect of ablating each head, layers as rows and heads as columns."""

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from bertjax.formatting import format_change
from bertjax.plots.canvas import (
    INK,
    LEFT,
    PAGE,
    PALE,
    RIGHT,
    WIDTH,
    Frame,
    add_axes,
    colours_of,
    printed_changes,
    size_of,
)
from bertjax.plots.cells import Map, colour_limit, draw_cells, draw_scale
from bertjax.statistics import SCORE, Measure, Q

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

HATCHED: dict[str, Any] = {"facecolor": PALE, "edgecolor": "#a0a0a0", "hatch": "/////", "linewidth": 0}
MEANS = 0.72  # inches of the column with the means of layers
ALIKE = 0.5  # in units of the last printed digit: changes that differ by less are equal

Outline = tuple[int, int, "Rectangle"]


def make_heads(
    scores: Float[np.ndarray, "..."],
    base: float,
    title: str,
    subtitle: str = "",
    measure: Measure = SCORE,
    significant: Bool[np.ndarray, "layers heads"] | None = None,
    *,
    frame: Frame = PAGE,
) -> "Figure":
    """The layers x heads map: the score of each head when it is ablated, compared with the base score.

    Layer 0 is at the top and head 0 at the left, as in the array and in tables such as that of Michel et al. 2019. The
    numbers in the cells (if they fit) are changes as they are printed. Colours are centred on the base; red is
    worse. If few heads are far beyond the others, the scale ends at 3 times the 90th percentile of the changes; the
    colour bar then ends in an arrow, and the legend has the number of heads beyond.

    Args:
        scores: `[layers, heads]`, as the metric defines them (not in points); cells with NaN are grey and hatched.
        base: the score without ablation; if it is NaN, no cell has a colour.
        title: the title of the figure, one line.
        subtitle: a smaller line below the title; long ones are broken.
        measure: name, format and direction of the score.
        significant: which effects are significant: their cells have a dot. None if effects are not tested: then
            the map has no column with the means of layers.
        frame: title, and axes to draw into.

    Raises:
        DataError: `scores` is not a map `[layers, heads]`.

    Source: Kovaleva et al. 2019, section 4.6 and figure 8, which show scores this way.

    >>> figure = make_heads(np.array([[0.86, 0.85, 0.87]]), 0.86, "A model of one layer")
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['0.00', '−1.00', '+1.00']
    """
    from matplotlib.style import context

    changes = printed_changes(scores, base, measure, axes=("layers", "heads"))
    layers, heads = changes.shape
    limit = colour_limit(changes, measure)
    means_width = 0.0 if significant is None or frame.ax is not None else MEANS
    cell_width = min((WIDTH - LEFT - RIGHT - means_width) / heads, 1.1)
    cell_height = max(min(cell_width * 0.8, 0.5), 1.3 / layers)
    with context("default"):
        outlines = _outlines(changes, measure)
        entries = [rectangle for _, _, rectangle in outlines] + _notes(changes, limit, measure, significant)
        bottom = 0.68 + 0.2 * ((len(entries) + 1) // 2)
        box = LEFT, heads * cell_width, layers * cell_height
        figure, axes = frame.open_axes(title, subtitle, bottom, box)
        cell_width = size_of(axes)[0] / heads
        size = min(8.0, cell_width * 17) if cell_width >= 0.3 else None
        draw_cells(axes, changes, limit, measure, significant, size=size, digits=measure.digits)
        _frame(axes, changes, outlines)
        if means_width:
            _draw_means(figure, axes, changes, limit, measure, width=heads * cell_width)
        draw_scale(figure, axes, changes, limit, measure, base=base, between=means_width, frame=frame)
        if frame.ax is None:
            _draw_legend(figure, entries, 8.5 * frame.resize(figure))
    return figure


def _draw_means(figure: "Figure", axes: "Axes", changes: Map, limit: float, measure: Measure, *, width: float) -> None:
    """Draw each layer's mean change in a column to the right of the map."""
    (wide, high), box = figure.get_size_inches(), axes.get_position()
    column = add_axes(figure, box.x0 * wide + width + 0.12, box.y0 * high, MEANS - 0.15, box.height * high)
    defined = np.isfinite(changes)
    sums = np.where(defined, changes, 0).sum(1)
    means = np.where(defined.any(1), sums / np.maximum(defined.sum(1), 1), np.nan)
    draw_cells(column, means[:, None], limit, measure, size=8.0, digits=measure.digits)
    column.set_ylim(len(means), 0)
    column.set_yticks([])
    column.set_xticks([0.5], ["mean"])


def _frame(axes: "Axes", changes: Map, outlines: list[Outline]) -> None:
    """Hatch cells without a result, outline the extremes, and number the layers and heads."""
    from matplotlib.patches import Rectangle

    layers, heads = changes.shape
    for layer, head in np.argwhere(np.isnan(changes)):
        axes.add_patch(Rectangle((head, layer), 1, 1, **HATCHED))
    for layer, head, style in outlines:
        outline = Rectangle((head, layer), 1, 1)
        outline.update_from(style)
        outline.set(clip_on=False, zorder=3)
        axes.add_patch(outline)
    axes.set_xticks(np.arange(heads) + 0.5, [str(head) for head in range(heads)])
    axes.set_yticks(np.arange(layers) + 0.5, [str(layer) for layer in range(layers)])
    axes.set_ylim(layers, 0)
    axes.set_xlabel("head", fontsize=9.5, color=INK)
    axes.set_ylabel("layer", fontsize=9.5, color=INK)


def _outlines(changes: Map, measure: Measure) -> list[Outline]:
    """Layer, head and outline of the largest loss (solid) and the largest gain (dashed), where they exist."""
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    outlines: list[Outline] = []
    effects = np.nan_to_num(changes)  # an undefined head is neither a loss nor a gain
    gains = measure.sign * effects
    loss, gain = measure.names_of_changes
    worst, best = (f"largest {loss}", f"largest {gain}") if measure.is_of_model else ("lowest", "highest")
    if not measure.is_of_model and measure.sign < 0:
        worst, best = best, worst
    kinds = ((gains.argmin(), -1, worst, "-"), (gains.argmax(), 1, best, (0, (2, 1))))
    for place, side, label, style in kinds:
        layer, head = divmod(int(place), changes.shape[1])
        change = format_change(effects[layer, head], measure.digits)
        if change.startswith("+" if side == measure.sign else "−"):
            rectangle = Rectangle((0, 0), 1, 1, fill=False, edgecolor=INK, linewidth=1.7, linestyle=style)
            rectangle.set_path_effects([withStroke(linewidth=3.6, foreground="white")])  # visible on dark cells too
            ties = int((np.abs(changes - effects[layer, head]) < ALIKE * measure.least).sum()) - 1
            shown = measure.printed_change(effects[layer, head])
            rectangle.set_label(f"{label}: head {layer}.{head}{f' and {ties} more' if ties else ''}, {shown}")
            outlines.append((layer, head, rectangle))
    return outlines


def _notes(
    changes: Map, limit: float, measure: Measure, significant: Bool[np.ndarray, "layers heads"] | None
) -> list["Artist"]:
    """Legend entries for what the colours cannot show."""
    import matplotlib
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    darkest = matplotlib.colormaps[colours_of(measure)]([0.0, 1.0])
    below, above = int((changes < -limit).sum()), int((changes > limit).sum())
    undefined = int(np.isnan(changes).sum())
    notes: list[Artist] = []
    if significant is not None:
        found, tested = int((significant & np.isfinite(changes)).sum()), int(np.isfinite(changes).sum())
        label = f"significant (q < {Q}): {found} of {tested}; means are not tested"
        notes.append(Line2D([], [], color=INK, marker="o", markersize=3, linestyle="none", label=label))
    if not measure.tested:
        notes.append(Patch(fill=False, linewidth=0, label=measure.untested))
    for count, side, marker, colour in ((below, "below", "v", darkest[0]), (above, "above", "^", darkest[1])):
        if count:
            label = f"heads {side} the colour scale: {count}"
            notes.append(Line2D([], [], color=colour, marker=marker, linestyle="none", label=label))
    if undefined:
        notes.append(Patch(label=f"heads without a result: {undefined}", **HATCHED))
    elif np.abs(changes).max() < measure.least:
        notes.append(Patch(fill=False, linewidth=0, label="no head changes the score"))
    return notes


def _draw_legend(figure: "Figure", entries: list["Artist"], size: float) -> None:
    """Draw the legend in two columns, read row by row (matplotlib fills column by column)."""
    handles = entries[::2] + entries[1::2]
    style: dict[str, Any] = {"frameon": False, "fontsize": size, "labelcolor": INK, "columnspacing": 2.5}
    handle = {"handlelength": 1.5, "handleheight": 1.0}
    figure.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.15 / WIDTH, 0), ncols=2, **handle, **style)
