"""One row for each ablation and metric: what goes into `results.parquet`, CSV, JSON, Markdown and the page.

The columns are documented in `docs/results.md`; a change of their meaning changes `SCHEMA`.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bertjax.errors import InputError
from bertjax.evidence import Evidence, name_test
from bertjax.machine import import_pandas

SCHEMA = 2
# Every column with its kind, as `pyarrow` names it; all but the names may be missing (null).
COLUMNS = {
    "name": "string",
    "layer": "int32",
    "head": "int32",
    "heads": "list<string>",
    "metric": "string",
    "main": "bool",
    "examples": "int64",
    "base": "float64",
    "score": "float64",
    "difference": "float64",
    "low": "float64",
    "high": "float64",
    "interval": "string",
    "percentile_low": "float64",
    "percentile_high": "float64",
    "bca_low": "float64",
    "bca_high": "float64",
    "standard_error": "float64",
    "test": "string",
    "p": "float64",
    "q": "float64",
    "holm": "float64",
    "best_p": "float64",
    "best_p_raw": "float64",
    "gains": "int64",
    "losses": "int64",
    "effect_size": "float64",
    "effect_size_kind": "string",
    "detectable": "float64",
}
# What `summary.json` repeats of the main metric.
SHORT = ("low", "high", "interval", "test", "p", "q", "holm", "best_p", "gains", "losses", "effect_size", "detectable")


def make_rows(
    entries: Sequence[Mapping[str, Any]], base: Mapping[str, float], evidence: Mapping[str, Evidence]
) -> list[dict[str, Any]]:
    """Rows in the order of the ablations, all metrics of one after another.

    Args:
        entries: of each ablation 'name', 'layer', 'head', 'heads' and 'scores', as in `summary.json`.
        base: scores without ablation by metric, the main one first.
        evidence: by metric; where there is none, a row has scores alone.

    Returns: mappings with the keys of `COLUMNS`; None where a value is undefined.
    """
    main = next(iter(base))
    return [
        dict.fromkeys(COLUMNS)
        | {name: entry[name] for name in ("name", "layer", "head", "heads")}
        | {"metric": metric, "main": metric == main}
        | (_row(evidence[metric], number) if metric in evidence else _bare_row(entry["scores"][metric], base[metric]))
        for number, entry in enumerate(entries)
        for metric in base
    ]


def _bare_row(score: float | None, base: float) -> dict[str, Any]:
    """Scores alone: there are too few labels to weigh them."""
    return {"base": _finite(base), "score": score, "difference": None if score is None else _finite(score - base)}


def kind_of(entries: Sequence[Mapping[str, Any]]) -> str:
    """What ablations are: 'head' where all are single heads, 'layer' where all are whole layers, else 'set'."""
    if all(entry.get("head") is not None for entry in entries):
        return "head"
    return "layer" if all(entry["layer"] is not None and entry.get("head") is None for entry in entries) else "set"


def _row(found: Evidence, number: int) -> dict[str, Any]:
    values = {
        "score": found.score,
        "difference": found.difference,
        "low": found.low,
        "high": found.high,
        "percentile_low": found.percentile[0],
        "percentile_high": found.percentile[1],
        "bca_low": found.bca[0],
        "bca_high": found.bca[1],
        "standard_error": found.standard_error,
        "p": found.p,
        "q": found.q,
        "holm": found.holm,
        "best_p": found.best,
        "best_p_raw": found.best_raw,
        "effect_size": found.effect_size,
        "detectable": found.detectable,
    }
    row = {name: _finite(array[number]) for name, array in values.items()}
    both = {"gains": found.gains, "losses": found.losses}
    flips = {name: None if some is None else int(some[number]) for name, some in both.items()}
    more = {
        "examples": found.examples,
        "base": _finite(found.base),
        "interval": found.method[number],
        "test": name_test(found),
        "effect_size_kind": found.metric.effect_size.text,
    }
    return {name: {**row, **flips, **more}[name] for name in list(COLUMNS)[6:]}


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def to_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows as a `pandas.DataFrame`, as pandas reads `results.parquet`: the columns are `COLUMNS`.

    Raises:
        MissingDependencyError: pandas is not installed.
    """
    import pyarrow as pa

    import_pandas()
    return pa.Table.from_pylist(list(rows), pa.schema(list(_kinds().items()))).to_pandas()


def _kinds() -> dict[str, Any]:
    """The columns' kinds as `pyarrow` has them."""
    import pyarrow as pa

    kinds = {"list<string>": pa.list_(pa.string()), "string": pa.string(), "bool": pa.bool_()}
    kinds |= {name: getattr(pa, name)() for name in ("int32", "int64", "float64")}
    return {name: kinds[kind] for name, kind in COLUMNS.items()}


def to_parquet(rows: Sequence[Mapping[str, Any]], file: Any) -> None:
    """Write rows as Parquet; its metadata say the schema's version."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(list(_kinds().items()), {"bertjax_schema": str(SCHEMA)})
    pq.write_table(pa.Table.from_pylist(list(rows), schema), file)


def read_parquet(file: BinaryIO, path: Path, count: int) -> list[dict[str, Any]]:
    """Rows as `to_parquet` wrote them; columns of later versions are left out.

    Args:
        file: open for reading.
        path: its name, for messages.
        count: how many rows there are.

    Raises:
        InputError: the file is damaged, or has other rows or columns than it should.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file)
        wrong = _wrong_columns(table, count)
        if wrong is None:
            rows = list(table.read(list(COLUMNS)).to_pylist())
            wrong = _wrong_values(rows)
    except (OSError, ValueError, LookupError, OverflowError, pa.ArrowException) as error:
        raise InputError(f"{path} cannot be read ({' '.join(str(error).split())}): run the ablation again") from error
    if wrong is not None:
        raise InputError(f"{path} is damaged or of other results, {wrong}: run the ablation again")
    return rows


def _wrong_columns(table: Any, count: int) -> str | None:
    """What is wrong with a table before its values are read."""
    if table.metadata.num_rows != count:
        return f"it has {table.metadata.num_rows} rows, not {count}"
    there = {field.name: field.type for field in table.schema_arrow}
    for name, kind in _kinds().items():
        if name not in there:
            return f"it has no column {name}"
        values = [getattr(one, "value_type", one) for one in (kind, there[name])]  # lists name their items variously
        if values[0] != values[1] or hasattr(kind, "value_type") != hasattr(there[name], "value_type"):
            return f"its column {name} is of the type {there[name]}, not {COLUMNS[name]}"
    return None


def _wrong_values(rows: Sequence[Mapping[str, Any]]) -> str | None:
    for number, row in enumerate(rows):
        for name, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                return f"{name} of row {number} is no finite number"
    return None


def column(rows: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """A column of numbers, NaN where one is missing."""
    return np.array([math.nan if row[name] is None else row[name] for row in rows], np.float64)
