"""How often do 95 % intervals hold the true value? By metric, distribution of what is drawn, and number of examples.

Made-up outputs of a base run and an ablation are drawn anew for each data set from a distribution whose true difference
is known from a million examples. "before" is BCa, or percentiles where it is undefined, within the scores that the
sample's base allows (bertjax up to September 2026); "now" is what `compute_statistics`
gives below 200 examples. Data sets in which
a score is undefined are left out. The last columns compare intervals with tests: the share of data sets in which the
interval leaves out 0 though p is above 0.05, and in which it holds 0 though p is below.

    python -m benchmarks.coverage --output coverage        under an hour on one CPU core
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import spearmanr

from benchmarks.common import describe_machine
from bertjax.analyses import Drawn, patching_metrics
from bertjax.atomic_files import write_json
from bertjax.cli import positive
from bertjax.statistics import (
    METRICS,
    Metric,
    bca,
    choose_intervals,
    make_scorer,
    mcnemar,
    of_few_units,
    percentile,
    rank_correlation,
    score,
    swap_test,
)

SIZES = (5, 6, 8, 10, 13, 20, 30, 50, 100)
DRAWS, SWAPS, TESTED, POPULATION = 2000, 499, 200, 1_000_000
Noise = Callable[[np.random.Generator, int], np.ndarray]
Sample = tuple[np.ndarray, np.ndarray]  # outputs [base and ablation, examples, ...] and labels

# Of mean 0 and, but for heavy tails, variance 1.
NOISES: dict[str, Noise] = {
    "symmetric": lambda rng, n: rng.normal(size=n),
    "heavy tails": lambda rng, n: rng.standard_t(3, size=n),
    "skewed": lambda rng, n: rng.exponential(size=n) - 1,
    "very skewed": lambda rng, n: (np.exp(rng.normal(size=n)) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e),
}
FLIPS = {"symmetric": (0.1, 0.1), "skewed": (0.02, 0.15)}  # probabilities of a gain and of a loss


def _numbers(*columns: tuple[int, np.ndarray, np.ndarray], count: int, fill: float = 0.0) -> Sample:
    """Outputs of several numbers: of each column its place, and its values in the base run and the ablation."""
    examples = len(columns[0][1])
    outputs = np.full((2, examples, count), fill)
    for place, base, ablated in columns:
        outputs[:, :, place] = base, ablated
    return outputs, np.zeros(examples)


def draw_mean(noise: Noise, rng: np.random.Generator, n: int) -> Sample:
    """A mean margin that rises by 0.3 standard deviations."""
    return _numbers((1, np.zeros(n), noise(rng, n) + 0.3), count=2)


def draw_ratio(noise: Noise, rng: np.random.Generator, n: int) -> Sample:
    """Patches that restore 40 % of what there is to move, which may have either sign."""
    whole, moved = 2 + noise(rng, n), 0.5 * noise(rng, n)
    return _numbers((0, np.zeros(n), 0.4 * whole + moved), (2, whole, whole), count=3)


def draw_perplexity(noise: Noise, rng: np.random.Generator, n: int) -> Sample:
    """Log-probabilities of masked words, which fall by 0.2 nats."""
    base = -2 * rng.exponential(size=n)
    return _numbers((0, base, base - 0.2 + 0.4 * noise(rng, n)), count=2, fill=1.0)


def draw_tags(noise: Noise, rng: np.random.Generator, n: int) -> Sample:
    """Correct words of sentences, of which an ablation spoils a tenth; skewed: all words of a few sentences."""
    symmetric = noise is NOISES["symmetric"]
    words = rng.poisson(10, n) + 3 if symmetric else rng.geometric(0.1, n) + 2
    correct = rng.binomial(words, rng.beta(8, 2, n))
    kept = rng.binomial(correct, rng.beta(9, 1, n) if symmetric else rng.beta(0.9, 0.1, n))
    return _numbers((1, correct, kept), (2, words, words), count=9)


def draw_entities(noise: Noise, rng: np.random.Generator, n: int) -> Sample:
    """Entities of sentences, of which an ablation loses 15 %."""
    true = rng.poisson(2, n) if noise is NOISES["symmetric"] else rng.geometric(0.4, n) - 1
    hits = rng.binomial(true, 0.8)
    found, kept = hits + rng.poisson(0.4, n), rng.binomial(hits, 0.85)
    return _numbers((6, hits, kept), (7, found, found - (hits - kept) // 2), (8, true, true), count=9)


def draw_ranks(noise: Noise, rng: np.random.Generator, n: int) -> Sample:
    """Reciprocal ranks, of which an ablation changes three in ten."""
    ranks = rng.geometric(0.5, n)
    moved = np.where(rng.random(n) < 0.3, np.maximum(ranks + rng.integers(-1, 3, n), 1), ranks)
    return _numbers((2, 1 / ranks, 1 / moved), count=6)


def draw_values(noise: Noise, rng: np.random.Generator, n: int) -> Sample:
    """Values that follow a number, and after ablation do so less."""
    labels = noise(rng, n)
    base = labels + noise(rng, n)
    return np.stack([base, base + 0.7 * noise(rng, n)]), labels


def draw_classes(noise: Noise, rng: np.random.Generator, n: int) -> Sample:
    """The same for two classes, about equally frequent."""
    values, labels = draw_values(noise, rng, n)
    middle = {"skewed": np.log(2) - 1, "very skewed": (1 - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e)}
    return values, (labels > next((middle[name] for name in middle if noise is NOISES[name]), 0.0)).astype(int)


def draw_flips(noise: Noise, rng: np.random.Generator, n: int) -> Sample:
    """Predictions of which 80 % are right, and some flip."""
    gain, loss = FLIPS["symmetric" if noise is NOISES["symmetric"] else "skewed"]
    labels, right = (rng.random(n) < 0.6).astype(int), rng.random(n) < 0.8
    base = np.where(right, labels, 1 - labels)
    flips = rng.random(n) < np.where(right, loss / 0.8, gain / 0.2)
    return np.eye(2)[np.stack([base, np.where(flips, 1 - base, base)])], labels


@dataclass(frozen=True)
class Statistic:
    """A metric with a way to draw outputs.

    Args:
        metric: of which a difference is estimated.
        draw: outputs and labels of some examples.
        noises: from which of `NOISES`.
    """

    metric: Metric
    draw: Callable[[Noise, np.random.Generator, int], Sample]
    noises: tuple[str, ...] = tuple(NOISES)


BOTH = ("symmetric", "skewed")
STATISTICS = {
    "mean": Statistic(METRICS["margin"], draw_mean),
    "ratio": Statistic(patching_metrics("score")[0], draw_ratio),
    "pseudo-perplexity": Statistic(METRICS["pseudo_perplexity"], draw_perplexity),
    "accuracy of tags": Statistic(METRICS["tag_accuracy"], draw_tags, BOTH),
    "F1 of entities": Statistic(METRICS["entity_f1"], draw_entities, BOTH),
    "MRR": Statistic(METRICS["mrr_10"], draw_ranks, ("skewed",)),
    "accuracy": Statistic(METRICS["accuracy"], draw_flips, BOTH),
    "F1": Statistic(METRICS["f1"], draw_flips, BOTH),
    "Matthews": Statistic(METRICS["matthews"], draw_flips, BOTH),
    "Pearson": Statistic(METRICS["pearson"], draw_values),
    "Spearman": Statistic(METRICS["spearman"], draw_values),
    "ROC AUC": Statistic(METRICS["roc_auc"], draw_classes),
    "average precision": Statistic(METRICS["average_precision"], draw_classes),
}


@dataclass(frozen=True)
class DataSets:
    """Data sets, and the differences of their scores.

    Args:
        samples: outputs and labels of each.
        base: the score of each base run.
        observed, drawn, left_out: differences on all examples, on those of each draw, and with each example left out.
    """

    samples: list[Sample]
    base: np.ndarray
    observed: np.ndarray
    drawn: np.ndarray
    left_out: np.ndarray


def draw_data_sets(one: Statistic, name: str, n: int, data_sets: int) -> DataSets:
    """Data sets in which both scores are defined; those of sums are scored together."""
    rng, metric = np.random.default_rng(n), one.metric
    counts = [np.ones((1, n)), rng.multinomial(n, [1 / n] * n, size=DRAWS), 1 - np.eye(n)]
    counts = [each.astype(np.uint16) for each in counts]
    samples: list[Sample] = []
    scored = []
    while len(samples) < data_sets:
        outputs, labels = one.draw(NOISES[name], rng, n)
        if metric.sums is None:
            scorer = make_scorer(metric, outputs, labels)
            if not np.isfinite(scorer(counts[0])).all():
                continue
            scored.append([scorer(each) for each in counts])
        samples.append((outputs, labels))
    if metric.sums is None:
        scores = [np.stack(each, axis=1) for each in zip(*scored, strict=True)]
    else:
        scorer = make_scorer(metric, np.concatenate([outputs for outputs, _ in samples]), samples[0][1])
        scores = [scorer(each).reshape(len(each), data_sets, 2) for each in counts]
    observed, drawn, left_out = (each[..., 1] - each[..., 0] for each in scores)
    return DataSets(samples, scores[0][0, :, 0], observed[0], drawn, left_out)


def measure(one: Statistic, name: str, n: int, data_sets: int) -> dict[str, Any]:
    """The share of intervals that hold the true difference."""
    metric, truth = one.metric, true_difference(one, name)
    found = draw_data_sets(one, name, n, data_sets)
    ends = percentile(found.drawn), bca(found.observed, found.drawn, found.left_out)
    few = of_few_units(found.observed, found.drawn, found.left_out)
    old, new = _chosen(metric, found, ends, None), _chosen(metric, found, ends, few)
    old = np.clip(old, metric.lowest - found.base, metric.highest - found.base)
    tested = range(min(TESTED, data_sets))
    p = np.array([_test(metric, found.samples[number], found.observed[number]) for number in tested])
    excludes = ((new[0] > 0) | (new[1] < 0))[: len(p)]
    middle = [float(np.median(high - low)) for low, high in (old, new)]
    return {
        "before": float(((old[0] <= truth) & (truth <= old[1])).mean()),
        "now": float(((new[0] <= truth) & (truth <= new[1])).mean()),
        "wider": middle[1] / middle[0] if middle[0] > 0 else None,
        "interval_alone": float((excludes & (p > 0.05)).mean()),
        "test_alone": float((~excludes & (p < 0.05)).mean()),
    }


def _chosen(metric: Metric, found: DataSets, ends: tuple[np.ndarray, np.ndarray], few: np.ndarray | None) -> np.ndarray:
    """Both ends of the intervals that `compute_statistics` takes."""
    if metric.reads != "predictions":
        return np.stack(choose_intervals(metric, *found.samples[0], 1, found.observed, ends, few=few)[:2])
    chosen = []
    for number, sample in enumerate(found.samples):
        here = slice(number, number + 1)
        own = None if few is None else few[:, here]
        both = ends[0][:, here], ends[1][:, here]
        chosen.append(np.stack(choose_intervals(metric, *sample, 1, found.observed[here], both, few=own)[:2]))
    return np.concatenate(chosen, axis=1)


@cache
def true_difference(one: Statistic, name: str) -> float:
    """The difference in a large sample."""
    return float(np.diff(score(one.metric, *one.draw(NOISES[name], np.random.default_rng(0), POPULATION)))[0])


def _test(metric: Metric, sample: Sample, observed: float) -> float:
    """The p-value that `compute_statistics` gives."""
    outputs, labels = sample
    if metric.flips_alone:
        base, ablated = outputs.argmax(-1) == labels
        gains, losses = (np.array([(one & ~other).sum()]) for one, other in ((ablated, base), (base, ablated)))
        return float(mcnemar(gains, losses)[0])
    found = swap_test(metric, outputs[0], outputs[1:], labels, 1, np.array([observed]), draws=SWAPS, seed=0)
    return float(found.p[0])


def measure_heads(correlation: float, n: int, data_sets: int) -> dict[str, Any]:
    """The same for Spearman's correlation of the effects of n heads in two results."""
    rng = np.random.default_rng(n)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        first = rng.normal(size=count)
        return first, correlation * first + np.sqrt(1 - correlation**2) * rng.normal(size=count)

    truth = spearmanr(*draw(POPULATION)).statistic
    found = [rank_correlation(*draw(n), seed=number, draws=DRAWS) for number in range(data_sets)]
    held = float(np.mean([low <= truth <= high for _, low, high in found]))
    return {"before": held, "now": held, "wider": 1.0}


