"""Scores with examples counted several times, once or not at all, for all runs at once.

Drawing examples with replacement, leaving one out, choosing half of them, or swapping the outputs of two runs only
changes how often each example counts, so one function of counts serves bootstrap, jackknife, halves and permutation
tests. Where several outputs belong to one unit (the words of a sentence), units are counted, and all outputs of a unit
count as often as it does. Accuracy, F1, Matthews and Pearson are functions of sums, computed as matrix products. For
metrics of ranks, values are sorted once, and each draw's ranks are cumulative sums along that order. Calling the metric
once per draw would take minutes for each of them.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Num, Shaped

from bertjax.errors import DataError

Counts = Num[np.ndarray, "draws examples"]
DrawnScores = Float[np.ndarray, "draws runs"]
Scorer = Callable[[Counts], DrawnScores]
Predictions = Int[np.ndarray, "runs examples"]
Values = Float[np.ndarray, "runs examples"]
Labels = Num[np.ndarray, " examples"]
Units = Int[np.ndarray, " rows"]

# A chunk's counts and everything computed from them take at most about this many bytes.
CHUNK_BYTES = 64 << 20
# The cube of the number of examples must fit into 64 bits.
MOST_RANKED = 1_000_000
MOST_WORKERS = 16
# A variance below this share of the mean square is rounding error.
ROUNDING = 1e-12


def score_draws(
    scorer: Scorer,
    draws: Iterable[Num[np.ndarray, "_ examples"]],
    advance: Callable[[int], None] = lambda draws: None,
) -> DrawnScores:
    """Scores of many draws, passed in chunks; several threads process a few chunks at a time.

    Args:
        advance: called with the number of draws in each chunk once it is done.
    """
    workers = min(os.cpu_count() or 1, MOST_WORKERS)
    score_chunks: list[Float[np.ndarray, "_ runs"]] = []
    pending: deque[Future[DrawnScores]] = deque()

    def settle() -> None:
        score_chunks.append(pending.popleft().result())
        advance(len(score_chunks[-1]))

    with ThreadPoolExecutor(workers) as pool:
        for counts in draws:
            pending.append(pool.submit(scorer, counts))
            if len(pending) > workers:
                settle()
        while pending:
            settle()
    return np.concatenate(score_chunks)


def chunk_size(examples: int, runs: int) -> int:
    """The number of draws to compute together."""
    return max(1, min(2048, CHUNK_BYTES // (8 * (examples + 3 * runs))))


def bootstrap_counts(
    examples: int, draws: int, seed: int, runs: int = 1, rows: int = 0
) -> Iterator[Num[np.ndarray, "some examples"]]:
    """How often each example is drawn, in chunks; the same draws as `scipy.stats.bootstrap` with the same seed.

    Args:
        rows: outputs that belong to all examples, where these are units of several.
    """
    generator, size = np.random.default_rng(seed), chunk_size(max(examples, rows), runs)
    for start in range(0, draws, size):
        count = min(size, draws - start)
        positions = generator.integers(0, examples, (count, examples)) + examples * np.arange(count)[:, None]
        counts = np.bincount(positions.ravel(), minlength=count * examples).reshape(count, examples)
        yield counts.astype(np.uint16)


def swaps(examples: int, draws: int, seed: int, runs: int = 1) -> Iterator[Num[np.ndarray, "some examples"]]:
    """1 where a draw swaps the outputs of two runs for an example, with probability one half each; in chunks."""
    generator, size = np.random.default_rng(seed), chunk_size(examples, runs)
    for start in range(0, draws, size):
        count = min(size, draws - start)
        # The generator keeps no remainder of whole 64-bit words, so the swaps do not depend on the chunk size.
        words = generator.integers(0, 1 << 64, (count, -(-examples // 64)), np.uint64)
        yield np.unpackbits(words.astype("<u8").view(np.uint8), axis=1, count=examples)


def _accuracy(
    predictions: Int[np.ndarray, "runs examples"], labels: Num[np.ndarray, " examples"], positive: int, counts: Counts
) -> DrawnScores:
    return _sums(counts, predictions == labels) / counts.sum(1, dtype=np.float64)[:, None]


def _f1(
    predictions: Int[np.ndarray, "runs examples"], labels: Num[np.ndarray, " examples"], positive: int, counts: Counts
) -> DrawnScores:
    predicted, true = predictions == positive, labels == positive
    with np.errstate(invalid="ignore"):  # undefined if no example is positive or predicted positive
        return 2 * _sums(counts, predicted & true) / (_sums(counts, predicted) + _sums(counts, true[None]))


def _matthews(
    predictions: Int[np.ndarray, "runs examples"], labels: Num[np.ndarray, " examples"], positive: int, counts: Counts
) -> DrawnScores:
    """For any number of classes (Gorodkin 2004); 0 where all predictions are equal, undefined where all labels are."""
    classes = np.unique(np.concatenate([labels.ravel(), predictions.ravel()]))
    total = counts.sum(1, dtype=np.float64)[:, None]
    correct = _sums(counts, predictions == labels)
    products, predicted_squares, true_squares = (np.zeros_like(correct) for _ in range(3))
    for label in classes:
        predicted, true = _sums(counts, predictions == label), _sums(counts, (labels == label)[None])
        products += predicted * true
        predicted_squares += predicted**2
        true_squares += true**2
    spread = (total**2 - predicted_squares) * (total**2 - true_squares)
    correlations = np.where(spread > 0, (correct * total - products) / np.sqrt(np.where(spread > 0, spread, 1)), 0)
    return np.where(total**2 - true_squares > 0, correlations, np.nan)


def accuracy_scorer(predictions: Predictions, labels: Labels, positive: int) -> Scorer:
    """Accuracy."""
    return partial(_accuracy, predictions, labels, positive)


def f1_scorer(predictions: Predictions, labels: Labels, positive: int) -> Scorer:
    """F1 of the positive class."""
    return partial(_f1, predictions, labels, positive)


def matthews_scorer(predictions: Predictions, labels: Labels, positive: int) -> Scorer:
    """Matthews' correlation."""
    return partial(_matthews, predictions, labels, positive)


