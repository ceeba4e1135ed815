"""Pruning: how many heads can be removed, and in which order. `Study.prune`, `bertjax prune`.

One half of the examples chooses the orders, and the other half scores them, since an order looks too good on the
examples that chose it. The sets of heads removed at some points of all orders are run as one sweep.

Michel et al. 2019 (section 4) remove heads in the order of their initial importance by gradients, a tenth of all heads
at a time. Here importance is computed again after each step, for the remaining heads. The greedy order removes at each
step the heads whose removal increases the exact loss least; each step is a sweep.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
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
from bertjax.progress import Progress, part_of, silent
from bertjax.results import Results
from bertjax.tasks import EncodedDataset

# The orders in which heads are removed.
ORDERS = ("gradient", "greedy", "magnitude", "gates", "random", "reversed")
# The default orders: greedy orders and gates take minutes where these take seconds.
QUICK = ("gradient", "magnitude", "random", "reversed")
NESTED = ("gradient", "greedy", "magnitude")
"""Orders of single heads; gates close a set of heads at each price."""
OF_ORDER = {
    **{"gradient_share": "gradient", "greedy_share": "greedy", "draws": "random"},
    **{"strengths": "gates", "gate_steps": "gates", "gate_rate": "gates"},
}
"""The order that each option belongs to."""
PASSES = 2.5  # forward passes that take as long as a forward and a backward pass
Orders = dict[str, list[tuple[int, int]]]
Costs = Callable[[Sequence[tuple[int, int]], Sequence[tuple[int, int]]], Float[np.ndarray, " heads"]]
"""Takes the removed and the remaining heads; returns the cost of removing each remaining head."""


@dataclass(frozen=True, kw_only=True)
class Prune(ScoredAnalysis):
    """Measure how many heads can be removed, and in which order.

    Half of the examples chooses orders of removal: by gradients, by the size of weights, at random and reversed; on
    request also by exact losses and by learned gates. The other half scores points of each order. The estimated time is
    printed first, and an interrupted run resumes.

    Args:
        mode: what replaces a head: 'zero' (`bertjax remove-heads` applies it to weights), 'uniform' or 'mean'.
        orders: the orders of removal: gradient, greedy (exact losses), magnitude, gates, random, reversed (the first of
            gradient, greedy and magnitude, reversed). Greedy and gates take minutes.
        gradient_share: the share of all heads that is removed before gradients are computed again.
        greedy_share: the share of all heads that is removed before exact losses are computed again.
        draws: the number of random orders.
        points: the number of points of each order that are scored.
        strengths: the prices at which gates are learned: the cost of all open gates, in losses of the full model.
        gate_steps: the number of training steps of the gates at each price.
        gate_rate: the initial learning rate of the gates; it decays to 0 as a cosine.

    Raises:
        InputError: the orders allow no comparison, or an option belongs to an order that is not used.
    """

    name, word = "pruning", "pruning"
    progress_text = "pruning"
    example = "bertjax prune --task mrpc --data glue/MRPC --orders gradient magnitude random"
    own = ("orders", "gradient_share", "greedy_share", "draws", "points", "strengths", "gate_steps", "gate_rate")
    journals = "pruning-*"
    float32 = True

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
            raise InputError("random and reversed orders need another order to compare with: give one")
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
                raise InputError(f"{flag} belongs to the order {order}: add {order} to --orders, or leave {flag} out")

    def run(self, context: Context) -> Outcome:
        """Compute the outputs at points of all orders, on the examples that did not choose them."""
        choosing, scoring = _halves(context.job, self)
        check_scorable(scoring)
        chosen_on = 0 if choosing is scoring else len(choosing.examples)
        if chosen_on:
            check_scorable(choosing)
        seconds = _seconds(choosing, scoring, self)
        parts = ", ".join(f"{name} {format_duration(some)}" for name, some in seconds.items())
        context.say(f"about {format_duration(sum(seconds.values()))} in all ({parts}); {NOT_COUNTED}")
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
            "orders": [
                {"name": name, "heads": [f"{layer}.{head}" for layer, head in heads], "runs": named[name]}
                for name, heads in orders.items()
            ],
        }
        metadata |= {"gates": [learned.describe() for learned in gates]} if gates else {}
        return outcome_of_sweep(scoring, snap_constant_outputs(result), means, {"pruning": metadata})

    def show(self, results: Results) -> Sequence[RenderableType]:
        """The scores of each order, and of learned gates."""
        found = results.summary["pruning"]
        both = "gates" in found and found["orders"]
        return [pruning_table(results), *([gates_table(results)] if both else [])]


def _seconds(choosing: Job, judging: Job, pruning: Prune) -> dict[str, float]:
    """Estimate the seconds for choosing each order, and for scoring all of them.

    The orders are not known yet; scoring random orders takes about as long.
    """
    heads, rng = every_head(judging.model.config), np.random.default_rng(0)
    count = len({*pruning.orders} & {*NESTED, "reversed"}) + pruning.draws * ("random" in pruning.orders)
    drawn = {f"random {n}": [heads[i] for i in rng.permutation(len(heads))] for n in range(count)}
    runs, _ = _runs(judging, drawn, pruning.points)
    if "gates" in pruning.orders:
        sets = [rng.permutation(len(heads))[: len(heads) // 2] for _ in pruning.strengths]
        runs += [
            ablation(judging.model.config, [heads[i] for i in one], judging.settings.analysis.mode) for one in sets
        ]
    judged = estimate_runs(judging, runs)
    tokens = int(choosing.encoded.lengths.sum())
    back = PASSES * judged.separate_seconds / (judged.ablations + 1) / judged.tokens  # for a token
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


def _halves(job: Job, pruning: Prune) -> tuple[Job, Job]:
    """The jobs of two random halves of the examples; of all examples if no order needs examples."""
    if not {"gradient", "greedy", "gates"} & {*pruning.orders}:
        return job, job
    count = len(job.examples)
    if count < 4:
        raise InputError(f"{count_of(count, 'example')} cannot both choose and score orders: give at least four")
    order = np.random.default_rng(job.settings.seed).permutation(count)
    halves = []
    for part, called in ((order[: count // 2], "choosing"), (order[count // 2 :], "judging")):
        examples = job.examples.take(np.sort(part).tolist())
        examples = replace(examples, source=f"{examples.source}, the {called} half")
        readable, encoded = encode(job.settings, job.model, job.tokenizer, examples)
        halves.append(replace(job, examples=readable, encoded=encoded))
    return halves[0], halves[1]


class _Chooser:
    """Makes the orders from the examples that choose them."""

    def __init__(self, job: Job, pruning: Prune, context: Context):
        self.job, self.pruning, self.context = job, pruning, context
        self.say, self.progress = context.say, context.progress
        self.heads = every_head(job.model.config)
        self.means = means_of(replace(job, ablations=single_heads(job.model.config, pruning.mode)))
        self.steps = 0

    def orders(self) -> Orders:
        """The heads of each order, those removed first at the beginning."""
        makers = {"gradient": self._by_gradient, "greedy": self._by_greedy, "magnitude": self._by_magnitude}
        found: Orders = {name: makers[name]() for name in self.pruning.orders if name in makers}
        rng = np.random.default_rng([self.job.settings.seed, 1])
        if "reversed" in self.pruning.orders:
            first = next(iter(found))
            found[f"{first} reversed"] = found[first][::-1]
        if "random" in self.pruning.orders:
            drawn = [rng.permutation(len(self.heads)) for _ in range(self.pruning.draws)]
            found |= {f"random {n}": [self.heads[index] for index in one] for n, one in enumerate(drawn)}
        return found

    def gates(self) -> list[LearnedGates]:
        """The learned gates; none if 'gates' is not among the orders."""
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
        return sorted(self.heads, key=magnitudes(self.job.model).__getitem__)

    def _by_greedy(self) -> list[tuple[int, int]]:
        share = self.pruning.greedy_share
        self.say(f"order by exact losses, {100 * share:.3g} % of heads at a step")
        return order_by(self._exact_costs, self.heads, share)

    def _exact_costs(
        self, gone: Sequence[tuple[int, int]], left: Sequence[tuple[int, int]]
    ) -> Float[np.ndarray, " heads"]:
        """The mean loss without each remaining head, in addition to the removed heads."""
        job, settings = self.job, self.job.settings
        runs = [ablation(job.model.config, [*gone, head], settings.analysis.mode) for head in left]
        options = settings.sweep_options(self.context.journal(f"pruning-{self.steps:05d}"))
        options["settings"] |= {"greedy_share": self.pruning.greedy_share}
        report = part_of(self.progress, len(gone), 1.0, float(len(self.heads)))
        losses = ablated_losses(job.model, job.encoded, runs, means=self.means, progress=report, **options)
        self.steps += 1
        return np.asarray(np.nanmean(losses[1:], axis=1))


def _runs(job: Job, orders: Orders, points: int) -> tuple[list[Ablation], dict[str, dict[str, str]]]:
    """The sets that are removed at each point of each order, and their names by order and number of heads left."""
    runs: list[Ablation] = []
    named: dict[str, dict[str, str]] = {}
    for order, heads in orders.items():
        named[order] = {}
        for left in heads_left(len(heads), points):
            name = f"{order}: {left}" if order.startswith("random") else f"{order} {left}"
            runs.append(ablation(job.model.config, heads[: len(heads) - left], job.settings.analysis.mode, name))
            named[order][str(left)] = name
    return runs, named


def pruning_table(results: Results) -> PlainTable:
    """Table of the score of each order at each point; for random orders the mean and the range.

    Args:
        results: results of `prune`.
    """
    measure, described = results.measure(), results.summary["pruning"]
    rows = {row.name: row for row in results.rows_of()}
    if not described["orders"]:
        return gates_table(results)
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


def gates_table(results: Results) -> PlainTable:
    """Table of the scores with learned gates, at each price.

    Args:
        results: results of `prune` with gates.
    """
    measure, described = results.measure(), results.summary["pruning"]
    rows = {row.name: row for row in results.rows_of()}
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
    price = "price: of all open gates, in losses of the full model"
    table.caption, table.caption_justify = f"{price}; {_judged_on(results)}", "left"
    return table


def _judged_on(results: Results) -> str:
    """A sentence about the examples that chose and scored the orders."""
    chosen, counts = results.summary["pruning"]["chosen_on"], count_of(results.summary["data"]["examples"], "example")
    return f"{f'{chosen:,} other examples chose the orders; these' if chosen else 'these'} scores are of {counts}"


def order_by(costs: Costs, heads: Sequence[tuple[int, int]], share: float) -> list[tuple[int, int]]:
    """Order heads by removing those with the lowest cost, step by step.

    Args:
        costs: computes the cost of each remaining head.
        heads: all heads.
        share: the share of all heads that is removed at each step; at least one head.

    >>> worth = {(0, 0): 3.0, (0, 1): 1.0, (1, 0): 2.0}
    >>> order_by(lambda gone, left: np.array([worth[head] for head in left]), list(worth), 0.1)
    [(0, 1), (1, 0), (0, 0)]
    """
    at_once, gone, left = _at_once(len(heads), share), list[tuple[int, int]](), list(heads)
    while len(left) > at_once:
        order = np.argsort(costs(gone, left), kind="stable")[:at_once].tolist()
        gone += [left[index] for index in order]
        left = [head for index, head in enumerate(left) if index not in set(order)]
    last = np.argsort(costs(gone, left), kind="stable").tolist() if len(left) > 1 else range(len(left))
    return [*gone, *(left[index] for index in last)]


def steps_of(heads: int, share: float) -> list[int]:
    """The number of heads left at each step of `order_by`.

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
    """Importance of the remaining heads by gradients: the mean over examples of absolute values."""
    row_of = {head: row for row, head in enumerate(every_head(model.config))}

    def costs(gone: Sequence[tuple[int, int]], left: Sequence[tuple[int, int]]) -> Float[np.ndarray, " heads"]:
        found = head_gradients(model, encoded, mode, means=means, gone=gone)
        importance = np.nanmean(np.abs(found.changes), axis=1)
        return np.asarray(importance[[row_of[head] for head in left]])

    return costs


