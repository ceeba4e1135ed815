"""Scores where each example counts several times, once or not at all, for every run at once.

Drawing examples with replacement, leaving one out, choosing half of them, or swapping the outputs of two runs changes
only how often an example counts, so one function of counts serves bootstrap, jackknife, halves and permutation tests.
Accuracy, F1, Matthews and Pearson are functions of sums, which are products of matrices; rankings are sorted once, and
a draw's ranks are sums along that order. One call of the metric for each draw would take minutes for each of these.
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

# Counts of a chunk of draws, and what is made of them, stay within about so many bytes.
CHUNK_BYTES = 64 << 20
# Third powers of numbers of examples stay within 64 bits.
MOST_RANKED = 1_000_000
MOST_WORKERS = 16
# A variance smaller than this share of the mean square is rounding.
ROUNDING = 1e-12


def score_draws(
    scorer: Scorer,
    draws: Iterable[Num[np.ndarray, "_ examples"]],
    advance: Callable[[int], None] = lambda draws: None,
) -> DrawnScores:
    """Scores of many draws, given chunk by chunk; chunks go to several threads, a few at a time.

    Args:
        advance: is told of each chunk how many draws it was, once it is done.
    """
    workers = min(os.cpu_count() or 1, MOST_WORKERS)
    found: list[Float[np.ndarray, "_ runs"]] = []
    waiting: deque[Future[DrawnScores]] = deque()

    def settle() -> None:
        found.append(waiting.popleft().result())
        advance(len(found[-1]))

    with ThreadPoolExecutor(workers) as pool:
        for counts in draws:
            waiting.append(pool.submit(scorer, counts))
            if len(waiting) > workers:
                settle()
        while waiting:
            settle()
    return np.concatenate(found)


def chunk_size(examples: int, runs: int) -> int:
    """How many draws to compute together."""
    return max(1, min(2048, CHUNK_BYTES // (8 * (examples + 3 * runs))))


def bootstrap_counts(examples: int, draws: int, seed: int, runs: int = 1) -> Iterator[Num[np.ndarray, "some examples"]]:
    """How often each example is drawn, in chunks: the draws of `scipy.stats.bootstrap` with the same seed."""
    generator, size = np.random.default_rng(seed), chunk_size(examples, runs)
    for start in range(0, draws, size):
        count = min(size, draws - start)
        drawn = generator.integers(0, examples, (count, examples)) + examples * np.arange(count)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=count * examples).reshape(count, examples)
        yield counts.astype(np.uint16)


def swaps(examples: int, draws: int, seed: int, runs: int = 1) -> Iterator[Num[np.ndarray, "some examples"]]:
    """1 where a draw swaps the outputs of two runs on an example, each with probability one half; in chunks."""
    generator, size = np.random.default_rng(seed), chunk_size(examples, runs)
    for start in range(0, draws, size):
        count = min(size, draws - start)
        # Whole 64-bit words, of which the generator keeps no rest: chunks of any size are the same swaps.
        words = generator.integers(0, 1 << 64, (count, -(-examples // 64)), np.uint64)
        yield np.unpackbits(words.astype("<u8").view(np.uint8), axis=1, count=examples)


def _accuracy(
    predictions: Int[np.ndarray, "runs examples"], labels: Num[np.ndarray, " examples"], positive: int, counts: Counts
) -> DrawnScores:
    return _sums(counts, predictions == labels) / counts.sum(1, dtype=np.float64)[:, None]


def _f1(
    predictions: Int[np.ndarray, "runs examples"], labels: Num[np.ndarray, " examples"], positive: int, counts: Counts
) -> DrawnScores:
    said, true = predictions == positive, labels == positive
    with np.errstate(invalid="ignore"):  # no example is or is called positive: undefined
        return 2 * _sums(counts, said & true) / (_sums(counts, said) + _sums(counts, true[None]))


def _matthews(
    predictions: Int[np.ndarray, "runs examples"], labels: Num[np.ndarray, " examples"], positive: int, counts: Counts
) -> DrawnScores:
    """Of any number of classes (Gorodkin 2004); 0 where all predictions, undefined where all labels are alike."""
    classes = np.unique(np.concatenate([labels.ravel(), predictions.ravel()]))
    total = counts.sum(1, dtype=np.float64)[:, None]
    right = _sums(counts, predictions == labels)
    both, said_squares, true_squares = (np.zeros_like(right) for _ in range(3))
    for one in classes:
        said, true = _sums(counts, predictions == one), _sums(counts, (labels == one)[None])
        both += said * true
        said_squares += said**2
        true_squares += true**2
    spread = (total**2 - said_squares) * (total**2 - true_squares)
    found = np.where(spread > 0, (right * total - both) / np.sqrt(np.where(spread > 0, spread, 1)), 0)
    return np.where(total**2 - true_squares > 0, found, np.nan)


def accuracy_scorer(predictions: Predictions, labels: Labels, positive: int) -> Scorer:
    """Accuracy."""
    return partial(_accuracy, predictions, labels, positive)


def f1_scorer(predictions: Predictions, labels: Labels, positive: int) -> Scorer:
    """F1 of the positive class."""
    return partial(_f1, predictions, labels, positive)


def matthews_scorer(predictions: Predictions, labels: Labels, positive: int) -> Scorer:
    """Matthews' correlation."""
    return partial(_matthews, predictions, labels, positive)


