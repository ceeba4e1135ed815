"""The main job: ablate every head (or other sets of heads) of a model on a task, and write what came out.

`run_job` loads, checks and sweeps; `conclusion` makes a directory of the outputs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bertjax import arguments
from bertjax.engine import (
    Estimate,
    discard_journal,
    estimate,
    is_unfinished,
    merge_shards,
    sweep_shard,
)
from bertjax.errors import InputError, OutputError, some_of
from bertjax.evidence import seconds_to_weigh
from bertjax.formatting import count_of, format_duration
from bertjax.interventions import Ablation, to_overrides
from bertjax.paths import is_there
from bertjax.progress import Progress, silent
from bertjax.results import InMemory, Results, Shard, ShardResults, check_shard, write_shard
from bertjax.study.conclusion import conclude
from bertjax.study.job import Derive, Job, Prepare, as_it_is, check_scorable, load_job
from bertjax.study.naming import check_output, discard_journals
from bertjax.study.outputs import (
    input_of,
    means_of,
    sweep_examples,
    sweep_plainly,
)
from bertjax.study.provenance import Analysis, find_finished, provenance
from bertjax.study.screening import check_screen, count_audited, screen_of
from bertjax.study.settings import Settings, check_settings, for_this_device
from bertjax.tasks import TaskResult

# What one ablation of a collection is; of the others a set.
NOUNS = {"heads": "head", "layers": "layer", "pairs": "pair", "subsets": "subset"}
ON_TOP = "not counting compilation and statistics"  # of the time that `estimate_runs` says
# How the results of `bertjax ablate` describe their analysis.
ABLATION = Analysis("ablation")


def run_job(
    settings: Settings,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress = silent,
    weighing: Progress = silent,
    keep: bool = True,
    *,
    prepare: Prepare | None = None,
    analysis: Analysis = ABLATION,
    shards: Sequence[Shard] = (),
) -> Results:
    """Run the whole job and write its directory.

    Args:
        settings: what to do.
        prepare: says what to run in place of the settings' ablations, and what to make of the outputs.
        analysis: what the summary says of it.
        keep: whether anything is written.
        shards: take outputs from these, all shards of this job.
        say: called with a line at each step.
        progress: called with the work done and the total work of the sweep.
        weighing: called with the same for the statistics.

    Returns: the results as written; those that are in the directory where the same job has finished; of a shard its
        `directory` and `summary`, no rows.

    Raises:
        OutputError: the directory cannot be written, holds other results or files, or an unfinished sweep of other
            settings.
        SweepInterrupted: Ctrl-C; what is finished is kept, and the same call resumes.
        BertjaxError: whatever is wrong with model, data or settings; found before the sweep begins.
    """
    started = time.time()
    check_settings(settings)
    if settings.shard and not keep:
        raise InputError("a shard is merged from its directory: give output=")
    sources = settings.sources
    if settings.shard and (sources.model is not None or sources.tokenizer is not None or sources.data):
        raise InputError("shards are merged from files: save model, tokenizer and data, and name their paths")
    if settings.shard and is_there(settings.directory / "summary.json", OutputError):
        raise OutputError(f"{settings.directory} holds results: give the shard another --output")
    if keep:
        finished = None if settings.shard else find_finished(for_this_device(settings), analysis, say)
        if finished is not None:
            return finished
        _check_journal(settings)
        check_shard(settings.directory, settings.shard, settings.overwrite)
        check_output(settings.directory, analysis.name, settings.overwrite, settings.inputs)
    settings = for_this_device(settings)
    prepare = prepare or screen_of(settings)
    job = load_job(settings)
    described = analysis.describe(job)
    derive: Derive = as_it_is
    if prepare is not None:
        job, derive = prepare(job, say)
    introduce(job, say, "" if prepare is None else "run")
    check_scorable(job)
    _say_what_weighing_costs(job, say)
    if keep:
        say(f"results go to {settings.directory}")
    means = means_in(shards) if shards else means_of(job)
    if settings.shard_of:
        return run_shard(job, described, means, say, progress)
    journal = settings.journal if keep else None
    result = merged(job, described, means, shards) if shards else sweep_job(job, means, say, progress, journal)
    check_finite(job.ablations, result, journal)
    job, result, more = derive(job, result)
    more, seconds = {**more, "analysis": described}, time.time() - started
    results = conclude(job, means, result, seconds, say=say, weighing=weighing, keep=keep, more=more)
    if keep:
        discard_journals(settings.directory)
    return results


def run_shard(
    job: Job,
    described: Mapping[str, Any],
    means: Float[np.ndarray, "layers heads head_dim"] | None,
    say: Callable[[str], None],
    progress: Progress,
) -> Results:
    """Compute one shard of a job, and say in its directory which one it is.

    Args:
        described: the analysis, for `shard.json`.
    """
    settings, started = job.settings, time.time()
    assert settings.shard_of is not None
    number, count = settings.shard_of
    steps = sweep_shard(
        input_of(job, means),
        number,
        count,
        settings.journal,
        memory=settings.memory_budget,
        replace_journal=settings.overwrite,
        settings=settings.compared(),
        progress=progress,
        say=say,
    )
    summary = {
        "shard": settings.shard,
        "sentence": f"shard {number} of {count}: bertjax merge joins all of them",
        **provenance(job),
        "analysis": described,
        "settings": settings.compared(),
        "steps": steps,
        "means": None if means is None else means.tolist(),
        "own_metric": settings.metric is not None and not isinstance(settings.metric, str),
        "seconds": round(time.time() - started, 3),
    }
    write_shard(settings.directory, summary)
    return ShardResults(summary, [], InMemory({}, {}, [], settings.directory))


def merged(
    job: Job,
    described: Mapping[str, Any],
    means: Float[np.ndarray, "layers heads head_dim"] | None,
    shards: Sequence[Shard],
) -> TaskResult:
    """The outputs of a job from all of its shards.

    Args:
        described: the analysis.

    Raises:
        InputError: the examples are others than those of the shards.
        OutputError: a shard is damaged, or of another sweep.
    """
    if described["examples_sha256"] != shards[0].content["analysis"]["examples_sha256"]:
        raise InputError(f"the examples in {job.examples.source} have changed since the shards were computed")
    journals = [shard.directory / job.settings.journal.name for shard in shards]
    return job.encoded.outputs_of(merge_shards(input_of(job, means), journals))


def means_in(shards: Sequence[Shard]) -> Float[np.ndarray, "layers heads head_dim"] | None:
    """The heads' mean outputs that the shards were computed with."""
    means = shards[0].content["means"]
    return None if means is None else np.asarray(arguments.array(means, "means"))


