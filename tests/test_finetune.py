"""The fine-tuning command: its files, going on after a kill, what it refuses, and its models in PyTorch."""

import json
import os
import random
import shutil
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import bertjax
from bertjax import BertModel
from experiments import finetune
from experiments.finetune import main, make_model, read_data
from experiments.training.state import Epoch, RunDirectory
from experiments.training.table import read_runs, summarise
from tests.factories import add_tokenizer, make_classifier, make_config
from tests.tiny_models import FAST_COMPILATION, arrays_of, largest_difference, random_model
from tests.training_runs import finetune_run

pytestmark = pytest.mark.integration


@pytest.fixture
def command(encoder, glue, tmp_path):
    """The options of a short run."""
    output = tmp_path / "out"
    words = f"--model {encoder} --data {glue} --task mrpc --epochs 3 --batch-size 8 --learning-rate 0.003"
    return [*words.split(), "--output", str(output)], output


def contents(directory):
    """All files of a run by name."""
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*.*")}


def read_table(output):
    """The table's rows, made again from what a command left."""
    return summarise(read_runs(json.loads((output / "numbers.json").read_text())["results"]))


def stop_after(monkeypatch, epochs, error):
    """Let a run end with an error when so many epochs are kept, or, given 0.5 more, just before the last one is."""
    save, done = RunDirectory.save_state, []

    def save_state(self, trees, several):
        if len(done) + 0.5 == epochs:
            raise error
        save(self, trees, several)
        done.append(1)
        if len(done) == epochs:
            raise error

    monkeypatch.setattr(RunDirectory, "save_state", save_state)


def test_a_killed_run_goes_on_to_the_same_bytes(command, tmp_path, monkeypatch, capsys):
    arguments, output = command
    arguments += ["--init", "pretrained"]
    assert main(arguments) == 0
    whole = contents(output / "runs" / "mrpc-pretrained-0")
    assert {"last/model.safetensors", "last/tokenizer.json", "logits.npz", "result.json"} <= set(whole)
    assert "state.safetensors" not in whole
    for epochs in (1, 1.5, 3):
        again = tmp_path / f"killed {epochs}"
        arguments[-3] = str(again)
        with monkeypatch.context() as patch:
            stop_after(patch, epochs, KeyboardInterrupt())
            assert main(arguments) == 130
        assert (again / "runs" / "mrpc-pretrained-0" / "state.safetensors").is_file()
        assert not (again / "numbers.json").exists()
        capsys.readouterr()
        assert main(arguments) == 0
        assert f"mrpc-pretrained-0: {int(epochs)} of 3 epochs are there" in capsys.readouterr().out
        assert contents(again / "runs" / "mrpc-pretrained-0") == whole


def test_killed_by_the_system_it_goes_on_to_the_same_bytes(command, tmp_path, capsys):
    arguments, output = command
    arguments += ["--init", "pretrained"]
    alike = {**os.environ, "XLA_FLAGS": os.environ.get("XLA_FLAGS", FAST_COMPILATION)}  # compiled as here, and once
    for name in ("compilation_cache_dir", "persistent_cache_min_compile_time_secs"):
        alike[f"JAX_{name.upper()}"] = str(getattr(jax.config, f"jax_{name}"))
    program = [sys.executable, "-m", "experiments.finetune", *arguments]
    process = subprocess.Popen(program, env=alike, stderr=subprocess.PIPE)
    run = output / "runs" / "mrpc-pretrained-0"
    while process.poll() is None and not (run / "state.safetensors").exists():
        time.sleep(0.001)
    time.sleep(random.random() * 0.02)
    process.kill()
    process.communicate()
    assert process.returncode == -9
    assert not (output / "numbers.json").exists()
    (run / "last").mkdir(exist_ok=True)
    (run / "last" / ".0123abcd-model.safetensors").write_bytes(b"half")  # what it may have been writing
    assert main(arguments) == 0
    found = contents(run)
    arguments[-3] = str(tmp_path / "whole")
    assert main(arguments) == 0
    assert found == contents(tmp_path / "whole" / "runs" / "mrpc-pretrained-0")
    capsys.readouterr()


