"""Interactions of heads, pair by pair: `bertjax interactions`.

The sweep is that of all pairs and of each head by itself, which the pairs' runs pass through anyway. What is weighed is
what each example contributes to an interaction, so that intervals, tests and corrections over all pairs are those of
any other result.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from bertjax.attribution import interaction_metrics, pair_interactions, with_singles
from bertjax.errors import InputError
from bertjax.formatting import count_of, format_duration
from bertjax.progress import Progress, silent
from bertjax.results import Results, Shard
from bertjax.study.derived.job import (
    contributions_of,
    derive_job,
    describe_score,
    say_what_sharing_costs,
)
from bertjax.study.job import Derive, Job
from bertjax.study.options import Heads, Mode, OutputOptions, option
from bertjax.study.provenance import Analysis
from bertjax.study.run import ON_TOP, estimate_runs, run_job
from bertjax.study.settings import Settings
from bertjax.tasks import TaskResult

ANALYSIS = Analysis("interactions")


@dataclass(frozen=True, kw_only=True)
class InteractionsOptions(OutputOptions):
    """Pairs of heads.

    Args:
        mode: what replaces a head: 'uniform' attention, 'zero', or its 'mean' output.
        heads: pairs of these heads only, such as 3.0 or L3H0.
        metric: the main metric, in place of the task's: a name in `bertjax.METRICS`, or module:function. In Python
            also a `Metric`, or a function of labels and outputs that returns a number.
        shard: compute only shard K of N, such as '3/16', for `bertjax merge`; auto: the one that Slurm, Open MPI,
            Kubernetes or a TPU pod names.
    """

    mode: Mode = "uniform"
    heads: Heads | None = option(None, "L.H")
    metric: Any = option(None, "M")
    shard: str | None = option(None, "K/N")


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
