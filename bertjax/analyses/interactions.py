"""Interactions: for each pair of heads the effect of ablating both minus the sum of the effects of ablating each.

With v(S) the score without the heads S, the interaction of i and j is v({i, j}) - v({i}) - v({j}) + v({}), the
interaction index of a pair in the complete coalition (Grabisch and Roubens 1999). If greater scores are better,
a value below 0 means that each head compensates for the loss of the other; a value above 0 means that one head matters
little once the other is ablated.

The sweep runs all pairs and all of their heads. The outputs are each example's contributions to the interactions, so
that intervals, tests and corrections are computed as for other results.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from bertjax.analyses.ablate import introduce
from bertjax.errors import InputError
from bertjax.interventions import Ablation, head_pairs, list_heads
from bertjax.jobs import (
    Context,
    Heads,
    Job,
    Means,
    Mode,
    Outcome,
    Sweep,
    contributions_of,
    describe_score,
    option,
    outcome_of_examples,
    say_cost_of_contributions,
)
from bertjax.results import NumberDisplay
from bertjax.statistics import Metric, ratios
from bertjax.tasks import OutputSpec, TaskResult

INTERACTIONS = ratios.INTERACTIONS
"""The names of the numbers of each pair and example: the interaction, the effect of both, the sum of both effects."""


class EffectDisplay(NumberDisplay):
    """Texts with their contribution to an effect."""

    value, note = "contribution", "It is what the example contributes to the effect, which is the mean of all."


OUTPUTS = OutputSpec("interactions", called="interactions", numbers=ratios.INTERACTIONS, sized=1, display=EffectDisplay)


@dataclass(frozen=True, kw_only=True)
class Interactions(Sweep):
    """Measure interactions between pairs of heads.

    The interaction of a pair is the effect of ablating both heads, minus the sum of the effects of ablating each. All
    pairs of 144 heads are 10,296 runs: --heads selects heads. The estimated time is printed first, an interrupted run
    resumes, and the commands show, plot, report and compare read the results.

    Args:
        mode: what replaces a head: 'uniform' attention, 'zero', or its 'mean' output.
        heads: the heads whose pairs are ablated, such as 3.0 or L3H0; by default all.
    """

    name = word = "interactions"
    example = "bertjax interactions --heads 3.0 3.1 5.7 --limit 200"

    outputs = OUTPUTS

    mode: Mode = "uniform"
    heads: Heads | None = option(None, "L.H")

    def prepare(self, context: Context) -> Job:
        """Make the job of all pairs and their heads."""
        config = context.job.model.config
        pairs = head_pairs(config, self.mode, heads=list_heads(self.heads, config))
        job = replace(context.job, ablations=with_singles(pairs))
        say_cost_of_contributions(job, 1 + len(job.ablations), context.say)
        if not context.shards:
            context.say_cost(job)
        introduce(job, context, "run")
        return job

    def finish(self, context: Context, job: Job, result: TaskResult, means: Means) -> Outcome:
        """Compute the interactions of all pairs."""
        kept, contributed = contributions_of(job, result)
        return outcome_of_examples(
            job,
            OUTPUTS,
            interaction_metrics(job.metrics[0]),
            pair_interactions(job.ablations, contributed),
            kept.tolist(),
            [one for one in job.ablations if len(one.changes) == 2],
            means=means,
            metadata={"derived": describe_score(job, contributed)},
        )


def with_singles(pairs: Sequence[Ablation]) -> list[Ablation]:
    """The single heads of some pairs, each once, followed by the pairs.

    Raises:
        InputError: a set is not a pair.
    """
    singles: dict[Ablation, None] = {}
    for pair in pairs:
        if len(pair.changes) != 2:
            raise InputError(f"set {pair.name} is not a pair of heads: interactions need pairs")
        for change in pair.changes:
            singles[Ablation(f"{change.layer}.{change.head}", (change,))] = None
    return [*singles, *pairs]


def pair_interactions(
    runs: Sequence[Ablation], contributed: Float[np.ndarray, "runs examples"]
) -> Float[np.ndarray, "pairs examples three"]:
    """`INTERACTIONS` of each pair.

    Args:
        runs: the result of `with_singles`.
        contributed: each example's contribution to the score (`statistics.contributions`), without ablation and then in
            each run.

    >>> from bertjax.checkpoints import BertConfig
    >>> from bertjax.interventions import ablation
    >>> runs = with_singles([ablation(BertConfig(), ["0.0", "1.0"])])
    >>> pair_interactions(runs, np.array([[0.9], [0.8], [0.7], [0.3]])).round(6).tolist()
    [[[-0.3, -0.6, -0.3]]]
    """
    effects = contributed[1:] - contributed[0]
    singles = {one.changes[0]: run for run, one in enumerate(runs) if len(one.changes) == 1}
    pairs = [run for run, one in enumerate(runs) if len(one.changes) == 2]
    members = [[singles[change] for change in runs[pair].changes] for pair in pairs]
    both, each = effects[pairs], effects[np.array(members)].sum(axis=1)
    return np.stack([both - each, both, each], axis=-1)


def interaction_metrics(metric: Metric) -> tuple[Metric, ...]:
    """The metrics of `INTERACTIONS`: interaction, effect of both, and sum of both effects, in the unit of a score.

    Args:
        metric: the metric of the score.
    """
    named = (
        ("interaction", f"Interaction ({metric.label})", "interaction"),
        ("effect_of_both", f"Effect of both ({metric.label})", "both"),
        ("sum_of_effects", f"Sum of the effects of each ({metric.label})", "sum"),
    )
    return tuple(effect_metric(metric, name, label, INTERACTIONS, number) for name, label, number in named)


def effect_metric(metric: Metric, name: str, label: str, numbers: tuple[str, ...], number: str) -> Metric:
    """A metric that is the mean over examples of an effect on a score.

    Args:
        metric: the metric of the score.
        numbers: the names of the numbers of each output.
        number: the name of the effect.
    """
    # Interactions and sums of two effects are sums of two differences of scores.
    most = (2 if number in ("interaction", "sum") else 1) * (metric.highest - metric.lowest)
    return Metric.of_sums(
        name,
        label,
        ratios.mean_number(numbers, number),
        lowest=-most,
        highest=most,
        unit=metric.unit,
        greater_is_better=metric.greater_is_better,
        of_effects=True,
    )
