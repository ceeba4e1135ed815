"""Mistakes that can be known before a sweep are found before it; valid inputs reach the results."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bertjax
from bertjax import BertForSequenceClassification
from bertjax.checkpoints.weight_files import CheckpointWarning
from bertjax.cli import main
from bertjax.errors import BertjaxError, DataError, InputError, OutputError
from bertjax.interventions import overrides, readouts, single_heads
from bertjax.jobs.run import run_analysis
from bertjax.jobs.settings import for_this_device
from bertjax.results.directory import read_results
from tests.factories import SENTENCES, make_classifier, make_config, write_pairs
from tests.job_factories import changed, options_of, settings_of
from tests.tiny_models import arguments, random_model


@pytest.fixture
def settings(classifier, tmp_path):
    """Two heads of the classifier on six invented paraphrase pairs."""
    data = write_pairs(tmp_path / "pairs.tsv", 6)
    return settings_of(
        model=str(classifier), task="mrpc", data=str(data), output=str(tmp_path / "out"), heads=("0.0", "1.1")
    )


def write_labels(path: Path, labels) -> dict:
    """Pairs of the sentences with these labels in a custom file, and the settings that read it."""
    rows = [
        {"first": SENTENCES[i % 7], "second": SENTENCES[(i + 1) % 7], "label": label} for i, label in enumerate(labels)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"task": "custom", "data": str(path), "text_columns": ("first", "second")}


def assert_refused(settings, monkeypatch, error: type[BertjaxError], message: str, **changes):
    """A job is refused before its sweep, and leaves nothing."""
    for name in ("sweep_examples", "sweep_plainly"):
        monkeypatch.setattr(f"bertjax.jobs.analysis.{name}", lambda *args, **more: pytest.fail("the sweep began"))
    with pytest.raises(error, match=message):
        run_analysis(changed(settings, **changes))
    assert not (settings.directory / "journal").exists()


@pytest.mark.parametrize("name", ["seed", "limit", "max_length", "subset_size", "batch_size", "chunk_size"])
def test_numbers_out_of_range(settings, monkeypatch, name):
    assert_refused(settings, monkeypatch, InputError, f"{name} must be an integer", **{name: -1})


def test_a_negative_seed_on_the_command_line(capsys):
    with pytest.raises(SystemExit) as end:
        main(["ablate", "--seed", "-1"])
    assert end.value.code == 2
    assert "'-1' is not an integer of at least 0" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["heads.png", "sets.png", "outputs.npz", "summary.json"])
def test_a_directory_of_a_file_s_name(settings, monkeypatch, name):
    (settings.directory / name).mkdir(parents=True)
    assert_refused(settings, monkeypatch, OutputError, f"{name} is a directory", overwrite=True)


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_an_output_that_cannot_be_created(settings, monkeypatch, tmp_path, engine):
    output = tmp_path / "new" / ("x" * 300)
    assert_refused(
        settings, monkeypatch, OutputError, "cannot write to .*: File name too long", output=str(output), engine=engine
    )
    assert not output.parent.exists()  # the temporary probe was removed


def test_labels_of_one_class(settings, embedder, monkeypatch, tmp_path):
    data = write_labels(tmp_path / "own.jsonl", ["yes"] * 5)
    message = "ROC AUC cannot be computed: of 5 labelled examples all have the label 'yes'"
    assert_refused(settings, monkeypatch, DataError, message, model=str(embedder), label_names=("no", "yes"), **data)
    data = write_labels(tmp_path / "own.jsonl", ["no"] * 5)
    data |= {"label_names": ("no", "yes"), "metric": "f1"}
    assert_refused(settings, monkeypatch, DataError, "F1 cannot be computed: .* none has the label 'yes'", **data)
    data = write_labels(tmp_path / "own.jsonl", [2.5] * 5)
    assert_refused(settings, monkeypatch, DataError, "all have the label 2.5", model=str(embedder), **data)


def test_more_examples_than_can_be_ranked(settings, embedder, monkeypatch, tmp_path):
    monkeypatch.setattr("bertjax.statistics.ranked.MOST_RANKED", 11)  # a test ranks two outputs of each example
    data = write_labels(tmp_path / "own.jsonl", [0.5, 1, 2, 3, 4, 5])
    assert_refused(settings, monkeypatch, DataError, "ranks of 12 examples are not drawn", model=str(embedder), **data)


@pytest.mark.parametrize(
    ("metric", "message"),
    [("roc_auc", "choose accuracy or f1 or matthews"), ("pearson", "cannot score predicted classes of mrpc")],
)
def test_a_metric_that_does_not_fit(settings, monkeypatch, metric, message):
    assert_refused(settings, monkeypatch, InputError, message, metric=metric)


def test_half_a_character(settings, monkeypatch, tmp_path):
    data = write_labels(tmp_path / "own.jsonl", ["a\ud800", "b"] * 3)
    assert_refused(settings, monkeypatch, DataError, "contains a lone surrogate", **data)
    data = write_labels(tmp_path / "own.jsonl", ["a", "b"] * 3)
    assert_refused(
        settings, monkeypatch, DataError, "contains a lone surrogate", **data, label_names=("a", os.fsdecode(b"b\xff"))
    )


def test_an_invisible_name_of_a_set(settings, monkeypatch, tmp_path):
    (tmp_path / "sets.txt").write_text("one: 0.0\ntwo\x1b[31m: 0.1\n")
    assert_refused(
        settings, monkeypatch, InputError, "line 2: .*control character", ablate=str(tmp_path / "sets.txt"), heads=None
    )


def test_names_that_look_like_commands_are_kept(settings, tmp_path, capsys):
    names = ["[/x] :smile:", "$\\frac{1$", "=cmd|' /C calc'!A0"]
    (tmp_path / "sets.txt").write_text("".join(f"{name}: 0.{head}\n" for head, name in enumerate(names)))
    arguments = options_of(settings)
    assert main(["ablate", *arguments, "--ablate", str(tmp_path / "sets.txt")]) == 0
    printed = capsys.readouterr().out
    assert read_results(settings.analysis.output).names == names
    assert "3 sets (" in printed
    assert main(["show", settings.analysis.output]) == 0
    assert all(name in capsys.readouterr().out for name in names[:1])


def test_an_output_that_is_not_utf_8(settings, tmp_path):
    output = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    run_analysis(changed(settings, output=output))
    assert read_results(output).summary["settings"]["output"] == output


def test_a_model_of_one_label_takes_whole_ratings(settings, tmp_path):
    config = replace(make_config(), id2label={0: "LABEL_0"})
    model = make_classifier(tmp_path / "rater", random_model(BertForSequenceClassification, config))
    data = write_labels(tmp_path / "own.jsonl", range(6))
    found = run_analysis(changed(settings, model=str(model), **data))
    assert found.summary["metrics"] == ["pearson", "spearman", "mean_squared_error", "mean_absolute_error"]
    assert found.summary["data"]["label_names"] == []
    assert [example["label"] for example in found.examples] == list(range(6))


def test_empty_label_names_make_ratings(settings, embedder, tmp_path, capsys):
    data = write_labels(tmp_path / "own.jsonl", [0, 3, 5, 1, 2])
    arguments = ["ablate", "--model", str(embedder), "--task", "custom", "--data", data["data"], "--heads", "0.0"]
    arguments += ["--text-columns", "first", "second", "--output", settings.analysis.output]
    assert main(arguments) == 2
    assert "give --label-names without names" in capsys.readouterr().err
    assert main([*arguments, "--label-names"]) == 0
    assert read_results(settings.analysis.output).metric == "spearman"
    assert "1 head," in capsys.readouterr().out


def test_the_main_metric_can_be_chosen(settings):
    found = run_analysis(changed(settings, metric="matthews"))
    assert found.summary["metrics"] == ["matthews", "f1", "accuracy"]
    assert found.summary["metric"]["name"] == "matthews"
    assert read_results(settings.directory).rows_of()[0].metric == "matthews"


def test_each_job_has_its_output_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, label in (("one", "a"), ("two", "a"), ("edited", "b")):
        Path(f"{name}.tsv").write_text(f"first\tsecond\tlabel\n{label}\tx\t1\n")
    Path("sets.txt").write_text("a name: 0.0 0.1\n")
    default = settings_of()
    assert default.directory == Path("bertjax-qnli-sample-uniform-heads")
    columns = {"task": "custom", "text_columns": ("first", "second")}
    changes = [
        {"mode": "zero"},
        {"model": "models/tuned"},
        {"model": "other/tuned"},
        {"task": "stsb"},
        {"task": "stsb", "data": "GLUE_DIR"},
        {"limit": 100},
        {"limit": 100, "seed": 1},
        {"ablate": "layers"},
        {"ablate": "sets.txt"},
        {"heads": ("3.0",)},
        {"metric": "average_precision"},
        {"max_length": 16},
        {"label_names": ()},
        {**columns, "data": "one.tsv"},
        {**columns, "data": "two.tsv"},
    ]
    jobs = [default, *(changed(default, **change) for change in changes)]
    names = [job.directory.name for job in jobs]
    assert len(set(names)) == len(names)
    assert [changed(job).directory.name for job in jobs] == names
    assert [for_this_device(job).directory.name for job in jobs] == names
    how = {"memory": "1GB", "overwrite": True}
    assert [changed(job, **how).directory.name for job in jobs] == names
    assert any(name.startswith("bertjax-tuned-qnli-sample-uniform-heads-") for name in names)
    assert any(name.startswith("bertjax-custom-one-uniform-heads-") for name in names)
    Path("sets.txt").write_text("# another name\n\nanother: 0.1, 0.0\n")
    Path("one.tsv").write_bytes(Path("edited.tsv").read_bytes())
    again = [changed(job).directory.name for job in jobs]
    assert [before == now for before, now in zip(names, again, strict=True)] == [job.data != "one.tsv" for job in jobs]


def test_names_of_directories_are_valid_on_all_systems():
    long = settings_of(
        model="m/" + "\N{SNOWMAN}x" * 200, task="custom", data="../" * 9 + "d" * 250, ablate="/s/" + "e" * 99
    )
    name = long.directory.name
    assert len(os.fsencode(name)) < 250
    assert not set(name) & set('/\\:*?"<>| ')
    assert settings_of(model="..", data=os.fsdecode(b"\xff")).directory.name.startswith("bertjax-custom-uniform-heads-")


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_weights_that_are_not_finite(classifier, settings, monkeypatch, tmp_path, value):
    name, model = "bert.encoder.layer.0.attention.self.query.weight", tmp_path / "model"
    shutil.copytree(classifier, model)
    tensors = load_file(model / "model.safetensors")
    tensors[name][3, 1:3] = value
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    message = rf"2 of the 144 values of {re.escape(name)} are NaN or infinite"
    with pytest.warns(CheckpointWarning, match="NaN or infinity"):
        assert_refused(settings, monkeypatch, InputError, message, model=str(model))
    with pytest.raises(InputError, match=message):
        bertjax.roles(str(model), "mrpc", data=settings.data, progress=False)


@pytest.mark.parametrize("run", ["sweep", "plain", "means"])
def test_weights_that_became_infinite_in_memory(small, rng, run):
    model, call = random_model(BertForSequenceClassification, small), arguments(small, rng)
    kernel = model.bert.encoder.layers[1].output.kernel
    kernel[...] = kernel[...].at[0, 0].set(jnp.inf)
    heads, nothing = single_heads(small, "zero"), overrides.stack([overrides.identity(small)])
    calls = {
        "sweep": lambda: bertjax.sweep(model, [[1, 2, 3], [4, 5]], heads, readouts.logits),
        "plain": lambda: bertjax.reference.run(model, call, nothing, readouts.logits),
        "means": lambda: bertjax.mean_head_outputs(model, call),
    }
    size, name = small.intermediate_size * small.hidden_size, "bert.encoder.layer.1.output.dense.weight"
    with pytest.raises(InputError, match=rf"1 of the {size:,} values of {name} are NaN"):
        calls[run]()
