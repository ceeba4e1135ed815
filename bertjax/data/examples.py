"""Examples (texts with labels), and the columns, labels and splits of data sets such as GLUE."""

import difflib
import hashlib
import json
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import numpy as np
from jaxtyping import Float32, Int32

from bertjax import arguments
from bertjax.errors import DataError
from bertjax.formatting import HALF_CHARACTER

# The name of the task for data of the user.
CUSTOM = "custom"

T = TypeVar("T")


@dataclass(frozen=True)
class DatasetSpec:
    """The columns, labels and splits of a data set.

    Args:
        name: the name on the command line and in results.
        text_columns: one or two text columns, as named in GLUE's TSV files.
        label_column: the label column, as named there.
        label_names: the classes in the order of their ids; None for regression.
        folder: the folder in GLUE; empty if there is none.
        config: the configuration of TensorFlow Datasets' `glue`; empty if there is none.
        renamed: the text columns in TensorFlow Datasets and on the HuggingFace hub.
        section: `matched` or `mismatched` if the names of evaluation splits contain it.
        scale: the lowest and highest rating; None if unknown.

    Raises:
        DataError: columns or label names are not a tuple of str, or a label contains a lone surrogate.
    """

    name: str
    text_columns: tuple[str, ...]
    label_column: str = ""
    label_names: tuple[str, ...] | None = None
    folder: str = ""
    config: str = ""
    renamed: tuple[str, ...] = ()
    section: str = ""
    scale: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name in ("text_columns", "label_names"):
            self._check_texts(name)
        for name in self.label_names or ():
            if HALF_CHARACTER.search(name):  # cannot be written as UTF-8
                raise DataError(f"label {name!r} contains a lone surrogate")

    def _check_texts(self, name: str) -> None:
        """Raise `DataError` if a field is not a tuple of str."""
        if (value := getattr(self, name)) is not None:
            arguments.check_sequence(value, f"{name} of task {self.name}", "a tuple of str", str, DataError)

    @property
    def kind(self) -> Literal["classification", "regression"]:
        """Whether labels are class ids or real numbers."""
        return "regression" if self.label_names is None else "classification"


_ENTAILMENT = ("entailment", "not_entailment")
_THREE_WAY = ("entailment", "neutral", "contradiction")
_S12 = ("sentence1", "sentence2")
_Q12 = ("question1", "question2")
_MNLI = DatasetSpec("mnli", _S12, "gold_label", _THREE_WAY, "MNLI", "mnli", ("premise", "hypothesis"), "matched")
_NOT_EQUIVALENT = ("not_equivalent", "equivalent")

# Wang et al. 2018. Class ids are those of GLUE's loaders.
GLUE: Mapping[str, DatasetSpec] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            DatasetSpec("mrpc", ("#1 String", "#2 String"), "Quality", _NOT_EQUIVALENT, "MRPC", "mrpc", _S12),
            DatasetSpec("stsb", _S12, "score", None, "STS-B", "stsb", scale=(0.0, 5.0)),
            DatasetSpec("sst2", ("sentence",), "label", ("negative", "positive"), "SST-2", "sst2"),
            DatasetSpec("qqp", _Q12, "is_duplicate", ("not_duplicate", "duplicate"), "QQP", "qqp"),
            DatasetSpec("rte", _S12, "label", _ENTAILMENT, "RTE", "rte"),
            DatasetSpec("qnli", ("question", "sentence"), "label", _ENTAILMENT, "QNLI", "qnli"),
            _MNLI,
            replace(_MNLI, name="mnli-mm", section="mismatched"),
            DatasetSpec("cola", ("sentence",), "label", ("unacceptable", "acceptable"), "CoLA", "cola"),
        )
    }
)
# Other names of these tasks.
SPELLINGS: Mapping[str, str] = MappingProxyType(
    {"mnlim": "mnli", "mnlimatched": "mnli", "mnlimismatched": "mnli-mm", "sst": "sst2"}
)


