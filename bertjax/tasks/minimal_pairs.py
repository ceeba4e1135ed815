"""Minimal pairs: whether a good sentence is more likely than a bad one.

`minimal-pairs` compares pseudo-log-likelihoods: each piece of a sentence is masked in turn, and the log-probabilities
of the true pieces are added (Salazar et al. 2020); `within-word` also masks the following pieces of the same word,
which would reveal a word of several pieces (Kauf and Ivanova 2023). `agreement` compares the log-probabilities of two
forms at the masked position at which the sentences differ (Goldberg 2019).

BLiMP's files (Warstadt et al. 2020) are JSONL with `sentence_good`, `sentence_bad` and the paradigm as `UID`; a
directory has a file for each paradigm. Files may also have columns `good` and `bad`, as sentences, or as forms for the
position that `[MASK]`, `<mask>` or `***mask***` (as in Goldberg 2019) marks in a column `template`.
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
FORMS_OF_PAIRS = ("bad", "good")  # if both are equally likely, the first is predicted, which is wrong
# Marks of the masked position in a file.
MARKS = ("[MASK]", "<mask>", "***mask***")
USUAL = (("sentence_good", "sentence_bad"), ("good", "bad"))
TEMPLATES = ("sentence", "template", "text")
GROUPS = ("UID", "paradigm", "phenomenon", "group", "condition")
PAIR_ID = "pairID"  # the index of a pair in its paradigm in BLiMP


class PairsDisplay(Display):
    """The two sentences of a pair."""

    value, note = "margin", "The margin is the log-likelihood of the good form minus that of the bad form, in nats."

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
        pll: 'original' or 'within-word', as in `MaskedWordsOptions`.
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
        """Read the pairs of a table."""
        return _of_tables([table], table.path, self, source.text_columns)

    def read_path(self, path: Path, source: Source) -> Examples:
        """Read the pairs of a file, or of all files of a directory in the order of their names."""
        if not is_directory(path) or is_saved_dataset(path):
            return super().read_path(path, source)
        files = [file for file in listing(path) if file.name.endswith(SUFFIXES) and ".txt" not in file.name]
        if not files:
            raise DataError(f"{path}: has no file of pairs for {self.name}: .jsonl or .tsv")
        return _of_tables([read_table(file, self) for file in files], path, self, source.text_columns)

    def advice_on_directory(self, path: Path) -> str:
        """To give a single file."""
        return "give a file"


@dataclass(frozen=True)
class MinimalPairs(PairTask):
    """Pairs that are scored by the pseudo-log-likelihoods of both sentences."""

    options = MinimalPairsOptions
    files = "a file of sentence_good and sentence_bad, or a directory such as BLiMP's"

    def encode(
        self, model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, arguments: EncodeArguments
    ) -> "EncodedPairs":
        """Encode both sentences of each pair, with a copy for each masked piece.

        Pairs that are truncated before they differ, or have a sentence without words, are dropped.

        Raises:
            DataError: all pairs are dropped.
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
            elif _equally_cut(examples, example, *both):
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
    """Pairs that are scored by the log-probabilities of the two forms in which they differ."""

    files = "a file of templates with good and bad, or of sentence_good and sentence_bad"

    def encode(
        self, model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, arguments: EncodeArguments
    ) -> "EncodedForms":
        """Encode a sentence of each pair, with a mask at the piece in which the forms differ.

        Pairs that are truncated before they differ, or that differ in several pieces, are dropped.

        Raises:
            DataError: all pairs are dropped.
        """
        copies, left_out = _Copies(), _LeftOut()
        sentences = _sentences(tokenizer, examples, arguments.max_length, within_word=False)
        for example, (bad, good) in enumerate(zip(*sentences, strict=True)):
            token = differing_piece(bad, good)
            if _equally_cut(examples, example, bad, good) or (
                token is not None and _is_cut(tokenizer, bad, good, token)
            ):
                left_out.cut += 1
            elif bad.input_ids == good.input_ids:
                left_out.same_pieces += 1
            elif token is None:
                left_out.several += 1
            else:
                forms = [bad.input_ids[token], good.input_ids[token]]
                copies.add(hide(tokenizer, good, [token]), [token] * 2, forms)
                copies.end(example)
        if not copies.kept:
            raise DataError(f"no pair has forms that differ in a single piece of the tokenizer: {left_out.note()}")
        common = copies.common(tokenizer, examples)
        return EncodedForms(LIKELIHOODS, *common, dropped=copies.dropped(examples), note=left_out.note())


