"""`summary.json`: sealed when it is written, and checked when it is read, before anything is shown of it.

It names each file of its directory with its SHA-256, and has one of its own over all the rest of it: what changed
after it was written, and what is of other results, is found before it is used.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from bertjax.errors import InputError
from bertjax.evidence import METRICS
from bertjax.json_files import JsonError, kind_of, parse_json
from bertjax.paths import open_file, read_text
from bertjax.results.schema import load_schema, mismatch
from bertjax.results.table import SCHEMA

NAME = "summary.json"
UNSEALED = 1  # the version that had no hashes
AGAIN = "run the ablation again"


def describe_files(paths: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """SHA-256 and size of each file, by its name in the directory.

    Args:
        paths: where each of them is now.
    """
    found = {}
    for name, path in paths.items():
        with open_file(path, InputError) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[name] = {"sha256": digest, "bytes": file.tell()}
    return found


def seal(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The summary with the SHA-256 of all that is in it.

    >>> seal({"schema": 2})["sha256"][:8]
    'c2a8105a'
    """
    rest = {name: value for name, value in summary.items() if name != "sha256"}
    text = json.dumps(rest, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return {**rest, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def read_summary(directory: Path) -> dict[str, Any]:
    """The `summary.json` of a directory, as it was written.

    Raises:
        InputError: it is missing, damaged, was changed since, or is of another version of bertjax.
    """
    path = directory / NAME
    try:
        summary = parse_json(read_text(path, InputError), halves=True)
    except JsonError as error:
        raise InputError(f"{path} is damaged, {error}: {AGAIN}") from error
    if not isinstance(summary, dict):
        raise InputError(f"{path} is damaged, it must hold an object, found {kind_of(summary)}: {AGAIN}")
    if summary.get("schema") not in (UNSEALED, SCHEMA):
        raise InputError(_of_another_version(path, summary))
    wrong = mismatch(summary, load_schema("summary"))
    if wrong is None and summary["schema"] != UNSEALED and seal(summary)["sha256"] != summary["sha256"]:
        raise InputError(f"{path} was changed after it was written, its SHA-256 is another: {AGAIN}")
    wrong = wrong or next(_contradictions(summary), None)
    if wrong is not None:
        raise InputError(f"{path} is damaged, {wrong}: {AGAIN}")
    return summary


def _of_another_version(path: Path, summary: Mapping[str, Any]) -> str:
    versions = summary.get("versions")
    writer = versions.get("bertjax") if isinstance(versions, dict) else None
    return (
        f"{path} has schema {str(summary.get('schema'))[:40]}, this bertjax reads {UNSEALED} and {SCHEMA}: read it "
        f"with the version that wrote it ({str(writer or 'unknown')[:40]}), or {AGAIN}"
    )


def verify(directory: Path, name: str, summary: Mapping[str, Any]) -> BinaryIO:
    """Open a file of the results once it is seen to be the one that was written with this summary.

    Args:
        directory: of the results.
        name: of the file.
        summary: of the directory; of version 1, which has no hashes, any file is taken.

    Raises:
        InputError: the file is missing, cannot be read, or is another one.
    """
    path, written = directory / name, summary.get("files", {}).get(name)
    try:
        file = open_file(path, InputError)
    except InputError as error:
        if not os.path.lexists(path):
            raise InputError(f"{path} is missing: {AGAIN}") from error
        raise
    if written is None:
        return file
    size = os.fstat(file.fileno()).st_size
    if size == written["bytes"] and hashlib.file_digest(file, "sha256").hexdigest() == written["sha256"]:
        file.seek(0)
        return file
    file.close()
    found = "its SHA-256 is another" if size == written["bytes"] else f"{size:,} bytes, not {written['bytes']:,}"
    raise InputError(
        f"{path} is not the file that {NAME} was written with ({found}): copy the results anew, or {AGAIN}"
    )


def _contradictions(summary: Mapping[str, Any]) -> Iterator[str]:
    """What no schema can say of a summary: its parts contradict each other; half lines."""
    metrics, entries, base = summary["metrics"], summary["ablations"], summary["base"]
    statistics = summary["statistics"]
    if unknown := [name for name in metrics if name not in METRICS]:
        yield f"metrics holds {unknown[0][:40]!r}, which bertjax does not have"
    if len(set(metrics)) < len(metrics) or metrics[0] != summary["metric"]["name"]:
        yield "metrics must name each metric once, and first that of metric"
    if set(base["scores"]) != set(metrics) or base["score"] != base["scores"][metrics[0]]:
        yield "base does not fit metrics"
    if statistics and set(statistics) != set(metrics):
        yield "statistics does not fit metrics"
    for number, entry in enumerate(entries):
        if wrong := _wrong_entry(entry, summary):
            yield f"ablations[{number}] {wrong}"


def _wrong_entry(entry: Mapping[str, Any], summary: Mapping[str, Any]) -> str | None:
    """What is wrong with one ablation, next to the metrics and the model's sizes."""
    model, base, metrics = summary["model"], summary["base"]["score"], summary["metrics"]
    layer, head, score, delta = (entry[name] for name in ("layer", "head", "score", "delta"))
    heads = [re.fullmatch(r"(\d{1,4})\.(\d{1,4})(=[a-z]+)?", name, re.ASCII) for name in entry["heads"]]
    if not heads or any(
        one is None or int(one[1]) >= model["layers"] or int(one[2]) >= model["heads"] for one in heads
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
