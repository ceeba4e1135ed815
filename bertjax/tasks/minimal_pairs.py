"""Minimal pairs: does a model find the good form of a sentence more likely than the bad one?

By pseudo-log-likelihoods: each piece of a sentence is masked in turn, and the log-probabilities of the true ones are
added (Salazar et al. 2020); `within-word` masks also the pieces that follow in the same word, which would otherwise
reveal a word of several pieces (Kauf and Ivanova 2023). Or, for agreement, by the log-probabilities of two forms at the
one position where the sentences differ, masked (Goldberg 2019).

BLiMP's files (Warstadt et al. 2020) are JSONL with `sentence_good`, `sentence_bad` and the paradigm as `UID`; a
directory holds a file for each paradigm. Any file with two such columns is read, also with `good` and `bad`. A template
marks a position by `[MASK]`, `<mask>` or `***mask***` (as in Goldberg 2019), beside columns `good` and `bad`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from bertjax.data import SUFFIXES, Encoding, Examples, Source, Table, Tokenizer, brief, is_saved_dataset, read_table
from bertjax.errors import DataError, some_of
from bertjax.formatting import count_of
from bertjax.interventions import readouts
from bertjax.models import PretrainedModel
from bertjax.paths import is_directory, listing
from bertjax.results import NAME, PLAIN, Display, Line, shorten
from bertjax.statistics import ratios
from bertjax.tasks.encoded import TargetPositions, TaskOutputs, TokenEncodings
from bertjax.tasks.masked_words import OF_WORDS, PLL, WITHIN_WORD, hide, rest_of_word, words_of
from bertjax.tasks.outputs import Form, Graded, Objective, cross_entropy
from bertjax.tasks.task import EncodeArguments, Task, TaskOptions

PAIRS, AGREEMENT = "minimal-pairs", "agreement"
GOOD = "cross-entropy of the good form, of two whose logits are their log-likelihoods"
FORMS_OF_PAIRS = ("bad", "good")  # of equally likely ones the first is predicted, which is then wrong
# What may stand for the masked word in a file.
MARKS = ("[MASK]", "<mask>", "***mask***")
USUAL = (("sentence_good", "sentence_bad"), ("good", "bad"))
TEMPLATES = ("sentence", "template", "text")
GROUPS = ("UID", "paradigm", "phenomenon", "group", "condition")
NUMBER = "pairID"  # counts a paradigm's pairs from 0 in BLiMP


class PairsDisplay(Display):
    """The two sentences of a pair."""

    value, note = "margin", "The margin is the good form's log-likelihood less the bad one's, in nats."

    def values(self, outputs: Float[np.ndarray, "outputs ..."]) -> Float[np.ndarray, " examples"]:
        """The margins."""
        return np.asarray(outputs[:, 1] - outputs[:, 0])

    def lines(self, example: int) -> list[Line]:
        """The good sentence and the bad one."""
        row = self.saved.examples[example]
        names = (("good", "first"), ("bad", "second"))
        return [[(name, NAME), (shorten(row[key]), PLAIN)] for name, key in names]


LIKELIHOODS = Form(
    "likelihoods",
    readouts.log_probabilities,
    called="log-likelihoods",
    counted="masked word",
    numbers=ratios.LIKELIHOODS,
    predicts=True,
    display=PairsDisplay,
)


@dataclass(frozen=True, kw_only=True)
class MinimalPairsOptions(TaskOptions):
    """How sentences are scored.

    Args:
        pll: as in `MaskedWordsOptions`.
    """

    pll: PLL = "original"


@dataclass(frozen=True)
class PairTask(Task):
    """Pairs of a good and a bad sentence."""

    models = OF_WORDS
    needs = "masked-LM head"
    forms = (LIKELIHOODS,)
    texts, texts_called = (2,), "pairs of texts, the good one first: texts=[(good, bad), ...]"

    def read_table(self, table: Table, source: Source) -> Examples:
        """Pairs of a table."""
        return _of_tables([table], table.path, self, source.text_columns)

    def read_path(self, path: Path, source: Source) -> Examples:
        """Pairs of a file, or of all files of a directory in the order of their names."""
        if not is_directory(path) or is_saved_dataset(path):
            return super().read_path(path, source)
        files = [file for file in listing(path) if file.name.endswith(SUFFIXES) and ".txt" not in file.name]
        if not files:
            raise DataError(f"{path}: holds no file of pairs for {self.name}: .jsonl or .tsv")
        return _of_tables([read_table(file, self) for file in files], path, self, source.text_columns)

    def advice_on_directory(self, path: Path) -> str:
        """To name a single file."""
        return "give a file"


@dataclass(frozen=True)
class MinimalPairs(PairTask):
    """Pairs scored by the pseudo-log-likelihoods of both sentences."""

    options = MinimalPairsOptions
    files = "a file of sentence_good and sentence_bad, or a directory such as BLiMP's"

    def encode(
        self, model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, arguments: EncodeArguments
    ) -> "EncodedPairs":
        """Both sentences of each pair, a copy for each piece that is masked.

        Pairs that are truncated before they differ, or have a sentence without words, are dropped.

        Raises:
            DataError: all are.
        """
        assert isinstance(arguments.options, MinimalPairsOptions)
        within_word = arguments.options.pll == WITHIN_WORD
        copies, left_out = _Copies(), _LeftOut()
        starts, equal = list[int](), list[bool]()
        sentences = _sentences(tokenizer, examples, arguments.max_length, within_word)
        for example, both in enumerate(zip(*sentences, strict=True)):
            words = [words_of(tokenizer, sentence, unknown=True) for sentence in both]
            if not all(words):
                left_out.wordless.append(examples.ids[example])
            elif _cut_alike(examples, example, *both):
                left_out.cut += 1
            else:
                equal.append(both[0].input_ids == both[1].input_ids)
                for sentence, tokens in zip(both, words, strict=True):
                    starts.append(len(copies.texts))
                    for token in tokens:
                        hidden = rest_of_word(sentence, token) if within_word else [token]
                        copies.add(hide(tokenizer, sentence, hidden), [token], [sentence.input_ids[token]])
                copies.end(example)
        if not copies.kept:
            raise DataError(f"no pair can be scored: {left_out.note()}")
        return EncodedPairs(
            LIKELIHOODS,
            *copies.common(tokenizer, examples),
            dropped=copies.dropped(examples),
            note=left_out.note(),
            starts=starts,
            equal=equal,
        )


@dataclass(frozen=True)
class Agreement(PairTask):
    """Pairs scored by the log-probabilities of the two forms in which they differ."""

    files = "a file of templates with good and bad, or of sentence_good and sentence_bad"

    def encode(
        self, model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, arguments: EncodeArguments
    ) -> "EncodedForms":
        """The sentence of each pair without the word in which its forms differ.

        Pairs that are truncated before they differ, that differ elsewhere too, or in words of several pieces, are
        dropped.

        Raises:
            DataError: all are.
        """
        copies, left_out = _Copies(), _LeftOut()
        sentences = _sentences(tokenizer, examples, arguments.max_length, within_word=False)
        for example, (bad, good) in enumerate(zip(*sentences, strict=True)):
            token = differing_piece(bad, good)
            if _cut_alike(examples, example, bad, good) or (token is not None and _is_cut(tokenizer, bad, good, token)):
                left_out.cut += 1
            elif bad.input_ids == good.input_ids:
                left_out.alike += 1
            elif token is None:
                left_out.several += 1
            else:
                forms = [bad.input_ids[token], good.input_ids[token]]
                copies.add(hide(tokenizer, good, [token]), [token] * 2, forms)
                copies.end(example)
        if not copies.kept:
            reasons = left_out.note()
            raise DataError(f"no pair has forms that differ in a single piece of the tokenizer's: {reasons}")
        common = copies.common(tokenizer, examples)
        return EncodedForms(LIKELIHOODS, *common, dropped=copies.dropped(examples), note=left_out.note())


_COLUMNS, _METRICS = ("sentence_good", "sentence_bad"), ("accuracy", "margin")
MINIMAL_PAIRS = MinimalPairs(PAIRS, _COLUMNS, "", FORMS_OF_PAIRS, renamed=("good", "bad"), metrics=_METRICS)
AGREEMENT_TASK = Agreement(AGREEMENT, _COLUMNS, "", FORMS_OF_PAIRS, metrics=_METRICS)


@dataclass(frozen=True)
class EncodedPairs(TokenEncodings):
    """Both sentences of each pair, in copies in each of which a piece is masked.

    Args:
        starts: the first copy of each sentence, of a bad one and then of the good one of the same pair.
        equal: which pairs have equal sentences.
    """

    starts: Sequence[int] = field(kw_only=True)
    equal: Sequence[bool] = field(kw_only=True)

    def collect(self, values: Float[np.ndarray, "runs texts 1"]) -> TaskOutputs:
        """The pseudo-log-likelihoods of the bad and the good sentence of each pair."""
        sums = np.add.reduceat(values[..., 0].astype(np.float64), self.starts, axis=1).reshape(len(values), -1, 2)
        sums[:, list(self.equal), 1] = sums[:, list(self.equal), 0]  # rounding may differ in another row of the engine
        return TaskOutputs(sums.astype(values.dtype))

    @property
    def objective(self) -> Objective:
        """The cross-entropy of the good form."""
        return Objective(readouts.log_probabilities, self.grade, GOOD)

    @cached_property
    def _is_good(self) -> Bool[np.ndarray, " texts"]:
        """Which texts are copies of a good sentence."""
        return np.searchsorted(self.starts, np.arange(len(self.encodings)), side="right") % 2 == 0

    def grade(self, example: int, values: Float[np.ndarray, "texts 1"]) -> Graded:
        """An example's loss and its gradient."""
        good, sizes = self._is_good[self.positions.texts_of(example)], values[:, 0].astype(np.float64)
        loss, slopes = cross_entropy(np.array([sizes[~good].sum(), sizes[good].sum()]), 1)
        return loss, slopes[good.astype(int)][:, None]


