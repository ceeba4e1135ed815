"""Pruning: how many heads can be removed, and in which order. `Study.prune`, `bertjax prune`.

One half of the examples chooses the orders, the other half scores them: on the examples that chose it, an order would
look better than it is. The sets of heads that are removed at some points of each order are run as one sweep; the
summary says which set belongs to which order.

Michel et al. 2019 (section 4) remove heads in the order of their importance by gradients, a tenth of all at a time, as
it was at the start. Here importance is computed again after each step, for the heads that are left. The greedy order
removes at each step the heads whose removal increases the exact loss least; each step is a sweep.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType

from bertjax import arguments
from bertjax.analyses.gradients import head_gradients
from bertjax.analyses.learned_gates import LearnedGates, Learning, learn_gates
from bertjax.console import PlainTable
from bertjax.engine import sweep
from bertjax.errors import InputError
from bertjax.formatting import count_of, format_duration
from bertjax.interventions import Ablation, ablation, every_head, single_heads
from bertjax.jobs import (
    NOT_COUNTED,
    Context,
    Job,
    Mode,
    Outcome,
    Positive,
    Say,
    ScoredAnalysis,
    check_scorable,
    encode,
    estimate_runs,
    means_of,
    option,
    outcome_of_sweep,
    snap_constant_outputs,
)
from bertjax.models import PretrainedModel
from bertjax.progress import Progress, silent
from bertjax.results import Results
from bertjax.tasks import EncodedDataset

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
Costs = Callable[[Sequence[tuple[int, int]], Sequence[tuple[int, int]]], Float[np.ndarray, " heads"]]
"""Takes the heads that are gone and those that are left; returns the cost of removing each head that is left."""


@dataclass(frozen=True, kw_only=True)
class Prune(ScoredAnalysis):
    """How many heads can go, and in which order.

    How many heads can be removed: orders chosen on half of the examples (by gradients, the size of weights, at
    random, and backwards; when named, by exact losses that are computed again as heads go, and learned gates), and
    the score at points of each on the other half. The total time is printed first; an interrupted run resumes.

    Args:
        mode: what replaces a head: 'zero', which `bertjax remove-heads` can do to weights, 'uniform' or 'mean'.
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

    name, word = "pruning", "pruning"
    progress_text = "pruning"
    example = "bertjax prune --task mrpc --data glue/MRPC --orders gradient magnitude random"
    own = ("orders", "gradient_share", "greedy_share", "draws", "points", "strengths", "gate_steps", "gate_rate")
    journals = "pruning-*"

    mode: Mode = "zero"
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
            arguments.check_choice(order, "order", ORDERS)
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
    def float32(self) -> bool:
        """Gradients and losses are computed in float32."""
        return True

    def run(self, context: Context) -> Outcome:
        """The outputs at points of all orders, on the examples that did not choose them."""
        choosing, scoring = _halves(context.job, self)
        check_scorable(scoring)
        chosen_on = 0 if choosing is scoring else len(choosing.examples)
        if chosen_on:
            check_scorable(choosing)
        _say_how_long(choosing, scoring, self, context.say)
        if chosen_on:
            context.say(
                f"{len(choosing.examples):,} examples choose the orders, {len(scoring.examples):,} others score them"
            )
        context.say_directory()
        chooser = _Chooser(choosing, self, context)
        orders, gates = chooser.orders(), chooser.gates()
        runs, named = _runs(scoring, orders, self.points)
        runs += [
            ablation(scoring.model.config, learned.closed, self.mode, learned.run) for learned in gates if learned.run
        ]
        if not runs:
            raise InputError("all gates stay open at these prices: give higher ones, or another order too")
        scoring = replace(scoring, ablations=runs)
        context.say(f"judging {count_of(len(runs), 'set')}")
        result, means = context.sweep(scoring, "pruning-judged")
        metadata: dict[str, Any] = {
            "chosen_on": chosen_on,
            "gradient_share": self.gradient_share,
            "greedy_share": self.greedy_share,
            "points": heads_left(len(chooser.heads), self.points),
            "orders": [_describe(order, named[order.name]) for order in orders],
        }
        metadata |= {"gates": [learned.describe() for learned in gates]} if gates else {}
        return outcome_of_sweep(scoring, snap_constant_outputs(result), means, {"pruning": metadata})

    def show(self, results: Results) -> Sequence[RenderableType]:
        """The scores along each order, and with learned gates."""
        found = results.summary["pruning"]
        both = "gates" in found and found["orders"]
        return [pruning_table(results), *([gates_table(results)] if both else [])]


