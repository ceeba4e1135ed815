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
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.colors import to_hex
from scipy.stats import rankdata

import bertjax
from bertjax.analyses import compare_with_exact
from bertjax.plots import COLOURS, GREY, INK
from bertjax.statistics import contributions, find_metric, rank_correlation
from experiments.shared.effects import outputs_of
from experiments.shared.figures import Series, Texts, draw_estimates
from experiments.shared.run import Figures, Found, Numbers, Run, Runs, array, make_reader, run_script, short, short_name
from experiments.shared.tables import make_table

ORDERS = {
    "importance": "importance",
    "token_importance": "importance at tokens",
    "predicted_loss": "predicted change, its size",
    "layer": "the layer alone",
}
SHOWN = ("importance", "predicted_loss", "layer")
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


def tables(runs: Runs) -> str:
    """A row for each pair."""
    rows = []
    for pair in (pair for numbers in runs.values() for pair in numbers["results"]["pairs"]):
        count, fits = len(pair["names"]), pair["fits"]
        row = [f"{pair['model']}, {pair['task']} ({pair['examples']:,})", f"{pair['significant']} of {count}"]
        row += [_correlation(fits[name]) for name in SHOWN]
        row += [f"{pair['within']:.2f}", f"{pair['ceiling']:.2f}"]
        rows.append([*row, f"{fits['importance']['found']} ({DEPTH**2 / count:.1f})"])
    headings = ["model, task (examples)", "significant heads", *(ORDERS[name] for name in SHOWN), "within layers"]
    return make_table([*headings, "exact, two halves", f"of {DEPTH} largest (random)"], rows)


def _correlation(fit: Mapping[str, Any]) -> str:
    interval = "" if fit["low"] is None else f" ({fit['low']:.2f} to {fit['high']:.2f})"
    return "undefined" if fit["correlation"] is None else f"{fit['correlation']:.2f}{interval}"


def figures(numbers: Numbers) -> Figures:
    """The correlations of each pair."""
    pairs = numbers["results"]["pairs"]
    low, high = map(to_hex, matplotlib.colormaps[COLOURS]([0.12, 0.88]))

    def of(order: str, part: str = "correlation") -> Any:
        return array([pair["fits"][order][part] for pair in pairs])

    ends = np.stack([of("importance", "low"), of("importance", "high")], axis=1)
    series = [
        Series("importance (line: 95 % over heads)", of("importance"), ends, high),
        Series("predicted change, its size", of("predicted_loss"), None, low, "s"),
        Series("the layer alone", of("layer"), None, GREY, "^"),
        Series("exact effects on two halves of the examples", [pair["ceiling"] for pair in pairs], None, INK, "|"),
    ]
    names = [f"{pair['model']}\n{pair['task']}, {pair['metric']}" for pair in pairs]
    label = "rank correlation over heads with the size of the exact effect on the score"
    texts = Texts("Gradient-based importance and exact effects", "mode zero", label)
    return {"figure": partial(draw_estimates, names=names, series=series, texts=texts, limits=(-0.6, 1.02))}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_reader(__doc__)
    text = "results of bertjax ablate, each followed by those of importance"
    parser.add_argument("directories", nargs="+", metavar="DIR", help=text)
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
