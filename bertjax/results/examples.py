"""Examples of each kind of task as the page shows them: what a value is, and texts with marks on them.

A line of text is a list of pieces, each a text with a mark: what a reader should see in it. Nothing is HTML.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Num

from bertjax.results.contents import Contents

Line = list[tuple[str, str]]  # pieces with their marks
NAME, PLAIN, TRUE, RIGHT, WRONG = "name", "", "true", "right", "wrong"
LONGEST = 500  # characters of a text
AROUND = 40  # characters on each side of an answer


@dataclass(frozen=True)
class Shown:
    """How results show their examples.

    Args:
        saved: the results.
    """

    saved: Contents

    @property
    def predicts(self) -> bool:
        """Whether the largest number of an output is a predicted class, whatever the main metric reads."""
        summary = self.saved.summary
        return summary["outputs"] in ("logits", "choices", "likelihoods") and len(summary["data"]["label_names"]) > 1

    @property
    def value(self) -> str:
        """What a value of an example is called."""
        return "probability" if self.predicts else "output"

    @property
    def note(self) -> str:
        """What a reader must know of that value."""
        return "Probability is that of the example's own label." if self.value == "probability" else ""

    def values(self, outputs: Float[np.ndarray, "outputs ..."]) -> Float[np.ndarray, " examples"]:
        """The value of each example in one run; NaN where an example has no output."""
        if self.predicts:
            return _probabilities(outputs, self.saved.outputs["labels"])
        return outputs.reshape(-1)

    def lines(self, place: int) -> list[Line]:
        """The texts of an example."""
        example = self.saved.examples[place]
        return [[(shorten(example[name]), PLAIN)] for name in ("first", "second") if name in example]

    def change(self, run: int, place: int) -> list[Line]:
        """What an ablation makes of an example, beside its value."""
        return []


class ShownWords(Shown):
    """Texts with masked words; of those whose attention is kept also the best guesses."""

    value = "mean log-probability"

    @property
    def note(self) -> str:
        """What a reader must know of that value."""
        guesses = " Of texts whose attention is kept, the likeliest words are shown." if self._kept else ""
        return f"It is that of the true words.{guesses}"

    def values(self, outputs: Float[np.ndarray, "outputs ..."]) -> Float[np.ndarray, " examples"]:
        """The mean log-probability of the true words."""
        units, examples = self.saved.outputs["units"], self.saved.summary["data"]["examples"]
        counts = np.bincount(units, minlength=examples).astype(np.float64)
        sums = np.bincount(units, outputs[:, 0], minlength=examples)
        return np.divide(sums, counts, out=np.full(examples, np.nan), where=counts > 0)

    @property
    def _kept(self) -> list[int]:
        """The examples whose best guesses are kept."""
        if not self.saved.has_attention or "masked_0" not in self.saved.attention:
            return []
        numbers: list[int] = self.saved.attention["examples"].tolist()
        return numbers

    def lines(self, place: int) -> list[Line]:
        """The text, and where the best guesses are kept a line for each masked word."""
        lines = super().lines(place)
        if place not in self._kept:
            return lines
        return lines + [_guessed(self.saved, self._kept.index(place), 0, word) for word in self._words(place)]

    def change(self, run: int, place: int) -> list[Line]:
        """The best guesses with an ablation, where they are kept."""
        name, kept = self.saved.names[run], self._kept
        runs = self.saved.attention["runs"].tolist() if kept else []
        if place not in kept or name not in runs:
            return []
        return [_guessed(self.saved, kept.index(place), runs.index(name), word) for word in self._words(place)]

    def _words(self, place: int) -> range:
        return range(len(self.saved.attention[f"masked_{self._kept.index(place)}"]))


def _guessed(saved: Contents, sample: int, run: int, word: int) -> Line:
    """The true word at a masked place, and the likeliest ones in a run."""
    arrays = saved.attention
    truth = str(arrays[f"truth_{sample}"][word])
    line: Line = [("ablated" if run else "base", NAME), (truth, TRUE)]
    guesses, chances = (arrays[f"{name}_{sample}"][run, word].tolist() for name in ("guesses", "chances"))
    for guess, chance in zip(guesses, chances, strict=True):
        line.append((f"{guess} {chance:.2f}", RIGHT if guess == truth else PLAIN))
        line.append((" ", PLAIN))
    return line


class ShownPairs(Shown):
    """The two sentences of a pair."""

    value, note = "margin", "The margin is the good form's log-likelihood less the bad one's, in nats."

    def values(self, outputs: Float[np.ndarray, "outputs ..."]) -> Float[np.ndarray, " examples"]:
        """The margins."""
        return np.asarray(outputs[:, 1] - outputs[:, 0])

    def lines(self, place: int) -> list[Line]:
        """The good sentence and the bad one."""
        example = self.saved.examples[place]
        names = (("good", "first"), ("bad", "second"))
        return [[(name, NAME), (shorten(example[key]), PLAIN)] for name, key in names]


class ShownTags(Shown):
    """Sentences with their entities, or with the words whose tags change."""

    value, note = "mean log-probability", "It is that of the true tags. Entities are green where they are right."

    @property
    def _names(self) -> list[str]:
        return list(self.saved.summary["tags"])

    def values(self, outputs: Float[np.ndarray, "outputs ..."]) -> Float[np.ndarray, " examples"]:
        """The mean log-probability of the true tags."""
        return np.asarray(outputs[:, 0])

    def lines(self, place: int) -> list[Line]:
        """The sentence, its true entities, and those that the model finds."""
        example = self.saved.examples[place]
        lines: list[Line] = [[(shorten(example["first"]), PLAIN)]]
        return [*lines, self._found("true", example, None), self._found("found", example, self._tags(None, place))]

    def change(self, run: int, place: int) -> list[Line]:
        """What an ablated model finds."""
        return [self._found("ablated", self.saved.examples[place], self._tags(run, place))]

    def _tags(self, run: int | None, place: int) -> list[str]:
        """The predicted tag of each word, without an ablation or with one."""
        arrays, tags = self.saved.outputs, ["O"] * len(self.saved.examples[place]["words"])
        start, end = np.searchsorted(arrays["units"], [place, place + 1])
        found: Int[np.ndarray, " words"] = arrays["base_tags"] if run is None else arrays["tags"][run]
        for word, number in zip(arrays["words"][start:end].tolist(), found[start:end].tolist(), strict=True):
            tags[word] = self._names[number]
        return tags

    @staticmethod
    def _found(name: str, example: Mapping[str, Any], tags: Sequence[str] | None) -> Line:
        """Spans of words with tags; predicted ones are right or wrong."""
        true = spans_of(example["tags"])
        found = true if tags is None else spans_of(tags)
        line: Line = [(name, NAME)]
        for span in found:
            kind, start, end = span
            mark = TRUE if tags is None else RIGHT if span in true else WRONG
            line.append((f"{' '.join(example['words'][start:end])} ({kind})", mark))
        return line if found else [*line, ("none", PLAIN)]


def spans_of(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Neighbouring words with tags of one type, none of them `O`: type, first word and one past the last.

    >>> spans_of(["B-PER", "I-PER", "O", "B-LOC", "B-LOC"])
    [('PER', 0, 2), ('LOC', 3, 4), ('LOC', 4, 5)]
    >>> spans_of(["I-PER", "E-PER", "E-PER", "I-PER"])
    [('PER', 0, 2), ('PER', 2, 3), ('PER', 3, 4)]
    """
    spans: list[tuple[str, int, int]] = []
    for place, tag in enumerate(tags):
        mark, _, kind = tag.partition("-")
        kind = kind or tag
        if tag == "O":
            continue
        complete = place > 0 and tags[place - 1][:1] in "ELSU"  # the entity of the word before
        if spans and mark in "IEL" and not complete and spans[-1][2] == place and spans[-1][0] == kind:
            spans[-1] = (kind, spans[-1][1], place + 1)
        else:
            spans.append((kind, place, place + 1))
    return spans


