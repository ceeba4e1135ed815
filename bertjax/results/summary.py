"""`summary.json`, which is written last, and the SHA-256 in it of each other file; both are checked on reading."""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from bertjax.errors import InputError, library_errors, some_of
from bertjax.formatting import finite, to_json
from bertjax.json_files import parse_json
from bertjax.results.contents import positive_name
from bertjax.results.schema import Ablation, FileHash, Summary
from bertjax.results.table import READABLE, SCHEMA, kind_of, noun_of
from bertjax.statistics import BUILT_IN, Statistics, describe_statistics, summarise

NAME = "summary.json"
WITHOUT_HASHES = 1  # the schema without hashes
AGAIN = "copy the results again, or run the analysis again"
# A page, PNG, PDF or SVG that bertjax wrote contains one of these.
MARKS = (b"<title>bertjax report</title>", b"Software\0bertjax", b"/Creator (bertjax)", b"<dc:title>bertjax</dc:title>")
MARKED = 2**16  # bytes at each end of a file in which the mark is searched
# A file that bertjax wrote has these keys.
KEYS = {"summary.json": ("schema", "ablations"), "numbers.json": ("program", "versions"), "journal.json": ("facts",)}
KEYS["shard.json"] = ("shard", "analysis")


def hash_files(paths: Mapping[str, Path]) -> dict[str, FileHash]:
    """SHA-256 and size of each file, by its name in the directory.

    Args:
        paths: the current path of each file.
    """
    files = {}
    for name, path in paths.items():
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            files[name] = FileHash(digest, file.tell())
    return files


def read_summary(directory: Path) -> dict[str, Any]:
    """Read the `summary.json` of a directory.

    Raises:
        InputError: it is missing, damaged, or written by an incompatible version of bertjax.
    """
    path = directory / NAME
    with library_errors(f"{path} is damaged", InputError, f": {AGAIN}"):
        summary: dict[str, Any] = parse_json(path.read_bytes().decode())
        schema, writer = summary.get("schema"), summary.get("versions", {}).get("bertjax", "unknown")
        if schema not in READABLE:
            reason = f"has schema {str(schema)[:40]}, this bertjax reads {READABLE[0]} to {SCHEMA}"
        else:
            msgspec.convert(summary, Summary)
            if schema != WITHOUT_HASHES and not {"results.parquet", "outputs.npz"} <= summary.get("files", {}).keys():
                raise InputError(f"{path} lacks the hashes of the other files: {AGAIN}")
            unknown = [
                name for name in summary["metrics"] if name not in {**BUILT_IN, **summary.get("own_metrics", {})}
            ]
            if not unknown:
                return summary
            reason = f"has metrics that this bertjax lacks ({some_of(unknown)})"
    raise InputError(f"{path} {reason}: read it with the version that wrote it ({str(writer)[:40]})")


def read_recorded(path: Path) -> dict[str, Any] | None:
    """The content of a `summary.json`, `numbers.json` or `journal.json`; None if bertjax did not write the file.

    Args:
        path: the path of the file.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and all(key in content for key in KEYS[path.name]) else None


def has_mark(path: Path) -> bool:
    """Whether bertjax wrote a page, PNG, PDF or SVG, or the file is empty or missing."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        content = file.read(MARKED)
        file.seek(max(file.seek(0, os.SEEK_END) - MARKED, 0))
        content += file.read()
        return not content or any(mark in content for mark in MARKS)
    return True