def test_fine_tuning_writes_a_table_and_figures_and_is_extended(command, monkeypatch, capsys):
    arguments, output = command
    assert main([*arguments, "--init", "none", "pretrained"]) == 0
    assert "pretrained" in capsys.readouterr().out
    found = json.loads((output / "numbers.json").read_text())
    runs = found["results"]["runs"]
    assert [(run["init"], len(run["epochs"])) for run in runs] == [("none", 1), ("pretrained", 3)]
    values = arrays_of(output / "values.npz")
    for run in runs:
        logits = values[f"logits_mrpc_{run['init']}_0"]
        right = logits.argmax(1) == values[f"labels_mrpc_{run['init']}_0"]
        assert abs(run["epochs"][-1]["scores"]["accuracy"] - right.mean()) < 1e-9
    assert (output / "figure.pdf").read_bytes().startswith(b"%PDF")
    before = contents(output / "runs" / "mrpc-pretrained-0")
    with monkeypatch.context() as patch:
        patch.setattr(finetune, "Trainer", None)  # what is there is not trained again
        assert main([*arguments, "--init", "none", "pretrained", "--seeds", "0"]) == 0
    assert main([*arguments, "--init", "random", "pretrained", "--seeds", "0", "1"]) == 0
    table = read_table(output)
    assert [(row.metric, row.init, len(row.points)) for row in table] == [
        (metric, init, count)
        for metric in ("f1", "accuracy")
        for init, count in (("none", 1), ("random", 2), ("pretrained", 2))
    ]  # the table is of all that is there
    assert table[1].paper == 81.2
    assert all(row.examples == (21, 9) for row in table)
    assert main([*arguments, "--init", "none", "--epochs", "2", "--seeds", "5"]) == 0
    assert "5 results" in capsys.readouterr().out  # of other settings
    assert [(row.metric, row.init, len(row.points)) for row in read_table(output)] == [
        ("f1", "none", 1),
        ("accuracy", "none", 1),
    ]
    shutil.copytree(output / "runs" / "mrpc-none-0", output / "runs" / "mrpc-none-7")  # no run of its own
    (output / "runs" / "mrpc-random-1" / "result.json").write_text("[]")
    assert main([*arguments, "--init", "none"]) == 0
    assert "3 results" in capsys.readouterr().out  # other settings, a copy, one that cannot be read
    assert [len(row.points) for row in read_table(output)] == [1, 1, 2, 1, 1, 2]
    assert contents(output / "runs" / "mrpc-pretrained-0") == before
    capsys.readouterr()


def test_the_model_of_the_last_epoch_is_saved(command, monkeypatch, capsys):
    arguments, output = command
    run_epoch, models = finetune.Trainer.run_epoch, []

    def recorded(self, epoch):
        yield from run_epoch(self, epoch)
        models.append(self.model.weights())

    scores = iter([0.9, 0.9, 0.1, 0.1, 0.5, 0.5])  # F1 and accuracy of three epochs: the first is best
    monkeypatch.setattr(finetune.Trainer, "run_epoch", recorded)
    monkeypatch.setattr(finetune, "score", lambda *given: [next(scores)])
    assert main([*arguments, "--init", "pretrained"]) == 0
    kept = bertjax.load(output / "runs" / "mrpc-pretrained-0" / "last").weights()
    for name, value in models[2].items():
        assert np.array_equal(kept[name], value), name
    assert any(largest_difference(kept[name], models[0][name]) > 1e-3 for name in kept)
    (row, _) = read_table(output)
    assert (row.points, row.best) == ((50.0,), (90.0,))
    capsys.readouterr()


def test_as_published_is_a_separate_recipe(command, capsys):
    arguments, output = command
    arguments += ["--init", "none", "pretrained"]
    assert main([*arguments, "--as-published"]) == 0
    assert {path.name for path in (output / "runs").iterdir()} == {"mrpc-none-42", "mrpc-pretrained-42-published"}
    assert main(arguments) == 0
    assert "as published, mrpc f1 pretrained: " in capsys.readouterr().out
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
    assert "| MRPC: 21, 9 | F1 |" in finetune.tables(numbers)


def test_whoever_interrupts_is_told_what_is_saved(command, monkeypatch, capsys):
    run_epoch = finetune.Trainer.run_epoch

    def interrupted(self, epoch):
        yield from run_epoch(self, epoch)
        if epoch == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(finetune.Trainer, "run_epoch", interrupted)
    assert main([*command[0], "--init", "pretrained"]) == 130
    assert "1 of 3 epochs of mrpc-pretrained-0 are saved: the same command resumes" in capsys.readouterr().err


