"""Effects of heads joined across seeds, across tasks, and with other measures."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Num
from scipy.stats import hypergeom, rankdata

from bertjax.results import over_seeds_and_examples
from bertjax.statistics import FEWEST_PLACES, benjamini_hochberg, make_scorer
from experiments.shared.effects import Effects, draw_changes, draw_means, main_effects, mean_of
from experiments.shared.run import Numbers, rounded, short

TOP_SHARE = 0.1  # share of the heads that count as the most important
MOST_SURE = 1 - 1e-9  # correlations are clipped to this before taking Fisher's z


@dataclass(frozen=True)
class TaskEffects:
    """The effects on one task, over the seeds of its fine-tuned models.

    Args:
        runs: the results of each seed, from `numbers.json`.
        effects: of each seed.
        examples: their number.
        change: of each seed and site, in points.
        drawn: the change on examples drawn with replacement; all seeds share the draws.
        halves: the change on random halves of the examples, each paired with the complementary half.
    """

    task: str
    runs: Sequence[Numbers]
    effects: Sequence[Effects]
    examples: int
    change: Float[np.ndarray, "seeds sites"]
    drawn: Float[np.ndarray, "draws seeds sites"]
    halves: Float[np.ndarray, "splits 2 seeds sites"]

    @property
    def mean(self) -> Float[np.ndarray, " sites"]:
        """The mean change over seeds."""
        return self.change.mean(0)

    @property
    def drawn_mean(self) -> Float[np.ndarray, "draws sites"]:
        """The mean change over seeds in each draw."""
        return self.drawn.mean(1)

    @property
    def found_in(self) -> Bool[np.ndarray, "2 seeds sites"]:
        """Where the test of each seed alone finds a gain, and where a loss."""
        found = np.stack([effects.significant for effects in self.effects])
        return np.stack([found & (self.change > 0), found & (self.change < 0)])


def measure_task(
    task: str,
    runs: Sequence[Numbers],
    outputs: Sequence[Float[np.ndarray, "runs examples *labels"]],
    labels: Num[np.ndarray, " examples"],
    *,
    mode: str,
    draws: int,
    splits: int,
    seed: int,
) -> TaskEffects:
    """Measure the effects on resampled examples and on random halves of them.

    Args:
        runs: the results of each seed.
        outputs: of each seed, without ablation first.
        labels: of the examples.
    """
    generator = np.random.default_rng(seed)
    masks = np.zeros((splits, len(labels)), np.uint16)
    for row in masks:
        row[generator.permutation(len(labels))[: len(labels) // 2]] = 1
    drawn, halves = [], []
    for results, run_outputs in zip(runs, outputs, strict=True):
        metric = results["metric"], run_outputs, labels, results["positive"]
        drawn.append(draw_changes(*metric, draws, seed))
        scorer = make_scorer(*metric)
        scores = np.stack([scorer(masks), scorer(1 - masks)], axis=1)
        halves.append(scores[..., 1:] - scores[..., :1])
    effects = [main_effects(results)[mode] for results in runs]
    change, drawn_changes = np.stack([one.change for one in effects]), 100 * np.stack(drawn, 1)
    return TaskEffects(task, runs, effects, len(labels), change, drawn_changes, 100 * np.stack(halves, 2))


def join_seeds(task: TaskEffects) -> dict[str, Any]:
    """The joint results of a task's seeds for each site and for a random one, and how far the seeds agree."""
    joined = over_seeds_and_examples(task.change, np.nanvar(task.drawn_mean, axis=0, ddof=1), task.examples)
    # A single seed has its own exact tests and intervals.
    single = task.effects[0] if len(task.runs) == 1 else None
    if single is not None:
        joined |= {"p": single.p, "low": single.low, "high": single.high}
    joined["q"] = benjamini_hochberg(joined["p"])
    means = np.array([mean_of(row) for row in task.change])
    random = over_seeds_and_examples(means, np.nanvar(draw_means(task.drawn_mean), ddof=1), task.examples)
    gains, losses = task.found_in.sum(1)
    return {
        "seeds": len(task.runs),
        "examples": task.examples,
        "metric": task.runs[0]["metric"],
        "models": [run["model"] for run in task.runs],
        "bases": [rounded(100 * run["base"][run["metric"]]) for run in task.runs],
        **{name: [rounded(value) for value in joined[name]] for name in ("mean", "low", "high", "between")},
        **{name: [short(value) for value in joined[name]] for name in ("p", "q")},
        "seeds_that_find_a_gain": gains.tolist(),
        "seeds_that_find_a_loss": losses.tolist(),
        "random": {name: rounded(random[name]) for name in ("mean", "low", "high", "between")}
        | {"p": short(float(random["p"])), "of_each_seed": [rounded(mean) for mean in means]},
        "reliability": rounded(reliability(task.halves.mean(2))),
        "between_seeds": rounded(between_seeds(task.halves)),
    }


