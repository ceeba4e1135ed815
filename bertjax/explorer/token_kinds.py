"""The kinds of answers that many tokens of a text hold: entities, and spans of a context."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from bertjax.data import Encoding
from bertjax.errors import InputError
from bertjax.explorer.kinds import Kind, Line, Reading, log_softmax
from bertjax.explorer.messages import Target
from bertjax.interventions import readouts
from bertjax.models import ModelOutput
from bertjax.tasks import TAG_OF_SCHEME, spans_of

MOST_SPANS = 5
OUTSIDE = "O"


def token_logits(output: ModelOutput) -> Float[Array, "batch token labels"]:
    """`readouts.logits` of all tokens in one call, so that array shapes do not depend on the number of tokens."""
    return readouts.logits(output)


def span_logits(output: ModelOutput) -> Float[Array, "batch token 2"]:
    """`readouts.span_logits` of all tokens in one call."""
    return readouts.span_logits(output)


def all_tokens(encodings: Sequence[Encoding], length: int) -> Int[np.ndarray, "1 positions"]:
    """The positions of all tokens; the last position is repeated up to a length."""
    return np.minimum(np.arange(length), len(encodings[0]) - 1)[None].astype(np.int32)


class Entities(Kind):
    """Tags of words, and the entities that the tags mark. A word has the tag of its first piece."""

    name = "entities"
    samples = ("Marie Curie was born in Warsaw.",)

    def first_target(self, answer: Mapping[str, Any]) -> Target:
        """The tag of the first word."""
        words = answer["words"]
        return Target(word=0, tag=words[0]["tag"]) if words else Target()

    @property
    def labels(self) -> list[str]:
        """Names of the tags."""
        return [name for _, name in sorted(self.subject.model.config.id2label.items())]

    def words(self, encodings: Sequence[Encoding]) -> list[tuple[int, int, int]]:
        """The first token of each word, and the word's first character and one past its last."""
        encoding, found = encodings[0], dict[int, tuple[int, int, int]]()
        for index, (word, (start, end)) in enumerate(zip(encoding.word_ids, encoding.offsets, strict=True)):
            if word is not None and end > start:
                first, begin, _ = found.get(word, (index, start, end))
                found[word] = first, begin, end
        return list(found.values())

    def answer_reading(self, encodings: Sequence[Encoding]) -> Reading | None:
        """Read the logits of all tokens."""
        return Reading(token_logits, at=all_tokens(encodings, self.row_length(encodings)))

    def answer(
        self, texts: Sequence[str], encodings: Sequence[Encoding], values: Shaped[np.ndarray, "..."] | None
    ) -> dict[str, Any]:
        """Words with the most likely tags, and entities."""
        assert values is not None
        words, names, tags = self.words(encodings), self.labels, []
        listed = []
        for first, start, end in words:
            logs = log_softmax(values[first])
            tags.append(names[int(logs.argmax())])
            chance = float(np.exp(logs.max()))
            listed.append(
                {"start": start, "end": end, "text": texts[0][start:end], "tag": tags[-1], "probability": chance}
            )
        found = []
        if all(map(TAG_OF_SCHEME.fullmatch, names)):
            for kind, first, last in spans_of(tags):
                start, end = words[first][1], words[last - 1][2]
                found.append({"start": start, "end": end, "text": texts[0][start:end], "type": kind})
        return {"words": listed, "entities": found}

    def map_reading(self, encodings: Sequence[Encoding], target: Target) -> Reading:
        """Read the first piece of one word."""
        position, _ = self._target(encodings, target)
        return Reading(readouts.logits, at=np.array([[position]], np.int32))

    def _target(self, encodings: Sequence[Encoding], target: Target) -> tuple[int, int]:
        words = self.words(encodings)
        if not isinstance(target.word, int) or target.word >= len(words):
            raise InputError(f"the text has {len(words)} words: choose one by its index")
        if target.tag not in self.labels:
            raise InputError(f"the model has no tag {target.tag!r}")
        return words[target.word][0], self.labels.index(target.tag)

    def quantities(
        self, encodings: Sequence[Encoding], target: Target, values: Shaped[np.ndarray, "runs ..."]
    ) -> Float[np.ndarray, " runs"]:
        """The log-probability of the tag."""
        return log_softmax(values[:, 0])[:, self._target(encodings, target)[1]]

    def line(self, encodings: Sequence[Encoding], target: Target) -> Line:
        """The log-probability of the tag."""
        position, tag = self._target(encodings, target)
        value = f"values[:, 0, {tag}] - scipy.special.logsumexp(values[:, 0], axis=1)"
        options = {"readout": "bertjax.readouts.logits", "at": f"[[{position}]]"}
        return Line(options, value, ["import scipy.special"])


