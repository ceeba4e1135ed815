"""What patterns do attention maps show, and how often? (Kovaleva et al. 2019, section 4.1, figures 1 and 2)

Every head's map on every example is one of five: vertical (mass on one or few columns, mostly [CLS] and [SEP]),
diagonal (on the token itself and its neighbours), both of these, block (within each text of a pair), heterogeneous
(none of these). Maps are cropped to the real tokens, resized and classified on the device, all heads at once, by a
small network that was trained on maps labelled by eye (`data/patterns.md`, `patterns/training.py`); a rival that reads
five numbers of each map says the same or not. Shares come with a 95 % interval over examples, and corrected for the
errors that the network made on maps it had not seen.

--as-published also takes a network trained by the paper's protocol (400 maps, one split, random by map: heads of one
example are on both sides) and reads a task's TSV file with quote handling. The authors' labels and network were not
published: 8 convolutions are theirs, while square roots of the weights, a second channel with the border of the texts,
maps turned around and weighted classes are ours in both modes. Padding has no weight and is cropped.

    python -m experiments.attention_patterns --task mrpc stsb sst2 qqp:train rte qnli mnli --data GLUE_DIR

TASK:SPLIT takes a task from another part of its data; --tuned names a fine-tuned model for each task, as the paper has,
and given again those of another seed: shares are then the mean over seeds. 5,557 examples of seven tasks on
all-MiniLM-L6-v2 took 3 minutes on two CPU cores; the first run on a machine compiles a minute longer. What came out is
in `RESULTS.md`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

import bertjax
from bertjax.errors import DataError
from bertjax.json_files import read_json
from experiments.patterns.figure import draw_patterns
from experiments.patterns.maps import DATA, NAMES, MapSet, sizes_of
from experiments.patterns.network import SIZE, PatternNetwork, class_shares, five_numbers, load_network, resize_maps
from experiments.patterns.scores import correct_shares
from experiments.patterns.training import LABELS, classes_of, hash_labels, images_of, read_labels, rivals
from experiments.shared.agreement import compare_maps, say_agreement
from experiments.shared.attention import stream_attention
from experiments.shared.program import Outcome, Run, make_parser, run_program, tell_settings
from experiments.shared.samples import Sample, add_task_options, read_published_sample, read_sample, task_runs
from experiments.shared.tuned import add_tuned_option, check_tuned, tell_tuned, tuned_runs

# Measured later by two of the authors with 5 seeds on fine-tuned bert-base-uncased, in the order of NAMES.
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
MIDDLE = range(24, 49)  # tokens of maps to show


@dataclass(frozen=True)
class Found:
    """What was found for one task, by the fine-tuned models' seeds (one, where the model of all is looked at)."""

    sample: Sample
    classes: Int[np.ndarray, "seeds examples layers heads"]
    rival: Int[np.ndarray, "seeds examples layers heads"]

    @property
    def by_example(self) -> Float[np.ndarray, "examples classes"]:
        """Shares of the classes among the heads of each example, mean over seeds."""
        return np.mean([shares_of(one) for one in self.classes], axis=0)

    @property
    def shares(self) -> Float[np.ndarray, " classes"]:
        """Of the classes among all maps."""
        return self.by_example.mean(0)

    @property
    def by_head(self) -> Float[np.ndarray, "layers heads classes"]:
        """Of the classes among the maps of each head, mean over seeds."""
        return (self.classes[..., None] == np.arange(len(NAMES))).mean((0, 1))


def shares_of(classes: Int[np.ndarray, "examples layers heads"]) -> Float[np.ndarray, "examples classes"]:
    """Shares of the classes among the heads of each example.

    >>> shares_of(np.array([[[0, 0], [2, 4]]])).tolist()
    [[0.5, 0.0, 0.25, 0.0, 0.25]]
    """
    return (classes[..., None] == np.arange(len(NAMES))).mean((1, 2))


@cache
def _graph() -> Any:
    return nnx.split(nnx.eval_shape(lambda: PatternNetwork(nnx.Rngs(0))))


def classify(
    attentions: Float[Array, "layers batch heads query key"],
    keep: Int[Array, "batch token"],
    first: Int[Array, " batch"],
    *weights: Float[Array, "..."],
) -> Float[Array, "batch layers heads 10"]:
    """Probabilities of the classes, then the five numbers, of each map.

    Args:
        first: tokens of each first text.
        weights: the network's, in the order of its tree.
    """
    graph, state = _graph()
    network = nnx.merge(graph, jax.tree.unflatten(jax.tree.structure(state), weights))
    probabilities = class_shares(network, resize_maps(attentions, keep, first))
    return jnp.concatenate([jnp.moveaxis(probabilities, 0, 1), five_numbers(attentions, keep, first)], axis=-1)


