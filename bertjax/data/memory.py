"""Tables of objects in memory: data frames, Arrow tables, `datasets`, lists and dicts, texts.

This imports no library: an object of pandas exists only if pandas was imported. Objects are not changed.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax import arguments
from bertjax.data.arrow_tables import choose_split, names_in_metadata, stated_split, table_of_dataset
from bertjax.data.examples import DatasetSpec, split_named
from bertjax.data.tables import Table, brief
from bertjax.errors import DataError, library_errors
from bertjax.formatting import count_of

KINDS = (
    "a path, a DataFrame of pandas or polars, an Arrow table, a Dataset of datasets, a list of dicts or a dict of "
    "columns"
)
TEXT, PAIR, LABEL = ("text",), ("first", "second"), "label"  # the columns of `texts` and `labels`


def is_path(data: object) -> bool:
    """Whether data are the path of a file or directory.

    Args:
        data: the argument `data` of a call.
    """
    return isinstance(data, str | bytes | os.PathLike)


def table_of(data: Any, task: DatasetSpec, split: str) -> tuple[Table, str]:
    """Convert an object to a table, and find the full name of its split.

    Args:
        data: one of `KINDS` except a path, or a `Table`.
        task: the task of the data; evaluation splits of MNLI contain its section.
        split: as the user named it; it selects a split of a `DatasetDict`.

    Raises:
        DataError: the object has another type, no rows, or not this split.
    """
    if _is_a(data, "datasets", "DatasetDict"):
        key, split = choose_split([*data], "DatasetDict", task, split)
        table = table_of_dataset(data[key], f"DatasetDict[{key!r}]")
    elif _is_a(data, "datasets", "Dataset"):
        split = stated_split(data.split, "Dataset", task, split)
        table = table_of_dataset(data, "Dataset")
    else:
        split = split if split == "validation" else split_named(task, split)  # as for a file that states no split
        table = data if isinstance(data, Table) else _of_object(data)
    if not len(table):
        raise DataError(f"{table.path}: holds no examples")
    return table, split


def _is_a(value: object, module: str, name: str) -> bool:
    """Whether a value is an instance of a class of a library that may not be installed."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _of_object(data: Any) -> Table:
    if _is_a(data, "pandas", "DataFrame"):
        return _of_pandas(data)
    if _is_a(data, "polars", "DataFrame"):
        return _of_arrow(data, "to_arrow")
    if not isinstance(data, type) and (hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")):
        return _of_arrow(data)
    if isinstance(data, Mapping):
        return _of_columns({str(name): _values(values, f"column {brief(name)}") for name, values in data.items()})
    if isinstance(data, list | tuple):
        return _of_rows(data)
    arguments.refuse("data", KINDS, data, DataError)


def _of_pandas(frame: Any) -> Table:
    """The table of a pandas DataFrame, without its index; missing values of any kind become None.

    Arrow would refuse a whole column if its values have several types; here, errors name the row.
    """
    names = [str(name) for name in frame.columns]

    def read(name: str) -> list[object]:
        column = frame.iloc[:, names.index(name)]
        return [_to_python(value) for value in column.astype(object).where(column.notna(), None).tolist()]

    return Table("DataFrame", tuple(names), read, range(len(frame)))


def _of_arrow(data: Any, method: str = "") -> Table:
    """The table of an Arrow table, or of an object that can be exported as one.

    Args:
        method: the object's method that exports it; empty if `pyarrow.table` accepts the object.
    """
    import pyarrow as pa

    kind = type(data).__name__
    name = "Arrow table" if kind == "Table" else kind
    with library_errors(f"{name}: cannot be read as a table", DataError, f"; data must be {KINDS}"):
        table = getattr(data, method)() if method else pa.table(data)
    return Table(
        name,
        tuple(table.column_names),
        table.column,
        range(table.num_rows),
        classes=names_in_metadata(table.schema.metadata or {}),
    )


def _of_columns(columns: Mapping[str, list[object]], name: str = "dict of columns") -> Table:
    lengths = {column: len(values) for column, values in columns.items()}
    if len({*lengths.values()}) > 1:
        found = ", ".join(f"{brief(column)} has {length}" for column, length in lengths.items())
        raise DataError(f"{name}: columns must have equal lengths; {found}")
    return Table(name, tuple(columns), columns.__getitem__, range(max(lengths.values(), default=0)))


def _of_rows(data: Sequence[object]) -> Table:
    rows: list[dict[str, object]] = []
    for index, row in enumerate(data):
        if not isinstance(row, Mapping):
            if not index:
                arguments.refuse("data", KINDS, data, DataError)
            raise DataError(f"list of dicts, row {index} (from 0): found {brief(row)}, which is not a dict")
        rows.append({str(key): value for key, value in row.items()})
    columns = tuple(dict.fromkeys(key for row in rows for key in row))
    return Table("list of dicts", columns, lambda name: [_to_python(row.get(name)) for row in rows], range(len(rows)))


def table_of_texts(texts: Any, labels: Any) -> Table:
    """The table of `texts` and `labels`.

    Args:
        texts: a sequence of str, or of pairs of str.
        labels: the label of each text; None for no labels.

    Raises:
        DataError: an argument is something else, or the lengths differ.
    """
    if texts is None:
        raise DataError("labels go with texts: give texts=[...] too, or leave labels out")
    values = _values(texts, "texts")
    if pairs := any(isinstance(value, list) for value in values):
        for row, value in enumerate(values):
            if not isinstance(value, list) or len(value) != 2:
                raise DataError(f"texts, row {row} (from 0): found {brief(value)}; give only texts, or only pairs")
    names = PAIR if pairs else TEXT
    columns = {name: [value[index] if pairs else value for value in values] for index, name in enumerate(names)}
    if labels is not None:
        columns[LABEL] = _values(labels, "labels")
        if len(columns[LABEL]) != len(values):
            counts = f"{count_of(len(values), 'text')} and {count_of(len(columns[LABEL]), 'label')}"
            raise DataError(f"texts and labels must have equal lengths; found {counts}")
    return _of_columns(columns, "texts")


def _values(values: Any, name: str) -> list[Any]:
    """The values of a sequence: a list, an array, a Series ... Raises `DataError` if it is not a sequence."""
    for export in ("tolist", "to_list", "to_pylist"):  # of NumPy, pandas and PyTorch; of polars; of Arrow
        if hasattr(values, export):
            values = getattr(values, export)()
            break
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence):
        arguments.refuse(name, "a list with a value for each row", values, DataError)
    return [_to_python(value) for value in values]


def _to_python(value: Any) -> Any:
    """Convert NumPy scalars and arrays, tuples, and the missing values of pandas to Python's types."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, np.generic | np.ndarray):
        converted = value.tolist()
        return converted if isinstance(converted, np.generic) else _to_python(converted)
    if isinstance(value, Mapping):
        return {str(key): _to_python(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_python(item) for item in value]
    return None if type(value).__name__ in ("NAType", "NaTType") else value
