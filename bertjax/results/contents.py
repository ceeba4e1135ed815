"""The contents of results, read from a directory or just computed, and simple queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from bertjax.errors import InputError
from bertjax.formatting import count_of, equals_p, format_change, format_p, is_bound
from bertjax.results.table import CELL, Row, column, kind_of, noun_of, significant
from bertjax.statistics import BUILT_IN, Measure, Q, fewest_flips

SHOWN = 10  # ablations in the notebook table
DRAWN = {"gradients": "importance"}  # by outputs, the metric of figures if it is not the main one
Arrays = Mapping[str, Shaped[np.ndarray, "..."]]


@dataclass(frozen=True)
class Quantity:
    """What a metric of results measures. Results are compared if they measure the same.

    Attributes:
        name: the name in messages.
        compared_as: results are compared if this is equal.
        sign: 1, or -1 if positive values mean what negative values of the compared quantities mean.
    """

    name: str
    compared_as: str
    sign: int = 1

    def __str__(self) -> str:
        return self.name


EFFECT = "effect"


class Stored:
    """The large parts of results: arrays of `outputs.npz` and `attention.npz`, and lines of `examples.jsonl`."""

    directory: Path | None
    outputs: Arrays
    attention: Arrays
    examples: Sequence[Mapping[str, Any]]

    @property
    def has_attention(self) -> bool:
        """Whether attention is available."""
        return bool(self.attention)


@dataclass(eq=False, repr=False)
class InMemory(Stored):
    """The large parts of results that were just computed.

    Args:
        outputs: the arrays of `outputs.npz`.
        attention: the arrays of `attention.npz`.
        examples: the objects of `examples.jsonl`.
        directory: the directory of the written results; None if they were not written.
    """

    outputs: Arrays
    attention: Arrays
    examples: Sequence[Mapping[str, Any]]
    directory: Path | None = None


@dataclass(frozen=True, repr=False)
class Contents:
    """The contents of results.

    Args:
        summary: the content of `summary.json`.
        rows: the rows of `results.parquet`, one for each ablation and metric.
        stored: the large parts, read when they are needed.
    """

    summary: dict[str, Any]
    rows: Sequence[Row]
    stored: Stored

    @property
    def directory(self) -> Path | None:
        """The directory of the results; None if they were not written."""
        return self.stored.directory

    @property
    def source(self) -> str:
        """The name of the results in messages."""
        return "the result in memory" if self.directory is None else str(self.directory)

    @property
    def outputs(self) -> Arrays:
        """The arrays of `outputs.npz`: base, outputs, names, layer, head, ids, labels.

        Raises:
            InputError: the file is missing, damaged or of other results.
        """
        return self.stored.outputs

    @property
    def attention(self) -> Arrays:
        """The arrays of `attention.npz`: tokens and weights of a few examples, for the base and the largest effects.

        Raises:
            InputError: the file is missing, damaged or of other results.
        """
        return self.stored.attention

    @property
    def has_attention(self) -> bool:
        """Whether attention is available; the file is large, so a copy of the results may lack it."""
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
        """The kind of ablation: 'head', 'layer', 'cell' of a grid of patches, or 'set'."""
        return kind_of(self.summary["ablations"], of_patches="patching" in self.summary)

    @property
    def noun(self) -> str:
        """The kind of ablation in sentences and tables, such as 'pair of layers' for a set of two layers."""
        return noun_of(self.kind, self.summary)

    @property
    def picture(self) -> str:
        """The file name of the figure: a map of heads, bars of layers or sets, or grids of patches."""
        return "patches.png" if self.has_grids else f"{self.kind}s.png"

    @property
    def has_grids(self) -> bool:
        """Whether these are patches of sites at spans of tokens, not only of heads."""
        return self.kind == CELL

    @property
    def metric(self) -> str:
        """The main metric's name."""
        return str(self.summary["metric"]["name"])

    @property
    def names(self) -> list[str]:
        """The names of all ablations, in order."""
        return [entry["name"] for entry in self.summary["ablations"]]

    @property
    def drawn_metric(self) -> str:
        """The metric of the figure and of the page when it opens: the main one, or the importance by gradients."""
        drawn = DRAWN.get(self.summary["outputs"], self.metric)
        return drawn if drawn in self.summary["metrics"] else self.metric

    @property
    def too_few_contrasts(self) -> str:
        """A note if patches have too few contrasts for any cell to be significant; else empty."""
        contrasts, rows = self.summary["data"]["examples"], self.rows_of()
        needed = fewest_flips(len(rows))
        if "patching" not in self.summary or contrasts >= needed or significant(rows).any():
            return ""
        few = f"{count_of(contrasts, 'contrast')}: too few contrasts for a test"
        return f"{few} of {count_of(len(rows), self.kind)} (give {needed} or more)"

    def rows_of(self, metric: str | None = None) -> list[Row]:
        """The rows of a metric, by default the main one, in the order of the ablations.

        Args:
            metric: the name of the metric.

        Raises:
            InputError: the results have no such metric.
        """
        name = self._metric_name(metric)
        return [row for row in self.rows if row.metric == name]

    def _metric_name(self, metric: str | None) -> str:
        """The metric, or the main one for None. Raises `InputError` if the results have no such metric."""
        name = metric or self.metric
        if name not in self.summary["metrics"]:
            raise InputError(f"{self.source} has no metric {name!r}: {', '.join(self.summary['metrics'])}")
        return name

    @property
    def base(self) -> float | None:
        """The main score without ablation; None if it is undefined."""
        score: float | None = self.summary["base"]["score"]
        return score

    @property
    def sentence(self) -> str:
        """The number of significant ablations, the extremes, and how they compare with chance."""
        return str(self.summary["sentence"])

    def sentence_of(self, metric: str | None = None) -> str:
        """The sentence about a metric, by default the main one.

        Args:
            metric: the name of the metric.
        """
        statistics = self.summary["statistics"]
        return str(statistics[metric]["sentence"] if metric and statistics else self.summary["sentence"])

    def least_p(self, metric: str | None = None) -> float | None:
        """The smallest possible p of a metric's test, by default the main one's; None if there is no bound.

        Args:
            metric: the name of the metric.
        """
        least = self.summary["statistics"].get(metric or self.metric, {}).get("least_p")
        return None if least is None else float(least)

    def describe_metric(self, name: str | None = None) -> dict[str, Any]:
        """The description of a metric, by default the main one, as `Metric.describe` returns it.

        Args:
            name: the name of the metric.
        """
        return describe_metric(self.summary, name or self.metric)

    def measure(self, metric: str | None = None) -> Measure:
        """The label, unit and direction of a metric, by default the main one.

        Args:
            metric: the name of the metric.
        """
        return measure_of(self.summary, metric or self.metric)

    def bounds(self, metric: str | None = None) -> tuple[float, float]:
        """The lowest and the highest possible score of a metric, as printed; infinite for metrics of the user.

        Args:
            metric: the name of the metric; None for the main one.
        """
        name = metric or self.metric
        if name in self.summary.get("own_metrics", {}):
            return -np.inf, np.inf
        factor = self.measure(name).factor
        return factor * BUILT_IN[name].lowest, factor * BUILT_IN[name].highest

    @property
    def analysis(self) -> str:
        """The analysis that made these results, such as 'ablation' or 'shapley'."""
        return str(describe_analysis(self.summary)["name"])

    def quantity(self, metric: str | None = None) -> Quantity:
        """What a metric, by default the main one, measures, and in which direction.

        The effect of an ablation is the score with it minus the score without it. A Shapley value is the contribution
        of a head to the score, which has the opposite sign.

        Args:
            metric: the name of the metric.

        Raises:
            InputError: the results have no such metric.
        """
        name = self._metric_name(metric)
        label = self.measure(name).label
        known = {
            "predicted_loss": Quantity("effects of ablations on the loss that gradients predict", EFFECT),
            "effect_of_both": Quantity("effects of ablations", EFFECT),
            "shapley": Quantity("contributions of heads (Shapley values)", EFFECT, -1),
        }
        if self.analysis in ("ablation", "pruning"):
            return Quantity("effects of ablations", EFFECT)
        if name in known:
            return known[name]
        into = f", into {self.summary['patching']['into']} texts" if "patching" in self.summary else ""
        return Quantity(f"{label}{into}", f"{self.analysis} {name}{into}")

    def positive_of(self, metric: str | None = None) -> str | None:
        """The label that a metric such as F1 is about; None for metrics of all labels or of numbers.

        Args:
            metric: the name of the metric; by default the main one.
        """
        return positive_name(self.summary, [metric or self.metric])

    @property
    def texts(self) -> int:
        """The number of texts of each example that the model read separately."""
        return sum(name.startswith("tokens_0_") for name in self.attention)

    @property
    def kept(self) -> list[int | str]:
        """The ids of the examples whose attention was kept."""
        return [self.examples[index]["id"] for index in self.attention["examples"].tolist()]

    def label_of(self, example: Mapping[str, Any]) -> str:
        """An example's label as str, a class by its name; 'none' for an example without a label.

        Args:
            example: an object of `examples.jsonl`.
        """
        names, label = self.summary["data"]["label_names"], example["label"]
        if label is None or (names and label < 0):
            return "none"
        return str(names[label]) if names and label < len(names) else f"{label:g}"

    def printed(self, name: str = "difference", metric: str | None = None) -> Float[np.ndarray, " ablations"]:
        """A column of a metric in the printed unit: points, 100 times the stored values, or the metric's unit.

        NaN where it is undefined.

        Args:
            name: a column of scores or differences, such as 'score' or 'low'.
            metric: the name of the metric; by default the main one.
        """
        return self.measure(metric).factor * column(self.rows_of(metric), name)

    @property
    def title(self) -> str:
        """Model, data and mode in one line."""
        summary = self.summary
        data = f"{summary['data']['task']}, {count_of(summary['data']['examples'], 'example')}"
        title = f"{summary['model']['name']} on {data}"
        measure = self.measure()
        return (
            title if measure.compared_with or measure.by == "comparison" else f"{title}, mode {summary['mode']['name']}"
        )

    def largest(self, count: int = SHOWN) -> list[tuple[str, ...]]:
        """The formatted rows of the ablations with the largest effects on the main metric.

        Args:
            count: the number of ablations.
        """
        rows = self.rows_of()
        order = np.argsort(-np.nan_to_num(np.abs(column(rows, "difference")), nan=-1.0), kind="stable")
        return [format_row(rows[index], self.measure(), self.least_p()) for index in order[:count]]


