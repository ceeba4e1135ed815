"""Metrics of ranks with examples counted several times, once or not at all, and with the outputs of two runs swapped.

Values are sorted once; of a draw each place of that order has a count, and ranks are counts up to there. Counts go up
along blocks of places by a product with a triangle of ones, for many draws at once; each place is a row, so that what
belongs to it is gathered as one. float32 holds such whole numbers exactly.

Where outputs are swapped, one score is of one of the two outputs of each example and the other score of the rest. Both
outputs of all examples are sorted together; a place is in the first score or in the second, whose counts are all places
less those of the first. So both scores come from one set of counts. Differences of Spearman's correlation need none:
they are sums over examples, but for what equal outputs take from the spread of ranks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int, Num, UInt8

from bertjax.errors import DataError
from bertjax.statistics.resampling import Counts, DrawnScores, Labels, Scorer, Values, correlation

DRAWS, ROWS_BYTES = 128, 4 << 20  # draws computed together at most, and bytes of a row for each place
ROWS = 24  # that are counted up by one product
MOST_RANKED = 1_000_000  # examples: twice their counts are whole numbers in float32
MOST_GROUPS = 64  # of equal outputs in a run and the base, beyond which every draw is ranked anew
NEGLIGIBLE = 1e-7  # of a correlation, beside the 1e-3 and more that differences are about
NEAR = 1e-11  # of each other are differences that may be the same

TRIANGLE = np.tril(np.ones((ROWS, ROWS), np.float32))
BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").astype(np.float64)
UP_TO = BITS * BITS.cumsum(axis=1)  # of each bit of a byte that is set, how many are, up to and including it

Rows: TypeAlias = Float[np.ndarray, "places draws"]
Draws: TypeAlias = Float[np.ndarray, " draws"]
Swaps: TypeAlias = Num[np.ndarray, "draws examples"]
Difference: TypeAlias = Callable[[Swaps], Float[np.ndarray, "draws runs"]]


def count_up(rows: Rows) -> Rows:
    """Of each row the sum of rows up to and including it; whole numbers below 2^24 are exact.

    >>> count_up(np.array([[1, 0], [2, 1]], np.float32)).tolist()
    [[1.0, 0.0], [3.0, 1.0]]
    """
    filled = rows
    if len(rows) % ROWS:
        filled = np.concatenate([rows, np.zeros((-len(rows) % ROWS, rows.shape[1]), np.float32)])
    counts = TRIANGLE @ filled.reshape(-1, ROWS, rows.shape[1])
    ends = counts[:, -1].copy()
    counts += (np.cumsum(ends, axis=0) - ends)[:, None]
    return counts.reshape(filled.shape)[: len(rows)]


@dataclass(frozen=True)
class _Order:
    """The ascending order of values, and where equal ones begin and end.

    Args:
        order: of each place the value that is there.
        first, last: of each place those of the first and the last value that is equal.
        ends: the last place of each different value.
        value: of each place which of these it has.
    """

    order: Int[np.ndarray, " places"]
    first: Int[np.ndarray, " places"]
    last: Int[np.ndarray, " places"]
    ends: Int[np.ndarray, " different"]
    value: Int[np.ndarray, " places"]

    @classmethod
    def of_values(cls, values: Num[np.ndarray, " places"]) -> "_Order":
        """That of some values."""
        order = np.argsort(values, kind="stable")
        starts = np.flatnonzero(np.append(True, np.diff(values[order]) != 0))
        lengths = np.diff(np.append(starts, len(values)))
        ends = starts + lengths - 1
        value = np.repeat(np.arange(len(starts)), lengths)
        return cls(order, starts[value], ends[value], ends, value)

    @property
    def ties(self) -> bool:
        """Whether any values are equal."""
        return len(self.ends) < len(self.order)

    def below(self, counts: Rows) -> Rows:
        """What counts below each place, and what counts up to and with those that are equal: the sum of both.

        Args:
            counts: in this order.
        """
        if not self.ties:
            return 2 * count_up(counts) - counts
        return self.below_and_equal(counts)[0]

    def below_and_equal(self, counts: Rows) -> tuple[Rows, Float[np.ndarray, "different draws"]]:
        """That, and what counts of each different value."""
        up_to = count_up(counts)[self.ends]
        before = np.concatenate([np.zeros_like(up_to[:1]), up_to[:-1]])
        return (up_to + before)[self.value], up_to - before


def _in_parts(counts: Counts) -> Iterator[tuple[slice, Rows]]:
    """Some draws after others, their examples in rows."""
    size = max(1, min(DRAWS, ROWS_BYTES // (4 * counts.shape[1])))
    for start in range(0, len(counts), size):
        here = slice(start, start + size)
        yield here, np.ascontiguousarray(counts[here].T, np.float32)


def spearman_scorer(values: Values, labels: Labels, positive: int) -> Scorer:
    """Spearman's correlation. Raises `DataError` for more than `MOST_RANKED` examples."""
    if values.shape[1] > MOST_RANKED:
        raise DataError(f"ranks of {values.shape[1]:,} examples are not drawn: at most {MOST_RANKED:,}")
    runs, of_labels = [_Order.of_values(own) for own in values], _Order.of_values(labels)

    def scorer(counts: Counts) -> DrawnScores:
        found = np.empty((len(counts), len(runs)))
        for here, drawn in _in_parts(counts):
            total = drawn.sum(axis=0)
            ranks = np.empty(drawn.shape)  # twice those of labels, less the mean
            ranks[of_labels.order] = of_labels.below(drawn[of_labels.order]) - total
            weighted = drawn * ranks
            label_spread = np.einsum("ed,ed->d", weighted, ranks)
            size = total.astype(np.float64)[:, None] ** 3
            sums = np.empty((2, len(total), len(runs)))
            sums[1] = _spread_of_ranks(drawn)[:, None]
            for run, one in enumerate(runs):
                own = drawn[one.order]
                if one.ties:
                    below, equal = one.below_and_equal(own)
                    sums[1, :, run] = _spread_of_ranks(equal)
                else:
                    below = one.below(own)
                sums[0, :, run] = np.einsum("pd,pd->d", weighted[one.order], (below - total).astype(np.float64))
            found[here] = correlation(
                sums[0], sums[1], label_spread[:, None], np.broadcast_to(size, sums[1].shape), size
            )
        return found

    return scorer


