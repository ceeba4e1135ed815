"""Pairs of sentences with a word in the same sense or in different senses (WiC), from files or tables."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32

from bertjax.data import (
    Content,
    DatasetSpec,
    Examples,
    Table,
    as_int,
    brief,
    is_missing,
    is_path,
    numbered_lines,
    read_table,
    table_of,
)
from bertjax.errors import DataError
from bertjax.formatting import count_of
from bertjax.paths import user_path

PAIRS = DatasetSpec("word-senses", ("sentence1", "sentence2"), "label", ("different", "same"))
LABELS = {"T": 1, "True": 1, "true": 1, "1": 1, "same": 1, "F": 0, "False": 0, "false": 0, "0": 0, "different": 0}
DATA, GOLD = ".data.txt", ".gold.txt"  # the ends of the names of the original distribution
FIELDS = ("word", "part of speech", "indices", "sentence1", "sentence2")
Span = tuple[int, int]


@dataclass(frozen=True)
class SensePair(Content):
    """The occurrences of the target word in a pair of sentences.

    Args:
        targets: start and end of the word in each sentence, in characters.
    """

    targets: tuple[Span, Span]

    def describe(self, arrays: Mapping[str, Any], example: int) -> dict[str, Any]:
        """The positions of the word."""
        return {"targets": [list(span) for span in self.targets]}


def read_sense_pairs(data: Any) -> Examples:
    """Read pairs in one of the formats of WiC.

    Args:
        data: the path of a table with columns `sentence1`, `sentence2`, `start1`, `end1`, `start2`, `end2` (in
            characters) and `label`, such as SuperGLUE's `val.jsonl`; or a table in memory; or the path of a file
            `dev.data.txt` of the original distribution, with `dev.gold.txt` in the same directory.

    Returns: the sentences, with label 1 for the same sense, and a `SensePair` as content.

    Raises:
        DataError: the data cannot be read, have no labels, or a position is not in its sentence.
    """
    path = user_path(data) if is_path(data) else None
    if path is None:
        table = table_of(data, PAIRS, "validation")[0]
    elif path.name.removesuffix(".gz").endswith(DATA):
        table = _read_fields(path)
    elif path.name.removesuffix(".gz").endswith(".txt"):
        raise DataError(f"{path}: give NAME{DATA} with NAME{GOLD} in the same directory, or a table such as val.jsonl")
    else:
        table = read_table(path, PAIRS)
    first, second = (table.texts(name) for name in PAIRS.text_columns)
    spans = _spans_of_tokens if "indices" in table.columns else _spans_of_characters
    targets = [spans(table, sentences, side) for side, sentences in enumerate((first, second))]
    return Examples(
        PAIRS,
        tuple(range(len(table))),
        first,
        second,
        _labels(table),
        f"{table.path} ({count_of(len(table), 'pair')})",
        "given",
        content=tuple(map(SensePair, zip(*targets, strict=True))),
    )


def _read_fields(path: Path) -> Table:
    """The table of the original format: fields between tabs, without header or quoting; labels are in a second file."""
    found = [*numbered_lines(path, returns=True)]
    rows, starts = [text.split("\t") for _, text in found], [line for line, _ in found]
    columns: dict[str, list[object]] = {}
    table = Table(path, (*FIELDS, "label"), columns.__getitem__, range(len(rows)), lambda: starts)
    for row, fields in enumerate(rows):
        if len(fields) != len(FIELDS):
            raise table.error(row, f"{len(fields)} fields separated by tabs, expected 5 ({', '.join(FIELDS)})")
    gold = path.with_name(path.name.replace(DATA, GOLD))
    if not gold.exists():
        raise DataError(f"{path} needs its labels: {gold} is missing")
    labels = [text.strip() for _, text in numbered_lines(gold)]
    if len(labels) != len(rows) or not rows:
        raise DataError(f"{gold} has {count_of(len(labels), 'label')}, but {path} has {count_of(len(rows), 'pair')}")
    columns |= {name: [*values] for name, values in zip(FIELDS, zip(*rows, strict=True), strict=True)}
    columns["label"] = [*labels]
    return table


def _labels(table: Table) -> Int32[np.ndarray, " rows"]:
    """The labels: 1 for the same sense, 0 for different senses."""
    if "label" not in table.columns:
        raise DataError(f"{table.path}: no column 'label', as in the test file of SuperGLUE; pairs need labels")
    values = table.named("label")
    for row, value in enumerate(values):
        if is_missing(value, minus_one=True) or str(value) not in LABELS:
            raise table.error(row, f"label {brief(value)} is neither true (the same sense) nor false")
    return np.array([LABELS[str(value)] for value in values], np.int32)


def _spans_of_characters(table: Table, sentences: Sequence[str], side: int) -> list[Span]:
    """Start and end of the target word in each sentence, from the columns of the table."""
    names = f"start{side + 1}", f"end{side + 1}"
    spans = []
    for row, (text, *ends) in enumerate(zip(sentences, *map(table.column, names), strict=True)):
        start, end = (as_int(value) for value in ends)
        if start is None or end is None or not 0 <= start < end <= len(text) or not text[start:end].strip():
            problem = f"{names[0]} {brief(ends[0])} and {names[1]} {brief(ends[1])} contain no word"
            raise table.error(row, f"{problem} of {brief(text)}, which has {count_of(len(text), 'character')}")
        spans.append((start, end))
    return spans


def _spans_of_tokens(table: Table, sentences: Sequence[str], side: int) -> list[Span]:
    """Start and end of the target word in each sentence, from its index among the parts between white space."""
    spans = []
    for row, (text, indices) in enumerate(zip(sentences, table.texts("indices"), strict=True)):
        words = [word.span() for word in re.finditer(r"\S+", text)]
        found = re.fullmatch(r"(\d+)-(\d+)", indices)
        if found is None:
            raise table.error(row, f"{brief(indices)} is not the indices of the word in both sentences, such as 2-1")
        index = int(found[side + 1])
        if index >= len(words):
            raise table.error(row, f"index {index} is not in {brief(text)}, which has {count_of(len(words), 'word')}")
        spans.append(words[index])
    return spans
