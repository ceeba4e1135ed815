"""Minimal pairs: does a model find the good form of a sentence likelier than the bad one?

By pseudo-log-likelihoods: each piece of a sentence is hidden in turn, and the log-probabilities of the true ones are
added (Salazar et al. 2020); `within-word` hides also the pieces that follow in the same word, which would else give a
word of several pieces away (Kauf and Ivanova 2023). Or, for agreement, by the log-probabilities of two forms at the one
place where the sentences differ, hidden (Goldberg 2019).
"""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
from jaxtyping import Bool, Float

from bertjax.data import Encoding, Examples, Tokenizer
from bertjax.errors import DataError, some_of
from bertjax.formatting import count_of
from bertjax.interventions import readouts
from bertjax.tasks.encoded import Asked, Collected, Encoded
from bertjax.tasks.losses import Graded, Objective, cross_entropy
from bertjax.tasks.masked_words import hide, rest_of_word, words_of
from bertjax.tasks.options import WITHIN_WORD, Options

GOOD = "cross-entropy of the good form, of two whose logits are their log-likelihoods"


@dataclass
class _Copies:
    """Copies of sentences, each with a piece that is asked for.

    Args:
        texts: the copies.
        places: the token of each.
        targets: its true piece.
        examples: the pair of each.
    """

    texts: list[Encoding] = field(default_factory=list)
    places: list[list[int]] = field(default_factory=list)
    targets: list[list[int]] = field(default_factory=list)
    examples: list[int] = field(default_factory=list)

    def add(self, text: Encoding, place: int, target: int, example: int) -> None:
        """Add a copy that is asked for one piece."""
        self.texts.append(text)
        self.places.append([place])
        self.targets.append([target])
        self.examples.append(example)

    def asked(self) -> Asked:
        return Asked.of_lists(self.places, self.targets, self.examples)


@dataclass
class _LeftOut:
    """The pairs that cannot be scored, by reason.

    Args:
        wordless: ids of those with a sentence without words.
        cut: how many are truncated before they differ.
        alike: how many have sentences of the same pieces.
        several: how many differ in more than one piece.
    """

    wordless: list[int | str] = field(default_factory=list)
    cut: int = 0
    alike: int = 0
    several: int = 0

    def note(self) -> str:
        """The pairs and their reasons, in words; empty where none is left out."""
        has = "example {} has" if len(self.wordless) == 1 else "examples {} have"
        reasons = (
            (self.cut, "left out, truncated before their sentences differ: give a larger --max-length"),
            (self.alike, "skipped, whose sentences have the same pieces"),
            (self.several, "skipped, whose forms differ in more than one piece"),
        )
        notes = [f"{count_of(count, 'pair')} {reason}" for count, reason in reasons if count]
        if self.wordless:
            names = some_of([str(name) for name in self.wordless])
            notes.append(
                f"{has.format(names)} a sentence without words, and {count_of(len(self.wordless), 'pair')} left out"
            )
        return ", ".join(notes)


def encode_pairs(tokenizer: Tokenizer, examples: Examples, options: Options) -> Encoded:
    """Both sentences of each pair, a copy for each piece that is hidden.

    Pairs that are truncated before they differ, or have a sentence without words, are left out.

    Raises:
        DataError: all are.
    """
    within_word = options.pll == WITHIN_WORD
    copies, left_out = _Copies(), _LeftOut()
    starts, equal, kept = list[int](), list[bool](), list[int]()
    for example, both in enumerate(zip(*_sentences(tokenizer, examples, options), strict=True)):
        words = [words_of(tokenizer, sentence, unknown=True) for sentence in both]
        if not all(words):
            left_out.wordless.append(examples.ids[example])
            continue
        if _cut_alike(examples, example, *both):
            left_out.cut += 1
            continue
        equal.append(both[0].input_ids == both[1].input_ids)
        for sentence, places in zip(both, words, strict=True):
            starts.append(len(copies.texts))
            for place in places:
                hidden = rest_of_word(sentence, place) if within_word else [place]
                copies.add(hide(tokenizer, sentence, hidden), place, sentence.input_ids[place], len(kept))
        kept.append(example)
    if not kept:
        raise DataError(f"no pair can be scored: {left_out.note()}")

    def collect(given: Float[np.ndarray, "runs texts 1"]) -> Collected:
        """The pseudo-log-likelihoods of the bad and the good sentence of each pair."""
        sums = np.add.reduceat(given[..., 0].astype(np.float64), starts, axis=1).reshape(len(given), -1, 2)
        sums[:, equal, 1] = sums[:, equal, 0]  # elsewhere in a row of the engine rounding may differ
        return Collected(sums.astype(given.dtype))

    texts, asked = tuple(copies.texts), copies.asked()
    good = np.searchsorted(starts, np.arange(len(texts)), side="right") % 2 == 0
    return Encoded(
        "likelihoods",
        texts,
        tokenizer.pad_id,
        len(kept),
        asked=asked,
        collect=collect,
        objective=Objective(readouts.log_probabilities, partial(grade_pair, asked, good), GOOD),
        kept_examples=None if len(kept) == len(examples) else tuple(kept),
        note=left_out.note(),
    )


