"""Scores of all ablations and what they are worth, from the outputs of a sweep."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from jaxtyping import Int, Num

from bertjax.engine import SweepResult
from bertjax.interventions import Ablation, head_names
from bertjax.progress import Progress, silent
from bertjax.results import AblationName, Entry
from bertjax.statistics import UNLABELLED, Metric, Statistics, compute_statistics, labelled, score

Labels: TypeAlias = Num[np.ndarray, " outputs"]


@dataclass(frozen=True)
class LabelledMetric:
    """A metric with its labels.

    Args:
        metric: what is measured.
        labels: one for each output; those of outputs outside its group are missing.
    """

    metric: Metric
    labels: Labels


def label_metrics(
    metrics: Sequence[Metric], labels: Labels, groups: Sequence[str] | None = None
) -> list[LabelledMetric]:
    """All metrics on all outputs, and the first on each group of them that has two or more.

    Args:
        metrics: the main one first.
        labels: of the outputs.
        groups: of each output, where there are some.
    """
    labelled_metrics = [LabelledMetric(metric, labels) for metric in metrics]
    main, names = metrics[0], np.array(groups or ())
    for group in dict.fromkeys(groups or ()):
        if (names == group).sum() > 1:
            own = replace(main, name=f"{main.name}:{group}", label=f"{main.label}, {group}")
            missing = UNLABELLED if main.targets == "classes" else np.nan
            labelled_metrics.append(LabelledMetric(own, np.where(names == group, labels, missing)))
    return labelled_metrics


def score_ablations(
    labelled_metrics: Sequence[LabelledMetric],
    positive: int,
    result: SweepResult,
    ablations: Sequence[Ablation],
    places: Sequence[AblationName],
) -> tuple[list[Entry], dict[str, float]]:
    """Scores of all ablations by every metric, and of the base run.

    Args:
        labelled_metrics: that of the main metric first.
        positive: the label that counts as yes.

    Returns: one entry for each ablation, scored by the main metric and all others; and the base's
        scores by metric, the main one first.
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
    """The statistics of the outputs, by metric; none where fewer than two examples have a label."""
    statistics: dict[str, Statistics] = {}
    for number, each in enumerate(labelled_metrics):
        if labelled(each.metric, each.labels).sum() < 2:
            continue

        def report(done: float, total: float, before: int = number) -> None:
            progress(before + done / total, float(len(labelled_metrics)))

        statistics[each.metric.name] = compute_statistics(
            each.metric,
            result.base,
            result.outputs,
            each.labels,
            positive,
            resamples=resamples,
            seed=seed,
            units=units,
            progress=report,
        )
    return statistics
