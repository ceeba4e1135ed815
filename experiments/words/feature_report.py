"""Tables and pictures of section 4.4 from the contents of `numbers.json`."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.style import context
from matplotlib.ticker import MaxNLocator

from bertjax.plots import GREY, INK, Panel, add_axes, add_note, save_page, start_page
from experiments.shared.map_table import MapRow, Scale, draw_table, ratio_scale
from experiments.shared.run import Figures, Numbers, name_maps
from experiments.shared.tables import make_table, name_head
from experiments.words.estimates import LEVEL, Estimate, differing, read_estimate
from experiments.words.features import FEATURES

COLUMNS = 4
# Paul Tol's bright scheme, which colour-blind people can tell apart.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777")
RELATIVE = "mean weight × tokens (1: uniform attention)"


def figures(numbers: Numbers) -> Figures:
    """The pictures by name: `figure`, `layers` and, where there are data, `change` (by fine-tuning).

    Args:
        numbers: the contents of `numbers.json`.
    """
    sources = numbers["results"]["sources"]
    pictures = {
        "figure": partial(_draw_base, numbers=numbers),
        "layers": partial(_draw_layers, numbers=numbers),
    }
    if any(source["tuned"] for source in sources.values()):
        pictures["change"] = partial(_draw_change, numbers=numbers)
    return pictures


def _subtitle(numbers: Numbers, sources: Numbers, places: str = "columns") -> str:
    model = numbers["settings"]["model"] + name_maps(numbers["settings"])
    if len(sources) > 1:
        return f"{model}; {places}: tasks"
    return f"{model}, {next(iter(sources.values()))['data']['corrected']['source']}"


def _lay_out(panels: Mapping[str, Mapping[str, Panel]], scale: Scale) -> list[MapRow]:
    """Maps of each source by feature: a row for each feature, or, for a single source, four features to a row."""
    features = [feature for feature in FEATURES if any(feature in maps for maps in panels.values())]
    if len(panels) == 1:
        (maps,) = panels.values()
        ordered = [maps[feature] for feature in features]
        return [MapRow("", scale, ordered[start : start + COLUMNS]) for start in range(0, len(ordered), COLUMNS)]
    return [MapRow(_fold(feature), scale, [maps.get(feature) for maps in panels.values()]) for feature in features]


def _fold(feature: str) -> str:
    return feature.replace("] ", "]\n")


def _title(sources: Numbers, name: str, feature: str, examples: int) -> str:
    """The feature, for a single source; for several, the source above its column."""
    if len(sources) == 1:
        return f"{feature} ({examples:,} texts)"
    first = next(
        candidate for candidate in FEATURES if any(candidate in source["features"] for source in sources.values())
    )
    return name if feature == first else ""


def _draw_base(path: Path, numbers: Numbers) -> None:
    sources = numbers["results"]["sources"]
    panels: dict[str, dict[str, Panel]] = {}
    for name, source in sources.items():
        estimates = {feature: read_estimate(entry["base"]["relative"]) for feature, entry in source["features"].items()}
        significant = differing(estimates, 1.0)
        panels[name] = {
            feature: Panel(
                _title(sources, name, feature, source["features"][feature]["examples"]),
                estimate.mean,
                struck=~significant[feature],
            )
            for feature, estimate in estimates.items()
        }
    note = f"Stroke: like uniform attention (q ≥ {LEVEL} over all heads and features of a column's texts)."
    if len(sources) == 1:
        note = f"Stroke: not different from uniform attention (q ≥ {LEVEL} over all heads and features)."
    title = "Attention to linguistic features and special tokens"
    draw_table(path, _lay_out(panels, ratio_scale(RELATIVE)), title, _subtitle(numbers, sources), note)


def _draw_change(path: Path, numbers: Numbers) -> None:
    sources = {name: source for name, source in numbers["results"]["sources"].items() if source["tuned"]}
    panels: dict[str, dict[str, Panel]] = {}
    for name, source in sources.items():
        changes = {feature: read_estimate(entry["tuned"]["change"]) for feature, entry in source["features"].items()}
        significant = differing(changes)
        panels[name] = {}
        for feature, change in changes.items():
            entry = source["features"][feature]
            base = read_estimate(entry["base"]["relative"]).mean
            title = _title(sources, name, feature, entry["examples"])
            panels[name][feature] = Panel(title, (base + change.mean) / base, struck=~significant[feature])
    seeds = {len(source["tuned"]) for source in sources.values()}
    count = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else f"{max(seeds)}"
    note = f"Fine-tuned models of each task: {count}, their mean. Stroke: no significant change (q ≥ {LEVEL})."
    title, scale = "What fine-tuning does to attention to features", ratio_scale("fine-tuned / base", 4.0)
    draw_table(path, _lay_out(panels, scale), title, _subtitle(numbers, sources), note)


def _draw_layers(path: Path, numbers: Numbers) -> None:
    """Draw lines over layers: a panel for each feature, a colour for each task, dashed where it is fine-tuned."""
    sources = numbers["results"]["sources"]
    features = [feature for feature in FEATURES if any(feature in source["features"] for source in sources.values())]
    rows = -(-len(features) // COLUMNS)
    with context("default"):
        figure = start_page("Attention to features by layer", _subtitle(numbers, sources, "colours"), 0.75, 1.65 * rows)
        for index, feature in enumerate(features):
            row, column = divmod(index, COLUMNS)
            axes = add_axes(figure, 0.62 + 1.84 * column, 0.95 + 1.65 * (rows - 1 - row), 1.42, 1.15)
            for (name, source), colour in zip(sources.items(), COLOURS * 9, strict=False):
                if feature in source["features"]:
                    _draw_trend(axes, source["features"][feature], name, colour)
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}" if value >= 1 else f"1/{1 / value:g}")
            axes.axhline(1, color=GREY, linewidth=0.6, linestyle=":")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.tick_params(labelsize=7)
            axes.set_title(feature, fontsize=9, color=INK, pad=3)
            axes.set_ylabel("" if column else "times uniform", fontsize=8, color=INK)
        if len(sources) > 1:
            legend = figure.axes[0].get_legend_handles_labels()
            figure.legend(*legend, loc="lower left", ncols=7, fontsize=8, frameon=False, bbox_to_anchor=(0.02, 0.055))
        tuned = any(source["tuned"] for source in sources.values())
        add_note(figure, "mean over heads; bars: 95 % over texts" + "; dashed: fine-tuned, mean of seeds" * tuned)
        save_page(figure, path)


def _draw_trend(axes: Any, entry: Numbers, name: str, colour: str) -> None:
    base = read_estimate(entry["base"]["layers"])
    axes.errorbar(range(len(base.mean)), base.mean, base.interval, color=colour, linewidth=1.2, label=name)
    if "tuned" in entry:
        mean = np.array(entry["tuned"]["relative_by_seed"]).mean((0, -1))
        axes.plot(range(len(mean)), mean, color=colour, linewidth=1.2, linestyle=(0, (3, 1.5)))


def tables(numbers: Numbers) -> str:
    """A table in Markdown: all numbers of one source, or the means over heads of several sources."""
    sources = numbers["results"]["sources"]
    if len(sources) == 1:
        return _base_table(*next(iter(sources.items())))
    features = [feature for feature in FEATURES if any(feature in source["features"] for source in sources.values())]
    rows = [[feature, *(_overall(source, feature) for source in sources.values())] for feature in features]
    return make_table(["mean over heads", *sources], rows)


def _base_table(name: str, source: Numbers) -> str:
    rows = []
    estimates = {feature: read_estimate(entry["base"]["relative"]) for feature, entry in source["features"].items()}
    significant = differing(estimates, 1.0)
    beyond = _beyond(source)
    for feature, entry in source["features"].items():
        relative, largest = estimates[feature], read_estimate(entry["base"]["largest"])
        above = int((significant[feature] & (relative.mean > 1)).sum())
        row = [feature, f"{entry['examples']:,}", f"{entry['tokens']:.1f}", f"{relative.mean.mean():.2f}"]
        row += [_format_highest(relative, 2), str(above), str(beyond.get(feature, "")), _format_highest(largest, 3)]
        if "as_published" in source:
            row += _published_cells(source, feature)
        rows.append(row)
    header = [name, "examples", "tokens each", "relative, mean of heads", "highest head", "heads above 1"]
    header += ["heads above the text's other tokens", "largest weight, highest head"]
    if "as_published" in source:
        header += ["as published", "largest difference", "rank correlation"]
    return make_table(header, rows)


def _beyond(source: Numbers) -> dict[str, int]:
    """How many heads give a feature more than the text's other tokens."""
    estimates = {
        feature: read_estimate(entry["base"]["beyond_text"])
        for feature, entry in source["features"].items()
        if "beyond_text" in entry["base"]
    }
    significant = differing(estimates)
    return {feature: int((significant[feature] & (estimate.mean > 0)).sum()) for feature, estimate in estimates.items()}


