"""Entities of tagged words, and what of them is found, as seqeval counts it (Nakayama 2018, after conlleval).

In the default way an entity begins wherever a tag cannot go on with the one before, so that `I-PER` alone is one.
Strictly it has the form that the tagging scheme of the data requires (`data/formats/tag_schemes.py`).
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from jaxtyping import Int

from bertjax.data import Entity, Tagged, strict_entities


def _split(tag: str) -> tuple[str, str]:
    """Where in an entity a word is, and of which type."""
    return tag[:1], tag[1:].split("-", 1)[-1] or "_"


def entities(tags: Sequence[str]) -> set[Entity]:
    """Entities in the default way.

    >>> sorted(entities(["I-PER", "B-PER", "I-PER", "O", "I-LOC"]))
    [('LOC', 4, 5), ('PER', 0, 1), ('PER', 1, 3)]
    """
    found, start, before, kind = set(), 0, "O", ""
    for place, (mark, type_) in enumerate([*map(_split, tags), ("O", "_")]):
        inside = before not in "O."
        if inside and (before in "ES" or (before in "BI" and mark in "BSO") or kind != type_):
            found.add((kind, start, place))
        begins = mark in "BS" or (before in "ESO" and mark in "EI") or (mark not in "O." and kind != type_)
        if begins:
            start = place
        before, kind = mark, type_
    return found


class Counter:
    """Counts what is found in a sentence, of many runs that mostly find the same.

    Args:
        sentence: with its true tags and their scheme; without a scheme it has no strict entities.
        words: those that have a prediction.
        names: of the model's tags.
        outside: the tag of all other words.
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

    def _predicted(self, numbers: Sequence[int]) -> list[str]:
        """The tag of each word of the sentence."""
        tags = [self._outside] * len(self._sentence.tags)
        for word, number in zip(self._words, numbers, strict=True):
            tags[word] = self._names[number]
        return tags

    def count(self, predicted: Int[np.ndarray, " words"]) -> tuple[int, ...]:
        """Correct words, words; then of strict entities hits, found and true ones; and the same in the default way."""
        key = predicted.tobytes()
        if key not in self._known:
            tags = self._predicted(predicted.tolist())
            correct = sum(tag == true for tag, true in zip(tags, self._sentence.tags, strict=True))
            counts = [correct, len(tags)]
            for found, true_entities in zip((self._strict(tags), entities(tags)), self._true, strict=True):
                counts += [len(found & true_entities), len(found), len(true_entities)]
            self._known[key] = tuple(counts)
        return self._known[key]
