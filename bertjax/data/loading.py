"""Load task examples: GLUE by name, GLUE's TSV files, your own file or object in memory, or the shipped sample.

This is the public interface to `tasks.py`, `local_files.py`, `memory.py` and `glue_by_name.py`.
"""

import importlib.resources
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.data.arrow_tables import is_saved_dataset, saved_split
from bertjax.data.formats.choices import read_choices
from bertjax.data.formats.collections import is_collection
from bertjax.data.formats.multi_label import read_label_sets
from bertjax.data.formats.pairs import is_folder_of_pairs, read_folder_of_pairs, read_pairs
from bertjax.data.formats.rankings import read_rankings, read_rankings_of_collection
from bertjax.data.formats.squad import is_squad, read_questions, read_squad
from bertjax.data.formats.tagged import open_tagged, read_tagged
from bertjax.data.glue_by_name import read_by_name
from bertjax.data.local_files import glue_file, read_examples, read_table
from bertjax.data.memory import LABEL, is_path, table_of, table_of_texts
from bertjax.data.tables import Table
from bertjax.data.tasks import (
    CUSTOM,
    MASKED,
    SAMPLE,
    TASKS,
    Asks,
    Examples,
    Task,
    default_metrics,
    draw,
    split_named,
    task_named,
)
from bertjax.errors import DataError
from bertjax.paths import is_directory, is_there, user_path


@dataclass(frozen=True)
class Reader:
    """How data are read that have a format of their own.

    Args:
        read: takes a table, the task and the text columns.
        files: what is needed, for messages.
        open: makes a table of a path and the task.
        is_whole: whether a path is read as a whole, and not as a table.
        read_whole: takes such a path, the task and the text columns.
        folders: whether it may be a directory.
        labelled: whether rows have labels, which a test split may lack; `read` takes then `may_lack` too.
    """

    read: Callable[..., Examples]
    files: str
    open: Callable[[Path, Task], Table] = read_table
    is_whole: Callable[[Path], bool] | None = None
    read_whole: Callable[..., Examples] | None = None
    folders: bool = False
    labelled: bool = False


READERS: Mapping[Asks, Reader] = {
    "pairs": Reader(
        read_pairs,
        "a file of sentence_good and sentence_bad, or a directory such as BLiMP's",
        is_whole=is_folder_of_pairs,
        read_whole=read_folder_of_pairs,
        folders=True,
    ),
    "agreement": Reader(
        read_pairs,
        "a file of templates with good and bad, or of sentence_good and sentence_bad",
        is_whole=is_folder_of_pairs,
        read_whole=read_folder_of_pairs,
        folders=True,
    ),
    "tags": Reader(
        read_tagged,
        "a file of words and tags (.conll), or of lists tokens and tags (.jsonl, .parquet)",
        open=open_tagged,
    ),
    "choices": Reader(
        read_choices,
        "a file of context or question, choices and label (.jsonl, .csv, .tsv or .parquet)",
        labelled=True,
    ),
    "label-sets": Reader(read_label_sets, "a file of texts and labels (.jsonl, .csv, .tsv or .parquet)", labelled=True),
    "order": Reader(
        read_rankings,
        "a file of queries, candidates and relevance, or a directory of queries, corpus and qrels",
        is_whole=is_collection,
        read_whole=read_rankings_of_collection,
        folders=True,
    ),
    "answers": Reader(
        read_questions,
        "a .json file in SQuAD's form, or a file of question, context and answers (.jsonl or .parquet)",
        is_whole=is_squad,
        read_whole=read_squad,
    ),
}

__all__ = ["TASKS", "Examples", "Task", "draw", "load_examples", "task_named"]

READABLE = ".tsv, .csv, .jsonl or .parquet"