@dataclass(frozen=True)
class EncodedForms(TokenEncodings):
    """Sentences with one masked word, for which there are two forms."""

    @property
    def objective(self) -> Objective:
        """The cross-entropy of the good form."""
        return Objective(readouts.log_probabilities, self.grade, GOOD)

    def grade(self, example: int, values: Float[np.ndarray, "one 2"]) -> Graded:
        """An example's loss and its gradient."""
        loss, slopes = cross_entropy(values[0], 1)
        return loss, slopes[None]


@dataclass
class _Copies:
    """Copies of sentences with masked pieces.

    Args:
        texts: the copies.
        tokens: those that are scored in each.
        targets: the pieces that are scored there.
        examples: the pair of each copy, among those that are kept.
        kept: these pairs, among all.
    """

    texts: list[Encoding] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    targets: list[list[int]] = field(default_factory=list)
    examples: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)

    def add(self, text: Encoding, tokens: list[int], targets: list[int]) -> None:
        """Add a copy of the pair that `end` adds next."""
        self.texts.append(text)
        self.tokens.append(tokens)
        self.targets.append(targets)
        self.examples.append(len(self.kept))

    def end(self, example: int) -> None:
        """Add the pair of the copies before."""
        self.kept.append(example)

    def dropped(self, examples: Examples) -> list[int]:
        """The pairs that are not kept."""
        return sorted({*range(len(examples))} - {*self.kept})

    def common(
        self, tokenizer: Tokenizer, examples: Examples
    ) -> tuple[tuple[Encoding, ...], int, int, np.ndarray, TargetPositions]:
        """The encodings, the padding token, the number of pairs, their labels and the positions."""
        positions = TargetPositions.of_lists(self.tokens, self.targets, self.examples)
        return tuple(self.texts), tokenizer.pad_id, len(self.kept), examples.labels[self.kept], positions