def _sums(counts: Counts, masks: Shaped[np.ndarray, "runs examples"]) -> Float[np.ndarray, "draws runs"]:
    """The number of drawn examples in each mask: float32 holds such integers exactly and takes half the time."""
    return (counts.astype(np.float32) @ masks.T.astype(np.float32)).astype(np.float64)


def pearson_scorer(values: Values, labels: Labels, positive: int) -> Scorer:
    """Pearson's correlation."""
    x, y = standardise(values), standardise(labels[None].astype(np.float64))
    terms = [np.ascontiguousarray(term.T) for term in (x, x * x, x * y, y, y * y)]

    def scorer(counts: Counts) -> DrawnScores:
        weights = counts.astype(np.float64)
        total = weights.sum(1, keepdims=True)
        mean_x, square_x, product, mean_y, square_y = (weights @ term / total for term in terms)
        return _correlation(product - mean_x * mean_y, square_x - mean_x**2, square_y - mean_y**2, square_x, square_y)

    return scorer


def standardise(values: Float[np.ndarray, "runs examples"]) -> Float[np.ndarray, "runs examples"]:
    """Values with mean 0 and variance 1, so that variances are differences of small numbers; 0 where all are equal."""
    centred = values - values.mean(1, keepdims=True)
    spread = centred.std(1, keepdims=True)
    constant = np.ptp(values, axis=1, keepdims=True) == 0
    return np.where(constant, 0.0, centred / np.where(spread > 0, spread, 1))


def _correlation(
    covariance: Float[np.ndarray, "draws runs"],
    variance_x: Float[np.ndarray, "draws runs"],
    variance_y: Float[np.ndarray, "draws #runs"],
    scale_x: Float[np.ndarray, "draws runs"],
    scale_y: Float[np.ndarray, "draws #runs"],
) -> DrawnScores:
    defined = (variance_x > ROUNDING * scale_x) & (variance_y > ROUNDING * scale_y)
    root = np.sqrt(np.where(defined, variance_x * variance_y, 1))
    return np.where(defined, np.clip(covariance / root, -1, 1), np.nan)


EXACT = 2**24  # below it float32 has all whole numbers


