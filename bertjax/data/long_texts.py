"""Tokenise within a memory limit: a text's cost is known beforehand, and a very long text needs only its beginning."""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import tokenizers

from bertjax.errors import InputError
from bertjax.formatting import format_bytes

Texts = tuple[str, ...]  # one text, or a pair

# Bytes that the library uses per character while tokenising; up to 712 were measured, 200 for English.
CHARACTER_BYTES = 720
# Bytes kept per text, per token, and per distinct token or offset.
TEXT_BYTES, TOKEN_BYTES, DIFFERENT_BYTES = 600, 32, 250
TEXTS_AT_ONCE, CHARACTERS_AT_ONCE = 1_000, 200_000
LONG = 20_000  # characters; longer texts are processed piece by piece
_SPACE = re.compile(r"[ \t\n\r]")  # where a BERT's words always end


@dataclass
class Meter:
    """The memory that tokenising takes, checked against a limit.

    Args:
        room: the limit in bytes.
        texts: the number of texts.
        characters: the number of characters in all texts.
    """

    room: int
    texts: int
    characters: int
    taken: int = 0
    done: int = 0
    seen: int = 0

    def check(self, characters: int) -> None:
        """Raise `InputError` if texts with this many characters cannot be tokenised at once."""
        if self.taken + CHARACTER_BYTES * characters > self.room:
            if self.taken > self.room // 2:
                raise self._full(self.taken)
            needed = format_bytes(CHARACTER_BYTES * characters)
            raise InputError(
                f"a text of {characters:,} characters takes up to {needed} of memory to tokenise, but only "
                f"{format_bytes(max(0, self.room - self.taken))} are left: shorten it, or give more memory"
            )

    def chunks(self, texts: Sequence[Texts]) -> Iterator[list[Texts]]:
        """Split texts into lists to tokenise together. Raises `InputError` if one cannot be tokenised."""
        chunk: list[Texts] = []
        size = 0
        for text_pair in texts:
            characters = sum(map(len, text_pair))
            limit = min(CHARACTERS_AT_ONCE, (self.room - self.taken) // CHARACTER_BYTES)
            if chunk and (len(chunk) == TEXTS_AT_ONCE or size + characters > limit):
                yield chunk
                chunk, size = [], 0
            self.check(characters)
            chunk.append(text_pair)
            size += characters
        if chunk:
            yield chunk

    def add(self, texts: Sequence[Texts], tokens: int, different: int) -> None:
        """Count what is kept of tokenised texts. Raises `InputError` as soon as all texts are not going to fit.

        Args:
            texts: the texts that were tokenised.
            tokens: the number of their tokens.
            different: the number of distinct tokens and offsets so far, over all texts.
        """
        self.done += len(texts)
        self.seen += sum(len(text) for text_pair in texts for text in text_pair)
        self.taken += TEXT_BYTES * len(texts) + TOKEN_BYTES * tokens
        taken = self.taken + DIFFERENT_BYTES * different
        needed = max(taken, taken * self.characters // max(1, self.seen) // 2)  # the remaining texts may be shorter
        if needed > self.room:
            raise self._full(taken)

    def _full(self, taken: int) -> InputError:
        return InputError(
            f"the first {self.done:,} of {self.texts:,} texts take {format_bytes(taken)} of memory as tokens, but only "
            f"{format_bytes(self.room)} are left for all: give fewer texts, a smaller max_length, or more memory"
        )


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
