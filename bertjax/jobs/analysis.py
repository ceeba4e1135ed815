"""The protocol of analyses: a frozen dataclass whose fields are the options, with a method `run`.

An analysis is one file in `bertjax.analyses`. `run_analysis` loads model and examples, calls `run`, and writes results.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int, Num
from rich.console import RenderableType

from bertjax import arguments
from bertjax.engine import discard_journal, merge_shards
from bertjax.errors import InputError, some_of
from bertjax.formatting import format_duration
from bertjax.interventions import Ablation, to_overrides
from bertjax.jobs.job import Job, load_job
from bertjax.jobs.options import Say, option
from bertjax.jobs.outputs import estimate_runs, input_of, means_of, sweep_examples, sweep_plainly
from bertjax.jobs.settings import AnalysisOptions, Settings
from bertjax.machine import AUTO, find_shard, parse_shard
from bertjax.progress import Progress
from bertjax.results import Results, Shard, show_table
from bertjax.statistics import Metric
from bertjax.tasks import OutputSpec, TaskResult

SHOWN_EFFECTS = 20
NOT_COUNTED = "not counting compilation and statistics"  # of an estimate of time
# The heads' mean outputs, which mode 'mean' inserts; None if no ablation needs them.
Means = Float[np.ndarray, "layers heads head_dim"] | None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The measurements of an analysis, for statistics and results.

    Args:
        job: model, examples and settings.
        ablations: the ablation of each row of outputs.
        base: outputs without interventions, or another reference.
        outputs: outputs of each ablation.
        form: the specification of the outputs.
        metrics: the metrics of the outputs, the main one first.
        labels: the label of each output.
        kept: the indices of the examples in the job, in ascending order; None for all.
        units: the example of each output, if examples have several outputs.
        means: the heads' mean outputs, for mode 'mean'.
        details: further arrays to save with the outputs.
        metadata: further keys of the summary.
    """

    job: Job
    ablations: Sequence[Ablation]
    base: Num[np.ndarray, "outputs ..."]
    outputs: Num[np.ndarray, "ablations outputs ..."]
    form: OutputSpec
    metrics: Sequence[Metric]
    labels: Num[np.ndarray, " outputs"]
    kept: Sequence[int] | None = None
    units: Int[np.ndarray, " outputs"] | None = None
    means: Means = None
    details: Mapping[str, np.ndarray] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


def outcome_of_sweep(
    job: Job, result: TaskResult, means: Means, metadata: Mapping[str, Any] = MappingProxyType({})
) -> Outcome:
    """The outcome of a task's outputs with the task's metrics.

    Args:
        job: the model and the encoded examples.
        result: the outputs of the task.
        means: the heads' mean outputs; None if no ablation used them.
        metadata: further entries of `summary.json`.
    """
    return Outcome(
        job=job,
        ablations=job.ablations,
        base=result.base,
        outputs=result.outputs,
        form=job.encoded.form,
        metrics=job.metrics,
        labels=job.labels,
        units=job.units,
        means=means,
        details=result.details,
        metadata=metadata,
    )


@dataclass(frozen=True)
class Context:
    """The context in which an analysis runs.

    Args:
        job: model and examples, without ablations.
        say: called with a line at each step.
        progress: called with the work done and the total work.
        keep: whether results and journals are written.
        shards: all shards of the job, whose outputs replace those of a sweep.
    """

    job: Job
    say: Say
    progress: Progress
    keep: bool
    shards: Sequence[Shard] = ()
    _journals: list[str] = field(default_factory=list)

    def journal(self, name: str) -> Path | None:
        """The directory of a journal; None if nothing is written.

        Args:
            name: the name of the journal in the output directory.
        """
        return self.job.settings.directory / name if self.keep else None

    def sweep(
        self, job: Job, journal: str | None = None, progress: Progress | None = None, means: Means = None
    ) -> tuple[TaskResult, Means]:
        """Run a job's ablations on its examples.

        Args:
            job: the model and the encoded examples.
            journal: the name of the journal; by default 'journal', then 'journal-1' and so on.
            progress: overrides the progress of the context.
            means: the heads' mean outputs; None computes them if an ablation needs them.

        Returns: the outputs, and the heads' mean outputs if mode 'mean' occurs.

        Raises:
            InputError: outputs are not finite.
            SweepInterrupted: Ctrl-C; finished parts are kept in the journal.
        """
        _check_mode(job)
        if journal is None:
            journal = f"journal-{len(self._journals)}" if self._journals else "journal"
            self._journals.append(journal)
        if self.shards:
            result, means = self._merge(job)
        else:
            means = means_of(job) if means is None else means
            result = sweep_job(job, means, self.say, progress or self.progress, self.journal(journal))
        check_finite(job.ablations, result, self.journal(journal))
        return result, means

    def _merge(self, job: Job) -> tuple[TaskResult, Means]:
        """Merge the outputs of all shards of a job.

        Raises:
            OutputError: a shard is damaged, or belongs to another sweep.
        """
        recorded = self.shards[0].content["means"]
        means = None if recorded is None else np.asarray(arguments.as_array(recorded, "means"))
        journals = [shard.directory / "journal" for shard in self.shards]
        return job.encoded.outputs_of(merge_shards(input_of(job, means), journals)), means

    def say_cost(self, job: Job) -> None:
        """Report the estimated time of a job's ablations.

        Args:
            job: the model and the encoded examples, with the ablations.
        """
        seconds = estimate_runs(job, job.ablations).seconds
        self.say(f"{len(job.ablations):,} runs on this device: about {format_duration(seconds)}; {NOT_COUNTED}")

    def say_directory(self) -> None:
        """Report the directory of the results, if they are written."""
        if self.keep:
            self.say(f"results go to {self.job.settings.directory}")


