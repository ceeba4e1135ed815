"""Sentences of a source as each mode selects them, and their comparison with the authors' sentences."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from experiments.frames.links import DIRECTIONS, Links, measure_links, measure_published
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
from experiments.shared.agreement import compare_maps
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


def compare_with_authors(
    run: Run,
    corrected: Sentences,
    as_published: Sentences,
    links: Links,
    published: Float[np.ndarray, "examples layers heads"],
) -> dict[str, Any]:
    """How many sentences the authors share, and how close the maps are: over all sentences and over the shared ones.

    On the shared sentences only places can differ: the authors use the first occurrence.
    """
    authors = read_published(PUBLISHED)
    positions = {_key(sentence): number for number, sentence in enumerate(authors)}
    authors_links = measure_links(run, authors)
    literal = {"as_published": published}, {"as_published": measure_published(run, authors)}
    maps = [dict(zip(DIRECTIONS, np.moveaxis(measured.both, 1, 0), strict=True)) for measured in (links, authors_links)]
    report: dict[str, Any] = {}
    for name, sentences, (selected, reference) in (
        ("corrected", corrected, maps),
        ("as_published", as_published, literal),
    ):
        shared = [number for number, sentence in enumerate(sentences.found) if _key(sentence) in positions]
        matches = [positions[_key(sentences.found[number])] for number in shared]
        report[name] = {"shared": len(shared), "sentences": len(sentences.found), "authors": len(authors)}
        report[name]["maps_of_all"] = _apart(selected, reference, slice(None), slice(None))
        if shared:
            report[name]["maps_of_the_shared"] = _apart(selected, reference, shared, matches)
    return report


def _key(sentence: Sentence) -> tuple[str, str]:
    return " ".join(sentence.text.split()), sentence.text[slice(*sentence.predicate)]


def _apart(
    maps: Mapping[str, np.ndarray], other_maps: Mapping[str, np.ndarray], rows: Any, other_rows: Any
) -> dict[str, Any]:
    """How far the means over selected examples differ, by map."""
    return {
        name: compare_maps(
            values[rows].mean(0, dtype=np.float64), other_maps[name][other_rows].mean(0, dtype=np.float64)
        )
        for name, values in maps.items()
    }
