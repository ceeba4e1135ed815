"""Encoded data sets: the examples of a task as a model reads them, and their outputs as metrics read them.

There are three kinds: `TextEncodings` (one or several encodings for each example, with outputs of whole texts),
`TokenEncodings` (outputs at target positions) and `SharedEncodings` (examples share encodings).
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
        at: the target tokens of each text; the last is repeated if a text has fewer than others.
        targets: the target at each token, such as the id of the true word.
        real: False for repeated tokens.
        examples: the example of each text, in ascending order.
    """

    at: Int32[np.ndarray, "texts targets"]
    targets: Int32[np.ndarray, "texts targets"]
    real: Bool[np.ndarray, "texts targets"]
    examples: Int64[np.ndarray, " texts"]

    def __len__(self) -> int:
        return int(self.real.sum())

    @classmethod
    def of_lists(
        cls, tokens: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], examples: Sequence[int]
    ) -> "TargetPositions":
        """Pad lists of unequal length, one for each text; no list may be empty.

        Args:
            tokens: the token positions of each text.
            targets: the target at each of these positions.
            examples: the index of the example of each text.
        """
        most = max(map(len, tokens))
        padded = [[[*row, *[row[-1]] * (most - len(row))] for row in rows] for rows in (tokens, targets)]
        real = np.arange(most)[None] < np.array([*map(len, tokens)])[:, None]
        return cls(np.array(padded[0], np.int32), np.array(padded[1], np.int32), real, np.array(examples, np.int64))

    def texts_of(self, example: int) -> slice:
        """The indices of an example's texts.

        Args:
            example: the index of the example.
        """
        return slice(*np.searchsorted(self.examples, [example, example + 1]).tolist())

    @cached_property
    def true(self) -> Int32[np.ndarray, " positions"]:
        """The target at each position."""
        return self.targets[self.real]

    @cached_property
    def tokens(self) -> Int32[np.ndarray, " positions"]:
        """The token of each position, as its index in the text."""
        return self.at[self.real]

    @cached_property
    def units(self) -> Int64[np.ndarray, " positions"]:
        """The example of each position, which is the unit of resampling."""
        return np.repeat(self.examples, self.real.sum(axis=1))

    def flatten(
        self, values: Shaped[np.ndarray, "runs texts targets *numbers"]
    ) -> Shaped[np.ndarray, "runs positions *numbers"]:
        """The values at each position, without repeated tokens.

        Args:
            values: values at padded positions, `[runs, texts, targets, ...]`.
        """
        return values[:, self.real]


@dataclass(frozen=True)
class TaskOutputs:
    """The outputs of a task for several runs.

    Args:
        outputs: the outputs that metrics read.
        details: further arrays by name, such as predicted spans.
    """

    outputs: Shaped[np.ndarray, "runs outputs *numbers"]
    details: Mapping[str, Shaped[np.ndarray, "runs ..."]] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskResult(SweepResult):
    """The result of a sweep with the outputs of the task.

    Args:
        base: outputs without ablation, `[examples, ...]`.
        outputs: outputs with each ablation, `[ablations, examples, ...]`.
        ablations: the ablations, in the order of `outputs`.
        attention: the form of attention of the sweep.
        seconds: the duration of the sweep, without loading.
        details: further arrays of each run by name; names of arrays of the base run begin with `base_`.
    """

    details: Mapping[str, Shaped[np.ndarray, "..."]] = field(default_factory=dict)