def sweep_job(job: Job, means: Means, say: Say, progress: Progress, journal: Path | None) -> TaskResult:
    """Run a job's ablations on its examples.

    Args:
        means: the heads' mean outputs, for mode 'mean'.
        journal: the directory that keeps finished parts; None keeps nothing.
    """
    settings, model = job.settings, job.model
    if settings.analysis.reference_engine is None:
        options = {**settings.sweep_options(journal), "source_model": job.source_model}
        return sweep_examples(model, job.encoded, job.ablations, means=means, say=say, progress=progress, **options)
    batch_size, chunk_size = settings.analysis.reference_engine
    return sweep_plainly(
        model,
        job.encoded,
        [to_overrides(model.config, ablation, means) for ablation in job.ablations],
        batch_size=batch_size or settings.texts_at_once,
        chunk_size=chunk_size,
        progress=progress,
    )


def _check_mode(job: Job) -> None:
    """Raise `InputError` if an analysis does not declare the mode of its ablations for the summary."""
    analysis = job.settings.analysis
    if type(analysis).mode is not AnalysisOptions.mode:
        return
    modes = {change.mode for ablation in job.ablations for change in ablation.changes} - {analysis.mode}
    if modes:
        raise InputError(f"ablations are in mode {min(modes)}: give {type(analysis).__name__} a field `mode`")


def check_finite(ablations: Sequence[Ablation], result: TaskResult, journal: Path | None) -> None:
    """Raise `InputError` if outputs of an ablation are not finite, and discard the journal.

    Args:
        ablations: the ablations of the sweep.
        result: the outputs of the sweep.
        journal: the directory of the journal; None for no journal.
    """
    runs = zip(ablations, result.outputs, strict=True)
    broken = [ablation.name for ablation, outputs in runs if not np.isfinite(outputs).all()]
    if broken:
        if journal is not None:
            discard_journal(journal)
        hint = "look for NaN or infinity in the weights"
        raise InputError(f"outputs are not finite where {some_of(broken)} is ablated: {hint}")


class Analysis(AnalysisOptions, ABC):
    """An analysis of the heads of a model: its fields are its options.

    Attributes:
        progress_text: the text of the progress bar.
        example: a command line, for `--help`.
        outputs: the specification of the outputs; None for the outputs of the task.
    """

    progress_text: ClassVar[str] = "ablating"
    example: ClassVar[str] = ""
    outputs: ClassVar[OutputSpec | None] = None

    def load(self, settings: Settings, say: Say) -> Job:
        """Load model and examples.

        Args:
            settings: the options of the study.
            say: called with a line about examples that are left out.
        """
        return load_job(settings)

    @abstractmethod
    def run(self, context: Context) -> Outcome:
        """Compute the outputs of all ablations.

        Args:
            context: the settings, the journals and the output of the run.
        """

    def show(self, results: Results) -> Sequence[RenderableType]:
        """Tables and lines to print.

        Args:
            results: the results of this analysis.
        """
        return [show_table(results, top=SHOWN_EFFECTS)]


@dataclass(frozen=True, kw_only=True)
class ScoredAnalysis(Analysis):
    """An analysis of effects on a score.

    Args:
        metric: the main metric: a name in `bertjax.METRICS`, or module:function; by default that of the task. In Python
            also a `Metric`, or a function of labels and outputs that returns a number.
    """

    metric: Any = option(None, "M")


@dataclass(frozen=True, kw_only=True)
class Sweep(ScoredAnalysis):
    """An analysis that runs its ablations as one sweep, which can be split into shards.

    Args:
        shard: compute only shard K of N, such as '3/16', for `bertjax merge`; auto takes K and N from Slurm, Open MPI,
            Kubernetes or a TPU pod.
    """

    shard: str | None = option(None, "K/N")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shard == AUTO:
            object.__setattr__(self, "shard", "/".join(map(str, find_shard())))
            if self.output is not None:
                ending = "-shard-{}-of-{}".format(*parse_shard(str(self.shard)))
                path = Path(self.output)
                ended = path.with_name(path.name + ending) if path.name else path / ending.removeprefix("-")
                object.__setattr__(self, "output", str(ended))
        elif self.shard is not None:
            parse_shard(self.shard)

    @abstractmethod
    def prepare(self, context: Context) -> Job:
        """The job with the ablations to run.

        Args:
            context: the settings, the journals and the output of the run.
        """

    @abstractmethod
    def finish(self, context: Context, job: Job, result: TaskResult, means: Means) -> Outcome:
        """The outcome of the outputs of the job that `prepare` returns.

        Args:
            context: the settings, the journals and the output of the run.
            job: the job that `prepare` returned.
            result: the outputs of the task.
            means: the heads' mean outputs; None if no ablation needs them.
        """

    def run(self, context: Context) -> Outcome:
        """Run all ablations as one sweep."""
        job = self.prepare(context)
        return self.finish(context, job, *context.sweep(job))

    def check(self, settings: Settings) -> None:
        """Raise `InputError` for shards of data in memory, which `merge` cannot read.

        Args:
            settings: the options of the study.
        """
        super().check(settings)
        if self.shard and not type(self).__module__.startswith("bertjax."):
            raise InputError(
                f"{self.name} has no shards: bertjax merge joins those of ablate, interactions and restore"
            )
        sources = settings.sources
        if self.shard and (sources.model is not None or sources.tokenizer is not None or sources.data):
            raise InputError("shards are merged from files: save model, tokenizer and data, and name their paths")