def _spread_of_ranks(equal: Rows) -> Draws:
    """The sum of squares of twice the ranks, less their mean, by how many equal outputs there are of each value.

    With t equal ones (N^3 - sum of t^3) / 3 for N outputs in all (Kendall 1945).
    """
    wide = equal.astype(np.float64)
    spread: Draws = (wide.sum(axis=0) ** 3 - np.einsum("vd,vd->d", wide * wide, wide)) / 3
    return spread


def roc_auc_scorer(values: Values, labels: Labels, positive: int) -> Scorer:
    """ROC AUC (Mann and Whitney 1947)."""
    is_hit = labels == positive
    return _scorer_of_hits(is_hit, [_Area(own, is_hit) for own in values])


def average_precision_scorer(values: Values, labels: Labels, positive: int) -> Scorer:
    """Average precision."""
    is_hit = labels == positive
    return _scorer_of_hits(is_hit, [_Precision(own, is_hit) for own in values])


class _Area:
    """The share of pairs of a hit and a miss that are in the right order, equal ones half."""

    def __init__(self, values: Float[np.ndarray, " examples"], is_hit: Bool[np.ndarray, " examples"]) -> None:
        self.one = _Order.of_values(values)
        self.hits = np.flatnonzero(is_hit[self.one.order])

    def score(self, drawn: Rows) -> Draws:
        """That share times how many hits and misses there are."""
        counts = drawn[self.one.order]
        own = counts[self.hits]
        counts[self.hits] = 0
        pairs: Draws = (own * self.one.below(counts)[self.hits]).sum(axis=0, dtype=np.float64)
        return pairs / (2 * (drawn.sum(axis=0, dtype=np.float64) - own.sum(axis=0)))


