"""Read and write a directory of results.

    summary.json    provenance, base scores, one entry for each ablation with layer, head, score, delta
    outputs.npz     base [examples(, labels)], outputs [ablations, examples(, labels)], names, layer and head
                    [ablations] (head -1: the whole layer; layer -1 too: a set), ids and labels [examples]; of masked
                    words base [words, 2] and outputs [ablations, words, 2] (log-probability, rank), labels, units (the
                    example of each word) and places (its token) [words]
    examples.jsonl  id, label and texts of each example, in the same order
    results.parquet one row for each ablation and metric: scores, intervals, tests (`table.COLUMNS`)
    attention.npz   tokens and attention weights of a few examples, base and largest effects; of masked words also the
                    most likely words
    heads.png       the figure (layers.png of whole layers, sets.png of other sets, patches.png of patches)

`summary.json` is written last, with the SHA-256 of each other file: if it exists, the other files are complete.
"""

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import msgspec
import numpy as np
from jaxtyping import Num, Shaped

from bertjax.atomic_files import atomic_write, encode_json, made_directory, remove_leftovers, staged
from bertjax.data import Examples
from bertjax.errors import InputError, OutputError, reading, some_of
from bertjax.formatting import finite, table_name, to_json
from bertjax.paths import hash_file, is_there, user_path
from bertjax.plots import save_page
from bertjax.results.contents import Arrays, InMemory, Stored, describe_analysis
from bertjax.results.results import Results
from bertjax.results.schema import Example
from bertjax.results.shards import discard_shard, refuse_shard
from bertjax.results.summary import (
    AGAIN,
    NAME,
    WITHOUT_HASHES,
    has_mark,
    hash_files,
    open_verified,
    read_recorded,
    read_summary,
)
from bertjax.results.table import read_parquet, to_parquet

# Settings that do not change the results.
NOT_COMPARED = ("output", "overwrite", "resume", "memory", "shard")
# Name, layer and head of an ablation.
AblationName = tuple[str, int | None, int | None]
OUTPUTS = ("outputs.npz", "examples.jsonl")
DERIVED = ("summary.json", "results.parquet", "attention.npz", "heads.png", "layers.png", "sets.png", "patches.png")
FILES = (*OUTPUTS, *DERIVED)
WRITTEN = (*FILES, "report.html")
# Exists while results are written, which shows that files left by a killed process are bertjax's.
WRITING = ".bertjax-writing"
PICTURES = (".png", ".pdf", ".svg")
NAMED_AS_IN_SUMMARIES = 2  # the last schema in which tables name heads 3.10


class WithoutHashesWarning(UserWarning):
    """Results were written without hashes, so later changes to their files cannot be detected."""


class _Files(Stored):
    """The large parts of a directory of results, read when they are needed and verified by their hashes."""

    directory: Path

    def __init__(self, directory: Path, summary: dict[str, Any]):
        self.directory, self.summary = directory, summary

    @cached_property
    def outputs(self) -> Arrays:  # type: ignore[override]
        """The arrays of `outputs.npz`."""
        path, names = self.directory / "outputs.npz", [entry["name"] for entry in self.summary["ablations"]]
        with open_verified(path, self.summary) as file:
            arrays = _arrays(file)
            base, outputs = arrays["base"], arrays["outputs"]
            fits = arrays["names"].tolist() == names and outputs.shape == (len(names), *base.shape)
            fits = fits and len(arrays["ids"]) == self.summary["data"]["examples"]
            if not fits or len(arrays["labels"]) != len(base):
                raise InputError(f"{path} and {NAME} are of different results: {AGAIN}")
        return arrays

    @cached_property
    def attention(self) -> Arrays:  # type: ignore[override]
        """The arrays of `attention.npz`."""
        path, model = self.directory / "attention.npz", self.summary["model"]
        with open_verified(path, self.summary) as file:
            arrays = _arrays(file)
            examples, shape = arrays["examples"], (len(arrays["runs"]), model["layers"], model["heads"])
            fits = bool(((examples >= 0) & (examples < self.summary["data"]["examples"])).all())
            for name in (name for name in arrays if name.startswith("weights_")):
                tokens = len(arrays[name.replace("weights", "tokens")])
                fits = fits and arrays[name].shape == (*shape, tokens, tokens)
            if not fits:
                raise InputError(f"{path} and {NAME} are of different results: {AGAIN}")
        return arrays

    @property
    def has_attention(self) -> bool:
        """Whether `attention.npz` exists."""
        return is_there(self.directory / "attention.npz", InputError)

    @cached_property
    def examples(self) -> Sequence[Mapping[str, Any]]:  # type: ignore[override]
        """The lines of `examples.jsonl`."""
        path, count = self.directory / "examples.jsonl", self.summary["data"]["examples"]
        with open_verified(path, self.summary) as file:
            examples: list[dict[str, Any]] = [json.loads(line) for line in file]
            msgspec.convert(examples, list[Example])
            if len(examples) != count:
                raise InputError(f"{path} has {len(examples)} examples, the results {count}: {AGAIN}")
        return examples


