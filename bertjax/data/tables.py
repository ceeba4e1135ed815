"""Tables in text files: `.tsv` without quoting, `.csv`, `.jsonl`, and `.txt` with a text in each line.

A file becomes a `Table` that knows the line number of each row, so that an error can name the line. It is read as a
stream, keeping only the requested columns and no more than the available memory.
"""

import csv
import difflib
import io
import itertools
import re
import sys
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bertjax.data.tasks import Task
from bertjax.errors import DataError, reading, some_of
from bertjax.formatting import format_bytes, visible
from bertjax.json_files import DuplicateKey, JsonError, parse_json
from bertjax.paths import open_data

# GLUE's own loaders drop the few rows of QQP that lack fields or the label (line breaks inside questions). So do we, to
# get the same counts as everybody else. In all other tasks such rows are an error.
DROPS_MALFORMED = ("qqp",)

_COLA_COLUMNS = ("source", "label", "star", "sentence")
SUFFIXES = tuple(f"{suffix}{gz}" for suffix in (".tsv", ".csv", ".jsonl", ".parquet", ".txt") for gz in ("", ".gz"))
LINE = "text"  # the column of a .txt file


# Bytes of memory taken at most per byte of a line while it is split (four-byte characters, all columns besides the
# line), per list, object or value of JSON, and per row besides its values.
LINE_BYTES, JSON_BYTES, ROW_BYTES = 16, 160, 400
MOST_BLANK = 1_000_000  # consecutive lines
MOST_SHOWN = 10  # rows that a message names
_NEVER = object()  # the value of a column that a row does not have
_SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons"}
LONGEST_FIELD = 2**31 - 1  # the most that `csv` takes on all systems
NUL = "holds a NUL character, which no text does; copy the file again"
LINE_ENDS = "a carriage return without a line feed; save the file with the line ends of Unix or Windows"


@dataclass(frozen=True)
class Table:
    """Columns of a file.

    Args:
        path: the file.
        columns: the names of its columns, kept or not.
        values: the kept columns, by name.
        places: each row's line number in the file, from 1; where it has no lines, the row's number from 0.
        numbers: each row's index among the file's rows, from 0, counting dropped rows too.
        dropped: the number of dropped rows.
        has_lines: whether rows are lines of a text file.
        classes: by column, the names that the file gives to class numbers.
    """

    path: Path
    columns: tuple[str, ...]
    values: Mapping[str, Sequence[object]]
    places: Sequence[int]
    numbers: Sequence[int]
    dropped: int = 0
    has_lines: bool = True
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.places)

    def place(self, row: int) -> str:
        """Where a row is in the file: `line 7`, or `row 5 (from 0)`."""
        return f"line {self.places[row]}" if self.has_lines else f"row {self.places[row]} (from 0)"

    def places_of(self, rows: Sequence[int]) -> str:
        """Where rows are in the file: `lines 3 and 5`, or `rows 1 and 3 (from 0)`."""
        if len(rows) == 1:
            return self.place(rows[0])
        shown = [str(self.places[row]) for row in rows[:MOST_SHOWN]]
        more = len(rows) - len(shown)
        first, last = (shown[:-1], shown[-1]) if not more else (shown, f"{more} more")
        several = f"{', '.join(first)} and {last}"
        return f"lines {several}" if self.has_lines else f"rows {several} (from 0)"

    def error(self, row: int, problem: str) -> DataError:
        """A `DataError` that names the file and the row's place."""
        return DataError(f"{self.path}, {self.place(row)}: {problem}")

    def column(self, name: str) -> Sequence[object]:
        """All values of a kept column.

        Raises:
            DataError: a row lacks it.
        """
        for row, value in enumerate(self.values[name]):
            if value is _NEVER:
                raise self.error(row, f"lacks {brief(name)}, which the first line has")
        return self.values[name]

    def take(self, rows: Sequence[int]) -> "Table":
        """The table with only these rows; the rest count as dropped."""
        values = {name: [column[row] for row in rows] for name, column in self.values.items()}
        places, numbers = ([sequence[row] for row in rows] for sequence in (self.places, self.numbers))
        dropped = self.dropped + len(self) - len(rows)
        return replace(self, values=values, places=places, numbers=numbers, dropped=dropped)


