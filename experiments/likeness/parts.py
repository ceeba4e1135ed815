"""What two heads have in common: where they look whatever the text says, and how they change with it.

The Jensen-Shannon divergence is the square of a distance in a Hilbert space (Fuglede and Topsøe 2004). There a head's
pattern is its mean over texts and what changes with the text around it. For texts drawn apart from each other, with
special tokens in the same places, the means over texts therefore add up:

    own(i)       = 2 variance(i)                                   a head and itself on another text
    other(i, j)  = place(i, j) + variance(i) + variance(j)         two heads on different texts
    same(i, j)   = other(i, j) - 2 covariance(i, j)                two heads on the same text

So `place = other - (own(i) + own(j)) / 2` is how far the mean patterns are apart, and
`shared = (other - same) / sqrt(own(i) own(j))` is the correlation of what changes: 1 for heads that are the same, 0
where text by text they have no more in common than on different texts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from bertjax.evidence import bootstrap_counts, percentile
from experiments.likeness.distances import Distances, nearest_heads, pair_layers, square
from experiments.likeness.groups import cut_of, group_heads
from experiments.words.estimates import differing, estimate, listed

DRAWS = 1000  # of texts


@dataclass(frozen=True)
class Means:
    """Means over texts, in bits.

    Args:
        same, other: of each pair of heads.
        own: of each head.
    """

    same: Float[np.ndarray, " pairs"]
    other: Float[np.ndarray, " pairs"]
    own: Float[np.ndarray, " places"]

    @property
    def ends(self) -> Float[np.ndarray, "2 pairs"]:
        """What `own` is of both heads of each pair."""
        return self.own[np.array(np.triu_indices(len(self.own), 1))]

    @property
    def place(self) -> Float[np.ndarray, " pairs"]:
        """How far the mean patterns of two heads are apart."""
        return self.other - self.ends.mean(0)

    @property
    def covered(self) -> Float[np.ndarray, " pairs"]:
        """By how much two heads are closer on one text than on different ones: twice a covariance."""
        return self.other - self.same

    @property
    def possible(self) -> Float[np.ndarray, " pairs"]:
        """How much that could be at most: where one head is the other."""
        return np.sqrt(self.ends.prod(0))

    @property
    def shared(self) -> Float[np.ndarray, " pairs"]:
        """The correlation of what changes with the text; NaN of heads that do not change."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.possible > 0, self.covered / self.possible, np.nan)


def means_of(found: Distances) -> Means:
    """Over the texts."""
    return Means(*(getattr(found, name).astype(np.float64).mean(0) for name in ("same", "other", "own")))


def nearest_pairs(nearest: Int[np.ndarray, " places"]) -> Int[np.ndarray, " places"]:
    """Which pair each head is with its nearest, in the order of pairs."""
    places = len(nearest)
    number = square(np.arange(places * (places - 1) // 2, dtype=np.float64), places)
    return number[np.arange(places), nearest].astype(int)


def kinds_of_pairs(means: Means, heads: int) -> dict[str, Int[np.ndarray, " some"]]:
    """All pairs, those of a layer, those of two layers, and each head's with its nearest."""
    first, second = pair_layers(len(means.own), heads)
    kinds = {"all": np.arange(len(first)), "one layer": np.flatnonzero(first == second)}
    kinds |= {
        "two layers": np.flatnonzero(first != second),
        "nearest heads": nearest_pairs(nearest_heads(means.same, len(means.own))),
    }
    return {name: some for name, some in kinds.items() if len(some)}


def summarise(means: Means, kinds: Mapping[str, Int[np.ndarray, " some"]]) -> dict[str, float]:
    """Numbers of the kinds of pairs; means over pairs, and `shared` a ratio of means.

    `by_place` is the share of what nearest heads are closer than all pairs that is there in their mean patterns too.
    """
    found = {"own": float(means.own.mean()), "groups": float(len(set(group_heads(means.same, cut_of(means.own)))))}
    for kind, some in kinds.items():
        for name in ("same", "other", "place"):
            found[f"{kind}: {name}"] = float(getattr(means, name)[some].mean())
        found[f"{kind}: shared"] = _ratio(means.covered[some].mean(), means.possible[some].mean())
    closer, in_place = (found[f"all: {name}"] - found[f"nearest heads: {name}"] for name in ("same", "place"))
    return found | {"by_place": _ratio(in_place, closer)}


def _ratio(one: float, other: float) -> float:
    return float(one / other) if other else float("nan")


def report_parts(found: Distances, seed: int) -> dict[str, Any]:
    """All of it for `numbers.json`: numbers with intervals over texts, the pairs, and how many share what changes."""
    means = means_of(found)
    kinds = kinds_of_pairs(means, found.heads)
    summary = summarise(means, kinds)
    drawn = [summarise(one, kinds) for one in draw_means(found, seed)]
    ends = percentile(np.array([[one[name] for name in summary] for one in drawn]))
    apart = estimate(found.other.astype(np.float64) - found.same)
    sure = differing({"covered": apart})["covered"]
    nearest = nearest_heads(means.same, len(means.own))
    return {
        "summary": {
            name: {"mean": listed(value), "interval": listed(between, 4)}
            for (name, value), between in zip(summary.items(), ends.T, strict=True)
        },
        "pairs": {
            "count": len(means.same),
            "closer": int((sure & (apart.mean > 0)).sum()),
            "farther": int((sure & (apart.mean < 0)).sum()),
            "half_shared": _half_shared(means, sure),
        },
        "nearest": [found.names[place] for place in nearest],
        "nearest_in_layer": float((nearest // found.heads == np.arange(len(nearest)) // found.heads).mean()),
        "same": listed(means.same, 4),
        "other": listed(means.other, 4),
        "own": listed(means.own, 4),
    }


def _half_shared(means: Means, sure: Bool[np.ndarray, " pairs"]) -> int:
    return int((sure & (np.nan_to_num(means.shared) > 0.5)).sum())


def draw_means(found: Distances, seed: int, draws: int = DRAWS) -> Iterator[Means]:
    """The means over texts drawn with replacement."""
    parts = [getattr(found, name).astype(np.float64) for name in ("same", "other", "own")]
    for counts in bootstrap_counts(len(found.own), draws, seed, parts[0].shape[1]):
        shares = counts / len(found.own)
        for row in zip(*(shares @ part for part in parts), strict=True):
            yield Means(*row)


def read_means(results: Mapping[str, Any]) -> Means:
    """What `report_parts` wrote, in its digits."""
    return Means(*(np.array(results[name], np.float64) for name in ("same", "other", "own")))
