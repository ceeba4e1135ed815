"""Log-probabilities and ranks of words in a sweep, and readouts that take targets."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import BertForMaskedLM, BertForSequenceClassification
from bertjax.engine import run as engine
from bertjax.errors import InputError, OutputError
from bertjax.interventions import ablations as ab
from bertjax.interventions import readouts
from bertjax.interventions.ablations import to_overrides
from tests.family_models import config_of, sometimes
from tests.tiny_models import encodings, largest_difference, random_model

LENGTHS, WANTED = [7, 3, 11, 5, 2, 9], 2


def words_of(config, rng):
    """Texts, two tokens of each, and the target words there."""
    texts = encodings(config, rng, LENGTHS)
    at = np.array([rng.integers(0, length, WANTED) for length in LENGTHS])
    return texts, at, rng.integers(0, config.vocab_size, at.shape)


def expected_words(model, text, override, at, words):
    """By definition, from all logits of one text."""
    inputs = {"input_ids": np.array([text.input_ids]), "token_type_ids": np.array([text.token_type_ids])}
    logits = np.asarray(model(**inputs, overrides=override).logits[0], np.float64)
    found = []
    for place, word in zip(at, words, strict=True):
        shares = np.exp(logits[place]) / np.exp(logits[place]).sum()
        found.append((np.log(shares[word]), 1 + (logits[place] > logits[place, word]).sum()))
    return np.array(found)


@pytest.mark.parametrize(
    "family", sometimes(["bert", "roberta", "albert", "electra", "deberta-v2", "modernbert"], "bert", "modernbert")
)
def test_words_are_those_of_all_logits(family, rng, x64):
    config = config_of(family)
    model = random_model(BertForMaskedLM, config, "float64")
    texts, at, words = words_of(config, rng)
    sets = [*ab.single_heads(config), *ab.whole_layers(config, "zero")]
    found = engine.sweep(model, texts, sets, readouts.words, at=at, targets=words, row_length=16, tokens_at_once=48)
    assert found.outputs.shape == (len(sets), len(texts), WANTED, 2)
    for outputs, ablation in zip([found.base, *found.outputs], [None, *sets], strict=True):
        override = None if ablation is None else to_overrides(config, ablation)
        for number, text in enumerate(texts):
            expected = expected_words(model, text, override, at[number], words[number])
            assert largest_difference(outputs[number, :, 0], expected[:, 0]) < 1e-9
            assert outputs[number, :, 1].tolist() == expected[:, 1].tolist()
    assert largest_difference(found.outputs[0], found.base) > 1e-3


def probability_of(output, label):
    return jnp.take_along_axis(jax.nn.softmax(output.logits), label[:, None], axis=1)[:, 0]


def probability_by_token(output, weights):
    return (output.last_hidden_state[..., 0] * weights[:, : output.last_hidden_state.shape[1]]).sum(1)


def test_a_readout_of_the_first_token_takes_targets(small, rng):
    """The last layer is then computed at [CLS] alone."""
    model = random_model(BertForSequenceClassification, small)
    texts, heads = encodings(small, rng, LENGTHS), ab.single_heads(small)
    labels = rng.integers(0, 2, len(texts))
    found = engine.sweep(model, texts, heads, probability_of, targets=labels, row_length=16)
    logits = engine.sweep(model, texts, heads, readouts.logits, row_length=16).outputs
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert largest_difference(found.outputs, shares[:, np.arange(len(texts)), labels]) < 1e-6


def test_a_readout_of_all_tokens_takes_targets(small, rng):
    model = random_model(BertForSequenceClassification, small)
    texts, heads = encodings(small, rng, LENGTHS), ab.single_heads(small)
    weights = rng.normal(size=(len(texts), max(LENGTHS))).astype(np.float32)
    weights[np.arange(max(LENGTHS))[None] >= np.array(LENGTHS)[:, None]] = 0
    found = engine.sweep(model, texts, heads, probability_by_token, targets=weights, row_length=16)
    states = engine.sweep(model, texts, heads, readouts.hidden_state, row_length=16).outputs
    assert largest_difference(found.outputs, (states[..., 0] * weights).sum(-1)) < 1e-5


def test_a_sweep_of_other_targets_is_another_sweep(small, rng, tmp_path):
    model, inputs = random_model(BertForMaskedLM, small), words_of(small, rng)
    texts, at, words = inputs
    heads, journal = ab.single_heads(small)[:2], tmp_path / "journal"
    options = {"at": at, "row_length": 16}
    found = engine.sweep(model, texts, heads, readouts.words, targets=words, journal=journal, **options)
    again = engine.sweep(model, texts, heads, readouts.words, targets=words, journal=journal, **options)
    assert found.outputs.tobytes() == again.outputs.tobytes()
    with pytest.raises(OutputError, match="targets"):
        engine.sweep(model, texts, heads, readouts.words, targets=words + 1, journal=journal, **options)


def test_targets_that_do_not_fit_are_refused(small, rng):
    model, (texts, at, words) = random_model(BertForMaskedLM, small), words_of(small, rng)
    heads = ab.single_heads(small)[:1]
    with pytest.raises(InputError, match=r"targets have shape \(5, 2\), but there are 6 examples"):
        engine.sweep(model, texts, heads, readouts.words, at=at, targets=words[:5])
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    with pytest.raises(InputError, match="`targets` needs examples of a single text"):
        engine.sweep(model, pairs, heads, readouts.words, combine=lambda a, b: a, targets=words[:3])
    with pytest.raises(InputError, match=r"the readout needs targets as its second argument: give targets="):
        engine.sweep(model, texts, heads, readouts.words, at=at)
    with pytest.raises(InputError, match=r"the readout takes only a model's output: leave out targets="):
        engine.sweep(model, texts, heads, readouts.logits, targets=words)
    with pytest.raises(InputError, match="targets must be an array of numbers"):
        engine.sweep(model, texts, heads, readouts.words, at=at, targets=["a"] * 6)


def test_words_as_likely_as_the_target_do_not_lower_its_rank(small, rng):
    model, ids = random_model(BertForMaskedLM, small), rng.integers(0, small.vocab_size, (2, 3))
    logits = np.zeros((2, 3, small.vocab_size), np.float32)
    logits[1, :, :2] = 1
    found = np.asarray(readouts.words(replace(model(ids), logits=jnp.asarray(logits)), jnp.full((2, 3), 4, jnp.int32)))
    assert found[..., 1].tolist() == [[1] * 3, [3] * 3]
    assert largest_difference(found[0, :, 0], -np.log(small.vocab_size)) < 1e-6
