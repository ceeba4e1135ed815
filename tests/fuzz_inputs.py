"""Damaged data files, odd paths, files of sets and journals, by seed; and what bertjax makes of them.

`cases(seed, count)` gives the same cases for the same seed, `outcome(case)` what came of one.
"""

import contextlib
import csv
import gzip
import io
import json
import os
import random
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bertjax import BertConfig
from bertjax.data import tfds_glue
from bertjax.data.loading import load_examples
from bertjax.engine.journal import is_unfinished, open_journal
from bertjax.errors import OutputError
from bertjax.interventions.ablations import read_sets
from bertjax.study.settings import Settings, check_settings
from tests import fuzz_utilities
from tests.fuzz_utilities import REFUSED, attempt

OUTCOMES = ("accepted", REFUSED)
BROKEN = (*fuzz_utilities.BROKEN, "silently wrong")
CONFIG = BertConfig(hidden_size=12, num_hidden_layers=2, num_attention_heads=3, vocab_size=9)
FACTS, SIZES = {"weights": "aaaa", "ablations": "6 sets"}, {"rows": 2, "runs": 3}

Change = Callable[[random.Random, bytes], bytes]


@dataclass(frozen=True)
class Case:
    """One case: `kind` is a key of `KINDS`, `number` the seed of all that is random in it."""

    kind: str
    number: int


def cases(seed: int, count: int) -> Iterator[Case]:
    """So many cases, of all kinds in turn."""
    for number in range(count):
        yield Case(list(QUICK)[number % len(QUICK)], seed * 1_000_003 + number)


def outcome(case: Case) -> str:
    """What comes of a case: one of `OUTCOMES` or, with what is wrong behind a colon, of `BROKEN`."""
    rng = random.Random(case.number)
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):  # some of the paths are relative
        started = time.monotonic()
        found = attempt(lambda: KINDS[case.kind](rng, Path(name)))
        if time.monotonic() - started > fuzz_utilities.LONGEST:
            return "hang"
        return found


def words(rng: random.Random) -> str:
    """A few words of many alphabets, with quotation marks."""
    some = (
        "the",
        "cat",
        '"quoted',
        "it's",
        "naïve",
        "中文",
        "😀",
        "a\u0301",
        "\u2028",
        "\x85",
        "",
        "NULL",
        "-1",
        "1e5",
    )
    return " ".join(rng.choices(some, k=rng.randint(0, 9)))


def tsv(rng: random.Random) -> bytes:
    """A whole file of pairs."""
    rows = (f"{row}\t{words(rng)}\t{words(rng)}\t{row % 2}" for row in range(rng.randint(1, 20)))
    return "\n".join(["index\tsentence1\tsentence2\tlabel", *rows, ""]).encode()


def jsonl(rng: random.Random) -> bytes:
    """A whole file of pairs."""
    rows = ({"sentence1": words(rng), "sentence2": words(rng), "label": row % 2} for row in range(rng.randint(1, 20)))
    return "".join(json.dumps(row, ensure_ascii=rng.random() < 0.5) + "\n" for row in rows).encode()


def quoted(rng: random.Random) -> bytes:
    """A whole CSV file of pairs."""
    rows = ((row, words(rng), words(rng) + rng.choice(("", "\n", ",")), row % 2) for row in range(rng.randint(1, 20)))
    written = io.StringIO(newline="")
    csv.writer(written).writerows([("index", "sentence1", "sentence2", "label"), *rows])
    return written.getvalue().encode()


def pairs_table(rng: random.Random) -> pa.Table:
    """Pairs as Arrow has them."""
    rows = range(rng.randint(1, 20))
    texts = {name: [words(rng) for _ in rows] for name in ("sentence1", "sentence2")}
    return pa.table({"idx": list(rows), **texts, "label": [row % 2 for row in rows]})


def parquet(rng: random.Random) -> bytes:
    """A whole Parquet file of pairs."""
    written = io.BytesIO()
    compression, groups = rng.choice(("none", "snappy", "zstd")), rng.choice((3, 100))
    table, dictionary = pairs_table(rng), rng.random() < 0.5
    pq.write_table(table, written, compression=compression, use_dictionary=dictionary, row_group_size=groups)
    return written.getvalue()


FORMATS = {".tsv": tsv, ".csv": quoted, ".jsonl": jsonl, ".parquet": parquet}