def _size_of(value: object) -> int:
    """Bytes of a value and of what it holds."""
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(map(_size_of, value.values()))
    return size + sum(map(_size_of, value)) if isinstance(value, list) else size


def holds_nul(value: object) -> bool:
    """Whether a str, or one inside a list or dict, holds a NUL character."""
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(map(holds_nul, value)) or any(map(holds_nul, value.values()))
    return isinstance(value, list) and any(map(holds_nul, value))


def brief(value: object, most: int = 60) -> str:
    """A value shortened for a message.

    >>> brief("cats and dogs", most=9)
    "'cats and..."
    """
    text = repr(value[: most + 1] if isinstance(value, str) else value)
    return text if len(text) <= most else text[:most] + "..."


def no_column(name: str, columns: Sequence[str], where: str) -> DataError:
    """The error for a column that a file does not have.

    Args:
        name: of the column.
        columns: that there are.
        where: in which file, and on which of its lines.
    """
    matches = difflib.get_close_matches(name, [column for column in columns if len(column) < 100], n=1)
    hint = f" (did you mean {matches[0]!r}?)" if matches else ""
    return DataError(f"{where}: no column {brief(name)}{hint}; there {available(columns)}")


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


@dataclass
class Kept:
    """The kept part of a file's rows.

    Args:
        path: the file.
        room: bytes of memory that it may take.
        choose: which columns to keep, of these, which stand where the text says; raises `DataError` if they do not do.
        has_lines: whether rows are lines of a text file.
        lists: whether columns of Arrow may hold lists.
    """

    path: Path
    room: int
    choose: Callable[[Sequence[str], str], Collection[str]]
    has_lines: bool = True
    lists: bool = False
    taken: int = 0
    columns: tuple[str, ...] = ()
    values: dict[str, list[object]] = field(default_factory=dict)
    places: array = field(default_factory=lambda: array("q"))
    numbers: array = field(default_factory=lambda: array("q"))

    @property
    def left(self) -> int:
        """Bytes that are left of the room."""
        return max(0, self.room - self.taken)

    def begin(self, columns: Sequence[str]) -> None:
        """Choose the requested columns among those of the file.

        Raises:
            DataError: two have the same name, or the requested ones are not there.
        """
        where = f"{self.path}, line 1" if self.has_lines else str(self.path)
        if len(set(columns)) < len(columns):
            raise DataError(f"{where}: a column's name appears twice in {_names(columns)}")
        self.columns, chosen = tuple(columns), self.choose(columns, where)
        self.values = {name: [] for name in columns if name in chosen}

    def add(self, place: int, number: int, row: Mapping[str, object]) -> None:
        """Keep a row. Raises `DataError` if there is no room, or a value holds a NUL character."""
        for name, column in self.values.items():
            value = row.get(name, _NEVER)
            if holds_nul(value):
                where = f"line {place}" if self.has_lines else f"row {place} (from 0)"
                raise DataError(f"{self.path}, {where}: column {brief(name)} {NUL}")
            column.append(value)
            self.taken += _size_of(value)
        self.places.append(place)
        self.numbers.append(number)
        self.taken += ROW_BYTES
        if self.taken > self.room:
            raise self.refusal(place, "there is no room for this row")

    def refusal(self, place: int, problem: str) -> DataError:
        """The error for a line or row that does not fit into memory."""
        budget = (
            f"{format_bytes(self.room)} of memory are left to read with, {format_bytes(self.taken)} of it taken by now"
        )
        where = f"line {place}" if self.has_lines else f"row {place} (from 0)"
        return DataError(f"{self.path}, {where}: {problem}, but only {budget}: give fewer texts, or more memory")

    def table(self, dropped: int = 0, classes: Mapping[str, tuple[str, ...]] | None = None) -> Table:
        """The table of everything kept."""
        return Table(
            self.path,
            self.columns,
            self.values,
            self.places,
            self.numbers,
            dropped,
            has_lines=self.has_lines,
            classes=classes or {},
        )

    def lines_of(self, file: io.BufferedIOBase, *, of_columns: bool = False) -> Iterator[tuple[int, str]]:
        """The file's non-blank lines without their ends, each with its number from 1.

        A carriage return inside a later line is a character of its text.

        Args:
            of_columns: no line may hold a carriage return, which is no character of a word or an id.

        Raises:
            DataError: the first line holds a carriage return: so does that of a file whose lines end with those alone.
        """
        for number, text in self.whole_lines_of(file):
            text = text.removesuffix("\n").rstrip("\r")
            if "\r" in text and (of_columns or number == 1):
                raise DataError(f"{self.path}, line {number}: {LINE_ENDS}")
            if text:
                yield number, text

    def whole_lines_of(self, file: io.BufferedIOBase) -> Iterator[tuple[int, str]]:
        """The file's lines with their ends, each with its number from 1; split at line feeds only, because texts may
        hold other characters that Python treats as line ends."""
        number, blank, content = 0, 0, b"?"
        while content:
            number += 1
            limit = self.left // LINE_BYTES
            content = file.readline(limit + 1)
            if len(content) > limit and content:
                raise self.refusal(
                    number, f"a line of more than {limit:,} bytes takes up to {LINE_BYTES} times that to read"
                )
            if number == 1:
                content = content.removeprefix(b"\xef\xbb\xbf")
            text = self._decode(content, number)
            blank = 0 if text.removesuffix("\n").removesuffix("\r") else blank + 1
            if blank > MOST_BLANK:
                raise DataError(
                    f"{self.path}, line {number}: {MOST_BLANK:,} blank lines before it; copy the file again"
                )
            if text:
                yield number, text

    def _decode(self, content: bytes, number: int) -> str:
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            guess = ", but looks like UTF-16" if number == 1 and content[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
            problem = f"not UTF-8{guess} ({error.reason}); save the file as UTF-8"
            raise DataError(f"{self.path}, line {number}: {problem}") from error
        if "\0" in text:
            raise DataError(f"{self.path}, line {number}: {NUL}")
        return text


def read_text(file: io.BufferedIOBase, kept: Kept, task: Task) -> Table:
    """Read a `.tsv`, `.csv`, `.jsonl` or `.txt` file; `kept.path` says which, with or without `.gz`.

    Args:
        file: its content, decompressed.
        kept: what is kept of it.
        task: the task the file belongs to; CoLA's TSV files may lack a header, and QQP's malformed rows are dropped.

    Raises:
        DataError: the file cannot be read or parsed, or takes more memory.
    """
    match Path(kept.path.name.removesuffix(".gz")).suffix:
        case ".tsv":
            return _read_tsv(file, kept, task)
        case ".csv":
            rows = _csv_rows(file, kept)
            for _, columns in itertools.islice(rows, 1):
                kept.begin(columns)
            return _read_rows(rows, kept, "commas")
        case ".jsonl":
            return _read_jsonl(file, kept)
    return _read_lines(file, kept)


def _read_tsv(file: io.BufferedIOBase, kept: Kept, task: Task) -> Table:
    """Read tab-separated fields; quotation marks are ordinary text, and CoLA's files may lack the header."""
    rows = ((line, text.split("\t")) for line, text in kept.lines_of(file))
    first = next(rows, None)
    columns = tuple(first[1]) if first else ()
    headless = first is not None and task.name == "cola" and "sentence" not in columns
    if first is not None:
        kept.begin(_COLA_COLUMNS if headless else columns)
    whole = itertools.chain([first] if first and headless else [], rows)
    return _read_rows(whole, kept, "tabs", lenient=task.name in DROPS_MALFORMED)


def _read_rows(rows: Iterable[tuple[int, list[str]]], kept: Kept, marks: str, lenient: bool = False) -> Table:
    """Keep rows of as many fields as there are columns; if lenient, drop those of fewer and cut those of more."""
    columns, number = kept.columns, -1
    for number, (line, fields) in enumerate(rows):
        if len(fields) < len(columns) and lenient:
            continue
        if len(fields) != len(columns) and not lenient:
            difference = f"{len(fields)} fields between {marks}, not the {len(columns)} of {_names(columns)}"
            breaks = sum(text.count("\n") for text in fields)
            end = f"; the row goes on to line {line + breaks}: is a quotation mark left open?" if breaks else ""
            raise DataError(f"{kept.path}, line {line}: {difference}{end}")
        kept.add(line, number, dict(zip(columns, fields, strict=False)))
    return kept.table(number + 1 - len(kept.places))


class _Lines:
    """The lines that a row of a CSV file is made of, as `csv.reader` takes them one by one."""

    def __init__(self, file: io.BufferedIOBase, kept: Kept):
        self._lines, self._kept = kept.whole_lines_of(file), kept
        self.first = self.last = self.size = 0

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        self.last, text = next(self._lines)
        self.first = self.first or self.last
        self.size += len(text)
        if self.size > self._kept.left // LINE_BYTES:
            problem = f"a row of more than {self.size:,} characters takes up to {LINE_BYTES} times that to read"
            raise self._kept.refusal(self.first, f"{problem} (is a quotation mark left open?)")
        return text

    def error(self, problem: str, line: int | None = None) -> DataError:
        """A `DataError` that names the line, by default the first of the row."""
        return DataError(f"{self._kept.path}, line {line or self.first}: {problem}")


def _csv_rows(file: io.BufferedIOBase, kept: Kept) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file but blank lines, each with the number of the line that it begins on (RFC 4180)."""
    lines = _Lines(file, kept)
    reader = csv.reader(lines, strict=True)
    while True:
        lines.first = lines.size = 0
        before = csv.field_size_limit(LONGEST_FIELD)  # of all readers in this process
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise lines.error(_csv_problem(str(error), lines)) from error
        finally:
            csv.field_size_limit(before)
        if fields is None:
            return
        if fields:
            yield lines.first, fields


def _csv_problem(reason: str, lines: _Lines) -> str:
    """What `csv` complains of, in words of the file."""
    end = f" (the row goes on to line {lines.last})" if lines.last > lines.first else ""
    if "end of data" in reason:
        return f"a quotation mark opens a field that nothing closes{end}"
    if "expected after" in reason:
        return f'text behind a closing quotation mark{end}; inside a quoted field write it twice ("")'
    if "new-line" in reason:
        return LINE_ENDS
    return f"not CSV ({reason}){end}"


def _names(columns: Sequence[str]) -> str:
    return some_of([visible(name) if len(name) <= 60 else brief(name) for name in columns], most=20)


def _read_jsonl(file: io.BufferedIOBase, kept: Kept) -> Table:
    for number, (line, text) in enumerate(kept.lines_of(file)):
        parts = sum(map(text.count, "{[,:"))
        if JSON_BYTES * parts > kept.left:
            raise kept.refusal(line, f"an object of up to {parts:,} parts takes up to {JSON_BYTES} bytes for each")
        try:
            row = parse_json(text)
        except JsonError as error:
            advice = "" if isinstance(error, DuplicateKey) else "; write one JSON object per line"
            raise DataError(f"{kept.path}, line {line}: {error}{advice}") from error
        if not isinstance(row, dict):
            raise DataError(f"{kept.path}, line {line}: found {brief(text)}; write one JSON object per line")
        if not number:
            kept.begin(tuple(row))
        kept.add(line, number, row)
    return kept.table()


def _read_lines(file: io.BufferedIOBase, kept: Kept) -> Table:
    """Read a text from each line but blank ones."""
    kept.begin((LINE,))
    texts = ((line, text.strip()) for line, text in kept.lines_of(file))
    for number, (line, text) in enumerate((line, text) for line, text in texts if text):
        kept.add(line, number, {LINE: join_wikitext(text)})
    return kept.table()


def join_wikitext(text: str) -> str:
    """A text with numbers and compounds written as usual where it marks them as WikiText does.

    >>> join_wikitext("a two @-@ day march of 1 @,@ 500 men")
    'a two-day march of 1,500 men'
    """
    return re.sub(r" @([-,.])@ ", r"\1", text)


def numbered_lines(path: Path, room: int, *, of_columns: bool = False) -> Iterator[tuple[int, str]]:
    """The lines of a file but empty ones, each with its number from 1.

    Args:
        room: bytes of memory that what is made of them may take: a line may take its share of that.
        of_columns: as in `Kept.lines_of`.

    Raises:
        DataError: the file cannot be read, is not UTF-8, or is too large.
    """
    kept = Kept(path, room, lambda columns, where: ())
    with reading(path, DataError), open_data(path) as file:
        for number, text in kept.lines_of(file, of_columns=of_columns):
            kept.taken += LINE_BYTES * len(text)
            yield number, text
