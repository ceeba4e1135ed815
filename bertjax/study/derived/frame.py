"""What all jobs whose outputs are made of others have in common: a directory, journals, a procedure, a conclusion."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from bertjax.progress import Progress, shown
from bertjax.results import Results
from bertjax.study.conclusion import conclude
from bertjax.study.job import Job, load_job
from bertjax.study.naming import check_output, discard_journals
from bertjax.study.provenance import Analysis, find_finished
from bertjax.study.settings import Settings
from bertjax.tasks import TaskResult


@dataclass(frozen=True)
class Outcome:
    """What a procedure found, ready to be weighed.

    Args:
        job: what the outputs are of.
        result: the outputs.
        means: the heads' mean outputs, where mode 'mean' occurs.
        more: what else the summary says.
    """

    job: Job
    result: TaskResult
    means: Float[np.ndarray, "layers heads head_dim"] | None
    more: Mapping[str, Any] = field(default_factory=dict)


def call(run: Callable[..., Results], settings: Settings, progress: Progress | bool, text: str) -> Results:
    """Run a job as a call does: with a bar if that is wished, and files where an output is named.

    Args:
        run: takes settings, `progress`, `weighing` and `keep`.
        progress: True shows a bar; or a function called with the work done and the total work.
        text: beside the bar.
    """
    with shown(progress, text) as report:
        weighing = partial(report, note="weighing")
        return run(settings, progress=report, weighing=weighing, keep=settings.output is not None)


def run_derived(
    settings: Settings,
    procedure: Callable[[Job], Outcome],
    analysis: Analysis,
    *,
    load: Callable[[Settings], Job] = load_job,
    say: Callable[[str], None],
    weighing: Progress,
    keep: bool,
) -> Results:
    """Load a job, run a procedure on it, weigh what it found, and write the directory.

    Args:
        settings: for this device, and checked.
        procedure: makes numbers of the job's examples.
        analysis: what the summary says of it.
        load: makes the job of the settings.
        say: called with a line at each step.
        weighing: called with how far the statistics are.
        keep: whether anything is written.

    Returns: the results; those that are in the directory where the same analysis has finished with these settings.

    Raises:
        OutputError: the directory cannot be written, or holds other results or files.
        BertjaxError: whatever is wrong with model, data or settings, and what the procedure raises.
    """
    started = time.time()
    if keep:
        finished = find_finished(settings, analysis, say, load)
        if finished is not None:
            return finished
        check_output(settings.directory, analysis.name, settings.overwrite, [*settings.inputs, *analysis.inputs])
    job = load(settings)
    described = analysis.describe(job)
    outcome = procedure(job)
    results = conclude(
        outcome.job,
        outcome.means,
        outcome.result,
        time.time() - started,
        say=say,
        weighing=weighing,
        keep=keep,
        more={**outcome.more, "analysis": described},
    )
    if keep:
        discard_journals(settings.directory)
    return results
