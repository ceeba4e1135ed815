"""Nothing is lost: parts of a sweep are kept, and a sweep that was killed gives the same bytes."""

import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from bertjax import BertModel, engine, memory, readouts
from bertjax import ablations as ab
from bertjax.ablate import ablate
from bertjax.blocks import choose_blocks
from bertjax.cli import main
from bertjax.errors import InputError, OutputError, SweepInterrupted
from bertjax.journal import DIGEST_BYTES, count_parts, discard_journal, open_journal
from bertjax.parts import split
from bertjax.plan import make_plan
from bertjax.settings import Settings
from tests.test_engine import model_of
from tests.tiny import encodings, random_model
from tests.workshop import make_classifier, write_pairs

TINY_PARTS = {"cpu": 1, "other": 1}


@pytest.fixture
def job(small, rng, tmp_path, monkeypatch):
    """A sweep of many parts: `job()` runs it, and options may differ."""
    monkeypatch.setattr(engine, "STEPS_OF_PART", TINY_PARTS)
    model, ablations = model_of("three heads", "logits", "float32"), [*ab.single_heads(small), *ab.head_pairs(small)]
    examples = encodings(small, rng, rng.integers(1, 10, 12))

    def run(**options):
        given = {"journal": tmp_path / "journal", "tokens_at_once": 48, "row_length": 16}
        arguments = {"ablations": ablations, "examples": examples, "readout": readouts.logits}
        chosen = {"model": model, **arguments, **given, **options}
        return engine.sweep(**chosen)

    return run


class StopAfter:
    """A progress bar at which the user presses Ctrl-C."""

    def __init__(self, share):
        self.share = share

    def __call__(self, done, total):
        if done > self.share * total:
            raise KeyboardInterrupt


def stopped(job, share=0.6, **options):
    with pytest.raises(SweepInterrupted) as caught:
        job(progress=StopAfter(share), **options)
    return caught.value


@pytest.mark.parametrize("make", [ab.single_heads, ab.head_pairs, ab.all_but_one, ab.whole_layers])
@pytest.mark.parametrize("work", [1, 30, 10**6])
def test_parts_are_the_whole_plan_once(config, make, work):
    plan = make_plan(config, [*make(config), ab.Ablation("base", ())])
    runs = choose_blocks(5, 16, config.num_attention_heads, 48).runs
    parts = split(plan, 5, runs, work)
    assert [part.number for part in parts] == list(range(len(parts)))
    everything = sorted((chunk, number) for part in parts for chunk in part.chunks for number in part.ablations)
    assert everything == sorted((chunk, number) for chunk in range(5) for number in range(-1, len(plan.ablations)))
    assert sum(part.work for part in parts) + 5 * plan.layers == 5 * sum(plan.states())


