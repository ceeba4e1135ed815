"""Tables and pictures of section 4.4 from the contents of `numbers.json`."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.style import context
from matplotlib.ticker import MaxNLocator

from bertjax.plots import GREY, INK, Panel, add_axes, add_note, save_page, start_page
from experiments.shared.figures import Texts, draw_maps
from experiments.shared.run import Figures, Numbers, Runs, name_maps
from experiments.shared.tables import make_table, name_head
from experiments.words.estimates import LEVEL, Estimate, differing, read_estimate
from experiments.words.features import FEATURES, SPECIAL

COLUMNS = 4
# Paul Tol's bright scheme, which colour-blind people can tell apart.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777")
RELATIVE = "mean weight × tokens (1: uniform attention)"


def figures(numbers: Numbers) -> Figures:
    """The pictures by name: `figure`, `layers`."""
    return {"figure": partial(_draw_heads, numbers=numbers), "layers": partial(_draw_layers, numbers=numbers)}


def _subtitle(numbers: Numbers, places: str = "") -> str:
    model, sources = numbers["settings"]["model"] + name_maps(numbers["settings"]), numbers["results"]["sources"]
    if len(sources) > 1:
        return f"{model}{places}"
    return f"{model}, {next(iter(sources.values()))['data']['corrected']['source']}"


def _draw_heads(path: Path, numbers: Numbers) -> None:
    """Draw maps of all features of one source; of several sources, of [CLS] and [SEP]."""
    sources = numbers["results"]["sources"]
    estimates = {
        name: {feature: read_estimate(entry["base"]["relative"]) for feature, entry in source["features"].items()}
        for name, source in sources.items()
    }
    significant = {name: differing(found, 1.0) for name, found in estimates.items()}
    features = FEATURES if len(sources) == 1 else SPECIAL[:2]
    panels = [
        Panel(
            f"{feature} ({source['features'][feature]['examples']:,} texts)"
            if len(sources) == 1
            else f"{feature}: {name}",
            estimates[name][feature].mean,
            struck=~significant[name][feature],
        )
        for feature in features
        for name, source in sources.items()
        if feature in source["features"]
    ]
    note = f"stroke: not different from uniform attention (q ≥ {LEVEL}, over all heads and features of a task)"
    title = "Attention to linguistic features and special tokens"
    draw_maps(path, panels, Texts(title, _subtitle(numbers), RELATIVE), note=note, ratio=4)


def _draw_layers(path: Path, numbers: Numbers) -> None:
    """Draw lines over layers: a panel for each feature, a colour for each task, dashed where it is fine-tuned."""
    sources = numbers["results"]["sources"]
    features = [feature for feature in FEATURES if any(feature in source["features"] for source in sources.values())]
    rows = -(-len(features) // COLUMNS)
    with context("default"):
        figure = start_page("Attention to features by layer", _subtitle(numbers, "; colours: tasks"), 0.75, 1.65 * rows)
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


def tables(runs: Runs) -> str:
    """Runs of one source side by side; of a run with several sources, the means over heads."""
    (_, first), *_ = runs.items()
    sources = first["results"]["sources"]
    if len(sources) == 1:
        return _base_table(runs)
    features = [feature for feature in FEATURES if any(feature in source["features"] for source in sources.values())]
    rows = [[feature, *(_overall(source, feature) for source in sources.values())] for feature in features]
    return make_table(["mean over heads", *sources], rows)


def _base_table(runs: Runs) -> str:
    sources = [next(iter(numbers["results"]["sources"].values())) for numbers in runs.values()]
    cells, header = [], ["feature", "texts"]
    for numbers, source in zip(runs.values(), sources, strict=True):
        estimates = {name: read_estimate(entry["base"]["relative"]) for name, entry in source["features"].items()}
        significant, beyond = differing(estimates, 1.0), _beyond(source)
        above = {name: int((significant[name] & (found.mean > 1)).sum()) for name, found in estimates.items()}
        cells.append(
            {
                name: [f"{found.mean.mean():.2f}", _format_highest(found), f"{above[name]}; {beyond.get(name, '–')}"]
                for name, found in estimates.items()
            }
        )
        maps = "norms" if numbers["settings"].get("norms") else "weights"
        header += [f"{maps}: mean of heads", "highest head", "heads above 1; above other tokens"]
    rows = [
        [feature, f"{entry['examples']:,}", *(cell for of_run in cells for cell in of_run.get(feature, ["", "", ""]))]
        for feature, entry in sources[0]["features"].items()
    ]
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


def _format_highest(estimate: Estimate) -> str:
    index = int(estimate.mean.argmax())
    half = estimate.interval.ravel()[index]
    spread = f" ± {half:.2f}" if np.isfinite(half) else ""
    return f"{name_head(index, estimate.mean.shape[1])} {estimate.mean.max():.2f}{spread}"


def _overall(source: Numbers, feature: str) -> str:
    """The mean over heads, and that of the tuned models."""
    if feature not in source["features"]:
        return ""
    entry = source["features"][feature]
    tuned = f"; {np.mean(entry['tuned']['relative_by_seed']):.2f}" if "tuned" in entry else ""
    return f"{np.mean(entry['base']['relative']['mean']):.2f}{tuned}"
