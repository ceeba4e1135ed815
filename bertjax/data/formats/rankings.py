"""Queries with candidates, some of which are relevant: rows of a file, or a collection.

A file (TSV, CSV, JSONL, Parquet) has a row for each candidate: `query` (or `question`), the candidate (`passage`,
`document`, `candidate`, `sentence`, `text` ...) and its `relevance` (or `label`, `score` ...): a whole number, or a
word such as `entailment` or `not_entailment`; queries are told apart by `query_id` (or `qid`), or by their text. JSONL
and Parquet may have a query in each row instead, with lists `positive` and `negative`, or `candidates` and `relevance`.
Of collections in the form of TREC and BEIR see `collections`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from bertjax.data.formats.collections import QUERY_IDS, TEXT_IDS, grade_of, is_collection, read_collection
from bertjax.data.local_files import read_table, texts_of
from bertjax.data.tables import Table, brief, no_column
from bertjax.data.tasks import Candidates, Examples, Pool, Task
from bertjax.errors import DataError
from bertjax.formatting import HALF_CHARACTER, count_of
from bertjax.machine import memory_left

QUERIES = ("query", "question", "premise", "sentence1")
TEXTS = ("candidate", "passage", "document", "doc", "sentence", "answer", "text", "sentence2", "hypothesis")
RELEVANCE = ("relevance", "relevant", "label", "score", "grade", "rating")
POSITIVE, NEGATIVE = ("positive", "positives", "pos"), ("negative", "negatives", "neg")
LISTS, GRADES = ("candidates", "passages", "documents"), ("relevance", "labels", "relevances")
YES = ("yes", "true", "relevant", "entailment", "equivalent", "duplicate", "positive")
NO = ("no", "false", "irrelevant", "not_relevant", "not_entailment", "not_equivalent", "not_duplicate", "negative")


@dataclass
class _Query:
    """A query as it is read.

    Args:
        text: of the query.
        texts: of its candidates, by name.
        relevance: of those that are relevant, by name.
    """

    text: str
    texts: dict[str, str] = field(default_factory=dict)
    relevance: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, text: str, grade: int) -> None:
        """Add a candidate."""
        self.texts[name] = text
        if grade > 0:
            self.relevance[name] = grade

    def candidates(self) -> Candidates:
        """What it is to find, and among what."""
        return Candidates(Pool(tuple(self.texts), tuple(self.texts.values())), self.relevance)


def read_rankings(path: Path, task: Task, columns: Sequence[str] | None = None, memory: int | None = None) -> Examples:
    """Queries of a file or collection, without those for which nothing is relevant.

    Args:
        task: `ranking`.
        columns: of a file with a row for each candidate, those of queries and of candidates.
        memory: bytes that this process may hold while reading.

    Raises:
        DataError: something in it is wrong, or nothing is relevant for any query.
    """
    room = memory_left(memory)
    if is_collection(path) and columns is not None:
        raise DataError(f"{path}: a collection has no text columns: leave them out")
    found, columns_said = (
        (read_collection(path, room), "") if is_collection(path) else _read_rows(path, task, columns, room)
    )
    kept = [one for one in found if one[2].relevance]
    if not kept:
        raise DataError(f"{path}: nothing is relevant for any of {count_of(len(found), 'query')}")
    ids, texts, content = zip(*kept, strict=True)
    pools = {id(one.pool): len(one.pool.names) for one in content}
    said = f"{count_of(len(kept), 'query')}, {count_of(sum(pools.values()), 'candidate')}{columns_said}"
    if dropped := len(found) - len(kept):
        said += f"; {count_of(dropped, 'query')} left out, for which nothing is relevant"
    return Examples(
        task=task,
        ids=ids,
        first=texts,
        second=None,
        labels=np.full(len(kept), np.nan, np.float32),
        source=f"{path} ({said})",
        split="validation",
        content=content,
    )


def _read_rows(
    path: Path, task: Task, columns: Sequence[str] | None, room: int
) -> tuple[list[tuple[str, str, Candidates]], str]:
    """The queries of a file, and which columns hold what, where that was guessed."""
    if columns is not None and len(columns) != 2:
        raise DataError(f"{task.name} takes two text columns, the queries' first; found {', '.join(columns)}")
    table = read_table(path, task, partial(_wanted, columns), room, lists=True)
    query = columns[0] if columns else _column(table, QUERIES)
    if columns is None and any(name in table.columns for name in (*POSITIVE, *LISTS)):
        found, said = _queries_of_lists(table, query), f", queries in {query}"
    else:
        text = columns[1] if columns else _column(table, TEXTS, not_this=query)
        grade = _column(table, RELEVANCE)
        found = _queries_of_rows(table, query, text, grade)
        said = f", queries in {query}, candidates in {text}, relevance in {grade}"
    return [(name, one.text, one.candidates()) for name, one in found.items()], said


def _wanted(columns: Sequence[str] | None, found: Sequence[str], where: str) -> set[str]:
    """Columns of a file that may be needed."""
    lists = {*POSITIVE, *NEGATIVE, *LISTS, *GRADES}
    return {*QUERIES, *TEXTS, *RELEVANCE, *QUERY_IDS, *TEXT_IDS, *lists, *(columns or ())} & {*found}


def _column(table: Table, names: Sequence[str], not_this: str = "") -> str:
    """The first of these columns that a file has. Raises `DataError` where it has none."""
    for name in names:
        if name in table.columns and name != not_this:
            return name
    raise no_column(names[0], table.columns, str(table.path))


def _queries_of_rows(table: Table, query: str, text: str, grade: str) -> dict[str, _Query]:
    """Queries with a row for each candidate, by id or by text."""
    queries, texts = texts_of(table, query), texts_of(table, text)
    grades, names = table.column(grade), table.classes.get(grade, ())
    ids, text_ids = (_optional(table, names) for names in (QUERY_IDS, TEXT_IDS))
    digits = len(str(len(table)))
    found: dict[str, _Query] = {}
    for row, (content, candidate) in enumerate(zip(queries, texts, strict=True)):
        _check_text(table, row, content, query)
        key = content if ids is None else ids[row]
        one = found.setdefault(key, _Query(content))
        name = f"{row:0{digits}}" if text_ids is None else text_ids[row]
        if one.text != content:
            raise table.error(row, f"query {brief(key)} is {brief(content)}, and {brief(one.text)} in a row before")
        if name in one.texts:
            raise table.error(row, f"candidate {brief(name)} of query {brief(key)} is there twice")
        value = grades[row]
        if isinstance(value, int) and 0 <= value < len(names):
            value = names[value]
        one.add(name, candidate, _grade(table, row, value))
    return found if ids is not None else {str(number): one for number, one in enumerate(found.values())}


def _optional(table: Table, names: Sequence[str]) -> list[str] | None:
    """The ids of a column that may be there."""
    name = next((name for name in names if name in table.columns), None)
    if name is None:
        return None
    values = [str(value) for value in table.column(name)]
    for row, value in enumerate(values):
        if HALF_CHARACTER.search(value):
            raise table.error(row, f"column {name!r} holds half a character (a lone surrogate)")
    return values


def _check_text(table: Table, row: int, text: str, name: str) -> None:
    if not text.strip():
        raise table.error(row, f"column {name!r} holds no text")


def _queries_of_lists(table: Table, query: str) -> dict[str, _Query]:
    """Queries with a row each, whose candidates are lists."""
    queries, ids = texts_of(table, query), _optional(table, QUERY_IDS)
    found: dict[str, _Query] = {}
    for row, content in enumerate(queries):
        _check_text(table, row, content, query)
        one, key = _Query(content), str(row) if ids is None else ids[row]
        if key in found:
            raise table.error(row, f"query {brief(key)} is there twice")
        for number, (text, grade) in enumerate(_graded(table, row)):
            one.add(f"{number:06}", text, grade)
        if not one.texts:
            raise table.error(row, "there is no candidate")
        found[key] = one
    return found


def _graded(table: Table, row: int) -> Iterator[tuple[str, int]]:
    """The candidates of a row's lists, with their relevance."""
    name = next((name for name in LISTS if name in table.columns), None)
    if name is not None:
        texts, grades = _list(table, row, name), table.column(_column(table, GRADES))[row]
        if not isinstance(grades, list) or len(grades) != len(texts):
            raise table.error(row, f"there are {len(texts)} candidates, whose relevance is {brief(grades)}")
        yield from ((text, _grade(table, row, grade)) for text, grade in zip(texts, grades, strict=True))
        return
    for names, grade in ((POSITIVE, 1), (NEGATIVE, 0)):
        for one in names:
            if one in table.columns:
                yield from ((text, grade) for text in _list(table, row, one))


def _list(table: Table, row: int, name: str) -> list[str]:
    """Texts of a list, or the one text that stands in its place."""
    value = table.column(name)[row]
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise table.error(row, f"column {name!r} holds {brief(value)}, which is no list of texts")
    if any(HALF_CHARACTER.search(text) for text in texts):
        raise table.error(row, f"column {name!r} holds half a character (a lone surrogate)")
    return texts


def _grade(table: Table, row: int, value: object) -> int:
    """How relevant a candidate is: a whole number; below 1 it is not."""
    text = str(value).strip().lower()
    if text in YES or text in NO:
        return int(text in YES)
    number = grade_of(text)
    if number is None:
        raise table.error(row, f"relevance {brief(value)} is no whole number, nor yes or no")
    return number
