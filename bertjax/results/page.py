"""One HTML file to look at: `bertjax report DIR`. It needs no network, and opens from disk.

The files in `html/` are its frame, style and program; the charts are plotly.js, as the Python package ships it. All
that comes from data is text in a JSON element, which the program puts on the page as text, never as HTML.
"""

import base64
import gzip
import importlib.resources
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Num, UInt8

from bertjax.atomic_files import atomic_write
from bertjax.errors import InputError, OutputError
from bertjax.evidence import predictions_from_logits
from bertjax.formatting import FORMULA, count_of, finite, to_json
from bertjax.paths import user_path
from bertjax.results.contents import Contents
from bertjax.results.table import COLUMNS

MOST_ABLATIONS = 2000  # on the page; the largest effects where there are more
DIGITS = 12
PARTS = {"STYLE": "page.css", "PLOTLY": None, "CHARTS": "charts.js", "PROGRAM": "page.js"}


def write_page(saved: Contents, path: str | Path | None = None) -> Path:
    """Write the page of some results, whole or not at all.

    Args:
        path: the file, default `report.html` in their directory.

    Returns: the file.

    Raises:
        InputError: the results are damaged.
        OutputError: the file cannot be written.
    """
    if path is None:
        if saved.directory is None:
            raise InputError("these results are in no directory: give the page's path, such as report.html")
        path = saved.directory / "report.html"
    path = user_path(path, OutputError)
    if path.suffix not in (".html", ".htm"):
        raise OutputError(f"cannot write {path}: a page's name ends in .html")
    atomic_write(path, make_page(saved).encode())
    return path


def make_page(saved: Contents) -> str:
    """The page as text."""
    data = to_json(finite(page_data(saved)), separators=(",", ":"))
    parts = {mark: _read(name) if name else _plotly() for mark, name in PARTS.items()}
    page = _read("page.html")
    for mark, part in {**parts, "DATA": data.replace("<", "\\u003c")}.items():
        page = page.replace(f"/*{mark}*/", part, 1)
    return page


def _read(name: str) -> str:
    return (importlib.resources.files("bertjax.results") / "page_assets" / name).read_text(encoding="utf-8")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def page_data(saved: Contents) -> dict[str, Any]:
    """All that the page shows, ready for JSON but for NaN."""
    summary, kept = saved.summary, _kept(saved)
    names = [saved.names[number] for number in kept]
    return {
        "title": saved.title,
        "sentence": summary["sentence"],
        "kind": saved.kind,
        "model": {"layers": summary["model"]["layers"], "heads": summary["model"]["heads"]},
        "mode": summary["mode"],
        "metrics": [_metric(saved, name) for name in summary["metrics"]],
        "statistics": summary["statistics"],
        "base": summary["base"]["scores"],
        "ablations": len(saved.names),
        "names": names,
        "places": [[summary["ablations"][number][part] for part in ("layer", "head")] for number in kept],
        "heads": [summary["ablations"][number]["heads"] for number in kept],
        "rows": {metric: _columns(saved, metric, kept) for metric in summary["metrics"]},
        "columns": list(COLUMNS),
        "formula": FORMULA,
        "examples": choose_examples(saved, kept),
        "attention": pack_attention(saved),
        "facts": _facts(saved),
    }


def _metric(saved: Contents, name: str) -> dict[str, Any]:
    return {"name": name, "label": saved.describe_metric(name)["label"], "positive": saved.positive_of(name)}


def _kept(saved: Contents) -> list[int]:
    """Numbers of the ablations on the page, in their order."""
    sizes = [abs(row.difference or 0.0) for row in saved.rows_of()]
    largest = sorted(range(len(sizes)), key=lambda number: -sizes[number])[:MOST_ABLATIONS]
    return sorted(largest)


def _columns(saved: Contents, metric: str, kept: list[int]) -> dict[str, list[Any]]:
    """A metric's rows as columns; what the page knows already is left out."""
    rows = saved.rows_of(metric)
    known = ("name", "layer", "head", "heads")
    return {name: [_short(getattr(rows[number], name)) for number in kept] for name in COLUMNS if name not in known}


def _short(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _facts(saved: Contents) -> list[tuple[str, str]]:
    """Settings, model, data and versions, as names and texts."""
    summary = saved.summary
    model, data = summary["model"], summary["data"]
    settings = {name: value for name, value in summary["settings"].items() if value is not None}
    return [
        ("Model", f"{model['name']} ({model['class']}, {model['layers']} layers of {model['heads']} heads)"),
        ("Weights, SHA-256", model["weights_sha256"]),
        ("Task", f"{data['task']}, {data['split']}, {count_of(data['examples'], 'example')}"),
        ("Data", f"{data['source']}"),
        ("Data, SHA-256", data["sha256"]),
        ("Mode", f"{summary['mode']['name']}: {summary['mode']['definition']}"),
        ("Command", summary["command"]),
        ("Device", f"{summary['device']['platform']}, {summary['device']['kind']}"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in summary["versions"].items())),
        ("Seconds", f"{summary['seconds']:,}"),
        ("Settings", ", ".join(f"{name} {value}" for name, value in settings.items())),
    ]