@dataclass
class _LeftOut:
    """The pairs that are dropped, by reason.

    Args:
        wordless: ids of those with a sentence without words.
        cut: how many are truncated before they differ.
        alike: how many have sentences of the same pieces.
        several: how many differ in more than one piece.
    """

    wordless: list[int | str] = field(default_factory=list)
    cut: int = 0
    alike: int = 0
    several: int = 0

    def note(self) -> str:
        """The pairs and their reasons, in words; empty where none is left out."""
        has = "example {} has" if len(self.wordless) == 1 else "examples {} have"
        reasons = (
            (self.cut, "left out, truncated before their sentences differ: give a larger --max-length"),
            (self.alike, "skipped, whose sentences have the same pieces"),
            (self.several, "skipped, whose forms differ in more than one piece"),
        )
        notes = [f"{count_of(count, 'pair')} {reason}" for count, reason in reasons if count]
        if self.wordless:
            names = some_of([str(name) for name in self.wordless])
            notes.append(
                f"{has.format(names)} a sentence without words, and {count_of(len(self.wordless), 'pair')} left out"
            )
        return ", ".join(notes)


def _cut_alike(examples: Examples, example: int, bad: Encoding, good: Encoding) -> bool:
    """Whether two sentences that differ are alike as far as they are read, because one was truncated."""
    assert examples.second is not None
    differ = examples.first[example] != examples.second[example]
    return differ and bad.input_ids == good.input_ids and (bad.truncated or good.truncated)


def _is_cut(tokenizer: Tokenizer, bad: Encoding, good: Encoding, place: int) -> bool:
    """Whether two sentences differ in the last piece before one was truncated: the rest of the word may be missing."""
    words = words_of(tokenizer, good, unknown=True) or [place]
    end = words[-1] if tokenizer.truncation_side == "right" else words[0]
    return place == end and (bad.truncated or good.truncated)