def reliability(halves: Float[np.ndarray, "splits 2 sites"]) -> float:
    """How well sites would keep their order on equally many other examples: Spearman's correlation between halves of
    the examples, averaged over splits and extended to all examples by the Spearman-Brown formula."""
    correlation = mean_of(np.array([spearman(first, second) for first, second in halves]))
    return 2 * correlation / (1 + correlation) if correlation > 0 else correlation


def between_seeds(halves: Float[np.ndarray, "splits 2 seeds sites"]) -> float:
    """The correlation of two seeds, each on a different half of the examples so that they share no noise; the mean over
    splits and pairs. NaN for one seed."""
    pairs = list(combinations(range(halves.shape[2]), 2))
    return mean_of(np.array([spearman(split[0, i], split[1, j]) for split in halves for i, j in pairs]))


def spearman(first: Float[np.ndarray, " sites"], second: Float[np.ndarray, " sites"]) -> float:
    """Spearman's correlation over the sites where both are defined; NaN if undefined.

    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0]))
    1.0
    """
    defined = np.isfinite(first) & np.isfinite(second)
    ranks = [rankdata(values[defined]) for values in (first, second)]
    if defined.sum() < 2 or any(np.ptp(r) == 0 for r in ranks):
        return float("nan")
    return float(np.clip(np.corrcoef(*ranks)[0, 1], -1, 1))


def correlate(
    first: Float[np.ndarray, " sites"],
    second: Float[np.ndarray, " sites"],
    layers: Int[np.ndarray, " sites"],
    drawn: Sequence[tuple[Float[np.ndarray, " sites"], Float[np.ndarray, " sites"]]],
    draws: int,
    seed: int,
) -> dict[str, Any]:
    """Spearman's correlation of two measures over heads, with an interval over examples and p-values from two nulls.

    Args:
        layers: of the heads.
        drawn: both measures in each draw of examples.
        draws: for each null. One permutes the heads of the second measure over all layers; the other only within
            layers, so that differences between layers do not count.

    Returns: `spearman`; `interval`, centred on Fisher's z of the observed correlation, with its standard deviation over
        draws (correlations in the draws themselves are lower, as they contain the noise of the examples twice), and
        None for fewer than ten sites, where it would be too narrow or mean nothing; `p` and `p_within_layers`,
        two-sided.
    """
    correlation = spearman(first, second)
    ends = [float("nan")] * 2
    resampled = np.array([spearman(*pair) for pair in drawn])
    resampled = resampled[np.isfinite(resampled)]
    if np.isfinite(correlation) and len(resampled) > 1 and len(layers) >= FEWEST_PLACES:
        centre, spread = _fisher(correlation), float(np.std(_fisher(resampled), ddof=1))
        ends = [float(np.tanh(centre + side * 1.96 * spread)) for side in (-1, 1)]
    p = permute(first, second, np.zeros_like(layers), draws, seed)
    within = permute(first, second, layers, draws, seed) if _can_permute(layers) else float("nan")
    return {
        "spearman": rounded(correlation),
        "interval": [rounded(end) for end in ends],
        "p": short(p),
        "p_within_layers": short(within),
    }


def _fisher(correlation: Any) -> Any:
    return np.arctanh(np.clip(correlation, -MOST_SURE, MOST_SURE))


def _can_permute(layers: Int[np.ndarray, " sites"]) -> bool:
    return len(np.unique(layers)) < len(layers)


def permute(
    first: Float[np.ndarray, " sites"],
    second: Float[np.ndarray, " sites"],
    groups: Int[np.ndarray, " sites"],
    draws: int,
    seed: int,
) -> float:
    """Two-sided p of Spearman's correlation when the sites of the second measure are permuted within groups.

    Correlations are compared with their mean over all such permutations, which keep the differences between groups.
    """
    defined = np.isfinite(first) & np.isfinite(second)
    if np.isnan(correlation := spearman(first, second)):
        return float("nan")
    x, y = (_standard(rankdata(values[defined])) for values in (first, second))
    order = draw_orders(groups[defined], draws, seed)
    null = (y[order] * x).mean(1)
    expected = (_of_groups(x, groups[defined]) * _of_groups(y, groups[defined])).mean()
    return float((1 + (np.abs(null - expected) >= abs(correlation - expected) - 1e-12).sum()) / (1 + draws))


