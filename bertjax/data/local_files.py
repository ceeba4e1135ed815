"""Examples from local files: GLUE's folders of TSV files, or a single file of your own.

`read_examples` takes texts, labels and ids from a table, and reports what is wrong with them in one line with the line
number.
"""

import math
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int32

from bertjax.data.tables import DROPS_MALFORMED, SUFFIXES, Table, brief, read_table
from bertjax.data.tasks import TASKS, Examples, Task, default_metrics, plain_name
from bertjax.errors import DataError, some_of
from bertjax.formatting import HALF_CHARACTER
from bertjax.machine import memory_left
from bertjax.paths import is_directory, listing

_GLUE_FOLDERS = {plain_name(task.folder) for task in TASKS.values() if task.folder}
LARGEST_ID = 2**63 - 1  # as a number; larger ids are kept as texts
_ID_COLUMNS = ("index", "idx")  # GLUE's files number their rows in these


def glue_file(directory: Path, task: Task, split: str) -> Path:
    """The file of a split in a GLUE directory, or in the task's folder in it.

    Args:
        directory: holds folders such as `MRPC`, or is one.
        task: the task the file belongs to.
        split: its full name, such as `validation` or `validation_matched`.

    Raises:
        DataError: there is no such folder or file.
    """
    folder = glue_folder(directory, task) or directory
    folder_name = plain_name(Path(os.path.realpath(folder)).name)
    if folder_name != plain_name(task.folder) and folder_name in _GLUE_FOLDERS:
        raise DataError(f"{directory}: the folder of another task than {task.name}; expected {task.folder}")
    path = split_file(folder, split)
    if path is None:
        names = [path.name for path in listing(folder) if path.name.endswith(SUFFIXES)]
        contents = f"found {some_of(names)}" if names else "found no .tsv file"
        alternative = f" nor a folder {task.folder}" if folder == directory and task.folder else ""
        raise DataError(f"{folder}: no {_stem(split)}.tsv for {task.name} {split}{alternative}; {contents}")
    return path


def glue_folder(directory: Path, task: Task) -> Path | None:
    """The task's folder in a GLUE directory, or the directory itself if it is that folder, else None.

    Raises:
        DataError: the directory does not exist or cannot be listed.
    """
    for path in [*listing(directory), Path(os.path.realpath(directory))]:
        if task.folder and plain_name(path.name) == plain_name(task.folder) and is_directory(path):
            return path
    return None


def split_file(folder: Path, split: str, parts: bool = False) -> Path | None:
    """The file of a split in a task's folder, such as `dev.tsv.gz` for `validation`, or None.

    Args:
        folder: the task's folder.
        split: its full name.
        parts: if the whole is missing, take a part such as `dev_matched_first3000.tsv`.

    Raises:
        DataError: the folder cannot be listed.
    """
    for suffix in ("", r"_(sample|first\d+)") if parts else ("",):
        for path in listing(folder):
            if re.fullmatch(rf"{_stem(split)}{suffix}\.tsv(\.gz)?", path.name):
                return path
    return None


def _stem(split: str) -> str:
    return re.sub("^validation", "dev", split)


def read_examples(
    path: Path,
    task: Task,
    split: str,
    *,
    text_columns: Sequence[str] | None = None,
    label_column: str | None = None,
    id_column: str | None = None,
    infer_labels: bool = False,
    room: int | None = None,
) -> Examples:
    """Examples from one file.

    Args:
        path: a `.tsv`, `.jsonl` or `.txt` file, compressed with gzip or not.
        task: the task of the examples; its columns are looked up under GLUE's names or, if the file has those
            instead, under the HuggingFace hub's.
        split: the split to record; a test split may lack labels.
        text_columns: one or two names, in place of the task's.
        label_column: a name, in place of the task's.
        id_column: a name; by default a column `index` or `idx` of distinct whole numbers if there is one (GLUE's
            files number their rows in it), else the row's number.
        infer_labels: infer the classes, or that there are none, from the labels.
        room: bytes of memory that the examples may take; None for most of what is free.

    Raises:
        DataError: the file cannot be read or parsed, with the line number, or takes more memory.
    """
    data_columns = [*(text_columns or (*task.text_columns, *task.renamed)), label_column or task.label_column, "label"]
    id_columns = (id_column,) if id_column else _ID_COLUMNS
    table = read_table(path, task, {*data_columns, *id_columns}, memory_left() if room is None else room)
    texts = tuple(text_columns) if text_columns else _known(table, task.text_columns, task.renamed)
    label = label_column or _known(table, (task.label_column,), ("label",))[0]
    unlabelled = task.asks == "words" or (
        split.startswith("test") and label not in table.columns and label_column is None
    )
    if not unlabelled and task.name in DROPS_MALFORMED:
        table = _labelled_rows(table, label)
    values: Sequence[object] = [""] * len(table) if unlabelled else table.column(label)
    if infer_labels and not unlabelled:
        task = _with_inferred_labels(task, values, table)
    task = replace(task, text_columns=texts, label_column=label)
    columns = [_texts(table, name) for name in texts]
    return Examples(
        task=task,
        ids=_ids(table, id_column),
        first=columns[0],
        second=columns[1] if len(columns) > 1 else None,
        labels=_labels(task, values, table, may_lack=unlabelled or split.startswith("test")),
        source=f"{path} ({len(table)} rows" + (f", {table.dropped} dropped)" if table.dropped else ")"),
        split=split,
    )


