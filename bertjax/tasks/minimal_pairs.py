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
from bertjax.errors import DataError
from bertjax.formatting import count_of
from bertjax.interventions import readouts
from bertjax.machine import memory_left
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

    def asked(self) -> Asked:
        return Asked.of_lists(self.places, self.targets, self.examples)


def encode_pairs(tokenizer: Tokenizer, examples: Examples, options: Options) -> Encoded:
    """Both sentences of each pair, a copy for each piece that is hidden.

    Raises:
        DataError: a sentence without words.
    """
    within_word = options.pll == WITHIN_WORD
    copies, starts, equal = _Copies(), [], []
    for example, both in enumerate(zip(*_sentences(tokenizer, examples, options), strict=True)):
        equal.append(both[0].input_ids == both[1].input_ids)
        for sentence in both:
            words = words_of(tokenizer, sentence, unknown=True)
            if not words:
                raise DataError(f"example {examples.ids[example]} has a sentence without words: leave it out")
            starts.append(len(copies.texts))
            for place in words:
                hidden = rest_of_word(sentence, place) if within_word else [place]
                copies.texts.append(hide(tokenizer, sentence, hidden))
                copies.places.append([place])
                copies.targets.append([sentence.input_ids[place]])
                copies.examples.append(example)

    def collect(given: Float[np.ndarray, "runs texts 1"]) -> Collected:
        """The pseudo-log-likelihoods of the bad and the good sentence of each pair."""
        sums = np.add.reduceat(given[..., 0].astype(np.float64), starts, axis=1).reshape(len(given), -1, 2)
        sums[:, equal, 1] = sums[:, equal, 0]  # elsewhere in a row of the engine rounding may differ
        return Collected(sums.astype(given.dtype))

    texts, pad_id, asked = tuple(copies.texts), tokenizer.pad_id, copies.asked()
    good = np.searchsorted(starts, np.arange(len(texts)), side="right") % 2 == 0
    return Encoded(
        "likelihoods",
        texts,
        pad_id,
        len(examples),
        asked=asked,
        collect=collect,
        objective=Objective(readouts.log_probabilities, partial(grade_pair, asked, good), GOOD),
    )


def encode_agreement(tokenizer: Tokenizer, examples: Examples, options: Options) -> Encoded:
    """Of each pair the sentence without the word in which its forms differ, asked for both words.

    Pairs that differ elsewhere too, or in words of several pieces, are skipped.

    Raises:
        DataError: all are.
    """
    copies, kept = _Copies(), list[int]()
    for example, (bad, good) in enumerate(zip(*_sentences(tokenizer, examples, options), strict=True)):
        place = differing_piece(bad, good)
        if place is None:
            continue
        copies.texts.append(hide(tokenizer, good, [place]))
        copies.places.append([place] * 2)
        copies.targets.append([bad.input_ids[place], good.input_ids[place]])
        copies.examples.append(len(kept))
        kept.append(example)
    if not kept:
        raise DataError("no pair has forms that differ in a single piece of the tokenizer's: nothing can be measured")
    skipped, asked = len(examples) - len(kept), copies.asked()
    note = f"{count_of(skipped, 'pair')} skipped, whose forms differ in more than one piece" if skipped else ""
    return Encoded(
        "likelihoods",
        tuple(copies.texts),
        tokenizer.pad_id,
        len(kept),
        asked=asked,
        collect=_as_given,
        objective=Objective(readouts.log_probabilities, partial(grade_pair, asked, np.ones(len(kept), bool)), GOOD),
        kept_examples=tuple(kept),
        note=note,
    )


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
        room=memory_left(options.memory),
    )
    return both[:count], both[count:]
