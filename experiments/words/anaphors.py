"""Anaphors of a sentence, and the antecedents to which heads attend."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from bertjax.data import Encoding
from experiments.shared.run import Run
from experiments.words.annotated import Annotated
from experiments.words.spans import pieces_of
from experiments.words.word_attention import read_words

BASELINES = ("nearest", "nearest of its kind", "nearest with its word")


@dataclass(frozen=True)
class Anaphor:
    """A word that refers to an earlier mention.

    Args:
        word: the anaphor.
        candidates: earlier mentions' head words, ascending.
        true: which of them are of its entity.
        others: head words of other entities' mentions after the nearest true antecedent, other than the anaphor.
    """

    word: int
    candidates: tuple[int, ...]
    true: tuple[bool, ...]
    others: tuple[int, ...]

    @property
    def antecedent(self) -> int:
        """The nearest true antecedent."""
        return max(index for index, is_true in zip(self.candidates, self.true, strict=True) if is_true)


def find_anaphors(sentence: Annotated) -> list[Anaphor]:
    """All anaphors of a sentence that have a choice: two candidates or more, not all of them true."""
    mentions, found = sentence.mentions or (), []
    for entity, word in sorted({*mentions}, key=lambda mention: mention[1]):
        candidates = tuple(sorted({other for _, other in mentions if other < word}))
        same_entity = {other for name, other in mentions if name == entity}
        true = tuple(candidate in same_entity for candidate in candidates)
        if any(true) and not all(true):
            nearest = max(candidate for candidate in candidates if candidate in same_entity)
            later = {other for name, other in mentions if other > nearest and name != entity}
            found.append(Anaphor(word, candidates, true, tuple(sorted(later - same_entity - {word}))))
    return found


@dataclass(frozen=True)
class Resolved:
    """How many of a sentence's anaphors each head and each baseline resolves.

    Args:
        count: how many there are.
        hits: how many each head gets right, and then each of `BASELINES`.
        chance: how many a draw would get right.
        compared: the number of anaphors with other mentions to compare with.
        higher: for how many of those the antecedent gets more from the anaphor than from the others, by head.
    """

    count: int
    hits: Int[np.ndarray, " guesses"]
    chance: float
    compared: int
    higher: Int[np.ndarray, " all_heads"]


def resolve(
    sentence: Annotated, anaphors: Sequence[Anaphor], weights: Float[np.ndarray, "all_heads word other"]
) -> Resolved:
    """Resolve the anaphors of a sentence with each head and each baseline."""
    hits, chance = np.zeros(len(weights) + len(BASELINES), np.int64), 0.0
    higher, compared = np.zeros(len(weights), np.int64), 0
    for anaphor in anaphors:
        true, candidates = np.array(anaphor.true), np.array(anaphor.candidates)
        hits[: len(weights)] += true[weights[:, anaphor.word, candidates].argmax(axis=1)]
        hits[len(weights) :] += true[_baselines(sentence, anaphor)]
        chance += float(true.mean())
        if anaphor.others:
            weight = weights[:, anaphor.word, anaphor.antecedent]
            higher += weight > weights[:, list(anaphor.others), anaphor.antecedent].mean(axis=1)
            compared += 1
    return Resolved(len(anaphors), hits, chance, compared, higher)


def _baselines(sentence: Annotated, anaphor: Anaphor) -> list[int]:
    """Which candidate each of `BASELINES` takes."""
    candidates, anaphor_word = [sentence.words[index] for index in anaphor.candidates], sentence.words[anaphor.word]
    nearest = len(candidates) - 1
    same_kind = max((index for index, word in enumerate(candidates) if word.kind == anaphor_word.kind), default=nearest)
    same = [index for index, word in enumerate(candidates) if word.form.casefold() == anaphor_word.form.casefold()]
    return [nearest, same_kind, max(same, default=same_kind)]


def read_resolved(run: Run, sentences: Sequence[Annotated]) -> list[Resolved]:
    """The result for each sentence with anaphors whose words all have tokens, in order."""
    known = list(_usable(run, sentences))
    encodings, pieces = [encoding for encoding, *_ in known], [words for *_, words in known]
    return read_words(run, encodings, pieces, lambda number, maps: resolve(*known[number][1:3], maps))


def _usable(
    run: Run, sentences: Sequence[Annotated]
) -> Iterator[tuple[Encoding, Annotated, list[Anaphor], list[list[int]]]]:
    with_anaphors = [(sentence, find_anaphors(sentence)) for sentence in sentences]
    with_anaphors = [(sentence, anaphors) for sentence, anaphors in with_anaphors if anaphors]
    texts = [sentence.text for sentence, _ in with_anaphors]
    encodings = run.tokenizer.encode(texts, max_length=run.model.config.max_tokens)
    for encoding, (sentence, anaphors) in zip(encodings, with_anaphors, strict=True):
        pieces = [pieces_of(encoding, word.span) for word in sentence.words]
        if all(pieces):
            yield encoding, sentence, anaphors, pieces
