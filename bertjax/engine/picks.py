"""The tokens at which a sweep takes its readout, row by row: each once, and as many as a row has.

Where a readout reads one token at a time, nothing is computed at repeated tokens, or for places that a row does not
have; and the last layer is computed at these tokens alone.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, Int32, Shaped

from bertjax.engine.packing import Packed


@dataclass(frozen=True)
class Picks:
    """The picked tokens of packed rows.

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
