"""The number of kinds of pattern: heads grouped by their distances on the same texts."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.cluster.hierarchy import fcluster, leaves_list, linkage

from experiments.similarity.distances import Distances
from experiments.words.estimates import listed

SPLITS = 50
QUARTILES = (0.25, 0.75)


def cut_of(own: Float[np.ndarray, " places"]) -> float:
    """The cut that separates groups: the distance of a head from itself on another text, averaged over heads."""
    return float(own.mean())


def group_heads(distances: Float[np.ndarray, " pairs"], cut: float) -> Int[np.ndarray, " places"]:
    """The group of each head. Groups are merged while their heads are on average no farther apart than the cut (UPGMA;
    Sokal and Michener 1958).

    >>> group_heads(np.array([0.0, 0.9, 0.9]), 0.5).tolist()
    [1, 1, 2]
    """
    return np.asarray(fcluster(linkage(distances, "average"), cut, "distance"))


def order_heads(distances: Float[np.ndarray, " pairs"]) -> Int[np.ndarray, " places"]:
    """An order of the heads that puts similar ones side by side (the optimal leaf order of the tree)."""
    return np.asarray(leaves_list(linkage(distances, "average", optimal_ordering=True)))


def report_groups(distances: Distances) -> dict[str, Any]:
    """The groups with more than one head, and the number of groups at other cuts."""
    same, own = (values.astype(np.float64).mean(0) for values in (distances.same, distances.own))
    cut = cut_of(own)
    groups = group_heads(same, cut)
    members = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    larger_groups = sorted((group for group in members if len(group) > 1), key=lambda group: (-len(group), group[0]))
    counts = {str(share): len(set(group_heads(same, float(np.quantile(own, share))))) for share in QUARTILES}
    return {
        "cut": listed(cut),
        "count": len(members),
        "alone": sum(len(group) == 1 for group in members),
        "members": [[distances.names[index] for index in group] for group in larger_groups],
        "count_at_quartiles": counts,
    }
