"""Ablation: replace the attention of sets of heads, and test the effects. `Study.ablate`, `bertjax ablate`.

A screen runs the ablations with the largest effects by gradients, and a random sample of the others, which bounds what
the gradients missed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float

from bertjax.analyses.gradients import head_gradients
from bertjax.checkpoints import BertConfig
from bertjax.console import PlainTable
from bertjax.engine import Estimate
from bertjax.errors import InputError
from bertjax.formatting import count_of, format_bytes, format_duration
from bertjax.interventions import (
    Ablation,
    ablation,
    all_but_one,
    cumulative,
    every_head,
    hash_sets,
    head_pairs,
    list_heads,
    one_of_layer,
    random_subsets,
    read_sets,
    whole_layers,
)
from bertjax.jobs import (
    Choices,
    Context,
    Heads,
    Job,
    Means,
    Mode,
    Outcome,
    PathLike,
    Positive,
    Say,
    Settings,
    Sweep,
    check_scorable,
    check_settings,
    estimate_runs,
    for_this_device,
    load_job,
    means_of,
    option,
    outcome_of_sweep,
    score_job,
)
from bertjax.paths import is_there, user_path
from bertjax.statistics import LEVEL, seconds_of_statistics
from bertjax.tasks import TaskResult

# Kinds of sets of heads: whether the option `heads` selects heads, and the noun for one set.
COLLECTIONS = {
    "heads": (True, "head"),
    "layers": (False, "layer"),
    "pairs": (True, "pair"),
    "all-but-one": (False, "set"),
    "one-of-layer": (False, "set"),
    "cumulative": (True, "set"),
    "subsets": (False, "subset"),
}
# A screen also runs random ablations: at least `FEWEST_AUDITED`, and one for every `AUDITED_SHARE` chosen ones.
FEWEST_AUDITED, AUDITED_SHARE = 10, 4


@dataclass(frozen=True, kw_only=True)
class Ablate(Sweep):
    """Ablate heads on a task, and test the effect of each.

    Ablate each head (or other sets of heads) of a model in turn, score the model on a task, and write the results. On
    two CPU cores the default takes about three minutes, and all 1,500 pairs of STS-B take six; `bertjax plan` with the
    same options estimates the time of another job.

    Args:
        mode: what replaces a head: 'uniform' attention, 'zero', or its 'mean' output.
        ablate: the sets of heads: heads, layers, pairs, all-but-one, one-of-layer, cumulative, subsets, or a file with
            one set in each line.
        heads: ablate only these heads, such as 3.0 or L3H0; 'cumulative' ablates them in this order.
        subset_size: the number of heads in each random subset, with 'subsets'; 2 by default.
        subset_count: the number of random subsets, with 'subsets'; 100 by default.
        screen: run only this number of ablations, the ones with the largest effects on the loss by gradients, and a
            random sample of the others, which bounds what was missed.
        engine: 'fast' shares work between ablations; 'reference' runs each ablation by `jax.vmap`.
        batch_size: the number of texts computed at a time, with engine 'reference'.
        chunk_size: the number of ablations computed at a time, with engine 'reference'.
        resume: resume an unfinished run, and print a line if there is none. A run resumes without this option, too.
    """

    name = "ablation"
    example = "bertjax ablate --model bert-base-uncased --task mrpc --data glue/MRPC --mode zero --output mrpc-zero"

    mode: Mode = "uniform"
    ablate: PathLike = option("heads", "WHAT")
    heads: Heads | None = option(None, "L.H")
    subset_size: Positive | None = option(None, "K")
    subset_count: Positive | None = option(None, "N")
    screen: Positive | None = option(None, "N")
    engine: Annotated[str, Choices(["fast", "reference"])] = "fast"
    batch_size: Positive | None = option(None, "N")
    chunk_size: Positive | None = option(None, "N")
    resume: bool = False

    @property
    def reference_engine(self) -> tuple[int | None, int | None] | None:
        """Batch size and chunk size of the reference engine; None for the fast engine."""
        return (self.batch_size, self.chunk_size) if self.engine == "reference" else None

    @property
    def float32(self) -> bool:
        """A screen's gradients are computed in float32."""
        return self.screen is not None

    @property
    def explicit(self) -> bool:
        """The reference engine computes explicit attention."""
        return self.engine == "reference"

    @property
    def inputs(self) -> list[str]:
        """The file of sets."""
        return [] if self.ablate in COLLECTIONS else [self.ablate]

    def settings(self) -> dict[str, Any]:
        """The options, and a hash of the file of sets."""
        if self.ablate in COLLECTIONS:
            return super().settings()
        return {**super().settings(), "sets_sha256": hash_sets(user_path(self.ablate, InputError))}

    def check(self, settings: Settings) -> None:
        """Raise `InputError` for options that contradict each other."""
        super().check(settings)
        _check_sets(self)
        _check_engine(self, settings)
        if self.screen is not None and self.shard:
            raise InputError(
                "--screen cannot be sharded: its gradients need all examples; leave out --screen or --shard"
            )

    def ablations(self, config: BertConfig, seed: int = 0) -> list[Ablation]:
        """The ablations of all sets of heads.

        Args:
            config: the config of the model.
            seed: seed of random subsets.

        Raises:
            OverrideError: a head that does not exist.
            InputError: the file of sets is invalid, or there is nothing to ablate.
        """
        mode, heads = self.mode, list_heads(self.heads, config)
        match self.ablate:
            case "heads":
                return [ablation(config, [head], mode) for head in heads]
            case "layers":
                return whole_layers(config, mode)
            case "pairs":
                return head_pairs(config, mode, heads=heads)
            case "all-but-one":
                return all_but_one(config, mode)
            case "one-of-layer":
                return one_of_layer(config, mode)
            case "cumulative":
                return cumulative(config, mode, order=heads)
            case "subsets":
                size, count = self.subset_size or 2, self.subset_count or 100
                return random_subsets(config, mode, size=size, count=count, seed=seed)
        return read_sets(user_path(self.ablate, InputError), config, mode)

    def prepare(self, context: Context) -> Job:
        """The job of all sets of heads."""
        job = replace(context.job, ablations=self.ablations(context.job.model.config, context.job.settings.seed))
        noun = COLLECTIONS.get(self.ablate, (False, "set"))[1]
        introduce(job, context, noun, "" if self.ablate in COLLECTIONS else self.ablate)
        return job

    def finish(self, context: Context, job: Job, result: TaskResult, means: Means) -> Outcome:
        """The outcome of the task's outputs."""
        return outcome_of_sweep(job, result, means)

    def run(self, context: Context) -> Outcome:
        """Run all ablations, or those that a screen chooses."""
        if self.screen is None:
            return super().run(context)
        every = self.ablations(context.job.model.config, context.job.settings.seed)
        job, audited = choose_by_gradients(replace(context.job, ablations=every), self.screen, context.say)
        left_out = len(every) - self.screen
        introduce(job, context, "run")
        result, means = context.sweep(job)
        return outcome_of_sweep(job, result, means, {"screen": describe_screen(job, result, audited, left_out)})

    def estimate(self, settings: Settings) -> Estimate:
        """Estimate the cost of the sweep; each kind of step is run a few times.

        Raises:
            BertjaxError: an error in model, data or options.
        """
        check_settings(settings)
        if self.shard:
            raise InputError("a plan covers the whole sweep, and each shard takes an equal part: leave --shard out")
        job = load_job(for_this_device(settings))
        check_scorable(job)  # as a run does: the modules that it imports take memory
        ablations = self.ablations(job.model.config, settings.seed)
        if self.screen is not None:  # the choice is not known yet
            check_screen(self.screen, len(ablations))
            run = self.screen + count_audited(self.screen)
            order = np.random.default_rng(settings.seed).permutation(len(ablations))[:run]
            ablations = [ablations[index] for index in np.sort(order)]
        return estimate_runs(job, ablations)


