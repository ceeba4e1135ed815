"""Importance of heads by gradients (Michel et al. 2019): `Study.importance`, `bertjax importance`.

One pass forward and back gives for each head and example the loss that gradients predict without the head. `trust_in`
compares the order of heads by importance with the order by exact effects.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType

from bertjax import arguments
from bertjax.analyses.gradients import NUMBERS, gradient_metrics, head_gradients
from bertjax.console import PlainTable
from bertjax.errors import InputError
from bertjax.interventions import single_heads
from bertjax.jobs import (
    NO_COMPUTE,
    Analysis,
    Context,
    Mode,
    Outcome,
    Positive,
    hash_of_weights,
    means_of,
    option,
    outcome_of_examples,
)
from bertjax.results import NumberDisplay, Results, Row, read_results
from bertjax.statistics import rank_correlation
from bertjax.tasks import OutputSpec

DEPTHS = (5, 10, 20)


@dataclass(frozen=True)
class Trust:
    """How an estimate orders heads, compared with the sizes of their exact effects.

    Args:
        correlation: Spearman's, of the estimate and the size of the exact effect.
        low, high: its 95 % interval, by drawing heads with replacement; NaN with fewer than ten.
        precision: for some k the share of the k heads of the largest estimates that are among the k of the largest
            exact effects.
        chance: for the same k what random heads would reach, k over the number of heads.
        worst: the heads whose places in the two orders are farthest apart, with both places, from 1.
    """

    correlation: float
    low: float
    high: float
    precision: dict[int, float]
    chance: dict[int, float]
    worst: tuple[tuple[str, int, int], ...]


class LossDisplay(NumberDisplay):
    """Texts with the loss that gradients predict."""

    value, note = "loss", "It is the example's loss, and what gradients predict of it without the head."


OUTPUTS = OutputSpec("gradients", called="gradients", numbers=NUMBERS, sized=1, display=LossDisplay)


@dataclass(frozen=True, kw_only=True)
class Importance(Analysis):
    """Estimate by gradients what each head does.

    What gradients say of each head, from one pass back through the model: how the task's loss would change without
    it, and the importance of Michel et al. 2019. The results are read by show, plot, report and compare. Gradients
    are estimates: --against names results of `bertjax ablate` that say how good they are.

    Args:
        mode: what replaces a head: 'zero' (Michel et al. 2019), 'uniform' attention, or its 'mean' output.
        steps: 1 for gradients of the model as it is; otherwise their mean at this number of points between the model
            and the model with all heads replaced.
        against: results of `bertjax ablate` on the same model, to compare the order of heads. In Python also
            `Results`.
    """

    name = word = "importance"
    progress_text = "gradients"
    example = "bertjax importance --task mrpc --data glue/MRPC --against mrpc-zero"
    reads = NO_COMPUTE
    own = ("steps",)
    float32 = True

    outputs = OUTPUTS
    journals = None

    mode: Mode = "zero"
    steps: Positive = option(1, "N")
    against: Any = option(None, "DIR", recorded=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.against is not None and not isinstance(self.against, Results):
            object.__setattr__(self, "against", read_results(self.against))

    @property
    def inputs(self) -> list[str]:
        """The directory of the exact effects."""
        return [] if self.against is None or self.against.directory is None else [str(self.against.directory)]

    def run(self, context: Context) -> Outcome:
        """The gradients of the task's loss, for the examples that have one."""
        job = context.job
        settings, objective = job.settings, job.encoded.objective
        if self.against is not None:
            _check_comparable(hash_of_weights(job), job.examples.task.name, self.against)
        if objective is None:
            raise InputError(f"{job.examples.task.name} has no loss whose gradients could be taken")
        name = f"{job.model.class_name} {settings.model}"
        context.say(f"{name}: gradients of the {objective.definition}, mode {self.mode}")
        heads = single_heads(job.model.config, self.mode)
        means = means_of(replace(job, ablations=heads))
        found = head_gradients(
            job.model, job.encoded, self.mode, steps=self.steps, means=means, progress=context.progress
        )
        kept = np.flatnonzero(~np.isnan(found.losses)).tolist()
        if not kept:
            raise InputError("no example has a label: there is no loss whose gradients could be taken")
        loss = {"loss": objective.definition, "unit": objective.unit, "steps": self.steps}
        return outcome_of_examples(
            job,
            OUTPUTS,
            gradient_metrics(objective.unit),
            found.outputs[:, kept],
            kept,
            heads,
            base=found.base[kept],
            means=means,
            metadata={"gradients": loss},
        )

    def show(self, results: Results) -> Sequence[RenderableType]:
        """The most important heads, and how well gradients order heads if exact effects are known."""
        tables = [importance_table(results)]
        return [*tables, trust_table(trust_in(results, self.against), self.against)] if self.against else tables


def trust_in(gradients: Results, exact: Results, metric: str = "importance") -> Trust:
    """How well gradients order heads by the size of their exact effects.

    Args:
        gradients: of `importance`.
        exact: of `ablate`, on the same model, of all heads one by one.
        metric: 'importance', 'token_importance', or 'predicted_loss', whose changes are then taken by their size.

    Raises:
        InputError: the results are not of one model's heads.
    """
    summary = gradients.summary
    _check_comparable(summary["model"]["weights_sha256"], summary["data"]["task"], exact)
    estimates = {row.name: abs(row.difference or 0.0) for row in gradients.rows_of(metric)}
    effects = {row.name: row.difference for row in exact.rows_of()}
    names: Sequence[str] = [name for name in estimates if name in effects]
    sizes = np.array([np.nan if effects[name] is None else effects[name] for name in names], np.float64)
    return compare_with_exact(names, np.array([estimates[name] for name in names]), sizes)


