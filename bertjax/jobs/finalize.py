"""From an outcome to results: scores, statistics, attention of the largest effects, and the directory."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

from bertjax.engine import SweepResult
from bertjax.errors import BertjaxError, some_of
from bertjax.formatting import count_of, finite
from bertjax.interventions import Ablation, find_mode, name_layer_head, to_overrides
from bertjax.jobs.analysis import Means, Outcome
from bertjax.jobs.job import Job, load_model, score_job
from bertjax.jobs.options import Say
from bertjax.jobs.outputs import best_guesses, sampled_attention, sweep_examples
from bertjax.jobs.provenance import provenance
from bertjax.jobs.scoring import label_metrics, score_ablations, statistics_of_outputs
from bertjax.progress import Progress, silent
from bertjax.results import (
    InMemory,
    Results,
    describe_examples,
    make_results,
    output_arrays,
    write_outputs,
    write_results,
)
from bertjax.statistics import predictions_from_logits
from bertjax.tasks import EncodedDataset, Form, OutputSpec, TaskResult, positive_label

SAMPLED_EXAMPLES, SAMPLED_ABLATIONS = 8, 5
ATTENTION_BYTES = 2 << 30  # the maximum size of saved attention weights


class NoEffectWarning(UserWarning):
    """An ablation changed no output of any example."""


def finalize(
    outcome: Outcome,
    seconds: float,
    *,
    analysis: Mapping[str, Any],
    say: Say,
    statistics_progress: Progress = silent,
    keep: bool = True,
) -> Results:
    """Compute scores and statistics of all ablations, and write the directory of results.

    Args:
        seconds: the time that the outputs took.
        analysis: name, options and hashes, for the summary.
        say: called with a line at each step.
        statistics_progress: called with the work done and the total work of the statistics.
        keep: whether results are written.

    Raises:
        OutputError: a file cannot be written.
    """
    job, ablations = outcome.job, outcome.ablations
    settings, kept = job.settings, outcome.kept
    examples = job.examples if kept is None or len(kept) == len(job.examples) else job.examples.take(kept)
    places = [name_layer_head(ablation, job.model.config, settings.analysis.mode) for ablation in ablations]
    details = {**(job.encoded.arrays if isinstance(outcome.form, Form) else {}), **outcome.details}
    outputs = output_arrays(outcome.base, outcome.outputs, examples, places, outcome.labels, details)
    described = describe_examples(examples, outputs)
    if keep:
        write_outputs(settings.directory, outputs, described)
    result = TaskResult(outcome.base, outcome.outputs, tuple(ablations))
    metrics = label_metrics(outcome.metrics, outcome.labels, examples.groups if outcome.units is None else None)
    positive = positive_label(outcome.form, examples.task)
    entries, base = score_ablations(metrics, positive, result, ablations, places)
    say(f"computing statistics of {count_of(len(entries), 'effect')}")
    statistics = statistics_of_outputs(
        metrics, positive, result, units=outcome.units, seed=settings.seed, progress=statistics_progress
    )
    measure, mode = metrics[0].metric.measure, find_mode(settings.analysis.mode)
    ablates = not measure.compared_with and measure.by == "ablation"
    largest = sorted(range(len(entries)), key=lambda number: -entries[number].effect)[:SAMPLED_ABLATIONS]
    sampled = replace(job, ablations=[ablations[number] for number in largest])
    coarse = TaskResult(outcome.base, outcome.outputs[largest])
    summary = {
        **provenance(outcome, examples, metrics, positive),
        "settings": {**settings.describe(), "output": str(settings.directory) if keep else None},
        "mode": {"name": settings.analysis.mode, "definition": mode.definition, "title": mode.title},
        "seconds": round(seconds, 3),
        "without_effect": (
            [] if measure.of_effects or not ablates else _warn_if_silent(*outcome.form.sizes(result), ablations)
        ),
        "base": base,
        **outcome.metadata,
        "analysis": dict(analysis),
    }
    attention = _attention_of(outcome, coarse, sampled, ablates)
    comparable = isinstance(outcome.form, Form) and kept is None and settings.sources.model is None
    if settings.precision == "bfloat16" and comparable:
        summary |= _compare_precisions(sampled, outcome.means, coarse, say)
    results = make_results(summary, entries, statistics, InMemory(outputs, attention, described))
    return write_results(settings.directory, results) if keep else results


def _attention_of(
    outcome: Outcome, coarse: TaskResult, sampled: Job, ablates: bool
) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Attention of some examples, for the base and for the ablations of the largest effects.

    Args:
        coarse: outputs of these ablations.
        sampled: the job of these ablations.
        ablates: whether to include the ablations.
    """
    encoded, config, kept = outcome.job.encoded, outcome.job.model.config, outcome.kept
    weights = (1 + len(sampled.ablations)) * config.num_hidden_layers * config.num_attention_heads
    chosen = choose_examples(outcome.form, coarse, outcome.units)
    shown = within_budget(chosen if kept is None else [kept[number] for number in chosen], encoded, 4 * weights)
    numbers = shown if kept is None else np.searchsorted(kept, shown).tolist()
    # Activations of other texts cannot be shown for one text.
    if not ablates or any(change.replacement == "source" for one in sampled.ablations for change in one.changes):
        sampled = replace(sampled, ablations=[])
    runs = [Ablation("base", ()), *sampled.ablations]
    overrides = [to_overrides(config, ablation, outcome.means) for ablation in runs]
    arrays: dict[str, np.ndarray] = {
        "examples": np.array(numbers),
        "runs": np.array([ablation.name for ablation in runs]),
        **sampled_attention(sampled.model, encoded, shown, overrides),
    }
    at = encoded.best_guesses
    if at is not None and sampled.ablations and isinstance(outcome.form, Form):
        words = best_guesses(
            sampled.model, sampled.tokenizer, encoded, at, shown, sampled.ablations, means=outcome.means
        )
        arrays |= words
    return arrays


