"""Masked words: which words of each text are hidden from the model, and how likely it finds them.

A word is a piece of the tokenizer's vocabulary. In each text a share of the words, drawn at random, is masked at once,
as in BERT's training but for its 10 % of random and 10 % of unchanged words; or each word in turn, in a copy of the
text: then the sum of log-probabilities is the text's pseudo-log-likelihood (Salazar et al. 2020).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float, Int, Int64, Shaped

from bertjax.data import READABLE, Encoding, Examples, Source, Table, Tokenizer, read_examples, read_sample, split_named
from bertjax.errors import DataError, InputError
from bertjax.formatting import count_of
from bertjax.interventions import readouts
from bertjax.models import BertForMaskedLM, BertForPreTraining, PretrainedModel
from bertjax.results import NAME, PLAIN, RIGHT, TRUE, Contents, Display, Line
from bertjax.statistics import ratios
from bertjax.tasks.classification import SAMPLE_TASK
from bertjax.tasks.encoded import TargetPositions, TaskOutputs, TokenEncodings
from bertjax.tasks.outputs import Form, Graded, Objective
from bertjax.tasks.task import EncodeArguments, Task, TaskOptions

# The name of the task.
MASKED = "mlm"
SHARE = 0.15  # of the words of a text, as in BERT's training (Devlin et al. 2019)
UNKNOWN = "<unk>"  # WikiText's mark of a rare word
WITHIN_WORD = "within-word"
# Which pieces are masked with the scored one: none, or those that follow in the same word.
PLL: TypeAlias = Literal["original", "within-word"]


class WordsDisplay(Display):
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

    def lines(self, example: int) -> list[Line]:
        """The text, and if the best guesses are kept, a line for each masked word."""
        lines = super().lines(example)
        if example not in self._kept:
            return lines
        return lines + [_guessed(self.saved, self._kept.index(example), 0, word) for word in self._words(example)]

    def change(self, run: int, example: int) -> list[Line]:
        """The best guesses with an ablation, if they are kept."""
        name, kept = self.saved.names[run], self._kept
        runs = self.saved.attention["runs"].tolist() if kept else []
        if example not in kept or name not in runs:
            return []
        return [_guessed(self.saved, kept.index(example), runs.index(name), word) for word in self._words(example)]

    def _words(self, example: int) -> range:
        return range(len(self.saved.attention[f"masked_{self._kept.index(example)}"]))


def _guessed(saved: Contents, sample: int, run: int, word: int) -> Line:
    """The true word at a masked position, and the likeliest ones in a run."""
    arrays = saved.attention
    truth = str(arrays[f"truth_{sample}"][word])
    line: Line = [("ablated" if run else "base", NAME), (truth, TRUE)]
    guesses, chances = (arrays[f"{name}_{sample}"][run, word].tolist() for name in ("guesses", "chances"))
    for guess, chance in zip(guesses, chances, strict=True):
        line.append((f"{guess} {chance:.2f}", RIGHT if guess == truth else PLAIN))
        line.append((" ", PLAIN))
    return line


WORDS = Form(
    "words",
    readouts.words,
    called="masked words",
    counted="masked word",
    numbers=ratios.WORDS,
    sized=1,
    display=WordsDisplay,
)
OF_WORDS = (BertForMaskedLM, BertForPreTraining)  # the models that predict words


@dataclass(frozen=True, kw_only=True)
class MaskedWordsOptions(TaskOptions):
    """Which words are masked.

    Args:
        every_word: with task mlm: mask each word by itself, instead of 15 % of the words together.
        pll: with words that are masked by themselves: 'original', or 'within-word' to mask the later pieces of the
            same word too.

    Raises:
        InputError: `pll` without `every_word`.
    """

    every_word: bool = False
    pll: PLL = "original"

    def __post_init__(self) -> None:
        if self.pll != "original" and not self.every_word:
            raise InputError(
                "--pll is for words that are masked by themselves: minimal-pairs, and mlm with --every-word"
            )


@dataclass(frozen=True)
class MaskedWords(Task):
    """Texts whose words are masked."""

    models = OF_WORDS
    needs = "masked-LM head"
    forms = (WORDS,)
    options = MaskedWordsOptions
    texts, texts_called = (1,), "single texts: texts=[text, ...]"
    has_ids = is_plain = True

    def read(self, source: Source) -> Examples:
        """Texts of a file or an object in memory; without these, the sentences of the sample."""
        if source.data is None:
            return self._read_sample(source.split)
        table, split = source.open_table(self, f"; {self.name} needs a file of texts: .txt, {READABLE}")
        return self.read_table(table, replace(source, split=split))

    def read_table(self, table: Table, source: Source) -> Examples:
        """Texts without labels."""
        return read_examples(
            table,
            self,
            source.split,
            text_columns=source.text_columns,
            id_column=source.id_column,
            has_labels=False,
        )

    def _read_sample(self, split: str) -> Examples:
        """The different sentences of the sample."""
        if split_named(self, split) != "validation":
            raise DataError(
                f"{self.name} has no split {split!r} without data; its sentences are of QNLI's validation split"
            )
        sample = read_sample(SAMPLE_TASK)
        sentences = tuple(dict.fromkeys(sample.second or ()))
        return Examples(
            task=self,
            ids=tuple(range(len(sentences))),
            first=sentences,
            second=None,
            labels=np.full(len(sentences), np.nan, np.float32),
            source=sample.source.replace(f"{len(sample)} pairs", f"{len(sentences)} sentences"),
            split=sample.split,
        )

    def default_length(self, model: PretrainedModel, most: int) -> int:
        """128 tokens."""
        return min(128, most)

    def encode(
        self, model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, arguments: EncodeArguments
    ) -> "EncodedMaskedWords":
        """Texts with masked words.

        Raises:
            InputError: no text has a word that could be masked, or the tokenizer has no [MASK].
        """
        options = arguments.options
        assert isinstance(options, MaskedWordsOptions)
        within_word = options.pll == WITHIN_WORD
        texts = name_unknown(tokenizer, examples.first)
        whole = tokenizer.encode(texts, None, arguments.max_length, word_ids=within_word)
        masked, positions = mask_words(
            tokenizer, whole, seed=arguments.seed, every_word=options.every_word, within_word=within_word
        )
        without = sorted({*range(len(examples))} - {*positions.units.tolist()})
        note = ""
        if without:
            note = f"{count_of(len(without), 'text')} without a word to mask (first {examples.ids[without[0]]})"
        return EncodedMaskedWords(
            WORDS,
            masked,
            tokenizer.pad_id,
            len(examples),
            positions.true,
            positions,
            note=note,
        )


MASKED_WORDS = MaskedWords(MASKED, ("text",), metrics=("cross_entropy", "word_accuracy", "pseudo_perplexity"))


@dataclass(frozen=True)
class EncodedMaskedWords(TokenEncodings):
    """Texts with masked words. An output is of a word, not of a text."""

    @property
    def units(self) -> Int[np.ndarray, " outputs"]:
        """The text of each word."""
        return self.positions.units

    @property
    def arrays(self) -> dict[str, Shaped[np.ndarray, "..."]]:
        """The text and the token of each word."""
        return {"units": self.positions.units, "places": self.positions.tokens}

    @property
    def best_guesses(self) -> TargetPositions:
        """The masked words."""
        return self.positions

    def collect(self, values: Float[np.ndarray, "runs texts wanted 2"]) -> TaskOutputs:
        """Log-probability and rank of each word."""
        return TaskOutputs(self.positions.flatten(values))

    @property
    def objective(self) -> Objective:
        """The mean surprisal of an example's masked words."""
        return Objective(readouts.words, self.grade, "mean surprisal of an example's masked words")

    def grade(self, example: int, values: Float[np.ndarray, "texts wanted *numbers"]) -> Graded:
        """An example's loss and its gradient."""
        return grade_targets(self.positions, example, values)


