"""Examples from tables: texts, labels and ids; and the files of GLUE.

Errors are one line with the line or row of the table.
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
GENERIC = re.compile(r"LABEL_\d+")  # label names without a meaning
LARGEST_ID = 2**63 - 1  # larger ids are kept as str
_ID_COLUMNS = ("index", "idx")  # of GLUE
# Usual names of text and label columns, in lower case.
_PAIRS = (
    *(("sentence1", "sentence2"), ("sentence_a", "sentence_b"), ("premise", "hypothesis"), ("question", "sentence")),
    *(("question1", "question2"), ("question", "passage"), ("query", "passage"), ("text1", "text2")),
    *(("text_a", "text_b"), ("first", "second"), ("#1 string", "#2 string")),
)
_SINGLES = ("text", "sentence", "review", "content", "comment_text")
_LABELS = ("label", "labels", "gold_label", "score", "target", "class")
# Strings that mean a missing value: the `na_values` of pandas' readers.
MISSING = frozenset(
    (
        *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"),
        *("N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
    )
)


def glue_file(directory: Path, task: DatasetSpec, split: str) -> Path:
    """The file of a split in a GLUE directory, or in the task's folder in it.

    Args:
        directory: contains folders such as `MRPC`, or is one of them.
        task: the task of the file.
        split: the full name of the split, such as `validation` or `validation_matched`.

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
    """The task's folder in a GLUE directory, or the directory itself if it is that folder; else None."""
    for path in [*listing(directory), Path(os.path.realpath(directory))]:
        if task.folder and plain_name(path.name) == plain_name(task.folder) and is_directory(path):
            return path
    return None


def split_file(folder: Path, split: str, parts: bool = False) -> Path | None:
    """The file of a split in a task's folder, such as `dev.tsv.gz` for `validation`, or None.

    Args:
        folder: the task's folder.
        split: the full name of the split, such as `validation` or `validation_matched`.
        parts: if the whole split is missing, use a part such as `dev_matched_first3000.tsv`.
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
    """Read examples from a table.

    Args:
        table: a table with one row or more.
        task: the task of the examples. Its columns are looked up by GLUE's names and by the HuggingFace hub's names;
            columns of a custom task are guessed.
        split: the split to record; a test split may lack labels.
        text_columns: one or two columns, in place of the task's.
        label_column: a column, in place of the task's.
        id_column: a column; by default `index` or `idx` if it has distinct integers, as in GLUE's files, else ids are
            row indices.
        has_labels: whether there is a label column.
        infer_labels: infer from the labels whether they are classes, and which.
        model_labels: the names of the model's labels in their order, which replace inferred classes that are integers;
            None to keep the integers.

    Raises:
        DataError: a value of the table is wrong.
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
        + columns.note,
        split=split,
    )


def read_table(path: Path, task: DatasetSpec) -> Table:
    """Read a file of any format, or a saved data set.

    Args:
        path: the file or directory.
        task: the task of the data.

    Raises:
        DataError: it cannot be read, or has no rows.
    """
    if is_directory(path):
        table = read_saved(path)
    elif path.name.endswith((".parquet", ".parquet.gz")):
        table = read_parquet(path)
    elif path.name.endswith(SUFFIXES):
        table = read_text(path, task)
    else:
        raise DataError(f"{path}: the format is not supported; give a file that ends in {', '.join(SUFFIXES)}")
    if not len(table):
        raise DataError(f"{path}: holds no examples")
    return table


@dataclass(frozen=True)
class _Columns:
    """The columns of a table.

    Args:
        texts: one or two.
        label: the column of the labels, even if the table lacks it.
        labelled: whether there are labels.
        note: the guessed columns, for the source of the examples; empty if none was guessed.
    """

    texts: tuple[str, ...]
    label: str
    labelled: bool
    note: str


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
        """Find the columns in a table.

        Raises:
            DataError: a column is missing, or cannot be guessed.
        """
        guessed, columns = [], table.columns
        texts = self.texts or _known(columns, self.task.text_columns, self.task.renamed)
        if not texts:
            texts = guess_texts(table, {self.label, self.ids})
            guessed.append(f"column{'s' * (len(texts) - 1)} {' and '.join(texts)}")
        label = self.label or _known(columns, (self.task.label_column,), ("label",))[0]
        if self.task.name == CUSTOM and self.label is None and not (self.texts and label in columns):
            label = guess_label(table, {*texts, self.ids}, label if self._may_lack_labels else None)
            guessed += [f"labels {label}"] if label in columns else []
        labelled = self.has_labels and not (self._may_lack_labels and label not in columns)
        for name in (*texts, *([label] if labelled else []), *([self.ids] if self.ids else [])):
            table.need([name])
        return _Columns(texts, label, labelled, f", {', '.join(guessed)}, guessed" if guessed else "")

    @property
    def _may_lack_labels(self) -> bool:
        return self.split.startswith("test") and self.label is None


