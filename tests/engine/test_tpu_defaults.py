"""Defaults on a TPU: precision, row lengths, random numbers."""

import json

import jax
import numpy as np
import pytest

from bertjax import BertConfig, BertForSequenceClassification
from bertjax.engine.packing import LANES, STEP, choose_row_length
from bertjax.engine.sizes import choose_sizes
from bertjax.engine.sweep_input import make_sweep_input
from bertjax.interventions import readouts
from bertjax.interventions.ablations import single_heads
from bertjax.jobs.settings import for_this_device
from experiments.training.trainer import dropout_key
from tests.job_factories import settings_of
from tests.tiny_models import SIZES, encodings, random_model


@pytest.fixture(params=["cpu", "tpu"])
def platform(request, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: request.param)
    return request.param


def test_bfloat16_is_the_default_there_alone(platform):
    assert for_this_device(settings_of()).precision == {"cpu": "float32", "tpu": "bfloat16"}[platform]
    for chosen in ("float32", "bfloat16"):
        assert for_this_device(settings_of(precision=chosen)).precision == chosen


def test_tpu_attention_is_the_kernel_for_supported_models(monkeypatch, tmp_path):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mpnet"}))
    assert for_this_device(settings_of()).attention == "pallas"
    assert for_this_device(settings_of(precision="float32")).attention == "explicit"
    assert for_this_device(settings_of(engine="reference")).attention == "explicit"
    assert for_this_device(settings_of(model=str(tmp_path))).attention == "explicit"
    assert for_this_device(settings_of(attention="fused")).attention == "fused"
    # Loading a model reports its errors; results of a missing model can be shown.
    assert for_this_device(settings_of(model=str(tmp_path / "gone"))).attention == "pallas"


@pytest.mark.parametrize("longest", [9, 127, 128, 129, 400])
def test_rows_are_as_wide_as_its_registers(rng, longest):
    lengths = np.append(rng.integers(2, longest, 50), longest).astype(np.int32)
    narrow, wide = (choose_row_length(lengths, 768, 3072, step=step) for step in (STEP, LANES))
    assert narrow % STEP == 0
    assert wide % 128 == 0
    assert wide >= longest


def test_the_engine_takes_such_rows(rng, platform):
    config = BertConfig(**{**SIZES["three heads"], "max_position_embeddings": 64})
    model, texts = random_model(BertForSequenceClassification, config), encodings(config, rng, [9, 30, 5])
    sweep_input = make_sweep_input(model, texts, single_heads(config), readouts.logits)
    sizes = choose_sizes(sweep_input, memory=10**10)
    assert (sizes.row_length % 128 == 0) == (platform == "tpu")


def test_dropout_uses_the_chips_random_numbers(platform):
    assert jax.random.key_impl(dropout_key(3)) == {"cpu": "threefry2x32", "tpu": "rbg"}[platform]
    assert jax.random.bernoulli(dropout_key(3), 0.5, (1000,)).mean() == pytest.approx(0.5, abs=0.1)
