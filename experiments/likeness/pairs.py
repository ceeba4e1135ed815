"""Do heads that are alike stand in for each other? Pairs of heads disabled, alone and together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Num

from bertjax.checkpoints import BertConfig
from bertjax.data import Examples
from bertjax.evidence import make_scorer, percentile
from bertjax.interventions import Ablation, ablation
from bertjax.study import Encoded, metrics_of, positive_label, sweep_examples
from experiments.disabling.beyond import Beyond, measure_beyond, tell_beyond
from experiments.disabling.effects import draw_changes, rounded_or_none, short_or_none
from experiments.likeness.distances import square
from experiments.shared.program import Run

SIGNS = 10_000
Pair = tuple[int, int]


@dataclass(frozen=True)
class Couples:
    """Pairs of heads that are alike, each with a pair of the same layers that is not."""

    alike: list[Pair]
    controls: list[Pair]


def choose_couples(same: Float[np.ndarray, " pairs"], places: int, heads: int, count: int, seed: int) -> Couples:
    """The nearest pairs, no head twice, and for each a pair that is drawn from the pairs of the same two layers whose
    distance is above their median. A pair whose layers have none left goes without, and is left out.

    Args:
        same: distances of all pairs.
        heads: of a layer.
        count: of pairs, at most.
    """
    generator, distance = np.random.default_rng(seed), square(same, places)
    rows, columns = np.triu_indices(places, 1)
    every = list(zip(rows.tolist(), columns.tolist(), strict=True))
    taken: set[int] = set()
    alike: list[Pair] = []
    controls: list[Pair] = []
    for pair in (every[number] for number in np.argsort(same, kind="stable")):
        if len(alike) == count:
            break
        if taken & set(pair) or pair in controls:
            continue
        layers = [place // heads for place in pair]
        peers = [other for other in every if [place // heads for place in other] == layers]
        median = np.median([distance[other] for other in peers])
        used = {pair, *alike, *controls}
        left = [other for other in peers if distance[other] > median and other not in used]
        if left:
            taken |= set(pair)
            alike.append(pair)
            controls.append(left[generator.integers(len(left))])
    return Couples(alike, controls)


def list_ablations(config: BertConfig, couples: Couples, mode: str) -> tuple[list[Ablation], dict[Any, int]]:
    """Every head of the pairs alone, and every pair; with the place of each head and pair among them."""
    pairs = [*couples.alike, *couples.controls]
    alone: list[tuple[int, ...]] = [(place,) for place in sorted({place for pair in pairs for place in pair})]
    sets = dict.fromkeys([*alone, *pairs])
    heads = config.num_attention_heads
    found = [ablation(config, [divmod(place, heads) for place in some], mode) for some in sets]
    return found, {some: number for number, some in enumerate(sets)}


def disable_couples(
    run: Run, couples: Couples, names: Sequence[str], examples: Examples, encoded: Encoded
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Disable the pairs and their heads, and say what pairs change beyond the sum of both heads."""
    mode = run.options.mode
    ablations, places = list_ablations(run.model.config, couples, mode)
    swept = sweep_examples(run.model, encoded, ablations, progress=run.report)
    outputs, labels = np.concatenate([swept.base[None], swept.outputs]), examples.labels
    metric = sorted(metrics_of(encoded.kind, examples.task), key=lambda one: one.name != "accuracy")[0]
    positive = positive_label(encoded.kind, examples.task)
    scores = make_scorer(metric, outputs, labels, positive)(np.ones((1, len(labels)), np.uint16))[0]
    drawn = 100 * draw_changes(metric, outputs, labels, positive, run.options.resamples, run.options.seed)
    found = weigh_couples(100 * (scores[1:] - scores[0]), drawn, couples, names, places, run.options.seed)
    facts = {"mode": mode, "metric": metric.label, "base": rounded_or_none(100 * scores[0])}
    facts |= {"examples": len(examples), "outputs": encoded.kind, "resamples": run.options.resamples}
    values: dict[str, Num[np.ndarray, "..."]] = {"disabled": outputs, "labels": labels}
    return facts | found, values | {"disabled_names": np.array(["base", *(one.name for one in ablations)])}


def weigh_couples(
    change: Float[np.ndarray, " places"],
    drawn: Float[np.ndarray, "draws places"],
    couples: Couples,
    names: Sequence[str],
    places: dict[Any, int],
    seed: int,
) -> dict[str, Any]:
    """What both kinds of pairs change beyond the sum of their heads, and how far the kinds are apart.

    Args:
        change: of each set that was disabled, in points.
        drawn: the same on drawn examples.
        names: of the heads.
        places: of heads and pairs among the sets.
    """
    pairs = [*couples.alike, *couples.controls]
    first, second = ([places[pair[end],] for pair in pairs] for end in (0, 1))
    both = [places[pair] for pair in pairs]
    found, count = measure_beyond(change, drawn, both, first, second), len(couples.alike)
    told = tell_beyond(found) | {"together": [rounded_or_none(value) for value in change[both]]}
    kinds = {"alike": slice(0, count), "controls": slice(count, None)}
    return {
        kind: {"pairs": [[names[place] for place in pair] for pair in getattr(couples, kind)]}
        | {name: values[part] for name, values in told.items()}
        | {"mean": _mean(found, part), "alone": rounded_or_none(change[[*first[part], *second[part]]].mean())}
        for kind, part in kinds.items()
    } | {"difference": compare_kinds(found, count, seed)}


def _mean(found: Beyond, part: slice) -> list[float | None]:
    """The mean of a kind of pairs, and the ends of its interval over examples."""
    low, high = percentile(found.drawn[:, part].mean(1)[:, None])[:, 0]
    return [rounded_or_none(value) for value in (found.beyond[part].mean(), low, high)]


def compare_kinds(found: Beyond, count: int, seed: int, signs: int = SIGNS) -> dict[str, Any]:
    """Pairs that are alike less their controls: mean, interval over examples, and p over the pairs.

    p: how often random signs of the differences within couples give as large a mean, two-sided; None where a change is
    undefined. Couples may have heads in common, so that it is no exact test.
    """
    apart = found.beyond[:count] - found.beyond[count:]
    drawn = (found.drawn[:, :count] - found.drawn[:, count:]).mean(1)
    low, high = percentile(drawn[:, None])[:, 0]
    by_chance = np.random.default_rng(seed).choice([-1.0, 1.0], (signs, count)) @ apart / count
    p = (1 + int((np.abs(by_chance) >= abs(apart.mean()) - 1e-12).sum())) / (1 + signs)
    return {
        "mean": rounded_or_none(apart.mean()),
        "interval": [rounded_or_none(low), rounded_or_none(high)],
        "p": short_or_none(p) if np.isfinite(apart).all() else None,
    }
