"""Heads in a plane, close to each other if they attend to the same tokens, and their dendrogram."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from bertjax.errors import DataError
from bertjax.plots.canvas import GREY, INK, PAGE, WIDTH, Frame, add_axes, add_note, start_page, text_width

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEFT, GAP, BOTTOM, PLANE, LEAF = 0.35, 0.75, 0.95, 3.6, 0.115  # inches
FONT, DOT = 5.5, 2.6  # points: of names, and the radius of a dot


def make_distances(
    names: Sequence[str],
    layers: Int[np.ndarray, " heads"],
    points: Float[np.ndarray, "heads 2"],
    tree: Float[np.ndarray, "joins 4"],
    title: str,
    subtitle: str,
    *,
    note: str = "",
    frame: Frame = PAGE,
) -> "Figure":
    """A plane of heads, coloured by layer, and a dendrogram of them.

    Args:
        names: the names of the heads.
        layers: the layers of the heads.
        points: the positions of the heads in the plane.
        tree: the result of `scipy.cluster.hierarchy.linkage`.
        title: title of the figure.
        subtitle: line below the title.
        note: a line below the figure.
        frame: title and size of the figure.

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
        figure = start_page(title, subtitle, BOTTOM, height, frame)
        plane = add_axes(figure, LEFT, BOTTOM + height - PLANE, PLANE, PLANE)
        plane.scatter(points[:, 0], points[:, 1], s=26, c=colours[layers], zorder=3)
        plane.set_xticks([])
        plane.set_yticks([])
        plane.set_aspect("equal", adjustable="datalim")
        plane.apply_aspect()
        for name, point, offset in _place_names(names, points, plane.transData.transform(points) * 72 / figure.dpi):
            written = plane.annotate(name, point, offset, textcoords="offset points", fontsize=FONT, color=GREY)
            written.set(ha="center", va="center")
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


def _place_names(
    names: Sequence[str], points: Float[np.ndarray, "heads 2"], dots: Float[np.ndarray, "heads 2"]
) -> Iterator[tuple[str, tuple[float, float], tuple[float, float]]]:
    """Place each name next to its dot, where it covers neither dots nor names; names without space are left out.

    Args:
        points: the positions of the dots.
        dots: the same in points of the page (1/72 inch).

    Returns: names, positions of their dots, and offsets in points of the page.
    """
    taken = [(x - DOT, y - DOT, x + DOT, y + DOT) for x, y in dots.tolist()]
    for name, point, (x, y) in zip(names, points.tolist(), dots.tolist(), strict=True):
        wide, high = 72 * text_width(name, FONT) / 2 + 0.4, FONT / 2 + 0.4
        for right, up in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1)):
            offset = right * (DOT + wide + 0.5), up * (DOT + high + 0.5)
            left, low = x + offset[0] - wide, y + offset[1] - high
            box = left, low, left + 2 * wide, low + 2 * high
            if not any(a < box[2] and box[0] < c and b < box[3] and box[1] < d for a, b, c, d in taken):
                taken.append(box)
                yield name, (point[0], point[1]), offset
                break
