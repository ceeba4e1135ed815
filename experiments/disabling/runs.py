"""Results of `head_ablation` and `layer_ablation` read back, and joined by task: several fine-tuned seeds of one."""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Num

from bertjax.data import split_named, task_named
from bertjax.errors import DataError, InputError
from bertjax.evidence import Q, make_scorer
from bertjax.json_files import read_json
from bertjax.paths import open_file
from experiments.disabling.effects import Effects, draw_changes, read_effects

SIMILARITY = ", similarity"  # of a task's name, where a model that is not tuned on it says how alike texts are


@dataclass(frozen=True)
class DisablingRun:
    """What one model said of one task's examples with nothing and with each place disabled.

    Args:
        results: of its `numbers.json`.
        outputs: of the base, then of each place.
        labels: of the examples.
        ids: of the examples.
        effects: by the main metric, as the run weighed them.
    """

    directory: Path
    results: dict[str, Any]
    outputs: Float[np.ndarray, "runs examples *labels"]
    labels: Num[np.ndarray, " examples"]
    ids: tuple[str, ...]
    effects: Effects

    @property
    def task(self) -> str:
        """The task's name, with its split and kind of outputs where these are not the usual ones."""
        usual = split_named(task_named(self.results["task"]), "validation")  # MNLI's is validation_matched
        split = "" if self.results["split"] in ("validation", usual) else f":{self.results['split']}"
        similarity = SIMILARITY if self.results["outputs"] == "similarity" else ""
        return f"{self.results['task']}{split}{similarity}"

    def scorer(self) -> Any:
        """Scores of the base and of all places where examples count several times (`resampling.make_scorer`)."""
        return make_scorer(self.results["metric"], self.outputs, self.labels, self.results["positive"])


def read_run(directory: Path, mode: str) -> DisablingRun:
    """A directory of results, as far as it is about a mode.

    Raises:
        InputError: it holds no such results, or they are damaged.
    """
    try:
        results = read_json(directory / "numbers.json")["results"]
        modes = list(results["effects"][results["metric"]])
        if mode not in modes:
            raise InputError(f"{directory} holds no mode {mode}, but {', '.join(modes)}: choose one with --mode")
        metric = results["metric"]
        effects = read_effects(metric, results["base"][metric], results["effects"][metric][mode])
        with open_file(directory / "values.npz") as file, np.load(file) as values:
            base, outputs = values["base"], values["outputs"][list(values["modes"]).index(mode)]
            labels, ids = values["labels"], tuple(map(str, values["ids"]))
        every = np.concatenate([base[None], outputs])
        if every.shape[:2] != (1 + len(results["names"]), len(labels)) or len(ids) != len(labels):
            raise ValueError("numbers.json and values.npz are not of one run")
        _ = [str.partition(name, ".") for name in results["names"]]
        _ = [results[name] for name in ("kind", "task", "split", "outputs", "layers", "heads", "positive", "model")]
        return DisablingRun(directory, results, every, labels, ids, effects)
    except (DataError, OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(
            f"{directory} holds no results of experiments.head_ablation or layer_ablation ({why}): name a directory "
            "that one of them wrote"
        ) from error


def group_by_task(runs: Sequence[DisablingRun]) -> dict[str, list[DisablingRun]]:
    """The runs of each task: models that were fine-tuned on it with different seeds, on the same examples.

    Raises:
        InputError: they are of different kinds or sizes of model, one run is named twice, or runs of a task have
            different examples.
    """
    first = runs[0]
    for other in runs[1:]:
        for name in ("kind", "layers", "heads"):
            here, there = first.results[name], other.results[name]
            if here != there:
                raise InputError(f"{other.directory} has {name} {there}, {first.directory} {here}: join what is alike")
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
        runs: one for each seed.
        change: of each seed and place in points.
        drawn: the same on examples drawn with replacement, the same for all seeds.
        halves: the same on random halves of the examples, each with its other half.
    """

    task: str
    runs: list[DisablingRun]
    change: Float[np.ndarray, "seeds places"]
    drawn: Float[np.ndarray, "draws seeds places"]
    halves: Float[np.ndarray, "splits 2 seeds places"]

    @property
    def mean(self) -> Float[np.ndarray, " places"]:
        """Over seeds."""
        return self.change.mean(0)

    @property
    def drawn_mean(self) -> Float[np.ndarray, "draws places"]:
        """Over seeds, of each draw."""
        return self.drawn.mean(1)

    @property
    def found_in(self) -> Bool[np.ndarray, "2 seeds places"]:
        """Where each seed's own results find a gain, and where a loss."""
        q = np.stack([np.nan_to_num(run.effects.q, nan=1.0) for run in self.runs])
        return np.stack([(q < Q) & (self.change > 0), (q < Q) & (self.change < 0)])


def measure_task(task: str, runs: list[DisablingRun], draws: int, splits: int, seed: int) -> TaskEffects:
    """Draw the examples of a task again and again, and cut them in halves."""
    examples = len(runs[0].labels)
    generator = np.random.default_rng(seed)
    masks = np.zeros((splits, examples), np.uint16)
    for row in masks:
        row[generator.permutation(examples)[: examples // 2]] = 1
    drawn, halves = [], []
    for run in runs:
        results = run.results
        given = (results["metric"], run.outputs, run.labels, results["positive"])
        drawn.append(draw_changes(*given, draws, seed))
        scorer = run.scorer()
        both = np.stack([scorer(masks), scorer(1 - masks)], axis=1)
        halves.append(both[..., 1:] - both[..., :1])
    change = np.stack([run.effects.change for run in runs])
    return TaskEffects(task, runs, change, 100 * np.stack(drawn, 1), 100 * np.stack(halves, 2))
