"""Tokenised texts of which each process makes its share; of the others' it knows how long they are."""

import hashlib
from collections.abc import Sequence
from typing import overload

import jax
import numpy as np
from jaxtyping import Bool, Int, Int32

from bertjax.data import Encoding, Tokenizer
from bertjax.engine.distributed.processes import check_alike, gather
from bertjax.machine import memory_left


class SharedEncodings(Sequence[Encoding]):
    """What `Tokenizer.encode` gives for the same texts, each made when it is first asked for.

    All processes make theirs together, of the same texts; they must have been joined (`processes.start`).

    Args:
        tokenizer: the same on all processes.
        first: the texts, or the first of each pair.
        second: the second of each pair, or None.
        max_length: as `Tokenizer.encode` takes it.
        examples: how many examples there are; text `n` belongs to example `n % examples`.
        memory: bytes that this process may hold while it tokenises; None for most of what is free.

    Raises:
        InputError: the processes were given different texts, or there is too little memory.
        ProcessLostError: another process has ended.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        first: Sequence[str],
        second: Sequence[str] | None,
        max_length: int,
        examples: int,
        memory: int | None = None,
    ):
        self.examples, self._memory = examples, memory
        self._tokenizer, self._first, self._second, self._max_length = tokenizer, first, second, max_length
        self._made: dict[int, Encoding] = {}
        self.digest = self._digest()
        check_alike({"examples": self.digest})
        processes, owner = jax.process_count(), np.arange(len(first)) % examples % jax.process_count()
        own = np.flatnonzero(owner == jax.process_index())
        self.fetch(own)
        counts = np.bincount(owner, minlength=processes)
        own_facts = np.zeros((2, counts.max()), np.int32)
        made = [self._made[number] for number in own.tolist()]
        own_facts[:, : len(own)] = [len(text) for text in made], [text.truncated for text in made]
        first_facts = np.zeros((2, len(first)), np.int32)
        for process, facts in enumerate(gather(own_facts)):
            first_facts[:, owner == process] = facts[:, : counts[process]]
        self.lengths: Int32[np.ndarray, " encodings"] = first_facts[0]
        self.truncated: Bool[np.ndarray, " encodings"] = first_facts[1] > 0

    def _digest(self) -> str:
        """A hash of all texts, and of what makes tokens of them."""
        digest = hashlib.sha256(f"{self.examples} {self._max_length} {self._tokenizer.digest}".encode())
        for texts in (self._first, self._second or ()):
            for text in texts:
                content = text.encode()
                digest.update(b"%d " % len(content) + content)
            digest.update(b"end")
        return digest.hexdigest()[:16]

    def fetch(self, numbers: Sequence[int] | Int[np.ndarray, " encodings"]) -> None:
        """Tokenise these at once, which is faster than one after the other; what is there already stays."""
        missing = [number for number in map(int, numbers) if number not in self._made]
        if missing:
            first = [self._first[number] for number in missing]
            second = self._second and [self._second[number] for number in missing]
            made = self._tokenizer.encode(first, second, self._max_length, room=memory_left(self._memory))
            self._made.update(zip(missing, made, strict=True))

    def texts_of(self, examples: Sequence[int]) -> list[tuple[Encoding, ...]]:
        """The texts of each of these examples."""
        several = [range(example, len(self), self.examples) for example in examples]
        self.fetch([number for numbers in several for number in numbers])
        return [tuple(self._made[number] for number in numbers) for numbers in several]

    def blanks(self) -> list[tuple[Encoding, ...]]:
        """For each example texts as long as its own, all of whose tokens are 0: enough to plan a sweep with."""
        made = {length: _blank(length) for length in set(self.lengths.tolist())}
        several = self.lengths.reshape(-1, self.examples).T.tolist()
        return [tuple(made[length] for length in lengths) for lengths in several]

    def __len__(self) -> int:
        return len(self._first)

    @overload
    def __getitem__(self, index: int) -> Encoding: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Encoding, ...]: ...
    def __getitem__(self, index: int | slice) -> Encoding | tuple[Encoding, ...]:
        chosen = range(len(self))[index]
        several = [chosen] if isinstance(chosen, int) else chosen
        self.fetch(several)
        found = tuple(self._made[number] for number in several)
        return found[0] if isinstance(index, int) else found


class GivenEncodings:
    """Tokenised texts, a text for each example, that all processes have made.

    Args:
        encodings: the same on all processes.

    Raises:
        InputError: the processes were given different texts.
        ProcessLostError: another process has ended.
    """

    def __init__(self, encodings: Sequence[Encoding]):
        self.examples, self._encodings = len(encodings), encodings
        digest = hashlib.sha256()
        for encoding in encodings:
            for numbers in (encoding.input_ids, encoding.token_type_ids):
                digest.update(np.array([len(numbers), *numbers], np.int64).tobytes())
        self.digest = digest.hexdigest()[:16]
        check_alike({"examples": self.digest})

    def texts_of(self, examples: Sequence[int]) -> list[tuple[Encoding, ...]]:
        """The text of each of these examples."""
        return [(self._encodings[example],) for example in examples]

    def blanks(self) -> list[tuple[Encoding, ...]]:
        """All texts: enough to plan a sweep with."""
        return self.texts_of(range(self.examples))


def _blank(length: int) -> Encoding:
    return Encoding((0,) * length, (0,) * length, (), (), False)
