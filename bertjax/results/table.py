"""One row for each ablation and metric: the content of `results.parquet`, CSV, JSON, Markdown and the page.

The columns are documented in `docs/guides/results.md`; changing their meaning requires a new `SCHEMA`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import IO, TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np
from jaxtyping import Bool, Float

from bertjax.formatting import finite, table_heads, table_name
from bertjax.machine import import_pandas
from bertjax.statistics import Q, Statistics, name_test

if TYPE_CHECKING:
    import pandas
    import pyarrow

SCHEMA = 4
READABLE = (1, 2, 3, SCHEMA)  # `schema.Summary` says how they differ


def _column(kind: str) -> Any:
    """A column that every row has; `kind` is its `pyarrow` type name."""
    return field(metadata={"kind": kind})


def _optional(kind: str) -> Any:
    """A column whose value may be missing; `kind` is its `pyarrow` type name."""
    return field(default=None, metadata={"kind": kind})


@dataclass(frozen=True, kw_only=True)
class Row:
    """One ablation by one metric; undefined or inapplicable values are None. docs/guides/results.md has each column."""

    name: str = _column("string")
    layer: int | None = _optional("int32")
    head: int | None = _optional("int32")
    heads: Sequence[str] = _column("list<string>")
    metric: str = _column("string")
    main: bool = _column("bool")
    examples: int | None = _optional("int64")
    base: float | None = _optional("float64")
    score: float | None = _optional("float64")
    difference: float | None = _optional("float64")
    low: float | None = _optional("float64")
    high: float | None = _optional("float64")
    interval: str | None = _optional("string")
    percentile_low: float | None = _optional("float64")
    percentile_high: float | None = _optional("float64")
    bca_low: float | None = _optional("float64")
    bca_high: float | None = _optional("float64")
    standard_error: float | None = _optional("float64")
    test: str | None = _optional("string")
    p: float | None = _optional("float64")
    q: float | None = _optional("float64")
    holm: float | None = _optional("float64")
    best_p: float | None = _optional("float64")
    best_p_raw: float | None = _optional("float64")
    gains: int | None = _optional("int64")
    losses: int | None = _optional("int64")
    effect_size: float | None = _optional("float64")
    effect_size_kind: str | None = _optional("string")
    detectable: float | None = _optional("float64")

    @property
    def significant(self) -> bool:
        """Whether the effect exceeds chance: q < 0.05."""
        return self.q is not None and self.q < Q

    def to_dict(self) -> dict[str, Any]:
        """All columns by name; names of heads are written L3H10, so that no program reads them as numbers."""
        named = {"name": table_name(self.name, self.heads, self.layer), "heads": table_heads(self.heads)}
        return {name: getattr(self, name) for name in COLUMNS} | named


# The `pyarrow` type name of each column; values of all but the names may be missing (null).
COLUMNS: dict[str, str] = {column.name: column.metadata["kind"] for column in fields(Row)}


def make_rows(
    entries: Sequence[Mapping[str, Any]], base: Mapping[str, float], statistics: Mapping[str, Statistics]
) -> list[Row]:
    """Rows in the order of the ablations, with all metrics of an ablation together.

    Args:
        entries: 'name', 'layer', 'head', 'heads' and 'scores' of each ablation, as in `summary.json`.
        base: scores without ablation by metric, the main one first.
        statistics: by metric; for a metric without statistics, rows hold only the scores.
    """
    main = next(iter(base))
    return [
        Row(
            name=entry["name"],
            layer=entry["layer"],
            head=entry["head"],
            heads=entry["heads"],
            metric=metric,
            main=metric == main,
            **(
                _certainty(statistics[metric], number)
                if metric in statistics
                else _unweighed(entry["scores"][metric], base[metric])
            ),
        )
        for number, entry in enumerate(entries)
        for metric in base
    ]


def _unweighed(score: float | None, base: float) -> dict[str, Any]:
    """The scores only, where too few labels exist to weigh them."""
    return {"base": finite(base), "score": score, "difference": None if score is None else finite(score - base)}


CELL = "cell"  # what ablations are of a grid of patches


def kind_of(entries: Sequence[Mapping[str, Any]], of_patches: bool = False) -> str:
    """The kind of ablations: 'head' if all are single heads, 'layer' if all are whole layers, else 'set'.

    Args:
        of_patches: whether they are patches: what is no head is then a cell of a grid.
    """
    if all(entry.get("head") is not None for entry in entries):
        return "head"
    if of_patches:
        return CELL
    return "layer" if all(entry["layer"] is not None and entry.get("head") is None for entry in entries) else "set"


def _certainty(statistics: Statistics, number: int) -> dict[str, Any]:
    """The columns that hold one ablation's statistics."""
    numbers = {
        "score": statistics.score,
        "difference": statistics.difference,
        "low": statistics.low,
        "high": statistics.high,
        "percentile_low": statistics.percentile[0],
        "percentile_high": statistics.percentile[1],
        "bca_low": statistics.bca[0],
        "bca_high": statistics.bca[1],
        "standard_error": statistics.standard_error,
        "p": statistics.p,
        "q": statistics.q,
        "holm": statistics.holm,
        "best_p": statistics.best,
        "best_p_raw": statistics.best_raw,
        "effect_size": statistics.effect_size,
        "detectable": statistics.detectable,
    }
    flips = {"gains": statistics.gains, "losses": statistics.losses}
    return {
        **{name: finite(float(array[number])) for name, array in numbers.items()},
        **{name: None if counts is None else int(counts[number]) for name, counts in flips.items()},
        "examples": statistics.examples,
        "base": finite(float(statistics.base)),
        "interval": statistics.method[number],
        "test": name_test(statistics) if statistics.metric.tested else None,
        "effect_size_kind": statistics.metric.effect_size.text,
    }


