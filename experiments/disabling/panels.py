"""Effects of heads as maps and of layers as bars, in panels side by side on one scale: the paper's figures 8 and 9.

Effects indistinguishable from chance are pale in maps and hollow in bars, so that noise does not look like a finding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from bertjax.evidence import SCORE, Q
from bertjax.formatting import format_change
from bertjax.plots import (
    COLOURS,
    GREY,
    INK,
    PALE,
    WIDTH,
    Colours,
    add_axes,
    add_note,
    colour_cells,
    draw_as_shapes,
    save_page,
    start_page,
    write_changes,
)

COLUMNS = 3
LEFT, RIGHT, GAP, BOTTOM, CAPTION, AXIS = 0.62, 1.15, 0.4, 0.72, 0.28, 0.36  # inches
LARGEST_CELL, CELL_WITH_NUMBER, HIGHEST_CELL = 0.52, 0.36, 0.4
MARGIN = 0.1  # inches
BAR, NUMBER_SPACE = 0.27, 0.28  # height of a bar in inches; share of a panel for the numbers at the ends of bars


@dataclass(frozen=True)
class EffectPanel:
    """One map, or one column of bars.

    Args:
        title: above it.
        change: in points; NaN where undefined.
        significant: which changes are significant.
        ends: of the intervals; for bars only.
    """

    title: str
    change: Float[np.ndarray, "..."]
    significant: Bool[np.ndarray, "..."]
    ends: Float[np.ndarray, "2 places"] | None = None


def draw_effect_maps(
    path: Path,
    panels: Sequence[EffectPanel],
    title: str,
    subtitle: str,
    label: str,
    axis_names: tuple[str, str] = ("layer", "head"),
) -> None:
    """Draw layers x heads maps, layer 0 at the top; colour follows the root of a change, on one scale for all panels.

    Args:
        path: PNG or PDF, by its suffix.
        panels: at least one, all of one shape.
        label: the score that changes.
        axis_names: of rows and columns.
    """
    from matplotlib.style import context

    (layers, heads), columns = panels[0].change.shape, min(COLUMNS, len(panels))
    rows, limit = -(-len(panels) // columns), _limit(panels)
    cell_width = min((WIDTH - LEFT - RIGHT - GAP * (columns - 1)) / columns / heads, LARGEST_CELL)
    cell_height = min(cell_width, HIGHEST_CELL)
    step = layers * cell_height + CAPTION + AXIS
    with context("default"):
        figure = start_page(title, subtitle, BOTTOM, rows * step - AXIS)
        for number, panel in enumerate(panels):
            row, column = divmod(number, columns)
            left, below = LEFT + column * (heads * cell_width + GAP), BOTTOM + (rows - 1 - row) * step
            axes = add_axes(figure, left, below, heads * cell_width, layers * cell_height)
            colours = colour_cells(_shares(panel.change, limit), panel.significant)
            _draw_cells(axes, panel, colours)
            if cell_width >= CELL_WITH_NUMBER:
                write_changes(axes, panel.change, colours, panel.significant, size=7.5, middle=0.0)
            axes.set_xticks(np.arange(0, heads, 1 if cell_width > 0.2 else 2))
            axes.set_yticks(range(0, layers, 1 if cell_height > 0.12 else 2))
            axes.set_title(panel.title, fontsize=9.5, color=INK, pad=4)
            axes.set_xlabel(axis_names[1] if number + columns >= len(panels) else "", fontsize=9, color=INK)
            axes.set_ylabel("" if column else axis_names[0], fontsize=9, color=INK)
        right = LEFT + columns * (heads * cell_width + GAP) - GAP
        _draw_scale(figure, (right + 0.15, BOTTOM, min(rows * step - AXIS - CAPTION, 3.2)), limit, label)
        add_note(figure, f"full colour and dot: significant (q < {Q}, over all of a map); pale: not")
        save_page(figure, path)


def _limit(panels: Sequence[EffectPanel]) -> float:
    """The largest significant change; if there is none, the largest change."""
    sizes = np.concatenate([np.abs(panel.change).ravel() for panel in panels])
    significant = np.concatenate([panel.significant.ravel() for panel in panels])
    shown = (
        sizes[significant & np.isfinite(sizes)]
        if (significant & np.isfinite(sizes)).any()
        else sizes[np.isfinite(sizes)]
    )
    return max(float(shown.max(initial=0.0)), SCORE.smallest_range)


def _shares(change: Float[np.ndarray, "..."], limit: float) -> Float[np.ndarray, "..."]:
    """Positions on the colour scale, from 0 to 1, by the signed root of each change; NaN where undefined."""
    ratio = np.clip(change / limit, -1, 1)
    return 0.5 + np.sign(ratio) * np.sqrt(np.abs(ratio)) / 2


def _draw_cells(axes: Any, panel: EffectPanel, colours: Colours) -> None:
    axes.imshow(colours, aspect="auto")
    layers, heads = panel.change.shape
    axes.set_xticks(np.arange(heads + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(layers + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.7)
    axes.tick_params(which="both", length=0)
    rows, columns = np.nonzero(panel.significant & np.isfinite(panel.change))
    axes.scatter(columns + 0.34, rows - 0.3, s=6, color=INK, edgecolors="white", linewidths=0.5, zorder=3)


def _draw_scale(figure: Any, place: tuple[float, float, float], limit: float, label: str) -> None:
    """Draw the scale of all panels, linear in the root of a change."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    left, bottom, height = place
    bar = figure.colorbar(ScalarMappable(Normalize(0, 1), COLOURS), cax=add_axes(figure, left, bottom, 0.15, height))
    draw_as_shapes(bar)
    changes = limit * np.array([-1, -0.5, -0.1, 0, 0.1, 0.5, 1])
    bar.set_ticks(_shares(changes, limit), labels=[format_change(change) for change in changes.tolist()])
    bar.ax.tick_params(length=0, labelsize=8, colors=INK)
    width, page_height = figure.get_size_inches()
    under_bar = (1 - MARGIN / width, (bottom - 0.22) / page_height)
    figure.text(*under_bar, f"{label}\nin points (change)", fontsize=8.5, color=INK, va="top", ha="right")


