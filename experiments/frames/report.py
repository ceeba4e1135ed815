"""Figures and tables of figure 3, from `numbers.json`."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from bertjax.plots import Panel
from experiments.frames.controls import AT_DISTANCE, CONTROLS
from experiments.frames.links import DIRECTIONS
from experiments.frames.sources import MOST_WORDS
from experiments.shared.example import draw_example
from experiments.shared.figures import Texts, draw_maps
from experiments.shared.run import Figures, Numbers, Runs, name_maps
from experiments.shared.tables import make_table, name_head

LEVEL = 0.05
SOURCES = {"published": "the authors', of FrameNet 1.7", "framenet": "FrameNet", "propbank": "PropBank"}
TITLES = ("elements to predicate", "predicate to elements")
STAGES = {  # what heads must be above
    "above both nulls": ("both",),
    "and above other words as queries, the same key": ("both", CONTROLS[0]),
    "or above other keys of the class, the same query": ("both", CONTROLS[1]),
    "or above other words at the same distance, the same key": ("both", AT_DISTANCE),
    "above both nulls and all controls": ("all",),
}
FEW = 6  # the most heads that a cell names


def head_names(chosen: Bool[np.ndarray, "layers heads"]) -> list[str]:
    """The names of heads, in order.

    >>> head_names(np.array([[False, True], [True, False]]))
    ['0.1', '1.0']
    """
    return [f"{layer}.{head}" for layer, head in np.argwhere(chosen).tolist()]


def highest_heads(values: Float[np.ndarray, "layers heads"], count: int) -> list[str]:
    """The names of the heads with the largest values, largest first."""
    indices = np.argsort(-values, axis=None, kind="stable")[:count].tolist()
    return [name_head(index, values.shape[1]) for index in indices]


def figures(numbers: Numbers) -> Figures:
    """The maps of both directions, and two heads on one sentence."""
    return {"figure": partial(_draw_heads, numbers), "examples": partial(_draw_example, numbers)}


def _draw_heads(numbers: Numbers, path: Path) -> None:
    results, settings = numbers["results"], numbers["settings"]
    maps = {name: np.array(rows) for name, rows in results["maps"].items()}
    limit = "" if settings["source"] == "published" else f", at most {settings['max_words'] or MOST_WORDS} words"
    source = f"{results['examples']} sentences: {SOURCES[settings['source']]}{limit}"
    panels = [
        Panel(title, maps[name], named(results["heads_left"][name], maps[name]), np.array(above) >= LEVEL)
        for title, name, above in zip(TITLES, DIRECTIONS, results["q_values"]["both"], strict=True)
    ]
    note = (
        f"struck through: no more than chance by one null or both (q ≥ {LEVEL}).\n"
        "dot: above both nulls and all controls, by a quarter or more"
    )
    label = "mean share of norms" if settings.get("norms") else "mean weight"
    title, subtitle = (
        "Attention between predicates and their core elements",
        f"{settings['model']}{name_maps(settings)}",
    )
    draw_maps(path, panels, Texts(title, f"{subtitle}, {source}", label), note=note)


def named(names: list[str], values: Float[np.ndarray, "layers heads"]) -> Bool[np.ndarray, "layers heads"]:
    """Which heads of a map have these names."""
    mask = np.zeros(values.shape, bool)
    for name in names:
        mask[tuple(map(int, name.split(".")))] = True
    return mask


def _draw_example(numbers: Numbers, path: Path) -> None:
    results, notes = numbers["results"], {}
    for name in results["example"]["maps"]:
        if left := [title for title, key in zip(TITLES, DIRECTIONS, strict=True) if name in results["heads_left"][key]]:
            notes[name] = ", ".join(left)
    subtitle = f"{numbers['settings']['model']}: heads that nulls and controls leave (named), and the highest others"
    draw_example(path, results["example"], "Two heads on one sentence", subtitle, notes)


def tables(runs: Runs) -> str:
    """A column for each run: sentences, highest heads, and how many heads exceed nulls and controls (forth; back)."""
    results = [numbers["results"] for numbers in runs.values()]
    rows = [["sentences", *(str(result["examples"]) for result in results)]]
    for name, title in zip(DIRECTIONS, TITLES, strict=True):
        rows.append([f"highest, {title}", *(format_highest(result["maps"][name], 3) for result in results)])
    for title, names in STAGES.items():
        rows.append([title, *(_count_heads(_above(result, names)) for result in results)])
    left = [[result["heads_left"][direction] for direction in DIRECTIONS] for result in results]
    rows.append(["**remain**: and by a quarter or more", *map(_count_heads, left)])
    return make_table(["heads, forth; back", *map(_heading, runs.values())], rows)


def _above(results: Numbers, names: Sequence[str]) -> list[list[str]]:
    """The heads of each direction that are above all these nulls and controls."""
    above = np.all([np.array(results["q_values"][name]) < LEVEL for name in names], axis=0)
    return [head_names(mask) for mask in above]


def _heading(numbers: Mapping[str, Any]) -> str:
    settings = numbers["settings"]
    if settings["source"] == "published":
        return "authors, norms" if settings.get("norms") else "authors"
    return f"{SOURCES[settings['source']]}, {settings['max_words'] or MOST_WORDS} words"


def _count_heads(directions: Sequence[Sequence[str]]) -> str:
    """The number of heads of each direction, and their names if they are few."""
    counts = [
        f"{len(heads)} ({', '.join(heads)})" if 0 < len(heads) <= FEW else str(len(heads)) for heads in directions
    ]
    return "; ".join(counts)


def format_highest(rows: Any, count: int) -> str:
    """The heads with the largest values, and the values.

    >>> format_highest([[0.1, 0.2], [0.3, 0.05]], 2)
    '1.0 .300, 0.1 .200'
    """
    values = np.array(rows)
    highest = [(name, values[tuple(map(int, name.split(".")))]) for name in highest_heads(values, count)]
    return ", ".join(f"{name} {value:.3f}".replace(" 0.", " .") for name, value in highest)
