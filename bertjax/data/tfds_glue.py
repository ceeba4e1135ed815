"""Read and prepare a copy of GLUE for TensorFlow Datasets, without TensorFlow.

TensorFlow Datasets cannot download GLUE without TensorFlow, which it uses to unpack archives, so a copy is prepared
from GLUE's TSV files. It has the name, configurations, version and features of the official copy, and
`tfds.data_source("glue/mrpc", data_dir=...)` reads it too.
"""

import contextlib
import io
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.data.examples import GLUE, SPELLINGS, DatasetSpec, Examples, look_up
from bertjax.data.local_files import glue_folder, read_examples, read_table, split_file
from bertjax.errors import DataError, MissingDependencyError, OutputError, library_errors, some_of
from bertjax.formatting import HALF_CHARACTER, visible
from bertjax.paths import is_there, refuse_inputs_in, user_path

# The files of a copy that `prepare` builds.
_BUILT = re.compile(r"(dataset_info|features|metadata)\.json|.*\.labels\.txt|glue-.*\.array_record-\d+-of-\d+")


@dataclass(frozen=True)
class Prepared:
    """One split of a prepared copy.

    Args:
        task: the configuration's name, such as `mrpc` or `mnli`.
        split: the full name of the split, such as `train` or `validation_matched`.
        rows: the number of examples.
        note: the source, or that the split already existed.
    """

    task: str
    split: str
    rows: int
    note: str


def _tfds() -> Any:
    try:
        import tensorflow_datasets as tfds
        import tensorflow_datasets.text.glue  # registers the builder
    except ImportError as error:
        raise MissingDependencyError(
            f"GLUE by name needs tensorflow-datasets ({error}): pip install 'bertjax[datasets]', or give local files"
        ) from error
    return tfds


def is_prepared(task: DatasetSpec) -> bool:
    """Whether TensorFlow Datasets is installed and its default directory has a copy of a task of GLUE.

    Raises:
        DataError: the copy cannot be read.
    """
    try:
        tfds = _tfds()
    except MissingDependencyError:
        return False
    with _reading(f"glue/{task.config}", None):
        return bool(tfds.builder(f"glue/{task.config}").info.splits)


def read(task: DatasetSpec, split: str, data_dir: str | Path | None = None) -> Examples:
    """Read examples from a prepared copy of `glue`, in their original order.

    Args:
        task: a task of GLUE.
        split: the full name of the split, such as `train` or `validation_matched`.
        data_dir: the directory of TensorFlow Datasets; by default its default.

    Raises:
        DataError: the copy does not exist, lacks the split or cannot be read.
        MissingDependencyError: tensorflow-datasets is not installed.
    """
    tfds = _tfds()
    builder_options = {} if data_dir is None else {"data_dir": str(user_path(data_dir))}
    with _reading(f"glue/{task.config}", data_dir):
        builder = tfds.builder(f"glue/{task.config}", **builder_options)
        splits = {name: int(info.num_examples) for name, info in builder.info.splits.items()}
        files = dict((builder.info.metadata or {}).items()).get("prepared_from", {})
    if split not in splits:
        raise _absent(task, split, builder, list(splits))
    with _reading(builder.data_path, data_dir):
        rows = sorted(_rows(builder, split), key=lambda row: int(row["idx"]))
        if len(rows) != splits[split]:
            raise ValueError(f"{len(rows)} rows of {split}, not {splits[split]}")
        origin = f", prepared from {files[split]}" if split in files else ""
        where = f"{builder.info.full_name} {split} in {builder.data_dir}"
        source = f"TensorFlow Datasets {where} ({len(rows)} rows{origin})"
        return _examples(task, split, rows, source)


def _reading(subject: object, data_dir: str | Path | None) -> contextlib.AbstractContextManager[None]:
    """Turn whatever TensorFlow Datasets and array_record raise on damaged files into a one-line `DataError`."""
    advice = f"bertjax data prepare --from GLUE_DIR --data-dir {data_dir or 'DIR'} --overwrite"
    return library_errors(f"{subject}: cannot be read; prepare it again with {advice}", DataError)


