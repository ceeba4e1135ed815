"""Tables in Parquet files, and in directories saved by HuggingFace `datasets`: columns of Arrow, which have types.

Only the requested columns are read, a batch of rows at a time, within the available memory. Rows have no lines here:
errors name them by number, from 0 as pandas and `datasets` do.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bertjax.data.tables import Kept, Table, brief
from bertjax.data.tasks import Task, split_named
from bertjax.errors import DataError, MissingDependencyError, library_errors, some_of
from bertjax.formatting import format_bytes
from bertjax.json_files import JsonError, parse_json, read_json
from bertjax.machine import resident_memory
from bertjax.paths import is_file, open_data

BATCH = 1000  # rows that are converted together
ITEM_BYTES = 40  # of a value in a list, at most, besides texts
COPIES = 2  # of a column of a row group in memory: its pages, and what they hold
STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"


def read_parquet(kept: Kept) -> Table:
    """Read the requested columns of a Parquet file, compressed with gzip or not.

    Args:
        kept: what is kept of it; `kept.path` is the file.

    Raises:
        DataError: the file is damaged, has requested columns of other kinds, or takes more memory.
    """
    with _counted(kept):
        import pyarrow as pa
        import pyarrow.parquet as pq

    failure = f"{kept.path}: cannot be read as Parquet; copy it again"
    with library_errors(failure, DataError), _seekable(kept.path) as file:
        described = pq.ParquetFile(file)
        schema = described.schema_arrow
        kept.begin(schema.names)
        # Equal texts stay one while they are read: a small file cannot become a large table before it is counted.
        texts = [name for name in kept.values if _is_text(pa, schema.field(name).type)]
        if kept.lists:
            texts += _texts_in_lists(described, kept)
        options = {"metadata": described.metadata, "read_dictionary": texts, "pre_buffer": False}
        parquet = pq.ParquetFile(file, buffer_size=1 << 16, **options)
        for group in range(parquet.num_row_groups):
            _check_room(kept, parquet, group)
            for batch in parquet.iter_batches(BATCH, [group], columns=list(kept.values), use_threads=False):
                _keep(kept, batch)
        return kept.table(classes=_classes(schema.metadata or {}))


def _texts_in_lists(described: Any, kept: Kept) -> list[str]:
    """Paths of the texts inside lists and structs of the requested columns."""
    columns = [described.schema.column(number) for number in range(len(described.schema))]
    return [
        column.path
        for column in columns
        if column.physical_type == "BYTE_ARRAY" and any(column.path.startswith(f"{name}.") for name in kept.values)
    ]


def _check_room(kept: Kept, parquet: Any, group: int) -> None:
    """Raise `DataError` where the requested columns of a row group have no room."""
    described = parquet.metadata.row_group(group)
    if COPIES * described.total_byte_size <= kept.left:
        return  # pyarrow ends the process where it is asked for a column that a damaged file describes wrongly
    paths = [f"{parquet.schema.column(number).path}." for number in range(described.num_columns)]
    requested = (
        number for number, path in enumerate(paths) if any(path.startswith(f"{name}.") for name in kept.values)
    )
    size = COPIES * sum(described.column(number).total_uncompressed_size for number in requested)
    if size > kept.left:
        problem = f"to read it with the next {described.num_rows:,} takes up to {format_bytes(size)}"
        raise kept.refusal(len(kept.places), problem)


@contextmanager
def _counted(kept: Kept) -> Iterator[None]:
    """Count what importing a library takes as memory that is no longer left."""
    before = resident_memory()
    yield
    kept.taken += max(0, resident_memory() - before)


@contextmanager
def _seekable(path: Path) -> Iterator[Any]:
    """A file's content with random access, as a file of Arrow; what is gzipped is decompressed to the disk first.

    Not as a file object of Python: threads of Arrow may release parts of one when Python has begun to exit, which
    aborts the process (https://github.com/apache/arrow/issues/34314).
    """
    import pyarrow as pa

    with open_data(path) as file, ExitStack() as opened:
        if path.suffix == ".gz":
            directory = opened.enter_context(tempfile.TemporaryDirectory())
            unpacked = Path(directory, "unpacked.parquet")
            with unpacked.open("wb") as copy:
                shutil.copyfileobj(file, copy)
            path = unpacked
        yield opened.enter_context(pa.OSFile(os.fsencode(path)))


def _classes(metadata: Mapping[bytes, bytes]) -> dict[str, tuple[str, ...]]:
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


def read_saved(kept: Kept) -> Table:
    """Read the requested columns of a dataset that HuggingFace `datasets` saved.

    Args:
        kept: what is kept of it; `kept.path` is the directory, of one split.

    Raises:
        DataError: the dataset is damaged, has requested columns of other kinds, or takes more memory.
        MissingDependencyError: `datasets` is not installed.
    """
    with _counted(kept):
        try:
            from datasets import ClassLabel, Dataset
        except ImportError as error:
            raise MissingDependencyError(
                f"{kept.path}: to read what datasets saved takes datasets ({error}): pip install 'bertjax[datasets]'"
            ) from error
    _check_files(kept.path)
    with library_errors(f"{kept.path}: cannot be read as a saved dataset; save it again", DataError):
        saved = Dataset.load_from_disk(str(kept.path), keep_in_memory=False)
        kept.begin(saved.column_names)
        for batch in saved.select_columns(list(kept.values)).data.to_batches(max_chunksize=BATCH):
            _keep(kept, batch)
        single = {name: getattr(kind, "feature", kind) for name, kind in saved.features.items()}
        named = {name: kind.names for name, kind in single.items() if isinstance(kind, ClassLabel)}
        return kept.table(classes={name: tuple(names) for name, names in named.items() if _are_texts(names)})


def is_saved_dataset(directory: Path) -> bool:
    """Whether a directory is one that `save_to_disk` of `datasets` wrote, with one split or with several.

    Raises:
        DataError: it cannot be looked at.
    """
    return is_file(directory / SPLITS) or (is_file(directory / STATE) and is_file(directory / INFO))


def saved_split(directory: Path, task: Task, split: str) -> tuple[Path, str]:
    """The directory of a split in a saved dataset, and the split that it holds.

    Args:
        directory: of several splits or of one, which may state its own.
        task: the task it belongs to; MNLI's evaluation splits carry its section.
        split: as it was asked for.

    Raises:
        DataError: there is no such split, or what says so is damaged.
    """
    if not is_file(directory / SPLITS):
        stated = re.match(r"(train|dev|validation|test)(?![a-zA-Z])", str(_state(directory).get("_split")))
        if stated is None:
            return directory, split
        own = split_named(task, stated[1])
        if split not in ("validation", stated[1], own):
            raise DataError(f"{directory}: holds the split {stated[1]}, not {split}; give the directory of that one")
        return directory, own
    names = read_json(directory / SPLITS).get("splits")
    if not _are_texts(names):
        raise DataError(f"{directory / SPLITS}: names no splits; save the dataset again")
    try:
        full = split_named(task, split)
    except DataError:
        full = split
    for name in (split, full, re.sub("^validation", "dev", full)):
        if name in names and Path(name).name == name:
            if not is_file(directory / name / STATE):
                raise DataError(f"{directory / name}: no saved split is there; save the dataset again")
            return directory / name, re.sub("^dev", "validation", name)
    raise DataError(f"{directory}: no split {split!r}; there are {some_of(names, most=20)}")


def _state(directory: Path) -> dict[str, Any]:
    state: dict[str, Any] = read_json(directory / STATE)
    return state


def _check_files(directory: Path) -> None:
    """Raise `DataError` where a file of a dataset is missing."""
    for path in (directory / STATE, directory / INFO):
        if not is_file(path):
            raise DataError(f"{path}: no such file; save the dataset again")
    files = _state(directory).get("_data_files")
    names = [str(file.get("filename")) for file in files if isinstance(file, dict)] if isinstance(files, list) else []
    for name in names:
        if "\0" in name or not is_file(directory / name):
            raise DataError(f"{directory}: the file {brief(name)} of its data is missing; save the dataset again")


def _keep(kept: Kept, batch: Any) -> None:
    """Keep the rows of a `pyarrow.RecordBatch`."""
    first = len(kept.places)
    rows = range(first, first + batch.num_rows)
    values = {name: _values(kept, name, batch.column(name), rows) for name in kept.values}
    for row in range(batch.num_rows):
        kept.add(first + row, first + row, {name: column[row] for name, column in values.items()})


def _values(kept: Kept, name: str, column: Any, rows: Sequence[int]) -> Sequence[object]:
    """A column's values as Python has them: of single values, lists of these, or structs of either."""
    import pyarrow as pa

    kind = column.type
    if kept.lists and pa.types.is_struct(kind):
        column.validate()
        fields = {
            kind.field(place).name: _of_lists_or_single(kept, name, column.field(place), rows)
            for place in range(kind.num_fields)
        }
        nulls = column.is_null().to_pylist()
        return [
            None if null else {field: values[row] for field, values in fields.items()} for row, null in enumerate(nulls)
        ]
    return _of_lists_or_single(kept, name, column, rows)


def _of_lists_or_single(kept: Kept, name: str, column: Any, rows: Sequence[int]) -> Sequence[object]:
    """A column's values, which may be lists."""
    import pyarrow as pa

    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not kept.lists or not any(is_kind(column.type) for is_kind in kinds):
        return _single(kept, name, column, rows)
    column.validate()
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    ends = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    counts = np.diff(ends)
    if ends[0] < 0 or (counts < 0).any() or ends[-1] > len(column.values):
        raise ValueError(f"a list of column {name} points beyond its values")
    if ITEM_BYTES * counts.sum() > kept.left:
        raise kept.refusal(rows[0], f"{counts.sum():,} values in lists of the next {len(rows):,} rows have no room")
    items = column.values.slice(ends[0], ends[-1] - ends[0])
    values = _single(kept, name, items, np.repeat(np.asarray(rows), counts).tolist())
    starts = (ends - ends[0]).tolist()
    nulls = column.is_null().to_pylist()
    return [None if nulls[row] else [*values[starts[row] : starts[row + 1]]] for row in range(len(nulls))]


def _single(kept: Kept, name: str, column: Any, rows: Sequence[int]) -> Sequence[object]:
    """A column's values that are no lists: texts, numbers, True and False, and None for nulls.

    Args:
        rows: the number of the row of each.
    """
    import pyarrow as pa

    if _is_text(pa, column.type):
        return _texts(kept, name, column, rows)
    checks = (pa.types.is_integer, pa.types.is_float32, pa.types.is_float64, pa.types.is_boolean, pa.types.is_null)
    if not any(check(_entry_type(pa, column.type)) for check in checks):
        readable = "texts, whole numbers, floats of 32 or 64 bits, and true or false are read"
        readable += ", and lists of these" if kept.lists else ""
        raise DataError(f"{kept.path}: column {brief(name)} holds {brief(str(column.type))}; {readable}")
    column.validate(full=True)
    values: list[object] = column.to_pylist()
    return values


def _texts(kept: Kept, name: str, column: Any, rows: Sequence[int]) -> list[str | None]:
    """Texts of a column; equal ones of a dictionary are one."""
    import pyarrow as pa

    single = pa.types.is_dictionary(column.type)
    entries = column.dictionary if single else column
    # As bytes first: in a damaged file offsets may point anywhere, which is checked, and bytes need not be UTF-8.
    kinds = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
    entries = entries.view(kinds[entries.type])
    entries.validate(full=True)
    places = column.indices.to_pylist() if single else range(len(column))
    known: dict[int, str | None] = {}
    texts: list[str | None] = []
    for row, place in enumerate(places):
        if place is not None and place not in known:
            if not 0 <= place < len(entries):
                raise ValueError(f"row {rows[row]} points beyond its dictionary")
            content = entries[place].as_py()
            try:
                known[place] = None if content is None else content.decode()
            except UnicodeDecodeError as error:
                where = f"{kept.path}, row {rows[row]} (from 0)"
                raise DataError(f"{where}: column {brief(name)} is not UTF-8 ({error.reason})") from error
        texts.append(None if place is None else known[place])
    return texts


def _entry_type(pa: ModuleType, kind: Any) -> Any:
    """The type of a column's values, also where they stand in a dictionary."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(pa: ModuleType, kind: Any) -> bool:
    return _entry_type(pa, kind) in (pa.string(), pa.large_string(), pa.string_view())
