"""Labelled attention maps in two files, drawn at random and labelled by eye (`data/patterns.md`).

    NAME.npz    the maps as one array of bytes, map after map, each [query, key] of the real tokens; a byte is the
                square root of a weight times 255, rounded, so that small weights keep their detail
    NAME.tsv    a row for each map: its origin, its sizes, its label, and its label from a second round

No text is stored, so the files may be shared whatever the licence of the texts.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from bertjax.data import Encoding

# The paper's classes.
NAMES = ("vertical", "diagonal", "vertical+diagonal", "block", "heterogeneous")
DATA = Path(__file__).parent.parent / "data"


@dataclass(frozen=True)
class MapRow:
    """The origin of one map, and its labels.

    Args:
        task, example: the task, and the id of the example in it (its row number in GLUE).
        layer, head: counted from 0.
        first: tokens of the first text with [CLS] and its [SEP].
        second: tokens of the second text with its [SEP]; 0 if there is none.
        label, again: class names from the first and the second round; empty if not labelled.
    """

    task: str
    example: str
    layer: int
    head: int
    first: int
    second: int
    label: str = ""
    again: str = ""

    @property
    def tokens(self) -> int:
        """The number of real tokens, which is the side of the map."""
        return self.first + self.second


@dataclass(frozen=True, eq=False)
class MapSet:
    """Maps with their rows."""

    rows: tuple[MapRow, ...]
    maps: tuple[UInt8[np.ndarray, "_ _"], ...]

    def __len__(self) -> int:
        return len(self.rows)


def weights_of(quantised: UInt8[np.ndarray, "query key"]) -> Float[np.ndarray, "query key"]:
    """Bytes converted back to weights, normalised so that each row sums to 1."""
    weights = (quantised.astype(np.float32) / 255.0) ** 2
    return weights / weights.sum(-1, keepdims=True)


def sizes_of(text: Encoding) -> tuple[int, int]:
    """Tokens of the first and the second text, special tokens included.

    >>> sizes_of(Encoding((2, 7, 3, 8, 3), (0, 0, 0, 1, 1), ("",) * 5, ((0, 0),) * 5, False))
    (3, 2)
    """
    second = sum(text.segments)
    return len(text) - second, second


def read_maps(path: Path) -> MapSet:
    """Read both files."""
    with path.with_suffix(".tsv").open(encoding="utf-8", newline="") as file:
        rows = tuple(_read_row(row) for row in csv.DictReader(file, delimiter="\t"))
    ends = np.cumsum([row.tokens**2 for row in rows])
    maps = np.split(np.load(path.with_suffix(".npz"))["maps"], ends[:-1])
    return MapSet(rows, tuple(array.reshape(row.tokens, -1) for row, array in zip(rows, maps, strict=True)))


def _read_row(row: dict[str, str]) -> MapRow:
    numbers = {name: int(row[name]) for name in ("layer", "head", "first", "second")}
    return MapRow(**row | numbers)  # type: ignore[arg-type]