@dataclass(frozen=True)
class EncodedDataset(ABC):
    """The examples of a task as a model reads them.

    Args:
        form: the specification of the model's outputs.
        encodings: the tokenised texts or pairs.
        pad_id: the id of the padding token.
        examples: the number of examples.
        labels: the label of each output.
        dropped: the indices of examples that could not be encoded.
        note: why examples were dropped; empty if none was.
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
        """Tuples of encodings that the engine runs together, as arguments of `form.combine`."""

    @abstractmethod
    def numbers_of(self, example: int) -> tuple[int, ...]:
        """The indices of an example's encodings.

        Args:
            example: the index of the example.
        """

    def own_of(self, example: int) -> tuple[int, ...]:
        """The indices of an example's encodings that no earlier example has.

        Args:
            example: the index of the example.
        """
        return self.numbers_of(example)

    def kept_of(self, example: int) -> tuple[int, ...]:
        """The indices of an example's encodings whose attention may be kept.

        Args:
            example: the index of the example.
        """
        return self.numbers_of(example)

    @property
    def read_form(self) -> Form:
        """The form, with its readout."""
        assert isinstance(self.form, Form)
        return self.form

    @property
    def at(self) -> Int32[np.ndarray, "texts targets"] | None:
        """The tokens at which outputs are read; None for outputs of whole texts."""
        return None

    @property
    def targets(self) -> Int32[np.ndarray, "texts targets"] | None:
        """The targets for the readout; None if it needs none."""
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
        """Outputs of one run, all 0."""
        return np.zeros((len(self.labels), len(self.numbers)) if self.numbers else (len(self.labels),))

    @property
    def arrays(self) -> Mapping[str, Shaped[np.ndarray, "..."]]:
        """Arrays that are saved with the outputs and are equal for all runs."""
        return {}

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Keys of `summary.json` that describe the outputs."""
        return {}

    @property
    def counted(self) -> str:
        """The number of positions, such as `12 masked words`; empty for outputs of whole texts."""
        return ""

    @property
    def best_guesses(self) -> TargetPositions | None:
        """The positions at which the page shows the most likely words; None for no positions."""
        return None

    @cached_property
    def lengths(self) -> Int32[np.ndarray, " encodings"]:
        """The number of tokens of each encoding."""
        return np.array([*map(len, self.encodings)], np.int32)

    @cached_property
    def truncated(self) -> int:
        """The number of examples with truncated texts."""
        cut = [encoding.truncated for encoding in self.encodings]
        return sum(any(cut[index] for index in self.numbers_of(example)) for example in range(self.examples))

    def collect(self, values: Shaped[np.ndarray, "runs texts *numbers"]) -> TaskOutputs:
        """Compute the outputs of the task from the values of the readout.

        Args:
            values: results of the readout for each text, `[runs, texts, ...]`.
        """
        return TaskOutputs(values)

    def outputs_of(self, result: SweepResult) -> TaskResult:
        """Compute the outputs of the task from the result of a sweep.

        Args:
            result: the result of `engine.sweep`.
        """
        base, rest = self.collect(result.base[None]), self.collect(result.outputs)
        details = {f"base_{name}": values[0] for name, values in base.details.items()} | dict(rest.details)
        return TaskResult(base.outputs[0], rest.outputs, result.ablations, result.attention, result.seconds, details)


@dataclass(frozen=True)
class TextEncodings(EncodedDataset):
    """Examples with one or several encodings: the first encodings of all examples, then all second ones, and so on.

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
        """The index of each copy."""
        return tuple(range(example, self.copies * self.examples, self.examples))


@dataclass(frozen=True)
class TokenEncodings(EncodedDataset):
    """Examples with outputs at target positions of one or several encodings.

    Args:
        positions: the target positions.
    """

    positions: TargetPositions

    @property
    def texts(self) -> list[tuple[Encoding, ...]]:
        """Each encoding as a tuple."""
        return [(encoding,) for encoding in self.encodings]

    def numbers_of(self, example: int) -> tuple[int, ...]:
        """Consecutive indices."""
        texts = self.positions.texts_of(example)
        return tuple(range(texts.start, texts.stop))

    def kept_of(self, example: int) -> tuple[int, ...]:
        """The first encoding; others are copies with other masked words, or windows."""
        return self.numbers_of(example)[:1]

    @property
    def at(self) -> Int32[np.ndarray, "texts targets"]:
        """The target tokens of each text."""
        return self.positions.at

    @property
    def targets(self) -> Int32[np.ndarray, "texts targets"]:
        """The targets of each text."""
        return self.positions.targets

    @property
    def counted(self) -> str:
        """The number of positions, with the noun of the form."""
        return count_of(len(self.positions), self.form.counted) if self.form.counted else ""


@dataclass(frozen=True)
class SharedEncodings(EncodedDataset):
    """Examples that share encodings.

    Args:
        members: the indices of each example's encodings.
        shown: attention may be kept of this many first encodings of an example.
    """

    members: Sequence[Int[np.ndarray, " _"]]
    shown: int

    @property
    def texts(self) -> list[tuple[Encoding, ...]]:
        """Each encoding as a tuple."""
        return [(encoding,) for encoding in self.encodings]

    def numbers_of(self, example: int) -> tuple[int, ...]:
        """The example's members."""
        return tuple(self.members[example].tolist())

    def own_of(self, example: int) -> tuple[int, ...]:
        """The indices of encodings that no earlier example has."""
        return tuple(number for number in dict.fromkeys(self.numbers_of(example)) if self._owners[number] == example)

    def kept_of(self, example: int) -> tuple[int, ...]:
        """The first encodings."""
        return self.numbers_of(example)[: self.shown]

    @cached_property
    def truncated(self) -> int:
        """The number of examples with truncated texts."""
        cut = np.array([encoding.truncated for encoding in self.encodings], np.bool_)
        return sum(bool(cut[members].any()) for members in self.members)

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
    """Batches of encodings of similar length: indices into `numbers`, and the model's arguments.

    Args:
        encoded: the encoded examples.
        numbers: the indices of the encodings.
        batch_size: the number of encodings in a batch.
        positions: the largest number of tokens that the model reads.
    """
    lengths = encoded.lengths[np.asarray(numbers)].tolist()
    return [
        (indices, collate([encoded.encodings[numbers[index]] for index in indices], length, encoded.pad_id))
        for indices, length in batches_by_length(lengths, batch_size, max_length=positions)
    ]
