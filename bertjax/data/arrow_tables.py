"""Tables of Arrow columns: Parquet files, and data sets of HuggingFace `datasets`, in memory or saved.

A column is read when it is needed. Errors name rows by their index from 0, as in pandas and `datasets`.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.data.examples import DatasetSpec, split_named
from bertjax.data.tables import Table, brief
from bertjax.errors import DataError, MissingDependencyError, library_errors, some_of
from bertjax.json_files import JsonError, parse_json, read_json
from bertjax.paths import is_file

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"


def read_parquet(path: Path) -> Table:
    """Open a Parquet file, compressed with gzip or not.

    Raises:
        DataError: the file is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    failure = f"{path}: cannot be read as Parquet; copy it again"
    with library_errors(failure, DataError):
        file = _open(path)
        compressed = path.suffix == ".gz"
        parquet = pq.ParquetFile(pa.BufferReader(file.read_buffer()) if compressed else file, pre_buffer=False)
        schema, rows = parquet.schema_arrow, parquet.metadata.num_rows

    def read(name: str) -> Any:
        with library_errors(failure, DataError):
            return parquet.read([name], use_threads=False).column(name)

    return Table(path, tuple(schema.names), read, range(rows), classes=names_in_metadata(schema.metadata or {}))


def _open(path: Path) -> Any:
    """Open a file as a stream of Arrow; a file whose name ends in `.gz` is decompressed.

    A file object of Python would not do: threads of Arrow may release parts of it while Python exits, which aborts the
    process (https://github.com/apache/arrow/issues/34314).
    """
    import pyarrow as pa

    file = pa.OSFile(os.fsencode(path))
    return pa.CompressedInputStream(file, "gzip") if path.suffix == ".gz" else file


def names_in_metadata(metadata: Mapping[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    """The class names of each column that `datasets` wrote into the metadata of Parquet; empty if there are none."""
    try:
        features = parse_json(metadata[b"huggingface"].decode())["info"]["features"]
        single = {name: feature.get("feature", feature) for name, feature in features.items()}  # or lists
        named = {name: feature["names"] for name, feature in single.items() if feature.get("_type") == "ClassLabel"}
    except (JsonError, UnicodeDecodeError, LookupError, TypeError, AttributeError):
        return {}
    return {column: tuple(names) for column, names in named.items() if _are_str(names)}


def _are_str(names: object) -> bool:
    return isinstance(names, list) and bool(names) and all(isinstance(name, str) for name in names)


def read_saved(path: Path) -> Table:
    """Open one split that HuggingFace `datasets` saved.

    Args:
        path: the directory of the data set.

    Raises:
        DataError: the data set is damaged.
        MissingDependencyError: `datasets` is not installed.
    """
    try:
        from datasets import Dataset
    except ImportError as error:
        raise MissingDependencyError(
            f"{path}: reading a saved data set needs datasets ({error}): pip install 'bertjax[datasets]'"
        ) from error
    with library_errors(f"{path}: cannot be read as a saved dataset; save it again", DataError):
        return table_of_dataset(Dataset.load_from_disk(str(path), keep_in_memory=False), path)


def table_of_dataset(dataset: Any, name: Path | str) -> Table:
    """The table of a `Dataset`, with the rows and the order that `select`, `shuffle` and `filter` give it.

    Args:
        name: the name of the data set in messages.
    """
    from datasets import ClassLabel

    def read(column: str) -> Any:
        with library_errors(f"{name}: column {brief(column)} cannot be read", DataError):
            values = dataset.select_columns([column]).with_format("arrow")[:].column(column)
            values.validate(full=True)  # a saved data set is mapped into memory as it is
            return values

    kinds = {column: getattr(kind, "feature", kind) for column, kind in dataset.features.items()}  # or of lists
    classes = {column: tuple(kind.names) for column, kind in kinds.items() if isinstance(kind, ClassLabel)}
    return Table(name, tuple(dataset.column_names), read, range(len(dataset)), classes=classes)


def is_saved_dataset(directory: Path) -> bool:
    """Whether `save_to_disk` of `datasets` wrote a directory, with one split or several.

    Args:
        directory: a path that may not exist.

    Raises:
        DataError: it cannot be read.
    """
    return is_file(directory / SPLITS) or (is_file(directory / STATE) and is_file(directory / INFO))


def saved_split(directory: Path, task: DatasetSpec, split: str) -> tuple[Path, str]:
    """The directory and the full name of a split of a saved data set.

    Args:
        directory: a directory of several splits or of one.
        task: the task of the data; evaluation splits of MNLI contain its section.
        split: as the user named it.

    Raises:
        DataError: there is no such split, or the data set is damaged.
    """
    if not is_file(directory / SPLITS):
        return directory, stated_split(read_json(directory / STATE).get("_split"), directory, task, split)
    names = read_json(directory / SPLITS).get("splits")
    if not _are_str(names):
        raise DataError(f"{directory / SPLITS}: names no splits; save the dataset again")
    name, full = choose_split(names, directory, task, split)
    if not is_file(directory / name / STATE):
        raise DataError(f"{directory / name}: is not a saved split; save the dataset again")
    return directory / name, full


def stated_split(stated: object, name: Path | str, task: DatasetSpec, split: str) -> str:
    """The split of a data set: the split that the data set states, or else the requested one.

    Args:
        stated: as `datasets` writes it, such as `train[:10%]`; it may be something else.
        name: the name of the data set in messages.

    Raises:
        DataError: the data set states another split than `split`.
    """
    found = re.match(r"(train|dev|validation|test)(?![a-zA-Z])", str(stated))
    if found is None:
        return split
    full = split_named(task, found[1])
    if split not in ("validation", found[1], full):
        kind = "directory" if isinstance(name, Path) else "Dataset"
        raise DataError(f"{name}: holds the split {found[1]}, not {split}; give the {kind} of that split")
    return full


def choose_split(names: Sequence[str], where: Path | str, task: DatasetSpec, split: str) -> tuple[str, str]:
    """The name of a split among several, and its full name.

    Raises:
        DataError: there is no such split.
    """
    try:
        full = split_named(task, split)
    except DataError:
        full = split
    for name in (split, full, re.sub("^validation", "dev", full)):
        if name in names and Path(name).name == name:  # not a path to another directory
            return name, re.sub("^dev", "validation", name)
    raise DataError(f"{where}: no split {split!r}; there are {some_of(names, most=20)}")