def _check_sets(options: Ablate) -> None:
    if options.ablate not in COLLECTIONS and not is_there(user_path(options.ablate, InputError), InputError):
        raise InputError(f"--ablate takes {', '.join(COLLECTIONS)} or a file of sets: found {options.ablate!r}")
    if options.heads and not COLLECTIONS.get(options.ablate, (False, ""))[0]:
        raise InputError(f"--heads names single heads: it cannot go with --ablate {options.ablate}")
    if options.ablate == "cumulative" and not options.heads:
        raise InputError("--ablate cumulative needs an order: give --heads, first to last")
    if options.ablate != "subsets" and (options.subset_size or options.subset_count):
        raise InputError(f"--subset-size and --subset-count are for --ablate subsets, not for {options.ablate}")


def _check_engine(options: Ablate, settings: Settings) -> None:
    budget = settings.memory_budget
    if options.engine == "fast":
        if options.batch_size or options.chunk_size:
            raise InputError("--batch-size and --chunk-size are for --engine reference: --memory makes steps smaller")
        return
    if options.screen is not None:
        raise InputError("a screen is run by the fast engine: leave --engine out")
    if budget is not None:
        raise InputError("--engine reference has no memory budget: give --batch-size and --chunk-size")
    if settings.attention not in ("auto", "explicit"):
        raise InputError("--engine reference computes explicit attention only: leave --attention out")
    if options.shard:
        raise InputError("--engine reference has no shards: leave --shard out")
    if options.resume:
        raise InputError("--engine reference keeps no journal: there is nothing to resume")


