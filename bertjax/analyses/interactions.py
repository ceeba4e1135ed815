"""Interactions: for each pair of heads the effect of ablating both minus the sum of the effects of ablating each.

With v(S) the score without the heads S, the interaction of i and j is v({i, j}) - v({i}) - v({j}) + v({}): the second
difference, which is the interaction index of a pair in game theory when nothing else is missing (Grabisch and Roubens
1999). If greater scores are better, a value below 0 means that each head does what the other would have to do; above 0,
one has little to lose once the other is gone.

The sweep runs all pairs and each of their heads. What each example contributes to an interaction is kept, so that
intervals, tests and corrections over all pairs are those of any other result.
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
"""What is kept of each pair and example: the interaction, the effect of both, and the sum of the effects of each."""


class EffectDisplay(NumberDisplay):
    """Texts with what each contributes to an effect."""

    value, note = "contribution", "It is what the example contributes to the effect, which is the mean of all."


OUTPUTS = OutputSpec("interactions", called="interactions", numbers=ratios.INTERACTIONS, sized=1, display=EffectDisplay)


@dataclass(frozen=True, kw_only=True)
class Interactions(Sweep):
    """Which heads matter together, pair by pair.

    Which heads matter together: for each pair the effect of ablating both, less the sum of the effects of ablating
    each. All pairs of 144 heads are 10,296 runs: --heads takes some. The cost is printed before it runs, an
    interrupted run resumes, and the results are read by show, plot, report and compare.

    Args:
        mode: what replaces a head: 'uniform' attention, 'zero', or its 'mean' output.
        heads: pairs of these heads only, such as 3.0 or L3H0.
    """

    name = word = "interactions"
    example = "bertjax interactions --heads 3.0 3.1 5.7 --limit 200"

    outputs = OUTPUTS

    mode: Mode = "uniform"
    heads: Heads | None = option(None, "L.H")

    def prepare(self, context: Context) -> Job:
        """The job of all pairs and their heads."""
        config = context.job.model.config
        pairs = head_pairs(config, self.mode, heads=list_heads(self.heads, config))
        job = replace(context.job, ablations=with_singles(pairs))
        say_cost_of_contributions(job, 1 + len(job.ablations), context.say)
        if not context.shards:
            context.say_cost(job)
        introduce(job, context, "run")
        return job

    def finish(self, context: Context, job: Job, result: TaskResult, means: Means) -> Outcome:
        """Interactions of all pairs."""
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
    """Every head of some pairs by itself, each once, and then the pairs.

    Raises:
        InputError: a set that is no pair.
    """
    singles: dict[Ablation, None] = {}
    for pair in pairs:
        if len(pair.changes) != 2:
            raise InputError(f"set {pair.name} is no pair of heads: interactions are those of two")
        for change in pair.changes:
            singles[Ablation(f"{change.layer}.{change.head}", (change,))] = None
    return [*singles, *pairs]


def pair_interactions(
    runs: Sequence[Ablation], contributed: Float[np.ndarray, "runs examples"]
) -> Float[np.ndarray, "pairs examples three"]:
    """`INTERACTIONS` of each pair.

    Args:
        runs: what `with_singles` gave.
        contributed: what each example contributes to the score (`statistics.contributions`): without ablation, and then
            in each of the runs.

    >>> from bertjax.checkpoints import BertConfig
    >>> from bertjax.interventions import ablation
    >>> runs = with_singles([ablation(BertConfig(), ["0.0", "1.0"])])
    >>> pair_interactions(runs, np.array([[0.9], [0.8], [0.7], [0.3]])).round(6).tolist()
    [[[-0.3, -0.6, -0.3]]]
    """
    effects = contributed[1:] - contributed[0]
    places = {one.changes[0]: place for place, one in enumerate(runs) if len(one.changes) == 1}
    pairs = [place for place, one in enumerate(runs) if len(one.changes) == 2]
    alone = [[places[change] for change in runs[pair].changes] for pair in pairs]
    both, each = effects[pairs], effects[np.array(alone)].sum(axis=1)
    return np.stack([both - each, both, each], axis=-1)


def interaction_metrics(metric: Metric) -> tuple[Metric, ...]:
    """What is made of `INTERACTIONS`, in the unit of a score: interaction, effect of both, sum of the effects of each.

    Args:
        metric: whose score it is.
    """
    named = (
        ("interaction", f"Interaction ({metric.label})", "interaction"),
        ("effect_of_both", f"Effect of both ({metric.label})", "both"),
        ("sum_of_effects", f"Sum of the effects of each ({metric.label})", "sum"),
    )
    return tuple(effect_metric(metric, name, label, INTERACTIONS, number) for name, label, number in named)


def effect_metric(metric: Metric, name: str, label: str, numbers: tuple[str, ...], number: str) -> Metric:
    """The mean over examples of a number that is itself an effect on a score.

    Args:
        metric: of the score.
        numbers: what each output has.
        number: which of these.
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
