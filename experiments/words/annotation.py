"""Annotated words of the examples that an experiment looks at: from CoNLL-U files, or from spaCy for a task's texts."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bertjax.cli import Parser
from bertjax.errors import DataError, MissingDependencyError
from bertjax.paths import user_path
from experiments.shared.program import Run, draw_sample
from experiments.shared.samples import add_task_options, encode_texts, read_published_sample, read_sample
from experiments.words.annotated import PENN, Annotated, AnnotatedSample, Word, import_optional
from experiments.words.conllu_files import read_sentences

SHIPPED = "ewt-sample"
SAMPLE = Path(__file__).parent.parent / "data" / "ewt_dev_sample.conllu"


def add_annotation_options(parser: Parser) -> None:
    """The options of a task, and those that say where the annotation of words comes from."""
    add_task_options(parser, task=SHIPPED)
    parser.add_argument("--conllu", metavar="PATH", help="annotated sentences (.conllu, .conllu.gz)")
    parser.add_argument("--spacy", metavar="NAME", help="annotate the task's texts by this model of spaCy")


def read_annotated(run: Run, published: bool = False) -> AnnotatedSample:
    """The examples that the options ask for, with their words.

    Args:
        run: whose options.
        published: read a task as the authors' code reads it.

    Raises:
        DataError: there are none, or a task has no annotation.
        MissingDependencyError: what reads or makes the annotation is not installed.
    """
    options = run.options
    if options.conllu and (options.spacy or options.task != SHIPPED):
        raise DataError("--conllu brings its own texts; leave out --task and --spacy, or leave out --conllu")
    if options.conllu or (options.task == SHIPPED and not options.spacy):
        return read_conllu(run, options.conllu or SAMPLE)
    if options.task == SHIPPED:
        raise DataError(f"{SHIPPED} is annotated already; give --task with --spacy")
    if not options.spacy:
        hint = "give --spacy MODEL to annotate its words, or --conllu PATH for annotated sentences"
        raise DataError(f"{options.task} has no annotation of words; {hint}")
    sample = read_published_sample(run) if published else read_sample(run)
    given = sample.examples
    both = annotate(options.spacy, [*given.first, *(given.second or ())])
    columns = [both[: len(sample)], both[len(sample) :]] if given.second else [both]
    source = f"{given.source}, annotated by spaCy's {options.spacy}"
    return AnnotatedSample(source, given.ids, sample.texts, tuple(zip(*columns, strict=True)))


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
