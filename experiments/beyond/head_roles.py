"""What kind of head is each, on several kinds of text? (Clark et al. 2019, Voita et al. 2019, Kobayashi et al. 2020)

Reads directories of `bertjax roles`: shares of each head's attention on the previous and next token, [CLS], [SEP],
punctuation and so on, by weights and by norms. For each model and text: the mean over heads of every role compared with
uniform attention; the head with most of it; whether the same heads have it on other texts (rank correlation over
heads); and whether heads of one layer attend similarly.

    bertjax roles --task qnli --data GLUE --limit 1000 --output qnli
    bertjax roles --task mlm --data LINES.txt --output lines
    python -m experiments.beyond.head_roles qnli lines --output DIR
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.style import context
from scipy.stats import spearmanr

import bertjax
from bertjax.attention import NUMBERS
from bertjax.plots import INK, WIDTH, add_axes, save_page, start_page
from experiments.shared.run import Figures, Found, Numbers, Run, Runs, make_reader, run_script, short, short_name
from experiments.shared.tables import make_table

PARTS = {"cls": "[CLS]", "sep": "[SEP]", "punctuation": "punctuation", "rest": "words"}  # all keys that words have
PART_COLOURS = ("#0072b2", "#56b4e9", "#e69f00", "#d9d9d9")


def compute(run: Run) -> Found:
    """Join the results."""
    runs = [_read(bertjax.read_results(name)) for name in run.options.directories]
    return {"runs": runs, "between_texts": _between_texts(runs)}, {}


def _read(results: bertjax.Results) -> dict[str, Any]:
    """What is needed of one directory."""
    roles, model, data = results.summary["roles"], results.summary["model"], results.summary["data"]
    path, split = results.summary["settings"]["data"], data["split"]
    part = "" if split.startswith("validation") else f":{split}"
    is_file = path is not None and data["task"] in ("mlm", "custom")
    weights, norms, uniform = {}, {}, {}
    for name in roles["definitions"]:
        rows = results.rows_of(name)
        weights[name], uniform[name] = [short(row.score, 5) for row in rows], short(rows[0].base, 5)
        norms[name] = [short(row.score, 5) for row in results.rows_of(f"norm_{name}")]
    spread = {name: [short(row.score, 5) for row in results.rows_of(name)] for name in ("confidence", "entropy")}
    return {
        "model": short_name(model["name"]),
        "texts": Path(path).name.split(".")[0] if is_file else data["task"] + part,
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
        "uniform_entropy": short(results.rows_of("entropy")[0].base, 5),
        "kinds": roles["kinds"],
        "silhouette": roles.get("silhouette"),
    }


def _parts(results: bertjax.Results) -> dict[str, Any]:
    """The share of all words' attention on each kind of key, uniform, by weights and by norms of each head."""
    arrays = results.outputs
    words = arrays["base"][:, NUMBERS.index("words")].sum()

    def shares(outputs: Float[np.ndarray, "*heads examples numbers"], prefix: str) -> dict[str, Any]:
        sums = outputs.sum(axis=-2, dtype=np.float64) / words
        return {name: [short(x, 5) for x in np.atleast_1d(sums[..., NUMBERS.index(prefix + name)])] for name in PARTS}

    return {
        "uniform": shares(arrays["base"], ""),
        "weights": shares(arrays["outputs"], ""),
        "norms": shares(arrays["outputs"], "norm_"),
    }


def _between_texts(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each two texts of a model, the rank correlation over heads of each role that both have."""
    found = []
    for place, first in enumerate(runs):
        for second in runs[place + 1 :]:
            if first["weights_sha256"] != second["weights_sha256"]:
                continue
            both = [name for name in first["weights"] if name in second["weights"]]
            ranks = {
                name: short(float(spearmanr(first["weights"][name], second["weights"][name])[0]), 5) for name in both
            }
            found.append({"model": first["model"], "texts": [first["texts"], second["texts"]], "correlations": ranks})
    return found


def tables(runs: Runs) -> str:
    """A column for each model on its first texts: roles, heads of each kind, and whether layers are clusters."""
    found: dict[str, Any] = {}
    for one in (one for numbers in runs.values() for one in numbers["results"]["runs"]):
        found.setdefault(one["model"], one)
    shown = list(found.values())
    labels = {name: label for one in shown for name, label in one["labels"].items()}
    rows = [[label, *(_cell(one, name) for one in shown)] for name, label in labels.items()]
    rows.append(["heads of one kind", *map(_kinds, shown)])
    columns = [f"{one['model']}, {one['texts']} ({one['examples']:,})" for one in shown]
    return make_table(["% of attention to", *columns], rows)


def _cell(run: Mapping[str, Any], name: str) -> str:
    """Uniform attention, the heads' mean by weights and by norms, and the head with most of it."""
    if name not in run["weights"]:
        return ""
    weights = np.array(run["weights"][name])
    means = (run["uniform"][name], weights.mean(), np.mean(run["norms"][name]))
    most = int(weights.argmax())
    return f"{' / '.join(f'{100 * mean:.1f}' for mean in means)}; {run['heads'][most]}: {100 * weights[most]:.0f}"


def _kinds(run: Mapping[str, Any]) -> str:
    kinds = [f"{head} {' and '.join(kinds)}" for head, kinds in run["kinds"].items()]
    return ", ".join(kinds) or "none"


def figures(numbers: Numbers) -> Figures:
    """What words attend to, by weights and by norms."""
    return {"figure": partial(_draw, numbers["results"]["runs"])}


def _draw(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    kinds = ("uniform", "weights", "norms")
    names = [f"{run['model']}, {run['texts']}: {kind}" for run in runs for kind in kinds]
    height, left = 0.27 * len(names), 3.2
    with context("default"):
        subtitle = "mean over heads of the share of words' attention: uniform, by weights, by norms of what is added up"
        figure = start_page("What do heads attend to?", subtitle, 0.9, height)
        axes = add_axes(figure, left, 0.9, WIDTH - left - 0.4, height)
        start = np.zeros(len(names))
        for (part, label), colour in zip(PARTS.items(), PART_COLOURS, strict=True):
            shares = np.array([100 * np.mean(run["parts"][kind][part]) for run in runs for kind in kinds])
            bars = axes.barh(range(len(names)), shares, left=start, height=0.8, color=colour, label=label)
            texts = [f"{share:.0f}" if share > 5 else "" for share in shares]
            axes.bar_label(bars, texts, label_type="center", fontsize=7.5)
            start += shares
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlim(0, 100)
        axes.set_xlabel("% of attention from words", fontsize=9, color=INK)
        figure.legend(loc="lower left", ncols=4, frameon=False, fontsize=8.5)
        save_page(figure, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_reader(__doc__)
    parser.add_argument("directories", nargs="+", metavar="DIR", help="results of bertjax roles")
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
