"""Are the same heads important for several seeds, for several tasks, and by other measures?"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import chi2, hypergeom, rankdata, t

from bertjax.evidence import FEWEST_PLACES, LEVEL, benjamini_hochberg
from experiments.disabling.effects import draw_means, mean_of, rounded_or_none, short_or_none
from experiments.disabling.runs import TaskEffects

TOP_SHARE = 0.1  # of the heads that count as the most important
MOST_SURE = 1 - 1e-9  # of correlations of which Fisher's z is taken


def over_seeds_and_examples(
    change: Float[np.ndarray, "seeds ..."], drawn: Float[np.ndarray, "draws ..."], examples: int
) -> dict[str, Any]:
    """Mean over seeds, with an interval and a test that take seeds and examples for random.

    The variance is that of the mean over seeds on drawn examples, plus the variance between seeds over their number:
    somewhat too large, as seeds differ on these examples by their noise as well. Degrees of freedom by Satterthwaite
    (1946): few seeds that differ much leave few. Of two or three seeds the variance is often far too small by luck, so
    that it counts as at least that of a typical place. With one seed it is the examples' alone.

    Args:
        change: of each seed.
        drawn: mean over seeds of each draw of examples.
        examples: how many there are.

    Returns: `mean`, `low`, `high`, `p` (1 where nothing varies and the mean is 0), and `between`, the standard
        deviation between seeds (NaN of one).
    """
    seeds, mean = len(change), change.mean(0)
    within = np.nanvar(drawn, axis=0, ddof=1)
    between = change.var(0, ddof=1) if seeds > 1 else np.full(mean.shape, np.nan)
    extra = np.maximum(np.nan_to_num(between), _typical(between, seeds)) / seeds
    total = within + extra
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = total**2 / (within**2 / max(examples - 1, 1) + (extra**2 / (seeds - 1) if seeds > 1 else 0.0))
        freedom = np.where(np.isfinite(freedom), freedom, examples)
        p = np.where(total > 0, 2 * t.sf(np.abs(mean) / np.sqrt(total), freedom), np.where(mean == 0, 1.0, np.nan))
    reach = t.ppf((1 + LEVEL) / 2, freedom) * np.sqrt(total)
    return {"mean": mean, "low": mean - reach, "high": mean + reach, "p": p, "between": np.sqrt(between)}


def _typical(between: Any, seeds: int) -> float:
    """The variance between seeds of places that have the median one, less the bias of a median of so few; 0 of fewer
    than ten places, which say little about what is typical."""
    known = np.ravel(between)[np.isfinite(np.ravel(between))]
    if known.size < FEWEST_PLACES:
        return 0.0
    return float(np.median(known) * (seeds - 1) / chi2.median(seeds - 1))


def join_seeds(one: TaskEffects) -> dict[str, Any]:
    """What the seeds of a task say together of each place and of a random one, and how far they agree."""
    examples = len(one.runs[0].labels)
    found = over_seeds_and_examples(one.change, one.drawn_mean, examples)
    # One seed alone has exact tests and intervals of its own.
    alone = one.runs[0].effects if len(one.runs) == 1 else None
    if alone is not None:
        found |= {"p": alone.p, "low": alone.low, "high": alone.high}
    found["q"] = benjamini_hochberg(found["p"])
    means = np.array([mean_of(row) for row in one.change])
    random = over_seeds_and_examples(means, draw_means(one.drawn_mean), examples)
    gains, losses = one.found_in.sum(1)
    return {
        "seeds": len(one.runs),
        "examples": examples,
        "metric": one.runs[0].results["metric"],
        "models": [run.results["model"] for run in one.runs],
        "bases": [rounded_or_none(100 * run.effects.base) for run in one.runs],
        **{name: [rounded_or_none(value) for value in found[name]] for name in ("mean", "low", "high", "between")},
        **{name: [short_or_none(value) for value in found[name]] for name in ("p", "q")},
        "seeds_that_find_a_gain": gains.tolist(),
        "seeds_that_find_a_loss": losses.tolist(),
        "random": {name: rounded_or_none(random[name]) for name in ("mean", "low", "high", "between")}
        | {"p": short_or_none(float(random["p"])), "of_each_seed": [rounded_or_none(mean) for mean in means]},
        "reliability": rounded_or_none(reliability(one.halves.mean(2))),
        "between_seeds": rounded_or_none(between_seeds(one.halves)),
    }


def reliability(halves: Float[np.ndarray, "splits 2 places"]) -> float:
    """How far places would keep their order on as many other examples: Spearman's correlation between halves of the
    examples, carried to all of them by Spearman and Brown's formula; the mean over splits."""
    found = mean_of(np.array([spearman(first, second) for first, second in halves]))
    return 2 * found / (1 + found) if found > 0 else found


