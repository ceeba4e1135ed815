"""Scores of all ablations and what they are worth, from the outputs of a sweep."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Int, Num

from bertjax.engine import SweepResult
from bertjax.evidence import Evidence, Metric, find_metric, labelled, score, weigh
from bertjax.interventions import Ablation, head_names
from bertjax.progress import Progress, silent
from bertjax.results import Entry, Place

Labels: TypeAlias = Num[np.ndarray, " examples"]


def score_ablations(
    metrics: Sequence[Metric],
    positive: int,
    labels: Labels,
    result: SweepResult,
    ablations: Sequence[Ablation],
    places: Sequence[Place],
) -> tuple[list[Entry], dict[str, float]]:
    """Scores of all ablations by every metric, and of the base run.

    Args:
        metrics: the main one first.
        positive: the label that counts as yes.
        labels: of the examples.

    Returns: one entry for each ablation, scored by the main metric and all others; and the base's
        scores by metric, the main one first.
    """
    base = {metric.name: float(score(metric, result.base[None], labels, positive)[0]) for metric in metrics}
    scores = {metric.name: score(metric, result.outputs, labels, positive) for metric in metrics}
    entries = [
        Entry(
            name=ablation.name,
            heads=head_names(ablation),
            layer=places[number][1],
            head=places[number][2],
            scores={name: float(values[number]) for name, values in scores.items()},
            base=base[metrics[0].name],
        )
        for number, ablation in enumerate(ablations)
    ]
    return entries, base


def weigh_outputs(
    metrics: Sequence[Metric | str],
    positive: int,
    result: SweepResult,
    labels: Labels,
    *,
    units: Int[np.ndarray, "..."] | None = None,
    seed: int = 0,
    resamples: int | None = None,
    progress: Progress = silent,
) -> dict[str, Evidence]:
    """What the outputs are worth as evidence, by each metric; nothing where fewer than two examples have a label."""
    evidence: dict[str, Evidence] = {}
    for number, metric in enumerate(metrics):
        if labelled(metric, labels).sum() < 2:
            continue

        def report(done: float, total: float, before: int = number) -> None:
            progress(before + done / total, float(len(metrics)))

        evidence[find_metric(metric).name] = weigh(
            metric,
            result.base,
            result.outputs,
            labels,
            positive,
            resamples=resamples,
            seed=seed,
            units=units,
            progress=report,
        )
    return evidence
