"""Tables: columns by name, and the location of each row in its file, for errors.

Text files are read here with Python's parsers: `.tsv` without quoting, `.csv`, `.jsonl`, and `.txt` with a text in each
line. Arrow's parsers lose data silently: an unclosed quotation mark joins two rows of CSV, a carriage return ends a row
of TSV, and in JSON, strings that look like dates become dates and large numbers are rounded.
"""

import csv
import difflib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from bertjax.data.examples import DatasetSpec
from bertjax.errors import DataError, reading, some_of
from bertjax.formatting import HALF_CHARACTER, visible
from bertjax.json_files import DuplicateKey, JsonError, parse_json
from bertjax.paths import open_data

# GLUE's loaders drop the few rows of QQP that lack fields or the label (line breaks inside questions). bertjax does the
# same, so that counts agree. In all other tasks such rows are an error.
DROPS_MALFORMED = ("qqp",)

_COLA_COLUMNS = ("source", "label", "star", "sentence")
# Suffixes of readable files.
SUFFIXES = tuple(f"{suffix}{gz}" for suffix in (".tsv", ".csv", ".jsonl", ".parquet", ".txt") for gz in ("", ".gz"))
LINE = "text"  # the column of a .txt file
MOST_SHOWN = 10  # rows in a message
_SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons"}
LONGEST_FIELD = 2**31 - 1  # the maximum of `csv` on all systems
NUL = "contains a NUL character; copy the file again"
LINE_ENDS = "a carriage return without a line feed; save the file with the line endings of Unix or Windows"


