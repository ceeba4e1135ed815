"""Shapley values of heads: what each adds to a score, on average over all orders in which heads can be taken away.

With v(S) the score of a model that keeps the heads S, a head's value is the mean over orders of v with it less v
without it, those that come later in the order being still there (Shapley 1953). The values sum to what replacing all
heads costs. Orders are drawn in pairs, each with its reverse (Castro, Gomez and Tejada 2009 sample single ones; the
reverse is the antithetic draw of Mitchell et al. 2022): where an order takes a head away first, its reverse takes it
last. Within an order each run differs from the one before by one head, so that in a plan of all its runs whatever lies
below that head is computed once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial

import numpy as np
from jaxtyping import Float, Int

from bertjax.attribution.interactions import effect_metric
from bertjax.checkpoints import BertConfig
from bertjax.evidence import Metric, ratios, student
from bertjax.interventions import Ablation, Head, ablation

FEWEST_PAIRS = 8  # of orders: from fewer, skewed values have intervals that are too narrow


@dataclass(frozen=True)
class Drawn:
    """What pairs of orders gave, each pair the mean of an order and its reverse.

    Args:
        total: of all pairs: what each head adds to what each example contributes.
        values: of each pair: what each head adds to the score.
    """

    total: Float[np.ndarray, "heads examples"]
    values: Float[np.ndarray, "pairs heads"]

    def join(self, other: "Drawn") -> "Drawn":
        """Both together."""
        return Drawn(self.total + other.total, np.concatenate([self.values, other.values]))

    @property
    def mean(self) -> Float[np.ndarray, "heads examples"]:
        """What each head adds to what each example contributes."""
        return self.total / len(self.values)

    @property
    def half_widths(self) -> Float[np.ndarray, " heads"]:
        """Half of each value's 95 % interval over orders (`evidence.student`); infinite from fewer than 8 pairs."""
        pairs, mean = len(self.values), self.values.mean(axis=0)
        if pairs < FEWEST_PAIRS:
            return np.full(mean.shape, np.inf)
        left_out = (self.values.sum(axis=0) - self.values) / (pairs - 1)
        return np.asarray(np.diff(student(mean, left_out), axis=0)[0] / 2)


def draw_orders(heads: int, pair: int, seed: int = 0) -> tuple[Int[np.ndarray, " heads"], Int[np.ndarray, " heads"]]:
    """An order of heads and its reverse; the same whatever was drawn before.

    Args:
        heads: how many there are.
        pair: which pair it is, from 0.
    """
    order = np.random.default_rng([seed, pair]).permutation(heads)
    return order, order[::-1]


def runs_of_order(
    config: BertConfig, heads: Sequence[Head], order: Int[np.ndarray, " heads"], mode: str
) -> list[Ablation]:
    """The first head of an order taken away, the first two, and so on to all."""
    return [ablation(config, [heads[place] for place in order[: count + 1]], mode) for count in range(len(order))]


def added_in_order(
    order: Int[np.ndarray, " heads"], contributed: Float[np.ndarray, "runs examples"]
) -> Float[np.ndarray, "heads examples"]:
    """What each head adds where those before it in an order are gone.

    Args:
        contributed: what each example contributes to the score: without ablation, and then in each run of the order.
    """
    added = np.empty((len(order), contributed.shape[1]))
    added[order] = contributed[:-1] - contributed[1:]
    return added


def all_subsets(config: BertConfig, heads: Sequence[Head], mode: str) -> list[Ablation]:
    """Every set of some heads but the empty one, smaller sets first."""
    return [ablation(config, [heads[place] for place in chosen], mode) for chosen in _subsets(len(heads))]


def exact_values(heads: int, contributed: Float[np.ndarray, "sets examples"]) -> Float[np.ndarray, "heads examples"]:
    """Shapley values by their definition, from every set of heads.

    Args:
        heads: how many there are.
        contributed: what each example contributes to the score: without ablation, and then in each of `all_subsets`.

    >>> exact_values(2, np.array([[1.0], [0.9], [0.7], [0.2]])).round(6).tolist()
    [[0.3], [0.5]]
    """
    values = np.zeros((heads, contributed.shape[1]))
    sets = [(), *_subsets(heads)]
    places = {chosen: place for place, chosen in enumerate(sets)}
    for gone in sets:
        for head in set(range(heads)) - set(gone):
            # Of all orders, in this share `gone` is what comes before the head.
            share = factorial(len(gone)) * factorial(heads - len(gone) - 1) / factorial(heads)
            after = places[tuple(sorted((*gone, head)))]
            values[head] += share * (contributed[places[gone]] - contributed[after])
    return values


def _subsets(heads: int) -> Iterator[tuple[int, ...]]:
    for size in range(1, heads + 1):
        yield from combinations(range(heads), size)


def shapley_metric(metric: Metric) -> Metric:
    """What is made of Shapley values, in the unit of a score."""
    return effect_metric(metric, "shapley", f"Shapley value ({metric.label})", ratios.SHAPLEY, "value")
