"""The directory that a sweep leaves behind, from which everything can be recomputed and redrawn.

    summary.json    provenance, base scores, one entry for each ablation with layer, head, score, delta
    outputs.npz     base [examples(, labels)], outputs [ablations, examples(, labels)], names, layer and head
                    [ablations] (head -1: the whole layer; layer -1 too: a set), ids and labels [examples]; of masked
                    words base [words, 2] and outputs [ablations, words, 2] (log-probability, rank), labels, units (the
                    example of each) and places (its token) [words]
    examples.jsonl  id, label and texts of each example, in the same order
    results.parquet one row for each ablation and metric: scores, intervals, tests (`table.COLUMNS`)
    attention.npz   tokens and attention weights of a few examples, base and largest effects; of masked words also the
                    likeliest words there
    heads.png       the map (layers.png where whole layers were ablated, sets.png where other sets were, patches.png of
                    patches)

`summary.json` is written last, with the SHA-256 of each other file: where it exists, the rest is complete.
"""

import json
import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Num, Shaped

from bertjax.atomic_files import atomic_write, encode_json, made_directory, remove_leftovers, staged
from bertjax.data import Answers, Beside, Candidates, Choices, Examples, LabelSet, Tagged
from bertjax.errors import DataError, InputError, OutputError, some_of
from bertjax.evidence import score
from bertjax.formatting import finite, table_heads, table_name, to_json
from bertjax.json_files import JsonError, parse_json
from bertjax.paths import hash_file, is_there, user_path
from bertjax.plots import save_page
from bertjax.results.arrays import Header, read_arrays
from bertjax.results.contents import Arrays, InMemory, Stored, describe_analysis
from bertjax.results.results import Results
from bertjax.results.schema import load_schema, mismatch
from bertjax.results.summary import AGAIN, UNSEALED, describe_files, has_mark, read_recorded, read_summary, seal, verify
from bertjax.results.table import SHORT, Row, column, read_parquet, to_parquet

# Settings that affect how results are written, not what they are.
NOT_COMPARED = ("output", "overwrite", "resume", "memory", "distributed")
# Name, layer and head of an ablation.
Place = tuple[str, int | None, int | None]
OUTPUTS = ("outputs.npz", "examples.jsonl")
DERIVED = ("summary.json", "results.parquet", "attention.npz", "heads.png", "layers.png", "sets.png", "patches.png")
FILES = (*OUTPUTS, *DERIVED)
WRITTEN = (*FILES, "report.html")
# Exists while results are written, so that files which a killed process left are known to be bertjax's.
WRITING = ".bertjax-writing"
PICTURES = (".png", ".pdf", ".svg")
# What outputs of some kinds have beside them in `outputs.npz`: kinds of values, and axes by name or size.
RANKED: dict[str, tuple[str | int, ...]] = {
    **dict.fromkeys(("base_first", "base_rank"), ("iu", "examples")),
    **dict.fromkeys(("first", "rank"), ("iu", "ablations", "examples")),
}
DETAILS: dict[str, dict[str, tuple[str | int, ...]]] = {
    "words": {"units": ("iu", "words"), "places": ("iu", "words")},
    "tags": {
        **dict.fromkeys(("units", "places", "words", "true", "base_tags"), ("iu", "words")),
        "tags": ("iu", "ablations", "words"),
    },
    "answers": {"base_spans": ("iu", "examples", 2), "spans": ("iu", "ablations", "examples", 2)},
    **dict.fromkeys(("ranking", "scored-ranking"), RANKED),
}
CHECKED = 5  # ablations whose scores are recomputed


class UnsealedWarning(UserWarning):
    """Results were written without hashes, so later changes to their files cannot be detected."""


