"""Run an analysis from its settings to its results."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from bertjax.engine import is_unfinished, sweep_shard
from bertjax.errors import InputError, OutputError
from bertjax.jobs.analysis import Analysis, Context, Sweep
from bertjax.jobs.finalize import finalize
from bertjax.jobs.naming import check_output, discard_journals
from bertjax.jobs.options import Say
from bertjax.jobs.outputs import input_of, means_of
from bertjax.jobs.provenance import describe_analysis, describe_model, find_finished, hash_of_weights
from bertjax.jobs.settings import Settings, check_settings, for_this_device
from bertjax.paths import is_there
from bertjax.progress import Progress, silent
from bertjax.results import InMemory, Results, Shard, ShardResults, check_shard, write_shard


def run_analysis(
    settings: Settings,
    *,
    say: Say = lambda line: None,
    progress: Progress = silent,
    statistics_progress: Progress = silent,
    keep: bool = True,
    shards: Sequence[Shard] = (),
) -> Results:
    """Run an analysis and write its directory of results.

    Args:
        settings: model, examples and analysis.
        say: called with a line at each step.
        progress: called with the work done and the total work of the analysis.
        statistics_progress: called with the same for the statistics.
        keep: whether results are written.
        shards: all shards of the job, whose outputs replace those of the sweep.

    Returns: the results; existing results if the same job has finished; for a shard only `directory` and `summary`.

    Raises:
        OutputError: the directory cannot be written, or has other results, files, or an unfinished run with other
            settings.
        SweepInterrupted: Ctrl-C; finished parts are kept, and the same call resumes.
        BertjaxError: an error in model, data or settings, found before anything is computed.
    """
    started = time.time()
    check_settings(settings)
    analysis = cast(Analysis, settings.analysis)
    if keep:
        finished = _check_directory(settings, analysis, say)
        if finished is not None:
            return finished
    elif analysis.shard:
        raise InputError("a shard is merged from its directory: give output=")
    settings = for_this_device(settings)
    job = analysis.load(settings, say)
    described = describe_analysis(analysis, job)
    if shards and described["examples_sha256"] != shards[0].content["analysis"]["examples_sha256"]:
        raise InputError(f"the examples in {job.examples.source} have changed since the shards were computed")
    context = Context(job, say, progress, keep, shards)
    if isinstance(analysis, Sweep) and analysis.shard:
        return _run_shard(analysis, context, described)
    outcome = analysis.run(context)
    seconds = time.time() - started
    results = finalize(
        outcome, seconds, analysis=described, say=say, statistics_progress=statistics_progress, keep=keep
    )
    if keep:
        discard_journals(settings.directory)
    return results


def _check_directory(settings: Settings, analysis: Analysis, say: Say) -> Results | None:
    """The results of the same job; None if there are none and the directory can be written.

    Raises:
        OutputError: the directory cannot be written.
    """
    directory, overwrite = settings.directory, analysis.overwrite
    if analysis.shard and is_there(directory / "summary.json", OutputError):
        raise OutputError(f"{directory} already has results: give the shard another --output")
    finished = None if analysis.shard else find_finished(for_this_device(settings), analysis.load, say)
    if finished is not None:
        return finished
    if analysis.reference_engine is not None and not overwrite and is_unfinished(directory / "journal"):
        raise OutputError(
            f"{directory} already has an unfinished sweep, which --engine reference cannot resume: give "
            "another --output, or --overwrite to discard it"
        )
    if isinstance(analysis, Sweep):
        check_shard(directory, analysis.shard, overwrite)
    check_output(directory, analysis.journals, overwrite, settings.inputs)
    return None


def _run_shard(analysis: Sweep, context: Context, described: Mapping[str, Any]) -> Results:
    """Compute one shard of a sweep, and write its directory.

    Args:
        described: the description of the analysis, for `shard.json`.
    """
    started = time.time()
    job = analysis.prepare(context)
    settings, means = job.settings, means_of(job)
    assert settings.shard_of is not None
    number, count = settings.shard_of
    steps = sweep_shard(
        input_of(job, means),
        number,
        count,
        settings.directory / "journal",
        memory=settings.memory_budget,
        replace_journal=analysis.overwrite,
        settings=settings.compared(),
        progress=context.progress,
        say=context.say,
    )
    summary = {
        "shard": analysis.shard,
        "sentence": f"shard {number} of {count}: bertjax merge joins all of them",
        **describe_model(job.model, settings.model, hash_of_weights(job), job.directory),
        "analysis": described,
        "settings": settings.compared(),
        "steps": steps,
        "means": None if means is None else means.tolist(),
        "own_metric": analysis.metric is not None and not isinstance(analysis.metric, str),
        "seconds": round(time.time() - started, 3),
    }
    write_shard(settings.directory, summary)
    return ShardResults(summary, [], InMemory({}, {}, [], settings.directory))
