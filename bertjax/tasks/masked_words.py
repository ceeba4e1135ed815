"""Masked words: which words of each text are hidden from the model, and what it is asked for there.

A word is a piece of the tokenizer's vocabulary. Of each text a share of the words, drawn at random, is masked at once,
as in BERT's training but for its 10 % of random and 10 % of unchanged words; or each word in turn, alone, in a copy of
the text: then the sum of log-probabilities is the text's pseudo-log-likelihood (Salazar et al. 2020).
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from jaxtyping import Float, Int64

from bertjax.data import Encoding, Examples, Tokenizer
from bertjax.errors import InputError
from bertjax.formatting import count_of
from bertjax.interventions import readouts
from bertjax.tasks.encoded import Asked, Collected, Encoded
from bertjax.tasks.losses import Graded, Objective
from bertjax.tasks.options import WITHIN_WORD, Options

SHARE = 0.15  # of the words of a text, as in BERT's training (Devlin et al. 2019)
UNKNOWN = "<unk>"  # WikiText's mark of a rare word


def encode(tokenizer: Tokenizer, examples: Examples, options: Options) -> Encoded:
    """Texts with masked words, each asked for its true word.

    Raises:
        InputError: no text has a word that could be asked for, or the tokenizer has no [MASK].
    """
    whole = tokenizer.encode(
        name_unknown(tokenizer, examples.first),
        None,
        options.max_length,
        word_ids=options.pll == WITHIN_WORD,
    )
    masked, asked = mask_words(
        tokenizer, whole, seed=options.seed, every_word=options.every_word, within_word=options.pll == WITHIN_WORD
    )
    without = sorted({*range(len(examples))} - {*asked.units.tolist()})
    return Encoded(
        "words",
        masked,
        tokenizer.pad_id,
        len(examples),
        asked=asked,
        collect=partial(collect_words, asked),
        labels=asked.words,
        units=asked.units,
        fixed={"units": asked.units, "places": asked.places},
        note=f"{count_of(len(without), 'text')} without a word to mask (first {examples.ids[without[0]]})"
        if without
        else "",
        objective=Objective(readouts.words, partial(grade_words, asked), "mean surprisal of an example's masked words"),
    )


def collect_words(asked: Asked | None, given: Float[np.ndarray, "runs texts wanted 2"]) -> Collected:
    """Log-probability and rank of each word, one after another."""
    assert asked is not None
    return Collected(asked.of_words(given))


def grade_words(asked: Asked, example: int, given: Float[np.ndarray, "texts wanted *numbers"]) -> Graded:
    """The mean surprisal of what is asked for: minus its log-probability, the first number that is given of it."""
    own = asked.own(example)
    real, gradient = asked.real[own], np.zeros(given.shape)
    of_first = gradient[..., 0]
    of_first[real] = -1 / real.sum()
    return -float(given[..., 0][real].astype(np.float64).mean()), gradient


def mask_words(
    tokenizer: Tokenizer,
    encodings: Sequence[Encoding],
    *,
    seed: int,
    every_word: bool,
    within_word: bool = False,
) -> tuple[tuple[Encoding, ...], Asked]:
    """Hide words of texts.

    Words that the tokenizer does not know, and special tokens, are not asked for.

    Args:
        encodings: one for each example.
        seed: of the draw, which is of each example by its number and depends on nothing else.
        every_word: hide each word by itself, in a text of its own, in place of drawn ones together.
        within_word: with `every_word`: hide also what follows of the same word (Kauf and Ivanova 2023).

    Raises:
        InputError: no text has a word that could be asked for, or the tokenizer has no [MASK].
    """
    texts: list[Encoding] = []
    places: list[list[int]] = []
    examples: list[int] = []
    for example, encoding in enumerate(encodings):
        candidates = np.array(words_of(tokenizer, encoding), np.int64)
        for chosen in _choose(candidates, seed, example, every_word):
            hidden = chosen.tolist()
            texts.append(hide(tokenizer, encoding, rest_of_word(encoding, hidden[0]) if within_word else hidden))
            places.append(hidden)
            examples.append(example)
    if not texts:
        raise InputError("no text has a word that could be masked: give longer texts")
    true = [
        [encodings[example].input_ids[place] for place in row] for example, row in zip(examples, places, strict=True)
    ]
    return tuple(texts), Asked.of_lists(places, true, examples)


def words_of(tokenizer: Tokenizer, encoding: Encoding, *, unknown: bool = False) -> list[int]:
    """The tokens of a text that are words of the vocabulary, not special.

    Args:
        unknown: whether the token of unknown words counts as one.
    """
    no_words = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_token_id}
    if not unknown:
        no_words.add(tokenizer.unk_token_id)
    return [place for place, number in enumerate(encoding.input_ids) if number not in no_words]


def hide(tokenizer: Tokenizer, encoding: Encoding, places: Sequence[int]) -> Encoding:
    """A text with [MASK] at these tokens."""
    ids, tokens = list(encoding.input_ids), list(encoding.tokens)
    for place in places:
        ids[place], tokens[place] = tokenizer.mask_token_id, tokenizer.mask_token
    # (`dataclasses.replace` would take several times as long, and there are as many copies as words.)
    return Encoding(
        tuple(ids),
        encoding.token_type_ids,
        tuple(tokens),
        encoding.offsets,
        encoding.truncated,
        encoding.boundary,
        encoding.word_ids,
    )


def rest_of_word(encoding: Encoding, place: int) -> list[int]:
    """A token and those after it that are pieces of the same word."""
    word, places = encoding.word_ids[place], [place]
    while places[-1] + 1 < len(encoding) and encoding.word_ids[places[-1] + 1] == word is not None:
        places.append(places[-1] + 1)
    return places


def _choose(candidates: Int64[np.ndarray, " _"], seed: int, example: int, every_word: bool) -> list[np.ndarray]:
    """Which words are hidden in each copy of a text: each by itself, or a share of them, one at least, together."""
    if not len(candidates):
        return []
    if every_word:
        return [candidates[number : number + 1] for number in range(len(candidates))]
    count = max(1, round(SHARE * len(candidates)))
    generator = np.random.default_rng([seed, example])
    return [np.sort(generator.choice(candidates, count, replace=False))]


def name_unknown(tokenizer: Tokenizer, texts: Sequence[str]) -> list[str]:
    """Texts in which WikiText's mark of an unknown word is the tokenizer's."""
    return [text.replace(UNKNOWN, tokenizer.unk_token) for text in texts]
