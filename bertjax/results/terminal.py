"""Human-readable tables of what a sweep found, made from its saved results without a model.

Terminal tables are here; pictures come from `figures.py`. Scores arrive as the metrics define them and are shown
in points, 100 times that. "Change" is always the score with the ablation minus the base score: negative where
ablation lowers the score (a loss), positive where it raises it (a gain).
"""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.text import Text

from bertjax.console import PlainTable
from bertjax.errors import DataError
from bertjax.evidence import Q
from bertjax.formatting import count_of, to_cell, to_json, visible
from bertjax.results.contents import Contents, as_texts
from bertjax.results.table import COLUMNS, Row, column, kind_of

BAR_WIDTH = 30  # characters
NOTHING = 0.005  # points: anything smaller prints as 0.00
HEADINGS = ("", "score", "change", "95 % CI", "p", "q", "gains", "losses")


@dataclass(frozen=True)
class _Line:
    """One ablation: its name (`L.H`, `L`, or the set's name), and its score and change in points."""

    name: str
    score: float
    change: float


def ablation_table(
    entries: Sequence[Mapping[str, Any]], base: float | None, metric_label: str, count: int = 10
) -> PlainTable:
    """The ablations that lower the score most and those that raise it most, as two blocks to print with rich.

    An ablation is in the first block if it lowers the score, in the second if it raises it, and in neither if it
    changes nothing (within 0.005 points) or its change is undefined; a last line counts those.

    Args:
        entries: one for each ablation, as in `summary.json`: "layer" (None for a set), "head" (absent or
            None for a whole layer or a set), "name" (may be absent for heads and layers) and "score" as the
            metric defines it (not in points; None or NaN where it is undefined). Other keys are ignored.
        base: the score without any ablation; None or NaN where undefined, and then every change is undefined too.
        metric_label: what the score is, such as "Spearman correlation".
        count: most ablations to show in each block.

    Returns:
        A table for an 80-column terminal or text file.

    Raises:
        DataError: there are no entries, or one is incomplete.

    >>> from rich.console import Console
    >>> found = [{"layer": 0, "head": 0, "score": 0.86}, {"layer": 0, "head": 1, "score": 0.87}]
    >>> Console(width=80).print(ablation_table(found, 0.8672, "Accuracy"))  # doctest: +ELLIPSIS
    Accuracy without ablation: 86.72...
    """
    if not entries:
        raise DataError("there are no ablations to show: the results hold no entry")
    base = math.nan if base is None else base
    lines = [_line(entry, base) for entry in entries]
    kind = kind_of(entries)
    losses = sorted((line for line in lines if line.change <= -NOTHING), key=lambda line: line.change)
    gains = sorted((line for line in lines if line.change >= NOTHING), key=lambda line: -line.change)
    longest = max((abs(line.change) for line in losses + gains), default=1.0)
    table = PlainTable(box=None, show_header=False, padding=0, pad_edge=False)
    table.add_row(Text(f"{metric_label} without ablation: {_points(base)}"))
    table.add_row(Text("Change: the score with the ablation minus that, in points"))
    for verb, colour, block in (("lowers", "red", losses), ("raises", "bright_blue", gains)):
        proportion = f"{min(count, len(block))} of {len(block)}" if block else "none"
        title = f"{kind.capitalize()}s whose ablation {verb} the score most ({proportion})"
        table.add_row(Text(f"\n{title}", style="bold"))
        if block:
            table.add_row(_block(block[:count], kind, longest, colour))
    if note := _left_out(lines):
        table.add_row(Text("\n" + note))
    return table


def _points(score: float) -> str:
    return "undefined" if math.isnan(score) else f"{100 * score:.2f}"


def _line(entry: Mapping[str, Any], base: float) -> _Line:
    try:
        layer, head, score = entry["layer"], entry.get("head"), entry["score"]
    except KeyError as error:
        raise DataError(f"an ablation has no {error}, found {dict(entry)}: are these results whole?") from error
    score = math.nan if score is None else 100 * score
    name = entry.get("name") or (f"{layer}" if head is None else f"{layer}.{head}")
    return _Line(name, score, score - 100 * base)


def _block(lines: Sequence[_Line], kind: str, longest: float, colour: str) -> PlainTable:
    """One block of the table; the bars of both blocks share a scale."""
    table = PlainTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title in ("rank", kind, "score", "change"):
        table.add_column(title, justify="right")
    table.add_column("")
    for rank, line in enumerate(lines, start=1):
        bar = ProgressBar(longest, abs(line.change), width=BAR_WIDTH, complete_style=colour, finished_style=colour)
        table.add_row(str(rank), line.name, f"{line.score:.2f}", Text(f"{line.change:+.2f}", style=colour), bar)
    return table


