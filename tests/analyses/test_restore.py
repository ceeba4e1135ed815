"""`Study.restore`: scores equal those of models whose parameters were set by hand, and results are saved and merged."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

import bertjax
from bertjax.analyses import Restore, random_encoder
from bertjax.cli import main
from bertjax.engine import sizes
from bertjax.errors import InputError, OutputError
from bertjax.results import Results
from tests.factories import make_classifier, make_config, make_masked, write_pairs
from tests.interruptions import TINY_PARTS
from tests.task_factories import TASK_FACTORIES
from tests.tiny_models import random_model

PROJECTIONS = ("query", "key", "value")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A classifier, data, and a base with another head."""
    folder = tmp_path_factory.mktemp("restore")
    options = {"model": str(make_classifier(folder / "model")), "task": "mrpc"}
    base = str(make_masked(folder / "base", seed=5))
    return {**options, "data": str(write_pairs(folder / "pairs.tsv", 30)), "base": base, "progress": False}


def take(module, other, index=...):
    """Parameters of a module by those of another, at an index."""
    for name in ("kernel", "scale", "bias"):
        if getattr(module, name, None) is not None:
            parameter = getattr(module, name)
            parameter[...] = parameter[...].at[index].set(getattr(other, name)[...][index])


def set_by_hand(model, base, part, layer, head=None):
    module, other = model.body.encoder.layers[layer], base.body.encoder.layers[layer]
    if part == "heads":
        for name in PROJECTIONS:
            for array in ("kernel", "bias"):
                parameter = getattr(getattr(module.attention, name), array)
                taken = getattr(getattr(other.attention, name), array)[..., head, :]
                parameter[...] = parameter[...].at[..., head, :].set(taken)
        kernel = module.attention.output.kernel
        kernel[...] = kernel[...].at[head].set(other.attention.output.kernel[head])
        return
    if part in ("layers", "attention"):
        for name in (*PROJECTIONS, "output"):
            take(getattr(module.attention, name), getattr(other.attention, name))
        take(module.attention_norm, other.attention_norm)
    if part in ("layers", "feed_forward"):
        for name in ("intermediate", "output", "output_norm"):
            take(getattr(module, name), getattr(other, name))


def units_of(name):
    """Layers, and the head, of a row."""
    if name.startswith("up to"):
        return [(layer, None) for layer in range(int(name.split()[-1]) + 1)]
    layer, _, head = name.partition(".")
    return [(int(layer), int(head) if head else None)]


@pytest.mark.parametrize("of", ["layers", "up_to", "attention", "feed_forward", "heads"])
@pytest.mark.parametrize("source", ["base", "random"])
def test_scores_are_those_of_parameters_set_by_hand(job, of, source):
    options = job if source == "base" else {name: value for name, value in job.items() if name != "base"}
    found = bertjax.restore(**options, of=of, source=source, seed=3)
    assert found.kind == {"heads": "head", "up_to": "set"}.get(of, "layer")
    assert len(found.names) == {"heads": 6}.get(of, 2)
    expected = {}
    part = "layers" if of == "up_to" else of
    for name in [*found.names, "up to 1"]:
        model = bertjax.load(job["model"])
        base = bertjax.load(job["base"]) if source == "base" else random_encoder(model, 3)
        for layer, head in units_of(name):
            set_by_hand(model, base, "layers" if name == "up to 1" else part, layer, head)
        expected[name] = bertjax.Study(model, "mrpc", data=job["data"], seed=3).baseline()
    for name, outputs in zip(found.names, found.outputs["outputs"], strict=True):
        np.testing.assert_allclose(outputs, expected[name].outputs, atol=1e-5)
        assert np.abs(outputs - found.outputs["base"]).max() > 1e-3
    for row in found.rows:
        assert row.score == pytest.approx(expected[row.name].scores[row.metric]), row.name
        assert row.base == found.summary["base"]["scores"][row.metric]
    assert found.summary["restoring"]["scores"] == pytest.approx(expected["up to 1"].scores)
    verb = "Restoring" if source == "base" else "Redrawing"
    assert found.summary["sentence"].startswith(f"{verb} one {'set of layers' if of == 'up_to' else found.kind}")


