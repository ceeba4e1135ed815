"""Tests of the difference between two runs on the same examples, and of the largest of many differences.

Under the null hypothesis, both runs are equally likely to have produced each of the two outputs for an example, so they
can be swapped. For accuracy, McNemar's exact test (1947) depends only on flips. For all other metrics, outputs are
swapped at random (Good 2005), with the same swaps for all ablations. The largest gain of each draw is then one that the
best of that many ablations would have by chance (Westfall and Young 1993).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Num
from scipy.special import bdtr, ndtri

from bertjax.statistics.metrics import Metric, find_metric, make_scorer
from bertjax.statistics.ranked import SWAPPABLE, swapped_differences
from bertjax.statistics.resampling import Scorer, Units, add_up, score_draws, standardise, swaps

LEAST_DRAWS, DRAWS_PER_ABLATION = 9_999, 100
# The largest work of a test, in draws times examples times ablations: a minute or two.
MOST_WORK = {"predictions": 4e11, "values": 2e11}
MOST_RANKED_WORK = 6.6e9  # if each draw is ranked again
POWER, ALPHA = 0.8, 0.05
HALVES = 200  # random halves of the examples on which heads are chosen
ROUNDING = 1e-12
Runs = Float[np.ndarray, " runs"]
# Maps the examples that each draw swaps to the resulting differences.
Difference = Callable[[Num[np.ndarray, "draws examples"]], Float[np.ndarray, "draws runs"]]


@dataclass(frozen=True)
class Swapped:
    """The result of swapping outputs at random.

    Args:
        p: the two-sided p-value of each ablation's difference.
        spread: standard deviation of each difference under the null hypothesis.
        largest: each draw's largest gain over all ablations.
        largest_ratio: each draw's largest ratio of a gain to its spread.
        exact: whether these are all possible swaps.
    """

    p: Float[np.ndarray, " runs"]
    spread: Float[np.ndarray, " runs"]
    largest: Float[np.ndarray, " draws"]
    largest_ratio: Float[np.ndarray, " draws"]
    exact: bool

    def join(self, other: "Swapped") -> "Swapped":
        """The result with further ablations, whose outputs went through the same swaps."""
        return Swapped(
            np.concatenate([self.p, other.p]),
            np.concatenate([self.spread, other.spread]),
            np.maximum(self.largest, other.largest),
            np.maximum(self.largest_ratio, other.largest_ratio),
            self.exact,
        )

    def best(self, gains: Float[np.ndarray, " runs"], ratio: bool = True) -> Float[np.ndarray, " runs"]:
        """For each ablation's gain, the probability that the largest gain of all is as large by chance.

        Args:
            gains: the differences, above 0 if the score gets better.
            ratio: compare differences over their spreads (Westfall and Young's maxT), so that an ablation with a wide
                spread does not hide the effects of the others; False compares the differences themselves.
        """
        if not len(self.largest):
            return np.full(gains.shape, np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            statistic = np.where(self.spread > 0, gains / self.spread, 0.0) if ratio else gains
        sorted_largest = np.sort(self.largest_ratio if ratio else self.largest)
        threshold = statistic - ROUNDING * (1 + np.abs(statistic))
        hits = len(sorted_largest) - np.searchsorted(sorted_largest, threshold)
        probabilities = hits / len(sorted_largest) if self.exact else (1 + hits) / (1 + len(sorted_largest))
        return np.where(np.isfinite(gains), probabilities, np.nan)


def mcnemar(gains: Int[np.ndarray, " runs"], losses: Int[np.ndarray, " runs"]) -> Float[np.ndarray, " runs"]:
    """Exact two-sided p-values of McNemar's test, under which flips in both directions are equally probable.

    Args:
        gains: number of predictions that become right, for each run.
        losses: number of predictions that become wrong, for each run.

    >>> mcnemar(np.array([0, 6]), np.array([0, 0])).tolist()
    [1.0, 0.03125]
    """
    return np.minimum(2 * bdtr(np.minimum(gains, losses), gains + losses, 0.5), 1.0)


def count_draws(metric: Metric | str, ablations: int, examples: int) -> int:
    """The number of swaps: enough for p-values to stay small after correction, at most a minute or two of work."""
    metric = find_metric(metric)
    work = MOST_RANKED_WORK if metric.ranks else MOST_WORK["predictions" if metric.reads == "predictions" else "values"]
    affordable = work / (ablations * examples)
    return int(max(999, min(max(LEAST_DRAWS, DRAWS_PER_ABLATION * ablations - 1), affordable)))


def swap_test(
    metric: Metric | str,
    base: Float[np.ndarray, "examples *labels"],
    outputs: Float[np.ndarray, "runs examples *labels"],
    labels: Num[np.ndarray, " examples"],
    positive: int,
    observed: Float[np.ndarray, " runs"],
    *,
    draws: int,
    seed: int,
    units: Units | None = None,
    advance: Callable[[int], None] = lambda draws: None,
) -> Swapped:
    """Swap base and ablated outputs, made `comparable`, at random; try all swaps if there are no more than `draws`.

    Args:
        metric: a metric, or its name in `METRICS`.
        base: outputs without ablation.
        outputs: outputs with each ablation.
        labels: labels of the examples.
        positive: the positive class, as in `score`.
        observed: the differences, ablated minus base.
        draws: number of random swaps.
        seed: seed of the swaps.
        units: the unit of each example, whose outputs are swapped together.
        advance: called with the number of draws just done, as in `score_draws`.

    Returns: p-values `(1 + hits) / (1 + draws)`, or `hits / draws` for all swaps; NaN if a difference is NaN or the
        metric is not `tested`.
    """
    metric, (runs, rows) = find_metric(metric), outputs.shape[:2]
    if not metric.tested:
        unknown = np.full(runs, np.nan)
        return Swapped(unknown, unknown, np.empty(0), np.empty(0), False)
    examples = rows if units is None else int(units.max()) + 1
    swappable = comparable(metric, np.concatenate([base[None], outputs]))
    difference = _swapped_scores(metric, swappable, labels, positive, units)
    exact = examples < 63 and 2**examples <= draws
    all_swaps = (np.arange(2**examples)[:, None] >> np.arange(examples)) & 1 if exact else None
    chunks = [all_swaps] if all_swaps is not None else swaps(examples, draws, seed, 4 * (rows + runs))
    differences = score_draws(difference, chunks, advance)
    defined = np.isfinite(observed)
    differences = np.where(np.isfinite(differences) & defined, differences, 0.0)
    hits = (np.abs(differences) >= np.abs(observed) * (1 - ROUNDING) - ROUNDING).sum(0)
    p = hits / len(differences) if exact else (1 + hits) / (1 + len(differences))
    spread = np.sqrt((differences**2).mean(0))
    gains = metric.measure.sign * differences
    ratios = gains / np.where(spread > 0, spread, 1)
    return Swapped(np.where(defined, p, np.nan), spread, gains.max(1), ratios.max(1), exact)


def _swapped_scores(
    metric: Metric,
    outputs: Float[np.ndarray, "runs examples ..."],
    labels: Num[np.ndarray, " examples"],
    positive: int,
    units: Units | None = None,
) -> Difference:
    """The difference of scores between each run and the base, after swaps of their outputs."""
    if metric.swap_weights is not None:
        weights = metric.swap_weights(outputs, labels == positive)
        if units is not None:
            weights = add_up(weights.T[..., None], units)[..., 0].T
        return lambda swapped: (1.0 - 2.0 * swapped) @ weights
    if metric.scorer in SWAPPABLE and units is None:
        of_ranks = swapped_differences(metric.scorer, outputs, labels, positive)
        if of_ranks is not None:
            return of_ranks
    doubled = np.concatenate([np.broadcast_to(outputs[0], outputs[1:].shape), outputs[1:]], axis=1)
    both = None if units is None else np.concatenate([units, units + units.max() + 1])
    scorer = make_scorer(metric, doubled, np.concatenate([labels, labels]), positive, both)

    def difference(swapped: Num[np.ndarray, "draws examples"]) -> Float[np.ndarray, "draws runs"]:
        kept = 1 - swapped
        counts = np.concatenate([np.hstack([kept, swapped]), np.hstack([swapped, kept])])
        first, second = np.split(scorer(counts), 2)
        return second - first

    return difference


def comparable(
    metric: Metric, outputs: Float[np.ndarray, "runs examples *labels"]
) -> Float[np.ndarray, "runs examples ..."]:
    """Outputs that can be swapped between runs; standardised if the metric ignores the mean and spread of values.

    Otherwise a run that shifts or scales all outputs would widen the null distribution. Ranks would not work: if two
    examples change places, swapping only one of them makes a tie, and the null distribution is too narrow (ROC AUC of
    200 examples, noise of 0.01 of the signal: p < 0.05 in 9.5 of 100).
    """
    if metric.reads == "predictions" or not metric.any_scale:
        return outputs
    return standardise(outputs.astype(np.float64).reshape(outputs.shape[:2]))


def benjamini_hochberg(p: Float[np.ndarray, " runs"]) -> Float[np.ndarray, " runs"]:
    """q-values: the share of false discoveries among all effects at least as significant (Benjamini and Hochberg 1995).

    Undefined p-values do not count as tests and stay undefined.

    Args:
        p: uncorrected p-value of each test; NaN if undefined.
    """
    from scipy.stats import false_discovery_control  # scipy.stats takes half a second to load

    return _where_known(p, false_discovery_control)


def holm(p: Float[np.ndarray, " runs"]) -> Float[np.ndarray, " runs"]:
    """p-values corrected for the family-wise error rate (Holm 1979).

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]
    """

    def adjust(values: Float[np.ndarray, " known"]) -> Float[np.ndarray, " known"]:
        order = np.argsort(values, kind="stable")
        raised = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
        adjusted = np.empty_like(values)
        adjusted[order] = np.minimum(raised, 1.0)
        return adjusted

    return _where_known(p, adjust)


def _where_known(
    p: Float[np.ndarray, " runs"], adjust: Callable[[np.ndarray], np.ndarray]
) -> Float[np.ndarray, " runs"]:
    defined, adjusted = np.isfinite(p), np.full(p.shape, np.nan)
    if defined.any():
        adjusted[defined] = adjust(p[defined])
    return adjusted


def detectable(spread: Float[np.ndarray, " runs"], tests: int) -> Float[np.ndarray, " runs"]:
    """The smallest difference that is found with 80 % power, at 0.05 divided by the number of tests.

    Args:
        spread: standard deviation of each difference under the null hypothesis.
    """
    return spread * float(ndtri(1 - ALPHA / (2 * max(tests, 1))) + ndtri(POWER))


def fewest_flips(tests: int) -> int:
    """The smallest number of flips in one direction at which McNemar's exact test is below 0.05 over `tests`.

    Args:
        tests: the number of tests (Bonferroni).

    >>> fewest_flips(1), fewest_flips(144)
    (6, 13)
    """
    return int(np.ceil(1 + np.log2(max(tests, 1) / ALPHA)))


def choose_on_half(
    scorer: Scorer,
    examples: int,
    seed: int,
    *,
    sign: int = 1,
    advance: Callable[[int], None] = lambda draws: None,
) -> dict[str, Any]:
    """Choose the ablation with the largest gain on a random half of the examples, and score it on the other half.

    Args:
        sign: 1 where a higher score is better, else -1.
        advance: called with the number of draws just done, as in `score_draws`; both halves are draws.

    Returns: `chosen`: the five ablations chosen most often, as pairs of index and share; `on_chosen`, `on_other`: the
        mean difference of the chosen ablation on the half that chose it and on the other half; `interval`: the middle
        95 % of the latter over the halves; `halves`: their number. Differences are None if none is defined.
    """
    generator = np.random.default_rng(seed)
    masks = np.zeros((HALVES, examples), np.uint16)
    for row in masks:
        row[generator.permutation(examples)[: examples // 2]] = 1
    scores = [score_draws(scorer, [half], advance) for half in (masks, 1 - masks)]
    on_half, on_other = (drawn[:, 1:] - drawn[:, :1] for drawn in scores)
    usable = np.isfinite(on_half).any(1)
    on_half, on_other = on_half[usable], on_other[usable]
    if not len(on_half):
        return {"chosen": [], "on_chosen": None, "on_other": None, "interval": [None, None], "halves": 0}
    choice = np.nanargmax(sign * on_half, axis=1)
    rows = np.arange(len(choice))
    chosen_on_other = on_other[rows, choice]
    defined = chosen_on_other[np.isfinite(chosen_on_other)]
    ablations, counts = np.unique(choice, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {
        "chosen": [(int(ablations[place]), float(counts[place] / len(choice))) for place in order[:5]],
        "on_chosen": float(on_half[rows, choice].mean()),
        "on_other": float(defined.mean()) if defined.size else None,
        "interval": np.percentile(defined, [2.5, 97.5]).tolist() if defined.size else [None, None],
        "halves": len(choice),
    }
