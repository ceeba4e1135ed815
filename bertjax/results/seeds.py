"""Mean effects over results of several seeds of a model, with tests over seeds and examples: `Results.join`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float

from bertjax.errors import InputError
from bertjax.formatting import count_of, format_p
from bertjax.machine import import_pandas
from bertjax.results.comparison import align
from bertjax.results.contents import Contents
from bertjax.results.table import column
from bertjax.statistics import FEWEST_PLACES, LEVEL, Measure, Q, benjamini_hochberg, contributions, find_metric

Numbers: TypeAlias = Float[np.ndarray, "..."] | np.floating

if TYPE_CHECKING:
    import pandas

SHOWN = 12  # ablations in the printed table
Ablations = Float[np.ndarray, " ablations"]


@dataclass(frozen=True, eq=False)
class SeedEffects:
    """Mean effects over seeds, each an array `[ablations]` in the metric's own unit (not in points).

    Args:
        names: the names of the ablations.
        measure: how the metric is printed.
        seeds: the number of results.
        examples: the number of examples, which all results share.
        mean: the mean change from the score without ablation.
        low: the lower end of its 95 % interval.
        high: the upper end of the interval.
        p: the two-sided p-value of the mean's being 0.
        q: p corrected over the ablations (Benjamini and Hochberg 1995).
        between: the standard deviation between seeds; NaN for one seed.
    """

    names: Sequence[str]
    measure: Measure
    seeds: int
    examples: int
    mean: Ablations
    low: Ablations
    high: Ablations
    p: Ablations
    q: Ablations
    between: Ablations

    @property
    def significant(self) -> Bool[np.ndarray, " ablations"]:
        """Which mean effects are significant: q < 0.05."""
        return np.nan_to_num(self.q, nan=1.0) < Q

    def to_pandas(self) -> "pandas.DataFrame":
        """A `pandas.DataFrame` with a row for each ablation.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        columns = {name: getattr(self, name) for name in ("mean", "low", "high", "p", "q", "between")}
        return import_pandas().DataFrame({"name": list(self.names), **columns})

    def __str__(self) -> str:
        found = count_of(int(self.significant.sum()), "significant mean effect")
        lines = [
            f"{self.measure.label}, mean over {self.seeds} results of {count_of(self.examples, 'example')}: {found} "
            f"(q < {Q})"
        ]
        order = np.argsort(-np.nan_to_num(np.abs(self.mean)), kind="stable")[:SHOWN]
        width = max(len(self.names[index]) for index in order)
        for index in order:
            mean, low, high = (self.measure.change(values[index]) for values in (self.mean, self.low, self.high))
            lines.append(f"{self.names[index]:>{width}}  {mean} ({low} to {high}), q {format_p(self.q[index])}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)


def join_seeds(results: Sequence[Contents], metric: str | None = None) -> SeedEffects:
    """Join results of several seeds of a model on the same examples.

    The variance of a mean effect over examples is that of the examples' contributions
    (`bertjax.statistics.contributions`), averaged over seeds; the variance between seeds is added
    (`over_seeds_and_examples`).

    Args:
        results: at least two results of ablations.
        metric: the metric that is joined; by default the main metric of each.

    Raises:
        InputError: there are fewer than two results, their examples or labels differ, they share fewer than two
            ablations, or they were not tested.
        DataError: the metric is not built in, or it is undefined without some example.
    """
    names, tables = align(results, metric)
    first = results[0]
    for result in results:
        if metric_of(result, metric) not in result.summary.get("statistics", ()):
            raise InputError(f"{result.source} has no tests of {metric_of(result, metric)}, so seeds cannot be joined")
        if not all(np.array_equal(first.outputs[name], result.outputs[name]) for name in ("ids", "labels")):
            raise InputError(f"{first.source} and {result.source} have different examples: seeds need the same")
    effects = np.mean([_effects_of_examples(result, names, metric) for result in results], axis=0)
    change = np.stack([column(rows, "difference") for rows in tables])
    examples = effects.shape[1]
    joined = over_seeds_and_examples(change, effects.var(axis=1, ddof=1) / examples, examples)
    q = benjamini_hochberg(joined["p"])
    return SeedEffects(names, first.measure(metric), len(results), examples, q=q, **joined)


def metric_of(result: Contents, metric: str | None) -> str:
    """The metric's name; by default that of the main metric."""
    return metric or result.metric


def _effects_of_examples(
    result: Contents, names: Sequence[str], metric: str | None
) -> Float[np.ndarray, "ablations examples"]:
    """What each example contributes to the effect of each ablation."""
    arrays, places = result.outputs, [result.names.index(name) for name in names]
    outputs = np.concatenate([arrays["base"][None], arrays["outputs"][places]])
    found = find_metric(metric_of(result, metric))
    positive = int(result.summary["positive"])
    _, contributed = contributions(found, outputs, arrays["labels"], positive, units=arrays.get("units"))
    return np.asarray(contributed[1:] - contributed[0])


def over_seeds_and_examples(change: Float[np.ndarray, "seeds ..."], within: Numbers, examples: int) -> dict[str, Any]:
    """Mean over seeds, with an interval and a test that treat seeds and examples as random.

    The variance is that over examples plus the variance between seeds divided by their number. It is somewhat too
    large, since differences between seeds contain the noise of the examples too. Degrees of freedom follow
    Satterthwaite (1946): few if the seeds are few and differ much. With two or three seeds the variance between them is
    often far too small by luck, so it is raised to at least that of a typical ablation. With one seed, only the
    examples vary.

    Args:
        change: for each seed.
        within: the variance of the mean over seeds if the examples are drawn again.
        examples: their number.

    Returns: `mean`, `low`, `high`, `p` (1 where nothing varies and the mean is 0), and `between`, the standard
        deviation between seeds (NaN for one seed).
    """
    from scipy.stats import t

    seeds, mean = len(change), change.mean(0)
    between = change.var(0, ddof=1) if seeds > 1 else np.full(mean.shape, np.nan)
    extra = np.maximum(np.nan_to_num(between), _typical(between, seeds)) / seeds
    total = within + extra
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = total**2 / (within**2 / max(examples - 1, 1) + (extra**2 / (seeds - 1) if seeds > 1 else 0.0))
        freedom = np.where(np.isfinite(freedom), freedom, examples)
        p = np.where(total > 0, 2 * t.sf(np.abs(mean) / np.sqrt(total), freedom), np.where(mean == 0, 1.0, np.nan))
    half_width = t.ppf((1 + LEVEL) / 2, freedom) * np.sqrt(total)
    return {"mean": mean, "low": mean - half_width, "high": mean + half_width, "p": p, "between": np.sqrt(between)}


def _typical(between: Numbers, seeds: int) -> float:
    """The median variance between seeds over ablations, corrected for the bias of the median with few seeds.

    0 for fewer than ten ablations, too few to determine what is typical.
    """
    from scipy.stats import chi2

    defined = np.ravel(between)[np.isfinite(np.ravel(between))]
    if defined.size < FEWEST_PLACES:
        return 0.0
    return float(np.median(defined) * (seeds - 1) / chi2.median(seeds - 1))
