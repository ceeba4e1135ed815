"""Tables: columns of a file by name, and the place of each row in the file, which errors name.

Text files are read here, with Python's parsers: `.tsv` without quoting, `.csv`, `.jsonl`, and `.txt` with a text in
each line. Arrow's parsers lose data in silence: where a quotation mark is left open two rows of CSV become one, a
carriage return ends a row of TSV, and in JSON texts that look like dates become dates and large numbers are rounded.
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

# GLUE's own loaders drop the few rows of QQP that lack fields or the label (line breaks inside questions). So do we, to
# get the same counts as everybody else. In all other tasks such rows are an error.
DROPS_MALFORMED = ("qqp",)

_COLA_COLUMNS = ("source", "label", "star", "sentence")
# Endings of the files that can be read.
SUFFIXES = tuple(f"{suffix}{gz}" for suffix in (".tsv", ".csv", ".jsonl", ".parquet", ".txt") for gz in ("", ".gz"))
LINE = "text"  # the column of a .txt file
MOST_SHOWN = 10  # rows that a message names
_SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons"}
LONGEST_FIELD = 2**31 - 1  # the most that `csv` takes on all systems
NUL = "holds a NUL character, which no text does; copy the file again"
LINE_ENDS = "a carriage return without a line feed; save the file with the line ends of Unix or Windows"


@dataclass(frozen=True)
class Table:
    """Columns by name, as Python values.

    Args:
        path: the file or directory; of an object in memory, what messages call it.
        columns: the names of its columns.
        read: returns a column: a list, or an array of Arrow.
        numbers: each row's index among the file's rows, from 0, counting dropped rows too.
        lines: returns the line of each row of a text file, from 1, dropped or not; None for other files.
        dropped: the number of dropped rows.
        classes: by column, the names that the file gives to class numbers.

    Raises:
        DataError: two columns have the same name.
    """

    path: Path | str
    columns: tuple[str, ...]
    read: Callable[[str], Any] = field(repr=False)
    numbers: Sequence[int] = field(repr=False)
    lines: Callable[[], Sequence[int]] | None = None
    dropped: int = 0
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    _known: dict[str, list[object]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if len({*self.columns}) < len(self.columns):
            raise DataError(f"{self.where}: a column's name appears twice in {_names(self.columns)}")

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def where(self) -> str:
        """Where the names of the columns are, for messages."""
        return f"{self.path}, line 1" if self.lines else str(self.path)

    @property
    def called(self) -> str:
        """The table in a sentence: `file`, or the object in memory."""
        return "file" if isinstance(self.path, Path) else self.path

    def place(self, *rows: int) -> str:
        """Where rows are in the file: `line 7`, `lines 3 and 5`, or `rows 1 and 3 (from 0)`."""
        numbers = [self.numbers[row] for row in rows[:MOST_SHOWN]]
        lines = self.lines() if self.lines else None
        shown = [str(number if lines is None else lines[number]) for number in numbers]
        last = f"{len(rows) - len(shown)} more" if len(rows) > len(shown) else shown.pop()
        several = f"{', '.join(shown)} and {last}" if shown else last
        plural = "s" * (len(rows) > 1)
        return f"row{plural} {several} (from 0)" if lines is None else f"line{plural} {several}"

    def error(self, row: int, problem: str) -> DataError:
        """A `DataError` that names the file and the row's place."""
        return DataError(f"{self.path}, {self.place(row)}: {problem}")

    def column(self, name: str) -> list[object]:
        """All values of a column; None where a row lacks it.

        Raises:
            DataError: there is no such column, or one of its texts is not UTF-8.
        """
        if name not in self.columns:
            raise self.no_column(name)
        if name not in self._known:
            values = self.read(name)
            try:
                self._known[name] = values if isinstance(values, list) else values.to_pylist()
            except UnicodeDecodeError as error:
                row = next(row for row, value in enumerate(values) if not _is_utf8(value))
                raise self.error(row, f"column {brief(name)} is not UTF-8 ({error.reason})") from error
        return self._known[name]

    def texts(self, name: str) -> tuple[str, ...]:
        """The texts of a column. Raises `DataError` where there is no such column, or a value is no text."""
        values = self.column(name)
        try:
            texts = cast(list[str], values)
            if b"\0" not in "".join(texts).encode():  # fails where one is no text, or holds half a character
                return tuple(texts)
        except (TypeError, UnicodeEncodeError):
            pass
        return tuple(self.text(row, name, value) for row, value in enumerate(values))

    def text(self, row: int, name: str, value: object) -> str:
        """A value of a row. Raises `DataError` where it is no text."""
        if not isinstance(value, str):
            holds = "is null" if value is None else f"holds {brief(value)}"
            raise self.error(row, f"column {name!r} {holds}, which is not a text")
        if problem := problem_of(value):
            raise self.error(row, f"column {name!r} {problem}")
        return value

    def text_list(self, row: int, name: str, value: object, least: int = 0) -> list[str]:
        """A list of texts. Raises `DataError` where it is none, or has fewer than `least`."""
        if not isinstance(value, list) or len(value) < least or not all(isinstance(text, str) for text in value):
            what = f"list of {least} texts or more" if least else "list of texts"
            raise self.error(row, f"column {name!r} holds {brief(value)}, which is no {what}")
        return [self.text(row, name, text) for text in value]

    def find(self, names: Sequence[str]) -> str | None:
        """The first of these columns that there is."""
        return next((name for name in names if name in self.columns), None)

    def need(self, names: Sequence[str]) -> str:
        """The first of these columns that there is. Raises `DataError` where there is none."""
        found = self.find(names)
        if found is None:
            raise self.no_column(names[0])
        return found

    def no_column(self, name: str) -> DataError:
        """The error for a column that there is not."""
        matches = difflib.get_close_matches(name, [column for column in self.columns if len(column) < 100], n=1)
        hint = f" (did you mean {matches[0]!r}?)" if matches else ""
        return DataError(f"{self.where}: no column {brief(name)}{hint}; there {available(self.columns)}")

    def take(self, rows: Sequence[int]) -> "Table":
        """The table with only these rows; the rest count as dropped."""

        def read(name: str) -> list[object]:
            values = self.column(name)
            return [values[row] for row in rows]

        numbers, dropped = [self.numbers[row] for row in rows], self.dropped + len(self) - len(rows)
        return replace(self, read=read, numbers=numbers, dropped=dropped, _known={})


