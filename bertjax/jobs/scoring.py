"""Scores and statistics of all ablations, from the outputs of a sweep."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from jaxtyping import Int, Num

from bertjax.engine import SweepResult
from bertjax.interventions import Ablation, head_names
from bertjax.progress import Progress, part_of, silent
from bertjax.results import AblationName, Entry
from bertjax.statistics import UNLABELLED, Metric, Statistics, compute_statistics, labelled, score

Labels: TypeAlias = Num[np.ndarray, " outputs"]


@dataclass(frozen=True)
class LabelledMetric:
    """A metric with its labels.

    Args:
        metric: the metric.
        labels: the label of each output; missing for outputs outside the group.
    """

    metric: Metric
    labels: Labels


def label_metrics(
    metrics: Sequence[Metric], labels: Labels, groups: Sequence[str] | None = None
) -> list[LabelledMetric]:
    """Add labels to metrics, and add the main metric for each group with at least two outputs.

    Args:
        metrics: the metrics, the main one first.
        labels: the label of each output.
        groups: the group of each output, if there are groups.
    """
    labelled_metrics = [LabelledMetric(metric, labels) for metric in metrics]
    main, names = metrics[0], np.array(groups or ())
    for group in dict.fromkeys(groups or ()):
        if (names == group).sum() > 1:
            of_group = replace(main, name=f"{main.name}:{group}", label=f"{main.label}, {group}")
            missing = UNLABELLED if main.targets == "classes" else np.nan
            labelled_metrics.append(LabelledMetric(of_group, np.where(names == group, labels, missing)))
    return labelled_metrics


def score_ablations(
    labelled_metrics: Sequence[LabelledMetric],
    positive: int,
    result: SweepResult,
    ablations: Sequence[Ablation],
    places: Sequence[AblationName],
) -> tuple[list[Entry], dict[str, float]]:
    """Score all ablations and the base run by all metrics.

    Args:
        labelled_metrics: the metrics, the main one first.
        positive: the positive label.

    Returns: an entry for each ablation, and the scores of the base run by metric.
    """
    base, scores = {}, {}
    for each in labelled_metrics:
        name = each.metric.name
        base[name] = float(score(each.metric, result.base[None], each.labels, positive)[0])
        scores[name] = score(each.metric, result.outputs, each.labels, positive)
    entries = [
        Entry(
            name=ablation.name,
            heads=head_names(ablation),
            layer=places[number][1],
            head=places[number][2],
            scores={name: float(values[number]) for name, values in scores.items()},
            base=base[labelled_metrics[0].metric.name],
        )
        for number, ablation in enumerate(ablations)
    ]
    return entries, base


def statistics_of_outputs(
    labelled_metrics: Sequence[LabelledMetric],
    positive: int,
    result: SweepResult,
    *,
    units: Int[np.ndarray, "..."] | None = None,
    seed: int = 0,
    resamples: int | None = None,
    progress: Progress = silent,
) -> dict[str, Statistics]:
    """The statistics of the outputs by metric, for metrics with at least two labels."""
    statistics: dict[str, Statistics] = {}
    for number, each in enumerate(labelled_metrics):
        if labelled(each.metric, each.labels).sum() < 2:
            continue
        statistics[each.metric.name] = compute_statistics(
            each.metric,
            result.base,
            result.outputs,
            each.labels,
            positive,
            resamples=resamples,
            seed=seed,
            units=units,
            progress=part_of(progress, number, 1.0, float(len(labelled_metrics))),
        )
    return statistics
