"""Tables and pictures of section 4.4 from what `numbers.json` keeps."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.plots import GREY, INK, add_axes, add_note, save_page, start_page
from experiments.shared.map_table import MapRow, Scale, draw_table, ratio_scale
from experiments.shared.maps import Panel
from experiments.words.estimates import LEVEL, Estimate, differing, name_head, read_estimate
from experiments.words.features import FEATURES, TEXT
from experiments.words.markdown import make_table

COLUMNS = 4
# Paul Tol's bright scheme, which colour-blind people can tell apart.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777")
Numbers = Mapping[str, Any]
RELATIVE = "mean weight × tokens (1: uniform attention)"


def figures(numbers: Numbers) -> dict[str, Callable[[Path], None]]:
    """The pictures by name: `figure`, `layers`, and what else there is: `change` by fine-tuning, `as_published`.

    Args:
        numbers: what `numbers.json` holds.
    """
    sources = numbers["results"]["sources"]
    found: dict[str, Callable[[Path], None]] = {
        "figure": partial(_draw_base, numbers=numbers),
        "layers": partial(_draw_layers, numbers=numbers),
    }
    if any(one["tuned"] for one in sources.values()):
        found["change"] = partial(_draw_change, numbers=numbers)
    if any("as_published" in one for one in sources.values()):
        found["as_published"] = partial(_draw_published, numbers=numbers)
    return found


def _subtitle(numbers: Numbers, sources: Numbers, places: str = "columns") -> str:
    model = numbers["settings"]["model"]
    if len(sources) > 1:
        return f"{model}; {places}: tasks"
    return f"{model}, {next(iter(sources.values()))['data']['corrected']['source']}"


def _lay_out(panels: Mapping[str, Mapping[str, Panel]], scale: Scale) -> list[MapRow]:
    """Maps of each source by feature: a row for each feature, or of one source four features to a row."""
    features = [feature for feature in FEATURES if any(feature in own for own in panels.values())]
    if len(panels) == 1:
        (own,) = panels.values()
        several = [own[feature] for feature in features]
        return [MapRow("", scale, several[place : place + COLUMNS]) for place in range(0, len(several), COLUMNS)]
    return [MapRow(_fold(feature), scale, [own.get(feature) for own in panels.values()]) for feature in features]


def _fold(feature: str) -> str:
    return feature.replace("] ", "]\n")


def _title(sources: Numbers, name: str, feature: str, examples: int) -> str:
    """Of one source the feature, of several the source above its column."""
    if len(sources) == 1:
        return f"{feature} ({examples:,} texts)"
    first = next(one for one in FEATURES if any(one in own["features"] for own in sources.values()))
    return name if feature == first else ""


def _draw_base(path: Path, numbers: Numbers) -> None:
    sources = numbers["results"]["sources"]
    panels: dict[str, dict[str, Panel]] = {}
    for name, one in sources.items():
        estimates = {feature: read_estimate(own["base"]["relative"]) for feature, own in one["features"].items()}
        sure = differing(estimates, 1.0)
        panels[name] = {
            feature: Panel(
                _title(sources, name, feature, one["features"][feature]["examples"]), own.mean, pale=~sure[feature]
            )
            for feature, own in estimates.items()
        }
    note = f"Pale: not told from uniform attention (q ≥ {LEVEL} over all heads and features of a column's texts)."
    if len(sources) == 1:
        note = f"Pale: not told from uniform attention (q ≥ {LEVEL} over all heads and features)."
    title = "Attention to linguistic features and special tokens"
    draw_table(path, _lay_out(panels, ratio_scale(RELATIVE)), title, _subtitle(numbers, sources), note)


def _draw_change(path: Path, numbers: Numbers) -> None:
    sources = {name: one for name, one in numbers["results"]["sources"].items() if one["tuned"]}
    panels: dict[str, dict[str, Panel]] = {}
    for name, one in sources.items():
        changes = {feature: read_estimate(own["tuned"]["change"]) for feature, own in one["features"].items()}
        sure = differing(changes)
        panels[name] = {}
        for feature, change in changes.items():
            own = one["features"][feature]
            base = read_estimate(own["base"]["relative"]).mean
            title = _title(sources, name, feature, own["examples"])
            panels[name][feature] = Panel(title, (base + change.mean) / base, pale=~sure[feature])
    seeds = {len(one["tuned"]) for one in sources.values()}
    count = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else f"{max(seeds)}"
    note = f"Fine-tuned models of each task: {count}, their mean. Pale: no change told from noise (q ≥ {LEVEL})."
    title, scale = "What fine-tuning does to attention to features", ratio_scale("fine-tuned / base", 4.0)
    draw_table(path, _lay_out(panels, scale), title, _subtitle(numbers, sources), note)


def _draw_published(path: Path, numbers: Numbers) -> None:
    sources = {name: one for name, one in numbers["results"]["sources"].items() if "as_published" in one}
    panels: dict[str, dict[str, Panel]] = {}
    for name, one in sources.items():
        panels[name] = {
            feature: Panel(_title(sources, name, feature, one["published_examples"][feature]), read_estimate(own).mean)
            for feature, own in one["as_published"][0].items()
        }
    scale = Scale("weight of the most attended token", 1 / 128, 1.0, ratio=True)
    title = "Attention to linguistic features and special tokens, as published"
    draw_table(path, _lay_out(panels, scale), title, _subtitle(numbers, sources))


def _draw_layers(path: Path, numbers: Numbers) -> None:
    """Lines over layers: a panel for each feature, a colour for each task, dashed where it is fine-tuned."""
    from matplotlib.style import context

    sources = numbers["results"]["sources"]
    features = [feature for feature in FEATURES if any(feature in one["features"] for one in sources.values())]
    wide, high, gap, left, bottom = 1.42, 1.15, 0.42, 0.62, 0.75
    rows = -(-len(features) // COLUMNS)
    with context("default"):
        figure = start_page(
            "Attention to features by layer", _subtitle(numbers, sources, "colours"), bottom, rows * (high + 0.5)
        )
        for place, feature in enumerate(features):
            row, column = divmod(place, COLUMNS)
            below = bottom + (rows - 1 - row) * (high + 0.5) + 0.2
            axes = add_axes(figure, left + column * (wide + gap), below, wide, high)
            for (name, one), colour in zip(sources.items(), COLOURS * 9, strict=False):
                if feature in one["features"]:
                    _draw_trend(axes, one["features"][feature], name, colour)
            _finish_trend(axes, feature, _range(sources), place + COLUMNS >= len(features), not column)
            if not place and len(sources) > 1:
                lines, names = axes.get_legend_handles_labels()
                figure.legend(
                    lines,
                    names,
                    loc="lower left",
                    ncols=7,
                    fontsize=8,
                    frameon=False,
                    bbox_to_anchor=(0.02, 0.25 / float(figure.get_size_inches()[1])),
                )
        tuned = any(one["tuned"] for one in sources.values())
        add_note(figure, "mean over heads; bars: 95 % over texts" + "; dashed: fine-tuned, mean of seeds" * tuned)
        save_page(figure, path)


def _draw_trend(axes: Any, own: Numbers, name: str, colour: str) -> None:
    base = read_estimate(own["base"]["layers"])
    axes.errorbar(range(len(base.mean)), base.mean, base.interval, color=colour, linewidth=1.2, label=name)
    if "tuned" in own:
        mean = np.array(own["tuned"]["relative_by_seed"]).mean((0, -1))
        axes.plot(range(len(mean)), mean, color=colour, linewidth=1.2, linestyle=(0, (3, 1.5)))


def _range(sources: Numbers) -> tuple[int, int]:
    """The powers of two between which all lines lie."""
    layers = [own["base"]["layers"]["mean"] for one in sources.values() for own in one["features"].values()]
    tuned = [own["tuned"] for one in sources.values() for own in one["features"].values() if "tuned" in own]
    layers += [np.array(own["relative_by_seed"]).mean((0, -1)).tolist() for own in tuned]
    low, high = (fold(value for line in layers for value in line) for fold in (min, max))
    return int(np.floor(np.log2(low))), int(np.ceil(np.log2(high)))


def _finish_trend(axes: Any, feature: str, powers: tuple[int, int], last: bool, first: bool) -> None:
    from matplotlib.ticker import MaxNLocator, NullFormatter

    axes.set_yscale("log", base=2)
    axes.set_ylim(2.0 ** powers[0], 2.0 ** powers[1])
    ticks = range(powers[0], powers[1] + 1, 1 if powers[1] - powers[0] < 7 else 2)
    axes.set_yticks(
        [2.0**power for power in ticks], [f"{2**power}" if power >= 0 else f"1/{2**-power}" for power in ticks]
    )
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.axhline(1, color=GREY, linewidth=0.6, linestyle=":")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(labelsize=7, length=0)
    axes.tick_params(which="minor", length=0)
    axes.set_title(feature, fontsize=9, color=INK, pad=3)
    axes.spines[["left", "bottom"]].set_visible(True)
    axes.set_xlabel("layer" if last else "", fontsize=8, color=INK)
    axes.set_ylabel("times uniform" if first else "", fontsize=8, color=INK)


def tables(numbers: Numbers) -> str:
    """The tables of the section in Markdown: a table for each source, then the tasks side by side.

    Args:
        numbers: what `numbers.json` holds.
    """
    sources = numbers["results"]["sources"]
    found = [_base_table(name, one) for name, one in sources.items()]
    if len(sources) > 1:
        found = [_side_by_side(sources, "mean over heads", _overall), _side_by_side(sources, "layers", _ends)]
        found.insert(1, _side_by_side(sources, "heads", _counts))
    else:
        found += [_layer_table(one) for one in sources.values()]
    return "\n\n".join(found) + "\n"


def _base_table(name: str, one: Numbers) -> str:
    rows = []
    estimates = {feature: read_estimate(own["base"]["relative"]) for feature, own in one["features"].items()}
    sure = differing(estimates, 1.0)
    more = _beyond(one)
    for feature, own in one["features"].items():
        relative, largest = estimates[feature], read_estimate(own["base"]["largest"])
        above = int((sure[feature] & (relative.mean > 1)).sum())
        row = [feature, f"{own['examples']:,}", f"{own['tokens']:.1f}", f"{relative.mean.mean():.2f}"]
        row += [_say_highest(relative, 2), str(above), str(more.get(feature, "")), _say_highest(largest, 3)]
        if "as_published" in one:
            row += _published_cells(one, feature)
        rows.append(row)
    head = [name, "examples", "tokens each", "relative, mean of heads", "highest head", "heads above 1"]
    head += ["heads above the text's other tokens", "largest weight, highest head"]
    if "as_published" in one:
        head += ["as published", "largest difference", "rank correlation"]
    return make_table(head, rows)


def _beyond(one: Numbers, sign: int = 1) -> dict[str, int]:
    """How many heads give a feature more (or less) than the text's other tokens."""
    estimates = {
        feature: read_estimate(own["base"]["beyond_text"])
        for feature, own in one["features"].items()
        if "beyond_text" in own["base"]
    }
    sure = differing(estimates)
    return {feature: int((sure[feature] & (sign * own.mean > 0)).sum()) for feature, own in estimates.items()}