def _arrays(file: BinaryIO) -> dict[str, Shaped[np.ndarray, "..."]]:
    """All arrays of an `.npz` file; no code in it is executed."""
    with np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


def read_results(directory: str | Path) -> Results:
    """Read a directory of results.

    Args:
        directory: the output directory of a command, or of a call with `output=`.

    Raises:
        InputError: there are no results, or they are damaged, were changed since they were written, or come from an
            incompatible version of bertjax.

    Warns:
        WithoutHashesWarning: the results come from a version that did not write hashes.
    """
    directory = user_path(directory, InputError)
    if not is_there(directory / NAME, InputError):
        refuse_shard(directory)
        _refuse_unfinished(directory)
        raise InputError(f"{directory} has no results of `bertjax ablate`: there is no {NAME}{_inside(directory)}")
    summary = read_summary(directory)
    if summary["schema"] == WITHOUT_HASHES:
        warnings.warn(
            f"{directory} was written by an earlier bertjax, without hashes of its files: "
            "changed numbers cannot be detected",
            WithoutHashesWarning,
            stacklevel=2,
        )
    # Summaries name heads 3.10, tables L3H10 since schema 3.
    entries = [entry for entry in summary["ablations"] for _ in summary["metrics"]]
    path = directory / "results.parquet"
    with open_verified(path, summary) as file:
        rows = read_parquet(file)
    if len(rows) != len(entries):
        raise InputError(f"{path} has {len(rows)} rows, {NAME} has {len(entries)}: {AGAIN}")
    if summary["schema"] > NAMED_AS_IN_SUMMARIES and any(
        row.name != table_name(entry["name"], entry["heads"], entry["layer"])
        for row, entry in zip(rows, entries, strict=True)
    ):
        raise InputError(f"{path} and {NAME} name other ablations: {AGAIN}")
    rows = [replace(row, name=entry["name"], heads=entry["heads"]) for row, entry in zip(rows, entries, strict=True)]
    return Results(summary, rows, _Files(directory, summary))


def _refuse_unfinished(directory: Path) -> None:
    """Raise `InputError` if a directory holds the journal of an unfinished run."""
    with reading(directory, InputError):
        journals = map(read_recorded, directory.glob("*/journal.json"))
        facts = next((dict(journal["facts"]) for journal in journals if journal), None)
    if facts is not None:
        shard = facts.get("shard")
        run = f"an unfinished run of shard {shard}" if shard else "an unfinished run"
        raise InputError(f"{directory} has {run}, not results: run the same command again to resume it")


def _inside(directory: Path) -> str:
    """A hint with subdirectories that have results, such as one for each mode."""
    try:
        directories = sorted(
            path.parent for path in directory.glob("*/summary.json") if (path.parent / "results.parquet").is_file()
        )
    except OSError:  # then give no hint
        return ""
    return f"; there are results in {', '.join(map(str, directories[:3]))}" if directories else ""


