"""Contributions of examples to a score, which analyses of scores test like other outputs."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from bertjax.formatting import format_duration
from bertjax.interventions import Ablation
from bertjax.jobs.analysis import Means, Outcome
from bertjax.jobs.job import Job
from bertjax.jobs.options import Say
from bertjax.statistics import Metric, contributions, score
from bertjax.tasks import OutputSpec, TaskResult

LONG = 5.0  # seconds, above which an estimated time is printed
ROUNDING = 64 * float(np.finfo(np.float32).eps)  # relative rounding error of outputs


def outcome_of_examples(
    job: Job,
    form: OutputSpec,
    metrics: Sequence[Metric],
    outputs: Float[np.ndarray, "ablations examples numbers"],
    kept: Sequence[int],
    ablations: Sequence[Ablation],
    *,
    base: Float[np.ndarray, "examples numbers"] | None = None,
    means: Means = None,
    metadata: dict[str, Any],
) -> Outcome:
    """The outcome of an analysis with numbers of each example.

    Args:
        job: the model and the encoded examples.
        form: the specification of the numbers.
        metrics: the metrics, the main one first.
        outputs: the numbers of each example with each intervention, `[ablations, examples, numbers]`.
        kept: the indices of the examples that have numbers, in ascending order.
        ablations: the interventions, in the order of `outputs`.
        base: the numbers without interventions; by default 0, for effects.
        means: the heads' mean outputs, for mode 'mean'; None if no intervention used them.
        metadata: further entries of `summary.json`.
    """
    labels = job.examples.labels[np.asarray(kept, np.int64)]
    return Outcome(
        job=job,
        ablations=ablations,
        base=np.zeros(outputs.shape[1:]) if base is None else base,
        outputs=outputs,
        form=form,
        metrics=metrics,
        labels=labels if np.isfinite(labels).any() else np.zeros(len(kept)),  # of a task without labels
        kept=kept,
        means=means,
        metadata=metadata,
    )


def contributions_of(job: Job, result: TaskResult) -> tuple[Int[np.ndarray, " kept"], Float[np.ndarray, "runs kept"]]:
    """Each example's contribution to a job's main score, without ablation and then with each ablation.

    A correlation with constant outputs, as after the removal of all heads, is undefined and counts as 0.

    Args:
        job: the model and the encoded examples.
        result: the outputs of the task.

    Raises:
        DataError: the score is undefined without some example.
    """
    main, result = job.labelled_metrics[0], snap_constant_outputs(result)
    outputs = np.concatenate([result.base[None], result.outputs])
    scores = score(main.metric, outputs, main.labels, job.positive)
    defined = np.isfinite(scores)
    defined[0] = True  # an undefined score of the model without ablation is an error
    kept, some = contributions(main.metric, outputs[defined], main.labels, job.positive, units=job.units)
    shared = np.zeros((len(outputs), some.shape[1]))
    shared[defined] = some
    return kept, shared


def describe_score(job: Job, contributed: Float[np.ndarray, "runs kept"]) -> dict[str, Any]:
    """The entry of the summary about the score.

    Args:
        job: the model and the encoded examples.
        contributed: contributions to the score (`contributions_of`).
    """
    metric = job.labelled_metrics[0].metric
    return {
        "metric": metric.name,
        "label": metric.label,
        "unit": metric.unit,
        "base": float(contributed[0].mean()),
    }


def say_cost_of_contributions(job: Job, runs: int, say: Say) -> None:
    """Check that a score has contributions of examples, and report the estimated time if it is long.

    Args:
        job: the model and the encoded examples.
        runs: the number of runs.
        say: called with a line about the time.

    Raises:
        DataError: the score is undefined without some example, or for fewer than two examples.
    """
    main = job.labelled_metrics[0]
    if main.metric.reads == "outputs":
        return  # functions of sums: products of matrices, and defined wherever they are
    drawn = np.random.default_rng(0).normal(size=(1, *job.blank.shape))
    started = time.perf_counter()
    contributions(main.metric, drawn, main.labels, job.positive, units=job.units)
    seconds = runs * (time.perf_counter() - started)
    if seconds > LONG:
        say(f"contributions of examples to {main.metric.label}: at most {format_duration(seconds)} more")


def snap_constant_outputs(result: TaskResult) -> TaskResult:
    """Make the outputs of a run equal if they differ only by rounding, as after the removal of all heads.

    A correlation with such outputs would be a correlation with noise.

    Args:
        result: the outputs of the task.
    """
    base, outputs = result.base, np.array(result.outputs)
    spread = np.ptp(outputs.reshape(*outputs.shape[:2], -1), axis=1).max(axis=-1)
    scale = np.maximum(1.0, np.abs(outputs).reshape(len(outputs), -1).max(axis=1))
    for run in np.flatnonzero(spread <= ROUNDING * scale).tolist():
        outputs[run] = outputs[run, :1]
    return replace(result, base=base, outputs=outputs)
