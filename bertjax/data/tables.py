"""Tables in local files: `.tsv` without quoting, `.jsonl`, and `.txt` with a text in each line; also gzipped.

A file becomes a `Table` that knows the line number of each row, so that an error can name the line. It is read as a
stream, keeping only the requested columns and no more than the available memory.
"""

import difflib
import io
import itertools
import re
import sys
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bertjax.data.tasks import Task
from bertjax.errors import DataError, some_of
from bertjax.formatting import format_bytes, visible
from bertjax.json_files import JsonError, parse_json
from bertjax.machine import resident_memory
from bertjax.paths import open_data

# GLUE's own loaders drop the few rows of QQP that lack fields or the label (line breaks inside questions). So do we, to
# get the same counts as everybody else. In all other tasks such rows are an error.
DROPS_MALFORMED = ("qqp",)

_COLA_COLUMNS = ("source", "label", "star", "sentence")
SUFFIXES = (".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz", ".txt", ".txt.gz")
LINE = "text"  # the column of a .txt file


# Bytes of memory taken at most per byte of a line while it is split (four-byte characters, all columns besides the
# line), per list, object or value of JSON, and per row besides its values.
LINE_BYTES, JSON_BYTES, ROW_BYTES = 16, 160, 400
MOST_BLANK = 1_000_000  # consecutive lines
_NEVER = object()  # the value of a column that a row does not have


@dataclass(frozen=True)
class Table:
    """Columns of a file.

    Args:
        path: the file.
        columns: the names of its columns, kept or not.
        values: the kept columns, by name.
        lines: each row's line number in the file, from 1.
        numbers: each row's index among the file's rows, from 0, counting dropped rows too.
        dropped: the number of dropped rows.
    """

    path: Path
    columns: tuple[str, ...]
    values: Mapping[str, Sequence[object]]
    lines: Sequence[int]
    numbers: Sequence[int]
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.lines)

    def error(self, row: int, problem: str) -> DataError:
        """A `DataError` that names the file and the row's line."""
        return DataError(f"{self.path}, line {self.lines[row]}: {problem}")

    def column(self, name: str) -> Sequence[object]:
        """All values of a column.

        Raises:
            DataError: the file has no such column, or a row lacks it.
        """
        if name not in self.columns:
            matches = difflib.get_close_matches(name, [column for column in self.columns if len(column) < 100], n=1)
            hint = f" (did you mean {matches[0]!r}?)" if matches else ""
            available = some_of([brief(column) for column in self.columns], most=20)
            raise DataError(f"{self.path}, line 1: no column {brief(name)}{hint}; there are {available}")
        for row, value in enumerate(self.values[name]):
            if value is _NEVER:
                raise self.error(row, f"lacks {brief(name)}, which the first line has")
        return self.values[name]

    def take(self, rows: Sequence[int]) -> "Table":
        """The table with only these rows; the rest count as dropped."""
        values = {name: [column[row] for row in rows] for name, column in self.values.items()}
        lines, numbers = ([sequence[row] for row in rows] for sequence in (self.lines, self.numbers))
        return Table(self.path, self.columns, values, lines, numbers, self.dropped + len(self) - len(rows))


def brief(value: object, most: int = 60) -> str:
    """A value shortened for a message.

    >>> brief("cats and dogs", most=9)
    "'cats and..."
    """
    text = repr(value[: most + 1] if isinstance(value, str) else value)
    return text if len(text) <= most else text[:most] + "..."


@dataclass
class _Kept:
    """The kept part of a file's rows.

    Args:
        path: the file.
        room: bytes of memory that it may take.
        names: the columns to keep.
    """

    path: Path
    room: int
    names: Collection[str]
    taken: int = 0
    values: dict[str, list[object]] = field(default_factory=dict)
    lines: array = field(default_factory=lambda: array("q"))
    numbers: array = field(default_factory=lambda: array("q"))

    def begin(self, columns: Sequence[str]) -> None:
        """Choose the requested columns among those of the file."""
        self.values = {name: [] for name in columns if name in self.names}

    def add(self, line: int, number: int, row: Mapping[str, object]) -> None:
        """Keep a row. Raises `DataError` if there is no room."""
        for name, column in self.values.items():
            value = row.get(name, _NEVER)
            column.append(value)
            self.taken += sys.getsizeof(value)
        self.lines.append(line)
        self.numbers.append(number)
        self.taken += ROW_BYTES
        if self.taken > self.room:
            raise self.refusal(line, "there is no room for this row")

    def refusal(self, line: int, problem: str) -> DataError:
        """The error for a line that does not fit into memory."""
        budget = (
            f"{format_bytes(self.room)} of memory are left to read with, {format_bytes(self.taken)} of it taken by now"
        )
        return DataError(f"{self.path}, line {line}: {problem}, but only {budget}: give fewer texts, or more memory")

    def table(self, columns: tuple[str, ...], dropped: int = 0) -> Table:
        """The table of everything kept."""
        return Table(self.path, columns, self.values, self.lines, self.numbers, dropped)

    def lines_of(self, file: io.BufferedReader) -> Iterator[tuple[int, str]]:
        """The file's non-blank lines, each with its number from 1; split at line feeds only, because texts may hold
        other characters that Python treats as line ends."""
        number, blank, content = 0, 0, b"?"
        while content:
            number += 1
            limit = max(0, self.room - self.taken) // LINE_BYTES
            content = file.readline(limit + 1)
            if len(content) > limit and content:
                raise self.refusal(
                    number, f"a line of more than {limit:,} bytes takes up to {LINE_BYTES} times that to read"
                )
            if number == 1:
                content = content.removeprefix(b"\xef\xbb\xbf")
            try:
                text = content.removesuffix(b"\n").decode()
            except UnicodeDecodeError as error:
                problem = f"not UTF-8 ({error.reason}); save the file as UTF-8"
                raise DataError(f"{self.path}, line {number}: {problem}") from error
            if text := text.removesuffix("\r"):
                blank = 0
                yield number, text
            elif (blank := blank + 1) > MOST_BLANK:
                raise DataError(
                    f"{self.path}, line {number}: {MOST_BLANK:,} blank lines before it; copy the file again"
                )


