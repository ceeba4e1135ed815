"""Examples from local files: GLUE's folders of TSV files, or data of your own.

`read_examples` takes texts, labels and ids from a table, and reports what is wrong with them in one line with the line
or row number.
"""

import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int32

from bertjax.data.arrow_tables import read_parquet, read_saved
from bertjax.data.examples import CUSTOM, GLUE, DatasetSpec, Examples, plain_name
from bertjax.data.tables import DROPS_MALFORMED, SUFFIXES, Table, available, brief, problem_of, read_text
from bertjax.errors import DataError, some_of
from bertjax.paths import is_directory, listing

_GLUE_FOLDERS = {plain_name(task.folder) for task in GLUE.values()}
GENERIC = re.compile(r"LABEL_\d+")  # names of labels that say nothing
LARGEST_ID = 2**63 - 1  # as a number; larger ids are kept as texts
_ID_COLUMNS = ("index", "idx")  # GLUE's files number their rows in these
# What columns of texts and of labels are called, in small letters, where nobody says which they are.
_PAIRS = (
    *(("sentence1", "sentence2"), ("sentence_a", "sentence_b"), ("premise", "hypothesis"), ("question", "sentence")),
    *(("question1", "question2"), ("question", "passage"), ("query", "passage"), ("text1", "text2")),
    *(("text_a", "text_b"), ("first", "second"), ("#1 string", "#2 string")),
)
_SINGLES = ("text", "sentence", "review", "content", "comment_text")
_LABELS = ("label", "labels", "gold_label", "score", "target", "class")
# Texts that stand for a missing value: the `na_values` of pandas' readers.
MISSING = frozenset(
    (
        *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"),
        *("N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
    )
)


def glue_file(directory: Path, task: DatasetSpec, split: str) -> Path:
    """The file of a split in a GLUE directory, or in the task's folder in it.

    Args:
        directory: holds folders such as `MRPC`, or is one.
        task: the task the file belongs to.
        split: its full name, such as `validation` or `validation_matched`.

    Raises:
        DataError: there is no such folder or file.
    """
    folder = glue_folder(directory, task) or directory
    folder_name = plain_name(Path(os.path.realpath(folder)).name)
    if folder_name != plain_name(task.folder) and folder_name in _GLUE_FOLDERS:
        raise DataError(f"{directory}: the folder of another task than {task.name}; expected {task.folder}")
    path = split_file(folder, split)
    if path is None:
        names = [path.name for path in listing(folder) if path.name.endswith(SUFFIXES)]
        contents = f"found {some_of(names)}" if names else "found no .tsv file"
        alternative = f" nor a folder {task.folder}" if folder == directory and task.folder else ""
        raise DataError(f"{folder}: no {_stem(split)}.tsv for {task.name} {split}{alternative}; {contents}")
    return path


def glue_folder(directory: Path, task: DatasetSpec) -> Path | None:
    """The task's folder in a GLUE directory, or the directory itself if it is that folder, else None.

    Raises:
        DataError: the directory does not exist or cannot be listed.
    """
    for path in [*listing(directory), Path(os.path.realpath(directory))]:
        if task.folder and plain_name(path.name) == plain_name(task.folder) and is_directory(path):
            return path
    return None


def split_file(folder: Path, split: str, parts: bool = False) -> Path | None:
    """The file of a split in a task's folder, such as `dev.tsv.gz` for `validation`, or None.

    Args:
        folder: the task's folder.
        split: its full name.
        parts: if the whole is missing, take a part such as `dev_matched_first3000.tsv`.

    Raises:
        DataError: the folder cannot be listed.
    """
    for suffix in ("", r"_(sample|first\d+)") if parts else ("",):
        for path in listing(folder):
            if re.fullmatch(rf"{_stem(split)}{suffix}\.tsv(\.gz)?", path.name):
                return path
    return None


def _stem(split: str) -> str:
    return re.sub("^validation", "dev", split)


def read_examples(
    table: Table,
    task: DatasetSpec,
    split: str,
    *,
    text_columns: Sequence[str] | None = None,
    label_column: str | None = None,
    id_column: str | None = None,
    has_labels: bool = True,
    infer_labels: bool = False,
    model_labels: Sequence[str] | None = None,
) -> Examples:
    """Examples from a table: of a file, of a saved dataset or of an object in memory.

    Args:
        table: with one row or more.
        task: the task of the examples; its columns are looked up under GLUE's names or, if the file has those
            instead, under the HuggingFace hub's. Those of a custom task without text columns are guessed.
        split: the split to record; a test split may lack labels.
        text_columns: one or two names, in place of the task's.
        label_column: a name, in place of the task's.
        id_column: a name; by default a column `index` or `idx` of distinct whole numbers if there is one (GLUE's
            files number their rows in it), else the row's number.
        has_labels: whether there is a column of labels.
        infer_labels: infer the classes, or that there are none, from the labels.
        model_labels: the names of the model's labels in their order, by which inferred classes that are mere numbers
            are called; None to keep the numbers.

    Raises:
        DataError: a value of the table is wrong, with its line or row.
    """
    columns = _Chosen(task, split, tuple(text_columns or ()) or None, label_column, id_column, has_labels).find(table)
    may_lack = not has_labels or split.startswith("test")
    if columns.labelled and task.name in DROPS_MALFORMED:
        table = table.take([row for row, value in enumerate(table.column(columns.label)) if value != ""])
    values: Sequence[object] = [""] * len(table)
    if columns.labelled:
        values = table.column(columns.label)
        if not may_lack:
            names = task.label_names or table.classes.get(columns.label)
            check_missing(table, values, names, infer_labels)
        task, values = _with_classes(task, values, table, columns.label, infer_labels, may_lack)
        if infer_labels and model_labels is not None:
            hidden = _unlabelled_rows(values, model_labels) if may_lack else ()
            known = {row: value for row, value in enumerate(values) if row not in hidden}
            columns, task = _in_models_order(columns, task, known, table, model_labels)
    task = replace(task, text_columns=columns.texts, label_column=columns.label)
    texts = [table.texts(name) for name in columns.texts]
    return Examples(
        task=task,
        ids=_ids(table, id_column),
        first=texts[0],
        second=texts[1] if len(texts) > 1 else None,
        labels=_labels(task, values, table, may_lack),
        source=f"{table.path} ({len(table)} rows"
        + (f", {table.dropped} dropped)" if table.dropped else ")")
        + columns.said,
        split=split,
    )


def read_table(path: Path, task: DatasetSpec) -> Table:
    """A file or saved dataset of any format.

    Args:
        path: the file or directory.
        task: whose file it is.

    Raises:
        DataError: it cannot be read, or holds no row.
    """
    if is_directory(path):
        table = read_saved(path)
    elif path.name.endswith((".parquet", ".parquet.gz")):
        table = read_parquet(path)
    elif path.name.endswith(SUFFIXES):
        table = read_text(path, task)
    else:
        raise DataError(f"{path}: not a file that can be read; give one that ends in {', '.join(SUFFIXES)}")
    if not len(table):
        raise DataError(f"{path}: holds no examples")
    return table


@dataclass(frozen=True)
class _Columns:
    """Which columns of a file are what.

    Args:
        texts: one or two.
        label: of the labels, or what it would be called.
        labelled: whether there are labels.
        said: which of them were guessed, to stand behind the file's name; empty if none was.
    """

    texts: tuple[str, ...]
    label: str
    labelled: bool
    said: str


@dataclass(frozen=True)
class _Chosen:
    """The examples to read, and the columns that the user named."""

    task: DatasetSpec
    split: str
    texts: tuple[str, ...] | None
    label: str | None
    ids: str | None
    has_labels: bool

    def find(self, table: Table) -> _Columns:
        """Find the columns in a file.

        Raises:
            DataError: one is missing, or what is not said can be guessed in several ways or in none.
        """
        said, columns = [], table.columns
        texts = self.texts or _known(columns, self.task.text_columns, self.task.renamed)
        if not texts:
            texts = guess_texts(table, {self.label, self.ids})
            said.append(f"column{'s' * (len(texts) - 1)} {' and '.join(texts)}")
        label = self.label or _known(columns, (self.task.label_column,), ("label",))[0]
        if self.task.name == CUSTOM and self.label is None and not (self.texts and label in columns):
            label = guess_label(table, {*texts, self.ids}, label if self._may_lack_labels else None)
            said += [f"labels {label}"] if label in columns else []
        labelled = self.has_labels and not (self._may_lack_labels and label not in columns)
        for name in (*texts, *([label] if labelled else []), *([self.ids] if self.ids else [])):
            table.need([name])
        return _Columns(texts, label, labelled, f", {', '.join(said)}, guessed" if said else "")

    @property
    def _may_lack_labels(self) -> bool:
        return self.split.startswith("test") and self.label is None


def _known(columns: Sequence[str], names: tuple[str, ...], alternatives: tuple[str, ...]) -> tuple[str, ...]:
    """Whichever of `names` and `alternatives` the file has as columns; `names` if it has neither."""
    present = set(columns)
    renamed = bool(alternatives) and present.issuperset(alternatives) and not present.issuperset(names)
    return alternatives if renamed else names


def guess_texts(table: Table, taken: Collection[str | None]) -> tuple[str, ...]:
    """The one column or pair that is called as texts are, and not taken.

    Raises:
        DataError: there are several, or none.
    """
    called = {*_SINGLES, *(name for pair in _PAIRS for name in pair)}
    known = [name for name in table.columns if name.lower() in called and name not in taken]
    pairs = [(one, two) for one in known for two in known if (one.lower(), two.lower()) in _PAIRS]
    paired = {name for pair in pairs for name in pair}
    singles = [(name,) for name in known if name.lower() in _SINGLES and name not in paired]
    found: list[tuple[str, ...]] = [*pairs, *singles]
    if len(found) > 1:
        candidates = ", or in ".join(" and ".join(names) for names in found[:6])
        raise DataError(f"{table.where}: texts may be in {candidates}: say which with --text-columns (text_columns=)")
    if not found:
        raise DataError(
            f"{table.where}: no column is called as texts are ({', '.join(_SINGLES)}, sentence1 and sentence2, ...); "
            f"there {available(table.columns)}; name one or two with --text-columns (text_columns=)"
        )
    return found[0]


def guess_label(table: Table, taken: Collection[str | None], default: str | None) -> str:
    """The one column that is called as labels are and not taken, or else the default.

    Raises:
        DataError: there are several, or none and no default.
    """
    found = [name for name in table.columns if name.lower() in _LABELS and name not in taken]
    if len(found) > 1:
        candidates = ", or in ".join(found[:6])
        raise DataError(f"{table.where}: labels may be in {candidates}: say which with --label-column (label_column=)")
    if not found and default is None:
        raise DataError(
            f"{table.where}: no column is called as labels are ({', '.join(_LABELS)}); there "
            f"{available(table.columns)}; name it with --label-column (label_column=)"
        )
    return found[0] if found else str(default)


def _ids(table: Table, name: str | None) -> tuple[int | str, ...]:
    if name is None:
        for column in _ID_COLUMNS:
            if column in table.columns:
                ids = [_whole_id(value) for value in table.column(column)]
                whole = tuple(number for number in ids if number is not None)
                if len(set(whole)) == len(ids):
                    return whole
        return tuple(table.numbers)
    values = distinct_ids(table, name)
    numbers = [_whole_id(value) for value in values]
    whole = tuple(number for number in numbers if number is not None)
    return whole if len(whole) == len(values) else tuple(str(value) for value in values)


def distinct_ids(table: Table, name: str) -> list[str | int | float]:
    """The ids of a column. Raises `DataError` where one is none, or stands there twice."""
    values, seen = ids_of(table, name), dict[str, int]()
    for row, value in enumerate(values):
        first_row = seen.setdefault(str(value), row)
        if first_row != row:
            raise table.error(row, f"id {brief(value)} of column {name!r} was already on {table.place(first_row)}")
    return values


def ids_of(table: Table, name: str) -> list[str | int | float]:
    """The ids of a column. Raises `DataError` where one is missing, or neither a str nor a whole number."""
    found: list[str | int | float] = []
    for row, value in enumerate(table.column(name)):
        if value is None or (isinstance(value, str) and not value.strip()):
            raise table.error(row, f"column {name!r} is {'null' if value is None else 'empty'}, which is no id")
        if not isinstance(value, str) and (whole_number(value) is None or isinstance(value, bool)):
            raise table.error(row, f"column {name!r} holds {brief(value)}; an id is a text or a whole number")
        if problem := problem_of(str(value)):
            raise table.error(row, f"column {name!r} {problem}")
        assert isinstance(value, str | int | float)
        found.append(value)
    return found


def _whole_id(value: object) -> int | None:
    """An id as a whole number that fits into an integer array, or None."""
    number = whole_number(value)
    return number if number is not None and abs(number) <= LARGEST_ID else None


def is_missing(value: object, names: Sequence[str] | None = None, *, minus_one: bool = False) -> bool:
    """Whether a label is a missing value: null, NaN, or a text in `MISSING` that is the name of no class.

    Args:
        value: of a column of labels.
        names: of the classes, where they are known.
        minus_one: whether -1 is one too, if it is the name of no class.

    >>> is_missing("None"), is_missing("None", ["None", "Some"]), is_missing("none")
    (True, False, False)
    >>> is_missing(-1, minus_one=True), is_missing(-1, ["-1", "1"], minus_one=True)
    (True, False)
    """
    if isinstance(value, str) and value.strip() in MISSING:
        return value not in (names or ())
    if value in (-1, "-1"):
        return minus_one and "-1" not in (names or ())
    return value is None or (isinstance(value, float) and math.isnan(value))


def check_missing(table: Table, values: Sequence[object], names: Sequence[str] | None, infer: bool) -> None:
    """Raise `DataError` with the place of every row that has no label.

    Args:
        values: the labels.
        names: of the classes, where they are known.
        infer: whether classes are inferred where no names are known.
    """
    rows = [row for row, value in enumerate(values) if is_missing(value, names)]
    if rows:
        expected = "neither a number nor a name" if infer else "not a finite number"
        is_class = any(isinstance(values[row], str) and values[row] for row in rows)
        alternative = "add the value to --label-names (label_names=) if it is a class" if is_class else ""
        raise missing_labels(
            table, values, rows, f"not one of {some_of(names)}" if names else expected, alternative=alternative
        )


def missing_labels(
    table: Table, values: Sequence[object], rows: Sequence[int], expected: str, *, alternative: str
) -> DataError:
    """The error for rows that have no label.

    Args:
        values: the labels.
        rows: those without one.
        expected: what a missing label is not, in words.
        alternative: what else may be done than to leave them out.
    """
    found = list(dict.fromkeys(_shown(values[row]) for row in rows))
    problem = f"label {found[0]} is {expected}, but a missing value"
    if len(found) > 1:
        problem = f"labels {some_of(found)} are {expected}, but missing values"
    advice = f"leave out the {'row' if len(rows) == 1 else 'rows'}{', or ' * bool(alternative)}{alternative}"
    return DataError(f"{table.path}, {table.place(*rows)}: {problem}; {advice}")


def _number(value: object) -> float | None:
    """The value as a finite number, or None."""
    if not isinstance(value, str | int | float) or "_" in str(value):  # float() would read 1_2 as 12
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def whole_number(value: object) -> int | None:
    """The value as a whole number, also where it is written as `3.0`; None where it is none."""
    number = _number(value)
    if not isinstance(value, str | int | float) or number is None or not number.is_integer():
        return None
    try:
        return int(value)  # a float would round numbers beyond 2^53
    except ValueError:  # '1e3', '3.0'
        return int(number)


def _class(value: object, names: tuple[str, ...]) -> int | None:
    """The number of a class, from its name or, unless class names are numbers themselves, its number; else None."""
    if isinstance(value, str) and value in names:
        return names.index(value)
    whole = whole_number(value)
    for name in (value, whole):
        if str(name) in names:
            return names.index(str(name))
    if whole is None or any(whole_number(name) is not None for name in names):
        return None
    return whole if 0 <= whole < len(names) else None


def _labels(
    task: DatasetSpec, values: Sequence[object], table: Table, may_lack: bool
) -> Int32[np.ndarray, " examples"] | Float32[np.ndarray, " examples"]:
    names = task.label_names
    labels: list[float] = []
    unlabelled = _unlabelled_rows(values, names) if may_lack else frozenset()
    for row, value in enumerate(values):
        number = _number(value) if names is None else _class(value, names)
        if row in unlabelled:
            number = math.nan if names is None else -1
        if number is None:
            expected = "a finite number" if names is None else f"one of {some_of(names)}, or its number from 0"
            raise table.error(row, f"label {_shown(value)} is not {expected}")
        labels.append(number)
    return np.asarray(labels, dtype=np.float32 if names is None else np.int32)


def _with_inferred_labels(task: DatasetSpec, values: Sequence[object], table: Table, may_lack: bool) -> DatasetSpec:
    """The task as a regression if labels are numbers and not all whole, else with each distinct label as a class."""
    unlabelled = _unlabelled_rows(values, None) if may_lack else frozenset()
    known = {row: value for row, value in enumerate(values) if row not in unlabelled}
    numbers = {row: number for row, value in known.items() if (number := _number(value)) is not None}
    names = {row: value for row, value in known.items() if row not in numbers}
    classes: tuple[str, ...] | None
    for row, value in names.items():
        if not isinstance(value, str | int | float):
            raise table.error(row, f"label {_shown(value)} is neither a number nor a name")
        if _is_infinite(value) and (numbers or isinstance(value, float)):
            raise table.error(row, f"label {_shown(value)} is not a finite number")
    if names:
        _check_mixed(table, names, numbers, known)
        classes = tuple(sorted({str(value) for value in known.values()}))
    else:
        whole = {number for value in known.values() if (number := whole_number(value)) is not None}
        is_rated = not known or any(not number.is_integer() for number in numbers.values())
        classes = None if is_rated else tuple(map(str, sorted(whole)))
    return replace(task, label_names=classes)


def _check_mixed(
    table: Table, names: Mapping[int, object], numbers: Mapping[int, float], known: Mapping[int, object]
) -> None:
    """Raise `DataError` where some labels are names and others are floats or numbers with a fraction."""
    for row, number in numbers.items():
        if not number.is_integer() or isinstance(known[row], float):
            name, label = next(iter(names)), _shown(known[row])
            problem = f"label {_shown(names[name])} is a name, but label {label} on {table.place(row)} is a number"
            raise table.error(name, f"{problem}; name the classes with --label-names (label_names=)")


def _unlabelled_rows(values: Sequence[object], names: Sequence[str] | None) -> frozenset[int]:
    """The rows of a test split that have no label.

    -1 means that, unless it names a class; where no class is named, unless another row has a number.
    """
    missing = frozenset(row for row, value in enumerate(values) if is_missing(value, names))
    hidden = frozenset(row for row, value in enumerate(values) if is_missing(value, names, minus_one=True))
    rated = not names and any(_number(value) is not None for row, value in enumerate(values) if row not in hidden)
    return missing if rated else hidden


def _is_infinite(value: object) -> bool:
    """Whether a value is an infinite number, or a text that stands for one."""
    try:
        return isinstance(value, str | float) and math.isinf(float(value))
    except ValueError:
        return False


def _shown(value: object) -> str:
    return "null" if value is None else brief(value)


def _with_classes(
    task: DatasetSpec, values: Sequence[object], table: Table, label: str, infer: bool, may_lack: bool
) -> tuple[DatasetSpec, Sequence[object]]:
    """The task with the classes that the file names or its labels show, and the labels under these names.

    Where a file names its classes, they need not be in the task's order: its numbers stand for its own names.
    """
    classes = table.classes.get(label, ())
    if infer and classes:
        task = replace(task, label_names=classes)
    elif infer:
        task = _with_inferred_labels(task, values, table, may_lack)
    # Names that say no more than numbers do leave it to the task what the numbers mean.
    if task.label_names is None or classes == tuple(map(str, range(len(classes)))):
        return task, values
    named = list(values)
    for row, value in enumerate(values):
        if isinstance(value, int) and classes and not (may_lack and value == -1):
            if not 0 <= value < len(classes):
                raise table.error(
                    row, f"label {value} is not the number of a class: the {table.called} names {some_of(classes)}"
                )
            if classes[value] not in task.label_names:
                expected = f"not one of {some_of(task.label_names)}; give the {table.called}'s classes as --label-names"
                raise table.error(
                    row, f"label {value} is {brief(classes[value])} by the {table.called}'s own names, {expected}"
                )
            named[row] = classes[value]
    return task, named


def _in_models_order(
    columns: _Columns, task: DatasetSpec, labels: Mapping[int, object], table: Table, names: Sequence[str]
) -> tuple[_Columns, DatasetSpec]:
    """The task with the model's names for its classes, where these are numbers; and what the source says of that.

    Args:
        labels: the known labels, by row.
        names: the model's label names. Generic names (`LABEL_0`), and names with a number that is not their index
            (`1 star` at index 0), leave the numbers as they are.

    Raises:
        DataError: a number is beyond the names.
    """
    counted = [re.search(r"\d+", name) for name in names]
    other = any(found is not None and int(found[0]) != number for number, found in enumerate(counted))
    numbers = {row: whole_number(label) for row, label in labels.items()}
    if task.label_names is None or None in numbers.values() or other or all(map(GENERIC.fullmatch, names)):
        return columns, task
    for row, number in numbers.items():
        if number not in range(len(names)):
            raise table.error(
                row,
                f"label {_shown(labels[row])} is not the number of one of the model's {len(names)} labels (from 0: "
                f"{some_of(names)}); give the names of your numbers in ascending order with --label-names "
                "(label_names=)",
            )
    places = some_of([str(number) for number in range(len(names))])
    said = f"{columns.said}, labels {places} read as {some_of(names)}, the model's order"
    return replace(columns, said=said), replace(task, label_names=tuple(names))
