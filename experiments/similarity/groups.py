"""The number of kinds of pattern: heads grouped by their distances on the same texts."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.cluster.hierarchy import fcluster, leaves_list, linkage
from sklearn.metrics import adjusted_rand_score

from experiments.similarity.distances import Distances, nearest_heads
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


def report_groups(distances: Distances, seed: int) -> dict[str, Any]:
    """The groups with more than one head, and how far two halves of the texts agree on the groups."""
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
        "halves": compare_halves(distances, seed),
    }


def compare_halves(distances: Distances, seed: int, splits: int = SPLITS) -> dict[str, Any]:
    """Compare groups and nearest heads between random halves of the texts, each with its own cut.

    Returns: `agreement` of the groups (Rand index adjusted for chance, 1 for identical groups; Hubert and Arabie 1985),
        its mean and minimum; `counts`, the fewest and most groups; `nearest`, the mean share of heads whose nearest
        head is the same in both halves.
    """
    generator, texts = np.random.default_rng(seed), len(distances.same)
    agreement, counts, nearest = [], [], []
    for _ in range(splits):
        order = generator.permutation(texts)
        groups, heads = [], []
        for half in (order[: texts // 2], order[texts // 2 :]):
            same, own = (values[half].astype(np.float64).mean(0) for values in (distances.same, distances.own))
            groups.append(group_heads(same, cut_of(own)))
            heads.append(nearest_heads(same, len(own)))
        agreement.append(float(adjusted_rand_score(*groups)))
        counts += [len(set(partition)) for partition in groups]
        nearest.append(float((heads[0] == heads[1]).mean()))
    return {
        "agreement": [listed(np.mean(agreement)), listed(np.min(agreement))],
        "counts": [min(counts), max(counts)],
        "nearest": listed(np.mean(nearest)),
    }
