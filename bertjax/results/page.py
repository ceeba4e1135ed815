"""One HTML file to look at: `bertjax report DIR`. It needs no network, and opens from disk.

The files in `html/` are its frame, style and program; the charts are plotly.js, as the Python package ships it. All
that comes from data is text in a JSON element, which the program puts on the page as text, never as HTML.
"""

import importlib.resources
from pathlib import Path
from typing import Any

from bertjax.atomic_files import atomic_write
from bertjax.errors import OutputError
from bertjax.evidence import find_metric
from bertjax.formatting import FORMULA, count_of, finite, to_json
from bertjax.paths import user_path
from bertjax.results.directory import SavedResults
from bertjax.results.html_attention import pack_attention
from bertjax.results.html_examples import choose_examples
from bertjax.results.table import COLUMNS

MOST_ABLATIONS = 2000  # on the page; the largest effects where there are more
DIGITS = 12
PARTS = {"STYLE": "page.css", "PLOTLY": None, "CHARTS": "charts.js", "PROGRAM": "page.js"}


def write_page(saved: SavedResults, path: str | Path | None = None) -> Path:
    """Write the page of some results, whole or not at all.

    Args:
        path: the file, default `report.html` in their directory.

    Returns: the file.

    Raises:
        InputError: the results are damaged.
        OutputError: the file cannot be written.
    """
    path = saved.directory / "report.html" if path is None else user_path(path, OutputError)
    if path.suffix not in (".html", ".htm"):
        raise OutputError(f"cannot write {path}: a page's name ends in .html")
    atomic_write(path, make_page(saved).encode())
    return path


def make_page(saved: SavedResults) -> str:
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


def page_data(saved: SavedResults) -> dict[str, Any]:
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


def _metric(saved: SavedResults, name: str) -> dict[str, Any]:
    return {"name": name, "label": find_metric(name).label, "positive": saved.positive_of(name)}


def _kept(saved: SavedResults) -> list[int]:
    """Numbers of the ablations on the page, in their order."""
    sizes = [abs(row["difference"] or 0.0) for row in saved.rows_of()]
    largest = sorted(range(len(sizes)), key=lambda number: -sizes[number])[:MOST_ABLATIONS]
    return sorted(largest)


def _columns(saved: SavedResults, metric: str, kept: list[int]) -> dict[str, list[Any]]:
    """A metric's rows as columns; what the page knows already is left out."""
    rows = saved.rows_of(metric)
    known = ("name", "layer", "head", "heads")
    return {name: [_short(rows[number][name]) for number in kept] for name in COLUMNS if name not in known}


def _short(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _facts(saved: SavedResults) -> list[tuple[str, str]]:
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
