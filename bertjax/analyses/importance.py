"""Importance of heads by gradients (Michel et al. 2019): `Study.importance`, `bertjax importance`.

One forward and one backward pass predict the loss without each head. `trust_in` compares the order of heads by
importance with their order by exact effects.
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
SHOWN, WORST = 10, 5  # heads in the table; heads on which gradients and exact effects differ most


@dataclass(frozen=True)
class Trust:
    """Agreement between the order of heads by an estimate and by the size of their exact effects.

    Args:
        correlation: Spearman's rank correlation.
        low: lower end of its 95 % interval by bootstrap over heads; NaN with fewer than ten heads.
        high: upper end of this interval; NaN with fewer than ten heads.
        precision: for each k, the share of the k heads with the largest estimates that are among the k heads with the
            largest exact effects.
        chance: the expected precision of random heads, for each k.
        worst: the heads whose ranks differ most: name, rank by estimate and rank by exact effect, from 1.
    """

    correlation: float
    low: float
    high: float
    precision: dict[int, float]
    chance: dict[int, float]
    worst: tuple[tuple[str, int, int], ...]


class LossDisplay(NumberDisplay):
    """Texts with the loss predicted by gradients."""

    value, note = "loss", "It is the example's loss, and what gradients predict of it without the head."


OUTPUTS = OutputSpec("gradients", called="gradients", numbers=NUMBERS, sized=1, display=LossDisplay)


@dataclass(frozen=True, kw_only=True)
class Importance(Analysis):
    """Estimate the effect of each head by gradients.

    One backward pass estimates for each head how the task's loss changes without it, and the importance of Michel et
    al. 2019. The commands show, plot, report and compare read the results. Gradients are estimates: --against compares
    them with the exact effects of `bertjax ablate`.

    Args:
        mode: what replaces a head: 'zero' (Michel et al. 2019), 'uniform' attention, or its 'mean' output.
        steps: 1 for gradients of the unchanged model; otherwise their mean at this number of points between the model
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
        """The directory of the exact effects, if any."""
        return [] if self.against is None or self.against.directory is None else [str(self.against.directory)]

    def run(self, context: Context) -> Outcome:
        """Compute the gradients of the task's loss on the examples that have a label."""
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
        """The most important heads, and the agreement with exact effects if they are known."""
        tables = [importance_table(results)]
        return [*tables, trust_table(trust_in(results, self.against), self.against)] if self.against else tables


def trust_in(gradients: Results, exact: Results) -> Trust:
    """Compare the order of heads by gradients with their order by the size of exact effects.

    Args:
        gradients: results of `importance`.
        exact: results of `ablate` for the single heads of the same model.

    Raises:
        InputError: the results are not those of the heads of one model.
    """
    summary = gradients.summary
    _check_comparable(summary["model"]["weights_sha256"], summary["data"]["task"], exact)
    estimates = {row.name: abs(row.difference or 0.0) for row in gradients.rows_of("importance")}
    effects = {row.name: row.difference for row in exact.rows_of()}
    names: Sequence[str] = [name for name in estimates if name in effects]
    sizes = np.array([np.nan if effects[name] is None else effects[name] for name in names], np.float64)
    return compare_with_exact(names, np.array([estimates[name] for name in names]), sizes)


def _check_comparable(weights_sha256: str, task: str, exact: Results) -> None:
    """Raise `InputError` if gradients cannot be compared with these ablations."""
    summary = exact.summary
    if exact.analysis != "ablation":
        raise InputError(
            f"{exact.source} measures {exact.quantity()}, not exact effects: give results of bertjax ablate "
            "--ablate heads"
        )
    if weights_sha256 != summary["model"]["weights_sha256"]:
        raise InputError("the gradients and the ablations are those of different models: give results of one model")
    if task != summary["data"]["task"]:
        raise InputError(
            f"the gradients are those of task {task}, the ablations those of {summary['data']['task']}: give one task"
        )
    if sum(entry["head"] is not None for entry in summary["ablations"]) < 2:
        raise InputError(f"{exact.source} holds no single heads: give results of bertjax ablate --ablate heads")


def importance_table(results: Results) -> PlainTable:
    """Table of the most important heads, with the predicted change of the loss without them.

    Args:
        results: results of `importance`.
    """
    loss = results.summary["gradients"]
    changes = {row.name: row for row in results.rows_of("predicted_loss")}
    rows = sorted(results.rows_of("importance"), key=lambda row: -(row.score or 0.0))[:SHOWN]
    unit = f", in {loss['unit']}" if loss["unit"] else ""
    base = changes[rows[0].name].base
    table = PlainTable(
        title=f"Loss: {loss['loss']}{unit}; {base:.4g} without ablation. Changes are to first order.",
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
    """The ends of a row's interval; empty if it has none."""
    return "" if row.low is None or row.high is None else f"{form.format(row.low)} to {form.format(row.high)}"


def trust_table(trust: Trust, exact: Results) -> PlainTable:
    """Table of the agreement between gradients and exact effects.

    Args:
        trust: the result of `trust_in`.
        exact: the results of `ablate`.
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
    table.caption, table.caption_justify = f"Largest differences (rank by gradients for exact rank): {worst}", "left"
    return table


def compare_with_exact(
    names: Sequence[str],
    estimate: Float[np.ndarray, " heads"],
    exact: Float[np.ndarray, " heads"],
) -> Trust:
    """Compare the order of heads by an estimate with their order by the size of exact effects.

    Args:
        names: the names of the heads.
        estimate: larger for heads that matter more.
        exact: the change of a score when each head is ablated.

    Raises:
        InputError: the arrays do not have one number for each head.

    >>> trust = compare_with_exact(["0.0", "0.1", "0.2"], np.array([3.0, 2.0, 1.0]), np.array([-0.9, 0.5, 0.1]))
    >>> trust.correlation, trust.worst[0]
    (1.0, ('0.0', 1, 1))
    """
    from scipy.stats import rankdata

    for name, values in (("estimate", estimate), ("exact", exact)):
        if values.shape != (len(names),):
            arguments.refuse(name, f"a number for each of {len(names)} heads", values)
    sizes = np.abs(exact)
    correlation, low, high = rank_correlation(np.asarray(estimate, np.float64), sizes)
    ranks = [rankdata(-np.nan_to_num(values, nan=-np.inf), "ordinal") for values in (estimate, sizes)]
    depths = [depth for depth in DEPTHS if depth < len(names)]
    apart = np.argsort(-np.abs(ranks[0] - ranks[1]), kind="stable")[:WORST]
    return Trust(
        correlation,
        low,
        high,
        {depth: float(((ranks[0] <= depth) & (ranks[1] <= depth)).sum() / depth) for depth in depths},
        {depth: depth / len(names) for depth in depths},
        tuple((names[head], int(ranks[0][head]), int(ranks[1][head])) for head in apart.tolist()),
    )
