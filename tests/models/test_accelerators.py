"""Behaviour of a sweep on accelerators, as far as it can be tested on a CPU."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import BertConfig, BertForSequenceClassification, Numerics, engine
from bertjax import ablations as ab
from bertjax.engine import blocks, choose_attention, compiled_steps, sizes
from bertjax.interventions import readouts
from bertjax.models import ops
from tests.attention_reference import lower
from tests.tiny_models import SIZES, encodings, random_model

NARROW = Numerics("bfloat16", "default", narrow=True)


@pytest.fixture(scope="module")
def config():
    return BertConfig(**SIZES["three heads"])


def sweep(model, examples):
    found = engine.sweep(model, examples, ab.single_heads(model.config), readouts.logits, progress=False)
    return np.concatenate([found.base[None], found.outputs])


def test_only_inputs_of_products_are_rounded(rng):
    left, right = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((5, 300), (300, 7)))

    def product(numerics, passed_on):
        return ops.contract("ij,jk->ik", left, right, numerics, passed_on=passed_on)

    exact = np.asarray(left.astype("bfloat16"), np.float64) @ np.asarray(right.astype("bfloat16"), np.float64)
    for numerics in (NARROW, replace(NARROW, narrow=False)):
        for passed_on in (False, True):
            found = product(numerics, passed_on)
            rounded = passed_on and numerics.narrow
            assert found.dtype == jnp.float32
            # The sum inside is float32 either way: only its end is rounded, to 8 bits.
            # (A sum of 300 terms of size 1 is exact to 1e-4, however small it is itself.)
            assert (np.abs(found - exact) <= (2**-8 if rounded else 0) * np.abs(exact) + 1e-4).all()
            assert bool((found == found.astype("bfloat16").astype("float32")).all()) == rounded
            text = lower(lambda numerics=numerics, passed_on=passed_on: product(numerics, passed_on), "tpu")
            assert ("-> tensor<5x7xbf16>" in text) == rounded


def test_narrow_changes_nothing_in_float32(rng):
    wide = Numerics(narrow=True)
    left, right = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((5, 30), (30, 7)))
    assert (ops.dense(left, right, None, wide) == ops.dense(left, right, None, Numerics())).all()


@pytest.mark.parametrize("form", ["explicit", "pallas"])
def test_a_narrow_sweep_has_the_accuracy_of_bfloat16(config, rng, form):
    config = replace(config, hidden_size=24)  # heads of eight
    examples = encodings(config, rng, [9, 16, 5, 12] * 5)
    exact = sweep(random_model(BertForSequenceClassification, config), examples)
    near = []
    for narrow in (False, True):
        coarse = random_model(BertForSequenceClassification, config, dtype="bfloat16", attention=form)
        coarse.numerics = replace(coarse.numerics, narrow=narrow)
        near.append(np.abs(sweep(coarse, examples) - exact).max())
    assert 0 < near[0] < 0.05 * np.abs(exact).max()
    assert near[1] != near[0]  # it does round more
    assert near[1] < 3 * near[0]


def test_a_complete_block_is_not_copied(config, rng, monkeypatch):
    model, examples = random_model(BertForSequenceClassification, config), encodings(config, rng, [9, 16, 5, 12])
    gathered, gather = [0], compiled_steps.gather

    def counted(*args):
        gathered[0] += 1
        return gather(*args)

    monkeypatch.setattr(compiled_steps, "gather", counted)
    expected = sweep(model, examples)
    assert gathered[0] == 0
    monkeypatch.setattr(blocks, "common_block", lambda steps: None)
    assert (sweep(model, examples) == expected).all()
    assert gathered[0] > 0


def test_slots_of_several_blocks_are_gathered(config):
    root = engine.make_plan(config, ab.single_heads(config)).root
    one, other = jnp.zeros((3, 1, 1, 1)), jnp.zeros((3, 1, 1, 1))

    def steps(*places):
        return [blocks.Step(blocks.Slot(block, index, root, 0), root, ()) for block, index in places]

    assert blocks.common_block(steps((one, 0), (one, 1))) is one
    for several in ([(one, 1), (one, 0)], [(one, 0), (other, 1)], [(one, 0), (one, 0)], [(one, 1)]):
        assert blocks.common_block(steps(*several)) is None


def test_models_of_one_structure_share_programs(config):
    first, second = (random_model(BertForSequenceClassification, config) for _ in range(2))
    other = random_model(BertForSequenceClassification, replace(config, num_attention_heads=1))
    structures = [compiled_steps.take_apart(model)[0] for model in (first, second, other)]
    assert structures[0] == structures[1]
    assert hash(structures[0]) == hash(structures[1])
    assert structures[0] != structures[2]
    assert structures[0] != first
    again = structures[0].with_parameters(compiled_steps.take_apart(second)[1])
    assert jax.tree.structure(again) == jax.tree.structure(second)


@pytest.mark.parametrize(
    ("backend", "dtype", "form"),
    [
        ("gpu", "bfloat16", "fused"),
        ("gpu", "float16", "fused"),
        ("gpu", "float32", "explicit"),
        ("tpu", "bfloat16", "pallas"),
        ("tpu", "float32", "explicit"),
        ("cpu", "bfloat16", "explicit"),
    ],
)
def test_auto_attention_is_the_fastest_for_device_and_dtype(monkeypatch, backend, dtype, form):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert choose_attention("auto", Numerics(dtype)) == form
    assert choose_attention("auto", Numerics(dtype), BertConfig()) == form
    with_distances = BertConfig.from_dict({"model_type": "mpnet"})
    of_odd_size = BertConfig(hidden_size=96, num_attention_heads=2)
    for other in (with_distances, of_odd_size):
        assert choose_attention("auto", Numerics(dtype), other) == {"pallas": "explicit"}.get(form, form)
    assert choose_attention("pallas", Numerics(dtype)) == "pallas"
    assert choose_attention("auto", Numerics(dtype, attention="pallas")) == "pallas"


def test_steps_hold_more_tokens_with_more_memory(config, monkeypatch):
    for limit, tokens in ((15 * 10**9, 65_536), (40 * 10**9, 131_072)):
        monkeypatch.setattr(sizes, "_device_stats", lambda limit=limit: {"bytes_in_use": 0, "bytes_limit": limit})
        with monkeypatch.context() as there:
            there.setattr(jax, "default_backend", lambda: "gpu")
            assert sizes.default_tokens(config) == tokens
            there.setattr(sizes, "_device_stats", lambda: None)
            assert sizes.default_tokens(config) == 65_536