def _compare_precisions(job: Job, means: Means, coarse: TaskResult, say: Say) -> dict[str, Any]:
    """Compare outputs and main scores in bfloat16 with float32, for the base run and a job's ablations.

    Returns: a key of the summary; nothing if there is too little memory for a second model.
    """
    say("comparing the base run and the largest effects with float32")
    settings = replace(job.settings, precision="float32")
    limits: dict[str, Any] = {"memory": settings.memory_budget, "attention": settings.attention}
    means = None if means is None else means.astype(np.float32)
    try:
        exact = sweep_examples(load_model(settings), job.encoded, job.ablations, means=means, **limits)
        scored = [score_job(job, result) for result in (coarse, exact)]
    except BertjaxError as error:  # must not cost what was computed
        say(f"not compared with float32: {error}")
        return {}
    scores = [[next(iter(base.values())), *(entry.score for entry in entries)] for entries, base in scored]
    outputs = (job.encoded.form.sizes(result) for result in (coarse, exact))
    described = {
        "runs": ["base", *(ablation.name for ablation in job.ablations)],
        "scores": [finite(value) for value in scores[1]],
        "scores_in_bfloat16": [finite(value) for value in scores[0]],
        "largest_score_difference": finite(float(np.abs(np.array(scores[0]) - np.array(scores[1])).max())),
        "largest_output_difference": float(max(np.abs(one - other).max() for one, other in zip(*outputs, strict=True))),
    }
    return {"float32": described}


def _warn_if_silent(base: np.ndarray, outputs: np.ndarray, ablations: Sequence[Ablation]) -> list[str]:
    """Warn about ablations that changed no output by more than rounding, often a mistake, and return their names."""
    scale = 64 * float(np.finfo(np.float32).eps) * max(1.0, float(np.abs(base).max()))
    changes = np.abs(outputs - base[None]).reshape(len(ablations), -1).max(axis=1)
    pairs = zip(ablations, changes, strict=True)
    silent = [ablation.name for ablation, change in pairs if change <= scale and ablation.changes]
    if silent:
        warnings.warn(f"ablating {some_of(silent)} changed no output of any example", NoEffectWarning, stacklevel=4)
    return silent


def choose_examples(
    form: OutputSpec, swept: SweepResult, units: Int[np.ndarray, " outputs"] | None = None
) -> list[int]:
    """Choose examples whose attention is saved: half at equal intervals, half with the largest changes.

    Examples with another prediction come first; each ablation in turn chooses one.

    Args:
        form: the specification of the outputs.
        units: the example of each output in ascending order, if examples have several outputs or none.
    """
    base, outputs = form.sizes(swept)
    numbers = np.arange(len(base)) if units is None else np.unique(units)
    examples = len(numbers)
    if examples <= SAMPLED_EXAMPLES:
        return [int(number) for number in numbers]
    chosen = dict.fromkeys(np.linspace(0, examples - 1, SAMPLED_EXAMPLES // 2).round().astype(int).tolist())
    changes = np.abs(outputs - base).reshape(len(outputs), len(base), -1)
    sizes = np.nan_to_num(changes.max(-1))
    if units is not None:
        sizes = np.maximum.reduceat(sizes, np.searchsorted(units, numbers), axis=1)
    if form.predicts and base.shape[-1] > 1:
        flips = predictions_from_logits(outputs) != predictions_from_logits(base[None])
        sizes = sizes + flips * (1 + sizes.max())
    orders = np.argsort(-sizes, axis=1, kind="stable")
    for example in orders.T.ravel().tolist():
        if len(chosen) == SAMPLED_EXAMPLES:
            break
        chosen[example] = None
    return sorted(int(numbers[place]) for place in chosen)


def within_budget(chosen: Sequence[int], encoded: EncodedDataset, pair_bytes: int) -> list[int]:
    """Keep the shortest examples whose attention fits into `ATTENTION_BYTES`, at least one.

    Args:
        pair_bytes: the bytes of all weights between two tokens.
    """
    pairs = {example: sum(int(encoded.lengths[row]) ** 2 for row in encoded.kept_of(example)) for example in chosen}
    shortest = sorted(chosen, key=lambda example: pairs[example])
    ends = np.cumsum([pair_bytes * pairs[example] for example in shortest])
    return sorted(shortest[: max(1, int((ends <= ATTENTION_BYTES).sum()))])
