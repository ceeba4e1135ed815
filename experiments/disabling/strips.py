"""Changes of one score in several modes: a row of dots for each mode, and a thread for each head or layer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.evidence import METRICS, SCORE, Q
from bertjax.plots import INK, PALE, WIDTH, add_axes, add_note, choose_ticks, save_page, start_page
from experiments.disabling.effects import Effects

LEFT, RIGHT, BOTTOM, ROW = 0.95, 0.35, 0.95, 0.85  # inches
BLUE = "#2166ac"
FEW = 24  # up to this many places are named


def texts_of(results: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Title, subtitle, metric and kind of place for the results of a run."""
    label = METRICS[results["metric"]].label
    data_text = f"{results['model']}, {results['task']} {results['split']}, {results['examples']:,} examples"
    published = ""
    if results["as_published"]:
        published = ", as published" + ("" if results["metric"] == "accuracy" else f' ({label} is "accuracy" there)')
    return f"Disabling one {results['kind']} at a time", data_text + published, label, results["kind"]


def draw_strips(
    path: Path, effects: Mapping[str, Effects], names: Sequence[str], texts: tuple[str, str, str, str]
) -> None:
    """Draw the changes.

    Args:
        path: PNG or PDF, by its suffix.
        effects: by mode, for one metric.
        names: of the places; shown if there are few.
        texts: title, subtitle, metric and kind of place.
    """
    from matplotlib.style import context

    title, subtitle, label, kind = texts
    rows = list(effects.values())
    changes, height = np.stack([row_effects.change for row_effects in rows]), ROW * len(rows)
    with context("default"):
        figure = start_page(title, subtitle, BOTTOM, height)
        axes = add_axes(figure, LEFT, BOTTOM, WIDTH - LEFT - RIGHT, height)
        axes.plot(changes, np.arange(len(rows)), color=PALE, linewidth=0.7, zorder=1)
        for row, row_effects in enumerate(rows):
            _draw_row(axes, row, row_effects, names)
        axes.axvline(0, color=INK, linewidth=1.4, zorder=1.5)
        axes.set_yticks(range(len(rows)), list(effects))
        axes.set_ylim(len(rows) - 0.5, -0.5)
        extent = np.concatenate([changes.ravel(), *(row_effects.mean_interval for row_effects in rows), [0.0]])
        low, high = float(np.nanmin(extent)), float(np.nanmax(extent))
        margin = max(0.05 * (high - low), 0.05)
        ticks, words = choose_ticks(low - margin, high + margin, rows[0].base, SCORE, most=6, separator="\n")
        axes.set_xlim(low - margin, high + margin)
        axes.set_xticks(ticks, words)
        axes.set_xlabel(f"{label} in points (change)", fontsize=9.5, color=INK)
        note = f"dot: one {kind}, a thread through modes; filled: more than chance (q < {Q}); diamond: mean, 95 %"
        add_note(figure, note)
        save_page(figure, path)


def _draw_row(axes: Any, row: int, effects: Effects, names: Sequence[str]) -> None:
    """Draw one mode: a dot for each place, and their mean below."""
    faces, changes = np.where(effects.significant, BLUE, "white"), effects.change
    axes.scatter(changes, np.full(len(changes), row), s=15, color=faces, edgecolors=BLUE, linewidths=0.7, zorder=2)
    if len(names) <= FEW:
        for rank, place in enumerate(np.argsort(changes).tolist()):  # at alternating heights, so that neighbours fit
            spot, above = (changes[place], row), (0, 5 + 8 * (rank % 2))
            axes.annotate(names[place], spot, above, textcoords="offset points", fontsize=7.5, ha="center")
    axes.plot(effects.mean_interval, [row + 0.27] * 2, color="#b2182b", linewidth=1.4, zorder=3)
    axes.plot([effects.mean], [row + 0.27], marker="D", markersize=4.5, color="#b2182b", linestyle="none", zorder=3)
