"""Would gradients have told which heads matter? (Michel et al. 2019 rank heads by them; a sweep says what is true)

Reads pairs of directories: an exact sweep of single heads (`bertjax ablate --mode zero`) and the gradients of the same
model on the same examples (`bertjax importance --mode zero`). For each pair the rank correlation, over heads, of the
size of the exact effect on the main score with four orders: gradient importance; the same with absolute values at each
token; the size of the signed change that gradients predict; and, as a doubter's control, the layer alone, which knows
nothing of the head; and importance once more within layers, by ranks from which each layer's mean was taken. Beside
them how far exact effects agree with themselves: those on one half of the examples with those on the other (mean of 50
random halves, each of which is noisier than the whole). How many of the ten heads of the largest effects importance
finds in its first ten, where random heads find 10 x 10 over the number of heads. No model is needed.

    python -m experiments.gradient_trust EXACT GRADIENTS [EXACT GRADIENTS ...] --output DIR

For the results see `RESULTS.md`.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from scipy.stats import rankdata

import bertjax
from bertjax.analyses import compare_with_exact
from bertjax.errors import InputError
from bertjax.evidence import contributions, find_metric, rank_correlation
from bertjax.plots import COLOURS, GREY, INK, PALE, WIDTH, add_axes, save_page, start_page
from bertjax.analyses import trust_in
from experiments.disabling.summary_lines import table_of
from experiments.shared.program import Outcome, make_joining_parser, run_joining, short_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ORDERS = {
    "importance": "importance",
    "token_importance": "importance at tokens",
    "predicted_loss": "predicted change, its size",
    "layer": "the layer alone",
}
HALVES, DEPTH = 50, 10


def compute(options: argparse.Namespace) -> Outcome:
    """Compare each pair. Raises `InputError` where two are of different models, tasks or examples."""
    if len(options.directories) % 2:
        raise InputError("give directories in pairs: an exact sweep, and then its gradients")
    pairs = [_compare(*(bertjax.read_results(name) for name in both)) for both in _in_twos(options.directories)]
    numbers = {"pairs": pairs, "halves": HALVES, "depth": DEPTH}
    values = {
        f"{one['model']} {one['task']}": np.array([one["exact"], one["estimates"]["importance"]]) for one in pairs
    }
    pictures = figures({"results": numbers})
    return Outcome(numbers, values, pictures.pop("figure"), tables({"results": numbers}).split("\n"), pictures)


def _in_twos(directories: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(directories[::2], directories[1::2], strict=True))


def _compare(exact: bertjax.Results, gradients: bertjax.Results) -> dict[str, Any]:
    """Effects and estimates of each head, and how well each order fits."""
    trust_in(gradients, exact)  # refuses what cannot be compared
    if exact.summary["mode"]["name"] != gradients.summary["mode"]["name"]:
        raise InputError(f"{exact.source} and {gradients.source} are of different modes: give those of one")
    if exact.summary["data"]["sha256"] != gradients.summary["data"]["sha256"]:
        raise InputError(f"{exact.source} and {gradients.source} are of different examples: give those of one draw")
    effects = np.array([row.difference for row in exact.rows_of()], np.float64)
    estimates = {
        name: np.array([abs(row.difference or 0.0) for row in gradients.rows_of(name)])
        for name in ORDERS
        if name != "layer"
    }
    estimates["layer"] = np.array([float(row.layer or 0) for row in exact.rows_of()])
    names, measure = exact.names, exact.measure()
    fits = {}
    for name, estimate in estimates.items():
        fit = compare_with_exact(names, estimate, effects)
        fits[name] = {
            "correlation": _short(fit.correlation),
            "low": _short(fit.low),
            "high": _short(fit.high),
            "found": round(DEPTH * fit.precision[DEPTH]) if DEPTH in fit.precision else None,
        }
    model, data = exact.summary["model"], exact.summary["data"]
    return {
        "model": short_name(model["name"]),
        "task": data["task"],
        "examples": data["examples"],
        "mode": exact.summary["mode"]["name"],
        "loss": gradients.summary["gradients"]["loss"],
        "metric": measure.label,
        "unit": measure.unit,
        "names": names,
        "significant": int(sum(row.significant for row in exact.rows_of())),
        "exact": [_short(value) for value in effects.tolist()],
        "estimates": {name: [_short(value) for value in estimate.tolist()] for name, estimate in estimates.items()},
        "fits": fits,
        "within": _short(within_layers(estimates["importance"], np.abs(effects), estimates["layer"])),
        "ceiling": _short(between_halves(_effects_of_examples(exact))),
        "worst": [list(one) for one in compare_with_exact(names, estimates["importance"], effects).worst[:3]],
    }


def within_layers(
    first: Float[np.ndarray, " heads"], second: Float[np.ndarray, " heads"], layers: Float[np.ndarray, " heads"]
) -> float:
    """The correlation of two orders' ranks, each without the mean of its layer."""
    ranks = [np.asarray(rankdata(values), np.float64) for values in (first, second)]
    for own in ranks:
        for layer in np.unique(layers):
            own[layers == layer] -= own[layers == layer].mean()
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _short(value: float) -> float | None:
    return None if np.isnan(value) else float(f"{value:.5g}")


