"""What results hold, and plain questions to them: read from a directory, or just computed."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from bertjax.errors import InputError
from bertjax.evidence import METRICS
from bertjax.formatting import count_of, format_change, format_p, is_bound
from bertjax.results.table import Row, column, kind_of

SHOWN = 10  # ablations in a notebook's table
Arrays = Mapping[str, Shaped[np.ndarray, "..."]]


class Stored(ABC):
    """Where results keep what is large."""

    directory: Path | None

    @property
    @abstractmethod
    def outputs(self) -> Arrays:
        """As in `outputs.npz`."""

    @property
    @abstractmethod
    def attention(self) -> Arrays:
        """As in `attention.npz`."""

    @property
    @abstractmethod
    def has_attention(self) -> bool:
        """Whether there is any."""

    @property
    @abstractmethod
    def examples(self) -> Sequence[Mapping[str, Any]]:
        """As in `examples.jsonl`."""


class InMemory(Stored):
    """What is large, of results that were just computed.

    Args:
        outputs, attention, examples: as in the files.
        directory: into which they were written; None where they were not.
    """

    def __init__(
        self,
        outputs: Arrays,
        attention: Arrays,
        examples: Sequence[Mapping[str, Any]],
        directory: Path | None = None,
    ):
        self._outputs, self._attention, self._examples = outputs, attention, examples
        self.directory = directory

    @property
    def outputs(self) -> Arrays:
        """As in `outputs.npz`."""
        return self._outputs

    @property
    def attention(self) -> Arrays:
        """As in `attention.npz`."""
        return self._attention

    @property
    def has_attention(self) -> bool:
        """Whether there is any."""
        return bool(self._attention)

    @property
    def examples(self) -> Sequence[Mapping[str, Any]]:
        """As in `examples.jsonl`."""
        return self._examples


@dataclass(frozen=True, repr=False)
class Contents:
    """What a job found.

    Args:
        summary: as in `summary.json`.
        rows: as in `results.parquet`, one for each ablation and metric.
        stored: what is large, read when it is asked for.
    """

    summary: dict[str, Any]
    rows: Sequence[Row]
    stored: Stored

    @property
    def directory(self) -> Path | None:
        """Where they are; None where they were not written."""
        return self.stored.directory

    @property
    def source(self) -> str:
        """What messages call them."""
        return "these results" if self.directory is None else str(self.directory)

    @property
    def outputs(self) -> Arrays:
        """The arrays of `outputs.npz`: base, outputs, names, layer, head, ids, labels.

        Raises:
            InputError: the file is missing, damaged or of other results.
        """
        return self.stored.outputs

    @property
    def attention(self) -> Arrays:
        """The arrays of `attention.npz`: tokens and weights of a few examples, base and largest effects.

        Raises:
            InputError: the file is missing, damaged or of other results.
        """
        return self.stored.attention

    @property
    def has_attention(self) -> bool:
        """Whether attention was kept; it is large, and a copy of the results may lack it."""
        return self.stored.has_attention

    @property
    def examples(self) -> Sequence[Mapping[str, Any]]:
        """Id, label and texts of each example.

        Raises:
            InputError: `examples.jsonl` is missing or damaged.
        """
        return self.stored.examples

    @property
    def kind(self) -> str:
        """What an ablation is: 'head', 'layer' or 'set'."""
        return kind_of(self.summary["ablations"])

    @property
    def picture(self) -> str:
        """The picture's name: a map of heads, a bar for each layer, or bars for the sets that change most."""
        return f"{self.kind}s.png"

    @property
    def metric(self) -> str:
        """The main metric's name."""
        return str(self.summary["metric"]["name"])

    @property
    def names(self) -> list[str]:
        """Of all ablations, in order."""
        return [entry["name"] for entry in self.summary["ablations"]]

    def rows_of(self, metric: str | None = None) -> list[Row]:
        """The rows of a metric, by default the main one, in the order of the ablations.

        Raises:
            InputError: the results have no such metric.
        """
        wanted = metric or self.metric
        if wanted not in self.summary["metrics"]:
            raise InputError(f"{self.source} has no metric {wanted!r}: {', '.join(self.summary['metrics'])}")
        return [row for row in self.rows if row.metric == wanted]

    @property
    def base(self) -> float | None:
        """The main score without ablation; None where it is undefined."""
        found: float | None = self.summary["base"]["score"]
        return found

    @property
    def sentence(self) -> str:
        """How many ablations matter for sure, the extremes, and what cannot be told."""
        return str(self.summary["sentence"])

    def sentence_of(self, metric: str | None = None) -> str:
        """What was found by a metric, by default the main one."""
        statistics = self.summary["statistics"]
        return str(statistics[metric or self.metric]["sentence"] if statistics else self.summary["sentence"])

    def least_p(self, metric: str | None = None) -> float | None:
        """The least p that a metric's test can give, by default the main one's; None where it can give any."""
        least = self.summary["statistics"].get(metric or self.metric, {}).get("least_p")
        return None if least is None else float(least)

    def describe_metric(self, name: str | None = None) -> dict[str, Any]:
        """What is known of a metric, by default the main one: 'label', 'reads' and 'of_one_label'."""
        return describe_metric(self.summary, name or self.metric)

    def positive_of(self, metric: str | None = None) -> str | None:
        """The label that a metric is about, as F1 is; None where it is about all of them, or about numbers."""
        return positive_name(self.summary, [metric or self.metric])

    @property
    def texts(self) -> int:
        """How many texts of each example the model read one by one."""
        return sum(name.startswith("tokens_0_") for name in self.attention)

    @property
    def kept(self) -> list[int | str]:
        """The ids of the examples whose attention was kept."""
        return [self.examples[number]["id"] for number in self.attention["examples"].tolist()]

    def label_of(self, example: Mapping[str, Any]) -> str:
        """An example's label as a text, a class by its name; 'none' where it has none."""
        names, label = self.summary["data"]["label_names"], example["label"]
        if label is None or (names and label < 0):
            return "none"
        return str(names[label]) if names and label < len(names) else f"{label:g}"

    def points(self, name: str = "difference", metric: str | None = None) -> Float[np.ndarray, " ablations"]:
        """A column of a metric in points, 100 times what it holds; NaN where it is undefined."""
        return 100 * column(self.rows_of(metric), name)

    @property
    def title(self) -> str:
        """Model, data and mode in a line."""
        summary = self.summary
        data = f"{summary['data']['task']}, {count_of(summary['data']['examples'], 'example')}"
        return f"{summary['model']['name']} on {data}, mode {summary['mode']['name']}"

    def largest(self, count: int = SHOWN) -> list[tuple[str, ...]]:
        """The ablations of the largest effects by the main metric, as texts: scores and changes in points."""
        rows = self.rows_of()
        order = np.argsort(-np.nan_to_num(np.abs(column(rows, "difference")), nan=-1.0), kind="stable")
        return [as_texts(rows[place], self.least_p()) for place in order[:count]]


