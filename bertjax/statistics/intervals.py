"""Confidence intervals of the difference between two runs on the same examples.

Bootstrap intervals, by percentiles and BCa (Efron 1987), come from paired draws of examples. With few examples they are
too narrow, since the spread and skewness of a few values are underestimated. Below `FEW_UNITS` examples, Student's t
intervals, corrected for skewness (Hall 1992), are used instead. `benchmarks/coverage.py` measures the coverage of each.

If few predictions flip, the bootstrap is far too confident, because it draws only what was observed. A score interval
is used instead: Tango's (1998) for accuracy. For other metrics of predictions, the difference is nearly a weighted sum
of flips by kind, and these weights replace Tango's plus and minus one.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtr, ndtri, stdtrit

from bertjax.statistics.metrics import Metric, make_scorer
from bertjax.statistics.resampling import bootstrap_counts, score_draws

LEVEL = 0.95  # the coverage of all intervals
TAIL = (1 + LEVEL) / 2  # the probability below the upper end
FEW_UNITS = 200  # below this BCa is too narrow: from 10 skewed values its intervals of a mean held in 87 of 100
FEW_FLIPS = 50  # below this the bootstrap is too confident: at 28 flips its intervals of Matthews covered 92.7 of 100
BISECTIONS = 60
DRAWS = 10_000  # resamples of cells, for the interval of a rank correlation
FEWEST_PLACES = 10  # cells below which that interval is too narrow: with 6 it covers a correlation of 0.97 in 67 of 100
ROUNDING = 1e-12  # differences this close count as equal

Ends = Float[np.ndarray, "2 runs"]
Runs = Float[np.ndarray, " runs"]
Counts = Int[np.ndarray, " runs"]


def percentile(resampled: Float[np.ndarray, "draws runs"], level: float = LEVEL) -> Ends:
    """Percentiles of the draws, ignoring undefined scores; NaN if all are undefined.

    Args:
        resampled: the differences on examples drawn with replacement, `[draws, runs]`.
        level: level of the intervals, such as 0.95.

    >>> percentile(np.arange(101.0)[:, None]).ravel().round(6).tolist()
    [2.5, 97.5]
    """
    tails = np.array([(1 - level) / 2, (1 + level) / 2])
    return _quantiles(resampled, np.repeat(tails[:, None], resampled.shape[1], 1))


def bca(
    observed: Float[np.ndarray, " runs"],
    resampled: Float[np.ndarray, "draws runs"],
    left_out: Float[np.ndarray, "parts runs"],
    *,
    critical: Float[np.ndarray, " runs"] | None = None,
) -> Ends:
    """Bias-corrected and accelerated intervals (Efron 1987); NaN for a run without effect, without an acceleration.

    Args:
        observed: the differences on all examples.
        resampled: the differences on examples drawn with replacement.
        left_out: the differences with each example, or each of many equal parts of the examples, left out.
        critical: standard deviations from the middle to each end; None for the normal distribution's.
    """
    draws = np.isfinite(resampled).sum(0)
    reach = np.full(observed.shape, ndtri(TAIL)) if critical is None else critical
    with np.errstate(invalid="ignore", divide="ignore"):
        tolerance = ROUNDING * (1 + np.abs(observed))
        share = ((resampled < observed - tolerance).sum(0) + (resampled <= observed + tolerance).sum(0)) / (2 * draws)
        shift, acceleration = ndtri(share), _acceleration(_deviations(left_out))
        tails = shift + np.stack([-reach, reach])
        probabilities = ndtr(shift + tails / (1 - acceleration * tails))
    return _quantiles(resampled, probabilities)


def student(observed: Float[np.ndarray, " runs"], left_out: Float[np.ndarray, "parts runs"]) -> Ends:
    """Student's t intervals with the jackknife's standard error, wider on the side of the longer tail.

    Each end is the farther one of two: Student's, and Student's after Hall's (1992) transformation, which removes the
    skewness of the ratio of a difference to its standard error. The first is accurate if both tails are heavy, the
    second if one is longer.

    Args:
        observed: the differences on all examples.
        left_out: the differences with each example, or each of many equal parts of the examples, left out.

    >>> values = np.array([1.0, 2.0, 3.0, 4.0, 5.0])  # of a mean of values without skewness, Student's interval
    >>> left_out = ((values.sum() - values) / 4)[:, None]
    >>> student(np.array([3.0]), left_out).round(3).ravel().tolist()
    [1.037, 4.963]
    """
    deviations = _deviations(left_out)
    parts = np.isfinite(deviations).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.sqrt(np.nansum(deviations**2, axis=0) / (parts * (parts - 1)))
        critical = stdtrit(parts - 1, TAIL)
        skew = _acceleration(deviations) * parts**2 / ((parts - 1) * (parts - 2))
        low, high = (_without_skewness(end, np.nan_to_num(skew, posinf=0, neginf=0)) for end in (critical, -critical))
    ends = observed - error * np.stack([np.maximum(low, critical), np.minimum(high, -critical)])
    return np.where(error > 0, ends, observed)


def _without_skewness(ratio: Runs, skew: Runs) -> Runs:
    """Invert Hall's cubic transformation.

    Args:
        ratio: ratio of a difference to its standard error.
        skew: skewness over six times the root of the number of examples.
    """
    straight = np.abs(skew) < 1e-8
    divisor = np.where(straight, 1.0, skew)
    return np.where(straight, ratio, (np.cbrt(1 + 6 * divisor * (ratio - divisor)) - 1) / (2 * divisor))


def of_few_units(
    observed: Float[np.ndarray, " runs"],
    resampled: Float[np.ndarray, "draws runs"],
    left_out: Float[np.ndarray, "parts runs"],
) -> Ends:
    """Intervals from few examples: each end is the farther one of `student` and of BCa with Student's percentiles.

    The first is accurate for means and ratios of sums, the second for correlations, for which a standard error is not.
    Percentiles are Student's times the root of n / (n - 1), since the spread of a bootstrap is too small by that factor
    (Hesterberg 2015).

    Args:
        observed: the differences on all examples.
        resampled: the differences on examples drawn with replacement, as in `bca`.
        left_out: the differences with each part of the examples left out, as in `bca`.
    """
    parts = np.isfinite(left_out).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        critical = stdtrit(parts - 1, TAIL) * np.sqrt(parts / (parts - 1))
    drawn, by_error = bca(observed, resampled, left_out, critical=critical), student(observed, left_out)
    return np.stack([np.fmin(drawn[0], by_error[0]), np.fmax(drawn[1], by_error[1])])


def _deviations(left_out: Float[np.ndarray, "parts runs"]) -> Float[np.ndarray, "parts runs"]:
    """The jackknife's pseudo-values minus their mean."""
    parts = np.isfinite(left_out).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        deviations: Float[np.ndarray, "parts runs"] = (parts - 1) * (np.nansum(left_out, axis=0) / parts - left_out)
    return deviations


