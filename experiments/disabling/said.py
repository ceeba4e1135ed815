"""What one run of disabling found, in lines for the terminal and in a table for RESULTS: from `numbers.json` alone."""

from collections.abc import Iterator, Mapping
from typing import Any

from bertjax.evidence import METRICS, Q
from experiments.disabling.effects import Effects, read_effects, say_change, say_extreme, summarise

DRAWN = ("head", "layer")  # kinds of which a random one means something
HEADINGS_OF_EXTREMES = ("largest_gain", "largest_loss")
HEADINGS = ("raise", "leave", "lower", "largest gain", "largest loss")


def main_effects(results: Mapping[str, Any]) -> dict[str, Effects]:
    """By mode, of the main metric."""
    metric = results["metric"]
    base = results["base"][metric]
    return {mode: read_effects(metric, base, found) for mode, found in results["effects"][metric].items()}


def say_single(results: Mapping[str, Any]) -> list[str]:
    """A run's results in lines."""
    bases = ", ".join(f"{METRICS[name].label} {say_score(base)}" for name, base in results["base"].items())
    yes = f" ({results['yes']} is yes)" if results["yes"] else ""
    lines = [f"as published, which is the default: {results['as_published']}"] if results["as_published"] else []
    lines.append(f"{results['examples']:,} examples ({results['source']}); nothing disabled: {bases}{yes}")
    lines += [_describe(results, mode, effects) for mode, effects in main_effects(results).items()]
    if results["rank_correlation"]:
        between = [f"{name} {say_correlation(found)}" for name, found in results["rank_correlation"].items()]
        lines.append("rank correlation of the modes: " + "; ".join(between))
    return lines


def say_score(score: float | None) -> str:
    """A score in points.

    >>> say_score(0.8672), say_score(None)
    ('86.72', 'undefined')
    """
    return "undefined" if score is None else f"{100 * score:.2f}"


def say_correlation(found: Mapping[str, Any]) -> str:
    """A correlation with its interval, if it has one.

    >>> say_correlation({"spearman": -0.125, "interval": [-0.5, 0.25]})
    '−0.12 (−0.50 to 0.25)'
    """
    if found["spearman"] is None:
        return "undefined"
    low, high = found["interval"]
    text = f"{found['spearman']:.2f}" + ("" if low is None else f" ({low:.2f} to {high:.2f})")
    return text.replace("-", "−")


def _describe(results: Mapping[str, Any], mode: str, effects: Effects) -> str:
    found, kind = summarise(effects, results["names"]), results["kind"]
    counts = f"{found['raise']} raise the score ({found['raise_found']} at q < {Q}), {found['leave']} leave it"
    counts += f", {found['lower']} lower it ({found['lower_found']} at q < {Q})"
    gain, loss = (say_extreme(found[name], lambda name: f"{kind} {name}") for name in HEADINGS_OF_EXTREMES)
    mean = f"; a random {kind} {say_change(effects.mean, effects.mean_interval)}" if kind in DRAWN else ""
    return (
        f"{mode}: of {len(results['names'])} {kind}s disabled one at a time {counts}; largest gain {gain}; "
        f"largest loss {loss}{mean}"
    )


def table_of(headings: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown.

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


def overview_of_runs(several: Mapping[str, Mapping[str, Any]]) -> str:
    """Runs side by side, from their `numbers.json`: a row for each run and mode."""
    every = [numbers["results"] for numbers in several.values()]
    rows = [
        [f"{one['task']} ({one['examples']:,}), {one['model']}", _main_score(one), *row]
        for one in every
        for row in _rows(one)
    ]
    return table_of(["task, model", "nothing disabled", "mode", *_columns(every[0]["kind"])], rows)


def _main_score(results: Mapping[str, Any]) -> str:
    return f"{METRICS[results['metric']].label} {say_score(results['base'][results['metric']])}"


def _columns(kind: str) -> list[str]:
    counted = [f"raise (q < {Q})", "leave", f"lower (q < {Q})"]
    return [*counted, *HEADINGS[3:], f"a random {kind}; spread"]


def _rows(results: Mapping[str, Any]) -> Iterator[list[str]]:
    for mode, effects in main_effects(results).items():
        found = summarise(effects, results["names"])
        mean = say_change(effects.mean, effects.mean_interval)
        yield [
            mode,
            f"{found['raise']} ({found['raise_found']})",
            f"{found['leave']}",
            f"{found['lower']} ({found['lower_found']})",
            *(say_extreme(found[name]) for name in HEADINGS_OF_EXTREMES),
            f"{mean}; {effects.spread:.2f}",
        ]
