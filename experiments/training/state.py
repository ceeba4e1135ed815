"""A training run on disk: a checkpoint after each epoch, from which it goes on to the same bytes, and its model.

state.safetensors   parameters, optimizer, epochs done and scores; gone when the run is finished
last/               the model after the last epoch, with its tokenizer, for `transformers` and bertjax
logits.npz          what that model says of the validation set, and the labels
result.json         what the run was, its data, and the scores of each epoch; written last
"""

import json
import shutil
import zipfile
import zlib
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
from bertjax.errors import OutputError
from bertjax.json_files import parse_json
from bertjax.model import PretrainedModel
from bertjax.paths import is_file, is_there, open_file, read_text

MODEL_FILES = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")
STATE, LAST, LOGITS, RESULT = "state.safetensors", "last", "logits.npz", "result.json"


@dataclass(frozen=True)
class Epoch:
    """What an epoch gave: its mean loss (None without training), and the validation scores after it by metric."""

    loss: float | None
    scores: dict[str, float | None]


@dataclass(frozen=True)
class Result:
    """A finished run, as its directory tells it: name, what it was, what was chosen, its data by part, its epochs."""

    name: str
    facts: dict[str, Any]
    chosen: dict[str, str]
    data: dict[str, dict[str, Any]]
    epochs: list[Epoch]


class RunDirectory:
    """Where a training run keeps itself.

    Args:
        path: the run's own directory.
        facts: what makes a run what it is, as JSON holds it: settings, model, data. A run found with other facts is
            not gone on with.
        chosen: what the user chose, by name; an error about another run names what differs.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any], chosen: Mapping[str, Any] | None = None):
        self.path, self.facts, self.chosen = path, json.loads(json.dumps(facts)), describe_settings(chosen or {})

    def discard(self) -> None:
        """Remove what is there of this run. Raises `OutputError`."""
        try:
            for name in (RESULT, STATE, LOGITS):
                (self.path / name).unlink(missing_ok=True)
            if (self.path / LAST).is_dir():
                shutil.rmtree(self.path / LAST)
        except OSError as error:
            raise OutputError(f"cannot remove {error.filename}: {error.strerror or error}") from error
        remove_leftovers(self.path, (RESULT, STATE, LOGITS))

    def is_finished(self) -> bool:
        """Whether there is a result. Raises `OutputError` where it is damaged, or another run's."""
        if not is_there(self.path / RESULT, OutputError):
            return False
        found = read_result(self.path / RESULT)
        self._compare(found.facts, found.chosen)
        return True

    def save_state(self, trees: Any, epochs: list[Epoch]) -> None:
        """Keep parameters and optimizer after the last of these epochs. Raises `OutputError`."""
        arrays = {name: np.asarray(value) for name, value in _named(trees).items()}
        told = json.dumps({"facts": self.facts, "chosen": self.chosen, "epochs": [vars(epoch) for epoch in epochs]})
        with staged(self.path / STATE) as (temporary,):
            try:
                save_file(arrays, temporary, metadata={"run": told})
            except SafetensorError as error:  # also for a full disk
                raise OutputError(f"cannot write {self.path / STATE}: {error}") from error

    def load_state(self, like: Any) -> tuple[Any, list[Epoch]] | None:
        """Parameters and optimizer as they were saved, and the epochs done; None where nothing was saved.

        Args:
            like: trees of arrays of the same shapes and placement.

        Raises:
            OutputError: what is there is damaged, or another run's.
        """
        path = self.path / STATE
        remove_leftovers(self.path, (RESULT, STATE, LOGITS))
        remove_leftovers(
            self.path / LAST, ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")
        )
        if not is_file(path, OutputError):
            return None
        try:
            with safe_open(path, framework="numpy") as file:
                told = json.loads(file.metadata()["run"])
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            self._compare(told["facts"], told.get("chosen", {}))
            wanted = _named(like)
            if {name: value.shape for name, value in wanted.items()} != {n: v.shape for n, v in found.items()}:
                raise ValueError("it holds other arrays")
            epochs = [Epoch(**one) for one in told["epochs"]]
        except (SafetensorError, OSError, ValueError, LookupError, TypeError) as error:
            raise OutputError(f"{path}: cannot be gone on with ({error}); --overwrite begins anew") from error
        leaves = [jax.device_put(found[name], value.sharding) for name, value in wanted.items()]
        return jax.tree.unflatten(jax.tree.structure(like), leaves), epochs

    def save_logits(self, logits: Float[np.ndarray, "examples labels"], labels: Shaped[np.ndarray, "examples"]) -> None:
        """Keep what the model says of the validation set, and the labels. Raises `OutputError`."""
        with staged(self.path / LOGITS) as (temporary,):
            np.savez_compressed(temporary, logits=logits, labels=labels)

    def save_model(self, model: PretrainedModel, tokenizer: Tokenizer) -> None:
        """Export the model with its tokenizer. Raises `OutputError`."""
        model.save_pretrained(self.path / LAST, tokenizer)

    def finish(self, data: Mapping[str, Mapping[str, Any]], epochs: list[Epoch]) -> None:
        """Write the result, and drop the checkpoint that is not needed any more. Raises `OutputError`."""
        told = {"facts": self.facts, "chosen": self.chosen, "data": data}
        write_json(self.path / RESULT, {**told, "epochs": [vars(epoch) for epoch in epochs]})
        (self.path / STATE).unlink(missing_ok=True)

    def _compare(self, facts: Any, chosen: Any) -> None:
        several = [describe_settings({name: found.get(name) for name in self.facts}) for found in (facts, self.facts)]
        if differing := find_differences(*several):
            others = [one for one in find_differences(chosen, self.chosen) if one[0] in chosen]
            raise OutputError(
                f"{self.path} holds a run with other settings: {list_differences(others, differing)}. "
                "Choose another directory, or --overwrite"
            )


