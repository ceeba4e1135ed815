"""Attention of a head in one example: weights from token to token, also before and after an ablation."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from bertjax.formatting import visible
from bertjax.plots.canvas import GREY, INK, PAGE, WIDTH, Frame, add_axes, draw_as_shapes, size_of, start_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEFT, RIGHT, GAP, BOTTOM, ABOVE = 0.95, 0.75, 0.35, 1.1, 0.3  # inches
MAP = "Blues"
SMALLEST = 5.0  # font size in points; of more tokens than fit, only some are named


def make_attention(
    tokens: Sequence[str],
    maps: Sequence[Float[np.ndarray, "query key"]],
    names: Sequence[str],
    title: str,
    subtitle: str = "",
    frame: Frame = PAGE,
) -> "Figure":
    """Attention maps side by side, on one scale from 0.

    Args:
        tokens: the example's tokens.
        maps: the weights of each map.
        names: the maps' names.
        title: title of the figure.
        subtitle: line below the title.
        frame: title, and axes to draw a single map into.
    """
    from matplotlib.style import context

    tokens, names = [visible(token) for token in tokens], [visible(name) for name in names]
    count = len(maps)
    side = min((WIDTH - LEFT - RIGHT - GAP * (count - 1)) / count, 5.0)
    size = float(np.clip(side * 60 / len(tokens), SMALLEST, 8.5))
    largest = max(float(np.max(weights)) for weights in maps) or 1.0
    with context("default"):
        if frame.ax is None or count > 1:
            figure = start_page(title, subtitle, BOTTOM, side + ABOVE, frame)
            panels = [add_axes(figure, LEFT + i * (side + GAP), BOTTOM, side, side) for i in range(count)]
        else:
            figure, axes = frame.open_axes(title, "", BOTTOM, (LEFT, side, side))
            panels, side = [axes], size_of(axes)[0]
        for number, (axes, weights, name) in enumerate(zip(panels, maps, names, strict=True)):
            image = axes.pcolormesh(weights, cmap=MAP, vmin=0, vmax=largest)
            axes.set_ylim(len(tokens), 0)
            if frame.ax is None:
                axes.set_title(name, fontsize=9.5, color=INK)
            step = math.ceil(len(tokens) * SMALLEST / (side * 60))  # so that names do not touch
            places, labels = np.arange(0, len(tokens), step) + 0.5, tokens[::step]
            axes.set_xticks(places, labels, rotation=90, fontsize=size)
            axes.set_yticks(places, [] if number else labels, fontsize=size)
            axes.set_xlabel("attended to", fontsize=8.5, color=GREY)
            axes.set_ylabel("" if number else "attending", fontsize=8.5, color=GREY)
        place: dict[str, Any] = {"ax": panels[0]}
        if frame.ax is None:
            place = {"cax": add_axes(figure, LEFT + count * (side + GAP) - GAP + 0.12, BOTTOM, 0.12, side)}
        bar = figure.colorbar(image, **place)
        draw_as_shapes(bar)
        bar.ax.tick_params(length=0, labelsize=7.5, colors=INK, pad=1)
        bar.ax.set_ylabel("weight", fontsize=8.5, color=GREY)
    return figure
