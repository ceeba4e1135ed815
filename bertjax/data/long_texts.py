"""Beginnings of very long texts, which truncation would reduce to the same tokens as the whole texts.

Of two long texts the tokenizers library keeps all that truncation cuts off, each part of one with each of the other.
"""

import itertools
import re
from collections.abc import Callable, Iterator

import tokenizers

Texts = tuple[str, ...]  # one text, or a pair

LONG = 20_000  # characters; longer texts are processed piece by piece
_SPACE = re.compile(r"[ \t\n\r]")  # where a BERT's words always end


def shorten(texts: Texts, most: int, count: Callable[[str], int]) -> Texts:
    """Beginnings of very long texts that, truncated to `most` tokens, give the same tokens as the whole texts.

    Args:
        texts: one text, or a pair. Truncation cuts the longer text of a pair, so the longer one must stay the longer.
        most: the number of tokens.
        count: returns the number of a piece's tokens; words end at white space.
    """
    if max(map(len, texts)) <= LONG:
        return texts
    if len(texts) == 1:
        return (_beginning(texts[0], most, count),)
    running_totals = [list(itertools.accumulate(count(piece) for piece in _pieces(text))) or [0] for text in texts]
    totals = [sums[-1] for sums in running_totals]
    ends = [next((place for place, total in enumerate(sums) if total > most), len(sums) - 1) for sums in running_totals]
    while totals[0] > totals[1] and running_totals[0][ends[0]] <= running_totals[1][ends[1]]:
        ends[0] += 1
    while totals[0] <= totals[1] and running_totals[0][ends[0]] > running_totals[1][ends[1]]:
        ends[1] += 1
    return tuple("".join(itertools.islice(_pieces(text), end + 1)) for text, end in zip(texts, ends, strict=True))


def shorten_checked(texts: Texts, most: int, encode: Callable[[str], tokenizers.Encoding]) -> Texts:
    """As `shorten`, whatever separates words: a beginning is taken only if its tokens are those of the whole text.

    Args:
        texts: one text, or a pair.
        most: the number of tokens.
        encode: makes tokens of a text, without special ones.
    """
    if max(map(len, texts)) <= LONG:
        return texts
    whole = [encode(text) for text in texts]
    shortened, count = list(texts), most
    longer_first = len(texts) == 2 and len(whole[0]) > len(whole[1])
    for place in reversed(range(len(texts))) if longer_first else range(len(texts)):
        shortened[place], tokens = _checked_beginning(texts[place], whole[place], most, count, encode)
        count = max(count, tokens)
    return tuple(shortened)


def _checked_beginning(
    text: str, whole: tokenizers.Encoding, most: int, count: int, encode: Callable[[str], tokenizers.Encoding]
) -> tuple[str, int]:
    """A beginning of more than `count` tokens, the first `most` of which are the whole text's, and how many it has."""
    for margin in (16, 256):
        if count + margin < len(whole):
            beginning = text[: whole.offsets[count + margin][1]]
            made = encode(beginning)
            alike = made.ids[:most] == whole.ids[:most] and made.offsets[:most] == whole.offsets[:most]
            if alike and len(made) > count:
                return beginning, len(made)
    return text, len(whole)


def _beginning(text: str, most: int, count: Callable[[str], int]) -> str:
    end = tokens = 0
    for piece in _pieces(text):
        end, tokens = end + len(piece), tokens + count(piece)
        if tokens > most:
            break
    return text[:end]


def _pieces(text: str) -> Iterator[str]:
    """A text in pieces of about `LONG` characters, split at white space."""
    start = 0
    while start < len(text):
        space = _SPACE.search(text, start + LONG)
        end = len(text) if space is None else space.start()
        yield text[start:end]
        start = end
