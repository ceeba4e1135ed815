"""Does gradient-based importance find the heads that matter? (Michel et al. 2019)

Reads pairs of directories: exact effects of single heads (`bertjax ablate --mode zero`) and gradients of the same model
on the same examples (`bertjax importance --mode zero`). For each pair: the rank correlation, over heads, of the size of
the exact effect with gradient-based importance, with its form of absolute values at each token, with the size of the
predicted change, and, as a control, with the layer; the correlation within layers (ranks minus the mean of each layer).
For comparison: the agreement of exact effects on two halves of the examples (mean of 50 random splits), and how many of
the ten heads with the largest effects are among the first ten by importance.

    python -m experiments.beyond.gradient_trust EXACT GRADIENTS [EXACT GRADIENTS ...] --output DIR
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.style import context
from scipy.stats import rankdata

import bertjax
from bertjax.analyses import compare_with_exact
from bertjax.plots import COLOURS, GREY, INK, PALE, WIDTH, add_axes, save_page, start_page
from bertjax.statistics import contributions, find_metric, rank_correlation
from experiments.shared.effects import outputs_of
from experiments.shared.run import Figures, Found, Numbers, Run, make_reader, run_script, short, short_name
from experiments.shared.tables import make_table

ORDERS = {
    "importance": "importance",
    "token_importance": "importance at tokens",
    "predicted_loss": "predicted change, its size",
    "layer": "the layer alone",
}
HALVES, DEPTH = 50, 10


def compute(run: Run) -> Found:
    """Compare each pair of results."""
    results = [bertjax.read_results(name) for name in run.options.directories]
    pairs = [_compare(*both) for both in zip(results[::2], results[1::2], strict=True)]
    return {"pairs": pairs, "halves": HALVES, "depth": DEPTH}, {}


def _compare(exact: bertjax.Results, gradients: bertjax.Results) -> dict[str, Any]:
    """Effects and estimates of each head, and how well each order fits."""
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
            "correlation": short(fit.correlation, 5),
            "low": short(fit.low, 5),
            "high": short(fit.high, 5),
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
        "exact": [short(value, 5) for value in effects.tolist()],
        "estimates": {name: [short(value, 5) for value in estimate.tolist()] for name, estimate in estimates.items()},
        "fits": fits,
        "within": short(within_layers(estimates["importance"], np.abs(effects), estimates["layer"]), 5),
        "ceiling": short(between_halves(_effects_of_examples(exact)), 5),
    }


def within_layers(
    first: Float[np.ndarray, " heads"], second: Float[np.ndarray, " heads"], layers: Float[np.ndarray, " heads"]
) -> float:
    """The correlation of two orders' ranks, each without the mean of its layer."""
    ranks = [np.asarray(rankdata(values), np.float64) for values in (first, second)]
    for order in ranks:
        for layer in np.unique(layers):
            order[layers == layer] -= order[layers == layer].mean()
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _effects_of_examples(exact: bertjax.Results) -> Float[np.ndarray, "heads examples"]:
    """What each example contributes to each head's effect on the main score."""
    arrays = exact.outputs
    positive = int(exact.summary["positive"])
    metric = find_metric(exact.metric)
    _, contributed = contributions(metric, outputs_of(exact), arrays["labels"], positive, units=arrays.get("units"))
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


def tables(numbers: Numbers) -> str:
    """A row for each pair."""
    return overview({"": numbers})


def overview(runs: Mapping[str, Numbers]) -> str:
    """A row for each pair of several runs."""
    results, rows = next(iter(runs.values()))["results"], []
    for pair in (pair for numbers in runs.values() for pair in numbers["results"]["pairs"]):
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
    headings = ["model, task (examples)", "significant heads", *ORDERS.values(), "importance within layers"]
    headings += ["exact effects, two halves", f"of {results['depth']} largest effects (random)"]
    return make_table(headings, rows)


def _correlation(fit: Mapping[str, Any]) -> str:
    interval = "" if fit["low"] is None else f" ({fit['low']:.2f} to {fit['high']:.2f})"
    return "undefined" if fit["correlation"] is None else f"{fit['correlation']:.2f}{interval}"


def figures(numbers: Numbers) -> Figures:
    """The correlations of each pair."""
    return {"figure": partial(_draw, numbers["results"]["pairs"])}


def _draw(pairs: Sequence[Mapping[str, Any]], path: Path) -> None:
    low, high = matplotlib.colormaps[COLOURS]([0.12, 0.88])
    height, left, bottom = 0.5 * len(pairs), 2.9, 1.15
    with context("default"):
        subtitle = "rank correlation over heads with the size of the exact effect on the score, mode zero"
        figure = start_page("Gradient-based importance and exact effects", subtitle, bottom, height)
        axes = add_axes(figure, left, bottom, WIDTH - left - 0.4, height)
        for index, pair in enumerate(pairs):
            if pair["fits"]["importance"]["low"] is not None:
                ends = (pair["fits"]["importance"][name] for name in ("low", "high"))
                axes.hlines(index, *ends, color=high, linewidth=1.6, zorder=2)
        values = {
            "importance (line: 95 % over heads)": (
                [one["fits"]["importance"]["correlation"] for one in pairs],
                "o",
                high,
            ),
            "predicted change, its size": ([one["fits"]["predicted_loss"]["correlation"] for one in pairs], "s", low),
            "the layer alone": ([one["fits"]["layer"]["correlation"] for one in pairs], "^", GREY),
            "exact effects on two halves of the examples": ([one["ceiling"] for one in pairs], "|", INK),
        }
        for label, (correlations, marker, colour) in values.items():
            style: dict[str, Any] = {"marker": marker, "color": colour, "label": label, "s": 45, "zorder": 3}
            axes.scatter(correlations, range(len(pairs)), **style)
        names = [f"{pair['model']}\n{pair['task']}, {pair['metric']}" for pair in pairs]
        axes.set_yticks(range(len(pairs)), names, fontsize=8.5)
        axes.set_ylim(len(pairs) - 0.5, -0.5)
        axes.set_xlim(-0.6, 1.02)
        axes.axvline(0, color=INK, linewidth=1.2, zorder=1)
        axes.grid(axis="x", color=PALE, linewidth=0.8)
        axes.set_axisbelow(True)
        figure.legend(loc="lower left", ncols=2, frameon=False, fontsize=8.5)
    save_page(figure, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_reader(__doc__)
    text = "results of bertjax ablate, each followed by those of importance"
    parser.add_argument("directories", nargs="+", metavar="DIR", help=text)
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