def describe_analysis(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Name and options of the analysis of results.

    Args:
        summary: the content of `summary.json`. Earlier versions did not record the analysis, so that it is inferred
            from the outputs, without options.
    """
    if "analysis" in summary:
        return dict(summary["analysis"])
    by_outputs = {"gradients": "importance"} | {name: name for name in ("interactions", "shapley", "roles")}
    name = by_outputs.get(summary["outputs"], "pruning" if "pruning" in summary else "ablation")
    if "patching" in summary:
        name = "paths" if "receivers" in summary["patching"] else "patching"
    return {"name": name, "options": {}}


def describe_metric(summary: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A metric's label, what it reads, and whether it is about one label; the summary describes metrics of the user."""
    description: dict[str, Any] | None = summary.get("own_metrics", {}).get(name)
    return BUILT_IN[name].describe() if description is None else description


def measure_of(summary: Mapping[str, Any], metric: str) -> Measure:
    """The label, unit and direction of a metric; earlier versions stored only the label of a user's metric."""
    described = describe_metric(summary, metric)
    if summary["outputs"] == "gradients" and "tested" not in described:  # of an earlier version
        described = {**described, "by": "gradients", "tested": metric not in ("importance", "token_importance")}
    return Measure(**{field.name: described[field.name] for field in fields(Measure) if field.name in described})


def positive_name(summary: Mapping[str, Any], metrics: Sequence[str]) -> str | None:
    """The name of the label that one of the metrics is about; None if all are about all labels.

    Args:
        summary: the content of `summary.json`, or only its provenance.
    """
    if not any(describe_metric(summary, name)["of_one_label"] for name in metrics):
        return None
    names, positive = summary["data"]["label_names"], summary["positive"]
    return str(names[positive] if positive < len(names) else positive)


def describe_silhouette(found: Mapping[str, float]) -> str:
    """A line on the similarity of heads in one layer.

    Args:
        found: `summary["roles"]["silhouette"]`.
    """
    value, permuted = (format_change(found[name], 2).removeprefix("+") for name in ("value", "permuted"))
    return (
        f"Heads of one layer against heads of other layers: silhouette {value}, {permuted} for permuted layers "
        f"({equals_p('p', found['p'])})."
    )


def describe_numbers(measure: Measure) -> str:
    """A note below a table: the unit of scores and changes, and which direction is better if that is unusual."""
    numbers = f"{'' if measure.of_effects else 'scores and '}{measure.name_of_change}s"
    unit = f"{numbers} in {measure.unit}" if measure.unit else f"{numbers} without a unit"
    return "; ".join(part for part in (unit, measure.direction) if part)


def headings_of(measure: Measure, flips: bool = True) -> dict[int, str]:
    """The headings of the columns of `format_row` that are shown, by index.

    Args:
        flips: whether predictions can become right or wrong.
    """
    names = ("", "score", "change", "95 % CI", "p", "q", *(("gains", "losses") if flips else ()))
    hidden = {*(("score",) if measure.of_effects else ()), *(() if measure.tested else ("p", "q"))}
    shown = {index: name for index, name in enumerate(names) if name not in hidden}
    return {index: measure.name_of_change if name == "change" else name for index, name in shown.items()}


def note_of_tests(measure: Measure) -> str:
    """A note below a table: the meaning of a star, or why nothing is tested."""
    return measure.untested or f"* q < {Q}"


def format_row(row: Row, measure: Measure, least_p: float | None = None) -> tuple[str, ...]:
    """Format name, score, change, interval, p, q, gains and losses.

    A star after q marks a significant effect; p and q are empty if nothing is tested.

    Args:
        measure: the measure of the row's metric.
        least_p: the smallest possible p of the row's test (`Contents.least_p`).
    """
    ends = [end for end in (row.low, row.high) if end is not None]
    interval = " to ".join(map(measure.change, ends)) if len(ends) == 2 else ""
    flips = ["" if count is None else str(count) for count in (row.gains, row.losses)]
    change = "" if row.difference is None else measure.change(row.difference)
    least_q = row.q if row.p is not None and is_bound(row.p, least_p) else None
    p = "" if row.p is None else format_p(row.p, least_p)
    q = "" if row.q is None else format_p(row.q, least_q)
    star = "*" if row.significant else ""
    return row.name, measure.score(row.score), change, interval, p, f"{q}{star}", *flips
