"""Typing within a bucket compiles nothing: other texts, other heads that are off, other targets."""

import jax
import pytest

from bertjax.explorer.attention import compute_attention
from bertjax.explorer.compute import compile_query, compute_answer, compute_map, in_next_bucket, kind_of, read_query
from bertjax.explorer.messages import Question, Target
from bertjax.explorer.subject import bucket
from tests.explorer.subjects import subject_named

COMPILED = "/jax/core/compile/backend_compile_duration"
# Texts with 13 and 16 tokens, and a target of each.
SHORT = "the cat [MASK] and the dog sat on the old mat"
LONG = "[MASK] old man saw the cat near the [MASK] door and ran and sat"
QUESTIONS = {
    "words": [([SHORT], Target(mask=0, word="ran")), ([LONG], Target(mask=1, word="red"))],
    "classes": [([SHORT], Target(label=0)), ([LONG], Target(label=2))],
    "labels": [([SHORT], Target(label=0)), ([LONG], Target(label=2))],
    "score": [([SHORT, "a dog"], Target()), ([SHORT, "a"], Target())],
    "similarity": [([SHORT, "a dog"], Target()), (["a dog", "an old man saw the cat near the red door and"], Target())],
    "entities": [([SHORT], Target(word=1, tag="O")), ([LONG], Target(word=5, tag="B-loc"))],
    "answer": [
        (["the cat ran home", "a dog ran near the mat"], Target(start=2, end=5)),
        (["the cat", "an old man saw the cat near the red mat"], Target(start=0, end=10)),
    ],
}


@pytest.fixture
def compiled():
    """The names of programs that are compiled meanwhile."""
    names = []

    def note(event, seconds, **details):
        if event == COMPILED:
            names.append(details.get("fun_name", event))

    jax.monitoring.register_event_duration_secs_listener(note)
    yield names
    jax.monitoring.unregister_event_duration_listener(note)


def ask(kind, texts, target, mode, off):
    query = read_query(kind, Question(texts=texts, mode=mode, off=off))
    compute_answer(kind, query, lambda: None)
    compute_map(kind, query, target, lambda line: None, lambda: None)
    compute_attention(kind, query, "norms", lambda: None)


@pytest.mark.parametrize("mode", ["uniform", "mean"])
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_second_text_of_a_bucket_compiles_nothing(name, mode, compiled):
    kind = kind_of(subject_named(name))
    (texts, target), (others, other) = QUESTIONS[name]
    compile_query(kind, read_query(kind, Question(texts=texts, mode=mode)), target, lambda: None)
    compute_attention(kind, read_query(kind, Question(texts=texts, mode=mode)), "norms", lambda: None)
    assert kind.row_length(kind.encode(texts)) == kind.row_length(kind.encode(others))
    del compiled[:]
    for off in ([], ["0.1"], ["1.2"], ["0.0", "1.1"], ["0.0", "0.1", "0.2"]):
        ask(kind, others, other, mode, off)
    assert compiled == []


def test_buckets():
    assert [bucket(tokens, 512) for tokens in (1, 16, 17, 33, 100, 385, 512)] == [12, 16, 20, 40, 112, 448, 512]
    assert bucket(30, 40) == 32
    assert bucket(33, 38) == 38
    assert bucket(1000, 8192) == 1024


def test_the_next_bucket():
    kind = kind_of(subject_named("classes"))
    query = read_query(kind, Question(texts=["cat " * 15]))
    assert (len(query.encodings[0]), kind.row_length(query.encodings)) == (17, 20)
    longer = in_next_bucket(kind, query)
    assert (len(longer.encodings[0]), kind.row_length(longer.encodings)) == (21, 24)
    assert in_next_bucket(kind, read_query(kind, Question(texts=["cat " * 30]))) is not None
    assert in_next_bucket(kind, read_query(kind, Question(texts=["cat " * 38]))) is None


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_next_bucket_compiles_what_a_longer_text_needs(name, compiled):
    kind = kind_of(subject_named(name))
    texts, target = QUESTIONS[name][0]
    longer = [texts[0] + " near a door and", *texts[1:]]
    query = read_query(kind, Question(texts=texts))
    compile_query(kind, in_next_bucket(kind, query), target, lambda: None)
    assert kind.row_length(kind.encode(longer)) > kind.row_length(query.encodings)
    del compiled[:]
    query = read_query(kind, Question(texts=longer, off=["0.1"]))
    compute_answer(kind, query, lambda: None)
    if name != "answer":  # whose span moves
        compute_map(kind, query, target, lambda line: None, lambda: None)
    assert compiled == []