@pytest.mark.parametrize("of", ["layers", "heads"])
def test_a_model_restored_from_itself_does_not_change(job, of):
    study = bertjax.Study(job["model"], "mrpc", data=job["data"])
    for base in (study.model, job["model"]):
        found = study.restore(base=base, of=of, progress=False)
        assert {row.difference for row in found.rows} == {0.0}


def test_results_are_saved_shown_and_kept(job, tmp_path, capsys):
    base = tmp_path / "base"
    shutil.copytree(job["base"], base)
    words = ["restore", "--model", job["model"], "--task", "mrpc", "--data", job["data"]]
    words += ["--base", str(base), "--of", "up_to", "--output", str(tmp_path / "out")]
    assert main(words) == 0
    written = bertjax.read_results(tmp_path / "out")
    assert isinstance(written, Results)
    assert written.rows == bertjax.restore(**{**job, "of": "up_to"}).rows
    printed = capsys.readouterr().out
    assert "with all layers restored from the base model" in printed
    assert written.summary["sentence"].startswith("Restoring one set of layers raises the score for ")
    assert "\n set of layers " in printed
    assert "\n2 of 2 sets of layers; " in printed
    assert main(["report", str(tmp_path / "out")]) == 0
    assert "with all layers up to one restored from the base model" in written.plot().texts[0].get_text()
    assert main(words) == 0
    assert "already complete" in capsys.readouterr().out
    make_masked(base, seed=6)
    with pytest.raises(OutputError, match="another model"):
        bertjax.restore(**{**job, "base": base}, of="up_to", output=tmp_path / "out")


def test_shards_are_merged_and_those_of_another_base_are_not(job, tmp_path, monkeypatch):
    monkeypatch.setattr(sizes, "STEPS_OF_PART", TINY_PARTS)
    monkeypatch.setattr(sizes, "CACHED_FLOATS", 700)
    base = tmp_path / "base"
    shutil.copytree(job["base"], base)
    options, directories = {**job, "base": base, "of": "heads"}, [tmp_path / f"shard-{number}" for number in (1, 2)]
    for number, directory in enumerate(directories, 1):
        bertjax.restore(**options, shard=f"{number}/2", output=directory)
    merged = bertjax.merge(directories, output=tmp_path / "merged", progress=False)
    assert merged.rows == bertjax.restore(**options).rows
    make_masked(base, seed=6)
    with pytest.raises(OutputError, match="source model"):
        bertjax.merge(directories, output=tmp_path / "again", progress=False)


@pytest.mark.parametrize("task", ["question-answering", "mlm"])
def test_other_tasks_are_restored(task, tmp_path):
    make, write, name = TASK_FACTORIES[task]
    model, data = make(tmp_path / "model"), write(tmp_path / name)
    found = bertjax.restore(model, task, data=data, source="random", output=tmp_path / "out", progress=False)
    assert found.names == ["0", "1"]
    assert bertjax.read_results(tmp_path / "out").rows == found.rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": None}, "restoring needs a base model"),
        ({"source": "random"}, "source random draws parameters: leave base out"),
        (
            {"base": random_model(bertjax.BertModel, replace(make_config(), num_hidden_layers=3))},
            "the base model has 3 layers, the model 2",
        ),
        ({"base": 3}, "base must be a hub id, a directory, or a model of bertjax"),
        (
            {"base": random_model(bertjax.BertModel, make_config()), "shard": "1/2", "output": "x"},
            "save the base model",
        ),
    ],
)
def test_wrong_options_are_refused(job, options, message):
    with pytest.raises(InputError, match=message):
        bertjax.restore(**{**job, **options})


def test_options_are_recorded_without_the_model_in_memory():
    model = random_model(bertjax.BertModel, make_config())
    assert Restore(base=model).settings()["base"] == "BertModel in memory"
    assert Restore(source="random").mode == "redrawn"
