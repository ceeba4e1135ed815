"""What patterns do attention maps show, and how often? (Kovaleva et al. 2019, section 4.1, figures 1 and 2)

Every head's map on every example is assigned to one of five classes: vertical (mass on one or few columns, mostly
[CLS] and [SEP]), diagonal (on the token itself and its neighbours), both of these, block (within each text of a pair),
heterogeneous (none of these). Maps are cropped to the real tokens, resized and classified on the device, all heads at
once, by a small network trained on maps labelled by eye (`data/patterns.md`, `patterns/training.py`). A rival
classifier that reads five numbers of each map serves as a check. Shares come with a 95 % interval over examples, and
are also given corrected for the errors that the network made on unseen maps.

--as-published also uses a network trained by the paper's protocol (400 maps, one split, random by map: heads of one
example are on both sides) and reads a task's TSV file with quote handling. The authors' labels and network were not
published: the 8 convolutions are theirs; square roots of the weights, a second channel with the border of the texts,
maps turned around and weighted classes are ours in both modes. Padding has no weight and is cropped.

    python -m experiments.attention_patterns --task mrpc stsb sst2 qqp:train rte qnli mnli --data GLUE_DIR

TASK:SPLIT reads another split of a task's data. --tuned names a fine-tuned model for each task, as in the paper; repeat
it for each further seed, and shares are the mean over seeds. 5,557 examples of seven tasks on all-MiniLM-L6-v2 took 3
minutes on two CPU cores; the first run on a machine compiles for another minute. For the results see `RESULTS.md`.
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
from experiments.shared.agreement import compare_maps, format_agreement
from experiments.shared.attention import stream_attention
from experiments.shared.program import Outcome, Run, describe_settings, make_parser, name_maps, run_program
from experiments.shared.samples import Sample, add_task_options, read_published_sample, read_sample, task_runs
from experiments.shared.tuned import add_tuned_option, check_tuned, describe_tuned, tuned_runs

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
MIDDLE = range(24, 49)  # lengths, in tokens, of maps to show


@dataclass(frozen=True)
class Found:
    """The results for one task, by seed of the fine-tuned models (a single seed for the untuned model)."""

    sample: Sample
    classes: Int[np.ndarray, "seeds examples layers heads"]
    rival: Int[np.ndarray, "seeds examples layers heads"]

    @property
    def by_example(self) -> Float[np.ndarray, "examples classes"]:
        """Shares of the classes among the heads of each example, mean over seeds."""
        return np.mean([shares_of(classes) for classes in self.classes], axis=0)

    @property
    def shares(self) -> Float[np.ndarray, " classes"]:
        """Shares of the classes among all maps."""
        return self.by_example.mean(0)

    @property
    def by_head(self) -> Float[np.ndarray, "layers heads classes"]:
        """Shares of the classes among the maps of each head, mean over seeds."""
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
    """Class probabilities of each map, followed by its five numbers.

    Args:
        first: number of tokens of each first text.
        weights: the network's weights, in the order of its tree.
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
    options: dict[str, Any] = {"example_bytes": 3 * heads * SIZE**2 * 16 * 4, "norms": run.norms, "report": run.report}
    for indices, probabilities in stream_attention(
        run.model, sample.texts, classify, lambda indices: [first[indices], *weights], **options
    ):
        values[indices] = probabilities
    numbers = values[..., len(NAMES) :]
    rival_classes = rival.predict(numbers.reshape(-1, numbers.shape[-1])).reshape(numbers.shape[:-1])
    return values[..., : len(NAMES)].argmax(-1).astype(np.int8), rival_classes.astype(np.int8)


