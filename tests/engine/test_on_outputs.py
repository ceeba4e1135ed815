"""Outputs of a sweep as they arrive, and sweeps that a callback ends."""

import numpy as np
import pytest

from bertjax import BertConfig, BertForSequenceClassification, ablations, readouts, sweep
from bertjax.engine import compile_sweep
from bertjax.errors import InputError
from tests.tiny_models import SIZES, encodings, random_model

CONFIG = BertConfig(**SIZES["three heads"])
HEADS = ablations.single_heads(CONFIG)


@pytest.fixture(scope="module")
def model():
    return random_model(BertForSequenceClassification, CONFIG)


@pytest.fixture(scope="module")
def texts():
    return encodings(CONFIG, np.random.default_rng(0), [9, 4, 7, 12])


class Stop(Exception):
    """Ends a sweep."""


def test_all_outputs_arrive_once(model, texts):
    found = np.full((len(HEADS) + 1, len(texts), 2), np.nan)
    layers = []

    def receive(indices, examples, outputs):
        assert outputs.shape == (len(indices), len(examples), 2)
        rows = np.array(indices)[:, None] + 1
        assert np.isnan(found[rows, examples]).all()
        found[rows, examples] = outputs
        layers.extend(HEADS[index].changes[0].layer for index in indices if index >= 0)

    result = sweep(model, texts, HEADS, readouts.logits, progress=False, on_outputs=receive)
    np.testing.assert_array_equal(found, np.concatenate([result.base[None], result.outputs]))
    assert layers == sorted(layers, reverse=True)  # a layer is complete before the one below it begins


def test_equal_ablations_arrive_together(model, texts):
    seen = []
    same = [HEADS[0], HEADS[0], ablations.ablation(CONFIG, [])]
    sweep(model, texts[:1], same, readouts.logits, progress=False, on_outputs=lambda *one: seen.append(sorted(one[0])))
    assert sorted(seen) == [[-1, 2], [0, 1]]


@pytest.mark.parametrize("name", ["on_outputs", "progress"])
def test_an_exception_ends_the_sweep(model, texts, name, tmp_path):
    calls = []

    def stop(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise Stop

    with pytest.raises(Stop):
        sweep(model, texts, HEADS, readouts.logits, **{"progress": False, name: stop})
    assert len(calls) == 3
    # A journal is left as by any other end: the same sweep resumes.
    with pytest.raises(Stop):
        sweep(model, texts, HEADS, readouts.logits, journal=tmp_path, **{"progress": False, name: stop_again(calls)})
    resumed = sweep(model, texts, HEADS, readouts.logits, journal=tmp_path, progress=False)
    np.testing.assert_array_equal(resumed.outputs, sweep(model, texts, HEADS, readouts.logits, progress=False).outputs)


def stop_again(calls):
    def stop(*arguments):
        calls.append(arguments)
        if len(calls) > 5:
            raise Stop

    return stop


def test_it_must_be_a_function(model, texts, unchecked):
    with pytest.raises(InputError, match="on_outputs"):
        sweep(model, texts, HEADS, readouts.logits, progress=False, on_outputs=3)


def test_compiling_calls_back(model, texts):
    calls = []
    compile_sweep(model, texts[:1], HEADS, readouts.logits, row_length=12, check=lambda: calls.append(0))
    assert len(calls) == CONFIG.num_hidden_layers