def magnitudes(model: PretrainedModel) -> dict[tuple[int, int], float]:
    """The size of each head's weights: the Frobenius norm of the product of its value and output kernels.

    The product does not change if one kernel is scaled up and the other one is scaled down.
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
    """The number of heads left at each point of a curve, about equally spaced, down to 0.

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
    progress: Progress = silent,
    **options: Any,
) -> Float[np.ndarray, "runs examples"]:
    """The task's loss of each example without ablation and with each ablation; NaN for examples without a label.

    Args:
        progress: called with the work done and the total work.
        options: further arguments of `engine.sweep`.

    Raises:
        InputError: the outputs have no loss.
    """
    objective = encoded.objective
    if objective is None:
        raise InputError(f"outputs of the form {encoded.form.name} have no loss")
    texts = [(encoding,) for encoding in encoded.encodings]
    inputs: dict[str, Any] = {"at": encoded.at, "targets": encoded.targets}
    swept = sweep(model, texts, ablations, objective.readout, **inputs, progress=progress, **options)
    losses = np.empty((1 + len(ablations), encoded.examples))
    members = [list(encoded.numbers_of(example)) for example in range(encoded.examples)]
    for number, outputs in enumerate((swept.base, *swept.outputs)):
        losses[number] = [objective.grade(example, outputs[own])[0] for example, own in enumerate(members)]
    return losses