def plain_name(text: str) -> str:
    """Normalise a task or folder name: `STS-B` and `sts_b` become `stsb`."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def plain_label(name: str) -> str:
    """Normalise a label: lower case, without punctuation, in any alphabet.

    Args:
        name: the name of a label.
    """
    return "".join(letter for letter in name.lower() if letter.isalnum())


def look_up(name: str, tasks: Mapping[str, T], spellings: Mapping[str, str]) -> T:
    """Find a task by its name, in any common spelling.

    Args:
        name: a name such as `mrpc`, `MRPC`, `sts-b`, `glue/sst2` or `mnli_mismatched`.
        tasks: the tasks by name.
        spellings: maps other (normalised) names to names in `tasks`.

    Raises:
        DataError: there is no such task.
    """
    plain = plain_name(name.lower().removeprefix("glue/"))
    known = {plain_name(key): key for key in tasks} | {key: value for key, value in spellings.items() if value in tasks}
    if plain in known:
        return tasks[known[plain]]
    matches = difflib.get_close_matches(plain, known, n=1)
    hint = f"; did you mean {known[matches[0]]}?" if matches else "."
    raise DataError(f"no task is called {name!r}{hint} Known: {', '.join(tasks)}; {CUSTOM} for other data")


def split_named(task: DatasetSpec, split: str) -> str:
    """The full name of a split in GLUE: `dev` becomes `validation`, and splits of MNLI get the task's section.

    Args:
        task: the task whose splits are named.
        split: `train`, `validation` (or `dev`) or `test`; for MNLI also names such as `validation_matched`.

    Raises:
        DataError: there is no such split.

    >>> split_named(DatasetSpec("mnli", ("premise",), section="matched"), "dev")
    'validation_matched'
    """
    base, _, section = split.partition("_")
    base = {"dev": "validation"}.get(base, base)
    sections = ("", "matched", "mismatched") if task.section and base != "train" else ("",)
    if base not in ("train", "validation", "test") or section not in sections:
        raise DataError(f"{task.name} has no split {split!r}; there are train, validation and test")
    if base == "train" or not task.section:
        return base
    return f"{base}_{section or task.section}"


class Content(ABC):
    """The fields of an example that only some tasks have, such as choices."""

    def facts(self) -> dict[str, Any]:
        """The values that the hash of the examples depends on: by default all fields."""
        return dict(vars(self))

    @abstractmethod
    def describe(self, arrays: Mapping[str, Any], example: int) -> dict[str, Any]:
        """The additional keys of a line of `examples.jsonl`.

        Args:
            arrays: the arrays of `outputs.npz`.
            example: the index of the example.
        """


@dataclass(frozen=True, eq=False)
class Examples:
    """Texts with their labels, in the order of their source.

    Args:
        task: the task of the examples.
        ids: the id of each example in the source, or its row index (`idx` in GLUE's loaders).
        first: the texts, or the first text of each pair.
        second: the second text of each pair, or None.
        labels: class ids (int32, -1 where unlabelled) or ratings (float32, NaN where unlabelled).
        source: one line that describes the source.
        split: the part of the task's data.
        content: the fields that only some tasks have; None for other tasks.
        groups: the group of each example, such as a paradigm, for scores by group; None for no groups.

    Raises:
        DataError: the columns differ in length.

    >>> from bertjax.tasks import load_examples
    >>> examples = load_examples("qnli-sample").head(2)
    >>> len(examples), examples.labels.dtype.name
    (2, 'int32')
    """

    task: DatasetSpec
    ids: tuple[int | str, ...]
    first: tuple[str, ...]
    second: tuple[str, ...] | None
    labels: Int32[np.ndarray, " examples"] | Float32[np.ndarray, " examples"]
    source: str
    split: str
    groups: tuple[str, ...] | None = None
    content: tuple[Content, ...] | None = None

    def __post_init__(self) -> None:
        columns = {name: getattr(self, name) for name in ("ids", "first", "second", "labels", "groups", "content")}
        lengths = {name: len(values) for name, values in columns.items() if values is not None}
        if len({*lengths.values()}) != 1:
            raise DataError(f"columns of examples must have equal lengths, found {lengths}")

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def sha256(self) -> str:
        """A hash of ids, texts and labels; equal data from different sources have equal hashes."""
        digest = hashlib.sha256()
        second = self.second or (None,) * len(self)
        contents = [()] * len(self) if self.content is None else [[content.facts()] for content in self.content]
        for *row, content in zip(self.ids, self.first, second, self.labels.tolist(), contents, strict=True):
            # NaN is written as a string, because JSON has no number for it.
            line = json.dumps([*row[:3], row[3] if row[3] == row[3] else "unlabelled", *content])
            digest.update(line.encode() + b"\n")
        return digest.hexdigest()

    @property
    def scale(self) -> tuple[float, float] | None:
        """The lowest and highest rating: of the task, or of these examples if the task's scale is unknown or too small.

        None for classes, and if no example has a rating.
        """
        rated = self.labels[np.isfinite(self.labels)]
        if self.task.kind != "regression" or not len(rated):
            return None
        low, high = float(rated.min()), float(rated.max())
        known = self.task.scale
        return known if known is not None and known[0] <= low and high <= known[1] else (low, high)

    def take(self, indices: Sequence[int]) -> "Examples":
        """Select examples; the task keeps the scale of all ratings.

        Args:
            indices: the indices of the examples from 0, not their ids, in the order of the result.
        """
        scale = self.scale
        task = self.task if scale in (None, self.task.scale) else replace(self.task, scale=scale)
        columns = {name: getattr(self, name) for name in ("ids", "first", "second", "groups", "content")}
        taken: dict[str, Any] = {
            name: values and tuple(values[index] for index in indices) for name, values in columns.items()
        }
        return replace(self, task=task, labels=self.labels[np.asarray(indices, dtype=np.int64)], **taken)

    def limited(self, limit: int | None, seed: int) -> "Examples":
        """Draw at most `limit` examples; all if it is None.

        Args:
            limit: the largest number of examples; None for all.
            seed: the seed of the draw.
        """
        count = len(self)
        return self if limit is None or limit >= count else self.take(draw(count, limit, seed))

    def head(self, count: int) -> "Examples":
        """The first `count` examples, or all if there are fewer.

        Args:
            count: the number of examples.
        """
        return self.take(range(min(count, len(self))))


def draw(count: int, size: int, seed: int) -> list[int]:
    """Draw `size` of `count` indices at random without replacement, in ascending order.

    Each index gets a value of Python's `random.random`, the only random stream that is guaranteed to stay the same
    across versions; the indices with the smallest values are drawn.

    Args:
        count: the number of indices.
        size: the number of indices to draw; all if there are fewer.
        seed: the same seed gives the same draw.

    >>> draw(10, 3, seed=1)
    [0, 8, 9]
    """
    generator = random.Random(seed)
    keys = [generator.random() for _ in range(count)]
    return sorted(sorted(range(count), key=keys.__getitem__)[:size])
