"""Questions with several answers to choose from, one of which is right: SWAG, RACE, COPA, ARC and data in their form.

Choices are a list in a column (`choices`, `endings`, `options`, `answers`) of JSONL, Parquet or `datasets`, or columns
of their own (`ending0`, `choice1`, `sol1` ...). What stands before them is in `context` (or `ctx`, `premise`,
`passage`, `article`, `sent1`) and `question` (or `sent2`), one of which may be missing. The label is the right one's
number from 0, its letter, or its text.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from bertjax.data.local_files import read_table, texts_of
from bertjax.data.tables import Table, brief, no_column
from bertjax.data.tasks import Choices, Examples, Task
from bertjax.formatting import HALF_CHARACTER, count_of
from bertjax.machine import memory_left

LISTS = ("choices", "endings", "options", "answers")
CONTEXTS = ("context", "ctx", "premise", "passage", "article", "sent1")
QUESTIONS = ("question", "sent2")
LABELS = ("label", "answer", "answerKey", "labels", "gold_label")
SINGLE = re.compile(r"(ending|choice|sol|solution|option|answer)_?(\d)")


def read_choices(path: Path, task: Task, columns: Sequence[str] | None = None, memory: int | None = None) -> Examples:
    """Questions of a file, or of the directory of a split that `datasets` saved.

    Args:
        task: `multiple-choice`.
        columns: one or two, of what stands before the choices, in place of the usual ones.
        memory: bytes that this process may hold while reading.

    Raises:
        DataError: a line of it is wrong.
    """
    table = read_table(path, task, partial(_wanted, columns), memory_left(memory), lists=True)
    before = list(columns or ())
    for usual in () if columns else (CONTEXTS, QUESTIONS):
        before += [name for name in usual if name in table.columns][:1]
    if not before:
        raise no_column("context", table.columns, str(path))
    label = next((name for name in LABELS if name in table.columns), None)
    if label is None:
        raise no_column("label", table.columns, str(path))
    texts = [texts_of(table, name) for name in before]
    choices = _choices(table)
    labels = [_label(table, row, value, choices[row]) for row, value in enumerate(table.column(label))]
    count = len(choices[0])
    what = f"{count_of(len(table), 'question')} with {count} choices each, behind {' and '.join(before)}"
    return Examples(
        task=replace(task, label_names=tuple(map(str, range(count)))),
        ids=tuple(table.numbers),
        first=texts[0],
        second=texts[1] if len(texts) > 1 else None,
        labels=np.array(labels, np.int32),
        source=f"{path} ({what})",
        split="validation",
        content=tuple(Choices(several) for several in choices),
    )


def _wanted(columns: Sequence[str] | None, found: Sequence[str], where: str) -> set[str]:
    """Columns of a file that may be needed."""
    known = {*LISTS, *CONTEXTS, *QUESTIONS, *LABELS, *(columns or ())}
    return {name for name in found if name in known or SINGLE.fullmatch(name)}


def _choices(table: Table) -> list[tuple[str, ...]]:
    """The choices of each row, as many everywhere."""
    name = next((name for name in LISTS if name in table.columns), None)
    single = sorted(name for name in table.columns if SINGLE.fullmatch(name))
    if name is None and len(single) < 2:
        raise no_column("choices", table.columns, str(table.path))
    if name is None:
        return list(zip(*(texts_of(table, column) for column in single), strict=True))
    found: list[tuple[str, ...]] = []
    for row, value in enumerate(table.column(name)):
        texts = value.get("text") if isinstance(value, dict) else value  # ARC has the labels beside them
        if not isinstance(texts, list) or len(texts) < 2 or not all(isinstance(text, str) for text in texts):
            raise table.error(row, f"column {name!r} holds {brief(value)}, which is no list of two texts or more")
        if any(HALF_CHARACTER.search(text) for text in texts):
            raise table.error(row, f"column {name!r} holds half a character (a lone surrogate)")
        if found and len(texts) != len(found[0]):
            raise table.error(row, f"there are {len(texts)} choices, {len(found[0])} in the rows before")
        found.append(tuple(texts))
    return found


def _label(table: Table, row: int, value: object, choices: tuple[str, ...]) -> int:
    """The number of the right choice, or -1 where that is not said."""
    text = str(value).strip()
    if value in ("", None, -1, "-1"):
        return -1
    if text.isdecimal() and not isinstance(value, bool) and len(text) < 4 and int(text) < len(choices):
        return int(text)
    if len(text) == 1 and "A" <= text <= "Z" and ord(text) - ord("A") < len(choices):
        return ord(text) - ord("A")
    if choices.count(text) == 1:
        return choices.index(text)
    raise table.error(
        row, f"label {brief(value)} is none of the {len(choices)} choices, by number from 0, letter or text"
    )
