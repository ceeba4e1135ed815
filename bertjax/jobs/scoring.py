"""Scores of all ablations and what they are worth, from the outputs of a sweep."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from jaxtyping import Int, Num

from bertjax.engine import SweepResult
from bertjax.interventions import Ablation, head_names
from bertjax.progress import Progress, silent
from bertjax.results import Entry, Place
from bertjax.statistics import UNLABELLED, Evidence, Metric, labelled, score, weigh

Labels: TypeAlias = Num[np.ndarray, " outputs"]


@dataclass(frozen=True)
class Judge:
    """A metric, with the labels by which it judges outputs.

    Args:
        metric: what is measured.
        labels: one for each output; those of outputs that it does not judge are missing.
    """

    metric: Metric
    labels: Labels


def judges_of(metrics: Sequence[Metric], labels: Labels, groups: Sequence[str] | None = None) -> list[Judge]:
    """All metrics on all outputs, and the first on each group of them that has two or more.

    Args:
        metrics: the main one first.
        labels: of the outputs.
        groups: of each output, where there are some.
    """
    judges = [Judge(metric, labels) for metric in metrics]
    main, names = metrics[0], np.array(groups or ())
    for group in dict.fromkeys(groups or ()):
        if (names == group).sum() > 1:
            own = replace(main, name=f"{main.name}:{group}", label=f"{main.label}, {group}")
            missing = UNLABELLED if main.targets == "classes" else np.nan
            judges.append(Judge(own, np.where(names == group, labels, missing)))
    return judges


def score_ablations(
    judges: Sequence[Judge], positive: int, result: SweepResult, ablations: Sequence[Ablation], places: Sequence[Place]
) -> tuple[list[Entry], dict[str, float]]:
    """Scores of all ablations by every metric, and of the base run.

    Args:
        judges: that of the main metric first.
        positive: the label that counts as yes.

    Returns: one entry for each ablation, scored by the main metric and all others; and the base's
        scores by metric, the main one first.
    """
    base, scores = {}, {}
    for judge in judges:
        name = judge.metric.name
        base[name] = float(score(judge.metric, result.base[None], judge.labels, positive)[0])
        scores[name] = score(judge.metric, result.outputs, judge.labels, positive)
    entries = [
        Entry(
            name=ablation.name,
            heads=head_names(ablation),
            layer=places[number][1],
            head=places[number][2],
            scores={name: float(values[number]) for name, values in scores.items()},
            base=base[judges[0].metric.name],
        )
        for number, ablation in enumerate(ablations)
    ]
    return entries, base


def weigh_outputs(
    judges: Sequence[Judge],
    positive: int,
    result: SweepResult,
    *,
    units: Int[np.ndarray, "..."] | None = None,
    seed: int = 0,
    resamples: int | None = None,
    progress: Progress = silent,
) -> dict[str, Evidence]:
    """What the outputs are worth as evidence, by each metric; nothing where fewer than two examples have a label."""
    evidence: dict[str, Evidence] = {}
    for number, judge in enumerate(judges):
        if labelled(judge.metric, judge.labels).sum() < 2:
            continue

        def report(done: float, total: float, before: int = number) -> None:
            progress(before + done / total, float(len(judges)))

        evidence[judge.metric.name] = weigh(
            judge.metric,
            result.base,
            result.outputs,
            judge.labels,
            positive,
            resamples=resamples,
            seed=seed,
            units=units,
            progress=report,
        )
    return evidence
