"""Metrics of ranks as functions of how often each example counts, and after swaps of the outputs of two runs.

Values are sorted once. In a draw, each value in that order has a count, and ranks are cumulative counts. They are
computed for many draws at once, by a product of blocks of rows with a triangle of ones. float32 holds these integers
exactly. In this module, a place is a position in the sorted order; it is a row, so that gathering is fast.

After a swap, the first score has one of the two outputs of each example, and the second score has the other. The
outputs of both runs are sorted together, and each place belongs to one of the scores. The counts of the second score
are all places minus those of the first, so both scores come from one set of counts. Differences of Spearman's
correlation are sums over examples, except for a correction of the spread of ranks if outputs are equal.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int, Num, UInt8

from bertjax.errors import DataError
from bertjax.statistics.resampling import Counts, DrawnScores, Labels, Scorer, Values, correlation

DRAWS, ROWS_BYTES = 128, 4 << 20  # largest number of draws, and of bytes of all rows, in one computation
ROWS = 24  # rows of a block
MOST_RANKED = 1_000_000  # examples: twice their counts are integers in float32
MOST_GROUPS = 64  # of equal outputs in a run and the base: with more of them, every draw is ranked again
NEGLIGIBLE = 1e-7  # error of a correlation, relative to differences of 1e-3 and more
NEAR = 1e-11  # differences that are this close may be equal

TRIANGLE = np.tril(np.ones((ROWS, ROWS), np.float32))
BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").astype(np.float64)
UP_TO = BITS * BITS.cumsum(axis=1)  # for each bit that is set in a byte, the number of set bits up to and including it

Rows: TypeAlias = Float[np.ndarray, "places draws"]
Draws: TypeAlias = Float[np.ndarray, " draws"]
Swaps: TypeAlias = Num[np.ndarray, "draws examples"]
Difference: TypeAlias = Callable[[Swaps], Float[np.ndarray, "draws runs"]]


def count_up(rows: Rows) -> Rows:
    """Cumulative sums of rows; integers below 2^24 are exact.

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
    """The ascending order of values, and the ranges of equal values.

    Args:
        order: index of the value at each place.
        first: first place with an equal value, for each place.
        last: last place with an equal value, for each place.
        ends: the last place of each different value.
        value: index in `ends` of the value at each place.
    """

    order: Int[np.ndarray, " places"]
    first: Int[np.ndarray, " places"]
    last: Int[np.ndarray, " places"]
    ends: Int[np.ndarray, " different"]
    value: Int[np.ndarray, " places"]

    @classmethod
    def of_values(cls, values: Num[np.ndarray, " places"]) -> "_Order":
        """Sort values."""
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
        """The count below each place plus the count up to and including equal values, from counts in this order."""
        if not self.ties:
            return 2 * count_up(counts) - counts
        return self.below_and_equal(counts)[0]

    def below_and_equal(self, counts: Rows) -> tuple[Rows, Float[np.ndarray, "different draws"]]:
        """The same, and the count of each different value."""
        up_to = count_up(counts)[self.ends]
        before = np.concatenate([np.zeros_like(up_to[:1]), up_to[:-1]])
        return (up_to + before)[self.value], up_to - before


