"""Figures 1 and 2: what patterns do attention maps show, and how often? (Kovaleva et al. 2019, section 4.1)

Every head's map on every example is assigned to one of five classes: vertical (mass on one or few columns, mostly
[CLS] and [SEP]), diagonal (on the token itself and its neighbours), both of these, block (within each text of a pair),
heterogeneous (none of these). Maps are cropped to the real tokens, resized and classified on the device, all heads at
once, by a small network trained on maps labelled by eye (`data/patterns.md`, `patterns/training.py`). A second
classifier that reads five numbers of each map serves as a check. Shares come with a 95 % interval over examples, and
are also corrected for the errors that the network made on unseen maps.

--as-published also uses a network trained by the paper's protocol (400 maps, one split, random by map: heads of one
example are on both sides) and reads a task's TSV file with quote handling. The authors' labels and network were not
published: the 8 convolutions are theirs; square roots of the weights, a second channel with the border of the texts,
rotated maps and weighted classes are ours in both modes.

    python -m experiments.fig2_patterns --task mrpc stsb sst2 qqp:train rte qnli mnli --data GLUE_DIR

--tuned names a fine-tuned model for each task, as in the paper; repeat it for each further seed.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.patterns.classes import Patterns, classify, find_patterns, shares_of
from experiments.patterns.figure import draw_patterns
from experiments.patterns.maps import DATA, NAMES
from experiments.patterns.network import load_network
from experiments.patterns.scores import correct_shares
from experiments.patterns.training import LABELS, classes_of, images_of, read_labels, rivals
from experiments.shared.agreement import compare_maps, format_difference
from experiments.shared.data import add_task_options, add_tuned_option, read_sample, task_options, tuned_models
from experiments.shared.run import Figures, Found, Numbers, Run, Runs, make_parser, name_maps, run_script
from experiments.shared.tables import make_table

# Measured later by two of the authors with 5 seeds of fine-tuned bert-base-uncased, in the order of NAMES.
PUBLISHED = {
    "sst2": (0.088, 0.219, 0.413, 0.052, 0.228),
    "mrpc": (0.144, 0.200, 0.358, 0.065, 0.233),
    "stsb": (0.071, 0.153, 0.248, 0.029, 0.498),
    "qqp": (0.024, 0.166, 0.273, 0.028, 0.508),
    "mnli": (0.073, 0.204, 0.413, 0.058, 0.252),
    "qnli": (0.034, 0.197, 0.203, 0.069, 0.497),
    "rte": (0.125, 0.207, 0.400, 0.111, 0.157),
}
DRAWS = 1000


def compute(run: Run) -> Found:
    """The shares of all tasks, in one mode or both."""
    options = run.options
    scores = json.loads((options.classifier / "pattern_scores.json").read_text())
    labelled = read_labels(options.labels)
    rival = rivals()["boosting"].fit(images_of(labelled)[1], classes_of(labelled)[0])
    networks = {"corrected": "grouped", "as_published": "published"}
    confusion = {"corrected": scores["network"]["drawn_at_random"], "as_published": scores["as_published"]}
    results: dict[str, Any] = {"classes": list(NAMES), "classifiers": {"paper": 0.86}}
    results["classifiers"] |= {kind: scores[kind] for kind in ("network", *rivals(), "head", "as_published")}
    found: dict[str, dict[str, Patterns]] = {}
    values: dict[str, np.ndarray] = {}
    tasks = task_options(options)
    tuned = tuned_models(options, list(tasks))
    for mode in ("corrected", "as_published")[: 1 + options.as_published]:
        network, found[mode] = load_network(options.classifier / "pattern_network.safetensors", networks[mode]), {}
        classifier = partial(classify, [jnp.asarray(leaf) for leaf in jax.tree.leaves(nnx.split(network)[1])])
        for task, chosen in tasks.items():
            sample = read_sample(run, chosen, published=mode == "as_published")
            models = (run.load_tuned(name, chosen.task) for name in tuned[task]) if tuned[task] else [run.model]
            seeds = [find_patterns(run, model, sample, classifier, rival) for model in models]
            found[mode][task] = Patterns(sample, *(np.stack(part) for part in zip(*seeds, strict=True)))
            values |= {f"{mode}_{task}_{kind}": getattr(found[mode][task], kind) for kind in ("classes", "rival")}
        results[mode] = {
            task: report_task(result, task, confusion[mode]["confusion"], options.seed)
            for task, result in found[mode].items()
        }
    if options.tuned:
        results["tuned"] = {task: [{"name": name} for name in names] for task, names in tuned.items()}
    if options.as_published:
        results["published_against_corrected"] = _compare(found["as_published"], found["corrected"])
    return results, values


def report_task(result: Patterns, name: str, confusion: Any, seed: int) -> dict[str, Any]:
    """The numbers of one task."""
    by_example = result.by_example
    drawn = np.random.default_rng(seed).integers(0, len(by_example), (DRAWS, len(by_example)))
    low, high = np.percentile(by_example[drawn].mean(1), [2.5, 97.5], axis=0)
    published = PUBLISHED.get(name.partition(":")[0].partition("-")[0])

    def named(values: Any) -> dict[str, float]:
        return {name: round(float(value), 4) for name, value in zip(NAMES, values, strict=True)}

    return {
        **result.sample.to_dict(),
        "maps": int(result.classes.size),
        "shares": named(result.shares),
        "seeds": [named(shares_of(classes).mean(0)) for classes in result.classes],
        "by_head": {kind: result.by_head[..., number].round(3).tolist() for number, kind in enumerate(NAMES)},
        "low": named(low),
        "high": named(high),
        "corrected_for_confusion": named(correct_shares(result.shares, np.array(confusion))),
        "by_five_numbers": named(np.mean([shares_of(classes).mean(0) for classes in result.rival], axis=0)),
        "agreement_with_five_numbers": round(float((result.classes == result.rival).mean()), 4),
        "published": None if published is None else named(published),
    }


def figures(numbers: Numbers) -> Figures:
    """Typical maps and shares by task; as published only if they were computed."""
    settings, results = numbers["settings"], numbers["results"]
    tuned = f", fine-tuned on each task, mean of {len(settings['tuned'])} seeds" if settings["tuned"] else ""
    subtitle = f"{settings['model']}{name_maps(settings)}{tuned}; every head's map on each example"
    both = {"figure": "as_published", "corrected": "corrected"}
    modes = both if "as_published" in results else {"figure": "corrected"}
    return {name: partial(draw_patterns, tasks=results[mode], subtitle=subtitle) for name, mode in modes.items()}


def tables(runs: Runs) -> str:
    """Shares by task in percent, a number for each run; the authors' later shares in brackets."""
    tasks = [numbers["results"]["corrected"] for numbers in runs.values()]
    rows = [
        [
            f"{name} ({task['examples']:,})",
            *(_share_cell([one[name] for one in tasks if name in one], kind) for kind in NAMES),
        ]
        for name, task in tasks[0].items()
    ]
    lines = [
        f"Share of a class by head as published against corrected: {format_difference(apart)}; shares by task differ "
        f"by up to {100 * apart['largest_difference_of_shares']:.1f} points."
        for apart in (numbers["results"].get("published_against_corrected") for numbers in runs.values())
        if apart
    ]
    return "\n\n".join([make_table(["% of maps", *NAMES], rows), *lines])


