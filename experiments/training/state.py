"""A training run on disk: its model, and a checkpoint after each epoch from which it resumes to byte-identical results.

state.safetensors   parameters, optimizer, finished epochs and scores; removed when the run is finished
last/               the model after the last epoch, with its tokenizer, for `transformers` and bertjax
logits.npz          the logits of that model on the validation set, and the labels
result.json         the facts of the run, its data, and the scores of each epoch; written last
"""

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Shaped
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bertjax import Tokenizer
from bertjax.atomic_files import remove_leftovers, staged, write_json
from bertjax.engine import describe_settings, find_differences, list_differences
from bertjax.errors import OutputError, library_errors, reading, some_of
from bertjax.json_files import parse_json
from bertjax.model import PretrainedModel
from bertjax.paths import is_file, is_there

MODEL_FILES = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")
STATE, LAST, LOGITS, RESULT = "state.safetensors", "last", "logits.npz", "result.json"


@dataclass(frozen=True)
class Epoch:
    """The results of an epoch: its mean loss (None without training), and the validation scores after it, by metric."""

    loss: float | None
    scores: dict[str, float | None]


@dataclass(frozen=True)
class Result:
    """A finished run read from its directory: name, facts, chosen settings, data by part, and epochs."""

    name: str
    facts: dict[str, Any]
    chosen: dict[str, str]
    data: dict[str, dict[str, Any]]
    epochs: list[Epoch]


