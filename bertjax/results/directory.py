"""A directory of results, read again: everything that is made of it later starts here, without the model."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from bertjax.errors import DataError, InputError
from bertjax.evidence import score
from bertjax.json_files import JsonError, parse_json
from bertjax.paths import is_there, user_path
from bertjax.results.arrays import Header, read_arrays
from bertjax.results.schema import load_schema, mismatch
from bertjax.results.summary import AGAIN, UNSEALED, read_summary, verify
from bertjax.results.table import SHORT, column, read_parquet
from bertjax.results.view import ResultsView

CHECKED = 5  # ablations whose scores are computed again


class UnsealedWarning(UserWarning):
    """Results that were written without hashes: what was changed in their files since cannot be noticed."""


@dataclass(frozen=True, repr=False)
class SavedResults(ResultsView):
    """What `bertjax ablate` wrote into a directory.

    Args:
        directory: where it is.
        summary: `summary.json`.
        rows: `results.parquet`.
    """

    directory: Path
    summary: dict[str, Any]
    rows: list[dict[str, Any]]

    def __repr__(self) -> str:
        return f"<SavedResults in {self.directory}: {self.title}>"

    @property
    def source(self) -> str:  # type: ignore[override]
        """The directory."""
        return str(self.directory)

    @cached_property
    def outputs(self) -> dict[str, Shaped[np.ndarray, "..."]]:
        """The arrays of `outputs.npz`: base, outputs, names, layer, head, ids, labels.

        Raises:
            InputError: the file is missing, damaged or of other results.
        """
        arrays = self._read_arrays("outputs.npz", self._wrong_outputs)
        if arrays["names"].tolist() != self.names:
            raise InputError(f"{self.directory}: summary.json and outputs.npz are of different results")
        self._check_scores(arrays)
        return arrays

    def _read_arrays(
        self, name: str, problem: Callable[[Mapping[str, Header]], str | None]
    ) -> dict[str, Shaped[np.ndarray, "..."]]:
        with verify(self.directory, name, self.summary) as file:
            return read_arrays(file, self.directory / name, problem)

    def _wrong_outputs(self, headers: Mapping[str, Header]) -> str | None:
        """What is wrong with the arrays of `outputs.npz`, by their headers."""
        examples, ablations = self.summary["data"]["examples"], len(self.names)
        labels = self.summary["data"]["label_names"]
        expected = {"names": ("U", ablations), "layer": ("iu", ablations), "head": ("iu", ablations)}
        expected |= {"ids": ("iuU", examples), "labels": ("iuf", examples)}
        if missing := [name for name in ("base", "outputs", *expected) if name not in headers]:
            return f"it lacks {', '.join(missing)}"
        logits = () if self.summary["outputs"] == "similarity" else (len(labels) or 1,)
        expected |= {"base": ("f", examples, *logits), "outputs": ("f", ablations, examples, *logits)}
        return _unlike(headers, expected)

    def _check_scores(self, arrays: dict[str, Shaped[np.ndarray, "..."]]) -> None:
        """Raise `InputError` where the outputs do not give the scores of the summary: base and some ablations."""
        rows = self.rows_of()
        some = np.linspace(0, len(rows) - 1, CHECKED).astype(int)
        outputs = np.concatenate([arrays["base"][None], arrays["outputs"][some]])
        try:
            found = score(self.metric, outputs, arrays["labels"], self.summary["positive"])
        except DataError as error:
            raise InputError(f"{self.directory}/outputs.npz is damaged ({error}): run the ablation again") from error
        expected = np.array([column(rows[:1], "base")[0], *column([rows[place] for place in some], "score")])
        if not np.allclose(found, expected, rtol=0, atol=1e-9, equal_nan=True):
            raise InputError(f"{self.directory}: summary.json and outputs.npz are of different results")

    @cached_property
    def attention(self) -> dict[str, Shaped[np.ndarray, "..."]]:  # type: ignore[override]
        """The arrays of `attention.npz`: tokens and weights of a few examples, base and largest effects.

        Raises:
            InputError: the file is missing, damaged or of other results.
        """
        arrays = self._read_arrays("attention.npz", self._wrong_attention)
        runs, kept = arrays["runs"].tolist(), arrays["examples"].tolist()
        if runs != ["base", *self._largest_effects()[: len(runs) - 1]]:
            raise InputError(f"{self.directory}: summary.json and attention.npz are of different results")
        sound = all(np.isfinite(array).all() for name, array in arrays.items() if name.startswith("weights_"))
        if not sound or not all(0 <= number < self.summary["data"]["examples"] for number in kept):
            raise InputError(f"{self.directory}/attention.npz is damaged: {AGAIN}")
        return arrays

    def _wrong_attention(self, headers: Mapping[str, Header]) -> str | None:
        """What is wrong with the arrays of `attention.npz`, by their headers."""
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
        if not texts or expected.keys() != headers.keys():
            return "it lacks tokens or weights of an example, or has some that are of none"
        return _unlike(headers, expected)

    def _largest_effects(self) -> list[str]:
        """The ablations from the largest effect by the main metric to the smallest."""
        entries = self.summary["ablations"]
        sizes = [-1.0 if entry["delta"] is None else abs(entry["delta"]) for entry in entries]
        return [entries[place]["name"] for place in sorted(range(len(sizes)), key=lambda place: -sizes[place])]

    @property
    def has_attention(self) -> bool:
        """Whether `attention.npz` is there; it is large, and a copy of the results may lack it."""
        return is_there(self.directory / "attention.npz", InputError)

    @cached_property
    def examples(self) -> list[dict[str, Any]]:  # type: ignore[override]
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


def read_results(directory: str | Path) -> SavedResults:
    """Read what `bertjax ablate` wrote.

    Raises:
        InputError: there are no results, they are damaged, were changed since they were written, or are of another
            version of bertjax.

    Warns:
        UnsealedWarning: they are of a version that did not write hashes.
    """
    directory = user_path(directory, InputError)
    if not is_there(directory / "summary.json", InputError):
        raise InputError(
            f"{directory} holds no results of `bertjax ablate`: there is no summary.json{_inside(directory)}"
        )
    summary = read_summary(directory)
    if summary["schema"] == UNSEALED:
        warnings.warn(
            f"{directory} was written by an earlier bertjax, without the hashes of its files: a number that was "
            "changed since could not be told from the others",
            UnsealedWarning,
            stacklevel=2,
        )
    path, metrics, entries = directory / "results.parquet", summary["metrics"], summary["ablations"]
    with verify(directory, path.name, summary) as file:
        rows = read_parquet(file, path, len(metrics) * len(entries))
    places = [(entry, metric) for entry in entries for metric in metrics]
    if not all(_same(row, *place, summary) for row, place in zip(rows, places, strict=True)):
        raise InputError(f"{directory}: summary.json and results.parquet are of different results")
    return SavedResults(directory, summary, rows)


def _same(row: Mapping[str, Any], entry: Mapping[str, Any], metric: str, summary: Mapping[str, Any]) -> bool:
    """Whether a row of the table is of this ablation and metric, with the same numbers."""
    main = metric == summary["metrics"][0]
    expected = {name: entry[name] for name in ("name", "layer", "head", "heads")}
    expected |= {"metric": metric, "main": main, "score": entry["scores"][metric]}
    expected |= {"base": summary["base"]["scores"][metric]}
    if main:
        expected["difference"] = entry["delta"]
        expected |= {name: entry["evidence"][name] for name in SHORT if "evidence" in entry}
    return all(row[name] == value for name, value in expected.items())


def _inside(directory: Path) -> str:
    """Which directories in this one hold results, as a hint; experiments leave one for each mode."""
    try:
        found = sorted(
            path.parent for path in directory.glob("*/summary.json") if (path.parent / "results.parquet").is_file()
        )
    except OSError:  # no hint then
        return ""
    return f"; there are results in {', '.join(map(str, found[:3]))}" if found else ""


def _unlike(headers: Mapping[str, Header], expected: Mapping[str, tuple[Any, ...]]) -> str | None:
    """Which array has another shape than expected, or values of another kind."""
    for name, (kinds, *shape) in expected.items():
        if not headers[name].is_like(kinds, *shape):
            return f"its array {name} is {headers[name].dtype} {list(headers[name].shape)}, not {shape}"
    return None


def _example(path: Path, number: int, line: bytes, classes: bool) -> dict[str, Any]:
    """One line of `examples.jsonl`."""
    try:
        found = parse_json(line.decode(), halves=True)
        wrong = mismatch(found, load_schema("example"))
    except (UnicodeDecodeError, JsonError) as error:
        wrong = str(error)
    if wrong is None and classes and not isinstance(found["label"], int | None):
        wrong = "label must be the number of a class"
    if wrong is not None:
        raise InputError(f"{path}, line {number}: {wrong}: {AGAIN}")
    return dict(found)