def _is_utf8(value: Any) -> bool:
    try:
        value.as_py()
    except UnicodeDecodeError:
        return False
    return True


def problem_of(text: str) -> str | None:
    """What a text must not hold and does; None for most texts."""
    if "\0" in text:
        return NUL
    return "holds half a character (a lone surrogate)" if HALF_CHARACTER.search(text) else None


def brief(value: object, most: int = 60) -> str:
    """A value shortened for a message.

    >>> brief("cats and dogs", most=9)
    "'cats and..."
    """
    text = repr(value[: most + 1] if isinstance(value, str) else value)
    return text if len(text) <= most else text[:most] + "..."


def available(columns: Sequence[str]) -> str:
    """The columns of a file, to stand behind `there`; one name that looks like several is told.

    >>> available(["a;b"])
    "is only 'a;b', which looks like columns between semicolons: save the file with commas (.csv) or tabs (.tsv)"
    """
    names = some_of([brief(column) for column in columns], most=20)
    for mark, marks in _SEPARATORS.items():
        if len(columns) == 1 and mark in columns[0]:
            save = "save the file with commas (.csv) or tabs (.tsv)" if mark == ";" else "name the file "
            save += {"\t": ".tsv", ",": ".csv", ";": ""}[mark]
            return f"is only {names}, which looks like columns between {marks}: {save}"
    return f"are {names or 'none'}"


