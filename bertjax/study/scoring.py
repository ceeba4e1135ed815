"""Scores of all ablations and what they are worth, from the outputs of a sweep."""

from collections.abc import Sequence
from typing import Any

from bertjax.data import Examples
from bertjax.engine import SweepResult
from bertjax.evidence import Evidence, labelled, score, weigh
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
    metric: str | None = None,
) -> tuple[list[Entry], dict[str, float]]:
    """Scores of all ablations by every metric of the task, and of the base run.

    Args:
        metric: the main one; default the task's own.

    Returns: one entry for each ablation, scored by the main metric with all metrics beside it; and the base's
        scores by metric, the main one first.
    """
    task = examples.task
    names, positive = metrics_of(kind, task, metric), positive_label(kind, task)
    base = {name: float(score(name, swept.base[None], examples.labels, positive)[0]) for name in names}
    scores = {name: score(name, swept.outputs, examples.labels, positive) for name in names}
    entries = [
        Entry(
            one.name,
            head_names(one),
            *places[number][1:],
            {name: float(scores[name][number]) for name in names},
            base[names[0]],
        )
        for number, one in enumerate(ablations)
    ]
    return entries, base


def weigh_outputs(
    metrics: Sequence[str],
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

        found[metric] = weigh(
            metric, swept.base, swept.outputs, labels, positive, resamples=resamples, seed=seed, progress=report
        )
    return found
