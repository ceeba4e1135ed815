"""Question answering: a long context is read in overlapping windows, and the best span of all windows is the answer.

Data have the format of SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018), XQuAD and others: one JSON object for the whole
file, `data` > `paragraphs` > `qas`, also `.gz`; or rows as on the HuggingFace hub (JSONL, Parquet, `datasets`): `id`,
`question`, `context`, and `answers` with lists `text` and `answer_start`. If a question is marked `is_impossible`, or a
row has no answer, questions may have no answer, as in SQuAD 2.0. An empty answer counts as no answer, as in the
official program of SQuAD 2.0.
"""

import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float, Int

from bertjax.data import Content, Encoding, Examples, Source, Table, Tokenizer, brief, is_saved_dataset
from bertjax.errors import DataError, InputError, reading
from bertjax.formatting import count_of
from bertjax.interventions import readouts
from bertjax.json_files import parse_json
from bertjax.models import BertForQuestionAnswering, PretrainedModel
from bertjax.paths import open_data
from bertjax.results import LONGEST, NAME, PLAIN, RIGHT, TRUE, WRONG, Line, NumberDisplay, cut_out, shorten
from bertjax.statistics import ratios
from bertjax.tasks.encoded import TargetPositions, TaskOutputs, TokenEncodings
from bertjax.tasks.outputs import Form, Graded, Objective, cross_entropy
from bertjax.tasks.task import EncodeArguments, Task, TaskOptions

ANSWERING = "question-answering"
ROWS = (".jsonl", ".jsonl.gz", ".parquet", ".parquet.gz")
COLUMNS = ("question", "context", "answers")
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
NO_ANSWER = (-1, -1)  # as a span


