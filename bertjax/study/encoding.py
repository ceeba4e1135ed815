"""A task's examples as a model reads them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Int32

from bertjax.data import MASKED, Encoding, Examples, Task, Tokenizer, batches_by_length, collate
from bertjax.engine import SharedEncodings
from bertjax.errors import ConfigError, InputError, some_of
from bertjax.formatting import count_of
from bertjax.machine import memory_left
from bertjax.model import (
    BertForMaskedLM,
    BertForPreTraining,
    BertForSentenceEmbedding,
    BertForSequenceClassification,
    PretrainedModel,
)
from bertjax.study.words import Wanted, mask_words, name_unknown

# What a model gives for an example: logits of labels, a score, the similarity of its two texts, or numbers of words.
Kind: TypeAlias = Literal["logits", "score", "similarity", "words"]


@dataclass(frozen=True)
class Encoded:
    """Examples as the model reads them.

    Args:
        kind: 'logits' or 'score' (one encoding for each example), 'similarity' (two: all first texts, then all
            second), or 'words' (as many as its `wanted` say).
        encodings: the tokenised texts or pairs; of several processes each tokenises its share.
        pad_id: the padding token's id.
        examples: how many examples there are.
        label_order: for logits: column of the model's output for each of the task's labels.
        wanted: for words: which are masked and asked for.
    """

    kind: Kind
    encodings: Sequence[Encoding]
    pad_id: int
    examples: int
    label_order: tuple[int, ...] = ()
    wanted: Wanted | None = None

    @cached_property
    def lengths(self) -> Int32[np.ndarray, " encodings"]:
        """Tokens of each encoding."""
        return (
            self.encodings.lengths
            if isinstance(self.encodings, SharedEncodings)
            else np.array([*map(len, self.encodings)], np.int32)
        )

    @cached_property
    def truncated(self) -> int:
        """How many examples lost tokens to the maximum length."""
        if self.wanted is not None:
            return len({self.wanted.examples[number] for number, text in enumerate(self.encodings) if text.truncated})
        if isinstance(self.encodings, SharedEncodings):
            cut = self.encodings.truncated
        else:
            cut = np.array([encoding.truncated for encoding in self.encodings], np.bool_)
        return int(cut.reshape(-1, self.examples).any(axis=0).sum())

    @property
    def texts(self) -> list[tuple[Encoding, ...]]:
        """The encodings of each example that the engine runs: of words each encoding is one."""
        if self.wanted is not None:
            return [(encoding,) for encoding in self.encodings]
        if isinstance(self.encodings, SharedEncodings):
            return self.encodings.texts_of(range(self.examples))
        return [
            tuple(self.encodings[number] for number in self.numbers_of(example)) for example in range(self.examples)
        ]

    @property
    def at(self) -> Int32[np.ndarray, "texts wanted"] | None:
        """At which tokens a sweep takes its readout; None for all."""
        return None if self.wanted is None else self.wanted.at

    @property
    def targets(self) -> Int32[np.ndarray, "texts wanted"] | None:
        """What the readout takes beside the model's output; None for nothing."""
        return None if self.wanted is None else self.wanted.targets

    def numbers_of(self, example: int) -> tuple[int, ...]:
        """The numbers of the encodings that belong to an example."""
        if self.wanted is not None:
            return tuple(np.flatnonzero(self.wanted.examples == example).tolist())
        return (example, example + self.examples) if self.kind == "similarity" else (example,)

    def kept_of(self, example: int) -> tuple[int, ...]:
        """Those whose attention may be kept: of the copies of a text in which each word is masked alone, the first."""
        numbers = self.numbers_of(example)
        return numbers if self.wanted is None else numbers[:1]