def load_examples(
    task: str | None,
    *,
    split: str = "validation",
    data: Any = None,
    texts: Any = None,
    labels: Any = None,
    data_dir: str | Path | None = None,
    text_columns: Sequence[str] | None = None,
    label_column: str | None = None,
    id_column: str | None = None,
    label_names: Sequence[str] | None = None,
    model_labels: Sequence[str] | None = None,
    limit: int | None = None,
    seed: int | None = None,
    exclude_self: bool = False,
) -> Examples:
    """Examples of a task, in the order of their source.

    Args:
        task: the name of a task of GLUE in any common spelling, `qnli-sample` (shipped with bertjax), `mlm` (texts
            whose words are masked), `minimal-pairs`, `agreement`, or `custom` or None for a file of your own.
        split: `train`, `validation` or `test`; a test split may lack labels. If it is `validation`, a file whose
            name states a split is read as that split. Of a saved dataset with several splits, any of their names.
            Other directories of minimal pairs and of ranking have no splits.
        data: a path, or an object in memory, which is not changed: a DataFrame of pandas or polars, an Arrow table or
            anything else that exports one, a `Dataset` of `datasets`, a `DatasetDict` of which `split` chooses one, a
            list of dicts, or a dict of columns. It has the columns of a file. A path is that of a GLUE directory, a
            task's folder in it, a `.tsv`, `.csv`, `.jsonl` or `.parquet` file (also `.gz`), or a directory saved by
            HuggingFace `datasets`. TSV is read without quoting, CSV with it. For `mlm` also a `.txt` file with a text
            in each line; ` @-@ ` and the like, as WikiText has them, are joined. Where neither `data` nor `texts` is
            there, `mlm` reads the sentences of `qnli-sample`, and a task of GLUE is looked up by its name: in
            TensorFlow Datasets, then on the Hugging Face hub or in the cache of `datasets` (`nyu-mll/glue`).
        texts: in place of `data` and columns: a list of str, or of pairs of str.
        labels: of `texts`, one for each: names, class numbers or ratings; None for tasks without labels and for a test
            split.
        data_dir: the directory of TensorFlow Datasets, which is then read; its default where None.
        text_columns: one or two columns of your file, in place of the task's; for a custom task they are guessed
            where just one or two are called as texts are, such as `sentence1` and `sentence2`, or `text`.
        label_column: the column of labels, in place of the task's; by default `label` for a custom task, or the one
            that is called as labels are. The `source` of the examples says what was guessed.
        id_column: the column of ids; by default `index` or `idx` if it holds distinct whole numbers, else rows are
            numbered from 0.
        label_names: the classes in the order of their numbers, in place of the task's. For a custom task they are
            otherwise those that the file names (`ClassLabel` of `datasets`), or are taken from the labels: names in
            alphabetical order, whole numbers in ascending order; other numbers make it a regression, as `()` does.
        model_labels: the names of the model's labels in the order of its outputs. Where the classes of a custom task
            are inferred and are numbers, these number the model's labels from 0, and `source` says so; unless the
            names say nothing (`LABEL_0`) or have numbers of their own (`1 star`, the first).
        limit: the most examples to take: the first ones or, with a seed, a random choice.
        seed: of the random choice; without `limit` it has no effect.
        exclude_self: of `ranking`: leave out the candidate that has the query's id, its own document, as in the
            published scores of ArguAna and Quora. By default it is a candidate like any other, as in trec_eval.

    Returns:
        The examples; their `source` says where they came from.

    Raises:
        DataError: the examples cannot be found, read or parsed; with the line of a text file, or the row from 0.
        MissingDependencyError: TensorFlow Datasets, or `datasets`, is needed but not installed.

    >>> examples = load_examples("qnli-sample", limit=5, seed=0)
    >>> len(examples), examples.task.label_names
    (5, ('entailment', 'not_entailment'))
    """
    if limit is not None and limit < 1:
        raise DataError(f"limit is {limit}; it must be at least 1")
    is_custom = task is None or task.lower() == CUSTOM
    if texts is not None or labels is not None:
        _check_alone(data, data_dir, text_columns, label_column, id_column)
        data = table_of_texts(texts, labels)
        text_columns, label_column = [name for name in data.columns if name != LABEL], None if labels is None else LABEL
    chosen_task = _custom(text_columns, label_column) if task is None or is_custom else task_named(task)
    if label_names is not None:
        chosen_task = _with_label_names(chosen_task, tuple(label_names) or None)
    if data is None and (is_custom or text_columns or label_column or id_column or label_names is not None):
        raise DataError(f"columns or label names are of your own file; give the {READABLE} file as data")
    if texts is not None:
        _check_texts(chosen_task, len(text_columns or ()), labels, split)
    _check_options(chosen_task, label_column or label_names is not None, id_column, exclude_self)
    _check_source(data, data_dir)
    if chosen_task.name == MASKED and data is None:
        return _limited(_shipped_sentences(chosen_task, split), limit, seed)
    if chosen_task.asks in READERS:
        named = replace(chosen_task, label_column=label_column or chosen_task.label_column)
        more = {"exclude_self": True} if exclude_self else {}
        return _limited(_of_own_format(named, data, split, text_columns, **more), limit, seed)
    if chosen_task.name == SAMPLE:
        return _limited(_shipped(chosen_task, split, data), limit, seed)
    if data is None:
        if not chosen_task.config:
            raise DataError(f"TensorFlow Datasets has no task {chosen_task.name}: give its {READABLE} file as data")
        return _limited(read_by_name(chosen_task, split_named(chosen_task, split), data_dir), limit, seed)
    table, split_name = _table_and_split(data, chosen_task, split)
    examples = read_examples(
        table,
        chosen_task,
        split_name,
        text_columns=text_columns,
        label_column=label_column,
        id_column=id_column,
        infer_labels=is_custom and label_names is None,
        model_labels=model_labels,
    )
    return _limited(examples, limit, seed)