def between_seeds(halves: Float[np.ndarray, "splits 2 seeds places"]) -> float:
    """The correlation of two seeds, each on another half of the examples, so that the noise of these is not shared; the
    mean over splits and pairs. NaN of one seed."""
    pairs = list(combinations(range(halves.shape[2]), 2))
    return mean_of(np.array([spearman(split[0, one], split[1, other]) for split in halves for one, other in pairs]))


def spearman(first: Float[np.ndarray, " places"], second: Float[np.ndarray, " places"]) -> float:
    """Spearman's correlation over the places where both are defined; NaN where it is undefined.

    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0]))
    1.0
    """
    known = np.isfinite(first) & np.isfinite(second)
    ranks = [rankdata(values[known]) for values in (first, second)]
    if known.sum() < 2 or any(np.ptp(one) == 0 for one in ranks):
        return float("nan")
    return float(np.clip(np.corrcoef(*ranks)[0, 1], -1, 1))


def correlate(
    first: Float[np.ndarray, " places"],
    second: Float[np.ndarray, " places"],
    layers: Int[np.ndarray, " places"],
    drawn: Sequence[tuple[Float[np.ndarray, " places"], Float[np.ndarray, " places"]]],
    draws: int,
    seed: int,
) -> dict[str, Any]:
    """Spearman's correlation of two measures over heads, an interval over examples, and two nulls.

    Args:
        layers: of the heads.
        drawn: both measures on drawn examples.
        draws: of the nulls: the second measure's heads changed for each other, all, and those of a layer alone, so that
            what layers have in common does not count.

    Returns: `spearman`; `interval`, by the standard deviation of Fisher's z over draws around that of the correlation
        found (on draws themselves it is lower, as they have the noise of the examples twice), and None for fewer than
        ten places, of which it is too sure or says nothing; `p` and `p_within_layers`, two-sided.
    """
    found = spearman(first, second)
    ends = [float("nan")] * 2
    others = np.array([spearman(*pair) for pair in drawn])
    others = others[np.isfinite(others)]
    if np.isfinite(found) and len(others) > 1 and len(layers) >= FEWEST_PLACES:
        middle, spread = _fisher(found), float(np.std(_fisher(others), ddof=1))
        ends = [float(np.tanh(middle + side * 1.96 * spread)) for side in (-1, 1)]
    p = permute(first, second, np.zeros_like(layers), draws, seed)
    within = permute(first, second, layers, draws, seed) if _can_permute(layers) else float("nan")
    return {
        "spearman": rounded_or_none(found),
        "interval": [rounded_or_none(end) for end in ends],
        "p": short_or_none(p),
        "p_within_layers": short_or_none(within),
    }


def _fisher(correlation: Any) -> Any:
    return np.arctanh(np.clip(correlation, -MOST_SURE, MOST_SURE))


def _can_permute(layers: Int[np.ndarray, " places"]) -> bool:
    return len(np.unique(layers)) < len(layers)


def permute(
    first: Float[np.ndarray, " places"],
    second: Float[np.ndarray, " places"],
    groups: Int[np.ndarray, " places"],
    draws: int,
    seed: int,
) -> float:
    """Two-sided p of Spearman's correlation with the second measure's places changed for each other within groups.

    Correlations are held against their mean over all such changes: what groups have in common stays in both.
    """
    known = np.isfinite(first) & np.isfinite(second)
    if np.isnan(found := spearman(first, second)):
        return float("nan")
    x, y = (_standard(rankdata(values[known])) for values in (first, second))
    order = draw_orders(groups[known], draws, seed)
    null = (y[order] * x).mean(1)
    middle = (_of_groups(x, groups[known]) * _of_groups(y, groups[known])).mean()
    return float((1 + (np.abs(null - middle) >= abs(found - middle) - 1e-12).sum()) / (1 + draws))


