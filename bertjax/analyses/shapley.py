"""Shapley values of heads: `Study.shapley`, `bertjax shapley`.

With v(S) the score of a model with the heads S, a head's value is the mean over orders of removal of the decrease of v
when the head is removed after those before it (Shapley 1953). The values sum to the effect of replacing all heads.
Orders are sampled in pairs, each with its reverse (Castro, Gomez and Tejada 2009 sample single orders; the reverse is
the antithetic sample of Mitchell et al. 2022). Consecutive runs of an order differ by one head, so that the sweep
computes the layers below that head once.

Orders are run in batches, until the maximum is reached or the intervals are narrow enough. Each batch keeps a journal
until the end, so that the same command resumes. If all sets of the heads need no more runs than the orders, all sets
are run, and the values are exact.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import factorial
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float, Int
from rich.console import RenderableType

from bertjax import arguments
from bertjax.analyses.ablate import introduce
from bertjax.analyses.interactions import EffectDisplay, effect_metric
from bertjax.checkpoints import BertConfig
from bertjax.errors import InputError
from bertjax.formatting import count_of, finite, format_duration
from bertjax.interventions import Ablation, Head, ablation, list_heads
from bertjax.jobs import (
    NOT_COUNTED,
    Context,
    Heads,
    Means,
    Mode,
    Outcome,
    ScoredAnalysis,
    contributions_of,
    describe_score,
    estimate_runs,
    option,
    outcome_of_examples,
    say_cost_of_contributions,
)
from bertjax.progress import Progress, part_of
from bertjax.results import Results
from bertjax.statistics import Metric, ratios, student
from bertjax.tasks import OutputSpec

RUNS_AT_ONCE = 512  # approximate number of runs of a batch of orders
DEFAULT_ORDERS = 100
FEWEST_PAIRS = 8  # pairs of orders; intervals from fewer are too narrow for skewed values


@dataclass(frozen=True)
class Drawn:
    """Values from pairs of orders; the values of a pair are the mean of an order and its reverse.

    Args:
        total: the sum over pairs of each head's value for each example.
        values: each head's value for the score, by pair.
    """

    total: Float[np.ndarray, "heads examples"]
    values: Float[np.ndarray, "pairs heads"]

    def join(self, other: "Drawn") -> "Drawn":
        """The values of both.

        Args:
            other: values of further orders.
        """
        return Drawn(self.total + other.total, np.concatenate([self.values, other.values]))

    @property
    def mean(self) -> Float[np.ndarray, "heads examples"]:
        """Each head's value for each example."""
        return self.total / len(self.values)

    @property
    def half_widths(self) -> Float[np.ndarray, " heads"]:
        """Half of each value's 95 % interval over orders (`statistics.student`); infinite from fewer than 8 pairs."""
        pairs, mean = len(self.values), self.values.mean(axis=0)
        if pairs < FEWEST_PAIRS:
            return np.full(mean.shape, np.inf)
        left_out = (self.values.sum(axis=0) - self.values) / (pairs - 1)
        return np.asarray(np.diff(student(mean, left_out), axis=0)[0] / 2)


OUTPUTS = OutputSpec("shapley", called="Shapley values", numbers=ratios.SHAPLEY, display=EffectDisplay)


@dataclass(frozen=True, kw_only=True)
class Shapley(ScoredAnalysis):
    """Compute Shapley values of heads.

    The Shapley value of a head is its mean contribution to the score over random orders of removal. Orders are sampled
    in pairs, each with its reverse; if all sets of the heads need no more runs, all sets are run, and the values are
    exact. The estimated time is printed first, and an interrupted run resumes.

    Args:
        mode: what replaces a head: 'uniform' attention, 'zero', or its 'mean' output.
        heads: the heads to compute values of, such as 3.0 or L3H0; the others are not removed.
        permutations: the maximum number of orders of removal, an even number, since each comes with its reverse.
        within: stop when the half width of the 95 % interval over orders is at most this for every value, in units of
            the printed score, such as 0.5 (points); by default all orders are run.

    Raises:
        InputError: `permutations` is odd, or `within` is not above 0.
    """

    name = word = "shapley"
    example = "bertjax shapley --heads 3.0 3.1 5.7 --permutations 40"
    own = ("permutations", "within")
    journals = "orders-*"

    outputs = OUTPUTS

    mode: Mode = "uniform"
    heads: Heads | None = option(None, "L.H")
    permutations: Annotated[int, 2] = option(DEFAULT_ORDERS, "N")
    within: float | None = option(None, "W")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.permutations % 2:
            raise InputError(f"permutations are drawn in pairs, each with its reverse: {self.permutations} is odd")
        if self.within is not None and not (np.isfinite(self.within) and self.within > 0):
            arguments.refuse("within", "a number above 0", self.within)

    def run(self, context: Context) -> Outcome:
        """Compute the values of the heads."""
        config = context.job.model.config
        heads = list_heads(self.heads, config)
        job = replace(context.job, ablations=[ablation(config, [head], self.mode) for head in heads])
        introduce(job, context, "head")
        say_cost_of_contributions(job, self.permutations * len(heads), context.say)
        runner = _Runner(context)
        if 2 ** min(len(heads), 30) - 1 <= self.permutations * len(heads):
            values, found = _exact(runner, heads, context.progress)
        else:
            values, found = _drawn(runner, heads, self, context.progress)
        return outcome_of_examples(
            job,
            OUTPUTS,
            [shapley_metric(job.metrics[0])],
            values[..., None],
            runner.kept,
            job.ablations,
            means=runner.means,
            metadata={**runner.score, "shapley": found},
        )

    def show(self, results: Results) -> Sequence[RenderableType]:
        """The largest values, and their precision."""
        return [*super().show(results), shapley_line(results)]


