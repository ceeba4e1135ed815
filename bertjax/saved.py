"""A directory of results, read again: everything that is made of it later starts here, without the model."""

import json
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from bertjax.errors import DataError, InputError
from bertjax.metrics import score
from bertjax.rows import SCHEMA, column, read_parquet
from bertjax.view import ResultsView

CHECKED = 5  # ablations whose scores are computed again
KEYS = ("model", "data", "mode", "metric", "metrics", "settings", "sentence", "statistics", "base", "ablations")


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
        """The arrays of `outputs.npz`: base, outputs, names, layer, head, ids, labels."""
        arrays = _read_arrays(self.directory / "outputs.npz")
        if arrays["names"].tolist() != self.names or len(arrays["labels"]) != self.summary["data"]["examples"]:
            raise InputError(f"{self.directory}: summary.json and outputs.npz are of different results")
        self._check_scores(arrays)
        return arrays

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
            InputError: the file is missing or damaged.
        """
        arrays = _read_arrays(self.directory / "attention.npz")
        runs = arrays["runs"].tolist()
        if runs[1:] != self._largest_effects()[: len(runs) - 1]:
            raise InputError(f"{self.directory}: summary.json and attention.npz are of different results")
        return arrays

    def _largest_effects(self) -> list[str]:
        """The ablations from the largest effect by the main metric to the smallest."""
        entries = self.summary["ablations"]
        sizes = [-1.0 if entry["delta"] is None else abs(entry["delta"]) for entry in entries]
        return [entries[place]["name"] for place in sorted(range(len(sizes)), key=lambda place: -sizes[place])]

    @property
    def has_attention(self) -> bool:
        """Whether `attention.npz` is there; it is large, and a copy of the results may lack it."""
        return (self.directory / "attention.npz").is_file()

    @cached_property
    def examples(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Id, label and texts of each example.

        Raises:
            InputError: `examples.jsonl` is missing or damaged.
        """
        path = self.directory / "examples.jsonl"
        try:
            found = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        except FileNotFoundError as error:
            raise InputError(f"{path} is missing: run the ablation again") from error
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read ({error}): run the ablation again") from error
        if len(found) != self.summary["data"]["examples"]:
            raise InputError(f"{path} has {len(found)} examples, the results {self.summary['data']['examples']}")
        return found


def read_results(directory: str | Path) -> SavedResults:
    """Read what `bertjax ablate` wrote.

    Raises:
        InputError: there are no results, they are damaged, or of another version of bertjax.
    """
    directory = Path(directory).expanduser()
    path = directory / "summary.json"
    if not path.is_file():
        raise InputError(
            f"{directory} holds no results of `bertjax ablate`: there is no summary.json{_inside(directory)}"
        )
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        found = summary.get("schema")
    except AttributeError as error:
        raise InputError(f"{path} cannot be read (it holds no object): run the ablation again") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): run the ablation again") from error
    if found != SCHEMA:
        raise InputError(
            f"{path} has schema {found}, this bertjax reads {SCHEMA}: read it with the version that wrote it "
            f"({(summary.get('versions') or {}).get('bertjax', 'unknown')}), or run the ablation again"
        )
    missing = [name for name in KEYS if name not in summary]
    if missing:
        raise InputError(f"{path} is damaged, it lacks {', '.join(missing)}: run the ablation again")
    rows = read_parquet(directory / "results.parquet")
    names = [entry["name"] for entry in summary["ablations"]]
    if any([row["name"] for row in rows if row["metric"] == metric] != names for metric in summary["metrics"]):
        raise InputError(f"{directory}: summary.json and results.parquet are of different results")
    return SavedResults(directory, summary, rows)


def _inside(directory: Path) -> str:
    """Which directories in this one hold results, as a hint; experiments leave one for each mode."""
    found = sorted(
        path.parent for path in directory.glob("*/summary.json") if (path.parent / "results.parquet").is_file()
    )
    return f"; there are results in {', '.join(map(str, found[:3]))}" if found else ""


def _read_arrays(path: Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    try:
        with np.load(path) as arrays:
            return dict(arrays)
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing: run the ablation again") from error
    except (OSError, ValueError, zipfile.BadZipFile) as error:  # NumPy's advice is to load pickles, which these are not
        raise InputError(f"{path} cannot be read, it is damaged: run the ablation again") from error
