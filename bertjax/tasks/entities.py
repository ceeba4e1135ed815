"""Entities of tagged words, and what of them is found, as seqeval counts it (Nakayama 2018, after conlleval).

In the default way an entity begins wherever a tag cannot go on with the one before, so that `I-PER` alone is one.
Strictly it has the form that the tags' scheme asks for: `B I I`, or `B I E` and `S` (IOBES), or `B I L` and `U`
(BILOU); all else is none.
"""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from jaxtyping import Int

from bertjax.data import Tagged

Entity = tuple[str, int, int]  # type, first word, one past the last


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


def strict_entities(tags: Sequence[str], last: str = "", single: str = "") -> set[Entity]:
    """Entities that have the form of a scheme.

    Args:
        last, single: marks of an entity's last word and of one of a single word; empty in IOB2, which has none.

    >>> sorted(strict_entities(["I-PER", "B-PER", "I-PER", "I-LOC"]))
    [('PER', 1, 3)]
    """
    found: set[Entity] = set()
    start: int | None = None
    split = [*map(_split, tags), ("O", "_")]
    for place, (mark, kind) in enumerate(split):
        if start is not None and mark in {"I", last} and kind == split[start][1]:
            if mark == last:
                found.add((kind, start, place + 1))
                start = None
            continue
        if start is not None and not last:
            found.add((split[start][1], start, place))
        start = place if mark == "B" else None
        if single and mark == single:
            found.add((kind, place, place + 1))
    return found


def scheme_of(names: Sequence[str]) -> Callable[[Sequence[str]], set[Entity]]:
    """What finds strict entities, by the marks that the tags have."""
    marks = {name[:1] for name in names}
    for last, single in (("E", "S"), ("L", "U")):
        if marks & {last, single}:
            return lambda tags: strict_entities(tags, last, single)
    return strict_entities


class Counter:
    """Counts what is found in a sentence, of many runs that mostly find the same.

    Args:
        sentence: with its true tags.
        words: those that have a prediction.
        names: of the model's tags.
        outside: the tag of all other words.
    """

    def __init__(self, sentence: Tagged, words: Int[np.ndarray, " words"], names: Sequence[str], outside: str):
        self._sentence, self._words, self._names, self._outside = sentence, words.tolist(), names, outside
        self._strict = scheme_of(names)
        self._known: dict[bytes, tuple[int, ...]] = {}

    @cached_property
    def _true(self) -> tuple[set[Entity], set[Entity]]:
        return self._strict(self._sentence.tags), entities(self._sentence.tags)

    def count(self, predicted: Int[np.ndarray, " words"]) -> tuple[int, ...]:
        """Correct words, words; then of strict entities hits, found and true ones; and the same in the default way."""
        key = predicted.tobytes()
        if key not in self._known:
            tags = [self._outside] * len(self._sentence.tags)
            for word, number in zip(self._words, predicted.tolist(), strict=True):
                tags[word] = self._names[number]
            correct = sum(tag == true for tag, true in zip(tags, self._sentence.tags, strict=True))
            counts = [correct, len(tags)]
            for found, true_entities in zip((self._strict(tags), entities(tags)), self._true, strict=True):
                counts += [len(found & true_entities), len(found), len(true_entities)]
            self._known[key] = tuple(counts)
        return self._known[key]