def _with_label_names(task: Task, names: tuple[str, ...] | None) -> Task:
    """The task with these classes, or as a regression for None, and with the metrics that fit."""
    same_kind = (names is None) == (task.label_names is None)
    own = (same_kind and task.name != CUSTOM) or task.asks != "labels"
    return replace(task, label_names=names, metrics=task.metrics if own else default_metrics(names))


def _check_alone(data: object, data_dir: object, *columns: object) -> None:
    """Raise `DataError` where `texts` or `labels` are given and so are other data, or names of columns."""
    if data is not None or data_dir is not None:
        other = "data_dir" if data is None else "data"
        raise DataError(f"texts and labels are data by themselves: leave {other} out, or texts and labels")
    if any(column is not None for column in columns):
        raise DataError("texts and labels have no columns: leave text_columns, label_column and id_column out")


def _check_texts(task: Task, each: int, labels: object, split: str) -> None:
    """Raise `DataError` where a task takes more than texts, or other ones, or lacks labels.

    Args:
        each: how many texts an example has.
    """
    if task.asks in ("tags", "choices", "order", "answers"):
        raise DataError(f"{task.name} takes no texts: give data with the columns of {READERS[task.asks].files}")
    if task.asks in ("pairs", "agreement") and each != 2:
        raise DataError(f"{task.name} takes pairs of texts, the good one first: texts=[(good, bad), ...]")
    if task.asks == "words" and each != 1:
        raise DataError(f"{task.name} takes single texts: texts=[text, ...]")
    if task.asks not in ("labels", "label-sets"):
        if labels is not None:
            raise DataError(f"{task.name} has no labels: leave them out")
    elif labels is None and not split.startswith("test"):
        raise DataError(f"{task.name} needs labels=[...], one for each text; only a test split may lack them")


def _check_source(data: object, data_dir: object) -> None:
    if data is not None and data_dir is not None:
        raise DataError("data and data_dir (of TensorFlow Datasets) cannot be given together: leave one out")


def _check_options(task: Task, labelled: object, id_column: str | None, exclude_self: bool) -> None:
    """Raise `DataError` for options that have no effect on a task.

    Args:
        labelled: whether a column or names of labels are chosen.
    """
    if task.asks not in ("labels", "label-sets") and labelled:
        raise DataError(f"{task.name} has no labels in a file: leave them out")
    if task.asks in READERS and id_column is not None:
        raise DataError(f"{task.name} takes no id column: leave it out")
    if exclude_self and task.asks != "order":
        raise DataError(f"--exclude-self is for ranking; {task.name} has no candidates: leave it out")


def _custom(text_columns: Sequence[str] | None, label_column: str | None) -> Task:
    """A task of the user's own; text columns that are not named are found in the file."""
    if text_columns is not None and len(text_columns) not in (1, 2):
        named = ", ".join(text_columns or ("none",))
        raise DataError(f"a custom task needs the names of one or two text columns; found {named}")
    return Task(CUSTOM, tuple(text_columns or ()), label_column or "label", None, default_metrics(None))