def _known(columns: Sequence[str], names: tuple[str, ...], alternatives: tuple[str, ...]) -> tuple[str, ...]:
    """Whichever of `names` and `alternatives` are columns of the file; `names` if neither are."""
    present = set(columns)
    renamed = bool(alternatives) and present.issuperset(alternatives) and not present.issuperset(names)
    return alternatives if renamed else names


def guess_texts(table: Table, taken: Collection[str | None]) -> tuple[str, ...]:
    """The text column, or pair of text columns, by usual names.

    Args:
        table: the table.
        taken: columns that are not considered.

    Raises:
        DataError: there are several, or none.
    """
    usual = {*_SINGLES, *(name for pair in _PAIRS for name in pair)}
    known = [name for name in table.columns if name.lower() in usual and name not in taken]
    pairs = [(one, two) for one in known for two in known if (one.lower(), two.lower()) in _PAIRS]
    paired = {name for pair in pairs for name in pair}
    singles = [(name,) for name in known if name.lower() in _SINGLES and name not in paired]
    found: list[tuple[str, ...]] = [*pairs, *singles]
    if len(found) > 1:
        candidates = ", or in ".join(" and ".join(names) for names in found[:6])
        raise DataError(f"{table.header}: texts may be in {candidates}: choose with --text-columns (text_columns=)")
    if not found:
        raise DataError(
            f"{table.header}: no text column found (usual names: {', '.join(_SINGLES)}, sentence1 and sentence2, "
            f"...); {available(table.columns)}; name one or two with --text-columns (text_columns=)"
        )
    return found[0]


def guess_label(table: Table, taken: Collection[str | None], default: str | None) -> str:
    """The label column by usual names, or else the default.

    Args:
        table: the table.
        taken: columns that are not considered.
        default: the column if no column has a usual name; None raises an error.

    Raises:
        DataError: there are several, or none and no default.
    """
    found = [name for name in table.columns if name.lower() in _LABELS and name not in taken]
    if len(found) > 1:
        candidates = ", or in ".join(found[:6])
        raise DataError(f"{table.header}: labels may be in {candidates}: choose with --label-column (label_column=)")
    if not found and default is None:
        raise DataError(
            f"{table.header}: no label column found (usual names: {', '.join(_LABELS)}); "
            f"{available(table.columns)}; name it with --label-column (label_column=)"
        )
    return found[0] if found else str(default)


def _ids(table: Table, name: str | None) -> tuple[int | str, ...]:
    if name is not None:
        values = distinct_ids(table, name)
        integers = _integer_ids(values)
        return tuple(str(value) for value in values) if integers is None else integers
    for column in _ID_COLUMNS:
        if column in table.columns:
            integers = _integer_ids(table.column(column))
            if integers is not None and len(set(integers)) == len(integers):
                return integers
    return tuple(table.indices)


def _integer_ids(values: Sequence[object]) -> tuple[int, ...] | None:
    """Ids as integers that fit into an array; None if one of them does not."""
    integers = tuple(number for number in map(as_int, values) if number is not None and abs(number) <= LARGEST_ID)
    return integers if len(integers) == len(values) else None


def distinct_ids(table: Table, name: str) -> list[str | int | float]:
    """The ids of a column. Raises `DataError` if one is missing, of another type, or not unique."""
    values, seen = ids_of(table, name), dict[str, int]()
    for row, value in enumerate(values):
        first_row = seen.setdefault(str(value), row)
        if first_row != row:
            raise table.error(row, f"id {brief(value)} of column {name!r} is also in {table.location(first_row)}")
    return values


