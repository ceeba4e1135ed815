"""A task's examples as a model reads them, and what metrics read of the model's outputs for them.

How examples become encodings has three shapes: `TextEncodings` (one or several for each example, whose outputs are of
the whole text), `TokenEncodings` (outputs at chosen tokens) and `SharedEncodings` (several examples share some).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Int32, Int64, Num, Shaped

from bertjax.data import Encoding, batches_by_length, collate
from bertjax.engine import SweepResult
from bertjax.formatting import count_of
from bertjax.tasks.outputs import Form, Objective, OutputSpec


@dataclass(frozen=True)
class TargetPositions:
    """The tokens at which outputs are read, and the target at each.

    Args:
        at: tokens of each text; the last one is repeated where a text has fewer than others.
        targets: the target at each, such as the id of the true word.
        real: which of these are not repeated.
        examples: the example of each text, in ascending order.
    """

    at: Int32[np.ndarray, "texts wanted"]
    targets: Int32[np.ndarray, "texts wanted"]
    real: Bool[np.ndarray, "texts wanted"]
    examples: Int64[np.ndarray, " texts"]

    def __len__(self) -> int:
        return int(self.real.sum())

    @classmethod
    def of_lists(
        cls, tokens: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], examples: Sequence[int]
    ) -> "TargetPositions":
        """From lists of unequal length, one for each text, none of them empty."""
        most = max(map(len, tokens))
        padded = [[[*row, *[row[-1]] * (most - len(row))] for row in rows] for rows in (tokens, targets)]
        real = np.arange(most)[None] < np.array([*map(len, tokens)])[:, None]
        return cls(np.array(padded[0], np.int32), np.array(padded[1], np.int32), real, np.array(examples, np.int64))

    def texts_of(self, example: int) -> slice:
        """The texts of an example."""
        return slice(*np.searchsorted(self.examples, [example, example + 1]).tolist())

    @cached_property
    def true(self) -> Int32[np.ndarray, " positions"]:
        """The target of each position."""
        return self.targets[self.real]

    @cached_property
    def tokens(self) -> Int32[np.ndarray, " positions"]:
        """The token of each position in its text."""
        return self.at[self.real]

    @cached_property
    def units(self) -> Int64[np.ndarray, " positions"]:
        """The example of each position: the words of a text are not independent."""
        return np.repeat(self.examples, self.real.sum(axis=1))

    def flatten(
        self, values: Shaped[np.ndarray, "runs texts wanted *numbers"]
    ) -> Shaped[np.ndarray, "runs positions *numbers"]:
        """The values at each position, without repeated ones."""
        return values[:, self.real]


@dataclass(frozen=True)
class TaskOutputs:
    """What is kept of a model's outputs for a task's examples.

    Args:
        outputs: what metrics read.
        details: further arrays by name, such as predicted spans.
    """

    outputs: Shaped[np.ndarray, "runs outputs *numbers"]
    details: Mapping[str, Shaped[np.ndarray, "runs ..."]] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskResult(SweepResult):
    """The outcome of a sweep as metrics read it.

    Args:
        details: further arrays of each run by name; those of the base run begin with `base_`.
    """

    details: Mapping[str, Shaped[np.ndarray, "..."]] = field(default_factory=dict)


@dataclass(frozen=True)
class EncodedDataset(ABC):
    """Examples as a model reads them.

    Args:
        form: the outputs of the model for them.
        encodings: the tokenised texts or pairs.
        pad_id: the padding token's id.
        examples: the number of examples.
        labels: one for each output.
        dropped: the examples that cannot be read, by their position among all.
        note: why these were dropped; empty if none was.
    """

    form: OutputSpec
    encodings: Sequence[Encoding]
    pad_id: int
    examples: int
    labels: Num[np.ndarray, " outputs"]
    dropped: Sequence[int] = field(default=(), kw_only=True)
    note: str = field(default="", kw_only=True)

    @property
    @abstractmethod
    def texts(self) -> list[tuple[Encoding, ...]]:
        """The encodings that the engine runs together: those that `form.combine` takes."""

    @abstractmethod
    def numbers_of(self, example: int) -> tuple[int, ...]:
        """The indices of an example's encodings."""

    def own_of(self, example: int) -> tuple[int, ...]:
        """Those that no earlier example has: over all examples, each encoding once."""
        return self.numbers_of(example)

    def kept_of(self, example: int) -> tuple[int, ...]:
        """Those whose attention may be kept."""
        return self.numbers_of(example)

    @property
    def read_form(self) -> Form:
        """The form, which says what the engine reads."""
        assert isinstance(self.form, Form)
        return self.form

    @property
    def at(self) -> Int32[np.ndarray, "texts wanted"] | None:
        """The tokens at which the engine reads outputs; None for outputs of whole texts."""
        return None

    @property
    def targets(self) -> Int32[np.ndarray, "texts wanted"] | None:
        """The targets that the readout takes; None if it takes none."""
        return None

    @property
    def units(self) -> Int[np.ndarray, " outputs"] | None:
        """The example of each output; None if each example has one output."""
        return None

    @property
    def objective(self) -> Objective | None:
        """The loss whose gradients are taken; None if there is none."""
        return None

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of each output's numbers; empty for logits and single values."""
        return self.form.numbers

    @property
    def zeros(self) -> Float[np.ndarray, "outputs ..."]:
        """Outputs of one run that are all 0."""
        return np.zeros((len(self.labels), len(self.numbers)) if self.numbers else (len(self.labels),))

    @property
    def arrays(self) -> Mapping[str, Shaped[np.ndarray, "..."]]:
        """Arrays that are saved beside the outputs, the same for all runs."""
        return {}

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What `summary.json` says of these outputs."""
        return {}

    @property
    def counted(self) -> str:
        """The number of positions in words, such as `12 masked words`; empty if outputs are of whole texts."""
        return ""

    @property
    def best_guesses(self) -> TargetPositions | None:
        """The positions at which the most likely words are worth showing; None if there are none."""
        return None

    @cached_property
    def lengths(self) -> Int32[np.ndarray, " encodings"]:
        """Tokens of each encoding."""
        return np.array([*map(len, self.encodings)], np.int32)

    @cached_property
    def truncated(self) -> int:
        """The number of examples that lost tokens to the maximum length."""
        cut = [encoding.truncated for encoding in self.encodings]
        return sum(any(cut[number] for number in self.numbers_of(example)) for example in range(self.examples))

    def collect(self, values: Shaped[np.ndarray, "runs texts *numbers"]) -> TaskOutputs:
        """What metrics read, from what the engine kept of each text."""
        return TaskOutputs(values)

    def outputs_of(self, result: SweepResult) -> TaskResult:
        """What metrics read, from the outcome of a sweep."""
        base, rest = self.collect(result.base[None]), self.collect(result.outputs)
        details = {f"base_{name}": values[0] for name, values in base.details.items()} | dict(rest.details)
        return TaskResult(base.outputs[0], rest.outputs, result.ablations, result.attention, result.seconds, details)


@dataclass(frozen=True)
class TextEncodings(EncodedDataset):
    """Examples with one encoding each, or several: all examples' first ones, then all second ones, and so on.

    Args:
        copies: the number of encodings of each example.
    """

    copies: int = 1

    @property
    def texts(self) -> list[tuple[Encoding, ...]]:
        """The encodings of each example."""
        return [
            tuple(self.encodings[number] for number in self.numbers_of(example)) for example in range(self.examples)
        ]

    def numbers_of(self, example: int) -> tuple[int, ...]:
        """One index for each copy."""
        return tuple(range(example, self.copies * self.examples, self.examples))


@dataclass(frozen=True)
class TokenEncodings(EncodedDataset):
    """Examples with outputs at chosen tokens of one or several encodings each.

    Args:
        positions: the tokens and their targets.
    """

    positions: TargetPositions

    @property
    def texts(self) -> list[tuple[Encoding, ...]]:
        """Each encoding by itself."""
        return [(encoding,) for encoding in self.encodings]

    def numbers_of(self, example: int) -> tuple[int, ...]:
        """Neighbouring indices."""
        texts = self.positions.texts_of(example)
        return tuple(range(texts.start, texts.stop))

    def kept_of(self, example: int) -> tuple[int, ...]:
        """The first: others are copies in which another word is masked, or windows."""
        return self.numbers_of(example)[:1]

    @property
    def at(self) -> Int32[np.ndarray, "texts wanted"]:
        """The tokens of each text."""
        return self.positions.at

    @property
    def targets(self) -> Int32[np.ndarray, "texts wanted"]:
        """The targets of each text."""
        return self.positions.targets

    @property
    def counted(self) -> str:
        """The number of positions, by what the form calls them."""
        return count_of(len(self.positions), self.form.counted) if self.form.counted else ""


@dataclass(frozen=True)
class SharedEncodings(EncodedDataset):
    """Examples of which several may share an encoding.

    Args:
        members: the indices of each example's encodings.
        shown: the number of an example's first encodings whose attention may be kept.
    """

    members: Sequence[Int[np.ndarray, " _"]]
    shown: int

    @property
    def texts(self) -> list[tuple[Encoding, ...]]:
        """Each encoding by itself."""
        return [(encoding,) for encoding in self.encodings]

    def numbers_of(self, example: int) -> tuple[int, ...]:
        """The example's members."""
        return tuple(self.members[example].tolist())

    def own_of(self, example: int) -> tuple[int, ...]:
        """Those that no earlier example has."""
        return tuple(number for number in dict.fromkeys(self.numbers_of(example)) if self._owners[number] == example)

    def kept_of(self, example: int) -> tuple[int, ...]:
        """The first ones."""
        return self.numbers_of(example)[: self.shown]

    @cached_property
    def truncated(self) -> int:
        """The number of examples that lost tokens to the maximum length."""
        cut = np.array([encoding.truncated for encoding in self.encodings], np.bool_)
        return sum(bool(cut[numbers].any()) for numbers in self.members)

    @cached_property
    def _owners(self) -> Int[np.ndarray, " encodings"]:
        """The first example that has each encoding."""
        owners = np.zeros(len(self.encodings), np.int64)
        for example in reversed(range(self.examples)):
            owners[self.members[example]] = example
        return owners


def batch_encodings(
    encoded: EncodedDataset, numbers: Sequence[int], batch_size: int, positions: int
) -> list[tuple[Sequence[int], dict[str, np.ndarray]]]:
    """Batches of encodings of similar length: positions within `numbers`, and the model's arguments."""
    lengths = encoded.lengths[np.asarray(numbers)].tolist()
    return [
        (places, collate([encoded.encodings[numbers[place]] for place in places], length, encoded.pad_id))
        for places, length in batches_by_length(lengths, batch_size, max_length=positions)
    ]
