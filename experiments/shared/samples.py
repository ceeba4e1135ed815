"""Which texts an experiment looks at: one rule for all, seeded, and the one that the authors' code followed."""

import argparse
import csv
import gzip
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.cli import Parser, positive
from bertjax.data import Examples, draw, load_examples, task_named
from bertjax.errors import DataError
from bertjax.local_files import glue_file
from bertjax.metrics import UNLABELLED
from bertjax.tasks import Task, split_named
from bertjax.tokenizer import Encoding
from experiments.shared.program import Run

# The authors' code cuts and pads to so many tokens.
PUBLISHED_LENGTH = 200


@dataclass(frozen=True)
class Sample:
    """Texts, or pairs of texts, and what the model reads of each.

    Args:
        source: one line that says where they come from.
        first: the texts, or the first of each pair.
        second: the second of each pair, or None.
        texts: as tokens; a pair is one row.
    """

    source: str
    first: tuple[str, ...]
    second: tuple[str, ...] | None
    texts: tuple[Encoding, ...]

    def __len__(self) -> int:
        return len(self.texts)


def add_task_options(
    parser: Parser,
    *,
    task: str = "qnli-sample",
    several: bool = False,
    limit: int | None = 1000,
    max_length: int | None = PUBLISHED_LENGTH,
) -> None:
    """The options that say which examples of which task are looked at.

    Args:
        task: the default; `qnli-sample` comes with bertjax.
        several: `--task` takes several and is a list.
        limit: at most so many examples, or None for all.
        max_length: tokens after which texts are cut, or None for what the model says.
    """
    kind: dict[str, Any] = {"nargs": "+", "default": [task]} if several else {"default": task}
    parser.add_argument("--task", **kind, metavar="T", help=f"task of GLUE, or qnli-sample (default {task})")
    parser.add_argument("--split", default="validation", metavar="NAME", help="part of the data (default validation)")
    parser.add_argument("--data", metavar="PATH", help="GLUE directory or file, in place of TensorFlow Datasets")
    parser.add_argument("--data-dir", metavar="DIR", help="directory of TensorFlow Datasets")
    cut = f"cut texts after so many tokens (default {max_length or 'the model’s own, or 128'})"
    parser.add_argument("--max-length", type=positive, default=max_length, metavar="N", help=cut)
    parser.set_defaults(limit=limit)


def read_examples(options: argparse.Namespace) -> Examples:
    """The examples, with labels, that the options ask for: all, or `--limit` of them drawn with `--seed`.

    Raises:
        DataError: they cannot be found, read or understood.
    """
    where: dict[str, Any] = {"split": options.split, "data": options.data, "data_dir": options.data_dir}
    return load_examples(options.task, **where, limit=options.limit, seed=options.seed)


def read_published_examples(options: argparse.Namespace) -> Examples:
    """Examples, with labels, as the authors' code reads them.

    It reads TSV files with quote handling, so that an unbalanced quote swallows the lines up to the next one: MRPC's
    408 validation rows become 389. Rows that are left without one of their texts (one of MRPC's) are no examples; those
    without a label count as unlabelled (-1, or NaN in a regression). Of data that are no TSV file it sees what
    everybody sees.

    Raises:
        DataError: as `read_examples`.
    """
    task = task_named(options.task)
    path = None if options.data is None else Path(options.data).expanduser()
    if path is not None and path.is_dir():
        path = glue_file(path, task, split_named(task, options.split))
    if path is None or not path.name.endswith((".tsv", ".tsv.gz")):
        return read_examples(options)
    rows = _quoted_rows(path, task)
    chosen = draw(len(rows), options.limit or len(rows), options.seed)
    rows = [rows[place] for place in chosen]
    first, *second = zip(*([str(row[name]) for name in task.text_columns] for row in rows), strict=True)
    labels = np.array([_label(row.get(task.label_column), task) for row in rows])
    labels = labels.astype(np.float32 if task.label_names is None else np.int32)
    source = f"{path}, read with quote handling"
    return Examples(task, tuple(chosen), first, second[0] if second else None, labels, source, options.split)


def task_runs(run: Run) -> dict[str, Run]:
    """A run for each task of the command line; `TASK:SPLIT` names a part of its data."""
    runs = {}
    for given in run.options.task:
        task, _, split = given.partition(":")
        options = vars(run.options) | {"task": task, "split": split or run.options.split}
        name = task_named(task).name + (f":{split}" if split else "")
        runs[name] = replace(run, options=argparse.Namespace(**options))
    return runs


def read_sample(run: Run) -> Sample:
    """The texts that the options ask for, as the model reads them. Raises as `read_examples`."""
    return _encode(run, read_examples(run.options))


def read_published_sample(run: Run) -> Sample:
    """The texts as the authors' code reads them. Raises as `read_published_examples`."""
    return _encode(run, read_published_examples(run.options))


def _encode(run: Run, examples: Examples) -> Sample:
    texts = encode_texts(run, examples.first, examples.second)
    return Sample(examples.source, examples.first, examples.second, texts)


def encode_texts(run: Run, first: Sequence[str], second: Sequence[str] | None = None) -> tuple[Encoding, ...]:
    """Tokenise texts or pairs, cut to `--max-length` from the longer side. Raises `DataError` where there are none."""
    if not first:
        raise DataError("there are no texts to look at")
    length = min(run.options.max_length, run.model.config.max_position_embeddings)
    return tuple(run.tokenizer.encode(first, second, max_length=length))


def _quoted_rows(path: Path, task: Task) -> list[dict[str, Any]]:
    """The rows of a TSV file under quote handling; those that lack a text are left out."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file, delimiter="\t")
            missing = set(task.text_columns) - set(table.fieldnames or ())
            rows = [row for row in table if all(row.get(name) for name in task.text_columns)]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read with quote handling ({error})") from error
    if missing:
        raise DataError(f"{path}: no column {min(missing)!r}")
    if not rows:
        raise DataError(f"{path}: holds no examples")
    return rows


def _label(value: str | None, task: Task) -> int | float:
    """A label as its class's number or as a score; -1 or NaN for what is none."""
    names = task.label_names
    if names is not None:
        numbers = {str(number): number for number in range(len(names))}
        numbers |= {name: number for number, name in enumerate(names)}
        return numbers.get(value or "", UNLABELLED)
    try:
        number = float(value or "nan")
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan
