"""Packing: several examples in one row, so that nearly no padding is computed and every row has the same length.

The positions of each text start at 0, and it attends only to itself: `Packed.segments` says which tokens belong
together. Examples are packed first-fit decreasing (Johnson 1973): the longest first, each into the first row that
has room.

If a readout reads tokens one by one, they are the `Picks` of a row, and a last layer can be computed only there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from jaxtyping import Bool, Int, Int32, Shaped

from bertjax.data import Encoding
from bertjax.errors import InputError

STEP = 4  # row lengths are multiples of this
LANES = 128  # on TPUs of this: the width of their registers and matrix units
# The time of a FLOP of attention over that of a FLOP of a large matrix product (measured: `benchmarks/RESULTS.md`).
ATTENTION_WEIGHT = 4.0


@dataclass(frozen=True)
class Packed:
    """Examples in rows of one length. The axis `places` has an entry for each text of a row, and empty entries.

    Args:
        input_ids: token ids, `[rows, token]`; 0 for padding.
        token_type_ids: segment ids, `[rows, token]`; 0 for padding.
        position_ids: position of each token in its text, `[rows, token]`; 0 for padding.
        segments: the place of the text that a token belongs to, plus 1; 0 for padding.
        starts: position of each text's first token in its row.
        lengths: number of tokens of each text; 0 for an empty entry.
        examples: index of the example of each text; -1 for an empty entry.
        texts: index of each text among those of its example.
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
        """The number of rows."""
        return self.segments.shape[0]

    @property
    def row_length(self) -> int:
        """The number of tokens of a row, padding included."""
        return self.segments.shape[1]

    @property
    def filled(self) -> float:
        """The share of tokens that are not padding."""
        return float((self.segments > 0).mean())


def pack(examples: Sequence[Sequence[Encoding]], row_length: int, *, one_per_row: bool = False) -> Packed:
    """Pack examples into rows.

    Args:
        examples: the tokenised texts of each, which stay in one row.
        row_length: number of tokens of a row.
        one_per_row: one example in each row.

    Raises:
        InputError: no examples, a text without tokens, or an example longer than a row.

    >>> texts = [Encoding((2, 5, 3), (0, 0, 0), (), (), False), Encoding((2, 3), (0, 0), (), (), False)]
    >>> pack([texts[:1], texts[1:]], 6).segments
    array([[1, 1, 1, 2, 2, 0]], dtype=int32)
    """
    rows = examples_of_rows(total_lengths(examples), row_length, one_per_row)
    texts = [text for row in rows for example in row for text in examples[example]]
    owners = [(index, example) for index, row in enumerate(rows) for example in row]
    counts = [len(examples[example]) for _, example in owners]
    row, example = np.repeat(np.array(owners, np.int32), counts, axis=0).T
    place = _within(row)
    packed = _empty(len(rows), row_length, int(place.max()) + 1)
    sizes = np.array([*map(len, texts)], np.int32)
    before = np.cumsum(sizes) - sizes
    start = before - before[np.arange(len(texts)) - place]  # minus the tokens before the row's first text
    packed.starts[row, place], packed.lengths[row, place] = start, sizes
    packed.examples[row, place], packed.texts[row, place] = example, _within(np.repeat(np.arange(len(counts)), counts))
    position = np.arange(sizes.sum()) - np.repeat(before, sizes)
    slots = np.repeat(row, sizes), np.repeat(start, sizes) + position
    packed.position_ids[slots], packed.segments[slots] = position, np.repeat(place + 1, sizes)
    for name in ("input_ids", "token_type_ids"):
        values = chain.from_iterable(getattr(text, name) for text in texts)
        getattr(packed, name)[slots] = np.fromiter(values, np.int32, len(position))
    return packed


def examples_of_rows(lengths: Int32[np.ndarray, "examples"], row_length: int, one_per_row: bool) -> list[list[int]]:
    """The examples of each row. Raises `InputError` if one is longer than a row."""
    if lengths.max() > row_length:
        raise InputError(
            f"an example has {lengths.max()} tokens, but a row only {row_length}: give a larger row_length, or encode "
            f"with max_length={row_length}"
        )
    return [[example] for example in range(len(lengths))] if one_per_row else first_fit(lengths, row_length)


@dataclass(frozen=True)
class PackedSpans:
    """The spans of the tokens of packed examples.

    Args:
        slots: the span of each token of each row; `count` for tokens in no span.
        count: the number of spans.
    """

    slots: Int32[np.ndarray, "rows token"]
    count: int


