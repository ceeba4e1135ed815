"""How far a difference between two runs on the same examples may be the luck of the examples: confidence intervals.

Bootstrap intervals by percentiles and BCa (Efron 1987) from paired draws of examples. Where few predictions flip the
bootstrap is far too sure of itself: it draws nothing that was not seen. There a score interval takes its place: Tango's
(1998) for accuracy; for other metrics of predictions the difference is nearly a weighted sum of flips by kind, whose
weights take the place of Tango's plus and minus one.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtr, ndtri

from bertjax.evidence.metrics import Metric, make_scorer
from bertjax.evidence.resampling import bootstrap_counts, score_draws

LEVEL = 0.95
FEW_FLIPS = 50  # below which the bootstrap is too sure: at 28 its intervals of Matthews held 92.7 of 100
BISECTIONS = 60
DRAWS = 10_000  # of places, for the interval of a rank correlation
FEWEST_PLACES = 10  # below which that interval is too sure: of 6 places it holds a correlation of 0.97 67 times of 100
ROUNDING = 1e-12  # differences that are this close are the same

Ends = Float[np.ndarray, "2 runs"]
Runs = Float[np.ndarray, " runs"]
Counts = Int[np.ndarray, " runs"]


def percentile(resampled: Float[np.ndarray, "draws runs"], level: float = LEVEL) -> Ends:
    """Percentiles of the draws; draws for which a score is undefined are left out, NaN where all are.

    >>> percentile(np.arange(101.0)[:, None]).ravel().round(6).tolist()
    [2.5, 97.5]
    """
    tails = np.array([(1 - level) / 2, (1 + level) / 2])
    return _quantiles(resampled, np.repeat(tails[:, None], resampled.shape[1], 1))


def bca(
    observed: Float[np.ndarray, " runs"],
    resampled: Float[np.ndarray, "draws runs"],
    left_out: Float[np.ndarray, "parts runs"],
    level: float = LEVEL,
) -> Ends:
    """Bias-corrected and accelerated (Efron 1987); NaN where the acceleration is undefined: a run without effect.

    Args:
        observed: the difference on all examples.
        resampled: on examples drawn with replacement.
        left_out: with each example, or each of many equal parts of them, left out.
    """
    known = np.isfinite(resampled).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        close = ROUNDING * (1 + np.abs(observed))
        share = ((resampled < observed - close).sum(0) + (resampled <= observed + close).sum(0)) / (2 * known)
        shift = ndtri(share)
        parts = np.isfinite(left_out).sum(0)
        apart = (parts - 1) * (np.nansum(left_out, axis=0) / parts - left_out)
        cubes, squares = np.nansum(apart**3, axis=0) / parts**3, np.nansum(apart**2, axis=0) / parts**2
        acceleration = cubes / (6 * squares**1.5)
        tails = shift + ndtri(np.array([(1 - level) / 2, (1 + level) / 2]))[:, None]
        places = ndtr(shift + tails / (1 - acceleration * tails))
    return _quantiles(resampled, places)


def _quantiles(resampled: Float[np.ndarray, "draws runs"], places: Ends) -> Ends:
    found = np.full(places.shape, np.nan)
    for run in range(resampled.shape[1]):
        drawn = resampled[:, run]
        drawn = drawn[np.isfinite(drawn)]
        if drawn.size and np.isfinite(places[:, run]).all():
            found[:, run] = np.percentile(drawn, 100 * places[:, run])
    return found


def tango(
    gains: Int[np.ndarray, " runs"], losses: Int[np.ndarray, " runs"], examples: int, level: float = LEVEL
) -> Ends:
    """Score interval for a difference of two accuracies on the same examples (Tango 1998).

    Args:
        gains: examples that only the second run has right.
        losses: that only the first has right.

    >>> tango(np.array([1]), np.array([0]), 100).round(4).ravel().tolist()
    [-0.0274, 0.0545]
    """
    observed, edge = (gains - losses) / examples, np.ones(len(gains))
    wanted = ndtri((1 + level) / 2)
    low = _cross(gains, losses, examples, -edge, observed, wanted)
    return np.stack([low, _cross(gains, losses, examples, observed, edge, -wanted)])


def _cross(gains: Counts, losses: Counts, examples: int, low: Runs, high: Runs, wanted: float) -> Runs:
    """Between these bounds the difference under which Tango's statistic is as wanted; it falls as that grows."""
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        linear = (2 * examples - gains + losses) * middle - gains - losses
        constant = -losses * middle * (1 - middle)
        share = (np.sqrt(linear**2 - 8 * examples * constant) - linear) / (4 * examples)
        spread = np.maximum(examples * (2 * share + middle * (1 - middle)), 1e-300)
        above = (gains - losses - examples * middle) / np.sqrt(spread) > wanted
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return (low + high) / 2


