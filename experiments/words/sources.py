"""What a program about words looks at: examples of each task, or of a file, and models that were tuned on it."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bertjax
from bertjax.cli import Parser
from bertjax.data import task_named
from bertjax.errors import ConfigError
from experiments.shared.program import Run
from experiments.shared.samples import read_examples, split_named_task, task_runs
from experiments.shared.tuned import check_tuned, tell_tuned
from experiments.words.annotated import AnnotatedSample
from experiments.words.annotation import SHIPPED, check_annotation, make_annotator, read_annotated

NONE = "-"  # in place of a model


@dataclass(frozen=True)
class Source:
    """The examples of a task or a file, and the models that read them.

    Args:
        name: of the task or the file.
        run: whose options are those of this task.
        sample: its examples.
        published: the same as the authors' code reads them, where they are asked for.
        tuned: models that were fine-tuned on it, one for each seed, as they were named, and where they are.
    """

    name: str
    run: Run
    sample: AnnotatedSample
    published: AnnotatedSample | None
    tuned: tuple[tuple[str, Path], ...]

    def models(self) -> Iterator[Any]:
        """The base model, then the tuned ones, each loaded when it comes."""
        yield self.run.model
        yield from (bertjax.load(path) for _, path in self.tuned)

    def told(self) -> dict[str, Any]:
        """What is said of it in results."""
        read = {"corrected": self.sample.told()}
        if self.published is not None:
            read["as_published"] = self.published.told()
        found: dict[str, Any] = {"data": read, "unknown": list(self.sample.unknown)}
        return found | {"tuned": [tell_tuned(name) for name, _ in self.tuned]}


def add_tuned_option(parser: Parser) -> None:
    """The option that names fine-tuned models."""
    text = (
        f"a model fine-tuned on each task, in their order ({NONE} for none); give it once for each seed: "
        "what is said of tuned models is then their mean and spread"
    )
    parser.add_argument("--tuned", nargs="+", action="append", default=[], metavar="M", help=text)


def read_sources(run: Run) -> dict[str, Source]:
    """All tasks that the options name, or the file, read and checked before anything is computed.

    Raises:
        ConfigError: as `check_tuned`, or there are not as many tuned models as tasks.
        DataError: there are no such examples.
        MissingDependencyError: what reads or makes the annotation is not installed.
    """
    check_annotation(run.options)
    runs = _named_runs(run)
    for several in run.options.tuned:
        if len(several) != len(runs):
            counts = f"--tuned names {len(several)}, --task {len(runs)}"
            raise ConfigError(f"{counts}: give a fine-tuned model for each task, {NONE} for none")
    if not run.options.conllu and run.options.task != [SHIPPED]:
        for one in runs.values():
            read_examples(one.options)  # a file that is missing is found before a tagger learns
    annotator = make_annotator(run.options)
    sources = {}
    for number, (name, one) in enumerate(runs.items()):
        sample = read_annotated(one, annotator=annotator)
        published = read_annotated(one, published=True, annotator=annotator) if run.options.as_published else None
        models = [several[number] for several in run.options.tuned if several[number] != NONE]
        tuned = tuple((model, _check(one, model, sample)) for model in models)
        sources[name] = Source(name, one, sample, published, tuned)
    return sources


def _named_runs(run: Run) -> dict[str, Run]:
    options = run.options
    if options.conllu:
        return {Path(options.conllu).name.partition(".")[0]: run}
    if options.task == [SHIPPED]:
        return {SHIPPED: replace(run, options=Namespace(**vars(options) | {"task": SHIPPED}))}
    return task_runs(run)


def _check(run: Run, model: str, sample: AnnotatedSample) -> Path:
    """Where a tuned model is. Raises as `check_tuned`."""
    first, *second = ([text.text for text in column] for column in zip(*sample.annotations, strict=True))
    task = None
    if not run.options.conllu and run.options.task != SHIPPED:
        task = task_named(split_named_task(run.options).task)
    tuned = replace(run, options=Namespace(**vars(run.options) | {"tuned": model}))
    return check_tuned(tuned, first, second[0] if second else None, task)
