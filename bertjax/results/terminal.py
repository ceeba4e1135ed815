"""Human-readable tables of what a sweep found, made from its saved results without a model.

Terminal tables are here; pictures come from `figures.py`. Scores arrive as the metrics define them and are shown
as a `Measure` prints them, most of them in points, 100 times that. "Change" is always the score with the ablation minus
the base score. A loss is a change for the worse: negative, unless the measure says that lower is better.
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
from bertjax.formatting import count_of, to_cell, to_json, visible
from bertjax.results.contents import Contents, as_texts, describe_numbers, headings_of, note_of_tests
from bertjax.results.table import COLUMNS, Row, column, kind_of
from bertjax.statistics import Measure

BAR_WIDTH = 30  # characters


@dataclass(frozen=True)
class _Line:
    """One ablation: its name (`L.H`, `L`, or the set's name), and its score and change as they are printed."""

    name: str
    score: float
    change: float


def ablation_table(
    entries: Sequence[Mapping[str, Any]], base: float | None, measure: Measure | str, count: int = 10
) -> PlainTable:
    """The ablations that hurt the score most and those that help it most, as two blocks to print with rich.

    An ablation is in the first block if the score gets worse, in the second if it gets better, and in neither if it
    changes nothing that would be printed or its change is undefined; a last line counts those.

    Args:
        entries: one for each ablation, as in `summary.json`: "layer" (None for a set), "head" (absent or
            None for a whole layer or a set), "name" (may be absent for heads and layers) and "score" as the
            metric defines it (not in points; None or NaN where it is undefined). Other keys are ignored.
        base: the score without any ablation; None or NaN where undefined, and then every change is undefined too.
        measure: how the score is called and printed; or what it is, such as "Spearman correlation", in points.
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
    base, measure = math.nan if base is None else base, Measure(measure) if isinstance(measure, str) else measure
    lines = [_line(entry, base, measure) for entry in entries]
    kind, sign = kind_of(entries), measure.sign
    ordered = sorted((line for line in lines if abs(line.change) >= measure.least), key=lambda line: sign * line.change)
    losses = [line for line in ordered if sign * line.change < 0]
    gains = [line for line in reversed(ordered) if sign * line.change > 0]
    longest = max((abs(line.change) for line in losses + gains), default=1.0)
    table = PlainTable(box=None, show_header=False, padding=0, pad_edge=False)
    table.add_row(Text(f"{measure.label} {measure.base}: {measure.score(base)}"))
    table.add_row(Text(_explain_change(measure)))
    verbs = ("lowers", "raises")[::sign]
    for verb, colour, block in ((verbs[0], "red", losses), (verbs[1], "bright_blue", gains)):
        proportion = f"{min(count, len(block))} of {len(block)}" if block else "none"
        title = f"{kind.capitalize()}s whose ablation {verb} the score most ({proportion})"
        table.add_row(Text(f"\n{title}", style="bold"))
        if block:
            table.add_row(_block(block[:count], kind, longest, colour, measure.digits))
    if note := _left_out(lines, measure):
        table.add_row(Text("\n" + note))
    return table


def _explain_change(measure: Measure) -> str:
    parts = "Change: the score with the ablation minus that", measure.unit and f"in {measure.unit}", measure.direction
    return ", ".join(part for part in parts if part)


def _line(entry: Mapping[str, Any], base: float, measure: Measure) -> _Line:
    try:
        layer, head, score = entry["layer"], entry.get("head"), entry["score"]
    except KeyError as error:
        raise DataError(f"an ablation has no {error}, found {dict(entry)}: are these results whole?") from error
    score = math.nan if score is None else measure.factor * score
    name = entry.get("name") or (f"{layer}" if head is None else f"{layer}.{head}")
    return _Line(name, score, score - measure.factor * base)


def _block(lines: Sequence[_Line], kind: str, longest: float, colour: str, digits: int) -> PlainTable:
    """One block of the table; the bars of both blocks share a scale."""
    table = PlainTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title in ("rank", kind, "score", "change"):
        table.add_column(title, justify="right")
    table.add_column("")
    for rank, line in enumerate(lines, start=1):
        bar = ProgressBar(longest, abs(line.change), width=BAR_WIDTH, complete_style=colour, finished_style=colour)
        table.add_row(
            str(rank), line.name, f"{line.score:.{digits}f}", Text(f"{line.change:+.{digits}f}", style=colour), bar
        )
    return table


def _left_out(lines: Sequence[_Line], measure: Measure) -> str:
    """A note on how many ablations are in neither block and why; empty if there are none."""
    unchanged = sum(abs(line.change) < measure.least for line in lines)
    undefined = sum(math.isnan(line.change) for line in lines)
    reasons = ((unchanged, "that left the score unchanged"), (undefined, "whose change is undefined"))
    counts = ", ".join(f"{number} {reason}" for number, reason in reasons if number)
    return f"In neither block, of {count_of(len(lines), 'ablation')}: {counts}" if counts else ""


def rank(rows: Sequence[Row], sign: int = 1) -> list[Row]:
    """Rows sorted from the largest loss to the largest gain; undefined changes last.

    Args:
        sign: `order` of the metric's `Measure`.
    """
    return [rows[place] for place in np.argsort(sign * column(rows, "difference"), kind="stable")]


def _largest(rows: Sequence[Row], top: int | None) -> list[Row]:
    """The `top` rows with the largest effects, in their original order; all rows where `top` is None."""
    sizes = -np.nan_to_num(np.abs(column(rows, "difference")), nan=-1.0)
    return [rows[place] for place in sorted(np.argsort(sizes, kind="stable")[:top].tolist())]


def show_table(saved: Contents, metric: str | None = None, top: int | None = None) -> Group:
    """The summary sentence and all ablations sorted by effect, or only the `top` largest effects.

    Raises:
        InputError: there is no such metric.
    """
    rows, measure = saved.rows_of(metric), saved.measure(metric)
    ranked = rank(_largest(rows, top), measure.order)
    base = rows[0].base
    table = PlainTable(box=SIMPLE_HEAD, pad_edge=False)
    shown = headings_of(measure, flips=rows[0].gains is not None)
    for number, name in shown.items():
        table.add_column(name or saved.kind, justify="left" if not number else "right", no_wrap=True)
    for row in ranked:
        style = "" if not row.significant else "bold red" if measure.sign * (row.difference or 0) < 0 else "bold blue"
        cells = list(as_texts(row, measure, saved.least_p(metric)))
        cells[5] += "" if row.significant else " "  # keeps the digits aligned
        table.add_row(*(cells[number] for number in shown), style=style)
    lines = [Text(saved.title, style="bold")]
    if not measure.of_effects:
        base_score = measure.score(base) if base is None else measure.with_unit(measure.score(base))
        lines.append(Text(f"{measure.label}{_about(saved, metric)} {measure.base}: {base_score}"))
    lines.append(Text(saved.sentence_of(metric)))
    note = f"{len(ranked)} of {count_of(len(rows), saved.kind)}; {describe_numbers(measure)}; {note_of_tests(measure)}"
    note += f"; {saved.too_few_contrasts}" if saved.too_few_contrasts else ""
    return Group(*lines, table, Text(note))


def _about(saved: Contents, metric: str | None) -> str:
    """The phrase that names the label a metric is about; empty if there is none."""
    positive = saved.positive_of(metric)
    return "" if positive is None else f" of the label “{positive}”"


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
    measure = saved.measure(metric)
    shown = headings_of(measure, flips=rows[0].gains is not None)
    texts = [as_texts(row, measure, saved.least_p(metric)) for row in rank(rows, measure.order)]
    cells = [[text[number] for number in shown] for text in texts]
    lines = [[name or saved.kind for name in shown.values()], ["---:"] * len(shown), *cells]
    positive_label = _about(saved, metric)
    note = f"{measure.label}{_quoted(positive_label)}. " if positive_label else ""
    table = "".join(f"| {' | '.join(_quoted(cell) for cell in cells)} |\n" for cells in lines)
    note += _quoted(note_of_tests(measure))
    return f"{_quoted(saved.title)}\n\n{_quoted(saved.sentence_of(metric))}\n\n{table}\n{note}\n"


def _quoted(text: str) -> str:
    """A text escaped for Markdown, on one line."""
    return re.sub(r"[\\|*_`\[]|<(?=[A-Za-z/!?])", r"\\\g<0>", visible(text))


def to_csv(rows: Sequence[Row]) -> str:
    """Rows as CSV with a header line; the heads of a set are joined by spaces, undefined values are empty.

    Heads are named L3H10: in a column of names such as 3.10, a program would read numbers.

    A text that a spreadsheet would read as a formula is prefixed with an apostrophe.
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = row.to_dict()
        cells["heads"] = " ".join(cells["heads"])
        writer.writerow({name: to_cell(value) for name, value in cells.items()})
    return file.getvalue()
