"""The texts of an experiment: one seeded choice, also of texts that are read as the authors' code reads them."""

import argparse
import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bertjax
from bertjax.data import Encoding, Examples, draw, glue_file, is_saved_dataset, split_named
from bertjax.errors import InputError
from bertjax.tasks import load_examples, task_named
from experiments.published import LENGTH, read_quoted
from experiments.shared.run import Run

# The part of the data that `table1_finetuning --hold-out` makes for a task without validation data.
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
    parser: argparse.ArgumentParser,
    *,
    task: str = "qnli-sample",
    multiple: bool = False,
    limit: int | None = 1000,
    max_length: int = LENGTH,
) -> None:
    """Add the options that choose the task and its examples.

    Args:
        task: the default; `qnli-sample` comes with bertjax.
        multiple: whether `--task` takes several tasks and is a list.
        limit: the largest number of examples.
        max_length: tokens to which texts are truncated.
    """
    kind: dict[str, Any] = {"nargs": "+", "default": [task]} if multiple else {"default": task}
    parser.add_argument("--task", **kind, metavar="T", help=f"task of GLUE, or TASK:SPLIT (default {task})")
    parts = "part of the data (default validation; held-out-N: the validation set of table1_finetuning --hold-out N)"
    parser.add_argument("--split", default="validation", metavar="NAME", help=parts)
    parser.add_argument("--data", metavar="PATH", help="GLUE directory or file")
    parser.add_argument("--max-length", type=int, default=max_length, metavar="N", help="cut texts after N tokens")
    parser.set_defaults(limit=limit)


def add_tuned_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that names fine-tuned models: one for each task, repeated for each seed."""
    text = "the model fine-tuned on each task, in their order; repeat for each further seed"
    parser.add_argument("--tuned", nargs="+", action="append", default=[], metavar="M", help=text)


def tuned_models(options: Namespace, tasks: Sequence[str]) -> dict[str, list[str]]:
    """The fine-tuned models of each task, one for each seed.

    Raises:
        InputError: `--tuned` does not name one model for each task.
    """
    for names in options.tuned:
        if len(names) != len(tasks):
            raise InputError(f"--tuned names {len(names)} models for {len(tasks)} tasks: name one for each")
    return {task: [names[index] for names in options.tuned] for index, task in enumerate(tasks)}


def split_task(options: Namespace) -> Namespace:
    """The options with `TASK:SPLIT` split into task and split.

    >>> split_task(Namespace(task="MNLI:validation_mismatched", split="validation"))
    Namespace(task='mnli', split='validation_mismatched')
    """
    task, _, split = options.task.partition(":")
    return Namespace(**vars(options) | {"task": task_named(task).name, "split": split or options.split})


def make_study(run: Run, options: Namespace) -> bertjax.Study:
    """The study of a script's model on a task.

    Args:
        options: of `split_task`.
    """
    return bertjax.Study(
        model=run.model,
        task=options.task,
        data=options.data,
        split=options.split,
        limit=options.limit,
        seed=options.seed,
        max_length=options.max_length,
    )


def task_options(options: Namespace) -> dict[str, Namespace]:
    """The options of each task of the command line, by name with its split.

    >>> list(task_options(Namespace(task=["MRPC", "mnli:validation_mismatched"], split="validation")))
    ['mrpc', 'mnli:validation_mismatched']
    """
    named = {}
    for argument in options.task:
        chosen = split_task(Namespace(**vars(options) | {"task": argument}))
        named[chosen.task + argument[len(argument.partition(":")[0]) :]] = chosen
    return named


def read_examples(options: Namespace) -> Examples:
    """The labelled examples that the options choose: all, or `--limit` of them drawn with `--seed`."""
    options = split_task(options)
    match = HELD_OUT.fullmatch(options.split)
    if match is None:
        chosen = {"split": options.split, "limit": options.limit, "seed": options.seed}
        return load_examples(options.task, data=options.data, **chosen)
    _, held_out = hold_out(load_examples(options.task, data=options.data, split="train"), int(match[1]), options.seed)
    if options.limit is None or options.limit >= len(held_out):
        return held_out
    drawn = held_out.take(draw(len(held_out), options.limit, options.seed))
    return replace(drawn, source=f"{held_out.source}, {options.limit} drawn")


def hold_out(train: Examples, count: int, seed: int) -> tuple[Examples, Examples]:
    """Split training data in two: examples to train on, and `count` examples to validate on."""
    drawn = draw(len(train), count, seed)
    remaining = train.take(sorted(set(range(len(train))) - set(drawn)))
    source = f"{train.source}, {count:,} held out with seed {seed}"
    return remaining, replace(train.take(drawn), source=source, split=f"held-out-{count}")


def read_published_examples(options: Namespace) -> Examples:
    """The same examples as the authors' code reads them (`read_quoted`), without those that it loses.

    Only a TSV file can be read this way; for other data the source states that it was not.
    """
    options = split_task(options)
    task, path = task_named(options.task), None if options.data is None else Path(options.data)
    held_out = HELD_OUT.fullmatch(options.split) is not None
    split = "train" if held_out else options.split
    if path is not None and path.is_dir() and not is_saved_dataset(path):
        path = glue_file(path, task, split_named(task, split))
    if path is None or not path.name.endswith((".tsv", ".tsv.gz")):
        examples = read_examples(options)
        return replace(examples, source=f"{examples.source}, no TSV file, so read without quote handling")
    examples = read_quoted(path, task, split)
    if options.limit is None and not held_out:
        return examples
    drawn = set(read_examples(options).ids)
    remaining = examples.take([place for place, number in enumerate(examples.ids) if number in drawn])
    source = f"{remaining.source}, what that leaves of {len(drawn):,} drawn with seed {options.seed}"
    return replace(remaining, source=source)


def read_sample(run: Run, options: Namespace, *, published: bool = False) -> Sample:
    """Read and tokenise the examples that the options choose.

    Args:
        published: read them as the authors' code does.
    """
    examples = read_published_examples(options) if published else read_examples(options)
    return Sample(examples, encode_texts(run, examples.first, examples.second))


def encode_texts(run: Run, first: Sequence[str], second: Sequence[str] | None = None) -> tuple[Encoding, ...]:
    """Tokenise texts or pairs, cut to `--max-length` from the longer side."""
    length = min(run.options.max_length, run.model.config.max_tokens)
    return tuple(run.tokenizer.encode(first, second, max_length=length))