class _Runner:
    """Runs sets of heads batch by batch."""

    def __init__(self, context: Context):
        self.context, self.job, self.say = context, context.job, context.say
        self.means: Means = None
        self.calls = 0
        self.kept: list[int] = []
        self.score: dict[str, Any] = {}

    def run(self, runs: Sequence[Ablation], progress: Progress) -> Float[np.ndarray, "runs examples"]:
        """Each example's contribution to the score, without ablation and then in each run."""
        job = replace(self.job, ablations=runs)
        result, self.means = self.context.sweep(job, f"orders-{self.calls:05d}", progress, self.means)
        self.calls += 1
        kept, contributed = contributions_of(job, result)
        self.kept = kept.tolist()
        self.score = {"derived": describe_score(job, contributed)}
        return contributed


def _exact(
    runner: _Runner, heads: Sequence[Head], progress: Progress
) -> tuple[Float[np.ndarray, "heads examples"], dict[str, Any]]:
    """Values from all sets of heads."""
    job = runner.job
    runs = all_subsets(job.model.config, heads, job.settings.analysis.mode)
    seconds = estimate_runs(job, runs).seconds
    runner.say(
        f"all {len(runs) + 1:,} sets of {count_of(len(heads), 'head')}: about {format_duration(seconds)}; {NOT_COUNTED}"
    )
    contributed = runner.run(runs, progress)
    without = float(contributed[-1].mean())
    more = {"orders": 0, "exact": True, "half_widths": [0.0] * len(heads), "within": None, "without": without}
    return exact_values(len(heads), contributed), more


