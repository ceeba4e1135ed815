"""What two heads share: their mean patterns, and how these change with the text.

The Jensen-Shannon divergence is the square of a distance in a Hilbert space (Fuglede and Topsøe 2004). There a head's
pattern is the sum of its mean over texts and a part that changes with the text. For texts drawn independently, with
special tokens in the same places, the means over texts therefore satisfy:

    own(i)       = 2 variance(i)                                   a head and itself on another text
    other(i, j)  = place(i, j) + variance(i) + variance(j)         two heads on different texts
    same(i, j)   = other(i, j) - 2 covariance(i, j)                two heads on the same text

So `place = other - (own(i) + own(j)) / 2` is the distance of the mean patterns, and
`shared = (other - same) / sqrt(own(i) own(j))` is the correlation of the changing parts: 1 for identical heads, 0 for
heads that have no more in common on the same text than on different ones.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from bertjax.statistics import bootstrap_counts, percentile
from experiments.similarity.distances import Distances, nearest_heads, pair_layers, square
from experiments.similarity.groups import cut_of, group_heads
from experiments.words.estimates import differing, estimate, listed

DRAWS = 1000  # of texts


@dataclass(frozen=True)
class Means:
    """Means over texts, in bits.

    Args:
        same, other: for each pair of heads.
        own: for each head.
    """

    same: Float[np.ndarray, " pairs"]
    other: Float[np.ndarray, " pairs"]
    own: Float[np.ndarray, " places"]

    @property
    def ends(self) -> Float[np.ndarray, "2 pairs"]:
        """`own` of the two heads of each pair."""
        return self.own[np.array(np.triu_indices(len(self.own), 1))]

    @property
    def place(self) -> Float[np.ndarray, " pairs"]:
        """The distance of the mean patterns of two heads."""
        return self.other - self.ends.mean(0)

    @property
    def covered(self) -> Float[np.ndarray, " pairs"]:
        """By how much two heads are closer on the same text than on different ones: twice the covariance."""
        return self.other - self.same

    @property
    def possible(self) -> Float[np.ndarray, " pairs"]:
        """The largest possible `covered`, reached by identical heads."""
        return np.sqrt(self.ends.prod(0))

    @property
    def shared(self) -> Float[np.ndarray, " pairs"]:
        """The correlation of the parts that change with the text; NaN for heads that do not change."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.possible > 0, self.covered / self.possible, np.nan)


def means_of(distances: Distances) -> Means:
    """Take the means over the texts."""
    return Means(*(getattr(distances, name).astype(np.float64).mean(0) for name in ("same", "other", "own")))


def nearest_pairs(nearest: Int[np.ndarray, " places"]) -> Int[np.ndarray, " places"]:
    """The index of the pair that each head forms with its nearest head."""
    places = len(nearest)
    number = square(np.arange(places * (places - 1) // 2))
    return number[np.arange(places), nearest].astype(int)


def kinds_of_pairs(means: Means, heads: int) -> dict[str, Int[np.ndarray, " some"]]:
    """Indices of all pairs, pairs within a layer, pairs across layers, and each head with its nearest."""
    first, second = pair_layers(len(means.own), heads)
    kinds = {"all": np.arange(len(first)), "one layer": np.flatnonzero(first == second)}
    kinds |= {
        "two layers": np.flatnonzero(first != second),
        "nearest heads": nearest_pairs(nearest_heads(means.same)),
    }
    return {name: pairs for name, pairs in kinds.items() if len(pairs)}


def summarise(means: Means, kinds: Mapping[str, Int[np.ndarray, " some"]]) -> dict[str, float]:
    """Numbers for each kind of pairs: means over pairs, except `shared`, a ratio of means.

    `by_place` is the share of the nearest heads' extra closeness, relative to all pairs, that is already in their mean
    patterns.
    """
    summary = {"own": float(means.own.mean()), "groups": float(len(set(group_heads(means.same, cut_of(means.own)))))}
    for kind, pairs in kinds.items():
        for name in ("same", "other", "place"):
            summary[f"{kind}: {name}"] = float(getattr(means, name)[pairs].mean())
        summary[f"{kind}: shared"] = _ratio(means.covered[pairs].mean(), means.possible[pairs].mean())
    closer, in_place = (summary[f"all: {name}"] - summary[f"nearest heads: {name}"] for name in ("same", "place"))
    return summary | {"by_place": _ratio(in_place, closer)}


def _ratio(numerator: float, denominator: float) -> float:
    return float(numerator / denominator) if denominator else float("nan")


def report_parts(distances: Distances, seed: int) -> dict[str, Any]:
    """The results for `numbers.json`: numbers with intervals over texts, the pairs, and how many change alike."""
    means = means_of(distances)
    kinds = kinds_of_pairs(means, distances.heads)
    summary = summarise(means, kinds)
    drawn = [summarise(draw_summary, kinds) for draw_summary in draw_means(distances, seed)]
    ends = percentile(np.array([[draw_summary[name] for name in summary] for draw_summary in drawn]))
    covered = estimate(distances.other.astype(np.float64) - distances.same)
    significant = differing({"covered": covered})["covered"]
    nearest = nearest_heads(means.same)
    return {
        "summary": {
            name: {"mean": listed(value), "interval": listed(interval, 4)}
            for (name, value), interval in zip(summary.items(), ends.T, strict=True)
        },
        "pairs": {
            "count": len(means.same),
            "closer": int((significant & (covered.mean > 0)).sum()),
            "farther": int((significant & (covered.mean < 0)).sum()),
            "half_shared": _half_shared(means, significant),
        },
        "nearest": [distances.names[place] for place in nearest],
        "nearest_in_layer": float((nearest // distances.heads == np.arange(len(nearest)) // distances.heads).mean()),
        "same": listed(means.same, 4),
        "other": listed(means.other, 4),
        "own": listed(means.own, 4),
    }


def _half_shared(means: Means, significant: Bool[np.ndarray, " pairs"]) -> int:
    return int((significant & (np.nan_to_num(means.shared) > 0.5)).sum())


def draw_means(distances: Distances, seed: int, draws: int = DRAWS) -> Iterator[Means]:
    """The means over texts drawn with replacement."""
    parts = [getattr(distances, name).astype(np.float64) for name in ("same", "other", "own")]
    for counts in bootstrap_counts(len(distances.own), draws, seed, parts[0].shape[1]):
        shares = counts / len(distances.own)
        for row in zip(*(shares @ part for part in parts), strict=True):
            yield Means(*row)


def read_means(results: Mapping[str, Any]) -> Means:
    """Read what `report_parts` wrote, with its rounding."""
    return Means(*(np.array(results[name], np.float64) for name in ("same", "other", "own")))
