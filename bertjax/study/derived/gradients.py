"""Importance of heads by gradients: the same job as an ablation, whose outputs are predicted from one pass back.

Results are a directory like those of `ablate`: for each head and example the loss that gradients predict without the
head (`attribution.NUMBERS`), with intervals and tests, which `show`, `plot`, `report` and `compare` read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bertjax.attribution import Trust, compare_with_exact, gradient_metrics, head_gradients
from bertjax.errors import InputError
from bertjax.progress import Progress, silent
from bertjax.results import Results
from bertjax.study.derived.frame import Outcome, run_derived
from bertjax.study.derived.job import derive_job
from bertjax.study.job import Job
from bertjax.study.options import Mode, OutputOptions, Positive, option
from bertjax.study.outputs import means_of
from bertjax.study.provenance import Analysis, hash_of_weights
from bertjax.study.settings import Settings, check_settings, for_this_device, in_float32
from bertjax.tasks import TaskResult


@dataclass(frozen=True, kw_only=True)
class ImportanceOptions(OutputOptions):
    """Gradients.

    Args:
        mode: what replaces a head: 'zero' (Michel et al. 2019), 'uniform' attention, or its 'mean' output.
        steps: 1 for gradients of the model as it is; otherwise their mean at this number of points between the model
            and the model with all heads replaced.
    """

    mode: Mode = "zero"
    steps: Positive = option(1, "N")


def run_importance(
    settings: Settings,
    steps: int = 1,
    *,
    against: Results | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress = silent,
    weighing: Progress = silent,
    keep: bool = True,
) -> Results:
    """Take the gradients, weigh what they say, and write the directory.

    Args:
        settings: which model, task and examples; all heads, one by one.
        steps: as in `ImportanceOptions`.
        against: results of `ablate` that these gradients are going to be compared with.
        say: called with a line at each step.
        progress, weighing: called with the work done and the total work.
        keep: whether anything is written.

    Raises:
        InputError: they cannot be compared; found before anything is computed.
        OutputError: the directory cannot be written, or holds results already.
        BertjaxError: whatever is wrong with model, data or settings.
    """
    _check(settings)
    check_settings(settings)
    take = partial(_take, steps, against, say, progress)
    inputs = () if against is None or against.directory is None else (against.directory,)
    analysis = Analysis("importance", {"steps": steps}, inputs)
    return run_derived(for_this_device(in_float32(settings)), take, analysis, say=say, weighing=weighing, keep=keep)


def _take(steps: int, against: Results | None, say: Callable[[str], None], progress: Progress, job: Job) -> Outcome:
    """The gradients of a job's loss, of the examples that have one."""
    settings, objective = job.settings, job.encoded.objective
    if against is not None:
        _check_comparable(hash_of_weights(job), job.examples.task.name, against)
    if objective is None:
        raise InputError(f"{job.examples.task.name} has no loss whose gradients could be taken")
    say(f"{job.model.class_name} {settings.model}: gradients of the {objective.definition}, mode {settings.mode}")
    means = means_of(job)
    found = head_gradients(job.model, job.encoded, settings.mode, steps=steps, means=means, progress=progress)
    kept = np.flatnonzero(~np.isnan(found.losses)).tolist()
    if not kept:
        raise InputError("no example has a label: there is no loss whose gradients could be taken")
    result = TaskResult(found.base[kept], found.outputs[:, kept], tuple(job.ablations))
    more = {"gradients": {"loss": objective.definition, "unit": objective.unit, "steps": steps}}
    return Outcome(derive_job(job, kept, "gradients", gradient_metrics(objective.unit)), result, means, more)


def _check(settings: Settings) -> None:
    """Raise `InputError` for what gradients do not have."""
    if settings.ablate != "heads" or settings.heads:
        raise InputError("gradients are taken of every head by itself: leave out which to ablate")
    if settings.precision == "bfloat16" or settings.attention not in ("auto", "explicit") or settings.engine != "fast":
        raise InputError("gradients are computed in float32 with explicit attention")
    if settings.resume or settings.shard:
        raise InputError("gradients are quick: there is nothing to resume or to shard")
    if settings.metric is not None:
        raise InputError("gradients are those of the task's loss: leave out the metric")


def trust_in(gradients: Results, exact: Results, metric: str = "importance") -> Trust:
    """How well gradients order heads by the size of their exact effects.

    Args:
        gradients: of `importance`.
        exact: of `ablate`, on the same model, of all heads one by one.
        metric: 'importance', 'token_importance', or 'predicted_loss', whose changes are then taken by their size.

    Raises:
        InputError: the results are not of one model's heads.
    """
    summary = gradients.summary
    _check_comparable(summary["model"]["weights_sha256"], summary["data"]["task"], exact)
    estimates = {row.name: abs(row.difference or 0.0) for row in gradients.rows_of(metric)}
    effects = {row.name: row.difference for row in exact.rows_of()}
    names: Sequence[str] = [name for name in estimates if name in effects]
    sizes = np.array([np.nan if effects[name] is None else effects[name] for name in names], np.float64)
    return compare_with_exact(names, np.array([estimates[name] for name in names]), sizes)


def _check_comparable(weights_sha256: str, task: str, exact: Results) -> None:
    """Raise `InputError` where gradients cannot be compared with these ablations."""
    summary = exact.summary
    if exact.analysis != "ablation":
        raise InputError(
            f"{exact.source} measures {exact.quantity()}, not exact effects: give results of bertjax ablate "
            "--ablate heads"
        )
    if weights_sha256 != summary["model"]["weights_sha256"]:
        raise InputError("the gradients are of another model than the ablations: give results of one")
    if task != summary["data"]["task"]:
        raise InputError(f"the gradients are of task {task}, the ablations of {summary['data']['task']}: give one task")
    if sum(entry["head"] is not None for entry in summary["ablations"]) < 2:
        raise InputError(f"{exact.source} holds no single heads: give results of bertjax ablate --ablate heads")