def _effects_of_examples(exact: bertjax.Results) -> Float[np.ndarray, "heads examples"]:
    """What each example contributes to each head's effect on the main score."""
    arrays = exact.outputs
    outputs = np.concatenate([arrays["base"][None], arrays["outputs"]])
    positive = int(exact.summary["positive"])
    metric = find_metric(exact.metric)
    _, contributed = contributions(metric, outputs, arrays["labels"], positive, units=arrays.get("units"))
    return np.asarray(contributed[1:] - contributed[0])


def between_halves(effects: Float[np.ndarray, "heads examples"], seed: int = 0) -> float:
    """Rank correlation of the sizes of effects on one half of the examples with those on the other; a mean."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(HALVES):
        order = rng.permutation(effects.shape[1])
        half = len(order) // 2
        both = [np.abs(effects[:, part].mean(axis=1)) for part in (order[:half], order[half:])]
        found.append(rank_correlation(both[0], both[1], draws=2)[0])
    return float(np.mean(found))


def tables(numbers: Mapping[str, Any]) -> str:
    """The table in Markdown, from `numbers.json` alone: a row for each pair."""
    results = numbers["results"]
    rows = []
    for pair in results["pairs"]:
        count = len(pair["names"])
        chance = results["depth"] ** 2 / count
        fits = [pair["fits"][name] for name in ORDERS]
        rows.append(
            [
                f"{pair['model']}, {pair['task']} ({pair['examples']:,})",
                f"{pair['significant']} of {count}",
                *(_correlation(fit) for fit in fits),
                f"{pair['within']:.2f}",
                f"{pair['ceiling']:.2f}",
                f"{pair['fits']['importance']['found']} ({chance:.1f})",
            ]
        )
    headings = [
        "model, task (examples)",
        "heads found (q < 0.05)",
        *ORDERS.values(),
        "importance within layers",
        "halves of exact effects",
    ]
    return table_of([*headings, f"of the first {results['depth']} (random)"], rows)


def _correlation(fit: Mapping[str, Any]) -> str:
    interval = "" if fit["low"] is None else f" ({fit['low']:.2f} to {fit['high']:.2f})"
    return "undefined" if fit["correlation"] is None else f"{fit['correlation']:.2f}{interval}"


def figures(numbers: Mapping[str, Any]) -> dict[str, Callable[[Path], None]]:
    """The picture, from `numbers.json` alone: the correlations of each pair."""
    return {"figure": partial(_draw, numbers["results"]["pairs"])}


def _draw(pairs: Sequence[Mapping[str, Any]], path: Path) -> None:
    import matplotlib
    from matplotlib.style import context

    low, high = matplotlib.colormaps[COLOURS]([0.12, 0.88])
    height, left, bottom = 0.5 * len(pairs), 2.9, 1.15
    with context("default"):
        subtitle = "rank correlation over heads with the size of the exact effect on the score, mode zero"
        figure = start_page("Would gradients have told which heads matter?", subtitle, bottom, height)
        axes = add_axes(figure, left, bottom, WIDTH - left - 0.4, height)
        for place, pair in enumerate(pairs):
            fits = pair["fits"]
            fit = fits["importance"]
            if fit["low"] is not None:
                axes.hlines(place, fit["low"], fit["high"], color=high, linewidth=1.6, zorder=2)
            style: dict[str, Any] = {"zorder": 3, "linewidths": 1.2}
            axes.scatter(fits["layer"]["correlation"], place, s=34, c="white", edgecolors=GREY, **style)
            axes.scatter(fits["predicted_loss"]["correlation"], place, s=34, color=low, marker="s", **style)
            axes.scatter(fit["correlation"], place, s=52, color=high, **style)
            axes.scatter(pair["ceiling"], place, s=90, color=INK, marker="|", **{**style, "linewidths": 2.0})
        _label(axes, pairs)
        _explain(axes, (high, low))
    save_page(figure, path)


def _label(axes: "Axes", pairs: Sequence[Mapping[str, Any]]) -> None:
    names = [f"{pair['model']}\n{pair['task']}, {pair['metric']}" for pair in pairs]
    axes.set_yticks(range(len(pairs)), names, fontsize=8.5)
    axes.set_ylim(len(pairs) - 0.5, -0.5)
    axes.set_xlim(-0.6, 1.02)
    axes.axvline(0, color=INK, linewidth=1.2, zorder=1)
    axes.grid(axis="x", color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)


def _explain(axes: "Axes", colours: tuple[Any, Any]) -> None:
    """The legend below the axes."""
    from matplotlib.lines import Line2D

    drawn: list[tuple[str, dict[str, Any]]] = [
        ("importance (line: 95 % over heads)", {"color": colours[0], "marker": "o", "markersize": 7}),
        ("predicted change, its size", {"color": colours[1], "marker": "s", "markersize": 6}),
        ("the layer alone", {"color": GREY, "markerfacecolor": "white", "marker": "o"}),
        ("exact effects on two halves of the examples", {"color": INK, "marker": "|", "markersize": 9}),
    ]
    entries = [Line2D([], [], linestyle="none", label=label, **style) for label, style in drawn]
    axes.legend(handles=entries, loc="upper center", bbox_to_anchor=(0.3, -0.12), ncols=2, frameon=False, fontsize=8.5)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_joining_parser(
        "gradient_trust", __doc__, "results of bertjax ablate, each followed by those of importance"
    )
    return run_joining(parser, "gradient_trust", compute, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