class _Files(Stored):
    """The large parts of a results directory, read on demand and verified to be what was written.

    Args:
        directory: of the results.
        summary: the content of `summary.json`.
        rows: the content of `results.parquet`.
    """

    directory: Path

    def __init__(self, directory: Path, summary: dict[str, Any], rows: Sequence[Row]):
        self.directory, self.summary, self.rows = directory, summary, rows

    @property
    def _names(self) -> list[str]:
        return [entry["name"] for entry in self.summary["ablations"]]

    @cached_property
    def outputs(self) -> Arrays:
        """The arrays of `outputs.npz`: base, outputs, names, layer, head, ids, labels.

        Raises:
            InputError: the file is missing, damaged or of other results.
        """
        arrays = self._read_arrays("outputs.npz", self._wrong_outputs)
        if arrays["names"].tolist() != self._names:
            raise InputError(f"{self.directory}: summary.json and outputs.npz are of different results")
        self._check_scores(arrays)
        return arrays

    def _read_arrays(self, name: str, problem: Callable[[Mapping[str, Header]], str | None]) -> Arrays:
        with verify(self.directory, name, self.summary) as file:
            return read_arrays(file, self.directory / name, problem)

    def _wrong_outputs(self, headers: Mapping[str, Header]) -> str | None:
        """What is wrong with the arrays of `outputs.npz`, judged by their headers; None if nothing is."""
        examples, ablations = self.summary["data"]["examples"], len(self._names)
        labels = self.summary["data"]["label_names"]
        expected: dict[str, tuple[Any, ...]] = {"names": ("U", ablations), "ids": ("iuU", examples)}
        expected |= {"layer": ("iu", ablations), "head": ("iu", ablations)}
        kind, sizes = self.summary["outputs"], {"ablations": ablations, "examples": examples}
        sizes["words"] = next(iter(headers["units"].shape), 0) if "units" in headers else 0  # of each example some
        rows = sizes["words"] if kind == "words" else examples
        for name, (letters, *axes) in DETAILS.get(kind, {}).items():
            expected[name] = (letters, *(sizes[axis] if isinstance(axis, str) else axis for axis in axes))
        expected |= {"labels": ("iuf", rows)}
        if missing := [name for name in ("base", "outputs", *expected) if name not in headers]:
            return f"it lacks {', '.join(missing)}"
        several = self.summary.get("numbers")
        numbers = (len(several),) if several else (len(labels) or 1,) if kind in ("logits", "choices") else ()
        expected |= {"base": ("f", rows, *numbers), "outputs": ("f", ablations, rows, *numbers)}
        return _unlike(headers, expected)

    def _check_scores(self, arrays: Arrays) -> None:
        """Raise `InputError` if the outputs do not reproduce the summary's scores of the base and some ablations."""
        metric = self.summary["metric"]["name"]
        if metric in self.summary.get("own_metrics", {}):
            return  # recomputing it needs the user's Metric
        rows = [row for row in self.rows if row.metric == metric]
        chosen = np.linspace(0, len(rows) - 1, CHECKED).astype(int)
        outputs = np.concatenate([arrays["base"][None], arrays["outputs"][chosen]])
        try:
            scores = score(metric, outputs, arrays["labels"], self.summary["positive"])
        except DataError as error:
            raise InputError(f"{self.directory}/outputs.npz is damaged ({error}): run the ablation again") from error
        expected = np.array([column(rows[:1], "base")[0], *column([rows[place] for place in chosen], "score")])
        if not np.allclose(scores, expected, rtol=0, atol=1e-9, equal_nan=True):
            raise InputError(f"{self.directory}: summary.json and outputs.npz are of different results")

    @cached_property
    def attention(self) -> Arrays:
        """The arrays of `attention.npz`: tokens and weights of a few examples, for the base and the largest effects.

        Raises:
            InputError: the file is missing, damaged or of other results.
        """
        arrays = self._read_arrays("attention.npz", self._wrong_attention)
        runs, positions = arrays["runs"].tolist(), arrays["examples"].tolist()
        if runs != ["base", *self._largest_effects()[: len(runs) - 1]]:
            raise InputError(f"{self.directory}: summary.json and attention.npz are of different results")
        all_finite = all(np.isfinite(array).all() for name, array in arrays.items() if name.startswith("weights_"))
        if not all_finite or not all(0 <= number < self.summary["data"]["examples"] for number in positions):
            raise InputError(f"{self.directory}/attention.npz is damaged: {AGAIN}")
        return arrays

    def _wrong_attention(self, headers: Mapping[str, Header]) -> str | None:
        """What is wrong with the arrays of `attention.npz`, judged by their headers; None if nothing is."""
        model = self.summary["model"]
        sizes = [headers[name].shape for name in ("examples", "runs") if name in headers]
        if len(sizes) < 2 or any(len(size) != 1 or not size[0] for size in sizes):
            return "it lacks examples and runs"
        (samples,), (runs,) = sizes
        texts = sum(name.startswith("tokens_0_") for name in headers)
        expected: dict[str, tuple[Any, ...]] = {"examples": ("iu", samples), "runs": ("U", runs)}
        for sample, text in product(range(min(samples, len(headers))), range(texts)):
            length = next(iter(headers.get(f"tokens_{sample}_{text}", Header((), np.dtype("U1"))).shape), 0)
            shape = (runs, model["layers"], model["heads"], length, length)
            expected |= {f"tokens_{sample}_{text}": ("U", length), f"weights_{sample}_{text}": ("f", *shape)}
        if self.summary["outputs"] == "words":
            for sample in range(min(samples, len(headers))):
                expected |= _guesses(headers, sample, runs)
        if not texts or expected.keys() != headers.keys():
            return "it lacks tokens or weights of an example, or has some that are of none"
        return _unlike(headers, expected)

    def _largest_effects(self) -> list[str]:
        """Names of the ablations from the largest effect on the main metric to the smallest."""
        entries = self.summary["ablations"]
        sizes = [-1.0 if entry["delta"] is None else abs(entry["delta"]) for entry in entries]
        return [entries[place]["name"] for place in sorted(range(len(sizes)), key=lambda place: -sizes[place])]

    @property
    def has_attention(self) -> bool:
        """Whether `attention.npz` exists; it is large, so a copy of the results may lack it."""
        return is_there(self.directory / "attention.npz", InputError)

    @cached_property
    def examples(self) -> Sequence[Mapping[str, Any]]:
        """Id, label and texts of each example.

        Raises:
            InputError: `examples.jsonl` is missing or damaged.
        """
        path, count = self.directory / "examples.jsonl", self.summary["data"]["examples"]
        with verify(self.directory, path.name, self.summary) as file:
            lines = file.read().split(b"\n")
        if lines.pop() or len(lines) != count:
            raise InputError(f"{path} has {len(lines)} examples, the results {count}: {AGAIN}")
        classes = bool(self.summary["data"]["label_names"])
        return [_example(path, number, line, classes) for number, line in enumerate(lines, start=1)]