def _in_parts(counts: Counts) -> Iterator[tuple[slice, Rows]]:
    """Draws in chunks, transposed so that examples are rows."""
    size = max(1, min(DRAWS, ROWS_BYTES // (4 * counts.shape[1])))
    for start in range(0, len(counts), size):
        here = slice(start, start + size)
        yield here, np.ascontiguousarray(counts[here].T, np.float32)


def spearman_scorer(values: Values, labels: Labels, positive: int) -> Scorer:
    """Spearman's correlation. Raises `DataError` for more than `MOST_RANKED` examples."""
    if values.shape[1] > MOST_RANKED:
        raise DataError(f"ranks of {values.shape[1]:,} examples are not drawn: at most {MOST_RANKED:,}")
    runs, of_labels = [_Order.of_values(run) for run in values], _Order.of_values(labels)

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
                in_order = drawn[one.order]
                if one.ties:
                    below, equal = one.below_and_equal(in_order)
                    sums[1, :, run] = _spread_of_ranks(equal)
                else:
                    below = one.below(in_order)
                sums[0, :, run] = np.einsum("pd,pd->d", weighted[one.order], (below - total).astype(np.float64))
            found[here] = correlation(
                sums[0], sums[1], label_spread[:, None], np.broadcast_to(size, sums[1].shape), size
            )
        return found

    return scorer


def _spread_of_ranks(equal: Rows) -> Draws:
    """The sum of squares of twice the ranks minus their mean, from the number of equal outputs of each value.

    It is (N^3 - sum of t^3) / 3 for N outputs in groups of t equal ones (Kendall 1945).
    """
    wide = equal.astype(np.float64)
    spread: Draws = (wide.sum(axis=0) ** 3 - np.einsum("vd,vd->d", wide * wide, wide)) / 3
    return spread


def roc_auc_scorer(values: Values, labels: Labels, positive: int) -> Scorer:
    """ROC AUC (Mann and Whitney 1947)."""
    is_hit = labels == positive
    return _scorer_of_hits(is_hit, [_Area(run, is_hit) for run in values])


def average_precision_scorer(values: Values, labels: Labels, positive: int) -> Scorer:
    """Average precision."""
    is_hit = labels == positive
    return _scorer_of_hits(is_hit, [_Precision(run, is_hit) for run in values])


class _Area:
    """ROC AUC: the share of pairs of a hit and a miss that are in the right order; equal values count one half."""

    def __init__(self, values: Float[np.ndarray, " examples"], is_hit: Bool[np.ndarray, " examples"]) -> None:
        self.one = _Order.of_values(values)
        self.hits = np.flatnonzero(is_hit[self.one.order])

    def score(self, drawn: Rows) -> Draws:
        """That share times the number of hits."""
        counts = drawn[self.one.order]
        of_hits = counts[self.hits]
        counts[self.hits] = 0
        pairs: Draws = (of_hits * self.one.below(counts)[self.hits]).sum(axis=0, dtype=np.float64)
        return pairs / (2 * (drawn.sum(axis=0, dtype=np.float64) - of_hits.sum(axis=0)))


class _Precision:
    """Average precision: the share of hits among all values that are not below a hit, averaged over hits.

    Args:
        values: all values that are sorted together.
        is_hit: mask of the hits.
    """

    def __init__(self, values: Float[np.ndarray, " places"], is_hit: Bool[np.ndarray, " places"]) -> None:
        one = _Order.of_values(-values)
        self.order, self.hits = one.order, np.flatnonzero(is_hit[one.order])
        self.last = one.last[self.hits]  # the last place that is not below each hit
        self.last_hit = np.searchsorted(self.hits, self.last, side="right") - 1

    def score(self, drawn: Rows) -> Draws:
        """That mean times the number of hits."""
        counts = drawn[self.order]
        of_hits = counts[self.hits]
        all_above, hits_above = count_up(counts)[self.last], count_up(of_hits)[self.last_hit]
        shares = np.divide(hits_above, np.maximum(all_above, 1), dtype=np.float64)
        return np.einsum("hd,hd->d", of_hits.astype(np.float64), shares)

    def difference(self, chosen: Rows) -> Draws:
        """The score of unselected items minus the score of selected items, times the hits of one.

        The counts above an unselected hit are the counts of all items minus the counts of selected items.
        """
        counts = chosen[self.order]
        of_hits = counts[self.hits]
        hits_above, all_above = count_up(of_hits)[self.last_hit], count_up(counts)[self.last]
        left = 1 - of_hits
        hits_above -= left * (self.last_hit + 1).astype(np.float32)[:, None]
        all_above -= left * (self.last + 1).astype(np.float32)[:, None]  # below 0 if the place is not chosen
        np.abs(all_above, out=all_above)
        shares = np.divide(hits_above, all_above, dtype=np.float64)
        difference: Draws = -shares.sum(axis=0)
        return difference


def _scorer_of_hits(is_hit: Bool[np.ndarray, " examples"], runs: Sequence[_Area | _Precision]) -> Scorer:
    """A scorer of several runs; undefined for draws without hits or without misses."""

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


# The cost of both scores of a swap, relative to the score of a draw: a sum over examples, or one set of counts.
SWAPPABLE: dict[Any, float] = {spearman_scorer: 0.05, average_precision_scorer: 1.5}


def swapped_differences(scorer: Any, outputs: Values, labels: Labels, positive: int) -> Difference | None:
    """Make a function from swaps to differences of scores, second minus first; None if too many outputs are equal.

    Args:
        scorer: scorer of the metric, one of `SWAPPABLE`.
        outputs: outputs of the base, then of the runs; each run is swapped with the base.
    """
    if scorer is spearman_scorer:
        return _swapped_correlations(outputs, labels)
    return _swapped_precisions(outputs, labels == positive)


def _swapped_precisions(outputs: Values, is_hit: Bool[np.ndarray, " examples"]) -> Difference:
    """Differences of average precision."""
    both = np.concatenate([is_hit, is_hit])
    runs = [_Precision(np.concatenate([outputs[0], after]), both) for after in outputs[1:]]
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
    """Differences of Spearman's correlation; None if too many outputs are equal."""
    of_labels = _Order.of_values(labels)
    ranks = np.empty(len(labels))
    ranks[of_labels.order] = of_labels.first + of_labels.last + 1 - len(labels)
    runs = [_Correlated(_Order.of_values(np.concatenate([outputs[0], after])), ranks) for after in outputs[1:]]
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
    """The outputs of the first score: swapped ones of the run, the others of the base. A last output is in no score.

    Args:
        first: 1 for outputs of the first score.
    """

    first: UInt8[np.ndarray, "outputs draws"]

    @classmethod
    def by_swaps(cls, swapped: Swaps) -> "_Chosen":
        """From the examples that each draw swaps."""
        run = np.ascontiguousarray(swapped.T, np.uint8)
        return cls(np.concatenate([1 - run, run, np.zeros((1, run.shape[1]), np.uint8)]))

    def some(self, draws: Int[np.ndarray, " some"]) -> "_Chosen":
        """The outputs of some draws."""
        return _Chosen(self.first[:, draws])

    @cached_property
    def bits(self) -> UInt8[np.ndarray, "8 outputs draws"]:
        """`first`, shifted to each bit of a byte."""
        return self.first << np.arange(8, dtype=np.uint8)[:, None, None]


class _Correlated:
    """Spearman's correlations of a run and the base after swaps.

    A score is a sum of labels' ranks times outputs' ranks, over the root of both spreads. Labels' ranks minus their
    mean sum to 0, so the sum is one over pairs of examples: the example with the larger output adds its label's rank;
    if outputs are equal, each adds half. Let t be 1 if an example keeps its outputs and -1 if they are swapped. A pair
    adds c0 + c1 t + c2 t' + c3 t t' to the sum of the first score, and the same with the signs of t and t' reversed to
    that of the second. Only c1 and c2 remain in the difference, which is a sum over examples. If no outputs of two
    examples are equal, the spreads are constant, and the difference needs nothing else.

    Equal outputs in one score reduce its spread. Two different spreads need both sums. c3 is left out if its error is
    at most `NEGLIGIBLE` and the difference is not near the one without swaps, which draws are compared with; else the
    sums are computed. In the first score, the rank of an output is 2 C - 1 - n, with C the number of places of that
    score up to the output. For each byte of places, tables hold the sum of the labels' ranks in the score, and the sum
    of these ranks times the number of places of the score in the byte up to each.

    Args:
        one: the order of both outputs of all examples, those of the base first.
        labels: twice their ranks, minus the mean.

    Attributes:
        weights: for each example, the contribution of keeping its outputs to the second sum minus the first.
        both: the mean over all swaps of the sum of both.
        groups: outputs and labels' ranks of equal places of several examples.
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
        ranges = [slice(start, one.last[start] + 1) for start in starts]
        kept = [places for places in ranges if np.ptp(one.order[places] % self.examples)]
        self.groups = [(one.order[places], ranks[places]) for places in kept]
        self.label_spread = float((labels**2).sum())
        self.spread = (self.examples**3 - self.examples) / 3
        lost = sum((len(weights) ** 3 - len(weights)) / 3 for _, weights in self.groups)
        self.negligible = bool(self.label_spread > 0 and lost <= NEGLIGIBLE * self.spread)
        unchanged = _Chosen.by_swaps(np.zeros((1, self.examples)))
        self.observed = float(self._computed(unchanged, self.weights.sum(keepdims=True))[0])

    def difference(self, chosen: _Chosen, linear: Draws) -> Draws:
        """The second correlation minus the first, from the second sum minus the first (`linear`)."""
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
        """The spreads of the ranks in both scores; equal outputs have the mean of their ranks."""
        found = np.full((2, chosen.first.shape[1]), self.spread)
        for outputs, _ in self.groups:
            first = chosen.first[outputs].sum(axis=0, dtype=np.float64)
            for score, equal in enumerate((first, len(outputs) - first)):
                found[score] -= (equal**3 - equal) / 3
        return found

    def _computed(self, chosen: _Chosen, linear: Draws) -> Draws:
        """The difference, from the sum of the first score."""
        patterns = chosen.first[self.bytes[:, 0]]
        for bit in range(1, 8):
            patterns |= chosen.bits[bit][self.bytes[:, bit]]
        places, counts = patterns + self.offsets, np.bitwise_count(patterns).astype(np.float32)
        sums, inside = self.labels @ BITS.T, self.labels @ UP_TO.T  # (too large to keep for all runs)
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