@dataclass(frozen=True)
class Sums:
    """A score that is a function of sums over outputs: a mean, a ratio of counts, F1.

    Attributes:
        terms: takes outputs `[runs, rows, ...]`, labels `[rows]` and the positive class; returns what is summed,
            `[runs, rows, terms]`.
        score: takes the sums `[..., terms]`, float64, and returns scores `[...]`; NaN where undefined.
        numbers: of each output, by what they are; none where that is not said, or where it reads a value alone.
        of_each_label: those that follow for each label, by what they are.
        errors: takes the terms of all units, `[runs, units, terms]`, and returns the standard error of each score; for
            scores whose draws can be of any size, so that their spread says nothing. None for that spread.
    """

    terms: Callable[[Any, Labels, int], Float[np.ndarray, "runs rows terms"]]
    score: Callable[[Float[np.ndarray, "*draws terms"]], Float[np.ndarray, "*draws"]]
    numbers: tuple[str, ...]
    of_each_label: tuple[str, ...] = ()
    errors: Callable[[Float[np.ndarray, "runs units terms"]], Float[np.ndarray, " runs"]] | None = None

    @property
    def fewest(self) -> int:
        """How many numbers an output has at least: of a single label."""
        return len(self.numbers) + len(self.of_each_label)

    def takes(self, count: int) -> bool:
        """Whether an output may have so many numbers."""
        more = count - self.fewest
        several = more > 0 and bool(self.of_each_label) and more % len(self.of_each_label) == 0
        return several or more == 0 or not self.fewest

    def of_all(self, outputs: Any, labels: Labels, positive: int) -> Float[np.ndarray, " runs"]:
        """The score of each run on all outputs."""
        return self.score(self.terms(outputs, labels, positive).sum(axis=1, dtype=np.float64))

    def terms_of_units(
        self, outputs: Any, labels: Labels, positive: int, units: Units | None
    ) -> Float[np.ndarray, "runs units terms"]:
        """What is summed, of each unit, or of each output where there are no units."""
        terms = self.terms(outputs, labels, positive).astype(np.float64)
        return terms if units is None else add_up(terms, units)

    def scorer(self, outputs: Any, labels: Labels, positive: int, units: Units | None) -> Scorer:
        """The scores as a function of how often each unit counts, or each output where there are no units."""
        totals = np.moveaxis(self.terms_of_units(outputs, labels, positive, units), 0, 1)
        shape, flat = totals.shape[1:], np.ascontiguousarray(totals.reshape(len(totals), -1))
        largest = np.abs(flat).max(initial=0)
        if (flat == np.rint(flat)).all() and largest < EXACT:
            flat = flat.astype(np.float32)

        def score(counts: Num[np.ndarray, "draws units"]) -> Float[np.ndarray, "draws runs"]:
            exact = largest * counts.sum(axis=1).max(initial=0) < EXACT  # sums of whole numbers, whatever their order
            dtype = flat.dtype if exact else np.dtype(np.float64)
            sums = counts.astype(dtype) @ flat.astype(dtype, copy=False)
            return self.score(sums.reshape(len(counts), *shape).astype(np.float64, copy=False))

        return score


def add_up(
    terms: Float[np.ndarray, "runs rows terms"], units: Int[np.ndarray, " rows"]
) -> Float[np.ndarray, "runs units terms"]:
    """Sums over the rows of each unit; each unit has one at least."""
    order = np.argsort(units, kind="stable")
    starts = np.flatnonzero(np.diff(units[order], prepend=-1))
    return np.add.reduceat(terms[:, order], starts, axis=1)


def by_units(scorer: Scorer, units: Units) -> Scorer:
    """A scorer that takes how often each unit counts; all outputs of a unit count as often."""
    return lambda counts: scorer(counts[:, units])


@dataclass(frozen=True)
class _Workspace:
    """Arrays reused for every draw: allocating them each time would take longer than the computation.

    Integers, because NumPy computes their cumulative sums ten times as fast as those of floats.

    Args:
        sorted: counts in each run's order.
        sums: cumulative sums of the counts, after a leading 0.
        low, high, spare: buffers for what is computed from these.
        share: a buffer for fractions.
    """

    sorted: Int[np.ndarray, "runs examples"]
    sums: Int[np.ndarray, "runs places"]
    low: Int[np.ndarray, "runs examples"]
    high: Int[np.ndarray, "runs examples"]
    spare: Int[np.ndarray, "runs examples"]
    share: Float[np.ndarray, "runs examples"]


class _Order:
    """The ascending order of each run's values, and where equal values begin and end.

    Args:
        values: `[runs, examples]`.
    """

    def __init__(self, values: Float[np.ndarray, "runs examples"]):
        runs, examples = values.shape
        self.order = np.argsort(values, axis=1, kind="stable")
        rises = np.diff(np.take_along_axis(values, self.order, axis=1), axis=1) != 0
        self.ends = None
        if not rises.all():
            places = np.arange(examples)
            first = np.where(np.pad(rises, ((0, 0), (1, 0)), constant_values=True), places, 0)
            last = np.where(np.pad(rises, ((0, 0), (0, 1)), constant_values=True), places + 1, examples)
            offsets = (examples + 1) * np.arange(runs)[:, None]
            self.ends = (
                np.maximum.accumulate(first, axis=1) + offsets,
                np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1] + offsets,
            )

    def workspace(self) -> _Workspace:
        """A workspace for one thread."""
        runs, examples = self.order.shape
        buffers = [np.empty((runs, examples), np.int64) for _ in range(4)]
        sums = np.zeros((runs, examples + 1), np.int64)
        return _Workspace(buffers[0], sums, buffers[1], buffers[2], buffers[3], np.empty((runs, examples)))

    def sort(self, counts: Int[np.ndarray, " examples"], space: _Workspace) -> Int[np.ndarray, "runs examples"]:
        """One draw's counts in each run's order."""
        return np.take(counts, self.order, out=space.sorted, mode="clip")

    def below(
        self, counts: Int[np.ndarray, "runs examples"], space: _Workspace
    ) -> tuple[Int[np.ndarray, "runs examples"], Int[np.ndarray, "runs examples"]]:
        """For each example in order, the total count below its value, and the total count up to and including it."""
        np.cumsum(counts, axis=1, out=space.sums[:, 1:])
        if self.ends is None:
            return space.sums[:, :-1], space.sums[:, 1:]
        flat, (first, last) = space.sums.reshape(-1), self.ends
        return np.take(flat, first, out=space.low, mode="clip"), np.take(flat, last, out=space.high, mode="clip")


