"""Figures of effects and of attention."""

from bertjax.plots.attention import make_attention
from bertjax.plots.bars import Certainty, make_layers, make_mix, make_sets
from bertjax.plots.canvas import (
    COLOURS,
    GREY,
    INK,
    PAGE,
    PALE,
    WIDTH,
    Frame,
    add_axes,
    add_note,
    save_page,
    start_page,
)
from bertjax.plots.curves import Curve, make_curves
from bertjax.plots.distances_map import make_distances
from bertjax.plots.grids import Grid, grids_of_cells, make_grids
from bertjax.plots.heads_map import make_heads
from bertjax.plots.pairs_map import make_pairs
from bertjax.plots.panels import Panel, make_panels
from bertjax.plots.ranking import make_ranking

__all__ = [
    "COLOURS",
    "GREY",
    "INK",
    "PAGE",
    "PALE",
    "WIDTH",
    "Certainty",
    "Curve",
    "Frame",
    "Grid",
    "Panel",
    "add_axes",
    "add_note",
    "grids_of_cells",
    "make_attention",
    "make_curves",
    "make_distances",
    "make_grids",
    "make_heads",
    "make_layers",
    "make_mix",
    "make_pairs",
    "make_panels",
    "make_ranking",
    "make_sets",
    "save_page",
    "start_page",
]
