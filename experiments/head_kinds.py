"""What kind of head each is, on several kinds of text (Clark et al. 2019, Voita et al. 2019, Kobayashi et al. 2020)

Reads directories of `bertjax roles`: shares of each head's attention on the previous and next token, [CLS], [SEP],
punctuation and so on, by weights and by the norms of what is added up. For each model and text: the mean over heads of
every role beside what uniform attention has; the head with most of it; whether the same heads have it on other texts
(rank correlation over heads); how far weights and norms order heads alike; and whether heads of one layer attend alike.
No model is needed.

    bertjax roles --task qnli --data GLUE --limit 1000 --output qnli
    bertjax roles --task mlm --data LINES.txt --output lines
    python -m experiments.head_kinds qnli lines --output DIR

For the results see `RESULTS.md`.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from scipy.stats import spearmanr

import bertjax
from bertjax.errors import InputError
from bertjax.plots import GREY, INK, WIDTH, add_axes, add_note, save_page, start_page
from bertjax.probes import NUMBERS
from experiments.disabling.summary_lines import table_of
from experiments.shared.program import Outcome, make_joining_parser, run_joining, short_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTS = {"cls": "[CLS]", "sep": "[SEP]", "punctuation": "punctuation", "rest": "words"}  # all keys that words have
PART_COLOURS = ("#0072b2", "#56b4e9", "#e69f00", "#d9d9d9")


def compute(options: argparse.Namespace) -> Outcome:
    """Join the results. Raises `InputError` where one has no roles, or a model has the same texts twice."""
    runs = [_read(bertjax.read_results(name)) for name in options.directories]
    same = [(run["weights_sha256"], run["data_sha256"]) for run in runs]
    if len({*same}) < len(same):
        raise InputError("a model has the same texts twice: give each once")
    names = [(run["model"], run["texts"]) for run in runs]
    if len({*names}) < len(names):
        raise InputError("two models, or two sets of texts, have one name: give their directories or files others")
    numbers = {"runs": runs, "between_texts": _between_texts(runs)}
    values = {
        f"{run['model']} {run['texts']} {kind} {name}": np.array(share)
        for run in runs
        for kind, shares in run["parts"].items()
        for name, share in shares.items()
    }
    pictures = figures({"results": numbers})
    return Outcome(numbers, values, pictures.pop("figure"), tables({"results": numbers}).split("\n"), pictures)


def _read(results: bertjax.Results) -> dict[str, Any]:
    """What is needed of one directory."""
    if "roles" not in results.summary:
        raise InputError(f"{results.source} has no roles of heads: give results of bertjax roles")
    roles, model, data = results.summary["roles"], results.summary["model"], results.summary["data"]
    given, split = results.summary["settings"]["data"], data["split"]
    part = "" if split.startswith("validation") else f":{split}"
    own = given is not None and data["task"] in ("mlm", "custom")
    weights, norms, uniform = {}, {}, {}
    for name in roles["definitions"]:
        rows = results.rows_of(name)
        weights[name], uniform[name] = [_short(row.score) for row in rows], _short(rows[0].base)
        norms[name] = [_short(row.score) for row in results.rows_of(f"norm_{name}")]
    spread = {name: [_short(row.score) for row in results.rows_of(name)] for name in ("confidence", "entropy")}
    return {
        "model": short_name(model["name"]),
        "texts": Path(given).name.split(".")[0] if own else data["task"] + part,
        "examples": data["examples"],
        "weights_sha256": model["weights_sha256"],
        "data_sha256": data["sha256"],
        "heads": results.names,
        "labels": {name: results.measure(name).label.removeprefix("Attention to ") for name in weights},
        "uniform": uniform,
        "weights": weights,
        "norms": norms,
        "parts": _parts(results),
        "spread": spread,
        "uniform_entropy": _short(results.rows_of("entropy")[0].base),
        "kinds": roles["kinds"],
        "silhouette": roles.get("silhouette"),
    }


def _parts(results: bertjax.Results) -> dict[str, dict[str, list[float]]]:
    """The share of all words' attention on each kind of key, uniform, by weights and by norms of each head."""
    arrays = results.outputs
    words = arrays["base"][:, NUMBERS.index("words")].sum()

    def shares(outputs: Float[np.ndarray, "*heads examples numbers"], prefix: str) -> dict[str, list[float]]:
        sums = outputs.sum(axis=-2, dtype=np.float64) / words
        return {name: [_short(x) for x in np.atleast_1d(sums[..., NUMBERS.index(prefix + name)])] for name in PARTS}

    return {
        "uniform": shares(arrays["base"], ""),
        "weights": shares(arrays["outputs"], ""),
        "norms": shares(arrays["outputs"], "norm_"),
    }


def _short(value: float | None) -> float:
    return float("nan") if value is None else float(f"{value:.5g}")


