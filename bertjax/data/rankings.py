"""Queries and their candidates: rows of a file, or a collection in the form of TREC and BEIR.

A file (TSV, CSV, JSONL, Parquet) has a row for each candidate: `query` (or `question`), the candidate (`passage`,
`document`, `candidate`, `sentence`, `text` ...) and its `relevance` (or `label`, `score` ...): a whole number, or a
word such as `entailment` or `not_entailment`; queries are distinguished by `query_id` (or `qid`), or by their text.
JSONL and Parquet may have a query in each row instead, with lists `positive` and `negative`, or `candidates` and
`relevance`.

A directory of a collection holds `queries` and `corpus` (or `collection`), each `.jsonl` with `_id`, `text` and perhaps
`title`, or `.tsv` with the id first; judgments in `qrels` (`.tsv`, `.txt` or none) or in files of a folder `qrels`, in
four columns as TREC has them, or in BEIR's three; and perhaps a `run` in TREC's six columns, whose texts are then the
candidates. Columns of judgments and runs are separated by tabs, or in a line without tabs by spaces. Without it each
query is to find its texts in the whole corpus. A file of judgments in the place of its directory chooses it.
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
from bertjax.data.local_files import ids_of, whole_number
from bertjax.data.tables import Table, brief, json_object, numbered_lines, problem_of
from bertjax.errors import DataError, some_of
from bertjax.formatting import count_of
from bertjax.paths import is_directory, is_file, listing

QUERY_IDS = ("query_id", "query-id", "qid", "question_id")
TEXT_IDS = ("candidate_id", "passage_id", "document_id", "doc_id", "docid", "corpus-id", "corpus_id", "pid")
OF_QUERIES, OF_TEXTS = ("queries", "topics"), ("corpus", "collection", "documents", "passages")
OF_JUDGMENTS, OF_RUNS = ("qrels", "qrel"), ("run",)
KINDS = (".jsonl", ".tsv", ".txt", ".trec", "")
IDS, CONTENTS = ("_id", "id", "docid", "qid", "query_id", "pid"), ("text", "contents", "body", "query", "question")
QUERIES = ("query", "question", "premise", "sentence1")
TEXTS = ("candidate", "passage", "document", "doc", "sentence", "answer", "text", "sentence2", "hypothesis")
RELEVANCE = ("relevance", "relevant", "label", "score", "grade", "rating")
POSITIVE, NEGATIVE = ("positive", "positives", "pos"), ("negative", "negatives", "neg")
LISTS, GRADES = ("candidates", "passages", "documents"), ("relevance", "labels", "relevances")
YES = ("yes", "true", "relevant", "entailment", "equivalent", "duplicate", "positive")
NO = ("no", "false", "irrelevant", "not_relevant", "not_entailment", "not_equivalent", "not_duplicate", "negative")
MISSING = object()  # the value of a key that an object does not have
HEADERS = {*IDS, *QUERY_IDS, *TEXT_IDS}


@dataclass(frozen=True, eq=False)
class Pool:
    """Texts among which queries search; several queries may share one.

    Args:
        names: of the texts, all different.
        texts: one for each name.
    """

    names: tuple[str, ...] = field(repr=False)
    texts: tuple[str, ...] = field(repr=False)

    @cached_property
    def sha256(self) -> str:
        """A hash of names and texts."""
        return hashlib.sha256(json.dumps([self.names, self.texts]).encode()).hexdigest()


@dataclass(frozen=True)
class Candidates(Content):
    """The candidates of a query, and which are relevant.

    Args:
        pool: the candidates.
        relevance: of the relevant texts by name, integers from 1; also of texts that are not candidates.
        excluded: the name of the text in the pool that is no candidate, the query's own document; None for none.
    """

    pool: Pool
    relevance: Mapping[str, int]
    excluded: str | None = None

    def facts(self) -> dict[str, Any]:
        """Hash of the pool, relevance and what is excluded."""
        facts = {"pool": self.pool.sha256, "relevance": dict(self.relevance)}
        return facts if self.excluded is None else {**facts, "excluded": self.excluded}

    def describe(self, arrays: Mapping[str, Any], example: int) -> dict[str, Any]:
        """Relevant candidates, and those that some run ranks first."""
        firsts = set()
        if "first" in arrays:  # outputs are rankings
            firsts = {*arrays["first"][:, example].tolist(), int(arrays["base_first"][example])}
        return {
            "candidates": [
                {"number": number, "name": name, "text": text, "relevance": self.relevance.get(name, 0)}
                for number, (name, text) in enumerate(zip(self.pool.names, self.pool.texts, strict=True))
                if name != self.excluded and (number in firsts or name in self.relevance)
            ]
        }


Query: TypeAlias = tuple[str, str, Candidates]  # id, text and candidates


def excluding_own(queries: Sequence[Query]) -> list[Query]:
    """The queries without the candidate that has their id."""
    names = {id(one.pool): {*one.pool.names} for _, _, one in queries}
    return [
        (name, text, replace(one, excluded=name if name in names[id(one.pool)] else None))
        for name, text, one in queries
    ]


def is_collection(path: Path) -> bool:
    """Whether a path is of a collection: its directory, or a file of judgments."""
    if is_directory(path):
        return not is_saved_dataset(path)
    return _is_called(path, OF_JUDGMENTS) or path.parent.name in OF_JUDGMENTS


def read_collection(path: Path) -> tuple[list[Query], list[str]]:
    """The queries that have judgments: id, text and what each is to find; and what was left out, in words.

    Queries and texts without any text are left out. A judgment whose text is not in the corpus stays: trec_eval counts
    it as not found.

    Args:
        path: the directory, or a file of judgments in it or in its folder `qrels`.

    Raises:
        DataError: a file is missing or holds nothing, or a line of it is wrong.
    """
    judgments, home = _judgments(path)
    judged = _read_judgments(judgments)
    run = _one_of(home, OF_RUNS)
    retrieved = None if run is None else _read_run(run)
    asked = judged.keys() & retrieved.keys() if retrieved is not None else judged.keys()
    if not asked:
        raise DataError(f"{run}: holds none of the queries that {judgments.name} judges")
    queries = _read_texts(_needed(home, OF_QUERIES), asked)
    if missing := sorted(asked - queries.names):
        raise DataError(f"{judgments}: there is no query {some_of(missing)} in {home}")
    wanted = None if retrieved is None else {name for names in retrieved.values() for name in names}
    corpus = _read_texts(_needed(home, OF_TEXTS), wanted)
    whole = Pool(tuple(corpus.texts), tuple(corpus.texts.values()))
    found = []
    for name, text in queries.texts.items():
        pool = whole
        if retrieved is not None:
            if missing := [one for one in retrieved[name] if one not in corpus.names]:
                raise DataError(f"{run}: there is no text {some_of(missing)} of query {brief(name)} in {home}")
            names = tuple(one for one in retrieved[name] if one in corpus.texts)
            pool = Pool(names, tuple(corpus.texts[one] for one in names))
        relevance = {one: grade for one, grade in judged[name].items() if grade > 0}
        found.append((name, text, Candidates(pool, relevance)))
    absent = [one for name in asked for one in judged[name] if one not in corpus.names]
    if len(absent) == sum(len(judged[name]) for name in asked):
        raise DataError(f"{judgments}: no text that it judges is in {corpus.path}, such as {some_of(absent, most=1)}")
    said = [f"{count_of(len(absent), 'judgment')} of texts that {corpus.path.name} does not hold"] if absent else []
    return found, [*queries.left_out("query"), *corpus.left_out("text"), *said]


def _is_called(path: Path, names: Sequence[str]) -> bool:
    """Whether a file is called so, whatever it ends in; or ends in that name."""
    stem = path.name.removesuffix(".gz")
    return any(stem == f"{name}{kind}" for name in names for kind in KINDS) or stem.endswith(
        tuple(f".{name}" for name in names)
    )


def _one_of(home: Path, names: Sequence[str]) -> Path | None:
    """The one file of a directory that is called so. Raises `DataError` where several are."""
    found = [file for file in listing(home) if _is_called(file, names) and is_file(file)]
    if len(found) > 1:
        raise DataError(f"{home}: holds {some_of([file.name for file in found])}: leave one of them there")
    return found[0] if found else None


def _needed(home: Path, names: Sequence[str]) -> Path:
    found = _one_of(home, names)
    if found is None:
        raise DataError(f"{home}: holds no {names[0]}.jsonl or {names[0]}.tsv, as a collection of TREC or BEIR has it")
    return found


def _judgments(path: Path) -> tuple[Path, Path]:
    """The file of judgments, and the directory of its collection."""
    if not is_directory(path):
        return path, path.parent.parent if path.parent.name in OF_JUDGMENTS else path.parent
    several = [file for name in OF_JUDGMENTS for file in (listing(path / name) if is_directory(path / name) else ())]
    if not several:
        return _needed_judgments(path), path
    if len(several) > 1:
        raise DataError(f"{path}: holds several judgments: give one of {some_of([str(file) for file in several])}")
    return several[0], path


def _needed_judgments(home: Path) -> Path:
    found = _one_of(home, OF_JUDGMENTS)
    if found is None:
        raise DataError(f"{home}: holds no qrels, as a collection of TREC or BEIR has them")
    return found


def _fields(path: Path, counts: Iterable[int]) -> Iterator[tuple[int, list[str]]]:
    """The columns of each line, but of a first line that names them.

    Tabs alone separate the columns of a line that has any, so that ids may hold spaces.
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
    """The relevance of each text for each query; its id is the first column, text and relevance are the last two."""
    found: dict[str, dict[str, int]] = {}
    for line, fields in _fields(path, (3, 4)):
        grade = grade_of(fields[-1])
        if grade is None:
            raise DataError(f"{path}, line {line}: relevance {brief(fields[-1])} is no whole number")
        earlier = found.setdefault(fields[0], {}).setdefault(fields[-2], grade)
        if earlier != grade:
            pair = f"text {brief(fields[-2])} of query {brief(fields[0])}"
            raise DataError(f"{path}, line {line}: {pair} has relevance {grade}, and {earlier} in a line before")
    if not found:
        raise DataError(f"{path}: holds no judgments")
    return found