def run_name(facts: Mapping[str, Any]) -> str:
    """What a run's directory is called.

    >>> run_name({"task": "rte", "init": "random", "seed": 42, "published": True})
    'rte-random-42-published'
    """
    name = "-".join(str(facts.get(part)) for part in ("task", "init", "seed"))
    return f"{name}-published" if facts.get("published") else name


def read_result(path: Path) -> Result:
    """A finished run's `result.json`. Raises `OutputError` where it cannot be read."""
    try:
        found = parse_json(read_text(path, OutputError))
        if not isinstance(found["facts"], dict) or not found["epochs"]:
            raise ValueError("it is no run's result")
        epochs = [Epoch(**one) for one in found["epochs"]]
        return Result(path.parent.name, found["facts"], found.get("chosen", {}), found["data"], epochs)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise OutputError(f"{path}: cannot be read ({error}); --overwrite begins anew") from error


def finished_runs(directory: Path, settings: Mapping[str, Any]) -> tuple[list[Result], int]:
    """The finished runs in the directories of a directory that have these settings, and how many results are left out.

    Left out are those of other settings, those that cannot be read, and copies under another name.
    """
    alike, others = [], 0
    for path in sorted(directory.glob(f"*/{RESULT}")):
        try:
            found = read_result(path)
        except OutputError:
            others += 1
            continue
        if (
            run_name(found.facts) == found.name
            and settings.items() <= found.facts.items()
            and (path.parent / LOGITS).is_file()
        ):
            alike.append(found)
        else:
            others += 1
    return alike, others


def read_logits(directory: Path) -> dict[str, np.ndarray]:
    """What a run's best model says of the validation set, and the labels. Raises `OutputError`."""
    try:
        with open_file(directory / LOGITS, OutputError) as file, np.load(file) as arrays:
            return {name: arrays[name] for name in ("logits", "labels")}
    except (OSError, EOFError, ValueError, LookupError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise OutputError(f"{directory / LOGITS}: cannot be read ({error}); --overwrite begins anew") from error


def _named(trees: Any) -> dict[str, Any]:
    """The leaves of a tree by path, in the tree's order."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(trees)[0]}
