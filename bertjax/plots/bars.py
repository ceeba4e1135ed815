"""Bars to the left and right of the base score, for whole layers and sets of heads; bars of the weights of layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from bertjax.errors import DataError
from bertjax.plots.canvas import (
    COLOURS,
    GREY,
    INK,
    LEFT,
    PAGE,
    PALE,
    WIDTH,
    Frame,
    add_note,
    choose_ticks,
    count_found,
    printed_changes,
    shorten_name,
)
from bertjax.statistics import SCORE, Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_SETS, LONGEST_NAME = 24, 40  # in a picture of sets; in characters


@dataclass(frozen=True)
class Certainty:
    """The certainty of changes.

    Args:
        intervals: both ends of each change's interval, as they are printed; NaN if there is none.
        significant: which changes are significant.
    """

    intervals: Float[np.ndarray, "2 bars"]
    significant: Bool[np.ndarray, " bars"]


def make_layers(
    scores: Float[np.ndarray, "..."],
    base: float,
    title: str,
    subtitle: str = "",
    measure: Measure = SCORE,
    certainty: Certainty | None = None,
    *,
    frame: Frame = PAGE,
) -> "Figure":
    """The effect of ablating each whole layer, a bar for each layer.

    Args:
        scores: `[layers]`, as the metric defines them (not in points); NaN where undefined.
        base: score without ablation, as the metric defines it.
        title: title of the figure.
        subtitle: line below the title.
        measure: name, unit and direction of the score.
        certainty: intervals and significance of the changes; bars that are not significant are hollow.
        frame: title, and axes to draw into.

    Raises:
        DataError: `scores` is not a list of layers.

    >>> figure = make_layers(np.array([0.83, 0.87]), 0.86, "A model of two layers")
    >>> [text.get_text().strip() for text in figure.axes[0].texts]
    ['−3.00', '+1.00']
    """
    changes = printed_changes(scores, base, measure, axes=("layers",))
    names = [str(layer) for layer in range(len(changes))]
    texts = _Texts(title, subtitle, measure, "layer", frame)
    return _make_page(changes, names, base, texts, LEFT, certainty)


def make_sets(
    names: Sequence[str],
    scores: Float[np.ndarray, "..."],
    base: float,
    title: str,
    subtitle: str = "",
    measure: Measure = SCORE,
    *,
    certainty: Certainty | None = None,
    frame: Frame = PAGE,
) -> "Figure":
    """The effect of ablating sets of heads, a bar for each of the 24 sets with the largest changes.

    Args:
        names: the sets' names; long ones are cut.
        scores: `[sets]`, as the metric defines them (not in points); NaN where undefined.
        base: score without ablation, as the metric defines it.
        title: title of the figure.
        subtitle: line below the title.
        measure: name, unit and direction of the score.
        certainty: intervals and significance of the changes, as in `make_layers`.
        frame: title, and axes to draw into.

    Raises:
        DataError: `scores` is not a list, or the number of names differs.

    >>> figure = make_sets(["0.1+1.2", "3.0"], np.array([0.83, 0.87]), 0.86, "Two sets")
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['3.0', '0.1+1.2']
    """
    changes = printed_changes(scores, base, measure, axes=("sets",))
    if len(names) != len(changes):
        raise DataError(f"there are {len(changes)} sets, but {len(names)} names")
    order = np.argsort(-np.nan_to_num(np.abs(changes), nan=-1.0), kind="stable")[:MOST_SETS]
    shown = sorted(order.tolist(), key=lambda index: -measure.sign * np.nan_to_num(changes[index]))
    if len(order) < len(changes):
        subtitle = f"{subtitle}; the {len(order)} of {len(changes):,} sets that change most".removeprefix("; ")
    labels = [shorten_name(name, LONGEST_NAME) for name in names]
    shown_labels = [labels[index] for index in shown]
    left = max(LEFT, 0.35 + 0.078 * max(map(len, shown_labels)))
    shown_certainty = (
        None if certainty is None else Certainty(certainty.intervals[:, shown], certainty.significant[shown])
    )
    texts = _Texts(title, subtitle, measure, frame=frame)
    return _make_page(changes[shown], shown_labels, base, texts, left, shown_certainty)


def make_mix(
    weights: Float[np.ndarray, " layers"], centre: float, title: str, subtitle: str = "", *, frame: Frame = PAGE
) -> "Figure":
    """The weights of a scalar mix, a bar for the embeddings and each layer, and a mark at their centre of gravity.

    Args:
        weights: the weight of each layer, that of the embeddings first.
        centre: the centre of gravity; 0 are the embeddings, 1 is the output of layer 0.
        title: title of the figure.
        subtitle: line below the title.
        frame: title, and axes to draw into.

    >>> figure = make_mix(np.array([0.25, 0.25, 0.5]), 1.25, "A mix of two layers")
    >>> [text.get_text().strip() for text in figure.axes[0].texts]
    ['0.250', '0.250', '0.500', 'centre of gravity 1.25']
    """
    import matplotlib
    from matplotlib.style import context

    places, last = np.arange(len(weights)), 1.4 * float(weights.max())
    with context("default"):
        figure, axes = frame.open_axes(title, subtitle, 0.85, (LEFT, WIDTH - LEFT - 0.35, len(weights) * 0.32))
        axes.barh(places, weights, height=0.72, color=matplotlib.colormaps[COLOURS](0.88))
        for place, weight in zip(places, weights, strict=True):
            axes.text(float(weight), float(place), f" {weight:.3f}", va="center_baseline", fontsize=8.5, color=INK)
        axes.plot([0.81 * last], [centre], "<", color=INK, markersize=5)
        text = f"  centre of gravity {centre:.2f}"
        axes.text(0.81 * last, centre, text, va="center_baseline", fontsize=8.5, color=INK)
        axes.set_xlim(0, last)
        axes.set_yticks(places, ["emb.", *map(str, places[:-1])])
        axes.set_ylim(len(weights) - 0.5, -0.5)
        axes.set_xlabel("weight in the mix of all layers", fontsize=9.5, color=INK)
        axes.set_ylabel("layer", fontsize=9.5, color=INK)
        axes.grid(axis="x", color=PALE, linewidth=0.8)
        axes.set_axisbelow(True)
        if frame.ax is None:
            equal = f"with equal weights it is {places.mean():.2f}"
            add_note(figure, f"centre of gravity: 0 are the embeddings, 1 is the output of layer 0; {equal}")
    return figure


@dataclass(frozen=True)
class _Texts:
    """Texts around the bars; `kind` is the label of their names."""

    title: str
    subtitle: str
    measure: Measure
    kind: str = ""
    frame: Frame = PAGE


def _make_page(
    changes: Float[np.ndarray, " bars"],
    names: Sequence[str],
    base: float,
    texts: _Texts,
    left: float,
    certainty: Certainty | None,
) -> "Figure":
    """Draw a bar for each name."""
    from matplotlib.style import context

    height, bottom = max(len(changes) * 0.32, 0.7), 0.75 if certainty is None else 1.0
    ends = (
        np.stack([changes, changes]) if certainty is None else np.where(np.isnan(changes), np.nan, certainty.intervals)
    )
    significant = np.ones(len(changes), np.bool_) if certainty is None else certainty.significant
    with context("default"):
        box = left, WIDTH - left - 0.35, height
        figure, axes = texts.frame.open_axes(texts.title, texts.subtitle, bottom, box)
        _draw_bars(axes, changes, ends, significant, texts.measure)
        axes.set_yticks(np.arange(len(changes)), names)
        _label_bars(axes, changes, ends, base, texts)
        if certainty is not None and texts.frame.ax is None:
            add_note(figure, count_found(int((significant & np.isfinite(changes)).sum()), len(changes), texts.measure))
    return figure


def _draw_bars(
    axes: "Axes",
    changes: Float[np.ndarray, " bars"],
    ends: Float[np.ndarray, "2 bars"],
    significant: Bool[np.ndarray, " bars"],
    measure: Measure,
) -> None:
    """Draw a bar for each change, its interval, and the change as a number at the end."""
    import matplotlib

    loss, gain = matplotlib.colormaps[COLOURS]([0.12, 0.88])
    lengths = np.nan_to_num(changes)
    colours = [GREY if not length else loss if measure.sign * length < 0 else gain for length in lengths]
    faces = [colour if filled else "white" for colour, filled in zip(colours, significant, strict=True)]
    places = np.arange(len(lengths))
    axes.barh(places, lengths, height=0.72, color=faces, edgecolor=colours, linewidth=1.1)
    has_interval = ends[1] > ends[0]
    axes.hlines(places[has_interval], ends[0, has_interval], ends[1, has_interval], color=INK, linewidth=1.1, zorder=3)
    for place, (length, undefined) in enumerate(zip(lengths, np.isnan(changes), strict=True)):
        text, ink = ("undefined", GREY) if undefined else (measure.printed_change(length), INK)
        side, extreme = ("right", np.nanmin) if length < 0 else ("left", np.nanmax)
        end = float(extreme([length, *ends[:, place]]))
        axes.text(end, place, f" {text} ", ha=side, va="center_baseline", fontsize=8.5, color=ink)
    axes.axvline(0, color=INK, linewidth=1.6)


def _label_bars(
    axes: "Axes",
    changes: Float[np.ndarray, " bars"],
    ends: Float[np.ndarray, "2 bars"],
    base: float,
    texts: _Texts,
) -> None:
    """Order the bars from top to bottom, and label the axis with scores and changes."""
    values = np.concatenate([changes, *ends, [0.0]])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    margin = 0.13 * max(high - low, 10 * texts.measure.smallest_range)  # for the numbers at the ends of the bars
    low, high = low - margin * (1 if low < 0 or high == 0 else 0.15), high + margin
    ticks, labels = choose_ticks(low, high, base, texts.measure, most=6, separator="\n")
    axes.set_xlim(low, high)
    axes.set_xticks(ticks, labels)
    axes.set_ylim(len(changes) - 0.5, -0.5)
    axes.set_xlabel(texts.measure.caption, fontsize=9.5, color=INK)
    axes.set_ylabel(texts.kind, fontsize=9.5, color=INK)
    axes.grid(axis="x", color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
