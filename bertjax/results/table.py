"""One row for each ablation and metric: the content of `results.parquet`, CSV, JSON, Markdown and the page.

The columns are documented in `docs/guides/results.md`; a change of their meaning requires a new `SCHEMA`.
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
READABLE = (1, 2, 3, SCHEMA)  # see `schema.Summary`


def _column(kind: str) -> Any:
    """A column with a value in each row; `kind` is its `pyarrow` type name."""
    return field(metadata={"kind": kind})


def _optional(kind: str) -> Any:
    """A column with missing values; `kind` is its `pyarrow` type name."""
    return field(default=None, metadata={"kind": kind})


@dataclass(frozen=True, kw_only=True)
class Row:
    """One ablation by one metric; undefined values are None. docs/guides/results.md documents the columns."""

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
        """Whether the effect is significant: q < 0.05."""
        return self.q is not None and self.q < Q

    def to_dict(self) -> dict[str, Any]:
        """All columns by name; heads are named L3H10, so that programs do not read them as numbers."""
        named = {"name": table_name(self.name, self.heads, self.layer), "heads": table_heads(self.heads)}
        return {name: getattr(self, name) for name in COLUMNS} | named


# The `pyarrow` type name of each column.
COLUMNS: dict[str, str] = {column.name: column.metadata["kind"] for column in fields(Row)}


def make_rows(
    entries: Sequence[Mapping[str, Any]], base: Mapping[str, float], statistics: Mapping[str, Statistics]
) -> list[Row]:
    """Rows in the order of the ablations, with all metrics of an ablation together.

    Args:
        entries: 'name', 'layer', 'head', 'heads' and 'scores' of each ablation, as in `summary.json`.
        base: scores without ablation by metric, the main one first.
        statistics: the statistics by metric; rows of a metric without statistics have only scores.
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
                _statistics_of(statistics[metric], index)
                if metric in statistics
                else _scores(entry["scores"][metric], base[metric])
            ),
        )
        for index, entry in enumerate(entries)
        for metric in base
    ]


def _scores(score: float | None, base: float) -> dict[str, Any]:
    """The columns of an ablation without statistics."""
    return {"base": finite(base), "score": score, "difference": None if score is None else finite(score - base)}


CELL = "cell"  # the kind of ablations in a grid of patches


def kind_of(entries: Sequence[Mapping[str, Any]], of_patches: bool = False) -> str:
    """The kind of ablations: 'head' if all are single heads, 'layer' if all are whole layers, else 'set'.

    Args:
        of_patches: whether they are patches, which are cells of a grid if not all are heads.
    """
    if all(entry.get("head") is not None for entry in entries):
        return "head"
    if of_patches:
        return CELL
    return "layer" if all(entry["layer"] is not None and entry.get("head") is None for entry in entries) else "set"


def noun_of(kind: str, provenance: Mapping[str, Any]) -> str:
    """The noun for an ablation in sentences and tables: its kind, or of sets of layers what they are.

    Args:
        kind: the result of `kind_of`.
        provenance: the summary of the results, or its keys of the analysis.
    """
    if kind != "set":
        return kind
    return "pair of layers" if "likeness" in provenance else "set of layers" if "restoring" in provenance else kind


def _statistics_of(statistics: Statistics, index: int) -> dict[str, Any]:
    """The columns of an ablation with statistics."""
    same = ("score", "difference", "low", "high", "standard_error", "p", "q", "holm", "effect_size", "detectable")
    arrays = {name: getattr(statistics, name) for name in same} | {
        "percentile_low": statistics.percentile[0],
        "percentile_high": statistics.percentile[1],
        "bca_low": statistics.bca[0],
        "bca_high": statistics.bca[1],
        "best_p": statistics.best,
        "best_p_raw": statistics.best_raw,
    }
    flips = {"gains": statistics.gains, "losses": statistics.losses}
    return {
        **{name: finite(float(array[index])) for name, array in arrays.items()},
        **{name: None if counts is None else int(counts[index]) for name, counts in flips.items()},
        "examples": statistics.examples,
        "base": finite(float(statistics.base)),
        "interval": statistics.method[index],
        "test": name_test(statistics) if statistics.metric.tested else None,
        "effect_size_kind": statistics.metric.effect_size.text,
    }


def to_frame(rows: Sequence[Row]) -> "pandas.DataFrame":
    """Rows as a `pandas.DataFrame`, as pandas reads it from `results.parquet`.

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
    """Read rows written by `to_parquet`; columns added by later versions are ignored.

    Arrow reads from a copy in its own memory: its threads release the buffers after `read` has returned, and if these
    belonged to Python, the process would abort when Python exits meanwhile
    (https://github.com/apache/arrow/issues/34314).

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
    """A column of numbers, with NaN for missing values.

    Args:
        rows: the rows of the results.
        name: the name of the column.
    """
    return np.array([math.nan if (value := getattr(row, name)) is None else value for row in rows], np.float64)


def significant(rows: Sequence[Row]) -> Bool[np.ndarray, " rows"]:
    """Which rows have a significant effect.

    Args:
        rows: the rows of one metric.
    """
    return np.array([row.significant for row in rows], bool)