def _between_texts(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each two texts of a model, the rank correlation over heads of each role that both have."""
    found = []
    for place, first in enumerate(runs):
        for second in runs[place + 1 :]:
            if first["weights_sha256"] != second["weights_sha256"]:
                continue
            both = [name for name in first["weights"] if name in second["weights"]]
            ranks = {
                name: _short(float(spearmanr(first["weights"][name], second["weights"][name])[0])) for name in both
            }
            found.append({"model": first["model"], "texts": [first["texts"], second["texts"]], "correlations": ranks})
    return found


def tables(numbers: Mapping[str, Any]) -> str:
    """The tables in Markdown, from `numbers.json` alone: roles, agreement between texts, kinds."""
    results = numbers["results"]
    return "\n\n".join([_roles(results["runs"]), _agreement(results["between_texts"]), _kinds(results["runs"])])


def _roles(runs: Sequence[Mapping[str, Any]]) -> str:
    names = [name for run in runs for name in run["weights"]]
    columns = [f"{run['model']}, {run['texts']} ({run['examples']:,})" for run in runs]
    labels = {name: label for run in runs for name, label in run["labels"].items()}
    rows = [[labels[name], *(_cell(run, name) for run in runs)] for name in dict.fromkeys(names)]
    return table_of(["% of attention to", *columns], rows)


def _cell(run: Mapping[str, Any], name: str) -> str:
    """Uniform attention, the heads' mean by weights and by norms, and the head with most of it."""
    if name not in run["weights"]:
        return ""
    weights = np.array(run["weights"][name])
    means = " / ".join(f"{100 * mean:.1f}" for mean in (run["uniform"][name], weights.mean(), _mean(run, name)))
    most = int(weights.argmax())
    return f"{means}; {run['heads'][most]}: {100 * weights[most]:.0f}"


def _mean(run: Mapping[str, Any], name: str) -> float:
    return float(np.mean(run["norms"][name]))


def _agreement(pairs: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for pair in pairs for name in pair["correlations"]))
    rows = [
        [
            f"{pair['model']}: {' and '.join(pair['texts'])}",
            *(f"{pair['correlations'][name]:.2f}" if name in pair["correlations"] else "" for name in names),
        ]
        for pair in pairs
    ]
    return table_of(["rank correlation over heads", *names], rows)


def _kinds(runs: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for run in runs:
        heads = {kind: [head for head, kinds in run["kinds"].items() if kind in kinds] for kind in KINDS_SHOWN}
        entropy, found = float(np.mean(run["spread"]["entropy"])), run["silhouette"]
        layers = "" if found is None else f"{found['value']:.2f} ({found['permuted']:.2f}, p = {found['p']:.2g})"
        cells = [", ".join(heads[kind]) or "none" for kind in KINDS_SHOWN]
        spread = f"{entropy:.2f} of {run['uniform_entropy']:.2f}"
        rows.append([f"{run['model']}, {run['texts']}", *cells, spread, layers])
    return table_of(["", *KINDS_SHOWN, "mean entropy, nats, of uniform", "silhouette of layers (permuted)"], rows)


KINDS_SHOWN = ("positional", "previous", "next", "sep", "broad")


def figures(numbers: Mapping[str, Any]) -> dict[str, Callable[[Path], None]]:
    """The picture, from `numbers.json` alone: to what words attend, by weights and by norms."""
    return {"figure": partial(_draw, numbers["results"]["runs"])}


def _draw(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    from matplotlib.style import context

    rows = [(f"{run['model']}, {run['texts']}", kind, run) for run in runs for kind in ("uniform", "weights", "norms")]
    height, left, bottom = 0.27 * len(rows) + 0.1 * len(runs), 3.1, 1.0
    with context("default"):
        subtitle = "mean over heads of the share of words' attention: uniform, by weights, by norms of what is added up"
        figure = start_page("To what do heads attend?", subtitle, bottom, height)
        axes = add_axes(figure, left, bottom, WIDTH - left - 0.4, height)
        for number, (name, kind, run) in enumerate(rows):
            _bar(axes, number + 0.4 * (number // 3), run, kind, name if kind == "uniform" else "")
        axes.set_ylim(len(rows) + 0.4 * len(runs) - 0.6, -0.6)
        axes.set_xlim(0, 100)
        axes.set_yticks([])
        axes.set_xlabel("% of attention from words", fontsize=9, color=INK)
        for side in ("top", "left", "right"):
            axes.spines[side].set_visible(False)
        handles = [
            axes.barh(0, 0, color=colour, label=label)
            for label, colour in zip(PARTS.values(), PART_COLOURS, strict=True)
        ]
        axes.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(-0.02, -0.1), ncols=4, frameon=False, fontsize=8.5
        )
        add_note(figure, "")
    save_page(figure, path)


def _bar(axes: "Axes", place: float, run: Mapping[str, Any], kind: str, name: str) -> None:
    """One stacked bar, with what it is to its left."""
    start = 0.0
    for part, colour in zip(PARTS, PART_COLOURS, strict=True):
        share = 100 * float(np.mean(run["parts"][kind][part]))
        axes.barh(place, share, left=start, height=0.8, color=colour)
        if share > 5:
            shade = "white" if part == "cls" else INK
            axes.text(start + share / 2, place, f"{share:.0f}", ha="center", va="center", fontsize=7.5, color=shade)
        start += share
    axes.text(-1.5, place, kind, ha="right", va="center", fontsize=8, color=GREY)
    if name:
        axes.text(-16, place + 1, name, ha="right", va="center", fontsize=8.5, color=INK)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_joining_parser("head_kinds", __doc__, "results of bertjax roles")
    return run_joining(parser, "head_kinds", compute, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