@contextlib.contextmanager
def open_verified(path: Path, summary: Mapping[str, Any]) -> Iterator[BinaryIO]:
    """Open a file of results and verify its hash.

    Args:
        path: the path of the file.
        summary: the summary of its directory; version 1 has no hashes, so that any file is accepted.

    Raises:
        InputError: the file is missing or was changed, or the block cannot read it.
    """
    recorded = summary.get("files", {}).get(path.name)
    with library_errors(f"{path} cannot be read", InputError, f": {AGAIN}"), path.open("rb") as file:
        if recorded is not None and hashlib.file_digest(file, "sha256").hexdigest() != recorded["sha256"]:
            sizes = f"it has {file.tell():,} bytes, not {recorded['bytes']:,}"
            reason = "its SHA-256 differs" if file.tell() == recorded["bytes"] else sizes
            raise InputError(f"{path} is not the file that {NAME} describes ({reason}): {AGAIN}")
        file.seek(0)
        yield file


@dataclass(frozen=True)
class Entry:
    """The scores of one ablation.

    Args:
        name: '3.0' for a head, '3' for a whole layer, otherwise the name of the set.
        heads: its heads as '3.0', or as '3.0=zero' if the mode differs from the mode of the run.
        layer: the index of the layer, from 0; None for a set of heads.
        head: the index of the head, from 0; None for a whole layer or a set.
        scores: the scores by metric, the main one first.
        base: the main score without ablation.
    """

    name: str
    heads: tuple[str, ...]
    layer: int | None
    head: int | None
    scores: dict[str, float]
    base: float

    @property
    def score(self) -> float:
        """The score by the main metric; NaN if it is undefined."""
        return next(iter(self.scores.values()))

    @property
    def delta(self) -> float:
        """Score minus base."""
        return self.score - self.base

    @property
    def effect(self) -> float:
        """Size of the change, or -1 if it is undefined; a sort key."""
        return abs(self.delta) if math.isfinite(self.delta) else -1.0

    def to_dict(self) -> dict[str, Any]:
        """The entry as in `summary.json`; undefined numbers are null."""
        scores = {name: finite(value) for name, value in self.scores.items()}
        numbers = {"score": finite(self.score), "delta": finite(self.delta), "scores": scores}
        described: dict[str, Any] = msgspec.to_builtins(
            Ablation(name=self.name, heads=[*self.heads], layer=self.layer, head=self.head, **numbers)
        )
        return described


def make_summary(
    provenance: Mapping[str, Any], entries: Sequence[Entry], computed: Mapping[str, Statistics]
) -> dict[str, Any]:
    """The content of `summary.json` without the files.

    Args:
        provenance: the provenance of the results, and the scores of the base by metric under 'base'.
        entries: one for each ablation.
        computed: the statistics by metric, the main one first; empty if fewer than two examples have a label.
    """
    ablations, main = [entry.to_dict() for entry in entries], provenance["metric"]["name"]
    kind = noun_of(kind_of(ablations, of_patches="patching" in provenance), provenance)
    names = [entry.name for entry in entries]
    pruning = provenance.get("pruning")
    statistics = {name: describe_statistics(one, names, kind, pruning) for name, one in computed.items()}
    if main in computed:
        sentence = summarise(computed[main], names, kind, pruning)
    else:
        sentence = "Fewer than two examples can be compared: nothing can be tested."
    if "screen" in provenance:
        sentence = f"{sentence} {provenance['screen']['sentence']}"
    if new := provenance["model"].get("new_parameters"):
        note = f"{some_of(new)} of the model were not in its checkpoint: they are random, and so are these effects."
        sentence = f"{sentence} {note}"
        statistics = {name: {**part, "sentence": f"{part['sentence']} {note}"} for name, part in statistics.items()}
    base = {name: finite(value) for name, value in provenance["base"].items()}
    content = {
        "schema": SCHEMA,
        **provenance,
        "positive_label": positive_name(provenance, provenance["metrics"]),
        "sentence": sentence,
        "statistics": statistics,
        "base": {"score": finite(float(provenance["base"][main])), "scores": base},
        "ablations": ablations,
    }
    plain = json.loads(to_json(content))  # without NumPy's types and tuples
    described: dict[str, Any] = msgspec.to_builtins(msgspec.convert(plain, Summary))
    assert described == plain, "schema.Summary does not declare all keys"
    return described