def _acceleration(deviations: Float[np.ndarray, "parts runs"]) -> Runs:
    """The skewness of deviations over six times the root of their number; NaN if all are equal."""
    parts = np.isfinite(deviations).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        cubes, squares = np.nansum(deviations**3, axis=0) / parts**3, np.nansum(deviations**2, axis=0) / parts**2
        acceleration: Runs = cubes / (6 * squares**1.5)
    return acceleration


def _quantiles(resampled: Float[np.ndarray, "draws runs"], probabilities: Ends) -> Ends:
    ends = np.full(probabilities.shape, np.nan)
    for run in range(resampled.shape[1]):
        values = resampled[:, run]
        values = values[np.isfinite(values)]
        if values.size and np.isfinite(probabilities[:, run]).all():
            ends[:, run] = np.percentile(values, 100 * probabilities[:, run])
    return ends


def tango(gains: Int[np.ndarray, " runs"], losses: Int[np.ndarray, " runs"], examples: int) -> Ends:
    """Score interval for a difference of two accuracies on the same examples (Tango 1998).

    Args:
        gains: number of examples that only the second run predicts correctly.
        losses: number of examples that only the first run predicts correctly.

    >>> tango(np.array([1]), np.array([0]), 100).round(4).ravel().tolist()
    [-0.0274, 0.0545]
    """
    observed, edge = (gains - losses) / examples, np.ones(len(gains))
    critical = float(ndtri(TAIL))
    low = _cross(gains, losses, examples, -edge, observed, critical)
    return np.stack([low, _cross(gains, losses, examples, observed, edge, -critical)])


def _cross(gains: Counts, losses: Counts, examples: int, low: Runs, high: Runs, critical: float) -> Runs:
    """Find the difference within these bounds at which Tango's statistic, a decreasing function, equals `critical`."""
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        linear = (2 * examples - gains + losses) * middle - gains - losses
        constant = -losses * middle * (1 - middle)
        share = (np.sqrt(linear**2 - 8 * examples * constant) - linear) / (4 * examples)
        spread = np.maximum(examples * (2 * share + middle * (1 - middle)), 1e-300)
        above = (gains - losses - examples * middle) / np.sqrt(spread) > critical
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return (low + high) / 2


