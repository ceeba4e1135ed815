"""Questions on texts, as SQuAD 1.1 and 2.0 have them (Rajpurkar et al. 2016, 2018), XQuAD and others.

One JSON object for the whole file, `data` > `paragraphs` > `qas`, also `.gz`. Where any question is marked
`is_impossible` the data are of SQuAD 2.0's kind, in which a question may have no answer.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.data.tables import JSON_BYTES, LINE_BYTES, brief
from bertjax.data.tasks import Answers, Examples, Task
from bertjax.errors import DataError
from bertjax.formatting import count_of, format_bytes
from bertjax.json_files import JsonError, parse_json
from bertjax.machine import memory_left
from bertjax.paths import open_data

Found = tuple[str, str, str, list[str], bool]  # id, question, context, answers, whether it is said to have none


def read_questions(path: Path, task: Task, columns: Sequence[str] | None = None, memory: int | None = None) -> Examples:
    """Questions of a file, with their contexts.

    Args:
        task: `question-answering`.
        columns: refused: these files have none.
        memory: bytes that this process may hold while reading.

    Raises:
        DataError: something in it is wrong.
    """
    if columns is not None:
        raise DataError(f"{task.name} reads SQuAD's form, which has no columns: leave out text columns")
    if not path.name.endswith((".json", ".json.gz")):
        raise DataError(f"{path}: {task.name} needs a .json file in SQuAD's form (also .gz)")
    try:
        content = parse_json(_read(path, memory_left(memory)))
    except JsonError as error:
        raise DataError(f"{path}: {error}") from error
    questions = list(_questions(path, content))
    if not questions:
        raise DataError(f"{path}: holds no questions")
    can_lack = any(lacks for *_, lacks in questions)
    for name, _, _, answers, _ in questions:
        if not answers and not can_lack:
            raise DataError(f"{path}: question {brief(name)} has no answer, and none is marked is_impossible")
    ids, first, second, true, _ = zip(*questions, strict=True)
    lacking = sum(not texts for texts in true)
    return Examples(
        task=task,
        ids=ids if len(set(ids)) == len(ids) else tuple(range(len(ids))),
        first=first,
        second=second,
        labels=np.full(len(ids), np.nan, np.float32),
        source=f"{path} ({count_of(len(ids), 'question')}{f', {lacking} without answer' * can_lack})",
        split="validation",
        content=tuple(Answers(tuple(texts), can_lack) for texts in true),
    )


def _read(path: Path, room: int) -> str:
    """The text of a file, if there is room for it and for what is made of it."""
    limit = room // LINE_BYTES
    with open_data(path) as file:
        try:
            content = file.read(limit + 1)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error}); check the path") from error
    parts = sum(map(content.count, (b"{", b"[", b",", b":"))) * JSON_BYTES
    if len(content) > limit or parts > room:
        raise DataError(
            f"{path}: takes more than the {format_bytes(room)} of memory that are left: give more, or a part"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error.reason}); save the file as UTF-8") from error


def _questions(path: Path, content: Any) -> Iterator[Found]:
    for article, group in enumerate(_list(path, content, "data", "the file")):
        where = f"article {article} (from 0)"
        for number, paragraph in enumerate(_list(path, group, "paragraphs", where)):
            place = f"{where}, paragraph {number}"
            context = _text(path, paragraph, "context", place)
            for one in _list(path, paragraph, "qas", place):
                question = _text(path, one, "question", place)
                name = one.get("id", "")
                if not isinstance(name, str | int):
                    raise DataError(f"{path}: {place}: the id {brief(name)} is no text")
                answers = [_text(path, answer, "text", place) for answer in _list(path, one, "answers", place)]
                yield str(name), question, context, answers, one.get("is_impossible") is True


def _list(path: Path, value: Any, key: str, where: str) -> list[Any]:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, list):
        raise DataError(f"{path}: {where} has no list of {key}: that is not SQuAD's form")
    return found


def _text(path: Path, value: Any, key: str, where: str) -> str:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, str) or not found.strip():
        raise DataError(f"{path}: {where} has no {key}, a text: that is not SQuAD's form")
    return found
