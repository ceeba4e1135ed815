"""Tables of results, for terminals, and as Markdown, CSV or JSON.

Scores are formatted by their `Measure`, most of them in points (100 times the value). A change is the score with the
ablation minus the base score.
"""

import csv
import io
import re
from collections.abc import Sequence

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.text import Text

from bertjax.console import PlainTable
from bertjax.formatting import count_of, to_cell, to_json, visible
from bertjax.results.contents import Contents, describe_numbers, format_row, headings_of, note_of_tests
from bertjax.results.table import COLUMNS, Row, column


def rank(rows: Sequence[Row], sign: int = 1) -> list[Row]:
    """Sort rows from the largest loss to the largest gain, undefined changes last.

    Args:
        sign: `order` of the metric's `Measure`.
    """
    return [rows[index] for index in np.argsort(sign * column(rows, "difference"), kind="stable")]


def _largest(rows: Sequence[Row], top: int | None) -> list[Row]:
    """The `top` rows with the largest effects, in their original order; all rows for None."""
    sizes = -np.nan_to_num(np.abs(column(rows, "difference")), nan=-1.0)
    return [rows[index] for index in sorted(np.argsort(sizes, kind="stable")[:top].tolist())]


def show_table(saved: Contents, metric: str | None = None, top: int | None = None) -> Group:
    """A table of all ablations sorted by effect, or only of the `top` largest effects; and the summary sentence.

    Args:
        saved: the results.
        metric: the name of the metric; by default the main one.
        top: the number of ablations; by default all.

    Raises:
        InputError: there is no such metric.
    """
    rows, measure = saved.rows_of(metric), saved.measure(metric)
    ranked = rank(_largest(rows, top), measure.order)
    base = rows[0].base
    table = PlainTable(box=SIMPLE_HEAD, pad_edge=False)
    shown = headings_of(measure, flips=rows[0].gains is not None)
    for index, name in shown.items():
        table.add_column(name or saved.noun, justify="right" if index else "left", no_wrap=True)
    for row in ranked:
        style = "" if not row.significant else "bold red" if measure.sign * (row.difference or 0) < 0 else "bold blue"
        cells = list(format_row(row, measure, saved.least_p(metric)))
        cells[5] += "" if row.significant else " "  # keeps the digits aligned
        table.add_row(*(cells[index] for index in shown), style=style)
    lines = [Text(saved.title, style="bold")]
    if not measure.of_effects:
        base_score = measure.score(base) if base is None else measure.with_unit(measure.score(base))
        lines.append(Text(f"{measure.label}{_about(saved, metric)} {measure.base}: {base_score}"))
    lines.append(Text(saved.sentence_of(metric)))
    note = f"{len(ranked)} of {count_of(len(rows), saved.noun)}; {describe_numbers(measure)}; {note_of_tests(measure)}"
    note += f"; {saved.too_few_contrasts}" if saved.too_few_contrasts else ""
    return Group(*lines, table, Text(note))


def _about(saved: Contents, metric: str | None) -> str:
    """A phrase with the label that a metric is about; empty if there is none."""
    positive = saved.positive_of(metric)
    return "" if positive is None else f" of the label “{positive}”"


def show_text(saved: Contents, form: str, metric: str | None = None, top: int | None = None) -> str:
    """All columns of one metric or all as CSV or JSON; or a table of one metric as Markdown.

    Args:
        saved: the results.
        form: 'csv', 'json' or 'md' (with the summary sentence above the table).
        metric: the name of a metric; by default all metrics, or the main one for Markdown.
        top: the number of rows with the largest effects; by default all.

    Raises:
        InputError: there is no such metric.
    """
    metrics = saved.summary["metrics"] if metric is None and form != "md" else [metric]
    rows = [row for name in metrics for row in _largest(saved.rows_of(name), top)]
    if form == "json":
        return to_json([row.to_dict() for row in rows], indent=1) + "\n"
    if form == "csv":
        return to_csv(rows)
    measure = saved.measure(metric)
    shown = headings_of(measure, flips=rows[0].gains is not None)
    texts = [format_row(row, measure, saved.least_p(metric)) for row in rank(rows, measure.order)]
    cells = [[text[index] for index in shown] for text in texts]
    lines = [[name or saved.noun for name in shown.values()], ["---:"] * len(shown), *cells]
    positive_label = _about(saved, metric)
    note = f"{measure.label}{_quoted(positive_label)}. " if positive_label else ""
    table = "".join(f"| {' | '.join(_quoted(cell) for cell in cells)} |\n" for cells in lines)
    note += _quoted(note_of_tests(measure))
    return f"{_quoted(saved.title)}\n\n{_quoted(saved.sentence_of(metric))}\n\n{table}\n{note}\n"


def _quoted(text: str) -> str:
    """Escape a text for Markdown, on one line."""
    return re.sub(r"[\\|*_`\[]|<(?=[A-Za-z/!?])", r"\\\g<0>", visible(text))


def to_csv(rows: Sequence[Row]) -> str:
    """Rows as CSV with a header; the heads of a set are joined by spaces, undefined values are empty.

    Heads are named L3H10, because programs would read 3.10 as a number. Strings that a spreadsheet would read as
    formulas are prefixed with an apostrophe.
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = row.to_dict()
        cells["heads"] = " ".join(cells["heads"])
        writer.writerow({name: to_cell(value) for name, value in cells.items()})
    return file.getvalue()
