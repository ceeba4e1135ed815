"""Chosen on one half of the sentences, evaluated on the other: the best of many would look better than it is."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

TO_HEAD, TO_DEPENDENT = "to its head", "to its dependent"
DIRECTIONS = (TO_HEAD, TO_DEPENDENT)
DRAWS = 10_000  # of the bootstrap


def draw_half(count: int, seed: int) -> Bool[np.ndarray, " sentences"]:
    """Which of so many sentences choose: half of them, drawn."""
    chosen_on = np.zeros(count, bool)
    chosen_on[np.random.default_rng(seed).permutation(count)[: count // 2]] = True
    return chosen_on


def compare(
    hits: Int[np.ndarray, "sentences directions guesses"],
    counts: Int[np.ndarray, " sentences"],
    heads: int,
    chosen_on: Bool[np.ndarray, " sentences"],
    seed: int,
) -> dict[str, Any]:
    """The best head and the best distance, chosen on some sentences and evaluated on the others.

    Args:
        heads: how many of the guesses are attention heads; the others are distances.
        chosen_on: the sentences that choose.
    """
    sums, evaluated = hits[chosen_on].sum(axis=0), ~chosen_on
    found = {}
    for kind, part in (("head", slice(0, heads)), ("distance", slice(heads, None))):
        direction, guess = np.unravel_index(int(sums[:, part].argmax()), sums[:, part].shape)
        right = hits[:, direction, part][:, guess]
        chosen = float(right[chosen_on].sum() / counts[chosen_on].sum())
        found[kind] = {
            "guess": int(guess),
            "direction": DIRECTIONS[direction],
            "hits": right[evaluated],
            "chosen": chosen,
        }
    count = counts[evaluated].astype(np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(count), (DRAWS, len(count)))
    totals = count[drawn].sum(axis=1)
    totals[totals == 0] = np.nan
    scores = {kind: one["hits"][drawn].sum(axis=1) / totals for kind, one in found.items()}
    difference = scores["head"] - scores["distance"]
    tail = min((difference <= 0).sum(), (difference >= 0).sum())
    comparison: dict[str, Any] = {"count": int(count.sum()), "p": min(1.0, 2 * (1 + int(tail)) / (1 + DRAWS))}
    for kind, one in found.items():
        ends = np.nanquantile(scores[kind], [0.025, 0.975]).tolist()
        comparison[kind] = {
            "guess": one["guess"],
            "direction": one["direction"],
            "score": float(one["hits"].sum() / count.sum()),
            "ends": ends,
            "chosen": one["chosen"],
        }
    return {**comparison, "difference": np.nanquantile(difference, [0.025, 0.975]).tolist()}


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for how many there are (Holm 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order, corrected, largest = np.argsort(p_values, kind="stable"), [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order.tolist()):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
