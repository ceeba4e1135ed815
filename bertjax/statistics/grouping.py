"""Silhouettes of groups of points, compared with those of permuted groups."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

PERMUTATIONS = 999


@dataclass(frozen=True)
class Silhouette:
    """How well groups agree with distances.

    Args:
        value: the mean silhouette (Rousseeuw 1987): 1 if groups are separate, 0 if they overlap, below 0 if points are
            closer to another group than to theirs.
        permuted: the mean of `value` over random groups of the same sizes.
        p: the share of draws that agree at least as well; the groups themselves count as a draw.
    """

    value: float
    permuted: float
    p: float


def silhouette_of(
    distances: Float[np.ndarray, "points points"], groups: Int[np.ndarray, " points"], seed: int = 0
) -> Silhouette | None:
    """The silhouette of groups; None unless there are at least two groups, and fewer groups than points.

    Args:
        distances: distances of all pairs of points, `[points, points]`.
        groups: group of each point.
        seed: seed of the permutations of groups.

    >>> points = np.array([0.0, 0.1, 0.2, 5.0, 5.1, 5.2])
    >>> found = silhouette_of(np.abs(points[:, None] - points), np.array([0, 0, 0, 1, 1, 1]))
    >>> found.value > 0.9 > found.permuted
    True
    """
    from sklearn.metrics import silhouette_score

    if not 2 <= len(np.unique(groups)) < len(groups):
        return None
    exact = np.array(distances, np.float64)
    np.fill_diagonal(exact, 0.0)
    value = float(silhouette_score(exact, groups, metric="precomputed"))
    rng = np.random.default_rng(seed)
    drawn = np.array(
        [silhouette_score(exact, rng.permutation(groups), metric="precomputed") for _ in range(PERMUTATIONS)]
    )
    return Silhouette(value, float(drawn.mean()), float((1 + (drawn >= value).sum()) / (1 + PERMUTATIONS)))


def coordinates_of(squares: Float[np.ndarray, "points points"]) -> Float[np.ndarray, "points 2"]:
    """Project points to a plane from their squared distances, by classical multidimensional scaling (Torgerson 1952).

    The coordinates are the two largest eigenvectors of the doubly centred squares.

    Args:
        squares: squared distances of all pairs of points, `[points, points]`.

    >>> points = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 1.0]])
    >>> squares = ((points[:, None] - points[None]) ** 2).sum(-1)
    >>> found = coordinates_of(squares)
    >>> np.allclose(((found[:, None] - found[None]) ** 2).sum(-1), squares)
    True
    """
    centred = squares - squares.mean(axis=0) - squares.mean(axis=1)[:, None] + squares.mean()
    values, vectors = np.linalg.eigh(-centred / 2)
    chosen = np.argsort(-values)[:2]
    points = vectors[:, chosen] * np.sqrt(np.maximum(values[chosen], 0.0))
    signs = np.sign(points[np.abs(points).argmax(axis=0), [0, 1]])
    return np.asarray(points * np.where(signs == 0, 1.0, signs))
