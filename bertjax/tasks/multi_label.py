"""Multi-label classification: a label is predicted if its logit is above 0, so that its probability is above one half.

This is `problem_type` "multi_label_classification" of transformers. The labels of a text are in one column, or in a
column of 0 and 1 for each label. One column has lists (JSONL, Parquet, `datasets`) or, in text files, items separated
by `,`, `|` or `;`: label names, or label ids from 0. An empty list or field is a text without labels. Items are a 0 or
a 1 for each label, not ids, if each row has one for each label, or if an item is a float or repeated.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from bertjax.data import (
    GENERIC,
    Content,
    Examples,
    Source,
    Table,
    Tokenizer,
    as_int,
    available,
    brief,
    guess_label,
    guess_texts,
    is_missing,
    missing_labels,
    plain_label,
)
from bertjax.errors import DataError, some_of
from bertjax.formatting import count_of
from bertjax.interventions import readouts
from bertjax.models import BertForSequenceClassification, PretrainedModel
from bertjax.results import NAME, PLAIN, RIGHT, TRUE, WRONG, Line, NumberDisplay
from bertjax.statistics import ratios
from bertjax.tasks.classification import label_order
from bertjax.tasks.encoded import TaskOutputs, TextEncodings
from bertjax.tasks.outputs import Form, Graded, Objective, binary_cross_entropy
from bertjax.tasks.task import EncodeArguments, Task, encode_texts

MULTI_LABEL = "multi-label"
MARKS = (",", "|", ";")
IDS = ("id", "index", "idx")
MOST_LABELS = 100_000  # if the number of labels is inferred from the largest id
LONGEST_ID = 9  # digits
TRUTH = {"true": 1, "false": 0}

Item = str | int | float
Set = list[int] | None  # label ids


class LabelsDisplay(NumberDisplay):
    """Texts with their true and predicted labels."""

    value, note = "mean log-likelihood", "It is the mean over labels. Right labels are green."

    def lines(self, example: int) -> list[Line]:
        """The texts, the true labels, and the predicted labels."""
        true = self.saved.examples[example].get("labels")
        marked = [(name, TRUE) for name in true or ()]
        line: Line = [("true", NAME), *(marked or [("not known" if true is None else "none", PLAIN)])]
        return [*super().lines(example), line, self._found("found", example, self.saved.outputs["base"][example])]

    def change(self, run: int, example: int) -> list[Line]:
        """The labels that an ablated model predicts."""
        return [self._found("ablated", example, self.saved.outputs["outputs"][run, example])]

    def _found(self, name: str, example: int, numbers: Float[np.ndarray, " numbers"]) -> Line:
        names, true = self.saved.summary["data"]["label_names"], self.saved.examples[example].get("labels")
        found = [names[label] for label in np.flatnonzero(numbers[3::3] > 0)]
        marks = [PLAIN if true is None else RIGHT if label in true else WRONG for label in found]
        return [(name, NAME), *(zip(found, marks, strict=True) if found else [("none", PLAIN)])]


LABEL_SETS = Form(
    "label-sets",
    readouts.logits,
    called="sets of labels",
    numbers=ratios.LABEL_SETS,
    of_each_label=ratios.OF_EACH_LABEL,
    sized=1,
    display=LabelsDisplay,
)


@dataclass(frozen=True)
class LabelSet(Content):
    """The labels of a text that may have several.

    Args:
        labels: names in the order of the task's `label_names`; None if they are unknown.
    """

    labels: tuple[str, ...] | None

    def describe(self, arrays: Mapping[str, Any], example: int) -> dict[str, Any]:
        """The labels, if they are known."""
        return {} if self.labels is None else {"labels": [*self.labels]}


@dataclass(frozen=True)
class MultiLabel(Task):
    """Texts or pairs with sets of labels."""

    models = (BertForSequenceClassification,)
    needs = "classification head"
    forms = (LABEL_SETS,)
    files = "a file of texts and labels (.jsonl, .csv, .tsv or .parquet)"
    texts = (1, 2)
    has_labels = True
    max_tokens = 128

    def read_table(self, table: Table, source: Source) -> Examples:
        """Read the texts of a table; labels without names have those of the model."""
        columns, known = source.text_columns, self.label_names or tuple(source.model_labels or ()) or None
        if columns is not None and len(columns) not in (1, 2):
            raise DataError(f"{self.name} needs one or two text columns; found {', '.join(columns) or 'none'}")
        task = replace(self, label_names=known, label_column=source.label_column or self.label_column)
        found = _find(task, tuple(columns or ()), table)
        texts = [table.texts(name) for name in found.texts]
        if found.sets:
            names, sets, how = _of_one_column(table, found.sets, known, source.may_lack_labels)
        else:
            named = known if not found.guessed else None
            names, sets, how = named or found.single, _of_columns(table, found), "a column for each"
        note = f", texts in {' and '.join(found.texts)}" if columns is None else ""
        return Examples(
            task=replace(task, label_names=names, text_columns=found.texts, label_column=found.sets),
            ids=tuple(table.indices),
            first=texts[0],
            second=texts[1] if len(texts) > 1 else None,
            labels=np.full(len(table), np.nan, np.float32),
            source=f"{table.path} ({count_of(len(table), 'text')}, {count_of(len(names), 'label')}: {how}{note})",
            split="validation",
            content=tuple(
                LabelSet(None if label_ids is None else tuple(names[label_id] for label_id in sorted(label_ids)))
                for label_ids in sets
            ),
        )

    def encode(
        self, model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, arguments: EncodeArguments
    ) -> "EncodedLabelSets":
        """Encode texts or pairs.

        Raises:
            ConfigError: the model has another number of labels than the data, or other names.
        """
        order = label_order(model.config.id2label, self)
        sets = [content.labels for content in examples.content or () if isinstance(content, LabelSet)]
        names = self.label_names or ()
        ids = {name: label_id for label_id, name in enumerate(names)}
        true = np.zeros((len(sets), len(names)), np.bool_)
        for row, labels in zip(true, sets, strict=True):
            row[[ids[name] for name in labels or ()]] = True
        return EncodedLabelSets(
            LABEL_SETS,
            encode_texts(tokenizer, examples.first, examples.second, arguments.max_length),
            tokenizer.pad_id,
            len(examples),
            np.array([np.nan if labels is None else len(labels) for labels in sets], np.float32),
            names=names,
            true=true,
            label_order=order,
        )


MULTI_LABEL_TASK = MultiLabel(MULTI_LABEL, (), metrics=("micro_f1", "macro_f1", "subset_accuracy"))


@dataclass(frozen=True)
class EncodedLabelSets(TextEncodings):
    """Texts or pairs with their sets of labels.

    Args:
        names: the names of the task's labels.
        true: whether each label is true of each example.
        label_order: the column of the model's output for each label.
    """

    names: tuple[str, ...] = field(kw_only=True)
    true: Bool[np.ndarray, "examples labels"] = field(kw_only=True)
    label_order: tuple[int, ...] = field(kw_only=True)

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the form, and those of each label."""
        return *super().numbers, *(f"{name}: {number}" for name in self.names for number in self.form.of_each_label)

    def collect(self, values: Float[np.ndarray, "runs examples labels"]) -> TaskOutputs:
        """The mean log-likelihood of each example's labels, whether all are right, and counts for each label."""
        logits = values[..., list(self.label_order)]
        found, true = logits > 0, self.true
        likelihoods = -np.logaddexp(0, np.where(true, -1, 1) * logits.astype(np.float64)).mean(axis=-1)
        exact = (found == true).all(axis=-1)
        by_label = np.stack([found & true, found, np.broadcast_to(true, found.shape)], axis=-1)
        parts = (likelihoods[..., None], exact[..., None], by_label.reshape(*exact.shape, -1))
        return TaskOutputs(np.concatenate(parts, axis=-1, dtype=values.dtype, casting="unsafe"))

    @property
    def objective(self) -> Objective:
        """The mean binary cross-entropy of a text's labels."""
        return Objective(readouts.logits, self.grade, "mean binary cross-entropy of a text's labels")

    def grade(self, example: int, values: Float[np.ndarray, "texts all"]) -> Graded:
        """An example's loss and its gradient."""
        gradient, order = np.zeros(values.shape), list(self.label_order)
        loss, gradient[0, order] = binary_cross_entropy(values[0, order], self.true[example].astype(np.float64))
        return loss, gradient


