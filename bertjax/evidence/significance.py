"""Could a difference between two runs on the same examples be chance, and could the best of many be?

Under the null hypothesis it does not matter which of two outputs for an example came from which run, so they may be
swapped. McNemar's exact test (1947) for accuracy depends on the flips alone; for all other metrics outputs are swapped
at random (Good 2005), with the same swaps for all ablations, so that the largest gain of each draw says what the best
of so many would gain by chance (Westfall and Young 1993).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Num
from scipy.special import bdtr, ndtri

from bertjax.evidence.metrics import Metric, find_metric, make_scorer
from bertjax.evidence.resampling import Scorer, score_draws, standardise, swaps

LEAST_DRAWS, DRAWS_PER_ABLATION = 9_999, 100
# Products of a draw, an example and an ablation that a test takes at most: about a minute or two.
MOST_WORK = {"predictions": 4e11, "values": 2e11}
MOST_RANKED_WORK = 6.6e9  # where each draw makes ranks anew
POWER = 0.8
HALVES = 200  # of the examples, on which heads are chosen
ROUNDING = 1e-12
Runs = Float[np.ndarray, " runs"]
# From which examples a draw swaps to the difference that these swaps make.
Difference = Callable[[Num[np.ndarray, "draws examples"]], Float[np.ndarray, "draws runs"]]


@dataclass(frozen=True)
class Swapped:
    """What swapping outputs at random says.

    Args:
        p: of each ablation's difference, two-sided.
        spread: standard deviation of each difference under the null hypothesis.
        largest: of each draw, the largest difference of all ablations.
        largest_ratio: of each draw, the largest of all differences over their spreads.
        exact: whether these are all swaps that there are.
    """

    p: Float[np.ndarray, " runs"]
    spread: Float[np.ndarray, " runs"]
    largest: Float[np.ndarray, " draws"]
    largest_ratio: Float[np.ndarray, " draws"]
    exact: bool

    def join(self, other: "Swapped") -> "Swapped":
        """With further ablations, whose outputs went through the same swaps."""
        return Swapped(
            np.concatenate([self.p, other.p]),
            np.concatenate([self.spread, other.spread]),
            np.maximum(self.largest, other.largest),
            np.maximum(self.largest_ratio, other.largest_ratio),
            self.exact,
        )

    def best(self, observed: Float[np.ndarray, " runs"], ratio: bool = True) -> Float[np.ndarray, " runs"]:
        """Of each ablation's gain, how probable it is that the largest gain of all is as large by chance.

        Args:
            observed: the differences.
            ratio: of differences over their spreads (Westfall and Young's maxT), so that an ablation with a wide
                spread does not hide what the others do; or of the differences themselves.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            size = np.where(self.spread > 0, observed / self.spread, 0.0) if ratio else observed
        ranked = np.sort(self.largest_ratio if ratio else self.largest)
        least = size - ROUNDING * (1 + np.abs(size))
        hits = len(ranked) - np.searchsorted(ranked, least)
        found = hits / len(ranked) if self.exact else (1 + hits) / (1 + len(ranked))
        return np.where(np.isfinite(observed), found, np.nan)


def mcnemar(gains: Int[np.ndarray, " runs"], losses: Int[np.ndarray, " runs"]) -> Float[np.ndarray, " runs"]:
    """Exact two-sided p-values of McNemar's test: are flips in both directions equally probable?

    >>> mcnemar(np.array([0, 6]), np.array([0, 0])).tolist()
    [1.0, 0.03125]
    """
    return np.minimum(2 * bdtr(np.minimum(gains, losses), gains + losses, 0.5), 1.0)


def count_draws(metric: Metric | str, ablations: int, examples: int) -> int:
    """How many swaps: enough for p-values that stay small after correction, no more than take a minute or two."""
    metric = find_metric(metric)
    work = MOST_RANKED_WORK if metric.ranks else MOST_WORK[metric.reads]
    most = work / (ablations * examples)
    return int(max(999, min(max(LEAST_DRAWS, DRAWS_PER_ABLATION * ablations - 1), most)))


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
    advance: Callable[[int], None] = lambda draws: None,
) -> Swapped:
    """Swap base and ablated outputs of examples, made `comparable`, at random; all swaps if there are no more of them.

    Args:
        observed: the differences, ablated less base.
        advance: is told how many draws are done, as in `score_draws`.

    Returns: p-values `(1 + hits) / (1 + draws)`, or `hits / draws` of all swaps; NaN where a difference is.
    """
    metric, (runs, examples) = find_metric(metric), outputs.shape[:2]
    given = comparable(metric, np.concatenate([base[None], outputs]))
    difference = _swapped_scores(metric, given, labels, positive)
    exact = examples < 63 and 2**examples <= draws
    every = (np.arange(2**examples)[:, None] >> np.arange(examples)) & 1 if exact else None
    chunks = [every] if every is not None else swaps(examples, draws, seed, 4 * (examples + runs))
    found = score_draws(difference, chunks, advance)
    known = np.isfinite(observed)
    found = np.where(np.isfinite(found) & known, found, 0.0)
    hits = (np.abs(found) >= np.abs(observed) * (1 - ROUNDING) - ROUNDING).sum(0)
    p = hits / len(found) if exact else (1 + hits) / (1 + len(found))
    spread = np.sqrt((found**2).mean(0))
    ratios = found / np.where(spread > 0, spread, 1)
    return Swapped(np.where(known, p, np.nan), spread, found.max(1), ratios.max(1), exact)


