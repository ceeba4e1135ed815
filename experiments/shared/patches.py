"""Grids of patches: read from results of `bertjax.patch`, in tables, and drawn."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import bertjax
from bertjax.plots import grids_of_cells, make_grids, save_page
from bertjax.statistics import Measure, Q
from experiments.shared.run import short
from experiments.shared.tables import format_interval


def moved_by(results: bertjax.Results) -> np.ndarray:
    """By how much each cell moves the score of a contrast, the mean size."""
    outputs = np.asarray(results.outputs["outputs"], np.float64)
    return np.abs(outputs[..., 0] - outputs[..., 1]).mean(axis=1).round(5)


def describe_grid(results: bertjax.Results) -> dict[str, Any]:
    """The numbers of a grid: cells, and the share that each restores with its interval."""
    patching, rows = dict(results.summary["patching"]), results.rows_of()
    kept = {name: [short(getattr(row, name), 5) for row in rows] for name in ("score", "low", "high", "q")}
    return {**patching, "contrasts": results.summary["data"]["examples"], **kept}


def name_cell(grid: Mapping[str, Any], number: int) -> str:
    """The head of a cell, and where it is patched."""
    cell = grid["cells"][number]
    return f"{cell['layer']}.{cell['head']} at {grid['spans'][cell['span']]}"


def format_share(grid: Mapping[str, Any], number: int) -> str:
    """The share that a cell restores with its interval, in percent."""
    share, *ends = (grid[part][number] for part in ("score", "low", "high"))
    return format_interval(share, ends, 0, 100.0).replace("-", "−")


def draw_grid(grid: Mapping[str, Any], title: str, subtitle: str, path: Path) -> None:
    """Draw what `describe_grid` described: what each cell restores, a picture for each site."""
    found = np.array([q is not None and q < Q for q in grid["q"]])
    grids = grids_of_cells(grid["cells"], len(grid["spans"]), 100 * np.array(grid["score"], np.float64), found)
    measure = Measure("Share restored", of_effects=True)
    save_page(make_grids(grids, grid["spans"], title, subtitle, measure=measure, limit=100.0), path)
