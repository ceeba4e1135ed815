"""All effects with intervals, from the largest loss to the largest gain."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from bertjax.plots.canvas import (
    COLOURS,
    GREY,
    INK,
    PAGE,
    PALE,
    WIDTH,
    Frame,
    add_note,
    count_found,
    shorten_name,
    size_of,
)
from bertjax.statistics import Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEFT, RIGHT, BOTTOM, HEIGHT = 0.7, 0.3, 0.95, 3.2  # inches
NAMED = 90  # ablations that are all named; of more, the significant ones and the extremes are named
UPRIGHT = 80  # characters that fit into a line of names
LONGEST_NAME, LETTER, BELOW = 40, 0.056, 0.5  # characters; inches per character of a vertical name, and below the names


def make_ranking(
    names: Sequence[str],
    changes: Float[np.ndarray, " ablations"],
    intervals: Float[np.ndarray, "2 ablations"],
    significant: Bool[np.ndarray, " ablations"],
    title: str,
    subtitle: str,
    *,
    measure: Measure,
    frame: Frame = PAGE,
) -> "Figure":
    """Changes with their 95 % intervals, the largest loss first; undefined ones are left out and counted.

    Args:
        names: the ablations' names; long ones are cut.
        changes: the changes as printed.
        intervals: both ends of the interval of each change, as printed.
        significant: which changes are significant; their marks are filled.
        title: title of the figure.
        subtitle: line below the title.
        measure: name, unit and direction of the score.
        frame: title, and axes to draw into.
    """
    import matplotlib
    from matplotlib.style import context

    defined = np.flatnonzero(np.isfinite(changes))
    order = defined[np.argsort(measure.order * changes[defined], kind="stable")]
    loss, gain = matplotlib.colormaps[COLOURS]([0.12, 0.88])
    colours = [GREY if not changes[place] else loss if measure.sign * changes[place] < 0 else gain for place in order]
    names = [shorten_name(name, LONGEST_NAME) for name in names]
    bottom = max(BOTTOM, BELOW + LETTER * max(map(len, names)))
    missing = len(changes) - len(defined)
    subtitle += f"; {missing} undefined" if missing else ""
    with context("default"):
        figure, axes = frame.open_axes(title, subtitle, bottom, (LEFT, WIDTH - LEFT - RIGHT, HEIGHT))
        ranks = np.arange(len(order))
        axes.vlines(ranks, *intervals[:, order], color=GREY, linewidth=0.9, zorder=2)
        faces = [colour if significant[place] else "white" for colour, place in zip(colours, order, strict=True)]
        axes.scatter(ranks, changes[order], s=22, c=faces, edgecolors=colours, linewidths=1.2, zorder=3)
        axes.axhline(0, color=INK, linewidth=1.2, zorder=1)
        axes.grid(axis="y", color=PALE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_xlim(-1, len(order))
        _name(axes, [names[place] for place in order], significant[order])
        axes.set_ylabel(_caption(measure), fontsize=9.5, color=INK)
        if frame.ax is None:
            add_note(figure, count_found(int(significant.sum()), len(changes), measure))
    return figure


def _caption(measure: Measure) -> str:
    """The label of the axis of changes."""
    if measure.of_effects:
        return measure.label_in_unit
    if measure.compared_with:
        return f"difference in {measure.unit}" if measure.unit else "difference"
    return f"change of {measure.label_in_unit}"


def _name(axes: "Axes", names: Sequence[str], significant: Bool[np.ndarray, " ablations"]) -> None:
    """Write names below the marks: all if they fit, otherwise those of significant and extreme effects that fit."""
    count, width = len(names), size_of(axes)[0] / (WIDTH - LEFT - RIGHT)
    named = list(range(count))
    if count > NAMED * width:
        gap, order = count / NAMED / width, sorted(named, key=lambda i: (not significant[i], min(i, count - 1 - i)))
        named = []
        for place in order:
            if all(abs(place - neighbour) >= gap for neighbour in named):
                named.append(place)
    texts = [names[place] for place in named]
    if sum(len(text) + 1 for text in texts) <= UPRIGHT * width:
        axes.set_xticks(named, texts, fontsize=9)
    else:
        axes.set_xticks(named, texts, rotation=90, fontsize=min(7.0, 420 * width / max(len(texts), 1)))
