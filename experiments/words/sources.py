"""What a program about words reads: examples of each task, or of a file, and the models fine-tuned on it."""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import bertjax
from bertjax.tasks import task_named
from experiments.shared.program import Outcome, Run, describe_settings
from experiments.shared.samples import read_examples, split_named_task, task_runs
from experiments.shared.tuned import check_tuned, describe_tuned, tuned_models, with_tuned
from experiments.words.annotated import AnnotatedSample
from experiments.words.annotation import SHIPPED, check_annotation, make_annotator, read_annotated

Values = dict[str, np.ndarray]
Figures = Mapping[str, Callable[[Path], None]]


@dataclass(frozen=True)
class Source:
    """The examples of a task or a file, and the models that read them.

    Args:
        name: of the task or the file.
        run: its options are those of this task.
        sample: the examples.
        published: the same examples as the authors' code reads them, if requested.
        tuned: models fine-tuned on it, one for each seed: their names as given, and their paths.
    """

    name: str
    run: Run
    sample: AnnotatedSample
    published: AnnotatedSample | None
    tuned: tuple[tuple[str, Path], ...]

    def models(self) -> Iterator[Any]:
        """The base model, then the tuned ones, each loaded when it is reached."""
        yield self.run.model
        yield from (bertjax.load(path) for _, path in self.tuned)

    def to_dict(self) -> dict[str, Any]:
        """The source's entry in results."""
        data = {"corrected": self.sample.to_dict()}
        if self.published is not None:
            data["as_published"] = self.published.to_dict()
        entry: dict[str, Any] = {"data": data, "unknown": list(self.sample.unknown)}
        return entry | {"tuned": [describe_tuned(name) for name, _ in self.tuned]}


def read_sources(run: Run) -> dict[str, Source]:
    """All tasks that the options name, or the file, read and checked before anything is computed.

    Raises:
        ConfigError: as `check_tuned`, or the number of tuned models differs from the number of tasks.
        DataError: there are no such examples.
        MissingDependencyError: a package needed to read or make the annotation is not installed.
    """
    check_annotation(run.options)
    runs = _named_runs(run)
    models = tuned_models(run.options, list(runs))
    if not run.options.conllu and run.options.task != [SHIPPED]:
        for task_run in runs.values():
            read_examples(task_run.options)  # a missing file is reported before a tagger is trained
    annotator = make_annotator(run.options)
    sources = {}
    for name, task_run in runs.items():
        sample = read_annotated(task_run, annotator=annotator)
        published = read_annotated(task_run, published=True, annotator=annotator) if run.options.as_published else None
        tuned = tuple((model, _check(task_run, model, sample)) for model in models[name])
        sources[name] = Source(name, task_run, sample, published, tuned)
    return sources


def _named_runs(run: Run) -> dict[str, Run]:
    options = run.options
    if options.conllu:
        return {Path(options.conllu).name.partition(".")[0]: run}
    if options.task == [SHIPPED]:
        return {SHIPPED: replace(run, options=Namespace(**vars(options) | {"task": SHIPPED}))}
    return task_runs(run)


def _check(run: Run, model: str, sample: AnnotatedSample) -> Path:
    """The path of a tuned model. Raises as `check_tuned`."""
    first, *second = ([text.text for text in column] for column in zip(*sample.annotations, strict=True))
    task = None
    if not run.options.conllu and run.options.task != SHIPPED:
        task = task_named(split_named_task(run.options).task)
    return check_tuned(with_tuned(run, model), first, second[0] if second else None, task)


def measure_sources(
    run: Run,
    measure: Callable[[Source], tuple[dict[str, Any], Values]],
    summarise: Callable[[str, Source, dict[str, Any]], Sequence[str]],
    figures: Callable[[Mapping[str, Any]], Figures],
    more: Mapping[str, Any] | None = None,
) -> Outcome:
    """What a program about words finds in all sources. Raises as `read_sources` and `measure`.

    Args:
        measure: returns the numbers of a source, and the values of each example behind them.
        summarise: returns the lines printed for a source, from its name, the source and its entry in results.
        figures: the pictures, from the contents of `numbers.json`; the first is the run's figure.
        more: further results.
    """
    results: dict[str, Any] = {}
    values: Values = {}
    lines: list[str] = []
    for name, source in read_sources(run).items():
        entry, arrays = measure(source)
        results[name] = source.to_dict() | entry
        values |= {f"{name.replace(':', '_')}_{key}": value for key, value in arrays.items()}
        lines += summarise(name, source, results[name])
    numbers = {"sources": results, **(more or {})}
    pictures = dict(figures({"settings": describe_settings(run.options), "results": numbers}))
    return Outcome(numbers, values, pictures.pop(next(iter(pictures))), lines, pictures)
