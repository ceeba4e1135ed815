"""What a sweep leaves behind: a directory from which everything can be computed and drawn again.

    summary.json    provenance, base scores, one entry for each ablation with layer, head, score, delta
    outputs.npz     base [examples(, labels)], outputs [ablations, examples(, labels)], names, layer and head
                    [ablations] (head -1: the whole layer; layer -1 too: a set), ids and labels [examples]
    examples.jsonl  id, label and texts of each example, in the same order
    results.parquet one row for each ablation and metric: scores, intervals, tests (`rows.COLUMNS`)
    attention.npz   tokens and attention weights of a few examples, base and largest effects
    heads.png       the map (layers.png where whole layers were ablated, sets.png where other sets were)

`summary.json` is written last, with the SHA-256 of each of the others: where it is, the rest is complete.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Shaped

from bertjax.atomic_files import encode_json, made_directory, remove_leftovers, staged
from bertjax.data import Examples
from bertjax.engine import SweepResult
from bertjax.errors import InputError, OutputError
from bertjax.evidence import Evidence, describe_statistics, summarise
from bertjax.formatting import finite, to_json
from bertjax.plots import save_page
from bertjax.results.summary import describe_files, read_summary, seal
from bertjax.results.table import SCHEMA, SHORT, kind_of, make_rows, to_parquet
from bertjax.results.view import ResultsView, positive_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Settings that say how to write results, not which.
NOT_COMPARED = ("output", "overwrite", "resume", "memory", "distributed")
Place = tuple[str, int | None, int | None]
OUTPUTS = ("outputs.npz", "examples.jsonl")
DERIVED = ("summary.json", "results.parquet", "attention.npz", "heads.png", "layers.png", "sets.png")
FILES = (*OUTPUTS, *DERIVED)
WRITTEN = (*FILES, "report.html")


@dataclass(frozen=True)
class Entry:
    """The scores of one ablation.

    Args:
        name: '3.0' for a head, '3' for a whole layer, for other sets what they are called.
        heads: its heads, '3.0' or, where the mode is not the run's, '3.0=zero'.
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
        """By the main metric; NaN where it is undefined."""
        return next(iter(self.scores.values()))

    @property
    def delta(self) -> float:
        """Score minus base."""
        return self.score - self.base

    @property
    def effect(self) -> float:
        """Size of the change, -1 where it is undefined: for sorting."""
        return abs(self.delta) if math.isfinite(self.delta) else -1.0

    def to_dict(self) -> dict[str, Any]:
        """As in `summary.json`, where an undefined number is null."""
        place = {"name": self.name, "heads": list(self.heads), "layer": self.layer, "head": self.head}
        scores = {name: finite(value) for name, value in self.scores.items()}
        return {**place, "score": finite(self.score), "delta": finite(self.delta), "scores": scores}