def _published_cells(one: Numbers, feature: str) -> list[str]:
    own, apart = one["as_published"][0].get(feature), one["published_against_corrected"].get(feature)
    if own is None or apart is None:
        return ["", "", ""]
    if not apart["largest_difference"]:
        return ["the same", "0", "1"]
    ranks = apart["rank_correlation"]
    said = "" if ranks is None else f"{ranks:.2f}"
    return [_say_highest(read_estimate(own), 3), f"{apart['largest_difference']:.3f}", said]


def _say_highest(found: Estimate, digits: int) -> str:
    place = int(found.mean.argmax())
    half = found.interval.ravel()[place]
    spread = f" ± {half:.{digits}f}" if np.isfinite(half) else ""
    return f"{name_head(place, found.mean.shape[1])} {found.mean.max():.{digits}f}{spread}"


def _layer_table(one: Numbers) -> str:
    layers = range(len(next(iter(one["features"].values()))["base"]["layers"]["mean"]))
    rows = []
    for feature, own in one["features"].items():
        rows.append([feature, "relative", *_cells(own["base"]["layers"])])
        if "layers_beyond_text" in own["base"]:
            rows.append(["", "more than the text's others", *_cells(own["base"]["layers_beyond_text"], "+")])
        if "tuned" in own:
            rows.append(["", "change by fine-tuning", *_cells(own["tuned"]["layers_change"], "+")])
    return make_table(["layer", "", *map(str, layers)], rows)


