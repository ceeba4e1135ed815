"""Shards: directories that each contain a part of a sweep, which `bertjax merge` joins.

`shard.json` is written when a shard is complete, and describes the shard and its run.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertjax.atomic_files import write_json
from bertjax.errors import InputError, OutputError, some_of
from bertjax.machine import parse_shard
from bertjax.results.summary import read_recorded

NAME = "shard.json"
PACKAGES = ("bertjax", "jax", "jaxlib", "numpy")


@dataclass(frozen=True)
class Shard:
    """A complete shard.

    Args:
        directory: the directory of the shard.
        number: the number of the shard, from 1.
        count: the number of all shards.
        content: the content of `shard.json`: settings, analysis, model, data, versions, device, steps and means.
    """

    directory: Path
    number: int
    count: int
    content: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Such as '3/16'."""
        return f"{self.number}/{self.count}"

    def facts(self) -> dict[str, Any]:
        """The values that are equal in all shards of a run."""
        content, analysis = self.content, self.content["analysis"]
        return {
            "number of shards": self.count,
            "analysis": analysis["name"],
            **content["settings"],
            **analysis["options"],
            "weights": content["model"]["weights_sha256"][:16],
            "examples": analysis["examples_sha256"][:16],
            **{name: content["versions"][name] for name in PACKAGES},
            "device": content["device"]["kind"],
            **{f"{name} of steps": value for name, value in content["steps"].items()},
            "means": content["means"],
        }


def write_shard(directory: Path, content: Mapping[str, Any]) -> None:
    """Mark a shard as complete. Raises `OutputError` if it cannot be written.

    Args:
        directory: the output directory of the shard.
        content: the content of `shard.json`.
    """
    write_json(directory / NAME, content)


def check_shard(directory: Path, shard: str | None, overwrite: bool) -> None:
    """Check that a directory has no complete shard other than the one to compute there.

    Args:
        directory: the output directory.
        shard: the shard, such as '3/16'; None for a whole run.
        overwrite: discard the shard in the directory.

    Raises:
        OutputError: the directory has another shard.
    """
    found = _find(directory)
    if overwrite:
        discard_shard(directory)
    elif found is not None and shard != found.name:
        raise OutputError(f"{directory} has shard {found.name}: give another --output, or --overwrite to discard it")


def discard_shard(directory: Path) -> None:
    """Remove the `shard.json` of a directory if bertjax wrote it."""
    if _find(directory) is not None:
        (directory / NAME).unlink()


def refuse_shard(directory: Path) -> None:
    """Raise `InputError` for a shard, which has no results before it is merged."""
    found = _find(directory)
    if found is not None:
        raise InputError(describe_shard(directory, found.name))


def describe_shard(directory: Path | None, name: str) -> str:
    """The message for a directory with a shard but no results; `name` is such as '3/16'."""
    return f"{directory} has shard {name}, not results: join all shards with bertjax merge DIR... --output DIR"


def read_shards(directories: Sequence[Path]) -> list[Shard]:
    """Read all shards of a run, in their order.

    Args:
        directories: the output directories of the shards.

    Raises:
        InputError: a directory has no complete shard, a shard of another run, or a shard that occurs twice; or shards
            are missing.
    """
    shards = [_read(directory) for directory in directories]
    if not shards:
        raise InputError("give the directories of all shards")
    first, *others = shards
    for other in others:
        if differing := _differences(first.facts(), other.facts()):
            raise InputError(f"{other.directory} is not of the same run as {first.directory}: {differing}")
    for number, times in Counter(shard.number for shard in shards).items():
        if times > 1:
            twice = [str(shard.directory) for shard in shards if shard.number == number]
            raise InputError(f"shard {number}/{first.count} is in {' and '.join(twice)}: give one of them")
    missing = sorted({*range(1, first.count + 1)} - {shard.number for shard in shards})
    if missing:
        names = some_of([f"{number}/{first.count}" for number in missing])
        raise InputError(
            f"missing: shard {names}: give the directories of all shards, or run the missing ones with --shard"
        )
    return sorted(shards, key=lambda shard: shard.number)


def _read(directory: Path) -> Shard:
    found = _find(directory)
    if found is None and (directory / "journal").is_dir():
        raise InputError(f"{directory} has an unfinished or damaged shard: run its command again")
    if found is None:
        raise InputError(f"{directory} has no shard: there is no {NAME}")
    return found


def _find(directory: Path) -> Shard | None:
    """The complete shard in a directory; None if there is none, or it is damaged."""
    content = read_recorded(directory / NAME)
    if content is None:
        return None
    try:
        found = Shard(directory, *parse_shard(content["shard"]), content)
        known = isinstance(content["analysis"]["name"], str) and "model" in content["settings"]
        return found if known and found.facts() and isinstance(content["own_metric"], bool) else None
    except (InputError, KeyError, TypeError, AttributeError):
        return None


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The differences as a phrase; empty if there are none."""
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    values = {name: "" if name == "means" else f" ({there.get(name)} there, {here.get(name)} here)" for name in names}
    differing = "; ".join(f"{name}{value}" for name, value in values.items())
    of_machine = names and all(name in ("means", "device") or name.endswith(" of steps") for name in names)
    return (
        f"{differing}: run all shards on machines of the same kind, with the same --memory" if of_machine else differing
    )