@dataclass(frozen=True)
class _Columns:
    """The columns of a table.

    Args:
        texts: one or two.
        sets: the columns of sets of labels; empty if each label has a column.
        single: the column of each label.
        guessed: whether `single` are all columns besides the texts.
    """

    texts: tuple[str, ...]
    sets: str = ""
    single: tuple[str, ...] = ()
    guessed: bool = False


def _find(task: Task, texts: tuple[str, ...], table: Table) -> _Columns:
    """Find the columns in a table. Raises `DataError` if one is missing or ambiguous."""
    names, sets = task.label_names or (), task.label_column
    for name in (*texts, *([sets] if sets else [])):
        table.need([name])
    single = () if sets else _columns_of_labels(names, table.columns)
    if not sets and not single:
        sets = guess_label(table, texts, "")
    texts = texts or guess_texts(table, {sets, *single})
    if sets or single:
        return _Columns(texts, sets, single)
    rest = tuple(name for name in table.columns if name not in texts and name.lower() not in IDS)
    if (names and not all(map(GENERIC.fullmatch, names))) or not rest:
        missing = f"nor a column for each of {some_of(names)}" if names else "nor columns of single labels"
        raise DataError(
            f"{table.header}: no label column found (usual names: labels, label, ...), {missing}; "
            f"{available(table.columns)}; name it with --label-column, or columns of single labels with --label-names"
        )
    return _Columns(texts, single=rest, guessed=True)