def describe_metric(summary: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A metric's label, what it reads, and whether it is about one label; a user's own is described in the summary."""
    own: dict[str, Any] | None = summary.get("own_metrics", {}).get(name)
    return METRICS[name].describe() if own is None else own


def positive_name(summary: Mapping[str, Any], metrics: Sequence[str]) -> str | None:
    """The name of the label that some of these metrics are about; None where none of them is about one label.

    Args:
        summary: as in `summary.json`, or what of it says where results come from.
    """
    if not any(describe_metric(summary, name)["of_one_label"] for name in metrics):
        return None
    names, positive = summary["data"]["label_names"], summary["positive"]
    return str(names[positive] if positive < len(names) else positive)


def as_texts(row: Row, least_p: float | None = None) -> tuple[str, ...]:
    """Name, score, change, interval, p, q, gains, losses, scores and changes in points; a star after q: found.

    Args:
        least_p: the least that the row's test can give (`Contents.least_p`).
    """
    ends = [end for end in (row.low, row.high) if end is not None]
    interval = " to ".join(format_change(100 * end) for end in ends) if len(ends) == 2 else ""
    flips = ["" if count is None else str(count) for count in (row.gains, row.losses)]
    score = "undefined" if row.score is None else f"{100 * row.score:.2f}"
    change = "" if row.difference is None else format_change(100 * row.difference)
    least_q = row.q if row.p is not None and is_bound(row.p, least_p) else None
    p = "" if row.p is None else format_p(row.p, least_p)
    q = "" if row.q is None else format_p(row.q, least_q)
    star = "*" if row.significant else ""
    return row.name, score, change, interval, p, f"{q}{star}", *flips
