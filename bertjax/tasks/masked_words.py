"""Masked words: words of each text are masked, and scored by the model's log-probability.

A word is a piece of the tokenizer's vocabulary. In each text a random share of the words is masked together, as in
BERT's training, but without its 10 % of random and 10 % of unchanged words; or each word is masked in a copy of the
text, and the sum of log-probabilities is the text's pseudo-log-likelihood (Salazar et al. 2020).
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
    """Texts with masked words, and the best guesses for texts whose attention is kept."""

    value = "mean log-probability"

    @property
    def note(self) -> str:
        """A note on the value for the reader."""
        guesses = " The most likely words are shown for texts whose attention is kept." if self._kept else ""
        return f"It is the mean over the true words.{guesses}"

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
        return list(self.saved.attention["examples"].tolist())

    def lines(self, example: int) -> list[Line]:
        """The text, and a line for each masked word if the best guesses are kept."""
        lines = super().lines(example)
        if example not in self._kept:
            return lines
        return lines + [_guessed(self.saved, self._kept.index(example), 0, word) for word in self._words(example)]

    def change(self, run: int, example: int) -> list[Line]:
        """The best guesses of an ablated model, if they are kept."""
        name, kept = self.saved.names[run], self._kept
        runs = self.saved.attention["runs"].tolist() if kept else []
        if example not in kept or name not in runs:
            return []
        return [_guessed(self.saved, kept.index(example), runs.index(name), word) for word in self._words(example)]

    def _words(self, example: int) -> range:
        return range(len(self.saved.attention[f"masked_{self._kept.index(example)}"]))


def _guessed(saved: Contents, sample: int, run: int, word: int) -> Line:
    """The true word at a masked position, and the most likely words in a run."""
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
            raise InputError("--pll is for words that are masked one by one: minimal-pairs, and mlm with --every-word")


@dataclass(frozen=True)
class MaskedWords(Task):
    """Texts whose words are masked."""

    models = OF_WORDS
    needs = "masked-LM head"
    forms = (WORDS,)
    options = MaskedWordsOptions
    texts, texts_called = (1,), "single texts: texts=[text, ...]"
    max_tokens = 128
    has_ids = is_plain = True

    def read(self, source: Source) -> Examples:
        """Read the texts of a file or an object in memory, or the sentences of the sample."""
        if source.data is None:
            return self._read_sample(source.split)
        table, split = source.open_table(self, f"; {self.name} needs a file of texts: .txt, {READABLE}")
        return self.read_table(table, replace(source, split=split))

    def read_table(self, table: Table, source: Source) -> Examples:
        """Read texts without labels."""
        return read_examples(
            table,
            self,
            source.split,
            text_columns=source.text_columns,
            id_column=source.id_column,
            has_labels=False,
        )

    def _read_sample(self, split: str) -> Examples:
        """The distinct sentences of the sample."""
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

    def encode(
        self, model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, arguments: EncodeArguments
    ) -> "EncodedMaskedWords":
        """Encode texts with masked words.

        Raises:
            InputError: no text has a word to mask, or the tokenizer has no [MASK].
        """
        options = arguments.options
        assert isinstance(options, MaskedWordsOptions)
        within_word = options.pll == WITHIN_WORD
        texts = [text.replace(UNKNOWN, tokenizer.unk_token) for text in examples.first]
        whole = tokenizer.encode(texts, None, arguments.max_length, word_ids=within_word)
        masked, positions = mask_words(
            tokenizer, whole, seed=arguments.seed, every_word=options.every_word, within_word=within_word
        )
        without = sorted({*range(len(examples))} - {*positions.units.tolist()})
        note = ""
        if without:
            note = f"{count_of(len(without), 'text')} without a word to mask (first {examples.ids[without[0]]})"
        return EncodedMaskedWords(WORDS, masked, tokenizer.pad_id, len(examples), positions.true, positions, note=note)


MASKED_WORDS = MaskedWords(MASKED, ("text",), metrics=("cross_entropy", "word_accuracy", "pseudo_perplexity"))


@dataclass(frozen=True)
class EncodedMaskedWords(TokenEncodings):
    """Texts with masked words, which have an output each."""

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
    """The mean surprisal of an example's targets, whose log-probability is the first number at each position."""
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
    """Mask words of texts. Special tokens and unknown words are not masked.

    Args:
        encodings: one for each example.
        seed: the seed of the random draw, which depends only on it and the index of the example.
        every_word: mask each word in a copy of the text, instead of a random share together.
        within_word: with `every_word`: also mask the following pieces of the same word (Kauf and Ivanova 2023).

    Raises:
        InputError: no text has a word to mask, or the tokenizer has no [MASK].
    """
    texts: list[Encoding] = []
    tokens: list[list[int]] = []
    examples: list[int] = []
    for example, encoding in enumerate(encodings):
        candidates = np.array(words_of(tokenizer, encoding), np.int64)
        for chosen in _choose(candidates, seed, example, every_word):
            masked = chosen.tolist()
            texts.append(hide(tokenizer, encoding, rest_of_word(encoding, masked[0]) if within_word else masked))
            tokens.append(masked)
            examples.append(example)
    if not texts:
        raise InputError("no text has a word to mask: give longer texts")
    true = [
        [encodings[example].input_ids[token] for token in row] for example, row in zip(examples, tokens, strict=True)
    ]
    return tuple(texts), TargetPositions.of_lists(tokens, true, examples)


def words_of(tokenizer: Tokenizer, encoding: Encoding, *, unknown: bool = False) -> list[int]:
    """The tokens of a text, as indices, that are words of the vocabulary.

    Args:
        unknown: whether unknown words are included.
    """
    no_words = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_token_id}
    if not unknown:
        no_words.add(tokenizer.unk_token_id)
    return [index for index, token_id in enumerate(encoding.input_ids) if token_id not in no_words]


def hide(tokenizer: Tokenizer, encoding: Encoding, indices: Sequence[int]) -> Encoding:
    """Replace tokens of a text by [MASK].

    Args:
        tokenizer: the tokenizer of the text.
        encoding: the tokenised text.
        indices: the positions to mask.
    """
    ids, tokens = list(encoding.input_ids), list(encoding.tokens)
    for index in indices:
        ids[index], tokens[index] = tokenizer.mask_token_id, tokenizer.mask_token
    # (`dataclasses.replace` takes several times as long, and there are as many copies as words.)
    return Encoding(
        tuple(ids),
        encoding.token_type_ids,
        tuple(tokens),
        encoding.offsets,
        encoding.truncated,
        encoding.boundary,
        encoding.word_ids,
    )


def rest_of_word(encoding: Encoding, index: int) -> list[int]:
    """A token and the following pieces of the same word, as indices."""
    word, end = encoding.word_ids[index], index + 1
    while end < len(encoding) and encoding.word_ids[end] == word is not None:
        end += 1
    return [*range(index, end)]


def _choose(candidates: Int64[np.ndarray, " _"], seed: int, example: int, every_word: bool) -> list[np.ndarray]:
    """The words to mask in each copy of a text: one word, or a random share of the words but at least one."""
    if not len(candidates):
        return []
    if every_word:
        return np.split(candidates, len(candidates))
    count = max(1, round(SHARE * len(candidates)))
    generator = np.random.default_rng([seed, example])
    return [np.sort(generator.choice(candidates, count, replace=False))]
