"""Subjects of explorers: tiny random models of every kind of answer, with examples."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bertjax import (
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForQuestionAnswering,
    BertForSentenceEmbedding,
    BertForSequenceClassification,
    BertForTokenClassification,
    Tokenizer,
    load_examples,
    mean_head_outputs,
)
from bertjax.explorer import Subject
from bertjax.explorer.compute import kind_of
from tests.factories import SENTENCES, TAGS, add_tokenizer, make_config
from tests.tiny_models import random_model

NAMES = ("no", "perhaps", "yes")
PAIRS = list(pairwise(SENTENCES))
# The class, changes of the config, the texts and the target of each kind.
KINDS = {
    "words": (BertForMaskedLM, {}, ["the cat [MASK] on the [MASK]"], {"mask": 1, "word": "mat"}),
    "classes": (BertForSequenceClassification, {"id2label": dict(enumerate(NAMES))}, ["the cat ran"], {"class": 1}),
    "classes of a pair": (
        BertForSequenceClassification,
        {"id2label": dict(enumerate(NAMES))},
        ["the cat ran", "a dog sat"],
        {"class": 2},
    ),
    "next sentence": (BertForNextSentencePrediction, {}, ["the cat ran", "a dog sat"], {"class": 0}),
    "labels": (
        BertForSequenceClassification,
        {"id2label": dict(enumerate(NAMES)), "problem_type": "multi_label_classification"},
        ["the cat ran"],
        {"class": 2},
    ),
    "score": (BertForSequenceClassification, {"id2label": {0: "score"}}, ["the cat ran", "a dog sat"], {}),
    "rating": (
        BertForSequenceClassification,
        {"id2label": {0: "score"}, "problem_type": "regression"},
        ["the cat ran", "a dog sat"],
        {},
    ),
    "similarity": (BertForSentenceEmbedding, {}, ["the cat ran", "an old dog sat near the door"], {}),
    "entities": (
        BertForTokenClassification,
        {"id2label": dict(enumerate(TAGS))},
        ["the dogs ran near a door"],
        {"word": 2, "tag": "B-loc"},
    ),
    "answer": (
        BertForQuestionAnswering,
        {},
        ["the cat ran", "an old dog sat near the red doors"],
        {"start": 3, "end": 10},
    ),
}


@cache
def tokenizer() -> Tokenizer:
    with TemporaryDirectory() as directory:
        return Tokenizer.from_pretrained(add_tokenizer(Path(directory)))


@cache
def subject_named(name: str, with_examples: bool = True) -> Subject:
    """The subject of a kind, whose model is in memory."""
    cls, changes, texts, _ = KINDS[name]
    model = random_model(cls, replace(make_config(), **changes))
    model.tokenizer = tokenizer()
    if not with_examples:
        return Subject(model, name, model.tokenizer)
    if len(texts) == 1:
        examples = load_examples("mlm", texts=list(SENTENCES))
    else:
        examples = load_examples(None, texts=PAIRS, labels=[float(row) for row in range(len(PAIRS))], label_names=[])
    examples = replace(examples, task=replace(examples.task, label_names=("a", "b"))) if name != "rating" else examples
    return Subject(model, name, model.tokenizer, "made-up", examples)


def kind_named(name: str, with_examples: bool = True):
    return kind_of(subject_named(name, with_examples))


def softmax(values):
    """In float64."""
    powers = np.exp(values.astype(np.float64) - values.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def encodings_of(kind, texts):
    """Both texts of a sentence embedder, else a text or pair."""
    encode = kind.subject.tokenizer.encode
    return encode(texts) if isinstance(kind.subject.model, BertForSentenceEmbedding) else encode(*[[t] for t in texts])


def means_of(kind):
    """The heads' mean outputs over the examples, in one batch."""
    first, second = (list(column) for column in zip(*PAIRS, strict=True))
    tokenizer = kind.subject.tokenizer
    if KINDS[kind.subject.name][2][1:] == []:
        return mean_head_outputs(kind.subject.model, tokenizer(list(SENTENCES)))
    apart = isinstance(kind.subject.model, BertForSentenceEmbedding)
    return mean_head_outputs(kind.subject.model, tokenizer(first + second) if apart else tokenizer(first, second))
