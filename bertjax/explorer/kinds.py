"""The kinds of answers. Each tokenises texts, reads the model's outputs, and computes the quantity of a map."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from bertjax.data import Encoding
from bertjax.engine import Combine
from bertjax.errors import InputError
from bertjax.explorer.messages import Target
from bertjax.explorer.subject import Subject, bucket, texts_of
from bertjax.interventions import Readout, readouts
from bertjax.models import ModelOutput
from bertjax.tasks import cosine

LOG_PROBABILITY = "log-probability"
MOST_MASKS = 8  # masks are padded to a multiple of this


@dataclass(frozen=True)
class Reading:
    """The arguments of a sweep that say how outputs are read.

    Args:
        readout: a function of the model's output.
        combine: a function that combines the readouts of several texts.
        at: the token positions that the readout reads; None for all.
        targets: the second argument of the readout.
    """

    readout: Readout
    combine: Combine | None = None
    at: Int[np.ndarray, "1 positions"] | None = None
    targets: Int[np.ndarray, "1 positions"] | None = None


@dataclass(frozen=True)
class Line:
    """Python code that computes the quantity of a map.

    Args:
        options: the code of each option of `bertjax.sweep`, by the option's name.
        value: an expression of `values`, the outputs of the sweep, `[ablations, *readout]`.
        before: the lines that the expression needs, such as imports.
    """

    options: Mapping[str, str]
    value: str
    before: Sequence[str] = ()


class Kind(ABC):
    """A kind of answer.

    Args:
        subject: the model, and the examples of a task.

    Attributes:
        name: the name of the kind in requests and responses.
        quantity: the name of the quantity that the map follows.
        texts: the number of texts that the model reads.
        samples: texts for a page without a task.
    """

    name: ClassVar[str]
    samples: ClassVar[Sequence[str]] = ("The food was good, but the service was slow.", "The service was slow.")
    quantity: ClassVar[str] = LOG_PROBABILITY
    texts: ClassVar[int | str] = 1

    def __init__(self, subject: Subject):
        self.subject, self.tokenizer = subject, subject.tokenizer
        prompts = subject.prompts
        if prompts is not None:
            self.tokenizer = self.tokenizer.with_prompt(prompts[0])

    @property
    def labels(self) -> list[str]:
        """Names of classes, labels or tags."""
        return []

    def check_texts(self, texts: Sequence[str]) -> None:
        """Raise `InputError` if the number of texts is wrong, or a text is empty."""
        allowed = (1, 2) if self.texts == "1 or 2" else (self.texts,)
        if len(texts) not in allowed:
            raise InputError(f"this model reads {self.texts} text{'s' * (self.texts != 1)}, found {len(texts)}")
        if not all(map(str.strip, texts)):
            raise InputError("a text is empty")

    def encode(self, texts: Sequence[str]) -> tuple[Encoding, ...]:
        """Tokenise the texts into one encoding, or into one for each text if the model reads them separately."""
        pair = [texts[1]] if len(texts) > 1 else None
        return tuple(self.tokenizer.encode([texts[0]], pair, self.subject.longest, word_ids=True))

    def row_length(self, encodings: Sequence[Encoding]) -> int:
        """The tokens of a row that holds the texts."""
        return bucket(sum(map(len, encodings)), self.subject.longest * len(encodings))

    def first_texts(self) -> list[str]:
        """The texts that the page shows first: the first example of the task, or sample texts."""
        if self.subject.examples is not None and len(self.subject.examples):
            texts = self.example(0)[0]
            if len(texts) == 2 or self.texts != 2:
                return texts
        return list(self.samples)[: 2 if self.texts == 2 else 1]

    @abstractmethod
    def first_target(self, answer: Mapping[str, Any]) -> Target:
        """The target of the first map, from the answer to the first texts."""

    def example(self, row: int) -> tuple[list[str], str | None]:
        """The texts of an example of the task, and its label or None."""
        examples = self.subject.examples
        assert examples is not None
        label, names = examples.labels[row], examples.task.label_names
        if not np.isfinite(label) or (names and label < 0):
            return texts_of(examples, row), None
        return texts_of(examples, row), names[int(label)] if names else f"{label:g}"

    @abstractmethod
    def answer_reading(self, encodings: Sequence[Encoding]) -> Reading | None:
        """How the answer is read; None if there is nothing to read."""

    @abstractmethod
    def answer(
        self, texts: Sequence[str], encodings: Sequence[Encoding], values: Shaped[np.ndarray, "..."] | None
    ) -> dict[str, Any]:
        """The answer as a response to the page, from a readout."""

    @abstractmethod
    def map_reading(self, encodings: Sequence[Encoding], target: Target) -> Reading:
        """How the quantity of a map is read. Raises `InputError` if the texts do not have the target."""

    @abstractmethod
    def quantities(
        self, encodings: Sequence[Encoding], target: Target, values: Shaped[np.ndarray, "runs ..."]
    ) -> Float[np.ndarray, " runs"]:
        """The quantity of each run, from its readout."""

    @abstractmethod
    def line(self, encodings: Sequence[Encoding], target: Target) -> Line:
        """Python code that computes the quantity."""


def log_softmax(logits: Float[np.ndarray, "*batch labels"]) -> Float[np.ndarray, "*batch labels"]:
    """Log-probabilities, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    found: Float[np.ndarray, "*batch labels"] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found