def ids_of(table: Table, name: str) -> list[str | int | float]:
    """The ids of a column. Raises `DataError` if one is missing, or neither a str nor an integer."""
    found: list[str | int | float] = []
    for row, value in enumerate(table.column(name)):
        if value is None or (isinstance(value, str) and not value.strip()):
            raise table.error(row, f"column {name!r} is {'null' if value is None else 'empty'}, but needs an id")
        if not isinstance(value, str) and (as_int(value) is None or isinstance(value, bool)):
            raise table.error(row, f"column {name!r} holds {brief(value)}; an id must be a string or an integer")
        if problem := problem_of(str(value)):
            raise table.error(row, f"column {name!r} {problem}")
        assert isinstance(value, str | int | float)
        found.append(value)
    return found


def is_missing(value: object, names: Sequence[str] | None = None, *, minus_one: bool = False) -> bool:
    """Whether a label is missing: null, NaN, or a string in `MISSING` that is not the name of a class.

    Args:
        value: a value of a label column.
        names: the names of the classes, if they are known.
        minus_one: whether -1 means missing too, unless a class has this name.

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
    """Raise `DataError` with the location of every row without a label.

    Args:
        values: the labels.
        names: the names of the classes, if they are known.
        infer: whether classes are inferred if no names are known.
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
    """The error for rows without a label.

    Args:
        table: the table of the rows.
        values: the labels of all rows.
        rows: the rows that have no label.
        expected: the end of "is ...", which says what a label must be.
        alternative: advice besides leaving the rows out.
    """
    found = list(dict.fromkeys(_show(values[row]) for row in rows))
    problem = f"label {found[0]} is {expected}, but a missing value"
    if len(found) > 1:
        problem = f"labels {some_of(found)} are {expected}, but missing values"
    advice = f"leave out the {'row' if len(rows) == 1 else 'rows'}{', or ' * bool(alternative)}{alternative}"
    return DataError(f"{table.path}, {table.location(*rows)}: {problem}; {advice}")


def _number(value: object) -> float | None:
    """Convert a value to a finite float; None if that is impossible."""
    if not isinstance(value, str | int | float) or "_" in str(value):  # float() would read 1_2 as 12
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def as_int(value: object) -> int | None:
    """Convert a value such as `3`, `3.0` or `"3.0"` to an int; None for other values.

    Args:
        value: a value of a table.
    """
    number = _number(value)
    if not isinstance(value, str | int | float) or number is None or not number.is_integer():
        return None
    try:
        return int(value)  # a float would round numbers beyond 2^53
    except ValueError:  # '1e3', '3.0'
        return int(number)


def _class(value: object, names: tuple[str, ...]) -> int | None:
    """The id of a class, from its name or, unless class names are integers, from its id; None for other values."""
    if isinstance(value, str) and value in names:
        return names.index(value)
    whole = as_int(value)
    for name in (value, whole):
        if str(name) in names:
            return names.index(str(name))
    if whole is None or any(as_int(name) is not None for name in names):
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
            expected = "a finite number" if names is None else f"one of {some_of(names)}, or its index from 0"
            raise table.error(row, f"label {_show(value)} is not {expected}")
        labels.append(number)
    return np.asarray(labels, dtype=np.float32 if names is None else np.int32)


def _with_inferred_labels(task: DatasetSpec, values: Sequence[object], table: Table, may_lack: bool) -> DatasetSpec:
    """The task as a regression if labels are numbers but not all integers, else with each distinct label as a class."""
    unlabelled = _unlabelled_rows(values, None) if may_lack else frozenset()
    known = {row: value for row, value in enumerate(values) if row not in unlabelled}
    numbers = {row: number for row, value in known.items() if (number := _number(value)) is not None}
    names = {row: value for row, value in known.items() if row not in numbers}
    classes: tuple[str, ...] | None
    for row, value in names.items():
        if not isinstance(value, str | int | float):
            raise table.error(row, f"label {_show(value)} is neither a number nor a name")
        if _is_infinite(value) and (numbers or isinstance(value, float)):
            raise table.error(row, f"label {_show(value)} is not a finite number")
    if names:
        _check_mixed(table, names, numbers, known)
        classes = tuple(sorted({str(value) for value in known.values()}))
    else:
        whole = {number for value in known.values() if (number := as_int(value)) is not None}
        is_rated = not known or any(not number.is_integer() for number in numbers.values())
        classes = None if is_rated else tuple(map(str, sorted(whole)))
    return replace(task, label_names=classes)