_COLUMNS, _METRICS = ("sentence_good", "sentence_bad"), ("accuracy", "margin")
MINIMAL_PAIRS = MinimalPairs(PAIRS, _COLUMNS, "", FORMS_OF_PAIRS, renamed=("good", "bad"), metrics=_METRICS)
AGREEMENT_TASK = Agreement(AGREEMENT, _COLUMNS, "", FORMS_OF_PAIRS, metrics=_METRICS)


@dataclass(frozen=True)
class EncodedPairs(TokenEncodings):
    """Copies of both sentences of each pair, each with a masked piece.

    Args:
        starts: the first copy of each sentence: of the bad and then of the good sentence of each pair.
        equal: whether the sentences of each pair are equal.
    """

    starts: Sequence[int] = field(kw_only=True)
    equal: Sequence[bool] = field(kw_only=True)

    def collect(self, values: Float[np.ndarray, "runs texts 1"]) -> TaskOutputs:
        """The pseudo-log-likelihoods of the bad and the good sentence of each pair."""
        sums = np.add.reduceat(values[..., 0].astype(np.float64), self.starts, axis=1).reshape(len(values), -1, 2)
        sums[:, list(self.equal), 1] = sums[:, list(self.equal), 0]  # rounding may differ
        return TaskOutputs(sums.astype(values.dtype))

    @property
    def objective(self) -> Objective:
        """The cross-entropy of the good form."""
        return Objective(readouts.log_probabilities, self.grade, GOOD)

    @cached_property
    def _is_good(self) -> Bool[np.ndarray, " texts"]:
        """Whether each text is a copy of a good sentence."""
        return np.searchsorted(self.starts, np.arange(len(self.encodings)), side="right") % 2 == 0

    def grade(self, example: int, values: Float[np.ndarray, "texts 1"]) -> Graded:
        """An example's loss and its gradient."""
        good, sizes = self._is_good[self.positions.texts_of(example)], values[:, 0].astype(np.float64)
        loss, slopes = cross_entropy(np.array([sizes[~good].sum(), sizes[good].sum()]), 1)
        return loss, slopes[good.astype(int)][:, None]