def _rows(builder: Any, split: str) -> list[dict[str, Any]]:
    try:
        source = builder.as_data_source(split)
    except NotImplementedError as error:
        raise DataError(
            f"{builder.data_path}: prepared as {builder.info.file_format.value}, which needs TensorFlow; "
            "prepare it with file_format='array_record' or with bertjax data prepare"
        ) from error
    return list(source.__getitems__(range(len(source))))


def _absent(task: DatasetSpec, split: str, builder: Any, splits: list[str]) -> DataError:
    if splits:
        return DataError(f"{builder.data_path}: has no split {split} of {task.name}; it has {', '.join(splits)}")
    root = builder.data_path.parents[2]
    return DataError(
        f"glue/{task.config} is not prepared in {root}; prepare it from GLUE's TSV files with bertjax data "
        f"prepare --from GLUE_DIR --data-dir {root}, or name GLUE_DIR itself with --data"
    )


def _examples(task: DatasetSpec, split: str, rows: Sequence[Mapping[str, Any]], source: str) -> Examples:
    columns = task.renamed or task.text_columns
    texts = [tuple(row[name].decode() for row in rows) for name in columns]
    # In TensorFlow Datasets, ids of MRPC run over the undivided training file; in GLUE's dev.tsv over the split. Only
    # the index in the split is the same in all sources.
    ids = range(len(rows)) if task.name == "mrpc" else (int(row["idx"]) for row in rows)
    labels = np.asarray([row["label"] for row in rows], np.int32 if task.label_names else np.float32)
    if not task.label_names and split.startswith("test"):
        labels = np.where(labels < 0, np.float32(np.nan), labels)
    second = texts[1] if len(texts) > 1 else None
    return Examples(task, tuple(ids), texts[0], second, labels, source=source, split=split)


def prepare(
    glue_dir: str | Path,
    data_dir: str | Path | None = None,
    tasks: Sequence[str] | None = None,
    overwrite: bool = False,
) -> list[Prepared]:
    """Build TensorFlow Datasets' copy of GLUE from local TSV files.

    Each task is written under a temporary name and renamed when complete. If a split is missing, a part of it is used,
    in a file such as `train_sample.tsv.gz` or `dev_matched_first3000.tsv`; the note and the `source` of the examples
    then name that file.

    Args:
        glue_dir: contains GLUE's folders, such as `MRPC`, or is one of them.
        data_dir: the directory to write, for `load_examples(..., data_dir=...)`; by default that of TensorFlow
            Datasets.
        tasks: names of tasks; by default all tasks with at least one file.
        overwrite: replace an existing copy when the new one is complete.

    Returns:
        An entry for each split that now exists.

    Raises:
        DataError: no files are found, or a file is invalid.
        OutputError: `data_dir` cannot be written.
    """
    tfds, root = _tfds(), user_path(glue_dir)
    target = user_path(tfds.core.constants.DATA_DIR if data_dir is None else data_dir, OutputError)
    if HALF_CHARACTER.search(str(target)):
        raise OutputError(
            f"cannot write to {visible(str(target))}: TensorFlow Datasets needs a name in UTF-8; give another"
        )
    selected_tasks = [look_up(name, GLUE, SPELLINGS) for name in tasks] if tasks else list(GLUE.values())
    prepared: list[Prepared] = []
    # The two sections of MNLI are one configuration.
    for config in dict.fromkeys(task.config for task in selected_tasks):
        files = _files(root, GLUE[config])
        if tasks and not files:
            raise DataError(f"{root}: no TSV files of {config} found; expected {GLUE[config].folder}/dev.tsv")
        if files:
            prepared += _prepare(tfds, GLUE[config], files, target, overwrite)
    if not prepared:
        folders = ", ".join(dict.fromkeys(task.folder for task in GLUE.values()))
        raise DataError(f"{root}: no task of GLUE found; expected folders {folders} with files such as dev.tsv")
    return prepared


def _files(root: Path, task: DatasetSpec) -> dict[str, Path]:
    """The file of each split that exists."""
    folder = glue_folder(root, task)
    sections = ("_matched", "_mismatched") if task.section else ("",)
    splits = ["train", *(base + section for base in ("validation", "test") for section in sections)]
    files = {split: split_file(folder, split, parts=True) for split in splits} if folder else {}
    return {split: path for split, path in files.items() if path is not None}