def measure_orders(noise: Noise, n: int, data_sets: int) -> dict[str, Any]:
    """The same for Shapley values from n pairs of orders; before by Student's t, from four pairs."""
    from scipy.special import stdtrit

    values = noise(np.random.default_rng(n), n * data_sets).reshape(n, data_sets)
    drawn = Drawn(np.zeros((data_sets, 1)), values)
    by_t = values.std(axis=0, ddof=1) / np.sqrt(n) * stdtrit(n - 1, 0.975)
    held = [float((np.abs(values.mean(axis=0)) <= width).mean()) for width in (by_t, drawn.half_widths)]
    wider = float(np.median(drawn.half_widths / by_t))
    return {"before": held[0], "now": held[1], "wider": wider if np.isfinite(wider) else None}


def measure_all(names: list[str], sizes: list[int], data_sets: int) -> Iterator[dict[str, Any]]:
    """A row for each metric, distribution and number of examples."""
    for statistic in names:
        cases: dict[str, Callable[[int], dict[str, Any]]]
        if statistic == "correlation of heads":
            cases = {f"true value {r}": partial(measure_heads, r, data_sets=data_sets // 4) for r in (0.0, 0.5, 0.9)}
        elif statistic == "Shapley values":
            cases = {name: partial(measure_orders, NOISES[name], data_sets=data_sets) for name in NOISES}
        else:
            one = STATISTICS[statistic]
            cases = {name: partial(measure, one, name, data_sets=data_sets) for name in one.noises}
        for distribution, case in cases.items():
            for n in sizes:
                yield {"statistic": statistic, "distribution": distribution, "n": n, **case(n)}


def main(arguments: list[str] | None = None) -> None:
    """Print the table, and write it as JSON."""
    every = [*STATISTICS, "correlation of heads", "Shapley values"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--statistics", nargs="+", choices=every, default=every)
    parser.add_argument("--sizes", nargs="+", type=positive, default=list(SIZES), metavar="N")
    parser.add_argument("--data-sets", type=positive, default=1000, metavar="N")
    parser.add_argument("--output", default="coverage", metavar="DIR")
    options = parser.parse_args(arguments)
    table = Table(title=describe_machine(), title_justify="left")
    for name in ("statistic", "distribution", "n", "before", "now", "width", "interval alone", "test alone"):
        table.add_column(name, justify="left" if name in ("statistic", "distribution") else "right")
    rows = []
    Path(options.output).mkdir(parents=True, exist_ok=True)
    for row in measure_all(options.statistics, options.sizes, options.data_sets):
        rows.append(row)
        write_json(Path(options.output) / "coverage.json", {"machine": describe_machine(), "rows": rows})
        shares = (f"{100 * row[name]:.1f}" if name in row else "" for name in ("before", "now"))
        apart = (f"{100 * row[name]:.1f}" if name in row else "" for name in ("interval_alone", "test_alone"))
        wider = "" if row["wider"] is None else f"{row['wider']:.2f}"
        table.add_row(row["statistic"], row["distribution"], str(row["n"]), *shares, wider, *apart)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