def by_kinds_of_flips(
    metric: Metric | str,
    base: Int[np.ndarray, " examples"],
    predictions: Int[np.ndarray, "runs examples"],
    labels: Int[np.ndarray, " examples"],
    positive: int,
    observed: Float[np.ndarray, " runs"],
    *,
    level: float = LEVEL,
) -> Ends:
    """Score interval for a difference of scores where few predictions flip: Tango's, with flips of several weights.

    Flips of a kind (label, prediction before and after) change the score by about the same, so the difference is a sum
    of numbers of flips, Poisson in each kind, times weights.

    Args:
        metric: of predictions.
        base: predictions of the first run.
        observed: the differences.
    """
    classes = np.unique(np.concatenate([labels, base, predictions.ravel()])).tolist()
    kinds = [(t, a, b) for t in classes for a in classes for b in classes if a != b]
    if not kinds:  # all of one class: nothing flips
        return np.stack([observed, observed])
    weights = weights_of_flips(metric, base, labels, positive, classes, kinds)
    counts = np.array([((labels == t) & (base == a) & (predictions == b)).sum(1) for t, a, b in kinds], np.float64)
    wanted = float(ndtri((1 + level) / 2))
    up, down = (_reach(sign * weights, counts, wanted) for sign in (1, -1))
    return np.stack([observed - down, observed + up])


def _reach(
    weights: Float[np.ndarray, " kinds"], counts: Float[np.ndarray, "kinds runs"], wanted: float
) -> Float[np.ndarray, " runs"]:
    """How far above the observed sum the mean of weighted Poisson counts may lie until a score test refuses it.

    Given a mean, the likeliest rates are `counts / (1 - multiplier * weights)`; a kind of the largest weight that was
    never seen gets what is left once the multiplier is as large as that allows.
    """
    largest = weights.max(initial=0.0)
    if largest <= 0:
        return np.zeros(counts.shape[1])
    column, observed = weights[:, None], weights @ counts
    low, high = np.zeros(counts.shape[1]), np.full(counts.shape[1], (1 - 1e-12) / largest)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        rates = counts / (1 - middle * column)
        beyond = weights @ rates - observed > wanted * np.sqrt(weights**2 @ rates)
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    rates = counts / (1 - low * column)
    gap, spread = weights @ rates - observed, weights**2 @ rates
    # What is left: (gap + more)^2 = wanted^2 (spread + largest * more), where the multiplier has come to its end.
    linear, constant = 2 * gap - wanted**2 * largest, gap**2 - wanted**2 * spread
    more = (np.sqrt(np.maximum(linear**2 - 4 * constant, 0)) - linear) / 2
    return gap + np.maximum(more, 0)


def heaviest_flip(
    metric: Metric | str, base: Int[np.ndarray, " examples"], labels: Int[np.ndarray, " examples"], positive: int
) -> float:
    """By how much one flip changes a score at most."""
    classes = np.unique(np.concatenate([labels, base])).tolist()
    kinds = [(t, a, b) for t in classes for a in classes for b in classes if a != b]
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
    """By how much one flip of each kind changes the base's score; 0 where no example could flip so."""
    cells = [(label, prediction) for label in classes for prediction in classes]
    confusion = np.array([((labels == label) & (base == prediction)).sum() for label, prediction in cells])
    rows = [confusion]
    for label, before, after in kinds:
        moved = confusion.copy()
        possible = moved[cells.index((label, before))] > 0
        moved[cells.index((label, before))] -= possible
        moved[cells.index((label, after))] += possible
        rows.append(moved)
    outputs = np.eye(max(2, max(classes) + 1))[[prediction for _, prediction in cells]][None]
    scorer = make_scorer(metric, outputs, np.array([label for label, _ in cells]), positive)
    scores = scorer(np.stack(rows))[:, 0]
    return np.nan_to_num(scores[1:] - scores[0])


def rank_correlation(
    first: Float[np.ndarray, " places"], second: Float[np.ndarray, " places"], seed: int = 0, draws: int = DRAWS
) -> tuple[float, float, float]:
    """Spearman's correlation over the places where both are defined, and its 95 % interval by drawing places.

    Returns: the correlation and both ends, NaN where they are undefined; the ends also for fewer than ten places.
    """
    known = np.isfinite(first) & np.isfinite(second)
    if known.sum() < 2:
        return float("nan"), float("nan"), float("nan")
    scorer = make_scorer("spearman", first[None, known], second[known])
    count = int(known.sum())
    found = float(scorer(np.ones((1, count)))[0, 0])
    if count < FEWEST_PLACES or not np.isfinite(found):
        return found, float("nan"), float("nan")
    low, high = percentile(score_draws(scorer, bootstrap_counts(count, draws, seed)))[:, 0]
    return found, float(low), float(high)
