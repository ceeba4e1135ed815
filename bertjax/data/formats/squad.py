"""Questions on texts, as SQuAD 1.1 and 2.0 have them (Rajpurkar et al. 2016, 2018), XQuAD and others.

One JSON object for the whole file, `data` > `paragraphs` > `qas`, also `.gz`; or rows as the HuggingFace hub has them
(JSONL, Parquet, `datasets`): `id`, `question`, `context`, and `answers` with lists `text` and `answer_start`. Where any
question is marked `is_impossible`, or any row has no answer, the data are of SQuAD 2.0's kind, in which a question may
have no answer. An empty answer is no answer, as in the official program of SQuAD 2.0.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.data.tables import Table, brief, problem_of
from bertjax.data.tasks import Answers, Examples, Task
from bertjax.errors import DataError, reading
from bertjax.formatting import count_of
from bertjax.json_files import parse_json
from bertjax.paths import is_directory, open_data

ROWS = (".jsonl", ".jsonl.gz", ".parquet", ".parquet.gz")
COLUMNS = ("question", "context", "answers")


@dataclass(frozen=True)
class _Question:
    """A question as it is read.

    Args:
        name: its id; None where it has none.
        question, context: the texts.
        answers: those that are not empty.
        can_lack: whether it shows that questions of these data may have no answer.
        place: where it is in the file, for messages.
    """

    name: str | None
    question: str
    context: str
    answers: tuple[str, ...]
    can_lack: bool
    place: str


def read_questions(table: Table, task: Task, columns: Sequence[str] | None = None) -> Examples:
    """Questions of a table, with their contexts.

    Args:
        task: `question-answering`.
        columns: refused: these data have columns of fixed names.

    Raises:
        DataError: something in it is wrong.
    """
    _check_columns(task, columns)
    return _examples(table.path, task, _questions_of_rows(table))


def is_squad(path: Path) -> bool:
    """Whether a path is a file that has no rows."""
    return not is_directory(path) and not path.name.endswith(ROWS)


def read_squad(path: Path, task: Task, columns: Sequence[str] | None = None) -> Examples:
    """Questions of a file of one JSON object; as `read_questions`."""
    _check_columns(task, columns)
    if not path.name.endswith((".json", ".json.gz")):
        raise DataError(
            f"{path}: {task.name} needs a .json file in SQuAD's form (also .gz), or one of {', '.join(ROWS)}"
        )
    return _examples(path, task, _questions_of_file(path))


def _check_columns(task: Task, columns: Sequence[str] | None) -> None:
    if columns is not None:
        raise DataError(f"{task.name} reads SQuAD's form, whose columns have fixed names: leave out text columns")


def _examples(path: Path | str, task: Task, found: Sequence[_Question]) -> Examples:
    """The questions that have a text and a context.

    Args:
        path: the file, or what messages call an object in memory.
    """
    questions = [one for one in found if one.question.strip() and one.context.strip()]
    if not questions:
        raise DataError(f"{path}: holds no questions with a text and a context")
    blank = [one for one in found if not (one.question.strip() and one.context.strip())]
    without = "without a text or a context left out"
    left_out = f"; {count_of(len(blank), 'question')} {without} (first in {blank[0].place})" if blank else ""
    can_lack = any(one.can_lack for one in questions)
    for one in questions:
        if not one.answers and not can_lack:
            raise DataError(f"{path}: question {brief(one.name)} has no answer, and none is marked is_impossible")
    lacking = sum(not one.answers for one in questions)
    return Examples(
        task=task,
        ids=_ids(path, questions),
        first=tuple(one.question for one in questions),
        second=tuple(one.context for one in questions),
        labels=np.full(len(questions), np.nan, np.float32),
        source=f"{path} ({count_of(len(questions), 'question')}{f', {lacking} without answer' * can_lack}{left_out})",
        split="validation",
        content=tuple(Answers(one.answers, can_lack) for one in questions),
    )


def _ids(path: Path | str, questions: Sequence[_Question]) -> tuple[int | str, ...]:
    """The questions' ids; their numbers from 0 where none has an id.

    Raises:
        DataError: some have none, or two have the same.
    """
    if all(one.name is None for one in questions):
        return tuple(range(len(questions)))
    places: dict[str, str] = {}
    for one in questions:
        if one.name is None:
            raise DataError(f"{path}: {one.place}: a question has no id, and others have one")
        if one.name in places:
            raise DataError(
                f"{path}: {one.place}: the id {brief(one.name)} is there twice, first in {places[one.name]}"
            )
        places[one.name] = one.place
    return tuple(places)


def _questions_of_rows(table: Table) -> list[_Question]:
    """Questions with a row each."""
    questions, contexts = (table.texts(name) for name in COLUMNS[:2])
    ids, marks = (
        table.column(name) if name in table.columns else [None] * len(table) for name in ("id", "is_impossible")
    )
    found = []
    for row, value in enumerate(table.column("answers")):
        answers, place = _answers_of_row(table, row, value), table.place(row)
        can_lack = not answers or marks[row] is True
        question_id = _id_of(table.path, place, ids[row])
        found.append(_Question(question_id, questions[row], contexts[row], answers, can_lack, place))
    if "is_impossible" not in table.columns and not any(one.answers for one in found):
        raise DataError(f"{table.path}: no question has an answer, as in a test split that keeps them back")
    return found


def _answers_of_row(table: Table, row: int, value: object) -> tuple[str, ...]:
    """The answers of a row: an object of lists as the hub has it, or a list of objects as SQuAD's own file has it."""
    if isinstance(value, dict):
        value = value.get("text")
    elif isinstance(value, list) and all(isinstance(one, dict) for one in value):
        value = [one.get("text") for one in value]
    else:
        value = None
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise table.error(row, "column 'answers' needs answers of texts, as {'text': [...], 'answer_start': [...]}")
    return _not_empty(table.text_list(row, "answers", value))


