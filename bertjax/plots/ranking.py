"""All effects from the largest loss to the largest gain, with their intervals."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from bertjax.plots.canvas import (
    COLOURS,
    GREY,
    INK,
    PALE,
    WIDTH,
    add_axes,
    add_note,
    count_found,
    shorten_name,
    start_page,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEFT, RIGHT, BOTTOM, HEIGHT = 0.7, 0.3, 0.95, 3.2  # inches
NAMED = 90  # so many at most are all named below; of more, those found and the extremes
UPRIGHT = 80  # letters that stand side by side
LONGEST_NAME, LETTER, BELOW = 40, 0.056, 0.5  # characters; inches of one that stands upright, and below all of them


def make_ranking(
    names: Sequence[str],
    changes: Float[np.ndarray, " ablations"],
    intervals: Float[np.ndarray, "2 ablations"],
    found: Bool[np.ndarray, " ablations"],
    title: str,
    subtitle: str,
    *,
    metric_label: str,
) -> "Figure":
    """Changes with their 95 % intervals, the largest loss first; undefined ones are left out and counted.

    Args:
        names: of the ablations; long ones are cut.
        changes: in points.
        intervals: both ends, in points.
        found: which are more than chance: their marks are filled.
    """
    import matplotlib
    from matplotlib.style import context

    known = np.flatnonzero(np.isfinite(changes))
    order = known[np.argsort(changes[known], kind="stable")]
    loss, gain = matplotlib.colormaps[COLOURS]([0.12, 0.88])
    colours = [GREY if not changes[place] else loss if changes[place] < 0 else gain for place in order]
    names = [shorten_name(name, LONGEST_NAME) for name in names]
    bottom = max(BOTTOM, BELOW + LETTER * max(map(len, names)))
    missing = len(changes) - len(known)
    subtitle += f"; {missing} undefined" if missing else ""
    with context("default"):
        figure = start_page(title, subtitle, bottom, HEIGHT)
        axes = add_axes(figure, LEFT, bottom, WIDTH - LEFT - RIGHT, HEIGHT)
        ranks = np.arange(len(order))
        axes.vlines(ranks, *intervals[:, order], color=GREY, linewidth=0.9, zorder=2)
        faces = [colour if found[place] else "white" for colour, place in zip(colours, order, strict=True)]
        axes.scatter(ranks, changes[order], s=22, c=faces, edgecolors=colours, linewidths=1.2, zorder=3)
        axes.axhline(0, color=INK, linewidth=1.2, zorder=1)
        axes.grid(axis="y", color=PALE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_xlim(-1, len(order))
        _name(axes, [names[place] for place in order], found[order])
        axes.set_ylabel(f"change of {metric_label} in points", fontsize=9.5, color=INK)
        add_note(figure, count_found(int(found.sum()), len(changes)))
    return figure


def _name(axes: "Axes", names: Sequence[str], found: Bool[np.ndarray, " ablations"]) -> None:
    """Names below the marks: of all where they fit, else of the extremes and of what was found, as far as they fit."""
    count = len(names)
    wanted = list(range(count))
    if count > NAMED:
        apart, first = count / NAMED, sorted(wanted, key=lambda rank: (not found[rank], min(rank, count - 1 - rank)))
        wanted = []
        for place in first:
            if all(abs(place - other) >= apart for other in wanted):
                wanted.append(place)
    texts = [names[place] for place in wanted]
    if sum(len(text) + 1 for text in texts) <= UPRIGHT:
        axes.set_xticks(wanted, texts, fontsize=9)
    else:
        axes.set_xticks(wanted, texts, rotation=90, fontsize=min(7.0, 420 / max(len(texts), 1)))
