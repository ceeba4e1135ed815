"""What a head attends to in one example: weights from token to token, alone or before and after an ablation."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from bertjax.formatting import visible
from bertjax.plots.canvas import GREY, INK, WIDTH, add_axes, draw_as_shapes, start_page

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
) -> "Figure":
    """Attention maps side by side, on one scale from 0.

    Args:
        tokens: the example's tokens.
        maps: weights, one map or several.
        names: the maps' names.
    """
    from matplotlib.style import context

    tokens, names = [visible(token) for token in tokens], [visible(name) for name in names]
    count = len(maps)
    side = min((WIDTH - LEFT - RIGHT - GAP * (count - 1)) / count, 5.0)
    size = float(np.clip(side * 60 / len(tokens), SMALLEST, 8.5))
    largest = max(float(np.max(weights)) for weights in maps) or 1.0
    with context("default"):
        figure = start_page(title, subtitle, BOTTOM, side + ABOVE)
        for number, (weights, name) in enumerate(zip(maps, names, strict=True)):
            axes = add_axes(figure, LEFT + number * (side + GAP), BOTTOM, side, side)
            image = axes.pcolormesh(weights, cmap=MAP, vmin=0, vmax=largest)
            axes.set_ylim(len(tokens), 0)
            axes.set_title(name, fontsize=9.5, color=INK)
            step = math.ceil(len(tokens) * SMALLEST / (side * 60))  # so that names do not touch
            places, labels = np.arange(0, len(tokens), step) + 0.5, tokens[::step]
            axes.set_xticks(places, labels, rotation=90, fontsize=size)
            axes.set_yticks(places, [] if number else labels, fontsize=size)
            axes.set_xlabel("attended to", fontsize=8.5, color=GREY)
            axes.set_ylabel("" if number else "attending", fontsize=8.5, color=GREY)
        scale = add_axes(figure, LEFT + count * (side + GAP) - GAP + 0.12, BOTTOM, 0.12, side)
        draw_as_shapes(figure.colorbar(image, cax=scale))
        scale.tick_params(length=0, labelsize=7.5, colors=INK, pad=1)
        scale.set_ylabel("weight", fontsize=8.5, color=GREY)
    return figure
