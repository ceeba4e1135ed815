"""Attention of the explorer: that of the model called with overrides, and the shares of weighted norms."""

import base64
import gzip

import numpy as np
import pytest

from bertjax import BertForSentenceEmbedding, ablations
from bertjax.attention import norm_shares, output_products
from bertjax.errors import InputError
from bertjax.explorer import attention
from bertjax.explorer.compute import read_query
from bertjax.explorer.messages import Question
from tests.explorer.subjects import KINDS, encodings_of, kind_named, means_of


def unpack(packed):
    """The weights of a text, `[layers, heads, query, key]`."""
    count = len(packed["tokens"])
    steps = np.frombuffer(gzip.decompress(base64.b64decode(packed["weights"])), "<u2")
    return steps.reshape(packed["layers"], packed["heads"], count, count) / 65535


@pytest.mark.parametrize("weights", ["attention", "norms"])
@pytest.mark.parametrize("mode", ["uniform", "zero", "mean"])
@pytest.mark.parametrize("name", ["classes of a pair", "similarity"])
def test_attention_equals_the_models(name, mode, weights):
    texts, kind = KINDS[name][2], kind_named(name)
    model = kind.subject.model
    found = attention.compute_attention(
        kind, read_query(kind, Question(texts=texts, mode=mode, off=["0.1"])), weights, lambda: None
    )["texts"]
    encodings = encodings_of(kind, texts)
    assert len(found) == (2 if isinstance(model, BertForSentenceEmbedding) else 1)
    means = means_of(kind) if mode == "mean" else None
    for shown, encoding in zip(found, encodings, strict=True):
        for run, heads in (("base", []), ("ablated", ["0.1"])):
            override = ablations.to_overrides(model.config, ablations.ablation(model.config, heads, mode), means)
            batch = {"input_ids": [encoding.input_ids], "token_type_ids": [encoding.token_type_ids]}
            record = model(**batch, overrides=override).record
            expected = record.weights
            if weights == "norms":
                expected = norm_shares(record.weights, record.values, output_products(model))
            assert shown[run]["tokens"] == list(encoding.tokens)
            np.testing.assert_allclose(unpack(shown[run]), np.asarray(expected)[:, 0], atol=2e-5)


def test_without_heads_off_there_is_no_second_run():
    kind = kind_named("classes")
    (found,) = attention.compute_attention(
        kind, read_query(kind, Question(texts=["the cat ran"])), "attention", lambda: None
    )["texts"]
    assert found["ablated"] is None


def test_long_texts_have_no_attention(monkeypatch):
    monkeypatch.setattr(attention, "MOST_WEIGHTS", 2 * 3 * 10**2)
    kind = kind_named("classes")
    query = read_query(kind, Question(texts=["cat " * 9]))
    with pytest.raises(InputError, match="has 11 tokens; attention is shown for at most 10"):
        attention.compute_attention(kind, query, "attention", lambda: None)
    attention.compute_attention(kind, read_query(kind, Question(texts=["cat " * 8])), "attention", lambda: None)
