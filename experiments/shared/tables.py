"""Tables in Markdown, and the numbers in them."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np


def make_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with a minus sign before negative numbers; hyphens in names stay.

    >>> print(make_table(["head", "q"], [["1.2", "-0.01"]]))
    | head | q |
    |---|---|
    | 1.2 | −0.01 |
    """
    lines = [f"| {' | '.join(line)} |" for line in (head, *rows)]
    body = [re.sub(r"(?<![\w.])-(?=\d)", "−", line) for line in lines[1:]]
    return "\n".join([lines[0], "|" + "---|" * len(head), *body])


def name_head(index: int, heads: int) -> str:
    """A head's name from its index in a flattened map.

    >>> name_head(14, 12)
    '1.2'
    """
    return f"{index // heads}.{index % heads}"


def format_change(change: float, digits: int = 2) -> str:
    """A change with its sign; a change of 10 or more has a decimal less.

    >>> [format_change(change) for change in (-0.904, 0.001, 0.3, -31.25)]
    ['−0.90', '0.00', '+0.30', '−31.2']
    """
    text = f"{change:+.{digits}f}"
    if abs(float(text)) >= 10:
        text = f"{change:+.{digits - 1}f}"
    return f"{0:.{digits}f}" if float(text) == 0 else text.replace("-", "−")


def format_estimate(value: float | None, ends: Sequence[float | None] = ()) -> str:
    """A change in points with its interval.

    >>> format_estimate(-0.5, (-1.25, 0.2))
    '−0.50 (−1.25 to +0.20)'
    """
    if value is None or not np.isfinite(value):
        return "undefined"
    low, high = [*ends, None, None][:2]
    if low is None or high is None or not np.isfinite([low, high]).all():
        return format_change(value)
    return f"{format_change(value)} ({format_change(low)} to {format_change(high)})"


def format_p(value: float | None, *, bound: bool = False) -> str:
    """A p-value in two digits; an upper bound if it is the smallest that random draws can give; a dash for None.

    >>> format_p(0.0314), format_p(0.00001), format_p(None), format_p(0.0001, bound=True)
    ('0.031', '0.00001', '–', '≤0.0001')
    """
    if value is None:
        return "–"
    text = f"{value:.2g}" if value >= 0.001 else f"{value:.5f}".rstrip("0") if value >= 0.00001 else "<0.00001"
    return f"≤{text}" if bound and not text.startswith("<") else text


def format_interval(value: float, ends: Sequence[float], digits: int = 2, factor: float = 1.0) -> str:
    """A number with its interval.

    >>> format_interval(0.5, (0.25, 0.75)), format_interval(0.5, (0.25, 0.75), 0, 100.0)
    ('0.50 (0.25 to 0.75)', '50 (25 to 75)')
    """
    mean, low, high = (f"{factor * number:.{digits}f}" for number in (value, *ends))
    return f"{mean} ({low} to {high})"


def format_correlation(correlation: Any) -> str:
    """A correlation with its interval, if it has one.

    >>> format_correlation({"spearman": -0.125, "interval": [-0.5, 0.25]})
    '−0.12 (−0.50 to 0.25)'
    """
    if correlation["spearman"] is None:
        return "undefined"
    low, high = correlation["interval"]
    text = f"{correlation['spearman']:.2f}" + ("" if low is None else f" ({low:.2f} to {high:.2f})")
    return text.replace("-", "−")
