"""The report as a single HTML file: `bertjax report DIR`. It opens from disk and needs no network.

The files in `page_assets/` are its frame, style and program, and plotly.js, which draws the charts: in the page it is
compressed, and the browser unpacks it. Everything that comes from data is text in a JSON element; the program inserts
it as text, never as HTML.
"""

import base64
import gzip
import importlib.resources
import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from bertjax.atomic_files import atomic_write
from bertjax.errors import InputError, OutputError
from bertjax.formatting import FORMULA, count_of, finite, table_heads, table_name, to_json
from bertjax.paths import is_file, user_path
from bertjax.results.contents import Contents
from bertjax.results.examples import display_of
from bertjax.results.figures import make_figure
from bertjax.results.summary import AGAIN, has_mark, read_recorded
from bertjax.results.table import COLUMNS
from bertjax.statistics import predictions_from_logits

MOST_ABLATIONS = 2000  # on the page; beyond that, only those with the largest effects
DIGITS = 12
PIXELS_PER_INCH = 130  # of pictures
PARTS = {"STYLE": "page.css", "CHARTS": "charts.js", "PROGRAM": "page.js", "LICENSE": "plotly-4.1.1.LICENSE"}
# The smallest published bundle of plotly.js that draws heatmaps. To renew it, `npm pack plotly.js-cartesian-dist-min`;
# plotly-cartesian.min.js and LICENSE go from there to page_assets/ unchanged, with the version in their names as here,
# and the hash of the first to tests/results/test_page_data.py.
PLOTLY = "plotly-cartesian-4.1.1.min.js"


def check_replaceable(path: Path) -> None:
    """Check that a picture or page may be written to a path.

    Raises:
        OutputError: a file is there that bertjax did not write, or that belongs to results.
    """
    if not is_file(path, OutputError) and not path.is_symlink():
        return
    summary = read_recorded(path.with_name("summary.json"))
    if summary is not None and path.name in {"summary.json", *summary.get("files", ())}:
        raise OutputError(f"{path} belongs to the results there: give another name")
    if not has_mark(path):
        raise OutputError(f"{path} exists, and bertjax did not write it: give another name, or move it away")


def write_page(saved: Contents, path: str | Path | None = None) -> Path:
    """Write the report page atomically.

    Args:
        path: the file; by default `report.html` in the directory of the results.

    Returns: the path of the file.

    Raises:
        InputError: the results are damaged.
        OutputError: the file cannot be written, or is there and bertjax did not write it.

    Warns:
        UserWarning: `attention.npz` is missing, so the page shows no attention.
    """
    if path is None:
        if saved.directory is None:
            raise InputError("these results are in no directory: give the page's path, such as report.html")
        path = saved.directory / "report.html"
    path = user_path(path, OutputError)
    if path.suffix not in (".html", ".htm"):
        raise OutputError(f"cannot write {path}: a page's name ends in .html")
    check_replaceable(path)
    if "attention.npz" in saved.summary.get("files", {}) and not saved.has_attention:
        warnings.warn(f"{saved.source} lacks attention.npz, so the page shows no attention: {AGAIN}", stacklevel=2)
    atomic_write(path, make_page(saved).encode())
    return path


def make_page(saved: Contents) -> str:
    """The page as text."""
    data = to_json(finite(page_data(saved)), separators=(",", ":"))
    parts = {mark: _read(name).decode() for mark, name in PARTS.items()}
    page = _read("page.html").decode()
    for mark, part in {**parts, "PLOTLY": _pack(_read(PLOTLY)), "DATA": data.replace("<", "\\u003c")}.items():
        page = page.replace(f"/*{mark}*/", part, 1)
    return page


def _read(name: str) -> bytes:
    return (importlib.resources.files("bertjax.results") / "page_assets" / name).read_bytes()


def page_data(saved: Contents) -> dict[str, Any]:
    """Everything the page shows, ready for JSON except for NaN."""
    summary, kept = saved.summary, _kept(saved)
    names = [saved.names[number] for number in kept]
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
        "names": names,
        "places": [[summary["ablations"][number][part] for part in ("layer", "head")] for number in kept],
        "heads": [summary["ablations"][number]["heads"] for number in kept],
        "written": [_written(summary["ablations"][number]) for number in kept],
        "rows": {metric: _columns(saved, metric, kept) for metric in summary["metrics"]},
        "columns": list(COLUMNS),
        "formula": FORMULA,
        "examples": choose_examples(saved, kept),
        "attention": pack_attention(saved),
        "facts": _facts(saved),
        "picture": _picture(saved),
    }


def _written(entry: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Name and heads of an ablation in the files that the page saves."""
    return table_name(entry["name"], entry["heads"], entry["layer"]), table_heads(entry["heads"])


def _picture(saved: Contents) -> str:
    """The grids of patches as PNG, in base64; empty for other results, whose charts are drawn by the page itself."""
    if not saved.has_grids:
        return ""
    buffer = io.BytesIO()
    make_figure(saved).savefig(buffer, format="png", dpi=PIXELS_PER_INCH, metadata={"Software": None})
    return base64.b64encode(buffer.getvalue()).decode()


def _metric(saved: Contents, name: str) -> dict[str, Any]:
    measure = saved.measure(name)
    printed = {"unit": measure.unit, "factor": measure.factor, "digits": measure.digits, "sign": measure.sign}
    printed |= {"effects": measure.of_effects, "compared": measure.compared_with, "by": measure.by}
    printed |= {"tested": measure.tested, "untested": measure.untested, "order": measure.order}
    printed |= {"change": measure.name_of_change, "of_model": measure.is_of_model, "names": measure.names_of_changes}
    return {"name": name, "label": measure.label, "positive": saved.positive_of(name), **printed}


def _kept(saved: Contents) -> list[int]:
    """Indices of the ablations on the page, in ascending order."""
    sizes = [abs(row.difference or 0.0) for row in saved.rows_of()]
    largest = sorted(range(len(sizes)), key=lambda number: -sizes[number])[:MOST_ABLATIONS]
    return sorted(largest)


def _columns(saved: Contents, metric: str, kept: list[int]) -> dict[str, list[Any]]:
    """A metric's rows as columns, without those the page already has."""
    rows = saved.rows_of(metric)
    row_identity = ("name", "layer", "head", "heads")
    return {
        name: [_short(getattr(rows[number], name)) for number in kept] for name in COLUMNS if name not in row_identity
    }


def _short(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


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
        *_mode(saved),
        ("Command", summary["command"]),
        ("Device", f"{summary['device']['platform']}, {summary['device']['kind']}"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in summary["versions"].items())),
        ("Seconds", f"{summary['seconds']:,}"),
        ("Settings", ", ".join(f"{name} {value}" for name, value in settings.items())),
    ]


