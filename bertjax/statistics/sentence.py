"""A summary of statistics in one sentence: the number of significant effects, the extremes, and what is unknown."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.formatting import count_of, equals_p
from bertjax.statistics.effects import Q, Statistics
from bertjax.statistics.intervals import LEVEL
from bertjax.statistics.metrics import Metric

# The number of examples from which intervals hold in 93 of 100 simulated data sets (`benchmarks/coverage.py`): for
# means, ratios, accuracy and correlations; for scores that count predictions by class; for scores that order two
# classes; for scores from 0 to 1 that few examples change.
FEWEST_EXAMPLES, FEWEST_BY_CLASS, FEWEST_ORDERED, FEWEST_BOUNDED = 10, 13, 20, 30


def summarise(statistics: Statistics, names: Sequence[str], kind: str, pruning: Mapping[str, Any] | None = None) -> str:
    """Summarise statistics: how many ablations significantly raise or lower the score, the extremes, what is unknown.

    A gain is a change of the score for the better, a loss one for the worse. If there are fewer examples than intervals
    need, a second sentence says so. For pruning the sentence has the number of heads that each order removes without a
    significant loss.

    Args:
        statistics: the statistics of the ablations.
        names: names of the ablations.
        kind: the noun for an ablation: 'head', 'layer', 'set' or 'pair of layers'.
        pruning: the key `pruning` of `summary.json`; None for other analyses.
    """
    is_pruning = pruning is not None and statistics.metric.tested and np.isfinite(statistics.difference).any()
    findings = _pruned(statistics, names, pruning) if pruning and is_pruning else _findings(statistics, names, kind)
    if statistics.examples >= fewest_examples(statistics.metric) or not np.isfinite(statistics.difference).any():
        return findings
    examples, level = count_of(statistics.examples, "example"), f"{100 * LEVEL:.0f} %"
    return f"{findings} Intervals from {examples} hold the true value less often than {level}."


def fewest_examples(metric: Metric) -> int:
    """The number of examples from which the 95 % intervals of a metric have about that coverage.

    >>> from bertjax.statistics import METRICS
    >>> [fewest_examples(METRICS[name]) for name in ("accuracy", "f1", "roc_auc", "entity_f1")]
    [10, 13, 20, 30]
    """
    if metric.reads == "predictions":
        return FEWEST_EXAMPLES if metric.flips_alone else FEWEST_BY_CLASS
    if metric.needs == "both":
        return FEWEST_ORDERED
    bounded = metric.reads == "outputs" and (metric.lowest, metric.highest) == (0, 1)
    return FEWEST_BOUNDED if bounded and not (metric.of_effects or metric.compared_with) else FEWEST_EXAMPLES


def _findings(statistics: Statistics, names: Sequence[str], kind: str) -> str:
    """The sentence without the remark about intervals."""
    differences, total, measure = statistics.difference, len(names), statistics.metric.measure
    gains = measure.sign * differences
    labels = [f"layer {name}" if kind == "layer" else name for name in names]
    defined = np.isfinite(differences)
    if not defined.any():
        return f"{_name(statistics)} is undefined: no {kind}'s effect can be estimated."
    if not measure.tested:
        return _untested(statistics, labels)
    raised, lowered = (int((statistics.significant & (sign * differences > 0)).sum()) for sign in (1, -1))
    unknown = int(defined.sum()) - raised - lowered
    if measure.of_effects:
        return _of_effects(statistics, labels, kind, raised, lowered)
    if measure.compared_with:
        return _compared(statistics, labels, kind, raised, lowered)
    parts = [f"{_counted(measure.by, kind, total, raised, lowered)}, at q < {Q} ({_name(statistics)})"]
    loss, gain = measure.names_of_changes
    run = int(np.nanargmax(gains))
    if gains[run] > 0:
        p = equals_p("p", statistics.best[run], statistics.least_best_p)
        chance = f"by chance the best of {total} would stand out as much with {p}"
        parts.append(f"the largest {gain} is {_change(statistics, run)} for {labels[run]}; {chance}")
    else:
        parts.append(f"there is no {gain}")
    run = int(np.nanargmin(gains))
    if gains[run] < 0:
        parts.append(f"the largest {loss} is {_change(statistics, run)} for {labels[run]}")
    if unknown:
        parts.append(_unknown(statistics, unknown, kind))
    return "; ".join(parts) + "."


def _pruned(statistics: Statistics, names: Sequence[str], pruning: Mapping[str, Any]) -> str:
    """The sentence for pruning: how many heads each order removes before a significant loss, or an undefined score."""
    lost = ~np.isfinite(statistics.difference)
    lost |= statistics.significant & (statistics.metric.measure.sign * statistics.difference < 0)
    worse = dict(zip(names, lost.tolist(), strict=True))
    removed = dict[str, list[int]]()
    for order in pruning["orders"]:
        name = "random" if order["name"].startswith("random") else order["name"]
        count, heads = 0, len(order["heads"])
        for left in sorted(map(int, order["runs"]), reverse=True):
            if worse[order["runs"][str(left)]]:
                break
            count = heads - left
        removed.setdefault(name, []).append(count)
    parts = [
        f"random orders {np.median(counts):.0f} (median of {len(counts)})"
        if name == "random"
        else f"{name} {counts[0]}"
        for name, counts in removed.items()
    ]
    if gates := pruning.get("gates"):
        closed = [len(gate["open"]) - gate["left"] for gate in gates if gate["run"] and not worse[gate["run"]]]
        parts.append(f"learned gates {max(closed, default=0)}")
    loss, examples = statistics.metric.measure.names_of_changes[0], count_of(statistics.examples, "example")
    heads = len(pruning["orders"][0]["heads"] if pruning["orders"] else pruning["gates"][0]["open"])
    title = f"Number of heads removed without a significant {loss}, at q < {Q} ({_name(statistics)}), of {heads}"
    return f"{title}: {', '.join(parts)}; {examples} {_shown(statistics, 'set')}."


def _counted(by: str, kind: str, total: int, raised: int, lowered: int) -> str:
    """How many ablations raise and lower the score."""
    if by == "gradients":
        higher = f"a higher score without {raised} of {count_of(total, kind)}"
        return f"Gradients predict {higher} and a lower one without {lowered}"
    verb = "Ablating" if by == "ablation" else by.capitalize()
    return f"{verb} one {kind} raises the score for {raised} of {count_of(total, kind)} and lowers it for {lowered}"


def _untested(statistics: Statistics, labels: Sequence[str]) -> str:
    """The sentence for a metric whose changes have one sign by construction: the extremes, without a test."""
    differences, measure = statistics.difference, statistics.metric.measure
    parts = []
    for run, extreme in ((int(np.nanargmax(differences)), "largest"), (int(np.nanargmin(differences)), "smallest")):
        score = "" if measure.of_effects else f"{measure.with_unit(measure.score(float(statistics.score[run])))}, "
        parts.append(f"the {extreme} is {score}{_change(statistics, run)} for {labels[run]}")
    return f"{_name(statistics)}: {'; '.join(parts)}; {measure.untested}."


def _of_effects(statistics: Statistics, labels: Sequence[str], kind: str, above: int, below: int) -> str:
    """The sentence for a metric whose scores are effects themselves."""
    values, measure = statistics.difference, statistics.metric.measure
    counted = f"above 0 for {above} of {count_of(len(labels), kind)} and below 0 for {below}"
    parts = [f"{measure.label}{f' ({measure.direction})' if measure.direction else ''} is {counted}, at q < {Q}"]
    for run, extreme, side in ((int(np.nanargmax(values)), "largest", 1), (int(np.nanargmin(values)), "smallest", -1)):
        if side * values[run] > 0:
            parts.append(f"the {extreme} is {_change(statistics, run)} for {labels[run]}")
    unknown = int(np.isfinite(values).sum()) - above - below
    if unknown:
        parts.append(_unknown(statistics, unknown, kind))
    return "; ".join(parts) + "."


def _compared(statistics: Statistics, labels: Sequence[str], kind: str, above: int, below: int) -> str:
    """The sentence for a metric that compares heads with another reference than the model without ablation."""
    differences, measure = statistics.difference, statistics.metric.measure
    counted = f"for {above} of {count_of(len(labels), kind)} and below it for {below}"
    parts = [f"{measure.label} is above that of {measure.compared_with} {counted}, at q < {Q}"]
    for run, extreme in ((int(np.nanargmax(differences)), "largest"), (int(np.nanargmin(differences)), "smallest")):
        score = measure.with_unit(measure.score(float(statistics.score[run])))
        parts.append(f"the {extreme} is {score} for {labels[run]}, {_change(statistics, run)}")
    return "; ".join(parts) + "."


def _unknown(statistics: Statistics, count: int, kind: str) -> str:
    """The remark about ablations that cannot be distinguished from none."""
    examples = count_of(statistics.examples, "example")
    return f"{count} cannot be distinguished from zero with {examples}, which {_shown(statistics, kind)}"


def _shown(statistics: Statistics, kind: str) -> str:
    """The sizes of changes that these examples would show."""
    limits = statistics.detectable[np.isfinite(statistics.detectable) & ~statistics.significant]
    least = float(np.median(limits)) if limits.size else np.inf
    metric, measure = statistics.metric, statistics.metric.measure
    if not least < metric.highest - metric.lowest:
        together = statistics.fewest_together
        return "can show none" if together is None else f"can show none alone, but {together} or more together"
    low, high, middle = (
        f"{measure.factor * end:.{measure.digits - 1}f}" for end in (limits.min(), limits.max(), least)
    )
    span = "" if low == high else f" ({low} to {high}, by {kind})"
    return f"would show changes of about {measure.with_unit(middle)} and more{span}"


def _name(statistics: Statistics) -> str:
    measure = statistics.metric.measure
    return ", ".join(part for part in (measure.label, measure.direction) if part)


def _change(statistics: Statistics, run: int) -> str:
    measure = statistics.metric.measure
    ends = " to ".join(measure.change(float(end[run])) for end in (statistics.low, statistics.high))
    return f"{measure.with_unit(measure.change(float(statistics.difference[run])))} (95 % CI {ends})"


def name_test(statistics: Statistics) -> str:
    """The test that gives the p-values.

    Args:
        statistics: the statistics of the ablations.
    """
    if not statistics.metric.tested:
        return "none"
    if statistics.by_flips:
        return "McNemar, exact"
    return f"{'all' if statistics.exact else 'random'} swaps, {statistics.draws:,}"


def describe_statistics(
    statistics: Statistics, names: Sequence[str], kind: str, pruning: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Describe statistics for `summary.json`: methods, and the result of choosing heads on half of the data.

    Args:
        statistics: the statistics of the ablations.
        names: names of the ablations.
        kind: the noun for an ablation: 'head', 'layer', 'set' or 'pair of layers'.
        pruning: the key `pruning` of `summary.json`; None for other analyses.
    """
    return {
        "sentence": summarise(statistics, names, kind, pruning),
        "examples": statistics.examples,
        "level": LEVEL,
        "q": Q,
        "resamples": statistics.resamples,
        "test": name_test(statistics),
        "least_p": statistics.least_p,
        "least_best_p": statistics.least_best_p,
        "seed": statistics.seed,
        "effect_size": statistics.metric.effect_size.text,
        "halves": {
            **statistics.halves,
            "chosen": [[names[run], share] for run, share in statistics.halves["chosen"]],
        },
    }