def _columns_of_labels(names: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """The column of each label by its name; empty unless all labels have one."""
    by_name = {plain_label(column): column for column in columns} | {column: column for column in columns}
    found = tuple(by_name.get(name, by_name.get(plain_label(name), "")) for name in names)
    return found if all(found) and len({*found}) == len(found) else ()


def _of_columns(table: Table, columns: _Columns) -> list[Set]:
    """The labels of each row with a 1 in their column; None if all are -1, as in Jigsaw's rows without labels."""
    hint = "; name label columns with --label-names, or a column of sets with --label-column" if columns.guessed else ""
    sets: list[Set] = []
    for row, values in enumerate(zip(*(table.column(name) for name in columns.single), strict=True)):
        truths = [TRUTH.get(str(value).lower(), as_int(value)) for value in values]
        if all(truth == -1 for truth in truths):
            sets.append(None)
            continue
        for name, value, truth in zip(columns.single, values, truths, strict=True):
            if truth not in (0, 1):
                raise table.error(row, f"column {brief(name)} holds {brief(value)}, which is neither 0 nor 1{hint}")
        sets.append([label_id for label_id, truth in enumerate(truths) if truth])
    return sets


def _of_one_column(
    table: Table, column: str, known_names: tuple[str, ...] | None, may_lack: bool
) -> tuple[tuple[str, ...], list[Set], str]:
    """The names of all labels, the label ids of each row, and a description of the items.

    Args:
        known_names: the names of the labels; None if they are unknown.
        may_lack: whether labels may be missing, as in a test split.
    """
    classes = table.classes.get(column, ())
    names = known_names or ()
    if not names or (classes and all(map(GENERIC.fullmatch, names))):
        names = classes
    values = table.column(column)
    missing = [row for row, value in enumerate(values) if _is_missing(value, names)]
    if missing and not may_lack:
        alternative = "add the value to --label-names (label_names=) if it is a label"
        raise missing_labels(table, values, missing, "not a set of labels", alternative=alternative)
    without = {*missing}
    known = [row for row, value in enumerate(values) if value is not None and row not in without]
    if may_lack and not known and not names:
        raise DataError(f"{table.path}: no row has labels; name them with --label-names (label_names=)")
    if may_lack and not known:
        return tuple(names), [None] * len(table), f"none in {column}"
    if may_lack and len(known) < len(table):
        names, of_known, how = _of_one_column(table.take(known), column, known_names, may_lack)
        by_row = dict(zip(known, of_known, strict=True))
        return names, [by_row.get(row) for row in range(len(table))], how
    rows = [_items(table, row, column, value, names) for row, value in enumerate(values)]
    sets: list[Set]
    if not classes and _are_indicators(rows, names):
        count = len(names or rows[0])
        sets = [_ids_of_indicators(table, row, items, count) for row, items in enumerate(rows)]
        return names or tuple(map(str, range(count))), sets, f"0 or 1 in {column}"
    names = names or _infer(table, rows)
    labels = _Labels(names, classes)
    sets = []
    for row, items in enumerate(rows):
        label_ids = [labels.id_of(table, row, item) for item in items]
        if len({*label_ids}) < len(label_ids):
            raise table.error(row, f"column {brief(column)} has a label twice: {brief(items)}")
        sets.append(label_ids)
    by = "name" if any(isinstance(item, str) for items in rows for item in items) else "id"
    return names, sets, f"by {by} in {column}"


def _is_missing(value: object, names: Sequence[str]) -> bool:
    """Whether a row's labels, or one of its items, are NaN or a string that means a missing value.

    An empty field is a text without labels.
    """
    items = re.split(r"[,|;]", value) if isinstance(value, str) and value not in names else [value]
    items = value if isinstance(value, list) else items
    return any(is_missing(item, names) for item in items if item is not None and str(item).strip())


def _items(table: Table, row: int, column: str, value: object, names: Sequence[str]) -> list[Item]:
    """The items of a row: of a list, or separated by marks."""
    items = value
    if isinstance(value, str):
        items = _split(table, row, value, names) if value.strip() else []
    elif isinstance(value, int | float) and not isinstance(value, bool):
        items = [as_int(value)]
    if not isinstance(items, list) or not all(isinstance(item, str | int | float) for item in items):
        found = "is null" if value is None else f"holds {brief(value)}"
        raise table.error(row, f"column {brief(column)} {found}, which is not a list of labels")
    for item in items:
        if isinstance(item, str) and not item.strip():
            raise table.error(row, f"column {brief(column)} has an empty label")
    return [_item(item, names) for item in items]


def _item(item: Item, names: Sequence[str]) -> Item:
    """Convert digits to an int, and booleans, which are not ids, to floats."""
    if isinstance(item, str):
        return int(item) if item.isdecimal() and len(item) <= LONGEST_ID and item not in names else item
    return float(item) if isinstance(item, bool) else item


def _split(table: Table, row: int, value: str, names: Sequence[str]) -> list[str]:
    """Split a field at a mark that no label name contains."""
    if value.strip() in names:
        return [value.strip()]
    marks = [mark for mark in MARKS if mark in value and not any(mark in name for name in names)]
    if len(marks) > 1:
        raise table.error(row, f"labels {brief(value)} are separated by {' and by '.join(marks)}: use one of these")
    return [part.strip() for part in (value.split(marks[0]) if marks else [value])]


def _are_indicators(rows: Sequence[Sequence[Item]], names: Sequence[str]) -> bool:
    """Whether items are a 0 or a 1 for each label, not ids or names."""
    flat = [item for items in rows for item in items]
    if not flat or not all(item in (0, 1) for item in flat):
        return any(isinstance(item, float) for item in flat)
    count = len(names or rows[0])
    repeated = any(len({*items}) < len(items) for items in rows)
    whole = all(len(items) == count for items in rows) and (bool(names) or count > 1)
    return repeated or whole or any(isinstance(item, float) for item in flat)


def _ids_of_indicators(table: Table, row: int, items: Sequence[Item], count: int) -> list[int]:
    """The indices of 1. Raises `DataError` unless there is a 0 or a 1 for each label."""
    if len(items) != count or not all(item in (0, 1) for item in items):
        found = f"{brief([*items])} has {count_of(len(items), 'value')}"
        raise table.error(row, f"{found}: each of {count_of(count, 'label')} needs a 0 or a 1")
    return [index for index, item in enumerate(items) if item]


def _infer(table: Table, rows: Sequence[Sequence[Item]]) -> tuple[str, ...]:
    """Infer label names: all names that occur, or all ids up to the largest."""
    flat = {item for items in rows for item in items}
    if not flat:
        raise DataError(f"{table.path}: no row has a label; name the labels with --label-names")
    if any(isinstance(item, str) for item in flat):
        return tuple(sorted(map(str, flat)))
    largest = max(int(item) for item in flat)
    if largest >= MOST_LABELS:
        row = next(row for row, items in enumerate(rows) if largest in items)
        raise table.error(row, f"label {largest} is too large for a label id")
    return tuple(map(str, range(largest + 1)))


class _Labels:
    """Finds the ids of labels.

    Args:
        names: the names of all labels.
        classes: the class names of the file, in the order of its ids.
    """

    def __init__(self, names: tuple[str, ...], classes: tuple[str, ...]):
        plain = [plain_label(name) for name in names]
        self._names, ids = names, range(len(names))
        self._ids = dict(zip(names, ids, strict=True))
        self._plain_ids = dict(zip(plain, ids, strict=True)) if len({*plain}) == len(plain) else {}
        self._classes = () if classes == tuple(map(str, range(len(classes)))) else classes
        self._numerals = any(name.isdecimal() for name in names)

    def id_of(self, table: Table, row: int, item: Item) -> int:
        """The id of a label. Raises `DataError` if there is no such label."""
        label = self._classes[item] if isinstance(item, int) and 0 <= item < len(self._classes) else item
        label_id = self._ids.get(str(label), self._plain_ids.get(plain_label(str(label))))
        if label_id is not None:
            return label_id
        if isinstance(label, int) and 0 <= label < len(self._names) and not self._numerals and not self._classes:
            return label
        hint = ""
        if isinstance(label, str) and all(map(GENERIC.fullmatch, self._names)):
            hint = "; give their names with --label-names, in the model's order"
        raise table.error(row, f"label {brief(label)} is not one of {some_of(self._names)}, or its index from 0{hint}")
