"""Examples from local files: GLUE's folders of TSV files, or a single `.tsv` or `.jsonl` of one's own.

A file becomes a `Table` of rows with line numbers; `read_examples` takes texts, labels and ids from
it and says in one line, with the line number, what is wrong with it.
"""

import difflib
import gzip
import json
import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int32

from bertjax.errors import DataError
from bertjax.tasks import TASKS, Examples, Task, plain_name

# GLUE's own loaders drop the few rows of QQP that lack fields or the label (line breaks inside
# questions); so do we, or counts would differ from everybody's. In all other tasks it is an error.
DROPS_MALFORMED = ("qqp",)

_COLA_COLUMNS = ("source", "label", "star", "sentence")
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_SUFFIXES = (".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz")


@dataclass(frozen=True)
class Table:
    """The rows of a file.

    Args:
        path: the file.
        columns: the names of its columns.
        rows: one mapping from column to value per row.
        lines: each row's line in the file, from 1.
        numbers: each row's number among the file's rows, from 0; rows that were dropped count too.
        dropped: how many rows were dropped.
    """

    path: Path
    columns: tuple[str, ...]
    rows: tuple[dict[str, object], ...]
    lines: tuple[int, ...]
    numbers: tuple[int, ...]
    dropped: int = 0

    def error(self, row: int, problem: str) -> DataError:
        """A DataError that names the file and the row's line."""
        return DataError(f"{self.path}, line {self.lines[row]}: {problem}")

    def column(self, name: str) -> list[object]:
        """All values of a column.

        Raises:
            DataError: a row lacks it.
        """
        for index, row in enumerate(self.rows):
            if name not in row:
                near = difflib.get_close_matches(name, row, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise self.error(index, f"no column {name!r}{hint}; there are {', '.join(map(repr, row))}")
        return [row[name] for row in self.rows]


def _read_lines(path: Path) -> list[tuple[int, str]]:
    """The file's lines that are not blank, each with its number from 1."""
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = gzip.decompress(raw)
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(f"{path}, line {line}: not UTF-8 ({error.reason}); save the file as UTF-8") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a complete gzip file ({error}); copy it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); check the path") from error
    # Split at line feeds only: texts hold other characters that Python counts as line ends.
    lines = ((number, line.removesuffix("\r")) for number, line in enumerate(text.split("\n"), 1))
    return [(number, line) for number, line in lines if line]


def _read_tsv(path: Path, task: Task) -> Table:
    """Fields between tabs, quotation marks being text; CoLA's files may lack the header."""
    lines = _read_lines(path)
    columns = tuple(lines[0][1].split("\t")) if lines else ()
    if task.name == "cola" and "sentence" not in columns:
        columns = _COLA_COLUMNS
    else:
        lines = lines[1:]
    if len(set(columns)) < len(columns):
        raise DataError(f"{path}, line 1: a column's name appears twice in {', '.join(columns)}")
    lenient = task.name in DROPS_MALFORMED
    rows, kept, numbers = [], [], []
    for number, (line, text) in enumerate(lines):
        fields = text.split("\t")
        if len(fields) < len(columns) and lenient:
            continue
        if len(fields) != len(columns) and not lenient:
            found = f"{len(fields)} fields between tabs, not the {len(columns)} of {', '.join(columns)}"
            raise DataError(f"{path}, line {line}: {found}")
        rows.append(dict[str, object](zip(columns, fields, strict=False)))
        kept.append(line)
        numbers.append(number)
    return Table(path, columns, tuple(rows), tuple(kept), tuple(numbers), len(lines) - len(rows))


def _read_jsonl(path: Path) -> Table:
    rows, kept = [], []
    for line, text in _read_lines(path):
        try:
            row = json.loads(text)
        except ValueError as error:
            raise DataError(f"{path}, line {line}: not JSON ({error}); write one object per line") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {line}: found {text[:40]!r}; write one JSON object per line")
        rows.append(row)
        kept.append(line)
    columns = tuple(rows[0]) if rows else ()
    return Table(path, columns, tuple(rows), tuple(kept), tuple(range(len(rows))))


