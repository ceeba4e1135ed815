"""Prepared weights are kept as long as the parameters of the model are the same, and no longer."""

import gc
import weakref
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import BertConfig, BertForSequenceClassification, engine
from bertjax import ablations as ab
from bertjax.engine import compiled_steps
from bertjax.engine.sharding import make_mesh
from bertjax.interventions import readouts
from tests.tiny_models import SIZES, encodings, random_model


@pytest.fixture
def model():
    return random_model(BertForSequenceClassification, BertConfig(**SIZES["three heads"]))


@pytest.fixture
def preparations(monkeypatch):
    """The number of times that weights were prepared."""
    count, prepare = [0], compiled_steps._prepare

    def counted(*args):
        count[0] += 1
        return prepare(*args)

    monkeypatch.setattr(compiled_steps, "_prepare", counted)
    return count


def sweep(model, examples):
    found = engine.sweep(model, examples, ab.single_heads(model.config), readouts.logits, progress=False)
    return np.concatenate([found.base[None], found.outputs])


def test_sweeps_of_a_model_share_its_prepared_weights(model, rng, preparations):
    examples = encodings(model.config, rng, [9, 16, 5])
    first = sweep(model, examples)
    assert (sweep(model, examples) == first).all()
    np.testing.assert_allclose(sweep(model, examples[:2]), first[:, :2], atol=1e-5)
    assert preparations == [1]


@pytest.mark.parametrize(
    "of",
    [
        lambda model: model.bert.embeddings.word,
        lambda model: model.bert.encoder.layers[1].attention.query.kernel,
        lambda model: model.bert.encoder.layers[0].attention.output.bias,
        lambda model: model.classifier.kernel,
    ],
    ids=["embeddings", "query", "bias", "classifier"],
)
def test_a_model_with_another_parameter_is_swept_with_that(model, rng, preparations, of):
    examples = encodings(model.config, rng, [9, 16, 5])
    before, old = sweep(model, examples), of(model)[...]
    of(model)[...] = old + jnp.asarray(rng.normal(size=old.shape), old.dtype)
    after = sweep(model, examples)
    assert preparations == [2]
    assert (np.abs(after - before).reshape(len(after), -1).max(axis=1) > 1e-3).all()
    for number, text in enumerate(examples):
        alone = model([text.input_ids], token_type_ids=[text.token_type_ids]).logits[0]
        np.testing.assert_allclose(after[0, number], alone, atol=1e-4)
    of(model)[...] = old
    assert (sweep(model, examples) == before).all()


def test_arrays_that_can_be_written_into_are_read_anew(model, preparations):
    model.classifier.kernel.set_value(np.array(model.classifier.kernel[...]))
    assert compiled_steps.prepare(model, None) is not compiled_steps.prepare(model, None)
    assert preparations == [2]
    model.classifier.kernel.set_value(jnp.asarray(model.classifier.kernel[...]))
    assert compiled_steps.prepare(model, None) is compiled_steps.prepare(model, None)
    assert preparations == [3]


def test_other_computations_and_devices_prepare_weights_again(model, preparations):
    mesh = make_mesh(jax.devices()[:1], 1)
    first = compiled_steps.prepare(model, mesh)
    assert compiled_steps.prepare(model, mesh) is first
    model.numerics = replace(model.numerics, dtype="bfloat16")
    coarse = compiled_steps.prepare(model, mesh)
    assert coarse.layers[0].qkv_kernel.dtype == jnp.bfloat16
    assert preparations == [2]
    other = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    assert compiled_steps.prepare(model, other).layers[0].qkv_kernel.sharding.mesh == other
    assert preparations == [3]


def test_what_is_kept_goes_with_the_model(rng):
    model = random_model(BertForSequenceClassification, BertConfig(**SIZES["three heads"]))
    kept = weakref.ref(compiled_steps.prepare(model, None).layers[0])
    here = weakref.ref(model)
    gc.collect()
    assert kept() is not None
    del model
    gc.collect()
    assert here() is None
    assert kept() is None
