"""Shapley values of heads: `bertjax shapley`.

Orders are drawn and run a few at a time, until as many were drawn as may be or the values are known well enough. Each
few keep a journal of their own until the end, so that the same command resumes. Where every set of the heads costs no
more runs than the orders, all are run, and the values are exact.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float, Int

from bertjax import arguments
from bertjax.attribution import (
    Drawn,
    added_in_order,
    all_subsets,
    draw_orders,
    exact_values,
    runs_of_order,
    shapley_metric,
)
from bertjax.errors import InputError
from bertjax.formatting import count_of, finite, format_duration
from bertjax.interventions import Ablation, Head
from bertjax.progress import Progress, silent
from bertjax.results import Results
from bertjax.study.derived.frame import Outcome, run_derived
from bertjax.study.derived.job import (
    contributions_of,
    derive_job,
    describe_score,
    say_what_sharing_costs,
)
from bertjax.study.job import Job, check_scorable
from bertjax.study.options import Heads, Mode, OutputOptions, option
from bertjax.study.outputs import means_of
from bertjax.study.provenance import Analysis
from bertjax.study.run import ON_TOP, check_finite, estimate_runs, introduce, sweep_job
from bertjax.study.settings import Settings, check_settings, for_this_device
from bertjax.tasks import TaskResult

RUNS_AT_ONCE = 512  # about: of orders that are run together
DEFAULT_ORDERS = 100


@dataclass(frozen=True, kw_only=True)
class ShapleyOptions(OutputOptions):
    """Orders.

    Args:
        mode: what replaces a head: 'uniform' attention, 'zero', or its 'mean' output.
        heads: values of these heads only, such as 3.0 or L3H0; the others stay.
        metric: the main metric, in place of the task's: a name in `bertjax.METRICS`, or module:function. In Python
            also a `Metric`, or a function of labels and outputs that returns a number.
        permutations: draw at most this number of orders of removal, an even number: each comes with its reverse.
        within: stop as soon as the 95 % interval over orders of every value is at most this to either side, as the
            score is printed, such as 0.5 (points); by default all orders are drawn.

    Raises:
        InputError: an odd number of orders, or `within` is not above 0.
    """

    mode: Mode = "uniform"
    heads: Heads | None = option(None, "L.H")
    metric: Any = option(None, "M")
    permutations: Annotated[int, 2] = option(DEFAULT_ORDERS, "N")
    within: float | None = option(None, "W")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.permutations % 2:
            raise InputError(f"permutations are drawn in pairs, each with its reverse: {self.permutations} is odd")
        if self.within is not None and not (np.isfinite(self.within) and self.within > 0):
            arguments.refuse("within", "a number above 0", self.within)


def run_shapley(
    settings: Settings,
    options: ShapleyOptions,
    *,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress = silent,
    weighing: Progress = silent,
    keep: bool = True,
) -> Results:
    """Draw orders, run them, weigh the values, and write the directory.

    Args:
        settings: which model, task, examples and heads.
        options: when to stop.
        say: called with a line at each step.
        progress, weighing: called with the work done and the total work.
        keep: whether anything is written.

    Raises:
        OutputError: the directory cannot be written, holds results already, or unfinished orders of other settings.
        SweepInterrupted: Ctrl-C; what is finished is kept, and the same call resumes.
        BertjaxError: whatever is wrong with model, data or settings.
    """
    _check(settings)
    check_settings(settings)
    share_out = partial(_share_out, options, say, progress, keep)
    analysis = Analysis("shapley", {"permutations": options.permutations, "within": options.within})
    return run_derived(for_this_device(settings), share_out, analysis, say=say, weighing=weighing, keep=keep)


def _share_out(budget: ShapleyOptions, say: Callable[[str], None], progress: Progress, keep: bool, job: Job) -> Outcome:
    """The values of a job's heads."""
    introduce(job, say)
    check_scorable(job)
    say_what_sharing_costs(job, budget.permutations * len(job.ablations), say)
    if keep:
        say(f"results go to {job.settings.directory}")
    runner = _Runner(job, say, keep)
    heads = [(change.layer, change.head) for one in job.ablations for change in one.changes]
    if 2 ** min(len(heads), 30) - 1 <= budget.permutations * len(heads):
        values, told = _exact(runner, heads, progress)
    else:
        values, told = _drawn(runner, heads, budget, progress)
    derived = derive_job(job, runner.kept, "shapley", [shapley_metric(job.judges[0].metric)])
    outputs = values[..., None]
    result = TaskResult(np.zeros(outputs.shape[1:]), outputs, tuple(job.ablations))
    return Outcome(derived, result, runner.means, {**runner.score, "shapley": told})


