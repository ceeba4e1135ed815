"""Saving a checkpoint replaces only files that bertjax saved, and removes its earlier files of another kind."""

import json

import pytest

import bertjax
from bertjax import BertForSentenceEmbedding, BertForSequenceClassification, BertModel, Tokenizer
from bertjax.cli import main
from bertjax.errors import OutputError
from tests.factories import make_classifier, make_config, write_pairs
from tests.tiny_models import random_model

MODEL = {"config.json", "model.safetensors"}
TOKENIZER = {"tokenizer.json", "tokenizer_config.json"}
SENTENCES = {"modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json"}
LIST = {"bertjax.json"}


@pytest.fixture
def classifier():
    return random_model(BertForSequenceClassification, make_config())


@pytest.fixture
def tokenizer(tmp_path_factory):
    return Tokenizer.from_pretrained(make_classifier(tmp_path_factory.mktemp("made") / "model"))


def test_hidden_files_do_not_count(classifier, tokenizer, tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitattributes").write_text("mine")
    classifier.save_pretrained(tmp_path, tokenizer)
    assert (tmp_path / ".gitattributes").read_text() == "mine"


def names(directory):
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "pytorch_model.bin", "summary.json"])
def test_a_directory_of_something_else_is_refused(name, classifier, tokenizer, tmp_path, capsys):
    model = make_classifier(tmp_path / "model")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    embedder = random_model(BertForSentenceEmbedding, make_config())
    for save in (
        lambda: classifier.save_pretrained(tmp_path / "out"),
        lambda: classifier.save_pretrained(tmp_path / "out", tokenizer),
        lambda: embedder.save_pretrained(tmp_path / "out", tokenizer),
        lambda: tokenizer.save_pretrained(tmp_path / "out"),
    ):
        with pytest.raises(OutputError, match="is not empty, and is not a checkpoint that bertjax saved"):
            save()
    for more in ([], ["--overwrite"], ["--smaller"]):
        command = ["remove-heads", "--model", str(model), "--heads", "0.0", "--output", str(tmp_path / "out"), *more]
        assert main(command) == 2
        assert "is not a checkpoint that bertjax saved" in capsys.readouterr().err
    assert names(tmp_path / "out") == {name}
    assert (tmp_path / "out" / name).read_text() == "mine"


@pytest.mark.needs_torch
def test_a_checkpoint_of_transformers_is_not_replaced(classifier, tokenizer, tmp_path):
    import transformers

    config = transformers.BertConfig(
        vocab_size=31, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=7
    )
    transformers.BertModel(config).save_pretrained(tmp_path / "theirs")
    before = (tmp_path / "theirs" / "model.safetensors").read_bytes()
    for save in (classifier.save_pretrained, tokenizer.save_pretrained):
        with pytest.raises(OutputError, match="is not a checkpoint that bertjax saved"):
            save(tmp_path / "theirs")
    assert (tmp_path / "theirs" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 1, 0), (1, 0, 1)])
def test_model_and_tokenizer_are_saved_in_either_order(order, classifier, tokenizer, tmp_path):
    for part in order:
        (classifier, tokenizer)[part].save_pretrained(tmp_path / "out")
    assert names(tmp_path / "out") == MODEL | TOKENIZER | LIST
    assert Tokenizer.from_pretrained(tmp_path / "out").digest == tokenizer.digest
    assert bertjax.load(tmp_path / "out").class_name == "BertForSequenceClassification"


def test_earlier_files_of_another_kind_are_removed(classifier, tokenizer, tmp_path):
    embedder = random_model(BertForSentenceEmbedding, make_config())
    embedder.save_pretrained(tmp_path / "out", tokenizer)
    assert names(tmp_path / "out") == MODEL | TOKENIZER | SENTENCES | LIST
    (tmp_path / "out" / "README.md").write_text("mine")
    classifier.save_pretrained(tmp_path / "out")
    assert names(tmp_path / "out") == MODEL | TOKENIZER | LIST | {"README.md"}
    assert not (tmp_path / "out" / "1_Pooling").exists()
    assert bertjax.load(tmp_path / "out").class_name == "BertForSequenceClassification"
    embedder.save_pretrained(tmp_path / "out")
    assert bertjax.load(tmp_path / "out").class_name == "BertForSentenceEmbedding"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model-00001-of-00002.safetensors", "modules.json"])
def test_foreign_files_among_saved_ones_are_refused(name, tokenizer, tmp_path):
    embedder = random_model(BertForSentenceEmbedding, make_config())
    random_model(BertModel, make_config()).save_pretrained(tmp_path / "out")
    (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(OutputError, match=f"{name}, which bertjax did not save"):
        embedder.save_pretrained(tmp_path / "out")
    assert names(tmp_path / "out") == MODEL | LIST | {name}
    (tmp_path / "out" / name).unlink()
    (tmp_path / "out" / "vocab.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"vocab\.txt, which bertjax did not save"):
        embedder.save_pretrained(tmp_path / "out", tokenizer)
    assert (tmp_path / "out" / "vocab.txt").read_text() == "mine"


def test_a_failed_save_leaves_the_directory_as_it_was(classifier, tmp_path, monkeypatch):
    def fail(*args, **more):
        raise OutputError("no space")

    monkeypatch.setattr("bertjax.models.pretrained.write_weights", fail)
    for directory in (tmp_path / "new", tmp_path):
        before = names(tmp_path)
        with pytest.raises(OutputError, match="no space"):
            classifier.save_pretrained(directory)
        assert names(tmp_path) == before
    assert not (tmp_path / "new").exists()


def test_a_damaged_list_removes_nothing_outside(classifier, tmp_path):
    classifier.save_pretrained(tmp_path / "out")
    (tmp_path / "mine.txt").write_text("mine")
    listed = {"files": {"model": ["../mine.txt", str(tmp_path / "mine.txt"), "config.json", "model.safetensors"]}}
    (tmp_path / "out" / "bertjax.json").write_text(json.dumps(listed))
    classifier.save_pretrained(tmp_path / "out")
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_heads_are_not_removed_into_results(tmp_path, capsys):
    model, data = make_classifier(tmp_path / "model"), write_pairs(tmp_path / "pairs.tsv", 8)
    bertjax.ablate(model, "mrpc", data=data, mode="zero", output=tmp_path / "results", progress=False)
    before = names(tmp_path / "results")
    shared = ["remove-heads", "--from", str(tmp_path / "results"), "--run", "0.1"]
    assert main([*shared, "--output", str(tmp_path / "results"), "--overwrite"]) == 2
    assert "which is an input" in capsys.readouterr().err
    assert names(tmp_path / "results") == before
    assert main([*shared, "--output", str(tmp_path / "saved")]) == 0
    assert main([*shared, "--output", str(tmp_path / "saved")]) == 2
    assert "already has a checkpoint" in capsys.readouterr().err
    assert main([*shared, "--output", str(tmp_path / "saved"), "--overwrite"]) == 0
