"""Nothing is lost: parts of a sweep are kept, and a sweep that was killed gives the same bytes."""

import fcntl

import numpy as np
import pytest

from bertjax import BertModel
from bertjax.engine import run as engine
from bertjax.engine import sizes
from bertjax.engine.journal import DIGEST_BYTES, count_parts, discard_journal, open_journal
from bertjax.engine.plan import make_plan
from bertjax.engine.schedule import split_into_parts
from bertjax.engine.sizes import choose_blocks
from bertjax.errors import InputError, OutputError, SweepInterrupted
from bertjax.interventions import ablations as ab
from bertjax.interventions import readouts
from tests.engine_checks import model_of
from tests.interruptions import TINY_PARTS, StopAfter
from tests.tiny_models import encodings, fixed_lengths, random_model


@pytest.fixture
def job(small, rng, tmp_path, monkeypatch):
    """A sweep of many parts: `job()` runs it, and options may differ."""
    monkeypatch.setattr(sizes, "STEPS_OF_PART", TINY_PARTS)
    model, ablations = model_of("three heads", "logits", "float32"), [*ab.single_heads(small), *ab.head_pairs(small)]
    examples = encodings(small, rng, fixed_lengths(1, 10, 12))

    def run(**options):
        settings = {"journal": tmp_path / "journal", "tokens_at_once": 48, "row_length": 16}
        arguments = {"ablations": ablations, "examples": examples, "readout": readouts.logits}
        chosen = {"model": model, **arguments, **settings, **options}
        return engine.sweep(**chosen)

    return run


def stopped(job, share=0.6, **options):
    with pytest.raises(SweepInterrupted) as caught:
        job(progress=StopAfter(share), **options)
    return caught.value


@pytest.mark.parametrize("make", [ab.single_heads, ab.head_pairs, ab.all_but_one, ab.whole_layers])
@pytest.mark.parametrize("work", [1, 30, 10**6])
def test_parts_are_the_whole_plan_once(config, make, work):
    plan = make_plan(config, [*make(config), ab.Ablation("base", ())])
    runs = choose_blocks(5, 16, config.num_attention_heads, 48).runs
    parts = split_into_parts(plan, 5, runs, work)
    assert [part.index for part in parts] == list(range(len(parts)))
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
    stopped(job, settings={"limit": 9, "seed": 0})
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
    with pytest.raises(OutputError, match=r"settings: limit \(9 there, 7 here\); examples\. Give those"):
        job(examples=encodings(small, rng, [3, 4]), settings={"limit": 7, "seed": 0})
    assert count_parts(tmp_path / "journal") == saved
    job(ablations=ab.single_heads(small, "zero"), replace_journal=True)
    assert count_parts(tmp_path / "journal") > 0


def test_functions_are_distinguished_by_what_they_compute(job):
    def make(factor):
        return lambda output: output.logits * factor

    stopped(job, readout=make(2.0))
    job(readout=make(2.0))
    with pytest.raises(OutputError, match="readout"):
        job(readout=make(3.0))


def test_a_damaged_journal_is_an_error_and_user_files_are_kept(job, tmp_path):
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
    options = {"model": model, "readout": readouts.pooled}
    whole = job(journal=None, **options)
    assert whole.outputs.dtype.name == "bfloat16"
    stopped(job, **options)
    for again in (job(**options), job(**options)):
        assert again.outputs.dtype == whole.outputs.dtype
        assert again.outputs.tobytes() == whole.outputs.tobytes()


@pytest.mark.parametrize("name", ["part-00000-abc.parquet", "part-2.csv", ".my-journal.json", "notes.txt"])
def test_a_directory_with_other_files_is_refused_and_left_alone(job, tmp_path, name):
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / name).write_text("mine")
    for replace_journal in (False, True):
        with pytest.raises(OutputError, match="has other files"):
            job(replace_journal=replace_journal)
    assert [path.name for path in (tmp_path / "journal").iterdir()] == [name]


def test_one_process_at_a_time(job, tmp_path):
    stopped(job)
    saved = count_parts(tmp_path / "journal")
    with open_journal(tmp_path / "other", {}, {}), pytest.raises(OutputError, match="another process is running"):
        job(journal=tmp_path / "other", replace_journal=True)
    with (tmp_path / "journal" / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OutputError, match="another process is running"):
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


def test_a_sweep_is_not_resumed_with_less_memory(job, monkeypatch):
    stopped(job, tokens_at_once=10_000)
    monkeypatch.setattr(engine, "memory_in_use", lambda: 0)
    monkeypatch.setattr(sizes, "memory_in_use", lambda: 0)
    monkeypatch.setattr(engine, "SLACK", 1)
    with pytest.raises(InputError, match=r"begun with steps that need about .*: give more to resume"):
        job(memory=sizes.COMPILER_BYTES + 100_000)
    job(memory=sizes.COMPILER_BYTES + 10**6)


def test_a_full_disk_keeps_what_was_finished(job, tmp_path, monkeypatch):
    from bertjax import atomic_files as atomic

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