def read_table(path: Path, task: Task) -> Table:
    """Read a `.tsv` or `.jsonl` file, compressed with gzip or not.

    Args:
        path: the file.
        task: whose file it is; CoLA's has no header, and QQP's malformed rows are dropped.

    Raises:
        DataError: the file cannot be read or understood, or holds no row.
    """
    name = path.name.removesuffix(".gz")
    if not path.name.endswith(_SUFFIXES):
        raise DataError(f"{path}: not a file that can be read; give one that ends in {', '.join(_SUFFIXES)}")
    table = _read_tsv(path, task) if name.endswith(".tsv") else _read_jsonl(path)
    if not table.rows:
        raise DataError(f"{path}: holds no examples")
    return table


def glue_file(directory: Path, task: Task, split: str, samples: bool = False) -> Path:
    """The file of a split in a GLUE directory, or in the task's own folder of it.

    Args:
        directory: holds folders such as `MRPC`, or is one.
        task: whose file it is.
        split: its full name, such as `validation` or `validation_matched`.
        samples: also take a part of the split, such as `train_sample.tsv` or `dev_matched_first3000.tsv`.

    Raises:
        DataError: there is no such folder or file.
    """
    folder = _task_folder(directory, task)
    base, _, section = split.partition("_")
    stem = {"validation": "dev"}.get(base, base) + (f"_{section}" if section else "")
    names = [path.name for path in _listing(folder) if path.name.endswith((".tsv", ".tsv.gz"))]
    for part in ("", r"_(sample|first\d+)") if samples else ("",):
        for name in names:
            if re.fullmatch(rf"{stem}{part}\.tsv(\.gz)?", name):
                return folder / name
    found = f"found {', '.join(names)}; any of them can be given itself" if names else "found no .tsv file"
    nor = f" nor a folder {task.folder}" if folder == directory else ""
    raise DataError(f"{folder}: no {stem}.tsv for {task.name} {split}{nor}; {found}")


