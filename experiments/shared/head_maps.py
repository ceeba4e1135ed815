"""Maps with a number for each head, from the `numbers.json` of other scripts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.shared.run import Numbers, array

SIMILARITY = ", similarity"  # added to a task's name if a model that embeds sentences was not tuned on it
DIRECTIONS = {"element_to_predicate": "elements to predicate", "predicate_to_element": "predicate to elements"}


@dataclass(frozen=True)
class HeadMap:
    """A number for each head.

    Args:
        values: by task; those for all tasks are under ''.
        marked: heads that the measure's test finds.
        least: without such a test, heads with larger values are marked.
    """

    name: str
    values: Mapping[str, Any]
    marked: Any = None
    least: float | None = None

    def of(self, task: str) -> Any:
        """The values for a task; None if there are none."""
        name = task.removesuffix(SIMILARITY)
        return self.values.get("", self.values.get(name, self.values.get(name.partition(":")[0])))


def read_frames(results: Numbers) -> list[HeadMap]:
    """The maps of `fig3_frames`, with the heads that nulls and controls leave."""
    shape, maps, above = np.array(results["maps"]["as_published"]).shape, [], []
    names = np.array([f"{layer}.{head}" for layer, head in np.ndindex(*shape)])
    for number, (direction, name) in enumerate(DIRECTIONS.items()):
        weight, control = array(results["maps"][direction]).ravel(), results["controls"]["same_key"]
        marked = np.isin(names, results["heads_left"][direction])
        maps.append(HeadMap(name, {"": weight}, marked))
        difference = array(control["links"][number]).ravel() - array(control["others"][number]).ravel()
        above.append(HeadMap(f"{name}, above other words", {"": difference}, marked))
    larger = np.maximum(maps[0].values[""], maps[1].values[""])
    return [*maps, *above, HeadMap("the larger of both, left in either", {"": larger}, maps[0].marked | maps[1].marked)]


def read_map(argument: str) -> HeadMap:
    """A map named by `--map NAME=FILE:PATH[>LEAST]`; `{task}` in the path stands for each task."""
    name, _, place = argument.partition("=")
    file, _, path = place.rpartition(":")
    path, _, least = path.partition(">")
    results = read_results(file)
    before, _, after = path.partition("{task}")
    parts = [part for part in before.split(".") if part]
    node = _at(results, parts)
    tasks = node if "{task}" in path else {"": node}
    values = {task: array(_at(one, [part for part in after.split(".") if part])).ravel() for task, one in tasks.items()}
    return HeadMap(name, values, least=float(least) if least else None)


def _at(node: Any, parts: Sequence[str]) -> Any:
    for part in parts:
        node = node[int(part)] if isinstance(node, list) else node[part]
    return node


def read_results(file: str | Path) -> dict[str, Any]:
    """The results in a `numbers.json`."""
    results: dict[str, Any] = json.loads(Path(file).read_text())["results"]
    return results
