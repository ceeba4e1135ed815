"""Typing within a bucket compiles nothing: other texts, other heads that are off, other targets."""

import jax
import pytest

from bertjax.explorer.attention import compute_attention
from bertjax.explorer.compute import compile_query, compute_answer, compute_map, kind_of, read_query
from bertjax.explorer.messages import Question, Target
from bertjax.explorer.subject import bucket
from tests.explorer.subjects import KINDS, subject_named

COMPILED = "/jax/core/compile/backend_compile_duration"
# Texts with 5 and 14 tokens, and a target of each.
SHORT, LONG = "the cat [MASK]", "[MASK] old man saw the cat near the [MASK] door and ran"
QUESTIONS = {
    "words": [([SHORT], Target(mask=0, word="ran")), ([LONG], Target(mask=1, word="red"))],
    "classes": [([SHORT], Target(label=0)), ([LONG], Target(label=2))],
    "labels": [([SHORT], Target(label=0)), ([LONG], Target(label=2))],
    "score": [([SHORT, "a dog"], Target()), ([SHORT, "a dog near the door ran"], Target())],
    "similarity": [([SHORT, LONG], Target()), (["a dog near the door", "a"], Target())],
    "entities": [([SHORT], Target(word=1, tag="O")), ([LONG], Target(word=5, tag="B-loc"))],
    "answer": [
        (["the cat", "a dog ran"], Target(start=2, end=5)),
        (["the cat", "an old man saw the cat near"], Target(start=0, end=10)),
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
    del compiled[:]
    for off in ([], ["0.1"], ["1.2"], ["0.0", "1.1"], ["0.0", "0.1", "0.2"]):
        ask(kind, others, other, mode, off)
    assert compiled == []


def test_buckets():
    assert [bucket(tokens, 512) for tokens in (1, 16, 17, 33, 100, 385, 512)] == [16, 16, 24, 48, 128, 512, 512]
    assert bucket(30, 40) == 32
    assert bucket(33, 40) == 40
    assert bucket(1000, 8192) == 1024
