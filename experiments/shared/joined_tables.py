"""Tables of the joint results of several seeds and tasks, from `numbers.json`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax.statistics import METRICS, Q
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


def _found(results: Mapping[str, Any], result: Mapping[str, Any], sign: int) -> tuple[list[str], list[str]]:
    """Sites of that sign that are significant over seeds and examples, and those that every seed finds, both with the
    largest first."""
    mean, q = sign * array(result["mean"]), array(result["q"])
    in_every_seed = (
        np.array(result["seeds_that_find_a_gain" if sign > 0 else "seeds_that_find_a_loss"]) == result["seeds"]
    )
    order = np.argsort(-np.nan_to_num(mean), kind="stable")
    names = results["names"]
    significant = [names[site] for site in order if mean[site] > 0 and np.nan_to_num(q[site], nan=1.0) < Q]
    return significant, [names[site] for site in order if in_every_seed[site]]


def _named(names: list[str]) -> str:
    if not names:
        return "none"
    remainder = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + remainder


def _extreme(results: Mapping[str, Any], result: Mapping[str, Any], sign: int) -> str:
    mean = sign * array(result["mean"])
    if not (mean > 0).any():
        return "none"
    site = int(np.nanargmax(mean))
    spread = "" if result["between"][site] is None else f"; {result['between'][site]:.2f} between seeds"
    change = format_estimate(result["mean"][site], (result["low"][site], result["high"][site])).removesuffix(")")
    return f"{results['names'][site]} {change}{spread}; q {p_cell(result['q'][site])})"


def _bases(result: Mapping[str, Any]) -> str:
    return ", ".join("undefined" if base is None else f"{base:.1f}" for base in result["bases"])


def _random(result: Mapping[str, Any]) -> str:
    random = result["random"]
    change = format_estimate(random["mean"], (random["low"], random["high"]))
    between_text = "" if random["between"] is None else f", {random['between']:.2f} between seeds"
    return f"{change}, p {p_cell(random['p'])}{between_text}"


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


def seeds_table(results: Mapping[str, Any]) -> str:
    """A table with a row for each task."""
    kind, rows = results["kind"], []
    for task, result in results["tasks"].items():
        cells = [
            f"{task} ({result['examples']:,}; {METRICS[result['metric']].label}), {result['seeds']}",
            _bases(result),
        ]
        for sign in (1, -1):
            significant, in_every_seed = _found(results, result, sign)
            cells.append(f"{len(significant)} ({_named(in_every_seed)})")
        cells += [_extreme(results, result, sign) for sign in (1, -1)]
        rows.append([*cells, _random(result), f"{_number(result['reliability'])}; {_number(result['between_seeds'])}"])
    headings = ["task, seeds", "base", f"raise, q < {Q} (in every seed)", f"lower, q < {Q} (in every seed)"]
    headings += ["largest gain", "largest loss", f"a random {kind}", "order kept on other examples; between seeds"]
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
