"""The choice of texts for an experiment: one seeded rule for all, also for texts read as the authors' code does."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertjax.cli import Parser, positive
from bertjax.data import CUSTOM, Encoding, Examples, draw, glue_file, is_saved_dataset, split_named
from bertjax.errors import DataError
from bertjax.paths import is_directory, user_path
from bertjax.tasks import TASKS, Task, load_examples, task_named
from experiments.shared.program import Run
from experiments.shared.quoting import read_quoted

# The authors' code truncates and pads to this many tokens.
PUBLISHED_LENGTH = 200
# The part of the data that `finetune --hold-out` makes for a task without validation data.
HELD_OUT = re.compile(r"held-out-(\d{1,9})")


@dataclass(frozen=True)
class Sample:
    """Texts, or pairs of texts, and their tokens.

    Args:
        examples: the texts, or pairs.
        texts: their tokens as the model reads them; a pair is one row.
    """

    examples: Examples
    texts: tuple[Encoding, ...]

    def __len__(self) -> int:
        return len(self.texts)

    def to_dict(self) -> dict[str, Any]:
        """The description of the sample for results."""
        return {"examples": len(self), "source": self.examples.source, "sha256": self.examples.sha256}


def add_task_options(
    parser: Parser,
    *,
    task: str = "qnli-sample",
    several: bool = False,
    limit: int | str = 1000,
    max_length: int | None = PUBLISHED_LENGTH,
) -> None:
    """Add the options that choose the task and its examples.

    Args:
        task: the default; `qnli-sample` comes with bertjax.
        several: whether `--task` takes several tasks and is a list.
        limit: the largest number of examples, or `all`.
        max_length: tokens to which texts are truncated, or None for the model's own limit.
    """
    kind: dict[str, Any] = {"nargs": "+", "default": [task]} if several else {"default": task}
    parser.add_argument(
        "--task", **kind, metavar="T", help=f"task of GLUE, qnli-sample, or TASK:SPLIT (default {task})"
    )
    parts = "part of the data (default validation; held-out-N: what finetune --hold-out N judges by)"
    parser.add_argument("--split", default="validation", metavar="NAME", help=parts)
    sources = "GLUE directory, file, or directory saved by datasets, in place of TensorFlow Datasets"
    parser.add_argument("--data", metavar="PATH", help=sources)
    parser.add_argument("--data-dir", metavar="DIR", help="directory of TensorFlow Datasets")
    cut = f"cut texts after so many tokens (default {max_length or 'the model’s own, or 128'})"
    parser.add_argument("--max-length", type=positive, default=max_length, metavar="N", help=cut)
    parser.set_defaults(limit=limit)


def read_examples(options: argparse.Namespace) -> Examples:
    """Read the labelled examples that the options choose: all, or `--limit` of them drawn with `--seed`.

    Raises:
        DataError: they cannot be found, read or parsed.
    """
    options = split_named_task(options)
    location = {"data": options.data, "data_dir": options.data_dir}
    match = HELD_OUT.fullmatch(options.split)
    if match is None:
        return load_examples(options.task, split=options.split, **location, limit=options.limit, seed=options.seed)
    _, held_out = hold_out(load_examples(options.task, split="train", **location), int(match[1]), options.seed)
    if options.limit is None or options.limit >= len(held_out):
        return held_out
    drawn = held_out.take(draw(len(held_out), options.limit, options.seed))
    return replace(drawn, source=f"{held_out.source}, {options.limit} drawn")


def hold_out(train: Examples, count: int, seed: int) -> tuple[Examples, Examples]:
    """Split training data in two: examples to train on, and `count` examples to validate on.

    Raises:
        DataError: one of the parts would be empty.
    """
    if not 0 < count < len(train):
        raise DataError(f"{train.task.name} has {len(train)} examples for training: {count} cannot be held out")
    drawn = draw(len(train), count, seed)
    remaining = train.take(sorted(set(range(len(train))) - set(drawn)))
    source = f"{train.source}, {count:,} held out with seed {seed}"
    return remaining, replace(train.take(drawn), source=source, split=f"held-out-{count}")


def read_published_examples(options: argparse.Namespace) -> Examples:
    """Read the same examples as the authors' code reads them (`read_quoted`), except those that it loses.

    Only a TSV file can be read this way; for other data the source states that it was not.

    Raises:
        DataError: as `read_examples`.
    """
    options = split_named_task(options)
    task = task_named(options.task)
    is_held_out = HELD_OUT.fullmatch(options.split) is not None
    split = "train" if is_held_out else options.split
    path = None if options.data is None else user_path(options.data)
    if path is not None and is_directory(path) and not is_saved_dataset(path):
        path = glue_file(path, task, split_named(task, split))
    if path is None or not path.name.endswith((".tsv", ".tsv.gz")):
        examples = read_examples(options)
        return replace(examples, source=f"{examples.source}, no TSV file, so read without quote handling")
    examples = read_quoted(path, task, split)
    if options.limit is None and not is_held_out:
        return examples
    drawn = set(read_examples(options).ids)
    remaining = examples.take([place for place, number in enumerate(examples.ids) if number in drawn])
    return replace(
        remaining, source=f"{remaining.source}, what that leaves of {len(drawn):,} drawn with seed {options.seed}"
    )


def known_task(name: str) -> Task:
    """A task by name. Raises `DataError` if there is none, and for custom tasks, which no experiment accepts.

    >>> known_task("STS-B").name
    'stsb'
    """
    if name.lower() == CUSTOM:
        raise DataError(f"--task {name}: choose one of {', '.join(TASKS)}, whose file may be yours (--data)")
    return task_named(name)


def split_named_task(options: argparse.Namespace) -> argparse.Namespace:
    """The options with `TASK:SPLIT` split into task and split, if `--task` names a part of the data.

    >>> split_named_task(argparse.Namespace(task="mnli:validation_mismatched", split="validation"))
    Namespace(task='mnli', split='validation_mismatched')
    """
    task, _, split = options.task.partition(":")
    known_task(task)
    return argparse.Namespace(**vars(options) | {"task": task, "split": split or options.split})


def task_runs(run: Run) -> dict[str, Run]:
    """A run for each task of the command line; `TASK:SPLIT` names a part of its data.

    Raises:
        DataError: a task does not exist, or is named twice.
    """
    runs = {}
    for argument in run.options.task:
        options = split_named_task(argparse.Namespace(**vars(run.options) | {"task": argument}))
        name = task_named(options.task).name + argument[len(options.task) :]
        if name in runs:
            raise DataError(f"--task names {name} twice")
        runs[name] = replace(run, options=options)
    return runs


def read_sample(run: Run) -> Sample:
    """Read and tokenise the examples that the options choose. Raises as `read_examples` does."""
    return _encode(run, read_examples(run.options))


def read_published_sample(run: Run) -> Sample:
    """Read them as the authors' code does, and tokenise them. Raises as `read_published_examples` does."""
    return _encode(run, read_published_examples(run.options))


def _encode(run: Run, examples: Examples) -> Sample:
    return Sample(examples, encode_texts(run, examples.first, examples.second))


def encode_texts(run: Run, first: Sequence[str], second: Sequence[str] | None = None) -> tuple[Encoding, ...]:
    """Tokenise texts or pairs, cut to `--max-length` from the longer side. Raises `DataError` if there are none."""
    if not first:
        raise DataError("there are no texts to look at")
    length = min(run.options.max_length, run.model.config.max_tokens)
    return tuple(run.tokenizer.encode(first, second, max_length=length))
