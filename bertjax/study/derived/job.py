"""A job whose outputs are not a model's but made of them: numbers of each example that are weighed like any outputs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from bertjax.evidence import Metric, contributions, score
from bertjax.formatting import format_duration
from bertjax.interventions import Ablation
from bertjax.study.job import Job
from bertjax.tasks import DERIVED, SharedEncodings, TaskResult

LONG = 5.0  # seconds: what takes less is not worth a line
ROUNDING = 64 * float(np.finfo(np.float32).eps)  # of outputs of about 1


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
        kind: the form of the outputs (`tasks.DERIVED`).
        ablations: what the numbers are of; None for the job's own.
    """
    encoded, labels = job.encoded, job.examples.labels[np.asarray(kept, np.int64)]
    derived = SharedEncodings(
        DERIVED[kind],
        encoded.encodings,
        encoded.pad_id,
        len(kept),
        labels if np.isfinite(labels).any() else np.zeros(len(kept)),  # of a task whose examples have no labels
        [np.array(encoded.numbers_of(example), np.int64) for example in kept],
        max((len(encoded.kept_of(example)) for example in kept), default=1),
    )
    examples = job.examples if len(kept) == len(job.examples) else job.examples.take(kept)
    own = job.ablations if ablations is None else ablations
    return DerivedJob(job.settings, job.model, job.tokenizer, own, examples, derived, of_outputs=tuple(metrics))


def contributions_of(job: Job, result: TaskResult) -> tuple[Int[np.ndarray, " kept"], Float[np.ndarray, "runs kept"]]:
    """What each example contributes to a job's main score, of the base run and then of each ablation.

    A correlation with outputs that are all equal, as where no head is left, is undefined; it counts as 0 here.

    Raises:
        DataError: the score is undefined without some example.
    """
    judge, result = job.judges[0], level_out(result)
    outputs = np.concatenate([result.base[None], result.outputs])
    scores = score(judge.metric, outputs, judge.labels, job.positive)
    told = np.isfinite(scores)
    told[0] = True  # without a score of the model as it is there is nothing to share out
    kept, some = contributions(judge.metric, outputs[told], judge.labels, job.positive, units=job.units)
    shared = np.zeros((len(outputs), some.shape[1]))
    shared[told] = some
    return kept, shared


def describe_score(job: Job, contributed: Float[np.ndarray, "runs kept"]) -> dict[str, Any]:
    """Which score derived numbers are effects on, for a summary."""
    metric = job.judges[0].metric
    return {
        "metric": metric.name,
        "label": metric.label,
        "unit": metric.unit,
        "base": float(contributed[0].mean()),
    }


def say_what_sharing_costs(job: Job, runs: int, say: Callable[[str], None]) -> None:
    """See, before there are outputs, that a score can be shared out among examples; say how long that takes if long.

    Raises:
        DataError: the score is undefined without some example, or for fewer than two.
    """
    judge = job.judges[0]
    if judge.metric.reads == "outputs":
        return  # functions of sums: products of matrices, and defined wherever they are
    drawn = np.random.default_rng(0).normal(size=(1, *job.blank.shape))
    started = time.perf_counter()
    contributions(judge.metric, drawn, judge.labels, job.positive, units=job.units)
    seconds = runs * (time.perf_counter() - started)
    if seconds > LONG:
        say(f"what each example contributes to {judge.metric.label}: at most {format_duration(seconds)} more")


def level_out(result: TaskResult) -> TaskResult:
    """The outcome in which outputs that differ by rounding alone are equal: without any head, of all examples.

    A correlation with such outputs would be one with noise.
    """
    base, outputs = result.base, np.array(result.outputs)
    spread = np.ptp(outputs.reshape(*outputs.shape[:2], -1), axis=1).max(axis=-1)
    scale = np.maximum(1.0, np.abs(outputs).reshape(len(outputs), -1).max(axis=1))
    for run in np.flatnonzero(spread <= ROUNDING * scale).tolist():
        outputs[run] = outputs[run, :1]
    return replace(result, base=base, outputs=outputs)
