"""Multiple choice: each choice is read after its question as a pair, and the highest score is the prediction.

Data are SWAG, RACE, COPA, ARC and others in their formats. Choices are a list in a column (`choices`, `endings`,
`options`, `answers`) of JSONL, Parquet or `datasets`, or have a column each (`ending0`, `choice1`, `sol1` ...). The
text before them is in `context` (or `ctx`, `premise`, `passage`, `article`, `sent1`, `goal`, `sentence`) or `question`
(or `sent2`, `question_stem`) or both. If choices have labels, as in ARC, CommonsenseQA and OpenBookQA (`choices.text`
and `choices.label`), the label of a row is one of them. Otherwise it is the right choice's index from 0, its letter, or
its text, the same in all rows of a file; WinoGrande's `answer` is the number in the column names `option1` and
`option2`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float

from bertjax.data import Content, Examples, Source, Table, Tokenizer, as_int, brief, is_missing, missing_labels
from bertjax.errors import some_of
from bertjax.formatting import count_of
from bertjax.interventions import readouts
from bertjax.models import BertForMultipleChoice, PretrainedModel
from bertjax.results import NAME, PLAIN, TRUE, Display, Line, shorten
from bertjax.tasks.encoded import TextEncodings
from bertjax.tasks.outputs import Form, Graded, Objective, cross_entropy
from bertjax.tasks.task import EncodeArguments, Task, encode_texts

CHOOSING = "multiple-choice"
LISTS = ("choices", "endings", "options", "answers")
CONTEXTS = ("context", "ctx", "premise", "passage", "article", "sent1", "goal", "sentence")
QUESTIONS = ("question", "sent2", "question_stem")
LABELS = ("label", "answer", "answerKey", "labels", "gold_label")
BY_LABEL = "label"  # of the choices
WINOGRANDE = ("option1", "option2")
SINGLE = re.compile(r"(ending|choice|sol|solution|option|answer)_?(\d)")


def side_by_side(*scores: Float[np.ndarray, "*examples 1"]) -> Float[np.ndarray, "*examples choices"]:
    """The scores of the choices of each example."""
    return np.concatenate(scores, axis=-1)


class ChoicesDisplay(Display):
    """Questions with their choices; the right choice is marked."""

    def lines(self, example: int) -> list[Line]:
        """The texts before the choices, and the choices with their indices."""
        row = self.saved.examples[example]
        choices = [
            [(str(index), NAME), (shorten(text), TRUE if index == row["label"] else PLAIN)]
            for index, text in enumerate(row["choices"])
        ]
        return super().lines(example) + choices


CHOSEN = Form("choices", readouts.logits, side_by_side, predicts=True, display=ChoicesDisplay)


@dataclass(frozen=True)
class Choices(Content):
    """The choices of a question.

    Args:
        texts: the texts of the choices; all examples have equally many.
    """

    texts: tuple[str, ...]

    def describe(self, arrays: Mapping[str, Any], example: int) -> dict[str, Any]:
        """The choices."""
        return {"choices": [*self.texts]}


@dataclass(frozen=True)
class MultipleChoice(Task):
    """Multiple-choice questions."""

    models = (BertForMultipleChoice,)
    needs = "multiple-choice head"
    forms = (CHOSEN,)
    files = "a file of context or question, choices and label (.jsonl, .csv, .tsv or .parquet)"
    reads_pairs = True
    max_tokens = 128

    def read_table(self, table: Table, source: Source) -> Examples:
        """Read the questions of a table; the text columns are the one or two texts before the choices."""
        usual = (name for name in (table.find(CONTEXTS), table.find(QUESTIONS)) if name is not None)
        before = list(source.text_columns or usual) or [table.need(CONTEXTS)]
        label, texts = table.need(("label", *LABELS)), [table.texts(name) for name in before]
        choices = _choices(table, label)
        labels = _labels(table, label, choices, source.may_lack_labels)
        count = len(choices[0].texts)
        what = f"{count_of(len(table), 'question')} with {count} choices each, after {' and '.join(before)}"
        return Examples(
            task=replace(self, label_names=tuple(map(str, range(count)))),
            ids=tuple(table.indices),
            first=texts[0],
            second=texts[1] if len(texts) > 1 else None,
            labels=np.array(labels, np.int32),
            source=f"{table.path} ({what})",
            split="validation",
            content=tuple(Choices(one.texts) for one in choices),
        )

    def encode(
        self, model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, arguments: EncodeArguments
    ) -> "EncodedChoices":
        """Encode the text before the choices with each choice; a question after a context is joined to the choice."""
        choices = [content.texts for content in examples.content or () if isinstance(content, Choices)]
        questions = examples.second or ("",) * len(examples)
        count = len(choices[0])
        first = [*examples.first] * count
        second = [
            f"{question} {texts[index]}".strip()
            for index in range(count)
            for question, texts in zip(questions, choices, strict=True)
        ]
        encodings = encode_texts(tokenizer, first, second, arguments.max_length)
        return EncodedChoices(CHOSEN, encodings, tokenizer.pad_id, len(examples), examples.labels, count)


MULTIPLE_CHOICE = MultipleChoice(CHOOSING, ("context", "question"), metrics=("accuracy",))


@dataclass(frozen=True)
class EncodedChoices(TextEncodings):
    """Each choice after its question."""

    @property
    def zeros(self) -> Float[np.ndarray, "outputs choices"]:
        """Scores of one run, all 0."""
        return np.zeros((len(self.labels), self.copies))

    @property
    def objective(self) -> Objective:
        """The cross-entropy of the true choice."""
        return Objective(readouts.logits, self.grade, "cross-entropy of the true choice")

    def grade(self, example: int, values: Float[np.ndarray, "choices 1"]) -> Graded:
        """An example's loss and its gradient."""
        if self.labels[example] < 0:
            return np.nan, np.zeros(values.shape)
        loss, gradient = cross_entropy(values[:, 0], int(self.labels[example]))
        return loss, gradient[:, None]