def read_text(path: Path, task: DatasetSpec) -> Table:
    """Read a `.tsv`, `.csv`, `.jsonl` or `.txt` file, compressed with gzip or not.

    Args:
        path: of the file.
        task: the task the file belongs to; CoLA's TSV files may lack a header, and QQP's malformed rows are dropped.

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
    """Read tab-separated fields, in which quotation marks are ordinary text.

    Not by Arrow, for which a carriage return inside a text ends the row. Malformed rows of QQP are treated as by the
    datasets library: those with too few fields are dropped, those with too many are cut.
    """
    lines = [*numbered_lines(path, returns=True)]
    names = tuple(lines[0][1].split("\t")) if lines else ()
    headless = task.name == "cola" and bool(names) and "sentence" not in names
    names, rows = (_COLA_COLUMNS, lines) if headless else (names, lines[1:])
    starts = [line for line, _ in rows]
    table = Table(path, names, lambda name: [], range(len(rows)), lambda: starts)
    lenient, kept = task.name in DROPS_MALFORMED, []
    for number, (_, text) in enumerate(rows):
        fields = text.count("\t") + 1
        if fields != len(names) and not lenient:
            raise _wrong_row(replace(table, numbers=[number]), fields, "tabs")
        if fields >= len(names):
            kept.append(number)

    def read(name: str) -> list[str]:
        column = names.index(name)
        return [rows[number][1].split("\t")[column] for number in kept]

    return replace(table, read=read, numbers=kept, dropped=len(rows) - len(kept))


def _read_csv(path: Path) -> Table:
    """Read CSV (RFC 4180). Not by Arrow, which joins two rows without an error where a quotation mark is left open."""
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
    for number, fields in enumerate(rows):
        if len(fields) != len(names):
            is_long = any("\n" in field for field in fields)
            raise _wrong_row(replace(table, numbers=[number]), len(fields), "commas", is_long=is_long)
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
    return replace(table, read=lambda name: [*columns.get(name, ())])


def _csv_problem(reason: str) -> str:
    """What `csv` reports, in terms of the file."""
    if "end of data" in reason:
        return "a quotation mark opens a field that nothing closes"
    if "expected after" in reason:
        return 'text after a closing quotation mark; inside a quoted field write it twice ("")'
    return LINE_ENDS if "new-line" in reason else f"not CSV ({reason})"


def _wrong_row(table: Table, fields: int, marks: str, is_long: bool = False) -> DataError:
    """The error for the one row of a table, which has too few or too many fields."""
    problem = f"{fields} fields between {marks}, not the {len(table.columns)} of {_names(table.columns)}"
    problem += f"; there {available(table.columns)}" * (len(table.columns) == 1)
    return table.error(0, problem + "; is a quotation mark left open?" * is_long)


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
    """The JSON object of a line. Raises `DataError` that begins with `where` if it is none."""
    try:
        row = parse_json(text)
    except JsonError as error:
        advice = "" if isinstance(error, DuplicateKey) else "; write one JSON object per line"
        raise DataError(f"{where}: {error}{advice}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: found {brief(text)}; write one JSON object per line")
    return row


def _read_lines(path: Path) -> Table:
    """Read a text from each line but blank ones."""
    found = [(line, text.strip()) for line, text in numbered_lines(path, returns=True) if text.strip()]
    texts = [join_wikitext(text) for _, text in found]
    return Table(path, (LINE,), lambda name: texts, range(len(found)), lambda: [line for line, _ in found])


def join_wikitext(text: str) -> str:
    """A text with numbers and compounds written as usual where it marks them as WikiText does.

    >>> join_wikitext("a two @-@ day march of 1 @,@ 500 men")
    'a two-day march of 1,500 men'
    """
    return re.sub(r" @([-,.])@ ", r"\1", text)


def numbered_lines(path: Path, *, returns: bool = False) -> Iterator[tuple[int, str]]:
    """The lines of a file but empty ones, without their ends, each with its number from 1.

    Lines are split at line feeds only, because texts may hold other characters that Python treats as line ends.

    Args:
        returns: whether a carriage return inside a later line than the first is a character of its text.

    Raises:
        DataError: the file cannot be read, or a line is not UTF-8 or holds a NUL character or a carriage return.
    """
    for number, text in _whole_lines(path):
        text = text.removesuffix("\n").rstrip("\r")
        if "\r" in text and (number == 1 or not returns):
            raise DataError(f"{path}, line {number}: {LINE_ENDS}")
        if text:
            yield number, text


def _whole_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file with their ends, each with its number from 1."""
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
