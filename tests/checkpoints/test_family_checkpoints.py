"""Other forms of checkpoints: half precision, shards, old names, tied tensors, prefixes."""

import json
import shutil
import warnings

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bertjax
from bertjax import BertForPreTraining
from bertjax.checkpoints import FAMILIES, architecture, tensor_names
from bertjax.checkpoints.weight_files import CheckpointWarning
from bertjax.errors import CheckpointError
from bertjax.jobs import parity, torch_reference
from bertjax.models.task_models import CLASSES, load_for
from tests.factories import add_tokenizer, make_config, write_lines
from tests.family_models import DISTINCT, HEADS, arguments, saved_by_torch, sometimes
from tests.tiny_models import random_model, tree_equal

pytestmark = pytest.mark.needs_torch


def load(directory):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return bertjax.load(directory)


@pytest.fixture(scope="module", params=sometimes(DISTINCT, "electra", "deberta-v2", "modernbert"))
def saved(request, tmp_path_factory):
    """A masked-LM checkpoint of a family, its tensors, and its model."""
    directory = saved_by_torch(request.param, architecture.WORDS, tmp_path_factory.mktemp(request.param))
    return FAMILIES[request.param], directory, load_file(directory / "model.safetensors"), load(directory)


def rewritten(saved, tmp_path, tensors):
    """The same checkpoint with other tensors."""
    shutil.copy(saved[1] / "config.json", tmp_path)
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, tmp_path / "model.safetensors")
    return tmp_path


def test_half_precision_is_read_without_conversion(saved, tmp_path):
    """One of its two forms for each family."""
    dtype = (np.float16, ml_dtypes.bfloat16)[DISTINCT.index(saved[0].model_type) % 2]
    coarse = load(rewritten(saved, tmp_path, {name: array.astype(dtype) for name, array in saved[2].items()}))
    for name, value in saved[3].parameters().items():
        assert np.array_equal(np.asarray(value).astype(dtype).astype(np.float32), coarse.parameters()[name])


def test_shards_are_read_as_one_file(saved, tmp_path):
    import torch
    import transformers

    cls = getattr(transformers, saved[0].heads[architecture.WORDS].architecture)
    cls.from_pretrained(saved[1], dtype=torch.float32).save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert tree_equal(load(tmp_path), saved[3])


def test_old_names_and_prefixes_mean_the_same(saved, tmp_path):
    """Gamma and beta of norms, PyTorch's DataParallel, and a tied decoder that is in the file."""
    family, _, tensors, model = saved
    old = dict(tensors)
    for name in tensors:
        stem, _, end = name.rpartition(".")
        if "norm" in stem.lower():
            old[f"{stem}.{'gamma' if end == 'weight' else 'beta'}"] = old.pop(name)
    decoder = family.heads[architecture.WORDS].decoder
    old[decoder] = tensors[tensor_names.word_embeddings(family)]
    assert len(old) > len(tensors) or decoder in tensors
    assert tree_equal(load(rewritten(saved, tmp_path, {f"module.{name}": array for name, array in old.items()})), model)


def test_an_encoder_without_prefix_is_read_by_every_head(saved, tmp_path):
    family, _, tensors, model = saved
    beginning = f"{family.prefix}."
    alone = {name.removeprefix(beginning): array for name, array in tensors.items() if name.startswith(beginning)}
    rewritten(saved, tmp_path, alone)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": None}))
    body = bertjax.BertModel.from_pretrained(tmp_path, add_pooling_layer=False)
    assert tree_equal(body, model.bert)
    of_body = {name: value for name, value in model.parameters().items() if name.startswith("bert.")}
    assert len(of_body) == len(body.parameters())
    for task in family.heads.keys() - {architecture.BODY}:
        with pytest.warns(CheckpointWarning, match="not in the checkpoint, newly initialised: "):
            found = CLASSES[task].from_pretrained(tmp_path).parameters()
        assert all(np.array_equal(found[name], value) for name, value in of_body.items()), task
        assert {name.split(".")[1] for name in found.keys() - of_body.keys() if name.startswith("bert.")} <= {"pooler"}
    broken = dict(sorted(alone.items())[:-1])
    with pytest.raises(CheckpointError, match=r"has no tensor|has only|layers"):
        bertjax.BertModel.from_pretrained(rewritten(saved, tmp_path, broken), add_pooling_layer=False)


BY_TASK = [task for task in CLASSES if task not in (architecture.BODY, architecture.NEXT, architecture.REPLACED)]
OFTEN = [("bert", architecture.WORDS), ("roberta", architecture.SEQUENCE), ("albert", architecture.WORDS)]
OFTEN += [("distilbert", architecture.WORDS), ("distilbert", architecture.TOKENS), ("bert", architecture.ANSWERS)]


@pytest.mark.parametrize(
    ("name", "task"),
    [
        pytest.param(name, task, marks=() if (name, task) in OFTEN else pytest.mark.slow)
        for name, task in HEADS
        if task in BY_TASK
    ],
)
def test_the_task_chooses_a_head_that_the_config_does_not_name(name, task, tmp_path, rng, x64):
    """Old checkpoints have no `architectures`, PyTorch's format, gamma and beta; outputs match transformers."""
    import torch

    directory = saved_by_torch(name, task, tmp_path)
    reference = torch_reference.load_torch(bertjax.load(directory, dtype="float64"), directory)
    config = json.loads((directory / "config.json").read_text())
    del config["architectures"]
    (directory / "config.json").write_text(json.dumps(config))
    model = load_for([CLASSES[task]], directory, dtype="float64")
    assert type(model) is CLASSES[task]
    call = arguments(model.config, rng)
    rows = parity.compare(model, reference, call)
    assert any("logits" in row.component for row in rows)
    assert [row for row in rows if not row.passed] == []
    tensors = load_file(directory / "model.safetensors")
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor for name, tensor in tensors.items()}
    old = {name.replace("LayerNorm.bias", "LayerNorm.beta"): torch.from_numpy(old[name]) for name in old}
    torch.save(old, directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()
    assert tree_equal(load_for([CLASSES[task]], directory, dtype="float64"), model)


def test_a_part_of_another_head_is_not_used(tmp_path):
    """DistilBERT's token classifier has the names of a part of its text classifier."""
    directory = saved_by_torch("distilbert", architecture.SEQUENCE, tmp_path)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"architectures": None}))
    found = load_for([CLASSES[architecture.TOKENS]], directory)
    assert (found.task, found.new_parameters) == (architecture.BODY, ())
    assert load_for([CLASSES[architecture.SEQUENCE]], directory).task == architecture.SEQUENCE


@pytest.mark.filterwarnings("ignore:.*not used:bertjax.checkpoints.CheckpointWarning")
def test_a_checkpoint_without_architectures_is_swept(tmp_path):
    """A pre-training checkpoint like SciBERT's: masked words and patches use its head."""
    model, lines = tmp_path / "model", write_lines(tmp_path / "lines.txt", 6)
    random_model(BertForPreTraining, make_config()).save_pretrained(model)
    add_tokenizer(model)
    named = bertjax.ablate(model, "mlm", data=lines, progress=False)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"architectures": None}))
    found = bertjax.ablate(model, "mlm", data=lines, progress=False)
    assert found.summary["model"]["class"] == "BertForMaskedLM"
    np.testing.assert_allclose(found.outputs["outputs"], named.outputs["outputs"], atol=1e-5)
    contrast = {"clean": "the cat [MASK]", "corrupted": "the dog [MASK]", "good": "sat", "bad": "ran"}
    assert bertjax.patch(model, [contrast] * 2, progress=False).summary["model"]["class"] == "BertForMaskedLM"