BUDGET = 3_000_000  # characters


def pack_attention(saved: Contents, budget: int = BUDGET) -> dict[str, Any]:
    """Tokens and weights of the kept examples, base and ablated.

    An ablated run is kept from the first layer in which it differs on: below, it is the base.

    Returns: `runs`: names, the base first; `first_layers`: of each run; `kept`: how many examples there are in the
        files; `samples`: for each example its number, and for each of its texts tokens and packed weights
        `[layers, heads, query, key]` of all runs, one after another; none where `attention.npz` is missing.
    """
    if not saved.has_attention:
        return {"runs": ["base"], "first_layers": [0], "kept": 0, "samples": []}
    arrays = saved.attention
    numbers, runs = arrays["examples"].tolist(), arrays["runs"].tolist()
    first_layers = [0] * len(runs)
    for run in range(1, len(runs)):
        same = [
            (arrays[name][run] == arrays[name][0]).all(axis=(1, 2, 3)) for name in arrays if name.startswith("weights_")
        ]
        first_layers[run] = int(np.argmin(np.append(np.all(same, axis=0), False)))
    samples: list[dict[str, Any]] = []
    for sample, number in enumerate(numbers):
        packed = {"example": number, "texts": []}
        for text in range(saved.texts):
            weights = arrays[f"weights_{sample}_{text}"]
            parts = [_bytes(weights[run, first:]) for run, first in enumerate(first_layers)]
            tokens = [str(token) for token in arrays[f"tokens_{sample}_{text}"]]
            packed["texts"].append({"tokens": tokens, "weights": _pack(b"".join(parts))})
        size = sum(len(one["weights"]) for one in packed["texts"])
        if samples and size > budget:
            break
        budget -= size
        samples.append(packed)
    return {"runs": runs, "first_layers": first_layers, "kept": len(numbers), "samples": samples}


def _bytes(weights: Float[np.ndarray, "layers heads query key"]) -> bytes:
    steps: UInt8[np.ndarray, "layers heads query key"] = np.round(255 * weights).clip(0, 255).astype(np.uint8)
    return steps.tobytes()


def _pack(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


SHOWN = 20  # examples of an ablation
LONGEST = 500  # characters of a text


def choose_examples(saved: Contents, kept: list[int]) -> dict[str, Any]:
    """For each ablation the examples that it changes most: those whose prediction flips first.

    Args:
        kept: numbers of the ablations.

    Returns: `reads`: 'predictions' or 'values'; `changed`: for each ablation how many flip (None for values), and
        examples as [place in `texts`, value before, value after, prediction before, after]; `texts`: id, label and
        texts of those that occur. A value is the probability of the example's own label, or the output.
    """
    arrays, reads = saved.outputs, saved.describe_metric()["reads"]
    predicted = reads == "predictions"
    base, labels = arrays["base"], arrays["labels"]
    names = saved.summary["data"]["label_names"]
    before = _values(base, labels) if predicted else base.reshape(-1)
    first = predictions_from_logits(base[None])[0] if predicted else None
    chosen: list[tuple[int | None, list[list[Any]]]] = []
    for number in kept:
        outputs = arrays["outputs"][number]
        after = _values(outputs, labels) if predicted else outputs.reshape(-1)
        size = np.abs(after - before)
        second, flips = None, None
        if first is not None:
            second = predictions_from_logits(outputs[None])[0]
            flipped = second != first
            flips = int(flipped.sum())
            size = size + 2 * flipped  # a probability changes by 1 at most
        order = np.argsort(-size, kind="stable")[:SHOWN]
        rows = [
            [int(place), _shown_number(before[place]), _shown_number(after[place])]
            + ([] if first is None or second is None else [int(first[place]), int(second[place])])
            for place in order.tolist()
            if size[place] > 0
        ]
        chosen.append((flips, rows))
    sampled = saved.attention["examples"].tolist() if saved.has_attention else []
    places = sorted({row[0] for _, rows in chosen for row in rows} | {*sampled})
    where = {place: number for number, place in enumerate(places)}
    changed = [[flips, [[where[row[0]], *row[1:]] for row in rows]] for flips, rows in chosen]
    texts = [_text(saved.examples[place], saved.label_of(saved.examples[place])) for place in places]
    return {"reads": reads, "labels": names, "changed": changed, "places": places, "texts": texts}


def _values(logits: Float[np.ndarray, "examples labels"], labels: Num[np.ndarray, " examples"]) -> np.ndarray:
    """The probability of each example's label; of an example without one, of the likeliest."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    shares = shifted / shifted.sum(-1, keepdims=True)
    known = np.nan_to_num(labels.astype(np.float64), nan=-1.0).astype(int)
    column = np.where(known >= 0, known, logits.argmax(-1))
    return np.take_along_axis(shares, column[:, None], axis=1)[:, 0]


def _text(example: dict[str, Any], label: str) -> list[Any]:
    texts = [example[name] for name in ("first", "second") if name in example]
    shown = [text if len(text) <= LONGEST else f"{text[:LONGEST]} …" for text in texts]
    return [str(example["id"]), label, *shown]


def _shown_number(value: Any) -> float:
    return float(f"{float(value):.4g}")