def introduce(job: Job, context: Context, noun: str, file: str = "") -> None:
    """Check that outputs can be scored, and report what will be run.

    Args:
        noun: the noun for one ablation.
        file: the path of the file of sets.
    """
    settings, examples, say = job.settings, job.examples, context.say
    how = f"mode {settings.analysis.mode}, attention {settings.attention}"
    runs = f"{count_of(len(job.ablations), noun)}{f' ({file})' if file else ''}"
    say(f"{job.model.class_name} {settings.model}: {runs}, {how}")
    counted = f"{count_of(len(examples), 'example')}, {count_of(int(job.encoded.lengths.sum()), 'token')}"
    counted += f", {job.encoded.counted}" if job.encoded.counted else ""
    say(f"{examples.task.name}: {counted} ({examples.source})")
    check_scorable(job)
    for metric in job.metrics:
        if metric.scorer is None and metric.sums is None:  # one call for each draw
            seconds = seconds_of_statistics(metric, job.blank, job.labels, len(job.ablations), job.positive)
            say(f"intervals and tests of {metric.name} call it once for each draw: about {format_duration(seconds)}")
    context.say_directory()


def choose_by_gradients(job: Job, count: int, say: Say) -> tuple[Job, list[str]]:
    """Choose the ablations with the largest effects by gradients, and a random sample of the others.

    Returns: the job of the chosen ablations, and the names of the random sample.
    """
    settings, every = job.settings, job.ablations
    check_screen(count, len(every))
    if job.encoded.objective is None:
        raise InputError(f"{job.examples.task.name} has no loss whose gradients could choose: leave --screen out")
    say(f"gradients of the {job.encoded.objective.definition} choose {count} of {len(every):,}")
    found = head_gradients(job.model, job.encoded, settings.analysis.mode, means=means_of(job))
    labelled = found.changes[:, ~np.isnan(found.losses)]
    if not labelled.shape[1]:
        raise InputError("no example has a label: there is no loss whose gradients could choose")
    sizes = predicted_sizes(every, labelled, every_head(job.model.config), settings.analysis.mode)
    chosen = np.sort(np.argsort(-sizes, kind="stable")[:count])
    others = np.setdiff1d(np.arange(len(every)), chosen)
    audited = np.sort(np.random.default_rng(settings.seed).permutation(others)[: count_audited(count)])
    ablations = [every[index] for index in (*chosen, *audited)]
    return replace(job, ablations=ablations), [every[index].name for index in audited]


def check_screen(chosen: int, ablations: int) -> None:
    """Raise `InputError` if a screen would leave nothing out."""
    run = chosen + count_audited(chosen)
    if run >= ablations:
        raise InputError(
            f"a screen of {chosen} runs {run} of {ablations} ablations, including its random sample: leave --screen out"
        )


