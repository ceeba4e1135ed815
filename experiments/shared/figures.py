"""Figures that several scripts draw: maps of heads and bars of layers, in panels side by side on one scale."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.style import context

from bertjax.plots import COLOURS, INK, PALE, WIDTH, Panel, add_axes, add_note, make_panels, save_page, start_page
from bertjax.statistics import Q
from experiments.shared.tables import format_change

NOTE = f"dot: significant (q < {Q}, over all sites of a map); struck through: not"


class Texts(NamedTuple):
    """The texts of a figure; the label is that of its numbers."""

    title: str
    subtitle: str
    label: str


def draw_maps(
    path: Path,
    panels: Sequence[Panel],
    texts: Texts,
    *,
    axis: str = "",
    rows: Sequence[str] = (),
    ratio: int = 0,
    **options: Any,
) -> None:
    """Draw maps of heads on one scale.

    Args:
        path: PNG or PDF, by its suffix.
        axis: what rows and columns are, if they are not layers and heads.
        rows: names of the rows, if they are not layers.
        ratio: for ratios, the scale from 2**-ratio to 2**ratio, with white at 1.
        options: `note`, `scale` and `colours`, as in `bertjax.plots.make_panels`.
    """
    if ratio:
        panels = [replace(panel, values=np.log2(np.maximum(panel.values, 1e-9))) for panel in panels]
        options |= {"scale": (-ratio, ratio), "colours": COLOURS}
    figure = make_panels(panels, *texts, **options)
    *maps, bar = figure.axes
    if ratio:
        ticks = range(-ratio, ratio + 1)
        bar.set_yticks(ticks, [f"{2**tick}" if tick >= 0 else f"1/{2**-tick}" for tick in ticks])
    for axes in maps if axis else ():
        axes.set_xlabel(axis)
        axes.set_ylabel(axis)
    for axes in maps if rows else ():
        first_column = axes.get_ylabel() != ""
        axes.set_yticks(range(len(rows)), rows if first_column else [], fontsize=6.5)
        axes.set_ylabel("")
    save_page(figure, path)


@dataclass(frozen=True)
class Series:
    """Estimates of one kind.

    Args:
        label: in the legend; without any label there is no legend.
        values: an estimate for each name.
        ends: their intervals, if they have any; NaN for none.
    """

    label: str
    values: Any
    ends: Any = None
    colour: str = INK
    marker: str = "o"


def draw_estimates(
    path: Path, names: Sequence[str], series: Sequence[Series], texts: Texts, limits: tuple[int | float, int | float]
) -> None:
    """Draw estimates with their intervals in a row for each name, from the top.

    Args:
        limits: of the axis.
    """
    lines = 1 + max(name.count("\n") for name in names)
    height, left = (
        (0.08 + 0.18 * lines) * len(names),
        0.4 + 0.073 * max(len(line) for name in names for line in name.split("\n")),
    )
    bottom = 0.5 + 0.22 * ((len(series) + 1) // 2) * bool(series[0].label)
    with context("default"):
        figure = start_page(texts.title, texts.subtitle, bottom, height)
        axes = add_axes(figure, left, bottom, WIDTH - left - 0.4, height)
        for one in series:
            style: dict[str, Any] = {"marker": one.marker, "color": one.colour, "s": 36, "zorder": 3}
            axes.scatter(one.values, range(len(names)), label=one.label or None, **style)
            if one.ends is not None:
                axes.hlines(range(len(names)), *np.array(one.ends, float).T, color=one.colour, linewidth=1.6, zorder=2)
        axes.set_yticks(range(len(names)), names, fontsize=8.5)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlim(*limits)
        if limits[0] < 0:
            axes.axvline(0, color=INK, linewidth=1.0, zorder=1)
        axes.grid(axis="x", color=PALE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_xlabel(texts.label, fontsize=9, color=INK)
        if series[0].label:
            figure.legend(loc="lower left", ncols=2, frameon=False, fontsize=8.5)
        save_page(figure, path)


def draw_effect_maps(path: Path, maps: Mapping[str, tuple[Any, Any]], texts: Texts) -> None:
    """Draw maps of effects: red is a loss, blue a gain.

    Args:
        maps: changes and which of them are significant, by title.
    """
    panels = [Panel(name, change, found, ~found) for name, (change, found) in maps.items()]
    found = np.concatenate([np.abs(change[significant]) for change, significant in maps.values()])
    sizes = found if found.size else np.concatenate([np.abs(change).ravel() for change, _ in maps.values()])
    limit = float(np.nanmax(sizes)) or 1.0
    draw_maps(path, panels, texts, note=NOTE, scale=(-limit, limit), colours=COLOURS)


def draw_effect_bars(path: Path, names: Sequence[str], bars: Mapping[str, Any], texts: Texts) -> None:
    """Draw a bar with its interval for each site, at most three panels in a row.

    Args:
        names: of the sites, from the top.
        bars: by title: change, low end, high end, and whether each is significant.
    """
    columns, longest = min(3, len(bars)), max(map(len, names))
    rows, left, height = -(-len(bars) // columns), max(0.62, 0.35 + 0.075 * longest), 0.27 * len(names)
    width, step = (WIDTH - left - 0.3 - 0.4 * (columns - 1)) / columns, 0.27 * len(names) + 0.6
    extent = np.concatenate([[0.0], *(np.ravel(values[:3]) for values in bars.values())]).astype(float)
    margin = 0.3 * (np.nanmax(extent) - np.nanmin(extent) or 1.0)
    loss, gain = matplotlib.colormaps[COLOURS]([0.12, 0.88])
    with context("default"):
        figure = start_page(texts.title, texts.subtitle, 0.72, rows * step - 0.3)
        for number, (title, values) in enumerate(bars.items()):
            row, column = divmod(number, columns)
            axes = add_axes(figure, left + column * (width + 0.4), 0.72 + (rows - 1 - row) * step, width, height)
            for site, (change, low, high, found) in enumerate(zip(*values, strict=True)):
                colour = gain if change > 0 else loss
                axes.barh(site, change, height=0.7, color=colour if found else "white", edgecolor=colour)
                axes.hlines(site, low, high, color=INK, linewidth=1.0, zorder=3)
                end, side = (np.nanmin([change, low]), "right") if change < 0 else (np.nanmax([change, high]), "left")
                style: dict[str, Any] = {"ha": side, "va": "center_baseline", "fontsize": 7.5}
                axes.text(end, site, f" {format_change(change)} ", **style)
            axes.axvline(0, color=INK, linewidth=1.2)
            axes.set_xlim(np.nanmin(extent) - margin, np.nanmax(extent) + margin)
            axes.set_ylim(len(names) - 0.5, -0.5)
            axes.set_yticks(range(len(names)), [] if column else names)
            axes.set_title(title, fontsize=9.5, color=INK)
            axes.set_xlabel(texts.label if number + columns >= len(bars) else "", fontsize=8.5, color=INK)
            axes.grid(axis="x", color=PALE, linewidth=0.7)
            axes.set_axisbelow(True)
        add_note(figure, f"filled: significant (q < {Q}, over all bars of a panel); lines: 95 % intervals")
        save_page(figure, path)
