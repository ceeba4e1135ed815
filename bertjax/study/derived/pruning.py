"""How many heads can go, and in which order: `bertjax prune`.

Half of the examples choose the orders, the other half judge them: an order that was chosen on the examples that judge
it would look better than it is. What is judged are the sets of heads that are gone at some points of each order, as in
any sweep of sets; the summary says which set belongs to which order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float

from bertjax import arguments
from bertjax.attribution import (
    Learning,
    ablated_losses,
    gradient_costs,
    heads_left,
    magnitudes,
    order_by,
    steps_of,
)
from bertjax.errors import InputError
from bertjax.formatting import count_of, format_duration
from bertjax.interventions import Ablation, ablation, every_head
from bertjax.progress import Progress, silent
from bertjax.results import Results
from bertjax.study.derived.frame import Outcome, run_derived
from bertjax.study.derived.gates import LearnedGates, learn_gates
from bertjax.study.derived.job import level_out
from bertjax.study.job import Job, check_scorable, encode
from bertjax.study.options import Mode, OutputOptions, Positive, option
from bertjax.study.outputs import means_of
from bertjax.study.provenance import Analysis
from bertjax.study.run import ON_TOP, check_finite, estimate_runs, sweep_job
from bertjax.study.settings import Settings, check_settings, for_this_device, in_float32

# By what heads are taken away.
ORDERS = ("gradient", "greedy", "magnitude", "gates", "random", "reversed")
# Those that run if none are named: greedy orders and gates take minutes where these take seconds.
QUICK = ("gradient", "magnitude", "random", "reversed")
NESTED = ("gradient", "greedy", "magnitude")
"""Orders in which heads go one after another; gates close sets of heads, at each price another."""
OF_ORDER = {
    **{"gradient_share": "gradient", "greedy_share": "greedy", "draws": "random"},
    **{"strengths": "gates", "gate_steps": "gates", "gate_rate": "gates"},
}
"""The order that each option belongs to."""
PASSES = 2.5  # forward passes that take as long as one pass forward and back
Line = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class PruneOptions(OutputOptions):
    """Orders.

    Args:
        mode: what replaces a head: 'zero', which `bertjax remove-heads` can do to weights, 'uniform' or 'mean'.
        metric: the main metric, in place of the task's: a name in `bertjax.METRICS`, or module:function. In Python
            also a `Metric`, or a function of labels and outputs that returns a number.
        orders: by what heads are removed: gradient, greedy (exact losses), magnitude, gates, random, reversed (the
            first of gradient, greedy and magnitude backwards). Greedy and gates take minutes.
        gradient_share: the share of all heads that is removed before gradients are computed again.
        greedy_share: the share of all heads that is removed before exact losses are computed again.
        draws: the number of random orders.
        points: the number of points of each order that are scored.
        strengths: prices at which gates are learned: the cost of all open gates, in losses of the whole model.
        gate_steps: steps of training of the gates at each price.
        gate_rate: the learning rate of the gates; it falls to 0 as a cosine.

    Raises:
        InputError: orders that make no comparison, or an option of an order that is not among them.
    """

    mode: Mode = "zero"
    metric: Any = option(None, "M")
    orders: Annotated[tuple[str, ...], "names of orders"] = option(QUICK, "ORDER")
    gradient_share: float = option(0.1, "S")
    greedy_share: float = option(0.05, "S")
    draws: Positive = option(20, "N")
    points: Positive = option(10, "N")
    strengths: Annotated[tuple[float, ...], "numbers from 0"] = option((0.1, 0.3, 0.6, 1.0, 2.0, 4.0), "P")
    gate_steps: Positive = option(Learning.steps, "N")
    gate_rate: float = option(Learning.rate, "R")

    def __post_init__(self) -> None:
        super().__post_init__()
        for order in self.orders:
            arguments.one_of(order, "order", ORDERS)
        if len(set(self.orders)) < len(self.orders):
            raise InputError("an order is named twice: name each once")
        if not {*self.orders} - {"random", "reversed"}:
            raise InputError("orders at random, and backwards, are to be seen beside another: give one")
        if "reversed" in self.orders and not {*self.orders} & {*NESTED}:
            raise InputError(f"gates have no order that could be reversed: give one of {', '.join(NESTED)} too")
        if not self.strengths or not all(0 <= strength < np.inf for strength in self.strengths):
            arguments.refuse("strengths", "a list of numbers from 0", self.strengths)
        if len({*self.strengths}) < len(self.strengths):
            raise InputError("a strength is given twice: give each once")
        for name in ("gradient_share", "greedy_share"):
            if not 0 < getattr(self, name) <= 1:
                arguments.refuse(name, "a share of all heads, above 0 and at most 1", getattr(self, name))
        if not 0 < self.gate_rate <= 10:
            arguments.refuse("gate_rate", "a number above 0 and at most 10", self.gate_rate)
        for name, order in OF_ORDER.items():
            if getattr(self, name) != getattr(type(self), name) and order not in self.orders:
                flag = "--" + name.replace("_", "-")
                raise InputError(f"{flag} is of the order {order}: add {order} to --orders, or leave {flag} out")

    @property
    def learning(self) -> Learning:
        """How gates are learned."""
        return Learning(self.gate_steps, rate=self.gate_rate)

    @property
    def recorded(self) -> dict[str, Any]:
        """The options as `summary.json` has them."""
        names = ("orders", "gradient_share", "greedy_share", "draws", "points", "strengths")
        return {**{name: getattr(self, name) for name in names}, "learning": asdict(self.learning)}


@dataclass(frozen=True)
class Order:
    """Heads in the order in which they go.

    Args:
        name: one of `ORDERS`; of those at random with a number, of one backwards with the other's name.
        heads: the first that goes first.
    """

    name: str
    heads: tuple[tuple[int, int], ...]


def run_pruning(
    settings: Settings,
    pruning: PruneOptions,
    *,
    say: Line = lambda line: None,
    progress: Progress = silent,
    weighing: Progress = silent,
    keep: bool = True,
) -> Results:
    """Choose orders on one half of the examples, judge them on the other, and write the directory.

    Args:
        settings: which model, task and examples.
        pruning: which orders.
        say: called with a line at each step.
        progress, weighing: called with the work done and the total work.
        keep: whether anything is written.

    Raises:
        OutputError: the directory cannot be written, holds results already, or unfinished work of other settings.
        SweepInterrupted: Ctrl-C; what is finished is kept, and the same call resumes.
        BertjaxError: whatever is wrong with model, data or settings.
    """
    check_settings(settings)
    settings = for_this_device(in_float32(settings))
    _check(settings)
    procedure = partial(_choose_and_judge, pruning, say, progress, keep)
    return run_derived(
        settings, procedure, Analysis("pruning", pruning.recorded), say=say, weighing=weighing, keep=keep
    )


def _choose_and_judge(pruning: PruneOptions, say: Line, progress: Progress, keep: bool, job: Job) -> Outcome:
    """The outputs of a job's model at points of all orders."""
    choosing, judging = _parts(job, pruning)
    check_scorable(judging)
    chosen_on = 0 if choosing is judging else len(choosing.examples)
    if chosen_on:
        check_scorable(choosing)
    _say_how_long(choosing, judging, pruning, say)
    if chosen_on:
        say(f"{len(choosing.examples):,} examples choose the orders, {len(judging.examples):,} others judge them")
    if keep:
        say(f"results go to {job.settings.directory}")
    chooser = _Chooser(choosing, pruning, say, progress, keep)
    orders, gates = chooser.orders(), chooser.gates()
    runs, named = _runs(judging, orders, pruning.points)
    runs += [
        ablation(judging.model.config, learned.closed, job.settings.mode, learned.run)
        for learned in gates
        if learned.run
    ]
    if not runs:
        raise InputError("all gates stay open at these prices: give higher ones, or another order too")
    judging = replace(judging, ablations=runs)
    means = means_of(judging)
    say(f"judging {count_of(len(runs), 'set')}")
    journal = job.settings.directory / "pruning-judged" if keep else None
    result = sweep_job(judging, means, say, progress, journal)
    assert result is not None
    check_finite(runs, result, journal)
    points = heads_left(len(chooser.heads), pruning.points)
    told = {"gradient_share": pruning.gradient_share, "greedy_share": pruning.greedy_share, "points": points}
    described = [_describe(order, named[order.name]) for order in orders]
    learned = {"gates": [learned.describe() for learned in gates]} if gates else {}
    more = {"pruning": {"chosen_on": chosen_on, **told, "orders": described, **learned}}
    return Outcome(judging, level_out(result), means, more)


