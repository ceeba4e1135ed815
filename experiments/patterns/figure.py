"""The figure of attention patterns: a typical map of each class, and class shares by task (figures 1 and 2)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from bertjax.plots import GREY, INK, WIDTH, add_axes, save_page, start_page
from experiments.patterns.maps import DATA, NAMES, MapSet
from experiments.patterns.network import PatternNetwork, load_network
from experiments.patterns.training import LABELS, images_of, read_labels

# Paul Tol's bright scheme, distinguishable for colour-blind readers.
COLOURS = ("#4477aa", "#ee6677", "#aa3377", "#ccbb44", "#bbbbbb")
LEFT, RIGHT, BAR, BOTTOM = 1.25, 0.3, 0.23, 0.9  # inches
SMALLEST = 0.045  # smallest share with room for its number
MIDDLE = range(24, 49)  # lengths, in tokens, of maps to show


def draw_patterns(path: Path, tasks: Mapping[str, Mapping[str, Any]], subtitle: str) -> None:
    """Draw typical maps above bars of shares, with the published bar below that of each task.

    Args:
        path: PNG or PDF, by its suffix.
        tasks: for each task, `shares`, `published` (or None) and `examples`.
    """
    from matplotlib.style import context

    typical = typical_maps(read_labels(LABELS)[0], load_network(DATA / "pattern_network.safetensors", "grouped"))
    side = (WIDTH - 2 * RIGHT - 4 * 0.2) / 5
    rows = sum(1.6 + (task["published"] is not None) for task in tasks.values())
    bars = rows * BAR
    with context("default"):
        title = "Patterns of attention: typical maps, and shares by task"
        figure = start_page(title, subtitle, BOTTOM, bars + side + 0.75)
        for number, name in enumerate(NAMES):
            axes = add_axes(figure, RIGHT + number * (side + 0.2), BOTTOM + bars + 0.3, side, side)
            axes.set_title(name, fontsize=9, color=COLOURS[number] if number < 4 else GREY, weight="bold")
            axes.set_xticks([])
            axes.set_yticks([])
            if name in typical:
                _draw_map(axes, *typical[name])
        axes = add_axes(figure, LEFT, BOTTOM, WIDTH - LEFT - RIGHT, bars)
        _draw_bars(axes, tasks)
        look: dict[str, Any] = {"fontsize": 8.5, "color": GREY, "va": "bottom"}
        height = float(figure.get_size_inches()[1])
        note = (
            "Maps: labelled ones of all-MiniLM-L6-v2. Wide bars: here. Narrow bars: fine-tuned bert-base-uncased,\n"
            "as two of the authors measured it later."
        )
        figure.text(0.2 / WIDTH, 0.12 / height, note, **look)
        save_page(figure, path)


def _draw_map(axes: Any, first: int, quantised: np.ndarray) -> None:
    axes.imshow(quantised, cmap="Blues", vmin=0, vmax=255, interpolation="nearest", aspect="auto")
    for line in (axes.axhline, axes.axvline):
        if first < len(quantised):
            line(first - 0.5, color=GREY, linewidth=0.6, linestyle=":")
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color(GREY)


def _draw_bars(axes: Any, tasks: Mapping[str, Mapping[str, Any]]) -> None:
    place, ticks = 0.0, []
    for task in tasks.values():
        _draw_bar(axes, place + 0.5, 1.0, task["shares"])
        ticks.append(place + 0.5)
        place += 1.1
        if task["published"] is not None:
            _draw_bar(axes, place + 0.35, 0.7, task["published"], faint=True)
            place += 1.0
        place += 0.5
    axes.set_yticks(ticks, [f"{name}\n{task['examples']:,} examples" for name, task in tasks.items()], fontsize=8)
    axes.set_ylim(place - 0.5, 0)
    axes.set_xlim(0, 1)
    axes.set_xticks(np.linspace(0, 1, 6), [f"{share:.0%}" for share in np.linspace(0, 1, 6)])
    axes.set_xlabel("share of maps", fontsize=9, color=INK)


def _draw_bar(axes: Any, place: float, height: float, shares: Mapping[str, float], faint: bool = False) -> None:
    left = 0.0
    for number, name in enumerate(NAMES):
        share = shares[name]
        axes.barh(place, share, height, left, color=COLOURS[number], alpha=0.55 if faint else 1.0, edgecolor="white")
        if share >= SMALLEST:
            white = number in (0, 2) and not faint
            look = {"fontsize": 7 if faint else 8, "ha": "center", "va": "center"}
            axes.text(left + share / 2, place, f"{100 * share:.0f}", color="white" if white else INK, **look)
        left += share


def typical_maps(labelled: MapSet, network: PatternNetwork) -> dict[str, tuple[int, np.ndarray]]:
    """For each class, the labelled map of a medium-length pair that the network is surest of, if any."""
    images, _ = images_of([labelled])
    confidence = np.asarray(network(jnp.asarray(images)))
    typical = {}
    for number, name in enumerate(NAMES):
        candidates = [
            index
            for index, row in enumerate(labelled.rows)
            if row.label == name and row.second and row.tokens in MIDDLE and confidence[index].argmax() == number
        ]
        if candidates:
            index = max(
                candidates,
                key=lambda index: float(confidence[index, number] - np.delete(confidence[index], number).max()),
            )
            typical[name] = labelled.rows[index].first, labelled.maps[index]
    return typical