def test_a_sweep_goes_on_where_it_was_with_the_same_bytes(job, tmp_path):
    whole = job(journal=None)
    interruption = stopped(job)
    saved = count_parts(tmp_path / "journal")
    assert 0 < interruption.finished == saved < interruption.parts
    seen = []
    resumed = job(progress=lambda done, total: seen.append(done / total), tokens_at_once=500, row_length=None)
    assert seen[0] > 0.2
    assert seen[-1] == 1
    assert resumed.outputs.tobytes() == whole.outputs.tobytes()
    assert resumed.base.tobytes() == whole.base.tobytes()
    again = []
    complete = job(progress=lambda done, total: again.append(done / total))
    assert again == [1]
    assert complete.outputs.tobytes() == whole.outputs.tobytes()


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "other"])
def test_a_damaged_part_is_computed_again(job, tmp_path, damage):
    whole = job()
    paths = sorted((tmp_path / "journal").glob("part-*"))
    content = paths[3].read_bytes()
    flipped = bytearray(content)
    flipped[DIGEST_BYTES + len(content) // 2] ^= 1
    broken = {"flipped": bytes(flipped), "cut": content[:-1], "empty": b"", "other": paths[-1].read_bytes()}
    paths[3].write_bytes(broken[damage])
    assert job().outputs.tobytes() == whole.outputs.tobytes()
    assert paths[3].read_bytes() == content


def test_a_sweep_of_something_else_is_refused_with_what_differs(job, small, rng, tmp_path):
    stopped(job)
    saved = count_parts(tmp_path / "journal")
    for change, name in (
        ({"ablations": ab.single_heads(small, "zero")}, r"ablations \(21 sets, uniform, .* 6 sets, zero"),
        ({"examples": encodings(small, rng, [3, 4])}, r"examples \(12, "),
        ({"readout": lambda output: output.logits * 2}, "readout"),
        ({"means": np.ones((2, 3, 4), np.float32)}, "means"),
        ({"combine": lambda one: one}, "combination"),
    ):
        with pytest.raises(OutputError, match=f"other settings: {name}"):
            job(**change)
    assert count_parts(tmp_path / "journal") == saved
    job(ablations=ab.single_heads(small, "zero"), replace_journal=True)
    assert count_parts(tmp_path / "journal") > 0


def test_functions_are_told_apart_by_what_they_do(job):
    def make(factor):
        return lambda output: output.logits * factor

    stopped(job, readout=make(2.0))
    job(readout=make(2.0))
    with pytest.raises(OutputError, match="readout"):
        job(readout=make(3.0))


def test_a_damaged_journal_is_an_error_and_nothing_of_the_user_s_is_removed(job, tmp_path):
    stopped(job)
    head = tmp_path / "journal" / "journal.json"
    (tmp_path / "journal" / "notes.txt").write_text("mine")
    head.write_text("{")
    with pytest.raises(OutputError, match="damaged"):
        job()
    job(replace_journal=True)
    with (tmp_path / "journal" / "part-00000x").open("w"):
        pass
    discard_journal(tmp_path / "journal")
    (tmp_path / "journal" / "part-00000x").unlink()
    assert [path.name for path in (tmp_path / "journal").iterdir()] == ["notes.txt"]


def test_parts_of_another_sweep_are_none(job, small, tmp_path):
    job()
    other = {"ablations": [*ab.single_heads(small, "zero"), *ab.head_pairs(small, "zero")]}
    whole, journal = job(journal=None, **other), tmp_path / "journal"
    uniform = {path.name: path.read_bytes() for path in journal.glob("part-*")}
    stopped(job, replace_journal=True, **other)
    for name, content in uniform.items():
        (journal / name).write_bytes(content)
    assert job(**other).outputs.tobytes() == whole.outputs.tobytes()


def test_outputs_in_bfloat16_are_kept_as_they_are(small, rng, job):
    model = random_model(BertModel, small, "bfloat16")
    given = {"model": model, "readout": readouts.pooled}
    whole = job(journal=None, **given)
    assert whole.outputs.dtype.name == "bfloat16"
    stopped(job, **given)
    for again in (job(**given), job(**given)):
        assert again.outputs.dtype == whole.outputs.dtype
        assert again.outputs.tobytes() == whole.outputs.tobytes()


@pytest.mark.parametrize("name", ["part-00000-abc.parquet", "part-2.csv", ".my-journal.json", "notes.txt"])
def test_a_directory_with_other_files_is_refused_and_left_alone(job, tmp_path, name):
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / name).write_text("mine")
    for replace_journal in (False, True):
        with pytest.raises(OutputError, match="holds other files"):
            job(replace_journal=replace_journal)
    assert [path.name for path in (tmp_path / "journal").iterdir()] == [name]


def test_one_process_at_a_time(job, tmp_path):
    stopped(job)
    saved = count_parts(tmp_path / "journal")
    with open_journal(tmp_path / "other", {}, {}), pytest.raises(OutputError, match="another process is at work"):
        job(journal=tmp_path / "other", replace_journal=True)
    with (tmp_path / "journal" / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OutputError, match="another process is at work"):
            job()
    assert count_parts(tmp_path / "journal") == saved
    job()


