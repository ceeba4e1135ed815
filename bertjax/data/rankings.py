"""Queries and their candidates: rows of a file, or a collection in the format of TREC or BEIR.

A file (TSV, CSV, JSONL, Parquet) has a row for each candidate: `query` (or `question`), the candidate (`passage`,
`document`, `candidate`, `sentence`, `text` ...) and its `relevance` (or `label`, `score` ...): an integer, or a word
such as `entailment` or `not_entailment`. Queries are identified by `query_id` (or `qid`), or by their text. JSONL and
Parquet may have a row for each query instead, with lists `positive` and `negative`, or `candidates` and `relevance`.

The directory of a collection contains `queries` and `corpus` (or `collection`), each `.jsonl` with `_id`, `text` and
optionally `title`, or `.tsv` with the id first; and judgments in `qrels` (`.tsv`, `.txt` or no suffix) or in files of a
folder `qrels`, in the four columns of TREC or the three of BEIR. The candidates of a query are the whole corpus, or the
texts of a `run` in TREC's six columns. Columns of judgments and runs are separated by tabs, or by spaces in lines
without tabs. The path of a file of judgments selects it among several.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from bertjax.data.arrow_tables import is_saved_dataset
from bertjax.data.examples import Content, DatasetSpec
from bertjax.data.local_files import as_int, ids_of
from bertjax.data.tables import Table, brief, json_object, numbered_lines, problem_of
from bertjax.errors import DataError, some_of
from bertjax.formatting import count_of
from bertjax.paths import is_directory, is_file, listing

QUERY_IDS = ("query_id", "query-id", "qid", "question_id")
TEXT_IDS = ("candidate_id", "passage_id", "document_id", "doc_id", "docid", "corpus-id", "corpus_id", "pid")
QUERY_FILES, TEXT_FILES = ("queries", "topics"), ("corpus", "collection", "documents", "passages")
JUDGMENT_FILES, RUN_FILES = ("qrels", "qrel"), ("run",)
FILE_SUFFIXES = (".jsonl", ".tsv", ".txt", ".trec", "")
IDS, CONTENTS = ("_id", "id", "docid", "qid", "query_id", "pid"), ("text", "contents", "body", "query", "question")
QUERIES = ("query", "question", "premise", "sentence1")
TEXTS = ("candidate", "passage", "document", "doc", "sentence", "answer", "text", "sentence2", "hypothesis")
RELEVANCE = ("relevance", "relevant", "label", "score", "grade", "rating")
POSITIVE, NEGATIVE = ("positive", "positives", "pos"), ("negative", "negatives", "neg")
LISTS, GRADES = ("candidates", "passages", "documents"), ("relevance", "labels", "relevances")
YES = ("yes", "true", "relevant", "entailment", "equivalent", "duplicate", "positive")
NO = ("no", "false", "irrelevant", "not_relevant", "not_entailment", "not_equivalent", "not_duplicate", "negative")
HEADERS = {*IDS, *QUERY_IDS, *TEXT_IDS}


@dataclass(frozen=True, eq=False)
class Pool:
    """The candidate texts of one or several queries.

    Args:
        names: the names of the texts, without duplicates.
        texts: the text of each name.
    """

    names: tuple[str, ...] = field(repr=False)
    texts: tuple[str, ...] = field(repr=False)

    @cached_property
    def sha256(self) -> str:
        """A hash of names and texts."""
        return hashlib.sha256(json.dumps([self.names, self.texts]).encode()).hexdigest()


@dataclass(frozen=True)
class Candidates(Content):
    """The candidates of a query and their relevance.

    Args:
        pool: the candidates that the query is ranked with.
        relevance: the relevance (from 1) of each relevant text by name, whether or not it is a candidate.
        excluded: the name of a text in the pool that is not a candidate, the document that is the query; None for none.
    """

    pool: Pool
    relevance: Mapping[str, int]
    excluded: str | None = None

    def facts(self) -> dict[str, Any]:
        """The hash of the pool, the relevance and the excluded text."""
        facts = {"pool": self.pool.sha256, "relevance": dict(self.relevance)}
        return facts if self.excluded is None else {**facts, "excluded": self.excluded}

    def describe(self, arrays: Mapping[str, Any], example: int) -> dict[str, Any]:
        """The relevant candidates, and all that a run ranks first.

        Args:
            arrays: the arrays of `outputs.npz`.
            example: the index of the query.
        """
        firsts = set()
        if "first" in arrays:  # the outputs are rankings
            firsts = {*arrays["first"][:, example].tolist(), int(arrays["base_first"][example])}
        return {
            "candidates": [
                {"number": index, "name": name, "text": text, "relevance": self.relevance.get(name, 0)}
                for index, (name, text) in enumerate(zip(self.pool.names, self.pool.texts, strict=True))
                if name != self.excluded and (index in firsts or name in self.relevance)
            ]
        }


Query: TypeAlias = tuple[str, str, Candidates]  # id, text and candidates


def exclude_own_documents(queries: Sequence[Query]) -> list[Query]:
    """Exclude from each query the candidate that has its id.

    Args:
        queries: id, text and candidates of each query.
    """
    names = {id(one.pool): {*one.pool.names} for _, _, one in queries}
    return [
        (name, text, replace(one, excluded=name if name in names[id(one.pool)] else None))
        for name, text, one in queries
    ]


def is_collection(path: Path) -> bool:
    """Whether a path is the directory of a collection or a file of judgments.

    Args:
        path: a path that exists.
    """
    if is_directory(path):
        return not is_saved_dataset(path)
    return _has_name(path, JUDGMENT_FILES) or path.parent.name in JUDGMENT_FILES


def read_collection(path: Path) -> tuple[list[Query], list[str]]:
    """Read the queries that have judgments, and notes on what was left out.

    Queries and texts without any text are left out. A judgment whose text is not in the corpus is kept: trec_eval
    counts the text as not found.

    Args:
        path: the directory, or a file of judgments in it or in its folder `qrels`.

    Raises:
        DataError: a file is missing or empty, or a line is wrong.
    """
    judgments, directory = _judgments(path)
    judged = _read_judgments(judgments)
    run = _one_of(directory, RUN_FILES)
    retrieved = None if run is None else _read_run(run)
    selected = judged.keys() & retrieved.keys() if retrieved is not None else judged.keys()
    if not selected:
        raise DataError(f"{run}: has no query of {judgments.name}")
    queries = _read_texts(_needed(directory, QUERY_FILES), selected)
    if missing := sorted(selected - queries.names):
        raise DataError(f"{judgments}: there is no query {some_of(missing)} in {directory}")
    needed = None if retrieved is None else {name for names in retrieved.values() for name in names}
    corpus = _read_texts(_needed(directory, TEXT_FILES), needed)
    whole = Pool(tuple(corpus.texts), tuple(corpus.texts.values()))
    found = []
    for name, text in queries.texts.items():
        pool = whole
        if retrieved is not None:
            if missing := [one for one in retrieved[name] if one not in corpus.names]:
                raise DataError(f"{run}: there is no text {some_of(missing)} of query {brief(name)} in {directory}")
            names = tuple(one for one in retrieved[name] if one in corpus.texts)
            pool = Pool(names, tuple(corpus.texts[one] for one in names))
        relevance = {one: grade for one, grade in judged[name].items() if grade > 0}
        found.append((name, text, Candidates(pool, relevance)))
    absent = [one for name in selected for one in judged[name] if one not in corpus.names]
    if len(absent) == sum(len(judged[name]) for name in selected):
        raise DataError(f"{judgments}: none of its texts is in {corpus.path}, such as {some_of(absent, most=1)}")
    notes = [f"{count_of(len(absent), 'judgment')} of texts that are not in {corpus.path.name}"] if absent else []
    return found, [*queries.left_out("query"), *corpus.left_out("text"), *notes]


def _has_name(path: Path, names: Sequence[str]) -> bool:
    """Whether a file has one of several names, with any suffix; or one of the names as its suffix."""
    stem = path.name.removesuffix(".gz")
    return any(stem == f"{name}{suffix}" for name in names for suffix in FILE_SUFFIXES) or stem.endswith(
        tuple(f".{name}" for name in names)
    )


def _one_of(directory: Path, names: Sequence[str]) -> Path | None:
    """The file of a directory that has one of several names. Raises `DataError` if there are several such files."""
    found = [file for file in listing(directory) if _has_name(file, names) and is_file(file)]
    if len(found) > 1:
        raise DataError(f"{directory}: has {some_of([file.name for file in found])}: keep one of them")
    return found[0] if found else None


def _needed(directory: Path, names: Sequence[str]) -> Path:
    """The file of a directory that has one of several names. Raises `DataError` if there is none."""
    found = _one_of(directory, names)
    if found is None:
        files = names[0] if names is JUDGMENT_FILES else f"{names[0]}.jsonl or {names[0]}.tsv"
        raise DataError(f"{directory}: has no {files}, which a collection of TREC or BEIR needs")
    return found


def _judgments(path: Path) -> tuple[Path, Path]:
    """The file of judgments, and the directory of its collection."""
    if not is_directory(path):
        return path, path.parent.parent if path.parent.name in JUDGMENT_FILES else path.parent
    files = [file for name in JUDGMENT_FILES for file in (listing(path / name) if is_directory(path / name) else ())]
    if len(files) > 1:
        raise DataError(f"{path}: has several judgments: give one of {some_of([str(file) for file in files])}")
    return files[0] if files else _needed(path, JUDGMENT_FILES), path


def _fields(path: Path, counts: Iterable[int]) -> Iterator[tuple[int, list[str]]]:
    """The columns of each line except a header.

    In a line with tabs, only tabs separate columns, so that ids may contain spaces.
    """
    for line, text in numbered_lines(path):
        content = text.strip()
        fields = [part.strip() for part in content.split("\t")] if "\t" in content else content.split()
        if not fields or (line == 1 and fields[0].lower() in HEADERS):
            continue
        if len(fields) not in counts:
            raise DataError(
                f"{path}, line {line}: {count_of(len(fields), 'column')}, not {some_of([*map(str, counts)])}"
            )
        if not all(fields):
            raise DataError(f"{path}, line {line}: a column is empty")
        yield line, fields


def _read_judgments(path: Path) -> dict[str, dict[str, int]]:
    """The relevance of each text for each query: the first column is the query, the last two are text and relevance."""
    found: dict[str, dict[str, int]] = {}
    for line, fields in _fields(path, (3, 4)):
        grade = grade_of(fields[-1])
        if grade is None:
            raise DataError(f"{path}, line {line}: relevance {brief(fields[-1])} is not an integer")
        earlier = found.setdefault(fields[0], {}).setdefault(fields[-2], grade)
        if earlier != grade:
            pair = f"text {brief(fields[-2])} of query {brief(fields[0])}"
            raise DataError(f"{path}, line {line}: {pair} has relevance {grade}, and {earlier} in an earlier line")
    if not found:
        raise DataError(f"{path}: has no judgments")
    return found


def _read_run(path: Path) -> dict[str, dict[str, None]]:
    """The texts of a run for each query, in its order."""
    found: dict[str, dict[str, None]] = {}
    for line, fields in _fields(path, (6,)):
        texts = found.setdefault(fields[0], {})
        if fields[2] in texts:
            raise DataError(f"{path}, line {line}: text {brief(fields[2])} of query {brief(fields[0])} occurs twice")
        texts[fields[2]] = None
    if not found:
        raise DataError(f"{path}: has no lines")
    return found


@dataclass(frozen=True)
class _Texts:
    """Queries or texts of a file.

    Args:
        path: the path of the file.
        texts: the needed texts by id.
        names: the ids of all texts.
        empty: the ids of needed texts that are empty.
    """

    path: Path
    texts: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    empty: list[str] = field(default_factory=list)

    def left_out(self, noun: str) -> list[str]:
        """A note on empty texts; no note if there are none."""
        if not self.empty:
            return []
        return [f"{count_of(len(self.empty), noun)} without text left out: {some_of(self.empty)}"]


def _read_texts(path: Path, needed: Iterable[str] | None) -> _Texts:
    """Read a file of queries or texts.

    Args:
        needed: the ids of the texts to keep; None for all.
    """
    kept, found = None if needed is None else {*needed}, _Texts(path)
    is_json = ".jsonl" in path.name
    for line, text in numbered_lines(path):
        if line == 1 and not is_json and text.split("\t")[0].strip().lower() in HEADERS:
            continue
        where = f"{path}, line {line}"
        name, content = _of_json(where, text) if is_json else _of_columns(where, text)
        if name in found.names:
            raise DataError(f"{where}: {brief(name)} occurs twice")
        found.names.add(name)
        if kept is not None and name not in kept:
            continue
        if content:
            found.texts[name] = content
        else:
            found.empty.append(name)
    if not found.names:
        raise DataError(f"{path}: has no texts")
    if found.empty and not found.texts:
        raise DataError(f"{path}: all needed texts of its {count_of(len(found.names), 'text')} are empty")
    return found


def _of_columns(where: str, line: str) -> tuple[str, str]:
    name, tab, text = line.partition("\t")
    if not tab or not name.strip():
        raise DataError(f"{where}: expected an id, a tab and a text")
    return name.strip(), text.replace("\t", " ").strip()


def _of_json(where: str, line: str) -> tuple[str, str]:
    """The id of a JSON object, and its text after its title."""
    row = json_object(where, line)
    name = next((row[key] for key in IDS if key in row), None)
    text = next((row[key] for key in CONTENTS if key in row), False)
    text = "" if text is None else text
    if not isinstance(name, str | int) or isinstance(name, bool) or not isinstance(text, str):
        raise DataError(f"{where}: an id and a text are needed, as {IDS[0]} and {CONTENTS[0]}")
    title, name = row.get("title"), str(name).strip()
    text = f"{title} {text}".strip() if isinstance(title, str) else text.strip()
    if not name:
        raise DataError(f"{where}: the id is empty")
    if problem := problem_of(f"{name} {text}"):
        raise DataError(f"{where}: it {problem}")
    return name, text


@dataclass
class _Query:
    """A query of a table.

    Args:
        text: the text of the query.
        texts: the texts of its candidates, by name.
        relevance: the relevance of its candidates, by name.
    """

    text: str
    texts: dict[str, str] = field(default_factory=dict)
    relevance: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, text: str, relevance: int) -> None:
        """Add a candidate."""
        self.texts[name] = text
        self.relevance[name] = relevance

    def contradiction(self) -> str | None:
        """A text that occurs twice with different relevance; None if there is none."""
        grades: dict[str, int] = {}
        for name, text in self.texts.items():
            if grades.setdefault(text, self.relevance[name]) != self.relevance[name]:
                return text
        return None

    def candidates(self) -> Candidates:
        """The candidates and their relevance."""
        relevance = {name: grade for name, grade in self.relevance.items() if grade > 0}
        return Candidates(Pool(tuple(self.texts), tuple(self.texts.values())), relevance)


@dataclass(frozen=True)
class Queries:
    """The queries of a file or collection.

    Args:
        queries: id, text and candidates of each.
        columns: a note on the guessed columns, after a comma; empty if none was guessed.
        left_out: notes on what was left out.
        has_ids: whether the data have ids of queries and texts.
    """

    queries: Sequence[Query]
    columns: str = ""
    left_out: Sequence[str] = ()
    has_ids: bool = True


def read_queries(table: Table, spec: DatasetSpec, columns: Sequence[str] | None) -> Queries:
    """Read the queries of a table.

    Args:
        table: a table with a row for each query and candidate.
        spec: the columns of the task.
        columns: the columns of query, candidate and relevance; None for the usual names.
    """
    if columns is not None and len(columns) != 2:
        raise DataError(f"{spec.name} needs two text columns, the queries first; found {', '.join(columns)}")
    if columns is None and isinstance(table.path, str) and table.find(QUERIES) is None:
        raise DataError(f"{table.no_column(QUERIES[0])}; a collection with qrels is read from its directory")
    query = columns[0] if columns else table.need(QUERIES)
    left_out: list[str] = []
    if columns is None and table.find((*POSITIVE, *LISTS)):
        found, note = _queries_of_lists(table, query, left_out), f", queries in {query}"
        has_ids = False
    else:
        text = columns[1] if columns else table.need([name for name in TEXTS if name != query])
        grade = table.need(RELEVANCE)
        found = _queries_of_rows(table, (query, text, grade), left_out)
        note = f", queries in {query}, candidates in {text}, relevance in {grade}"
        has_ids = all(map(table.find, (QUERY_IDS, TEXT_IDS)))
    queries = [(name, one.text, one.candidates()) for name, one in found.items()]
    rows = [*dict.fromkeys(left_out)]
    notes = [f"{count_of(len(rows), 'row')} left out in whole or part, without text: {some_of(rows)}"] if rows else []
    return Queries(queries, note, notes, has_ids)


def _queries_of_rows(table: Table, columns: tuple[str, str, str], left_out: list[str]) -> dict[str, _Query]:
    """Queries of a table with a row for each candidate, by id or by text.

    Args:
        columns: the columns of queries, of candidates and of relevance.
        left_out: a list to which the locations of rows with an empty query or candidate are added.
    """
    query, text, grade = columns
    queries, texts = table.texts(query), table.texts(text)
    grades = table.named(grade)
    ids, text_ids = (_optional_ids(table, names) for names in (QUERY_IDS, TEXT_IDS))
    digits = len(str(len(table)))
    found: dict[str, _Query] = {}
    for row, (content, candidate) in enumerate(zip(queries, texts, strict=True)):
        if not (content.strip() and candidate.strip()):
            left_out.append(table.location(row))
            continue
        key = content if ids is None else ids[row]
        one = found.setdefault(key, _Query(content))
        name = f"{row:0{digits}}" if text_ids is None else text_ids[row]
        if one.text != content:
            raise table.error(row, f"query {brief(key)} is {brief(content)}, and {brief(one.text)} in an earlier row")
        if name in one.texts:
            raise table.error(row, f"candidate {brief(name)} of query {brief(key)} occurs twice")
        one.add(name, candidate, _grade(table, row, grades[row]))
    for key, one in found.items() if text_ids is None else ():
        if candidate := one.contradiction() or "":
            problem = f"query {brief(key)} has the candidate {brief(candidate)} twice, with different relevance"
            raise DataError(f"{table.path}: {problem}")
    return found if ids is not None else {str(index): one for index, one in enumerate(found.values())}


def _optional_ids(table: Table, names: Sequence[str]) -> list[str] | None:
    """The ids of the first of several columns that exists; None if there is none."""
    name = table.find(names)
    return None if name is None else [str(value).strip() for value in ids_of(table, name)]


def _queries_of_lists(table: Table, query: str, left_out: list[str]) -> dict[str, _Query]:
    """Queries of a table with a row for each query and lists of candidates.

    Args:
        left_out: a list to which the locations of queries and candidates without text, and of queries without
            candidates, are added.
    """
    queries, ids = table.texts(query), _optional_ids(table, QUERY_IDS)
    found: dict[str, _Query] = {}
    for row, content in enumerate(queries):
        one, key = _Query(content), str(row) if ids is None else ids[row]
        if key in found:
            raise table.error(row, f"query {brief(key)} occurs twice")
        for index, (text, grade) in enumerate(_graded(table, row)):
            if text.strip() and content.strip():
                one.add(f"{index:06}", text, grade)
            else:
                left_out.append(table.location(row))
        if not one.texts:
            left_out.append(table.location(row))
            continue
        if candidate := one.contradiction():
            raise table.error(row, f"the candidate {brief(candidate)} occurs twice, with different relevance")
        found[key] = one
    return found


def _graded(table: Table, row: int) -> Iterator[tuple[str, int]]:
    """The candidates in a row's lists, with their relevance."""
    name = table.find(LISTS)
    if name is not None:
        texts, grades = _list(table, row, name), table.column(table.need(GRADES))[row]
        if not isinstance(grades, list) or len(grades) != len(texts):
            raise table.error(row, f"there are {len(texts)} candidates, but the relevance is {brief(grades)}")
        yield from ((text, _grade(table, row, grade)) for text, grade in zip(texts, grades, strict=True))
        return
    for names, grade in ((POSITIVE, 1), (NEGATIVE, 0)):
        for one in names:
            if one in table.columns:
                yield from ((text, grade) for text in _list(table, row, one))


def _list(table: Table, row: int, name: str) -> list[str]:
    """The texts of a list; a single text counts as a list."""
    value = table.column(name)[row]
    return table.text_list(row, name, [value] if isinstance(value, str) else value)


def _grade(table: Table, row: int, value: object) -> int:
    """The relevance of a candidate: an integer; candidates below 1 are not relevant."""
    text = str(value).strip().lower()
    if text in YES or text in NO:
        return int(text in YES)
    number = grade_of(text)
    if number is None:
        raise table.error(row, f"relevance {brief(value)} is neither an integer nor yes or no")
    return number


def grade_of(value: object) -> int | None:
    """Convert a relevance to an int of at most six digits; None if that is impossible."""
    number = as_int(value)
    return number if number is not None and abs(number) < 10**6 else None
