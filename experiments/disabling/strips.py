"""Changes of one score in several modes, one line of dots for each mode, a thread for each head or layer."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from bertjax.page import GREY, INK, PALE, WIDTH, add_axes, choose_ticks, save_page, start_page

LEFT, RIGHT, BOTTOM, ROW = 0.95, 0.35, 0.95, 0.85  # inches
FEW = 24  # so many places at most are named


def draw_strips(
    path: Path,
    changes: Float[np.ndarray, "modes places"],
    intervals: Float[np.ndarray, "ends modes"],
    modes: Sequence[str],
    names: Sequence[str],
    base: float,
    texts: tuple[str, str, str, str],
) -> None:
    """Draw the changes.

    Args:
        changes: in points against the base.
        intervals: of each mode's mean, in points.
        names: of the places; written where they are few.
        base: the score with nothing disabled, as the metric defines it.
        texts: title, subtitle, metric, and what a place is.
    """
    from matplotlib.style import context

    title, subtitle, label, what = texts
    height = ROW * len(modes)
    with context("default"):
        figure = start_page(title, subtitle, BOTTOM, height)
        axes = add_axes(figure, LEFT, BOTTOM, WIDTH - LEFT - RIGHT, height)
        rows = np.arange(len(modes))
        axes.plot(changes, rows, color=PALE, linewidth=0.7, zorder=1)
        for row, some in enumerate(changes):
            axes.scatter(some, np.full(len(some), row), s=15, color="#2166ac", alpha=0.55, linewidths=0, zorder=2)
            if len(names) <= FEW:
                for rank, place in enumerate(np.argsort(some).tolist()):  # at two heights, so that neighbours fit
                    spot, above = (some[place], row), (0, 5 + 8 * (rank % 2))
                    axes.annotate(names[place], spot, above, textcoords="offset points", fontsize=7.5, ha="center")
            mean = float(np.nanmean(some))
            axes.plot(intervals[:, row], [row + 0.27] * 2, color="#b2182b", linewidth=1.4, zorder=3)
            axes.plot([mean], [row + 0.27], marker="D", markersize=4.5, color="#b2182b", linestyle="none", zorder=3)
        axes.axvline(0, color=INK, linewidth=1.4, zorder=1.5)
        axes.set_yticks(rows, modes)
        axes.set_ylim(len(modes) - 0.5, -0.5)
        known = np.concatenate([changes.ravel(), intervals.ravel(), [0.0]])
        low, high = float(np.nanmin(known)), float(np.nanmax(known))
        room = max(0.05 * (high - low), 0.05)
        ticks, words = choose_ticks(low - room, high + room, base, most=6, separator="\n")
        axes.set_xlim(low - room, high + room)
        axes.set_xticks(ticks, words)
        axes.set_xlabel(f"{label} in points (change)", fontsize=9.5, color=INK)
        note = f"dot: a {what} disabled alone, a thread through its modes; diamond: mean of all with 95 % interval"
        high_page = float(figure.get_size_inches()[1])
        figure.text(0.2 / WIDTH, 0.12 / high_page, note, fontsize=8.5, color=GREY)
        save_page(figure, path)
