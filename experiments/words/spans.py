"""Words and spans of a text, and the word pieces that make them up."""

import re
from collections.abc import Sequence

from bertjax.data import Encoding

Span = tuple[int, int]  # first character, and one past the last


def find_words(text: str, words: str, taken: Sequence[Span] = ()) -> Span:
    """The first place in a text where some words stand, not inside longer words and not in spans already taken.

    Raises:
        LookupError: there is no such place.

    >>> find_words("he saw the heath", "he")
    (0, 2)
    >>> find_words("he saw he", "he", taken=[(0, 2)])
    (7, 9)
    """
    for match in re.finditer(rf"(?<!\S){re.escape(words)}(?!\S)", text):
        if all(match.end() <= start or end <= match.start() for start, end in taken):
            return match.span()
    raise LookupError(f"{words!r} does not stand in {text!r}")


def pieces_of(encoding: Encoding, span: Span, segment: int = 0) -> list[int]:
    """The tokens of a text that overlap a span; of a pair, those of the first text, or with segment 1 of the second.

    >>> encoding = Encoding((101, 5, 6, 7, 102), (0,) * 5, ("",) * 5, ((0, 0), (0, 2), (3, 6), (6, 9), (0, 0)), False)
    >>> pieces_of(encoding, (3, 9))
    [2, 3]
    """
    return [
        token
        for token, ((start, end), part) in enumerate(zip(encoding.offsets, encoding.segments, strict=True))
        if start < end and start < span[1] and span[0] < end and part == segment
    ]
