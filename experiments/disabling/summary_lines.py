"""The results of one disabling run as lines for the terminal and a table for RESULTS, from `numbers.json` alone."""

from collections.abc import Iterator, Mapping
from typing import Any

from bertjax.evidence import METRICS, Q
from experiments.disabling.effects import Effects, format_estimate, format_extreme, read_effects, summarise

DRAWN = ("head", "layer")  # kinds for which the effect of a random one is meaningful
HEADINGS_OF_EXTREMES = ("largest_gain", "largest_loss")
HEADINGS = ("raise", "leave", "lower", "largest gain", "largest loss")


def main_effects(results: Mapping[str, Any]) -> dict[str, Effects]:
    """The effects on the main metric, by mode."""
    metric = results["metric"]
    base = results["base"][metric]
    return {mode: read_effects(metric, base, entry) for mode, entry in results["effects"][metric].items()}


def single_lines(results: Mapping[str, Any]) -> list[str]:
    """The results of a run as lines."""
    bases = ", ".join(f"{METRICS[name].label} {format_score(base)}" for name, base in results["base"].items())
    yes = f" ({results['yes']} is yes)" if results["yes"] else ""
    lines = [f"as published, which is the default: {results['as_published']}"] if results["as_published"] else []
    lines.append(f"{results['examples']:,} examples ({results['source']}); nothing disabled: {bases}{yes}")
    lines += [_describe(results, mode, effects) for mode, effects in main_effects(results).items()]
    if results["rank_correlation"]:
        correlations = [
            f"{name} {format_correlation(correlation)}" for name, correlation in results["rank_correlation"].items()
        ]
        lines.append("rank correlation of the modes: " + "; ".join(correlations))
    return lines


def format_score(score: float | None) -> str:
    """A score in points.

    >>> format_score(0.8672), format_score(None)
    ('86.72', 'undefined')
    """
    return "undefined" if score is None else f"{100 * score:.2f}"


def format_correlation(correlation: Mapping[str, Any]) -> str:
    """A correlation with its interval, if it has one.

    >>> format_correlation({"spearman": -0.125, "interval": [-0.5, 0.25]})
    '−0.12 (−0.50 to 0.25)'
    """
    if correlation["spearman"] is None:
        return "undefined"
    low, high = correlation["interval"]
    text = f"{correlation['spearman']:.2f}" + ("" if low is None else f" ({low:.2f} to {high:.2f})")
    return text.replace("-", "−")


def _describe(results: Mapping[str, Any], mode: str, effects: Effects) -> str:
    summary, kind = summarise(effects, results["names"]), results["kind"]
    counts = f"{summary['raise']} raise the score ({summary['raise_found']} at q < {Q}), {summary['leave']} leave it"
    counts += f", {summary['lower']} lower it ({summary['lower_found']} at q < {Q})"
    gain, loss = (format_extreme(summary[name], lambda name: f"{kind} {name}") for name in HEADINGS_OF_EXTREMES)
    mean = f"; a random {kind} {format_estimate(effects.mean, effects.mean_interval)}" if kind in DRAWN else ""
    return (
        f"{mode}: of {len(results['names'])} {kind}s disabled one at a time {counts}; largest gain {gain}; "
        f"largest loss {loss}{mean}"
    )


def table_of(headings: list[str], rows: list[list[str]]) -> str:
    """A Markdown table.

    >>> print(table_of(["mode", "raise"], [["uniform", "3"]]))
    | mode | raise |
    |---|---|
    | uniform | 3 |
    """
    lines = [headings, *rows]
    texts = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([texts[0], "|" + "---|" * len(headings), *texts[1:]])


def tables_of_run(results: Mapping[str, Any]) -> str:
    """The table of a run: a row for each mode."""
    return table_of(["mode", *_columns(results["kind"])], list(_rows(results)))


def overview_of_runs(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Runs side by side, from their `numbers.json`: a row for each run and mode."""
    all_results = [numbers["results"] for numbers in runs.values()]
    rows = [
        [f"{results['task']} ({results['examples']:,}), {results['model']}", _main_score(results), *row]
        for results in all_results
        for row in _rows(results)
    ]
    return table_of(["task, model", "nothing disabled", "mode", *_columns(all_results[0]["kind"])], rows)


def _main_score(results: Mapping[str, Any]) -> str:
    return f"{METRICS[results['metric']].label} {format_score(results['base'][results['metric']])}"


def _columns(kind: str) -> list[str]:
    counted = [f"raise (q < {Q})", "leave", f"lower (q < {Q})"]
    return [*counted, *HEADINGS[3:], f"a random {kind}; spread"]


def _rows(results: Mapping[str, Any]) -> Iterator[list[str]]:
    for mode, effects in main_effects(results).items():
        summary = summarise(effects, results["names"])
        mean = format_estimate(effects.mean, effects.mean_interval)
        yield [
            mode,
            f"{summary['raise']} ({summary['raise_found']})",
            f"{summary['leave']}",
            f"{summary['lower']} ({summary['lower_found']})",
            *(format_extreme(summary[name]) for name in HEADINGS_OF_EXTREMES),
            f"{mean}; {effects.spread:.2f}",
        ]
