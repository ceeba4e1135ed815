"""Table 1: scores by task and beginning, mean and spread over seeds, beside the paper's."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from bertjax.metrics import METRICS
from bertjax.page import GREY, INK, PALE, WIDTH, add_axes, save_page, start_page
from experiments.training.state import Epoch

INITS = ("none", "random", "pretrained")
LOOKS = {  # words, colour (Okabe and Ito 2008, for colour-blind readers) and marker
    "none": ("pre-trained, not fine-tuned", "#999999", "s"),
    "random": ("random, fine-tuned", "#e69f00", "^"),
    "pretrained": ("pre-trained, fine-tuned", "#0072b2", "o"),
}
LEFT, RIGHT, BOTTOM, LINE = 2.1, 0.3, 0.95, 0.42  # inches

# Kovaleva et al. 2019, table 1, in points, by task, metric and beginning. STS-B's "accuracy" is a correlation.
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
class Trained:
    """A finished run.

    Args:
        examples: how many it learnt from, and how many judged it.
        best: which epoch's model was kept, counted from 0.
        data: a digest of both, so that runs on other examples are not taken for more seeds.
    """

    task: str
    init: str
    seed: int
    examples: tuple[int, int]
    epochs: tuple[Epoch, ...]
    best: int
    data: str = ""

    @property
    def scores(self) -> dict[str, float | None]:
        """Of the best epoch, by metric, as the metric defines them; None where undefined."""
        return self.epochs[self.best].scores


@dataclass(frozen=True)
class Row:
    """A line of the table: one task, metric and beginning; scores in points, NaN where undefined.

    Args:
        points: of each seed's best epoch.
        last: of its last epoch.
        examples: how many each run learnt from, and how many judged it.
    """

    task: str
    metric: str
    init: str
    points: tuple[float, ...]
    last: tuple[float, ...]
    examples: tuple[int, int]

    @property
    def mean(self) -> float:
        """Over seeds."""
        return float(np.mean(self.points))

    @property
    def spread(self) -> float:
        """Standard deviation over seeds, NaN for one."""
        return float(np.std(self.points, ddof=1)) if len(self.points) > 1 else float("nan")

    @property
    def published(self) -> float | None:
        """The paper's number."""
        return PAPER.get((self.task, self.metric), {}).get(self.init)

    def as_json(self) -> dict[str, Any]:
        """For `numbers.json`."""
        return {
            "task": self.task,
            "metric": self.metric,
            "init": self.init,
            "trained": self.examples[0],
            "judged": self.examples[1],
            "mean": _finite(self.mean),
            "sd": _finite(self.spread),
            "seeds": [_finite(value) for value in self.points],
            "last_epoch": [_finite(value) for value in self.last],
            "paper": self.published,
        }


def _finite(value: float) -> float | None:
    return None if np.isnan(value) else value


def summarise(runs: Sequence[Trained]) -> list[Row]:
    """The table's rows, tasks in the order of the runs, beginnings as in the paper; runs on other examples are apart.

    >>> epochs = [Epoch(0.7, {"accuracy": score}) for score in (0.5, 0.6)]
    >>> runs = [Trained("rte", "random", seed, (9, 5), (epoch,), 0) for seed, epoch in enumerate(epochs)]
    >>> [(row.metric, round(row.mean, 6), round(row.spread, 2), row.published) for row in summarise(runs)]
    [('accuracy', 55.0, 7.07, 52.7)]
    """
    rows = []
    for task, examples, data in dict.fromkeys((run.task, run.examples, run.data) for run in runs):
        alike = [run for run in runs if (run.task, run.examples, run.data) == (task, examples, data)]
        for metric in alike[0].scores:
            for init in INITS:
                several = [run for run in alike if run.init == init]
                points, last = (
                    tuple(100 * _number(scores[metric]) for scores in found)
                    for found in ([run.scores for run in several], [run.epochs[-1].scores for run in several])
                )
                if several:
                    rows.append(Row(task, metric, init, points, last, examples))
    return rows


def _number(score: float | None) -> float:
    return float("nan") if score is None else score


def make_table(rows: Sequence[Row]) -> Table:
    """The rows for a terminal of 80 columns."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("task", "metric", "init"):
        table.add_column(title, no_wrap=True)
    for title in ("best epoch", "last", "seeds", "paper", "learnt", "judge"):
        table.add_column(title, justify="right", no_wrap=True)
    before = ""
    for row in rows:
        spread = "       " if np.isnan(row.spread) else f" ± {row.spread:4.1f}"
        published = "" if row.published is None else f"{row.published:.1f}"
        trained = "" if row.init == "none" else f"{row.examples[0]:,}"
        last = f"{np.mean(row.last):.1f}"
        cells = [f"{row.mean:.1f}{spread}", last, str(len(row.points)), published, trained, f"{row.examples[1]:,}"]
        table.add_row(row.task if row.task != before else "", row.metric, row.init, *cells)
        before = row.task
    return table


def draw_scores(path: Path, rows: Sequence[Row], title: str, subtitle: str) -> None:
    """Draw a line of marks for each task and metric: every seed, their mean, and the paper's number hollow."""
    from matplotlib.lines import Line2D
    from matplotlib.style import context

    lines = list(dict.fromkeys((row.task, row.examples, row.metric) for row in rows))
    with context("default"):
        figure = start_page(title, subtitle, BOTTOM, LINE * len(lines))
        axes = add_axes(figure, LEFT, BOTTOM, WIDTH - LEFT - RIGHT, LINE * len(lines))
        axes.set_yticks(range(len(lines)), [_name_line(*line) for line in lines])
        axes.set_ylim(len(lines) - 0.5, -0.5)
        axes.grid(axis="x", color=PALE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_xlabel("points on the validation set", fontsize=9, color=INK)
        for row in rows:
            place = lines.index((row.task, row.examples, row.metric))
            _draw_row(axes, row, place + 0.26 * (INITS.index(row.init) - 1))
        look: dict[str, Any] = {"linestyle": "none", "markersize": 7}
        handles = [
            Line2D([], [], color=colour, marker=mark, label=word, **look)
            for init, (word, colour, mark) in LOOKS.items()
            if any(row.init == init for row in rows)
        ]
        if any(row.published is not None for row in rows):
            hollow: dict[str, Any] = {"color": GREY, "marker": "o", "fillstyle": "none", "label": "hollow: the paper's"}
            handles.append(Line2D([], [], **hollow, **look))
        figure.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(0.15 / WIDTH, 0),
            ncols=4,
            frameon=False,
            fontsize=8.5,
            labelcolor=INK,
            columnspacing=1.2,
            handletextpad=0.3,
        )
        save_page(figure, path)


def _name_line(task: str, examples: tuple[int, int], metric: str) -> str:
    """Task, metric, and what was learnt from and judged by."""
    return f"{task}, {METRICS[metric].label}\n{examples[0]:,} learnt, {examples[1]:,} judge"


def _draw_row(axes: Any, row: Row, place: float) -> None:
    _, colour, marker = LOOKS[row.init]
    axes.plot(
        row.points, [place] * len(row.points), marker=marker, color=colour, linestyle="-", markersize=3, alpha=0.6
    )
    axes.plot([row.mean], [place], marker=marker, color=colour, markersize=7)
    if row.published is not None:
        axes.plot([row.published], [place], marker=marker, color=colour, fillstyle="none", markersize=9, zorder=4)
