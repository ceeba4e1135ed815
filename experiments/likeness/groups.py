"""How many kinds of pattern there are: heads in groups by their distances on the same texts."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.cluster.hierarchy import fcluster, leaves_list, linkage
from sklearn.metrics import adjusted_rand_score

from experiments.likeness.distances import Distances, nearest_heads
from experiments.words.estimates import listed

SPLITS = 50
QUARTILES = (0.25, 0.75)


def cut_of(own: Float[np.ndarray, " places"]) -> float:
    """Where groups end: how far a head is from itself on another text, mean over heads."""
    return float(own.mean())


def group_heads(distances: Float[np.ndarray, " pairs"], cut: float) -> Int[np.ndarray, " places"]:
    """Which group each head is in: groups are joined while their heads are on average no farther apart than the cut
    (UPGMA; Sokal and Michener 1958).

    >>> group_heads(np.array([0.0, 0.9, 0.9]), 0.5).tolist()
    [1, 1, 2]
    """
    return np.asarray(fcluster(linkage(distances, "average"), cut, "distance"))


def order_heads(distances: Float[np.ndarray, " pairs"]) -> Int[np.ndarray, " places"]:
    """The heads with those that are alike beside each other (leaves of the tree in their best order)."""
    return np.asarray(leaves_list(linkage(distances, "average", optimal_ordering=True)))


def report_groups(found: Distances, seed: int) -> dict[str, Any]:
    """The groups of several heads, and how far two halves of the texts agree on them."""
    same, own = (values.astype(np.float64).mean(0) for values in (found.same, found.own))
    cut = cut_of(own)
    groups = group_heads(same, cut)
    members = [np.flatnonzero(groups == one) for one in np.unique(groups)]
    several = sorted((some for some in members if len(some) > 1), key=lambda some: (-len(some), some[0]))
    at = {str(share): len(set(group_heads(same, float(np.quantile(own, share))))) for share in QUARTILES}
    return {
        "cut": listed(cut),
        "count": len(members),
        "alone": sum(len(some) == 1 for some in members),
        "members": [[found.names[place] for place in some] for some in several],
        "count_at_quartiles": at,
        "halves": compare_halves(found, seed),
    }


def compare_halves(found: Distances, seed: int, splits: int = SPLITS) -> dict[str, Any]:
    """Groups and nearest heads on random halves of the texts, each with a cut of its own.

    Returns: `agreement` of the groups (Rand index adjusted for chance; Hubert and Arabie 1985: 1 where they are the
        same), mean and the least; `counts`, the fewest and most groups; `nearest`, the mean share of heads whose
        nearest head is the same on both halves.
    """
    generator, texts = np.random.default_rng(seed), len(found.same)
    agreement, counts, nearest = [], [], []
    for _ in range(splits):
        order = generator.permutation(texts)
        groups, heads = [], []
        for half in (order[: texts // 2], order[texts // 2 :]):
            same, own = (values[half].astype(np.float64).mean(0) for values in (found.same, found.own))
            groups.append(group_heads(same, cut_of(own)))
            heads.append(nearest_heads(same, len(own)))
        agreement.append(float(adjusted_rand_score(*groups)))
        counts += [len(set(one)) for one in groups]
        nearest.append(float((heads[0] == heads[1]).mean()))
    return {
        "agreement": [listed(np.mean(agreement)), listed(np.min(agreement))],
        "counts": [min(counts), max(counts)],
        "nearest": listed(np.mean(nearest)),
    }