def find_patterns(
    run: Run, sample: Sample, network: PatternNetwork, rival: Any
) -> tuple[Int[np.ndarray, "examples layers heads"], Int[np.ndarray, "examples layers heads"]]:
    """The class of every head on every example, by the network and by its rival."""
    run.report(0.0, 1.0, "compiling, a minute the first time")
    first = np.array([sizes_of(text)[0] for text in sample.texts], np.int32)
    weights = [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.split(network)[1])]
    config = run.model.config
    heads = config.num_hidden_layers * config.num_attention_heads
    values = np.zeros((len(sample), config.num_hidden_layers, config.num_attention_heads, 10), np.float32)
    options: dict[str, Any] = {"example_bytes": 3 * heads * SIZE**2 * 16 * 4, "report": run.report}
    for places, found in stream_attention(
        run.model, sample.texts, classify, lambda places: [first[places], *weights], **options
    ):
        values[places] = found
    numbers = values[..., len(NAMES) :]
    said = rival.predict(numbers.reshape(-1, numbers.shape[-1])).reshape(numbers.shape[:-1])
    return values[..., : len(NAMES)].argmax(-1).astype(np.int8), said.astype(np.int8)


def read_scores(directory: Path) -> dict[str, Any]:
    """What training said of its classifiers.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        scores: dict[str, Any] = read_json(directory / "pattern_scores.json")
        _ = [scores[kind] for kind in ("network", *rivals(), "head", "as_published", "made_of")]
    except (DataError, KeyError) as error:
        message = f"{directory}: holds no scores of a classifier ({error}); run experiments.patterns.training"
        raise DataError(message) from error
    return scores


def check_labels(scores: dict[str, Any], labels: Sequence[Path]) -> None:
    """Raises `DataError` where a classifier learnt from other labels than those that its rival would learn from."""
    if scores["made_of"]["sha256"] != hash_labels(labels):
        names = ", ".join(map(str, labels))
        raise DataError(f"the classifier learnt from other labels than {names}: name its own with --labels")


def with_models(runs: dict[str, list[Run]], samples: dict[str, Sample]) -> Iterator[tuple[str, Run]]:
    """Each task with each of its fine-tuned models, loaded when it comes; with the model of all where none is named.

    Raises:
        ConfigError: a model does not fit (`check_tuned`), found before anything is computed.
    """
    several = [(name, one) for name, seeds in runs.items() for one in seeds]
    paths = [
        check_tuned(one, examples.first, examples.second, examples.task) if one.options.tuned else None
        for name, one in several
        for examples in [samples[name].examples]
    ]
    for (name, one), path in zip(several, paths, strict=True):
        yield name, one if path is None else replace(one, model=bertjax.load(path))


def compute(run: Run) -> Outcome:
    """The shares of all tasks, in one mode or both."""
    directory = Path(run.options.classifier or DATA)
    labelled = read_labels([Path(name) for name in run.options.labels or LABELS])
    scores = read_scores(directory)
    check_labels(scores, [Path(name) for name in run.options.labels or LABELS])
    networks = {
        name: load_network(directory / "pattern_network.safetensors", name) for name in ("grouped", "published")
    }
    rival = rivals()["boosting"].fit(images_of(labelled)[1], classes_of(labelled)[0])
    runs = tuned_runs(run) if run.options.tuned else {name: [one] for name, one in task_runs(run).items()}
    # All samples are read before anything is computed, so that a missing file is found at once.
    samples = {"corrected": {name: read_sample(seeds[0]) for name, seeds in runs.items()}}
    if run.options.as_published:
        samples["as_published"] = {name: read_published_sample(seeds[0]) for name, seeds in runs.items()}
    kinds = {"corrected": networks["grouped"], "as_published": networks["published"]}
    said: dict[str, dict[str, list[Any]]] = {mode: {name: [] for name in runs} for mode in samples}
    for name, one in with_models(runs, samples["corrected"]):
        for mode, several in samples.items():
            said[mode][name].append(find_patterns(one, several[name], kinds[mode], rival))
    found = {
        mode: {
            name: Found(samples[mode][name], np.stack([one for one, _ in seeds]), np.stack([two for _, two in seeds]))
            for name, seeds in tasks.items()
        }
        for mode, tasks in said.items()
    }
    return _outcome(run, found, scores)


def typical_maps(labelled: MapSet, network: PatternNetwork) -> dict[str, tuple[int, np.ndarray]]:
    """For each class the labelled map of a pair of a middle length that the network is surest of, if there is one."""
    images, _ = images_of([labelled])
    sure = np.asarray(network(jnp.asarray(images)))
    typical = {}
    for number, name in enumerate(NAMES):
        fit = [
            place
            for place, row in enumerate(labelled.rows)
            if row.label == name and row.second and row.tokens in MIDDLE and sure[place].argmax() == number
        ]
        if fit:
            place = max(fit, key=lambda place: float(sure[place, number] - np.delete(sure[place], number).max()))
            typical[name] = labelled.rows[place].first, labelled.maps[place]
    return typical


def report_task(found: Found, name: str, confusion: Any, seed: int) -> dict[str, Any]:
    """The numbers of one task."""
    each = found.by_example
    drawn = np.random.default_rng(seed).integers(0, len(each), (DRAWS, len(each)))
    low, high = np.percentile(each[drawn].mean(1), [2.5, 97.5], axis=0)
    published = PUBLISHED.get(name.partition(":")[0].partition("-")[0])

    def named(values: Any) -> dict[str, float]:
        return {name: round(float(value), 4) for name, value in zip(NAMES, values, strict=True)}

    return {
        **found.sample.told(),
        "maps": int(found.classes.size),
        "shares": named(found.shares),
        "seeds": [named(shares_of(one).mean(0)) for one in found.classes],
        "by_head": {kind: found.by_head[..., number].round(3).tolist() for number, kind in enumerate(NAMES)},
        "low": named(low),
        "high": named(high),
        "corrected_for_confusion": named(correct_shares(found.shares, np.array(confusion))),
        "by_five_numbers": named(np.mean([shares_of(one).mean(0) for one in found.rival], axis=0)),
        "agreement_with_five_numbers": round(float((found.classes == found.rival).mean()), 4),
        "published": None if published is None else named(published),
    }


def _outcome(run: Run, found: Mapping[str, Mapping[str, Found]], scores: dict[str, Any]) -> Outcome:
    confusion = {
        "corrected": scores["network"]["drawn_at_random"]["confusion"],
        "as_published": scores["as_published"]["confusion"],
    }
    results: dict[str, Any] = {
        mode: {name: report_task(one, name, confusion[mode], run.options.seed) for name, one in tasks.items()}
        for mode, tasks in found.items()
    }
    if run.options.tuned:
        given = zip(found["corrected"], zip(*run.options.tuned, strict=True), strict=True)
        results["tuned"] = {name: [tell_tuned(one) for one in seeds] for name, seeds in given}
    kinds = ("network", *rivals(), "head")
    classifiers = {kind: scores[kind] for kind in kinds} | {"as_published": scores["as_published"], "paper": 0.86}
    mode = _shown(results)
    lines = [_say_scores(scores), *(_say_task(name, one) for name, one in results[mode].items())]
    for name, seeds in results.get("tuned", {}).items():
        lines.append(f"{name} was fine-tuned: {', '.join(one['name'] for one in seeds)}")
    if mode == "as_published":
        results["published_against_corrected"] = apart = _compare(found["as_published"], found["corrected"])
        lines.append(say_agreement("share of a class by head", apart))
    values: dict[str, np.ndarray] = {}
    for kind, tasks in found.items():
        for name, one in tasks.items():
            start = f"{kind}_{name.replace(':', '_')}"
            values |= {f"{start}_classes": one.classes, f"{start}_rival": one.rival}
            values[f"{start}_ids"] = np.array(one.sample.examples.ids)
    results = {"classes": list(NAMES), "classifiers": classifiers, **results}
    numbers = {"program": run.options.name, "settings": tell_settings(run.options), "results": results}
    return Outcome(results, values, figures(numbers)["figure"], lines)


def _shown(results: Mapping[str, Any]) -> str:
    """Which form of the results is shown."""
    return "as_published" if "as_published" in results else "corrected"


def figures(numbers: Mapping[str, Any]) -> dict[str, Callable[[Path], None]]:
    """What draws the figures, from a run's `numbers.json` and the labelled maps that come with the program.

    Of a run in both modes the first is as published, the other one is "corrected".
    """
    settings, results, whose = numbers["settings"], numbers["results"], ""
    if settings["tuned"]:
        seeds = len(settings["tuned"])
        whose = "fine-tuned on each task, " + (f"mean of {seeds} seeds, " if seeds > 1 else "")
    subtitle = f"{settings['model']}, {whose}every head's map on each example"

    def draw(path: Path, mode: str) -> None:
        network = load_network(DATA / "pattern_network.safetensors", "grouped")
        end = "; as published" if mode == "as_published" else ""
        draw_patterns(path, typical_maps(read_labels(LABELS)[0], network), results[mode], subtitle + end)

    found: dict[str, Callable[[Path], None]] = {"figure": partial(draw, mode=_shown(results))}
    if "as_published" in results:
        found["corrected"] = partial(draw, mode="corrected")
    return found


def tables(numbers: Mapping[str, Any]) -> str:
    """Shares by task in Markdown, in percent, from a run's `numbers.json`; in brackets the authors' later ones."""
    tasks = numbers["results"]["corrected"]
    lines = ["| | " + " | ".join(NAMES) + " |", "|" + "---|" * (len(NAMES) + 1)]
    for name, task in tasks.items():
        cells = [f"{name} ({task['examples']:,})", *(_share_cell(task, kind) for kind in NAMES)]
        lines.append("| " + " | ".join(cells) + " |")
    widths = [100 * (task["high"][kind] - task["low"][kind]) / 2 for task in tasks.values() for kind in NAMES]
    lines.append(f"\nPercent of all maps; 95 % intervals over examples are at most ± {max(widths):.1f}.")
    if apart := numbers["results"].get("published_against_corrected"):
        shares = f"shares by task differ by up to {100 * apart['largest_difference_of_shares']:.1f} points"
        lines.append(f"\n{say_agreement('share of a class by head', apart)}; {shares}.")
    return "\n".join(lines)


def _share_cell(task: Mapping[str, Any], kind: str) -> str:
    """The share of a class, of several seeds their range, and the authors' later share."""
    seeds = [100 * one[kind] for one in task["seeds"]]
    aside = [f"{min(seeds):.1f} to {max(seeds):.1f}"] if len(seeds) > 1 else []
    aside += [f"theirs {100 * task['published'][kind]:.1f}"] if task["published"] else []
    return f"{100 * task['shares'][kind]:.1f}" + (f" ({'; '.join(aside)})" if aside else "")