def draw_effect_bars(
    path: Path, panels: Sequence[EffectPanel], names: Sequence[str], title: str, subtitle: str, *, label: str, what: str
) -> None:
    """Draw a bar with its interval for each place, in panels side by side.

    Args:
        path: PNG or PDF, by its suffix.
        panels: at least one, with `ends`, all of the same places.
        names: of the places, from the top.
        label: the score that changes.
        what: the kind of place.
    """
    from matplotlib.style import context

    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    longest = max(map(len, names))
    start = max(LEFT, 0.35 + 0.075 * longest)
    panel_width, panel_height = (WIDTH - start - 0.3 - GAP * (columns - 1)) / columns, BAR * len(names)
    step = panel_height + CAPTION + AXIS
    with context("default"):
        figure = start_page(title, f"{subtitle}; {label}", BOTTOM, rows * step - AXIS)
        for number, panel in enumerate(panels):
            row, column = divmod(number, columns)
            place = start + column * (panel_width + GAP), BOTTOM + (rows - 1 - row) * step
            axes = add_axes(figure, *place, panel_width, panel_height)
            _draw_bars(axes, panel, _reach(panels))
            axes.set_yticks(range(len(names)), [] if column else names)
            axes.set_ylim(len(names) - 0.5, -0.5)
            axes.set_title(panel.title, fontsize=9.5, color=INK, pad=4)
            last = number + columns >= len(panels)
            axes.set_xlabel("change, points" if last else "", fontsize=8.5, color=INK)
            axes.set_ylabel("" if column else what, fontsize=9, color=INK)
        add_note(figure, f"filled: more than chance (q < {Q}, over all of a model); lines: 95 % intervals")
        save_page(figure, path)


def _reach(panels: Sequence[EffectPanel]) -> tuple[float, float]:
    """The range of all bars and intervals in the panels, with room for the numbers."""
    extent = np.concatenate([[0.0], *(np.ravel([panel.change, *_ends(panel)]) for panel in panels)])
    low, high = float(np.nanmin(extent)), float(np.nanmax(extent))
    margin = NUMBER_SPACE * max(high - low, 10 * SCORE.smallest_range)
    return low - margin, high + margin


def _ends(panel: EffectPanel) -> Float[np.ndarray, "2 places"]:
    return np.stack([panel.change, panel.change]) if panel.ends is None else panel.ends


def _draw_bars(axes: Any, panel: EffectPanel, reach: tuple[float, float]) -> None:
    import matplotlib

    loss, gain = matplotlib.colormaps[COLOURS]([0.12, 0.88])
    ends = _ends(panel)
    for place, change in enumerate(panel.change.tolist()):
        if not np.isfinite(change):
            axes.text(0, place, " undefined", fontsize=7.5, color=GREY, va="center_baseline")
            continue
        colour = gain if change > 0 else loss
        axes.barh(place, change, height=0.7, color=colour if panel.significant[place] else "white", edgecolor=colour)
        axes.hlines(place, ends[0, place], ends[1, place], color=INK, linewidth=1.0, zorder=3)
        side, outermost = ("right", np.nanmin) if change < 0 else ("left", np.nanmax)
        end = float(outermost([change, *ends[:, place]]))
        axes.text(end, place, f" {format_change(change)} ", ha=side, va="center_baseline", fontsize=7.5, color=INK)
    axes.axvline(0, color=INK, linewidth=1.2)
    axes.set_xlim(*reach)
    axes.grid(axis="x", color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)