class _Precision:
    """The share of hits among all that are not below a hit, the mean over hits.

    Args:
        values: of all places that are sorted together.
        is_hit: of each.
    """

    def __init__(self, values: Float[np.ndarray, " places"], is_hit: Bool[np.ndarray, " places"]) -> None:
        one = _Order.of_values(-values)
        self.order, self.hits = one.order, np.flatnonzero(is_hit[one.order])
        self.last = one.last[self.hits]  # of all places that are not below
        self.last_hit = np.searchsorted(self.hits, self.last, side="right") - 1

    def score(self, drawn: Rows) -> Draws:
        """That mean times how many hits there are."""
        counts = drawn[self.order]
        own = counts[self.hits]
        all_above, hits_above = count_up(counts)[self.last], count_up(own)[self.last_hit]
        shares = np.divide(hits_above, np.maximum(all_above, 1), dtype=np.float64)
        return np.einsum("hd,hd->d", own.astype(np.float64), shares)

    def difference(self, chosen: Rows) -> Draws:
        """What the score of places that are not chosen has more than that of those that are, times the hits of one.

        Each hit is in one of the two: of places that are not chosen what is above are all less those that are.
        """
        counts = chosen[self.order]
        own = counts[self.hits]
        hits_above, all_above = count_up(own)[self.last_hit], count_up(counts)[self.last]
        left = 1 - own
        hits_above -= left * (self.last_hit + 1).astype(np.float32)[:, None]
        all_above -= left * (self.last + 1).astype(np.float32)[:, None]  # below 0 where the place is not chosen
        np.abs(all_above, out=all_above)
        shares = np.divide(hits_above, all_above, dtype=np.float64)
        difference: Draws = -shares.sum(axis=0)
        return difference


def _scorer_of_hits(is_hit: Bool[np.ndarray, " examples"], runs: Sequence[_Area | _Precision]) -> Scorer:
    """The scores of several runs; undefined for draws without hits or without misses."""

    def scorer(counts: Counts) -> DrawnScores:
        found = np.empty((len(counts), len(runs)))
        for here, drawn in _in_parts(counts):
            hits, total = drawn[is_hit].sum(axis=0, dtype=np.float64), drawn.sum(axis=0)
            defined = (hits > 0) & (hits < total)
            with np.errstate(invalid="ignore", divide="ignore"):
                scores = np.stack([run.score(drawn) / hits for run in runs], axis=1)
            found[here] = np.where(defined[:, None], scores, np.nan)
        return found

    return scorer


# What both scores of a swap take, beside the score of a draw: a sum over examples, or one set of counts.
SWAPPABLE: dict[Any, float] = {spearman_scorer: 0.05, average_precision_scorer: 1.5}


def swapped_differences(scorer: Any, outputs: Values, labels: Labels, positive: int) -> Difference | None:
    """What maps swaps to differences of scores, second less first; None where too many outputs are equal.

    Args:
        scorer: of the metric, one of `SWAPPABLE`.
        outputs: of the base, then of runs, of which each is swapped with the base.
    """
    if scorer is spearman_scorer:
        return _swapped_correlations(outputs, labels)
    return _swapped_precisions(outputs, labels == positive)


def _swapped_precisions(outputs: Values, is_hit: Bool[np.ndarray, " examples"]) -> Difference:
    """Differences of average precision."""
    runs = [_Precision(np.concatenate([outputs[0], own]), np.concatenate([is_hit, is_hit])) for own in outputs[1:]]
    hits = int(is_hit.sum())
    defined = 0 < hits < len(is_hit)

    def difference(swapped: Swaps) -> Float[np.ndarray, "draws runs"]:
        found = np.full((len(swapped), len(runs)), np.nan)
        for here, run_outputs in _in_parts(swapped) if defined else ():
            chosen = np.concatenate([1 - run_outputs, run_outputs])
            found[here] = np.stack([run.difference(chosen) / hits for run in runs], axis=1)
        return found

    return difference


