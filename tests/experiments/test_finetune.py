"""Table 1 by its command: initialisations, recipes, saved models, and runs that are added."""

import json
from argparse import Namespace

import numpy as np
import pytest

import bertjax
from bertjax.tasks import load_examples
from experiments import table1_finetuning as finetune
from experiments.shared.run import Run
from experiments.table1_finetuning import main, make_model, read_data
from experiments.training.table import summarise
from tests.factories import make_classifier
from tests.tiny_models import largest_difference

pytestmark = pytest.mark.integration


@pytest.fixture
def command(encoder, glue, tmp_path):
    """The options of a short run."""
    output = tmp_path / "out"
    words = f"--model {encoder} --data {glue} --task mrpc --epochs 3 --batch-size 8 --learning-rate 0.003"
    return [*words.split(), "--output", str(output)], output


def finetune_run(model):
    return Run(Namespace(model=str(model), dropout=0.1), bertjax.load(model))


def options_of(glue):
    return Namespace(data=str(glue), limit=None, hold_out=None, seed=0)


def read_table(output):
    """The table's rows, from what a command left."""
    return summarise(json.loads((output / "numbers.json").read_text())["results"]["runs"])


def test_runs_are_added_and_none_is_repeated(command, monkeypatch):
    arguments, output = command
    assert main([*arguments, "--init", "none", "pretrained"]) == 0
    runs = json.loads((output / "numbers.json").read_text())["results"]["runs"]
    assert [(run["init"], len(run["epochs"])) for run in runs] == [("none", 1), ("pretrained", 3)]
    assert (output / "figure.pdf").read_bytes().startswith(b"%PDF")
    with monkeypatch.context() as patch:
        patch.setattr(finetune, "train_one", None)
        assert main([*arguments, "--init", "none", "pretrained", "--seeds", "0"]) == 0
    assert main([*arguments, "--init", "random", "pretrained", "--seeds", "0", "1"]) == 0
    assert [(row.metric, row.init, len(row.points)) for row in read_table(output)] == [
        (metric, init, count)
        for metric in ("f1", "accuracy")
        for init, count in (("none", 1), ("random", 2), ("pretrained", 2))
    ]
    assert all(row.examples == (21, 9) for row in read_table(output))


def test_as_published_is_a_separate_recipe(command, capsys):
    arguments, output = command
    arguments += ["--init", "none", "pretrained"]
    assert main([*arguments, "--as-published"]) == 0
    assert {path.name for path in (output / "runs").iterdir()} == {"mrpc-none-42", "mrpc-pretrained-42-published"}
    assert main(arguments) == 0
    assert "pre-trained, fine-tuned as published" in capsys.readouterr().out
    rows = [row for row in read_table(output) if row.metric == "accuracy"]
    assert [(row.init, row.published, len(row.points)) for row in rows] == [
        ("none", False, 2),
        ("pretrained", False, 1),
        ("pretrained", True, 1),
    ]
    kept = [
        bertjax.load(output / "runs" / name / "last").weights()
        for name in ("mrpc-pretrained-0", "mrpc-pretrained-42-published")
    ]
    assert any(largest_difference(kept[0][name], kept[1][name]) > 1e-3 for name in kept[0])
    numbers = json.loads((output / "numbers.json").read_text())
    assert "| MRPC: 21, 9 | F1 |" in finetune.tables({"": numbers})


@pytest.mark.needs_torch
def test_the_model_scores_the_same_in_pytorch(command):
    import torch
    import transformers

    arguments, output = command
    assert main([*arguments, "--init", "pretrained", "--epochs", "1"]) == 0
    last = output / "runs" / "mrpc-pretrained-0" / "last"
    twin = transformers.BertForSequenceClassification.from_pretrained(last).eval()
    assert twin.config.id2label == {0: "not_equivalent", 1: "equivalent"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(last)
    examples = load_examples("mrpc", data=arguments[3])
    inputs = tokenizer(list(examples.first), list(examples.second), padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = twin(**inputs).logits.numpy()
    run = json.loads((output / "runs" / "mrpc-pretrained-0" / "result.json").read_text())
    right = theirs.argmax(-1) == examples.labels
    assert abs(run["epochs"][-1]["scores"]["accuracy"] - right.mean()) < 1e-9


def test_the_three_beginnings(encoder, glue):
    run = finetune_run(encoder)
    (data, _), source = read_data(options_of(glue), "mrpc"), bertjax.load(encoder)
    models = {init: make_model(run, data, init, 3) for init in ("pretrained", "random", "none")}
    words = "bert.embeddings.word"
    for init in ("pretrained", "none"):
        assert np.array_equal(models[init].parameters()[words], source.parameters()[words])
    assert models["pretrained"].config.id2label == {0: "not_equivalent", 1: "equivalent"}
    fresh = models["random"].parameters()
    assert largest_difference(fresh[words], source.parameters()[words]) > 0.1
    kernels = np.concatenate([np.ravel(value) for name, value in fresh.items() if name.endswith("kernel")])
    assert abs(kernels.std() - 0.02) < 0.002
    head = "classifier.kernel"
    other = make_model(run, data, "none", 4).parameters()[head]
    assert largest_difference(models["none"].parameters()[head], other) > 1e-3


def test_a_checkpoints_own_head_is_not_taken_over(encoder, glue, tmp_path):
    classifier = make_classifier(tmp_path)
    of_classifier = bertjax.load(classifier).parameters()
    (data, _), head = read_data(options_of(glue), "mrpc"), "classifier.kernel"
    for seed in (3, 4):
        fresh = make_model(finetune_run(classifier), data, "none", seed).parameters()
        bare = make_model(finetune_run(encoder), data, "none", seed).parameters()
        assert np.array_equal(fresh[head], bare[head])
        assert largest_difference(fresh[head], of_classifier[head]) > 1e-3
        name = "bert.encoder.layers.1.attention.query.kernel"
        assert np.array_equal(fresh[name], of_classifier[name])