def introduce(job: Job, say: Callable[[str], None], noun: str = "") -> None:
    """Say what is going to be done.

    Args:
        noun: what one ablation is, where the settings do not say it.
    """
    settings, examples = job.settings, job.examples
    how = f"mode {settings.mode}, attention {settings.attention}"
    what = count_of(len(job.ablations), noun or NOUNS.get(settings.ablate, "set"))
    called = "" if noun or settings.ablate in NOUNS else f" ({settings.ablate})"
    say(f"{job.model.class_name} {settings.model}: {what}{called}, {how}")
    counted = f"{count_of(len(examples), 'example')}, {count_of(int(job.encoded.lengths.sum()), 'token')}"
    if job.encoded.counted:
        counted += f", {job.encoded.counted}"
    say(f"{examples.task.name}: {counted} ({examples.source})")


def _say_what_weighing_costs(job: Job, say: Callable[[str], None]) -> None:
    """Say how long the statistics take of metrics that know no fast form."""
    slow = [metric for metric in job.metrics if metric.scorer is None and metric.sums is None]
    for metric in slow:
        seconds = seconds_to_weigh(metric, job.blank, job.labels, len(job.ablations), job.positive)
        say(f"intervals and tests of {metric.name} call it once for each draw: about {format_duration(seconds)}")


def estimate_job(settings: Settings) -> Estimate:
    """What `ablate` with these settings will cost; each kind of step is run a few times.

    Raises:
        BertjaxError: whatever is wrong with model, data or settings.
    """
    check_settings(settings)
    if settings.shard:
        raise InputError("a plan is of the whole sweep, of which each shard takes an equal part: leave --shard out")
    settings = for_this_device(settings)
    job = load_job(settings)
    check_scorable(job)  # as `run_job` does: the modules that it imports take memory
    ablations = job.ablations
    if settings.screen is not None:  # which ones gradients choose is not known yet
        check_screen(settings.screen, len(ablations))
        run = settings.screen + count_audited(settings.screen)
        order = np.random.default_rng(settings.seed).permutation(len(ablations))[:run]
        ablations = [ablations[place] for place in np.sort(order)]
    return estimate_runs(job, ablations)


def estimate_runs(job: Job, ablations: Sequence[Ablation]) -> Estimate:
    """What ablations of a job's model on its examples will cost."""
    form, settings = job.encoded.form, job.settings
    return estimate(
        job.model,
        job.encoded.texts,
        ablations,
        form.readout,
        combine=form.combine,
        at=job.encoded.at,
        targets=job.encoded.targets,
        memory=settings.memory_budget,
        attention=settings.attention,
    )


def _check_journal(settings: Settings) -> None:
    if is_unfinished(settings.journal) and settings.engine == "plain" and not settings.overwrite:
        raise OutputError(
            f"{settings.directory} holds an unfinished sweep, which --engine plain cannot resume: give another "
            "--output, or --overwrite to discard it"
        )


def check_finite(ablations: Sequence[Ablation], result: TaskResult, journal: Path | None) -> None:
    """Raise `InputError` where an ablation has outputs that nothing can be made of; no journal brings them back."""
    runs = zip(ablations, result.outputs, strict=True)
    broken = [ablation.name for ablation, outputs in runs if not np.isfinite(outputs).all()]
    if broken:
        if journal is not None:
            discard_journal(journal)
        hint = "look for NaN or infinity in the weights"
        raise InputError(f"outputs are not finite where {some_of(broken)} is ablated: {hint}")


def sweep_job(
    job: Job,
    means: Float[np.ndarray, "layers heads head_dim"] | None,
    say: Callable[[str], None],
    progress: Progress,
    journal: Path | None,
) -> TaskResult:
    """Run a job's ablations on its examples.

    Args:
        means: the heads' mean outputs, where mode 'mean' occurs.
        say, progress: as in `run_job`.
        journal: where finished parts are kept; None for nowhere.
    """
    settings, model = job.settings, job.model
    if settings.engine == "fast":
        return sweep_examples(
            model,
            job.encoded,
            job.ablations,
            means=means,
            memory=settings.memory_budget,
            attention=settings.attention,
            journal=journal,
            replace_journal=settings.overwrite,
            settings=settings.compared(),
            say=say,
            progress=progress,
        )
    return sweep_plainly(
        model,
        job.encoded,
        [to_overrides(model.config, ablation, means) for ablation in job.ablations],
        batch_size=settings.texts_at_once,
        chunk_size=settings.chunk_size,
        progress=progress,
    )
