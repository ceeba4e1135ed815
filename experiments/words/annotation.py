"""Annotated words of the examples that an experiment looks at.

From CoNLL-U files; or of a task's texts by spaCy, by a tagger, or their places alone, which is enough for negation,
punctuation and words that both texts share.
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
    """What tells the words of texts.

    Args:
        annotate: their words.
        said: of it in a line about the texts.
        unknown: what it does not tell, of `PARTS_OF_SPEECH` and `ROLES`.
    """

    annotate: Callable[[Sequence[str]], Sequence[Annotated]]
    said: str
    unknown: tuple[str, ...] = ()


SHIPPED = "ewt-sample"
SAMPLE = Path(__file__).parent.parent / "data" / "ewt_dev_sample.conllu"


def add_annotation_options(parser: Parser) -> None:
    """The options of tasks, and those that say where the annotation of words comes from."""
    add_task_options(parser, task=SHIPPED, several=True)
    parser.add_argument("--conllu", metavar="PATH", help="annotated sentences (.conllu, .conllu.gz), in place of tasks")
    parser.add_argument("--spacy", metavar="NAME", help="annotate the tasks' texts by this model of spaCy")
    learnt = "annotate the tasks' parts of speech by a tagger that learns from these sentences"
    parser.add_argument("--tagger", metavar="CONLLU", help=learnt)


def make_annotator(options: argparse.Namespace) -> Annotator:
    """What annotates the texts of tasks: spaCy, a tagger that learns now, or nothing but the places of words.

    Raises:
        DataError: as `check_annotation`, or the tagger cannot learn.
        MissingDependencyError: what makes the annotation is not installed.
    """
    check_annotation(options)
    if options.spacy:
        return Annotator(partial(annotate, options.spacy), f", annotated by spaCy's {options.spacy}")
    if options.tagger:
        tagger = learn_tagger(Path(options.tagger).expanduser(), options.seed)
        said = f", tagged as learnt from {tagger.source} (accuracy {tagger.accuracy:.3f})"
        return Annotator(tagger.annotate, said, ROLES)
    return Annotator(lambda texts: [split_words(text) for text in texts], "", (*PARTS_OF_SPEECH, *ROLES))


def check_annotation(options: argparse.Namespace) -> None:
    """Raises `DataError` where options name two annotations of the same texts, or one of texts that are not there."""
    given = [name for name in ("conllu", "spacy", "tagger") if getattr(options, name)]
    if len(given) > 1 and "conllu" not in given:
        raise DataError("--spacy and --tagger both annotate the tasks' texts; leave out one of them")
    if options.conllu and (len(given) > 1 or _tasks(options) != [SHIPPED]):
        raise DataError("--conllu brings its own annotated texts; leave out --task, --spacy and --tagger, or --conllu")
    if SHIPPED in _tasks(options) and (given not in ([], ["conllu"]) or _tasks(options) != [SHIPPED]):
        raise DataError(f"{SHIPPED} is annotated already; give --task without it")


def _tasks(options: argparse.Namespace) -> list[str]:
    return options.task if isinstance(options.task, list) else [options.task]


def read_annotated(run: Run, published: bool = False, annotator: Annotator | None = None) -> AnnotatedSample:
    """The examples that the options of one task ask for, or those of a file, with their words.

    Args:
        run: whose options.
        published: read a task as the authors' code reads it.
        annotator: of a task's texts; by default the one that the options name.

    Raises:
        DataError: there are none.
        MissingDependencyError: what reads or makes the annotation is not installed.
    """
    options = run.options
    annotator = annotator or make_annotator(options)
    if options.conllu or _tasks(options) == [SHIPPED]:
        return read_conllu(run, options.conllu or SAMPLE)
    sample = read_published_sample(run) if published else read_sample(run)
    given = sample.examples
    both = annotator.annotate([*given.first, *(given.second or ())])
    columns = [both[: len(sample)], both[len(sample) :]] if given.second else [both]
    source = f"{given.source}{annotator.said}"
    return AnnotatedSample(source, given.ids, sample.texts, tuple(zip(*columns, strict=True)), annotator.unknown)


def read_conllu(run: Run, path: str | Path) -> AnnotatedSample:
    """The sentences of a file: all, or `--limit` of them drawn with `--seed`.

    Raises:
        DataError: it cannot be read or understood.
        MissingDependencyError: `conllu` is not installed.
    """
    path = user_path(path)
    sentences = list(read_sentences(path))
    if not sentences:
        raise DataError(f"{path}: holds no sentence; is it a CoNLL-U file?")
    ids = tuple(draw_sample(len(sentences), run.options))
    chosen = [sentences[place] for place in ids]
    texts = encode_texts(run, [sentence.text for sentence in chosen])
    all_or = f"{len(chosen)} of {len(sentences)} sentences, seed {run.options.seed}"
    drawn = f"{len(chosen)} sentences" if len(chosen) == len(sentences) else all_or
    return AnnotatedSample(f"{path.name}, {drawn}", ids, texts, tuple((sentence,) for sentence in chosen))


def annotate(name: str, texts: Sequence[str]) -> list[Annotated]:
    """The words of texts, by a model of spaCy.

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
    return [Annotated(text, tuple(_words(found, penn))) for text, found in zip(texts, documents, strict=True)]


def _words(document: Iterable[Any], penn: bool) -> Iterable[Word]:
    words = [word for word in document if word.text.strip()]  # spaCy counts further white space as words
    place = {word.i: number for number, word in enumerate(words)}
    for word in words:
        span = (word.idx, word.idx + len(word.text))
        head = -1 if word.head.i == word.i else place.get(word.head.i, -1)
        yield Word(word.text, span, word.tag_ if penn else "", word.pos_, head, word.dep_)