def _mode(saved: Contents) -> list[tuple[str, str]]:
    """The mode as a fact; roles have none."""
    mode = saved.summary["mode"]
    return [] if saved.measure().compared_with else [("Mode", f"{mode['name']}: {mode['definition']}")]


BUDGET = 3_000_000  # characters


def pack_attention(saved: Contents, budget: int = BUDGET) -> dict[str, Any]:
    """Tokens and attention weights of the kept examples, base and ablated.

    An ablated run is stored from the first layer where it differs from the base; below that layer they are equal. What
    is stored of it is its difference from the base in steps of 1/255, modulo 256, which compresses better.

    Returns: `runs`: names, the base first; `first_layers`: the first stored layer of each run; `kept`: the number of
        examples in the file; `samples`: for each example its number, and for each of its texts the tokens and the
        packed weights `[layers, heads, query, key]` of all runs, concatenated; empty without `attention.npz`.
    """
    if not saved.has_attention:
        return {"runs": ["base"], "first_layers": [0], "kept": 0, "samples": []}
    arrays = saved.attention
    numbers, runs = arrays["examples"].tolist(), arrays["runs"].tolist()
    first_layers = [0] * len(runs)
    for run in range(1, len(runs)):
        equal_layers = [
            (arrays[name][run] == arrays[name][0]).all(axis=(1, 2, 3)) for name in arrays if name.startswith("weights_")
        ]
        first_layers[run] = int(np.argmin(np.append(np.all(equal_layers, axis=0), False)))
    samples: list[dict[str, Any]] = []
    for sample, number in enumerate(numbers):
        packed = {"example": number, "texts": []}
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
    return {"runs": runs, "first_layers": first_layers, "kept": len(numbers), "samples": samples}


def _steps(
    weights: Float[np.ndarray, "runs layers heads query key"],
) -> UInt8[np.ndarray, "runs layers heads query key"]:
    return np.round(255 * weights).clip(0, 255).astype(np.uint8)


def _pack(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


SHOWN = 20  # examples per ablation
DETAILS = 4000  # of all ablations: how many examples have what an ablation makes of them in words


def choose_examples(saved: Contents, kept: list[int]) -> dict[str, Any]:
    """The examples that each ablation changes most, flipped predictions first.

    Args:
        kept: indices of the ablations.

    Returns: `reads`: 'predictions' or 'values'; `value`: what a value is called, and `note` what a reader must know of
        it; `changed`: for each ablation the number of flips (None for values), and its examples as [index into `texts`,
        value before, value after, prediction before, prediction after] (of values without predictions); `details`: for
        each ablation and example lines of what became of it (`examples.Line`); `texts`: id, label and lines of the
        examples that occur.
    """
    display, arrays = display_of(saved), saved.outputs
    base, reads_predictions = arrays["base"], display.predicts
    before = display.values(base)
    base_predictions = predictions_from_logits(base[None])[0] if reads_predictions else None
    chosen: list[tuple[int | None, list[list[Any]]]] = []
    for number in kept:
        outputs = arrays["outputs"][number]
        after = display.values(outputs)
        sizes = np.nan_to_num(np.abs(after - before))  # an example of which no word is masked does not change
        both, flips = [], None
        if base_predictions is not None:
            both = [base_predictions, predictions_from_logits(outputs[None])[0]]
            flipped = both[1] != both[0]
            flips = int(flipped.sum())
            sizes = sizes + flipped * (1 + sizes.max(initial=0))
        order = np.argsort(-sizes, kind="stable")[:SHOWN]
        rows = [
            [int(place), _shown_number(before[place]), _shown_number(after[place])]
            + [int(predictions[place]) for predictions in both]
            for place in order.tolist()
            if sizes[place] > 0
        ]
        chosen.append((flips, rows))
    sampled = saved.attention["examples"].tolist() if saved.has_attention else []
    places = sorted({row[0] for _, rows in chosen for row in rows} | {*sampled})
    text_index = {place: number for number, place in enumerate(places)}
    changed = [[flips, [[text_index[row[0]], *row[1:]] for row in rows]] for flips, rows in chosen]
    texts = [
        [str(saved.examples[place]["id"]), saved.label_of(saved.examples[place]), display.lines(place)]
        for place in places
    ]
    most = max(1, DETAILS // max(1, len(kept)))
    details = [
        [display.change(number, row[0]) for row in rows[:most]] for number, (_, rows) in zip(kept, chosen, strict=True)
    ]
    called = {"reads": "predictions" if reads_predictions else "values", "value": display.value, "note": display.note}
    names = saved.summary["data"]["label_names"]
    return {**called, "labels": names, "changed": changed, "details": details, "places": places, "texts": texts}


def _shown_number(value: Any) -> float:
    return float(f"{float(value):.4g}")