def differing_piece(first: Encoding, second: Encoding) -> int | None:
    """The only place at which two texts of as many pieces differ; None where they differ otherwise, or not at all."""
    pieces = enumerate(zip(first.input_ids, second.input_ids, strict=False))
    places = [place for place, (one, other) in pieces if one != other]
    return places[0] if len(first) == len(second) and len(places) == 1 else None


def _sentences(
    tokenizer: Tokenizer, examples: Examples, max_length: int, within_word: bool
) -> tuple[list[Encoding], list[Encoding]]:
    """The bad and the good sentences: the second and the first texts."""
    count = len(examples)
    texts = [*(examples.second or ()), *examples.first]
    both = tokenizer.encode(texts, None, max_length, word_ids=within_word)
    return both[:count], both[count:]


def _of_tables(tables: Sequence[Table], path: Path | str, task: Task, columns: Sequence[str] | None) -> Examples:
    if columns is not None and len(columns) != 2:
        raise DataError(f"{task.name} takes two text columns, the good sentence's first; found {', '.join(columns)}")
    pairs: list[tuple[str, str]] = []
    ids: list[str | int] = []
    groups: list[str] = []
    for table in tables:
        pairs += _pairs(table, columns)
        group = table.find(GROUPS)
        of_rows = [""] * len(table) if group is None else _groups(table, group)
        groups += of_rows
        numbered = group is not None and NUMBER in table.columns
        numbers = table.column(NUMBER) if numbered else table.numbers
        ids += [
            f"{name}-{number}" if numbered else len(ids) + place
            for place, (name, number) in enumerate(zip(of_rows, numbers, strict=True))
        ]
    several = f" of {count_of(len(tables), 'file')}" if len(tables) > 1 else ""
    if equal := sum(good == bad for good, bad in pairs):  # as two of BLiMP
        several += f", {count_of(equal, 'pair')} of equal sentences, which no model gets right"
    return Examples(
        task=task,
        ids=tuple(ids) if len(set(ids)) == len(ids) else tuple(range(len(pairs))),
        first=tuple(good for good, _ in pairs),
        second=tuple(bad for _, bad in pairs),
        labels=np.ones(len(pairs), np.int32),
        source=f"{path} ({count_of(len(pairs), 'pair')}{several})",
        split="validation",
        groups=tuple(groups) if len(set(groups)) > 1 else None,
    )


def _groups(table: Table, name: str) -> list[str]:
    """The group of each row. Raises `DataError` where a row has none."""
    values = table.column(name)
    for row, value in enumerate(values):
        if value is None or value != value:
            raise table.error(row, f"column {name!r} is null, and other rows have a group")
    return [str(value) for value in values]


def _pairs(table: Table, columns: Sequence[str] | None) -> list[tuple[str, str]]:
    """Good and bad sentence of each row."""
    template = table.find(TEMPLATES)
    if columns is None and template is not None and {"good", "bad"} <= {*table.columns}:
        return _filled(table, template)
    names = tuple(columns) if columns else next((pair for pair in USUAL if {*pair} <= {*table.columns}), USUAL[0])
    texts = [_whole_texts(table, name) for name in names]
    return list(zip(*texts, strict=True))


def _filled(table: Table, name: str) -> list[tuple[str, str]]:
    """The template of each row with each of its two forms."""
    pairs = []
    for row, (template, good, bad) in enumerate(
        zip(*(_whole_texts(table, one) for one in (name, "good", "bad")), strict=True)
    ):
        filled = fill_place(template, good, bad)
        if filled is None:
            raise table.error(row, f"{brief(template)} has no single place for the forms, marked by {MARKS[0]}")
        pairs.append(filled)
    return pairs


def fill_place(template: str, good: str, bad: str) -> tuple[str, str] | None:
    """A template with each of its two forms; None where it has no single place for them.

    >>> fill_place("The boys [MASK] here.", "are", "is")
    ('The boys are here.', 'The boys is here.')
    """
    marks = [mark for mark in MARKS if mark in template]
    if len(marks) != 1 or template.count(marks[0]) != 1:
        return None
    return template.replace(marks[0], good), template.replace(marks[0], bad)


def _whole_texts(table: Table, name: str) -> tuple[str, ...]:
    """The texts of a column, none of which may be empty."""
    texts = table.texts(name)
    for row, text in enumerate(texts):
        if not text.strip():
            raise table.error(row, f"column {name!r} holds no text")
    return texts