def pack_spans(packed: Packed, spans: Sequence[Sequence[Int32[np.ndarray, " _"]]]) -> PackedSpans:
    """Pack spans like their examples.

    Args:
        spans: the span of each token, -1 for none, for each text of each example.
    """
    count = 1 + max(int(array.max()) for arrays in spans for array in arrays)
    slots = np.full(packed.segments.shape, count, np.int32)
    for row, place in np.argwhere(packed.examples >= 0).tolist():
        of_text = spans[packed.examples[row, place]][packed.texts[row, place]]
        start = packed.starts[row, place]
        slots[row, start : start + len(of_text)] = np.where(of_text < 0, count, of_text)
    return PackedSpans(slots, count)


def total_lengths(examples: Sequence[Sequence[Encoding]]) -> Int32[np.ndarray, "examples"]:
    """The number of tokens of each example. Raises `InputError` if there are no examples, or one has no tokens."""
    if not examples:
        raise InputError("there are no examples")
    counts = np.fromiter(map(len, examples), np.int32, len(examples))
    lengths = np.fromiter(map(len, chain.from_iterable(examples)), np.int32, int(counts.sum()))
    owners = np.repeat(np.arange(len(examples)), counts)
    without = np.union1d(np.flatnonzero(counts == 0), owners[lengths == 0])
    if without.size:
        raise InputError(f"example {without[0]} has no tokens")
    return np.add.reduceat(lengths, np.cumsum(counts) - counts, dtype=np.int32)


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


def _within(groups: Int[np.ndarray, " items"]) -> Int[np.ndarray, " items"]:
    """The index of each item within its group; the items of a group are consecutive."""
    indices = np.arange(len(groups))
    new = np.concatenate([[True], groups[1:] != groups[:-1]])
    return indices - np.maximum.accumulate(np.where(new, indices, 0))


