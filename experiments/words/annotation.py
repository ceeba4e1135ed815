"""The examples of scripts about words, with their annotated words, and the models that read them.

Words are read from CoNLL-U files, or a task's texts are annotated: by spaCy, by a tagger, or with the positions of
words alone, which is enough for negation, punctuation and words shared by both texts.
"""

import argparse
import importlib
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.shared.data import (
    add_task_options,
    add_tuned_option,
    encode_texts,
    read_sample,
    task_options,
    tuned_models,
)
from experiments.shared.run import Found, Run, draw_sample
from experiments.words.annotated import PARTS_OF_SPEECH, PENN, ROLES, Annotated, AnnotatedSample, Word
from experiments.words.conllu_files import read_sentences
from experiments.words.tagging import learn_tagger, split_words

SHIPPED = "ewt-sample"
SAMPLE = Path(__file__).parent.parent / "data" / "ewt_dev_sample.conllu"

Values = dict[str, np.ndarray]


@dataclass(frozen=True)
class Annotator:
    """What annotates the words of texts.

    Args:
        annotate: gives the texts with their words.
        note: added to the line that names the texts.
        unknown: the members of `PARTS_OF_SPEECH` and `ROLES` that it does not provide.
    """

    annotate: Callable[[Sequence[str]], Sequence[Annotated]]
    note: str
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """The examples of a task or a file, and the models that read them.

    Args:
        sample: the examples.
        published: the same examples as the authors' code reads them, if requested.
        tuned: the names of models fine-tuned on the task, one for each seed.
        task: its name; empty for a file.
    """

    run: Run
    sample: AnnotatedSample
    published: AnnotatedSample | None
    tuned: Sequence[str]
    task: str = ""

    def models(self) -> Iterator[Any]:
        """The base model, then the tuned ones, each loaded when it is reached."""
        yield self.run.model
        yield from (self.run.load_tuned(name, self.task) for name in self.tuned)

    def to_dict(self) -> dict[str, Any]:
        """The source's entry in results."""
        samples = {"corrected": self.sample} | ({"as_published": self.published} if self.published else {})
        data = {name: sample.to_dict() for name, sample in samples.items()}
        return {"data": data, "unknown": list(self.sample.unknown), "tuned": [{"name": name} for name in self.tuned]}


def add_annotation_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for tasks, for their annotation, and for fine-tuned models."""
    add_task_options(parser, task=SHIPPED, multiple=True)
    parser.add_argument("--conllu", metavar="PATH", help="annotated sentences (.conllu, .conllu.gz), in place of tasks")
    parser.add_argument("--spacy", metavar="NAME", help="annotate the tasks' texts with this model of spaCy")
    text = "annotate the tasks' parts of speech with a tagger that learns from these sentences"
    parser.add_argument("--tagger", type=Path, metavar="CONLLU", help=text)
    add_tuned_option(parser)


def measure_sources(run: Run, measure: Callable[[Source], tuple[dict[str, Any], Values]]) -> Found:
    """What a script measures in each task, or in the file.

    Args:
        measure: returns the numbers of a source, and the values of each example.
    """
    results: dict[str, Any] = {}
    values: Values = {}
    for name, source in read_sources(run):
        entry, arrays = measure(source)
        results[name] = source.to_dict() | entry
        values |= {f"{name.replace(':', '_')}_{key}": value for key, value in arrays.items()}
    return {"sources": results}, values


def read_sources(run: Run) -> Iterator[tuple[str, Source]]:
    """Each task that the options name, or the file, by name."""
    options = run.options
    if options.conllu or options.task == [SHIPPED]:
        path = Path(options.conllu or SAMPLE)
        sample = read_conllu(run, path)
        published = sample if options.as_published else None
        tuned = [names[0] for names in options.tuned]
        yield (path.name.partition(".")[0] if options.conllu else SHIPPED), Source(run, sample, published, tuned)
        return
    annotator, tasks = make_annotator(options), task_options(options)
    models = tuned_models(options, list(tasks))
    for name, chosen in tasks.items():
        sample = read_annotated(run, chosen, annotator)
        published = read_annotated(run, chosen, annotator, published=True) if options.as_published else None
        yield name, Source(run, sample, published, [model for model in models[name] if model != "-"], chosen.task)


def make_annotator(options: Namespace) -> Annotator:
    """The annotator of the tasks' texts: spaCy, a tagger trained on the spot, or the positions of words alone."""
    if options.spacy:
        return Annotator(partial(annotate, options.spacy), f", annotated by spaCy's {options.spacy}")
    if options.tagger:
        tagger = learn_tagger(options.tagger, options.seed)
        note = f", tagged as learnt from {tagger.source} (accuracy {tagger.accuracy:.3f})"
        return Annotator(tagger.annotate, note, ROLES)
    return Annotator(lambda texts: [split_words(text) for text in texts], "", (*PARTS_OF_SPEECH, *ROLES))


def read_annotated(run: Run, options: Namespace, annotator: Annotator, *, published: bool = False) -> AnnotatedSample:
    """The examples of a task with their words.

    Args:
        published: read the task as the authors' code does.
    """
    sample = read_sample(run, options, published=published)
    examples = sample.examples
    annotated = annotator.annotate([*examples.first, *(examples.second or ())])
    columns = [annotated[: len(sample)], annotated[len(sample) :]] if examples.second else [annotated]
    source = f"{examples.source}{annotator.note}"
    return AnnotatedSample(source, examples.ids, sample.texts, tuple(zip(*columns, strict=True)), annotator.unknown)


def read_conllu(run: Run, path: Path) -> AnnotatedSample:
    """The sentences of a file: all, or `--limit` of them drawn with `--seed`."""
    sentences = read_sentences(path)
    ids = tuple(draw_sample(len(sentences), run.options))
    chosen = [sentences[index] for index in ids]
    texts = encode_texts(run, [sentence.text for sentence in chosen])
    subset = f"{len(chosen)} of {len(sentences)} sentences, seed {run.options.seed}"
    description = f"{len(chosen)} sentences" if len(chosen) == len(sentences) else subset
    return AnnotatedSample(f"{path.name}, {description}", ids, texts, tuple((sentence,) for sentence in chosen))


def annotate(name: str, texts: Sequence[str]) -> list[Annotated]:
    """The words of texts, annotated by a spaCy model."""
    documents = list(importlib.import_module("spacy").load(name).pipe(texts))  # an optional package
    penn = {word.tag_ for document in documents for word in document if word.text.strip()} <= PENN
    return [Annotated(text, tuple(_words(document, penn))) for text, document in zip(texts, documents, strict=True)]


def _words(document: Iterable[Any], penn: bool) -> Iterable[Word]:
    words = [word for word in document if word.text.strip()]  # spaCy also counts extra white space as words
    positions = {word.i: position for position, word in enumerate(words)}
    for word in words:
        span = (word.idx, word.idx + len(word.text))
        head = -1 if word.head.i == word.i else positions.get(word.head.i, -1)
        yield Word(word.text, span, word.tag_ if penn else "", word.pos_, head, word.dep_)