class AnswersDisplay(NumberDisplay):
    """Questions, and answers in their contexts."""

    value, note = "F1", "An answer is green if it matches a true answer exactly."
    number = 2

    def lines(self, example: int) -> list[Line]:
        """The question, the true answer in the context, and the predicted answer."""
        row, arrays = self.saved.examples[example], self.saved.outputs
        context, answers = row["second"], row["answers"]
        true: Line = [("true", NAME)]
        if answers and answers[0] in context:
            start = context.index(answers[0])
            true += cut_out(context, start, start + len(answers[0]), TRUE, around=LONGEST // 2)
        else:
            true.append((" / ".join(answers) or "no answer", TRUE))
        exact = arrays["base"][example, 1] > 0
        return [[(shorten(row["first"]), PLAIN)], true, self._found("found", example, arrays["base_spans"], exact)]

    def change(self, run: int, example: int) -> list[Line]:
        """The answer of an ablated model."""
        arrays = self.saved.outputs
        return [self._found("ablated", example, arrays["spans"][run], arrays["outputs"][run, example, 1] > 0)]

    def _found(self, name: str, example: int, spans: Int[np.ndarray, "examples 2"], exact: Any) -> Line:
        (start, end), mark = spans[example].tolist(), RIGHT if exact else WRONG
        context = self.saved.examples[example]["second"]
        return [(name, NAME), *(cut_out(context, start, end, mark) if start >= 0 else [("no answer", mark)])]


ANSWERS = Form("answers", readouts.answers, called="answers", numbers=ratios.ANSWERS, sized=1, display=AnswersDisplay)


@dataclass(frozen=True)
class Answers(Content):
    """The true answers to a question.

    Args:
        texts: the alternative answers; empty if the context has no answer.
        can_lack: whether questions of these data may have no answer, as in SQuAD 2.0.
    """

    texts: tuple[str, ...]
    can_lack: bool

    def describe(self, arrays: Mapping[str, Any], example: int) -> dict[str, Any]:
        """The answers."""
        return {"answers": [*self.texts]}


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringOptions(TaskOptions):
    """How long contexts are read.

    Args:
        stride: with task question-answering: the number of tokens that windows on a long text share.
    """

    stride: Annotated[int, 0] = 128


@dataclass(frozen=True)
class QuestionAnswering(Task):
    """Questions on contexts."""

    models = (BertForQuestionAnswering,)
    needs = "question-answering head"
    forms = (ANSWERS,)
    options = QuestionAnsweringOptions
    files = "a .json file in SQuAD's format, or a file of question, context and answers (.jsonl or .parquet)"
    max_tokens = 384  # as in the reference programs of SQuAD

    def read_table(self, table: Table, source: Source) -> Examples:
        """Read the questions of a table with fixed column names."""
        return self._examples_of(table, source)

    def _examples_of(self, table: Table, source: Source, marked: bool = False) -> Examples:
        if source.text_columns is not None:
            raise DataError(f"{self.name} reads SQuAD's format, whose columns have fixed names: leave out text columns")
        return _examples(table.path, self, _questions(table, marked))

    def read_path(self, path: Path, source: Source) -> Examples:
        """Read the questions of rows, or of a file of one JSON object."""
        if path.name.endswith(ROWS) or is_saved_dataset(path):
            return super().read_path(path, source)
        if not path.name.endswith((".json", ".json.gz")):
            raise DataError(
                f"{path}: {self.name} needs a .json file in SQuAD's format (also .gz), or one of {', '.join(ROWS)}"
            )
        return self._examples_of(_table_of_squad(path), source, marked=True)

    def encode(
        self, model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, arguments: EncodeArguments
    ) -> "EncodedQuestions":
        """Encode questions with the windows of their contexts.

        Questions whose context has no token, or that leave no room for it, are dropped.

        Raises:
            InputError: all questions are dropped.
        """
        assert examples.second is not None
        assert isinstance(arguments.options, QuestionAnsweringOptions)
        pairs = tokenizer.encode(list(examples.first), list(examples.second), None, word_ids=True)
        windows: list[_Window] = []
        owners: list[int] = []
        kept, left_out = list[int](), dict[str, list[int]]()
        for example, pair in enumerate(pairs):
            found = _windows(pair, arguments.max_length, arguments.options.stride)
            if isinstance(found, str):
                left_out.setdefault(found, []).append(example)
                continue
            windows += found
            owners += [len(kept)] * len(found)
            kept.append(example)
        reasons = "; ".join(
            f"{count_of(len(dropped), 'question')} {why} (first {examples.ids[dropped[0]]})"
            for why, dropped in left_out.items()
        )
        if not kept:
            raise InputError(f"no question can be read: {reasons}")
        tokens = [[0, *range(window.first, window.first + len(window.offsets))] for window in windows]
        of_context = [[0, *[1] * len(window.offsets)] for window in windows]
        read = examples.take(kept)
        answers = [content for content in read.content or () if isinstance(content, Answers)]
        return EncodedQuestions(
            ANSWERS,
            tuple(window.text for window in windows),
            tokenizer.pad_id,
            len(kept),
            np.array([len(content.texts) for content in answers], np.int32),
            TargetPositions.of_lists(tokens, of_context, owners),
            dropped=sorted({*range(len(pairs))} - {*kept}),
            note=f"left out: {reasons}" if left_out else "",
            windows=windows,
            contexts=read.second or (),
            answers=answers,
        )


QUESTION_ANSWERING = QuestionAnswering(ANSWERING, ("question", "context"), metrics=("answer_f1", "exact_match"))


@dataclass(frozen=True)
class _Window:
    """A part of a context, after its question.

    Args:
        text: the encoding of both.
        first: the index of the first token of the context.
        offsets: start and end of each token of the context, in characters.
    """

    text: Encoding
    first: int
    offsets: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class EncodedQuestions(TokenEncodings):
    """Windows of contexts, each after its question.

    Args:
        windows: one for each encoding.
        contexts: the contexts of the questions.
        answers: the answers of the questions.
    """

    windows: Sequence[_Window] = field(kw_only=True)
    contexts: Sequence[str] = field(kw_only=True)
    answers: Sequence[Answers] = field(kw_only=True)

    def collect(self, values: Float[np.ndarray, "runs windows 4"]) -> TaskOutputs:
        """The score, exact match and F1 of each question's best span over all windows; and the span."""
        outputs = np.zeros((len(values), self.examples, len(ratios.ANSWERS)), values.dtype)
        spans = np.zeros((len(values), self.examples, 2), np.int32)
        for question, true in enumerate(self.answers):
            texts = self.positions.texts_of(question)
            found, offsets = values[:, texts], [window.offsets for window in self.windows[texts]]
            windows = found[..., 2].argmax(axis=1)
            best = np.take_along_axis(found, windows[:, None, None], axis=1)[:, 0]
            nothing = found[..., 3].min(axis=1)  # an answer in any window counts
            score_span = cache(partial(_score_span, self.contexts[question], true))
            for run, (window, (first, last, score, _)) in enumerate(zip(windows.tolist(), best, strict=True)):
                lacks = true.can_lack and nothing[run] > score
                span = NO_ANSWER if lacks else (offsets[window][int(first) - 1][0], offsets[window][int(last) - 1][1])
                spans[run, question] = span
                outputs[run, question] = (score - nothing[run] if true.can_lack else score, *score_span(span))
        return TaskOutputs(outputs, {"spans": spans})

    @property
    def objective(self) -> Objective:
        """The cross-entropy of the first and the last token of an answer."""
        definition = "cross-entropies of an answer's first and last token, the mean over windows"
        return Objective(readouts.span_logits, self.grade, definition)

    def grade(self, example: int, values: Float[np.ndarray, "texts wanted 2"]) -> Graded:
        """An example's loss and its gradient."""
        texts = self.positions.texts_of(example)
        gradient, losses = np.zeros(values.shape), []
        for window, (real, span) in enumerate(zip(self.positions.real[texts], self._spans[texts], strict=True)):
            for end in range(2):
                loss, gradient[window, real, end] = cross_entropy(values[window, real, end], int(span[end]))
                losses.append(loss)
        return float(np.mean(losses)) * 2, gradient / len(values)

    @cached_property
    def _spans(self) -> Int[np.ndarray, "windows 2"]:
        """First and last position of the first answer in each window; (0, 0), which is [CLS], if there is none."""
        spans = np.zeros((len(self.windows), 2), np.int64)
        for span, window, owner in zip(spans, self.windows, self.positions.examples.tolist(), strict=True):
            text = next(iter(self.answers[owner].texts), "")
            begin = self.contexts[owner].find(text) if text else -1
            if begin >= 0:
                inside = [
                    position
                    for position, (start, end) in enumerate(window.offsets, start=1)
                    if start < begin + len(text) and end > begin
                ]
                starts, ends = window.offsets[0][0] <= begin, window.offsets[-1][1] >= begin + len(text)
                if inside and starts and ends:
                    span[:] = inside[0], inside[-1]
        return spans


def _windows(pair: Encoding, most: int, stride: int) -> list[_Window] | str:
    """The windows of a question and its context, or the reason why there are none.

    Args:
        pair: question and context, with `word_ids`.
        most: the maximum number of tokens of a window.
        stride: the number of tokens of the context that successive windows share.
    """
    words = zip(pair.word_ids, pair.segments, strict=True)
    context = [index for index, (word, segment) in enumerate(words) if segment == 1 and word is not None]
    if not context:
        return "whose context has no token"
    first, last = context[0], context[-1] + 1
    room = most - first - (len(pair) - last)
    if room <= stride and room < last - first:
        return (
            f"without room for a window: the question leaves too few of {most} tokens for the context, and successive "
            f"windows share {stride}; give a larger --max-length or a smaller --stride"
        )
    windows, start = [], first
    while True:
        end = min(start + room, last)
        kept = [*range(first), *range(start, end), *range(last, len(pair))]
        offsets = pair.offsets[start:end]
        windows.append(_Window(_part(pair, kept), first, offsets))
        if end == last:
            return windows
        start = end - stride


def _part(pair: Encoding, kept: Sequence[int]) -> Encoding:
    """Select tokens of a pair."""
    return replace(
        pair,
        input_ids=tuple(pair.input_ids[index] for index in kept),
        token_type_ids=tuple(pair.token_type_ids[index] for index in kept),
        tokens=tuple(pair.tokens[index] for index in kept),
        offsets=tuple(pair.offsets[index] for index in kept),
        word_ids=(),
    )


def _score_span(context: str, true: Answers, span: tuple[int, int]) -> tuple[float, float]:
    """Exact match and F1 of a span, the maximum over the true answers, as in SQuAD's official programs."""
    found = context[span[0] : span[1]] if span != NO_ANSWER else ""
    texts = [text for text in true.texts if normalise(text)] if true.can_lack else list(true.texts)
    score = partial(_f1, empty=true.can_lack)
    return (
        max(float(normalise(found) == normalise(text)) for text in texts or [""]),
        max(score(found, text) for text in texts or [""]),
    )


def normalise(text: str) -> str:
    """Normalise an answer: lower case, without punctuation, articles and superfluous space.

    >>> normalise("The  Panthers' defense.")
    'panthers defense'
    """
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def _f1(found: str, true: str, *, empty: bool) -> float:
    """F1 of the words of an answer.

    Args:
        empty: whether two answers without words are equal, as in SQuAD 2.0.
    """
    words, true_words = normalise(found).split(), normalise(true).split()
    if empty and not (words and true_words):
        return float(words == true_words)
    common = sum((Counter(words) & Counter(true_words)).values())
    if not common:
        return 0.0
    precision, recall = common / len(words), common / len(true_words)
    return 2 * precision * recall / (precision + recall)


@dataclass(frozen=True)
class _Question:
    """A question of a table.

    Args:
        name: the id of the question; None if it has none.
        question: the text of the question.
        context: the text of the context.
        answers: the answers that are not empty.
        can_lack: whether it shows that questions of these data may have no answer.
        location: the location of the question in the file, for messages.
    """

    name: str | None
    question: str
    context: str
    answers: tuple[str, ...]
    can_lack: bool
    location: str


def _examples(path: Path | str, task: Task, found: Sequence[_Question]) -> Examples:
    """The questions that have a text and a context.

    Args:
        path: the file, or the name of an object in memory.
    """
    questions = [one for one in found if one.question.strip() and one.context.strip()]
    if not questions:
        raise DataError(f"{path}: has no questions with a text and a context")
    blank = [one for one in found if not (one.question.strip() and one.context.strip())]
    without = "without a text or a context left out"
    left_out = f"; {count_of(len(blank), 'question')} {without} (first in {blank[0].location})" if blank else ""
    can_lack = any(one.can_lack for one in questions)
    for one in questions:
        if not one.answers and not can_lack:
            name = "the question" if one.name is None else f"question {brief(one.name)}"
            raise DataError(f"{path}, {one.location}: {name} has no answer, and none is marked is_impossible")
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
    """The ids of questions; their indices if none has an id.

    Raises:
        DataError: some have no id, or two have the same.
    """
    if all(one.name is None for one in questions):
        return tuple(range(len(questions)))
    locations: dict[str, str] = {}
    for one in questions:
        if one.name is None:
            raise DataError(f"{path}, {one.location}: the question has no id, but others have one")
        if one.name in locations:
            raise DataError(f"{path}, {one.location}: id {brief(one.name)} is also in {locations[one.name]}")
        locations[one.name] = one.location
    return tuple(locations)


def _questions(table: Table, marked: bool) -> list[_Question]:
    """The questions of a table with a row for each.

    Args:
        marked: whether questions without answers must be marked as impossible, as in SQuAD's own file.
    """
    questions, contexts = (table.texts(name) for name in COLUMNS[:2])
    ids, marks = (
        table.column(name) if name in table.columns else [None] * len(table) for name in ("id", "is_impossible")
    )
    found = []
    for row, value in enumerate(table.column("answers")):
        texts = _answers_of_row(table, row, value)
        answers = tuple(text for text in texts if text.strip())
        can_lack = marks[row] is True or (not answers and (bool(texts) or not marked))
        question_id = _id_of(table, row, ids[row])
        found.append(_Question(question_id, questions[row], contexts[row], answers, can_lack, table.location(row)))
    if "is_impossible" not in table.columns and not any(one.answers for one in found):
        raise DataError(f"{table.path}: no question has an answer, as in a test split without answers")
    return found


def _answers_of_row(table: Table, row: int, value: object) -> list[str]:
    """The answers of a row: of an object of lists as on the hub, or of a list of objects as in SQuAD's file."""
    if isinstance(value, dict):
        value = value.get("text")
    elif isinstance(value, list) and all(isinstance(one, dict) for one in value):
        value = [one.get("text") for one in value]
    else:
        value = None
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise table.error(row, "column 'answers' needs texts, as {'text': [...], 'answer_start': [...]}")
    return table.text_list(row, "answers", value)


def _id_of(table: Table, row: int, value: object) -> str | None:
    """The id of a question; None if it has none."""
    if value is None or value == "":
        return None
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise table.error(row, f"id {brief(value)} is neither a string nor an integer")
    return str(value)


def _table_of_squad(path: Path) -> Table:
    """The table of a file of one JSON object, with a row for each question."""
    with reading(path, DataError), open_data(path) as file:
        content = parse_json(file.read().decode("utf-8-sig"))
    rows = {
        place: {**question, "context": paragraph.get("context")}
        for article_place, article in _objects(path, "", content, "data")
        for paragraph_place, paragraph in _objects(path, article_place, article, "paragraphs")
        for place, question in _objects(path, paragraph_place, paragraph, "qas")
    }
    columns = ("id", *COLUMNS, "is_impossible")
    read = [*rows.values()]
    return Table(path, columns, lambda name: [row.get(name) for row in read], range(len(rows)), paths=[*rows])


def _objects(path: Path, parent: str, value: Any, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a list in an object, each with its path in the file, such as `data[0].paragraphs[2]`.

    Args:
        path: the file, for errors.
        parent: the path of the object in the file; empty for the object of the whole file.
        value: the object.
        key: the key of the list.

    Raises:
        DataError: there is no such list.
    """
    place = f"{parent}.{key}" if parent else key
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise DataError(f"{path}: {place} must be a list of objects, as in SQuAD's format")
    return ((f"{place}[{index}]", one) for index, one in enumerate(found))
