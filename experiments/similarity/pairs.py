"""Do similar heads replace each other? Pairs of heads are ablated alone and together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

import bertjax
from bertjax.statistics import RESAMPLES, make_scorer, percentile
from experiments.shared.effects import draw_changes, outputs_of
from experiments.shared.interactions import Beyond, describe_beyond, measure_beyond
from experiments.shared.run import Run, rounded, short
from experiments.similarity.distances import square

SIGNS = 10_000
Pair = tuple[int, int]


@dataclass(frozen=True)
class Couples:
    """Pairs of similar heads, each with a control pair of dissimilar heads in the same layers."""

    similar: list[Pair]
    controls: list[Pair]


def choose_couples(same: Float[np.ndarray, " pairs"], places: int, heads: int, count: int, seed: int) -> Couples:
    """The nearest pairs, no head twice, each with a control pair drawn from the pairs of the same two layers whose
    distance is above the median of these. A pair without any remaining control is omitted.

    Args:
        same: distances of all pairs.
        heads: number per layer.
        count: the largest number of pairs.
    """
    generator, distance = np.random.default_rng(seed), square(same)
    rows, columns = np.triu_indices(places, 1)
    all_pairs = list(zip(rows.tolist(), columns.tolist(), strict=True))
    taken: set[int] = set()
    similar: list[Pair] = []
    controls: list[Pair] = []
    for pair in (all_pairs[number] for number in np.argsort(same, kind="stable")):
        if len(similar) == count:
            break
        if taken & set(pair) or pair in controls:
            continue
        layers = [place // heads for place in pair]
        peers = [peer for peer in all_pairs if [place // heads for place in peer] == layers]
        median = np.median([distance[peer] for peer in peers])
        used = {pair, *similar, *controls}
        candidates = [peer for peer in peers if distance[peer] > median and peer not in used]
        if candidates:
            taken |= set(pair)
            similar.append(pair)
            controls.append(candidates[generator.integers(len(candidates))])
    return Couples(similar, controls)


def list_sets(couples: Couples) -> dict[tuple[int, ...], int]:
    """Every head of the pairs alone and every pair, each with its index."""
    pairs = [*couples.similar, *couples.controls]
    alone: list[tuple[int, ...]] = [(place,) for place in sorted({place for pair in pairs for place in pair})]
    return {heads: number for number, heads in enumerate(dict.fromkeys([*alone, *pairs]))}


def disable_couples(run: Run, couples: Couples, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Ablate the pairs and their heads on all labelled examples, and measure what pairs change beyond the sum."""
    options, places = run.options, list_sets(couples)
    path = options.output / "sets.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{' '.join(names[place] for place in heads)}\n" for heads in places))
    length = min(options.max_length, run.model.config.max_tokens)
    chosen: dict[str, Any] = {"data": options.data, "split": options.split, "max_length": length}
    study = bertjax.Study(model=run.model, task=options.task, seed=options.seed, **chosen)
    results = study.ablate(mode=options.mode, ablate=path)
    outputs, labels, positive = outputs_of(results), results.outputs["labels"], results.summary["positive"]
    metric = min(results.summary["statistics"], key=lambda name: name != "accuracy")
    scores = make_scorer(metric, outputs, labels, positive)(np.ones((1, len(labels)), np.uint16))[0]
    drawn = 100 * draw_changes(metric, outputs, labels, positive, RESAMPLES, options.seed)
    found = compare_couples(100 * (scores[1:] - scores[0]), drawn, couples, names, places, options.seed)
    facts = {"mode": options.mode, "metric": results.measure(metric).label, "base": rounded(100 * scores[0])}
    values = {"disabled": outputs, "disabled_names": np.array(["base", *results.names]), "labels": labels}
    return facts | {"examples": len(labels)} | found, values


def compare_couples(
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
    pairs = [*couples.similar, *couples.controls]
    first, second = ([places[pair[end],] for pair in pairs] for end in (0, 1))
    together = [places[pair] for pair in pairs]
    beyond, count = measure_beyond(change, drawn, together, first, second), len(couples.similar)
    columns = describe_beyond(beyond) | {"together": [rounded(value) for value in change[together]]}
    kinds = {"alike": slice(0, count), "controls": slice(count, None)}
    of_kind = {"alike": couples.similar, "controls": couples.controls}
    return {
        kind: {"pairs": [[names[place] for place in pair] for pair in of_kind[kind]]}
        | {name: values[part] for name, values in columns.items()}
        | {"mean": _mean(beyond, part), "alone": rounded(change[[*first[part], *second[part]]].mean())}
        for kind, part in kinds.items()
    } | {"difference": compare_kinds(beyond, count, seed)}


def _mean(beyond: Beyond, part: slice) -> list[float | None]:
    """The mean of one kind of pairs, and its interval over examples."""
    low, high = percentile(beyond.drawn[:, part].mean(1)[:, None])[:, 0]
    return [rounded(value) for value in (beyond.beyond[part].mean(), low, high)]


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
        "mean": rounded(differences.mean()),
        "interval": [rounded(low), rounded(high)],
        "p": short(p) if np.isfinite(differences).all() else None,
    }