def _read_run(path: Path) -> dict[str, dict[str, None]]:
    """The texts that a run has for each query, in its order."""
    found: dict[str, dict[str, None]] = {}
    for line, fields in _fields(path, (6,)):
        own = found.setdefault(fields[0], {})
        if fields[2] in own:
            raise DataError(f"{path}, line {line}: text {brief(fields[2])} of query {brief(fields[0])} is there twice")
        own[fields[2]] = None
    if not found:
        raise DataError(f"{path}: holds no run")
    return found


@dataclass(frozen=True)
class _Texts:
    """Queries or texts of a file.

    Args:
        path: of the file.
        texts: those that are wanted, by id.
        names: the ids of all.
        empty: the ids of those that are wanted and have no text.
    """

    path: Path
    texts: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    empty: list[str] = field(default_factory=list)

    def left_out(self, noun: str) -> list[str]:
        """In words, what has no text; nothing where all have."""
        if not self.empty:
            return []
        return [f"{count_of(len(self.empty), noun)} without text left out: {some_of(self.empty)}"]


def _read_texts(path: Path, wanted: Iterable[str] | None) -> _Texts:
    """A file of queries or texts.

    Args:
        wanted: only these ids; None for all.
    """
    chosen, found = None if wanted is None else {*wanted}, _Texts(path)
    is_json = ".jsonl" in path.name
    for line, text in numbered_lines(path):
        if line == 1 and not is_json and text.split("\t")[0].strip().lower() in HEADERS:
            continue
        where = f"{path}, line {line}"
        name, content = _of_json(where, text) if is_json else _of_columns(where, text)
        if name in found.names:
            raise DataError(f"{where}: {brief(name)} is there twice")
        found.names.add(name)
        if chosen is not None and name not in chosen:
            continue
        if content:
            found.texts[name] = content
        else:
            found.empty.append(name)
    if not found.names:
        raise DataError(f"{path}: holds no texts")
    if found.empty and not found.texts:
        raise DataError(f"{path}: none of the {count_of(len(found.names), 'text')} that are needed holds any text")
    return found


def _of_columns(where: str, line: str) -> tuple[str, str]:
    name, tab, text = line.partition("\t")
    if not tab or not name.strip():
        raise DataError(f"{where}: an id, a tab and a text are needed")
    return name.strip(), text.replace("\t", " ").strip()


def _of_json(where: str, line: str) -> tuple[str, str]:
    """Id and text of an object, behind its title if it has one."""
    row = json_object(where, line)
    name, text = (next((row[key] for key in keys if key in row), MISSING) for keys in (IDS, CONTENTS))
    text = "" if text is None else text
    if not isinstance(name, str | int) or isinstance(name, bool) or not isinstance(text, str):
        raise DataError(f"{where}: it takes an id and a text, as {IDS[0]} and {CONTENTS[0]}")
    title, name = row.get("title"), str(name).strip()
    whole = f"{title} {text}".strip() if isinstance(title, str) else text.strip()
    if not name:
        raise DataError(f"{where}: its id is empty")
    if problem := problem_of(f"{name} {whole}"):
        raise DataError(f"{where}: it {problem}")
    return name, whole


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
class Queries:
    """The queries of a file or collection.

    Args:
        queries: id, text and what each is to find.
        columns: which columns hold what, where that was guessed; empty or from a comma on.
        left_out: what was left out, in words.
        has_ids: whether queries and texts have ids of the data's own.
    """

    queries: Sequence[Query]
    columns: str = ""
    left_out: Sequence[str] = ()
    has_ids: bool = True


def read_queries(table: Table, spec: DatasetSpec, columns: Sequence[str] | None) -> Queries:
    """The queries of a table."""
    if columns is not None and len(columns) != 2:
        raise DataError(f"{spec.name} takes two text columns, the queries' first; found {', '.join(columns)}")
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
    return Queries(queries, said, [several] if left_out else [], has_ids)


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


def grade_of(value: object) -> int | None:
    """How relevant something is said to be: a whole number of at most six digits, also as 1.0; None for any other."""
    number = whole_number(value)
    return number if number is not None and abs(number) < 10**6 else None
