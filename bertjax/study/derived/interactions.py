"""Interactions of heads, pair by pair: `bertjax interactions`.

The sweep is that of all pairs and of each head by itself, which the pairs' runs pass through anyway. What is weighed is
what each example contributes to an interaction, so that intervals, tests and corrections over all pairs are those of
any other result.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from bertjax.attribution import interaction_metrics, pair_interactions, with_singles
from bertjax.checkpoints import DEFAULT_MODEL
from bertjax.errors import InputError
from bertjax.formatting import count_of, format_duration
from bertjax.progress import Progress, silent
from bertjax.results import Results, Shard
from bertjax.study.derived.frame import call
from bertjax.study.derived.job import (
    JobOptions,
    contributions_of,
    derive_job,
    describe_score,
    say_what_sharing_costs,
    settings_of_options,
)
from bertjax.study.job import Derive, Job
from bertjax.study.provenance import Analysis
from bertjax.study.run import ON_TOP, estimate_runs, run_job
from bertjax.study.settings import Settings
from bertjax.tasks import TaskResult

ANALYSIS = Analysis("interactions")


def head_interactions(
    model: str | Path = DEFAULT_MODEL,
    task: str = "qnli-sample",
    *,
    progress: Progress | bool = True,
    **options: Unpack[JobOptions],
) -> Results:
    """Which heads matter together: for each pair the effect of both less the sum of each one's.

    `bertjax interactions` as a call.

    Args:
        model, task: as in `ablate`.
        progress: as in `ablate`.
        options: `mode`, `heads`, `metric`, `output` and what else `ablate` takes of examples and computation.

    Returns: results of a set for each pair, whose metrics are 'interaction', 'effect_of_both' and 'sum_of_effects'.

    Raises:
        BertjaxError: as `ablate` does; or the score is undefined without some example (`evidence.contributions`).

    >>> bertjax.head_interactions(limit=40, heads=["4.2", "5.5"]).names  # doctest: +SKIP
    ['4.2+5.5']
    """
    settings = settings_of_options(options, model=model, task=task, ablate="pairs")
    return call(run_interactions, settings, progress, "ablating")


def run_interactions(
    settings: Settings,
    *,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress = silent,
    weighing: Progress = silent,
    keep: bool = True,
    shards: Sequence[Shard] = (),
) -> Results:
    """Run the sweep of pairs, and weigh their interactions.

    Args:
        settings: which model, task and examples; `ablate` is 'pairs'.
        say, progress, weighing, keep, shards: as in `run_job`.

    Raises:
        BertjaxError: as `run_job` does.
    """
    settings, prepare = replace(settings, ablate="pairs"), partial(_prepare, not shards)
    return run_job(settings, say, progress, weighing, keep, prepare=prepare, analysis=ANALYSIS, shards=shards)


def _prepare(runs: bool, job: Job, say: Callable[[str], None]) -> tuple[Job, Derive]:
    """The job of all pairs and their heads, and what makes interactions of its outcome.

    Args:
        runs: whether they will run, so that their cost is printed.
    """
    if job.settings.screen is not None:
        raise InputError("interactions are of all pairs of the heads that are named: leave out screen")
    job = replace(job, ablations=with_singles(job.ablations))
    say_what_sharing_costs(job, 1 + len(job.ablations), say)
    if runs:
        seconds = estimate_runs(job, job.ablations).seconds
        say(f"{count_of(len(job.ablations), 'run')} on this device: about {format_duration(seconds)}; {ON_TOP}")
    return job, _derive


def _derive(job: Job, result: TaskResult) -> tuple[Job, TaskResult, Mapping[str, Any]]:
    """The job whose outputs are interactions."""
    kept, contributed = contributions_of(job, result)
    metric = job.judges[0].metric
    outputs = pair_interactions(job.ablations, contributed)
    pairs = [one for one in job.ablations if len(one.changes) == 2]
    derived = derive_job(job, kept.tolist(), "interactions", interaction_metrics(metric), pairs)
    more = {"derived": describe_score(job, contributed)}
    return derived, TaskResult(np.zeros(outputs.shape[1:]), outputs, tuple(pairs)), more