def test_another_runs_directory_is_refused_and_kept(command, capsys):
    arguments, output = command
    assert main([*arguments, "--init", "none"]) == 0
    before = contents(output)
    capsys.readouterr()
    assert main([*arguments, "--init", "none", "--max-length", "16"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "other settings: max_length (128 there, 16 here). Choose" in line
    assert contents(output) == before
    assert main([*arguments, "--init", "none", "--hold-out", "5"]) == 2
    assert "hold_out (default there, 5 here); train_sha256; validation_sha256." in capsys.readouterr().err
    assert main([*arguments, "--init", "none", "--max-length", "16", "--overwrite"]) == 0
    (output / "runs" / "mrpc-none-0" / "result.json").write_text("{")
    assert main([*arguments, "--init", "none", "--max-length", "16"]) == 2
    assert "--overwrite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["--epochs", "0"], "whole number"),
        (["--dropout", "1"], "from 0 to below 1"),
        (["--learning-rate", "fast"], "from 0 to below 1"),
        (["--init", "warm"], "invalid choice"),
        (["--hold-out", "21"], "cannot be held out"),
        (["--task", "mrpc:test"], "--task mrpc:test: name no split"),
        (["--task", "stsb"], "STS-B"),
        (["--task", "custom"], "choose one of"),
        (["--seeds", "-1"], "at least 0"),
        (["--largest-gradient", "0"], "above 0"),
        (["--largest-gradient", "nan"], "above 0"),
    ],
)
def test_mistakes_end_in_one_line(command, changes, words, capsys):
    arguments, output = command
    try:
        code = main([*arguments, *changes])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    found = capsys.readouterr().err
    assert words in found
    assert found.count("\n") == 1
    assert not (output / "numbers.json").exists()


def test_a_model_that_changed_at_its_place_is_another_runs(command, encoder, tmp_path, capsys):
    arguments, _ = command
    source = tmp_path / "model"
    random_model(BertModel, make_config()).save_pretrained(source)
    arguments[1] = str(add_tokenizer(source))
    assert main([*arguments, "--init", "none"]) == 0
    model = random_model(BertModel, make_config())
    model.pooler.dense.bias[...] += 1
    model.save_pretrained(source)
    assert main([*arguments, "--init", "none"]) == 2
    assert "weights_sha256" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_refused(tmp_path, rng):
    trees = {"a": jax.numpy.asarray(rng.normal(size=(2, 3)), jax.numpy.float32)}, [jax.numpy.int32(4)]
    directory = RunDirectory(tmp_path, {"seed": 1})
    assert directory.load_state(trees) is None
    directory.save_state(trees, [Epoch(0.5, {"f1": None})])
    found, epochs = directory.load_state(trees)
    assert np.array_equal(found[0]["a"], trees[0]["a"])
    assert epochs == [Epoch(0.5, {"f1": None})]
    for changed in ({"seed": 2}, {"seed": 1, "model": "m"}):
        with pytest.raises(bertjax.errors.OutputError, match="--overwrite"):
            RunDirectory(tmp_path, changed).load_state(trees)
    with pytest.raises(bertjax.errors.OutputError, match="other arrays"):
        directory.load_state(({"a": jax.numpy.zeros((3, 2))}, trees[1]))
    path = tmp_path / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(bertjax.errors.OutputError, match="cannot be gone on with"):
        directory.load_state(trees)


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
    examples = bertjax.load_examples("mrpc", data=arguments[3])
    given = tokenizer(list(examples.first), list(examples.second), padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = twin(**given).logits.numpy()
    assert largest_difference(arrays_of(output / "values.npz")["logits_mrpc_pretrained_0"], theirs) < 1e-4


def test_the_three_beginnings(encoder, glue):
    run = finetune_run(encoder, glue)
    data, source = read_data(run, "mrpc"), bertjax.load(encoder)
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
    own = bertjax.load(classifier).parameters()
    data, head = read_data(finetune_run(encoder, glue), "mrpc"), "classifier.kernel"
    for seed in (3, 4):
        fresh = make_model(finetune_run(classifier, glue), data, "none", seed).parameters()
        bare = make_model(finetune_run(encoder, glue), data, "none", seed).parameters()
        assert np.array_equal(fresh[head], bare[head])
        assert largest_difference(fresh[head], own[head]) > 1e-3
        name = "bert.encoder.layers.1.attention.query.kernel"
        assert np.array_equal(fresh[name], own[name])
