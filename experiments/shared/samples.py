"""Which texts an experiment looks at: one rule for all, seeded, also where they are read as the authors' code does."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertjax.cli import Parser, positive
from bertjax.data import (
    CUSTOM,
    TASKS,
    Encoding,
    Examples,
    Task,
    draw,
    glue_file,
    load_examples,
    split_named,
    task_named,
)
from bertjax.errors import DataError
from bertjax.paths import is_directory, user_path
from experiments.shared.program import Run
from experiments.shared.quoting import read_quoted

# The authors' code cuts and pads to so many tokens.
PUBLISHED_LENGTH = 200
# A part of the data as `finetune --hold-out` makes it of a task whose validation data are not there.
HELD_OUT = re.compile(r"held-out-(\d{1,9})")


@dataclass(frozen=True)
class Sample:
    """Texts, or pairs of texts, and what the model reads of each.

    Args:
        examples: the texts, or pairs.
        texts: as tokens; a pair is one row.
    """

    examples: Examples
    texts: tuple[Encoding, ...]

    def __len__(self) -> int:
        return len(self.texts)

    def told(self) -> dict[str, Any]:
        """What is said of it in results."""
        return {"examples": len(self), "source": self.examples.source, "sha256": self.examples.sha256}


def add_task_options(
    parser: Parser,
    *,
    task: str = "qnli-sample",
    several: bool = False,
    limit: int | str = 1000,
    max_length: int | None = PUBLISHED_LENGTH,
) -> None:
    """The options that say which examples of which task are looked at.

    Args:
        task: the default; `qnli-sample` comes with bertjax.
        several: `--task` takes several and is a list.
        limit: at most so many examples, or `all`.
        max_length: tokens after which texts are cut, or None for what the model says.
    """
    kind: dict[str, Any] = {"nargs": "+", "default": [task]} if several else {"default": task}
    parser.add_argument(
        "--task", **kind, metavar="T", help=f"task of GLUE, qnli-sample, or TASK:SPLIT (default {task})"
    )
    parts = "part of the data (default validation; held-out-N: what finetune --hold-out N judges by)"
    parser.add_argument("--split", default="validation", metavar="NAME", help=parts)
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
    options = split_named_task(options)
    where = {"data": options.data, "data_dir": options.data_dir}
    held = HELD_OUT.fullmatch(options.split)
    if held is None:
        return load_examples(options.task, split=options.split, **where, limit=options.limit, seed=options.seed)
    _, found = hold_out(load_examples(options.task, split="train", **where), int(held[1]), options.seed)
    if options.limit is None or options.limit >= len(found):
        return found
    drawn = found.take(draw(len(found), options.limit, options.seed))
    return replace(drawn, source=f"{found.source}, {options.limit} drawn")


def hold_out(train: Examples, count: int, seed: int) -> tuple[Examples, Examples]:
    """Training data in two: what is learnt from, and `count` examples to be judged by.

    Raises:
        DataError: nothing would be left of one of them.
    """
    if not 0 < count < len(train):
        raise DataError(f"{train.task.name} has {len(train)} examples for training: {count} cannot be held out")
    held = draw(len(train), count, seed)
    left = train.take(sorted(set(range(len(train))) - set(held)))
    source = f"{train.source}, {count:,} held out with seed {seed}"
    return left, replace(train.take(held), source=source, split=f"held-out-{count}")


def read_published_examples(options: argparse.Namespace) -> Examples:
    """The same examples with labels as the authors' code reads them (`read_quoted`), as far as it does not lose them.

    Only a TSV file can be read so; of other data the source says that it was not.

    Raises:
        DataError: as `read_examples`.
    """
    options = split_named_task(options)
    task = task_named(options.task)
    held = HELD_OUT.fullmatch(options.split) is not None
    split = "train" if held else options.split
    path = None if options.data is None else user_path(options.data)
    if path is not None and is_directory(path):
        path = glue_file(path, task, split_named(task, split))
    if path is None or not path.name.endswith((".tsv", ".tsv.gz")):
        found = read_examples(options)
        return replace(found, source=f"{found.source}, no TSV file, so read without quote handling")
    found = read_quoted(path, task, split)
    if options.limit is None and not held:
        return found
    drawn = set(read_examples(options).ids)
    left = found.take([place for place, number in enumerate(found.ids) if number in drawn])
    return replace(left, source=f"{left.source}, what that leaves of {len(drawn):,} drawn with seed {options.seed}")


def known_task(name: str) -> Task:
    """A task by name. Raises `DataError` where there is none, and for files of other tasks, which no experiment takes.

    >>> known_task("STS-B").name
    'stsb'
    """
    if name.lower() == CUSTOM:
        raise DataError(f"--task {name}: choose one of {', '.join(TASKS)}, whose file may be yours (--data)")
    return task_named(name)


def split_named_task(options: argparse.Namespace) -> argparse.Namespace:
    """The options with `TASK:SPLIT` taken apart, where `--task` names a part of the data.

    >>> split_named_task(argparse.Namespace(task="mnli:validation_mismatched", split="validation"))
    Namespace(task='mnli', split='validation_mismatched')
    """
    task, _, split = options.task.partition(":")
    known_task(task)
    return argparse.Namespace(**vars(options) | {"task": task, "split": split or options.split})


def task_runs(run: Run) -> dict[str, Run]:
    """A run for each task of the command line; `TASK:SPLIT` names a part of its data.

    Raises:
        DataError: there is no such task, or one is named twice.
    """
    runs = {}
    for given in run.options.task:
        options = split_named_task(argparse.Namespace(**vars(run.options) | {"task": given}))
        name = task_named(options.task).name + given[len(options.task) :]
        if name in runs:
            raise DataError(f"--task names {name} twice")
        runs[name] = replace(run, options=options)
    return runs


def read_sample(run: Run) -> Sample:
    """The texts that the options ask for, as the model reads them. Raises as `read_examples`."""
    return _encode(run, read_examples(run.options))


def read_published_sample(run: Run) -> Sample:
    """The texts as the authors' code reads them. Raises as `read_published_examples`."""
    return _encode(run, read_published_examples(run.options))


def _encode(run: Run, examples: Examples) -> Sample:
    return Sample(examples, encode_texts(run, examples.first, examples.second))


def encode_texts(run: Run, first: Sequence[str], second: Sequence[str] | None = None) -> tuple[Encoding, ...]:
    """Tokenise texts or pairs, cut to `--max-length` from the longer side. Raises `DataError` where there are none."""
    if not first:
        raise DataError("there are no texts to look at")
    length = min(run.options.max_length, run.model.config.max_position_embeddings)
    return tuple(run.tokenizer.encode(first, second, max_length=length))
