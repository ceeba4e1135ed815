"""Collections in the form of TREC and BEIR: queries, texts, and judgments of which texts are relevant for which query.

A directory holds `queries` and `corpus` (or `collection`), each `.jsonl` with `_id`, `text` and perhaps `title`, or
`.tsv` with the id first; judgments in `qrels` (`.tsv`, `.txt` or none) or in files of a folder `qrels`, in four columns
as TREC has them, or in BEIR's three; and perhaps a `run` in TREC's six columns, whose texts are then the candidates.
Columns of judgments and runs are separated by tabs, or in a line without tabs by spaces.
Without it each query is to find its texts in the whole corpus. A file of judgments in the place of its directory
chooses it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bertjax.data.arrow_tables import is_saved_dataset
from bertjax.data.local_files import whole_number
from bertjax.data.tables import brief, json_object, numbered_lines, problem_of
from bertjax.data.tasks import Candidates, Pool
from bertjax.errors import DataError, some_of
from bertjax.formatting import count_of
from bertjax.paths import is_directory, is_file, listing

QUERY_IDS = ("query_id", "query-id", "qid", "question_id")
TEXT_IDS = ("candidate_id", "passage_id", "document_id", "doc_id", "docid", "corpus-id", "corpus_id", "pid")
OF_QUERIES, OF_TEXTS = ("queries", "topics"), ("corpus", "collection", "documents", "passages")
OF_JUDGMENTS, OF_RUNS = ("qrels", "qrel"), ("run",)
KINDS = (".jsonl", ".tsv", ".txt", ".trec", "")
IDS, CONTENTS = ("_id", "id", "docid", "qid", "query_id", "pid"), ("text", "contents", "body", "query", "question")
MISSING = object()  # the value of a key that an object does not have
HEADERS = {*IDS, *QUERY_IDS, *TEXT_IDS}


def is_collection(path: Path) -> bool:
    """Whether a path is of a collection: its directory, or a file of judgments."""
    if is_directory(path):
        return not is_saved_dataset(path)
    return _is_called(path, OF_JUDGMENTS) or path.parent.name in OF_JUDGMENTS


def read_collection(path: Path) -> tuple[list[tuple[str, str, Candidates]], list[str]]:
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


def grade_of(value: object) -> int | None:
    """How relevant something is said to be: a whole number of at most six digits, also as 1.0; None for any other."""
    number = whole_number(value)
    return number if number is not None and abs(number) < 10**6 else None
