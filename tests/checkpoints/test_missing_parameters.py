"""Missing parameters are reported, and no task is scored with them unless the user allows it."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bertjax
from bertjax import BertForPreTraining, BertForSequenceClassification
from bertjax.checkpoints.weight_files import CheckpointWarning
from bertjax.cli import main
from bertjax.errors import CheckpointError
from bertjax.jobs.pytorch.parity import check_model
from bertjax.results.page import page_data
from tests.factories import add_tokenizer, make_config, make_encoder, write_lines, write_pairs
from tests.tiny_models import random_model

ADVICE = r"has no classifier.bias, classifier.weight, so .*--allow-new-head"
pytestmark = pytest.mark.filterwarnings("ignore:.*newly initialised:bertjax.checkpoints.CheckpointWarning")


def rewrite(directory, kept):
    """Leave only some tensors in a checkpoint."""
    path = directory / "model.safetensors"
    save_file({name: array for name, array in load_file(path).items() if kept(name)}, path, {"format": "pt"})


@pytest.fixture
def headless(tmp_path):
    """A checkpoint with a classifier in its config and no classifier in its file."""
    model = make_encoder(tmp_path / "headless")
    config = json.loads((model / "config.json").read_text()) | {"architectures": ["BertForSequenceClassification"]}
    (model / "config.json").write_text(json.dumps(config))
    return model


@pytest.fixture
def pairs(tmp_path):
    return {"task": "mrpc", "data": write_pairs(tmp_path / "pairs.tsv", 12), "progress": False}


@pytest.mark.parametrize(
    "call", [bertjax.ablate, bertjax.importance, bertjax.shapley, bertjax.prune, bertjax.interactions]
)
def test_no_task_is_scored_with_a_random_head(headless, pairs, call):
    with pytest.raises(CheckpointError, match=ADVICE):
        call(headless, **pairs)


@pytest.mark.parametrize("call", [bertjax.patch, bertjax.patch_paths])
def test_no_patch_is_scored_with_a_random_head(headless, call):
    contrasts = [{"clean": "the cat sat", "corrupted": "the dog sat"}] * 2
    more = {"receivers": {"queries": ["1.0"]}} if call is bertjax.patch_paths else {}
    with pytest.raises(CheckpointError, match=ADVICE):
        call(headless, contrasts, progress=False, **more)


def test_a_random_head_is_not_compared_with_pytorch(headless):
    with pytest.raises(CheckpointError, match=r"has no classifier.bias, classifier.weight, which PyTorch"):
        check_model(str(headless), "float32", 2)


@pytest.mark.integration
def test_the_command_line_refuses_in_one_line(headless, pairs, tmp_path, capsys):
    options = ["--model", str(headless), "--task", "mrpc", "--data", str(pairs["data"]), "--output"]
    assert main(["ablate", *options, str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"bertjax: error: {headless} has no classifier.bias")
    assert not (tmp_path / "out").exists()
    assert main(["ablate", *options, str(tmp_path / "out"), "--allow-new-head"]) == 0


def test_an_allowed_random_head_is_named_in_the_results(headless, pairs, tmp_path):
    results = bertjax.ablate(headless, **pairs, output=tmp_path / "out", allow_new_head=True)
    names = ["classifier.bias", "classifier.weight"]
    assert results.summary["model"]["new_parameters"] == names
    sentence = "classifier.bias, classifier.weight of the model were not in its checkpoint: they are random"
    page = page_data(bertjax.read_results(tmp_path / "out"))
    for text in (results.sentence, results.sentence_of("accuracy"), page["sentence"]):
        assert sentence in text
    assert ["Not in the checkpoint, random", ", ".join(names)] in [list(fact) for fact in page["facts"]]


def test_roles_need_no_head(headless, pairs):
    results = bertjax.roles(headless, **pairs)
    assert "new_parameters" not in results.summary["model"]
    assert "random" not in results.sentence


def test_a_missing_pooler_that_the_head_reads_counts(tmp_path, pairs):
    model = tmp_path / "model"
    random_model(BertForSequenceClassification, make_config()).save_pretrained(model)
    rewrite(add_tokenizer(model), lambda name: "pooler" not in name)
    with pytest.raises(CheckpointError, match=r"has no bert.pooler.dense.bias, bert.pooler.dense.weight, so"):
        bertjax.ablate(model, **pairs)


def test_unread_parameters_may_be_missing(tmp_path):
    """Masked words read neither pooler nor the next-sentence classifier."""
    model, lines = tmp_path / "model", write_lines(tmp_path / "lines.txt", 6)
    random_model(BertForPreTraining, make_config()).save_pretrained(model)
    add_tokenizer(model)
    full = bertjax.ablate(model, "mlm", data=lines, progress=False)
    rewrite(model, lambda name: "pooler" not in name and "seq_relationship" not in name)
    with pytest.warns(CheckpointWarning, match="newly initialised"):
        found = bertjax.ablate(model, "mlm", data=lines, progress=False)
    np.testing.assert_array_equal(found.outputs["outputs"], full.outputs["outputs"])
    rewrite(model, lambda name: not name.startswith("cls.predictions.transform"))
    with pytest.raises(CheckpointError, match=r"has no cls.predictions.transform.LayerNorm.bias"):
        bertjax.ablate(model, "mlm", data=lines, progress=False)


def test_a_loaded_model_lists_its_new_parameters(headless):
    with pytest.warns(CheckpointWarning, match="newly initialised"):
        model = bertjax.load(headless)
    assert model.new_parameters == ("classifier.bias", "classifier.kernel")
    assert set(model.new_parameters) <= set(model.parameters())
    assert bertjax.BertModel.from_pretrained(headless).new_parameters == ()
