"""Tables in local files: `.tsv` without quoting and `.jsonl`, also compressed with gzip.

A file becomes a `Table` of rows that know their line numbers, so that an error can name the line.
"""

import difflib
import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path

from bertjax.errors import DataError
from bertjax.tasks import Task

# GLUE's own loaders drop the few rows of QQP that lack fields or the label (line breaks inside
# questions); so do we, or counts would differ from everybody's. In all other tasks it is an error.
DROPS_MALFORMED = ("qqp",)

_COLA_COLUMNS = ("source", "label", "star", "sentence")
SUFFIXES = (".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz")


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
        if name not in self.columns:
            near = difflib.get_close_matches(name, self.columns, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            found = ", ".join(map(repr, self.columns))
            raise DataError(f"{self.path}, line 1: no column {name!r}{hint}; there are {found}")
        for index, row in enumerate(self.rows):
            if name not in row:
                raise self.error(index, f"lacks {name!r}, which the first line has")
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
    if not path.name.endswith(SUFFIXES):
        raise DataError(f"{path}: not a file that can be read; give one that ends in {', '.join(SUFFIXES)}")
    table = _read_tsv(path, task) if name.endswith(".tsv") else _read_jsonl(path)
    if not table.rows:
        raise DataError(f"{path}: holds no examples")
    return table
