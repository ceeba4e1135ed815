"""Changes of one score in several modes, one line of dots for each mode, a thread for each head or layer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.evidence import METRICS, Q
from bertjax.plots import INK, PALE, WIDTH, add_axes, add_note, choose_ticks, save_page, start_page
from experiments.disabling.effects import Effects

LEFT, RIGHT, BOTTOM, ROW = 0.95, 0.35, 0.95, 0.85  # inches
BLUE = "#2166ac"
FEW = 24  # so many places at most are named


def texts_of(results: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Title, subtitle, metric and what a place is, of a run's results."""
    label = METRICS[results["metric"]].label
    where = f"{results['model']}, {results['task']} {results['split']}, {results['examples']:,} examples"
    published = ""
    if results["as_published"]:
        published = ", as published" + ("" if results["metric"] == "accuracy" else f' ({label} is "accuracy" there)')
    return f"Disabling one {results['kind']} at a time", where + published, label, results["kind"]


def draw_strips(
    path: Path, effects: Mapping[str, Effects], names: Sequence[str], texts: tuple[str, str, str, str]
) -> None:
    """Draw the changes.

    Args:
        path: a PNG or PDF, by its suffix.
        effects: by mode, of one metric.
        names: of the places; written where they are few.
        texts: title, subtitle, metric, and what a place is.
    """
    from matplotlib.style import context

    title, subtitle, label, what = texts
    several = list(effects.values())
    changes, height = np.stack([one.change for one in several]), ROW * len(several)
    with context("default"):
        figure = start_page(title, subtitle, BOTTOM, height)
        axes = add_axes(figure, LEFT, BOTTOM, WIDTH - LEFT - RIGHT, height)
        axes.plot(changes, np.arange(len(several)), color=PALE, linewidth=0.7, zorder=1)
        for row, one in enumerate(several):
            _draw_row(axes, row, one, names)
        axes.axvline(0, color=INK, linewidth=1.4, zorder=1.5)
        axes.set_yticks(range(len(several)), list(effects))
        axes.set_ylim(len(several) - 0.5, -0.5)
        known = np.concatenate([changes.ravel(), *(one.mean_interval for one in several), [0.0]])
        low, high = float(np.nanmin(known)), float(np.nanmax(known))
        room = max(0.05 * (high - low), 0.05)
        ticks, words = choose_ticks(low - room, high + room, several[0].base, most=6, separator="\n")
        axes.set_xlim(low - room, high + room)
        axes.set_xticks(ticks, words)
        axes.set_xlabel(f"{label} in points (change)", fontsize=9.5, color=INK)
        note = f"dot: one {what}, a thread through modes; filled: more than chance (q < {Q}); diamond: mean, 95 %"
        add_note(figure, note)
        save_page(figure, path)


def _draw_row(axes: Any, row: int, one: Effects, names: Sequence[str]) -> None:
    """One mode: a dot for each place, and below them their mean."""
    faces, some = np.where(one.found, BLUE, "white"), one.change
    axes.scatter(some, np.full(len(some), row), s=15, color=faces, edgecolors=BLUE, linewidths=0.7, zorder=2)
    if len(names) <= FEW:
        for rank, place in enumerate(np.argsort(some).tolist()):  # at two heights, so that neighbours fit
            spot, above = (some[place], row), (0, 5 + 8 * (rank % 2))
            axes.annotate(names[place], spot, above, textcoords="offset points", fontsize=7.5, ha="center")
    axes.plot(one.mean_interval, [row + 0.27] * 2, color="#b2182b", linewidth=1.4, zorder=3)
    axes.plot([one.mean], [row + 0.27], marker="D", markersize=4.5, color="#b2182b", linestyle="none", zorder=3)