class _Rows:
    """Rows that are filled with examples, the longest first. Consecutive rows with equal room are one entry.

    Args:
        row_length: number of tokens of a row.
        shortest: length of the shortest example: rows with less room are full.
    """

    def __init__(self, row_length: int, shortest: int):
        self.row_length, self.shortest, self.count = row_length, shortest, 0
        self.open: list[tuple[int, int, int]] = []  # first row, number of rows, room of each

    def add(self, length: int, examples: int) -> list[tuple[int, int, int]]:
        """Add examples of equal length: to each row, from the first, as many as it has room for.

        The result is the same as adding them one by one.

        Returns: first row, number of rows, and number of examples that each of them takes.
        """
        still_open: list[tuple[int, int, int]] = []
        taken: list[tuple[int, int, int]] = []
        fresh = self.count, -(-examples // (self.row_length // length)), self.row_length
        for first, count, room in (*self.open, fresh):
            fits = room // length
            if not examples or not fits:
                still_open.append((first, count, room))
                continue
            filled = min(count, examples // fits)
            rest = examples - filled * fits if filled < count else 0
            begun = min(rest, 1)
            examples -= filled * fits + rest
            taken += [(first, filled, fits), (first + filled, begun, rest)]
            for entry in (
                (first, filled, room - fits * length),
                (first + filled, begun, room - rest * length),
                (first + filled + begun, count - filled - begun, room),
            ):
                if entry[1] and entry[2] >= self.shortest:
                    still_open.append(entry)
        self.count = max([self.count, *(first + count for first, count, _ in taken)])
        self.open = [entry for entry in still_open if entry[0] < self.count]
        return taken


def first_fit(lengths: Int32[np.ndarray, "examples"], row_length: int) -> list[list[int]]:
    """The examples of each row, packed first-fit decreasing.

    >>> first_fit(np.array([3, 5, 2, 4], np.int32), 7)
    [[1, 2], [3, 0]]
    """
    rows = _Rows(row_length, int(lengths.min()))
    taken = [entry for length, examples in _by_length(lengths) for entry in rows.add(length, examples)]
    row_of_each = np.concatenate([np.repeat(np.arange(first, first + count), each) for first, count, each in taken])
    by_row = np.argsort(row_of_each, kind="stable")
    members = np.argsort(-lengths, kind="stable")[by_row].tolist()
    ends = np.cumsum(np.bincount(row_of_each)).tolist()
    return [members[start:end] for start, end in pairwise([0, *ends])]


def _count_rows(by_length: Sequence[tuple[int, int]], row_length: int) -> int:
    """The number of rows that `first_fit` needs."""
    rows = _Rows(row_length, by_length[-1][0])
    for length, examples in by_length:
        rows.add(length, examples)
    return rows.count


def _by_length(lengths: Int32[np.ndarray, "examples"]) -> list[tuple[int, int]]:
    """Each length and the number of examples that have it, the longest first."""
    found, counts = np.unique(lengths, return_counts=True)
    return [*zip(found[::-1].tolist(), counts[::-1].tolist(), strict=True)]


def choose_row_length(
    lengths: Int32[np.ndarray, "examples"], hidden_size: int, intermediate_size: int, most: int = 512, step: int = STEP
) -> int:
    """The row length that costs least: longer rows have less padding, but cost more attention.

    Args:
        lengths: number of tokens of each example.
        hidden_size: width of the model.
        intermediate_size: width of the model's feed-forward layers.
        most: largest row length, unless an example is longer.
        step: row lengths are multiples of it.
    """
    shortest = -(-int(lengths.max()) // step) * step
    linear = 2 * hidden_size * (4 * hidden_size + 2 * intermediate_size)
    by_length, tokens = _by_length(lengths), int(lengths.sum())
    best, cheapest = shortest, float("inf")
    for row_length in range(shortest, max(shortest, most) + 1, step):
        per_slot = linear + ATTENTION_WEIGHT * 4 * row_length * hidden_size
        if tokens * per_slot >= cheapest:  # even rows without padding would cost more
            break
        cost = _count_rows(by_length, row_length) * row_length * per_slot
        if cost < cheapest:
            best, cheapest = row_length, cost
    return best


@dataclass(frozen=True)
class Picks:
    """The tokens of packed rows that the readout reads, each of them once.

    Args:
        tokens: their positions in a row; filled up with 0.
        targets: the readout's target of each, with an axis of length 1 for the single token.
        counts: the number of picks of each row.
        rows: the row of each example.
        places: index of each of an example's tokens among its row's picks.
    """

    tokens: Int32[np.ndarray, "rows pick"]
    targets: Shaped[np.ndarray, "rows pick ..."] | None
    counts: Int[np.ndarray, " rows"]
    rows: Int[np.ndarray, " examples"]
    places: Int[np.ndarray, "examples targets"]

    def width(self, rows: Int[np.ndarray, "..."]) -> int:
        """The padded number of picks of these rows; there are few different ones, since each compiles a program."""
        return round_up(int(self.counts[rows].max()))

    def widths(self, rows: int) -> set[int]:
        """The widths of all chunks of this many rows, which must divide the number of rows."""
        return {round_up(count) for count in self.counts.reshape(-1, rows).max(axis=1).tolist()}


def round_up(count: int) -> int:
    """Round up to a power of 2, or three quarters of one.

    >>> [round_up(count) for count in (0, 1, 3, 5, 7, 9, 13)]
    [1, 1, 3, 6, 8, 12, 16]
    """
    power = 1 << max(0, count - 1).bit_length()
    return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power


def is_new(
    positions: Int[np.ndarray, "examples targets"], targets: Shaped[np.ndarray, "examples targets ..."] | None
) -> Bool[np.ndarray, "examples targets"]:
    """False for repetitions of a position and its target, which fill up the positions of an example."""
    new = np.ones(positions.shape, np.bool_)
    new[:, 1:] = positions[:, 1:] != positions[:, :-1]
    if targets is not None:
        new[:, 1:] |= (targets[:, 1:] != targets[:, :-1]).any(axis=tuple(range(2, targets.ndim)))
    return new


def make_picks(
    packed: Packed,
    positions: Int[np.ndarray, "examples targets"],
    targets: Shaped[np.ndarray, "examples targets ..."] | None,
) -> Picks:
    """The picks of packed examples of a single text, from the positions that the readout reads in each."""
    row, place = np.nonzero(packed.examples >= 0)
    examples = packed.examples[row, place]
    new = is_new(positions, targets)[examples]
    counts = np.bincount(row, new.sum(axis=1), packed.rows).astype(np.int64)
    index = np.cumsum(new).reshape(new.shape) - 1 - (np.cumsum(counts) - counts)[row][:, None]
    slots = np.broadcast_to(row[:, None], new.shape)[new], index[new]
    shape = packed.rows, round_up(int(counts.max()))
    tokens = np.zeros(shape, np.int32)
    tokens[slots] = (positions[examples] + packed.starts[row, place][:, None])[new]
    picked = None
    if targets is not None:
        picked = np.zeros((*shape, 1, *targets.shape[2:]), targets.dtype)
        picked[slots] = targets[examples][new][:, None]
    rows, places = np.zeros(len(positions), np.int64), np.zeros(positions.shape, np.int64)
    rows[examples], places[examples] = row, index
    return Picks(tokens, picked, counts, rows, places)