@dataclass(frozen=True)
class Order:
    """Heads in the order in which they go.

    Args:
        name: one of `ORDERS`; of those at random with a number, of one backwards with the other's name.
        heads: the first that goes first.
    """

    name: str
    heads: tuple[tuple[int, int], ...]


def _say_how_long(choosing: Job, judging: Job, pruning: Prune, say: Say) -> None:
    """Say how long all of it takes, before anything is run."""
    parts = _seconds(choosing, judging, pruning)
    shown = ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in parts.items())
    say(f"about {format_duration(sum(parts.values()))} in all ({shown}); {NOT_COUNTED}")


def _seconds(choosing: Job, judging: Job, pruning: Prune) -> dict[str, float]:
    """How long each order takes to choose, and all of them to judge.

    The orders are not known yet; orders at random cost about as much to judge.
    """
    heads, rng = every_head(judging.model.config), np.random.default_rng(0)
    count = len({*pruning.orders} & {*NESTED, "reversed"}) + pruning.draws * ("random" in pruning.orders)
    drawn = [Order(f"random {n}", tuple(heads[i] for i in rng.permutation(len(heads)))) for n in range(count)]
    runs, _ = _runs(judging, drawn, pruning.points)
    if "gates" in pruning.orders:
        sets = [rng.permutation(len(heads))[: len(heads) // 2] for _ in pruning.strengths]
        runs += [
            ablation(judging.model.config, [heads[i] for i in one], judging.settings.analysis.mode) for one in sets
        ]
    judged = estimate_runs(judging, runs)
    tokens = int(choosing.encoded.lengths.sum())
    back = PASSES * judged.separate_seconds / (judged.ablations + 1) / judged.tokens  # of a token, forward and back
    parts = dict[str, float]()
    if "gradient" in pruning.orders:
        parts["gradient"] = back * tokens * len(steps_of(len(heads), pruning.gradient_share))
    if "greedy" in pruning.orders:
        sweeps = sum(steps_of(len(heads), pruning.greedy_share)) / len(heads)
        parts["greedy"] = sweeps * estimate_runs(choosing, single_heads(choosing.model.config, pruning.mode)).seconds
    if "gates" in pruning.orders:
        steps = len(pruning.strengths) * pruning.gate_steps
        parts["gates"] = back * min(tokens, Learning.tokens) * steps
    return {**parts, f"judging {count_of(len(runs), 'set')}": judged.seconds}


def _describe(order: Order, runs: Mapping[str, str]) -> dict[str, Any]:
    """An order in a summary."""
    return {"name": order.name, "heads": [f"{layer}.{head}" for layer, head in order.heads], "runs": dict(runs)}


def _halves(job: Job, pruning: Prune) -> tuple[Job, Job]:
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

    def __init__(self, job: Job, pruning: Prune, context: Context):
        self.job, self.pruning, self.context = job, pruning, context
        self.say, self.progress = context.say, context.progress
        self.heads = every_head(job.model.config)
        self.means = means_of(replace(job, ablations=single_heads(job.model.config, pruning.mode)))
        self.steps = 0

    def orders(self) -> list[Order]:
        """The chosen orders."""
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
        """Learned gates; none if `gates` is not among the orders."""
        if "gates" not in self.pruning.orders:
            return []
        learning = Learning(self.pruning.gate_steps, rate=self.pruning.gate_rate)
        journal = self.context.journal("pruning-gates")
        return learn_gates(
            self.job,
            self.pruning.strengths,
            learning,
            self.means,
            say=self.say,
            progress=self.progress,
            journal=journal,
        )

    def _by_gradient(self) -> list[tuple[int, int]]:
        self.say("order by gradients")
        costs = gradient_costs(self.job.model, self.job.encoded, self.job.settings.analysis.mode, self.means)
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
        runs = [ablation(job.model.config, [*gone, head], settings.analysis.mode) for head in left]
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
            journal=self.context.journal(f"pruning-{self.steps:05d}"),
            replace_journal=settings.analysis.overwrite,
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
            runs.append(ablation(job.model.config, gone, job.settings.analysis.mode, name))
            named[order.name][str(left)] = name
    return runs, named


def pruning_table(results: Results, metric: str | None = None) -> PlainTable:
    """Scores of each order at each point; of orders at random the mean, and the least and the most.

    Args:
        results: of `prune`.
        metric: by default the main one.
    """
    measure, described = results.measure(metric), results.summary["pruning"]
    rows = {row.name: row for row in results.rows_of(metric)}
    if not described["orders"]:
        return gates_table(results, metric)
    single = [order for order in described["orders"] if not order["name"].startswith("random")]
    drawn = [order for order in described["orders"] if order["name"].startswith("random")]
    base = next(iter(rows.values())).base
    every = len(described["orders"][0]["heads"])
    title = f"{measure.label}{f' in {measure.unit}' if measure.unit else ''}: {measure.score(base)} with all {every}"
    table = PlainTable(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("heads left", justify="right")
    for name in [order["name"] for order in single] + (["random", "from", "to"] if drawn else []):
        table.add_column(name, justify="right")
    for left in map(str, described["points"]):
        cells = [measure.score(rows[order["runs"][left]].score) for order in single]
        if drawn:
            scores = [rows[order["runs"][left]].score for order in drawn]
            known = [score for score in scores if score is not None]
            ends = (sum(known) / len(known), min(known), max(known)) if known else (None, None, None)
            cells += [measure.score(end) for end in ends]
        table.add_row(left, *cells)
    table.caption, table.caption_justify = _judged_on(results), "left"
    return table


def gates_table(results: Results, metric: str | None = None) -> PlainTable:
    """Scores with the heads whose learned gates are open, at each price.

    Args:
        results: of `prune`, with gates.
        metric: by default the main one.
    """
    measure, described = results.measure(metric), results.summary["pruning"]
    rows = {row.name: row for row in results.rows_of(metric)}
    base = next(iter(rows.values())).base
    table = PlainTable(title="Learned gates", title_justify="left", box=SIMPLE_HEAD)
    for name in ("price", "heads left", measure.label_in_unit, "change", "95 % CI"):
        table.add_column(name, justify="right")
    for learned in described["gates"]:
        row = rows.get(learned["run"])
        if row is None:  # no gate is closed
            table.add_row(f"{learned['strength']:g}", str(learned["left"]), measure.score(base), "", "")
            continue
        change = "" if row.difference is None else measure.change(row.difference)
        ends = "" if row.low is None or row.high is None else f"{measure.change(row.low)} to {measure.change(row.high)}"
        table.add_row(f"{learned['strength']:g}", str(learned["left"]), measure.score(row.score), change, ends)
    price = "price: of all open gates together, in losses of the whole model"
    table.caption, table.caption_justify = f"{price}; {_judged_on(results)}", "left"
    return table


def _judged_on(results: Results) -> str:
    """Which examples chose the orders, and which judge them."""
    chosen, counts = results.summary["pruning"]["chosen_on"], count_of(results.summary["data"]["examples"], "example")
    return f"{f'{chosen:,} other examples chose the orders; these' if chosen else 'these'} scores are of {counts}"


def order_by(costs: Costs, heads: Sequence[tuple[int, int]], share: float) -> list[tuple[int, int]]:
    """Heads in the order of their removal: at each step those that cost least among the heads that are left.

    Args:
        costs: what each head that is left is worth.
        heads: all of them.
        share: of all heads, which goes at a step; one head at least.

    >>> worth = {(0, 0): 3.0, (0, 1): 1.0, (1, 0): 2.0}
    >>> order_by(lambda gone, left: np.array([worth[head] for head in left]), list(worth), 0.1)
    [(0, 1), (1, 0), (0, 0)]
    """
    at_once, gone, left = _at_once(len(heads), share), list[tuple[int, int]](), list(heads)
    while len(left) > at_once:
        order = np.argsort(costs(gone, left), kind="stable")[:at_once].tolist()
        gone += [left[place] for place in order]
        left = [head for place, head in enumerate(left) if place not in set(order)]
    last = np.argsort(costs(gone, left), kind="stable").tolist() if len(left) > 1 else range(len(left))
    return [*gone, *(left[place] for place in last)]


def steps_of(heads: int, share: float) -> list[int]:
    """How many heads are left at each step of `order_by`.

    >>> steps_of(10, 0.3)
    [10, 7, 4, 1]
    """
    return [*range(heads, 0, -_at_once(heads, share))]


def _at_once(heads: int, share: float) -> int:
    return max(1, ceil(share * heads - 1e-9))


def gradient_costs(
    model: PretrainedModel,
    encoded: EncodedDataset,
    mode: str,
    means: Float[np.ndarray, "layers heads head_dim"] | None,
) -> Costs:
    """Importance by gradients, where some heads are gone: the mean of absolute values of examples."""

    places = {head: place for place, head in enumerate(every_head(model.config))}

    def costs(gone: Sequence[tuple[int, int]], left: Sequence[tuple[int, int]]) -> Float[np.ndarray, " heads"]:
        found = head_gradients(model, encoded, mode, means=means, gone=gone)
        importance = np.nanmean(np.abs(found.changes), axis=1)
        return np.asarray(importance[[places[head] for head in left]])

    return costs


def magnitudes(model: PretrainedModel) -> dict[tuple[int, int], float]:
    """The size of each head's weights: the Frobenius norm of what takes a value's input to the head's output.

    That is the product of the head's value and output kernels: whatever one of the two is scaled by can be undone in
    the other.
    """
    sizes = {}
    for number, layer in enumerate(model.body.encoder.applications()):
        value = np.asarray(layer.attention.value.kernel[...], np.float64)  # embed, heads, head_dim
        output = np.asarray(layer.attention.output.kernel[...], np.float64)  # heads, head_dim, embed
        products = np.einsum("ehd,ehc->hdc", value, value), np.einsum("hde,hce->hdc", output, output)
        squares = np.einsum("hdc,hdc->h", *products).tolist()
        for head, squared in zip(model.config.heads_of(number), squares, strict=True):
            sizes[number, head] = float(np.sqrt(max(squared, 0.0)))
    return sizes


def heads_left(heads: int, points: int = 10) -> list[int]:
    """How many heads are left at each point of a curve: from a part less than all down to none, about equally apart.

    >>> heads_left(12, 4)
    [9, 6, 3, 0]
    """
    counts = dict.fromkeys(round(heads * (1 - point / points)) for point in range(1, points + 1))
    return [count for count in counts if count < heads]


def ablated_losses(
    model: PretrainedModel,
    encoded: EncodedDataset,
    ablations: Sequence[Ablation],
    *,
    means: Float[np.ndarray, "layers heads head_dim"] | None = None,
    memory: int | None = None,
    attention: str = "auto",
    journal: Path | None = None,
    replace_journal: bool = False,
    settings: Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> Float[np.ndarray, "runs examples"]:
    """The task's loss of each example, without ablation and then with each; NaN of examples without a label.

    Args:
        means, memory, attention, journal, replace_journal, settings: as in `engine.sweep`.
        progress: called with the work done and the total work.

    Raises:
        InputError: outputs that have no loss.
    """
    objective = encoded.objective
    if objective is None:
        raise InputError(f"outputs of the form {encoded.form.name} have no loss")
    swept = sweep(
        model,
        [(encoding,) for encoding in encoded.encodings],
        ablations,
        objective.readout,
        at=encoded.at,
        targets=encoded.targets,
        means=means,
        memory=memory,
        attention=attention,
        journal=journal,
        replace_journal=replace_journal,
        settings=settings,
        progress=progress,
    )
    losses = np.empty((1 + len(ablations), encoded.examples))
    members = [list(encoded.numbers_of(example)) for example in range(encoded.examples)]
    for number, given in enumerate((swept.base, *swept.outputs)):
        losses[number] = [objective.grade(example, given[own])[0] for example, own in enumerate(members)]
    return losses
