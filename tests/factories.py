"""Invented sentences, and tiny checkpoints with a tokenizer for them."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from bertjax import (
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSentenceEmbedding,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)
from tests.tiny_models import random_model

SENTENCES = (
    "the cat sat on the mat",
    "a dog ran",
    "the dog sat near a red door and slept",
    "red doors are old",
    "cats sleep",
    "an old man saw the cat near the door",
    "he ran home",
)
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##s", "##ept", "##ed")
WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()} | {"sl"})
SIZES = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 7,
    "max_position_embeddings": 40,
    "initializer_range": 0.5,
}


def make_config() -> BertConfig:
    """A tiny model for the vocabulary of the sentences."""
    return BertConfig(vocab_size=len(PIECES) + len(WORDS), **SIZES)


def add_tokenizer(directory: Path) -> Path:
    """A word-piece tokenizer of the invented words, as `tokenizer.json`."""
    from tokenizers import BertWordPieceTokenizer

    vocabulary = {piece: number for number, piece in enumerate([*PIECES, *WORDS])}
    BertWordPieceTokenizer(vocabulary, lowercase=True).save(str(directory / "tokenizer.json"))
    return directory


def make_classifier(directory: Path, model=None) -> Path:
    """A random classifier of two labels."""
    (model or random_model(BertForSequenceClassification, make_config())).save_pretrained(directory)
    return add_tokenizer(directory)


def make_embedder(directory: Path, seed: int = 0) -> Path:
    """A random sentence embedder."""
    random_model(BertForSentenceEmbedding, make_config(), seed=seed).save_pretrained(directory)
    return add_tokenizer(directory)


def make_cross_encoder(directory: Path, seed: int = 0) -> Path:
    """A random model that gives a pair a score."""
    config = replace(make_config(), id2label={0: "score"})
    random_model(BertForSequenceClassification, config, seed=seed).save_pretrained(directory)
    return add_tokenizer(directory)


def make_masked(directory: Path, seed: int = 0) -> Path:
    """A random model of masked words."""
    random_model(BertForMaskedLM, make_config(), seed=seed).save_pretrained(directory)
    return add_tokenizer(directory)


def write_lines(path: Path, count: int = 30) -> Path:
    """A text file of WikiText's kind: headings, blank lines, `<unk>` and ` @-@ `."""
    rng = np.random.default_rng(4)
    lines = [" = the cat = ", " ", "", " the <unk> sat near @-@ by a door "]
    lines += [" ".join(SENTENCES[place] for place in rng.choice(len(SENTENCES), 2)) for _ in range(count - 2)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def write_pairs(path: Path, count: int) -> Path:
    """A file in MRPC's layout: pairs of the sentences, labels that alternate in no simple order."""
    rng = np.random.default_rng(0)
    rows = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
    for number in range(count):
        first, second = rng.choice(len(SENTENCES), 2, replace=False)
        rows.append(f"{(number * 5) % 7 % 2}\t{number}\t{number + 100}\t{SENTENCES[first]}\t{SENTENCES[second]}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def make_encoder(directory: Path) -> Path:
    """A directory of a tiny encoder without a task's head."""
    random_model(BertModel, make_config()).save_pretrained(directory)
    return add_tokenizer(directory)


def write_glue(directory: Path) -> Path:
    """A GLUE directory with invented pairs of MRPC: 21 for training, 9 for evaluation."""
    (directory / "MRPC").mkdir(parents=True)
    write_pairs(directory / "MRPC" / "train.tsv", 21)
    write_pairs(directory / "MRPC" / "dev.tsv", 9)
    return directory


TAGS = ("O", "B-per", "I-per", "B-loc", "I-loc")


def make_tagger(directory: Path, tags: tuple[str, ...] = TAGS, seed: int = 0) -> Path:
    """A random model that gives words tags."""
    names = dict(enumerate(tags))
    config = replace(make_config(), id2label=names)
    random_model(BertForTokenClassification, config, seed=seed).save_pretrained(directory)
    return add_tokenizer(directory)


def make_labeller(directory: Path, names: tuple[str, ...], seed: int = 0) -> Path:
    """A random classifier of these labels."""
    config = replace(make_config(), id2label=dict(enumerate(names)))
    return make_classifier(directory, random_model(BertForSequenceClassification, config, seed=seed))


def make_chooser(directory: Path, seed: int = 0) -> Path:
    """A random model that chooses among answers."""
    random_model(BertForMultipleChoice, make_config(), seed=seed).save_pretrained(directory)
    return add_tokenizer(directory)


def make_reader(directory: Path, seed: int = 0) -> Path:
    """A random model that finds answers."""
    random_model(BertForQuestionAnswering, make_config(), seed=seed).save_pretrained(directory)
    return add_tokenizer(directory)