def _swapped_correlations(outputs: Values, labels: Labels) -> Difference | None:
    """Differences of Spearman's correlation; None where too many outputs are equal."""
    of_labels = _Order.of_values(labels)
    ranks = np.empty(len(labels))
    ranks[of_labels.order] = of_labels.first + of_labels.last + 1 - len(labels)
    runs = [_Correlated(_Order.of_values(np.concatenate([outputs[0], own])), ranks) for own in outputs[1:]]
    if any(len(run.groups) > MOST_GROUPS for run in runs):
        return None
    weights = np.stack([run.weights for run in runs], axis=1)

    def difference(swapped: Swaps) -> Float[np.ndarray, "draws runs"]:
        found = (1.0 - 2.0 * swapped) @ weights
        size = max(1, min(2 * DRAWS, ROWS_BYTES // swapped.shape[1]))
        for start in range(0, len(swapped), size):
            here = slice(start, start + size)
            chosen = _Chosen.by_swaps(swapped[here])
            for number, run in enumerate(runs):
                found[here, number] = run.difference(chosen, found[here, number])
        return found

    return difference


@dataclass(frozen=True)
class _Chosen:
    """Which outputs are in the first score: swapped ones of the run, others of the base, and a last one in none.

    Args:
        first: 1 for those that are.
    """

    first: UInt8[np.ndarray, "outputs draws"]

    @classmethod
    def by_swaps(cls, swapped: Swaps) -> "_Chosen":
        """By which examples each draw swaps."""
        run = np.ascontiguousarray(swapped.T, np.uint8)
        return cls(np.concatenate([1 - run, run, np.zeros((1, run.shape[1]), np.uint8)]))

    def some(self, draws: Int[np.ndarray, " some"]) -> "_Chosen":
        """Those of some draws."""
        return _Chosen(self.first[:, draws])

    @cached_property
    def bits(self) -> UInt8[np.ndarray, "8 outputs draws"]:
        """The same at each bit of a byte."""
        return self.first << np.arange(8, dtype=np.uint8)[:, None, None]


class _Correlated:
    """Spearman's correlations of a run and the base after swaps.

    A score is a sum of labels' ranks times outputs' ranks over the root of both spreads. Labels' ranks less their mean
    sum to 0, so that the sum is one over pairs of examples: of two, that with the larger output adds its label's rank,
    and where outputs are equal each adds half. With t = 1 where an example keeps its outputs, else -1, a pair adds
    c0 + c1 t + c2 t' + c3 t t' to the first score's sum and the same with the signs of t and t' reversed to the
    second's: in the difference of both only c1 and c2 remain, which is a sum over examples. Where no outputs of two
    examples are equal, the spreads are always the same, and that is all.

    Others take a little from the spread of the score that both are in. What is divided by two spreads needs both sums:
    c3 is left out where the difference is nowhere near that without swaps, with which draws are compared, and can be
    off by `NEGLIGIBLE` at most; elsewhere sums are computed. In the first one an output's rank is 2 C - 1 - n, with C
    the places up to there that are in that score. Of a byte's places tables have the sum of the labels' ranks that are
    in the score, and of these times how many of the byte are up to there.

    Args:
        one: the order of both outputs of all examples, the base's first.
        labels: twice their ranks, less the mean.

    Attributes:
        weights: of each example, what keeping its outputs adds to the second score's sum less the first's.
        both: the mean over all swaps of the sum of both.
        groups: outputs and labels' ranks of places that are equal and of several examples.
        observed: the difference without swaps.
    """

    def __init__(self, one: _Order, labels: Float[np.ndarray, " examples"]) -> None:
        self.examples, places = len(labels), len(one.order)
        of_outputs = np.concatenate([labels, labels, [0.0]])
        self.bytes = np.append(one.order, np.full(-places % 8, places)).reshape(-1, 8)
        self.labels = of_outputs[self.bytes]
        self.offsets = 256 * np.arange(len(self.bytes), dtype=np.int32)[:, None]
        ranks = of_outputs[one.order]
        up_to = np.append(0.0, ranks.cumsum())
        outputs_below, labels_below = np.empty((2, places))  # twice: those that are equal count half
        outputs_below[one.order] = one.first + one.last + 1
        labels_below[one.order] = up_to[one.first] + up_to[one.last + 1]
        below, after = np.split(outputs_below, 2)
        self.weights = (labels * (after - below) - np.diff(np.split(labels_below, 2), axis=0)[0]) / 2
        self.both = float(labels @ (below + after)) / 2
        starts = np.unique(one.first[one.last > one.first])
        several = [slice(start, one.last[start] + 1) for start in starts]
        kept = [place for place in several if np.ptp(one.order[place] % self.examples)]
        self.groups = [(one.order[place], ranks[place]) for place in kept]
        self.label_spread = float((labels**2).sum())
        self.spread = (self.examples**3 - self.examples) / 3
        lost = sum((len(weights) ** 3 - len(weights)) / 3 for _, weights in self.groups)
        self.negligible = bool(self.label_spread > 0 and lost <= NEGLIGIBLE * self.spread)
        unchanged = _Chosen.by_swaps(np.zeros((1, self.examples)))
        self.observed = float(self._computed(unchanged, self.weights.sum(keepdims=True))[0])

    def difference(self, chosen: _Chosen, linear: Draws) -> Draws:
        """The second score's correlation less the first's.

        Args:
            linear: the second score's sum less the first's.
        """
        if not self.negligible:
            return self._computed(chosen, linear)
        first, second = 1 / np.sqrt(self._spreads(chosen))
        found: Draws = (linear * (first + second) + self.both * (second - first)) / 2 / self.label_spread**0.5
        off = 2 * self.spread**0.5 * np.abs(second - first)  # as no correlation is above 1
        near = np.flatnonzero((off > 0) & (np.abs(np.abs(found) - abs(self.observed)) <= off + NEAR))
        if len(near):
            found[near] = self._computed(chosen.some(near), linear[near])
        return found

    def _spreads(self, chosen: _Chosen) -> Float[np.ndarray, "2 draws"]:
        """Those of both scores' ranks: each has the mean of the ranks of those that are equal."""
        found = np.full((2, chosen.first.shape[1]), self.spread)
        for outputs, _ in self.groups:
            first = chosen.first[outputs].sum(axis=0, dtype=np.float64)
            for score, together in enumerate((first, len(outputs) - first)):
                found[score] -= (together**3 - together) / 3
        return found

    def _computed(self, chosen: _Chosen, linear: Draws) -> Draws:
        """The difference by the first score's sum."""
        patterns = chosen.first[self.bytes[:, 0]]
        for bit in range(1, 8):
            patterns |= chosen.bits[bit][self.bytes[:, bit]]
        places, counts = patterns + self.offsets, np.bitwise_count(patterns).astype(np.float32)
        sums, inside = self.labels @ BITS.T, self.labels @ UP_TO.T  # made here: those of all runs would be large
        first = np.take(inside, places).sum(axis=0)
        first += np.einsum("bd,bd->d", count_up(counts) - counts, np.take(sums, places))
        first *= 2
        for outputs, weights in self.groups:
            bits = chosen.first[outputs].astype(np.float64)
            first += weights @ (bits * (bits.sum(axis=0) + 1 - 2 * bits.cumsum(axis=0)))
        products = np.stack([first, first + linear])
        size = np.full(products.shape, float(self.examples) ** 3)
        correlations = correlation(
            products, self._spreads(chosen), np.full((2, 1), self.label_spread), size, size[:, :1]
        )
        return correlations[1] - correlations[0]