def test_what_cannot_run_touches_no_journal(job, small, rng, tmp_path):
    stopped(job)
    saved = count_parts(tmp_path / "journal")
    for wrong, message in (
        ({"examples": encodings(small, rng, [30])}, "30 tokens"),
        ({"row_length": 4}, "a row only 4"),
        ({"row_length": 4, "one_per_row": True}, "a row only 4"),
        ({"memory": 10}, "the budget is 10 bytes"),
    ):
        with pytest.raises(InputError, match=message):
            job(replace_journal=True, **wrong)
    assert count_parts(tmp_path / "journal") == saved
    seen = []
    job(progress=lambda done, total: seen.append(done / total))
    assert seen[0] > 0.2


def test_a_sweep_that_was_begun_with_more_memory_is_not_gone_on_with_in_less(job, monkeypatch):
    stopped(job, tokens_at_once=10_000)
    monkeypatch.setattr(engine, "memory_in_use", lambda: 0)
    monkeypatch.setattr(memory, "memory_in_use", lambda: 0)
    monkeypatch.setattr(engine, "SLACK", 1)
    with pytest.raises(InputError, match=r"begun with steps that need about .*: give more to go on"):
        job(memory=memory.COMPILER_BYTES + 100_000)
    job(memory=memory.COMPILER_BYTES + 10**6)


def test_a_full_disk_keeps_what_was_finished(job, tmp_path, monkeypatch):
    from bertjax import atomic

    whole = job(journal=None)
    room = iter(range(5))
    flush = atomic._flush

    def fill(path):
        if next(room, None) is None:
            raise OSError(28, "No space left on device")
        flush(path)

    monkeypatch.setattr(atomic, "_flush", fill)
    with pytest.raises(OutputError, match="No space left on device"):
        job()
    assert count_parts(tmp_path / "journal") == 4
    monkeypatch.setattr(atomic, "_flush", flush)
    assert job().outputs.tobytes() == whole.outputs.tobytes()


@pytest.fixture
def settings(tmp_path):
    """All heads of a tiny classifier on 60 made-up pairs."""
    model = make_classifier(tmp_path / "model")
    data = write_pairs(tmp_path / "pairs.tsv", 60)
    return Settings(model=str(model), task="mrpc", data=str(data), output=str(tmp_path / "out"))


def arguments_of(settings):
    return ["ablate", "--model", settings.model, "--task", "mrpc", "--data", settings.data, "--output", settings.output]


def test_the_command_says_what_is_saved_and_goes_on(settings, monkeypatch, capsys):
    monkeypatch.setattr(engine, "STEPS_OF_PART", TINY_PARTS)
    monkeypatch.setattr(engine, "CACHED_FLOATS", 700)
    monkeypatch.setattr("bertjax.progress.ProgressBar._advance", lambda self, done, total: StopAfter(0.5)(done, total))
    assert main(arguments_of(settings)) == 130
    assert "parts are saved: the same command goes on from there" in capsys.readouterr().err
    assert [path.name for path in settings.directory.iterdir()] == ["journal"]
    monkeypatch.undo()
    assert main([*arguments_of(settings), "--mode", "zero"]) == 2
    assert "ablations (6 sets, uniform" in capsys.readouterr().err
    assert main([*arguments_of(settings), "--resume"]) == 0
    assert "going on from there" in capsys.readouterr().out
    assert not settings.journal.exists()
    assert main([*arguments_of(settings), "--resume"]) == 0
    assert "complete already" in capsys.readouterr().out
    assert main([*arguments_of(settings), "--resume", "--mode", "zero"]) == 2
    assert "mode (uniform there, zero here)" in capsys.readouterr().err
    other = replace(settings, output=settings.output + "-2")
    assert main([*arguments_of(other), "--resume"]) == 0
    assert "nothing to resume" in capsys.readouterr().out


