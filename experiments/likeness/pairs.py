"""Do similar heads stand in for each other? Pairs of heads are disabled alone and together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Num

from bertjax.checkpoints import BertConfig
from bertjax.data import Examples
from bertjax.evidence import make_scorer, percentile
from bertjax.interventions import Ablation, ablation
from bertjax.jobs import sweep_examples
from bertjax.tasks import EncodedDataset, metrics_of, positive_label
from experiments.disabling.beyond import Beyond, describe_beyond, measure_beyond
from experiments.disabling.effects import draw_changes, rounded_or_none, short_or_none
from experiments.likeness.distances import square
from experiments.shared.program import Run

SIGNS = 10_000
Pair = tuple[int, int]


@dataclass(frozen=True)
class Couples:
    """Pairs of similar heads, each with a control pair of dissimilar heads in the same layers."""

    alike: list[Pair]
    controls: list[Pair]


def choose_couples(same: Float[np.ndarray, " pairs"], places: int, heads: int, count: int, seed: int) -> Couples:
    """The nearest pairs, no head twice, each with a control pair drawn from the pairs of the same two layers whose
    distance is above the median of these. A pair without any remaining control is omitted.

    Args:
        same: distances of all pairs.
        heads: number per layer.
        count: the largest number of pairs.
    """
    generator, distance = np.random.default_rng(seed), square(same, places)
    rows, columns = np.triu_indices(places, 1)
    all_pairs = list(zip(rows.tolist(), columns.tolist(), strict=True))
    taken: set[int] = set()
    alike: list[Pair] = []
    controls: list[Pair] = []
    for pair in (all_pairs[number] for number in np.argsort(same, kind="stable")):
        if len(alike) == count:
            break
        if taken & set(pair) or pair in controls:
            continue
        layers = [place // heads for place in pair]
        peers = [peer for peer in all_pairs if [place // heads for place in peer] == layers]
        median = np.median([distance[peer] for peer in peers])
        used = {pair, *alike, *controls}
        candidates = [peer for peer in peers if distance[peer] > median and peer not in used]
        if candidates:
            taken |= set(pair)
            alike.append(pair)
            controls.append(candidates[generator.integers(len(candidates))])
    return Couples(alike, controls)


def list_ablations(config: BertConfig, couples: Couples, mode: str) -> tuple[list[Ablation], dict[Any, int]]:
    """Ablations of every head of the pairs alone and of every pair, with the index of each head and pair among them."""
    pairs = [*couples.alike, *couples.controls]
    single_heads: list[tuple[int, ...]] = [(place,) for place in sorted({place for pair in pairs for place in pair})]
    sets = dict.fromkeys([*single_heads, *pairs])
    heads = config.num_attention_heads
    ablations = [ablation(config, [divmod(place, heads) for place in heads_together], mode) for heads_together in sets]
    return ablations, {heads_together: number for number, heads_together in enumerate(sets)}


def disable_couples(
    run: Run, couples: Couples, names: Sequence[str], examples: Examples, encoded: EncodedDataset
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Disable the pairs and their heads, and measure what pairs change beyond the sum of their heads."""
    mode = run.options.mode
    ablations, places = list_ablations(run.model.config, couples, mode)
    swept = sweep_examples(run.model, encoded, ablations, progress=run.report)
    outputs, labels = np.concatenate([swept.base[None], swept.outputs]), examples.labels
    metric = sorted(metrics_of(encoded.form, examples.task), key=lambda candidate: candidate.name != "accuracy")[0]
    positive = positive_label(encoded.form, examples.task)
    scores = make_scorer(metric, outputs, labels, positive)(np.ones((1, len(labels)), np.uint16))[0]
    drawn = 100 * draw_changes(metric, outputs, labels, positive, run.options.resamples, run.options.seed)
    results = weigh_couples(100 * (scores[1:] - scores[0]), drawn, couples, names, places, run.options.seed)
    facts = {"mode": mode, "metric": metric.label, "base": rounded_or_none(100 * scores[0])}
    facts |= {"examples": len(examples), "outputs": encoded.form.name, "resamples": run.options.resamples}
    values: dict[str, Num[np.ndarray, "..."]] = {"disabled": outputs, "labels": labels}
    return facts | results, values | {"disabled_names": np.array(["base", *(entry.name for entry in ablations)])}


def weigh_couples(
    change: Float[np.ndarray, " places"],
    drawn: Float[np.ndarray, "draws places"],
    couples: Couples,
    names: Sequence[str],
    places: dict[Any, int],
    seed: int,
) -> dict[str, Any]:
    """What both kinds of pairs change beyond the sum of their heads, and the difference between the kinds.

    Args:
        change: of each disabled set, in points.
        drawn: the change in each draw of examples.
        names: of the heads.
        places: indices of heads and pairs among the sets.
    """
    pairs = [*couples.alike, *couples.controls]
    first, second = ([places[pair[end],] for pair in pairs] for end in (0, 1))
    together = [places[pair] for pair in pairs]
    beyond, count = measure_beyond(change, drawn, together, first, second), len(couples.alike)
    columns = describe_beyond(beyond) | {"together": [rounded_or_none(value) for value in change[together]]}
    kinds = {"alike": slice(0, count), "controls": slice(count, None)}
    return {
        kind: {"pairs": [[names[place] for place in pair] for pair in getattr(couples, kind)]}
        | {name: values[part] for name, values in columns.items()}
        | {"mean": _mean(beyond, part), "alone": rounded_or_none(change[[*first[part], *second[part]]].mean())}
        for kind, part in kinds.items()
    } | {"difference": compare_kinds(beyond, count, seed)}


def _mean(beyond: Beyond, part: slice) -> list[float | None]:
    """The mean of one kind of pairs, and its interval over examples."""
    low, high = percentile(beyond.drawn[:, part].mean(1)[:, None])[:, 0]
    return [rounded_or_none(value) for value in (beyond.beyond[part].mean(), low, high)]


def compare_kinds(beyond: Beyond, count: int, seed: int, signs: int = SIGNS) -> dict[str, Any]:
    """Similar pairs less their controls: mean, interval over examples, and p over the pairs.

    p is two-sided: how often random signs of the differences within couples give as large a mean; None if a change is
    undefined. Couples may share heads, so the test is not exact.
    """
    differences = beyond.beyond[:count] - beyond.beyond[count:]
    drawn = (beyond.drawn[:, :count] - beyond.drawn[:, count:]).mean(1)
    low, high = percentile(drawn[:, None])[:, 0]
    by_chance = np.random.default_rng(seed).choice([-1.0, 1.0], (signs, count)) @ differences / count
    p = (1 + int((np.abs(by_chance) >= abs(differences.mean()) - 1e-12).sum())) / (1 + signs)
    return {
        "mean": rounded_or_none(differences.mean()),
        "interval": [rounded_or_none(low), rounded_or_none(high)],
        "p": short_or_none(p) if np.isfinite(differences).all() else None,
    }
