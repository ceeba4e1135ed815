"""Table 1: scores by task and initialisation, mean and spread over seeds, with those of the paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.style import context

from bertjax.plots import INK, PALE, WIDTH, add_axes, save_page, start_page
from bertjax.statistics import METRICS
from bertjax.tasks import TASKS
from experiments.shared.run import Numbers
from experiments.shared.tables import make_table

INITS = ("none", "random", "pretrained")
LOOKS = {  # label, colour (Okabe and Ito 2008, for colour-blind readers) and marker
    "none": ("pre-trained, not fine-tuned", "#999999", "s"),
    "random": ("random, fine-tuned", "#e69f00", "^"),
    "pretrained": ("pre-trained, fine-tuned", "#0072b2", "o"),
}
PUBLISHED = ("trained as published", "#cc79a7", "D")  # for any initialisation
LEFT, RIGHT, BOTTOM, LINE = 2.1, 0.3, 1.15, 0.42  # inches

# Kovaleva et al. 2019, table 1, in points, by task, metric and initialisation. STS-B's "accuracy" is a correlation.
PAPER: dict[tuple[str, str], dict[str, float]] = {
    ("mrpc", "f1"): {"none": 0.0, "random": 81.2, "pretrained": 87.9},
    ("mrpc", "accuracy"): {"none": 31.6, "random": 68.3, "pretrained": 82.3},
    ("stsb", "pearson"): {"none": 33.1, "random": 2.9, "pretrained": 82.7},
    ("sst2", "accuracy"): {"none": 49.1, "random": 80.5, "pretrained": 92.0},
    ("qqp", "f1"): {"none": 0.0, "random": 0.0, "pretrained": 65.2},
    ("qqp", "accuracy"): {"none": 60.9, "random": 63.2, "pretrained": 78.6},
    ("rte", "accuracy"): {"none": 52.7, "random": 52.7, "pretrained": 64.6},
    ("qnli", "accuracy"): {"none": 52.8, "random": 49.5, "pretrained": 84.4},
    ("mnli", "accuracy"): {"none": 31.7, "random": 61.0, "pretrained": 78.6},
}


@dataclass(frozen=True)
class Row:
    """A row of the table: one task, metric, initialisation and recipe; scores in points, NaN where undefined.

    Args:
        points: the score after the last epoch, for each seed.
        examples: the numbers of training and of validation examples of each run.
    """

    task: str
    metric: str
    init: str
    points: tuple[float, ...]
    examples: tuple[int, int]
    published: bool = False

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return float(np.mean(self.points))

    @property
    def spread(self) -> float:
        """The standard deviation over seeds; NaN for one seed."""
        return float(np.std(self.points, ddof=1)) if len(self.points) > 1 else float("nan")

    @property
    def paper(self) -> float | None:
        """The paper's number."""
        return PAPER.get((self.task, self.metric), {}).get(self.init)


def summarise(runs: Sequence[Numbers]) -> list[Row]:
    """The rows: tasks in the order of the runs, initialisations as in the paper; runs on other examples are separate.

    Args:
        runs: the runs of `numbers.json`.

    >>> run = {"task": "rte", "init": "random", "examples": [9, 5]}
    >>> runs = [run | {"epochs": [{"loss": 0.7, "scores": {"accuracy": score}}]} for score in (0.5, 0.6)]
    >>> [(row.metric, round(row.mean, 6), round(row.spread, 2), row.paper) for row in summarise(runs)]
    [('accuracy', 55.0, 7.07, 52.7)]
    """
    rows = []
    for key in dict.fromkeys(map(_data_of, runs)):
        same_data = [run for run in runs if _data_of(run) == key]
        for metric, init, published in product(same_data[0]["epochs"][-1]["scores"], INITS, (False, True)):
            seeds = [run for run in same_data if (run["init"], run.get("published", False)) == (init, published)]
            points = tuple(_points(run, metric) for run in seeds)
            if seeds:
                rows.append(Row(key[0], metric, init, points, key[1], published=published))
    return rows


def _data_of(run: Numbers) -> tuple[str, tuple[int, int], str]:
    training, validation = run["examples"]
    return run["task"], (training, validation), run.get("data", "")


def _points(run: Numbers, metric: str) -> float:
    """The score after the last epoch."""
    score = run["epochs"][-1]["scores"][metric]
    return float("nan") if score is None else 100 * score