def _check_mixed(
    table: Table, names: Mapping[int, object], numbers: Mapping[int, float], known: Mapping[int, object]
) -> None:
    """Raise `DataError` if some labels are names and others are floats or numbers with a fraction."""
    for row, number in numbers.items():
        if not number.is_integer() or isinstance(known[row], float):
            name, label = next(iter(names)), _show(known[row])
            problem = f"label {_show(names[name])} is a name, but label {label} on {table.location(row)} is a number"
            raise table.error(name, f"{problem}; name the classes with --label-names (label_names=)")


def _unlabelled_rows(values: Sequence[object], names: Sequence[str] | None) -> frozenset[int]:
    """The rows of a test split without a label.

    -1 means no label unless a class has this name or, if no names are known, another label is a number.
    """
    missing = frozenset(row for row, value in enumerate(values) if is_missing(value, names))
    hidden = frozenset(row for row, value in enumerate(values) if is_missing(value, names, minus_one=True))
    rated = not names and any(_number(value) is not None for row, value in enumerate(values) if row not in hidden)
    return missing if rated else hidden


def _is_infinite(value: object) -> bool:
    """Whether a value is an infinite number or its string."""
    try:
        return isinstance(value, str | float) and math.isinf(float(value))
    except ValueError:
        return False


def _show(value: object) -> str:
    return "null" if value is None else brief(value)


def _with_classes(
    task: DatasetSpec, values: Sequence[object], table: Table, label: str, infer: bool, may_lack: bool
) -> tuple[DatasetSpec, Sequence[object]]:
    """The task with the classes of the file or those inferred, and the labels by their names.

    Class ids of a file that names its classes are converted to these names, whose order may differ from the task's.
    """
    classes = table.classes.get(label, ())
    if infer and classes:
        task = replace(task, label_names=classes)
    elif infer:
        task = _with_inferred_labels(task, values, table, may_lack)
    # If the file's class names are just the ids, the task decides what these mean.
    if task.label_names is None or classes == tuple(map(str, range(len(classes)))):
        return task, values
    named = list(values)
    for row, value in enumerate(values):
        if isinstance(value, int) and classes and not (may_lack and value == -1):
            if not 0 <= value < len(classes):
                raise table.error(
                    row, f"label {value} is not a class id: the classes of the {table.noun} are {some_of(classes)}"
                )
            if classes[value] not in task.label_names:
                expected = f"not one of {some_of(task.label_names)}; give the {table.noun}'s classes as --label-names"
                raise table.error(row, f"label {value} is {brief(classes[value])} in the {table.noun}, {expected}")
            named[row] = classes[value]
    return task, named


def _in_models_order(
    columns: _Columns, task: DatasetSpec, labels: Mapping[int, object], table: Table, names: Sequence[str]
) -> tuple[_Columns, DatasetSpec]:
    """The task with the model's names for classes that are integers; the note of the columns says so.

    Args:
        labels: the known labels, by row.
        names: the model's label names. Integers are kept if these are generic (`LABEL_0`), or contain a number that is
            not their index (`1 star` at index 0).

    Raises:
        DataError: an integer is not the id of one of the names.
    """
    digits = [re.search(r"\d+", name) for name in names]
    renumbered = any(found is not None and int(found[0]) != index for index, found in enumerate(digits))
    class_ids = {row: as_int(label) for row, label in labels.items()}
    if task.label_names is None or None in class_ids.values() or renumbered or all(map(GENERIC.fullmatch, names)):
        return columns, task
    for row, class_id in class_ids.items():
        if class_id not in range(len(names)):
            raise table.error(
                row,
                f"label {_show(labels[row])} is not an id of the model's {len(names)} labels (from 0: "
                f"{some_of(names)}); give the names of your classes in ascending order with --label-names "
                "(label_names=)",
            )
    indices = some_of([str(index) for index in range(len(names))])
    note = f"{columns.note}, labels {indices} read as {some_of(names)}, the model's order"
    return replace(columns, note=note), replace(task, label_names=tuple(names))