def _swapped_scores(
    metric: Metric,
    given: Float[np.ndarray, "runs examples ..."],
    labels: Num[np.ndarray, " examples"],
    positive: int,
) -> Difference:
    """Scores of what swaps make of each run and the first, second less first."""
    if metric.swap_weights is not None:
        weights = metric.swap_weights(given, labels == positive)
        return lambda swapped: (1.0 - 2.0 * swapped) @ weights
    both = np.concatenate([np.broadcast_to(given[0], given[1:].shape), given[1:]], axis=1)
    scorer = make_scorer(metric, both, np.concatenate([labels, labels]), positive)

    def difference(swapped: Num[np.ndarray, "draws examples"]) -> Float[np.ndarray, "draws runs"]:
        kept = 1 - swapped
        counts = np.concatenate([np.hstack([kept, swapped]), np.hstack([swapped, kept])])
        first, second = np.split(scorer(counts), 2)
        return second - first

    return difference


def comparable(
    metric: Metric, outputs: Float[np.ndarray, "runs examples *labels"]
) -> Float[np.ndarray, "runs examples ..."]:
    """Outputs that may be swapped between runs: where a metric sees neither mean nor spread of values, standardised.

    Else a run that shifts or stretches all outputs would spread the null distribution for no reason. Ranks would not
    do: where two examples change places, swapping one of them alone makes a tie, and the null distribution is too
    narrow (ROC AUC of 200 examples, noise of 0.01 of the signal: p < 0.05 in 9.5 of 100).
    """
    if metric.reads == "predictions" or not metric.any_scale:
        return outputs
    return standardise(outputs.astype(np.float64).reshape(outputs.shape[:2]))


def benjamini_hochberg(p: Float[np.ndarray, " runs"]) -> Float[np.ndarray, " runs"]:
    """q-values: the share of false discoveries among all that are at least as sure (Benjamini and Hochberg 1995).

    Undefined p-values are no tests and stay undefined.
    """
    from scipy.stats import false_discovery_control  # scipy.stats takes half a second to load

    return _where_known(p, false_discovery_control)


def holm(p: Float[np.ndarray, " runs"]) -> Float[np.ndarray, " runs"]:
    """p-values such that even one false discovery among all is no more probable (Holm 1979).

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]
    """

    def adjust(known: Float[np.ndarray, " known"]) -> Float[np.ndarray, " known"]:
        order = np.argsort(known, kind="stable")
        raised = np.maximum.accumulate(known[order] * np.arange(len(known), 0, -1))
        found = np.empty_like(known)
        found[order] = np.minimum(raised, 1.0)
        return found

    return _where_known(p, adjust)


def _where_known(
    p: Float[np.ndarray, " runs"], adjust: Callable[[np.ndarray], np.ndarray]
) -> Float[np.ndarray, " runs"]:
    known, found = np.isfinite(p), np.full(p.shape, np.nan)
    if known.any():
        found[known] = adjust(p[known])
    return found


def detectable(spread: Float[np.ndarray, " runs"], tests: int, level: float = 0.05) -> Float[np.ndarray, " runs"]:
    """The smallest difference that would be found with 80 % power, at a level divided by the number of tests.

    Args:
        spread: standard deviation of each difference under the null hypothesis.
    """
    return spread * float(ndtri(1 - level / (2 * max(tests, 1))) + ndtri(POWER))


def fewest_flips(tests: int, level: float = 0.05) -> int:
    """Flips, all in one direction, without which McNemar's exact test cannot fall below a level divided by `tests`.

    >>> fewest_flips(1), fewest_flips(144)
    (6, 13)
    """
    return int(np.ceil(1 + np.log2(max(tests, 1) / level)))


def choose_on_half(
    scorer: Scorer,
    examples: int,
    seed: int,
    halves: int = HALVES,
    advance: Callable[[int], None] = lambda draws: None,
) -> dict[str, Any]:
    """Choose the ablation with the largest gain on a random half of the examples, and score it on the other half.

    Args:
        advance: is told how many draws are done, as in `score_draws`; both halves are draws.

    Returns: `chosen`: how often each ablation was chosen, the most frequent first, as pairs of number and share;
        `on_chosen`, `on_other`: its mean difference on the half that chose it, and on the other; `interval`: the middle
        95 % of the latter over the halves; `halves`: how many. Differences are None where none is defined.
    """
    generator = np.random.default_rng(seed)
    masks = np.zeros((halves, examples), np.uint16)
    for row in masks:
        row[generator.permutation(examples)[: examples // 2]] = 1
    scores = [score_draws(scorer, [some], advance) for some in (masks, 1 - masks)]
    here, there = (one[:, 1:] - one[:, :1] for one in scores)
    usable = np.isfinite(here).any(1)
    here, there = here[usable], there[usable]
    if not len(here):
        return {"chosen": [], "on_chosen": None, "on_other": None, "interval": [None, None], "halves": 0}
    choice = np.nanargmax(here, axis=1)
    rows = np.arange(len(choice))
    other = there[rows, choice]
    known = other[np.isfinite(other)]
    numbers, counts = np.unique(choice, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {
        "chosen": [(int(numbers[place]), float(counts[place] / len(choice))) for place in order[:5]],
        "on_chosen": float(here[rows, choice].mean()),
        "on_other": float(known.mean()) if known.size else None,
        "interval": np.percentile(known, [2.5, 97.5]).tolist() if known.size else [None, None],
        "halves": len(choice),
    }