def _known(table: Table, names: tuple[str, ...], alternatives: tuple[str, ...]) -> tuple[str, ...]:
    """Whichever of `names` and `alternatives` the file has as columns; `names` if it has neither."""
    columns = set(table.columns)
    renamed = bool(alternatives) and columns.issuperset(alternatives) and not columns.issuperset(names)
    return alternatives if renamed else names


def _labelled_rows(table: Table, label: str) -> Table:
    return table.take([row for row, value in enumerate(table.column(label)) if value != ""])


def _texts(table: Table, name: str) -> tuple[str, ...]:
    values = table.column(name)
    for row, value in enumerate(values):
        if not isinstance(value, str):
            raise table.error(row, f"column {name!r} holds {brief(value)}, which is not a text")
        if HALF_CHARACTER.search(value):
            raise table.error(row, f"column {name!r} holds half a character (a lone surrogate)")
    return tuple(str(value) for value in values)


def _ids(table: Table, name: str | None) -> tuple[int | str, ...]:
    if name is None:
        for column in _ID_COLUMNS:
            if column in table.columns:
                ids = [_whole_id(value) for value in table.column(column)]
                whole = tuple(number for number in ids if number is not None)
                if len(set(whole)) == len(ids):
                    return whole
        return tuple(table.numbers)
    values = table.column(name)
    seen: dict[str, int] = {}
    for row, value in enumerate(values):
        if HALF_CHARACTER.search(str(value)):
            raise table.error(row, f"column {name!r} holds half a character (a lone surrogate)")
        first_row = seen.setdefault(str(value), row)
        if first_row != row:
            raise table.error(row, f"id {brief(value)} of column {name!r} was already on line {table.lines[first_row]}")
    numbers = [_whole_id(value) for value in values]
    whole = tuple(number for number in numbers if number is not None)
    return whole if len(whole) == len(values) else tuple(str(value) for value in values)


def _whole_id(value: object) -> int | None:
    """An id as a whole number that fits into an integer array, or None."""
    number = _integer(value)
    return number if number is not None and abs(number) <= LARGEST_ID else None


def _number(value: object) -> float | None:
    """The value as a finite number, or None."""
    if not isinstance(value, str | int | float) or "_" in str(value):  # float() would read 1_2 as 12
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _integer(value: object) -> int | None:
    number = _number(value)
    if not isinstance(value, str | int | float) or number is None or not number.is_integer():
        return None
    try:
        return int(value)  # a float would round numbers beyond 2^53
    except ValueError:  # '1e3', '3.0'
        return int(number)


def _class(value: object, names: tuple[str, ...]) -> int | None:
    """The number of a class, from its name or, unless class names are numbers themselves, its number; else None."""
    whole = _integer(value)
    for name in (value, whole):
        if str(name) in names:
            return names.index(str(name))
    if whole is None or any(_integer(name) is not None for name in names):
        return None
    return whole if 0 <= whole < len(names) else None


def _labels(
    task: Task, values: Sequence[object], table: Table, may_lack: bool
) -> Int32[np.ndarray, " examples"] | Float32[np.ndarray, " examples"]:
    names = task.label_names
    labels: list[float] = []
    for row, value in enumerate(values):
        number = _number(value) if names is None else _class(value, names)
        if may_lack and value in ("", None, -1, "-1"):
            number = math.nan if names is None else -1
        if number is None:
            expected = "a number" if names is None else f"one of {some_of(names)}, or its number from 0"
            raise table.error(row, f"label {brief(value)} is not {expected}")
        labels.append(number)
    return np.asarray(labels, dtype=np.float32 if names is None else np.int32)


def _with_inferred_labels(task: Task, values: Sequence[object], table: Table) -> Task:
    """The task as a regression if labels are numbers and not all whole, else with each distinct label as a class."""
    names: tuple[str, ...] | None
    if all(_number(value) is not None for value in values):
        whole = {number for value in values if (number := _integer(value)) is not None}
        names = None if any(_integer(value) is None for value in values) else tuple(map(str, sorted(whole)))
    else:
        for row, value in enumerate(values):
            if not isinstance(value, str | int) or value == "":
                raise table.error(row, f"label {brief(value)} is neither a number nor a name")
        names = tuple(sorted({str(value) for value in values}))
    return replace(task, label_names=names, metrics=default_metrics(names))
