"""A job whose outputs are not a model's but made of them: numbers of each example that are weighed like any outputs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from bertjax.evidence import Metric, contributions
from bertjax.interventions import Ablation
from bertjax.study.job import Job
from bertjax.tasks import TaskResult


@dataclass(frozen=True)
class DerivedJob(Job):
    """A job whose outputs are numbers of a form of their own.

    Args:
        of_outputs: what judges them, the main one first.
    """

    of_outputs: tuple[Metric, ...] = ()

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Those of its outputs."""
        return self.of_outputs


def derive_job(
    job: Job, kept: Sequence[int], kind: str, metrics: Sequence[Metric], ablations: Sequence[Ablation] | None = None
) -> DerivedJob:
    """The job whose outputs are numbers of some of a job's examples.

    Args:
        kept: which examples have numbers, in ascending order.
        kind: the form of the outputs (`tasks.FORMS`).
        ablations: what the numbers are of; None for the job's own.
    """
    encoded = job.encoded
    derived = replace(
        encoded,
        kind=kind,
        examples=len(kept),
        asked=None,
        collect=None,
        labels=None if encoded.labels is None else np.zeros(len(kept)),  # of examples, not of words
        units=None,
        fixed={},
        members=[np.array(encoded.numbers_of(example), np.int64) for example in kept],
        shown=1 if encoded.asked is not None else encoded.shown,
    )
    examples = job.examples if len(kept) == len(job.examples) else job.examples.take(kept)
    own = job.ablations if ablations is None else ablations
    return DerivedJob(job.settings, job.model, job.directory, own, examples, derived, of_outputs=tuple(metrics))


def contributions_of(job: Job, result: TaskResult) -> tuple[Int[np.ndarray, " kept"], Float[np.ndarray, "runs kept"]]:
    """What each example contributes to a job's main score, of the base run and then of each ablation.

    Raises:
        DataError: the score is undefined without some example.
    """
    judge = job.judges[0]
    outputs = np.concatenate([result.base[None], result.outputs])
    return contributions(judge.metric, outputs, judge.labels, job.positive, units=job.units)


def describe_score(job: Job, contributed: Float[np.ndarray, "runs kept"]) -> dict[str, Any]:
    """Which score derived numbers are effects on, for a summary."""
    metric = job.judges[0].metric
    return {
        "metric": metric.name,
        "label": metric.label,
        "unit": metric.unit,
        "base": float(contributed[0].mean()),
    }
