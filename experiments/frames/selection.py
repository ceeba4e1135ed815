"""Sentences of a source as each mode selects them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from experiments.frames.propbank import read_propbank
from experiments.frames.sources import (
    MOST_WORDS,
    PUBLISHED,
    Annotation,
    Sentence,
    filter_annotations,
    published_reason_against,
    read_framenet,
    read_published,
)
from experiments.shared.run import Run, draw_sample


@dataclass(frozen=True)
class Sentences:
    """Sentences of a source, as one mode selects them.

    Args:
        found: the sentences.
        ids: their numbers among those that pass the filters.
        counts: how many annotations each filter kept or dropped; empty where nothing was filtered.
    """

    found: list[Sentence]
    ids: list[int]
    counts: Mapping[str, int]


def read_source(run: Run) -> tuple[Sentences, Sentences]:
    """The sentences that the options select, and those that pass the authors' filters.

    The two differ only for FrameNet: the authors' sentences come filtered, and the authors did not use PropBank's.
    """
    options = run.options
    if options.source == "published":
        corrected = _choose(run, read_published(PUBLISHED), {})
        return corrected, corrected
    annotations: Iterable[Annotation] = (
        read_framenet(options.data) if options.source == "framenet" else read_propbank(options.conllu)
    )
    annotations, max_words = list(annotations), options.max_words or MOST_WORDS
    corrected = _choose(run, *filter_annotations(annotations, max_words))
    if options.source == "propbank":
        return corrected, corrected
    return corrected, _choose(run, *filter_annotations(annotations, max_words, published_reason_against))


def _choose(run: Run, sentences: list[Sentence], counts: Mapping[str, int]) -> Sentences:
    """A sample of the sentences, of the size that the options ask for."""
    ids = draw_sample(len(sentences), run.options)
    return Sentences([sentences[number] for number in ids], ids, dict(counts))