def grade_targets(
    positions: TargetPositions, example: int, values: Float[np.ndarray, "texts wanted *numbers"]
) -> Graded:
    """The mean surprisal of an example's targets: minus their log-probability, the first number at each position."""
    real, gradient = positions.real[positions.texts_of(example)], np.zeros(values.shape)
    of_first = gradient[..., 0]
    of_first[real] = -1 / real.sum()
    return -float(values[..., 0][real].astype(np.float64).mean()), gradient


def mask_words(
    tokenizer: Tokenizer,
    encodings: Sequence[Encoding],
    *,
    seed: int,
    every_word: bool,
    within_word: bool = False,
) -> tuple[tuple[Encoding, ...], TargetPositions]:
    """Hide words of texts.

    Words that the tokenizer does not know, and special tokens, are not masked.

    Args:
        encodings: one for each example.
        seed: of the draw, which is of each example by its number and depends on nothing else.
        every_word: hide each word by itself, in a text of its own, in place of drawn ones together.
        within_word: with `every_word`: hide also what follows of the same word (Kauf and Ivanova 2023).

    Raises:
        InputError: no text has a word that could be masked, or the tokenizer has no [MASK].
    """
    texts: list[Encoding] = []
    places: list[list[int]] = []
    examples: list[int] = []
    for example, encoding in enumerate(encodings):
        candidates = np.array(words_of(tokenizer, encoding), np.int64)
        for chosen in _choose(candidates, seed, example, every_word):
            hidden = chosen.tolist()
            texts.append(hide(tokenizer, encoding, rest_of_word(encoding, hidden[0]) if within_word else hidden))
            places.append(hidden)
            examples.append(example)
    if not texts:
        raise InputError("no text has a word that could be masked: give longer texts")
    true = [
        [encodings[example].input_ids[place] for place in row] for example, row in zip(examples, places, strict=True)
    ]
    return tuple(texts), TargetPositions.of_lists(places, true, examples)