def draw_orders(groups: Int[np.ndarray, " places"], draws: int, seed: int) -> Int[np.ndarray, "draws places"]:
    """Random orders of the places in which each stays within its group."""
    keys = np.random.default_rng(seed).random((draws, len(groups)))
    by_key = np.argsort(groups + keys, axis=1)  # the places of each group, drawn, group by group
    order = np.empty_like(by_key)
    order[:, np.argsort(groups, kind="stable")] = by_key
    return order


def _of_groups(values: Any, groups: Int[np.ndarray, " places"]) -> Float[np.ndarray, " places"]:
    """At each place the mean of its group."""
    return np.array([values[groups == group].mean() for group in groups])


def _standard(values: Float[np.ndarray, " places"]) -> Float[np.ndarray, " places"]:
    return (values - values.mean()) / values.std()


def join_tasks(one: TaskEffects, other: TaskEffects, layers: Int[np.ndarray, " places"], draws: int, seed: int) -> Any:
    """How far two tasks need the same places: correlation of mean changes, and how many of the largest are shared."""
    # Seeds of the draws are the same for all tasks; with other numbers of examples draws are independent all the same,
    # and with equal ones the second task's are taken in another order.
    drawn = list(zip(one.drawn_mean, other.drawn_mean[::-1], strict=True))
    found = correlate(one.mean, other.mean, layers, drawn, draws, seed)
    kept = [reliability(each.halves.mean(2)) for each in (one, other)]
    ceiling = float(np.sqrt(np.prod(kept))) if min(kept) > 0 else float("nan")
    names = one.runs[0].results["names"]
    return {
        "tasks": [one.task, other.task],
        **found,
        "ceiling": rounded_or_none(ceiling),
        "largest_losses": share_top(-one.mean, -other.mean, names),
        "largest_gains": share_top(one.mean, other.mean, names),
    }


def share_top(
    first: Float[np.ndarray, " places"], second: Float[np.ndarray, " places"], names: Sequence[str]
) -> dict[str, Any]:
    """Which of a tenth of all places, those of the largest values, two measures share; and how probable so many are."""
    count = max(1, round(TOP_SHARE * len(names)))
    top = [
        set(np.argsort(-np.nan_to_num(values, nan=-np.inf), kind="stable")[:count].tolist())
        for values in (first, second)
    ]
    shared = sorted(top[0] & top[1])
    chance = float(hypergeom.sf(len(shared) - 1, len(names), count, count))
    return {"of": count, "shared": [names[place] for place in shared], "chance": short_or_none(chance)}


def _expected(values: Float[np.ndarray, " places"], marked: Any, groups: Int[np.ndarray, " places"]) -> float:
    """The mean, over all ways to change marks within groups, of the marked places' mean less the others'."""
    share = _of_groups(marked, groups)
    return float((share * values).sum() / marked.sum() - ((1 - share) * values).sum() / (~marked).sum())


def compare_marked(
    values: Float[np.ndarray, " places"], marked: Any, layers: Int[np.ndarray, " places"], draws: int, seed: int
) -> dict[str, Any] | None:
    """Mean of the marked places less that of the others, with p of marks changed for each other, all and within layers.

    None where all are marked, or none.
    """
    known = np.isfinite(values)
    values, marked, layers = values[known], np.asarray(marked, bool)[known], layers[known]
    if not marked.any() or marked.all():
        return None
    ps = []
    for groups in (np.zeros_like(layers), layers):
        drawn = marked[draw_orders(groups, draws, seed)]
        null = (drawn * values).sum(1) / marked.sum() - (~drawn * values).sum(1) / (~marked).sum()
        found = values[marked].mean() - values[~marked].mean()
        middle = _expected(values, marked, groups)
        ps.append(float((1 + (np.abs(null - middle) >= abs(found - middle) - 1e-12).sum()) / (1 + draws)))
    return {
        "marked": int(marked.sum()),
        "mean_of_marked": rounded_or_none(values[marked].mean()),
        "mean_of_others": rounded_or_none(values[~marked].mean()),
        "p": short_or_none(ps[0]),
        "p_within_layers": short_or_none(ps[1]) if _can_permute(layers) else None,
    }
