"""Examples (texts with labels), and the names of columns, labels and splits in their data, such as those of GLUE."""

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

# The task that is a file of your own.
CUSTOM = "custom"

T = TypeVar("T")
D = TypeVar("D", bound="DatasetSpec")


@dataclass(frozen=True)
class DatasetSpec:
    """Where data have texts and labels.

    Args:
        name: the name on the command line and in results.
        text_columns: one or two text columns, as named in GLUE's TSV files.
        label_column: the column of labels, as named there.
        label_names: the classes, in the order of their indices; None for regression.
        folder: its folder in GLUE; empty if there is none.
        config: its configuration in TensorFlow Datasets' `glue`; empty if there is none.
        renamed: the text columns in TensorFlow Datasets and on the HuggingFace hub.
        section: `matched` or `mismatched` if the names of evaluation splits contain it.
        scale: the lowest and highest rating; None if unknown.

    Raises:
        DataError: columns or label names are not a tuple of texts, or a label holds half a character.
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
                raise DataError(f"label {name!r} holds half a character (a lone surrogate)")

    def _check_texts(self, name: str) -> None:
        """Raise `DataError` if a field is not a tuple of str."""
        if (value := getattr(self, name)) is not None:
            arguments.check_sequence(value, f"{name} of task {self.name}", "a tuple of texts", str, DataError)

    @property
    def kind(self) -> Literal["classification", "regression"]:
        """Whether labels are class indices or real numbers."""
        return "regression" if self.label_names is None else "classification"


_ENTAILMENT = ("entailment", "not_entailment")
_THREE_WAY = ("entailment", "neutral", "contradiction")
_S12 = ("sentence1", "sentence2")
_Q12 = ("question1", "question2")
_MNLI = DatasetSpec("mnli", _S12, "gold_label", _THREE_WAY, "MNLI", "mnli", ("premise", "hypothesis"), "matched")
_NOT_EQUIVALENT = ("not_equivalent", "equivalent")

# Wang et al. 2018. Classes are numbered as by GLUE's loaders.
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
    """A name in lower case without punctuation: `STS-B` and `sts_b` become `stsb`."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def plain_label(name: str) -> str:
    """A label's name without capitals and punctuation, in any alphabet."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def look_up(name: str, tasks: Mapping[str, T], spellings: Mapping[str, str]) -> T:
    """The task with a name, in any common spelling.

    Args:
        name: such as `mrpc`, `MRPC`, `sts-b`, `glue/sst2` or `mnli_mismatched`.
        tasks: the tasks by name.
        spellings: other names, plain, with those in `tasks`.

    Raises:
        DataError: there is no such task.
    """
    plain = plain_name(name.lower().removeprefix("glue/"))
    known = {plain_name(key): key for key in tasks} | {key: value for key, value in spellings.items() if value in tasks}
    if plain in known:
        return tasks[known[plain]]
    matches = difflib.get_close_matches(plain, known, n=1)
    hint = f"; did you mean {known[matches[0]]}?" if matches else "."
    raise DataError(f"no task is called {name!r}{hint} Known: {', '.join(tasks)}; {CUSTOM} for your own file")


def split_named(task: DatasetSpec, split: str) -> str:
    """The split's full name in GLUE: `dev` is `validation`, and MNLI's carries the task's section.

    Args:
        task: the task the split belongs to.
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
    """What an example of some tasks has besides texts and label."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What a hash of the examples depends on."""

    @abstractmethod
    def describe(self, arrays: Mapping[str, Any], example: int) -> dict[str, Any]:
        """The fields of a line of `examples.jsonl`.

        Args:
            arrays: as in `outputs.npz`.
            example: the position of the example.
        """


@dataclass(frozen=True, eq=False)
class Examples:
    """Texts with their labels, in the order of their source.

    Args:
        task: the task of the examples.
        ids: one per example: the row number that GLUE's loaders call `idx`, or the id in the source.
        first: the texts, or the first of each pair.
        second: the second of each pair, or None.
        labels: class numbers (int32, -1 where unlabelled) or scores (float32, NaN where unlabelled).
        source: one line saying where they came from.
        split: the part of the task's data.
        content: what else each example has; None if the task has nothing else.
        groups: the part of the data to which each belongs, such as a paradigm, which has scores of its own; or None.

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
        rest = [given for given in (self.second, self.groups, self.content) if given is not None]
        lengths = len(self.ids), len(self.first), len(self.labels)
        if len({*lengths, *map(len, rest)}) != 1:
            second = len(self.first if self.second is None else self.second)
            counts = (*lengths[:2], second, lengths[2])
            raise DataError(f"ids, first, second and labels must have equal numbers; they have {counts}")

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def sha256(self) -> str:
        """A hash of ids, texts and labels; equal for equal data from any source."""
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
        """The lowest and highest rating: the task's, or of these examples if it has none or a rating lies beyond it.

        None of tasks without ratings, and where no example has one.
        """
        rated = self.labels[np.isfinite(self.labels)]
        if self.task.kind != "regression" or not len(rated):
            return None
        low, high = float(rated.min()), float(rated.max())
        known = self.task.scale
        return known if known is not None and known[0] <= low and high <= known[1] else (low, high)

    def take(self, indices: Sequence[int]) -> "Examples":
        """The examples at these positions, in the order given; their task keeps the scale of all ratings.

        Args:
            indices: positions from 0, not ids.
        """
        scale = self.scale
        task = self.task if scale in (None, self.task.scale) else replace(self.task, scale=scale)
        second = self.second and tuple(self.second[i] for i in indices)
        ids, first = tuple(self.ids[i] for i in indices), tuple(self.first[i] for i in indices)
        labels = self.labels[np.asarray(indices, dtype=np.int64)]
        groups = self.groups and tuple(self.groups[i] for i in indices)
        content = self.content and tuple(self.content[i] for i in indices)
        return replace(
            self, task=task, ids=ids, first=first, second=second, labels=labels, groups=groups, content=content
        )

    def head(self, count: int) -> "Examples":
        """The first `count` examples, or all if there are fewer."""
        return self.take(range(min(count, len(self))))


def draw(count: int, size: int, seed: int) -> list[int]:
    """Draw `size` of `count` positions at random without replacement, in ascending order.

    Each position gets a number from Python's `random.random`, the one random stream guaranteed to stay the same across
    versions; the positions with the smallest numbers are drawn.

    Args:
        count: the number of positions.
        size: the number to draw; all are drawn if there are fewer.
        seed: the same seed gives the same draw.

    >>> draw(10, 3, seed=1)
    [0, 8, 9]
    """
    generator = random.Random(seed)
    keys = [generator.random() for _ in range(count)]
    return sorted(sorted(range(count), key=keys.__getitem__)[:size])
