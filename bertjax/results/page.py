"""The report as a single HTML file: `bertjax report DIR`. It opens from disk and needs no network.

`bertjax/web/assets/report/` contains its frame, style and modules. All data are in a JSON element; the modules insert
them as text, never as HTML.
"""

import base64
import gzip
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from bertjax.atomic_files import atomic_write
from bertjax.errors import InputError, OutputError
from bertjax.formatting import FORMULA, count_of, table_heads, table_name
from bertjax.paths import is_file, user_path
from bertjax.plots import grids_of_cells
from bertjax.results.contents import Contents, describe_silhouette
from bertjax.results.examples import display_of
from bertjax.results.figures import pairs_of_heads
from bertjax.results.summary import AGAIN, has_mark, read_recorded
from bertjax.results.table import COLUMNS, significant
from bertjax.statistics import predictions_from_logits
from bertjax.web import make_page as bundle

TITLE = "bertjax report"  # by which `has_mark` knows a page
MOST_ABLATIONS = 2000  # on the page; of more, those with the largest effects are shown
DIGITS = 12
DIGITS_OF_CELLS = 4  # of cells that are not among the largest effects
# Parts of a summary that the page of an analysis shows.
DETAILED = (
    "pruning",
    "roles",
    "probe",
    "structure",
    "geometry",
    "likeness",
    "languages",
    "senses",
    "restoring",
    "patching",
    "shapley",
    "derived",
    "gradients",
)


def check_replaceable(path: Path) -> None:
    """Check that a figure or page may be written to a path.

    Args:
        path: the path of the figure or page.

    Raises:
        OutputError: the file exists and bertjax did not write it, or it belongs to results.
    """
    if not is_file(path, OutputError) and not path.is_symlink():
        return
    summary = read_recorded(path.with_name("summary.json"))
    if summary is not None and path.name in {"summary.json", *summary.get("files", ())}:
        raise OutputError(f"{path} belongs to the results in its directory: give another name")
    if not has_mark(path):
        raise OutputError(f"{path} exists, and bertjax did not write it: give another name, or move it away")


def write_page(saved: Contents, path: str | Path | None = None) -> Path:
    """Write the report page atomically.

    Args:
        path: the file; by default `report.html` in the directory of the results.

    Returns:
        The path of the file.

    Raises:
        InputError: the results are damaged.
        OutputError: the file cannot be written, or exists and bertjax did not write it.

    Warns:
        UserWarning: `attention.npz` is missing, so the page shows no attention.
    """
    if path is None:
        if saved.directory is None:
            raise InputError("these results were not written: give the path of the page, such as report.html")
        path = saved.directory / "report.html"
    path = user_path(path, OutputError)
    if path.suffix not in (".html", ".htm"):
        raise OutputError(f"cannot write {path}: the name of a page must end in .html")
    check_replaceable(path)
    if "attention.npz" in saved.summary.get("files", {}) and not saved.has_attention:
        warnings.warn(f"{saved.source} lacks attention.npz, so the page shows no attention: {AGAIN}", stacklevel=2)
    atomic_write(path, make_page(saved).encode())
    return path


def make_page(saved: Contents) -> str:
    """The page as str."""
    return bundle("report/page", page_data(saved), title=TITLE)


def page_data(saved: Contents) -> dict[str, Any]:
    """The data of the page, ready for JSON except for NaN."""
    summary, kept = saved.summary, _kept(saved)
    entries = [summary["ablations"][index] for index in kept]
    return {
        "title": saved.title,
        "sentence": summary["sentence"],
        "kind": saved.kind,
        "model": {"layers": summary["model"]["layers"], "heads": summary["model"]["heads"]},
        "mode": summary["mode"],
        "metrics": [_metric(saved, name) for name in summary["metrics"]],
        "drawn": saved.drawn_metric,
        "statistics": summary["statistics"],
        "base": summary["base"]["scores"],
        "ablations": len(saved.names),
        "names": [entry["name"] for entry in entries],
        "places": [[entry["layer"], entry["head"]] for entry in entries],
        "heads": [entry["heads"] for entry in entries],
        "written": [_written(entry) for entry in entries],
        "rows": {metric: _columns(saved, metric, kept) for metric in summary["metrics"]},
        "columns": list(COLUMNS),
        "formula": FORMULA,
        "examples": choose_examples(saved, kept),
        "attention": pack_attention(saved),
        "facts": _facts(saved),
        "analysis": saved.analysis,
        "details": {name: summary[name] for name in DETAILED if name in summary} | _notes(saved),
        "grids": _grids(saved),
    }


