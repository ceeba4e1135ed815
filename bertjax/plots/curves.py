"""Curves of a score against the number of heads left, one for each order of removal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from bertjax.errors import DataError
from bertjax.plots.canvas import GREY, INK, PAGE, PALE, WIDTH, Frame, add_note, size_of
from bertjax.statistics import Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

LEFT, RIGHT, BOTTOM, HEIGHT = 0.8, 2.1, 0.95, 3.6  # inches
# Colours that colour-blind people can distinguish (Okabe and Ito 2008); lines and markers differ without colours, too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
LINES = ("-", (0, (6, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)), (0, (3, 1.5)), (0, (8, 1.5, 1, 1.5, 1, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P")
NAME = 0.17  # inches of a line of a name


@dataclass(frozen=True)
class Curve:
    """Scores along an order.

    Args:
        name: the name of the order.
        scores: the scores of each draw of the order, as they are printed.
        ends: the ends of the scores' intervals, for a single draw; None if there are none.
        left: the number of heads left at each point, descending; None for the points of all curves.
    """

    name: str
    scores: Float[np.ndarray, "draws points"]
    ends: Float[np.ndarray, "2 points"] | None = None
    left: Int[np.ndarray, " points"] | None = None


def make_curves(
    left: Int[np.ndarray, " points"],
    curves: Sequence[Curve],
    all_heads: tuple[int, float],
    title: str,
    subtitle: str,
    *,
    measure: Measure,
    bounds: tuple[int | float, int | float] = (-np.inf, np.inf),
    frame: Frame = PAGE,
) -> "Figure":
    """The scores of each order from all heads to none; for several draws their mean and range.

    Args:
        left: the number of heads left at each point.
        curves: the curve of each order.
        all_heads: the number of all heads, and the score with all heads as it is printed.
        title: title of the figure.
        subtitle: line below the title.
        measure: name, unit and direction of the score.
        bounds: the lowest and the highest possible score as printed; axis and bands end there.
        frame: title, and axes to draw into.

    Raises:
        DataError: there is no curve.

    >>> curve = Curve("greedy", np.array([[80.0, 50.0]]))
    >>> figure = make_curves(np.array([2, 0]), [curve], (4, 84.0), "A model", "", measure=Measure("Accuracy"))
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['greedy']
    """
    from matplotlib.style import context

    if not curves:
        raise DataError("there is no order to draw")
    count, score = all_heads
    with context("default"):
        figure, axes = frame.open_axes(title, subtitle, BOTTOM, (LEFT, WIDTH - LEFT - RIGHT, HEIGHT))
        lines: list[Line2D] = []
        for number, curve in enumerate(curves):
            is_drawn = len(curve.scores) > 1
            colour = GREY if is_drawn else COLOURS[number % len(COLOURS)]
            places = np.array([count, *(left if curve.left is None else curve.left)])
            drawn = np.concatenate([np.full((len(curve.scores), 1), score), curve.scores], axis=1)
            band = curve.ends
            if is_drawn:
                band = np.stack([curve.scores.min(axis=0), curve.scores.max(axis=0)])
            if band is not None:
                low, high = np.concatenate([[[score], [score]], band], axis=1).clip(*bounds)
                axes.fill_between(places, low, high, color=colour, alpha=0.1, linewidth=0, zorder=1)
            style: dict[str, Any] = {"linestyle": LINES[number % 6], "marker": MARKERS[number % 6], "markersize": 4}
            lines += axes.plot(places, drawn.mean(axis=0), color=colour, linewidth=1.6, zorder=3, **style)
        axes.axhline(score, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=2)
        axes.set_xlim(count, 0)
        axes.set_ylim(*np.clip(axes.get_ylim(), *bounds).tolist())
        _name_lines(axes, curves, lines)
        axes.set_xticks([count, *left.tolist()])
        axes.grid(color=PALE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_xlabel("heads left", fontsize=9.5, color=INK)
        axes.set_ylabel(measure.label_in_unit, fontsize=9.5, color=INK)
        if frame.ax is None and any(curve.ends is not None for curve in curves):
            drawn_too = "; grey: range of draws" if any(len(curve.scores) > 1 for curve in curves) else ""
            add_note(figure, f"bands: 95 % intervals of the change from all heads (dashed){drawn_too}")
    return figure


def _name_lines(axes: "Axes", curves: Sequence[Curve], lines: Sequence["Line2D"]) -> None:
    """Write the name of each curve at the end of its line, with a sample of the line; names do not overlap."""
    texts = [
        f"{curve.name}\n(mean and range\nof {len(curve.scores)} draws)" if len(curve.scores) > 1 else curve.name
        for curve in curves
    ]
    heights = [NAME * (text.count("\n") + 1) / size_of(axes)[1] for text in texts]
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = [to_axes.transform(_last_point(line, axes.get_ylim()[0])).tolist() for line in lines]
    means = [np.nanmean(curve.scores) for curve in curves]
    order = np.argsort([-end[1] - 1e-3 * mean for end, mean in zip(ends, means, strict=True)]).tolist()
    tops, free = dict[int, float](), np.inf
    for index in order:
        tops[index] = min(ends[index][1] + heights[index] / 2, free)
        free = tops[index] - heights[index]
    free = 0.0
    for index in reversed(order):  # no name is below the axes
        tops[index] = free = max(tops[index], free + heights[index])
    for index, top in tops.items():
        line, middle = lines[index], top - NAME / 2 / size_of(axes)[1]
        style: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False, "color": line.get_color()}
        axes.plot([ends[index][0], 1.02], [ends[index][1], middle], linewidth=0.5, **style)
        (sample,) = axes.plot([1.02, 1.05, 1.08], [middle] * 3, markevery=[1], **style)
        sample.set(linestyle=LINES[index % 6], marker=line.get_marker(), markersize=4, linewidth=1.6)
        axes.text(1.09, top, texts[index], fontsize=9, va="top", weight="bold", **style)


def _last_point(line: "Line2D", bottom: float) -> Float[np.ndarray, "2"]:
    """The last point of a line whose score is defined; at the bottom if none is."""
    points = np.asarray(line.get_xydata())
    defined = points[np.isfinite(points[:, 1])]
    return np.asarray(defined[-1] if len(defined) else (points[-1, 0], bottom))