def count_audited(chosen: int) -> int:
    """The size of a screen's random sample."""
    return max(FEWEST_AUDITED, chosen // AUDITED_SHARE)


def predicted_sizes(
    ablations: Sequence[Ablation],
    changes: Float[np.ndarray, "heads examples"],
    heads: Sequence[tuple[int, int]],
    mode: str,
) -> Float[np.ndarray, " ablations"]:
    """Predict the mean absolute change of an example's loss for each ablation.

    Args:
        changes: change of the loss when a head is replaced, to first order.
        heads: the head of each row of `changes`.
        mode: the mode of the gradients.

    Raises:
        InputError: an ablation has another mode.
    """
    sizes, row_of = np.empty(len(ablations)), {head: row for row, head in enumerate(heads)}
    for index, one in enumerate(ablations):
        if any(change.mode != mode for change in one.changes):
            raise InputError(f"ablation {one.name} is not in mode {mode}, whose gradients choose: give one mode")
        rows = [row_of[change.layer, change.head] for change in one.changes]
        sizes[index] = np.abs(changes[rows].sum(axis=0)).mean()
    return sizes


def describe_screen(job: Job, result: TaskResult, audited: Sequence[str], left_out: int) -> dict[str, Any]:
    """Describe what a screen may have missed, for the summary.

    Args:
        audited: the names of the random sample.
        left_out: the number of ablations that gradients did not choose.
    """
    entries, _ = score_job(job, result)
    effects = {entry.name: entry.effect for entry in entries}
    kind = "set" if any(entry.layer is None for entry in entries) else "layer" if entries[0].head is None else "head"
    chosen = len(job.ablations) - len(audited)
    largest = max(audited, key=lambda name: effects[name])
    delta = next(entry.delta for entry in entries if entry.name == largest)
    smaller = sum(effects[name] < effects[largest] for name in effects if name not in audited)
    bound = most_larger(left_out, len(audited))
    measure = job.metrics[0].measure
    text = (
        f"Gradients chose {chosen} of {count_of(chosen + left_out, kind)}. Of the {left_out:,} left out, "
        f"{len(audited)} drawn at random were run too: the largest effect among them is "
        f"{measure.with_unit(measure.change(delta))} ({largest}), more than that of {smaller} of those chosen; with "
        f"{100 * LEVEL:.0f} % confidence at most {bound:,} of those left out have a larger one."
    )
    more = {"chosen": chosen, "left_out": left_out, "audited": list(audited), "most_larger": bound}
    return {**more, "largest": largest, "sentence": text}


def most_larger(count: int, drawn: int) -> int:
    """Upper bound of how many values are larger than the largest one of a random sample.

    If more were larger, the sample would miss all of them with a probability below `1 - LEVEL`.

    Args:
        count: the number of values.
        drawn: the size of the sample, drawn without replacement.

    >>> most_larger(52, 10)
    12
    """
    missed = (1 - LEVEL) * comb(count, drawn)
    return next(most for most in range(count) if comb(count - most - 1, drawn) <= missed)


def plan_table(estimate: Estimate) -> PlainTable:
    """Table of the cost of a sweep.

    Args:
        estimate: the result of `bertjax.plan`.
    """
    cost, blocks = estimate.cost, estimate.blocks
    now, before = cost.necessary / 1e12, cost.plain / 1e12
    twice = f", {estimate.duplicates:,} of them twice" if estimate.duplicates else ""
    runs = f"{count_of(estimate.ablations, 'set')} of heads{twice}"
    stored, rows = cost.state_bytes * sum(cost.states), count_of(blocks.rows, "row")
    states = ", ".join(str(number) for number in cost.states)
    table = PlainTable(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in (
        ("ablations", runs),
        ("examples", f"{estimate.examples:,}, {count_of(estimate.tokens, 'token')}"),
        ("packed", f"{count_of(estimate.rows, 'row')} of {estimate.row_length}, {100 * estimate.filled:.1f} % filled"),
        ("hidden states", f"runs with their own after each layer: {states}"),
        ("", f"{format_bytes(cost.state_bytes)} a run and layer, {format_bytes(stored)} if all were kept"),
        ("work", f"{now:.3g} TFLOP; a full pass for each: {before:.3g}, {before / now:.1f} times that"),
        (
            "steps",
            f"{count_of(blocks.runs, 'run')} on {rows} at once; {cost.flops / 1e12:.3g} TFLOP with empty slots",
        ),
        ("outputs", format_bytes(estimate.output_bytes)),
        ("peak memory", f"{format_bytes(estimate.peak_bytes)} at most"),
        ("rate", f"{estimate.rate / 1e9:,.0f} GFLOP/s, measured on this device"),
        (
            "time",
            f"about {format_duration(estimate.seconds)}; a full pass for each: "
            f"{format_duration(estimate.separate_seconds)}; not counting loading, compilation and statistics",
        ),
    ):
        table.add_row(name, text)
    return table