def _share_cell(tasks: Sequence[Mapping[str, Any]], kind: str) -> str:
    published = f" ({100 * tasks[0]['published'][kind]:.1f})" if tasks[0]["published"] else ""
    return "; ".join(f"{100 * task['shares'][kind]:.1f}" for task in tasks) + published


def _compare(published: Mapping[str, Patterns], corrected: Mapping[str, Patterns]) -> dict[str, Any]:
    """How far the shares of the two modes differ, by head and by task."""
    modes = [list(tasks.values()) for tasks in (published, corrected)]
    agreement = compare_maps(*(np.concatenate([result.by_head.ravel() for result in tasks]) for tasks in modes))
    shares = [np.array([result.shares for result in tasks]) for tasks in modes]
    return agreement | {"largest_difference_of_shares": float(np.abs(shares[0] - shares[1]).max())}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser(__doc__, published=True, norms=True)
    add_task_options(parser, multiple=True)
    add_tuned_option(parser)
    text = "directory of the trained classifier (default: the shipped one)"
    parser.add_argument("--classifier", type=Path, default=DATA, metavar="DIR", help=text)
    text = "labelled maps that it was trained on, names without suffix (default: the shipped ones)"
    parser.add_argument("--labels", nargs="+", type=Path, default=LABELS, metavar="MAPS", help=text)
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
