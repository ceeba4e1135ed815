"""Other measures of each head, from `numbers.json` of other experiments, to be held against what heads do for tasks."""

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

TASK = "{task}"  # in a path, stands for the task's name
DIRECTIONS = {"element_to_predicate": "elements to predicate", "predicate_to_element": "predicate to elements"}


@dataclass(frozen=True)
class HeadMap:
    """A number for each head.

    Args:
        name: for tables.
        values: by task, where each has its own; else of all under ''.
        marked: heads that stand out by the measure's own test, where there is one.
        least: heads with more stand out, where there is no such test.
    """

    name: str
    values: Mapping[str, Float[np.ndarray, " heads"]]
    marked: Bool[np.ndarray, " heads"] | None = None
    least: float | None = None

    def of(self, task: str) -> Float[np.ndarray, " heads"] | None:
        """The values for a task; None where there are none."""
        return self.values.get("", self.values.get(task))

    def marks_of(self, task: str) -> Bool[np.ndarray, " heads"] | None:
        """Which heads stand out for a task; None where that is not known."""
        values = self.of(task)
        return self.marked if self.least is None or values is None else values > self.least


def read_map(given: str, tasks: Sequence[str], shape: tuple[int, int]) -> HeadMap:
    """A map as `--map` names it: `NAME=FILE:PATH>LEAST`, the path's parts apart by dots, beginning below `results`.

    Args:
        given: `>LEAST` may be left out; then no heads stand out.
        tasks: for which a path with `{task}` is tried; for a part of a task's data, such as `qqp:train`, with its name
            alone too.
        shape: layers and heads.

    Raises:
        InputError: it is not written so, the file cannot be read, or holds no such map.
    """
    name, equals, place = given.partition("=")
    file, colon, path = place.rpartition(":")
    path, more, number = path.partition(">")
    if not (equals and colon and name and file and path):
        raise InputError(f"--map {given}: say NAME=FILE:PATH, such as 'frames=numbers.json:maps.element_to_predicate'")
    try:
        least = float(number) if more else None
    except ValueError as error:
        raise InputError(f"--map {given}: {number!r} is not a number; heads with more than it stand out") from error
    results = _read(user_path(file, InputError), "--map")
    return replace(_find(name, results, path, tasks, shape, file), least=least)


def read_frames(file: str, shape: tuple[int, int]) -> list[HeadMap]:
    """The maps of `experiments.frame_semantics`, with the heads that its nulls and controls leave.

    For each direction the weights, and how far they are above the same key's from other words; and the larger weight of
    both directions, with the heads that are left in either.

    Raises:
        InputError: the file cannot be read, or holds no such maps.
    """
    results = _read(user_path(file, InputError), "--frames")
    names = [f"{layer}.{head}" for layer in range(shape[0]) for head in range(shape[1])]
    weights, above, marks = [], [], []
    for number, (direction, name) in enumerate(DIRECTIONS.items()):
        one, links, others = (
            _find(name, results, path, (), shape, file).values[""]
            for path in (f"maps.{direction}", *(f"controls.same_key.{part}.{number}" for part in ("links", "others")))
        )
        try:
            left = {str(head) for head in results["heads_left"][direction]}
        except (KeyError, TypeError) as error:
            raise InputError(f"--frames {file} does not say which heads its controls leave: run it again") from error
        marks.append(np.array([head in left for head in names]))
        weights.append(HeadMap(name, {"": one}, marks[-1]))
        above.append(HeadMap(f"{name}, above other words", {"": links - others}, marks[-1]))
    larger = np.maximum(*(one.values[""] for one in weights))
    return [*weights, *above, HeadMap("the larger of both, left in either", {"": larger}, marks[0] | marks[1])]


def read_patterns(file: str, tasks: Sequence[str], shape: tuple[int, int]) -> list[HeadMap]:
    """Each head's shares of the classes of `experiments.attention_patterns`, by task.

    Raises:
        InputError: the file cannot be read, or holds no such shares.
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
    """The map, or those of the tasks that have one."""
    values = {}
    for task in tasks if TASK in path else ("",):
        called = task.removesuffix(SIMILARITY)
        array = _values_at(results, path, called)
        if array is None:
            array = _values_at(results, path, called.partition(":")[0])
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
    """The numbers at a path, for a task; None where there are none."""
    found: Any = results
    try:
        for part in path.split("."):
            part = task if part == TASK else part
            found = found[int(part)] if isinstance(found, list) else found[part]
        return np.array(found, np.float64)
    except (KeyError, IndexError, TypeError, ValueError):
        return None