CHILD = """
import sys
from bertjax import engine
engine.STEPS_OF_PART, engine.CACHED_FLOATS = {"cpu": 1, "other": 1}, 700
from bertjax.cli import main
sys.exit(main(sys.argv[1:]))
"""


def kill_and_resume(settings, kills, tmp_path):
    """Run the command, kill it `kills` times at random moments, and let it end; give how often it was killed."""
    command = [sys.executable, "-c", CHILD, *arguments_of(settings)]
    killed = 0
    for _ in range(kills):
        process = subprocess.Popen([*command, "--resume"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        before, wanted = count_parts(settings.journal), random.randrange(8)
        while process.poll() is None and count_parts(settings.journal) < before + wanted:
            time.sleep(0.001)
        time.sleep(random.random() * 0.02 if wanted else random.random() * 4)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            killed += 1
        process.communicate()
    subprocess.run([*command, "--resume"], check=True, capture_output=True)
    return killed


def check_killed(settings, kills, tmp_path):
    undisturbed = replace(settings, output=str(tmp_path / "undisturbed"))
    subprocess.run([sys.executable, "-c", CHILD, *arguments_of(undisturbed)], check=True, capture_output=True)
    assert kill_and_resume(settings, kills, tmp_path) >= kills / 2
    for name in ("outputs.npz", "examples.jsonl", "attention.npz"):
        assert (settings.directory / name).read_bytes() == (undisturbed.directory / name).read_bytes()
    assert sorted(path.name for path in settings.directory.iterdir()) == sorted(
        path.name for path in undisturbed.directory.iterdir()
    )


def test_killed_and_resumed_the_outputs_are_the_same_bytes(settings, tmp_path):
    check_killed(settings, 3, tmp_path)


@pytest.mark.slow
def test_killed_twenty_times(settings, tmp_path):
    check_killed(settings, 20, tmp_path)


def test_the_plain_form_does_not_discard_what_is_unfinished(settings, monkeypatch, capsys):
    monkeypatch.setattr(engine, "STEPS_OF_PART", TINY_PARTS)
    monkeypatch.setattr(engine, "CACHED_FLOATS", 700)
    with pytest.raises(SweepInterrupted):
        ablate(settings, progress=StopAfter(0.5))
    saved = count_parts(settings.journal)
    with pytest.raises(OutputError, match="an unfinished sweep, which --engine plain cannot go on with"):
        ablate(replace(settings, engine="plain"))
    assert count_parts(settings.journal) == saved > 0
    said = []
    ablate(replace(settings, mode="zero", overwrite=True), say=said.append)
    assert not any("going on" in line for line in said)


def test_a_file_of_sets_that_was_edited_is_another_job(settings, tmp_path, capsys):
    sets = tmp_path / "sets.txt"
    sets.write_text("0.0\n1.1 1.2")
    arguments = [*arguments_of(settings), "--ablate", str(sets)]
    assert main(arguments) == 0
    sets.write_text("0.0\n1.1 1.0")
    assert main([*arguments, "--resume"]) == 2
    assert "sets_sha256" in capsys.readouterr().err


def test_what_a_killed_process_left_half_written_is_removed(settings):
    settings.directory.mkdir()
    (settings.directory / ".0123abcd-outputs.npz").touch()
    (settings.directory / ".mine-outputs.npz").touch()
    ablate(settings)
    assert [path.name for path in settings.directory.iterdir() if path.name[0] == "."] == [".mine-outputs.npz"]


def test_outputs_of_a_job_are_those_of_the_engine_without_a_journal(settings):
    found = ablate(settings)
    again = ablate(replace(settings, output=settings.output + "-2", engine="plain"))
    assert np.abs(found.swept.outputs - again.swept.outputs).max() < 2e-5
