"""Tokenising within a memory: what a text costs is known before; of a very long one the beginning is enough."""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bertjax.errors import InputError
from bertjax.formatting import format_bytes

Texts = tuple[str, ...]  # one, or a pair

# Bytes that the library takes for a character while it tokenises; up to 712 were measured, 200 for English.
CHARACTER_BYTES = 720
# Bytes that are kept of a text, of each of its tokens, and of each different token and place.
TEXT_BYTES, TOKEN_BYTES, DIFFERENT_BYTES = 600, 32, 250
TEXTS_AT_ONCE, CHARACTERS_AT_ONCE = 1_000, 200_000
LONG = 20_000  # characters; longer texts are taken piece by piece
_SPACE = re.compile(r"[ \t\n\r]")  # where a BERT's words end for sure


@dataclass
class Meter:
    """What tokenising takes, held against what it may take.

    Args:
        room: bytes.
        texts: how many there are.
        characters: in all of them.
    """

    room: int
    texts: int
    characters: int
    taken: int = 0
    done: int = 0
    seen: int = 0

    def check(self, characters: int) -> None:
        """Raise `InputError` where texts of so many characters cannot be tokenised at once."""
        if self.taken + CHARACTER_BYTES * characters > self.room:
            if self.taken > self.room // 2:
                raise self._full(self.taken)
            needed = format_bytes(CHARACTER_BYTES * characters)
            raise InputError(
                f"a text of {characters:,} characters takes up to {needed} of memory to tokenise, but only "
                f"{format_bytes(max(0, self.room - self.taken))} are left: shorten it, or give more memory"
            )

    def chunks(self, texts: Sequence[Texts]) -> Iterator[list[Texts]]:
        """Texts that are tokenised together. Raises `InputError` where they cannot be."""
        chunk: list[Texts] = []
        size = 0
        for several in texts:
            more = sum(map(len, several))
            most = min(CHARACTERS_AT_ONCE, (self.room - self.taken) // CHARACTER_BYTES)
            if chunk and (len(chunk) == TEXTS_AT_ONCE or size + more > most):
                yield chunk
                chunk, size = [], 0
            self.check(more)
            chunk.append(several)
            size += more
        if chunk:
            yield chunk

    def add(self, texts: Sequence[Texts], tokens: int, different: int) -> None:
        """Count what is kept of some texts. Raises `InputError` as soon as all of them will not have room.

        Args:
            texts: that were tokenised.
            tokens: of these.
            different: tokens and places so far, of all texts.
        """
        self.done += len(texts)
        self.seen += sum(len(text) for several in texts for text in several)
        self.taken += TEXT_BYTES * len(texts) + TOKEN_BYTES * tokens
        taken = self.taken + DIFFERENT_BYTES * different
        needed = max(taken, taken * self.characters // max(1, self.seen) // 2)  # texts to come may be shorter
        if needed > self.room:
            raise self._full(taken)

    def _full(self, taken: int) -> InputError:
        return InputError(
            f"the first {self.done:,} of {self.texts:,} texts take {format_bytes(taken)} of memory as tokens, but only "
            f"{format_bytes(self.room)} are left for all: give fewer texts, a smaller max_length, or more memory"
        )


def shorten(texts: Texts, most: int, count: Callable[[str], int]) -> Texts:
    """Beginnings of very long texts that give the same tokens, cut after `most` of them, as the whole texts.

    Args:
        texts: one, or a pair, of which tokens are cut from the longer one: the longer one stays so.
        most: tokens.
        count: the number of a piece's tokens; words end at white space.
    """
    if max(map(len, texts)) <= LONG:
        return texts
    if len(texts) == 1:
        return (_beginning(texts[0], most, count),)
    sums = [list(itertools.accumulate(count(piece) for piece in _pieces(text))) or [0] for text in texts]
    totals = [several[-1] for several in sums]
    ends = [next((place for place, total in enumerate(several) if total > most), len(several) - 1) for several in sums]
    while totals[0] > totals[1] and sums[0][ends[0]] <= sums[1][ends[1]]:
        ends[0] += 1
    while totals[0] <= totals[1] and sums[0][ends[0]] > sums[1][ends[1]]:
        ends[1] += 1
    return tuple("".join(itertools.islice(_pieces(text), end + 1)) for text, end in zip(texts, ends, strict=True))


def _beginning(text: str, most: int, count: Callable[[str], int]) -> str:
    end = tokens = 0
    for piece in _pieces(text):
        end, tokens = end + len(piece), tokens + count(piece)
        if tokens > most:
            break
    return text[:end]


def _pieces(text: str) -> Iterator[str]:
    """A text in pieces of about `LONG` characters, each up to white space."""
    start = 0
    while start < len(text):
        found = _SPACE.search(text, start + LONG)
        end = len(text) if found is None else found.start()
        yield text[start:end]
        start = end