def read_scores(directory: Path) -> dict[str, Any]:
    """The scores that training recorded for its classifiers.

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
    """Raises `DataError` where a classifier learnt from other labels than its rival would."""
    if scores["made_of"]["sha256"] != hash_labels(labels):
        names = ", ".join(map(str, labels))
        raise DataError(f"the classifier learnt from other labels than {names}: name its own with --labels")


def with_models(runs: dict[str, list[Run]], samples: dict[str, Sample]) -> Iterator[tuple[str, Run]]:
    """Each task with each of its fine-tuned models, loaded as it is reached, or with the one model if none is named.

    Raises:
        ConfigError: a model does not fit (`check_tuned`); raised before anything is computed.
    """
    seed_runs = [(name, run) for name, seeds in runs.items() for run in seeds]
    paths = [
        check_tuned(run, examples.first, examples.second, examples.task) if run.options.tuned else None
        for name, run in seed_runs
        for examples in [samples[name].examples]
    ]
    for (name, run), path in zip(seed_runs, paths, strict=True):
        yield name, run if path is None else replace(run, model=bertjax.load(path))


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
    runs = tuned_runs(run) if run.options.tuned else {name: [task_run] for name, task_run in task_runs(run).items()}
    # Read all samples before computing anything, so that a missing file is reported at once.
    samples = {"corrected": {name: read_sample(seeds[0]) for name, seeds in runs.items()}}
    if run.options.as_published:
        samples["as_published"] = {name: read_published_sample(seeds[0]) for name, seeds in runs.items()}
    networks_by_mode = {"corrected": networks["grouped"], "as_published": networks["published"]}
    predictions: dict[str, dict[str, list[Any]]] = {mode: {name: [] for name in runs} for mode in samples}
    for name, tuned_run in with_models(runs, samples["corrected"]):
        for mode, mode_samples in samples.items():
            predictions[mode][name].append(find_patterns(tuned_run, mode_samples[name], networks_by_mode[mode], rival))
    results = {
        mode: {
            name: Found(
                samples[mode][name],
                np.stack([classes for classes, _ in seeds]),
                np.stack([rival_classes for _, rival_classes in seeds]),
            )
            for name, seeds in tasks.items()
        }
        for mode, tasks in predictions.items()
    }
    return _outcome(run, results, scores)


def typical_maps(labelled: MapSet, network: PatternNetwork) -> dict[str, tuple[int, np.ndarray]]:
    """For each class, the labelled map of a medium-length pair that the network is surest of, if any."""
    images, _ = images_of([labelled])
    confidence = np.asarray(network(jnp.asarray(images)))
    typical = {}
    for number, name in enumerate(NAMES):
        candidates = [
            index
            for index, row in enumerate(labelled.rows)
            if row.label == name and row.second and row.tokens in MIDDLE and confidence[index].argmax() == number
        ]
        if candidates:
            index = max(
                candidates,
                key=lambda index: float(confidence[index, number] - np.delete(confidence[index], number).max()),
            )
            typical[name] = labelled.rows[index].first, labelled.maps[index]
    return typical


def report_task(result: Found, name: str, confusion: Any, seed: int) -> dict[str, Any]:
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


def _outcome(run: Run, by_mode: Mapping[str, Mapping[str, Found]], scores: dict[str, Any]) -> Outcome:
    confusion = {
        "corrected": scores["network"]["drawn_at_random"]["confusion"],
        "as_published": scores["as_published"]["confusion"],
    }
    results: dict[str, Any] = {
        mode: {name: report_task(result, name, confusion[mode], run.options.seed) for name, result in tasks.items()}
        for mode, tasks in by_mode.items()
    }
    if run.options.tuned:
        paths_by_task = zip(by_mode["corrected"], zip(*run.options.tuned, strict=True), strict=True)
        results["tuned"] = {name: [describe_tuned(path) for path in seeds] for name, seeds in paths_by_task}
    kinds = ("network", *rivals(), "head")
    classifiers = {kind: scores[kind] for kind in kinds} | {"as_published": scores["as_published"], "paper": 0.86}
    mode = _shown(results)
    lines = [_format_scores(scores), *(_format_task(name, report) for name, report in results[mode].items())]
    for name, seeds in results.get("tuned", {}).items():
        lines.append(f"{name} was fine-tuned: {', '.join(model['name'] for model in seeds)}")
    if mode == "as_published":
        results["published_against_corrected"] = agreement = _compare(by_mode["as_published"], by_mode["corrected"])
        lines.append(format_agreement("share of a class by head", agreement))
    values: dict[str, np.ndarray] = {}
    for kind, tasks in by_mode.items():
        for name, result in tasks.items():
            prefix = f"{kind}_{name.replace(':', '_')}"
            values |= {f"{prefix}_classes": result.classes, f"{prefix}_rival": result.rival}
            values[f"{prefix}_ids"] = np.array(result.sample.examples.ids)
    results = {"classes": list(NAMES), "classifiers": classifiers, **results}
    numbers = {"program": run.options.name, "settings": describe_settings(run.options), "results": results}
    return Outcome(results, values, figures(numbers)["figure"], lines)


def _shown(results: Mapping[str, Any]) -> str:
    """The form of the results to show."""
    return "as_published" if "as_published" in results else "corrected"


def figures(numbers: Mapping[str, Any]) -> dict[str, Callable[[Path], None]]:
    """Functions that draw the figures, from a run's `numbers.json` and the labelled maps that come with the program.

    Of a run in both modes the first is as published and the other is "corrected".
    """
    settings, results, description = numbers["settings"], numbers["results"], ""
    if settings["tuned"]:
        seeds = len(settings["tuned"])
        description = "fine-tuned on each task, " + (f"mean of {seeds} seeds, " if seeds > 1 else "")
    subtitle = f"{settings['model']}{name_maps(settings)}, {description}every head's map on each example"

    def draw(path: Path, mode: str) -> None:
        network = load_network(DATA / "pattern_network.safetensors", "grouped")
        suffix = "; as published" if mode == "as_published" else ""
        draw_patterns(path, typical_maps(read_labels(LABELS)[0], network), results[mode], subtitle + suffix)

    pictures: dict[str, Callable[[Path], None]] = {"figure": partial(draw, mode=_shown(results))}
    if "as_published" in results:
        pictures["corrected"] = partial(draw, mode="corrected")
    return pictures


def tables(numbers: Mapping[str, Any]) -> str:
    """Shares by task in Markdown, in percent, from a run's `numbers.json`; the authors' later shares in brackets."""
    tasks = numbers["results"]["corrected"]
    lines = ["| | " + " | ".join(NAMES) + " |", "|" + "---|" * (len(NAMES) + 1)]
    for name, task in tasks.items():
        cells = [f"{name} ({task['examples']:,})", *(_share_cell(task, kind) for kind in NAMES)]
        lines.append("| " + " | ".join(cells) + " |")
    widths = [100 * (task["high"][kind] - task["low"][kind]) / 2 for task in tasks.values() for kind in NAMES]
    lines.append(f"\nPercent of all maps; 95 % intervals over examples are at most ± {max(widths):.1f}.")
    if agreement := numbers["results"].get("published_against_corrected"):
        shares = f"shares by task differ by up to {100 * agreement['largest_difference_of_shares']:.1f} points"
        lines.append(f"\n{format_agreement('share of a class by head', agreement)}; {shares}.")
    return "\n".join(lines)


def _share_cell(task: Mapping[str, Any], kind: str) -> str:
    """The share of a class, its range if there are several seeds, and the authors' later share."""
    seeds = [100 * shares[kind] for shares in task["seeds"]]
    notes = [f"{min(seeds):.1f} to {max(seeds):.1f}"] if len(seeds) > 1 else []
    notes += [f"theirs {100 * task['published'][kind]:.1f}"] if task["published"] else []
    return f"{100 * task['shares'][kind]:.1f}" + (f" ({'; '.join(notes)})" if notes else "")