def _check_comparable(weights_sha256: str, task: str, exact: Results) -> None:
    """Raise `InputError` where gradients cannot be compared with these ablations."""
    summary = exact.summary
    if exact.analysis != "ablation":
        raise InputError(
            f"{exact.source} measures {exact.quantity()}, not exact effects: give results of bertjax ablate "
            "--ablate heads"
        )
    if weights_sha256 != summary["model"]["weights_sha256"]:
        raise InputError("the gradients are of another model than the ablations: give results of one")
    if task != summary["data"]["task"]:
        raise InputError(f"the gradients are of task {task}, the ablations of {summary['data']['task']}: give one task")
    if sum(entry["head"] is not None for entry in summary["ablations"]) < 2:
        raise InputError(f"{exact.source} holds no single heads: give results of bertjax ablate --ablate heads")


def importance_table(results: Results, count: int = 10) -> PlainTable:
    """The heads of the largest importance, with how gradients predict the loss to change without them.

    Args:
        results: of `importance`.
        count: how many heads are shown.
    """
    loss = results.summary["gradients"]
    changes = {row.name: row for row in results.rows_of("predicted_loss")}
    rows = sorted(results.rows_of("importance"), key=lambda row: -(row.score or 0.0))[:count]
    unit = f", in {loss['unit']}" if loss["unit"] else ""
    base = changes[rows[0].name].base
    table = PlainTable(
        title=f"Loss: {loss['loss']}{unit}; {base:.4g} as it is. Changes are to first order.",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    for name in ("head", "importance", "95 % CI", "loss change", "95 % CI"):
        table.add_column(name, justify="right")
    for row in rows:
        change = changes[row.name]
        table.add_row(
            row.name, f"{row.score:.2g}", _ends(row, "{:.2g}"), f"{change.difference:+.2g}", _ends(change, "{:+.2g}")
        )
    return table


def _ends(row: Row, form: str) -> str:
    """The ends of a row's interval; empty where it has none."""
    return "" if row.low is None or row.high is None else f"{form.format(row.low)} to {form.format(row.high)}"


def trust_table(trust: Trust, exact: Results) -> PlainTable:
    """How well gradients order heads, a line for each thing that is measured.

    Args:
        trust: what `trust_in` gives.
        exact: the results of `ablate` that it was given.
    """
    effects = f"exact effects on {exact.measure().label}, mode {exact.summary['mode']['name']}"
    table = PlainTable(
        title=f"Order of heads by gradients compared with {effects}", title_justify="left", box=SIMPLE_HEAD
    )
    table.add_column("measure")
    table.add_column("gradients", justify="right")
    table.add_column("random heads", justify="right")
    interval = "" if math.isnan(trust.low) else f" ({trust.low:.2f} to {trust.high:.2f})"
    table.add_row("rank correlation (95 % CI)", f"{trust.correlation:.2f}{interval}", "0")
    for depth, share in trust.precision.items():
        table.add_row(f"of the first {depth}, found", f"{share * depth:.0f}", f"{trust.chance[depth] * depth:.1f}")
    worst = "; ".join(f"{name}: {estimated} for {exact}" for name, estimated, exact in trust.worst)
    table.caption, table.caption_justify = f"Farthest apart (place by gradients for exact place): {worst}", "left"
    return table


def compare_with_exact(
    names: Sequence[str],
    estimate: Float[np.ndarray, " heads"],
    exact: Float[np.ndarray, " heads"],
    *,
    seed: int = 0,
    most: int = 5,
) -> Trust:
    """How well an estimate orders heads by the size of their exact effects.

    Args:
        names: of the heads.
        estimate: larger for heads that matter more.
        exact: changes of a score when each is ablated, of either sign.
        seed: of the interval.
        most: how many of the worst are named.

    Raises:
        InputError: the arrays are not of one number for each head.

    >>> trust = compare_with_exact(["0.0", "0.1", "0.2"], np.array([3.0, 2.0, 1.0]), np.array([-0.9, 0.5, 0.1]))
    >>> trust.correlation, trust.worst[0]
    (1.0, ('0.0', 1, 1))
    """
    for name, values in (("estimate", estimate), ("exact", exact)):
        if values.shape != (len(names),):
            arguments.refuse(name, f"a number for each of {len(names)} heads", values)
    sizes = np.abs(exact)
    correlation, low, high = rank_correlation(np.asarray(estimate, np.float64), sizes, seed)
    places = [_places(values) for values in (np.asarray(estimate, np.float64), sizes)]
    depths = [depth for depth in DEPTHS if depth < len(names)]
    apart = np.argsort(-np.abs(places[0] - places[1]), kind="stable")[:most]
    return Trust(
        correlation,
        low,
        high,
        {depth: float(((places[0] <= depth) & (places[1] <= depth)).sum() / depth) for depth in depths},
        {depth: depth / len(names) for depth in depths},
        tuple((names[head], int(places[0][head]), int(places[1][head])) for head in apart.tolist()),
    )


def _places(values: Float[np.ndarray, " heads"]) -> np.ndarray:
    """The place of each in descending order, from 1; what is undefined comes last."""
    order = np.argsort(-np.where(np.isnan(values), -np.inf, values), kind="stable")
    places = np.empty(len(values), np.int64)
    places[order] = np.arange(1, len(values) + 1)
    return places