def draw_orders(groups: Int[np.ndarray, " sites"], draws: int, seed: int) -> Int[np.ndarray, "draws sites"]:
    """Random orders of the sites that keep each within its group."""
    keys = np.random.default_rng(seed).random((draws, len(groups)))
    by_key = np.argsort(groups + keys, axis=1)  # the sites of each group in random order, group by group
    order = np.empty_like(by_key)
    order[:, np.argsort(groups, kind="stable")] = by_key
    return order


def _of_groups(values: Any, groups: Int[np.ndarray, " sites"]) -> Float[np.ndarray, " sites"]:
    """The mean of each site's group."""
    return np.array([values[groups == group].mean() for group in groups])


def _standard(values: Float[np.ndarray, " sites"]) -> Float[np.ndarray, " sites"]:
    return (values - values.mean()) / values.std()


def join_tasks(
    first: TaskEffects, second: TaskEffects, layers: Int[np.ndarray, " sites"], draws: int, seed: int
) -> Any:
    """How far two tasks need the same sites: the correlation of mean changes, and which of the largest they share."""
    # All tasks draw with the same seed. With different numbers of examples the draws are independent anyway; with equal
    # numbers, reversing the second task's draws makes them so.
    drawn = list(zip(first.drawn_mean, second.drawn_mean[::-1], strict=True))
    correlation = correlate(first.mean, second.mean, layers, drawn, draws, seed)
    reliabilities = [reliability(task.halves.mean(2)) for task in (first, second)]
    ceiling = float(np.sqrt(np.prod(reliabilities))) if min(reliabilities) > 0 else float("nan")
    names = first.runs[0]["names"]
    return {
        "tasks": [first.task, second.task],
        **correlation,
        "ceiling": rounded(ceiling),
        "largest_losses": share_top(-first.mean, -second.mean, names),
        "largest_gains": share_top(first.mean, second.mean, names),
    }


def share_top(
    first: Float[np.ndarray, " sites"], second: Float[np.ndarray, " sites"], names: Sequence[str]
) -> dict[str, Any]:
    """Which of their largest tenth of sites two measures share, and the probability of sharing that many by chance."""
    count = max(1, round(TOP_SHARE * len(names)))
    top = [
        set(np.argsort(-np.nan_to_num(values, nan=-np.inf), kind="stable")[:count].tolist())
        for values in (first, second)
    ]
    shared = sorted(top[0] & top[1])
    chance = float(hypergeom.sf(len(shared) - 1, len(names), count, count))
    return {"of": count, "shared": [names[site] for site in shared], "chance": short(chance)}


def _expected(values: Float[np.ndarray, " sites"], marked: Any, groups: Int[np.ndarray, " sites"]) -> float:
    """The mean of the marked sites less that of the others, averaged over all permutations of marks within groups."""
    share = _of_groups(marked, groups)
    return float((share * values).sum() / marked.sum() - ((1 - share) * values).sum() / (~marked).sum())


def compare_marked(
    values: Float[np.ndarray, " sites"], marked: Any, layers: Int[np.ndarray, " sites"], draws: int, seed: int
) -> dict[str, Any] | None:
    """Means of marked and other sites; p of the difference with marks permuted over all and within layers.

    None if all sites are marked, or none.
    """
    defined = np.isfinite(values)
    values, marked, layers = values[defined], np.asarray(marked, bool)[defined], layers[defined]
    if not marked.any() or marked.all():
        return None
    ps = []
    for groups in (np.zeros_like(layers), layers):
        drawn = marked[draw_orders(groups, draws, seed)]
        null = (drawn * values).sum(1) / marked.sum() - (~drawn * values).sum(1) / (~marked).sum()
        difference = values[marked].mean() - values[~marked].mean()
        expected = _expected(values, marked, groups)
        ps.append(float((1 + (np.abs(null - expected) >= abs(difference - expected) - 1e-12).sum()) / (1 + draws)))
    return {
        "marked": int(marked.sum()),
        "mean_of_marked": rounded(values[marked].mean()),
        "mean_of_others": rounded(values[~marked].mean()),
        "p": short(ps[0]),
        "p_within_layers": short(ps[1]) if _can_permute(layers) else None,
    }
