"""Damage to the files of results, drawn with a seed: to any file, to JSON, to tables, to arrays."""

import json
import os
import random
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz_utilities import draw, places, scratch
from tests.result_factories import make_results

EXAMPLES = 12

# What JSON may hold in place of a value.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3, 0.5, -0.25, 1.0, 10**6, 2**31, 2**63, 10**18, 10**300, -(10**30), 1e308),
    *("", "x", "3.0", "\ud800", "\x1b[31m", "a" * 5000, "[/x]", "$x^^$", "nan", [], {}, [1], [None], {"a": 1}, [[]]),
)
# What JSON may not hold, or no reader should follow.
TEXTS = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "9" * 400,
    "9" * 5000,
    "[" * 100_000,
    '{"a":' * 5000,
    "\\ud800",
    "tru",
)


# ---- damages ---------------------------------------------------------------------------------------------------------
def _flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 1, 2, 5, 50))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _truncate(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.choice((0, 1, len(content) // 2, len(content) - 1, rng.randrange(len(content))))])


def _splice(path: Path, rng: random.Random) -> None:
    """A piece that is twice there, or missing, or random."""
    content = path.read_bytes()
    start, end = sorted(rng.sample(range(len(content)), 2))
    middle = rng.choice((content[start:end] * 2, b"", rng.randbytes(min(end - start, 64))))
    path.write_bytes(content[:start] + middle + content[end:])


@cache
def _other() -> Path:
    """Results of as many ablations and examples, with other numbers."""
    return make_results(scratch() / "other", examples=EXAMPLES, seed=9)


def _swap(path: Path, rng: random.Random) -> None:
    path.write_bytes((_other() / path.name).read_bytes())


def _replace(path: Path, rng: random.Random) -> None:
    """Something else under the file's name."""
    path.unlink()
    kind = rng.choice(("directory", "pipe", "loop", "device", "text", "nothing"))
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "text" or path.name == "attention.npz":  # without which there is a page, which says so
        path.write_text(rng.choice(TEXTS))


def _edit_json(path: Path, rng: random.Random) -> None:
    """Another value, no value or one more, at a place that is drawn."""
    lines = path.name == "examples.jsonl"
    whole = [json.loads(line) for line in path.read_text().splitlines()] if lines else json.loads(path.read_text())
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        inner, key = rng.choice([place for place in places(whole) if not (lines and place[0] is whole)])
        if rng.random() < 0.2:
            inner.pop(key)
        elif rng.random() < 0.2:
            inner.update({rng.choice(("more", "sha256", "schema")): draw(rng, VALUES)}) if isinstance(
                inner, dict
            ) else inner.append(draw(rng, VALUES))
        elif isinstance(inner[key], int | float) and rng.random() < 0.5:
            inner[key] = rng.choice((-inner[key], inner[key] + 1, inner[key] / 2, inner[key] * 1e6))
        else:
            inner[key] = draw(rng, VALUES)
    path.write_text("".join(json.dumps(one) + "\n" for one in whole) if lines else json.dumps(whole))


def _insert_text(path: Path, rng: random.Random) -> None:
    """What is not JSON, in place of a number or a text."""
    text = path.read_text()
    start = rng.choice([place for place, letter in enumerate(text) if letter in ":,"]) + 1
    path.write_text(f"{text[:start]} {rng.choice(TEXTS)}{rng.choice(('', ',', '}'))}{text[start:]}")


def _edit_table(path: Path, rng: random.Random) -> None:
    """Columns that are missing, of another type or with other values; rows that are missing, double or moved."""
    table = pq.read_table(path)
    column = rng.randrange(table.num_columns)
    name, values = table.column_names[column], table.column(column).to_pylist()
    kind = rng.choice(("drop", "retype", "value", "row", "twice", "order", "rename", "null"))
    if kind == "drop":
        table = table.drop_columns([name])
    elif kind == "retype":
        made = pa.array([str(value) for value in values]) if rng.random() < 0.5 else pa.array([0.5] * len(values))
        table = table.set_column(column, name, made)
    elif kind in ("value", "null"):
        place, field = rng.randrange(len(values)), table.schema.field(column)
        new = [rng.choice((-1, 0, 2**31 - 1)), rng.choice((float("nan"), -1e300, 0.5)), "x", True, ["9.9"]]
        fitting = [one for one in new if _fits(one, field.type)] if kind == "value" else [None]
        values[place] = rng.choice(fitting)
        table = table.set_column(column, field, pa.array(values, field.type))
    elif kind == "row":
        table = table.slice(rng.randrange(table.num_rows))
    elif kind == "twice":
        table = pa.concat_tables([table, table.slice(0, 1)])
    elif kind == "order":
        table = table.take(rng.sample(range(table.num_rows), table.num_rows))
    else:
        table = table.rename_columns([f"{one}{'x' * (one == name)}" for one in table.column_names])
    pq.write_table(table, path)


def _fits(value: Any, kind: Any) -> bool:
    try:
        pa.array([value], kind)
    except (pa.ArrowException, TypeError, OverflowError):
        return False
    return True


def _edit_arrays(path: Path, rng: random.Random) -> None:
    """Arrays that are missing, of another kind or shape, with other values or objects in them."""
    with np.load(path) as file:
        arrays = dict(file)
    name = rng.choice(sorted(arrays))
    array = arrays[name]
    kind = rng.choice(("drop", "more", "kind", "shape", "cut", "value", "object", "nan", "empty"))
    if kind == "drop":
        del arrays[name]
    elif kind == "more":
        arrays[rng.choice(("more", "tokens_0_1", "weights_9_0", "tokens_0_x", "../x"))] = np.zeros(3)
    elif kind == "kind":
        arrays[name] = rng.choice((array.astype("U9"), np.zeros(array.shape, complex), np.zeros(array.shape, "M8[s]")))
    elif kind == "shape":
        arrays[name] = rng.choice((array[None], array.ravel(), array.reshape(1, -1), array[:0], np.array(0)))
    elif kind == "cut":
        arrays[name] = array[1:]
    elif kind == "value":
        arrays[name] = np.roll(array, 1) if array.dtype.kind == "U" else array + rng.choice((1, -1))
    elif kind == "object":
        arrays[name] = np.array([{"a": 1}] * len(array), object)
    elif kind == "nan":
        arrays[name] = np.full(array.shape, np.nan, np.float32)
    else:
        arrays = {}
    np.savez_compressed(path, **arrays)


def _edit_archive(path: Path, rng: random.Random) -> None:
    """Members of the archive that say more than they hold, hold no array, or are there twice."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(sorted(members))
    content = members[name]
    kind = rng.choice(("claim", "negative", "text", "cut", "long", "twice", "header", "method", "name"))
    changes = {
        "claim": content.replace(b"(", b"(99999999999, ", 1),
        "negative": content.replace(b"(", b"(-", 1),
        "text": b"no array",
        "cut": content[: rng.randrange(len(content))],
        "long": content + b"x" * 9,
        "header": content[:10] + b"[" * (content[8] + 256 * content[9]) + content[10 + content[8] + 256 * content[9] :],
    }
    members[name] = changes.get(kind, content)
    method = zipfile.ZIP_LZMA if kind == "method" else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a name that is there twice
        for one, inside in members.items():
            archive.writestr("x" * 200 if (kind, one) == ("name", name) else one, inside)
        if kind == "twice":
            archive.writestr(name, members[rng.choice(sorted(members))])


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "flip": _flip,
    "truncate": _truncate,
    "splice": _splice,
    "swap": _swap,
    "replace": _replace,
    "edit JSON": _edit_json,
    "insert text": _insert_text,
    "edit table": _edit_table,
    "edit arrays": _edit_arrays,
    "edit archive": _edit_archive,
}


def damages_of(file: str) -> list[str]:
    """Those that a kind of file can have, its own more often than those of any file."""
    own = {
        ".json": ["edit JSON", "edit JSON", "insert text"],
        ".jsonl": ["edit JSON", "insert text"],
        ".parquet": ["edit table", "edit table"],
        ".npz": ["edit arrays", "edit arrays", "edit archive"],
    }
    return [*own[Path(file).suffix], "flip", "truncate", "splice", "swap", "replace"]
