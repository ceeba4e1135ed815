"""The subject of an explorer: a model with its tokenizer, and the examples of a task if there is one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Float

from bertjax.data import Encoding, Examples, Tokenizer, collate
from bertjax.errors import InputError, some_of
from bertjax.interventions import Change, every_head, mean_head_outputs, parse_head
from bertjax.jobs import Job
from bertjax.models import PretrainedModel
from bertjax.tasks import as_task

# Tokenises the texts of an example.
Encode = Callable[[Sequence[str]], Sequence[Encoding]]
# Lengths of rows: texts of nearby lengths share compiled programs.
BUCKETS = (12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)
MEAN_EXAMPLES, MEAN_BATCH = 256, 16  # the largest number of examples for mode 'mean', and the size of a batch


def bucket(tokens: int, most: int) -> int:
    """The length to which a text is padded.

    Args:
        tokens: the number of tokens of the text, at most `most`.
        most: the largest length that the model reads.

    >>> bucket(21, 512), bucket(70, 75), bucket(600, 4096)
    (24, 75, 1024)
    """
    fitting = next((length for length in BUCKETS if length >= tokens), -(-tokens // BUCKETS[-1]) * BUCKETS[-1])
    return min(fitting, most)


@dataclass(frozen=True)
class Subject:
    """A model with its tokenizer, and the examples of a task if there is one.

    Args:
        model: a model with a task head, or a sentence embedder.
        name: the name or path of the model.
        tokenizer: the tokenizer of the model.
        task: the name of the task; None without a task.
        examples: the examples of the task; None without a task.
        max_length: the largest number of tokens of a text; None for the limit of model and tokenizer.
        prompts: the prompts of the first and second texts, or one prompt for both; None for the tokenizer's prompt.
        loading: lines of Python that define `model` and `tokenizer`, and for a task also `study`.
    """

    model: PretrainedModel
    name: str
    tokenizer: Tokenizer
    task: str | None = None
    examples: Examples | None = None
    max_length: int | None = None
    prompts: Sequence[str] | None = None
    loading: Sequence[str] = field(default_factory=tuple)

    @cached_property
    def longest(self) -> int:
        """The largest number of tokens of a text (pair)."""
        limits = (self.max_length, self.model.config.max_tokens, getattr(self.model, "max_length", None))
        return min(limit for limit in (*limits, self.tokenizer.max_length) if limit is not None)

    @cached_property
    def heads(self) -> tuple[tuple[int, int], ...]:
        """The heads that the model has."""
        return every_head(self.model.config)

    @property
    def modes(self) -> list[str]:
        """The available modes of ablation. Mode 'mean' needs the examples of a task."""
        return ["uniform", "zero", *(["mean"] if self.examples is not None else [])]

    def parse_heads(self, names: Sequence[str]) -> frozenset[tuple[int, int]]:
        """Heads from their names. Raises `OverrideError` if the model does not have a head."""
        return frozenset(parse_head(name, self.model.config) for name in names)

    def check_mode(self, mode: str) -> None:
        """Raise `InputError` if a mode is not available."""
        if mode not in self.modes:
            raise InputError(f"mode {mode!r} needs the examples of a task: give --task")

    def changes(self, heads: frozenset[tuple[int, int]], mode: str) -> tuple[Change, ...]:
        """The changes of an ablation of heads."""
        return tuple(Change(layer, head, mode) for layer, head in sorted(heads))

    def means_for(self, mode: str, encode: Encode) -> Float[np.ndarray, "layers heads head_dim"] | None:
        """The mean outputs of the heads for mode 'mean', computed at the first call; None for other modes."""
        if mode != "mean":
            return None
        if "means" not in self.__dict__:
            self.__dict__["means"] = mean_head_outputs(self.model, self.mean_batches(encode))
        means: Float[np.ndarray, "layers heads head_dim"] = self.__dict__["means"]
        return means

    def mean_batches(self, encode: Encode) -> list[dict[str, np.ndarray]]:
        """Batches of the first `MEAN_EXAMPLES` examples, for the mean outputs of the heads."""
        assert self.examples is not None
        rows = range(min(MEAN_EXAMPLES, len(self.examples)))
        encodings = [encoding for row in rows for encoding in encode(texts_of(self.examples, row))]
        length = bucket(max(map(len, encodings)), self.longest)
        blank = Encoding((0,), (0,), ("",), ((0, 0),), False)
        batches = []
        for start in range(0, len(encodings), MEAN_BATCH):
            chunk = encodings[start : start + MEAN_BATCH]
            batch = collate([*chunk, *[blank] * (MEAN_BATCH - len(chunk))], length, self.tokenizer.pad_id)
            batch["attention_mask"][len(chunk) :] = 0
            batches.append(batch)
        return batches


def texts_of(examples: Examples, row: int) -> list[str]:
    """The texts of an example."""
    second = examples.second
    return [examples.first[row], *([] if second is None else [second[row]])]


def subject_of(job: Job, loading: Sequence[str]) -> Subject:
    """The subject of a study.

    Args:
        job: the model and examples of the study.
        loading: lines of Python that define the study, its model and its tokenizer.
    """
    model, settings = job.model, job.settings
    task = as_task(job.examples.task)
    limits = model.config.max_tokens, job.tokenizer.max_length or model.config.max_tokens
    length = settings.max_length or task.default_length(model, min(limits))
    return Subject(
        model, str(settings.model), job.tokenizer, task.name, job.examples, length, settings.prompts, tuple(loading)
    )


def subject_of_model(model: PretrainedModel, loading: str) -> Subject:
    """The subject of a model without a task.

    Args:
        model: the model, with its tokenizer.
        loading: the expression of Python that loads the model.

    Raises:
        InputError: the model has no tokenizer, or some of its parameters were initialised at random.
    """
    if model.tokenizer is None:
        raise InputError(f"{model.name} has no tokenizer: add its files to the directory")
    if model.new_parameters:
        raise InputError(
            f"{model.name} lacks {some_of(model.new_parameters)}, so its answers would be random: give a checkpoint "
            "that was trained for a task"
        )
    return Subject(model, model.name, model.tokenizer, loading=(f"model = {loading}", "tokenizer = model.tokenizer"))
