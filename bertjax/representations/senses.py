"""Senses of words in context (Pilehvar and Camacho-Collados 2019, WiC): do cosines tell them apart?

A pair has two occurrences of a word, which have the same sense or different senses. The AUC is the share of pairs of a
pair with the same sense and one with different senses in which the first has the larger cosine (Mann and Whitney 1947).
"""

import numpy as np
from jaxtyping import Bool, Float

from bertjax.errors import InputError
from bertjax.representations.geometry import unit_vectors

FOLDS = 10
DIGITS = 9  # of cosines; the squared rounding error of float32 is far below

Cosines = Float[np.ndarray, " pairs"]
Same = Bool[np.ndarray, " pairs"]


def pair_cosines(first: Float[np.ndarray, "pairs embed"], second: Float[np.ndarray, "pairs embed"]) -> Cosines:
    """The cosine of each pair of vectors, to 9 decimals, so that vectors that differ only by rounding are ties.

    Args:
        first: the first vector of each pair.
        second: the second vector of each pair.

    >>> pair_cosines(np.array([[3.0, 0.0]]), np.array([[1.0, 1.0]])).tolist()
    [0.707106781]
    """
    return np.asarray((unit_vectors(first) * unit_vectors(second)).sum(axis=1).round(DIGITS))


def auc_contributions(cosines: Cosines, same: Same) -> Cosines:
    """The contribution of each pair to the AUC, by the infinitesimal jackknife.

    Let v_i be the share of pairs with different senses below the cosine of pair i with the same sense (ties count one
    half), and v_j the share of pairs with the same sense above the cosine of pair j with different senses. The AUC t is
    the mean of either. With n pairs, m of them with the label of pair k, its contribution is t + n (v_k - t) / m, which
    is t plus n times the derivative of t by the weight of the pair. The mean of all contributions is t; their variance
    over n is that of DeLong et al. (1988), but for divisors m in place of m - 1.

    Args:
        cosines: the cosine of each pair.
        same: whether the senses are the same.

    Raises:
        InputError: all pairs have the same label.

    >>> auc_contributions(np.array([0.9, 0.4, 0.4, 0.1]), np.array([True, True, False, False])).tolist()
    [1.125, 0.625, 0.625, 1.125]
    """
    _check_labels(same)
    shares = np.zeros(len(cosines))
    for label, sign in ((True, 1.0), (False, -1.0)):
        others = np.sort(sign * cosines[same != label])
        below, up_to = (np.searchsorted(others, sign * cosines[same == label], side) for side in ("left", "right"))
        shares[same == label] = (below + up_to) / (2 * len(others))
    area = shares[same].mean()
    return np.asarray(area + (shares - area) / np.where(same, same.mean(), (~same).mean()))


def separation_contributions(cosines: Cosines, same: Same) -> Cosines:
    """The contribution of each pair to the separation of senses, by the infinitesimal jackknife.

    The separation t is the mean cosine a of pairs with the same sense minus the mean cosine b of pairs with different
    senses. With n pairs, m of them with the label of pair k, the contribution of pair k is t + n (c_k - a) / m for the
    same sense, and t - n (c_k - b) / m for different senses.

    Args:
        cosines: the cosine of each pair.
        same: whether the senses are the same.

    Raises:
        InputError: all pairs have the same label.

    >>> separation_contributions(np.array([0.9, 0.5, 0.4, 0.2]), np.array([True, True, False, False])).round(9).tolist()
    [0.8, 0.0, 0.2, 0.6]
    """
    _check_labels(same)
    means = cosines[same].mean(), cosines[~same].mean()
    slopes = np.where(same, (cosines - means[0]) / same.mean(), (means[1] - cosines) / (~same).mean())
    return np.asarray(means[0] - means[1] + slopes)


def threshold_hits(cosines: Cosines, same: Same, seed: int = 0) -> Same:
    """Whether a threshold on the cosine classifies each pair correctly, where the threshold is best for other pairs.

    Pairs with each label are divided at random into 10 folds. The threshold of a fold has the highest accuracy on the
    other folds (of several, the lowest). All folds have nearly equal shares of the labels; if single pairs were left
    out, the other label would be more frequent among the rest, and cosines without information would have an accuracy
    below chance.

    Args:
        cosines: the cosine of each pair.
        same: whether the senses are the same.
        seed: the seed of the folds.
    """
    generator, folds = np.random.default_rng(seed), np.zeros(len(same), np.int64)
    for label in (True, False):
        rows = generator.permutation(np.flatnonzero(same == label))
        folds[rows] = np.arange(len(rows)) % FOLDS
    hits = np.zeros(len(same), bool)
    for fold in range(FOLDS):
        test = folds == fold
        hits[test] = (cosines[test] > _best_threshold(cosines[~test], same[~test])) == same[test]
    return hits


def _best_threshold(cosines: Cosines, same: Same) -> float:
    """The threshold with the highest accuracy: half-way between two cosines, or infinite."""
    values, index = np.unique(cosines, return_inverse=True)
    gains = np.bincount(
        index, np.where(same, -1, 1), len(values)
    )  # of correct pairs, if a value is below the threshold
    best = int(np.argmax(np.concatenate([[0], np.cumsum(gains)])))
    edges = np.concatenate([[-np.inf], (values[1:] + values[:-1]) / 2, [np.inf]])
    return float(edges[best])


def _check_labels(same: Same) -> None:
    """Raise `InputError` if all pairs have the same label."""
    if same.all() or not same.any():
        raise InputError(
            "senses are compared between pairs with the same sense and pairs with different senses: give both"
        )
