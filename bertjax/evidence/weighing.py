"""Which effects of a sweep are more than chance: from saved outputs alone, for each metric and all ablations at once.

Differences are the ablated score less the base score, on the same examples, so everything is paired. Scores and
differences are as the metric defines them; 0.01 is one point.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Num

from bertjax.errors import DataError
from bertjax.evidence import intervals
from bertjax.evidence.metrics import Metric, find_metric, labelled, make_scorer, predictions_from_logits, score
from bertjax.evidence.resampling import bootstrap_counts, score_draws
from bertjax.evidence.significance import (
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
from bertjax.progress import Progress, silent

RESAMPLES = 10_000
Q = 0.05  # the rate of false discoveries below which an effect counts as found
PARTS = 2000  # of the examples, one left out at a time, for the acceleration of an interval
GROUP = 256  # ablations whose draws are held together
RANKED = 700_000  # outputs that are ranked together: about 64 MB for each thread, 130 MB where they are swapped

Outputs = Float[np.ndarray, "every examples *labels"]  # of the base first, then of the runs
Labels = Num[np.ndarray, " examples"]
Runs = Float[np.ndarray, " runs"]
Counts = Int[np.ndarray, " runs"]


@dataclass(frozen=True)
class Evidence:
    """What one metric says of all ablations.

    Args:
        metric: what is measured.
        examples: how many are labelled.
        base: the score without ablation.
        score: with each ablation.
        low, high: ends of the interval of each difference, by `method`.
        method: 'bca', 'percentile' (where BCa is undefined), or 'score' where fewer than 50 predictions flip.
        percentile, bca: both intervals of each difference, `[2, runs]`.
        p: two-sided, uncorrected; by McNemar's exact test or by swaps.
        q: after Benjamini and Hochberg, over all ablations.
        holm: after Holm.
        best: how probable it is that the largest gain of all ablations, over its spread, is as large by chance as this.
        best_raw: the same of the gains themselves, which ablations of wide spread rule.
        gains, losses: how many predictions become right and become wrong; None for metrics of values.
        effect_size: as the metric's `effect_size.text` says.
        detectable: the smallest difference that would have been found with 80 % power at the corrected level.
        resamples, draws, exact, seed: of the bootstrap and of the swaps (`exact`: all that there are).
        standard_error: of each difference, by the bootstrap.
        halves: what choosing on one half and scoring on the other gives.
    """

    metric: Metric
    examples: int
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
        """Each score less the base."""
        return self.score - self.base

    @property
    def least_best_p(self) -> float | None:
        """The least that `best` can be with these random swaps; None of all swaps that there are."""
        return None if self.exact else 1 / (1 + self.draws)

    @property
    def least_p(self) -> float | None:
        """The least that `p` can be with these random swaps; None where it is exact."""
        return None if self.metric.flips_alone else self.least_best_p

    @property
    def found(self) -> Bool[np.ndarray, " runs"]:
        """Which effects are more than chance, at the rate `Q` of false discoveries."""
        return np.nan_to_num(self.q, nan=1.0) < Q


def weigh(
    metric: Metric | str,
    base: Float[np.ndarray, "examples *labels"],
    outputs: Float[np.ndarray, "runs examples *labels"],
    labels: Num[np.ndarray, " examples"],
    positive: int = 1,
    *,
    resamples: int | None = None,
    draws: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Evidence:
    """Everything that the outputs say about each ablation's effect on a metric.

    Args:
        metric: a name in `metrics.METRICS`, or a Metric of your own.
        base: outputs without ablation: logits, or one value for each example.
        outputs: of each ablation.
        labels: those of examples without a label are left out.
        positive: the label that counts as yes, where the metric has one.
        resamples: of the bootstrap; default `RESAMPLES`.
        draws: swaps of the permutation test; default `significance.count_draws`.
        seed: of both.
        progress: is told work done and work in all, draw by draw.

    Raises:
        DataError: outputs and labels do not fit the metric, fewer than two examples have labels, or no ablation.
    """
    metric = find_metric(metric)
    if not len(outputs):
        raise DataError("there is no ablation to weigh")
    every = np.concatenate([base[None], outputs])
    scores = score(metric, every, labels, positive)
    known = labelled(metric, labels)
    every, labels = every[:, known], labels[known]
    examples = len(labels)
    if examples < 2:
        raise DataError(f"{examples} example has a label: intervals and tests need two at least")
    resamples = resamples or RESAMPLES
    task = _Task(
        metric=metric,
        base=every[0],
        scores=scores,
        labels=labels,
        positive=positive,
        resamples=resamples,
        seed=seed,
    )
    swaps = draws or count_draws(metric, len(outputs), examples)
    size = GROUP if metric.reads == "predictions" else max(1, min(GROUP, RANKED // examples))
    groups = [range(start, min(start + size, len(outputs))) for start in range(0, len(outputs), size)]
    pace = _Pace(metric, len(outputs), resamples + min(examples, PARTS), swaps, progress)
    found = [_weigh_group(task, every[1 + group.start : 1 + group.stop], group, swaps, pace) for group in groups]
    scorer = make_scorer(metric, every, labels, positive)
    halves = choose_on_half(scorer, examples, seed, advance=pace.of_draws(len(outputs)))
    pace.finish()
    return _put_together(task, every, found, halves)


def check_weighable(metric: Metric | str, labels: Num[np.ndarray, " examples"], positive: int = 1) -> None:
    """See before there are outputs that `weigh` can take so many examples: a test ranks twice as many outputs.

    Raises:
        DataError: there are too many.
    """
    metric = find_metric(metric)
    known = labels[labelled(metric, labels)]
    shape = (1, 2 * len(known), 2) if metric.reads == "predictions" else (1, 2 * len(known))
    make_scorer(metric, np.zeros(shape), np.concatenate([known, known]), positive)


class _Pace:
    """How much of the work is done: draws of runs. A swap makes two scores, each of twice the examples."""

    def __init__(self, metric: Metric, runs: int, draws: int, swaps: int, progress: Progress) -> None:
        self.swap = 4.0 if metric.swap_weights is None else 0.05  # which is a sum over examples there
        self.done, self.total = 0.0, runs * (draws + 2 * HALVES + self.swap * swaps)
        self.progress = progress

    def of_draws(self, runs: int, share: float = 1.0) -> Callable[[int], None]:
        """What is to be told of draws that so many runs are scored on."""

        def advance(draws: int) -> None:
            self.done += draws * runs * share
            self.progress(min(self.done, self.total), self.total)

        return advance

    def finish(self) -> None:
        """All is done; where there are fewer swaps than were wanted, it took less work."""
        self.progress(self.total, self.total)


def _put_together(task: "_Task", every: Outputs, found: Sequence["_Group"], halves: dict[str, Any]) -> Evidence:
    """All groups of ablations, and what depends on how many there are."""
    metric, scores, swapped = task.metric, task.scores, reduce(Swapped.join, (one.swapped for one in found))
    gains, losses = _flips(metric, every, task.labels)
    p = mcnemar(gains, losses) if metric.flips_alone else swapped.p
    observed, error = scores[1:] - scores[0], np.concatenate([one.error for one in found])
    return Evidence(
        metric=metric,
        examples=len(task.labels),
        base=float(scores[0]),
        score=scores[1:],
        low=np.concatenate([one.low for one in found]),
        high=np.concatenate([one.high for one in found]),
        method=tuple(name for one in found for name in one.method),
        percentile=np.concatenate([one.percentile for one in found], axis=1),
        bca=np.concatenate([one.bca for one in found], axis=1),
        p=p,
        q=benjamini_hochberg(p),
        holm=holm(p),
        best=swapped.best(observed),
        best_raw=swapped.best(observed, ratio=False),
        gains=gains if metric.reads == "predictions" else None,
        losses=losses if metric.reads == "predictions" else None,
        effect_size=metric.effect_size.function(
            float(scores[0]), scores[1:], error * np.sqrt(len(task.labels)), gains, losses
        ),
        detectable=_detectable(task, every, swapped, gains, losses),
        resamples=task.resamples,
        draws=len(swapped.largest),
        exact=swapped.exact,
        seed=task.seed,
        standard_error=error,
        halves=halves,
    )


@dataclass(frozen=True)
class _Task:
    """What all groups of ablations have in common."""

    metric: Metric
    base: Float[np.ndarray, "examples *labels"]
    scores: Float[np.ndarray, " scores"]
    labels: Labels
    positive: int
    resamples: int
    seed: int


@dataclass(frozen=True)
class _Group:
    """Intervals and swaps of some ablations."""

    low: Runs
    high: Runs
    method: tuple[str, ...]
    percentile: Float[np.ndarray, "2 runs"]
    bca: Float[np.ndarray, "2 runs"]
    error: Runs
    swapped: Swapped


def _weigh_group(
    task: _Task, outputs: Float[np.ndarray, "runs examples *labels"], group: range, draws: int, pace: "_Pace"
) -> _Group:
    """Some ablations: the draws of all of them at once would not fit into memory."""
    every, examples = np.concatenate([task.base[None], outputs]), len(task.labels)
    observed = task.scores[1 + group.start : 1 + group.stop] - task.scores[0]
    scorer = make_scorer(task.metric, every, task.labels, task.positive)
    drawn = bootstrap_counts(examples, task.resamples, task.seed, len(every))
    advance = pace.of_draws(len(group))
    resampled = _differences(score_draws(scorer, drawn, advance))
    left_out = _differences(score_draws(scorer, _leave_out(examples), advance))
    both = intervals.percentile(resampled), intervals.bca(observed, resampled, left_out)
    low, high, method = choose_intervals(
        task.metric, every, task.labels, task.positive, observed, both, base=float(task.scores[0])
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
        advance=pace.of_draws(len(group), pace.swap),
    )
    return _Group(
        low=low,
        high=high,
        method=method,
        percentile=both[0],
        bca=both[1],
        error=_spread(resampled),
        swapped=swapped,
    )


def _differences(scores: Float[np.ndarray, "draws runs"]) -> Float[np.ndarray, "draws ablations"]:
    return scores[:, 1:] - scores[:, :1]


def _leave_out(examples: int) -> list[Num[np.ndarray, "_ examples"]]:
    """Counts with one part of the examples left out each, in chunks; a part is one example where there are few."""
    part = np.arange(examples) * min(examples, PARTS) // examples
    size = 256
    numbers = np.arange(part[-1] + 1)
    return [(part != numbers[start : start + size, None]).astype(np.uint16) for start in range(0, len(numbers), size)]


def _flips(metric: Metric, outputs: Outputs, labels: Labels) -> tuple[Counts, Counts]:
    """How many predictions each run gains and loses; none of values."""
    if metric.reads != "predictions":
        none = np.zeros(len(outputs) - 1, int)
        return none, none
    right = predictions_from_logits(outputs) == labels
    return (right[1:] & ~right[0]).sum(1), (~right[1:] & right[0]).sum(1)


def choose_intervals(
    metric: Metric,
    outputs: Outputs,
    labels: Labels,
    positive: int,
    observed: Runs,
    both: tuple[Float[np.ndarray, "2 runs"], Float[np.ndarray, "2 runs"]],
    *,
    base: float,
) -> tuple[Runs, Runs, tuple[str, ...]]:
    """BCa, or percentiles where that is undefined, or a score interval where few predictions flip."""
    percentile, bca = both
    usable = np.isfinite(bca).all(0)
    low, high = np.where(usable, bca, percentile)
    method = np.where(usable, "bca", "percentile").astype(object)
    if metric.reads == "predictions":
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
    least, most = metric.lowest - base, 1.0 - base
    low, high = np.clip(low, least, most), np.clip(high, least, most)
    return low, high, tuple(method.tolist())


def _count_flips(
    metric: Metric, predictions: Int[np.ndarray, "every examples"], positive: int, gains: Counts, losses: Counts
) -> Int[np.ndarray, " runs"]:
    """How many predictions flip in a way that the metric sees."""
    if metric.flips_alone:
        return gains + losses
    seen = predictions == positive if metric.of_one_label else predictions
    return (seen[1:] != seen[0]).sum(1)


def _spread(resampled: Float[np.ndarray, "draws runs"]) -> Runs:
    known = np.isfinite(resampled)
    count = known.sum(0)
    values = np.where(known, resampled, 0)
    mean = values.sum(0) / np.maximum(count, 1)
    variance = (np.where(known, values - mean, 0) ** 2).sum(0) / np.maximum(count - 1, 1)
    return np.where(count > 1, np.sqrt(variance), np.nan)


def _detectable(task: "_Task", every: Outputs, swapped: Swapped, gains: Counts, losses: Counts) -> Runs:
    """By the spread under the null; never less than the fewest flips that could show anything, of the heaviest kind."""
    tests, examples = len(swapped.p), len(task.labels)
    spread = np.sqrt(gains + losses) / examples if task.metric.flips_alone else swapped.spread
    found = detectable(spread, tests)
    if task.metric.reads != "predictions":  # outputs that do not change say nothing, too few swaps neither
        return np.where((spread > 0) & (fewest_flips(tests) <= examples), found, np.nan)
    base = predictions_from_logits(every)[0]
    heaviest = intervals.heaviest_flip(task.metric, base, task.labels, task.positive)
    if not heaviest:  # F1 without a positive label: whatever flips, it stays as it is
        return np.full(found.shape, np.nan)
    return np.maximum(found, fewest_flips(tests) * heaviest)