def _published_cells(source: Numbers, feature: str) -> list[str]:
    entry, difference = source["as_published"][0].get(feature), source["published_against_corrected"].get(feature)
    if entry is None or difference is None:
        return ["", "", ""]
    if not difference["largest_difference"]:
        return ["the same", "0", "1"]
    correlation = difference["rank_correlation"]
    cell = "" if correlation is None else f"{correlation:.2f}"
    return [_format_highest(read_estimate(entry), 3), f"{difference['largest_difference']:.3f}", cell]


def _format_highest(estimate: Estimate, digits: int) -> str:
    index = int(estimate.mean.argmax())
    half = estimate.interval.ravel()[index]
    spread = f" ± {half:.{digits}f}" if np.isfinite(half) else ""
    return f"{name_head(index, estimate.mean.shape[1])} {estimate.mean.max():.{digits}f}{spread}"


def _overall(source: Numbers, feature: str) -> str:
    """The mean over heads, and that of the tuned models with its range over seeds."""
    if feature not in source["features"]:
        return ""
    entry = source["features"][feature]
    base = f"{np.mean(entry['base']['relative']['mean']):.2f}"
    if "tuned" not in entry:
        return base
    seeds = np.array(entry["tuned"]["relative_by_seed"]).mean((1, 2))
    return f"{base}; {seeds.mean():.2f}" + (f" ({seeds.min():.2f} to {seeds.max():.2f})" if len(seeds) > 1 else "")