def _sums(counts: Counts, kinds: Shaped[np.ndarray, "runs examples"]) -> Float[np.ndarray, "draws runs"]:
    """How many drawn examples are of a kind: float32 holds such whole numbers exactly, in half the time."""
    return (counts.astype(np.float32) @ kinds.T.astype(np.float32)).astype(np.float64)


def pearson_scorer(values: Values, labels: Labels, positive: int) -> Scorer:
    """Pearson's correlation."""
    x, y = standardise(values), standardise(labels[None].astype(np.float64))
    parts = [np.ascontiguousarray(part.T) for part in (x, x * x, x * y, y, y * y)]

    def scorer(counts: Counts) -> DrawnScores:
        weights = counts.astype(np.float64)
        total = weights.sum(1, keepdims=True)
        mean_x, square_x, product, mean_y, square_y = (weights @ part / total for part in parts)
        return _correlation(product - mean_x * mean_y, square_x - mean_x**2, square_y - mean_y**2, square_x, square_y)

    return scorer


def standardise(values: Float[np.ndarray, "runs examples"]) -> Float[np.ndarray, "runs examples"]:
    """Mean 0 and variance 1, so that variances are differences of small numbers; 0 where all are alike."""
    centred = values - values.mean(1, keepdims=True)
    spread = centred.std(1, keepdims=True)
    alike = np.ptp(values, axis=1, keepdims=True) == 0
    return np.where(alike, 0.0, centred / np.where(spread > 0, spread, 1))


def _correlation(
    together: Float[np.ndarray, "draws runs"],
    spread_x: Float[np.ndarray, "draws runs"],
    spread_y: Float[np.ndarray, "draws #runs"],
    size_x: Float[np.ndarray, "draws runs"],
    size_y: Float[np.ndarray, "draws #runs"],
) -> DrawnScores:
    known = (spread_x > ROUNDING * size_x) & (spread_y > ROUNDING * size_y)
    root = np.sqrt(np.where(known, spread_x * spread_y, 1))
    return np.where(known, np.clip(together / root, -1, 1), np.nan)


@dataclass(frozen=True)
class _Workspace:
    """Arrays in which draw after draw is computed: to allocate them anew for each would take longer than to compute.

    Whole numbers, whose sums NumPy adds up ten times as fast as those of fractions.

    Args:
        sorted: counts in each run's order.
        sums: of counts up to each place, with a 0 before them.
        low, high, spare: whatever is made of these.
        share: the same as fractions.
    """

    sorted: Int[np.ndarray, "runs examples"]
    sums: Int[np.ndarray, "runs places"]
    low: Int[np.ndarray, "runs examples"]
    high: Int[np.ndarray, "runs examples"]
    spare: Int[np.ndarray, "runs examples"]
    share: Float[np.ndarray, "runs examples"]


