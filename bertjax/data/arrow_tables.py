"""Tables in Parquet files, and in directories saved by HuggingFace `datasets`: columns of Arrow, which have types.

A column is read when it is needed. Rows have no lines here: errors name them by number, from 0 as pandas and `datasets`
do.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.data.examples import DatasetSpec, split_named
from bertjax.data.tables import Table
from bertjax.errors import DataError, MissingDependencyError, library_errors, some_of
from bertjax.json_files import JsonError, parse_json, read_json
from bertjax.paths import is_file

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"


def read_parquet(path: Path) -> Table:
    """A Parquet file, compressed with gzip or not.

    Raises:
        DataError: the file is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    failure = f"{path}: cannot be read as Parquet; copy it again"
    with library_errors(failure, DataError):
        file = _open(path)
        packed = path.suffix == ".gz"
        parquet = pq.ParquetFile(pa.BufferReader(file.read_buffer()) if packed else file, pre_buffer=False)
        schema, rows = parquet.schema_arrow, parquet.metadata.num_rows

    def read(name: str) -> Any:
        with library_errors(failure, DataError):
            return parquet.read([name], use_threads=False).column(name)

    return Table(path, tuple(schema.names), read, range(rows), classes=names_in_metadata(schema.metadata or {}))


def _open(path: Path) -> Any:
    """A file as a stream of Arrow; a name that ends in `.gz` is decompressed.

    Not as a file object of Python: threads of Arrow may release parts of one when Python has begun to exit, which
    aborts the process (https://github.com/apache/arrow/issues/34314).
    """
    import pyarrow as pa

    file = pa.OSFile(os.fsencode(path))
    return pa.CompressedInputStream(file, "gzip") if path.suffix == ".gz" else file


def names_in_metadata(metadata: Mapping[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    """The names of classes that `datasets` writes into the metadata of Parquet; none where these are not as it does."""
    try:
        features = parse_json(metadata[b"huggingface"].decode())["info"]["features"]
        single = {name: feature.get("feature", feature) for name, feature in features.items()}  # of lists that in them
        named = {name: feature["names"] for name, feature in single.items() if feature.get("_type") == "ClassLabel"}
    except (JsonError, UnicodeDecodeError, LookupError, TypeError, AttributeError):
        return {}
    return {column: tuple(names) for column, names in named.items() if _are_texts(names)}


def _are_texts(names: object) -> bool:
    return isinstance(names, list) and bool(names) and all(isinstance(name, str) for name in names)


def read_saved(path: Path) -> Table:
    """A dataset of one split that HuggingFace `datasets` saved.

    Args:
        path: its directory.

    Raises:
        DataError: the dataset is damaged.
        MissingDependencyError: `datasets` is not installed.
    """
    try:
        from datasets import Dataset
    except ImportError as error:
        raise MissingDependencyError(
            f"{path}: to read what datasets saved takes datasets ({error}): pip install 'bertjax[datasets]'"
        ) from error
    failure = f"{path}: cannot be read as a saved dataset; save it again"
    with library_errors(failure, DataError):
        saved = Dataset.load_from_disk(str(path), keep_in_memory=False)
        named, data = class_names(saved.features), saved.data.table

    def read(name: str) -> Any:
        with library_errors(failure, DataError):
            data.column(name).validate(full=True)  # the file is mapped into memory as it is
            return data.column(name)

    return Table(path, tuple(saved.column_names), read, range(len(saved)), classes=named)


def class_names(features: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """By column, the names of classes in the features of a `Dataset`, also of lists of classes."""
    from datasets import ClassLabel

    single = {name: getattr(kind, "feature", kind) for name, kind in features.items()}
    return {name: tuple(kind.names) for name, kind in single.items() if isinstance(kind, ClassLabel)}


def is_saved_dataset(directory: Path) -> bool:
    """Whether a directory is one that `save_to_disk` of `datasets` wrote, with one split or with several.

    Raises:
        DataError: it cannot be looked at.
    """
    return is_file(directory / SPLITS) or (is_file(directory / STATE) and is_file(directory / INFO))


def saved_split(directory: Path, task: DatasetSpec, split: str) -> tuple[Path, str]:
    """The directory of a split in a saved dataset, and the split that it holds.

    Args:
        directory: of several splits or of one, which may state its own.
        task: the task it belongs to; MNLI's evaluation splits carry its section.
        split: as it was asked for.

    Raises:
        DataError: there is no such split, or what says so is damaged.
    """
    if not is_file(directory / SPLITS):
        return directory, stated_split(_state(directory).get("_split"), directory, task, split)
    names = read_json(directory / SPLITS).get("splits")
    if not _are_texts(names):
        raise DataError(f"{directory / SPLITS}: names no splits; save the dataset again")
    name, full = choose_split(names, directory, task, split)
    if not is_file(directory / name / STATE):
        raise DataError(f"{directory / name}: no saved split is there; save the dataset again")
    return directory / name, full


def stated_split(stated: object, where: Path | str, task: DatasetSpec, split: str) -> str:
    """The split that a dataset holds: the one that it states, or else the requested one.

    Args:
        stated: as `datasets` writes it, such as `train[:10%]`; it may be no name of a split.
        where: what messages call the dataset.

    Raises:
        DataError: it states another split than `split`.
    """
    found = re.match(r"(train|dev|validation|test)(?![a-zA-Z])", str(stated))
    if found is None:
        return split
    own = split_named(task, found[1])
    if split not in ("validation", found[1], own):
        of_one = "directory" if isinstance(where, Path) else "Dataset"
        raise DataError(f"{where}: holds the split {found[1]}, not {split}; give the {of_one} of that one")
    return own


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
        if name in names and Path(name).name == name:  # and no path to another place
            return name, re.sub("^dev", "validation", name)
    raise DataError(f"{where}: no split {split!r}; there are {some_of(names, most=20)}")


def _state(directory: Path) -> dict[str, Any]:
    state: dict[str, Any] = read_json(directory / STATE)
    return state
