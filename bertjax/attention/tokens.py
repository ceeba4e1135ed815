"""Properties of a text's tokens that do not depend on a model: special, punctuation, word, and text."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from bertjax.data import Encoding

SPACE = "\u2581"  # SentencePiece's sign for the space before a word


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text, or of a pair of texts.

    Args:
        special: [CLS], [SEP] and their like in other families.
        punctuation: pieces that consist of punctuation characters.
        words: the id of each token's word form, ignoring case; -1 for special tokens, punctuation, and pieces that
            stand for a space and belong to no word.
        places: the index of the word that each token is a piece of; -1 for special tokens.
        texts: 0 for the first text and its special tokens, 1 for the second.
    """

    special: Bool[np.ndarray, " token"]
    punctuation: Bool[np.ndarray, " token"]
    words: Int[np.ndarray, " token"]
    places: Int[np.ndarray, " token"]
    texts: Int[np.ndarray, " token"]

    def __len__(self) -> int:
        return len(self.special)

    @property
    def plain(self) -> Bool[np.ndarray, " token"]:
        """Tokens that are not special."""
        return ~self.special


def tokens_of(encoding: Encoding, texts: Sequence[str]) -> Tokens:
    """The properties of the tokens of a text or pair.

    Args:
        encoding: an encoding with `word_ids`.
        texts: the encoded texts, with their prompts.

    >>> from bertjax.data import Tokenizer
    >>> tokenizer = Tokenizer.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
    >>> (encoding,) = tokenizer.encode(["The cat, the dog."], word_ids=True)
    >>> tokens_of(encoding, ["The cat, the dog."]).words.tolist()
    [-1, 0, 1, -1, 0, 2, -1, -1]
    """
    segments = np.array(encoding.segments, np.int64)
    special = np.array([word is None for word in encoding.word_ids], np.bool_)
    places = _places(encoding.word_ids, encoding.segments)
    pieces = [
        _characters(token, texts[segment][slice(*offsets)])
        for token, segment, offsets in zip(encoding.tokens, segments, encoding.offsets, strict=True)
    ]
    punctuation = np.array([*map(_is_punctuation, pieces)], np.bool_) & ~special
    spans: dict[int, tuple[int, int, int]] = {}
    is_spelled = [bool(piece) and not is_mark for piece, is_mark in zip(pieces, punctuation.tolist(), strict=True)]
    spelled = zip(places.tolist(), encoding.segments, encoding.offsets, is_spelled, strict=True)
    for place, segment, (start, end), counts in spelled:
        if place >= 0 and counts:  # some tokenizers count marks and the space before a word to the word
            _, low, high = spans.get(place, (segment, start, end))
            spans[place] = (segment, min(low, start), max(high, end))
    forms: dict[str, int] = {}
    numbers = dict[int, int]()
    for place, (segment, start, end) in spans.items():
        word = texts[segment][start:end].strip().casefold()
        numbers[place] = forms.setdefault(word, len(forms))
    words = np.array([numbers.get(place, -1) for place in places.tolist()], np.int64)
    return Tokens(special, punctuation, np.where(punctuation, -1, words), places, segments)


def _places(word_ids: Sequence[int | None], segments: Sequence[int]) -> Int[np.ndarray, " token"]:
    """The index of each token's word, counted through both texts."""
    keys = [None if word is None else (segment, word) for word, segment in zip(word_ids, segments, strict=True)]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(key for key in keys if key is not None))}
    return np.array([-1 if key is None else numbers[key] for key in keys], np.int64)


def _characters(token: str, text: str) -> str:
    """The characters that a piece stands for, without spaces.

    Args:
        text: the text at the piece's offsets. They may include the space before a word; those of a single SentencePiece
            space may be the next piece's.
    """
    return "" if token == SPACE and text != SPACE else text.strip()


def _is_punctuation(text: str) -> bool:
    return bool(text) and all(unicodedata.category(character).startswith("P") for character in text)