def overview(several: Mapping[str, Mapping[str, Any]]) -> str:
    """How the shares of a run differ from those of another, in points: first the tuned run, then the untuned one."""
    tuned, base = (numbers["results"]["corrected"] for numbers in several.values())
    lines = ["| change, points | " + " | ".join(NAMES) + " |", "|" + "---|" * (len(NAMES) + 1)]
    for name in [name for name in tuned if name in base]:
        cells = [_change_cell(tuned[name], base[name], kind) for kind in NAMES]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _change_cell(tuned: Mapping[str, Any], base: Mapping[str, Any], kind: str) -> str:
    """The change of a share in points, and of several seeds their range."""
    seeds = [100 * (one[kind] - base["shares"][kind]) for one in tuned["seeds"]]
    several = f" ({min(seeds):+.1f} to {max(seeds):+.1f})" if len(seeds) > 1 else ""
    return f"{100 * (tuned['shares'][kind] - base['shares'][kind]):+.1f}{several}".replace("-", "−")


def _compare(published: Mapping[str, Found], corrected: Mapping[str, Found]) -> dict[str, Any]:
    """How far the shares of both modes are apart: by head, and by task."""
    both = [list(several.values()) for several in (published, corrected)]
    apart = compare_maps(*(np.concatenate([one.by_head.ravel() for one in several]) for several in both))
    shares = [np.array([one.shares for one in several]) for several in both]
    return apart | {"largest_difference_of_shares": float(np.abs(shares[0] - shares[1]).max())}


def _say_scores(scores: dict[str, Any]) -> str:
    found = {kind: scores[kind]["drawn_at_random"] for kind in ("network", *rivals(), "head")}
    found["split by map"] = scores["as_published"]
    texts = [
        f"{kind} {one['macro_f1']:.2f} ({one['interval'][0]:.2f} to {one['interval'][1]:.2f})"
        for kind, one in found.items()
    ]
    return "macro F1 on maps not seen: " + ", ".join(texts) + "; the paper's 0.86"


def _say_task(name: str, found: dict[str, Any]) -> str:
    shares = ", ".join(f"{kind} {share:.1%}" for kind, share in found["shares"].items())
    return f"{name} ({found['examples']} examples): {shares}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser("attention_patterns", __doc__)
    add_task_options(parser, several=True)
    text = "directory of the trained classifier (default the one that is shipped)"
    parser.add_argument("--classifier", metavar="DIR", help=text)
    text = "labelled maps that it was trained on, names without suffix (default those that are shipped)"
    parser.add_argument("--labels", nargs="+", metavar="MAPS", help=text)
    add_tuned_option(parser)
    return run_program(parser, compute, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
