"""Entities of tagged words, and counts of predicted entities, as in seqeval (Nakayama 2018, after conlleval).

By default an entity begins at each tag that cannot continue the previous tag, so that a single `I-PER` is an entity. In
strict mode an entity must follow the tagging scheme of the data. A tag is a mark and a type, such as `B-PER`. IOB2: an
entity begins with B. IOE2: it ends with E. IOBES: B I E, or S for a single word. BILOU: B I L, or U. IOB1: words of an
entity are I; B begins an entity after another of its type. Data with the only mark I (IO) follow IOB1.

(seqeval is not used: it scores a data set once, and here the sentences of many runs are counted separately.)
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Int

from bertjax.data import Content

Entity = tuple[str, int, int]  # type, first word, one past the last
ENTITY_TAG = re.compile(r"[BIESLU]-.+", re.DOTALL)
OUTSIDE = ("O", "_")
FITS = 0.5  # a scheme fits if its entities contain at least this share of the words with entity tags


@dataclass(frozen=True)
class _Scheme:
    """The pairs of neighbouring tags at which an entity begins, continues and ends.

    A pair is written as the mark of the previous tag, the mark of this one, and `=` if the types must be equal or `!`
    if they must differ; `*` stands for any mark.

    Args:
        marks: the marks of its tags.
        starts: pairs at which an entity begins.
        inside: pairs at which an entity continues.
        ends: pairs at which an entity that does not continue is complete.
    """

    marks: str
    starts: tuple[str, ...]
    inside: tuple[str, ...]
    ends: tuple[str, ...]


SCHEMES = MappingProxyType(
    {
        "IOB2": _Scheme("BI", ("*B",), ("BI=", "II="), ("B*", "I*")),
        "IOE2": _Scheme("IE", ("OI", "OE", "EI", "EE", "II!", "IE!"), ("IE=", "II="), ("E*",)),
        "IOBES": _Scheme("BIES", ("*B", "*S"), ("BI=", "BE=", "II=", "IE="), ("S*", "E*")),
        "BILOU": _Scheme("BILU", ("*B", "*U"), ("BI=", "BL=", "II=", "IL="), ("U*", "L*")),
        "IOB1": _Scheme("IB", ("OI", "II!", "BI", "IB=", "BB="), ("BI=", "II="), ("I*", "BO", "BI!", "BB=")),
    }
)


def strict_entities(tags: Sequence[str], scheme: str) -> set[Entity]:
    """Entities that follow a scheme. Tags that are not in the scheme are outside of entities.

    Args:
        tags: the tags of the words of a sentence.
        scheme: a name in `SCHEMES`.

    >>> sorted(strict_entities(["I-PER", "B-PER", "I-PER", "I-LOC"], "IOB2"))
    [('PER', 1, 3)]
    >>> sorted(strict_entities(["I-PER", "E-PER", "E-PER", "I-LOC"], "IOE2"))
    [('PER', 0, 2), ('PER', 2, 3)]
    """
    rules, found, start, before = SCHEMES[scheme], set[Entity](), -1, OUTSIDE
    for index, tag in enumerate([*(_split_strict(tag, rules.marks) for tag in tags), OUTSIDE]):
        if start >= 0 and not _matches(rules.inside, before, tag):
            if _matches(rules.ends, before, tag):
                found.add((before[1], start, index))
            start = -1
        if start < 0 and _matches(rules.starts, before, tag):
            start = index
        before = tag
    return found


def scheme_of(sentences: Iterable[Sequence[str]]) -> tuple[str | None, int]:
    """The scheme of tags: the scheme with all their marks whose entities contain the most words.

    Args:
        sentences: the tags of each. Only tags of the form X-TYPE count.

    Returns:
        The name of the scheme (IOB2 if there are no entities), or None if none fits; and the number of words with
        entity tags that are outside of its entities.

    >>> scheme_of([["I-PER", "E-PER", "O"]]), scheme_of([["L-PER", "S-LOC"]])
    (('IOE2', 0), (None, 2))
    """
    several = [tags for tags in map(tuple, sentences) if any(map(ENTITY_TAG.fullmatch, tags))]
    tagged = [tag for tags in several for tag in tags if ENTITY_TAG.fullmatch(tag)]
    best, covered = None, 0
    for name, scheme in SCHEMES.items():
        if {tag[0] for tag in tagged} <= {*scheme.marks}:
            words = sum(end - start for tags in several for _, start, end in strict_entities(tags, name))
            if best is None or words > covered:
                best, covered = name, words
    return (None if covered < FITS * len(tagged) else best), len(tagged) - covered


def _split_strict(tag: str, marks: str) -> tuple[str, str]:
    """The mark and the type of a tag; a tag with another mark counts as `O`."""
    return (tag[0], tag[1:].strip("-") or "_") if ENTITY_TAG.fullmatch(tag) and tag[0] in marks else OUTSIDE


def _matches(pairs: Sequence[str], before: tuple[str, str], tag: tuple[str, str]) -> bool:
    relation = "=" if before[1] == tag[1] else "!"
    return any(
        pair[0] in (before[0], "*") and pair[1] in (tag[0], "*") and pair[2:] in ("", relation) for pair in pairs
    )


def _split(tag: str) -> tuple[str, str]:
    """The mark and the type of a tag."""
    return tag[:1], tag[1:].split("-", 1)[-1] or "_"


def entities(tags: Sequence[str]) -> set[Entity]:
    """Entities by default rules.

    >>> sorted(entities(["I-PER", "B-PER", "I-PER", "O", "I-LOC"]))
    [('LOC', 4, 5), ('PER', 0, 1), ('PER', 1, 3)]
    """
    found, start, before, kind = set(), 0, "O", ""
    for index, (mark, type_) in enumerate([*map(_split, tags), ("O", "_")]):
        inside = before not in "O."
        if inside and (before in "ES" or (before in "BI" and mark in "BSO") or kind != type_):
            found.add((kind, start, index))
        if mark in "BS" or (before in "ESO" and mark in "EI") or (mark not in "O." and kind != type_):
            start = index
        before, kind = mark, type_
    return found


@dataclass(frozen=True)
class Annotation:
    """Annotation of the words of a sentence in CoNLL-U.

    Args:
        lemmas: the lemma of each word.
        upos: the universal part of speech of each word.
        heads: the head of each word in the dependency tree: the index of a word from 1, or 0 for the root.
        deprel: the dependency relation of each word to its head, with its subtype.
        roles: for each word its role for each predicate of the sentence, in the order of the predicates; `_` for none,
            `V` for the predicate itself. Empty for files other than Universal Propositions.
    """

    lemmas: tuple[str, ...]
    upos: tuple[str, ...]
    heads: tuple[int, ...]
    deprel: tuple[str, ...]
    roles: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Edge:
    """A label of a span of words, or of a pair of spans: a target of an edge probe.

    Args:
        span1: the first word of the first span, and one past its last word.
        span2: the same of the second span; None for a label of one span.
        label: the label.
    """

    span1: tuple[int, int]
    span2: tuple[int, int] | None
    label: str


@dataclass(frozen=True)
class Tagged(Content):
    """A sentence whose words have tags.

    Args:
        words: the words of the sentence; a word may contain white space.
        tags: the name of each word's tag.
        scheme: the tagging scheme of the data (`SCHEMES`); None if they follow none.
        annotation: the other columns of CoNLL-U; None for other data.
        edges: the labels of spans and of pairs of spans, of data in the edge-probing format.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    scheme: str | None = None
    annotation: Annotation | None = None
    edges: tuple[Edge, ...] = ()

    def facts(self) -> dict[str, Any]:
        """Words, tags and edges; the scheme follows from the tags."""
        edges = {"edges": [vars(edge) for edge in self.edges]} if self.edges else {}
        return {"words": self.words, "tags": self.tags, **edges}

    def describe(self, arrays: Mapping[str, Any], example: int) -> dict[str, Any]:
        """Words and tags."""
        return {"words": [*self.words], "tags": [*self.tags]}


