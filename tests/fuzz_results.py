"""Damage to directories of results, drawn with a seed, and what the commands that read them make of it.

`cases(seed, count)` draws, `outcome(case)` does one. A directory is damaged as it lies there ("as written"), or its
hashes are made anew after that, as whoever forges results would do ("forged"), or it is of the version that had no
hashes ("without hashes"). Of the last two nobody can say that a number is not the one that was written.
"""

import io
import json
import os
import random
import signal
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from bertjax.compare import agreeing, align, label_results, share_examples
from bertjax.errors import BertjaxError
from bertjax.html_page import page_data
from bertjax.page import save_page
from bertjax.results import finite
from bertjax.saved import UnsealedWarning, read_results
from bertjax.show import show_table, show_text
from bertjax.summary import describe_files, seal
from tests.made_up import make_results

OUTCOMES = ("accepted and equal", "refused in one line", "accepted, no hash could tell")
BROKEN = ("silently wrong", "traceback", "hang")
FILES = ("summary.json", "results.parquet", "outputs.npz", "examples.jsonl", "attention.npz")
LEVELS = ("as written", "forged", "without hashes")
LONGEST = 10  # seconds
EXAMPLES = 12
PLOTTED = 10  # one of so many cases is drawn too, which takes longer
BASES = {
    "mrpc": {},
    "stsb": {"task": "stsb", "seed": 1},
    "layers": {"ablate": "layers", "helpful": "0", "harmful": "2"},
}
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


@dataclass(frozen=True)
class Case:
    """One damage.

    Args:
        base: which results, of `BASES`.
        level: of `LEVELS`.
        file: the file that is damaged.
        damage: a name of `DAMAGES`.
        seed: of what is drawn in it.
    """

    base: str
    level: str
    file: str
    damage: str
    seed: int


def cases(seed: int, count: int) -> list[Case]:
    """So many cases; the same for the same seed, and the first of a larger count are those of a smaller one."""
    rng = random.Random(seed)
    drawn = []
    while len(drawn) < count:
        file = rng.choice(FILES)
        damage = rng.choice(_damages_of(file))
        level = "as written" if damage == "swap" else rng.choice(LEVELS)
        drawn.append(Case(rng.choice(list(BASES)), level, file, damage, rng.randrange(2**32)))
    return drawn