def _cut_alike(examples: Examples, example: int, bad: Encoding, good: Encoding) -> bool:
    """Whether two sentences that differ are alike as far as they are read, because one was truncated."""
    assert examples.second is not None
    differ = examples.first[example] != examples.second[example]
    return differ and bad.input_ids == good.input_ids and (bad.truncated or good.truncated)


def encode_agreement(tokenizer: Tokenizer, examples: Examples, options: Options) -> Encoded:
    """Of each pair the sentence without the word in which its forms differ, asked for both words.

    Pairs that are truncated before they differ, that differ elsewhere too, or in words of several pieces, are skipped.

    Raises:
        DataError: all are.
    """
    copies, kept, left_out = _Copies(), list[int](), _LeftOut()
    for example, (bad, good) in enumerate(zip(*_sentences(tokenizer, examples, options), strict=True)):
        place = differing_piece(bad, good)
        if _cut_alike(examples, example, bad, good) or (place is not None and _is_cut(tokenizer, bad, good, place)):
            left_out.cut += 1
        elif bad.input_ids == good.input_ids:
            left_out.alike += 1
        elif place is None:
            left_out.several += 1
        else:
            copies.texts.append(hide(tokenizer, good, [place]))
            copies.places.append([place] * 2)
            copies.targets.append([bad.input_ids[place], good.input_ids[place]])
            copies.examples.append(len(kept))
            kept.append(example)
    if not kept:
        reasons = left_out.note()
        raise DataError(f"no pair has forms that differ in a single piece of the tokenizer's: {reasons}")
    asked = copies.asked()
    return Encoded(
        "likelihoods",
        tuple(copies.texts),
        tokenizer.pad_id,
        len(kept),
        asked=asked,
        collect=_as_given,
        objective=Objective(readouts.log_probabilities, partial(grade_pair, asked, np.ones(len(kept), bool)), GOOD),
        kept_examples=tuple(kept),
        note=left_out.note(),
    )


def _is_cut(tokenizer: Tokenizer, bad: Encoding, good: Encoding, place: int) -> bool:
    """Whether two sentences differ in the last piece before one was truncated: the rest of the word may be missing."""
    words = words_of(tokenizer, good, unknown=True) or [place]
    end = words[-1] if tokenizer.truncation_side == "right" else words[0]
    return place == end and (bad.truncated or good.truncated)


def differing_piece(first: Encoding, second: Encoding) -> int | None:
    """The only place at which two texts of as many pieces differ; None where they differ otherwise, or not at all."""
    pieces = enumerate(zip(first.input_ids, second.input_ids, strict=False))
    places = [place for place, (one, other) in pieces if one != other]
    return places[0] if len(first) == len(second) and len(places) == 1 else None


def grade_pair(asked: Asked, good: Bool[np.ndarray, " texts"], example: int, given: np.ndarray) -> Graded:
    """The cross-entropy of the good form of a minimal pair, whose logits are the two log-likelihoods.

    Args:
        good: which texts are copies of the good sentence; of one text that is asked for both forms the second counts.
    """
    if given.shape[1] == 2:
        loss, slopes = cross_entropy(given[0], 1)
        return loss, slopes[None]
    own, values = good[asked.own(example)], given[:, 0].astype(np.float64)
    loss, slopes = cross_entropy(np.array([values[~own].sum(), values[own].sum()]), 1)
    return loss, slopes[own.astype(int)][:, None]


def _as_given(given: Float[np.ndarray, "runs texts 2"]) -> Collected:
    return Collected(given)


def _sentences(tokenizer: Tokenizer, examples: Examples, options: Options) -> tuple[list[Encoding], list[Encoding]]:
    """The bad and the good sentences: the second and the first texts."""
    assert examples.second is not None
    count = len(examples)
    both = tokenizer.encode(
        [*examples.second, *examples.first],
        None,
        options.max_length,
        word_ids=options.pll == WITHIN_WORD,
    )
    return both[:count], both[count:]