class Answer(Kind):
    """The best spans of a context as answers to a question.

    The probability of a span is a softmax over all spans of at most `readouts.LONGEST_ANSWER` tokens and over no
    answer. The score of no answer is the score of [CLS].
    """

    name = "answer"
    texts = 2
    samples = ("Where was Marie Curie born?", "Marie Curie was born in Warsaw in 1867.")

    def first_target(self, answer: Mapping[str, Any]) -> Target:
        """The best span."""
        span = answer["spans"][0]
        return Target(start=span["start"], end=span["end"])

    def context(self, encodings: Sequence[Encoding]) -> list[int]:
        """The tokens of the context."""
        encoding = encodings[0]
        words = zip(encoding.word_ids, encoding.segments, strict=True)
        return [index for index, (word, segment) in enumerate(words) if segment == 1 and word is not None]

    def answer_reading(self, encodings: Sequence[Encoding]) -> Reading | None:
        """Read the logits of all tokens."""
        if not self.context(encodings):
            raise InputError("the context has no token: shorten the question")
        return Reading(span_logits, at=all_tokens(encodings, self.row_length(encodings)))

    def scores(
        self, encodings: Sequence[Encoding], values: Shaped[np.ndarray, "runs token 2"]
    ) -> Float[np.ndarray, "runs spans_and_none"]:
        """Log-probabilities of all spans, by first token and length; the last entry is no answer."""
        tokens = self.context(encodings)
        exact = values.astype(np.float64)
        start, end = exact[:, tokens, 0], exact[:, tokens, 1]
        width = min(readouts.LONGEST_ANSWER, len(tokens))
        padded = np.pad(end, ((0, 0), (0, width)), constant_values=-np.inf)
        ends = np.stack([padded[:, shift : shift + len(tokens)] for shift in range(width)], axis=-1)
        spans = (start[..., None] + ends).reshape(len(values), -1)
        nothing = exact[:, 0].sum(axis=-1, keepdims=True)
        return log_softmax(np.concatenate([spans, nothing], axis=1))

    def answer(
        self, texts: Sequence[str], encodings: Sequence[Encoding], values: Shaped[np.ndarray, "..."] | None
    ) -> dict[str, Any]:
        """The best spans, and the probability that there is no answer."""
        assert values is not None
        tokens, offsets = self.context(encodings), encodings[0].offsets
        logs = self.scores(encodings, values[None])[0]
        width = min(readouts.LONGEST_ANSWER, len(tokens))
        best = [int(index) for index in np.argsort(-logs[:-1], kind="stable")[:MOST_SPANS] if np.isfinite(logs[index])]
        spans = []
        for index in best:
            first, shift = divmod(index, width)
            start, end = offsets[tokens[first]][0], offsets[tokens[first + shift]][1]
            chance = float(np.exp(logs[index]))
            spans.append({"start": start, "end": end, "text": texts[1][start:end], "probability": chance})
        return {"spans": spans, "no_answer": float(np.exp(logs[-1]))}

    def map_reading(self, encodings: Sequence[Encoding], target: Target) -> Reading:
        """Read the logits of all tokens."""
        self._target(encodings, target)
        return Reading(span_logits, at=all_tokens(encodings, self.row_length(encodings)))

    def _target(self, encodings: Sequence[Encoding], target: Target) -> int:
        """The index of a span among the scores."""
        tokens, offsets = self.context(encodings), encodings[0].offsets
        starts = [offsets[token][0] for token in tokens]
        ends = [offsets[token][1] for token in tokens]
        width = min(readouts.LONGEST_ANSWER, len(tokens))
        if target.start not in starts or target.end not in ends:
            raise InputError("the span does not begin and end at tokens of the context")
        first, last = starts.index(target.start), len(ends) - 1 - ends[::-1].index(target.end)
        if not 0 <= last - first < width:
            raise InputError(f"a span has 1 to {readouts.LONGEST_ANSWER} tokens")
        return first * width + last - first

    def quantities(
        self, encodings: Sequence[Encoding], target: Target, values: Shaped[np.ndarray, "runs ..."]
    ) -> Float[np.ndarray, " runs"]:
        """The log-probability of the span."""
        return self.scores(encodings, values)[:, self._target(encodings, target)]

    def line(self, encodings: Sequence[Encoding], target: Target) -> Line:
        """The log-probability of the span."""
        tokens, index = self.context(encodings), self._target(encodings, target)
        first, shift = divmod(index, min(readouts.LONGEST_ANSWER, len(tokens)))
        before = [
            "import scipy.special",
            "",
            "def log_probabilities(values):  # of a span, among all spans and no answer",
            f"    context = values[:, {tokens[0]}:{tokens[-1] + 1}].astype(float)",
            "    spans = context[:, :, None, 0] + context[:, None, :, 1]  # by first and last token",
            "    length = np.arange(spans.shape[1]) - np.arange(spans.shape[1])[:, None] + 1",
            f"    spans[:, (length < 1) | (length > {readouts.LONGEST_ANSWER})] = -np.inf",
            "    everything = np.concatenate([spans.reshape(len(spans), -1), values[:, :1].sum(axis=2)], axis=1)",
            f"    return spans[:, {first}, {first + shift}] - scipy.special.logsumexp(everything, axis=1)",
        ]
        return Line({"readout": "bertjax.readouts.span_logits"}, "log_probabilities(values)", before)
