"""Several examples in one row: no padding is computed, and every row has one shape.

An example keeps its own positions, from 0, and attends to itself alone: `Packed.segments` says which tokens belong
together. Examples are placed first-fit decreasing (Johnson 1973): the longest first, each into the first row that
has room.

Where a readout reads chosen tokens one at a time, these are the `Picks` of each row: every token once, and as many
as the row has. Nothing is computed for places that it does not have, and the last layer at them alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from jaxtyping import Bool, Int, Int32, Shaped

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


def pack(examples: Sequence[Sequence[Encoding]], row_length: int, *, one_per_row: bool = False) -> Packed:
    """Place examples into rows.

    Args:
        examples: the tokenised texts of each, which attend to themselves alone but stay in one row.
        row_length: slots of a row.
        one_per_row: give each example a row of its own.

    Raises:
        InputError: no examples, a text without tokens, or an example longer than a row.

    >>> texts = [Encoding((2, 5, 3), (0, 0, 0), (), (), False), Encoding((2, 3), (0, 0), (), (), False)]
    >>> pack([texts[:1], texts[1:]], 6).segments
    array([[1, 1, 1, 2, 2, 0]], dtype=int32)
    """
    lengths = total_lengths(examples)
    if lengths.max() > row_length:
        raise InputError(
            f"an example has {lengths.max()} tokens, but a row only {row_length}: give a larger row_length, or encode "
            f"with max_length={row_length}"
        )
    rows = [[number] for number in range(len(lengths))] if one_per_row else first_fit(lengths, row_length)
    texts = [text for row in rows for example in row for text in examples[example]]
    owners = [(number, example) for number, row in enumerate(rows) for example in row]
    counts = [len(examples[example]) for _, example in owners]
    row, example = np.repeat(np.array(owners, np.int32), counts, axis=0).T
    place = _within(row)
    packed = _empty(len(rows), row_length, int(place.max()) + 1)
    sizes = np.array([*map(len, texts)], np.int32)
    before = np.cumsum(sizes) - sizes
    start = before - before[np.arange(len(texts)) - place]  # less what stands before the row's first text
    packed.starts[row, place], packed.lengths[row, place] = start, sizes
    packed.examples[row, place], packed.texts[row, place] = example, _within(np.repeat(np.arange(len(counts)), counts))
    position = np.arange(sizes.sum()) - np.repeat(before, sizes)
    slots = np.repeat(row, sizes), np.repeat(start, sizes) + position
    packed.position_ids[slots], packed.segments[slots] = position, np.repeat(place + 1, sizes)
    for array, parts in (
        (packed.input_ids, (text.input_ids for text in texts)),
        (packed.token_type_ids, (text.token_type_ids for text in texts)),
    ):
        array[slots] = np.fromiter(chain.from_iterable(parts), np.int32, len(position))
    return packed


@dataclass(frozen=True)
class PackedSpans:
    """The spans of tokens of packed examples.

    Args:
        slots: the span of each slot of each row; `count` where it belongs to none.
        count: how many spans there are.
    """

    slots: Int32[np.ndarray, "rows token"]
    count: int


def pack_spans(packed: Packed, spans: Sequence[Sequence[Int32[np.ndarray, " _"]]]) -> PackedSpans:
    """Spans as their examples are packed.

    Args:
        spans: of each example, for each of its texts, the span of each token; -1 for none.
    """
    count = 1 + max(int(own.max()) for several in spans for own in several)
    slots = np.full(packed.segments.shape, count, np.int32)
    for row, place in np.argwhere(packed.examples >= 0).tolist():
        own = spans[packed.examples[row, place]][packed.texts[row, place]]
        start = packed.starts[row, place]
        slots[row, start : start + len(own)] = np.where(own < 0, count, own)
    return PackedSpans(slots, count)


def total_lengths(examples: Sequence[Sequence[Encoding]]) -> Int32[np.ndarray, "examples"]:
    """Tokens of each example, all of its texts together. Raises `InputError` where there are none."""
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


def _within(groups: Int[np.ndarray, " several"]) -> Int[np.ndarray, " several"]:
    """The number of each within its group, from 0; those of a group stand together."""
    numbers = np.arange(len(groups))
    new = np.concatenate([[True], groups[1:] != groups[:-1]])
    return numbers - np.maximum.accumulate(np.where(new, numbers, 0))


class _Rows:
    """Rows that are filled with examples, the longest first. Neighbours with the same room are one entry.

    Args:
        row_length: slots of a row.
        shortest: of the examples: rows with less room are full.
    """

    def __init__(self, row_length: int, shortest: int):
        self.row_length, self.shortest, self.count = row_length, shortest, 0
        self.open: list[tuple[int, int, int]] = []  # first row, how many, room of each

    def add(self, length: int, examples: int) -> list[tuple[int, int, int]]:
        """Place examples of equal length: into each row, from the first, as many as it has room for.

        That is what placing them one after another comes to.

        Returns: first row, how many rows, and how many examples each of them takes.
        """
        still_open: list[tuple[int, int, int]] = []
        taken: list[tuple[int, int, int]] = []
        fresh = self.count, -(-examples // (self.row_length // length)), self.row_length
        for first, several, room in (*self.open, fresh):
            fits = room // length
            if not examples or not fits:
                still_open.append((first, several, room))
                continue
            filled = min(several, examples // fits)
            rest = examples - filled * fits if filled < several else 0
            begun = min(rest, 1)
            examples -= filled * fits + rest
            taken += [(first, filled, fits), (first + filled, begun, rest)]
            for entry in (
                (first, filled, room - fits * length),
                (first + filled, begun, room - rest * length),
                (first + filled + begun, several - filled - begun, room),
            ):
                if entry[1] and entry[2] >= self.shortest:
                    still_open.append(entry)
        self.count = max([self.count, *(first + several for first, several, _ in taken)])
        self.open = [(first, several, room) for first, several, room in still_open if first < self.count]
        return taken


def first_fit(lengths: Int32[np.ndarray, "examples"], row_length: int) -> list[list[int]]:
    """Which examples go into which row: first-fit decreasing.

    >>> first_fit(np.array([3, 5, 2, 4], np.int32), 7)
    [[1, 2], [3, 0]]
    """
    rows = _Rows(row_length, int(lengths.min()))
    taken = [entry for length, examples in _by_length(lengths) for entry in rows.add(length, examples)]
    row_of_each = np.concatenate([np.repeat(np.arange(first, first + several), each) for first, several, each in taken])
    by_row = np.argsort(row_of_each, kind="stable")
    members = np.argsort(-lengths, kind="stable")[by_row].tolist()
    ends = np.cumsum(np.bincount(row_of_each)).tolist()
    return [members[start:end] for start, end in pairwise([0, *ends])]


def _count_rows(by_length: Sequence[tuple[int, int]], row_length: int) -> int:
    """How many rows `first_fit` needs."""
    rows = _Rows(row_length, by_length[-1][0])
    for length, examples in by_length:
        rows.add(length, examples)
    return rows.count


def _by_length(lengths: Int32[np.ndarray, "examples"]) -> list[tuple[int, int]]:
    """Each length and how many examples have it, the longest first."""
    found, counts = np.unique(lengths, return_counts=True)
    return [*zip(found[::-1].tolist(), counts[::-1].tolist(), strict=True)]


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
    by_length, tokens = _by_length(lengths), int(lengths.sum())
    best, cheapest = shortest, float("inf")
    for row_length in range(shortest, max(shortest, most) + 1, step):
        per_slot = linear + ATTENTION_WEIGHT * 4 * row_length * hidden_size
        if tokens * per_slot >= cheapest:  # even rows without a gap would cost more
            break
        cost = _count_rows(by_length, row_length) * row_length * per_slot
        if cost < cheapest:
            best, cheapest = row_length, cost
    return best


@dataclass(frozen=True)
class Picks:
    """The tokens of packed rows at which the readout is taken.

    Args:
        tokens: slots of a row; 0 where it has fewer than others.
        targets: what the readout takes of each, with an axis of length 1 for the one token.
        counts: how many a row has.
        rows: the row of each example.
        places: which of its row's picks an example's tokens are.
    """

    tokens: Int32[np.ndarray, "rows pick"]
    targets: Shaped[np.ndarray, "rows pick ..."] | None
    counts: Int[np.ndarray, " rows"]
    rows: Int[np.ndarray, " examples"]
    places: Int[np.ndarray, "examples wanted"]

    def width(self, rows: Int[np.ndarray, "..."]) -> int:
        """Picks of each of these rows, filled up to one of few widths: each has steps of its own."""
        return round_up(int(self.counts[rows].max()))

    def widths(self, rows: int) -> set[int]:
        """The widths of all chunks of so many rows, of which there is a whole number."""
        return {round_up(count) for count in self.counts.reshape(-1, rows).max(axis=1).tolist()}


def round_up(count: int) -> int:
    """A power of 2, or three quarters of one, that is not less.

    >>> [round_up(count) for count in (0, 1, 3, 5, 7, 9, 13)]
    [1, 1, 3, 6, 8, 12, 16]
    """
    power = 1 << max(0, count - 1).bit_length()
    return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power


def is_new(
    positions: Int[np.ndarray, "examples wanted"], targets: Shaped[np.ndarray, "examples wanted ..."] | None
) -> Bool[np.ndarray, "examples wanted"]:
    """Where the readout is not asked for what it has just been asked for: the last is repeated to fill up a text's."""
    new = np.ones(positions.shape, np.bool_)
    new[:, 1:] = positions[:, 1:] != positions[:, :-1]
    if targets is not None:
        new[:, 1:] |= (targets[:, 1:] != targets[:, :-1]).any(axis=tuple(range(2, targets.ndim)))
    return new


