"""Figures and tables of figure 3, from `numbers.json`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from bertjax.plots import Panel
from experiments.frames.controls import AT_DISTANCE, CONTROLS
from experiments.frames.links import DIRECTIONS
from experiments.frames.sources import MOST_WORDS
from experiments.shared.agreement import format_difference
from experiments.shared.example import draw_example
from experiments.shared.figures import draw_maps
from experiments.shared.run import Figures, Numbers, name_maps
from experiments.shared.tables import name_head

LEVEL = 0.05
SOURCES = {"published": "the authors', of FrameNet 1.7", "framenet": "FrameNet", "propbank": "PropBank"}
TITLES = ("elements to predicate", "predicate to elements")
COMPARED = {
    "same_key": "other words as queries, the same key",
    "same_query": "other keys of the class, the same query",
    AT_DISTANCE: "other words at the same distance, the same key",
}
HIGHEST, FEW = 4, 6  # how many heads are named: where none is chosen, and at most where some are counted


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


def stages(results: Mapping[str, Any]) -> dict[str, list[list[str]]]:
    """The heads of each direction that are above both nulls, those also above each control, and those left."""
    q_values = {name: np.array(values) for name, values in results["q_values"].items()}
    above = q_values["both"] < LEVEL
    masks = {"both": above, **{name: above & (q_values[name] < LEVEL) for name in (*CONTROLS, AT_DISTANCE)}}
    masks["all"] = q_values["all"] < LEVEL
    heads = {name: [head_names(mask) for mask in directions] for name, directions in masks.items()}
    for name in ("heads_left", "heads_left_by_two_controls"):
        heads[name] = [results[name][direction] for direction in DIRECTIONS]
    return heads


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
    texts = (
        "Attention between predicates and their core elements",
        f"{settings['model']}{name_maps(settings)}, {source}",
    )
    draw_maps(path, panels, *texts, "mean share of norms" if settings.get("norms") else "mean weight", note=note)


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


def tables(numbers: Numbers) -> str:
    """Markdown: how many heads are left at each stage, and the numbers of those left or highest."""
    return "\n".join([*_count_heads([numbers]), "", *_list_heads(numbers["results"])])


def overview(numbers_by_name: Mapping[str, Numbers]) -> str:
    """Markdown: runs side by side.

    Args:
        numbers_by_name: the contents of their `numbers.json`, by name.
    """
    runs = list(numbers_by_name.values())
    return "\n".join([*_describe(runs), *_count_heads(runs)[2:]])


def _heading(numbers: Mapping[str, Any]) -> str:
    settings = numbers["settings"]
    if settings["source"] == "published":
        return "authors, norms" if settings.get("norms") else "authors"
    return f"{SOURCES[settings['source']]}, {settings['max_words'] or MOST_WORDS} words"


def _row(title: str, cells: Iterable[str]) -> str:
    return f"| {title} | {' | '.join(cells)} |"


def _describe(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the runs cover, and their highest heads."""
    results = [run["results"] for run in runs]
    rows = [_row("", map(_heading, runs)), f"|---|{'---|' * len(runs)}"]
    rows.append(_row("sentences", [str(result["examples"]) for result in results]))
    titles = {**dict(zip(DIRECTIONS, TITLES, strict=True)), "as_published": "elements to predicate as published"}
    for name, title in titles.items():
        rows.append(_row(f"highest, {title}", [format_highest(result["maps"][name], 3) for result in results]))
    cells = [format_difference(result["published_against_corrected"]) for result in results]
    return [*rows, _row("as published against corrected", cells)]


def _count_heads(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many heads are left at each stage, forth and back, with a column for each run."""
    results = [run["results"] for run in runs]
    total = np.array(results[0]["maps"]["as_published"]).size
    titles = {
        "both": "above both nulls",
        **{name: f"of these above {description}" for name, description in COMPARED.items()},
    }
    titles |= {"all": "above both nulls and all controls", "heads_left": "**remain**: and by a quarter or more"}
    titles |= {"heads_left_by_two_controls": "remain without the third control"}
    rows = [_row(f"heads of {total}, forth; back", map(_heading, runs)), f"|---|{'---|' * len(runs)}"]
    for name, text in titles.items():
        rows.append(_row(text, ["; ".join(map(_format_count, stages(result)[name])) for result in results]))
    return rows


def _format_count(heads: Sequence[str]) -> str:
    """The number of heads, and their names if they are few."""
    return f"{len(heads)} ({', '.join(heads)})" if 0 < len(heads) <= FEW else str(len(heads))


def _list_heads(results: Mapping[str, Any]) -> Iterator[str]:
    """A row for each head and direction that is left or among the highest."""
    controls = " | ".join(description.replace(", the", ": the") for description in COMPARED.values())
    yield f"| | head | weight | moved; swapped | {controls} | |"
    yield "|---|---|---|---|" + "---|" * (len(COMPARED) + 1)
    for direction, (title, name) in enumerate(zip(TITLES, DIRECTIONS, strict=True)):
        values, left = np.array(results["maps"][name]), results["heads_left"][name]
        chosen = {*left, *highest_heads(values, HIGHEST)}
        for head in [candidate for candidate in highest_heads(values, values.size) if candidate in chosen]:
            layer, number = map(int, head.split("."))
            nulls = [_three(null["mean"][direction][layer][number]) for null in results["nulls"].values()]
            cells = [_format_contrast(results["controls"][control], direction, layer, number) for control in COMPARED]
            verdict = "remains" if head in left else ""
            yield f"| {' | '.join([title, head, _three(values[layer, number]), '; '.join(nulls), *cells, verdict])} |"


def _three(value: float) -> str:
    """Three digits after the point, without a leading zero.

    >>> _three(0.1234)
    '.123'
    """
    return f"{value:.3f}".removeprefix("0")


def _format_contrast(control: Mapping[str, Any], *index: int) -> str:
    """A control's numbers for one head: the links against their replacements, and the difference."""
    if not control["examples"][index[0]]:
        return "none"
    links, others, half = (np.array(control[name])[index] for name in ("links", "others", "interval"))
    difference = f"{links - others:+.3f}".replace("0.", ".", 1).replace("-", "−")
    return f"{_three(links)} against {_three(others)} ({difference} ± {_three(half)})"


def format_highest(rows: Any, count: int = HIGHEST) -> str:
    """The heads with the largest values, and the values.

    >>> format_highest([[0.1, 0.2], [0.3, 0.05]], 2)
    '1.0 .300, 0.1 .200'
    """
    values = np.array(rows)
    highest = [(name, values[tuple(map(int, name.split(".")))]) for name in highest_heads(values, count)]
    return ", ".join(f"{name} {value:.3f}".replace(" 0.", " .") for name, value in highest)
