"""Saved results as a table for a terminal, and as CSV, JSON or Markdown for other programs."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.text import Text

from bertjax.console import PlainTable
from bertjax.evidence import Q, find_metric
from bertjax.formatting import count_of, to_cell, to_json, visible
from bertjax.results.directory import SavedResults
from bertjax.results.table import COLUMNS, column
from bertjax.results.view import as_texts, mark_of

FORMATS = ("table", "csv", "json", "md")
HEADINGS = ("", "score", "change", "95 % CI", "p", "q", "gains", "losses")


def rank(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows from the largest loss to the largest gain; undefined changes last."""
    return [rows[place] for place in np.argsort(column(rows, "difference"), kind="stable")]


def _largest(rows: Sequence[Mapping[str, Any]], top: int | None) -> list[Mapping[str, Any]]:
    """The rows of the largest effects, in the order of all; all where `top` is None."""
    sizes = -np.nan_to_num(np.abs(column(rows, "difference")), nan=-1.0)
    return [rows[place] for place in sorted(np.argsort(sizes, kind="stable")[:top].tolist())]


def show_table(saved: SavedResults, metric: str | None = None, top: int | None = None) -> Group:
    """The sentence, and all ablations by their effect, or those of the largest effects.

    Raises:
        InputError: there is no such metric.
    """
    rows = saved.rows_of(metric)
    shown = rank(_largest(rows, top))
    label, base = find_metric(rows[0]["metric"]).label, rows[0]["base"]
    table = PlainTable(box=SIMPLE_HEAD, pad_edge=False)
    headings = _headings(rows)
    for number, name in enumerate(headings):
        table.add_column(name or saved.kind, justify="left" if not number else "right", no_wrap=True)
    for row in shown:
        style = "" if not mark_of(row) else "bold red" if row["difference"] < 0 else "bold blue"
        cells = list(as_texts(row, saved.least_p(metric))[: len(headings)])
        cells[5] += "" if mark_of(row) else " "  # digits below digits
        table.add_row(*cells, style=style)
    without = "undefined" if base is None else f"{100 * base:.2f} points"
    lines = [Text(saved.title, style="bold"), Text(f"{label}{_about(saved, metric)} without ablation: {without}")]
    lines.append(Text(saved.sentence_of(metric)))
    note = f"{len(shown)} of {count_of(len(rows), saved.kind)}; change and interval in points; * q < {Q}"
    return Group(*lines, table, Text(note))


def _about(saved: SavedResults, metric: str | None) -> str:
    """Which label a metric is about."""
    positive = saved.positive_of(metric)
    return "" if positive is None else f" of the label “{positive}”"


def _headings(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The columns that these rows have: values do not flip."""
    return HEADINGS if rows[0]["gains"] is not None else HEADINGS[:-2]


def show_text(saved: SavedResults, form: str, metric: str | None = None, top: int | None = None) -> str:
    """All columns of all metrics, or of one, as CSV or JSON; of one as Markdown.

    Args:
        form: 'csv', 'json' or 'md' (with the sentence above).

    Raises:
        InputError: there is no such metric.
    """
    metrics = saved.summary["metrics"] if metric is None and form != "md" else [metric]
    rows = [row for one in metrics for row in _largest(saved.rows_of(one), top)]
    if form == "json":
        return to_json(list(rows), indent=1) + "\n"
    if form == "csv":
        return to_csv(rows)
    names = (saved.kind, *_headings(rows)[1:])
    lines = [names, ("---:",) * len(names), *(as_texts(row, saved.least_p(metric))[: len(names)] for row in rank(rows))]
    about = _about(saved, metric)
    note = f"{find_metric(metric or saved.metric).label}{_quoted(about)}. " if about else ""
    table = "".join(f"| {' | '.join(_quoted(cell) for cell in cells)} |\n" for cells in lines)
    return f"{_quoted(saved.title)}\n\n{_quoted(saved.sentence_of(metric))}\n\n{table}\n{note}\\* q < {Q}\n"


def _quoted(text: str) -> str:
    """A text of which Markdown makes nothing else, on one line."""
    return re.sub(r"[\\|*_`\[]|<(?=[A-Za-z/!?])", r"\\\g<0>", visible(text))


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Comma-separated, with a line of names; heads of a set are joined by spaces, what is undefined is empty.

    A text that a spreadsheet would take for a formula has an apostrophe before it.
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {**row, "heads": " ".join(row["heads"])}
        writer.writerow({name: to_cell(value) for name, value in cells.items()})
    return file.getvalue()
