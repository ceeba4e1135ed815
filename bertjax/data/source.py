"""The source of examples: a path or an object in memory, its columns and its split."""

import importlib.resources
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertjax.data.arrow_tables import is_saved_dataset, saved_split
from bertjax.data.examples import DatasetSpec, Examples, split_named
from bertjax.data.local_files import glue_file, read_examples, read_table
from bertjax.data.memory import is_path, table_of
from bertjax.data.tables import Table
from bertjax.errors import DataError
from bertjax.paths import is_directory, is_there, user_path

# The formats that every task reads, for messages.
READABLE = ".tsv, .csv, .jsonl or .parquet"


@dataclass(frozen=True)
class Source:
    """The arguments of `load_examples`.

    Args:
        split: as the user named it.
        data: a path or an object in memory; None for a task that is looked up by name.
        data_dir: the directory of TensorFlow Datasets; None for its default.
        text_columns: one or two columns; None for usual names.
        label_column: a column; None for usual names.
        id_column: a column; None for usual names or row indices.
        infer_labels: whether the classes are inferred from the labels.
        model_labels: the names of the model's labels; None if unknown.
        options: the options of the task, of the class `Task.options`.
    """

    split: str = "validation"
    data: Any = None
    data_dir: str | Path | None = None
    text_columns: Sequence[str] | None = None
    label_column: str | None = None
    id_column: str | None = None
    infer_labels: bool = False
    model_labels: Sequence[str] | None = None
    options: object = None

    @property
    def may_lack_labels(self) -> bool:
        """Whether this is a test split."""
        return self.split.startswith("test")

    def open_table(self, spec: DatasetSpec, instead: str = "") -> tuple[Table, str]:
        """Open the table of the data, and find the full name of its split.

        Args:
            spec: the columns and labels of the dataset.
            instead: advice if the path is a directory that `datasets` did not save; empty if GLUE's may be read.
        """
        if not is_path(self.data):
            return table_of(self.data, spec, self.split)
        path, name = file_and_split(user_path(self.data), spec, self.split, instead)
        return read_table(path, spec), name


def file_and_split(path: Path, spec: DatasetSpec, split: str, instead: str = "") -> tuple[Path, str]:
    """Find the file or saved split to read, and the full name of its split, which the name of a file may state.

    Args:
        path: the path of the user.
        spec: the splits of the dataset.
        split: the split, such as 'validation' or 'test'.
        instead: advice if the path is a directory that `datasets` did not save.

    Raises:
        DataError: there is no such file, or the path is a directory that cannot be read.
    """
    if not is_there(path):
        raise DataError(f"{path}: no such file or directory; check the path")
    if is_directory(path):
        if is_saved_dataset(path):
            return saved_split(path, spec, split)
        if instead:
            raise DataError(f"{path}: is a directory{instead}")
        split = split_named(spec, split)
        return glue_file(path, spec, split), split
    matched = re.match(r"(train|dev|validation|test)(_matched|_mismatched)?(?![a-zA-Z])", path.name)
    if split != "validation":
        return path, split_named(spec, split)
    if matched is None:
        return path, split
    return path, split_named(spec, matched[1] + (matched[2] or "" if spec.section else ""))


def read_sample(spec: DatasetSpec) -> Examples:
    """The pairs of QNLI that are part of bertjax.

    Args:
        spec: the task of the examples.
    """
    resource = importlib.resources.files("bertjax.data") / "samples" / "qnli_sample.tsv"
    with importlib.resources.as_file(resource) as path:
        examples = read_examples(read_table(path, spec), spec, "validation")
    source = f"bertjax/data/samples/{resource.name} ({len(examples)} pairs of QNLI validation; SQuAD, CC BY-SA 4.0)"
    return replace(examples, source=source)
