"""Queries with candidates, some of which are relevant: rows of a file, or a collection.

A file (TSV, CSV, JSONL, Parquet) has a row for each candidate: `query` (or `question`), the candidate (`passage`,
`document`, `candidate`, `sentence`, `text` ...) and its `relevance` (or `label`, `score` ...): a whole number, or a
word such as `entailment` or `not_entailment`; queries are told apart by `query_id` (or `qid`), or by their text. JSONL
and Parquet may have a query in each row instead, with lists `positive` and `negative`, or `candidates` and `relevance`.
Of collections in the form of TREC and BEIR see `collections`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bertjax.data.formats.collections import QUERY_IDS, TEXT_IDS, grade_of, read_collection
from bertjax.data.local_files import ids_of
from bertjax.data.tables import Table, brief
from bertjax.data.tasks import Candidates, Examples, Pool, Task
from bertjax.errors import DataError, some_of
from bertjax.formatting import count_of

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
        relevance: of its candidates, by name.
    """

    text: str
    texts: dict[str, str] = field(default_factory=dict)
    relevance: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, text: str, grade: int) -> None:
        """Add a candidate."""
        self.texts[name] = text
        self.relevance[name] = grade

    def contradicted(self) -> str | None:
        """A text that is a candidate twice, and relevant only once; None where there is none."""
        grades: dict[str, int] = {}
        for name, text in self.texts.items():
            if grades.setdefault(text, self.relevance[name]) != self.relevance[name]:
                return text
        return None

    def candidates(self) -> Candidates:
        """What it is to find, and among what."""
        relevance = {name: grade for name, grade in self.relevance.items() if grade > 0}
        return Candidates(Pool(tuple(self.texts), tuple(self.texts.values())), relevance)


@dataclass(frozen=True)
class _Found:
    """The queries of a file or collection.

    Args:
        queries: id, text and what each is to find.
        columns: which columns hold what, where that was guessed; empty or from a comma on.
        left_out: what was left out, in words.
        has_ids: whether queries and texts have ids of the data's own.
    """

    queries: Sequence[tuple[str, str, Candidates]]
    columns: str = ""
    left_out: Sequence[str] = ()
    has_ids: bool = True


def read_rankings(
    table: Table,
    task: Task,
    columns: Sequence[str] | None = None,
    *,
    exclude_self: bool = False,
) -> Examples:
    """Queries of a table, without those for which nothing is relevant.

    Args:
        task: `ranking`.
        columns: where a row is a candidate, those of queries and of candidates.
        exclude_self: leave out the candidate that has the id of the query, its own document.

    Raises:
        DataError: something in it is wrong, or nothing is relevant for any query.
    """
    return _examples(table.path, task, _read_rows(table, task, columns), exclude_self)


def read_rankings_of_collection(
    path: Path,
    task: Task,
    columns: Sequence[str] | None = None,
    *,
    exclude_self: bool = False,
) -> Examples:
    """Queries of a collection; as `read_rankings`."""
    if columns is not None:
        raise DataError(f"{path}: a collection has no text columns: leave them out")
    queries, left_out = read_collection(path)
    return _examples(path, task, _Found(queries, "", left_out), exclude_self)


def _examples(path: Path | str, task: Task, found: _Found, exclude_self: bool) -> Examples:
    if exclude_self and not found.has_ids:
        raise DataError(f"{path}: --exclude-self takes ids of queries and candidates, which it lacks: leave it out")
    queries = _without_own(found.queries) if exclude_self else list(found.queries)
    kept = [one for one in queries if one[2].relevance and not _is_alone(one[2])]
    if not kept:
        raise DataError(f"{path}: nothing is relevant for any of {count_of(len(queries), 'query')}")
    ids, texts, content = zip(*kept, strict=True)
    pools = {id(one.pool): len(one.pool.names) for one in content}
    said = [f"{count_of(len(kept), 'query')}, {count_of(sum(pools.values()), 'candidate')}{found.columns}"]
    if dropped := sum(not one.relevance for _, _, one in queries):
        said.append(f"{count_of(dropped, 'query')} left out, for which nothing is relevant")
    if alone := len(queries) - len(kept) - dropped:
        said.append(f"{count_of(alone, 'query')} left out, whose only candidate is excluded")
    said += found.left_out
    if exclude_self:
        own = sum(one.excluded is not None for _, _, one in queries)
        said.append(f"the query's own document excluded for {count_of(own, 'query')}")
    return Examples(
        task=task,
        ids=ids,
        first=texts,
        second=None,
        labels=np.full(len(kept), np.nan, np.float32),
        source=f"{path} ({'; '.join(said)})",
        split="validation",
        content=content,
    )


