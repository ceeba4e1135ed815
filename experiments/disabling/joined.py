"""What several runs say together, in lines for the terminal and in tables for RESULTS: from `numbers.json` alone."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax.evidence import METRICS, Q
from bertjax.formatting import format_p, is_bound
from experiments.disabling.effects import say_change
from experiments.disabling.said import say_correlation, table_of

ROUNDED = 1e-3  # p-values are kept in four digits
TESTS = (("p", "q"), ("p_within_layers", "q_within_layers"))  # of two tasks; q is over all pairs
MEANS = ("mean_of_marked", "mean_of_others")
NAMED = 6  # places at most that a line names


def _array(values: list[Any]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], np.float64)


def say_p(value: float | None, draws: int | None = None) -> str:
    """A p-value in two digits; a dash where there is none.

    Args:
        draws: of the null, where there are: as the least that they can give it is at most that.

    >>> say_p(0.0314), say_p(None), say_p(0.0001, 9999)
    ('0.031', '–', '≤0.0001')
    """
    return "–" if value is None else format_p(value, None if draws is None else _least(draws))


def _least(draws: int) -> float:
    """The least p that so many draws of the null can give, as `numbers.json` may have rounded it."""
    return (1 + ROUNDED) / (1 + draws)


def say_q(found: Mapping[str, Any], draws: int, test: tuple[str, str] = ("p", "q")) -> str:
    """The q of a test in two digits, at most that where its p is the least that the draws can give; a dash for none.

    Args:
        found: holds p and q by the names in `test`.

    >>> say_q({"p": 0.0001, "q": 0.0004}, 9999), say_q({"p": 0.0002, "q": 0.0004}, 9999)
    ('≤0.0004', '0.0004')
    """
    p, q = (found[name] for name in test)
    if q is None:
        return "–"
    return format_p(q, q if p is not None and is_bound(p, _least(draws)) else None)


def _found(results: Mapping[str, Any], one: Mapping[str, Any], sign: int) -> tuple[list[str], list[str]]:
    """Places of that sign that are more than chance over seeds and examples, and those that every seed finds; the
    largest first."""
    mean, q = sign * _array(one["mean"]), _array(one["q"])
    every = np.array(one["seeds_that_find_a_gain" if sign > 0 else "seeds_that_find_a_loss"]) == one["seeds"]
    order = np.argsort(-np.nan_to_num(mean), kind="stable")
    names = results["names"]
    together = [names[place] for place in order if mean[place] > 0 and np.nan_to_num(q[place], nan=1.0) < Q]
    return together, [names[place] for place in order if every[place]]


def _named(names: list[str]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _extreme(results: Mapping[str, Any], one: Mapping[str, Any], sign: int) -> str:
    mean = sign * _array(one["mean"])
    if not (mean > 0).any():
        return "none"
    place = int(np.nanargmax(mean))
    spread = "" if one["between"][place] is None else f"; {one['between'][place]:.2f} between seeds"
    change = say_change(one["mean"][place], (one["low"][place], one["high"][place])).removesuffix(")")
    return f"{results['names'][place]} {change}{spread}; q {say_p(one['q'][place])})"


def _bases(one: Mapping[str, Any]) -> str:
    return ", ".join("undefined" if base is None else f"{base:.1f}" for base in one["bases"])


def say_joined(results: Mapping[str, Any]) -> list[str]:
    """The results in lines."""
    lines, kind = [], results["kind"]
    for task, one in results["tasks"].items():
        seeds = f"{one['seeds']} seed{'s' if one['seeds'] > 1 else ''}"
        lines.append(f"{task}: {seeds}, {one['examples']:,} examples, {METRICS[one['metric']].label} {_bases(one)}")
        for verb, sign in (("raise", 1), ("lower", -1)):
            together, every = _found(results, one, sign)
            lines.append(
                f"  {len(together)} of {len(results['names'])} {kind}s {verb} the score over seeds and examples "
                f"(q < {Q}): {_named(together)}; every seed finds {_named(every)}; most {_extreme(results, one, sign)}"
            )
        lines.append(f"  a random {kind}: {_random(one)}")
        lines.append(f"  order of {kind}s: {_agreement(one)}")
    draws = results["permutations"]
    lines += [_say_pair(pair, draws) for pair in results["pairs"]]
    return lines + [_say_measure(one, draws) for one in results["measures"]]


def _random(one: Mapping[str, Any]) -> str:
    random = one["random"]
    change = say_change(random["mean"], (random["low"], random["high"]))
    between = "" if random["between"] is None else f", {random['between']:.2f} between seeds"
    return f"{change}, p {say_p(random['p'])}{between}"


def _agreement(one: Mapping[str, Any]) -> str:
    kept, seeds = one["reliability"], one["between_seeds"]
    said = "undefined" if kept is None else f"{kept:.2f}"
    between = "" if seeds is None else f"; between seeds on other halves of the examples {seeds:.2f}"
    return f"kept on other examples {said}{between}".replace("-", "−")


def _say_pair(pair: Mapping[str, Any], draws: int) -> str:
    losses = pair["largest_losses"]
    tests = (f"p {say_p(pair[test[0]], draws)}, q {say_q(pair, draws, test)}" for test in TESTS)
    return (
        f"{pair['tasks'][0]} and {pair['tasks'][1]}: rank correlation {say_correlation(pair)}, at most "
        f"{_number(pair['ceiling'])} by the noise, {', within layers '.join(tests)}; of the {losses['of']} largest "
        f"losses they share {len(losses['shared'])} ({_shared(losses)})"
    )


def _shared(top: Mapping[str, Any]) -> str:
    names = ", ".join(top["shared"])
    return f"{names}; chance {say_p(top['chance'])}" if names else "none"


def _top(top: Mapping[str, Any]) -> str:
    return f"{len(top['shared'])} of {top['of']} ({_shared(top)})"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


def _say_measure(one: Mapping[str, Any], draws: int) -> str:
    marked = _marked(one["marked"], draws)
    return (
        f"{one['task']}: loss with {one['measure']}: rank correlation {say_correlation(one)}, "
        f"p {say_p(one['p'], draws)}, q {say_q(one, draws)}, within layers p {say_p(one['p_within_layers'], draws)}"
        + (f"; {marked}" if marked else "")
    )


def _marked(marked: Mapping[str, Any] | None, draws: int) -> str:
    if marked is None:
        return ""
    losses = [say_change(None if marked[name] is None else -marked[name]) for name in MEANS]
    ps = "; ".join(f"p {say_p(marked[test[0]], draws)}, q {say_q(marked, draws, test)}" for test in TESTS)
    return f"{marked['marked']} marked change the score by {losses[0]}, the others by {losses[1]} ({ps} within layers)"


def seeds_table(results: Mapping[str, Any]) -> str:
    """A row for each task."""
    kind, rows = results["kind"], []
    for task, one in results["tasks"].items():
        cells = [f"{task} ({one['examples']:,}; {METRICS[one['metric']].label}), {one['seeds']}", _bases(one)]
        for sign in (1, -1):
            together, every = _found(results, one, sign)
            cells.append(f"{len(together)} ({_named(every)})")
        cells += [_extreme(results, one, sign) for sign in (1, -1)]
        rows.append([*cells, _random(one), f"{_number(one['reliability'])}; {_number(one['between_seeds'])}"])
    headings = ["task, seeds", "base", f"raise, q < {Q} (in every seed)", f"lower, q < {Q} (in every seed)"]
    headings += ["largest gain", "largest loss", f"a random {kind}", "order kept on other examples; between seeds"]
    return table_of(headings, rows)


def pairs_table(results: Mapping[str, Any]) -> str:
    """A row for each pair of tasks."""
    draws = results["permutations"]
    rows = [
        [
            " and ".join(pair["tasks"]),
            say_correlation(pair),
            _number(pair["ceiling"]),
            f"{say_p(pair['p'], draws)}; {say_p(pair['p_within_layers'], draws)}",
            "; ".join(say_q(pair, draws, test) for test in TESTS),
            _top(pair["largest_losses"]),
            _top(pair["largest_gains"]),
        ]
        for pair in results["pairs"]
    ]
    headings = ["tasks", "rank correlation", "at most, by the noise", "p; within layers", "q; within layers"]
    return table_of([*headings, "largest losses shared", "largest gains shared"], rows)


def measures_table(results: Mapping[str, Any]) -> str:
    """A row for each task and other measure; of more than two tasks a row for each measure, tasks side by side."""
    if len(results["tasks"]) > 2:
        return _measures_by_task(results)
    draws = results["permutations"]
    rows = [
        [
            one["task"],
            one["measure"],
            say_correlation(one),
            f"{say_p(one['p'], draws)}; {say_p(one['p_within_layers'], draws)}; {say_q(one, draws)}",
            _marked(one["marked"], draws),
        ]
        for one in results["measures"]
    ]
    return table_of(["task", "measure", "rank correlation with the loss", "p; within layers; q", "marked heads"], rows)


def _measures_by_task(results: Mapping[str, Any]) -> str:
    found = {(one["measure"], one["task"]): one for one in results["measures"]}
    draws, rows = results["permutations"], []
    for measure in dict.fromkeys(one["measure"] for one in results["measures"]):
        several = [found.get((measure, task)) for task in results["tasks"]]
        said = [f"{_number(one['spearman'])}; {say_q(one, draws)}" if one else "" for one in several]
        rows.append([f"{measure}: rank correlation with the loss; q", *said])
        marked = [one["marked"] if one else None for one in several]
        if any(marked):
            cells = [_marked_cell(one, draws) for one in marked]
            rows.append([f"{measure}: marked heads, the others; q, within layers", *cells])
    return table_of(["measure", *results["tasks"]], rows)


def _marked_cell(marked: Mapping[str, Any] | None, draws: int) -> str:
    if marked is None:
        return ""
    means = (say_change(None if marked[name] is None else -marked[name]) for name in MEANS)
    return f"{', '.join(means)}; {', '.join(say_q(marked, draws, test) for test in TESTS)}"