@dataclass(frozen=True)
class _Row:
    """The choices of a row.

    Args:
        texts: the texts of the choices.
        labels: the label of each choice; empty if choices have no labels.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...] = ()


def _choices(table: Table, label: str) -> list[_Row]:
    """The choices of each row, equally many in all rows."""
    name = table.find(LISTS)
    single = sorted(name for name in table.columns if SINGLE.fullmatch(name))
    if name is None and len(single) < 2:
        raise table.no_column("choices")
    if name is None:
        # Labels of WinoGrande are the numbers of its columns; COPA and PIQA have labels from 0, and columns from 1.
        numbered = tuple(single) == WINOGRANDE and label == "answer"
        labels = tuple(column.removeprefix("option") for column in single) if numbered else ()
        return [_Row(texts, labels) for texts in zip(*map(table.texts, single), strict=True)]
    found: list[_Row] = []
    for row, value in enumerate(table.column(name)):
        content, labels = _texts_and_labels(value)
        texts = table.text_list(row, name, content, least=2)
        if found and len(texts) != len(found[0].texts):
            raise table.error(row, f"there are {len(texts)} choices, but {len(found[0].texts)} in earlier rows")
        if labels is not None:
            _check_labels(table, row, name, labels, len(texts))
        if found and bool(found[0].labels) != (labels is not None):
            here, before = ("", "no ") if labels is not None else ("no ", "")
            raise table.error(row, f"the choices have {here}labels, but in earlier rows they have {before}labels")
        found.append(_Row(tuple(texts), tuple(str(one).strip() for one in labels or ())))
    return found


def _texts_and_labels(value: object) -> tuple[Any, Any]:
    """The texts and labels of choices: of a list of str, an object with both, or a list of such objects, as in ARC."""
    if isinstance(value, dict):
        return value.get("text"), value.get("label")
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        labels = [one.get("label") for one in value]
        return [one.get("text") for one in value], None if labels == [None] * len(labels) else labels
    return value, None


def _check_labels(table: Table, row: int, name: str, labels: object, count: int) -> None:
    """Raise `DataError` unless each choice has a distinct label."""
    known = isinstance(labels, list) and all(
        isinstance(one, str | int) and not isinstance(one, bool) and str(one).strip() for one in labels
    )
    if not isinstance(labels, list) or not known or len(labels) != count:
        raise table.error(row, f"column {name!r} has the labels {brief(labels)}, not one for each of {count} choices")
    if len({str(one).strip() for one in labels}) < count:
        raise table.error(row, f"column {name!r} has a label twice: {brief(labels)}")


def _labels(table: Table, column: str, choices: Sequence[_Row], may_lack: bool) -> list[int]:
    """The index of the right choice of each row, or -1 for rows without a label."""
    values = table.named(column) if choices[0].labels else table.column(column)
    missing = [
        row
        for row, (value, one) in enumerate(zip(values, choices, strict=True))
        if is_missing(value, (*one.labels, *one.texts), minus_one=True)  # such a string may be a choice
    ]
    if missing and not may_lack:
        count = len(choices[0].texts)
        alternative = "give --split test if it is a test split"
        raise missing_labels(table, values, missing, f"none of the {count} choices", alternative=alternative)
    without = {*missing}
    known = {row: value for row, value in enumerate(values) if row not in without}
    for way in _ways(table, choices, known):
        found = {row: FINDERS[way](value, choices[row]) for row, value in known.items()}
        return [-1 if index is None else index for index in (found.get(row) for row in range(len(values)))]
    return [-1] * len(values)


def _ways(table: Table, choices: Sequence[_Row], known: Mapping[int, object]) -> list[str]:
    """The ways in which all labels can be read; they agree, so that any will do. Empty if there are no labels.

    Raises:
        DataError: there is no such way, or two disagree.
    """
    found = {way: {row: find(value, choices[row]) for row, value in known.items()} for way, find in FINDERS.items()}
    if any(index is not None for index in found[BY_LABEL].values()):  # then labels have no other meaning
        found = {BY_LABEL: found[BY_LABEL]}
    fitting = [*found]
    for row, value in known.items():
        before, fitting = fitting, [way for way in fitting if found[way][row] is not None]
        if not fitting:
            choice = f"{len(choices[row].texts)} choices by its {' or '.join(before)}"
            if before == [BY_LABEL]:
                choice = f"labels {some_of(choices[row].labels)} of its choices"
            raise table.error(row, f"label {brief(value)} is not one of the {choice}")
    for row, value in known.items():
        if len({found[way][row] for way in fitting}) > 1:
            several = " but ".join(f"choice {found[way][row]} (from 0) by its {way}" for way in fitting)
            raise table.error(row, f"label {brief(value)} is {several}; write its letter")
    return fitting if known else []


def _by_label(value: object, row: _Row) -> int | None:
    number = as_int(value) if isinstance(value, float) else None
    text = str(value if number is None else number).strip()
    return row.labels.index(text) if text in row.labels and not isinstance(value, bool) else None


def _by_index(value: object, row: _Row) -> int | None:
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, bool) or (isinstance(text, str) and not text.isdecimal()):
        return None
    number = as_int(text)
    return number if number is not None and 0 <= number < len(row.texts) else None


def _by_letter(value: object, row: _Row) -> int | None:
    text = value.strip() if isinstance(value, str) else ""
    index = ord(text) - ord("A") if len(text) == 1 else -1
    return index if 0 <= index < min(len(row.texts), 26) else None


def _by_text(value: object, row: _Row) -> int | None:
    texts = [text.strip() for text in row.texts]
    text = value.strip() if isinstance(value, str) else None
    return texts.index(text) if text is not None and texts.count(text) == 1 else None


FINDERS: Mapping[str, Callable[[object, _Row], int | None]] = MappingProxyType(
    {BY_LABEL: _by_label, "index from 0": _by_index, "letter": _by_letter, "text": _by_text}
)
"""The ways to find the right choice of a row by the row's label."""
