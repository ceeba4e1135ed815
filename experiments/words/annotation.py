"""Annotated words of the examples of an experiment.

They are read from CoNLL-U files, or a task's texts are annotated: by spaCy, by a tagger, or with the positions of words
alone, which is enough for negation, punctuation and words shared by both texts.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bertjax.cli import Parser
from bertjax.errors import DataError, MissingDependencyError
from bertjax.paths import user_path
from experiments.shared.program import Run, draw_sample
from experiments.shared.samples import add_task_options, encode_texts, read_published_sample, read_sample
from experiments.words.annotated import (
    PARTS_OF_SPEECH,
    PENN,
    ROLES,
    Annotated,
    AnnotatedSample,
    Word,
    import_optional,
)
from experiments.words.conllu_files import read_sentences
from experiments.words.tagging import learn_tagger, split_words


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


SHIPPED = "ewt-sample"
SAMPLE = Path(__file__).parent.parent / "data" / "ewt_dev_sample.conllu"


def add_annotation_options(parser: Parser) -> None:
    """Add the options for tasks, and those that say where the annotation of words comes from."""
    add_task_options(parser, task=SHIPPED, several=True)
    parser.add_argument("--conllu", metavar="PATH", help="annotated sentences (.conllu, .conllu.gz), in place of tasks")
    parser.add_argument("--spacy", metavar="NAME", help="annotate the tasks' texts by this model of spaCy")
    learnt = "annotate the tasks' parts of speech by a tagger that learns from these sentences"
    parser.add_argument("--tagger", metavar="CONLLU", help=learnt)


def make_annotator(options: argparse.Namespace) -> Annotator:
    """The annotator of the tasks' texts: spaCy, a tagger trained on the spot, or the positions of words alone.

    Raises:
        DataError: as `check_annotation`, or the tagger cannot be trained.
        MissingDependencyError: a package that the annotation needs is not installed.
    """
    check_annotation(options)
    if options.spacy:
        return Annotator(partial(annotate, options.spacy), f", annotated by spaCy's {options.spacy}")
    if options.tagger:
        tagger = learn_tagger(Path(options.tagger).expanduser(), options.seed)
        description = f", tagged as learnt from {tagger.source} (accuracy {tagger.accuracy:.3f})"
        return Annotator(tagger.annotate, description, ROLES)
    return Annotator(lambda texts: [split_words(text) for text in texts], "", (*PARTS_OF_SPEECH, *ROLES))


def check_annotation(options: argparse.Namespace) -> None:
    """Raises `DataError` where the options annotate the same texts twice, or texts that are not read."""
    sources = [name for name in ("conllu", "spacy", "tagger") if getattr(options, name)]
    if len(sources) > 1 and "conllu" not in sources:
        raise DataError("--spacy and --tagger both annotate the tasks' texts; leave out one of them")
    if options.conllu and (len(sources) > 1 or _tasks(options) != [SHIPPED]):
        raise DataError("--conllu brings its own annotated texts; leave out --task, --spacy and --tagger, or --conllu")
    if SHIPPED in _tasks(options) and (sources not in ([], ["conllu"]) or _tasks(options) != [SHIPPED]):
        raise DataError(f"{SHIPPED} is annotated already; give --task without it")


def _tasks(options: argparse.Namespace) -> list[str]:
    return options.task if isinstance(options.task, list) else [options.task]


def read_annotated(run: Run, published: bool = False, annotator: Annotator | None = None) -> AnnotatedSample:
    """The examples of one task or of a file, as the options ask, with their words.

    Args:
        run: its options choose the examples.
        published: read a task as the authors' code does.
        annotator: annotates a task's texts; by default the one that the options name.

    Raises:
        DataError: there are no such examples.
        MissingDependencyError: a package needed to read or make the annotation is not installed.
    """
    options = run.options
    annotator = annotator or make_annotator(options)
    if options.conllu or _tasks(options) == [SHIPPED]:
        return read_conllu(run, options.conllu or SAMPLE)
    sample = read_published_sample(run) if published else read_sample(run)
    examples = sample.examples
    annotated = annotator.annotate([*examples.first, *(examples.second or ())])
    columns = [annotated[: len(sample)], annotated[len(sample) :]] if examples.second else [annotated]
    source = f"{examples.source}{annotator.note}"
    return AnnotatedSample(source, examples.ids, sample.texts, tuple(zip(*columns, strict=True)), annotator.unknown)


def read_conllu(run: Run, path: str | Path) -> AnnotatedSample:
    """The sentences of a file: all, or `--limit` of them drawn with `--seed`.

    Raises:
        DataError: the file cannot be read or understood.
        MissingDependencyError: `conllu` is not installed.
    """
    path = user_path(path)
    sentences = list(read_sentences(path))
    if not sentences:
        raise DataError(f"{path}: holds no sentence; is it a CoNLL-U file?")
    ids = tuple(draw_sample(len(sentences), run.options))
    chosen = [sentences[index] for index in ids]
    texts = encode_texts(run, [sentence.text for sentence in chosen])
    subset = f"{len(chosen)} of {len(sentences)} sentences, seed {run.options.seed}"
    description = f"{len(chosen)} sentences" if len(chosen) == len(sentences) else subset
    return AnnotatedSample(f"{path.name}, {description}", ids, texts, tuple((sentence,) for sentence in chosen))


def annotate(name: str, texts: Sequence[str]) -> list[Annotated]:
    """The words of texts, annotated by a spaCy model.

    Raises:
        MissingDependencyError: spaCy or the model is not installed.
    """
    spacy = import_optional("spacy", "pip install spacy")
    try:
        model = spacy.load(name)
    except OSError as error:
        hint = f"python -m spacy download {name}"
        raise MissingDependencyError(f"spaCy has no model {name!r}; install it with: {hint}") from error
    documents = list(model.pipe(texts))
    penn = {word.tag_ for document in documents for word in document if word.text.strip()} <= PENN
    return [Annotated(text, tuple(_words(document, penn))) for text, document in zip(texts, documents, strict=True)]


def _words(document: Iterable[Any], penn: bool) -> Iterable[Word]:
    words = [word for word in document if word.text.strip()]  # spaCy also counts extra white space as words
    positions = {word.i: position for position, word in enumerate(words)}
    for word in words:
        span = (word.idx, word.idx + len(word.text))
        head = -1 if word.head.i == word.i else positions.get(word.head.i, -1)
        yield Word(word.text, span, word.tag_ if penn else "", word.pos_, head, word.dep_)