def outcome(case: Case) -> str:
    """What `read_results`, `show`, `compare`, `report` and `plot` make of it: one of `OUTCOMES` or `BROKEN`."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "results"
        _copy(_base(case.base), directory, case.level)
        DAMAGES[case.damage](directory / case.file, random.Random(case.seed))
        if case.level == "forged":
            reseal(directory)
        found = _read(directory, case.base, plots=case.seed % PLOTTED == 0)
        wrong = [name for name, text in found.items() if text not in ("refused", _shown(case.base, case.level)[name])]
    for broken in ("traceback", "hang"):
        if any(text.startswith(broken) for text in found.values()):
            return next(text for text in found.values() if text.startswith(broken))
    if wrong:
        return "silently wrong" if case.level == "as written" else "accepted, no hash could tell"
    return "refused in one line" if "refused" in found.values() else "accepted and equal"


# ---- what is read --------------------------------------------------------------------------------------------------
def _show(directory: Path) -> str:
    saved = read_results(directory)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(show_table(saved))
    return console.export_text() + show_text(saved, "csv") + show_text(saved, "md")


def _page(directory: Path) -> str:
    return json.dumps(finite(page_data(read_results(directory))), allow_nan=False)


def _compare(directory: Path, other: Path) -> str:
    """All that `compare` shows but the rank correlation, whose interval takes most of its time."""
    several = [read_results(directory), read_results(other)]
    names, tables = align(several)
    effects = [[row["difference"] for row in rows] for rows in tables]
    found = [names, effects, agreeing(several), share_examples(several), len(label_results(several))]
    return json.dumps(finite(found), allow_nan=False)


def _plot(directory: Path) -> str:
    """Pictures; that they are the same is not looked at, as they are of the numbers that `show` shows."""
    saved = read_results(directory)
    for figure in ("auto", "ranking", "change"):
        save_page(saved.plot(figure), directory / f"{figure}.svg")
    return "drawn"


def _read(directory: Path, base: str, plots: bool = True) -> dict[str, str]:
    """What each command makes of a directory."""
    return {
        "show": _attempt(lambda: _show(directory)),
        "page": _attempt(lambda: _page(directory)),
        "compare": _attempt(lambda: _compare(directory, _base(base))),
    } | ({"plot": _attempt(lambda: _plot(directory))} if plots else {})


def _attempt(read: Callable[[], str]) -> str:
    try:
        with _at_most(LONGEST), warnings.catch_warnings():
            warnings.simplefilter("ignore", UnsealedWarning)
            return read()
    except BertjaxError as error:
        long = len(str(error)) > 1000 or "\n" in str(error)
        return f"traceback: the message is {str(error)[:2000]!r}" if long else "refused"
    except TimeoutError as error:
        return f"hang: {error}"
    except BaseException as error:  # whatever comes is what is looked for
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"traceback: {type(error).__name__}: {error}"[:500]


@contextmanager
def _at_most(seconds: int):
    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# ---- the results that are damaged -----------------------------------------------------------------------------------
@cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="bertjax-fuzz-")


@cache
def _base(name: str) -> Path:
    return make_results(Path(_folder().name) / name, examples=EXAMPLES, **BASES[name])


@cache
def _other() -> Path:
    """Results of as many ablations and examples, with other numbers."""
    return make_results(Path(_folder().name) / "other", examples=EXAMPLES, seed=9)


@cache
def _shown(base: str, level: str) -> dict[str, str]:
    directory = Path(_folder().name) / f"{base} {level}"
    _copy(_base(base), directory, level)
    return _read(directory, base)


def _copy(base: Path, directory: Path, level: str) -> None:
    directory.mkdir()
    for name in FILES:
        (directory / name).write_bytes((base / name).read_bytes())
    if level == "without hashes":
        unseal(directory)


def unseal(directory: Path) -> None:
    """Make results of version 1 of those of version 2."""
    path = directory / "summary.json"
    summary = json.loads(path.read_text())
    for name in ("files", "sha256", "positive_label"):
        del summary[name]
    path.write_text(json.dumps(summary | {"schema": 1}))


def reseal(directory: Path) -> None:
    """Hashes anew, where there is still a summary to put them into."""
    path = directory / "summary.json"
    if not path.is_file():
        return
    try:
        summary = json.loads(path.read_text())
        names = {name: directory / name for name in FILES[1:] if (directory / name).is_file()}
        files = (
            {**summary["files"], **describe_files(names)} if isinstance(summary["files"], dict) else summary["files"]
        )
        path.write_text(json.dumps(seal({**summary, "files": files})))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return


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
        inner, key = rng.choice([place for place in _places(whole) if not (lines and place[0] is whole)])
        if rng.random() < 0.2:
            inner.pop(key)
        elif rng.random() < 0.2:
            inner.update({rng.choice(("more", "sha256", "schema")): rng.choice(VALUES)}) if isinstance(
                inner, dict
            ) else inner.append(rng.choice(VALUES))
        elif isinstance(inner[key], int | float) and rng.random() < 0.5:
            inner[key] = rng.choice((-inner[key], inner[key] + 1, inner[key] / 2, inner[key] * 1e6))
        else:
            inner[key] = rng.choice(VALUES)
    path.write_text("".join(json.dumps(one) + "\n" for one in whole) if lines else json.dumps(whole))


def _places(value: Any) -> list[tuple[Any, Any]]:
    """All places in nested lists and objects, as what holds them with their key."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    return [(value, key) for key, _ in items] + [place for _, inner in items for place in _places(inner)]


def _insert_text(path: Path, rng: random.Random) -> None:
    """What is no JSON, in place of a number or a text."""
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


def _damages_of(file: str) -> list[str]:
    """Those that a kind of file can have, its own more often than those of any file."""
    own = {
        ".json": ["edit JSON", "edit JSON", "insert text"],
        ".jsonl": ["edit JSON", "insert text"],
        ".parquet": ["edit table", "edit table"],
        ".npz": ["edit arrays", "edit arrays", "edit archive"],
    }
    return [*own[Path(file).suffix], "flip", "truncate", "splice", "swap", "replace"]