def encode_examples(
    model: PretrainedModel,
    tokenizer: Tokenizer,
    examples: Examples,
    max_length: int | None = None,
    *,
    prompts: Sequence[str] | None = None,
    seed: int = 0,
    every_word: bool = False,
    together: bool = False,
    memory: int | None = None,
) -> Encoded:
    """Tokenise examples for a model.

    Args:
        model: a `BertForSequenceClassification`, `BertForSentenceEmbedding`, or for masked words one with a masked-LM
            head.
        max_length: tokens after which a text (pair) is cut; default what model and tokenizer say, and for classifiers
            that are no cross-encoders of sentence-transformers at most 128, as GLUE's reference scripts do.
        prompts: what is put before the first and the second texts, by names of the tokenizer's or as texts
            (`Tokenizer.with_prompt`); one for both; None for the tokenizer's own.
        seed: of the draw of words that are masked.
        every_word: mask each word by itself, in place of drawn ones together.
        together: each of the processes that were joined tokenises its share; all call this.
        memory: bytes that this process may hold while it tokenises; None for most of what is free.

    Raises:
        ConfigError: the model has no outputs that the task's metrics could read.
        InputError: the maximum length is beyond the model's positions, the tokenizer's ids are beyond its vocabulary,
            processes were given different texts, or there is too little memory.
    """
    length = _choose_length(model, tokenizer, examples, max_length)
    kind, order = _kind_of_outputs(model, examples)
    tokenizer, first, second = _with_prompts(model, tokenizer, examples, prompts)
    if every_word and kind != "words":
        raise InputError(f"--every-word masks words, which {examples.task.name} does not: leave it out")
    if kind == "words":
        if together:
            raise InputError(f"{examples.task.name} runs in one process: leave --distributed out")
        if prompts is not None:
            raise InputError(
                f"--prompts stand before texts, and {examples.task.name} asks for all words: leave them out"
            )
        whole = tokenizer.encode(name_unknown(tokenizer, first), None, length, room=memory_left(memory))
        masked, wanted = mask_words(tokenizer, whole, seed=seed, every_word=every_word)
        return Encoded(kind, masked, tokenizer.pad_id, len(examples), wanted=wanted)
    if together:
        encodings: Sequence[Encoding] = SharedEncodings(tokenizer, first, second, length, len(examples), memory)
    else:
        encodings = tuple(tokenizer.encode(first, second, length, room=memory_left(memory)))
    return Encoded(kind, encodings, tokenizer.pad_id, len(examples), order)


def _kind_of_outputs(model: PretrainedModel, examples: Examples) -> tuple[Kind, tuple[int, ...]]:
    """What a model gives for each example, and which of its logits stands for each label.

    Raises:
        ConfigError: nothing that the task's metrics could read.
    """
    task = examples.task
    if task.masked:
        if isinstance(model, BertForMaskedLM | BertForPreTraining):
            return "words", ()
        raise ConfigError(
            f"{model.class_name} has no masked-LM head, which {task.name} asks for words: {_what_it_can_do(model)}"
        )
    if isinstance(model, BertForSentenceEmbedding):
        if examples.second is None:
            raise ConfigError(
                f"a sentence embedder scores pairs, but {task.name} has single texts: give a model that was "
                "fine-tuned on it"
            )
        return "similarity", ()
    if not isinstance(model, BertForSequenceClassification):
        raise ConfigError(f"{model.class_name} has no output for {task.name}: {_what_it_can_do(model)}")
    if is_regression(model) and (_is_cross_encoder(model) or task.kind == "classification"):
        return "score", ()
    return "logits", label_order(model.config.id2label, task)


def _what_it_can_do(model: PretrainedModel) -> str:
    """Which tasks fit a model, as the end of a message."""
    if isinstance(model, BertForMaskedLM | BertForPreTraining):
        return f"--task {MASKED} measures it; give a classifier or a sentence embedder for other tasks"
    if isinstance(model, BertForSentenceEmbedding):
        return "it measures similarities: give a task of pairs"
    if isinstance(model, BertForSequenceClassification):
        labels = count_of(model.config.num_labels, "label")
        return f"it is a classifier of {labels}: give the task that it was fine-tuned on"
    return "give a checkpoint of a classifier, of sentence-transformers, or with a masked-LM head"


