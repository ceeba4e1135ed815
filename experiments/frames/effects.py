"""Do the heads that attend along frame relations matter for a task? Two maps of heads, joined."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from bertjax.intervals import FEWEST_PLACES, percentile, rank_correlation

DRAWS = 10000


def join_maps(
    attention: Float[np.ndarray, "layers heads"],
    losses: Float[np.ndarray, "layers heads"],
    chosen: Bool[np.ndarray, "layers heads"],
    seed: int = 0,
    draws: int = DRAWS,
) -> dict[str, Any]:
    """Whether heads with more attention lose more when they are disabled, and whether some heads lose more than others.

    Args:
        attention: of each head, for example its weight from elements to the predicate.
        losses: what disabling each head costs, in points; NaN where it is undefined.
        chosen: the heads that are held against the others.

    Returns: `rank_correlation` (Spearman) with its 95 % `interval` by drawing heads; `chosen` and `others`, mean losses
    in points, with `difference`, its `difference_interval` by drawing heads of both groups, and `p`, how often random
    groups of so many heads are as far apart, two-sided. None where one is undefined, and no interval of fewer than ten
    heads, which would be too narrow.
    """
    known = np.isfinite(losses)
    ranks, *ends = rank_correlation(attention[known], losses[known], seed)
    found: dict[str, Any] = {"heads": int(known.sum()), "rank_correlation": ranks, "interval": list(ends)}
    return found | _compare_groups(losses[known], chosen[known], np.random.default_rng(seed), draws)


def _compare_groups(
    losses: Float[np.ndarray, " heads"], chosen: Bool[np.ndarray, " heads"], rng: np.random.Generator, draws: int
) -> dict[str, Any]:
    some, others = losses[chosen], losses[~chosen]
    found: dict[str, Any] = {"chosen_heads": len(some)}
    if not len(some) or not len(others):
        return found | dict.fromkeys(("chosen", "others", "difference", "difference_interval", "p"))
    apart = some.mean() - others.mean()
    interval = None
    if min(len(some), len(others)) >= FEWEST_PLACES:
        drawn = [group[rng.integers(len(group), size=(draws, len(group)))].mean(1) for group in (some, others)]
        interval = percentile((drawn[0] - drawn[1])[:, None])[:, 0].tolist()
    shuffled = rng.permuted(np.tile(losses, (draws, 1)), axis=1)
    by_chance = shuffled[:, : len(some)].mean(1) - shuffled[:, len(some) :].mean(1)
    hits = int((np.abs(by_chance) >= abs(apart) - 1e-12).sum())
    return found | {
        "chosen": float(some.mean()),
        "others": float(others.mean()),
        "difference": float(apart),
        "difference_interval": interval,
        "p": (1 + hits) / (1 + draws),
    }


def losses_of(names: Sequence[str], changes: Sequence[float | None], shape: tuple[int, int]) -> np.ndarray:
    """Points lost by head, as a map; NaN where a head is missing or its change undefined.

    Args:
        names: of heads, `L.H`.
        changes: of the score when each is disabled, in points.
        shape: layers and heads.

    >>> losses_of(["0.1"], [-2.0], (1, 2))
    array([[nan,  2.]])
    """
    found = np.full(shape, np.nan)
    for name, change in zip(names, changes, strict=True):
        found[tuple(map(int, name.split(".")))] = np.nan if change is None else -change
    return found