def log_sigmoid(logits: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Log-probabilities of independent labels, in float64."""
    found: Float[np.ndarray, "..."] = -np.logaddexp(0.0, -logits.astype(np.float64))
    return found


def guesses(output: ModelOutput, targets: Int[Array, "batch masks"]) -> Float[Array, "batch masks guess 2"]:
    """`readouts.guesses` of all masks in one call, so that array shapes do not depend on the number of masks."""
    return readouts.guesses(output, targets)


class Words(Kind):
    """The most likely words at each [MASK]."""

    name = "words"

    def first_texts(self) -> list[str]:
        """A text with a mask."""
        return (
            super().first_texts()
            if self.subject.examples is not None
            else [f"The cat {self.tokenizer.mask_token} on the mat."]
        )

    def first_target(self, answer: Mapping[str, Any]) -> Target:
        """The most likely word."""
        masks = answer["masks"]
        return Target(mask=0, word=masks[0]["guesses"][0]["word"] if masks else None)

    def example(self, row: int) -> tuple[list[str], str | None]:
        """The text of an example with its longest one-piece word masked; that word is the label."""
        assert self.subject.examples is not None
        text, mask = self.subject.examples.first[row], self.tokenizer.mask_token
        if mask in text:
            return [text], None
        (encoding,) = self.tokenizer.encode([text], None, self.subject.longest, word_ids=True)
        pieces = Counter(encoding.word_ids)
        spans = [
            (start, end)
            for word, (start, end) in zip(encoding.word_ids, encoding.offsets, strict=True)
            if word is not None and pieces[word] == 1 and text[start:end].isalpha()
        ]
        if not spans:
            return [text], None
        start, end = max(spans, key=lambda span: span[1] - span[0])
        return [text[:start] + mask + text[end:]], text[start:end]

    def _masks(self, encodings: Sequence[Encoding]) -> list[int]:
        mask = self.tokenizer.mask_token_id
        return [index for index, token in enumerate(encodings[0].input_ids) if token == mask]

    def answer_reading(self, encodings: Sequence[Encoding]) -> Reading | None:
        """Read all [MASK]s."""
        masks = self._masks(encodings)
        if not masks:
            return None
        size = -(-len(masks) // MOST_MASKS) * MOST_MASKS
        at = np.array([[*masks, *[masks[-1]] * (size - len(masks))]], np.int32)
        return Reading(guesses, at=at, targets=np.zeros_like(at))

    def answer(
        self, texts: Sequence[str], encodings: Sequence[Encoding], values: Shaped[np.ndarray, "..."] | None
    ) -> dict[str, Any]:
        """The most likely words, with probabilities."""
        masks = self._masks(encodings)
        found = []
        for index, mask in enumerate(masks):
            assert values is not None
            ids, logs = values[index].T
            words = self.tokenizer.pieces([int(word) for word in ids])
            chances = np.exp(logs.astype(np.float64)).tolist()
            listed = [{"word": word, "probability": chance} for word, chance in zip(words, chances, strict=True)]
            found.append({"token": mask, "guesses": listed})
        return {"masks": found}

    def map_reading(self, encodings: Sequence[Encoding], target: Target) -> Reading:
        """Read the word at one [MASK]."""
        position, word = self._target(encodings, target)
        return Reading(readouts.log_probabilities, at=np.array([[position]]), targets=np.array([[word]]))

    def _target(self, encodings: Sequence[Encoding], target: Target) -> tuple[int, int]:
        masks, index = self._masks(encodings), target.mask or 0
        if index >= len(masks):
            raise InputError(f"the text has {len(masks)} {self.tokenizer.mask_token}, so it has no mask {index}")
        if not isinstance(target.word, str) or not target.word.strip():
            raise InputError("name a word for the mask")
        return masks[index], self._word_id(target.word)

    def _word_id(self, word: str) -> int:
        """The id of a piece of the vocabulary, or of a word that is one piece."""
        unknown = self.tokenizer.pieces([self.tokenizer.unk_token_id])[0]
        exact = self.tokenizer.piece_id(word)
        if exact is not None:
            return exact
        word = word.strip()
        special = self.tokenizer.special_tokens(pairs=False)
        for text in (f" {word}", word):
            (encoding,) = self.tokenizer.with_prompt("").encode([text])
            if len(encoding) == special + 1:
                (inner,) = (
                    index
                    for index, (token, offsets) in enumerate(zip(encoding.tokens, encoding.offsets, strict=True))
                    if offsets != (0, 0) or token == unknown
                )
                if encoding.tokens[inner] != unknown:
                    return encoding.input_ids[inner]
        raise InputError(f"{word!r} is not one word of the model's vocabulary")

    def quantities(
        self, encodings: Sequence[Encoding], target: Target, values: Shaped[np.ndarray, "runs ..."]
    ) -> Float[np.ndarray, " runs"]:
        """The log-probability of the word."""
        return values[:, 0].astype(np.float64)

    def line(self, encodings: Sequence[Encoding], target: Target) -> Line:
        """The log-probability of the word."""
        position, word = self._target(encodings, target)
        options = {"at": f"[[{position}]]", "targets": f"[[{word}]]"}
        return Line({"readout": "bertjax.readouts.log_probabilities", **options}, "values[:, 0]")


class OneOutput(Kind):
    """A kind of answer whose map reads the same output as the answer: one for the text or pair."""

    texts: ClassVar[int | str] = "1 or 2"
    _reading: ClassVar[Reading]

    def answer_reading(self, encodings: Sequence[Encoding]) -> Reading | None:
        """Read the output."""
        return self._reading

    def map_reading(self, encodings: Sequence[Encoding], target: Target) -> Reading:
        """Read the output."""
        return self._reading


class Classes(OneOutput):
    """Probabilities of classes."""

    name = "classes"

    def first_target(self, answer: Mapping[str, Any]) -> Target:
        """The most likely class."""
        chances = [one["probability"] for one in answer[self.name]]
        return Target(label=chances.index(max(chances)))

    _log: Callable[[np.ndarray], np.ndarray] = staticmethod(log_softmax)
    _reading = Reading(readouts.logits)

    @property
    def labels(self) -> list[str]:
        """Names of the classes, in the model's order."""
        return [name for _, name in sorted(self.subject.model.config.id2label.items())]

    def answer(
        self, texts: Sequence[str], encodings: Sequence[Encoding], values: Shaped[np.ndarray, "..."] | None
    ) -> dict[str, Any]:
        """The probability of each class."""
        assert values is not None
        chances = np.exp(type(self)._log(values)).tolist()
        pairs = zip(self.labels, chances, strict=True)
        return {self.name: [{"name": name, "probability": chance} for name, chance in pairs]}

    def map_reading(self, encodings: Sequence[Encoding], target: Target) -> Reading:
        """Read the logits."""
        self._check(target)
        return self._reading

    def _check(self, target: Target) -> int:
        if target.label is None or target.label >= len(self.labels):
            raise InputError(f"the model has the classes 0 to {len(self.labels) - 1}: choose one")
        return target.label

    def quantities(
        self, encodings: Sequence[Encoding], target: Target, values: Shaped[np.ndarray, "runs ..."]
    ) -> Float[np.ndarray, " runs"]:
        """The log-probability of a class."""
        found: Float[np.ndarray, " runs"] = type(self)._log(values)[:, self._check(target)]
        return found

    def line(self, encodings: Sequence[Encoding], target: Target) -> Line:
        """The log-probability of a class."""
        label = self._check(target)
        value = f"values[:, {label}] - scipy.special.logsumexp(values, axis=1)"
        return Line({"readout": "bertjax.readouts.logits"}, value, ["import scipy.special"])


class Labels(Classes):
    """Probabilities of independent labels."""

    name = "labels"
    _log = staticmethod(log_sigmoid)

    def line(self, encodings: Sequence[Encoding], target: Target) -> Line:
        """The log-probability of a label."""
        return Line({"readout": "bertjax.readouts.logits"}, f"-np.logaddexp(0, -values[:, {self._check(target)}])")


class NextSentence(Classes):
    """Whether the second text follows the first."""

    texts = 2
    samples = ("A man is eating.", "He has a piece of bread.")

    @property
    def labels(self) -> list[str]:
        """Names of the two classes."""
        return ["follows", "random"]


class Score(OneOutput):
    """The score of a text or pair."""

    name = quantity = "score"
    _reading = Reading(readouts.score)
    _named = "bertjax.readouts.score"

    def first_target(self, answer: Mapping[str, Any]) -> Target:
        """No target is needed."""
        return Target()

    def answer(
        self, texts: Sequence[str], encodings: Sequence[Encoding], values: Shaped[np.ndarray, "..."] | None
    ) -> dict[str, Any]:
        """The score."""
        assert values is not None
        return {"score": float(values.reshape(()))}

    def quantities(
        self, encodings: Sequence[Encoding], target: Target, values: Shaped[np.ndarray, "runs ..."]
    ) -> Float[np.ndarray, " runs"]:
        """The score."""
        return values.reshape(len(values)).astype(np.float64)

    def line(self, encodings: Sequence[Encoding], target: Target) -> Line:
        """The score."""
        return Line({"readout": self._named}, "values.reshape(len(values))")


class Rating(Score):
    """The output of a regression, without an activation."""

    _reading = Reading(readouts.logits)
    _named = "bertjax.readouts.logits"


class Similarity(Score):
    """The cosine similarity of the sentence embeddings of two texts."""

    name = quantity = "similarity"
    texts = 2
    _reading = Reading(readouts.sentence_embedding, combine=cosine)
    samples = ("A man is eating a piece of bread.", "Someone is having a meal.")

    def encode(self, texts: Sequence[str]) -> tuple[Encoding, ...]:
        """Tokenise both texts, each with its prompt."""
        prompts = self.subject.prompts
        tokenizers = [self.tokenizer] * len(texts)
        if prompts is not None:
            tokenizers = [
                self.subject.tokenizer.with_prompt(prompts[0 if index == 0 else -1]) for index in range(len(texts))
            ]
        pairs = zip(tokenizers, texts, strict=True)
        return tuple(one.encode([text], None, self.subject.longest, word_ids=True)[0] for one, text in pairs)

    def answer(
        self, texts: Sequence[str], encodings: Sequence[Encoding], values: Shaped[np.ndarray, "..."] | None
    ) -> dict[str, Any]:
        """The similarity."""
        assert values is not None
        return {"similarity": float(values)}

    def line(self, encodings: Sequence[Encoding], target: Target) -> Line:
        """The similarity."""
        options = {"readout": "bertjax.readouts.sentence_embedding", "combine": "cosine"}
        return Line(options, "values", ["from bertjax.tasks import cosine"])
