"""Effects of ablating heads or layers on a score, in points: as `numbers.json` holds them, and in tables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Num

import bertjax
from bertjax.results import column
from bertjax.statistics import (
    METRICS,
    RESAMPLES,
    SCORE,
    Metric,
    Q,
    bootstrap_counts,
    make_scorer,
    percentile,
    rank_correlation,
    score_draws,
)
from experiments.shared.figures import Texts
from experiments.shared.run import Numbers, array, rounded, short
from experiments.shared.tables import format_estimate, format_p, make_table

Sites = Float[np.ndarray, " sites"]


@dataclass(frozen=True)
class Effects:
    """The effects on one score, in one mode, of ablating each site (a head, a layer, or a set of them) alone.

    Args:
        change: from the score without ablation; NaN where undefined.
        low, high: the 95 % interval of each change over examples.
        p, q: of the paired test, before and after correction by Benjamini and Hochberg over all sites.
        entry: all numbers, as in `numbers.json`.
    """

    change: Sites
    low: Sites
    high: Sites
    p: Sites
    q: Sites
    entry: Numbers

    @classmethod
    def of(cls, entry: Numbers) -> "Effects":
        """The effects that `describe_metric` returned."""
        change, low, high, p, q = (array(entry[name]) for name in ("change", "low", "high", "p", "q"))
        return cls(change, low, high, p, q, entry)

    @property
    def significant(self) -> Bool[np.ndarray, " sites"]:
        """Which changes are significant."""
        return np.nan_to_num(self.q, nan=1.0) < Q

    def format_q(self, site: int) -> str:
        """The q of a site, as an upper bound where p is the smallest that random swaps can give."""
        least = self.entry.get("least_p")
        return format_p(float(self.q[site]), bound=bool(least is not None and self.p[site] <= least * (1 + 1e-9)))

    def format_extreme(self, names: Sequence[str], sign: int) -> str:
        """The site with the largest change of this sign: name, change with its interval, ties, flips and q."""
        changes = sign * self.change
        if not (changes >= SCORE.least).any():
            return "none"
        site = int(np.nanargmax(changes))
        ties = int((np.abs(changes - changes[site]) < SCORE.least / 2).sum()) - 1
        estimate = format_estimate(self.change[site], (self.low[site], self.high[site])).removesuffix(")")
        if "gains" in self.entry:
            estimate += f"; {self.entry['gains'][site]} become right, {self.entry['losses'][site]} wrong"
        more = f" and {ties} more" if ties else ""
        return f"{names[site]}{more} {estimate}; q {self.format_q(site)})"


def describe_runs(runs: Mapping[str, bertjax.Results], kind: str, seed: int) -> dict[str, Any]:
    """The results of several modes on the same examples, for `numbers.json`; accuracy, if there, is the main metric.

    Args:
        runs: by mode.
        kind: what is ablated.
    """
    first = next(iter(runs.values()))
    data, model = first.summary["data"], first.summary["model"]
    metrics = sorted(first.summary["statistics"], key=lambda name: name != "accuracy")
    effects = {metric: {mode: describe_metric(run, metric, seed) for mode, run in runs.items()} for metric in metrics}
    main = {mode: column(run.rows_of(metrics[0]), "difference") for mode, run in runs.items()}
    return {
        "kind": kind,
        "model": model["name"],
        **{name: data[name] for name in ("task", "split", "examples", "source", "sha256")},
        "outputs": "similarity" if first.outputs["base"].ndim == 1 else "logits",
        **{name: model[name] for name in ("layers", "heads")},
        "names": first.names,
        "metric": metrics[0],
        "positive": first.summary["positive"],
        "base": {metric: first.rows_of(metric)[0].base for metric in metrics},
        "effects": effects,
        "rank_correlation": {
            f"{one}-{other}": correlate_sites(main[one], main[other], seed) for one, other in combinations(main, 2)
        },
    }


def describe_metric(results: bertjax.Results, metric: str, seed: int) -> dict[str, Any]:
    """Changes in points with their statistics, and the mean change (of a random site) with its interval."""
    rows = results.rows_of(metric)
    entry: dict[str, Any] = {
        name: [rounded(100 * value) for value in column(rows, source)]
        for name, source in (("change", "difference"), ("low", "low"), ("high", "high"))
    }
    entry |= {name: [short(value) for value in column(rows, name)] for name in ("p", "q")}
    if rows[0].gains is not None:
        entry |= {name: [getattr(row, name) for row in rows] for name in ("gains", "losses")}
    drawn = draw_changes(
        metric, outputs_of(results), results.outputs["labels"], results.summary["positive"], RESAMPLES, seed
    )
    ends = percentile(100 * draw_means(drawn)[:, None])[:, 0]
    entry |= {"least_p": short(results.least_p(metric)), "mean": rounded(mean_of(100 * column(rows, "difference")))}
    return entry | {"mean_interval": [rounded(end) for end in ends]}


def outputs_of(results: bertjax.Results) -> Any:
    """The outputs without ablation, followed by those of each ablation."""
    return np.concatenate([results.outputs["base"][None], results.outputs["outputs"]])


def draw_changes(
    metric: Metric | str,
    outputs: Float[np.ndarray, "runs examples *labels"],
    labels: Num[np.ndarray, " examples"],
    positive: int,
    draws: int,
    seed: int,
) -> Float[np.ndarray, "draws sites"]:
    """Changes of the metric on examples drawn with replacement; the first run is without ablation."""
    counts = bootstrap_counts(len(labels), draws, seed, len(outputs))
    drawn = score_draws(make_scorer(metric, outputs, labels, positive), counts)
    return drawn[:, 1:] - drawn[:, :1]


def draw_means(changes: Float[np.ndarray, "draws sites"]) -> Float[np.ndarray, " draws"]:
    """The mean change in each draw over the sites where it is defined; NaN if it is defined nowhere."""
    defined = np.isfinite(changes)
    sums, counts = np.where(defined, changes, 0.0).sum(1), defined.sum(1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def mean_of(values: Float[np.ndarray, "..."]) -> float:
    """The mean of the defined values; NaN if there are none."""
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if defined.size else float("nan")


def correlate_sites(first: Sites, second: Sites, seed: int) -> dict[str, Any]:
    """Spearman's correlation over sites, with a bootstrap interval over them."""
    coefficient, *ends = rank_correlation(first, second, seed)
    return {"spearman": rounded(coefficient), "interval": [rounded(end) for end in ends]}