class _Order:
    """Values of each run in ascending order, and where values that are alike begin and end.

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
            rows = (examples + 1) * np.arange(runs)[:, None]
            self.ends = (
                np.maximum.accumulate(first, axis=1) + rows,
                np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1] + rows,
            )

    def workspace(self) -> _Workspace:
        """For one thread."""
        runs, examples = self.order.shape
        whole = [np.empty((runs, examples), np.int64) for _ in range(4)]
        sums = np.zeros((runs, examples + 1), np.int64)
        return _Workspace(whole[0], sums, whole[1], whole[2], whole[3], np.empty((runs, examples)))

    def sort(self, counts: Int[np.ndarray, " examples"], space: _Workspace) -> Int[np.ndarray, "runs examples"]:
        """One draw's counts in each run's order."""
        return np.take(counts, self.order, out=space.sorted, mode="clip")

    def below(
        self, counts: Int[np.ndarray, "runs examples"], space: _Workspace
    ) -> tuple[Int[np.ndarray, "runs examples"], Int[np.ndarray, "runs examples"]]:
        """For each example in order, how much stands below its value, and how much up to and with it."""
        np.cumsum(counts, axis=1, out=space.sums[:, 1:])
        if self.ends is None:
            return space.sums[:, :-1], space.sums[:, 1:]
        flat, (first, last) = space.sums.reshape(-1), self.ends
        return np.take(flat, first, out=space.low, mode="clip"), np.take(flat, last, out=space.high, mode="clip")


def spearman_scorer(values: Values, labels: Labels, positive: int) -> Scorer:
    """Spearman's correlation. Raises `DataError` for more than `MOST_RANKED` examples."""
    if values.shape[1] > MOST_RANKED:
        raise DataError(f"ranks of {values.shape[1]:,} examples are not drawn: at most {MOST_RANKED:,}")
    mine, theirs = _Order(values), _Order(labels[None].astype(np.float64))
    places = np.argsort(theirs.order[0], kind="stable")[mine.order]

    def one(counts: Int[np.ndarray, " examples"], space: _Workspace, other: _Workspace) -> Float[np.ndarray, " runs"]:
        """By twice the centred midranks, which are whole numbers."""
        total = counts.sum()
        sorted_labels = theirs.sort(counts, other)
        low, high = theirs.below(sorted_labels, other)
        wanted = low + high - total
        spread = float((sorted_labels * wanted**2).sum())
        here = mine.sort(counts, space)
        low, high = mine.below(here, space)
        ranks = np.add(low, high, out=space.spare)
        ranks -= total
        here *= ranks
        mine_spread = np.einsum("re,re->r", here, ranks)
        together = np.einsum("re,re->r", here, np.take(wanted[0], places, out=space.spare, mode="clip"))
        both, size = np.stack([together, mine_spread]).astype(np.float64), np.full((1, len(values)), float(total) ** 3)
        return _correlation(both[:1], both[1:], np.array([[spread]]), size, size[:, :1])[0]

    return _each(one, mine, theirs)


def roc_auc_scorer(values: Values, labels: Labels, positive: int) -> Scorer:
    """ROC AUC (Mann and Whitney 1947)."""
    return _ranking(values, labels == positive, area=True)


def average_precision_scorer(values: Values, labels: Labels, positive: int) -> Scorer:
    """Average precision."""
    return _ranking(values, labels == positive, area=False)


def _ranking(values: Values, wanted: Shaped[np.ndarray, " examples"], area: bool) -> Scorer:
    """ROC AUC or average precision, from how many of each kind stand below each value."""
    order = _Order(values if area else -values)
    is_hit = wanted[order.order].astype(np.int64)

    def one(counts: Int[np.ndarray, " examples"], space: _Workspace, other: _Workspace) -> Float[np.ndarray, " runs"]:
        most_hits = int(counts[wanted].sum())
        most_misses = int(counts.sum()) - most_hits
        if not most_hits or not most_misses:
            return np.full(len(values), np.nan)
        every = order.sort(counts, space)
        hits = np.multiply(every, is_hit, out=other.sorted)
        if area:
            every -= hits
            low, high = order.below(every, space)
            return np.einsum("re,re->r", hits, np.add(low, high, out=space.spare)) / (2 * most_hits * most_misses)
        found, among = order.below(hits, other)[1], order.below(every, space)[1]
        share = np.divide(found, np.maximum(among, 1, out=space.spare), out=space.share)
        return np.einsum("re,re->r", hits, share) / most_hits

    return _each(one, order, order)


def _each(one: Callable[..., Float[np.ndarray, " runs"]], first: _Order, second: _Order) -> Scorer:
    """Draw after draw, in a workspace of each of two orders."""

    def scorer(counts: Counts) -> DrawnScores:
        space, other = first.workspace(), second.workspace()
        return np.stack([one(count.astype(np.int64), space, other) for count in counts])

    return scorer


def counting_scorer(score: Callable[[Any], Float[np.ndarray, " runs"]]) -> Scorer:
    """Scores of any metric, one call for each draw: for a metric that has no form of its own.

    Args:
        score: takes the places of the drawn examples, each as often as it was drawn, and gives a score for each run.
    """

    def scorer(counts: Counts) -> DrawnScores:
        places = np.arange(counts.shape[1])
        return np.stack([score(np.repeat(places, count.astype(np.int64))) for count in counts])

    return scorer
