"""Tables of the joint results of several seeds and tasks, from `numbers.json`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.statistics import Q
from experiments.shared.run import array
from experiments.shared.tables import format_correlation, format_estimate, format_p, make_table

ROUNDED = 1e-3  # p-values are kept to four digits
TESTS = (("p", "q"), ("p_within_layers", "q_within_layers"))  # for two tasks; q is over all pairs
MEANS = ("mean_of_marked", "mean_of_others")
NAMED = 6  # the most sites that a line names


def p_cell(value: float | None, draws: int | None = None) -> str:
    """A p-value in two digits; an upper bound where it is the smallest that this many draws of the null can give.

    >>> p_cell(0.0314), p_cell(None), p_cell(0.0001, 9999)
    ('0.031', '–', '≤0.0001')
    """
    return format_p(value, bound=_is_least(value, draws))


def _is_least(p: float | None, draws: int | None) -> bool:
    return p is not None and draws is not None and p <= (1 + ROUNDED) / (1 + draws)


def format_q(test_results: Mapping[str, Any], draws: int, test: tuple[str, str] = ("p", "q")) -> str:
    """The q of a test, as an upper bound if its p is the smallest possible.

    Args:
        test_results: holds p and q under the names in `test`.

    >>> format_q({"p": 0.0001, "q": 0.0004}, 9999), format_q({"p": 0.0002, "q": 0.0004}, 9999)
    ('≤0.0004', '0.0004')
    """
    p, q = (test_results[name] for name in test)
    return format_p(q, bound=_is_least(p, draws))


def _found(results: Mapping[str, Any], result: Mapping[str, Any], sign: int) -> str:
    """The number of significant sites over seeds and examples, and the sites that every seed finds, largest first."""
    mean, q = sign * array(result["mean"]), np.nan_to_num(array(result["q"]), nan=1.0)
    finds = np.array(result[f"seeds_that_find_a_{'gain' if sign > 0 else 'loss'}"])
    order = np.argsort(-np.nan_to_num(mean), kind="stable")
    names = [results["names"][site] for site in order if finds[site] == result["seeds"]]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{((mean > 0) & (q < Q)).sum()} ({', '.join(names[:NAMED]) or 'none'}{more})"


def _extreme(results: Mapping[str, Any], result: Mapping[str, Any], sign: int) -> str:
    mean = sign * array(result["mean"])
    if not (mean > 0).any():
        return "none"
    site = int(np.nanargmax(mean))
    change = format_estimate(result["mean"][site], (result["low"][site], result["high"][site])).removesuffix(")")
    return f"{results['names'][site]} {change}; q {p_cell(result['q'][site])})"


def _shared(top: Mapping[str, Any]) -> str:
    names = ", ".join(top["shared"])
    return f"{names}; chance {p_cell(top['chance'])}" if names else "none"


def _top(top: Mapping[str, Any]) -> str:
    return f"{len(top['shared'])} of {top['of']} ({_shared(top)})"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


def _marked(marked: Mapping[str, Any] | None, draws: int) -> str:
    if marked is None:
        return ""
    losses = [format_estimate(None if marked[name] is None else -marked[name]) for name in MEANS]
    ps = "; ".join(f"p {p_cell(marked[test[0]], draws)}, q {format_q(marked, draws, test)}" for test in TESTS)
    return f"{marked['marked']} marked change the score by {losses[0]}, the others by {losses[1]} ({ps} within layers)"


def seeds_table(all_results: Sequence[Mapping[str, Any]]) -> str:
    """A table with a row for each task of each run."""
    rows = []
    for results in all_results:
        for task, result in results["tasks"].items():
            random = result["random"]
            row = [f"{results['kind']}s: {task} ({result['examples']:,}), {result['seeds']}"]
            row.append(", ".join("undefined" if base is None else f"{base:.1f}" for base in result["bases"]))
            row += [_found(results, result, sign) for sign in (1, -1)]
            row += [_extreme(results, result, sign) for sign in (1, -1)]
            row.append(f"{format_estimate(random['mean'], (random['low'], random['high']))}, p {p_cell(random['p'])}")
            rows.append([*row, f"{_number(result['reliability'])}; {_number(result['between_seeds'])}"])
    headings = ["task (examples), seeds", "base", f"raise, q < {Q} (in every seed)", f"lower, q < {Q} (in every seed)"]
    headings += ["largest gain", "largest loss", "a random one", "order kept: other examples; seeds"]
    return make_table(headings, rows)


def pairs_table(results: Mapping[str, Any]) -> str:
    """A table with a row for each pair of tasks."""
    draws = results["permutations"]
    rows = [
        [
            " and ".join(pair["tasks"]),
            format_correlation(pair),
            _number(pair["ceiling"]),
            f"{p_cell(pair['p'], draws)}; {p_cell(pair['p_within_layers'], draws)}",
            "; ".join(format_q(pair, draws, test) for test in TESTS),
            _top(pair["largest_losses"]),
            _top(pair["largest_gains"]),
        ]
        for pair in results["pairs"]
    ]
    headings = ["tasks", "rank correlation", "at most, by the noise", "p; within layers", "q; within layers"]
    return make_table([*headings, "largest losses shared", "largest gains shared"], rows)


def measures_table(results: Mapping[str, Any]) -> str:
    """A table with a row for each task and measure."""
    draws = results["permutations"]
    rows = [
        [
            result["task"],
            result["measure"],
            format_correlation(result),
            f"{p_cell(result['p'], draws)}; {p_cell(result['p_within_layers'], draws)}; {format_q(result, draws)}",
            _marked(result["marked"], draws),
        ]
        for result in results["measures"]
    ]
    return make_table(
        ["task", "measure", "rank correlation with the loss", "p; within layers; q", "marked heads"], rows
    )