def to_frame(rows: Sequence[Row]) -> "pandas.DataFrame":
    """Rows as the `pandas.DataFrame` that pandas reads from `results.parquet`, with the columns `COLUMNS`.

    Raises:
        MissingDependencyError: pandas is not installed.
    """
    import pyarrow as pa

    import_pandas()
    return _table(rows, pa.schema(list(_kinds().items()))).to_pandas(use_threads=False)


def _kinds() -> "dict[str, pyarrow.DataType]":
    """The `pyarrow` type of each column."""
    import pyarrow as pa

    kinds = {"list<string>": pa.list_(pa.string()), "string": pa.string(), "bool": pa.bool_()}
    kinds |= {name: getattr(pa, name)() for name in ("int32", "int64", "float64")}
    return {name: kinds[kind] for name, kind in COLUMNS.items()}


def _table(rows: Sequence[Row], schema: "pyarrow.Schema") -> "pyarrow.Table":
    import pyarrow as pa

    return pa.Table.from_pylist([row.to_dict() for row in rows], schema)


def to_parquet(rows: Sequence[Row], file: IO[bytes]) -> None:
    """Write rows as Parquet, with the schema version in its metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(list(_kinds().items()), {"bertjax_schema": str(SCHEMA)})
    written = pa.BufferOutputStream()
    pq.write_table(_table(rows, schema), written)
    file.write(written.getvalue())


def read_parquet(file: BinaryIO) -> list[Row]:
    """Rows written by `to_parquet`; columns added by later versions are ignored.

    Arrow reads from a copy in its memory. Its threads release what they read after `read` has returned, and if that
    belongs to Python (a file object, or `bytes`), they need Python's lock: when Python exits at that moment, the
    process aborts (https://github.com/apache/arrow/issues/34314).

    Raises:
        Exception: of Arrow or msgspec: the file is damaged, or its columns are not the expected ones.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = pa.BufferOutputStream()
    content.write(file.read())
    table = pq.ParquetFile(pa.BufferReader(content.getvalue())).read(list(COLUMNS))
    return msgspec.convert(table.to_pylist(), list[Row])


def column(rows: Sequence[Row], name: str) -> Float[np.ndarray, " rows"]:
    """A column of numbers, NaN where one is missing."""
    return np.array([math.nan if (value := getattr(row, name)) is None else value for row in rows], np.float64)


def significant(rows: Sequence[Row]) -> Bool[np.ndarray, " rows"]:
    """Which rows show an effect that exceeds chance."""
    return np.array([row.significant for row in rows], bool)