def read_results(directory: str | Path) -> Results:
    """Read what `bertjax ablate` wrote.

    Raises:
        InputError: there are no results, or they are damaged, were changed since they were written, or come from
            another version of bertjax.

    Warns:
        UnsealedWarning: they come from a version that did not write hashes.
    """
    directory = user_path(directory, InputError)
    if not is_there(directory / "summary.json", InputError):
        raise InputError(
            f"{directory} holds no results of `bertjax ablate`: there is no summary.json{_inside(directory)}"
        )
    summary = read_summary(directory)
    if summary["schema"] == UNSEALED:
        warnings.warn(
            f"{directory} was written by an earlier bertjax, without the hashes of its files: "
            "numbers changed since then cannot be detected",
            UnsealedWarning,
            stacklevel=2,
        )
    path, metrics, entries = directory / "results.parquet", summary["metrics"], summary["ablations"]
    with verify(directory, path.name, summary) as file:
        rows = read_parquet(file, path, len(metrics) * len(entries))
    keys = [(entry, metric) for entry in entries for metric in metrics]
    rows = [_with_plain_names(row, entry) for row, (entry, _) in zip(rows, keys, strict=True)]
    if not all(_same(row, *key, summary) for row, key in zip(rows, keys, strict=True)):
        raise InputError(f"{directory}: summary.json and results.parquet are of different results")
    return Results(summary, rows, _Files(directory, summary, rows))


def _with_plain_names(row: Row, entry: Mapping[str, Any]) -> Row:
    """A row of the table with the names of heads as the summary has them, where it names the same ablation."""
    written = table_name(entry["name"], entry["heads"], entry["layer"]), table_heads(entry["heads"])
    if (row.name, [*row.heads]) != written:
        return row
    return replace(row, name=entry["name"], heads=entry["heads"])


def _same(row: Row, entry: Mapping[str, Any], metric: str, summary: Mapping[str, Any]) -> bool:
    """Whether a row of the table holds this ablation and metric with the same numbers."""
    main = metric == summary["metrics"][0]
    expected = {name: entry[name] for name in ("name", "layer", "head", "heads")}
    expected |= {"metric": metric, "main": main, "score": entry["scores"][metric]}
    expected |= {"base": summary["base"]["scores"][metric]}
    if main:
        expected["difference"] = entry["delta"]
        expected |= {name: entry["evidence"][name] for name in SHORT if "evidence" in entry}
    return all(getattr(row, name) == value for name, value in expected.items())


def _inside(directory: Path) -> str:
    """A hint naming subdirectories that hold results; experiments leave one for each mode."""
    try:
        directories = sorted(
            path.parent for path in directory.glob("*/summary.json") if (path.parent / "results.parquet").is_file()
        )
    except OSError:  # then give no hint
        return ""
    return f"; there are results in {', '.join(map(str, directories[:3]))}" if directories else ""