def _written(entry: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Name and heads of an ablation in the files that the page saves."""
    return table_name(entry["name"], entry["heads"], entry["layer"]), table_heads(entry["heads"])


def _notes(saved: Contents) -> dict[str, str]:
    """Notes of an analysis that figures have, too."""
    notes = {"too_few_contrasts": saved.too_few_contrasts}
    if "silhouette" in saved.summary.get("roles", {}):
        notes["silhouette"] = describe_silhouette(saved.summary["roles"]["silhouette"])
    return {name: note for name, note in notes.items() if note}


def _grids(saved: Contents) -> dict[str, Any] | None:
    """The grids of cells or of pairs, with all their values; None for other results.

    Returns:
        `columns`: the names of the columns; `panels`: title, kind of rows, names of rows, and for each row and column
        the index of the ablation, None without one; `values` and `significant`: by metric, for all ablations.
    """
    if saved.has_grids:
        patching, count = saved.summary["patching"], len(saved.names)
        spans, index = patching["spans"], np.arange(count, dtype=np.float64)
        panels = [
            {"title": grid.title, "kind": grid.kind, "rows": list(grid.rows), "cells": _indices(grid.changes)}
            for grid in grids_of_cells(patching["cells"], len(spans), index, np.ones(count, np.bool_))
        ]
        columns = list(spans)
    elif saved.kind == "set" and "likeness" in saved.summary:
        columns = saved.summary["likeness"]["rows"]
        indices = np.full((len(columns), len(columns)), np.nan)
        first, second = np.triu_indices(len(columns), 1)  # in the order of the pairs
        indices[second, first] = np.arange(len(saved.names))
        panels = [{"title": "", "kind": "layer", "rows": columns, "cells": _indices(indices)}]
    else:
        pairs = pairs_of_heads(saved.rows_of())
        if pairs is None:
            return None
        heads, both = pairs
        indices = np.full((len(heads), len(heads)), np.nan)
        indices[both.max(1), both.min(1)] = np.arange(len(both))  # below the diagonal
        columns = [f"{layer}.{head}" for layer, head in heads]
        panels = [{"title": "", "kind": "head", "rows": columns, "cells": _indices(indices)}]
    rows = {metric: saved.rows_of(metric) for metric in saved.summary["metrics"]}
    values = {name: [_round(row.difference, DIGITS_OF_CELLS) for row in rows[name]] for name in rows}
    return {
        "columns": columns,
        "panels": panels,
        "values": values,
        "significant": {name: significant(rows[name]).astype(int).tolist() for name in rows},
        "kept": _kept(saved),
    }


def _indices(cells: Float[np.ndarray, "rows columns"]) -> list[list[int | None]]:
    return [[None if np.isnan(index) else int(index) for index in row] for row in cells]


def _metric(saved: Contents, name: str) -> dict[str, Any]:
    measure = saved.measure(name)
    printed = {"unit": measure.unit, "factor": measure.factor, "digits": measure.digits, "sign": measure.sign}
    printed |= {"effects": measure.of_effects, "compared": measure.compared_with, "by": measure.by}
    printed |= {"tested": measure.tested, "untested": measure.untested, "order": measure.order}
    printed |= {"change": measure.name_of_change, "of_model": measure.is_of_model, "names": measure.names_of_changes}
    printed |= {"bounds": saved.bounds(name)}
    return {"name": name, "label": measure.label, "positive": saved.positive_of(name), **printed}


def _kept(saved: Contents) -> list[int]:
    """The indices of the ablations on the page, in ascending order."""
    sizes = [abs(row.difference or 0.0) for row in saved.rows_of()]
    largest = sorted(range(len(sizes)), key=lambda index: -sizes[index])[:MOST_ABLATIONS]
    return sorted(largest)


def _columns(saved: Contents, metric: str, kept: list[int]) -> dict[str, list[Any]]:
    """The columns of a metric, except names and heads, which `page_data` has already."""
    rows = saved.rows_of(metric)
    known = ("name", "layer", "head", "heads")
    return {name: [_round(getattr(rows[index], name)) for index in kept] for name in COLUMNS if name not in known}


def _round(value: Any, digits: int = DIGITS) -> Any:
    """A float rounded to significant digits; other values are unchanged."""
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def _facts(saved: Contents) -> list[tuple[str, str]]:
    """Settings, model, data and versions as (name, text) pairs."""
    summary = saved.summary
    model, data = summary["model"], summary["data"]
    settings = {name: value for name, value in summary["settings"].items() if value is not None}
    return [
        ("Model", f"{model['name']} ({model['class']}, {model['layers']} layers of {model['heads']} heads)"),
        ("Weights, SHA-256", model["weights_sha256"]),
        *([("Not in the checkpoint, random", ", ".join(model["new_parameters"]))] if "new_parameters" in model else []),
        ("Task", f"{data['task']}, {data['split']}, {count_of(data['examples'], 'example')}"),
        ("Data", f"{data['source']}"),
        ("Data, SHA-256", data["sha256"]),
        *(
            []
            if saved.measure().compared_with
            else [("Mode", f"{summary['mode']['name']}: {summary['mode']['definition']}")]
        ),
        ("Command", summary["command"]),
        ("Device", f"{summary['device']['platform']}, {summary['device']['kind']}"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in summary["versions"].items())),
        ("Seconds", f"{summary['seconds']:,}"),
        ("Settings", ", ".join(f"{name} {value}" for name, value in settings.items())),
    ]


BUDGET = 900_000  # characters


def pack_attention(saved: Contents, budget: int = BUDGET) -> dict[str, Any]:
    """Tokens and attention weights of the kept examples, for the base and ablated runs.

    An ablated run is stored from the first layer in which it differs from the base, as its difference from the base in
    steps of 1/255, modulo 256, which compresses better.

    Returns:
        `runs`: names, the base first; `first_layers`: the first stored layer of each run; `kept`: the number of
        examples in the file; `samples`: the index of each example, and for each of its texts the tokens and the
        compressed weights `[layers, heads, query, key]` of all runs, concatenated; empty without `attention.npz`.
    """
    if not saved.has_attention:
        return {"runs": ["base"], "first_layers": [0], "kept": 0, "samples": []}
    arrays = saved.attention
    examples, runs = arrays["examples"].tolist(), arrays["runs"].tolist()
    first_layers = [0] * len(runs)
    for run in range(1, len(runs)):
        equal_layers = [
            (arrays[name][run] == arrays[name][0]).all(axis=(1, 2, 3)) for name in arrays if name.startswith("weights_")
        ]
        first_layers[run] = int(np.argmin(np.append(np.all(equal_layers, axis=0), False)))
    samples: list[dict[str, Any]] = []
    for sample, example in enumerate(examples):
        packed = {"example": example, "texts": []}
        for text in range(saved.texts):
            base, *ablated = _steps(arrays[f"weights_{sample}_{text}"])
            parts = [base, *[run[first:] - base[first:] for run, first in zip(ablated, first_layers[1:], strict=True)]]
            tokens = [str(token) for token in arrays[f"tokens_{sample}_{text}"]]
            packed["texts"].append({"tokens": tokens, "weights": _pack(b"".join(part.tobytes() for part in parts))})
        size = sum(len(packed_text["weights"]) for packed_text in packed["texts"])
        if samples and size > budget:
            break
        budget -= size
        samples.append(packed)
    return {"runs": runs, "first_layers": first_layers, "kept": len(examples), "samples": samples}


def _steps(
    weights: Float[np.ndarray, "runs layers heads query key"],
) -> UInt8[np.ndarray, "runs layers heads query key"]:
    return np.round(255 * weights).clip(0, 255).astype(np.uint8)


def _pack(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


SHOWN = 20  # examples per ablation
DETAILS = 4000  # examples of all ablations that have lines of `Display.change`


def choose_examples(saved: Contents, kept: list[int]) -> dict[str, Any]:
    """The examples that each ablation changes most, flipped predictions first.

    Args:
        kept: indices of the ablations.

    Returns:
        `reads`: 'predictions' or 'values'; `value`: the name of a value, and `note` a note on it; `changed`: for each
        ablation the number of flips (None for values), and its examples as [index into `texts`, value before, value
        after, prediction before, prediction after] (values have no predictions); `details`: for each ablation and
        example the lines of `Display.change`; `texts`: id, label and lines of these examples.
    """
    display, arrays = display_of(saved), saved.outputs
    base, reads_predictions = arrays["base"], display.predicts
    before = display.values(base)
    base_predictions = predictions_from_logits(base[None])[0] if reads_predictions else None
    chosen: list[tuple[int | None, list[list[Any]]]] = []
    for ablation in kept:
        outputs = arrays["outputs"][ablation]
        after = display.values(outputs)
        sizes = np.nan_to_num(np.abs(after - before))  # an example without masked words does not change
        both, flips = [], None
        if base_predictions is not None:
            both = [base_predictions, predictions_from_logits(outputs[None])[0]]
            flipped = both[1] != both[0]
            flips = int(flipped.sum())
            sizes = sizes + flipped * (1 + sizes.max(initial=0))
        order = np.argsort(-sizes, kind="stable")[:SHOWN]
        rows = [
            [int(example), *(_round(float(values[example]), 4) for values in (before, after))]
            + [int(predictions[example]) for predictions in both]
            for example in order.tolist()
            if sizes[example] > 0
        ]
        chosen.append((flips, rows))
    sampled = saved.attention["examples"].tolist() if saved.has_attention else []
    shown = sorted({row[0] for _, rows in chosen for row in rows} | {*sampled})
    text_index = {example: index for index, example in enumerate(shown)}
    changed = [[flips, [[text_index[row[0]], *row[1:]] for row in rows]] for flips, rows in chosen]
    known = ((example, saved.examples[example]) for example in shown)
    texts = [[str(row["id"]), saved.label_of(row), display.lines(example)] for example, row in known]
    most = max(1, DETAILS // max(1, len(kept)))
    by_ablation = zip(kept, (rows for _, rows in chosen), strict=True)
    details = [[display.change(ablation, row[0]) for row in rows[:most]] for ablation, rows in by_ablation]
    described = {
        "reads": "predictions" if reads_predictions else "values",
        "value": display.value,
        "note": display.note,
    }
    names = saved.summary["data"]["label_names"]
    return {**described, "labels": names, "changed": changed, "details": details, "places": shown, "texts": texts}