def spearman_scorer(values: Values, labels: Labels, positive: int) -> Scorer:
    """Spearman's correlation. Raises `DataError` for more than `MOST_RANKED` examples."""
    if values.shape[1] > MOST_RANKED:
        raise DataError(f"ranks of {values.shape[1]:,} examples are not drawn: at most {MOST_RANKED:,}")
    value_order, label_order = _Order(values), _Order(labels[None].astype(np.float64))
    places = np.argsort(label_order.order[0], kind="stable")[value_order.order]

    def score_draw(
        counts: Int[np.ndarray, " examples"], space: _Workspace, label_space: _Workspace
    ) -> Float[np.ndarray, " runs"]:
        """The score from twice the centred midranks, which are integers."""
        total = counts.sum()
        sorted_labels = label_order.sort(counts, label_space)
        low, high = label_order.below(sorted_labels, label_space)
        label_ranks = low + high - total
        label_spread = float((sorted_labels * label_ranks**2).sum())
        sorted_counts = value_order.sort(counts, space)
        low, high = value_order.below(sorted_counts, space)
        ranks = np.add(low, high, out=space.spare)
        ranks -= total
        sorted_counts *= ranks
        value_spread = np.einsum("re,re->r", sorted_counts, ranks)
        products = np.einsum("re,re->r", sorted_counts, np.take(label_ranks[0], places, out=space.spare, mode="clip"))
        sums, size = np.stack([products, value_spread]).astype(np.float64), np.full((1, len(values)), float(total) ** 3)
        return _correlation(sums[:1], sums[1:], np.array([[label_spread]]), size, size[:, :1])[0]

    return _each(score_draw, value_order, label_order)


def roc_auc_scorer(values: Values, labels: Labels, positive: int) -> Scorer:
    """ROC AUC (Mann and Whitney 1947)."""
    return _ranking(values, labels == positive, area=True)


def average_precision_scorer(values: Values, labels: Labels, positive: int) -> Scorer:
    """Average precision."""
    return _ranking(values, labels == positive, area=False)


def _ranking(values: Values, is_positive: Shaped[np.ndarray, " examples"], area: bool) -> Scorer:
    """ROC AUC or average precision, from the counts of hits and misses sorted before each value."""
    order = _Order(values if area else -values)
    is_hit = is_positive[order.order].astype(np.int64)

    def score_draw(
        counts: Int[np.ndarray, " examples"], space: _Workspace, hit_space: _Workspace
    ) -> Float[np.ndarray, " runs"]:
        total_hits = int(counts[is_positive].sum())
        total_misses = int(counts.sum()) - total_hits
        if not total_hits or not total_misses:
            return np.full(len(values), np.nan)
        sorted_counts = order.sort(counts, space)
        hits = np.multiply(sorted_counts, is_hit, out=hit_space.sorted)
        if area:
            sorted_counts -= hits
            low, high = order.below(sorted_counts, space)
            return np.einsum("re,re->r", hits, np.add(low, high, out=space.spare)) / (2 * total_hits * total_misses)
        hits_above, all_above = order.below(hits, hit_space)[1], order.below(sorted_counts, space)[1]
        share = np.divide(hits_above, np.maximum(all_above, 1, out=space.spare), out=space.share)
        return np.einsum("re,re->r", hits, share) / total_hits

    return _each(score_draw, order, order)


def _each(score_draw: Callable[..., Float[np.ndarray, " runs"]], first: _Order, second: _Order) -> Scorer:
    """A scorer that goes draw by draw, with one workspace for each of the two orders."""

    def scorer(counts: Counts) -> DrawnScores:
        first_space, second_space = first.workspace(), second.workspace()
        return np.stack([score_draw(draw.astype(np.int64), first_space, second_space) for draw in counts])

    return scorer


def counting_scorer(score: Callable[[Any], Float[np.ndarray, " runs"]]) -> Scorer:
    """A scorer for any metric, with one call per draw: for metrics without a scorer of their own.

    Args:
        score: takes the indices of the drawn examples, each repeated as often as it was drawn, and returns a score
            for each run.
    """

    def scorer(counts: Counts) -> DrawnScores:
        indices = np.arange(counts.shape[1])
        return np.stack([score(np.repeat(indices, draw.astype(np.int64))) for draw in counts])

    return scorer