def _guesses(headers: Mapping[str, Header], sample: int, runs: int) -> dict[str, tuple[Any, ...]]:
    """The arrays of a text's masked words and the best guesses at them."""
    words, guesses = (*headers.get(f"guesses_{sample}", Header((), np.dtype("U1"))).shape[1:], 0, 0)[:2]
    several = (runs, words, guesses)
    return {
        f"masked_{sample}": ("iu", words),
        f"truth_{sample}": ("U", words),
        f"guesses_{sample}": ("U", *several),
        f"chances_{sample}": ("f", *several),
    }


def _unlike(headers: Mapping[str, Header], expected: Mapping[str, tuple[Any, ...]]) -> str | None:
    """The first array whose shape or kind is not the expected one, as a phrase; None if all match."""
    for name, (kinds, *shape) in expected.items():
        if not headers[name].is_like(kinds, *shape):
            return f"its array {name} is {headers[name].dtype} {list(headers[name].shape)}, not {shape}"
    return None


def _example(path: Path, number: int, line: bytes, classes: bool) -> dict[str, Any]:
    """The example in one line of `examples.jsonl`."""
    try:
        example = parse_json(line.decode())
        fault = mismatch(example, load_schema("example"))
    except (UnicodeDecodeError, JsonError) as error:
        fault = str(error)
    if fault is None and classes and not isinstance(example["label"], int | None):
        fault = "label must be the number of a class"
    if fault is not None:
        raise InputError(f"{path}, line {number}: {fault}: {AGAIN}")
    return dict(example)


def check_directory(
    directory: Path, overwrite: bool, last: str = "summary.json", files: Sequence[str] = WRITTEN
) -> None:
    """Check that results can be written, before anything is computed; the directory itself is made later.

    Args:
        last: the file that is written last; it exists only if there are results.
        files: all files that may be written or removed.

    Raises:
        OutputError: it is not a directory, cannot be written, holds a directory with the name of a file, holds
            results and `overwrite` is false, or holds a file of such a name that bertjax did not write.
    """
    try:
        with made_directory(directory):
            probe = directory / f".bertjax-{os.getpid()}"
            probe.touch()
            probe.unlink()
            blocked = [name for name in files if (directory / name).is_dir()]
            present = [name for name in files if os.path.lexists(directory / name)]
            unfinished = is_being_written(directory)
    except (OSError, ValueError) as error:
        raise OutputError(f"cannot write to {directory}: {getattr(error, 'strerror', None) or error}") from error
    if blocked:
        raise OutputError(f"cannot write to {directory}: {blocked[0]} there is a directory; move it, or give --output")
    complete = read_recorded(directory / last) if last in present else None
    if complete is not None and not overwrite:
        raise OutputError(f"{directory} holds results already: give another --output, or --overwrite to replace them")
    foreign = [] if unfinished else _foreign(directory, present, complete)
    if foreign:
        changed = "" if complete is None else ", or not as it is now"
        raise OutputError(
            f"{directory} holds {some_of(foreign)}, which bertjax did not write{changed}: move it away, or give "
            "another --output"
        )


def is_being_written(directory: Path) -> bool:
    """Whether bertjax has begun to write results in this directory and has not finished."""
    return (directory / WRITING).exists()


def _foreign(directory: Path, present: Sequence[str], complete: Mapping[str, Any] | None) -> list[str]:
    """Which files were not written by bertjax, or were replaced since.

    Args:
        present: names of results that are in the directory.
        complete: the content of the file that is written last; None if there are no results.
    """
    if complete is None:
        return [*present]
    recorded = complete.get("files")
    if not isinstance(recorded, dict):  # by an earlier version, or an experiment: without hashes
        return []
    foreign = []
    for name in present:
        if name in ("summary.json", "report.html"):  # the page is written later, and has a mark of its own
            continue
        path, known = directory / name, recorded.get(name)
        if known is None and path.suffix in PICTURES and not path.is_symlink() and has_mark(path):
            continue  # of `bertjax plot`
        if path.is_symlink() or not isinstance(known, dict) or hash_file(path, OutputError) != known.get("sha256"):
            foreign.append(name)
    return foreign


