"""Attention maps to label by eye: drawing heads and examples at random, and the two files that store them.

    NAME.npz    the maps as one array of bytes, map after map, each [query, key] of the real tokens; a byte is the
                square root of a weight times 255, rounded, so that small weights keep their detail
    NAME.tsv    a row for each map: its origin, its sizes, its label, and its label from a second round

No text is stored, so the files may be shared whatever the licence of the texts.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8

from bertjax.atomic_files import atomic_write, staged
from bertjax.data import Encoding
from bertjax.errors import DataError, reading
from bertjax.model import PretrainedModel
from bertjax.paths import is_there, read_text
from bertjax.progress import Report
from experiments.shared.attention import stream_attention

# The paper's classes by the letter that stands for each when labelling.
CLASSES = {
    "v": "vertical",
    "d": "diagonal",
    "m": "vertical+diagonal",
    "b": "block",
    "h": "heterogeneous",
}
HEADER_BYTES = 1 << 12  # upper bound on the header of an array in a file
NAMES = tuple(CLASSES.values())
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


def quantise(weights: Float[Array, "*maps query key"]) -> UInt8[Array, "*maps query key"]:
    """Weights as bytes.

    >>> quantise(jnp.array([[0.0, 0.01, 0.99]])).tolist()
    [[0, 26, 254]]
    """
    return jnp.rint(255.0 * jnp.sqrt(weights)).astype(jnp.uint8)


def weights_of(quantised: UInt8[np.ndarray, "query key"]) -> Float[np.ndarray, "query key"]:
    """Bytes converted back to weights, normalised so that each row sums to 1."""
    weights = (quantised.astype(np.float32) / 255.0) ** 2
    return weights / weights.sum(-1, keepdims=True)


def pick_maps(
    attentions: Float[Array, "layers batch heads query key"],
    keep: Int[Array, "batch token"],
    heads: Int[Array, "batch picked 2"],
) -> UInt8[Array, "batch picked query key"]:
    """The maps of chosen (layer, head) pairs of each example, as bytes."""
    examples = jnp.arange(heads.shape[0])[:, None]
    return quantise(attentions[heads[..., 0], examples, heads[..., 1]])


def draw_heads(
    count: int, heads: Sequence[tuple[int, ...]], per_example: int, seed: int
) -> Int[np.ndarray, "examples picked 2"]:
    """For each of `count` examples, `per_example` different heads of those given, as (layer, head)."""
    rng, size = np.random.default_rng(seed), min(per_example, len(heads))
    places = [rng.choice(len(heads), size, replace=False) for _ in range(count)]
    return np.array(heads, np.int32)[np.array(places)]


def sizes_of(text: Encoding) -> tuple[int, int]:
    """Tokens of the first and the second text, special tokens included.

    >>> sizes_of(Encoding((2, 7, 3, 8, 3), (0, 0, 0, 1, 1), ("",) * 5, ((0, 0),) * 5, False))
    (3, 2)
    """
    second = sum(text.segments)
    return len(text) - second, second


def export_maps(
    model: PretrainedModel,
    task: str,
    ids: Sequence[str],
    texts: Sequence[Encoding],
    heads: Int[np.ndarray, "examples picked 2"],
    report: Report,
) -> MapSet:
    """Maps of chosen heads of each example, cropped to the real tokens, in the order of the examples."""
    by_example: dict[int, np.ndarray] = {}
    for places, maps in stream_attention(model, texts, pick_maps, lambda places: [heads[places]], report=report):
        for place, example_maps in zip(places.tolist(), maps, strict=True):
            by_example[place] = example_maps[:, : len(texts[place]), : len(texts[place])].copy()
    rows = [
        MapRow(task, ids[place], layer, head, *sizes_of(text))
        for place, text in enumerate(texts)
        for layer, head in heads[place].tolist()
    ]
    return MapSet(tuple(rows), tuple(cropped for place in range(len(texts)) for cropped in by_example[place]))


def write_maps(path: Path, map_set: MapSet) -> None:
    """Write both files: `path` with the suffixes .npz and .tsv.

    Raises:
        OutputError: they cannot be written.
    """
    with staged(path.with_suffix(".npz"), path.with_suffix(".tsv")) as (maps, rows):
        np.savez_compressed(maps, maps=np.concatenate([array.ravel() for array in map_set.maps]))
        rows.write_bytes(_table(map_set.rows))


def write_labels(path: Path, rows: Sequence[MapRow]) -> None:
    """Rewrite the table atomically."""
    atomic_write(path.with_suffix(".tsv"), _table(rows))


def read_maps(path: Path) -> MapSet:
    """Read both files.

    Raises:
        DataError: a file is missing or damaged, or the two do not match.
    """
    rows = _read_rows(path.with_suffix(".tsv"))
    ends = np.cumsum([row.tokens**2 for row in rows])
    with reading(path.with_suffix(".npz"), DataError), np.load(path.with_suffix(".npz")) as archive:
        values = archive["maps"]
    if values.dtype != np.uint8 or values.shape != (ends[-1],):
        raise DataError(f"{path}: the table's maps are {ends[-1]} bytes, the file's are {values.shape} {values.dtype}")
    maps = np.split(values, ends[:-1])
    return MapSet(rows, tuple(array.reshape(row.tokens, -1) for row, array in zip(rows, maps, strict=True)))


def _table(rows: Sequence[MapRow]) -> bytes:
    text = io.StringIO()
    table = csv.writer(text, delimiter="\t", lineterminator="\n")
    names = [field.name for field in fields(MapRow)]
    table.writerow(names)
    table.writerows([getattr(row, name) for name in names] for row in rows)
    return text.getvalue().encode()


def _read_rows(path: Path) -> tuple[MapRow, ...]:
    if not is_there(path):
        raise DataError(f"{path}: no such file or directory; `export` makes one")
    with reading(path, DataError), io.StringIO(read_text(path), newline="") as file:
        rows = tuple(_read_row(row) for row in csv.DictReader(file, delimiter="\t"))
    unknown = {row.label for row in rows} | {row.again for row in rows}
    unknown -= {*NAMES, ""}
    if unknown or not rows:
        raise DataError(f"{path}: " + (f"no class is called {min(unknown)!r}" if unknown else "holds no map"))
    return rows


def _read_row(row: dict[str, str]) -> MapRow:
    layer, head, first, second = (int(row[name]) for name in ("layer", "head", "first", "second"))
    return MapRow(
        task=row["task"],
        example=row["example"],
        layer=layer,
        head=head,
        first=first,
        second=second,
        label=row["label"],
        again=row["again"],
    )


def with_label(row: MapRow, label: str, again: bool) -> MapRow:
    """The row with its label for one of the two rounds."""
    return replace(row, again=label) if again else replace(row, label=label)
