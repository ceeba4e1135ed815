"""A task's examples as a model reads them, and what is made of what it gives for them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int, Int32, Int64, Num, Shaped

from bertjax.data import Encoding, Tokenizer, batches_by_length, collate
from bertjax.engine import SweepResult
from bertjax.tasks.forms import FORMS, Form
from bertjax.tasks.losses import Objective
from bertjax.tasks.options import Options

Collect = Callable[[Shaped[np.ndarray, "runs texts *numbers"]], "Collected"]


@dataclass(frozen=True)
class Asked:
    """The tokens at which a model is asked for something.

    Args:
        at: tokens of each text; the last again where a text has fewer than others.
        targets: what it is asked for there: the true words' ids, say.
        real: where these are a text's own, not repeated.
        examples: the example to which each text belongs, in ascending order.
    """

    at: Int32[np.ndarray, "texts wanted"]
    targets: Int32[np.ndarray, "texts wanted"]
    real: Bool[np.ndarray, "texts wanted"]
    examples: Int64[np.ndarray, " texts"]

    def __len__(self) -> int:
        return int(self.real.sum())

    @classmethod
    def of_lists(
        cls, places: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], examples: Sequence[int]
    ) -> "Asked":
        """Of lists of unequal length, one for each text, none of them empty."""
        most = max(map(len, places))
        padded = [[[*row, *[row[-1]] * (most - len(row))] for row in rows] for rows in (places, targets)]
        real = np.arange(most)[None] < np.array([*map(len, places)])[:, None]
        return cls(np.array(padded[0], np.int32), np.array(padded[1], np.int32), real, np.array(examples, np.int64))

    def own(self, example: int) -> slice:
        """The texts of an example."""
        return slice(*np.searchsorted(self.examples, [example, example + 1]).tolist())

    @cached_property
    def words(self) -> Int32[np.ndarray, " words"]:
        """What is asked for at each place, one after another."""
        return self.targets[self.real]

    @cached_property
    def places(self) -> Int32[np.ndarray, " words"]:
        """The token of each place in its text."""
        return self.at[self.real]

    @cached_property
    def units(self) -> Int64[np.ndarray, " words"]:
        """The example of each place: the words of a text are no independent examples."""
        return np.repeat(self.examples, self.real.sum(axis=1))

    def of_words(
        self, given: Shaped[np.ndarray, "runs texts wanted *numbers"]
    ) -> Shaped[np.ndarray, "runs words *numbers"]:
        """What was given at each place, without repeated ones, one after another."""
        return given[:, self.real]


@dataclass(frozen=True)
class Collected:
    """What is kept of what a model gave for a task's examples.

    Args:
        outputs: what metrics read.
        details: what else is worth keeping, by name: predicted spans, say.
    """

    outputs: Shaped[np.ndarray, "runs outputs *numbers"]
    details: Mapping[str, Shaped[np.ndarray, "runs ..."]] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskResult(SweepResult):
    """The outcome of a sweep as metrics read it.

    Args:
        details: what else is kept, by name, of each run; those of the base run begin with `base_`.
    """

    details: Mapping[str, Shaped[np.ndarray, "..."]] = field(default_factory=dict)


@dataclass(frozen=True)
class Encoded:
    """Examples as the model reads them.

    Args:
        kind: the name of what the model gives for them (`FORMS`): 'logits' or 'score' (one encoding for each example),
            'similarity' (two: all first texts, then all second), or of another task, whose encodings are as many as
            its `asked` say.
        encodings: the tokenised texts or pairs.
        pad_id: the padding token's id.
        examples: how many examples there are.
        label_order: for logits: column of the model's output for each of the task's labels.
        asked: for tasks that ask at chosen tokens: at which, and for what.
        collect: makes outputs of what the model gives there, or for each encoding.
        labels: of each output, where these are not the examples' own.
        units: the example of each output, where examples have several.
        fixed: what else is kept with the outputs, by name, the same for all runs.
        kept_examples: which of the given examples these are, by number; None for all.
        note: what is to be said of those that were left out.
        tags: names of the tags that a model gives words.
        copies: encodings of each example, where nothing is asked at tokens: all examples' first, then all second ...
        members: the encodings of each example by number, where examples may share some.
        shown: how many of an example's encodings may have their attention kept, the first ones; None for all.
        objective: the loss whose gradients say what a model would need.
    """

    kind: str
    encodings: Sequence[Encoding]
    pad_id: int
    examples: int
    label_order: tuple[int, ...] = ()
    asked: Asked | None = None
    collect: Collect | None = None
    labels: Num[np.ndarray, " outputs"] | None = None
    units: Int[np.ndarray, " outputs"] | None = None
    fixed: Mapping[str, Shaped[np.ndarray, "..."]] = field(default_factory=dict)
    kept_examples: tuple[int, ...] | None = None
    note: str = ""
    tags: tuple[str, ...] = ()
    copies: int = 1
    members: Sequence[Int[np.ndarray, " _"]] | None = None
    shown: int | None = None
    objective: Objective | None = None

    @property
    def form(self) -> Form:
        """What the model gives for them."""
        return FORMS[self.kind]

    @cached_property
    def lengths(self) -> Int32[np.ndarray, " encodings"]:
        """Tokens of each encoding."""
        return np.array([*map(len, self.encodings)], np.int32)

    @cached_property
    def truncated(self) -> int:
        """How many examples lost tokens to the maximum length."""
        if self.asked is not None:
            return len({self.asked.examples[number] for number, text in enumerate(self.encodings) if text.truncated})
        cut = np.array([encoding.truncated for encoding in self.encodings], np.bool_)
        if self.members is not None:
            return sum(bool(cut[numbers].any()) for numbers in self.members)
        return int(cut.reshape(-1, self.examples).any(axis=0).sum())

    @property
    def texts(self) -> list[tuple[Encoding, ...]]:
        """The encodings of each example that the engine runs; one, where tokens are asked or encodings shared."""
        if self.asked is not None or self.members is not None:
            return [(encoding,) for encoding in self.encodings]
        return [
            tuple(self.encodings[number] for number in self.numbers_of(example)) for example in range(self.examples)
        ]

    @property
    def at(self) -> Int32[np.ndarray, "texts wanted"] | None:
        """At which tokens a sweep takes its readout; None for all."""
        return None if self.asked is None else self.asked.at

    @property
    def targets(self) -> Int32[np.ndarray, "texts wanted"] | None:
        """What the readout takes beside the model's output; None for nothing."""
        return None if self.asked is None else self.asked.targets

    def numbers_of(self, example: int) -> tuple[int, ...]:
        """The numbers of the encodings that belong to an example."""
        if self.members is not None:
            return tuple(self.members[example].tolist())
        if self.asked is not None:
            own = self.asked.own(example)
            return tuple(range(own.start, own.stop))
        return tuple(range(example, self.copies * self.examples, self.examples))

    def own_of(self, example: int) -> tuple[int, ...]:
        """Those that no example before has: of all examples each encoding once."""
        numbers = self.numbers_of(example)
        if self.members is None:
            return numbers
        return tuple(number for number in dict.fromkeys(numbers) if self._first_owners[number] == example)

    @cached_property
    def _first_owners(self) -> Int[np.ndarray, " encodings"]:
        """The first example that has each encoding."""
        owners = np.zeros(len(self.encodings), np.int64)
        members = self.members or ()
        for example in reversed(range(len(members))):
            owners[members[example]] = example
        return owners

    def kept_of(self, example: int) -> tuple[int, ...]:
        """Those whose attention may be kept: of several, such as copies in which a word is masked, the first."""
        return self.numbers_of(example)[: 1 if self.asked is not None else self.shown]

    def outputs_of(self, result: SweepResult) -> TaskResult:
        """What metrics read, of what the engine gave: logits in the task's order of labels, words one after another."""
        base, outputs, details = result.base, result.outputs, {}
        if self.collect is not None:
            first, rest = self.collect(base[None]), self.collect(outputs)
            base, outputs = first.outputs[0], rest.outputs
            details = {f"base_{name}": values[0] for name, values in first.details.items()} | dict(rest.details)
        elif self.kind == "logits":
            order = list(self.label_order)
            base, outputs = base[..., order], outputs[..., order]
        return TaskResult(base, outputs, result.ablations, result.attention, result.seconds, details)


def encode_texts(
    tokenizer: Tokenizer, first: Sequence[str], second: Sequence[str] | None, options: Options
) -> Sequence[Encoding]:
    """Tokenised texts or pairs."""
    return tuple(tokenizer.encode(first, second, options.max_length))


def batch_encodings(
    encoded: Encoded, numbers: Sequence[int], batch_size: int, positions: int
) -> list[tuple[Sequence[int], dict[str, np.ndarray]]]:
    """Batches of encodings of similar length: positions within `numbers`, and the model's arguments."""
    lengths = encoded.lengths[np.asarray(numbers)].tolist()
    return [
        (places, collate([encoded.encodings[numbers[place]] for place in places], length, encoded.pad_id))
        for places, length in batches_by_length(lengths, batch_size, max_length=positions)
    ]