def read_complete(directory: Path, settings: Mapping[str, Any], analysis: Mapping[str, Any]) -> dict[str, Any] | None:
    """The summary of a complete directory; None where there is no summary.

    Args:
        settings: the settings it must have been made with; those in `NOT_COMPARED` may differ.
        analysis: name and options of the analysis it must have been made by.

    Raises:
        OutputError: it is unreadable, or was made by another analysis or with other settings.
    """
    path = directory / "summary.json"
    if not path.exists() or read_recorded(path) is None:
        return None
    try:
        summary = read_summary(directory)
    except InputError as error:
        raise OutputError(f"{str(error).removesuffix(': run the ablation again')}: move it away") from error
    there, here = describe_analysis(summary), analysis
    advice = "give another --output, or --overwrite to replace them"
    if "analysis" not in summary:
        raise OutputError(f"{directory} holds results already, of an earlier version of bertjax: {advice}")
    if there["name"] != here["name"]:
        raise OutputError(f"{directory} holds results already, of {there['name']}, not of {here['name']}: {advice}")
    differing = _differing(summary["settings"], json.loads(json.dumps(dict(settings))))
    differing += _differing(there["options"], here["options"])
    if differing:
        raise OutputError(f"{directory} holds results already, with other settings: {'; '.join(differing)}: {advice}")
    return summary


def _differing(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Settings that differ, each as a phrase; an earlier version did not have those that it did not record."""
    return [
        f"{name} ({recorded.get(name)} there, {value} here)"
        for name, value in current.items()
        if name not in NOT_COMPARED and recorded.get(name) != value and (name in recorded or value not in (None, False))
    ]


def output_arrays(
    base: Shaped[np.ndarray, "outputs ..."],
    outputs: Shaped[np.ndarray, "ablations outputs ..."],
    examples: Examples,
    ablations: Sequence[Place],
    labels: Num[np.ndarray, " outputs"] | None = None,
    details: Mapping[str, Shaped[np.ndarray, "..."]] = MappingProxyType({}),
) -> dict[str, Shaped[np.ndarray, "..."]]:
    """The arrays of `outputs.npz`.

    Args:
        base, outputs: of a sweep.
        ablations: name, layer and head of each; None where there is no single layer or head.
        labels: of the outputs; None for those of the examples.
        details: what else is kept, by name (`DETAILS`).
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
    """The content of `examples.jsonl`: id, label and texts of each example, and what else a task's examples have.

    Args:
        arrays: as in `outputs.npz`; of candidates only those that some run puts first are told, and relevant ones.
    """
    seconds = examples.second or (None,) * len(examples)
    rows = zip(examples.ids, examples.labels.tolist(), examples.first, seconds, strict=True)
    lines = [
        {"id": name, "label": finite(label), "first": first} | ({} if second is None else {"second": second})
        for name, label, first, second in rows
    ]
    for place, (line, content) in enumerate(zip(lines, examples.content or (), strict=False)):
        if isinstance(content, Candidates):
            line["candidates"] = _describe_candidates(content, _first_candidates(arrays, place))
        elif isinstance(content, Answers):
            line["answers"] = [*content.texts]
        elif isinstance(content, Choices):
            line["choices"] = [*content.texts]
        elif isinstance(content, LabelSet) and content.labels is not None:
            line["labels"] = [*content.labels]
        elif isinstance(content, Beside):
            line["beside"] = dict(content.texts)
        elif isinstance(content, Tagged):
            line |= {"words": [*content.words], "tags": [*content.tags]}
    for line, group in zip(lines, examples.groups or (), strict=False):
        line |= {"group": group}
    return lines


def _first_candidates(arrays: Arrays, place: int) -> set[int]:
    """Numbers of the candidates of an example that some run puts first; none where outputs are no rankings."""
    if "first" not in arrays:
        return set()
    return {*arrays["first"][:, place].tolist(), int(arrays["base_first"][place])}


def _describe_candidates(sought: Candidates, firsts: Collection[int]) -> list[dict[str, Any]]:
    """Relevant candidates, and those that some run puts first: number and name, text and relevance."""
    pool = sought.pool
    return [
        {"number": number, "name": name, "text": text, "relevance": sought.relevance.get(name, 0)}
        for number, (name, text) in enumerate(zip(pool.names, pool.texts, strict=True))
        if name != sought.excluded and (number in firsts or name in sought.relevance)
    ]


def write_outputs(directory: Path, outputs: Arrays, examples: Sequence[Mapping[str, Any]]) -> None:
    """Write `outputs.npz` and `examples.jsonl`, so that what took long to compute is safe before any use of it.

    Earlier results in the directory are then no longer complete, so their `summary.json` is removed first.

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


def write_results(directory: Path, results: Results) -> Results:
    """Write everything derived from the outputs, each file atomically, `summary.json` last.

    Returns: the results with their directory and the hashes of its files.

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
        sealed = seal(results.summary | {"files": describe_files(output_paths | result_paths)})
        summary.write_bytes(encode_json(sealed))
    (directory / WRITING).unlink(missing_ok=True)
    stored = InMemory(results.outputs, results.attention, results.examples, directory)
    return Results(sealed, results.rows, stored)
