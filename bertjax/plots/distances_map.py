"""Heads in a plane, near to each other where they attend alike, and the tree in which they join."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from bertjax.errors import DataError
from bertjax.plots.canvas import GREY, INK, WIDTH, add_axes, add_note, start_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEFT, GAP, BOTTOM, PLANE, LEAF = 0.35, 0.75, 0.95, 3.6, 0.115  # inches


def make_distances(
    names: Sequence[str],
    layers: Int[np.ndarray, " heads"],
    points: Float[np.ndarray, "heads 2"],
    tree: Float[np.ndarray, "joins 4"],
    title: str,
    subtitle: str,
    *,
    note: str = "",
) -> "Figure":
    """A plane of heads, coloured by layer, beside a dendrogram of them.

    Args:
        names: of heads.
        points: their places in the plane.
        tree: what `scipy.cluster.hierarchy.linkage` gives.
        note: below the picture.

    Raises:
        DataError: fewer than three heads.
    """
    import matplotlib
    from matplotlib.style import context
    from scipy.cluster.hierarchy import dendrogram

    if len(names) < 3:
        raise DataError(f"{len(names)} heads are too few for a map of distances: three at least")
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.92, int(layers.max()) + 1))
    height = max(PLANE, LEAF * len(names))
    with context("default"):
        figure = start_page(title, subtitle, BOTTOM, height)
        plane = add_axes(figure, LEFT, BOTTOM + height - PLANE, PLANE, PLANE)
        plane.scatter(points[:, 0], points[:, 1], s=26, c=colours[layers], zorder=3)
        for name, (x, y) in zip(names, points, strict=True):
            plane.annotate(name, (x, y), (2.5, 2.5), textcoords="offset points", fontsize=5.5, color=GREY)
        plane.set_xticks([])
        plane.set_yticks([])
        plane.set_aspect("equal", adjustable="datalim")
        dots = [plane.scatter([], [], s=26, color=colour, label=str(layer)) for layer, colour in enumerate(colours)]
        where: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0, -0.01), "ncols": 6, "frameon": False}
        plane.legend(handles=dots, title="layer", fontsize=8, title_fontsize=8.5, alignment="left", **where)
        left = LEFT + PLANE + GAP
        branches = add_axes(figure, left, BOTTOM, WIDTH - left - 0.3, height)
        style: dict[str, Any] = {"orientation": "left", "color_threshold": 0.0, "above_threshold_color": GREY}
        drawn = dendrogram(tree, labels=list(names), leaf_font_size=6.0, ax=branches, **style)
        for label, leaf in zip(branches.get_ymajorticklabels(), drawn["leaves"], strict=True):
            label.set_color(colours[layers[leaf]])
        branches.set_xlabel("divergence at which heads join, nats", fontsize=9, color=INK)
        branches.tick_params(axis="x", labelsize=8, colors=INK)
        for side in ("top", "left", "right"):
            branches.spines[side].set_visible(False)
        add_note(figure, note)
    return figure