def scores_table(rows: Sequence[Row]) -> str:
    """A row for each task and metric: mean and spread over seeds, last epoch; the paper's number in brackets."""
    columns = [(init, False) for init in INITS]
    head = ["task: training, validation examples", "metric", *(LOOKS[init][0] for init in INITS)]
    if any(row.published for row in rows):
        columns.append((INITS[-1], True))
        head.append(f"{LOOKS[INITS[-1]][0]} as published")
    lines = []
    for task, examples, metric in dict.fromkeys((row.task, row.examples, row.metric) for row in rows):
        cells = {
            (row.init, row.published): _cell(row)
            for row in rows
            if (row.task, row.examples, row.metric) == (task, examples, metric)
        }
        sizes = f"{TASKS[task].folder}: {examples[0]:,}, {examples[1]:,}"
        lines.append([sizes, METRICS[metric].label, *(cells.get(column, "") for column in columns)])
    return make_table(head, lines)


def _cell(row: Row) -> str:
    """Mean and spread over seeds, the number of seeds, and the paper's number."""
    spread = "" if np.isnan(row.spread) else f" ± {row.spread:.1f}"
    details = [f"{len(row.points)} seed{'s'[: len(row.points) > 1]}"]
    details += [] if row.paper is None else [f"paper {row.paper:.1f}"]
    return f"**{row.mean:.1f}{spread}** ({'; '.join(details)})"


def gain_lines(rows: Sequence[Row]) -> list[str]:
    """The mean gain from fine-tuning over tasks, with the paper's for the same tasks.

    The gain of a task is the increase in accuracy, for STS-B in Pearson's correlation, from the untrained head to the
    fine-tuned model. Over all seven tasks the paper's table gives 35.9 points.
    """
    gains, paper = {}, {}
    for metric in ("accuracy", "pearson"):
        for task in dict.fromkeys(row.task for row in rows if row.metric == metric):
            by_init = {row.init: row for row in rows if (row.task, row.metric, row.published) == (task, metric, False)}
            if {"none", "pretrained"} <= by_init.keys():
                gains[task] = by_init["pretrained"].mean - by_init["none"].mean
                ends = [by_init[init].paper for init in ("none", "pretrained")]
                paper[task] = None if None in ends else ends[1] - ends[0]  # type: ignore[operator]
    defined = [value for value in paper.values() if value is not None]
    if not gains:
        return []
    paper_text = f"; the paper's table, of the same tasks: {np.mean(defined):.1f}" if len(defined) == len(gains) else ""
    count_text = f"{len(gains)} tasks" if len(gains) > 1 else "1 task"
    return [f"mean gain by fine-tuning over {count_text}: {np.mean(list(gains.values())):.1f} points{paper_text}"]


def draw_scores(path: Path, rows: Sequence[Row], title: str, subtitle: str) -> None:
    """Draw a line of marks for each task and metric: every seed, their mean, and the paper's number, hollow."""
    lines = list(dict.fromkeys((row.task, row.examples, row.metric) for row in rows))
    named: dict[str, Any] = {}
    with context("default"):
        figure = start_page(title, subtitle, BOTTOM, LINE * len(lines))
        axes = add_axes(figure, LEFT, BOTTOM, WIDTH - LEFT - RIGHT, LINE * len(lines))
        for row in rows:
            label, colour, marker = PUBLISHED if row.published else LOOKS[row.init]
            line = lines.index((row.task, row.examples, row.metric))
            place = line + 0.22 * (INITS.index(row.init) - 1 + 0.5 * row.published)
            look: dict[str, Any] = {"marker": marker, "color": colour}
            axes.plot(row.points, [place] * len(row.points), markersize=3, alpha=0.6, **look)
            (named[label],) = axes.plot([row.mean], [place], markersize=7, linestyle="none", **look)
            if row.paper is not None and not row.published:
                axes.plot([row.paper], [place], fillstyle="none", markersize=9, zorder=4, **look)
        names = [f"{t}, {METRICS[m].label}\n{e[0]:,} training, {e[1]:,} validation" for t, e, m in lines]
        axes.set_yticks(range(len(lines)), names)
        axes.set_ylim(len(lines) - 0.5, -0.5)
        axes.grid(axis="x", color=PALE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_xlabel("points on the validation set; hollow: the paper's", fontsize=9, color=INK)
        figure.legend(list(named.values()), list(named), loc="lower left", ncols=4, frameon=False, fontsize=8)
        save_page(figure, path)
