"""Read results of `head_ablation` and `layer_ablation`, and join the fine-tuned seeds of each task."""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Num

from bertjax.data import split_named
from bertjax.errors import DataError, InputError
from bertjax.evidence import Q, make_scorer
from bertjax.json_files import read_json
from bertjax.tasks import task_named
from experiments.disabling.effects import Effects, draw_changes, read_effects

SIMILARITY = ", similarity"  # ends a task's name if the outputs are similarities of texts by a model not tuned on it


@dataclass(frozen=True)
class DisablingRun:
    """Outputs of one model for the examples of one task, with nothing disabled and with each place disabled.

    Args:
        results: of its `numbers.json`.
        outputs: of the base, then of each place.
        labels: of the examples.
        ids: of the examples.
        effects: on the main metric, as the run tested them.
    """

    directory: Path
    results: dict[str, Any]
    outputs: Float[np.ndarray, "runs examples *labels"]
    labels: Num[np.ndarray, " examples"]
    ids: tuple[str, ...]
    effects: Effects

    @property
    def task(self) -> str:
        """The task's name, with its split and kind of outputs unless they are the usual ones."""
        usual = split_named(task_named(self.results["task"]), "validation")  # MNLI's is validation_matched
        split = "" if self.results["split"] in ("validation", usual) else f":{self.results['split']}"
        similarity = SIMILARITY if self.results["outputs"] == "similarity" else ""
        return f"{self.results['task']}{split}{similarity}"

    def scorer(self) -> Any:
        """A scorer of the base and all places that takes how often each example counts (`evidence.make_scorer`)."""
        return make_scorer(self.results["metric"], self.outputs, self.labels, self.results["positive"])


def read_run(directory: Path, mode: str) -> DisablingRun:
    """Read one mode from a directory of results.

    Raises:
        InputError: it holds no such results, or damaged ones.
    """
    try:
        results = read_json(directory / "numbers.json")["results"]
        modes = list(results["effects"][results["metric"]])
        if mode not in modes:
            raise InputError(f"{directory} holds no mode {mode}, but {', '.join(modes)}: choose one with --mode")
        metric = results["metric"]
        effects = read_effects(metric, results["base"][metric], results["effects"][metric][mode])
        with np.load(directory / "values.npz") as values:
            base, outputs = values["base"], values["outputs"][list(values["modes"]).index(mode)]
            labels, ids = values["labels"], tuple(map(str, values["ids"]))
        with_base = np.concatenate([base[None], outputs])
        if with_base.shape[:2] != (1 + len(results["names"]), len(labels)) or len(ids) != len(labels):
            raise ValueError("numbers.json and values.npz are not of one run")
        _ = [str.partition(name, ".") for name in results["names"]]
        _ = [results[name] for name in ("kind", "task", "split", "outputs", "layers", "heads", "positive", "model")]
        return DisablingRun(directory, results, with_base, labels, ids, effects)
    except (DataError, OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(
            f"{directory} holds no results of experiments.head_ablation or layer_ablation ({why}): name a directory "
            "that one of them wrote"
        ) from error


def group_by_task(runs: Sequence[DisablingRun]) -> dict[str, list[DisablingRun]]:
    """The runs of each task: models fine-tuned on it with different seeds, evaluated on the same examples.

    Raises:
        InputError: the runs differ in kind or in model size, one run is named twice, or runs of a task have
            different examples.
    """
    first = runs[0]
    for other in runs[1:]:
        for name in ("kind", "layers", "heads"):
            expected, actual = first.results[name], other.results[name]
            if expected != actual:
                raise InputError(
                    f"{other.directory} has {name} {actual}, {first.directory} {expected}: join what is alike"
                )
    tasks: dict[str, list[DisablingRun]] = {}
    for run in runs:
        same = tasks.setdefault(run.task, [])
        for other in same:
            if run.ids != other.ids or not np.array_equal(run.labels, other.labels):
                raise InputError(
                    f"{run.directory} and {other.directory} are of other examples of {run.task}: seeds of a task are "
                    "joined on the same ones"
                )
            if np.array_equal(run.outputs, other.outputs):
                raise InputError(f"{run.directory} and {other.directory} are the same results twice")
        same.append(run)
    return tasks


@dataclass(frozen=True)
class TaskEffects:
    """The effects on one task, over the seeds of its fine-tuned models.

    Args:
        runs: one per seed.
        change: of each seed and place, in points.
        drawn: the change on examples drawn with replacement; all seeds share the draws.
        halves: the change on random halves of the examples, each paired with the complementary half.
    """

    task: str
    runs: list[DisablingRun]
    change: Float[np.ndarray, "seeds places"]
    drawn: Float[np.ndarray, "draws seeds places"]
    halves: Float[np.ndarray, "splits 2 seeds places"]

    @property
    def mean(self) -> Float[np.ndarray, " places"]:
        """The mean change over seeds."""
        return self.change.mean(0)

    @property
    def drawn_mean(self) -> Float[np.ndarray, "draws places"]:
        """The mean change over seeds in each draw."""
        return self.drawn.mean(1)

    @property
    def found_in(self) -> Bool[np.ndarray, "2 seeds places"]:
        """Where the results of each seed alone find a gain, and where a loss."""
        q = np.stack([np.nan_to_num(run.effects.q, nan=1.0) for run in self.runs])
        return np.stack([(q < Q) & (self.change > 0), (q < Q) & (self.change < 0)])


def measure_task(task: str, runs: list[DisablingRun], draws: int, splits: int, seed: int) -> TaskEffects:
    """Measure the effects on resampled examples and on random halves of them."""
    examples = len(runs[0].labels)
    generator = np.random.default_rng(seed)
    masks = np.zeros((splits, examples), np.uint16)
    for row in masks:
        row[generator.permutation(examples)[: examples // 2]] = 1
    drawn, halves = [], []
    for run in runs:
        results = run.results
        arguments = (results["metric"], run.outputs, run.labels, results["positive"])
        drawn.append(draw_changes(*arguments, draws, seed))
        scorer = run.scorer()
        scores = np.stack([scorer(masks), scorer(1 - masks)], axis=1)
        halves.append(scores[..., 1:] - scores[..., :1])
    change = np.stack([run.effects.change for run in runs])
    return TaskEffects(task, runs, change, 100 * np.stack(drawn, 1), 100 * np.stack(halves, 2))
