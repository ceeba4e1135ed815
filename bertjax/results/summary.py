"""`summary.json`: sealed when written, and checked when read, before any of it is used.

It lists each file of its directory with its SHA-256, and holds a SHA-256 over the rest of its own content. Later
changes, and files that belong to other results, are detected before use.
"""

import contextlib
import hashlib
import json
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from bertjax.errors import InputError, OutputError, some_of
from bertjax.evidence import BUILT_IN, Evidence, describe_statistics, summarise
from bertjax.formatting import finite
from bertjax.json_files import JsonError, parse_json, show
from bertjax.paths import open_file, read_text
from bertjax.results.contents import positive_name
from bertjax.results.schema import load_schema, mismatch
from bertjax.results.table import READABLE, SCHEMA, SHORT, kind_of, make_rows

NAME = "summary.json"
UNSEALED = 1  # the schema version without hashes
AGAIN = "run the ablation again"
# By these a page, PNG, PDF or SVG that bertjax wrote is recognised.
MARKS = (b"<title>bertjax report</title>", b"Software\0bertjax", b"/Creator (bertjax)", b"<dc:title>bertjax</dc:title>")
MARKED = 2**16  # bytes at each end of a file where its mark is
# Keys by which a file of bertjax is recognised.
KEYS = {"summary.json": ("schema", "ablations"), "numbers.json": ("program", "versions"), "journal.json": ("facts",)}