def words_of(tokenizer: Tokenizer, encoding: Encoding, *, unknown: bool = False) -> list[int]:
    """The tokens of a text that are words of the vocabulary, not special.

    Args:
        unknown: whether the token of unknown words counts as one.
    """
    no_words = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_token_id}
    if not unknown:
        no_words.add(tokenizer.unk_token_id)
    return [place for place, number in enumerate(encoding.input_ids) if number not in no_words]


def hide(tokenizer: Tokenizer, encoding: Encoding, places: Sequence[int]) -> Encoding:
    """A text with [MASK] at these tokens."""
    ids, tokens = list(encoding.input_ids), list(encoding.tokens)
    for place in places:
        ids[place], tokens[place] = tokenizer.mask_token_id, tokenizer.mask_token
    # (`dataclasses.replace` would take several times as long, and there are as many copies as words.)
    return Encoding(
        tuple(ids),
        encoding.token_type_ids,
        tuple(tokens),
        encoding.offsets,
        encoding.truncated,
        encoding.boundary,
        encoding.word_ids,
    )


def rest_of_word(encoding: Encoding, place: int) -> list[int]:
    """A token and those after it that are pieces of the same word."""
    word, places = encoding.word_ids[place], [place]
    while places[-1] + 1 < len(encoding) and encoding.word_ids[places[-1] + 1] == word is not None:
        places.append(places[-1] + 1)
    return places


def _choose(candidates: Int64[np.ndarray, " _"], seed: int, example: int, every_word: bool) -> list[np.ndarray]:
    """Which words are hidden in each copy of a text: each by itself, or a share of them, one at least, together."""
    if not len(candidates):
        return []
    if every_word:
        return [candidates[number : number + 1] for number in range(len(candidates))]
    count = max(1, round(SHARE * len(candidates)))
    generator = np.random.default_rng([seed, example])
    return [np.sort(generator.choice(candidates, count, replace=False))]


def name_unknown(tokenizer: Tokenizer, texts: Sequence[str]) -> list[str]:
    """Texts in which WikiText's mark of an unknown word is the tokenizer's."""
    return [text.replace(UNKNOWN, tokenizer.unk_token) for text in texts]