def _check(settings: Settings) -> None:
    """Raise `InputError` for what these runs do not have."""
    if settings.ablate != "heads" or settings.screen is not None:
        raise InputError("Shapley values are of single heads: leave out which sets to ablate")
    if settings.shard:
        raise InputError("Shapley values cannot be sharded: orders run one after another; leave --shard out")
    if settings.engine != "fast":
        raise InputError("Shapley values are computed by the fast engine")


class _Runner:
    """Runs sets of heads a few at a time, and keeps what each example contributes."""

    def __init__(self, job: Job, say: Callable[[str], None], keep: bool):
        self.job, self.say, self.keep = job, say, keep
        self.means = means_of(job)
        self.calls = 0
        self.kept: list[int] = []
        self.score: dict[str, Any] = {}

    def run(self, runs: Sequence[Ablation], progress: Progress) -> Float[np.ndarray, "runs examples"]:
        """What each example contributes to the score: without ablation, and then in each run."""
        job, settings = replace(self.job, ablations=runs), self.job.settings
        journal = settings.directory / f"orders-{self.calls:05d}" if self.keep else None
        result = sweep_job(job, self.means, lambda line: None, progress, journal)
        check_finite(runs, result, journal)
        self.calls += 1
        kept, contributed = contributions_of(job, result)
        self.kept = kept.tolist()
        self.score = {"derived": describe_score(job, contributed)}
        return contributed


def _exact(
    runner: _Runner, heads: Sequence[Head], progress: Progress
) -> tuple[Float[np.ndarray, "heads examples"], dict[str, Any]]:
    """Values from every set of heads."""
    job = runner.job
    runs = all_subsets(job.model.config, heads, job.settings.mode)
    seconds = estimate_runs(job, runs).seconds
    runner.say(
        f"all {len(runs) + 1:,} sets of {count_of(len(heads), 'head')}: about {format_duration(seconds)}; {ON_TOP}"
    )
    contributed = runner.run(runs, progress)
    without = float(contributed[-1].mean())
    more = {"orders": 0, "exact": True, "half_widths": [0.0] * len(heads), "within": None, "without": without}
    return exact_values(len(heads), contributed), more


def _drawn(
    runner: _Runner, heads: Sequence[Head], budget: ShapleyOptions, progress: Progress
) -> tuple[Float[np.ndarray, "heads examples"], dict[str, Any]]:
    """Values from orders that are drawn, until they are known well enough."""
    job, pairs = runner.job, budget.permutations // 2
    factor = job.judges[0].metric.measure.factor
    at_once = max(1, RUNS_AT_ONCE // (2 * len(heads)))
    drawn: Drawn | None = None
    without, expected = np.nan, pairs
    for start in range(0, pairs, at_once):
        numbers = range(start, min(start + at_once, pairs))
        orders = [order for pair in numbers for order in draw_orders(len(heads), pair, job.settings.seed)]
        runs = [run for order in orders for run in runs_of_order(job.model.config, heads, order, job.settings.mode)]
        if drawn is None:
            seconds = estimate_runs(job, runs).seconds / len(orders)
            most = format_duration(seconds * budget.permutations)
            one = f"each order of {len(heads)} heads about {format_duration(seconds)}"
            runner.say(f"{one}, all {budget.permutations}: {most}; {ON_TOP}")
        contributed = runner.run(runs, _part_of(progress, start, len(numbers), max(expected, numbers.stop)))
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
    """How many pairs of orders there will be, as intervals become narrower with the root of their number.

    >>> [_expected_pairs(within, 1.0, 4, 100) for within in (None, 0.1, 0.5, 0.99, 1.0)]
    [100, 100, 16, 5, 4]
    """
    if within is None or not np.isfinite(widest):
        return most
    return drawn if widest <= within else min(max(math.ceil(drawn * (widest / within) ** 2), drawn + 1), most)


def _part_of(progress: Progress, start: int, count: int, expected: int) -> Progress:
    """The progress of some pairs of orders, of as many as are expected."""

    def report(done: float, all_of_it: float) -> None:
        progress((start + count * done / all_of_it) / expected, 1.0)

    return report


def _pairs_of(orders: Sequence[Int[np.ndarray, " heads"]], contributed: Float[np.ndarray, "runs examples"]) -> Drawn:
    """What pairs of orders gave.

    Args:
        orders: each followed by its reverse.
        contributed: of the run without ablation, and then of all runs of all orders.
    """
    heads = len(orders[0])
    added = [
        added_in_order(order, np.concatenate([contributed[:1], contributed[1 + heads * number :][:heads]]))
        for number, order in enumerate(orders)
    ]
    pairs = [(first + second) / 2 for first, second in zip(added[::2], added[1::2], strict=True)]
    return Drawn(np.sum(pairs, axis=0), np.stack([pair.mean(axis=1) for pair in pairs]))
