"""Which heads matter together: the effect of ablating two, less the sum of the effects of ablating each.

With v(S) the score without the heads S, the interaction of i and j is v({i, j}) - v({i}) - v({j}) + v({}): the second
difference that game theory calls the interaction index of a pair where nothing else is missing (Grabisch and Roubens
1999). Where greater scores are better and it is below 0, losing both costs more than their losses by themselves: each
does what the other would have to do. Above 0, one has little to lose once the other is gone.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from bertjax.errors import InputError
from bertjax.evidence import Metric, ratios
from bertjax.interventions import Ablation

INTERACTIONS = ratios.INTERACTIONS
"""What is kept of each pair and example: the interaction, the effect of both, and the sum of the effects of each."""


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
        contributed: what each example contributes to the score (`evidence.contributions`): without ablation, and then
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