class Counter:
    """Counts right words and entities of a sentence, for many runs with mostly equal predictions.

    Args:
        sentence: a sentence with its true tags and their scheme; without a scheme it has no strict entities.
        words: the indices of words with predictions.
        names: the names of the model's tags.
        outside: the tag of words without predictions.
    """

    def __init__(self, sentence: Tagged, words: Int[np.ndarray, " words"], names: Sequence[str], outside: str):
        self._sentence, self._words, self._names, self._outside = sentence, words.tolist(), names, outside
        self._known: dict[bytes, tuple[int, ...]] = {}

    def _strict(self, tags: Sequence[str]) -> set[Entity]:
        scheme = self._sentence.scheme
        return set() if scheme is None else strict_entities(tags, scheme)

    @cached_property
    def _true(self) -> tuple[set[Entity], set[Entity]]:
        return self._strict(self._sentence.tags), entities(self._sentence.tags)

    def _predicted(self, tag_ids: Sequence[int]) -> list[str]:
        """The tag of each word of the sentence."""
        tags = [self._outside] * len(self._sentence.tags)
        for word, tag_id in zip(self._words, tag_ids, strict=True):
            tags[word] = self._names[tag_id]
        return tags

    def count(self, predicted: Int[np.ndarray, " words"]) -> tuple[int, ...]:
        """Right words and words; then right, predicted and true entities, by strict and by default rules.

        Args:
            predicted: the tag id of each word with a prediction.
        """
        key = predicted.tobytes()
        if key not in self._known:
            tags = self._predicted(predicted.tolist())
            correct = sum(tag == true for tag, true in zip(tags, self._sentence.tags, strict=True))
            counts = [correct, len(tags)]
            for found, true_entities in zip((self._strict(tags), entities(tags)), self._true, strict=True):
                counts += [len(found & true_entities), len(found), len(true_entities)]
            self._known[key] = tuple(counts)
        return self._known[key]
