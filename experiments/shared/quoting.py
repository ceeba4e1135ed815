"""GLUE's TSV files as the authors' code reads them: with quote handling, which GLUE's files are not written for.

An unbalanced quote swallows the lines up to the next one: MRPC's 408 validation rows become 389, STS-B's 1,500 become
1,470 and QNLI's 5,463 become 5,267. Where a row then has too few or too many fields, their code takes whatever stands
in a column's place, which it counts from the end of the row or from its start, as it does for the task.

Source: the notebook published with Kovaleva et al. 2019, `read_dataset`.
"""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertjax.data import Examples, Task
from bertjax.errors import DataError
from bertjax.evidence import UNLABELLED
from bertjax.paths import open_data

# Tasks whose texts, and whose labels, are counted from the end of a row.
TEXTS_FROM_END = ("mrpc", "stsb", "mnli", "mnli-mm")
LABELS_FROM_END = ("stsb", "qqp", "rte", "qnli", "mnli", "mnli-mm")


class _Row(NamedTuple):
    """The fields of an example, and the number (from 0) of the line on which it begins."""

    number: int
    fields: list[str]


def read_quoted(path: Path, task: Task, split: str) -> Examples:
    """All examples of a TSV file, compressed with gzip or not; labels that are none are -1, or NaN in a regression.

    An example's id is that of the line on which it begins, so that it is the same example as without quote handling.
    Rows without a place for each text are no examples.

    Raises:
        DataError: the file cannot be read, lacks the task's columns or holds no example.
    """
    header, rows = _read(path)
    places = []
    for name in task.text_columns:
        if name not in header:
            raise DataError(f"{path}: no column {name!r}")
        places.append(_place(header, name, task.name in TEXTS_FROM_END))
    whole = [row for row in rows if all(_has(row.fields, place) for place in places)]
    if not whole:
        raise DataError(f"{path}: holds no examples")
    first, *second = (tuple(row.fields[place] for row in whole) for place in places)
    labels = np.full(len(whole), math.nan if task.label_names is None else UNLABELLED)
    if task.label_column in header:
        place = _place(header, task.label_column, task.name in LABELS_FROM_END)
        labels[:] = [_label(row.fields[place], task) if _has(row.fields, place) else labels[0] for row in whole]
    labels = labels.astype(np.float32 if task.label_names is None else np.int32)
    source = f"{path}, read with quote handling"
    return Examples(
        task=task,
        ids=_ids(header, whole),
        first=first,
        second=second[0] if second else None,
        labels=labels,
        source=source,
        split=split,
    )


def _read(path: Path) -> tuple[list[str], list[_Row]]:
    """The header and the rows. Lines are counted as without quote handling: those that are blank do not count, and a
    carriage return ends a row of the authors', but no line."""
    try:
        with io.TextIOWrapper(open_data(path), encoding="utf-8-sig", newline="") as file:
            lines = file.read().replace("\r\n", "\n").split("\n")
        filled = np.cumsum([bool(line) for line in lines]) - 2  # the header is -1
        parts: list[tuple[str, int]] = []
        for line, number in zip(lines, filled.tolist(), strict=True):
            parts += [(f"{part}\n", number) for part in line.split("\r")]
        parts[-1] = parts[-1][0].removesuffix("\n"), parts[-1][1]
        table = csv.reader((part for part, _ in parts if part), delimiter="\t")
        header, rows, before = next(table, []), [], 1
        for fields in table:
            if fields:
                rows.append(_Row(parts[before][1], fields))
            before = table.line_num
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read with quote handling ({error})") from error
    return header, rows


def _place(header: Sequence[str], name: str, from_end: bool) -> int:
    return header.index(name) - (len(header) if from_end else 0)


def _has(fields: Sequence[str], place: int) -> bool:
    return -len(fields) <= place < len(fields)


def _ids(header: Sequence[str], rows: Sequence[_Row]) -> tuple[int, ...]:
    """What `bertjax.local_files` takes for ids: the column that counts the rows, or their numbers."""
    for name in ("index", "idx"):
        if name in header:
            found = [row.fields[header.index(name)] for row in rows if _has(row.fields, header.index(name))]
            if len(set(found)) == len(rows) and all(one.isdecimal() for one in found):
                return tuple(int(one) for one in found)
    return tuple(row.number for row in rows)


def _label(value: str, task: Task) -> int | float:
    """A label as its class's number or as a score; -1 or NaN for what is none."""
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
