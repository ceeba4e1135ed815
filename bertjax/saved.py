"""A directory of results, read again: everything that is made of it later starts here, without the model."""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Shaped

from bertjax.errors import InputError
from bertjax.findings import format_p
from bertjax.page import format_change
from bertjax.rows import SCHEMA, column, read_parquet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 10  # ablations in a notebook's table


@dataclass(frozen=True)
class SavedResults:
    """What `bertjax ablate` wrote into a directory.

    Args:
        directory: where it is.
        summary: `summary.json`.
        rows: `results.parquet`, a mapping for each ablation and metric (`rows.COLUMNS`).
    """

    directory: Path
    summary: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def kind(self) -> str:
        """What an ablation is: 'head', 'layer' or 'set'."""
        entries = self.summary["ablations"]
        if all(entry["head"] is not None for entry in entries):
            return "head"
        return "layer" if all(entry["layer"] is not None and entry["head"] is None for entry in entries) else "set"

    @property
    def metric(self) -> str:
        """The main metric's name."""
        return str(self.summary["metric"]["name"])

    @property
    def names(self) -> list[str]:
        """Of all ablations, in order."""
        return [entry["name"] for entry in self.summary["ablations"]]

    def rows_of(self, metric: str | None = None) -> list[dict[str, Any]]:
        """The rows of a metric, by default the main one, in the order of the ablations.

        Raises:
            InputError: the results have no such metric.
        """
        wanted = metric or self.metric
        if wanted not in self.summary["metrics"]:
            raise InputError(f"{self.directory} has no metric {wanted!r}: {', '.join(self.summary['metrics'])}")
        found = [row for row in self.rows if row["metric"] == wanted]
        if not found:
            raise InputError(f"{self.directory}: fewer than two examples have a label, so there is nothing to weigh")
        return found

    def points(self, name: str = "difference", metric: str | None = None) -> Float[np.ndarray, " ablations"]:
        """A column of a metric in points, 100 times what it holds; NaN where it is undefined."""
        return 100 * column(self.rows_of(metric), name)

    @cached_property
    def outputs(self) -> dict[str, Shaped[np.ndarray, "..."]]:
        """The arrays of `outputs.npz`: base, outputs, names, layer, head, ids, labels."""
        return _read_arrays(self.directory / "outputs.npz")

    @cached_property
    def attention(self) -> dict[str, Shaped[np.ndarray, "..."]]:
        """The arrays of `attention.npz`: tokens and weights of a few examples, base and largest effects."""
        return _read_arrays(self.directory / "attention.npz")

    @cached_property
    def examples(self) -> list[dict[str, Any]]:
        """Id, label and texts of each example.

        Raises:
            InputError: `examples.jsonl` is missing or damaged.
        """
        path = self.directory / "examples.jsonl"
        try:
            return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read ({error}): run the ablation again") from error

    @property
    def title(self) -> str:
        """Model, data and mode in a line."""
        summary = self.summary
        data = f"{summary['data']['task']}, {summary['data']['examples']:,} examples"
        return f"{summary['model']['name']} on {data}, mode {summary['mode']['name']}"

    def plot(self, figure: str = "auto", **options: Any) -> "Figure":
        """A picture: 'map', 'ranking', 'layers' or 'attention'; 'auto' is what suits these ablations.

        Args:
            options: those of the picture's function in `figures`.
        """
        from bertjax.figures import make_figure

        return make_figure(self, figure, **options)

    def _repr_html_(self) -> str:
        """For notebooks: the sentence, and the ablations of the largest effects."""
        names = ("ablation", "score", "change", "95 % CI", "q", "gains", "losses")
        head = "".join(f'<th style="text-align:right">{name}</th>' for name in names)
        lines = ["".join(f"<td>{escape(cell)}</td>" for cell in cells) for cells in self.largest()]
        body = "".join(f'<tr style="text-align:right">{line}</tr>' for line in lines)
        text = f"<p><b>{escape(self.title)}</b></p><p>{escape(self.summary['sentence'])}</p>"
        return f"{text}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def largest(self, count: int = SHOWN) -> list[tuple[str, ...]]:
        """The ablations of the largest effects by the main metric, as texts: scores and changes in points."""
        if not self.rows:
            return []
        rows = self.rows_of()
        order = np.argsort(-np.nan_to_num(np.abs(column(rows, "difference")), nan=-1.0), kind="stable")
        return [as_texts(rows[place]) for place in order[:count]]


def as_texts(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Name, score, change, interval, q, gains and losses of a row, scores and changes in points."""
    ends = [row["low"], row["high"]]
    interval = "" if None in ends else " to ".join(format_change(100 * end) for end in ends)
    flips = ["" if row[name] is None else str(row[name]) for name in ("gains", "losses")]
    score = "undefined" if row["score"] is None else f"{100 * row['score']:.2f}"
    change = "" if row["difference"] is None else format_change(100 * row["difference"])
    return row["name"], score, change, interval, "" if row["q"] is None else format_p(row["q"]), *flips


def read_results(directory: str | Path) -> SavedResults:
    """Read what `bertjax ablate` wrote.

    Raises:
        InputError: there are no results, they are damaged, or of another version of bertjax.
    """
    directory = Path(directory).expanduser()
    path = directory / "summary.json"
    if not path.is_file():
        raise InputError(f"{directory} holds no results of `bertjax ablate`: there is no summary.json")
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        found = summary.get("schema")
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{path} cannot be read ({error}): run the ablation again") from error
    if found != SCHEMA:
        raise InputError(
            f"{path} has schema {found}, this bertjax reads {SCHEMA}: read it with the version that wrote it "
            f"({(summary.get('versions') or {}).get('bertjax', 'unknown')}), or run the ablation again"
        )
    return SavedResults(directory, summary, read_parquet(directory / "results.parquet"))


def _read_arrays(path: Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    try:
        with np.load(path) as arrays:
            return dict(arrays)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read ({error}): run the ablation again") from error
