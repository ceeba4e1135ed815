"""Activations of packed texts against the models' records, of each text by itself."""

import numpy as np
import pytest

import bertjax
from bertjax.data import Encoding
from bertjax.errors import InputError
from bertjax.representations import activations, compute_activations, words_of_pieces
from tests.family_models import config_of
from tests.tiny_models import SIZES, encodings, random_model

LENGTHS = (7, 3, 11, 5, 11, 2)


def tiny_model(**options):
    return random_model(bertjax.BertModel, bertjax.BertConfig(**SIZES["five heads"]), seed=3, **options)


def record_of(model, text):
    """The record of a text by itself."""
    output = model(input_ids=[text.input_ids], token_type_ids=[text.token_type_ids])
    return output.record


def assert_records(model, texts, found, dtype="float32"):
    tolerance = {"rtol": 1e-4, "atol": 2e-5} if dtype == "float32" else {"rtol": 1e-9, "atol": 1e-10}
    for index, text in enumerate(texts):
        units = found.units_of([index])
        record = record_of(model, text)
        np.testing.assert_allclose(found.hidden_states[:, units], record.hidden_states[:, 0], **tolerance)
        if found.head_outputs is not None:
            np.testing.assert_allclose(found.head_outputs[:, units], record.head_outputs[:, 0], **tolerance)


@pytest.mark.parametrize("tokens_at_once", [None, 16])
def test_every_layer_and_head_agrees_with_the_model(tokens_at_once, rng):
    model = tiny_model()
    texts = encodings(model.config, rng, LENGTHS)
    found = compute_activations(model, texts, heads=True, tokens_at_once=tokens_at_once)
    assert found.starts.tolist() == [0, *np.cumsum(LENGTHS)]
    assert found.texts.tolist() == np.repeat(np.arange(len(LENGTHS)), LENGTHS).tolist()
    assert_records(model, texts, found)


@pytest.mark.parametrize("family", ["albert", "deberta-v2", "modernbert"])
def test_shared_disentangled_and_windowed_layers_agree(family, rng):
    model = random_model(bertjax.BertModel, config_of(family, 0), seed=1)
    texts = encodings(model.config, rng, LENGTHS)
    assert_records(model, texts, compute_activations(model, texts, heads=True))


def test_removed_heads_have_outputs_of_zero(tmp_path, rng):
    whole = tiny_model()
    layers, heads = whole.config.num_hidden_layers, whole.config.num_attention_heads
    gone = [(0, 1), *((layers - 1, head) for head in range(heads))]
    whole.save_pretrained(tmp_path, without=gone)
    model = bertjax.BertModel.from_pretrained(tmp_path)
    texts = encodings(model.config, rng, LENGTHS)
    found = compute_activations(model, texts, heads=True)
    zero = np.array([[not outputs.any() for outputs in layer.swapaxes(0, 1)] for layer in found.head_outputs])
    assert sorted(map(tuple, np.argwhere(zero).tolist())) == sorted(gone)
    for index, text in enumerate(texts):
        states = record_of(model, text).hidden_states[:, 0]
        np.testing.assert_allclose(found.hidden_states[:, found.units_of([index])], states, rtol=1e-4, atol=2e-5)


def test_units_are_means_of_their_tokens(rng):
    model = tiny_model()
    texts = encodings(model.config, rng, (6, 4))
    units = [np.array([-1, 0, 1, 1, 0, -1]), np.array([2, 0, 1, 0])]
    found, whole = compute_activations(model, texts, units=units), compute_activations(model, texts)
    states = whole.hidden_states
    expected = [states[:, [1, 4]].mean(1), states[:, [2, 3]].mean(1)]
    expected += [states[:, [7, 9]].mean(1), states[:, 8], states[:, 6]]
    assert found.starts.tolist() == [0, 2, 5]
    np.testing.assert_allclose(found.hidden_states, np.stack(expected, axis=1), rtol=1e-5, atol=1e-6)


def test_large_activations_are_on_disk_and_equal(rng, tmp_path, monkeypatch):
    model = tiny_model()
    texts = encodings(model.config, rng, LENGTHS)
    in_memory = compute_activations(model, texts)
    monkeypatch.setattr(activations, "memory_left", lambda: 1000)
    on_disk = compute_activations(model, texts, directory=tmp_path)
    assert isinstance(on_disk.hidden_states, np.memmap)
    assert not isinstance(in_memory.hidden_states, np.memmap)
    np.testing.assert_array_equal(on_disk.hidden_states, in_memory.hidden_states)
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_texts(rng):
    model, calls = tiny_model(), []
    texts = encodings(model.config, rng, LENGTHS)
    compute_activations(model, texts, tokens_at_once=16, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (6.0, 6.0)
    assert len(calls) > 1


def test_words_are_numbered_among_those_with_pieces():
    text = Encoding((1, 5, 6, 7, 2), (0,) * 5, ("",) * 5, ((0, 0),) * 5, False, word_ids=(None, 0, 0, 2, None))
    assert words_of_pieces(text).tolist() == [-1, 0, 0, 1, -1]


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ([[0, 1, 2]], "there are units for 1 texts, but there are 2 texts"),
        ([[0, 1, 2], [0, 2]], "units of text 1 must be integers"),
        ([[0, 1], [0, 1]], "units of text 0 must be integers"),
        ([[0.0, 1.0, 2.0], [0, 1]], "units of text 0 must be integers"),
    ],
)
def test_units_that_do_not_fit_are_refused(units, message, rng, unchecked):
    model = tiny_model()
    with pytest.raises(InputError, match=message):
        compute_activations(model, encodings(model.config, rng, (3, 2)), units=units)