def describe_files(paths: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """SHA-256 and size of each file, by its name in the directory.

    Args:
        paths: the current location of each file.
    """
    files = {}
    for name, path in paths.items():
        with open_file(path, InputError) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            files[name] = {"sha256": digest, "bytes": file.tell()}
    return files


def seal(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The summary with a SHA-256 of its content.

    >>> seal({"schema": 2})["sha256"][:8]
    'c2a8105a'
    """
    rest = {name: value for name, value in summary.items() if name != "sha256"}
    text = json.dumps(rest, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return {**rest, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def read_summary(directory: Path) -> dict[str, Any]:
    """The `summary.json` of a directory, as it was written.

    Raises:
        InputError: it is missing, damaged, changed since, or written by another version of bertjax.
    """
    path = directory / NAME
    try:
        summary = parse_json(read_text(path, InputError))
    except JsonError as error:
        raise InputError(f"{path} is damaged, {error}: {AGAIN}") from error
    if not isinstance(summary, dict):
        raise InputError(f"{path} is damaged, it must hold an object, found {show(summary)}: {AGAIN}")
    if summary.get("schema") not in READABLE:
        raise InputError(_of_another_version(path, summary))
    fault = mismatch(summary, load_schema("summary"))
    if fault is None and summary["schema"] != UNSEALED and seal(summary)["sha256"] != summary["sha256"]:
        raise InputError(f"{path} was changed after it was written, its SHA-256 is another: {AGAIN}")
    fault = fault or next(_contradictions(summary), None)
    if fault is not None:
        raise InputError(f"{path} is damaged, {fault}: {AGAIN}")
    return summary


def read_recorded(path: Path) -> dict[str, Any] | None:
    """The content of a `summary.json`, `numbers.json` or `journal.json`; None for a foreign file of that name."""
    try:
        content = parse_json(read_text(path, OutputError))
    except (OutputError, JsonError):
        return None
    return content if isinstance(content, dict) and all(key in content for key in KEYS[path.name]) else None


def has_mark(path: Path) -> bool:
    """Whether a page, PNG, PDF or SVG was written by bertjax, or the file is empty or missing."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        content = file.read(MARKED)
        file.seek(max(file.seek(0, os.SEEK_END) - MARKED, 0))
        content += file.read()
        return not content or any(mark in content for mark in MARKS)
    return True


def _of_another_version(path: Path, summary: Mapping[str, Any]) -> str:
    versions = summary.get("versions")
    writer = versions.get("bertjax") if isinstance(versions, dict) else None
    return (
        f"{path} has schema {str(summary.get('schema'))[:40]}, this bertjax reads 1 to {SCHEMA}: read it "
        f"with the version that wrote it ({str(writer or 'unknown')[:40]}), or {AGAIN}"
    )


def verify(directory: Path, name: str, summary: Mapping[str, Any]) -> BinaryIO:
    """Open a file of the results after checking that it is the one written with this summary.

    Args:
        directory: of the results.
        name: of the file.
        summary: of the directory; with version 1, which has no hashes, any file is accepted.

    Raises:
        InputError: the file is missing, cannot be read, or is not the one that was written.
    """
    path, recorded = directory / name, summary.get("files", {}).get(name)
    try:
        file = open_file(path, InputError)
    except InputError as error:
        if not os.path.lexists(path):
            raise InputError(f"{path} is missing: {AGAIN}") from error
        raise
    if recorded is None:
        return file
    size = os.fstat(file.fileno()).st_size
    if size == recorded["bytes"] and hashlib.file_digest(file, "sha256").hexdigest() == recorded["sha256"]:
        file.seek(0)
        return file
    file.close()
    difference = "its SHA-256 is another" if size == recorded["bytes"] else f"{size:,} bytes, not {recorded['bytes']:,}"
    raise InputError(
        f"{path} is not the file that {NAME} was written with ({difference}): copy the results again, or {AGAIN}"
    )


def _contradictions(summary: Mapping[str, Any]) -> Iterator[str]:
    """Contradictions between parts of a summary, which no schema can express, each as a phrase."""
    metrics, entries, base = summary["metrics"], summary["ablations"], summary["base"]
    statistics = summary["statistics"]
    if unknown := [name for name in metrics if name not in {**BUILT_IN, **summary.get("own_metrics", {})}]:
        yield f"metrics holds {unknown[0][:40]!r}, which bertjax does not have"
    if len(set(metrics)) < len(metrics) or metrics[0] != summary["metric"]["name"]:
        yield "metrics must name each metric once, and first that of metric"
    if set(base["scores"]) != set(metrics) or base["score"] != base["scores"][metrics[0]]:
        yield "base does not fit metrics"
    if statistics and set(statistics) != set(metrics):
        yield "statistics does not fit metrics"
    if "patching" in summary and (fault := _wrong_cells(summary["patching"], len(entries), summary["model"])):
        yield f"patching {fault}"
    if "pruning" in summary and (fault := _wrong_orders(summary["pruning"], {entry["name"] for entry in entries})):
        yield f"pruning {fault}"
    for number, entry in enumerate(entries):
        if fault := _wrong_entry(entry, summary):
            yield f"ablations[{number}] {fault}"


def _wrong_cells(told: Mapping[str, Any], runs: int, model: Mapping[str, Any]) -> str | None:
    """What is wrong with the cells of a grid of patches; None if nothing is."""
    if len(told["cells"]) != runs:
        return f"has {len(told['cells'])} cells for {runs} ablations"
    if {cell["place"] for cell in told["cells"]} != {*told["places"]}:
        return "has cells of other places than it names"
    for number, cell in enumerate(told["cells"]):
        outside = cell["layer"] >= model["layers"] or (cell["head"] or 0) >= model["heads"]
        if outside or cell["span"] >= len(told["spans"]):
            return f"has a cell {number} that is outside the model or the spans"
    return None


def _wrong_orders(told: Mapping[str, Any], names: Collection[str]) -> str | None:
    """What is wrong with the orders in which heads go, and with learned gates; None if nothing is.

    Args:
        names: of all ablations.
    """
    runs = [(order["name"], order["runs"].get(str(left))) for order in told["orders"] for left in told["points"]]
    runs += [("gates", learned["run"]) for learned in told.get("gates", ()) if learned["run"] is not None]
    for order, run in runs:
        if run not in names:
            return f"has the run {str(run)[:40]!r} in the order {order[:40]!r}, but no such ablation is there"
    return None


def _wrong_entry(entry: Mapping[str, Any], summary: Mapping[str, Any]) -> str | None:
    """What is wrong with one ablation, given the metrics and the model's sizes; None if nothing is."""
    model, base, metrics = summary["model"], summary["base"]["score"], summary["metrics"]
    layer, head, score, delta = (entry[name] for name in ("layer", "head", "score", "delta"))
    heads = [re.fullmatch(r"(\d{1,4})\.(\d{1,4})(=[^\s=]+)?", name, re.ASCII) for name in entry["heads"]]
    if (not heads and "patching" not in summary) or any(
        matched is None or int(matched[1]) >= model["layers"] or int(matched[2]) >= model["heads"] for matched in heads
    ):
        return f"has heads that a model of {model['layers']} layers of {model['heads']} heads does not have"
    if (layer is None and head is not None) or not 0 <= (layer or 0) < model["layers"]:
        return f"has no layer {layer}"
    if not 0 <= (head or 0) < model["heads"]:
        return f"has no head {head}"
    if set(entry["scores"]) != set(metrics) or entry["scores"][metrics[0]] != score:
        return "has scores that do not fit metrics"
    undefined = score is None or base is None
    if undefined != (delta is None) or not (undefined or abs(score - base - delta) < 1e-9):
        return "has a delta that is not its score less the base's"
    if ("evidence" in entry) != bool(summary["statistics"]):
        return "does not fit statistics"
    return None


@dataclass(frozen=True)
class Entry:
    """The scores of one ablation.

    Args:
        name: '3.0' for a head, '3' for a whole layer, the set's name otherwise.
        heads: its heads as '3.0', or as '3.0=zero' where the mode differs from the run's.
        layer: from 0; None for a set of heads.
        head: from 0; None for a whole layer or a set.
        scores: by metric, the main one first.
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
        """The score by the main metric; NaN where undefined."""
        return next(iter(self.scores.values()))

    @property
    def delta(self) -> float:
        """Score minus base."""
        return self.score - self.base

    @property
    def effect(self) -> float:
        """Size of the change, or -1 where undefined; a sort key."""
        return abs(self.delta) if math.isfinite(self.delta) else -1.0

    def to_dict(self) -> dict[str, Any]:
        """The entry as in `summary.json`, where an undefined number is null."""
        identity = {"name": self.name, "heads": list(self.heads), "layer": self.layer, "head": self.head}
        scores = {name: finite(value) for name, value in self.scores.items()}
        return {**identity, "score": finite(self.score), "delta": finite(self.delta), "scores": scores}


def make_summary(
    provenance: Mapping[str, Any], entries: Sequence[Entry], evidence: Mapping[str, Evidence]
) -> dict[str, Any]:
    """The content of `summary.json` without the files, as described in `schemas/summary.json`.

    Args:
        provenance: where the results come from, and the base's scores by metric under 'base'.
        entries: one for each ablation.
        evidence: by metric, the main one first; empty where fewer than two examples have a label.
    """
    ablations, main = [entry.to_dict() for entry in entries], provenance["metric"]["name"]
    names, kind = [entry.name for entry in entries], kind_of(ablations, of_patches="patching" in provenance)
    statistics = {name: describe_statistics(weighed, names, kind) for name, weighed in evidence.items()}
    if main in evidence:
        rows = make_rows(ablations, provenance["base"], evidence)
        columns = [{name: getattr(row, name) for name in SHORT} for row in rows if row.main]
        ablations = [entry | {"evidence": weighed} for entry, weighed in zip(ablations, columns, strict=True)]
        sentence = summarise(evidence[main], names, kind)
    else:
        sentence = "fewer than two examples have a label: nothing can be said of chance."
    if "screen" in provenance:
        sentence = f"{sentence} {provenance['screen']['sentence']}"
    if new := provenance["model"].get("new_parameters"):
        note = f"{some_of(new)} of the model were not in its checkpoint: they are random, and so are these effects."
        sentence = f"{sentence} {note}"
        statistics = {name: {**part, "sentence": f"{part['sentence']} {note}"} for name, part in statistics.items()}
    base = {name: finite(value) for name, value in provenance["base"].items()}
    return {
        "schema": SCHEMA,
        **provenance,
        "positive_label": positive_name(provenance, provenance["metrics"]),
        "sentence": sentence,
        "statistics": statistics,
        "base": {"score": finite(float(provenance["base"][main])), "scores": base},
        "ablations": ablations,
    }