@dataclass(frozen=True, repr=False)
class Results:
    """All that one job found.

    Args:
        provenance: where the results come from, and the base's scores by metric under 'base'.
        entries: one for each ablation.
        evidence: by metric, the main one first; none where fewer than two examples have a label.
        files: SHA-256 and size of each file, once they are written.
    """

    provenance: dict[str, Any]
    entries: list[Entry]
    evidence: dict[str, Evidence]
    swept: SweepResult
    examples: Examples
    attention: dict[str, Shaped[np.ndarray, "..."]]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    @cached_property
    def view(self) -> "_Fresh":
        """The same as `saved.read_results` gives for the directory."""
        lines = [json.loads(line) for line in _lines(self.examples).split("\n") if line]
        source = str(self.provenance["settings"]["output"])
        return _Fresh(source, make_summary(self), self.rows, self.attention, lines)

    @property
    def summary(self) -> dict[str, Any]:
        """As in `summary.json`."""
        return self.view.summary

    def plot(self, figure: str = "auto", **options: Any) -> "Figure":
        """A picture: see `view.ResultsView.plot`."""
        return self.view.plot(figure, **options)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`: see `view.ResultsView.to_pandas`."""
        return self.view.to_pandas()

    def __repr__(self) -> str:
        return f"<Results: {self.view.title}>"

    def _repr_html_(self) -> str:
        return self.view._repr_html_()

    @property
    def base(self) -> float:
        """The main score without ablation."""
        return float(self.provenance["base"][self.provenance["metric"]["name"]])

    @property
    def picture(self) -> str:
        """The picture's name: a map of heads, a bar for each layer, or bars for the sets that change most."""
        return f"{kind_of([entry.to_dict() for entry in self.entries])}s.png"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One for each ablation and metric: `rows.COLUMNS`."""
        return make_rows([entry.to_dict() for entry in self.entries], self.provenance["base"], self.evidence)

    @property
    def sentence(self) -> str:
        """How many ablations matter for sure, the extremes, and what cannot be told."""
        main = self.evidence.get(self.provenance["metric"]["name"])
        if main is None:
            return "fewer than two examples have a label: nothing can be said of chance."
        return summarise(
            main, [entry.name for entry in self.entries], kind_of([entry.to_dict() for entry in self.entries])
        )


@dataclass(frozen=True)
class _Fresh(ResultsView):
    """Results that were not read from files."""

    source: str
    summary: dict[str, Any]
    rows: list[dict[str, Any]]
    attention: dict[str, Shaped[np.ndarray, "..."]]
    examples: list[dict[str, Any]]


def check_directory(directory: Path, overwrite: bool, last: str = "summary.json", files: Sequence[str] = FILES) -> None:
    """Make sure that results can be written, before anything is computed; the directory itself is made later.

    Args:
        last: the file that is written last: where it is, there are results.
        files: all that may be written or removed.

    Raises:
        OutputError: it is no directory, cannot be written, holds a directory of the name of a file, or holds results
            and `overwrite` is false.
    """
    try:
        with made_directory(directory):
            probe = directory / f".bertjax-{os.getpid()}"
            probe.touch()
            probe.unlink()
            taken = [name for name in files if (directory / name).is_dir()]
    except (OSError, ValueError) as error:
        raise OutputError(f"cannot write to {directory}: {getattr(error, 'strerror', None) or error}") from error
    if taken:
        raise OutputError(f"cannot write to {directory}: {taken[0]} there is a directory; move it, or give --output")
    if (directory / last).exists() and not overwrite:
        raise OutputError(f"{directory} holds results already: give another --output, or --overwrite to replace them")


def read_complete(directory: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The summary of a directory that is complete; None where there is none.

    Args:
        settings: that it must have been made with; how it was to be written does not count.

    Raises:
        OutputError: it is unreadable, or was made with other settings.
    """
    path = directory / "summary.json"
    if not path.exists():
        return None
    try:
        summary = read_summary(directory)
    except InputError as error:
        raise OutputError(f"{str(error).removesuffix(': run the ablation again')}: --overwrite replaces it") from error
    there = summary["settings"]
    here = json.loads(json.dumps(dict(settings)))
    differing = [name for name in here if name not in NOT_COMPARED and there.get(name) != here[name]]
    if differing:
        what = "; ".join(f"{name} ({there.get(name)} there, {here[name]} here)" for name in differing)
        raise OutputError(f"{directory} holds results with other settings: {what}")
    return summary


def write_outputs(directory: Path, swept: SweepResult, examples: Examples, ablations: Sequence[Place]) -> None:
    """Write `outputs.npz` and `examples.jsonl`: what took the time to compute is safe before anything is made of it.

    Results that were there before are no longer complete then, so their `summary.json` goes first.

    Raises:
        OutputError: they cannot be written.
    """
    arrays = {
        "base": swept.base,
        "outputs": swept.outputs,
        "names": np.array([name for name, _, _ in ablations]),
        "layer": np.array([-1 if layer is None else layer for _, layer, _ in ablations], np.int32),
        "head": np.array([-1 if head is None else head for _, _, head in ablations], np.int32),
        "ids": np.array(examples.ids),
        "labels": examples.labels,
    }
    remove_leftovers(directory, WRITTEN)
    with staged(*(directory / name for name in OUTPUTS)) as (outputs, lines):
        np.savez_compressed(outputs, **arrays)  # type: ignore[arg-type]
        lines.write_text(_lines(examples), encoding="utf-8")
        for name in DERIVED:
            (directory / name).unlink(missing_ok=True)


def write_results(directory: Path, results: Results) -> Results:
    """Write what is made of the outputs, each file whole or not at all; `summary.json` last.

    Returns: the results, which know their files.

    Raises:
        OutputError: something cannot be written.
    """
    names = ("results.parquet", "attention.npz", results.picture, "summary.json")
    earlier = {name: directory / name for name in OUTPUTS}
    with staged(*(directory / name for name in names)) as (table, attention, drawn, summary):
        with table.open("wb") as file:  # opened here: the library takes no name that is not UTF-8
            to_parquet(results.rows, file)
        np.savez_compressed(attention, **results.attention)  # type: ignore[arg-type]
        save_page(results.plot(), drawn)
        written = dict(zip(names[:-1], (table, attention, drawn), strict=True))
        results = replace(results, files=describe_files(earlier | written))
        summary.write_bytes(encode_json(make_summary(results)))
    return results


def _lines(examples: Examples) -> str:
    seconds = examples.second or (None,) * len(examples)
    rows = zip(examples.ids, examples.labels.tolist(), examples.first, seconds, strict=True)
    return "".join(
        to_json({"id": name, "label": finite(label), "first": first} | ({} if second is None else {"second": second}))
        + "\n"
        for name, label, first, second in rows
    )


def make_summary(results: Results) -> dict[str, Any]:
    """What `summary.json` holds: `schemas/summary.json`."""
    base = {name: finite(value) for name, value in results.provenance["base"].items()}
    entries, main = [entry.to_dict() for entry in results.entries], results.provenance["metric"]["name"]
    names, kind = [entry.name for entry in results.entries], kind_of(entries)
    if main in results.evidence:
        short = [{name: row[name] for name in SHORT} for row in results.rows if row["main"]]
        entries = [entry | {"evidence": weighed} for entry, weighed in zip(entries, short, strict=True)]
    summary = {
        "schema": SCHEMA,
        **results.provenance,
        "positive_label": positive_name(results.provenance, results.provenance["metrics"]),
        "sentence": results.sentence,
        "statistics": {name: describe_statistics(one, names, kind) for name, one in results.evidence.items()},
        "base": {"score": finite(results.base), "scores": base},
        "ablations": entries,
        "files": results.files,
    }
    return seal(summary)