def check_directory(directory: Path, overwrite: bool) -> None:
    """Check before a run that its results can be written; the directory is made later.

    Args:
        directory: the output directory.
        overwrite: whether results in the directory may be replaced.

    Raises:
        OutputError: the path is not a directory or cannot be written, a file to be written is a directory there, or
            bertjax did not write it, or results exist and `overwrite` is false.
    """
    try:
        with made_directory(directory):
            probe = directory / f".bertjax-{os.getpid()}"
            probe.touch()
            probe.unlink()
            blocked = [name for name in WRITTEN if (directory / name).is_dir()]
            present = [name for name in WRITTEN if os.path.lexists(directory / name)]
            unfinished = is_being_written(directory)
    except (OSError, ValueError) as error:
        raise OutputError(f"cannot write to {directory}: {getattr(error, 'strerror', None) or error}") from error
    if blocked:
        raise OutputError(f"cannot write to {directory}: {blocked[0]} is a directory; move it, or give --output")
    complete = read_recorded(directory / "summary.json") if "summary.json" in present else None
    if complete is not None and not overwrite:
        raise OutputError(f"{directory} already has results: give another --output, or --overwrite to replace them")
    foreign = [] if unfinished else _foreign(directory, present, complete)
    if foreign:
        changed = "" if complete is None else ", or which was changed"
        raise OutputError(
            f"{directory} has {some_of(foreign)}, which bertjax did not write{changed}: move it away, or give another "
            "--output"
        )


def is_being_written(directory: Path) -> bool:
    """Whether bertjax started to write results in a directory and did not finish."""
    return (directory / WRITING).exists()


def _foreign(directory: Path, present: Sequence[str], complete: Mapping[str, Any] | None) -> list[str]:
    """The files that bertjax did not write, or that were replaced.

    Args:
        present: the names of files of results in the directory.
        complete: the content of the file that is written last; None if there are no complete results.
    """
    if complete is None:
        return [*present]
    recorded = complete.get("files")
    if not isinstance(recorded, dict):  # written without hashes, by an earlier version or an experiment
        return []
    foreign = []
    for name in present:
        if name in ("summary.json", "report.html"):  # the page is written later, and has a mark
            continue
        path, known = directory / name, recorded.get(name)
        if known is None and path.suffix in PICTURES and not path.is_symlink() and has_mark(path):
            continue  # of `bertjax plot`
        if path.is_symlink() or not isinstance(known, dict) or hash_file(path, OutputError) != known.get("sha256"):
            foreign.append(name)
    return foreign


def read_complete(directory: Path, settings: Mapping[str, Any], analysis: Mapping[str, Any]) -> dict[str, Any] | None:
    """The summary of complete results in a directory; None if there are none.

    Args:
        directory: the output directory.
        settings: the settings that the results must have, except those in `NOT_COMPARED`.
        analysis: the name and options of the analysis that the results must have.

    Raises:
        OutputError: the results are unreadable, or of another analysis or other settings.
    """
    path = directory / "summary.json"
    if not path.exists() or read_recorded(path) is None:
        return None
    try:
        summary = read_summary(directory)
    except InputError as error:
        raise OutputError(f"{error}, or move it away") from error
    found = describe_analysis(summary)
    advice = "give another --output, or --overwrite to replace them"
    if "analysis" not in summary:
        raise OutputError(f"{directory} already has results of an earlier version of bertjax: {advice}")
    if found["name"] != analysis["name"]:
        raise OutputError(f"{directory} already has results of {found['name']}, not of {analysis['name']}: {advice}")
    differing = _differing(summary["settings"], json.loads(json.dumps(dict(settings))))
    differing += _differing(found["options"], analysis["options"])
    if differing:
        raise OutputError(f"{directory} already has results with other settings: {'; '.join(differing)}: {advice}")
    return summary


