"""Read GLUE's TSV files as the authors' code does: with quote handling, for which these files are not written.

An unbalanced quote swallows the lines up to the next quote: MRPC's 408 validation rows become 389, STS-B's 1,500 become
1,470 and QNLI's 5,463 become 5,267. If a row then has too few or too many fields, their code takes whatever is in the
position of a column, counted from the start or the end of the row depending on the task.

Source: the notebook published with Kovaleva et al. 2019, `read_dataset`.
"""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertjax.data import Examples
from bertjax.errors import DataError, reading
from bertjax.evidence import UNLABELLED
from bertjax.paths import open_data
from bertjax.tasks import Task

# Tasks whose text columns, and whose label columns, are counted from the end of a row.
TEXTS_FROM_END = ("mrpc", "stsb", "mnli", "mnli-mm")
LABELS_FROM_END = ("stsb", "qqp", "rte", "qnli", "mnli", "mnli-mm")


class _Row(NamedTuple):
    """The fields of an example, and the number (from 0) of the line on which it starts."""

    number: int
    fields: list[str]


def read_quoted(path: Path, task: Task, split: str) -> Examples:
    """Read all examples of a TSV file, gzipped or not; invalid labels become -1, or NaN for a regression.

    The id of an example is that of the line on which it starts, so that it denotes the same example as without quote
    handling. Rows that lack the position of a text are skipped.

    Raises:
        DataError: the file cannot be read, lacks the task's columns or holds no example.
    """
    header, rows = _read(path)
    places = []
    for name in task.text_columns:
        if name not in header:
            raise DataError(f"{path}: no column {name!r}")
        places.append(_place(header, name, task.name in TEXTS_FROM_END))
    complete = [row for row in rows if all(_has(row.fields, place) for place in places)]
    if not complete:
        raise DataError(f"{path}: holds no examples")
    first, *second = (tuple(row.fields[place] for row in complete) for place in places)
    labels = np.full(len(complete), math.nan if task.label_names is None else UNLABELLED)
    if task.label_column in header:
        place = _place(header, task.label_column, task.name in LABELS_FROM_END)
        labels[:] = [_label(row.fields[place], task) if _has(row.fields, place) else labels[0] for row in complete]
    labels = labels.astype(np.float32 if task.label_names is None else np.int32)
    source = f"{path}, read with quote handling"
    return Examples(
        task=task,
        ids=_ids(header, complete),
        first=first,
        second=second[0] if second else None,
        labels=labels,
        source=source,
        split=split,
    )


def _read(path: Path) -> tuple[list[str], list[_Row]]:
    """The header and the rows. Lines are counted as without quote handling: blank lines do not count, and a carriage
    return ends a row for the authors' code but not a line."""
    with reading(path, DataError):
        with io.TextIOWrapper(open_data(path), encoding="utf-8-sig", newline="") as file:
            lines = file.read().replace("\r\n", "\n").split("\n")
        filled = np.cumsum([bool(line) for line in lines]) - 2  # the header is -1
        parts: list[tuple[str, int]] = []
        for line, number in zip(lines, filled.tolist(), strict=True):
            parts += [(f"{part}\n", number) for part in line.split("\r")]
        parts[-1] = parts[-1][0].removesuffix("\n"), parts[-1][1]
        table = csv.reader((part for part, _ in parts if part), delimiter="\t")
        header, rows, first_line = next(table, []), [], 1
        for fields in table:
            if fields:
                rows.append(_Row(parts[first_line][1], fields))
            first_line = table.line_num
    return header, rows


def _place(header: Sequence[str], name: str, from_end: bool) -> int:
    return header.index(name) - (len(header) if from_end else 0)


def _has(fields: Sequence[str], place: int) -> bool:
    return -len(fields) <= place < len(fields)


def _ids(header: Sequence[str], rows: Sequence[_Row]) -> tuple[int, ...]:
    """The ids that bertjax would give the rows: the column that numbers them, or else their line numbers."""
    for name in ("index", "idx"):
        if name in header:
            ids = [row.fields[header.index(name)] for row in rows if _has(row.fields, header.index(name))]
            if len(set(ids)) == len(rows) and all(value.isdecimal() for value in ids):
                return tuple(int(value) for value in ids)
    return tuple(row.number for row in rows)


def _label(value: str, task: Task) -> int | float:
    """A label as a class number or a score; -1 or NaN if it is invalid."""
    names = task.label_names
    if names is not None:
        numbers = {str(number): number for number in range(len(names))}
        numbers |= {name: number for number, name in enumerate(names)}
        return numbers.get(value, UNLABELLED)
    try:
        number = float(value)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan
