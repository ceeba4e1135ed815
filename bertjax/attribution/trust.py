"""How far gradients may be trusted: heads ordered by them beside the same heads' exact effects."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from bertjax import arguments
from bertjax.evidence import rank_correlation

DEPTHS = (5, 10, 20)


@dataclass(frozen=True)
class Trust:
    """Heads by an estimate beside the sizes of their exact effects.

    Args:
        correlation: Spearman's, of the estimate and the size of the exact effect.
        low, high: its 95 % interval, by drawing heads with replacement; NaN with fewer than ten.
        precision: for some k the share of the k heads of the largest estimates that are among the k of the largest
            exact effects.
        chance: for the same k what random heads would reach, k over the number of heads.
        worst: the heads whose places in the two orders are farthest apart, with both places, from 1.
    """

    correlation: float
    low: float
    high: float
    precision: dict[int, float]
    chance: dict[int, float]
    worst: tuple[tuple[str, int, int], ...]


def compare_with_exact(
    names: Sequence[str],
    estimate: Float[np.ndarray, " heads"],
    exact: Float[np.ndarray, " heads"],
    *,
    seed: int = 0,
    most: int = 5,
) -> Trust:
    """How well an estimate orders heads by the size of their exact effects.

    Args:
        names: of the heads.
        estimate: larger for heads that matter more.
        exact: changes of a score when each is ablated, of either sign.
        seed: of the interval.
        most: how many of the worst are named.

    Raises:
        InputError: the arrays are not of one number for each head.

    >>> trust = compare_with_exact(["0.0", "0.1", "0.2"], np.array([3.0, 2.0, 1.0]), np.array([-0.9, 0.5, 0.1]))
    >>> trust.correlation, trust.worst[0]
    (1.0, ('0.0', 1, 1))
    """
    for name, values in (("estimate", estimate), ("exact", exact)):
        if values.shape != (len(names),):
            arguments.refuse(name, f"a number for each of {len(names)} heads", values)
    sizes = np.abs(exact)
    correlation, low, high = rank_correlation(np.asarray(estimate, np.float64), sizes, seed)
    places = [_places(values) for values in (np.asarray(estimate, np.float64), sizes)]
    depths = [depth for depth in DEPTHS if depth < len(names)]
    apart = np.argsort(-np.abs(places[0] - places[1]), kind="stable")[:most]
    return Trust(
        correlation,
        low,
        high,
        {depth: float(((places[0] <= depth) & (places[1] <= depth)).sum() / depth) for depth in depths},
        {depth: depth / len(names) for depth in depths},
        tuple((names[head], int(places[0][head]), int(places[1][head])) for head in apart.tolist()),
    )


def _places(values: Float[np.ndarray, " heads"]) -> np.ndarray:
    """The place of each in descending order, from 1; what is undefined comes last."""
    order = np.argsort(-np.where(np.isnan(values), -np.inf, values), kind="stable")
    places = np.empty(len(values), np.int64)
    places[order] = np.arange(1, len(values) + 1)
    return places