def _of_own_format(task: Task, data: Any, split: str, columns: Sequence[str] | None, **own: bool) -> Examples:
    """Examples of a task whose data have a format of their own.

    Args:
        own: what else its reader takes.
    """
    reader = READERS[task.asks]
    if data is None:
        raise DataError(f"{task.name} needs data: {reader.files}")
    table: Table | None = None
    if is_path(data):
        path, name = _part_and_split(user_path(data), task, split)
    else:
        table, name = table_of(data, task, split)
    if reader.labelled:
        own["may_lack"] = name.startswith("test")
    if table is None and reader.is_whole and reader.read_whole and reader.is_whole(path):
        examples = reader.read_whole(path, task, columns, **own)
    else:
        examples = reader.read(reader.open(path, task) if table is None else table, task, columns, **own)
    return replace(examples, split=name)


def _part_and_split(path: Path, task: Task, split: str) -> tuple[Path, str]:
    """What to read of a task whose data have a format of their own, and the split that it holds."""
    reader = READERS[task.asks]
    if not is_there(path):
        raise DataError(f"{path}: no such file or directory; check the path")
    if not is_directory(path):
        return _file_and_split(path, task, split)
    if is_saved_dataset(path):
        return saved_split(path, task, split)
    if not reader.folders:
        raise DataError(f"{path}: is a directory; {task.name} needs {reader.files}")
    if split != "validation":
        advice = f"give its file, such as {path / 'qrels' / 'test.tsv'}" if task.asks == "order" else "give a file"
        raise DataError(f"{path}: --split does not choose among files of a directory; {advice}, or leave --split out")
    return path, split


def _shipped(task: Task, split: str, data: object) -> Examples:
    if data is not None:
        raise DataError(f"{SAMPLE} comes with bertjax and takes no data; for your own QNLI file use qnli")
    if split_named(task, split) != "validation":
        raise DataError(f"{SAMPLE} has no split {split!r}; it is a part of QNLI's validation split")
    resource = importlib.resources.files("bertjax.data") / "samples" / "qnli_sample.tsv"
    with importlib.resources.as_file(resource) as path:
        examples = read_examples(read_table(path, task), task, "validation")
    source = f"bertjax/data/samples/{resource.name} ({len(examples)} pairs of QNLI validation; SQuAD, CC BY-SA 4.0)"
    return replace(examples, source=source)


def _shipped_sentences(task: Task, split: str) -> Examples:
    """The different sentences of the sample, as texts without labels."""
    if split_named(task, split) != "validation":
        raise DataError(
            f"{task.name} has no split {split!r} without data; its sentences are of QNLI's validation split"
        )
    sample = _shipped(TASKS[SAMPLE], "validation", None)
    assert sample.second is not None
    sentences = tuple(dict.fromkeys(sample.second))
    return Examples(
        task=task,
        ids=tuple(range(len(sentences))),
        first=sentences,
        second=None,
        labels=np.full(len(sentences), np.nan, np.float32),
        source=sample.source.replace(f"{len(sample)} pairs", f"{len(sentences)} sentences"),
        split=sample.split,
    )


def _table_and_split(data: Any, task: Task, split: str) -> tuple[Table, str]:
    """The table of a path or of an object in memory, and the split that it holds."""
    if not is_path(data):
        return table_of(data, task, split)
    path, name = _file_and_split(user_path(data), task, split)
    return read_table(path, task), name


def _file_and_split(path: Path, task: Task, split: str) -> tuple[Path, str]:
    """The file to read and the split it holds; where `path` is a file, its name may state the split."""
    if not is_there(path):
        raise DataError(f"{path}: no such file or directory; check the path")
    if is_directory(path):
        if is_saved_dataset(path):
            return saved_split(path, task, split)
        if task.name == CUSTOM:
            raise DataError(f"{path}: is a directory, and datasets did not save it; give a {READABLE} file")
        if task.name == MASKED:
            raise DataError(f"{path}: is a directory; {task.name} needs a file of texts: .txt, {READABLE}")
        split = split_named(task, split)
        return glue_file(path, task, split), split
    matched = re.match(r"(train|dev|validation|test)(_matched|_mismatched)?(?![a-zA-Z])", path.name)
    if split != "validation":
        return path, split_named(task, split)
    if matched is None:
        return path, split
    return path, split_named(task, matched[1] + (matched[2] or "" if task.section else ""))


def _limited(examples: Examples, limit: int | None, seed: int | None) -> Examples:
    if limit is None or limit >= len(examples):
        return examples
    if seed is None:
        subset, selection = examples.head(limit), f"the first {limit} taken"
    else:
        subset, selection = examples.take(draw(len(examples), limit, seed)), f"{limit} drawn with seed {seed}"
    return replace(subset, source=f"{examples.source}, {selection}")