def _prepare(tfds: Any, task: DatasetSpec, files: dict[str, Path], data_dir: Path, overwrite: bool) -> list[Prepared]:
    """Prepare one configuration under a temporary name in `data_dir` and rename it when it is complete."""
    path = data_dir / "glue" / task.config / str(tfds.builder_cls("glue").BUILDER_CONFIGS[0].version)
    if is_there(path / "dataset_info.json", OutputError) and not overwrite:
        return _already_there(tfds, task, path, data_dir)
    refuse_inputs_in(path, files.values())
    _check_replaceable(path)
    # Read all files before writing, so that an error in one does not waste the work on the others.
    splits = {split: read_examples(read_table(file, task), task, split) for split, file in files.items()}
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="incomplete.", dir=data_dir) as temporary:
            built = _write(tfds, task, splits, {split: file.name for split, file in files.items()}, temporary)
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                os.replace(path, Path(temporary) / "replaced")  # deleted with the temporary directory
            os.replace(built, path)
    except OSError as error:
        raise OutputError(f"{data_dir}: cannot be written ({error.strerror or error}); give another") from error
    return [Prepared(task.name, split, len(rows), f"from {rows.source}") for split, rows in splits.items()]


def _check_replaceable(path: Path) -> None:
    """Raise `OutputError` if a directory to be replaced was not built by `prepare`."""
    if not os.path.lexists(path):
        return
    names = [] if path.is_symlink() or not path.is_dir() else [file.name for file in path.iterdir()]
    foreign = [name for name in names if not _BUILT.fullmatch(name)]
    if foreign or "metadata.json" not in names:  # only in copies that `prepare` built
        what = f" ({some_of(sorted(foreign))})" if foreign else ""
        raise OutputError(
            f"{path} has files that bertjax did not write{what}: give another --data-dir, or move it away"
        )


def _already_there(tfds: Any, task: DatasetSpec, path: Path, data_dir: Path) -> list[Prepared]:
    with _reading(path, data_dir):
        splits = tfds.builder(f"glue/{task.config}", data_dir=str(data_dir)).info.splits
        rows = {name: int(info.num_examples) for name, info in splits.items()}
    note = f"already prepared in {path}, left as it is (--overwrite replaces it)"
    return [Prepared(task.name, name, count, note) for name, count in rows.items()]


def _write(tfds: Any, task: DatasetSpec, splits: dict[str, Examples], files: dict[str, str], directory: str) -> Path:
    """Have TensorFlow Datasets write the splits in its own format below `directory`."""
    from tensorflow_datasets.text.glue import Glue

    class LocalGlue(Glue, skip_registration=True):  # type: ignore[call-arg]
        """The official builder, with rows from memory instead of downloads."""

        name = "glue"

        def _info(self) -> Any:
            info = super()._info()
            return tfds.core.DatasetInfo(
                builder=self,
                description=info.description,
                features=info.features,
                homepage=info.homepage,
                citation=info.citation,
                metadata=tfds.core.MetadataDict(prepared_from=files),
            )

        def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
            return {split: _records(task, examples) for split, examples in splits.items()}

        def _generate_examples(self) -> None: ...

    builder = LocalGlue(config=task.config, data_dir=directory)
    tfds.disable_progress_bar()
    with contextlib.redirect_stdout(io.StringIO()):  # it would report a download
        builder.download_and_prepare(file_format="array_record", download_dir=directory)
    built = Path(builder.data_dir)
    for file in built.iterdir():
        with file.open("rb") as written:
            os.fsync(written.fileno())
    return built


def _records(task: DatasetSpec, examples: Examples) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows as the official builder yields them, with label -1 for unlabelled rows."""
    columns = task.renamed or task.text_columns
    labels = np.where(np.isnan(examples.labels), -1, examples.labels).astype(examples.labels.dtype)
    texts = (examples.first,) if examples.second is None else (examples.first, examples.second)
    for idx, *row, label in zip(examples.ids, *texts, labels.tolist(), strict=True):
        yield idx, {**dict(zip(columns, row, strict=True)), "label": label, "idx": idx}
