"""GLUE through TensorFlow Datasets, without TensorFlow: reading a prepared copy, and preparing one.

TensorFlow Datasets cannot download GLUE by itself where TensorFlow is missing (it unpacks archives with
TensorFlow), so a copy is prepared from GLUE's own TSV files. It has the name, configurations, version
and features of the official one, and `tfds.data_source("glue/mrpc", data_dir=...)` reads it too.
"""

import contextlib
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.errors import DataError, MissingDependencyError, OutputError
from bertjax.local_files import glue_file, read_examples
from bertjax.tasks import TASKS, Examples, Task, split_named, task_named

# What damaged or foreign files make TensorFlow Datasets and array_record raise.
_READ_ERRORS = (OSError, RuntimeError, ValueError, KeyError, IndexError, TypeError)


@dataclass(frozen=True)
class Prepared:
    """One split of a prepared copy.

    Args:
        task: the configuration's name, such as `mrpc` or `mnli`.
        split: such as `train` or `validation_matched`.
        rows: how many examples.
        note: where they came from, or that they were there already.
    """

    task: str
    split: str
    rows: int
    note: str


def _tfds() -> Any:
    try:
        import tensorflow_datasets as tfds
        import tensorflow_datasets.text.glue  # registers the builder; without TensorFlow nothing else does
    except ImportError as error:
        raise MissingDependencyError(
            f"reading GLUE by name needs tensorflow-datasets ({error}); install it or give local files"
        ) from error
    return tfds


def read(task: Task, split: str, data_dir: str | Path | None = None) -> Examples:
    """Examples from a prepared copy of `glue`, in their original order.

    Args:
        task: one of GLUE's.
        split: its full name, such as `validation` or `validation_matched`.
        data_dir: TensorFlow Datasets' directory; its own default where None.

    Raises:
        DataError: the copy is not there, lacks the split or cannot be read.
        MissingDependencyError: tensorflow-datasets is not installed.
    """
    tfds = _tfds()
    where = {} if data_dir is None else {"data_dir": str(Path(data_dir).expanduser())}
    try:
        builder = tfds.builder(f"glue/{task.config}", **where)
        splits = {name: info.num_examples for name, info in builder.info.splits.items()}
    except _READ_ERRORS as error:
        raise _unreadable(f"glue/{task.config}", data_dir, error) from error
    if split not in splits:
        raise _absent(task, split, builder, list(splits))
    try:
        source = builder.as_data_source(split)
        rows = sorted(source.__getitems__(range(len(source))), key=lambda row: int(row["idx"]))
    except NotImplementedError as error:
        raise DataError(
            f"{builder.data_path}: prepared as {builder.info.file_format.value}, which only TensorFlow reads; "
            "prepare it with file_format='array_record' or with bertjax data prepare"
        ) from error
    except _READ_ERRORS as error:
        raise _unreadable(builder.data_path, data_dir, error) from error
    return _examples(task, split, rows, _source_line(builder, split, len(rows)))


def _unreadable(what: object, data_dir: str | Path | None, error: BaseException) -> DataError:
    reason = (str(error).splitlines() or [""])[0][:120]
    again = f"bertjax data prepare --from GLUE_DIR --data-dir {data_dir or 'DIR'} --overwrite"
    return DataError(f"{what}: cannot be read ({type(error).__name__}: {reason}); prepare it again with {again}")


def _absent(task: Task, split: str, builder: Any, splits: list[str]) -> DataError:
    if splits:
        return DataError(f"{builder.data_path}: has no split {split} of {task.name}; it has {', '.join(splits)}")
    root = builder.data_path.parents[2]
    return DataError(
        f"glue/{task.config} is not prepared in {root}; prepare it from GLUE's TSV files with bertjax data "
        f"prepare --from GLUE_DIR --data-dir {root}, or give the files themselves with --data"
    )


def _source_line(builder: Any, split: str, rows: int) -> str:
    files = dict((builder.info.metadata or {}).items()).get("prepared_from", {})
    made = f", prepared from {files[split]}" if split in files else ""
    return f"TensorFlow Datasets {builder.info.full_name} {split} in {builder.data_dir} ({rows} rows{made})"


def _examples(task: Task, split: str, rows: Sequence[Mapping[str, Any]], source: str) -> Examples:
    columns = task.renamed or task.text_columns
    texts = [tuple(row[name].decode() for row in rows) for name in columns]
    # TensorFlow Datasets counts MRPC's rows over the undivided training file, GLUE's own dev.tsv counts
    # its own rows: the position in the split is the number on which all sources agree.
    ids = range(len(rows)) if task.name == "mrpc" else (int(row["idx"]) for row in rows)
    labels = np.asarray([row["label"] for row in rows], np.int32 if task.label_names else np.float32)
    if not task.label_names and split.startswith("test"):
        labels = np.where(labels < 0, np.float32(np.nan), labels)
    second = texts[1] if len(texts) > 1 else None
    return Examples(task, tuple(ids), texts[0], second, labels, source, split)


def prepare(
    glue_dir: str | Path, data_dir: str | Path, tasks: Sequence[str] | None = None, overwrite: bool = False
) -> list[Prepared]:
    """Build TensorFlow Datasets' copy of GLUE from local TSV files.

    Each task is written under a temporary name and renamed when complete. A part of a split, in a file
    such as `train_sample.tsv.gz` or `dev_matched_first3000.tsv`, is taken where the whole is not
    there; the note and the `source` of the examples then name that file.

    Args:
        glue_dir: holds GLUE's folders, such as `MRPC`, or is one of them.
        data_dir: where to write; `load_examples(..., data_dir=...)` reads it.
        tasks: names of tasks; those of which any file is found where None.
        overwrite: replace a copy that is already there, once the new one is complete.

    Returns:
        A line for each split that is there now.

    Raises:
        DataError: nothing was found to prepare, or a file is wrong.
        OutputError: `data_dir` cannot be written.
    """
    tfds, root = _tfds(), Path(glue_dir).expanduser()
    named = [task_named(name) for name in tasks] if tasks else [task for task in TASKS.values() if task.config]
    prepared: list[Prepared] = []
    # MNLI's two sections are one configuration: prepare it once.
    for task in {task.config: task for task in reversed(named)}.values():
        files = _files(root, task, required=bool(tasks))
        if files:
            prepared += _prepare_task(tfds, task, files, Path(data_dir).expanduser(), overwrite)
    if not prepared:
        folders = ", ".join(task.folder for task in TASKS.values() if task.folder and task.name != "mnli-mm")
        raise DataError(f"{root}: no task of GLUE found; expected folders such as {folders} with dev.tsv in them")
    return prepared
