"""Several examples in one row: no padding is computed, and every row has one shape.

An example keeps its own positions, from 0, and attends to itself alone: `Packed.segments` says which tokens belong
together. Examples are placed first-fit decreasing (Johnson 1973): the longest first, each into the first row that
has room.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

from bertjax.data import Encoding
from bertjax.errors import InputError

# Row lengths are multiples of this.
STEP = 4
# On TPUs of this, the width of their registers and matrix units.
LANES = 128
# Attention's cost for each of its FLOPs, in those of a large matrix product (measured: `benchmarks/RESULTS.md`).
ATTENTION_WEIGHT = 4.0


@dataclass(frozen=True)
class Packed:
    """Examples in rows of one length.

    Args:
        input_ids, token_type_ids, position_ids: as a model reads them; 0 where a slot is empty.
        segments: which place of its row a token belongs to, counted from 1; 0 where a slot is empty.
        starts: first token of each place.
        lengths: tokens of each place; 0 where a row has fewer examples than places.
        examples: which example is in each place; -1 where there is none.
        texts: which of its texts.
    """

    input_ids: Int32[np.ndarray, "rows token"]
    token_type_ids: Int32[np.ndarray, "rows token"]
    position_ids: Int32[np.ndarray, "rows token"]
    segments: Int32[np.ndarray, "rows token"]
    starts: Int32[np.ndarray, "rows places"]
    lengths: Int32[np.ndarray, "rows places"]
    examples: Int32[np.ndarray, "rows places"]
    texts: Int32[np.ndarray, "rows places"]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.segments.shape[0]

    @property
    def row_length(self) -> int:
        """Slots of a row."""
        return self.segments.shape[1]

    @property
    def filled(self) -> float:
        """Share of the slots that hold a token."""
        return float((self.segments > 0).mean())


def pack(
    examples: Sequence[Sequence[Encoding]], row_length: int, *, one_per_row: bool = False, places: int = 0
) -> Packed:
    """Place examples into rows.

    Args:
        examples: the tokenised texts of each, which attend to themselves alone but stay in one row.
        row_length: slots of a row.
        one_per_row: give each example a row of its own.
        places: texts that a row has room for at least.

    Raises:
        InputError: no examples, a text without tokens, or an example longer than a row.

    >>> texts = [Encoding((2, 5, 3), (0, 0, 0), (), (), False), Encoding((2, 3), (0, 0), (), (), False)]
    >>> pack([texts[:1], texts[1:]], 6).segments
    array([[1, 1, 1, 2, 2, 0]], dtype=int32)
    """
    lengths = total_lengths(examples)
    if lengths.max() > row_length:
        raise InputError(f"an example has {lengths.max()} tokens, but a row only {row_length}")
    rows = [[number] for number in range(len(lengths))] if one_per_row else first_fit(lengths, row_length)
    most = max(sum(len(examples[example]) for example in row) for row in rows)
    packed = _empty(len(rows), row_length, max(most, places))
    for number, row in enumerate(rows):
        start = place = 0
        for example in row:
            for text, encoding in enumerate(examples[example]):
                _put(packed, number, place, start, encoding)
                packed.examples[number, place], packed.texts[number, place] = example, text
                start, place = start + len(encoding), place + 1
    return packed


def total_lengths(examples: Sequence[Sequence[Encoding]]) -> Int32[np.ndarray, "examples"]:
    """Tokens of each example, all of its texts together. Raises `InputError` where there are none."""
    if not examples:
        raise InputError("there are no examples")
    for number, texts in enumerate(examples):
        if not texts or min(map(len, texts)) < 1:
            raise InputError(f"example {number} has no tokens")
    return np.array([sum(map(len, texts)) for texts in examples], np.int32)


def _empty(rows: int, row_length: int, places: int) -> Packed:
    tokens = np.zeros((4, rows, row_length), np.int32)
    starts, lengths, texts = np.zeros((3, rows, places), np.int32)
    examples = np.full((rows, places), -1, np.int32)
    return Packed(
        input_ids=tokens[0],
        token_type_ids=tokens[1],
        position_ids=tokens[2],
        segments=tokens[3],
        starts=starts,
        lengths=lengths,
        examples=examples,
        texts=texts,
    )


def _put(packed: Packed, row: int, place: int, start: int, encoding: Encoding) -> None:
    """Write a text into a row."""
    slots = (row, slice(start, start + len(encoding)))
    packed.input_ids[slots] = encoding.input_ids
    packed.token_type_ids[slots] = encoding.token_type_ids
    packed.position_ids[slots] = np.arange(len(encoding))
    packed.segments[slots] = place + 1
    packed.starts[row, place], packed.lengths[row, place] = start, len(encoding)


def first_fit(lengths: Int32[np.ndarray, "examples"], row_length: int) -> list[list[int]]:
    """Which examples go into which row: first-fit decreasing.

    Examples of equal length are placed together: into each row, from the first, as many as it has room for. That is
    what placing them one after another comes to.

    >>> first_fit(np.array([3, 5, 2, 4], np.int32), 7)
    [[1, 2], [3, 0]]
    """
    order = np.argsort(-lengths, kind="stable")
    room = np.zeros(0, np.int64)
    rows: list[list[int]] = []
    for length in np.unique(lengths)[::-1]:
        members = order[lengths[order] == length].tolist()
        fits = room // length
        before = np.cumsum(fits) - fits
        takes = np.clip(len(members) - before, 0, fits)
        missing, per_row = len(members) - int(takes.sum()), row_length // int(length)
        fresh = -(-missing // per_row)
        takes = np.concatenate([takes, np.full(fresh, per_row)])
        if fresh:
            takes[-1] = missing - per_row * (fresh - 1)
        room = np.concatenate([room, np.full(fresh, row_length)]) - takes * length
        rows += [[] for _ in range(fresh)]
        for row in np.flatnonzero(takes):
            rows[row] += members[: takes[row]]
            members = members[takes[row] :]
    return rows


def choose_row_length(
    lengths: Int32[np.ndarray, "examples"], hidden_size: int, intermediate_size: int, most: int = 512, step: int = STEP
) -> int:
    """The row length that costs least: long rows are filled better, but attention grows with them.

    Args:
        lengths: tokens of each example.
        hidden_size, intermediate_size: of the model.
        most: no row is longer than this, unless an example is.
        step: row lengths are multiples of it.

    Returns: a multiple of `step`.
    """
    shortest = -(-int(lengths.max()) // step) * step
    linear = 2 * hidden_size * (4 * hidden_size + 2 * intermediate_size)

    def cost(row_length: int) -> float:
        slots = len(first_fit(lengths, row_length)) * row_length
        return slots * (linear + ATTENTION_WEIGHT * 4 * row_length * hidden_size)

    return min(range(shortest, max(shortest, most) + 1, step), key=cost)