def _cells(found: Numbers, sign: str = "") -> list[str]:
    one = read_estimate(found)
    return [
        f"{mean:{sign}.2f} ± {half:.2f}" if np.isfinite(half) else f"{mean:{sign}.2f}"
        for mean, half in zip(one.mean, one.interval, strict=True)
    ]


def _side_by_side(sources: Numbers, name: str, say: Callable[[Numbers, str, bool], str]) -> str:
    """A row for each feature, and below it for the fine-tuned models; a column for each source."""
    rows = []
    for feature in FEATURES:
        for tuned in (False, True):
            cells = [
                say(one, feature, tuned) if feature in one["features"] and (one["tuned"] or not tuned) else ""
                for one in sources.values()
            ]
            if any(cells):
                rows.append([f"{feature}, tuned" if tuned else feature, *cells])
    return make_table([name, *sources], rows)


def _overall(one: Numbers, feature: str, tuned: bool) -> str:
    """The mean over heads; of tuned models with the range over seeds."""
    own = one["features"][feature]
    if not tuned:
        return f"{np.mean(own['base']['relative']['mean']):.2f}"
    seeds = np.array(own["tuned"]["relative_by_seed"]).mean((1, 2))
    return f"{seeds.mean():.2f}" + (f" ({seeds.min():.2f} to {seeds.max():.2f})" if len(seeds) > 1 else "")


def _counts(one: Numbers, feature: str, tuned: bool) -> str:
    """How many heads give more than the text's other tokens get, and less; of tuned models, how many rose and fell."""
    if feature == TEXT:
        return ""
    if not tuned:
        return f"{_beyond(one)[feature]} more, {_beyond(one, -1)[feature]} less"
    changes = {name: read_estimate(own["tuned"]["change"]) for name, own in one["features"].items()}
    sure = differing(changes)[feature]
    up, down = (int((sure & (sign * changes[feature].mean > 0)).sum()) for sign in (1, -1))
    return f"{up} rose, {down} fell"


def _ends(one: Numbers, feature: str, tuned: bool) -> str:
    """The first layer's mean and the last one's."""
    own = one["features"][feature]
    layers: Sequence[float] = own["base"]["layers"]["mean"]
    if tuned:
        layers = np.array(own["tuned"]["relative_by_seed"]).mean((0, -1)).tolist()
    return f"{layers[0]:.2f} to {layers[-1]:.2f}"