def _with_prompts(
    model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, prompts: Sequence[str] | None
) -> tuple[Tokenizer, Sequence[str], Sequence[str] | None]:
    """The tokenizer, and the texts as it takes them: a sentence embedder's one after another, with their prompts.

    Raises:
        InputError: no such prompt, or two where both texts are read as one.
    """
    if not isinstance(model, BertForSentenceEmbedding):
        if prompts is not None and len(prompts) > 1:
            name = model.class_name
            raise InputError(f"{name} reads a pair as one text, whose prompt stands before the first: give one prompt")
        return (tokenizer if prompts is None else tokenizer.with_prompt(prompts[0])), examples.first, examples.second
    second_texts = examples.second or ()
    if prompts is None:
        return tokenizer, [*examples.first, *second_texts], None
    before = [tokenizer.with_prompt(prompt).prompt for prompt in prompts]
    first, second = before[0], before[-1]
    texts = [*(first + text for text in examples.first), *(second + text for text in second_texts)]
    return tokenizer.with_prompt(""), texts, None


def _is_cross_encoder(model: PretrainedModel) -> bool:
    """Whether a classifier is one of sentence-transformers, which says what becomes of its logits."""
    return model.config.score_activation is not None


def is_regression(model: PretrainedModel) -> bool:
    """Whether a model has one output for each text or pair: a number."""
    return isinstance(model, BertForSequenceClassification) and model.config.num_labels == 1


def _choose_length(model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, max_length: int | None) -> int:
    """Tokens after which a text (pair) is cut. Raises `InputError` where that or the tokenizer does not fit."""
    positions = model.config.max_tokens
    length = max_length or getattr(model, "max_length", None) or _default_length(model, tokenizer)
    if length > positions:
        raise InputError(f"max_length {length} is more than the {positions} tokens that the model takes")
    if tokenizer.vocab_size > model.config.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model only {model.config.vocab_size}: "
            "they do not belong together"
        )
    pairs = not isinstance(model, BertForSentenceEmbedding) and examples.second is not None
    if length <= (special := tokenizer.special_tokens(pairs)):
        raise InputError(f"max_length {length} leaves no room for a text beside {special} special tokens")
    return length


def _default_length(model: PretrainedModel, tokenizer: Tokenizer) -> int:
    """Where none is given: for models of sentence-transformers all that tokenizer and model take, as there."""
    most = min(model.config.max_tokens, tokenizer.max_length or model.config.max_tokens)
    return most if isinstance(model, BertForSentenceEmbedding) or _is_cross_encoder(model) else min(128, most)


def label_order(id2label: Mapping[int, str], task: Task) -> tuple[int, ...]:
    """Which of the model's outputs stands for each label of the task.

    Models name their labels; some checkpoints number them otherwise than GLUE does. Where the names are the
    task's own, they decide; where they are LABEL_0, LABEL_1 ..., GLUE's order is assumed.

    Raises:
        ConfigError: the model has another number of labels, or other names.
    """
    wanted = task.label_names or ("score",)
    names = tuple(id2label[number] for number in sorted(id2label))
    if len(names) != len(wanted):
        raise ConfigError(
            f"the model has {count_of(len(names), 'label')}, but {task.name} has {len(wanted)}: {some_of(wanted)}"
        )
    generic = tuple(f"LABEL_{number}" for number in range(len(names)))
    if task.label_names is None or names in (generic, wanted):
        return tuple(range(len(wanted)))
    of_model, of_task = [plain_label(name) for name in names], [plain_label(name) for name in wanted]
    if len(set(of_task)) < len(of_task) or sorted(of_model) != sorted(of_task):
        raise ConfigError(
            f"the model's labels {some_of(names)} are not {task.name}'s {some_of(wanted)}: "
            "name them alike in the model's config.json (id2label)"
        )
    return tuple(of_model.index(name) for name in of_task)


def plain_label(name: str) -> str:
    """A label's name without capitals and punctuation, in any alphabet."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def batch_encodings(
    encoded: Encoded, numbers: Sequence[int], batch_size: int, positions: int
) -> list[tuple[Sequence[int], dict[str, np.ndarray]]]:
    """Batches of encodings of similar length: positions within `numbers`, and the model's arguments."""
    lengths = encoded.lengths[np.asarray(numbers)].tolist()
    return [
        (places, collate([encoded.encodings[numbers[place]] for place in places], length, encoded.pad_id))
        for places, length in batches_by_length(lengths, batch_size, max_length=positions)
    ]
