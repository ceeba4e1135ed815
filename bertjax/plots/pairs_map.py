"""The map of pairs of heads, heads as rows and columns."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from bertjax.errors import DataError
from bertjax.plots.canvas import INK, LEFT, PAGE, PALE, RIGHT, WIDTH, Frame, add_note, size_of
from bertjax.plots.cells import colour_limit, draw_cells, draw_scale
from bertjax.statistics import Measure, Q

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NAMED = 36  # heads that are named at the axes; of more heads only layers are named


def make_pairs(
    heads: Sequence[tuple[int, int]],
    pairs: Int[np.ndarray, "pairs 2"],
    changes: Float[np.ndarray, " pairs"],
    significant: Bool[np.ndarray, " pairs"],
    title: str,
    subtitle: str,
    *,
    measure: Measure,
    frame: Frame = PAGE,
) -> "Figure":
    """A symmetric map with two cells for each pair.

    Args:
        heads: the heads of all pairs, in ascending order.
        pairs: the indices of each pair in `heads`.
        changes: the changes as printed; NaN if undefined.
        significant: which changes are significant; their cells have a dot.
        title: title of the figure.
        subtitle: line below the title.
        measure: name, unit and direction of the score.
        frame: title, and axes to draw into.

    Raises:
        DataError: there is no pair.

    >>> changes, significant = np.array([-1.0]), np.array([True])
    >>> figure = make_pairs(
    ...     [(0, 1), (1, 2)], np.array([[0, 1]]), changes, significant, "Two", "", measure=Measure()
    ... )
    >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
    ['0.1', '1.2']
    """
    from matplotlib.style import context

    if not len(pairs):
        raise DataError("there is no pair of heads to draw")
    matrix, found = np.full((len(heads), len(heads)), np.nan), np.zeros((len(heads), len(heads)), np.bool_)
    for both in (pairs, pairs[:, ::-1]):
        matrix[both[:, 0], both[:, 1]], found[both[:, 0], both[:, 1]] = changes, significant
    limit, side, bottom = colour_limit(changes, measure), WIDTH - LEFT - RIGHT, 1.0
    with context("default"):
        figure, axes = frame.open_axes(title, subtitle, bottom, (LEFT, side, side))
        edges = 0.5 if len(heads) <= MOST_NAMED else 0.0
        cell = size_of(axes)[0] / len(heads)
        size = min(8.0, cell * 17) if cell >= 0.3 else None
        draw_cells(axes, matrix, limit, measure, found, size=size, digits=measure.digits, edges=edges)
        _label(axes, heads)
        draw_scale(figure, axes, changes, limit, replace(measure, of_effects=True), frame=frame)
        if frame.ax is None:
            count = int((significant & np.isfinite(changes)).sum())
            add_note(figure, f"dot: significant (q < {Q}), {count:,} of {len(changes):,}")
    return figure


def _label(axes: "Axes", heads: Sequence[tuple[int, int]]) -> None:
    """Name the heads, or only the layers of many heads; draw lines between layers."""
    layers = np.array([layer for layer, _ in heads])
    starts = np.flatnonzero(np.diff(layers, prepend=-1))
    ends = np.append(starts[1:], len(heads))
    if len(heads) <= MOST_NAMED:
        places, names = np.arange(len(heads)) + 0.5, [f"{layer}.{head}" for layer, head in heads]
    else:
        places, names = (starts + ends) / 2, [str(layer) for layer in layers[starts]]
    size = 9.5 if len(heads) > MOST_NAMED else max(5.5, min(9.0, 210 / len(heads)))
    axes.set_xticks(places, names, fontsize=size, rotation=90 if 14 < len(heads) <= MOST_NAMED else 0)
    axes.set_yticks(places, names, fontsize=size)
    axes.tick_params(length=0)
    for start in starts[1:]:
        for draw in (axes.axhline, axes.axvline):
            draw(start, color=INK, linewidth=0.6)
    axes.set_ylim(len(heads), 0)
    if len(heads) > MOST_NAMED:
        axes.set_xlabel("layer of a head", fontsize=9.5, color=INK)
        axes.set_ylabel("layer of a head", fontsize=9.5, color=INK)
    axes.set_facecolor(PALE)
