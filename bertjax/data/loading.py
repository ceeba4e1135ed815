"""Load task examples: GLUE by name, GLUE's TSV files, your own file, or the shipped sample.

This is the public interface to `tasks.py`, `local_files.py` and `tfds_glue.py`.
"""

import importlib.resources
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bertjax.data import tfds_glue
from bertjax.data.arrow_tables import is_saved_dataset, saved_split
from bertjax.data.formats.choices import read_choices
from bertjax.data.formats.multi_label import read_label_sets
from bertjax.data.formats.pairs import read_pairs
from bertjax.data.formats.rankings import read_rankings
from bertjax.data.formats.squad import read_questions
from bertjax.data.formats.tagged import read_tagged
from bertjax.data.local_files import glue_file, read_examples
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
    """How files are read that have a format of their own.

    Args:
        read: takes the path, the task and the text columns.
        files: what is needed, for messages.
        folders: whether it may be a directory.
        labelled: whether rows have labels, which a test split may lack; `read` takes then `may_lack` too.
    """

    read: Callable[..., Examples]
    files: str
    folders: bool = False
    labelled: bool = False


READERS: Mapping[Asks, Reader] = {
    "pairs": Reader(
        read_pairs, "a file of sentence_good and sentence_bad, or a directory such as BLiMP's", folders=True
    ),
    "agreement": Reader(
        read_pairs, "a file of templates with good and bad, or of sentence_good and sentence_bad", folders=True
    ),
    "tags": Reader(read_tagged, "a file of words and tags (.conll), or of lists tokens and tags (.jsonl, .parquet)"),
    "choices": Reader(
        read_choices,
        "a file of context or question, choices and label (.jsonl, .csv, .tsv or .parquet)",
        labelled=True,
    ),
    "label-sets": Reader(read_label_sets, "a file of texts and labels (.jsonl, .csv, .tsv or .parquet)", labelled=True),
    "order": Reader(
        read_rankings,
        "a file of queries, candidates and relevance, or a directory of queries, corpus and qrels",
        folders=True,
    ),
    "answers": Reader(
        read_questions,
        "a .json file in SQuAD's form, or a file of question, context and answers (.jsonl or .parquet)",
    ),
}

__all__ = ["TASKS", "Examples", "Task", "draw", "load_examples", "task_named"]

READABLE = ".tsv, .csv, .jsonl or .parquet"


def load_examples(
    task: str | None,
    *,
    split: str = "validation",
    data: str | Path | None = None,
    data_dir: str | Path | None = None,
    text_columns: Sequence[str] | None = None,
    label_column: str | None = None,
    id_column: str | None = None,
    label_names: Sequence[str] | None = None,
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
        data: a GLUE directory, a task's folder in it, a `.tsv`, `.csv`, `.jsonl` or `.parquet` file (also `.gz`), or
            a directory saved by HuggingFace `datasets`. TSV is read without quoting, CSV with it. For `mlm` also a
            `.txt` file with a text in each line; ` @-@ ` and the like, as WikiText has them, are joined. Where None,
            TensorFlow Datasets is read, for `mlm` the sentences of `qnli-sample`.
        data_dir: the directory of TensorFlow Datasets; its default where None.
        text_columns: one or two columns of your file, in place of the task's; for a custom task they are guessed
            where just one or two are called as texts are, such as `sentence1` and `sentence2`, or `text`.
        label_column: the column of labels, in place of the task's; by default `label` for a custom task, or the one
            that is called as labels are. The `source` of the examples says what was guessed.
        id_column: the column of ids; by default `index` or `idx` if it holds distinct whole numbers, else rows are
            numbered from 0.
        label_names: the classes in the order of their numbers, in place of the task's. For a custom task they are
            otherwise those that the file names (`ClassLabel` of `datasets`), or are taken from the labels: names in
            alphabetical order, whole numbers in ascending order; other numbers make it a regression, as `()` does.
        limit: the most examples to take: the first ones or, with a seed, a random choice.
        seed: of the random choice; without `limit` it has no effect.
        exclude_self: of `ranking`: leave out the candidate that has the query's id, its own document, as in the
            published scores of ArguAna and Quora. By default it is a candidate like any other, as in trec_eval.

    Returns:
        The examples; their `source` says where they came from.

    Raises:
        DataError: the examples cannot be found, read or parsed.
        MissingDependencyError: TensorFlow Datasets, or `datasets`, is needed but not installed.

    >>> examples = load_examples("qnli-sample", limit=5, seed=0)
    >>> len(examples), examples.task.label_names
    (5, ('entailment', 'not_entailment'))
    """
    if limit is not None and limit < 1:
        raise DataError(f"limit is {limit}; it must be at least 1")
    is_custom = task is None or task.lower() == CUSTOM
    chosen_task = _custom(text_columns, label_column) if task is None or is_custom else task_named(task)
    if label_names is not None:
        names = tuple(label_names) or None
        same_kind = (names is None) == (chosen_task.label_names is None)
        own = (same_kind and not is_custom) or chosen_task.asks != "labels"
        metrics = chosen_task.metrics if own else default_metrics(names)
        chosen_task = replace(chosen_task, label_names=names, metrics=metrics)
    if data is None and (is_custom or text_columns or label_column or id_column or label_names is not None):
        raise DataError(f"columns or label names are of your own file; give the {READABLE} file as data")
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
        named_split = split_named(chosen_task, split)
        return _limited(tfds_glue.read(chosen_task, named_split, data_dir), limit, seed)
    path, split_name = _file_and_split(user_path(data), chosen_task, split)
    examples = read_examples(
        path,
        chosen_task,
        split_name,
        text_columns=text_columns,
        label_column=label_column,
        id_column=id_column,
        infer_labels=is_custom and label_names is None,
    )
    return _limited(examples, limit, seed)


def _check_source(data: str | Path | None, data_dir: str | Path | None) -> None:
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


def _of_own_format(
    task: Task, data: str | Path | None, split: str, columns: Sequence[str] | None, **own: bool
) -> Examples:
    """Examples of a task whose files have a format of their own.

    Args:
        own: what else its reader takes.
    """
    reader = READERS[task.asks]
    if data is None:
        raise DataError(f"{task.name} needs data: {reader.files}")
    path = user_path(data)
    if not is_there(path):
        raise DataError(f"{path}: no such file or directory; check the path")
    if not is_directory(path):
        part, name = _file_and_split(path, task, split)
    elif is_saved_dataset(path):
        part, name = saved_split(path, task, split)
    elif not reader.folders:
        raise DataError(f"{path}: is a directory; {task.name} needs {reader.files}")
    elif split != "validation":
        advice = f"give its file, such as {path / 'qrels' / 'test.tsv'}" if task.asks == "order" else "give a file"
        raise DataError(f"{path}: --split does not choose among files of a directory; {advice}, or leave --split out")
    else:
        part, name = path, split
    if reader.labelled:
        own["may_lack"] = name.startswith("test")
    return replace(reader.read(part, task, columns, **own), split=name)


def _shipped(task: Task, split: str, data: str | Path | None) -> Examples:
    if data is not None:
        raise DataError(f"{SAMPLE} comes with bertjax and takes no data; for your own QNLI file use qnli")
    if split_named(task, split) != "validation":
        raise DataError(f"{SAMPLE} has no split {split!r}; it is a part of QNLI's validation split")
    resource = importlib.resources.files("bertjax.data") / "samples" / "qnli_sample.tsv"
    with importlib.resources.as_file(resource) as path:
        examples = read_examples(path, task, "validation")
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