def _left_out(lines: Sequence[_Line]) -> str:
    """A note on how many ablations are in neither block and why; empty if there are none."""
    unchanged = sum(abs(line.change) < NOTHING for line in lines)
    undefined = sum(math.isnan(line.change) for line in lines)
    reasons = ((unchanged, "that left the score unchanged"), (undefined, "whose change is undefined"))
    counts = ", ".join(f"{number} {reason}" for number, reason in reasons if number)
    return f"In neither block, of {count_of(len(lines), 'ablation')}: {counts}" if counts else ""


def rank(rows: Sequence[Row]) -> list[Row]:
    """Rows sorted from the largest loss to the largest gain; undefined changes last."""
    return [rows[place] for place in np.argsort(column(rows, "difference"), kind="stable")]


def _largest(rows: Sequence[Row], top: int | None) -> list[Row]:
    """The `top` rows with the largest effects, in their original order; all rows where `top` is None."""
    sizes = -np.nan_to_num(np.abs(column(rows, "difference")), nan=-1.0)
    return [rows[place] for place in sorted(np.argsort(sizes, kind="stable")[:top].tolist())]


def show_table(saved: Contents, metric: str | None = None, top: int | None = None) -> Group:
    """The summary sentence and all ablations sorted by effect, or only the `top` largest effects.

    Raises:
        InputError: there is no such metric.
    """
    rows = saved.rows_of(metric)
    ranked = rank(_largest(rows, top))
    label, base = saved.describe_metric(metric)["label"], rows[0].base
    table = PlainTable(box=SIMPLE_HEAD, pad_edge=False)
    headings = _headings(rows)
    for number, name in enumerate(headings):
        table.add_column(name or saved.kind, justify="left" if not number else "right", no_wrap=True)
    for row in ranked:
        style = "" if not row.significant else "bold red" if (row.difference or 0) < 0 else "bold blue"
        cells = list(as_texts(row, saved.least_p(metric))[: len(headings)])
        cells[5] += "" if row.significant else " "  # keeps the digits aligned
        table.add_row(*cells, style=style)
    base_score = "undefined" if base is None else f"{100 * base:.2f} points"
    lines = [Text(saved.title, style="bold"), Text(f"{label}{_about(saved, metric)} without ablation: {base_score}")]
    lines.append(Text(saved.sentence_of(metric)))
    note = f"{len(ranked)} of {count_of(len(rows), saved.kind)}; change and interval in points; * q < {Q}"
    return Group(*lines, table, Text(note))


def _about(saved: Contents, metric: str | None) -> str:
    """The phrase that names the label a metric is about; empty if there is none."""
    positive = saved.positive_of(metric)
    return "" if positive is None else f" of the label “{positive}”"


def _headings(rows: Sequence[Row]) -> tuple[str, ...]:
    """The headings that apply to these rows: metrics that read values have no flips."""
    return HEADINGS if rows[0].gains is not None else HEADINGS[:-2]


def show_text(saved: Contents, form: str, metric: str | None = None, top: int | None = None) -> str:
    """All columns of all metrics or of one, as CSV or JSON; or a table of one metric as Markdown.

    Args:
        form: 'csv', 'json' or 'md' (with the summary sentence above the table).

    Raises:
        InputError: there is no such metric.
    """
    metrics = saved.summary["metrics"] if metric is None and form != "md" else [metric]
    rows = [row for name in metrics for row in _largest(saved.rows_of(name), top)]
    if form == "json":
        return to_json([row.to_dict() for row in rows], indent=1) + "\n"
    if form == "csv":
        return to_csv(rows)
    names = (saved.kind, *_headings(rows)[1:])
    lines = [names, ("---:",) * len(names), *(as_texts(row, saved.least_p(metric))[: len(names)] for row in rank(rows))]
    positive_label = _about(saved, metric)
    note = f"{saved.describe_metric(metric)['label']}{_quoted(positive_label)}. " if positive_label else ""
    table = "".join(f"| {' | '.join(_quoted(cell) for cell in cells)} |\n" for cells in lines)
    return f"{_quoted(saved.title)}\n\n{_quoted(saved.sentence_of(metric))}\n\n{table}\n{note}\\* q < {Q}\n"


def _quoted(text: str) -> str:
    """A text escaped for Markdown, on one line."""
    return re.sub(r"[\\|*_`\[]|<(?=[A-Za-z/!?])", r"\\\g<0>", visible(text))


def to_csv(rows: Sequence[Row]) -> str:
    """Rows as CSV with a header line; the heads of a set are joined by spaces, undefined values are empty.

    A text that a spreadsheet would read as a formula is prefixed with an apostrophe.
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {**row.to_dict(), "heads": " ".join(row.heads)}
        writer.writerow({name: to_cell(value) for name, value in cells.items()})
    return file.getvalue()
