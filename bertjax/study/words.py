"""Masked words: which words of each text are hidden from the model, and what it is asked for there.

A word is a piece of the tokenizer's vocabulary. Of each text a share of the words, drawn at random, is masked at once,
as in BERT's training but for its 10 % of random and 10 % of unchanged words; or each word in turn, alone, in a copy of
the text: then the sum of log-probabilities is the text's pseudo-log-likelihood (Salazar et al. 2020).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int32, Int64

from bertjax.data import Encoding, Tokenizer
from bertjax.errors import InputError

SHARE = 0.15  # of the words of a text, as in BERT's training (Devlin et al. 2019)
UNKNOWN = "<unk>"  # WikiText's mark of a rare word


@dataclass(frozen=True)
class Wanted:
    """The words that are masked and asked for.

    Args:
        at: tokens of each text; the last again where a text has fewer than others.
        targets: the true words' ids there.
        real: where these are a text's own, not repeated.
        examples: the example to which each text belongs.
    """

    at: Int32[np.ndarray, "texts wanted"]
    targets: Int32[np.ndarray, "texts wanted"]
    real: Bool[np.ndarray, "texts wanted"]
    examples: Int64[np.ndarray, " texts"]

    def __len__(self) -> int:
        return int(self.real.sum())

    @cached_property
    def words(self) -> Int32[np.ndarray, " words"]:
        """The true word of each output."""
        return self.targets[self.real]

    @cached_property
    def places(self) -> Int32[np.ndarray, " words"]:
        """The token of each output in its text."""
        return self.at[self.real]

    @cached_property
    def units(self) -> Int64[np.ndarray, " words"]:
        """The example of each output: the words of a text are no independent examples."""
        return np.repeat(self.examples, self.real.sum(axis=1))

    def of_words(self, outputs: Float[np.ndarray, "*runs texts wanted 2"]) -> Float[np.ndarray, "*runs words 2"]:
        """The outputs of a sweep without repeated ones, one word after another."""
        return outputs[..., self.real, :]


def mask_words(
    tokenizer: Tokenizer, encodings: Sequence[Encoding], *, seed: int, every_word: bool
) -> tuple[tuple[Encoding, ...], Wanted]:
    """Hide words of texts.

    Words that the tokenizer does not know, and special tokens, are not asked for.

    Args:
        encodings: one for each example.
        seed: of the draw, which is of each example by its number and depends on nothing else.
        every_word: hide each word by itself, in a text of its own, in place of drawn ones together.

    Raises:
        InputError: no text has a word that could be asked for, or the tokenizer has no [MASK].
    """
    mask, unknown = tokenizer.mask_token_id, tokenizer.unk_token_id
    no_words = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, mask, unknown]
    texts: list[Encoding] = []
    places: list[np.ndarray] = []
    examples: list[int] = []
    for example, encoding in enumerate(encodings):
        ids = np.array(encoding.input_ids)
        candidates = np.flatnonzero(~np.isin(ids, no_words))
        for chosen in _choose(candidates, seed, example, every_word):
            hidden = ids.copy()
            hidden[chosen] = mask
            name = tokenizer.mask_token
            tokens = tuple(name if place in chosen else token for place, token in enumerate(encoding.tokens))
            texts.append(replace(encoding, input_ids=tuple(hidden.tolist()), tokens=tokens))
            places.append(chosen)
            examples.append(example)
    if not texts:
        raise InputError("no text has a word that could be masked: give longer texts")
    most = max(map(len, places))
    at = np.array([[*chosen, *[chosen[-1]] * (most - len(chosen))] for chosen in places], np.int32)
    real = np.arange(most)[None] < np.array([*map(len, places)])[:, None]
    numbers = np.array(examples, np.int64)
    true = [[encodings[example].input_ids[place] for place in row] for example, row in zip(examples, at, strict=True)]
    return tuple(texts), Wanted(at, np.array(true, np.int32), real, numbers)


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