@dataclass(frozen=True)
class EncodedForms(TokenEncodings):
    """Sentences with one masked word that has two forms."""

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
        tokens: the scored tokens of each copy.
        targets: the ids of the scored pieces.
        examples: the pair of each copy, as its index among kept pairs.
        kept: the indices of kept pairs.
    """

    texts: list[Encoding] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    targets: list[list[int]] = field(default_factory=list)
    examples: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)

    def add(self, text: Encoding, tokens: list[int], targets: list[int]) -> None:
        """Add a copy of the current pair."""
        self.texts.append(text)
        self.tokens.append(tokens)
        self.targets.append(targets)
        self.examples.append(len(self.kept))

    def end(self, example: int) -> None:
        """Finish the current pair."""
        self.kept.append(example)

    def dropped(self, examples: Examples) -> list[int]:
        """The indices of dropped pairs."""
        return sorted({*range(len(examples))} - {*self.kept})

    def common(
        self, tokenizer: Tokenizer, examples: Examples
    ) -> tuple[tuple[Encoding, ...], int, int, np.ndarray, TargetPositions]:
        """The arguments of an encoded data set: encodings, padding token, number of pairs, labels and positions."""
        positions = TargetPositions.of_lists(self.tokens, self.targets, self.examples)
        return tuple(self.texts), tokenizer.pad_id, len(self.kept), examples.labels[self.kept], positions


@dataclass
class _LeftOut:
    """The dropped pairs by reason.

    Args:
        wordless: the ids of pairs with a sentence without words.
        cut: the number of pairs that are truncated before they differ.
        same_pieces: the number of pairs with the same pieces.
        several: the number of pairs that differ in several pieces.
    """

    wordless: list[int | str] = field(default_factory=list)
    cut: int = 0
    same_pieces: int = 0
    several: int = 0

    def note(self) -> str:
        """The numbers of pairs and the reasons; empty if no pair is dropped."""
        ids = some_of([str(one) for one in self.wordless])
        reasons = (
            (self.cut, "truncated before the sentences differ: give a larger --max-length"),
            (self.same_pieces, "with sentences of the same pieces"),
            (self.several, "with forms that differ in several pieces"),
            (len(self.wordless), f"with a sentence without words (ids {ids})"),
        )
        return ", ".join(f"{count_of(count, 'pair')} left out, {reason}" for count, reason in reasons if count)


def _equally_cut(examples: Examples, example: int, bad: Encoding, good: Encoding) -> bool:
    """Whether two different sentences are equal because one was truncated."""
    assert examples.second is not None
    differ = examples.first[example] != examples.second[example]
    return differ and bad.input_ids == good.input_ids and (bad.truncated or good.truncated)


def _is_cut(tokenizer: Tokenizer, bad: Encoding, good: Encoding, index: int) -> bool:
    """Whether two sentences differ in the last piece before the truncation, so that the word may be incomplete."""
    words = words_of(tokenizer, good, unknown=True) or [index]
    end = words[-1] if tokenizer.truncation_side == "right" else words[0]
    return index == end and (bad.truncated or good.truncated)


def differing_piece(first: Encoding, second: Encoding) -> int | None:
    """The index of the only piece in which two texts of equal length differ; None if there is no such piece.

    Args:
        first: a tokenised text.
        second: another tokenised text.
    """
    pieces = enumerate(zip(first.input_ids, second.input_ids, strict=False))
    indices = [index for index, (one, other) in pieces if one != other]
    return indices[0] if len(first) == len(second) and len(indices) == 1 else None


def _sentences(
    tokenizer: Tokenizer, examples: Examples, max_length: int, within_word: bool
) -> tuple[list[Encoding], list[Encoding]]:
    """Encode the bad and the good sentences, which are the second and the first texts."""
    count = len(examples)
    texts = [*(examples.second or ()), *examples.first]
    both = tokenizer.encode(texts, None, max_length, word_ids=within_word)
    return both[:count], both[count:]


def _of_tables(tables: Sequence[Table], path: Path | str, task: Task, columns: Sequence[str] | None) -> Examples:
    if columns is not None and len(columns) != 2:
        raise DataError(f"{task.name} needs two text columns, good sentences first; found {', '.join(columns)}")
    pairs: list[tuple[str, str]] = []
    ids: list[str | int] = []
    groups: list[str] = []
    for table in tables:
        pairs += _pairs(table, columns)
        group = table.find(GROUPS)
        of_rows = [""] * len(table) if group is None else _groups(table, group)
        groups += of_rows
        if group is not None and PAIR_ID in table.columns:
            ids += [f"{name}-{one}" for name, one in zip(of_rows, table.column(PAIR_ID), strict=True)]
        else:
            ids += range(len(ids), len(ids) + len(table))
    several = f" of {count_of(len(tables), 'file')}" if len(tables) > 1 else ""
    if equal := sum(good == bad for good, bad in pairs):  # two pairs of BLiMP
        several += f", {count_of(equal, 'pair')} of equal sentences, which always count as wrong"
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
    """The group of each row. Raises `DataError` if a row has none."""
    values = table.column(name)
    for row, value in enumerate(values):
        if value is None or value != value:
            raise table.error(row, f"column {name!r} is null, but other rows have a group")
    return [str(value) for value in values]


def _pairs(table: Table, columns: Sequence[str] | None) -> list[tuple[str, str]]:
    """The good and the bad sentence of each row."""
    template = table.find(TEMPLATES)
    if columns is None and template is not None and {"good", "bad"} <= {*table.columns}:
        return _filled(table, template)
    names = tuple(columns) if columns else next((pair for pair in USUAL if {*pair} <= {*table.columns}), USUAL[0])
    texts = [_nonempty_texts(table, name) for name in names]
    return list(zip(*texts, strict=True))


def _filled(table: Table, name: str) -> list[tuple[str, str]]:
    """The template of each row with each of its two forms."""
    pairs = []
    for row, (template, good, bad) in enumerate(
        zip(*(_nonempty_texts(table, one) for one in (name, "good", "bad")), strict=True)
    ):
        filled = fill_template(template, good, bad)
        if filled is None:
            raise table.error(row, f"{brief(template)} must mark one position of the forms by {MARKS[0]}")
        pairs.append(filled)
    return pairs


def fill_template(template: str, good: str, bad: str) -> tuple[str, str] | None:
    """Fill a template with each of its two forms; None if it does not mark exactly one position.

    Args:
        template: a text with one [MASK].
        good: the acceptable form.
        bad: the unacceptable form.

    >>> fill_template("The boys [MASK] here.", "are", "is")
    ('The boys are here.', 'The boys is here.')
    """
    marks = [mark for mark in MARKS if mark in template]
    if len(marks) != 1 or template.count(marks[0]) != 1:
        return None
    return template.replace(marks[0], good), template.replace(marks[0], bad)


def _nonempty_texts(table: Table, name: str) -> tuple[str, ...]:
    """The texts of a column. Raises `DataError` if one is empty."""
    texts = table.texts(name)
    for row, text in enumerate(texts):
        if not text.strip():
            raise table.error(row, f"column {name!r} is empty")
    return texts