class RunDirectory:
    """The directory of a training run.

    Args:
        path: the directory.
        facts: what identifies the run, as JSON stores it: settings, model, data. A run found with other facts is not
            resumed.
        chosen: the user's settings by name; an error about a different run names those that differ.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any], chosen: Mapping[str, Any] | None = None):
        self.path, self.facts, self.chosen = path, json.loads(json.dumps(facts)), describe_settings(chosen or {})

    def discard(self) -> None:
        """Remove the files of this run. Raises `OutputError`, also where the files there are of no run."""
        there = [name for name in (RESULT, STATE, LOGITS, LAST) if os.path.lexists(self.path / name)]
        if there and not self._is_of_a_run():
            raise OutputError(f"{self.path} holds {some_of(there)}, which no run wrote: choose another directory")
        try:
            for name in (RESULT, STATE, LOGITS):
                (self.path / name).unlink(missing_ok=True)
            if (self.path / LAST).is_dir():
                shutil.rmtree(self.path / LAST)
        except OSError as error:
            raise OutputError(f"cannot remove {error.filename}: {error.strerror or error}") from error
        remove_leftovers(self.path, (RESULT, STATE, LOGITS))

    def _is_of_a_run(self) -> bool:
        """Whether a result or a state is there that a run wrote, damaged or not."""
        for name, mark, within in ((RESULT, b'"facts"', 100), (STATE, b'"run":"{', 1000)):
            with contextlib.suppress(OSError), (self.path / name).open("rb") as file:
                if mark in file.read(within):
                    return True
        return False

    def is_finished(self) -> bool:
        """Whether there is a result. Raises `OutputError` if it is damaged or belongs to another run."""
        if not is_there(self.path / RESULT, OutputError):
            return False
        result = read_result(self.path / RESULT)
        self._compare(result.facts, result.chosen)
        return True

    def save_state(self, trees: Any, epochs: list[Epoch]) -> None:
        """Save parameters and optimizer after the last of these epochs. Raises `OutputError`."""
        arrays = {name: np.asarray(value) for name, value in _named(trees).items()}
        metadata = json.dumps({"facts": self.facts, "chosen": self.chosen, "epochs": [vars(epoch) for epoch in epochs]})
        with staged(self.path / STATE) as (temporary,):
            try:
                save_file(arrays, temporary, metadata={"run": metadata})
            except SafetensorError as error:  # also for a full disk
                raise OutputError(f"cannot write {self.path / STATE}: {error}") from error

    def load_state(self, template: Any) -> tuple[Any, list[Epoch]] | None:
        """Load parameters and optimizer, and the finished epochs; None if nothing was saved.

        Args:
            template: trees of arrays with the same shapes and placement.

        Raises:
            OutputError: the checkpoint is damaged or belongs to another run.
        """
        path = self.path / STATE
        remove_leftovers(self.path, (RESULT, STATE, LOGITS))
        remove_leftovers(self.path / LAST, MODEL_FILES)
        if not is_file(path, OutputError):
            return None
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = json.loads(file.metadata()["run"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            self._compare(metadata["facts"], metadata.get("chosen", {}))
            expected = _named(template)
            if {name: value.shape for name, value in expected.items()} != {n: v.shape for n, v in arrays.items()}:
                raise ValueError("it holds other arrays")
            epochs = [Epoch(**record) for record in metadata["epochs"]]
        except (SafetensorError, OSError, ValueError, LookupError, TypeError) as error:
            raise OutputError(f"{path}: cannot be gone on with ({error}); --overwrite begins anew") from error
        leaves = [jax.device_put(arrays[name], value.sharding) for name, value in expected.items()]
        return jax.tree.unflatten(jax.tree.structure(template), leaves), epochs

    def save_logits(self, logits: Float[np.ndarray, "examples labels"], labels: Shaped[np.ndarray, "examples"]) -> None:
        """Save the logits of the model on the validation set, and the labels. Raises `OutputError`."""
        with staged(self.path / LOGITS) as (temporary,):
            np.savez_compressed(temporary, logits=logits, labels=labels)

    def save_model(self, model: PretrainedModel, tokenizer: Tokenizer) -> None:
        """Export the model with its tokenizer. Raises `OutputError`."""
        model.save_pretrained(self.path / LAST, tokenizer)

    def finish(self, data: Mapping[str, Mapping[str, Any]], epochs: list[Epoch]) -> None:
        """Write the result, and remove the checkpoint, which is no longer needed. Raises `OutputError`."""
        record = {"facts": self.facts, "chosen": self.chosen, "data": data}
        write_json(self.path / RESULT, {**record, "epochs": [vars(epoch) for epoch in epochs]})
        (self.path / STATE).unlink(missing_ok=True)

    def _compare(self, facts: Any, chosen: Any) -> None:
        descriptions = [
            describe_settings({name: run_facts.get(name) for name in self.facts}) for run_facts in (facts, self.facts)
        ]
        if fact_differences := find_differences(*descriptions):
            chosen_differences = [
                difference for difference in find_differences(chosen, self.chosen) if difference[0] in chosen
            ]
            raise OutputError(
                f"{self.path} holds a run with other settings: "
                f"{list_differences(chosen_differences, fact_differences)}. "
                "Choose another directory, or --overwrite"
            )


def run_name(facts: Mapping[str, Any]) -> str:
    """The name of a run's directory.

    >>> run_name({"task": "rte", "init": "random", "seed": 42, "published": True})
    'rte-random-42-published'
    """
    name = "-".join(str(facts.get(part)) for part in ("task", "init", "seed"))
    return f"{name}-published" if facts.get("published") else name


def read_result(path: Path) -> Result:
    """Read the `result.json` of a finished run. Raises `OutputError` if that fails."""
    with library_errors(f"{path}: cannot be read", OutputError, "; --overwrite begins anew"):
        record = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(record["facts"], dict) or not record["epochs"]:
            raise ValueError("it is no run's result")
        epochs = [Epoch(**epoch) for epoch in record["epochs"]]
        return Result(path.parent.name, record["facts"], record.get("chosen", {}), record["data"], epochs)


def finished_runs(directory: Path, settings: Mapping[str, Any]) -> tuple[list[Result], int]:
    """The finished runs with these settings in the subdirectories of a directory, and the number of results left out.

    Results with other settings, unreadable ones, and copies under another name are left out.
    """
    results, omitted = [], 0
    for path in sorted(directory.glob(f"*/{RESULT}")):
        try:
            result = read_result(path)
        except OutputError:
            omitted += 1
            continue
        if (
            run_name(result.facts) == result.name
            and settings.items() <= result.facts.items()
            and (path.parent / LOGITS).is_file()
        ):
            results.append(result)
        else:
            omitted += 1
    return results, omitted


def read_logits(directory: Path) -> dict[str, np.ndarray]:
    """Read the logits of a run on the validation set, and the labels. Raises `OutputError`."""
    with reading(directory / LOGITS, OutputError), np.load(directory / LOGITS) as arrays:
        return {name: arrays[name] for name in ("logits", "labels")}


def _named(trees: Any) -> dict[str, Any]:
    """The leaves of a tree by path, in tree order."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(trees)[0]}