def _drawn(
    runner: _Runner, heads: Sequence[Head], budget: Shapley, progress: Progress
) -> tuple[Float[np.ndarray, "heads examples"], dict[str, Any]]:
    """Values from random orders, until the intervals are narrow enough."""
    job, pairs = runner.job, budget.permutations // 2
    factor = job.labelled_metrics[0].metric.measure.factor
    at_once = max(1, RUNS_AT_ONCE // (2 * len(heads)))
    drawn: Drawn | None = None
    without, expected = np.nan, pairs
    for start in range(0, pairs, at_once):
        numbers = range(start, min(start + at_once, pairs))
        orders = [order for pair in numbers for order in draw_orders(len(heads), pair, job.settings.seed)]
        runs = [run for order in orders for run in runs_of_order(job.model.config, heads, order, budget.mode)]
        if drawn is None:
            seconds = estimate_runs(job, runs).seconds / len(orders)
            most = format_duration(seconds * budget.permutations)
            one = f"each order of {len(heads)} heads about {format_duration(seconds)}"
            runner.say(f"{one}, all {budget.permutations}: {most}; {NOT_COUNTED}")
        planned = max(expected, numbers.stop)
        contributed = runner.run(runs, part_of(progress, start / planned, len(numbers) / planned, 1.0))
        without = float(contributed[len(heads)].mean())
        found = _pairs_of(orders, contributed)
        drawn = found if drawn is None else drawn.join(found)
        widest = factor * float(drawn.half_widths.max())
        expected = _expected_pairs(budget.within, widest, len(drawn.values), pairs)
        if np.isfinite(widest):
            after = f" of {2 * expected} expected" if len(drawn.values) < expected else ""
            runner.say(f"{count_of(2 * len(drawn.values), 'order')}{after}: values are known to ±{widest:.2g}")
        if expected == len(drawn.values):
            break
    assert drawn is not None
    progress(1.0, 1.0)
    widths = [finite(float(width)) for width in drawn.half_widths]
    more = {"orders": 2 * len(drawn.values), "exact": False, "half_widths": widths}
    within = None if budget.within is None else budget.within / factor
    return drawn.mean, {**more, "within": within, "without": without}


def _expected_pairs(within: float | None, widest: float, drawn: int, most: int) -> int:
    """The expected number of pairs of orders; intervals narrow with the square root of the number.

    >>> [_expected_pairs(within, 1.0, 4, 100) for within in (None, 0.1, 0.5, 0.99, 1.0)]
    [100, 100, 16, 5, 4]
    """
    if within is None or not np.isfinite(widest):
        return most
    return drawn if widest <= within else min(max(math.ceil(drawn * (widest / within) ** 2), drawn + 1), most)


def _pairs_of(orders: Sequence[Int[np.ndarray, " heads"]], contributed: Float[np.ndarray, "runs examples"]) -> Drawn:
    """The values from pairs of orders.

    Args:
        orders: each order is followed by its reverse.
        contributed: contributions without ablation, and then of all runs of all orders.
    """
    heads = len(orders[0])
    added = [
        added_in_order(order, np.concatenate([contributed[:1], contributed[1 + heads * number :][:heads]]))
        for number, order in enumerate(orders)
    ]
    pairs = [(first + second) / 2 for first, second in zip(added[::2], added[1::2], strict=True)]
    return Drawn(np.sum(pairs, axis=0), np.stack([pair.mean(axis=1) for pair in pairs]))


def shapley_line(results: Results) -> str:
    """A sentence about the precision of Shapley values and their sum.

    Args:
        results: results of `shapley`.
    """
    found, score, measure = results.summary["shapley"], results.summary["derived"], results.measure()
    base, without = (measure.factor * value for value in (score["base"], found["without"]))
    ends = f"{base:.{measure.digits}f} as it is, {without:.{measure.digits}f} with all of these heads replaced"
    total = (
        f"values sum to {measure.with_unit(measure.change((base - without) / measure.factor))}: {score['label']} {ends}"
    )
    if found["exact"]:
        return f"Every set of heads was run: values are exact for these examples. The {total}."
    widths = [math.inf if width is None else measure.factor * width for width in found["half_widths"]]
    if not math.isfinite(max(widths)):
        return f"{found['orders']} orders are too few to tell how well values are known. The {total}."
    middle = sorted(widths)[len(widths) // 2]
    known = f"±{max(widths):.2g} or better ({measure.with_unit(f'median ±{middle:.2g}')})"
    return f"{found['orders']} orders: each value is known to {known} for these examples, at 95 %. The {total}."


def draw_orders(heads: int, pair: int, seed: int = 0) -> tuple[Int[np.ndarray, " heads"], Int[np.ndarray, " heads"]]:
    """Sample an order of heads, and reverse it; each pair has an independent random generator.

    Args:
        heads: the number of heads.
        pair: the index of the pair.
    """
    order = np.random.default_rng([seed, pair]).permutation(heads)
    return order, order[::-1]


def runs_of_order(
    config: BertConfig, heads: Sequence[Head], order: Int[np.ndarray, " heads"], mode: str
) -> list[Ablation]:
    """The ablations of the first head of an order, the first two, and so on to all."""
    return [ablation(config, [heads[index] for index in order[: count + 1]], mode) for count in range(len(order))]


def added_in_order(
    order: Int[np.ndarray, " heads"], contributed: Float[np.ndarray, "runs examples"]
) -> Float[np.ndarray, "heads examples"]:
    """Each head's contribution after the removal of those before it in an order.

    Args:
        contributed: each example's contribution to the score, without ablation and then in each run of the order.
    """
    added = np.empty((len(order), contributed.shape[1]))
    added[order] = contributed[:-1] - contributed[1:]
    return added


def all_subsets(config: BertConfig, heads: Sequence[Head], mode: str) -> list[Ablation]:
    """All sets of heads except the empty one, smaller sets first."""
    return [ablation(config, [heads[index] for index in chosen], mode) for chosen in _subsets(len(heads))]


def exact_values(heads: int, contributed: Float[np.ndarray, "sets examples"]) -> Float[np.ndarray, "heads examples"]:
    """Shapley values by their definition, from all sets of heads.

    Args:
        heads: the number of heads.
        contributed: each example's contribution to the score, without ablation and then in each of `all_subsets`.

    >>> exact_values(2, np.array([[1.0], [0.9], [0.7], [0.2]])).round(6).tolist()
    [[0.3], [0.5]]
    """
    values = np.zeros((heads, contributed.shape[1]))
    sets = [(), *_subsets(heads)]
    run_of = {chosen: run for run, chosen in enumerate(sets)}
    for gone in sets:
        for head in set(range(heads)) - set(gone):
            # The share of all orders in which exactly `gone` comes before the head.
            share = factorial(len(gone)) * factorial(heads - len(gone) - 1) / factorial(heads)
            after = run_of[tuple(sorted((*gone, head)))]
            values[head] += share * (contributed[run_of[gone]] - contributed[after])
    return values


def _subsets(heads: int) -> Iterator[tuple[int, ...]]:
    for size in range(1, heads + 1):
        yield from combinations(range(heads), size)


def shapley_metric(metric: Metric) -> Metric:
    """The metric of Shapley values, in the unit of a score."""
    return effect_metric(metric, "shapley", f"Shapley value ({metric.label})", ratios.SHAPLEY, "value")