def _say_how_long(choosing: Job, judging: Job, pruning: PruneOptions, say: Line) -> None:
    """Say how long all of it takes, before anything is run."""
    parts = _seconds(choosing, judging, pruning)
    shown = ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in parts.items())
    say(f"about {format_duration(sum(parts.values()))} in all ({shown}); {ON_TOP}")


def _seconds(choosing: Job, judging: Job, pruning: PruneOptions) -> dict[str, float]:
    """How long each order takes to choose, and all of them to judge.

    The orders are not known yet; orders at random cost about as much to judge.
    """
    heads, rng = every_head(judging.model.config), np.random.default_rng(0)
    count = len({*pruning.orders} & {*NESTED, "reversed"}) + pruning.draws * ("random" in pruning.orders)
    drawn = [Order(f"random {n}", tuple(heads[i] for i in rng.permutation(len(heads)))) for n in range(count)]
    runs, _ = _runs(judging, drawn, pruning.points)
    if "gates" in pruning.orders:
        sets = [rng.permutation(len(heads))[: len(heads) // 2] for _ in pruning.strengths]
        runs += [ablation(judging.model.config, [heads[i] for i in one], judging.settings.mode) for one in sets]
    judged = estimate_runs(judging, runs)
    tokens = int(choosing.encoded.lengths.sum())
    back = PASSES * judged.plain_seconds / (judged.ablations + 1) / judged.tokens  # of a token, forward and back
    parts = dict[str, float]()
    if "gradient" in pruning.orders:
        parts["gradient"] = back * tokens * len(steps_of(len(heads), pruning.gradient_share))
    if "greedy" in pruning.orders:
        sweeps = sum(steps_of(len(heads), pruning.greedy_share)) / len(heads)
        parts["greedy"] = sweeps * estimate_runs(choosing, choosing.ablations).seconds
    if "gates" in pruning.orders:
        steps = len(pruning.strengths) * pruning.learning.steps
        parts["gates"] = back * min(tokens, pruning.learning.tokens) * steps
    return {**parts, f"judging {count_of(len(runs), 'set')}": judged.seconds}


def _describe(order: Order, runs: Mapping[str, str]) -> dict[str, Any]:
    """An order in a summary."""
    return {"name": order.name, "heads": [f"{layer}.{head}" for layer, head in order.heads], "runs": dict(runs)}


def _check(settings: Settings) -> None:
    """Raise `InputError` for what pruning does not have."""
    if settings.ablate != "heads" or settings.heads or settings.screen is not None:
        raise InputError("pruning takes all heads: leave out which to ablate")
    if settings.shard:
        raise InputError("pruning cannot be sharded: each step needs all examples; leave --shard out")
    if settings.engine != "fast" or settings.precision == "bfloat16":
        raise InputError("pruning is computed by the fast engine, with --precision float32")


def _parts(job: Job, pruning: PruneOptions) -> tuple[Job, Job]:
    """The job on a half of its examples that is drawn, and on the other; on all, where no order needs any to choose."""
    if not {"gradient", "greedy", "gates"} & {*pruning.orders}:
        return job, job
    count = len(job.examples)
    if count < 4:
        raise InputError(f"{count_of(count, 'example')} cannot both choose and judge: give four at least")
    order = np.random.default_rng(job.settings.seed).permutation(count)
    halves = []
    for part, called in ((order[: count // 2], "choosing"), (order[count // 2 :], "judging")):
        examples = job.examples.take(np.sort(part).tolist())
        examples = replace(examples, source=f"{examples.source}, the {called} half")
        own, encoded = encode(job.settings, job.model, job.tokenizer, examples)
        halves.append(replace(job, examples=own, encoded=encoded))
    return halves[0], halves[1]


class _Chooser:
    """Makes the orders, on the examples that choose."""

    def __init__(self, job: Job, pruning: PruneOptions, say: Line, progress: Progress, keep: bool):
        self.job, self.pruning, self.say, self.progress, self.keep = job, pruning, say, progress, keep
        self.heads = every_head(job.model.config)
        self.means = means_of(job)
        self.steps = 0

    def orders(self) -> list[Order]:
        """All orders that are asked for."""
        found: list[Order] = []
        makers = {"gradient": self._by_gradient, "greedy": self._by_greedy, "magnitude": self._by_magnitude}
        for name in self.pruning.orders:
            if name in makers:
                found.append(Order(name, tuple(makers[name]())))
        rng = np.random.default_rng([self.job.settings.seed, 1])
        if "reversed" in self.pruning.orders:
            found.append(Order(f"{found[0].name} reversed", found[0].heads[::-1]))
        if "random" in self.pruning.orders:
            drawn = [rng.permutation(len(self.heads)) for _ in range(self.pruning.draws)]
            found += [Order(f"random {n}", tuple(self.heads[place] for place in one)) for n, one in enumerate(drawn)]
        return found

    def gates(self) -> list[LearnedGates]:
        """Learned gates, if they are asked for."""
        if "gates" not in self.pruning.orders:
            return []
        strengths, learning = self.pruning.strengths, self.pruning.learning
        journal = self.job.settings.directory / "pruning-gates" if self.keep else None
        return learn_gates(
            self.job, strengths, learning, self.means, say=self.say, progress=self.progress, journal=journal
        )

    def _by_gradient(self) -> list[tuple[int, int]]:
        self.say("order by gradients")
        costs = gradient_costs(self.job.model, self.job.encoded, self.job.settings.mode, self.means)
        return order_by(costs, self.heads, self.pruning.gradient_share)

    def _by_magnitude(self) -> list[tuple[int, int]]:
        sizes = magnitudes(self.job.model)
        return sorted(self.heads, key=lambda head: sizes[head])

    def _by_greedy(self) -> list[tuple[int, int]]:
        share = self.pruning.greedy_share
        self.say(f"order by exact losses, {100 * share:.3g} % of heads at a step")
        return order_by(self._exact_costs, self.heads, share)

    def _exact_costs(
        self, gone: Sequence[tuple[int, int]], left: Sequence[tuple[int, int]]
    ) -> Float[np.ndarray, " heads"]:
        """The mean loss without each head that is left, where others are gone."""
        job, settings = self.job, self.job.settings
        runs = [ablation(job.model.config, [*gone, head], settings.mode) for head in left]
        total = float(len(self.heads))

        def report(done: float, all_of_it: float) -> None:
            self.progress(len(gone) + done / all_of_it, total)

        losses = ablated_losses(
            job.model,
            job.encoded,
            runs,
            means=self.means,
            memory=settings.memory_budget,
            attention=settings.attention,
            journal=settings.directory / f"pruning-{self.steps:05d}" if self.keep else None,
            replace_journal=settings.overwrite,
            settings=settings.compared() | {"greedy_share": self.pruning.greedy_share},
            progress=report,
        )
        self.steps += 1
        return np.asarray(np.nanmean(losses[1:], axis=1))


def _runs(job: Job, orders: Sequence[Order], points: int) -> tuple[list[Ablation], dict[str, dict[str, str]]]:
    """The sets that are gone at each point of each order, and of each order by how many are left the set's name."""
    runs: list[Ablation] = []
    named: dict[str, dict[str, str]] = {}
    for order in orders:
        named[order.name] = {}
        for left in heads_left(len(order.heads), points):
            name = f"{order.name}: {left}" if order.name.startswith("random") else f"{order.name} {left}"
            gone = order.heads[: len(order.heads) - left]
            runs.append(ablation(job.model.config, gone, job.settings.mode, name))
            named[order.name][str(left)] = name
    return runs, named
