"""Sweeps to compare with full forward passes: models and readouts, drawn sets of changes, and the expected outputs."""

import functools

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from bertjax import (
    BertConfig,
    BertForMaskedLM,
    BertForSentenceEmbedding,
    BertForSequenceClassification,
    BertModel,
    collate,
)
from bertjax.engine import reference
from bertjax.interventions import MODES, readouts
from bertjax.interventions import ablations as ab
from bertjax.interventions import overrides as ov
from bertjax.models import SITES
from tests.family_models import config_of
from tests.tiny_models import SIZES, random_model

CLOSE = {"float32": 2e-5, "float64": 1e-10}


def pooled(output):
    return output.pooler_output


def word_logits_of_first(output):
    return output.logits[:, 0]


def sum_over_tokens(output):
    return output.last_hidden_state[:, 0] * 1.0


READOUTS = {
    "logits": (BertForSequenceClassification, readouts.logits, {}),
    "pooled": (BertModel, pooled, {}),
    "mean": (BertForSentenceEmbedding, readouts.sentence_embedding, {}),
    "cls": (BertForSentenceEmbedding, readouts.sentence_embedding, {"pooling": "cls"}),
    "words": (BertForMaskedLM, word_logits_of_first, {}),
    "hidden": (BertModel, sum_over_tokens, {}),
}


@functools.cache
def model_of(size, readout, dtype):
    cls, _, options = READOUTS[readout]
    return random_model(cls, BertConfig(**SIZES[size]), dtype, **options)


def reference_outputs(model, examples, ablations, readout, means=None, sources=None, spans=None):
    """Every ablation as a full forward pass of all examples, padded."""
    source = None if sources is None else model(**collate(sources))
    if spans is not None:
        longest = max(map(len, spans))
        spans = np.array([[*span, *[-1] * (longest - len(span))] for span in spans])
    overrides = ov.stack([ab.to_overrides(model.config, one, means, source, spans) for one in ablations])
    return reference.run(model, model.inputs(**collate(examples)), overrides, readout)


def change_sets(config, spans):
    """Sets of heads and other places in mixed modes, of any size, some of them alike: of each its mode and share.

    Args:
        spans: at how many spans of tokens a change may act; 0 for everywhere alone.
    """
    heads = [(layer, head) for layer in range(config.num_hidden_layers) for head in range(config.num_attention_heads)]
    shares, numbers = st.sampled_from([1.0, 0.3]), st.integers(0, max(0, spans - 1))
    at = st.frozensets(numbers, max_size=2).map(tuple) if spans else st.just(())
    of_heads = st.tuples(st.sampled_from(sorted(MODES)), shares, at)
    elsewhere = st.tuples(st.sampled_from(["patched", "zero"]), shares, at)
    outputs = [(*head, "head_outputs") for head in heads]
    others = [
        (layer, head, place)
        for layer, head in heads
        for place in ab.SWEPT
        if place != "head_outputs" and (SITES[place].of_heads or not head)
    ]
    return st.lists(
        st.builds(
            lambda first, second: {**first, **second},
            st.dictionaries(st.sampled_from(outputs), of_heads, max_size=len(heads)),
            st.dictionaries(st.sampled_from(others), elsewhere, max_size=3),
        ),
        min_size=1,
        max_size=9,
    )


def draw_spans(rng, lengths):
    """The spans of texts; the last span occurs in each."""
    return [*(rng.integers(-1, 3, length) for length in lengths[:-1]), np.full(lengths[-1], 2)]


def change_of(layer, head, place, mode, share, at):
    return ab.Change(layer, head, mode, share, place, at)


def sum_squared_cls_weights(attentions, keep):
    """The sum of squares of [CLS]'s weights, without padding."""
    return jnp.moveaxis((attentions[:, :, :, 0] ** 2).sum(-1), 1, 0)


FAMILY_READOUTS = {
    "logits": (BertForSequenceClassification, readouts.logits, {}),
    "mean": (BertForSentenceEmbedding, readouts.sentence_embedding, {}),
    "words": (BertForMaskedLM, word_logits_of_first, {}),
    "hidden": (BertModel, sum_over_tokens, {}),
}


@functools.cache
def family_model(family, size, readout, dtype):
    cls, _, options = FAMILY_READOUTS[readout]
    return random_model(cls, config_of(family, size), dtype, **options)
