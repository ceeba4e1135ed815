"""Intervals, tests and effect sizes of all ablations of a sweep, from its saved outputs.

A difference is the ablated score minus the base score on the same examples, so all statistics are paired. Scores and
differences are as the metric defines them; 0.01 is one point. A gain is a change for the better.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Num, Shaped

from bertjax import arguments
from bertjax.errors import DataError
from bertjax.formatting import count_of
from bertjax.progress import Progress, shown
from bertjax.statistics import intervals
from bertjax.statistics.metrics import (
    Metric,
    find_metric,
    labelled,
    make_scorer,
    score,
)
from bertjax.statistics.outputs import as_numbers, predictions_from_logits
from bertjax.statistics.ranked import SWAPPABLE
from bertjax.statistics.resampling import Units, bootstrap_counts, score_draws
from bertjax.statistics.significance import (
    HALVES,
    Swapped,
    benjamini_hochberg,
    choose_on_half,
    count_draws,
    detectable,
    fewest_flips,
    holm,
    mcnemar,
    swap_test,
)

RESAMPLES = 10_000  # draws of the bootstrap, by default
MOST_DRAWS = 10_000_000  # far more than any interval needs: a larger number is a mistake that would run for days
Q = 0.05  # the false discovery rate of significant effects
PARTS = 2000  # parts of the examples that are left out one by one, for the acceleration of an interval
GROUP = 256  # ablations whose draws are in memory together
RANKED = 700_000  # outputs ranked together: 110 MB for 1,500 examples, 310 MB for 20,000 (144 runs, two threads)

Outputs = Float[np.ndarray, "every examples *labels"]  # the base first, then the runs
Labels = Num[np.ndarray, " examples"]
Runs = Float[np.ndarray, " runs"]
Counts = Int[np.ndarray, " runs"]


@dataclass(frozen=True)
class Statistics:
    """The statistics of all ablations for one metric.

    Args:
        metric: the metric of the scores.
        examples: number of examples, or units, with a label.
        by_flips: whether McNemar's exact test was used, which depends only on flips.
        base: score without ablation.
        score: score with each ablation.
        low: lower end of the interval of each difference, by `method`.
        high: upper end of the interval of each difference, by `method`.
        method: 't' with fewer than 200 examples (`intervals.of_few_units`), else 'bca', or 'percentile' if BCa is
            undefined; 'score' if fewer than 50 predictions flip.
        percentile: percentile interval of each difference, `[2, runs]`.
        bca: BCa interval of each difference, `[2, runs]`.
        p: two-sided, uncorrected p-value, by McNemar's exact test or by swaps. NaN if the metric is not `tested`, like
            all that depends on it.
        q: p corrected after Benjamini and Hochberg, over all ablations.
        holm: p corrected after Holm.
        best: probability that the largest gain of all ablations, over its spread, is as large by chance.
        best_raw: the same for the gains themselves, which ablations with a wide spread dominate.
        gains: number of predictions that become right; None for metrics of values.
        losses: number of predictions that become wrong; None for metrics of values.
        effect_size: as described by the metric's `effect_size.text`.
        detectable: the smallest difference that would have been found with 80 % power at the corrected level.
        resamples: number of draws of the bootstrap.
        draws: number of random swaps.
        exact: whether all possible swaps were tried.
        seed: seed of the bootstrap and the swaps.
        standard_error: standard error of each difference, by the bootstrap or by `metric.sums.errors`.
        halves: the result of choosing on one half and scoring on the other, see `significance.choose_on_half`.
    """

    metric: Metric
    examples: int
    by_flips: bool
    base: float
    score: Runs
    low: Runs
    high: Runs
    method: tuple[str, ...]
    percentile: Float[np.ndarray, "2 runs"]
    bca: Float[np.ndarray, "2 runs"]
    p: Runs
    q: Runs
    holm: Runs
    best: Runs
    best_raw: Runs
    gains: Int[np.ndarray, " runs"] | None
    losses: Int[np.ndarray, " runs"] | None
    effect_size: Runs
    detectable: Runs
    resamples: int
    draws: int
    exact: bool
    seed: int
    standard_error: Runs
    halves: dict[str, Any]

    @property
    def difference(self) -> Runs:
        """Each score minus the base score."""
        return self.score - self.base

    @property
    def least_best_p(self) -> float | None:
        """The smallest possible `best` with these random swaps; None if all possible swaps were tried."""
        return None if self.exact or not self.metric.tested else 1 / (1 + self.draws)

    @property
    def least_p(self) -> float | None:
        """The smallest possible `p` with these random swaps; None if it is exact."""
        return None if self.by_flips else self.least_best_p

    @property
    def fewest_together(self) -> int | None:
        """The smallest number of significant effects, since few examples have no small `p`; None if none can be."""
        tests, least = int(np.isfinite(self.p).sum()), 2.0 ** (1 - self.examples) + (self.least_p or 0.0)
        together = max(1, int(np.floor(tests * least / Q)) + 1)
        return together if together <= tests else None

    @property
    def significant(self) -> Bool[np.ndarray, " runs"]:
        """Mask of the significant effects, at the false discovery rate `Q`."""
        return np.nan_to_num(self.q, nan=1.0) < Q


def compute_statistics(
    metric: Metric | str,
    base: Float[np.ndarray, "examples *labels"] | Sequence[Any],
    outputs: Float[np.ndarray, "runs examples *labels"] | Sequence[Any],
    labels: Num[np.ndarray, " examples"] | Sequence[Any],
    positive: int = 1,
    *,
    resamples: int | None = None,
    draws: int | None = None,
    seed: int = 0,
    units: Int[np.ndarray, "..."] | Sequence[Any] | None = None,
    progress: Progress | bool = False,
) -> Statistics:
    """Compute the statistics of each ablation's effect on a metric.

    Args:
        metric: a name in `METRICS`, or a Metric of your own.
        base: outputs without ablation: logits, or one value for each example.
        outputs: the same for each ablation.
        labels: labels of the examples; those without a label are left out.
        positive: the positive class, for metrics that have one.
        resamples: draws of the bootstrap; by default `RESAMPLES`.
        draws: swaps of the permutation test; by default `significance.count_draws`.
        seed: seed of the bootstrap and the swaps.
        units: the unit of each example, if several belong together, such as the words of a sentence. The examples of a
            unit are not independent, so they are drawn and swapped together.
        progress: True shows a bar. A function is called with the work done and the total work, draw by draw.

    Raises:
        DataError: outputs and labels do not fit the metric, fewer than two examples (or units) have labels, units do
            not fit the labels, or there is no ablation.
    """
    metric = find_metric(metric)
    all_outputs, every_label = _all_outputs(base, outputs), as_numbers(labels, "labels")
    positive = arguments.check_int(positive, "positive", 0, DataError)
    seed = arguments.check_int(seed, "seed", 0, DataError)
    for name, number in (("resamples", resamples), ("draws", draws)):
        if number is not None and arguments.check_int(number, name, 1, DataError) > MOST_DRAWS:
            raise DataError(f"{name} must be at most {MOST_DRAWS:,}, found {number:,}")
    scores = score(metric, all_outputs, every_label, positive)
    is_labelled = labelled(metric, every_label)
    all_outputs, known = all_outputs[:, is_labelled], every_label[is_labelled]
    units = _number_units(units, is_labelled)
    examples = len(known) if units is None else int(units.max()) + 1
    if examples < 2:
        raise DataError(f"{count_of(examples, 'example')} has a label: intervals and tests need at least two")
    resamples = resamples or RESAMPLES
    task = _Task(
        metric=metric,
        base=all_outputs[0],
        scores=scores,
        labels=known,
        units=units,
        examples=examples,
        positive=positive,
        resamples=resamples,
        seed=seed,
    )
    swaps = draws or count_draws(metric, len(outputs), examples)
    with shown(progress, "computing statistics") as report:
        return _compute(task, all_outputs, swaps, report)


def _all_outputs(base: Any, outputs: Any) -> Outputs:
    """The outputs of the base, then those of the runs. Raises `DataError` if they do not fit each other."""
    base, outputs = as_numbers(base, "base"), as_numbers(outputs, "outputs")
    if not outputs.size:
        raise DataError("there is no ablation: outputs are empty")
    if outputs.shape[1:] != base.shape:
        raise DataError(
            f"outputs have shape {list(outputs.shape)}, but base {list(base.shape)}: they must be [ablations, "
            "examples, ...] and [examples, ...]"
        )
    return np.concatenate([base[None], outputs])


def _number_units(units: Any, is_labelled: Bool[np.ndarray, " examples"]) -> Units | None:
    """The units of labelled examples as 0, 1, 2 ...; None if each example is a unit."""
    if units is None:
        return None
    units = as_numbers(units, "units")
    if units.dtype.kind not in "iu":
        raise DataError(f"units must be integers, one for each example, found {arguments.describe(units)}")
    if units.shape != is_labelled.shape:
        raise DataError(f"there are units for {units.size} examples, but {is_labelled.size} examples")
    ids = np.unique(units[is_labelled], return_inverse=True)[1].astype(np.int64)
    return None if len(ids) and ids.max() + 1 == len(ids) else ids


def _compute(
    task: "_Task", all_outputs: Float[np.ndarray, "runs examples *labels"], swaps: int, progress: Progress
) -> Statistics:
    """The statistics of the runs after the first, which is the base, group by group."""
    metric, runs, examples = task.metric, len(all_outputs) - 1, task.examples
    size = GROUP if metric.reads == "predictions" else max(1, min(GROUP, RANKED // len(task.labels)))
    groups = [range(start, min(start + size, runs)) for start in range(0, runs, size)]
    work = _Work(metric, runs, task.resamples + min(examples, PARTS), swaps, progress)
    results = [
        _compute_group(task, all_outputs[1 + group.start : 1 + group.stop], group, swaps, work) for group in groups
    ]
    scorer = make_scorer(metric, all_outputs, task.labels, task.positive, task.units)
    halves = choose_on_half(scorer, examples, task.seed, sign=metric.measure.sign, advance=work.of_draws(runs))
    work.finish()
    return _join_groups(task, all_outputs, results, halves)


def check_metric_applies(metric: Metric | str, labels: Num[np.ndarray, " examples"], positive: int = 1) -> None:
    """Check, before outputs exist, that `compute_statistics` can rank this many examples. Swaps rank twice as many.

    Args:
        metric: a metric, or its name in `METRICS`.
        labels: labels of the examples.
        positive: the positive class, as in `score`.

    Raises:
        DataError: there are too many examples.
    """
    metric = find_metric(metric)
    valid_labels = labels[labelled(metric, labels)]
    numbers = () if metric.reads == "values" else (metric.sums.fewest if metric.sums else 2,)
    shape = (1, 2 * len(valid_labels), *numbers)
    make_scorer(metric, np.zeros(shape), np.concatenate([valid_labels, valid_labels]), positive)


class _Work:
    """The progress of the work, in draws times runs."""

    def __init__(self, metric: Metric, runs: int, draws: int, swaps: int, progress: Progress) -> None:
        # The cost of a swap: of a sum over examples, of ranks, or of two scores of twice as many examples.
        self.swap = 0.05 if metric.swap_weights is not None else SWAPPABLE.get(metric.scorer, 4.0)
        self.done, self.total = 0.0, runs * (draws + 2 * HALVES + self.swap * swaps)
        self.progress = progress

    def of_draws(self, runs: int, share: float = 1.0) -> Callable[[int], None]:
        """A callback that counts draws, each for this many runs at `share` of the usual cost."""

        def advance(draws: int) -> None:
            self.done += draws * runs * share
            self.progress(min(self.done, self.total), self.total)

        return advance

    def finish(self) -> None:
        """Report all work as done, also if there were fewer swaps than requested."""
        self.progress(self.total, self.total)


def _join_groups(
    task: "_Task", outputs: Outputs, groups: Sequence[tuple[dict[str, Any], Swapped]], halves: dict[str, Any]
) -> Statistics:
    """Join the statistics of all groups of ablations, and add those that depend on all ablations."""
    metric, scores, swapped = task.metric, task.scores, reduce(Swapped.join, (swaps for _, swaps in groups))
    joined: dict[str, Any] = {
        name: np.concatenate([fields[name] for fields, _ in groups], axis=-1) for name in groups[0][0]
    }
    joined["method"] = tuple(joined["method"].tolist())
    gains, losses = _flips(metric, outputs, task.labels)
    p = mcnemar(gains, losses) if task.by_flips else swapped.p
    observed, spread = scores[1:] - scores[0], joined["standard_error"] * np.sqrt(task.examples)
    return Statistics(
        **joined,
        metric=metric,
        examples=task.examples,
        by_flips=task.by_flips,
        base=float(scores[0]),
        score=scores[1:],
        p=p,
        q=benjamini_hochberg(p),
        holm=holm(p),
        best=swapped.best(metric.measure.sign * observed),
        best_raw=swapped.best(metric.measure.sign * observed, ratio=False),
        gains=gains if metric.reads == "predictions" else None,
        losses=losses if metric.reads == "predictions" else None,
        effect_size=metric.effect_size.function(float(scores[0]), scores[1:], spread, gains, losses),
        detectable=_detectable(task, outputs, swapped, gains, losses),
        resamples=task.resamples,
        draws=len(swapped.largest),
        exact=swapped.exact,
        seed=task.seed,
        halves=halves,
    )


@dataclass(frozen=True)
class _Task:
    """The values that are common to all groups of ablations."""

    metric: Metric
    base: Float[np.ndarray, "examples *labels"]
    scores: Float[np.ndarray, " scores"]
    labels: Labels
    units: Units | None
    examples: int
    positive: int
    resamples: int
    seed: int

    @property
    def by_flips(self) -> bool:
        """Whether the exact forms for flips apply: independent examples, and a metric that depends only on flips."""
        return self.metric.tested and self.metric.flips_alone and self.units is None


def _compute_group(
    task: _Task, outputs: Float[np.ndarray, "runs examples *labels"], group: range, draws: int, work: "_Work"
) -> tuple[dict[str, Shaped[np.ndarray, "... runs"]], Swapped]:
    """Fields of `Statistics` and swaps of one group. (The draws of all ablations would not fit into memory.)"""
    all_outputs, examples = np.concatenate([task.base[None], outputs]), task.examples
    observed = task.scores[1 + group.start : 1 + group.stop] - task.scores[0]
    scorer = make_scorer(task.metric, all_outputs, task.labels, task.positive, task.units)
    counts = bootstrap_counts(examples, task.resamples, task.seed, len(all_outputs), len(task.labels))
    advance = work.of_draws(len(group))
    resampled = _differences(score_draws(scorer, counts, advance))
    left_out = _differences(score_draws(scorer, _leave_out(examples), advance))
    ends = intervals.percentile(resampled), intervals.bca(observed, resampled, left_out)
    few = intervals.of_few_units(observed, resampled, left_out) if examples < intervals.FEW_UNITS else None
    low, high, method = choose_intervals(
        task.metric,
        all_outputs,
        task.labels,
        task.positive,
        observed,
        ends,
        few=few,
        together=task.units is not None,
    )
    swapped = swap_test(
        task.metric,
        task.base,
        outputs,
        task.labels,
        task.positive,
        observed,
        draws=draws,
        seed=task.seed,
        units=task.units,
        advance=work.of_draws(len(group), work.swap),
    )
    errors = _errors(task, all_outputs, resampled)
    fields = {"low": low, "high": high, "percentile": ends[0], "bca": ends[1], "standard_error": errors}
    return fields | {"method": np.array(method)}, swapped


def _errors(
    task: _Task, all_outputs: Float[np.ndarray, "every examples *labels"], resampled: Float[np.ndarray, "draws runs"]
) -> Runs:
    """The standard error of each difference: the spread of the draws, unless the metric has its own formula."""
    sums = task.metric.sums
    if sums is None or sums.errors is None:
        return _spread(resampled)
    return sums.errors(sums.terms_of_units(all_outputs, task.labels, task.positive, task.units))[1:]


def _differences(scores: Float[np.ndarray, "draws runs"]) -> Float[np.ndarray, "draws ablations"]:
    return scores[:, 1:] - scores[:, :1]


def _leave_out(examples: int) -> list[Num[np.ndarray, "_ examples"]]:
    """Counts of draws that leave out one part of the examples each, in chunks; few examples are parts by themselves."""
    part = np.arange(examples) * min(examples, PARTS) // examples
    size = 256
    parts = np.arange(part[-1] + 1)
    return [(part != parts[start : start + size, None]).astype(np.uint16) for start in range(0, len(parts), size)]


def _flips(metric: Metric, outputs: Outputs, labels: Labels) -> tuple[Counts, Counts]:
    """The numbers of predictions that each run gains and loses; 0 for metrics of values."""
    if metric.reads != "predictions":
        zeros = np.zeros(len(outputs) - 1, int)
        return zeros, zeros
    correct = predictions_from_logits(outputs) == labels
    return (correct[1:] & ~correct[0]).sum(1), (~correct[1:] & correct[0]).sum(1)


def choose_intervals(
    metric: Metric,
    outputs: Outputs,
    labels: Labels,
    positive: int,
    observed: Runs,
    bootstrap_ends: tuple[Float[np.ndarray, "2 runs"], Float[np.ndarray, "2 runs"]],
    *,
    few: Float[np.ndarray, "2 runs"] | None = None,
    together: bool = False,
) -> tuple[Runs, Runs, tuple[str, ...]]:
    """Choose BCa, or percentiles if it is undefined; `few` replaces both; score intervals if few predictions flip.

    Args:
        metric: the metric.
        outputs: outputs of the base run, followed by those of all ablations.
        labels: labels of the examples.
        positive: the positive class, as in `score`.
        observed: the differences on all examples.
        bootstrap_ends: percentile and BCa intervals of the differences.
        few: intervals for few examples, if there are few.
        together: whether examples belong together in units. Flips are then not independent, as score intervals need.
    """
    percentile, bca = bootstrap_ends
    usable = np.isfinite(bca).all(0)
    low, high = np.where(usable, bca, percentile)
    method = np.where(usable, "bca", "percentile").astype(object)
    if few is not None:
        usable = np.isfinite(few).all(0)
        low, high = np.where(usable, few, [low, high])
        method[usable] = "t"
    if metric.reads == "predictions" and not together:
        predictions, (gains, losses) = predictions_from_logits(outputs), _flips(metric, outputs, labels)
        flips = _count_flips(metric, predictions, positive, gains, losses)
        few = (flips < intervals.FEW_FLIPS) & np.isfinite(observed)
        if metric.flips_alone:
            ends = intervals.tango(gains[few], losses[few], len(labels))
        else:
            ends = intervals.by_kinds_of_flips(
                metric, predictions[0], predictions[1:][few], labels, positive, observed[few]
            )
        low[few], high[few] = ends
        method[few] = "score"
    # (The base score is an estimate, so a true difference may go beyond it; effects are differences from 0.)
    most = metric.highest - metric.lowest
    bounds = (metric.lowest, metric.highest) if metric.of_effects else (-most, most)
    return np.clip(low, *bounds), np.clip(high, *bounds), tuple(method.tolist())


def _count_flips(
    metric: Metric, predictions: Int[np.ndarray, "every examples"], positive: int, gains: Counts, losses: Counts
) -> Int[np.ndarray, " runs"]:
    """The number of flips that can change the metric."""
    if metric.flips_alone:
        return gains + losses
    seen = predictions == positive if metric.of_one_label else predictions
    return (seen[1:] != seen[0]).sum(1)


def _spread(resampled: Float[np.ndarray, "draws runs"]) -> Runs:
    defined = np.isfinite(resampled)
    count = defined.sum(0)
    values = np.where(defined, resampled, 0)
    mean = values.sum(0) / np.maximum(count, 1)
    variance = (np.where(defined, values - mean, 0) ** 2).sum(0) / np.maximum(count - 1, 1)
    return np.where(count > 1, np.sqrt(variance), np.nan)


def _detectable(task: "_Task", outputs: Outputs, swapped: Swapped, gains: Counts, losses: Counts) -> Runs:
    """From the spread under the null; at least the effect of the fewest flips that could be significant."""
    tests, examples = len(swapped.p), task.examples
    spread = np.sqrt(gains + losses) / examples if task.by_flips else swapped.spread
    differences = detectable(spread, tests)
    if task.metric.reads != "predictions" or task.units is not None:
        # (Unchanged outputs, and too few examples to swap, have no detectable difference.)
        return np.where((spread > 0) & (fewest_flips(tests) <= examples), differences, np.nan)
    base = predictions_from_logits(outputs)[0]
    heaviest = intervals.heaviest_flip(task.metric, base, task.labels, task.positive)
    if not heaviest:  # F1 without a positive label: no flip changes it
        return np.full(differences.shape, np.nan)
    return np.maximum(differences, fewest_flips(tests) * heaviest)