def _not_empty(answers: Iterable[str]) -> tuple[str, ...]:
    return tuple(text for text in answers if text.strip())


def _id_of(path: Path | str, place: str, value: object) -> str | None:
    """The id of a question; None where it has none."""
    if value is None or value == "":
        return None
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise DataError(f"{path}: {place}: the id {brief(value)} is neither a text nor a whole number")
    return str(value)


def _questions_of_file(path: Path) -> list[_Question]:
    """Questions of a file of one JSON object."""
    with reading(path, DataError), open_data(path) as file:
        content = parse_json(file.read().decode("utf-8-sig"))
    return list(_questions(path, content))


def _questions(path: Path, content: Any) -> Iterator[_Question]:
    for article, group in enumerate(_list(path, content, "data", "the file")):
        where = f"article {article} (from 0)"
        for number, paragraph in enumerate(_list(path, group, "paragraphs", where)):
            place = f"{where}, paragraph {number}"
            context = _text(path, paragraph, "context", place)
            for one in _list(path, paragraph, "qas", place):
                question = _text(path, one, "question", place)
                texts = [_answer(path, answer, place) for answer in _list(path, one, "answers", place)]
                answers = _not_empty(texts)
                can_lack = one.get("is_impossible") is True or (bool(texts) and not answers)
                yield _Question(_id_of(path, place, one.get("id")), question, context, answers, can_lack, place)


def _answer(path: Path, value: Any, where: str) -> str:
    """The text of an answer, which may be empty."""
    text = _text(path, value, "text", where)
    return text if text.strip() else ""


def _list(path: Path, value: Any, key: str, where: str) -> list[Any]:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, list):
        raise DataError(f"{path}: {where} has no list of {key}: that is not SQuAD's form")
    return found


def _text(path: Path, value: Any, key: str, where: str) -> str:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, str):
        raise DataError(f"{path}: {where} has no {key}, a text: that is not SQuAD's form")
    if problem := problem_of(found):
        raise DataError(f"{path}: {where}: {key} {problem}")
    return found