@dataclass(frozen=True)
class Table:
    """Columns by name, as Python values.

    Args:
        path: the file or directory; for an object in memory, its name in messages.
        columns: the names of the columns.
        read: returns a column: a list, or an Arrow array.
        indices: the index of each row in the file, from 0, dropped rows included.
        lines: returns the line of each row of a text file, from 1, dropped rows included; None for other files.
        paths: the path of each row in a file of nested JSON, such as `data[0].paragraphs[2]`; None for other files.
        dropped: the number of dropped rows.
        classes: the class names of the columns that hold class ids, by column.

    Raises:
        DataError: two columns have the same name.
    """

    path: Path | str
    columns: tuple[str, ...]
    read: Callable[[str], Any] = field(repr=False)
    indices: Sequence[int] = field(repr=False)
    lines: Callable[[], Sequence[int]] | None = None
    paths: Sequence[str] | None = None
    dropped: int = 0
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    _cache: dict[str, list[object]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if len({*self.columns}) < len(self.columns):
            raise DataError(f"{self.header}: a column name appears twice in {_names(self.columns)}")

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def header(self) -> str:
        """The location of the column names, for messages."""
        return f"{self.path}, line 1" if self.lines else str(self.path)

    @property
    def noun(self) -> str:
        """The table in a message: `file`, or the name of the object in memory."""
        return "file" if isinstance(self.path, Path) else self.path

    def location(self, *rows: int) -> str:
        """The location of rows in the file: `line 7`, `lines 3 and 5`, `rows 1 and 3 (from 0)`, or paths in JSON.

        Args:
            rows: the indices of the rows in the table.
        """
        indices = [self.indices[row] for row in rows[:MOST_SHOWN]]
        lines = self.lines() if self.lines else self.paths
        shown = [str(index if lines is None else lines[index]) for index in indices]
        last = f"{len(rows) - len(shown)} more" if len(rows) > len(shown) else shown.pop()
        several = f"{', '.join(shown)} and {last}" if shown else last
        if self.paths is not None:
            return several
        plural = "s" * (len(rows) > 1)
        return f"row{plural} {several} (from 0)" if lines is None else f"line{plural} {several}"

    def error(self, row: int, problem: str) -> DataError:
        """A `DataError` that begins with the file and the row's location.

        Args:
            row: the index of the row in the table.
            problem: the rest of the message.
        """
        return DataError(f"{self.path}, {self.location(row)}: {problem}")

    def column(self, name: str) -> list[object]:
        """All values of a column; None for rows without a value.

        Args:
            name: the name of the column.

        Raises:
            DataError: there is no such column, or a value is not UTF-8.
        """
        if name not in self.columns:
            raise self.no_column(name)
        if name not in self._cache:
            values = self.read(name)
            try:
                self._cache[name] = values if isinstance(values, list) else values.to_pylist()
            except UnicodeDecodeError as error:
                row = next(row for row, value in enumerate(values) if not _is_utf8(value))
                raise self.error(row, f"column {brief(name)} is not UTF-8 ({error.reason})") from error
        return self._cache[name]

    def texts(self, name: str) -> tuple[str, ...]:
        """A column of str. Raises `DataError` if there is no such column, or a value is not a str.

        Args:
            name: the name of the column.
        """
        values = self.column(name)
        try:
            texts = cast(list[str], values)
            if b"\0" not in "".join(texts).encode():  # fails for other types and lone surrogates
                return tuple(texts)
        except (TypeError, UnicodeEncodeError):
            pass
        return tuple(self.text(row, name, value) for row, value in enumerate(values))

    def text(self, row: int, name: str, value: object) -> str:
        """A value as str. Raises `DataError` if it is not a str.

        Args:
            row: the index of the row in the table, for errors.
            name: the name of the column, for errors.
            value: the value in that cell.
        """
        if not isinstance(value, str):
            found = "is null" if value is None else f"holds {brief(value)}"
            raise self.error(row, f"column {name!r} {found}, which is not a string")
        if problem := problem_of(value):
            raise self.error(row, f"column {name!r} {problem}")
        return value

    def text_list(self, row: int, name: str, value: object, least: int = 0) -> list[str]:
        """A value as a list of str. Raises `DataError` if it is something else, or has fewer than `least` items.

        Args:
            row: the index of the row in the table, for errors.
            name: the name of the column, for errors.
            value: the value in that cell.
            least: the smallest number of items.
        """
        if not isinstance(value, list) or len(value) < least or not all(isinstance(text, str) for text in value):
            expected = f"list of {least} or more strings" if least else "list of strings"
            raise self.error(row, f"column {name!r} holds {brief(value)}, which is not a {expected}")
        return [self.text(row, name, text) for text in value]

    def named(self, name: str) -> list[object]:
        """A column with the names of its classes in place of their ids, also in lists; other values are unchanged.

        Args:
            name: the name of the column.
        """
        classes = self.classes.get(name, ())

        def convert(value: object) -> object:
            if isinstance(value, list):
                return [convert(item) for item in value]
            is_id = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(classes)
            return classes[cast(int, value)] if is_id else value

        return [convert(value) for value in self.column(name)] if classes else self.column(name)

    def find(self, names: Sequence[str]) -> str | None:
        """The first of several columns that exists; None if there is none.

        Args:
            names: the names of the columns, in order of preference.
        """
        return next((name for name in names if name in self.columns), None)

    def need(self, names: Sequence[str]) -> str:
        """The first of several columns that exists. Raises `DataError` if there is none.

        Args:
            names: the names of the columns, in order of preference.
        """
        found = self.find(names)
        if found is None:
            raise self.no_column(names[0])
        return found

    def no_column(self, name: str) -> DataError:
        """The error for a missing column.

        Args:
            name: the name of the column.
        """
        matches = difflib.get_close_matches(name, [column for column in self.columns if len(column) < 100], n=1)
        hint = f" (did you mean {matches[0]!r}?)" if matches else ""
        return DataError(f"{self.header}: no column {brief(name)}{hint}; {available(self.columns)}")

    def take(self, rows: Sequence[int]) -> "Table":
        """Select rows; all others count as dropped.

        Args:
            rows: the indices of the rows in the table.
        """

        def read(name: str) -> list[object]:
            values = self.column(name)
            return [values[row] for row in rows]

        indices, dropped = [self.indices[row] for row in rows], self.dropped + len(self) - len(rows)
        return replace(self, read=read, indices=indices, dropped=dropped, _cache={})


def _is_utf8(value: Any) -> bool:
    try:
        value.as_py()
    except UnicodeDecodeError:
        return False
    return True


def problem_of(text: str) -> str | None:
    """The problem of a text that contains a NUL character or a lone surrogate; None for other texts.

    Args:
        text: any text.
    """
    if "\0" in text:
        return NUL
    return "contains a lone surrogate" if HALF_CHARACTER.search(text) else None


def brief(value: object, most: int = 60) -> str:
    """Shorten a value for a message.

    Args:
        value: any value.
        most: the largest number of characters.

    >>> brief("cats and dogs", most=9)
    "'cats and..."
    """
    text = repr(value[: most + 1] if isinstance(value, str) else value)
    return text if len(text) <= most else text[:most] + "..."


def available(columns: Sequence[str]) -> str:
    """The columns of a file, as part of a message; with advice if one name looks like several.

    Args:
        columns: the names of the columns.

    >>> available(["a;b"])
    "the only column is 'a;b', which has semicolons: save the file with commas (.csv) or tabs (.tsv)"
    """
    names = some_of([brief(column) for column in columns], most=20)
    for mark, marks in _SEPARATORS.items():
        if len(columns) == 1 and mark in columns[0]:
            save = "save the file with commas (.csv) or tabs (.tsv)" if mark == ";" else "name the file "
            save += {"\t": ".tsv", ",": ".csv", ";": ""}[mark]
            return f"the only column is {names}, which has {marks}: {save}"
    return f"the columns are {names}" if columns else "there are no columns"


def read_text(path: Path, task: DatasetSpec) -> Table:
    """Read a `.tsv`, `.csv`, `.jsonl` or `.txt` file, compressed with gzip or not.

    Args:
        path: the path of the file.
        task: the task; TSV files of CoLA may lack a header, and malformed rows of QQP are dropped.

    Raises:
        DataError: the file cannot be read or parsed.
    """
    match Path(path.name.removesuffix(".gz")).suffix:
        case ".tsv":
            return _read_tsv(path, task)
        case ".csv":
            return _read_csv(path)
        case ".jsonl":
            return _read_jsonl(path)
    return _read_lines(path)


def _read_tsv(path: Path, task: DatasetSpec) -> Table:
    """Read tab-separated fields without quoting.

    Malformed rows of QQP are treated as in the datasets library: rows with too few fields are dropped, and superfluous
    fields are ignored.
    """
    lines = [*numbered_lines(path, returns=True)]
    names = tuple(lines[0][1].split("\t")) if lines else ()
    headless = task.name == "cola" and bool(names) and "sentence" not in names
    names, rows = (_COLA_COLUMNS, lines) if headless else (names, lines[1:])
    starts = [line for line, _ in rows]
    table = Table(path, names, lambda name: [], range(len(rows)), lambda: starts)
    lenient, kept = task.name in DROPS_MALFORMED, []
    for index, (_, text) in enumerate(rows):
        fields = text.count("\t") + 1
        if fields != len(names) and not lenient:
            raise _wrong_row(table, index, fields, "tabs")
        if fields >= len(names):
            kept.append(index)

    def read(name: str) -> list[str]:
        column = names.index(name)
        return [rows[index][1].split("\t")[column] for index in kept]

    return replace(table, read=read, indices=kept, dropped=len(rows) - len(kept))


def _read_csv(path: Path) -> Table:
    """Read CSV (RFC 4180)."""
    starts, rows, end = list[int](), list[list[str]](), 0
    reader = csv.reader((text for _, text in _whole_lines(path)), strict=True)
    before = csv.field_size_limit(LONGEST_FIELD)  # of all readers in this process
    try:
        for fields in reader:
            if fields:
                starts.append(end + 1)
                rows.append(fields)
            end = reader.line_num
    except csv.Error as error:
        raise DataError(f"{path}, line {end + 1}: {_csv_problem(str(error))}") from error
    finally:
        csv.field_size_limit(before)
    names = tuple(rows.pop(0)) if rows else ()
    table = Table(path, names, lambda name: [], range(len(rows)), lambda: starts[1:])
    for index, fields in enumerate(rows):
        if len(fields) != len(names):
            hint = "; is a quotation mark not closed?" * any("\n" in field for field in fields)
            raise _wrong_row(table, index, len(fields), "commas", hint)
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
    return replace(table, read=lambda name: [*columns.get(name, ())])


def _csv_problem(reason: str) -> str:
    """The message for an error of `csv`."""
    if "end of data" in reason:
        return "a quoted field is not closed"
    if "expected after" in reason:
        return 'text after a closing quotation mark; inside a quoted field write the mark twice ("")'
    return LINE_ENDS if "new-line" in reason else f"not CSV ({reason})"


def _wrong_row(table: Table, row: int, fields: int, marks: str, hint: str = "") -> DataError:
    """The error for a row with too few or too many fields."""
    problem = f"{fields} fields separated by {marks}, expected {len(table.columns)} ({_names(table.columns)})"
    problem += f"; {available(table.columns)}" * (len(table.columns) == 1)
    return table.error(row, problem + hint)


def _names(columns: Sequence[str]) -> str:
    return some_of([visible(name) if len(name) <= 60 else brief(name) for name in columns], most=20)


def _read_jsonl(path: Path) -> Table:
    rows, lines = [], []
    for line, text in numbered_lines(path, returns=True):
        rows.append(json_object(f"{path}, line {line}", text))
        lines.append(line)
    columns = tuple(dict.fromkeys(itertools.chain.from_iterable(rows)))
    return Table(path, columns, lambda name: [row.get(name) for row in rows], range(len(rows)), lambda: lines)


def json_object(where: str, text: str) -> dict[str, Any]:
    """Parse the JSON object of a line. Raises `DataError`, which begins with `where`, if it is something else."""
    try:
        row = parse_json(text)
    except JsonError as error:
        advice = "" if isinstance(error, DuplicateKey) else "; write one JSON object per line"
        raise DataError(f"{where}: {error}{advice}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: found {brief(text)}; write one JSON object per line")
    return row


def _read_lines(path: Path) -> Table:
    """Read a text from each line that is not blank."""
    found = [(line, text.strip()) for line, text in numbered_lines(path, returns=True) if text.strip()]
    texts = [join_wikitext(text) for _, text in found]
    return Table(path, (LINE,), lambda name: texts, range(len(found)), lambda: [line for line, _ in found])


def join_wikitext(text: str) -> str:
    """Remove the marks that WikiText puts around hyphens, commas and points.

    >>> join_wikitext("a two @-@ day march of 1 @,@ 500 men")
    'a two-day march of 1,500 men'
    """
    return re.sub(r" @([-,.])@ ", r"\1", text)


def numbered_lines(path: Path, *, returns: bool = False) -> Iterator[tuple[int, str]]:
    """The lines of a file that are not empty, without line endings, each with its number from 1.

    Lines are split only at line feeds, because texts may contain other characters that Python treats as line endings.

    Args:
        path: the file, which may be compressed by gzip.
        returns: whether lines after the first may contain carriage returns.

    Raises:
        DataError: the file cannot be read, or a line is not UTF-8 or contains a NUL character or a carriage return.
    """
    for line, text in _whole_lines(path):
        text = text.removesuffix("\n").rstrip("\r")
        if "\r" in text and (line == 1 or not returns):
            raise DataError(f"{path}, line {line}: {LINE_ENDS}")
        if text:
            yield line, text


def _whole_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file with their line endings, each with its number from 1."""
    with reading(path, DataError), open_data(path) as file:
        for number, content in enumerate(file, 1):
            try:
                text = content.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                guess = ", but looks like UTF-16" if number == 1 and content[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
                problem = f"not UTF-8{guess} ({error.reason}); save the file as UTF-8"
                raise DataError(f"{path}, line {number}: {problem}") from error
            if "\0" in text:
                raise DataError(f"{path}, line {number}: {NUL}")
            yield number, text
