"""Scores of all runs as functions of how often each example counts.

Drawing examples with replacement, leaving one out, choosing half of them, and swapping the outputs of two runs only
change how often each example counts, so one function of counts serves bootstrap, jackknife, halves and permutation
tests. If several outputs belong to one unit (the words of a sentence), units are counted, and all outputs of a unit
count equally often. Accuracy, F1, Matthews and Pearson are functions of sums, computed as matrix products. For metrics
of ranks, values are sorted once (`ranked`). Calling the metric for each draw would take minutes.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Num, Shaped

Counts = Num[np.ndarray, "draws examples"]
DrawnScores = Float[np.ndarray, "draws runs"]
Scorer = Callable[[Counts], DrawnScores]
Predictions = Int[np.ndarray, "runs examples"]
Values = Float[np.ndarray, "runs examples"]
Labels = Num[np.ndarray, " examples"]
Units = Int[np.ndarray, " rows"]

CHUNK_BYTES = 64 << 20  # approximate maximum for a chunk's counts and everything computed from them
MOST_WORKERS = 16
ROUNDING = 1e-12  # a variance below this share of the mean square is rounding error


def score_draws(
    scorer: Scorer,
    draws: Iterable[Num[np.ndarray, "_ examples"]],
    advance: Callable[[int], None] = lambda draws: None,
) -> DrawnScores:
    """Scores of many draws, passed in chunks; several threads process a few chunks at a time.

    Args:
        scorer: scores draws from the number of times that they count each example.
        draws: chunks of draws, `[draws, examples]`.
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
    """The number of draws of a chunk."""
    return max(1, min(2048, CHUNK_BYTES // (8 * (examples + 3 * runs))))


def bootstrap_counts(
    examples: int, draws: int, seed: int, runs: int = 1, rows: int = 0
) -> Iterator[Num[np.ndarray, "some examples"]]:
    """How often each draw counts each example, in chunks; the draws of `scipy.stats.bootstrap` with the same seed.

    Args:
        examples: number of examples, or of units.
        draws: number of draws with replacement.
        seed: seed of the draws.
        runs: number of runs that are scored, which limits the size of a chunk.
        rows: the number of outputs, if examples are units of several outputs.
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


def accuracy_scorer(predictions: Predictions, labels: Labels, positive: int) -> Scorer:
    """Accuracy."""
    return lambda counts: _sums(counts, predictions == labels) / counts.sum(1, dtype=np.float64)[:, None]


def f1_scorer(predictions: Predictions, labels: Labels, positive: int) -> Scorer:
    """F1 of the positive class; undefined if no example is positive or predicted positive."""
    predicted, true = predictions == positive, labels == positive

    def scorer(counts: Counts) -> DrawnScores:
        with np.errstate(invalid="ignore"):
            return 2 * _sums(counts, predicted & true) / (_sums(counts, predicted) + _sums(counts, true[None]))

    return scorer


def matthews_scorer(predictions: Predictions, labels: Labels, positive: int) -> Scorer:
    """Matthews' correlation for any number of classes (Gorodkin 2004).

    It is 0 if all predictions are equal, and undefined if all labels are.
    """
    classes = np.unique(np.concatenate([labels.ravel(), predictions.ravel()]))

    def scorer(counts: Counts) -> DrawnScores:
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

    return scorer


def _sums(counts: Counts, masks: Shaped[np.ndarray, "runs examples"]) -> Float[np.ndarray, "draws runs"]:
    """The number of drawn examples in each mask. float32 holds these integers exactly, and takes half the time."""
    return (counts.astype(np.float32) @ masks.T.astype(np.float32)).astype(np.float64)


def pearson_scorer(values: Values, labels: Labels, positive: int) -> Scorer:
    """Pearson's correlation."""
    x, y = standardise(values), standardise(labels[None].astype(np.float64))
    terms = [np.ascontiguousarray(term.T) for term in (x, x * x, x * y, y, y * y)]

    def scorer(counts: Counts) -> DrawnScores:
        weights = counts.astype(np.float64)
        total = weights.sum(1, keepdims=True)
        mean_x, square_x, product, mean_y, square_y = (weights @ term / total for term in terms)
        return correlation(product - mean_x * mean_y, square_x - mean_x**2, square_y - mean_y**2, square_x, square_y)

    return scorer


def standardise(values: Float[np.ndarray, "runs examples"]) -> Float[np.ndarray, "runs examples"]:
    """Scale values to mean 0 and variance 1, so that variances are differences of small numbers; 0 if all are equal."""
    centred = values - values.mean(1, keepdims=True)
    spread = centred.std(1, keepdims=True)
    constant = np.ptp(values, axis=1, keepdims=True) == 0
    return np.where(constant, 0.0, centred / np.where(spread > 0, spread, 1))


def correlation(
    covariance: Float[np.ndarray, "draws runs"],
    variance_x: Float[np.ndarray, "draws runs"],
    variance_y: Float[np.ndarray, "draws #runs"],
    scale_x: Float[np.ndarray, "draws runs"],
    scale_y: Float[np.ndarray, "draws #runs"],
) -> DrawnScores:
    """Covariances over the roots of variances; NaN if a variance is only rounding error relative to its scale."""
    defined = (variance_x > ROUNDING * scale_x) & (variance_y > ROUNDING * scale_y)
    root = np.sqrt(np.where(defined, variance_x * variance_y, 1))
    return np.where(defined, np.clip(covariance / root, -1, 1), np.nan)


EXACT = 2**24  # float32 represents all integers below this


@dataclass(frozen=True)
class Sums:
    """A score that is a function of sums over outputs: a mean, a ratio of counts, F1.

    Attributes:
        terms: takes outputs `[runs, rows, ...]`, labels `[rows]` and the positive class; returns the terms of the sums,
            `[runs, rows, terms]`.
        score: takes the sums `[..., terms]`, float64, and returns scores `[...]`; NaN if undefined.
        numbers: names of the numbers of an output; empty if it is a single value, or any numbers.
        of_each_label: names of the numbers that follow for each label.
        errors: takes the terms of all units, `[runs, units, terms]`, and returns the standard error of each score. For
            unbounded scores, whose standard deviation over draws is meaningless. By default that deviation.
    """

    terms: Callable[[Any, Labels, int], Float[np.ndarray, "runs rows terms"]]
    score: Callable[[Float[np.ndarray, "*draws terms"]], Float[np.ndarray, "*draws"]]
    numbers: tuple[str, ...]
    of_each_label: tuple[str, ...] = ()
    errors: Callable[[Float[np.ndarray, "runs units terms"]], Float[np.ndarray, " runs"]] | None = None

    @property
    def fewest(self) -> int:
        """The smallest number of numbers of an output: those of a single label."""
        return len(self.numbers) + len(self.of_each_label)

    def takes(self, count: int) -> bool:
        """Whether an output may have this many numbers.

        Args:
            count: the number of numbers of an output.
        """
        more = count - self.fewest
        more_labels = more > 0 and bool(self.of_each_label) and more % len(self.of_each_label) == 0
        return more_labels or more == 0 or not self.fewest

    def of_all(self, outputs: Any, labels: Labels, positive: int) -> Float[np.ndarray, " runs"]:
        """The score of each run on all outputs.

        Args:
            outputs: outputs of each run, `[runs, outputs, numbers]`.
            labels: labels of the outputs.
            positive: the positive class, as in `score`.
        """
        return self.score(self.terms(outputs, labels, positive).sum(axis=1, dtype=np.float64))

    def terms_of_units(
        self, outputs: Any, labels: Labels, positive: int, units: Units | None
    ) -> Float[np.ndarray, "runs units terms"]:
        """The terms of each unit, or of each output if there are no units.

        Args:
            outputs: outputs of each run, `[runs, outputs, numbers]`.
            labels: labels of the outputs.
            positive: the positive class, as in `score`.
            units: unit of each output; None for no units.
        """
        terms = self.terms(outputs, labels, positive).astype(np.float64)
        return terms if units is None else add_up(terms, units)

    def scorer(self, outputs: Any, labels: Labels, positive: int, units: Units | None) -> Scorer:
        """The scores as a function of how often each unit counts, or each output if there are no units.

        Args:
            outputs: outputs of each run, `[runs, outputs, numbers]`.
            labels: labels of the outputs.
            positive: the positive class, as in `score`.
            units: unit of each output; None for no units.
        """
        totals = np.moveaxis(self.terms_of_units(outputs, labels, positive, units), 0, 1)
        shape, flat = totals.shape[1:], np.ascontiguousarray(totals.reshape(len(totals), -1))
        largest = np.abs(flat).max(initial=0)
        if (flat == np.rint(flat)).all() and largest < EXACT:
            flat = flat.astype(np.float32)

        def score(counts: Num[np.ndarray, "draws units"]) -> Float[np.ndarray, "draws runs"]:
            exact = largest * counts.sum(axis=1).max(initial=0) < EXACT  # sums of integers, in any order
            dtype = flat.dtype if exact else np.dtype(np.float64)
            sums = counts.astype(dtype) @ flat.astype(dtype, copy=False)
            return self.score(sums.reshape(len(counts), *shape).astype(np.float64, copy=False))

        return score


def add_up(
    terms: Float[np.ndarray, "runs rows terms"], units: Int[np.ndarray, " rows"]
) -> Float[np.ndarray, "runs units terms"]:
    """Sums over the rows of each unit; each unit has at least one row."""
    order = np.argsort(units, kind="stable")
    starts = np.flatnonzero(np.diff(units[order], prepend=-1))
    return np.add.reduceat(terms[:, order], starts, axis=1)


def by_units(scorer: Scorer, units: Units) -> Scorer:
    """A scorer that takes how often each unit counts."""
    return lambda counts: scorer(counts[:, units])


def counting_scorer(score: Callable[[Any], Float[np.ndarray, " runs"]]) -> Scorer:
    """A scorer for metrics without a fast form: one call for each draw.

    Args:
        score: takes the indices of the drawn examples, each repeated as often as it was drawn, and returns a score
            for each run.
    """

    def scorer(counts: Counts) -> DrawnScores:
        indices = np.arange(counts.shape[1])
        return np.stack([score(np.repeat(indices, draw.astype(np.int64))) for draw in counts])

    return scorer
