"""The ladder against PyTorch: every component of every model, every head's overrides; the comparison itself."""

import dataclasses

import jax
import numpy as np
import pytest

import bertjax
from bertjax import BertConfig
from bertjax.checkpoints.location import DEFAULT_MODEL, locate
from bertjax.cli import main
from bertjax.interventions import overrides as ov
from bertjax.jobs import parity, torch_reference
from tests.tiny_models import CLASSES, SIZES, arguments

pytestmark = pytest.mark.needs_torch
OTHER_SIZES = sorted(set(SIZES) - {"three heads"})


def saved_by_torch(name: str, config: BertConfig, directory, **changes):
    """A random checkpoint written by `transformers` itself; every parameter is random, biases and norms too."""
    import torch
    import transformers

    torch.manual_seed(int(np.random.SeedSequence().generate_state(1)[0]))
    settings = {**config.to_dict(), **changes, "architectures": None}
    if "num_labels" in changes:
        settings = {key: value for key, value in settings.items() if key not in ("id2label", "label2id")}
    name = "BertModel" if name == "BertForSentenceEmbedding" else name
    model = getattr(transformers, name)(transformers.BertConfig(**settings))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(directory)
    return directory


@pytest.mark.parametrize(
    ("name", "size"),
    [*((name, "three heads") for name in sorted(CLASSES)), *(("BertForPreTraining", size) for size in OTHER_SIZES)],
)
def test_every_component_agrees_in_float64(name, size, tmp_path, rng, x64):
    config = BertConfig(**SIZES[size])
    labels = {"num_labels": 3} if "Classification" in name else {}
    directory = saved_by_torch(name, config, tmp_path, **labels)
    model = CLASSES[name].from_pretrained(directory, dtype="float64")
    reference = torch_reference.load_torch(model, directory)
    for left in (False, True):
        rows = parity.compare(model, reference, arguments(config, rng, left=left))
        assert all(row.tolerance == 1e-10 for row in rows)
        assert [row for row in rows if not row.passed] == []
    assert len(rows) >= 1 + 2 * config.num_hidden_layers + (name != "BertForSentenceEmbedding")


@pytest.mark.parametrize("mode", ["uniform", "zero"])
def test_overrides_of_every_head_agree_in_float64(mode, config, tmp_path, rng, x64):
    directory = saved_by_torch("BertModel", config, tmp_path)
    model = bertjax.BertModel.from_pretrained(directory, dtype="float64")
    rows = parity.compare_overrides(model, torch_reference.load_torch(model, directory), arguments(config, rng), mode)
    assert len(rows) == config.num_hidden_layers * config.num_attention_heads
    assert [row for row in rows if not row.passed] == []


def test_the_comparison_finds_a_difference(small, tmp_path, rng):
    directory = saved_by_torch("BertModel", small, tmp_path)
    model = bertjax.load(directory)
    reference = torch_reference.load_torch(model, directory)
    bias = model.encoder.layers[1].attention.value.bias
    bias[...] = bias[...] + 1e-3
    rows = parity.compare(model, reference, arguments(small, rng))
    failed = [row.component for row in rows if not row.passed]
    assert failed == ["layer 1: output", "pooler"]
    assert not parity.worst(rows, "all").passed


def test_the_comparison_of_overrides_finds_a_difference(small, tmp_path, rng, monkeypatch):
    directory = saved_by_torch("BertModel", small, tmp_path)
    model = bertjax.load(directory)
    monkeypatch.setattr(ov, "zero", lambda config, heads: ov.factor(config, heads, 0.01))
    rows = parity.compare_overrides(model, torch_reference.load_torch(model, directory), arguments(small, rng), "zero")
    assert not any(row.passed for row in rows)


def test_gate_gradients_of_a_real_parameterisation_are_finite(small, tmp_path, rng):
    directory = saved_by_torch("BertForSequenceClassification", small, tmp_path)
    model, call = bertjax.load(directory), arguments(small, rng)
    base = ov.uniform(small, ov.every_head(small), gate=1.0)

    def total(gates):
        return model(**call, overrides=dataclasses.replace(base, weights_gate=gates)).logits.sum()

    assert np.isfinite(jax.grad(total)(base.weights_gate)).all()


def test_the_command_prints_a_table_and_fails_on_a_difference(small, tmp_path, capsys, monkeypatch):
    directory = saved_by_torch("BertForSequenceClassification", small, tmp_path)
    assert main(["parity", "--model", str(directory), "--examples", "3"]) == 0
    printed = capsys.readouterr().out
    assert "layer 1: attention weights" in printed
    assert "pass" in printed
    assert "FAIL" not in printed
    monkeypatch.setitem(parity.TOLERANCES["float32"], "attention weights", 0.0)
    assert main(["parity", "--model", str(directory), "--examples", "3"]) == 1
    assert "FAIL" in capsys.readouterr().out


def test_the_default_model_is_found_without_network():
    assert (locate(DEFAULT_MODEL) / "model.safetensors").is_file()