class ShownAnswers(Shown):
    """Questions, with the answers in their contexts."""

    value, note = "F1", "Answers are green where they match a true one exactly."

    def values(self, outputs: Float[np.ndarray, "outputs ..."]) -> Float[np.ndarray, " examples"]:
        """The F1 of each answer."""
        return np.asarray(outputs[:, 2])

    def lines(self, place: int) -> list[Line]:
        """The question, the true answers in the context, and the one that the model finds."""
        example, arrays = self.saved.examples[place], self.saved.outputs
        context, answers = example["second"], example["answers"]
        true: Line = [("true", NAME)]
        if answers and answers[0] in context:
            start = context.index(answers[0])
            true += cut_out(context, start, start + len(answers[0]), TRUE, around=LONGEST // 2)
        else:
            true.append((" / ".join(answers) or "no answer", TRUE))
        exact = arrays["base"][place, 1] > 0
        return [[(shorten(example["first"]), PLAIN)], true, self._found("found", place, arrays["base_spans"], exact)]

    def change(self, run: int, place: int) -> list[Line]:
        """What an ablated model answers."""
        arrays = self.saved.outputs
        return [self._found("ablated", place, arrays["spans"][run], arrays["outputs"][run, place, 1] > 0)]

    def _found(self, name: str, place: int, spans: Int[np.ndarray, "examples 2"], exact: Any) -> Line:
        (start, end), mark = spans[place].tolist(), RIGHT if exact else WRONG
        context = self.saved.examples[place]["second"]
        return [(name, NAME), *(cut_out(context, start, end, mark) if start >= 0 else [("no answer", mark)])]


class ShownChoices(Shown):
    """Questions with their choices, the right one marked."""

    def lines(self, place: int) -> list[Line]:
        """What stands before the choices, and these, each with its number."""
        example = self.saved.examples[place]
        choices = [
            [(str(number), NAME), (shorten(text), TRUE if number == example["label"] else PLAIN)]
            for number, text in enumerate(example["choices"])
        ]
        return super().lines(place) + choices


class ShownRankings(Shown):
    """Queries, with what is relevant and what comes first."""

    value, note = "nDCG@10", "The candidate that comes first is green where it is relevant."

    def values(self, outputs: Float[np.ndarray, "outputs ..."]) -> Float[np.ndarray, " examples"]:
        """The nDCG@10 of each query."""
        return np.asarray(outputs[:, 1])

    def lines(self, place: int) -> list[Line]:
        """The query, the most relevant candidate and the one that comes first."""
        example, arrays = self.saved.examples[place], self.saved.outputs
        relevant = [one for one in example["candidates"] if one["relevance"] > 0]
        best = max(relevant, key=lambda one: one["relevance"], default=None)
        text, others = ("none of the candidates", "") if best is None else (best["text"], f" (1 of {len(relevant)})")
        true: Line = [(f"true{others * (len(relevant) > 1)}", NAME), (shorten(text), TRUE)]
        first = self._first("first", place, arrays["base_first"][place], arrays["base_rank"][place])
        return [[(shorten(example["first"]), PLAIN)], true, first]

    def change(self, run: int, place: int) -> list[Line]:
        """What comes first for an ablated model."""
        arrays = self.saved.outputs
        return [self._first("ablated", place, arrays["first"][run, place], arrays["rank"][run, place])]

    def _first(self, name: str, place: int, number: Any, rank: Any) -> Line:
        """The candidate that comes first, and where the first relevant one is if that is another."""
        found = next(one for one in self.saved.examples[place]["candidates"] if one["number"] == number)
        line: Line = [(name, NAME), (shorten(found["text"]), RIGHT if found["relevance"] > 0 else WRONG)]
        return line if rank < 2 else [*line, (f" relevant: place {rank}", PLAIN)]


class ShownLabels(Shown):
    """Texts with sets of labels: true ones, and those that the model finds."""

    value, note = "mean log-likelihood", "It is that of what is true of each label. Right labels are green."

    def values(self, outputs: Float[np.ndarray, "outputs ..."]) -> Float[np.ndarray, " examples"]:
        """The mean log-likelihood of what is true of each label."""
        return np.asarray(outputs[:, 0])

    def lines(self, place: int) -> list[Line]:
        """The texts, the true labels, and those that the model finds."""
        true = self.saved.examples[place].get("labels")
        line: Line = [("true", NAME), *([(name, TRUE) for name in true] if true else [(_lacking(true), PLAIN)])]
        return [*super().lines(place), line, self._found("found", place, self.saved.outputs["base"][place])]

    def change(self, run: int, place: int) -> list[Line]:
        """What an ablated model finds."""
        return [self._found("ablated", place, self.saved.outputs["outputs"][run, place])]

    def _found(self, name: str, place: int, numbers: Float[np.ndarray, " numbers"]) -> Line:
        names, true = self.saved.summary["data"]["label_names"], self.saved.examples[place].get("labels")
        found = [names[label] for label in np.flatnonzero(numbers[3::3] > 0)]
        marks = [PLAIN if true is None else RIGHT if label in true else WRONG for label in found]
        return [(name, NAME), *(zip(found, marks, strict=True) if found else [("none", PLAIN)])]


def _lacking(true: Sequence[str] | None) -> str:
    return "not known" if true is None else "none"


def cut_out(text: str, start: int, end: int, mark: str, around: int = AROUND) -> Line:
    """A part of a text with what stands around it.

    >>> cut_out("the Panthers defense gave up 308 points in all", 29, 32, "true", around=8)
    [('… up ', ''), ('308', 'true'), (' points …', '')]
    """
    first, last = max(0, start - around), min(len(text), end + around)
    first = text.find(" ", first, start) if first and " " in text[first:start] else first
    last = text.rfind(" ", end, last) if last < len(text) and " " in text[end:last] else last
    before, after = ("…" * (first > 0) + text[first:start]), text[end:last] + " …" * (last < len(text))
    return [piece for piece in ((before, PLAIN), (shorten(text[start:end]), mark), (after, PLAIN)) if piece[0]]


def shorten(text: str) -> str:
    """A text as long as the page shows it."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def _probabilities(
    logits: Float[np.ndarray, "examples labels"], labels: Num[np.ndarray, " examples"]
) -> Float[np.ndarray, " examples"]:
    """The probability of each example's label, or of the likeliest label where an example has none."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    probabilities = shifted / shifted.sum(-1, keepdims=True)
    classes = np.nan_to_num(labels.astype(np.float64), nan=-1.0).astype(int)
    column = np.where(classes >= 0, classes, logits.argmax(-1))
    return np.asarray(np.take_along_axis(probabilities, column[:, None], axis=1)[:, 0])


class ShownGradients(Shown):
    """Texts with the loss that gradients predict."""

    value, note = "loss", "It is the example's loss, and what gradients predict of it without the head."

    def values(self, outputs: Float[np.ndarray, "outputs ..."]) -> Float[np.ndarray, " examples"]:
        """The losses."""
        return np.asarray(outputs[:, 0])


class ShownEffects(Shown):
    """Texts with what each contributes to an effect."""

    value, note = "contribution", "It is what the example contributes to the effect, which is the mean of all."

    def values(self, outputs: Float[np.ndarray, "outputs ..."]) -> Float[np.ndarray, " examples"]:
        """What each example contributes to the first effect."""
        return np.asarray(outputs[:, 0])


class ShownRoles(Shown):
    """Texts with how much of a head's attention goes to the previous token."""

    value, note = "sum", "It is the sum over the text's words of their attention to the previous token."

    def values(self, outputs: Float[np.ndarray, "outputs ..."]) -> Float[np.ndarray, " examples"]:
        """The sums of the first role, which that is."""
        return np.asarray(outputs[:, 0])


class ShownPatches(Shown):
    """Clean and corrupted texts with the patched run's score."""

    value, note = "score", "It is the score of the contrast, and what patching makes of it."

    def values(self, outputs: Float[np.ndarray, "outputs ..."]) -> Float[np.ndarray, " examples"]:
        """The scores of the patched runs."""
        return np.asarray(outputs[:, 0])


SHOWN: dict[str, type[Shown]] = {
    "words": ShownWords,
    "likelihoods": ShownPairs,
    "tags": ShownTags,
    "answers": ShownAnswers,
    "choices": ShownChoices,
    "ranking": ShownRankings,
    "scored-ranking": ShownRankings,
    "label-sets": ShownLabels,
    "gradients": ShownGradients,
    "interactions": ShownEffects,
    "shapley": ShownEffects,
    "roles": ShownRoles,
    "patching": ShownPatches,
}


def shown(saved: Contents) -> Shown:
    """How these results show their examples."""
    return SHOWN.get(saved.summary["outputs"], Shown)(saved)
