"""Scores of all ablations and what they are worth, from the outputs of a sweep."""

from collections.abc import Sequence
from typing import Any

from bertjax.data import Examples
from bertjax.engine import SweepResult
from bertjax.evidence import Evidence, Metric, find_metric, labelled, score, weigh
from bertjax.interventions import Ablation
from bertjax.progress import Progress, silent
from bertjax.results import Entry, Place
from bertjax.study.outputs import metrics_of, positive_label
from bertjax.study.settings import head_names


def score_ablations(
    kind: str,
    examples: Examples,
    swept: SweepResult,
    ablations: Sequence[Ablation],
    places: Sequence[Place],
    metric: Metric | str | None = None,
) -> tuple[list[Entry], dict[str, float]]:
    """Scores of all ablations by every metric of the task, and of the base run.

    Args:
        metric: the main one; default the task's own.

    Returns: one entry for each ablation, scored by the main metric with all metrics beside it; and the base's
        scores by metric, the main one first.
    """
    task = examples.task
    metrics, positive = metrics_of(kind, task, metric), positive_label(kind, task)
    base = {one.name: float(score(one, swept.base[None], examples.labels, positive)[0]) for one in metrics}
    scores = {one.name: score(one, swept.outputs, examples.labels, positive) for one in metrics}
    entries = [
        Entry(
            one.name,
            head_names(one),
            *places[number][1:],
            {name: float(found[number]) for name, found in scores.items()},
            base[metrics[0].name],
        )
        for number, one in enumerate(ablations)
    ]
    return entries, base


def weigh_outputs(
    metrics: Sequence[Metric | str],
    positive: int,
    swept: SweepResult,
    labels: Any,
    seed: int = 0,
    resamples: int | None = None,
    progress: Progress = silent,
) -> dict[str, Evidence]:
    """What the outputs are worth as evidence, by each metric; nothing where fewer than two examples have a label."""
    found: dict[str, Evidence] = {}
    for number, metric in enumerate(metrics):
        if labelled(metric, labels).sum() < 2:
            continue

        def report(done: float, total: float, before: int = number) -> None:
            progress(before + done / total, float(len(metrics)))

        found[find_metric(metric).name] = weigh(
            metric, swept.base, swept.outputs, labels, positive, resamples=resamples, seed=seed, progress=report
        )
    return found