def overview(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """How the shares of a tuned run (first) differ from those of an untuned run (second), in points."""
    tuned, base = (numbers["results"]["corrected"] for numbers in runs.values())
    lines = ["| change, points | " + " | ".join(NAMES) + " |", "|" + "---|" * (len(NAMES) + 1)]
    for name in [name for name in tuned if name in base]:
        cells = [_change_cell(tuned[name], base[name], kind) for kind in NAMES]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _change_cell(tuned: Mapping[str, Any], base: Mapping[str, Any], kind: str) -> str:
    """The change of a share in points, and its range if there are several seeds."""
    seeds = [100 * (shares[kind] - base["shares"][kind]) for shares in tuned["seeds"]]
    seed_range = f" ({min(seeds):+.1f} to {max(seeds):+.1f})" if len(seeds) > 1 else ""
    return f"{100 * (tuned['shares'][kind] - base['shares'][kind]):+.1f}{seed_range}".replace("-", "−")


def _compare(published: Mapping[str, Found], corrected: Mapping[str, Found]) -> dict[str, Any]:
    """How far the shares of the two modes differ, by head and by task."""
    modes = [list(tasks.values()) for tasks in (published, corrected)]
    agreement = compare_maps(*(np.concatenate([result.by_head.ravel() for result in tasks]) for tasks in modes))
    shares = [np.array([result.shares for result in tasks]) for tasks in modes]
    return agreement | {"largest_difference_of_shares": float(np.abs(shares[0] - shares[1]).max())}


def _format_scores(scores: dict[str, Any]) -> str:
    by_kind = {kind: scores[kind]["drawn_at_random"] for kind in ("network", *rivals(), "head")}
    by_kind["split by map"] = scores["as_published"]
    texts = [
        f"{kind} {score['macro_f1']:.2f} ({score['interval'][0]:.2f} to {score['interval'][1]:.2f})"
        for kind, score in by_kind.items()
    ]
    return "macro F1 on maps not seen: " + ", ".join(texts) + "; the paper's 0.86"


def _format_task(name: str, result: dict[str, Any]) -> str:
    shares = ", ".join(f"{kind} {share:.1%}" for kind, share in result["shares"].items())
    return f"{name} ({result['examples']} examples): {shares}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser("attention_patterns", __doc__, norms=True)
    add_task_options(parser, several=True)
    text = "directory of the trained classifier (default the one that is shipped)"
    parser.add_argument("--classifier", metavar="DIR", help=text)
    text = "labelled maps that it was trained on, names without suffix (default those that are shipped)"
    parser.add_argument("--labels", nargs="+", metavar="MAPS", help=text)
    add_tuned_option(parser)
    return run_program(parser, compute, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