def _listing(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError as error:
        raise DataError(f"{directory}: cannot be listed ({error.strerror or error}); check the path") from error


def _task_folder(directory: Path, task: Task) -> Path:
    if not task.folder:
        raise DataError(f"{directory}: task {task.name} has no folder in GLUE; give a .tsv or .jsonl file")
    wanted = plain_name(task.folder)
    for path in _listing(directory):
        if path.is_dir() and plain_name(path.name) == wanted:
            return path
    itself = plain_name(directory.resolve().name)
    if itself != wanted and itself in {plain_name(other.folder) for other in TASKS.values() if other.folder}:
        raise DataError(f"{directory}: is the folder of another task than {task.name}; expected {task.folder}")
    return directory


def read_examples(
    path: Path,
    task: Task,
    split: str,
    text_columns: Sequence[str] | None = None,
    label_column: str | None = None,
    id_column: str | None = None,
    infer_labels: bool = False,
) -> Examples:
    """Examples from one file.

    Args:
        path: a `.tsv` or `.jsonl` file, compressed with gzip or not.
        task: what they are examples of; its columns are taken under GLUE's names or, where the file
            has those, under the HuggingFace hub's.
        split: recorded; the label may be missing from a test split.
        text_columns: one or two names, in place of the task's.
        label_column: a name, in place of the task's.
        id_column: a name; otherwise a column `index` or `idx` of different whole numbers if there is
            one (GLUE's files count their rows in it), else the row's number.
        infer_labels: take the classes, or that there are none, from the labels found.

    Raises:
        DataError: the file cannot be read or understood, with the line number.
    """
    table = read_table(path, task)
    texts = tuple(text_columns) if text_columns else _known(table, task.text_columns, task.renamed)
    label = label_column or _known(table, (task.label_column,), ("label",))[0]
    unlabelled = split.startswith("test") and label not in table.columns and label_column is None
    if not unlabelled and task.name in DROPS_MALFORMED:
        table = _labelled_rows(table, label)
    values: list[object] = [""] * len(table.rows) if unlabelled else table.column(label)
    if infer_labels and not unlabelled:
        task = _with_inferred_labels(task, values, table)
    task = replace(task, text_columns=texts, label_column=label)
    columns = [_texts(table, name) for name in texts]
    return Examples(
        task=task,
        ids=_ids(table, id_column),
        first=columns[0],
        second=columns[1] if len(columns) > 1 else None,
        labels=_labels(task, values, table, may_lack=split.startswith("test")),
        source=f"{path} ({len(table.rows)} rows" + (f", {table.dropped} dropped)" if table.dropped else ")"),
        split=split,
    )


def _known(table: Table, names: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """The names under which the file has the columns; where it has neither, the first."""
    columns = set(table.columns)
    renamed = bool(others) and columns.issuperset(others) and not columns.issuperset(names)
    return others if renamed else names


def _labelled_rows(table: Table, label: str) -> Table:
    keep = [i for i, value in enumerate(table.column(label)) if value != ""]
    return replace(
        table,
        rows=tuple(table.rows[i] for i in keep),
        lines=tuple(table.lines[i] for i in keep),
        numbers=tuple(table.numbers[i] for i in keep),
        dropped=table.dropped + len(table.rows) - len(keep),
    )


def _texts(table: Table, name: str) -> tuple[str, ...]:
    values = table.column(name)
    for row, value in enumerate(values):
        if not isinstance(value, str):
            raise table.error(row, f"column {name!r} holds {value!r}, which is not a text")
        if _HALF_CHARACTER.search(value):
            raise table.error(row, f"column {name!r} holds half a character (a lone surrogate)")
    return tuple(str(value) for value in values)


def _ids(table: Table, name: str | None) -> tuple[int, ...] | tuple[str, ...]:
    if name is None:
        for known in ("index", "idx"):
            if known in table.columns:
                ids = [_integer(value) for value in table.column(known)]
                whole = tuple(number for number in ids if number is not None)
                if len(set(whole)) == len(ids):
                    return whole
        return table.numbers
    values = table.column(name)
    seen: dict[str, int] = {}
    for row, value in enumerate(values):
        before = seen.setdefault(str(value), row)
        if before != row:
            raise table.error(row, f"id {value!r} of column {name!r} was already on line {table.lines[before]}")
    numbers = [_integer(value) for value in values]
    whole = tuple(number for number in numbers if number is not None)
    return whole if len(whole) == len(values) else tuple(str(value) for value in values)


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
    return int(number) if number is not None and number.is_integer() else None


def _class(value: object, names: tuple[str, ...]) -> int | None:
    """The number of a class given by its name or, where names are not numbers themselves, its number."""
    whole = _integer(value)
    for name in (value, whole):
        if str(name) in names:
            return names.index(str(name))
    if whole is None or any(_integer(name) is not None for name in names):
        return None
    return whole if 0 <= whole < len(names) else None


def _labels(
    task: Task, values: list[object], table: Table, may_lack: bool
) -> Int32[np.ndarray, " examples"] | Float32[np.ndarray, " examples"]:
    names = task.label_names
    labels: list[float] = []
    for row, value in enumerate(values):
        number = _number(value) if names is None else _class(value, names)
        if may_lack and value in ("", None, -1, "-1"):
            number = math.nan if names is None else -1
        if number is None:
            wanted = "a number" if names is None else f"one of {', '.join(names)}, or its number from 0"
            raise table.error(row, f"label {value!r} is not {wanted}")
        labels.append(number)
    return np.asarray(labels, dtype=np.float32 if names is None else np.int32)


def _with_inferred_labels(task: Task, values: list[object], table: Table) -> Task:
    """Numbers that are not all whole make a regression; else each different label is a class."""
    if all(_number(value) is not None for value in values):
        if any(_integer(value) is None for value in values):
            return replace(task, label_names=None, metrics=("pearson", "spearman"))
        whole = sorted({number for value in values if (number := _integer(value)) is not None})
        return replace(task, label_names=tuple(map(str, whole)), metrics=("accuracy",))
    for row, value in enumerate(values):
        if not isinstance(value, str | int) or value == "":
            raise table.error(row, f"label {value!r} is neither a number nor a name")
    return replace(task, label_names=tuple(sorted({str(value) for value in values})), metrics=("accuracy",))