def main_effects(results: Numbers) -> dict[str, Effects]:
    """The effects on the main metric, by mode."""
    return {mode: Effects.of(entry) for mode, entry in results["effects"][results["metric"]].items()}


def texts_of(results: Numbers) -> Texts:
    """The texts of a figure."""
    data = f"{results['model']}, {results['task']} {results['split']}, {results['examples']:,} examples"
    subtitle = f"{data}; {METRICS[results['metric']].label}"
    return Texts(f"Ablating one {results['kind']} at a time", subtitle, "change in points")


def modes_table(all_results: Sequence[Numbers]) -> str:
    """A row for each run and mode: how many sites raise and lower the score, the largest effects, a random site's."""
    head = ["ablated", "mode", f"raise (q < {Q})", f"lower (q < {Q})", "largest gain", "largest loss", "a random one"]
    return make_table(head, [row for results in all_results for row in _rows(results)])


def _rows(results: Numbers) -> Iterator[list[str]]:
    for mode, effects in main_effects(results).items():
        gains = [np.nan_to_num(sign * effects.change) for sign in (1, -1)]
        yield [
            f"{results['kind']}s, {results['task']}",
            mode,
            *(f"{(gain >= SCORE.least).sum()} ({(effects.significant & (gain > 0)).sum()})" for gain in gains),
            *(effects.format_extreme(results["names"], sign) for sign in (1, -1)),
            format_estimate(effects.entry["mean"], effects.entry["mean_interval"]),
        ]
