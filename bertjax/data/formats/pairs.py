"""Minimal pairs: a good and a bad sentence, or a template with one place and its two forms.

BLiMP's files (Warstadt et al. 2020) are JSONL with `sentence_good`, `sentence_bad` and the paradigm as `UID`; a
directory holds a file for each paradigm. Any file with two such columns will do, also with `good` and `bad`. A template
has its place marked by `[MASK]`, `<mask>` or `***mask***` (as Goldberg 2019 has it), beside columns `good` and `bad`.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertjax.data.arrow_tables import is_saved_dataset
from bertjax.data.local_files import read_table
from bertjax.data.tables import SUFFIXES, Table, brief
from bertjax.data.tasks import Examples, Task
from bertjax.errors import DataError
from bertjax.formatting import count_of
from bertjax.paths import is_directory, listing

# What may stand for the masked word in a file.
MARKS = ("[MASK]", "<mask>", "***mask***")
USUAL = (("sentence_good", "sentence_bad"), ("good", "bad"))
TEMPLATES = ("sentence", "template", "text")
GROUPS = ("UID", "paradigm", "phenomenon", "group", "condition")
NUMBER = "pairID"  # counts a paradigm's pairs from 0 in BLiMP


def read_pairs(table: Table, task: Task, columns: Sequence[str] | None = None) -> Examples:
    """Pairs of a table.

    Args:
        task: `minimal-pairs` or `agreement`.
        columns: the two that hold good and bad sentences, in place of the usual ones.

    Raises:
        DataError: a row of it is no pair.
    """
    return _of_tables([table], table.path, task, columns)


def is_folder_of_pairs(path: Path) -> bool:
    """Whether a path is a directory of files of pairs."""
    return is_directory(path) and not is_saved_dataset(path)


def read_folder_of_pairs(path: Path, task: Task, columns: Sequence[str] | None = None) -> Examples:
    """Pairs of all files of a directory, in the order of their names; as `read_pairs`."""
    files = [file for file in listing(path) if file.name.endswith(SUFFIXES) and ".txt" not in file.name]
    if not files:
        raise DataError(f"{path}: holds no file of pairs for {task.name}: .jsonl or .tsv")
    return _of_tables([read_table(file, task) for file in files], path, task, columns)


def _of_tables(tables: Sequence[Table], path: Path | str, task: Task, columns: Sequence[str] | None) -> Examples:
    if columns is not None and len(columns) != 2:
        raise DataError(f"{task.name} takes two text columns, the good sentence's first; found {', '.join(columns)}")
    pairs: list[tuple[str, str]] = []
    ids: list[str | int] = []
    groups: list[str] = []
    for table in tables:
        pairs += _pairs(table, columns)
        group = table.find(GROUPS)
        of_rows = [""] * len(table) if group is None else _groups(table, group)
        groups += of_rows
        numbered = group is not None and NUMBER in table.columns
        numbers = table.column(NUMBER) if numbered else table.numbers
        ids += [
            f"{name}-{number}" if numbered else len(ids) + place
            for place, (name, number) in enumerate(zip(of_rows, numbers, strict=True))
        ]
    several = f" of {count_of(len(tables), 'file')}" if len(tables) > 1 else ""
    if equal := sum(good == bad for good, bad in pairs):  # as two of BLiMP
        several += f", {count_of(equal, 'pair')} of equal sentences, which no model gets right"
    return Examples(
        task=task,
        ids=tuple(ids) if len(set(ids)) == len(ids) else tuple(range(len(pairs))),
        first=tuple(good for good, _ in pairs),
        second=tuple(bad for _, bad in pairs),
        labels=np.ones(len(pairs), np.int32),
        source=f"{path} ({count_of(len(pairs), 'pair')}{several})",
        split="validation",
        groups=tuple(groups) if len(set(groups)) > 1 else None,
    )


def _groups(table: Table, name: str) -> list[str]:
    """The group of each row. Raises `DataError` where a row has none."""
    values = table.column(name)
    for row, value in enumerate(values):
        if value is None or value != value:
            raise table.error(row, f"column {name!r} is null, and other rows have a group")
    return [str(value) for value in values]


def _pairs(table: Table, columns: Sequence[str] | None) -> list[tuple[str, str]]:
    """Good and bad sentence of each row."""
    template = table.find(TEMPLATES)
    if columns is None and template is not None and {"good", "bad"} <= {*table.columns}:
        return _filled(table, template)
    names = tuple(columns) if columns else next((pair for pair in USUAL if {*pair} <= {*table.columns}), USUAL[0])
    texts = [_whole_texts(table, name) for name in names]
    return list(zip(*texts, strict=True))


def _filled(table: Table, name: str) -> list[tuple[str, str]]:
    """The template of each row with each of its two forms."""
    pairs = []
    for row, (template, good, bad) in enumerate(
        zip(*(_whole_texts(table, one) for one in (name, "good", "bad")), strict=True)
    ):
        filled = fill_place(template, good, bad)
        if filled is None:
            raise table.error(row, f"{brief(template)} has no single place for the forms, marked by {MARKS[0]}")
        pairs.append(filled)
    return pairs


def fill_place(template: str, good: str, bad: str) -> tuple[str, str] | None:
    """A template with each of its two forms; None where it has no single place for them.

    >>> fill_place("The boys [MASK] here.", "are", "is")
    ('The boys are here.', 'The boys is here.')
    """
    marks = [mark for mark in MARKS if mark in template]
    if len(marks) != 1 or template.count(marks[0]) != 1:
        return None
    return template.replace(marks[0], good), template.replace(marks[0], bad)


def _whole_texts(table: Table, name: str) -> tuple[str, ...]:
    """The texts of a column, none of which may be empty."""
    texts = table.texts(name)
    for row, text in enumerate(texts):
        if not text.strip():
            raise table.error(row, f"column {name!r} holds no text")
    return texts