def _read_tsv(file: io.BufferedReader, kept: _Kept, task: Task) -> Table:
    """Read tab-separated fields; quotation marks are ordinary text, and CoLA's files may lack the header."""
    lines = kept.lines_of(file)
    first = next(lines, None)
    columns = tuple(first[1].split("\t")) if first else ()
    headless = first is not None and task.name == "cola" and "sentence" not in columns
    if headless:
        columns = _COLA_COLUMNS
    if len(set(columns)) < len(columns):
        raise DataError(f"{kept.path}, line 1: a column's name appears twice in {_names(columns)}")
    kept.begin(columns)
    lenient, number = task.name in DROPS_MALFORMED, -1
    for number, (line, text) in enumerate(itertools.chain([first] if first and headless else [], lines)):
        fields = text.split("\t")
        if len(fields) < len(columns) and lenient:
            continue
        if len(fields) != len(columns) and not lenient:
            difference = f"{len(fields)} fields between tabs, not the {len(columns)} of {_names(columns)}"
            raise DataError(f"{kept.path}, line {line}: {difference}")
        kept.add(line, number, dict(zip(columns, fields, strict=False)))
    return kept.table(columns, number + 1 - len(kept.lines))


def _names(columns: Sequence[str]) -> str:
    return some_of([visible(name) if len(name) <= 60 else brief(name) for name in columns], most=20)


def _read_jsonl(file: io.BufferedReader, kept: _Kept) -> Table:
    columns: tuple[str, ...] = ()
    for number, (line, text) in enumerate(kept.lines_of(file)):
        parts = sum(map(text.count, "{[,:"))
        if JSON_BYTES * parts > kept.room - kept.taken:
            raise kept.refusal(line, f"an object of up to {parts:,} parts takes up to {JSON_BYTES} bytes for each")
        try:
            row = parse_json(text)
        except JsonError as error:
            raise DataError(f"{kept.path}, line {line}: {error}; write one JSON object per line") from error
        if not isinstance(row, dict):
            raise DataError(f"{kept.path}, line {line}: found {brief(text)}; write one JSON object per line")
        if not number:
            columns = tuple(row)
            kept.begin(columns)
        kept.add(line, number, row)
    return kept.table(columns)


def _read_lines(file: io.BufferedReader, kept: _Kept) -> Table:
    """Read a text from each line but blank ones."""
    kept.begin((LINE,))
    texts = ((line, text.strip()) for line, text in kept.lines_of(file))
    for number, (line, text) in enumerate((line, text) for line, text in texts if text):
        kept.add(line, number, {LINE: join_wikitext(text)})
    return kept.table((LINE,))


def join_wikitext(text: str) -> str:
    """A text with numbers and compounds written as usual where it marks them as WikiText does.

    >>> join_wikitext("a two @-@ day march of 1 @,@ 500 men")
    'a two-day march of 1,500 men'
    """
    return re.sub(r" @([-,.])@ ", r"\1", text)


def numbered_lines(path: Path, room: int) -> Iterator[tuple[int, str]]:
    """The lines of a file but empty ones, each with its number from 1.

    Args:
        room: bytes of memory that what is made of them may take: a line may take its share of that.

    Raises:
        DataError: the file cannot be read, is not UTF-8, or is too large.
    """
    kept = _Kept(path, room, ())
    with open_data(path) as file:
        try:
            for number, text in kept.lines_of(file):
                kept.taken += LINE_BYTES * len(text)
                yield number, text
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error}); check the path") from error


def read_table(path: Path, task: Task, names: Collection[str], room: int) -> Table:
    """Read a `.tsv`, `.jsonl` or `.txt` file, compressed with gzip or not.

    Args:
        path: the file.
        task: the task the file belongs to; CoLA's may lack a header, and QQP's malformed rows are dropped.
        names: the columns to keep.
        room: bytes of memory that the table may take.

    Raises:
        DataError: the file cannot be read or parsed, holds no row, or takes more memory.
    """
    if not path.name.endswith(SUFFIXES):
        raise DataError(f"{path}: not a file that can be read; give one that ends in {', '.join(SUFFIXES)}")
    if not room:
        resident = format_bytes(resident_memory())
        raise DataError(f"{path}: no memory is left to read it with: this process holds {resident} already; allow more")
    kept = _Kept(path, room, names)
    with open_data(path) as file:
        try:
            match Path(path.name.removesuffix(".gz")).suffix:
                case ".tsv":
                    table = _read_tsv(file, kept, task)
                case ".jsonl":
                    table = _read_jsonl(file, kept)
                case _:
                    table = _read_lines(file, kept)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error}); check the path") from error
    if not len(table):
        raise DataError(f"{path}: holds no examples")
    return table
