"""Commands resume: after an interrupt, after a kill, and with other settings."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import datasets
import numpy as np
import pytest

import bertjax
from bertjax import BertForSequenceClassification
from bertjax.cli import main
from bertjax.engine import sizes
from bertjax.engine.journal import count_parts
from bertjax.errors import OutputError, SweepInterrupted
from bertjax.jobs.run import run_analysis
from tests.factories import make_classifier, make_config, write_pairs
from tests.interruptions import COMMAND_OF_SMALL_PARTS, TINY_PARTS, StopAfter
from tests.job_factories import changed, options_of, settings_of
from tests.tiny_models import comparable_environment, random_model


@pytest.fixture
def settings(tmp_path):
    """All heads of a tiny classifier on 60 invented pairs."""
    model = make_classifier(tmp_path / "model")
    data = write_pairs(tmp_path / "pairs.tsv", 60)
    return settings_of(model=str(model), task="mrpc", data=str(data), output=str(tmp_path / "out"))


def arguments_of(settings):
    return ["ablate", *options_of(settings)]


@pytest.mark.integration
def test_the_command_reports_saved_parts_and_resumes(settings, monkeypatch, capsys):
    monkeypatch.setattr(sizes, "STEPS_OF_PART", TINY_PARTS)
    monkeypatch.setattr(sizes, "CACHED_FLOATS", 700)
    monkeypatch.setattr("bertjax.progress.ProgressBar._advance", lambda self, done, total: StopAfter(0.5)(done, total))
    assert main(arguments_of(settings)) == 130
    assert "parts are saved: the same command resumes there" in capsys.readouterr().err
    assert [path.name for path in settings.directory.iterdir()] == ["journal"]
    monkeypatch.undo()
    assert main([*arguments_of(settings), "--mode", "zero"]) == 2
    assert "other settings: mode (uniform there, zero here); ablations. Give" in capsys.readouterr().err
    assert main([*arguments_of(settings), "--resume"]) == 0
    assert "resuming there" in capsys.readouterr().out
    assert not (settings.directory / "journal").exists()
    assert main([*arguments_of(settings), "--resume"]) == 0
    assert "already complete" in capsys.readouterr().out
    assert main([*arguments_of(settings), "--resume", "--mode", "zero"]) == 2
    assert "mode (uniform there, zero here)" in capsys.readouterr().err
    other = changed(settings, output=settings.analysis.output + "-2")
    assert main([*arguments_of(other), "--resume"]) == 0
    assert "nothing to resume" in capsys.readouterr().out


def kill_and_resume(settings, kills, tmp_path):
    """Run the command, kill it `kills` times at random moments, and let it end; give how often it was killed."""
    command = [sys.executable, "-c", COMMAND_OF_SMALL_PARTS, *arguments_of(settings)]
    env = comparable_environment()
    killed = 0
    for _ in range(kills):
        process = subprocess.Popen([*command, "--resume"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        before, parts = count_parts(settings.directory / "journal"), random.randrange(8)
        while process.poll() is None and count_parts(settings.directory / "journal") < before + parts:
            time.sleep(0.001)
        time.sleep(random.random() * 0.02 if parts else random.random() * 4)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            killed += 1
        process.communicate()
    subprocess.run([*command, "--resume"], env=env, check=True, capture_output=True)
    return killed


def check_killed(settings, kills, tmp_path):
    undisturbed = changed(settings, output=str(tmp_path / "undisturbed"))
    command = [sys.executable, "-c", COMMAND_OF_SMALL_PARTS, *arguments_of(undisturbed)]
    subprocess.run(command, env=comparable_environment(), check=True, capture_output=True)
    assert kill_and_resume(settings, kills, tmp_path) >= kills / 2
    for name in ("outputs.npz", "examples.jsonl", "attention.npz"):
        assert (settings.directory / name).read_bytes() == (undisturbed.directory / name).read_bytes()
    assert sorted(path.name for path in settings.directory.iterdir()) == sorted(
        path.name for path in undisturbed.directory.iterdir()
    )


@pytest.mark.integration
def test_killed_and_resumed_the_outputs_are_the_same_bytes(settings, tmp_path):
    check_killed(settings, 2, tmp_path)


@pytest.mark.slow
def test_killed_twenty_times(settings, tmp_path):
    check_killed(settings, 20, tmp_path)


def test_the_reference_engine_keeps_an_unfinished_sweep(settings, monkeypatch, capsys):
    monkeypatch.setattr(sizes, "STEPS_OF_PART", TINY_PARTS)
    monkeypatch.setattr(sizes, "CACHED_FLOATS", 700)
    with pytest.raises(SweepInterrupted):
        run_analysis(settings, progress=StopAfter(0.5))
    saved = count_parts(settings.directory / "journal")
    with pytest.raises(OutputError, match="an unfinished sweep, which --engine reference cannot resume"):
        run_analysis(changed(settings, engine="reference"))
    assert count_parts(settings.directory / "journal") == saved > 0
    messages = []
    run_analysis(changed(settings, mode="zero", overwrite=True), say=messages.append)
    assert not any("going on" in line for line in messages)


def test_a_file_of_sets_that_was_edited_is_another_job(settings, tmp_path, capsys):
    sets = tmp_path / "sets.txt"
    sets.write_text("0.0\n1.1 1.2")
    arguments = [*arguments_of(settings), "--ablate", str(sets)]
    assert main(arguments) == 0
    sets.write_text("0.0\n1.1 1.0")
    assert main([*arguments, "--resume"]) == 2
    assert "sets_sha256" in capsys.readouterr().err


ANALYSES = {
    "ablate": [],
    "importance": ["--steps", "2"],
    "interactions": ["--heads", "0.0", "1.1"],
    "shapley": ["--heads", "0.0", "1.1", "--permutations", "4"],
    "prune": ["--orders", "magnitude", "--mode", "zero"],
    "roles": [],
}
OTHER = {"shapley": ["--permutations", "6"], "prune": ["--points", "2"], "importance": ["--steps", "1"]}


def words_of(command, settings):
    return [command, *options_of(settings), "--limit", "8", *ANALYSES[command]]


@pytest.mark.integration
@pytest.mark.parametrize("command", ANALYSES)
def test_a_command_that_has_finished_shows_its_results(command, settings, monkeypatch, capsys):
    assert main(words_of(command, settings)) == 0
    first = capsys.readouterr().out
    before = {path.name: path.stat().st_mtime_ns for path in settings.directory.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr("bertjax.jobs.run.finalize", lambda *args, **more: pytest.fail("results were computed"))
        assert main(words_of(command, settings)) == 0
        again = capsys.readouterr().out
        assert "is already complete" in again
        shown = first[first.index("\n\n") :] if "\n\n" in first else first  # after the lines about progress
        assert shown.split("\n")[-3:] == again.split("\n")[-3:]
        assert f"results in {settings.directory}" in " ".join(again.split())
        for more in (["--seed", "1"], OTHER.get(command, ["--max-length", "9"])):
            assert main([*words_of(command, settings), *more]) == 2
            message = capsys.readouterr().err
            name, value = more[0].lstrip("-").replace("-", "_"), more[1]
            assert re.search(rf"with other settings: {name} \(.* there, {value} here\): .* --overwrite", message)
            assert len(message.splitlines()) == 1
    assert {path.name: path.stat().st_mtime_ns for path in settings.directory.iterdir()} == before


def test_results_of_other_weights_are_not_shown(settings, tmp_path, capsys):
    assert main(words_of("ablate", settings)) == 0
    shutil.rmtree(settings.model)
    make_classifier(tmp_path / "model", random_model(BertForSequenceClassification, make_config(), seed=5))
    capsys.readouterr()
    assert main(words_of("ablate", settings)) == 2
    assert "of other weights" in capsys.readouterr().err


def test_results_of_other_examples_are_not_shown(settings, tmp_path, capsys):
    columns = {"sentence1": ["a cat", "two dogs"], "sentence2": ["a dog", "a cat"], "label": [0, 1]}
    directory = tmp_path / "saved"
    datasets.Dataset.from_dict(columns).save_to_disk(directory)
    command = [*words_of("ablate", settings), "--data", str(directory)]
    assert main(command) == 0
    shutil.rmtree(directory)
    datasets.Dataset.from_dict({**columns, "label": [1, 0]}).save_to_disk(directory)
    capsys.readouterr()
    assert main(command) == 2
    assert "of other examples" in capsys.readouterr().err


def test_results_of_a_custom_metric_are_not_shown(settings, tmp_path):
    options = {"data": settings.data, "output": tmp_path / "own", "limit": 8, "heads": ["0.0"], "progress": False}
    bertjax.ablate(settings.model, "mrpc", metric=lambda labels, outputs: 0.5, **options)
    with pytest.raises(OutputError, match="a custom metric"):
        bertjax.ablate(settings.model, "mrpc", metric=lambda labels, outputs: 0.6, **options)


@pytest.mark.integration
@pytest.mark.parametrize("other", [name for name in ANALYSES if name != "ablate"])
def test_no_analysis_replaces_another_one(other, settings, monkeypatch, capsys):
    monkeypatch.setattr(sizes, "STEPS_OF_PART", TINY_PARTS)
    monkeypatch.setattr(sizes, "CACHED_FLOATS", 700)
    with pytest.raises(SweepInterrupted):
        run_analysis(settings, progress=StopAfter(0.5))
    saved = {path.name: path.read_bytes() for path in (settings.directory / "journal").iterdir()}
    assert main(words_of(other, settings)) == 2
    assert "unfinished" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (settings.directory / "journal").iterdir()} == saved
    assert [path.name for path in settings.directory.iterdir()] == ["journal"]
    shutil.rmtree(settings.directory / "journal")
    assert main(words_of(other, settings)) == 0
    capsys.readouterr()
    assert main(words_of("ablate", settings)) == 2
    assert "not of ablation" in capsys.readouterr().err


def test_ablations_do_not_replace_unfinished_orders(settings, capsys):
    def stop(done, total):
        raise KeyboardInterrupt

    shared = {"data": settings.data, "mode": "zero", "output": settings.analysis.output}
    with pytest.raises(KeyboardInterrupt):
        bertjax.shapley(settings.model, "mrpc", **shared, progress=stop)
    journals = [*settings.directory.glob("orders-*")]
    assert journals
    for command in ("ablate", "importance", "roles"):
        assert main(words_of(command, settings)) == 2
        assert "an unfinished run of another analysis" in capsys.readouterr().err
    assert [*settings.directory.iterdir()] == journals
    assert main([*words_of("ablate", settings), "--overwrite"]) == 0
    assert not [*settings.directory.glob("orders-*")]


def test_sets_may_be_renamed_in_an_unfinished_sweep(settings, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sizes, "STEPS_OF_PART", TINY_PARTS)
    monkeypatch.setattr(sizes, "CACHED_FLOATS", 700)
    sets = tmp_path / "sets.txt"
    sets.write_text("a: 0.0\nb: 1.1 1.2\n0.1 1.0\n")
    chosen = changed(settings, ablate=str(sets))
    with pytest.raises(SweepInterrupted):
        run_analysis(chosen, progress=StopAfter(0.5))
    sets.write_text("# better names\none: 0.0\ntwo: 1.2, 1.1\nthree: 0.1 1.0\n")
    messages = []
    results = run_analysis(chosen, say=messages.append)
    assert any("resuming there" in line for line in messages)
    assert results.names == ["one", "two", "three"]
    sets.write_text("0.0\n1.1 1.2\n1.0 0.1\n")
    assert main([*arguments_of(settings), "--ablate", str(sets), "--resume"]) == 0
    assert "already complete" in capsys.readouterr().out


def test_half_written_files_of_a_killed_process_are_removed(settings):
    settings.directory.mkdir()
    (settings.directory / ".0123abcd-outputs.npz").touch()
    (settings.directory / ".mine-outputs.npz").touch()
    run_analysis(settings)
    assert [path.name for path in settings.directory.iterdir() if path.name[0] == "."] == [".mine-outputs.npz"]


def test_outputs_of_a_job_equal_the_engine_without_a_journal(settings):
    found = run_analysis(settings)
    again = run_analysis(changed(settings, output=settings.analysis.output + "-2", engine="reference"))
    assert np.abs(found.outputs["outputs"] - again.outputs["outputs"]).max() < 2e-5