def _differing(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Settings that differ, each as a phrase; a setting that was not recorded had its default."""
    return [
        f"{name} ({recorded.get(name)} there, {value} here)"
        for name, value in current.items()
        if name not in NOT_COMPARED and recorded.get(name) != value and (name in recorded or value not in (None, False))
    ]


def output_arrays(
    base: Shaped[np.ndarray, "outputs ..."],
    outputs: Shaped[np.ndarray, "ablations outputs ..."],
    examples: Examples,
    ablations: Sequence[AblationName],
    labels: Num[np.ndarray, " outputs"] | None = None,
    details: Mapping[str, Shaped[np.ndarray, "..."]] = MappingProxyType({}),
) -> dict[str, Shaped[np.ndarray, "..."]]:
    """The arrays of `outputs.npz`.

    Args:
        base: the outputs without ablation.
        outputs: the outputs with each ablation.
        examples: the examples of the task.
        ablations: name, layer and head of each; None if there is no single layer or head.
        labels: the labels of the outputs; None for the labels of the examples.
        details: further arrays by name.
    """
    return {
        "base": base,
        "outputs": outputs,
        "names": np.array([name for name, _, _ in ablations]),
        "layer": np.array([-1 if layer is None else layer for _, layer, _ in ablations], np.int32),
        "head": np.array([-1 if head is None else head for _, _, head in ablations], np.int32),
        "ids": np.array(examples.ids),
        "labels": examples.labels if labels is None else labels,
        **details,
    }


def describe_examples(examples: Examples, arrays: Arrays) -> list[dict[str, Any]]:
    """The content of `examples.jsonl`: id, label and texts of each example, and the fields of its content.

    Args:
        examples: the examples of the task.
        arrays: the arrays of `outputs.npz`; they decide which candidates of a query are included.
    """
    missing = (None,) * len(examples)
    rows = zip(
        examples.ids,
        examples.labels.tolist(),
        examples.first,
        examples.second or missing,
        examples.groups or missing,
        examples.content or missing,
        strict=True,
    )
    lines = []
    for index, (name, label, first, second, group, content) in enumerate(rows):
        optional = {key: value for key, value in (("second", second), ("group", group)) if value is not None}
        optional |= content.describe(arrays, index) if content is not None else {}
        lines.append(msgspec.to_builtins(Example(id=name, label=finite(label), first=first, **optional)))
    return lines


def write_outputs(directory: Path, outputs: Arrays, examples: Sequence[Mapping[str, Any]]) -> None:
    """Write `outputs.npz` and `examples.jsonl` before any use of the outputs, so that a failure does not lose them.

    Earlier results in the directory are then no longer complete, so their `summary.json` or `shard.json` is removed.

    Args:
        directory: the output directory.
        outputs: the arrays of `outputs.npz`.
        examples: the objects of `examples.jsonl`.

    Raises:
        OutputError: they cannot be written.
    """
    remove_leftovers(directory, WRITTEN)
    if not is_being_written(directory):
        atomic_write(directory / WRITING, b"")
    with staged(*(directory / name for name in OUTPUTS)) as (arrays, lines):
        np.savez_compressed(arrays, **outputs)  # type: ignore[arg-type]
        lines.write_text("".join(f"{to_json(dict(example))}\n" for example in examples), encoding="utf-8")
        for name in DERIVED:
            (directory / name).unlink(missing_ok=True)
        discard_shard(directory)


def write_results(directory: Path, results: Results) -> Results:
    """Write the other files, each atomically, `summary.json` last.

    Args:
        directory: the output directory.
        results: the computed results.

    Returns:
        The results with their directory and the hashes of its files.

    Raises:
        OutputError: a file cannot be written.
    """
    names = ("results.parquet", "attention.npz", results.picture, "summary.json")
    output_paths = {name: directory / name for name in OUTPUTS}
    with staged(*(directory / name for name in names)) as (table, attention, picture, summary):
        with table.open("wb") as file:  # opened here: the library rejects file names that are not UTF-8
            to_parquet(results.rows, file)
        np.savez_compressed(attention, **results.attention)  # type: ignore[arg-type]
        save_page(results.plot(), picture)
        result_paths = dict(zip(names[:-1], (table, attention, picture), strict=True))
        written = results.summary | {"files": msgspec.to_builtins(hash_files(output_paths | result_paths))}
        summary.write_bytes(encode_json(written))
    (directory / WRITING).unlink(missing_ok=True)
    stored = InMemory(results.outputs, results.attention, results.examples, directory)
    return Results(written, results.rows, stored)