def by_kinds_of_flips(
    metric: Metric | str,
    base: Int[np.ndarray, " examples"],
    predictions: Int[np.ndarray, "runs examples"],
    labels: Int[np.ndarray, " examples"],
    positive: int,
    observed: Float[np.ndarray, " runs"],
) -> Ends:
    """Score interval for a difference of scores where few predictions flip: Tango's, with weighted flips.

    Flips of one kind (label, prediction before and after) change the score by about the same amount, so the difference
    is a weighted sum of the numbers of flips of each kind, which are Poisson.

    Args:
        metric: a metric of predictions.
        base: predictions of the first run.
        observed: the differences.
    """
    classes = np.unique(np.concatenate([labels, base, predictions.ravel()])).tolist()
    kinds = [(label, before, after) for label in classes for before in classes for after in classes if before != after]
    if not kinds:  # a single class: nothing can flip
        return np.stack([observed, observed])
    weights = weights_of_flips(metric, base, labels, positive, classes, kinds)
    counts = np.array(
        [((labels == label) & (base == before) & (predictions == after)).sum(1) for label, before, after in kinds],
        np.float64,
    )
    critical = float(ndtri(TAIL))
    up, down = (_reach(sign * weights, counts, critical) for sign in (1, -1))
    return np.stack([observed - down, observed + up])


def _reach(
    weights: Float[np.ndarray, " kinds"], counts: Float[np.ndarray, "kinds runs"], critical: float
) -> Float[np.ndarray, " runs"]:
    """The largest distance above the observed sum at which a score test accepts the mean of weighted Poisson counts.

    For a mean, the most likely rates are `counts / (1 - multiplier * weights)`. Once the multiplier reaches its upper
    limit, a kind of the largest weight that was never observed gets the remainder.
    """
    largest = weights.max(initial=0.0)
    if largest <= 0:
        return np.zeros(counts.shape[1])
    column, observed = weights[:, None], weights @ counts
    low, high = np.zeros(counts.shape[1]), np.full(counts.shape[1], (1 - 1e-12) / largest)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        rates = counts / (1 - middle * column)
        rejected = weights @ rates - observed > critical * np.sqrt(weights**2 @ rates)
        low, high = np.where(rejected, low, middle), np.where(rejected, middle, high)
    rates = counts / (1 - low * column)
    gap, spread = weights @ rates - observed, weights**2 @ rates
    # With the multiplier at its limit: (gap + remainder)^2 = critical^2 (spread + largest * remainder).
    linear, constant = 2 * gap - critical**2 * largest, gap**2 - critical**2 * spread
    remainder = (np.sqrt(np.maximum(linear**2 - 4 * constant, 0)) - linear) / 2
    return gap + np.maximum(remainder, 0)


def heaviest_flip(
    metric: Metric | str, base: Int[np.ndarray, " examples"], labels: Int[np.ndarray, " examples"], positive: int
) -> float:
    """The largest change of a score by one flip."""
    classes = np.unique(np.concatenate([labels, base])).tolist()
    kinds = [(label, before, after) for label in classes for before in classes for after in classes if before != after]
    weights = weights_of_flips(metric, base, labels, positive, classes, kinds) if kinds else np.zeros(1)
    return float(np.abs(weights).max())


def weights_of_flips(
    metric: Metric | str,
    base: Int[np.ndarray, " examples"],
    labels: Int[np.ndarray, " examples"],
    positive: int,
    classes: Sequence[int],
    kinds: Sequence[tuple[int, int, int]],
) -> Float[np.ndarray, " kinds"]:
    """The change of the base's score by one flip of each kind; 0 where no example can flip that way."""
    cells = [(label, prediction) for label in classes for prediction in classes]
    confusion = np.array([((labels == label) & (base == prediction)).sum() for label, prediction in cells])
    confusions = [confusion]
    for label, before, after in kinds:
        flipped = confusion.copy()
        possible = flipped[cells.index((label, before))] > 0
        flipped[cells.index((label, before))] -= possible
        flipped[cells.index((label, after))] += possible
        confusions.append(flipped)
    outputs = np.eye(max(2, max(classes) + 1))[[prediction for _, prediction in cells]][None]
    scorer = make_scorer(metric, outputs, np.array([label for label, _ in cells]), positive)
    scores = scorer(np.stack(confusions))[:, 0]
    return np.nan_to_num(scores[1:] - scores[0])


def rank_correlation(
    first: Float[np.ndarray, " places"], second: Float[np.ndarray, " places"], seed: int = 0, draws: int = DRAWS
) -> tuple[float, float, float]:
    """Spearman's correlation over the cells where both are defined, and its 95 % interval by resampling cells.

    Args:
        first: a number for each cell; NaN if undefined.
        second: another number for each cell; NaN if undefined.
        seed: seed of the draws.
        draws: number of draws of cells.

    Returns: the correlation and both ends, NaN if undefined; the ends are also NaN for fewer than ten cells.
    """
    defined = np.isfinite(first) & np.isfinite(second)
    if defined.sum() < 2:
        return float("nan"), float("nan"), float("nan")
    scorer = make_scorer("spearman", first[None, defined], second[defined])
    count = int(defined.sum())
    correlation = float(scorer(np.ones((1, count)))[0, 0])
    if count < FEWEST_PLACES or not np.isfinite(correlation):
        return correlation, float("nan"), float("nan")
    low, high = percentile(score_draws(scorer, bootstrap_counts(count, draws, seed)))[:, 0]
    return correlation, float(low), float(high)
