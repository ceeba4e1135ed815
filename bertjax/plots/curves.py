"""Curves of a score against how many heads are left, one for each order in which they go."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from bertjax.errors import DataError
from bertjax.plots.canvas import GREY, INK, PALE, WIDTH, add_axes, add_note, start_page
from bertjax.statistics import Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEFT, RIGHT, BOTTOM, HEIGHT = 0.8, 1.6, 0.95, 3.6  # inches
# Colours that colour-blind people can tell apart (Okabe and Ito 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


@dataclass(frozen=True)
class Curve:
    """Scores along an order.

    Args:
        name: of the order.
        scores: as they are printed; of several draws each.
        ends: of the scores' intervals, for a single draw; None where there are none.
        left: how many heads are left at each of its points, descending; None for those of all curves.
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
) -> "Figure":
    """Each order's scores from all heads, at the left, to none; of several draws their mean, and from least to most.

    Args:
        left: how many heads are left at each point.
        curves: of each order.
        all_heads: how many heads there are, and the score with all of them as it is printed.

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
        figure = start_page(title, subtitle, BOTTOM, HEIGHT)
        axes = add_axes(figure, LEFT, BOTTOM, WIDTH - LEFT - RIGHT, HEIGHT)
        colours = list[str]()
        for number, curve in enumerate(curves):
            several = len(curve.scores) > 1
            colour = GREY if several else COLOURS[number % len(COLOURS)]
            places = np.array([count, *(left if curve.left is None else curve.left)])
            drawn = np.concatenate([np.full((len(curve.scores), 1), score), curve.scores], axis=1)
            band = curve.ends
            if several:
                band = np.stack([curve.scores.min(axis=0), curve.scores.max(axis=0)])
            if band is not None:
                low, high = np.concatenate([[[score], [score]], band], axis=1)
                axes.fill_between(places, low, high, color=colour, alpha=0.1, linewidth=0, zorder=1)
            axes.plot(places, drawn.mean(axis=0), color=colour, linewidth=1.8, marker="o", markersize=3.5, zorder=3)
            colours.append(colour)
        _name_lines(axes, curves, colours)
        axes.axhline(score, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=2)
        axes.set_xlim(count, 0)
        axes.set_xticks([count, *left.tolist()])
        axes.grid(color=PALE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_xlabel("heads left", fontsize=9.5, color=INK)
        axes.set_ylabel(measure.label_in_unit, fontsize=9.5, color=INK)
        if any(curve.ends is not None for curve in curves):
            drawn_too = "; grey: range of draws" if any(len(curve.scores) > 1 for curve in curves) else ""
            add_note(figure, f"bands: 95 % intervals of the change from all heads (dashed){drawn_too}")
    return figure


def _name_lines(axes: "Axes", curves: Sequence[Curve], colours: Sequence[str]) -> None:
    """Write the curves' names beside the drawing, the highest on the whole at the top."""
    height = 0.97
    for number in np.argsort([-curve.scores.mean() for curve in curves], kind="stable").tolist():
        curve = curves[number]
        draws = len(curve.scores)
        text = f"{curve.name}\n(mean and range\nof {draws} draws)" if draws > 1 else curve.name
        style = {"fontsize": 9, "color": colours[number], "va": "top", "weight": "bold"}
        axes.text(1.02, height, text, transform=axes.transAxes, **style)
        height -= 0.18 if draws > 1 else 0.08