def _without_own(queries: Sequence[tuple[str, str, Candidates]]) -> list[tuple[str, str, Candidates]]:
    """The queries, the candidate that has a query's id excluded."""
    names = {id(one.pool): {*one.pool.names} for _, _, one in queries}
    return [
        (name, text, replace(one, excluded=name if name in names[id(one.pool)] else None))
        for name, text, one in queries
    ]


def _is_alone(one: Candidates) -> bool:
    """Whether no candidate is left."""
    return len(one.pool.names) <= (one.excluded is not None)


def _read_rows(table: Table, task: Task, columns: Sequence[str] | None) -> _Found:
    """The queries of a table."""
    if columns is not None and len(columns) != 2:
        raise DataError(f"{task.name} takes two text columns, the queries' first; found {', '.join(columns)}")
    if columns is None and isinstance(table.path, str) and table.find(QUERIES) is None:
        raise DataError(f"{table.no_column(QUERIES[0])}; a collection with qrels is read from its directory")
    query = columns[0] if columns else table.need(QUERIES)
    left_out: list[str] = []
    if columns is None and table.find((*POSITIVE, *LISTS)):
        found, said = _queries_of_lists(table, query, left_out), f", queries in {query}"
        has_ids = False
    else:
        text = columns[1] if columns else table.need([name for name in TEXTS if name != query])
        grade = table.need(RELEVANCE)
        found = _queries_of_rows(table, (query, text, grade), left_out)
        said = f", queries in {query}, candidates in {text}, relevance in {grade}"
        has_ids = all(map(table.find, (QUERY_IDS, TEXT_IDS)))
    queries = [(name, one.text, one.candidates()) for name, one in found.items()]
    places = [*dict.fromkeys(left_out)]
    several = f"{count_of(len(places), 'row')} left out in whole or part, for want of text: {some_of(places)}"
    return _Found(queries, said, [several] if left_out else [], has_ids)


def _queries_of_rows(table: Table, columns: tuple[str, str, str], left_out: list[str]) -> dict[str, _Query]:
    """Queries with a row for each candidate, by id or by text.

    Args:
        columns: of queries, of candidates and of relevance.
        left_out: takes the places of rows whose query or candidate has no text.
    """
    query, text, grade = columns
    queries, texts = table.texts(query), table.texts(text)
    grades, names = table.column(grade), table.classes.get(grade, ())
    ids, text_ids = (_optional(table, names) for names in (QUERY_IDS, TEXT_IDS))
    digits = len(str(len(table)))
    found: dict[str, _Query] = {}
    for row, (content, candidate) in enumerate(zip(queries, texts, strict=True)):
        if not (content.strip() and candidate.strip()):
            left_out.append(table.place(row))
            continue
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
    for key, one in found.items() if text_ids is None else ():
        if contradicted := one.contradicted():
            problem = f"query {brief(key)} has the candidate {brief(contradicted)} twice, with different relevance"
            raise DataError(f"{table.path}: {problem}")
    return found if ids is not None else {str(number): one for number, one in enumerate(found.values())}


def _optional(table: Table, names: Sequence[str]) -> list[str] | None:
    """The ids of a column that may be there."""
    name = table.find(names)
    return None if name is None else [str(value).strip() for value in ids_of(table, name)]


def _queries_of_lists(table: Table, query: str, left_out: list[str]) -> dict[str, _Query]:
    """Queries with a row each, whose candidates are lists.

    Args:
        left_out: takes the places of queries and candidates without text, and of queries without candidates.
    """
    queries, ids = table.texts(query), _optional(table, QUERY_IDS)
    found: dict[str, _Query] = {}
    for row, content in enumerate(queries):
        one, key = _Query(content), str(row) if ids is None else ids[row]
        if key in found:
            raise table.error(row, f"query {brief(key)} is there twice")
        for number, (text, grade) in enumerate(_graded(table, row)):
            if text.strip() and content.strip():
                one.add(f"{number:06}", text, grade)
            else:
                left_out.append(table.place(row))
        if not one.texts:
            left_out.append(table.place(row))
            continue
        if contradicted := one.contradicted():
            raise table.error(row, f"the candidate {brief(contradicted)} is there twice, with different relevance")
        found[key] = one
    return found


def _graded(table: Table, row: int) -> Iterator[tuple[str, int]]:
    """The candidates of a row's lists, with their relevance."""
    name = table.find(LISTS)
    if name is not None:
        texts, grades = _list(table, row, name), table.column(table.need(GRADES))[row]
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
    return table.text_list(row, name, [value] if isinstance(value, str) else value)


def _grade(table: Table, row: int, value: object) -> int:
    """How relevant a candidate is: a whole number; below 1 it is not."""
    text = str(value).strip().lower()
    if text in YES or text in NO:
        return int(text in YES)
    number = grade_of(text)
    if number is None:
        raise table.error(row, f"relevance {brief(value)} is no whole number, nor yes or no")
    return number
