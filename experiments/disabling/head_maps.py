"""Other measures of each head, from `numbers.json` of other experiments, to compare with its effect on tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from bertjax.errors import DataError, InputError
from bertjax.json_files import read_json
from bertjax.paths import user_path
from experiments.disabling.runs import SIMILARITY

TASK = "{task}"  # placeholder for the task's name in a path
DIRECTIONS = {"element_to_predicate": "elements to predicate", "predicate_to_element": "predicate to elements"}


@dataclass(frozen=True)
class HeadMap:
    """A number for each head.

    Args:
        name: shown in tables.
        values: by task if they differ between tasks; otherwise under '', for all tasks.
        marked: heads that stand out by the test of the measure itself, if it has one.
        least: without such a test, heads with values above this stand out.
    """

    name: str
    values: Mapping[str, Float[np.ndarray, " heads"]]
    marked: Bool[np.ndarray, " heads"] | None = None
    least: float | None = None

    def of(self, task: str) -> Float[np.ndarray, " heads"] | None:
        """The values for a task; None if there are none."""
        return self.values.get("", self.values.get(task))

    def marks_of(self, task: str) -> Bool[np.ndarray, " heads"] | None:
        """Which heads stand out for a task; None if unknown."""
        values = self.of(task)
        return self.marked if self.least is None or values is None else values > self.least


def read_map(argument: str, tasks: Sequence[str], shape: tuple[int, int]) -> HeadMap:
    """Read a map named by `--map NAME=FILE:PATH>LEAST`. PATH starts below `results`; its parts are separated by dots.

    Args:
        argument: the value of the option; without `>LEAST`, no heads stand out.
        tasks: the names to try for `{task}` in the path. For a part of a task's data, such as `qqp:train`, the task's
            name alone is tried too.
        shape: layers and heads.

    Raises:
        InputError: the value is malformed, the file cannot be read, or it holds no such map.
    """
    name, equals, place = argument.partition("=")
    file, colon, path = place.rpartition(":")
    path, greater, threshold = path.partition(">")
    if not (equals and colon and name and file and path):
        raise InputError(
            f"--map {argument}: say NAME=FILE:PATH, such as 'frames=numbers.json:maps.element_to_predicate'"
        )
    try:
        least = float(threshold) if greater else None
    except ValueError as error:
        raise InputError(
            f"--map {argument}: {threshold!r} is not a number; heads with more than it stand out"
        ) from error
    results = _read(user_path(file, InputError), "--map")
    return replace(_find(name, results, path, tasks, shape, file), least=least)


def read_frames(file: str, shape: tuple[int, int]) -> list[HeadMap]:
    """Read the maps of `experiments.frame_semantics`, marking the heads that survive its nulls and controls.

    For each direction: the weights, and how far they exceed the weights from other words to the same key. Then the
    larger weight of the two directions, marking the heads that survive in either.

    Raises:
        InputError: the file cannot be read or holds no such maps.
    """
    results = _read(user_path(file, InputError), "--frames")
    names = [f"{layer}.{head}" for layer in range(shape[0]) for head in range(shape[1])]
    weights, above, marks = [], [], []
    for number, (direction, name) in enumerate(DIRECTIONS.items()):
        weight, links, other_words = (
            _find(name, results, path, (), shape, file).values[""]
            for path in (f"maps.{direction}", *(f"controls.same_key.{part}.{number}" for part in ("links", "others")))
        )
        try:
            remaining = {str(head) for head in results["heads_left"][direction]}
        except (KeyError, TypeError) as error:
            raise InputError(f"--frames {file} does not say which heads its controls leave: run it again") from error
        marks.append(np.array([head in remaining for head in names]))
        weights.append(HeadMap(name, {"": weight}, marks[-1]))
        above.append(HeadMap(f"{name}, above other words", {"": links - other_words}, marks[-1]))
    larger = np.maximum(*(weight.values[""] for weight in weights))
    return [*weights, *above, HeadMap("the larger of both, left in either", {"": larger}, marks[0] | marks[1])]


def read_patterns(file: str, tasks: Sequence[str], shape: tuple[int, int]) -> list[HeadMap]:
    """Read each head's share of every class of `experiments.attention_patterns`, by task.

    Raises:
        InputError: the file cannot be read or holds no such shares.
    """
    results = _read(user_path(file, InputError), "--patterns")
    classes = results.get("classes", [])
    if not classes:
        raise InputError(f"--patterns {file} holds no classes: name the numbers.json of experiments.attention_patterns")
    return [
        _find(f"share of {name}", results, f"corrected.{TASK}.by_head.{name}", tasks, shape, file) for name in classes
    ]


def _read(path: Path, option: str) -> dict[str, Any]:
    try:
        return dict(read_json(path)["results"])
    except (DataError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{option} {path}: no numbers.json of an experiment ({error})") from error


def _find(
    name: str, results: Mapping[str, Any], path: str, tasks: Sequence[str], shape: tuple[int, int], file: str
) -> HeadMap:
    """The map for all tasks, or the maps of the tasks that have one."""
    values = {}
    for task in tasks if TASK in path else ("",):
        task_name = task.removesuffix(SIMILARITY)
        array = _values_at(results, path, task_name)
        if array is None:
            array = _values_at(results, path, task_name.partition(":")[0])
        if array is None:
            continue
        if array.size != shape[0] * shape[1] or (array.ndim == 2 and array.shape != shape):
            raise InputError(
                f"{file}: {path} has {' x '.join(map(str, array.shape))} numbers; there are {shape[0]} x {shape[1]}, "
                "layers by heads"
            )
        values[task] = array.reshape(-1)
    if not values:
        raise InputError(f"{file}: holds no {path} below its results (there is {', '.join(map(str, results))})")
    return HeadMap(name, values)


def _values_at(results: Mapping[str, Any], path: str, task: str) -> Float[np.ndarray, "..."] | None:
    """The numbers at a path, for a task; None if there are none."""
    node: Any = results
    try:
        for part in path.split("."):
            part = task if part == TASK else part
            node = node[int(part)] if isinstance(node, list) else node[part]
        return np.array(node, np.float64)
    except (KeyError, IndexError, TypeError, ValueError):
        return None