def flip(rng: random.Random, content: bytes) -> bytes:
    """A few bytes become others."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def cut(rng: random.Random, content: bytes) -> bytes:
    """The end is missing."""
    return content[: rng.randrange(len(content))]


def insert(rng: random.Random, content: bytes) -> bytes:
    """Something stands where it should not."""
    odd = (
        *(b"\t", b"\n", b"\r", b"\0", b'"', b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"{", b"[1]", b"NaN"),
        *(b"1" + b"0" * 400, b"1" * 5000, b"[" * 5000, b'{"a":' * 3000, b'"\\ud800"', b"\t" * 10_000),
        *(b"x" * 1_000_000, b". " * 300_000, "中".encode() * 300_000, b"1e999", b"\x1b[31m", b"[red]"),
    )
    place = rng.randrange(len(content))
    return content[:place] + rng.choice(odd) + content[place:]


def reorder(rng: random.Random, content: bytes) -> bytes:
    """Lines come twice, in another order, or not at all."""
    lines = content.split(b"\n")
    return b"\n".join(rng.choices(lines, k=len(lines)))


def encode(rng: random.Random, content: bytes) -> bytes:
    """Another encoding, or other ends of lines."""
    text = content.decode(errors="replace")
    how = rng.choice(("utf-16", "utf-32", "latin-1", "utf-8-sig", "utf-7", "crlf", "cr"))
    if how in ("crlf", "cr"):
        return content.replace(b"\n", b"\r\n" if how == "crlf" else b"\r")
    return text.encode(how, errors="replace")


def fields(rng: random.Random, content: bytes) -> bytes:
    """Columns or values that do not fit."""
    old, new = rng.choice(
        (
            (b"label", b"sentence1"),
            (b"sentence2", b"sentense2"),
            (b"\t1\n", b"\tyes\n"),
            (b"\t0\n", b"\n"),
            (b'"label": 1', b'"label": [[{}]]'),
            (b'"label": 0', b'"label": 1e400'),
            (b'"sentence1": "', b'"sentence1": 5, "x": "'),
            (b"index", b"c\t" * rng.randint(1, 30_000) + b"index"),
        )
    )
    return content.replace(old, new)


CHANGES: tuple[Change, ...] = (flip, cut, insert, reorder, encode, fields, lambda rng, content: content)


def read_data(rng: random.Random, directory: Path) -> str:
    """A data file with some damage, compressed or not, damaged before or after."""
    written = rng.choice(list(FORMATS))
    suffix, content = written + rng.choice(("", ".gz")), FORMATS[written](rng)
    for change in rng.choices(CHANGES, k=rng.randint(0, 2)):
        content = change(rng, content) if content else content
    if suffix.endswith(".gz"):
        content = gzip.compress(content, mtime=0)
        content = rng.choice((flip, cut, lambda rng, whole: whole, lambda rng, whole: whole + whole))(rng, content)
    path = directory / f"dev{suffix}"
    path.write_bytes(content)
    custom: dict[str, Any] = {"task": "custom", "text_columns": rng.choice((["sentence1", "sentence2"], None))}
    load_examples(**rng.choice(({"task": "mrpc"}, {"task": "qqp"}, custom)), data=path)
    return "accepted"


@cache
def saved_files() -> dict[str, bytes]:
    """The files of a saved dataset, by name."""
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as directory:
        datasets.Dataset(pairs_table(random.Random(0))).save_to_disk(directory)
        return {path.name: path.read_bytes() for path in sorted(Path(directory).iterdir())}


def read_saved(rng: random.Random, directory: Path) -> str:
    """A directory that `datasets` saved, with one file damaged or missing."""
    (directory / "saved").mkdir()
    changed = rng.choice((*saved_files(), "none"))
    for name, content in saved_files().items():
        if name != changed:
            (directory / "saved" / name).write_bytes(content)
        elif rng.random() < 0.9:
            (directory / "saved" / name).write_bytes(rng.choice((flip, flip, cut, insert))(rng, content))
    load_examples(rng.choice(("mrpc", "custom")), data=directory / "saved")
    return "accepted"


def odd_path(rng: random.Random, directory: Path) -> str:
    """A name of something that is no file, or of nothing."""
    path = directory / rng.choice(("odd", "odd.tsv", "odd.jsonl.gz"))
    match rng.randrange(10):
        case 0:
            os.mkfifo(path)
        case 1:
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(path.name)
        case 2:
            path.symlink_to(rng.choice(("/dev/zero", "/dev/tty", "/dev/null", "/proc/self/mem", "/nowhere")))
        case 3:
            path.symlink_to(path)
        case 4:
            path.mkdir()
        case 5:
            return f"{path}/{'a' * rng.choice((200, 300, 800))}"
        case 6:
            return f"{directory}/nul\0.tsv"
        case 7:
            return rng.choice(("~nosuchuser/x.tsv", "~nosuchuser", "", "\udcff\udcfe.tsv"))
        case 8:
            path.write_bytes(rng.randbytes(100))
            return f"{path}/below.tsv"
        case 9:
            return os.fsdecode(os.fsencode(directory) + b"/\xff\xfe.tsv")
    return str(path)


def follow_path(rng: random.Random, directory: Path) -> str:
    """An odd path wherever a user may name one."""
    path = odd_path(rng, directory)
    match rng.randrange(6):
        case 0:
            load_examples("mrpc", data=path)
        case 1:
            settings = Settings(ablate=path)
            check_settings(settings)
            settings.describe()
            read_sets(Path(path), CONFIG)
        case 2:
            is_unfinished(Settings(output=path).journal)
            with open_journal(Settings(output=path).journal, FACTS, SIZES):
                pass
        case 3:
            Settings(data=path).describe()
        case 4:
            tfds_glue.prepare(path, directory / "made")
        case 5:
            load_examples("mrpc", data_dir=path)
    return "accepted"


def read_heads(rng: random.Random, directory: Path) -> str:
    """A file of sets of heads."""
    content = b"syntax: 0.0 1.2 # two\n1.1=zero\n\n0.1,0.2\n"
    for change in rng.choices((flip, cut, insert, reorder), k=2):
        content = change(rng, content) if content else content
    (directory / "sets").write_bytes(content)
    read_sets(directory / "sets", CONFIG)
    return "accepted"


def damage_journal(rng: random.Random, directory: Path) -> str:
    """A journal of a sweep that was killed, one of whose files was damaged; `--overwrite` helps wherever it may."""
    outputs = np.arange(12, dtype=np.float32).reshape(3, 4)
    with open_journal(directory, FACTS, SIZES) as journal:
        for number in range(3):
            journal.write(number, outputs + number)
    path = rng.choice(sorted(directory.iterdir()))
    content = path.read_bytes() or b"{}"
    path.unlink()
    match rng.randrange(8):
        case 0:
            os.mkfifo(path)
        case 1:
            path.mkdir()
        case 2:
            path.symlink_to(rng.choice(("/dev/zero", "/nowhere", str(path))))
        case 3:
            with path.open("wb") as file:
                file.truncate(rng.choice((0, 10, 10**9)))
        case 4:
            sizes = rng.choice(
                (b'"rows": 0', b'"rows": -5', b'"rows": 1e300', b'"rows": "x"', b'"rows": ' + b"9" * 5000)
            )
            path.write_bytes(content.replace(b'"rows": 2', sizes))
        case _:
            path.write_bytes(rng.choice((flip, cut, insert))(rng, content))
    try:
        found = read_journal(directory, outputs, replace=False)
    except OutputError as refusal:
        try:
            found = read_journal(directory, outputs, replace=True)
        except OutputError as error:
            return f"silently wrong: --overwrite does not help: {error}"
        if found == "accepted":
            raise refusal
    return found


def read_journal(directory: Path, outputs: np.ndarray, replace: bool) -> str:
    """Open a journal and read its parts: each is as it was written, or is none."""
    with open_journal(directory, FACTS, SIZES, replace=replace) as journal:
        if journal.sizes != SIZES:
            return f"silently wrong: sizes {journal.sizes}"
        for number in range(3):
            part = journal.read(number)
            if part is not None and not np.array_equal(part, outputs + number):
                return f"silently wrong: part {number}"
            journal.write(number, outputs + number)
    return "accepted"


QUICK: dict[str, Callable[[random.Random, Path], str]] = {
    "data file": read_data,
    "saved dataset": read_saved,
    "path": follow_path,
    "journal": damage_journal,
    "sets": read_heads,
}
KINDS = {**QUICK}