def make_picks(
    packed: Packed,
    positions: Int[np.ndarray, "examples wanted"],
    targets: Shaped[np.ndarray, "examples wanted ..."] | None,
) -> Picks:
    """The picks of rows whose examples are asked at some of their tokens, each a single text."""
    row, place = np.nonzero(packed.examples >= 0)
    examples = packed.examples[row, place]
    new = is_new(positions, targets)[examples]
    counts = np.bincount(row, new.sum(axis=1), packed.rows).astype(np.int64)
    number = np.cumsum(new).reshape(new.shape) - 1 - (np.cumsum(counts) - counts)[row][:, None]
    slots = np.broadcast_to(row[:, None], new.shape)[new], number[new]
    shape = packed.rows, round_up(int(counts.max()))
    tokens = np.zeros(shape, np.int32)
    tokens[slots] = (positions[examples] + packed.starts[row, place][:, None])[new]
    wanted = None
    if targets is not None:
        wanted = np.zeros((*shape, 1, *targets.shape[2:]), targets.dtype)
        wanted[slots] = targets[examples][new][:, None]
    rows, places = np.zeros(len(positions), np.int64), np.zeros(positions.shape, np.int64)
    rows[examples], places[examples] = row, number
    return Picks(tokens, wanted, counts, rows, places)
