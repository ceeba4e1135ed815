"""Several processes over loopback share a sweep; one of them dies; other numbers of processes go on with it."""

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path

import numpy as np
import pytest

from bertjax import load
from bertjax.cli import main
from bertjax.data.loading import load_examples
from bertjax.data.tokenizer import Tokenizer
from bertjax.engine.distributed import one_machine, processes, shared_sweep
from bertjax.engine.distributed.shared_encodings import SharedEncodings
from bertjax.engine.distributed.watch import is_local
from bertjax.engine.journal import count_parts
from bertjax.errors import InputError
from bertjax.results import read_results
from bertjax.study import outputs as task_outputs
from bertjax.study.run import run_job
from bertjax.study.settings import Settings, check_settings
from bertjax.tasks import Options, encode_examples
from tests.factories import SENTENCES, make_classifier, make_masked, write_lines, write_pairs
from tests.several_processes import run_processes, saved_outputs
from tests.tiny_models import FAST_COMPILATION, arrays_of, largest_difference

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(tmp_path):
    """All heads of a tiny classifier, disabled by their means, on 50 made-up pairs."""
    model = make_classifier(tmp_path / "model")
    data = write_pairs(tmp_path / "pairs.tsv", 50)
    return Settings(model=str(model), task="mrpc", data=str(data), output=str(tmp_path / "out"), mode="mean")


def test_two_processes_equal_one_and_share_the_tokenisation(settings, tmp_path):
    """Of 51 pairs the first process has 26, and takes those of the others of which it samples the attention."""
    write_pairs(Path(settings.data), 51)
    settings = replace(settings, mode="uniform")
    codes, said = run_processes(settings, 2, {0: "counts", 1: "counts"})
    assert codes == [0, 0], said
    counts = [int(line.split()[1]) for _, told in said for line in told.splitlines() if line.startswith("tokenised")]
    sampled = arrays_of(settings.directory / "attention.npz")["examples"]
    assert counts == [26 + int((sampled % 2 == 1).sum()), 25]
    assert "results in" in said[0][0]
    assert said[1][0] == ""
    found = saved_outputs(settings)
    alone = run_job(replace(settings, output=str(tmp_path / "alone")))
    for name in ("base", "outputs"):
        assert np.abs(found[name] - alone.outputs[name]).max() < 2e-6
    assert np.ptp(found["outputs"], axis=0).max() > 1e-4
    assert not settings.journal.exists()


@pytest.mark.parametrize("task", ["minimal-pairs", pytest.param("mlm", marks=pytest.mark.slow)])
def test_two_processes_equal_one_for_target_tokens(settings, tmp_path, task):
    """The words, and what each is asked for, are shared out with the texts."""
    make_masked(tmp_path / "model")
    data = tmp_path / "pairs.tsv"
    pairs = "".join(f"{good}\t{bad}\n" for good, bad in itertools.pairwise(SENTENCES))
    data.write_text(f"good\tbad\n{pairs}")
    if task == "mlm":
        write_lines(data.with_suffix(".txt"))
    own = replace(settings, task=task, data=str(data if task != "mlm" else data.with_suffix(".txt")))
    codes, said = run_processes(own, 2)
    assert codes == [0, 0], said
    found = saved_outputs(own)
    alone = run_job(replace(own, output=str(tmp_path / "alone")))
    for name in ("base", "outputs"):
        assert np.abs(found[name][..., 0] - alone.outputs[name][..., 0]).max() < 2e-5
    assert np.ptp(found["outputs"][..., 0], axis=0).max() > 1e-2


@pytest.mark.parametrize("second", [True, False])
def test_texts_of_one_process_are_those_of_the_tokenizer(settings, second):
    examples, tokenizer = load_examples("mrpc", data=settings.data), Tokenizer.from_pretrained(settings.model)
    first, other = (examples.first, examples.second) if second else ([*examples.first, *examples.second], None)
    length = 14 if second else 7
    whole = tokenizer.encode(first, other, length)
    rows = SharedEncodings(tokenizer, first, other, length, 50)
    assert len(rows) == len(whole)
    assert [*rows] == [*rows[:]] == whole
    assert (rows[-1], rows[3:9:2]) == (whole[-1], tuple(whole[3:9:2]))
    assert rows.lengths.tolist() == [len(one) for one in whole]
    assert rows.truncated.tolist() == [one.truncated for one in whole]
    assert 0 < rows.truncated.sum() < len(whole)
    assert rows.texts_of(range(2, 50, 7)) == [tuple(whole[place::50]) for place in range(2, 50, 7)]
    assert [[len(text) for text in texts] for texts in rows.blanks()] == [
        [len(text) for text in whole[place::50]] for place in range(50)
    ]
    with pytest.raises(IndexError):
        rows[len(whole)]


def test_texts_are_told_apart(settings):
    tokenizer = Tokenizer.from_pretrained(settings.model)

    def digest(first, second=None, length=12):
        return SharedEncodings(tokenizer, first, second, length, 1).digest

    digests = [digest(["ab"]), digest(["a"], ["b"]), digest(["a", "b"]), digest(["ab"], length=11), digest(["a"])]
    assert len({*digests}) == 5
    assert digest(["ab"]) == digests[0]


@pytest.mark.parametrize("size", [5, 8, 60])
def test_means_of_blocks_are_those_of_all(settings, monkeypatch, size):
    monkeypatch.setattr(task_outputs, "EXAMPLES_OF_BLOCK", size)
    model = load(settings.model)
    examples, tokenizer = load_examples("mrpc", data=settings.data), Tokenizer.from_pretrained(settings.model)
    whole, together = (
        encode_examples(model, tokenizer, examples, options=Options(together=shared)) for shared in (False, True)
    )
    assert whole.truncated == together.truncated
    expected = task_outputs.mean_outputs(model, whole, 4)
    assert largest_difference(task_outputs.mean_outputs_together(model, together, 4), expected) < 1e-6
    assert np.abs(expected).max() > 1e-2


@pytest.mark.parametrize("count", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_one_of_several_dies_the_others_say_so_and_two_go_on(settings, tmp_path, count):
    codes, said = run_processes(settings, count, {2: "dies"})
    assert codes == [-9 if number == 2 else 2 for number in range(count)], said
    for number in {*range(count)} - {2}:
        assert "another process has ended" in said[number][1]
        assert "start all of them again with the same command" in said[number][1]
    assert not (settings.directory / "summary.json").exists()
    kept = count_parts(settings.journal)
    assert kept == 2 * count  # of two rounds
    codes, said = run_processes(settings, 2)
    assert codes == [0, 0], said
    assert f"{kept} finished shares" in said[0][0]
    alone = run_job(replace(settings, output=str(tmp_path / "alone")))
    assert np.abs(saved_outputs(settings)["outputs"] - alone.outputs["outputs"]).max() < 2e-6


def test_the_first_dies_and_the_others_say_so(settings):
    codes, said = run_processes(settings, 2, {0: "dies"})
    assert codes == [-9, 2], said
    # JAX's service may hear of it too and log that in C++, before, after or between.
    assert said[1][1].count("bertjax: error: another process has ended") == 1
    assert "Traceback" not in said[1][1]


@pytest.mark.slow
def test_one_freezes_and_the_others_end(settings, monkeypatch):
    codes, said = run_processes(settings, 2, {1: "freezes"}, wait=1)
    assert codes[0] == 2, said
    assert "bertjax: error: another process has ended" in said[0][1]


def test_what_is_complete_is_said_to_be(settings):
    run_job(replace(settings, limit=6))
    codes, said = run_processes(settings, 2, more={number: ["--limit", "6", "--resume"] for number in (0, 1)})
    assert codes == [0, 0], said
    assert "is complete already" in said[0][0] + said[0][1]


@pytest.mark.parametrize("address", ["nonsense", ":1234", "localhost:0", "localhost:99999", "localhost:x"])
def test_an_address_that_is_none_is_refused(settings, capsys, address):
    several = ["--distributed", "--coordinator", address, "--processes", "2", "--process", "1"]
    assert main(["ablate", "--model", settings.model, *several]) == 2
    assert f"--coordinator {address!r} is not HOST:PORT" in capsys.readouterr().err


def test_a_port_that_is_taken_is_refused(settings, capsys):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        address = f"localhost:{taken.getsockname()[1]}"
        several = ["--distributed", "--coordinator", address, "--processes", "2", "--process", "0"]
        assert main(["ablate", "--model", settings.model, *several]) == 2
    assert f"cannot listen at {address}" in capsys.readouterr().err


def test_what_is_wrong_with_one_ends_all_with_a_line(settings, tmp_path):
    other = write_pairs(tmp_path / "other.tsv", 51)
    codes, said = run_processes(settings, 2, more={1: ["--data", str(other), "--limit", "50"]})
    assert codes == [2, 2], said
    assert "the processes were given different examples: start all" in said[0][1]
    settings.directory.mkdir()
    (settings.directory / "summary.json").write_text("{}")
    codes, said = run_processes(settings, 2)
    assert codes == [2, 2], said
    assert str(settings.directory) in said[0][1]
    assert "see the error of the first process" in said[1][1]
    assert (settings.directory / "summary.json").read_text() == "{}"


@pytest.mark.slow
def test_a_process_may_be_late(settings):
    """Connections are made within 30 seconds; where all have met once, a longer wait does no harm."""
    codes, said = run_processes(settings, 2, {0: "late"})
    assert codes == [0, 0], said


def test_numbers_come_together_as_they_are(rng):
    for dtype in (np.float64, np.int64, np.float32):
        values = rng.normal(size=(3, 4)).astype(dtype) * 7
        assert processes.gather(values).dtype == dtype
        assert (processes.gather(values) == values[None]).all()


@pytest.mark.parametrize("examples", [1, 5, 64, 1000])
@pytest.mark.parametrize("shares", [1, 3, 5])
def test_every_example_is_in_one_share(examples, shares):
    found = shared_sweep.divide_examples(examples, min(shares, examples))
    assert sorted(place for share in found for place in share) == list(range(examples))
    sizes = [len(share) for share in found]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) == len(found[0])


@pytest.fixture
def cores():
    """The cores that this process may use; two at least."""
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("processes cannot have cores of their own here")
    return os.sched_getaffinity(0)


def run_here(settings, *more, **given):
    """`bertjax ablate --processes 2` in a process of its own."""
    command = [sys.executable, "-m", "bertjax", "ablate", "--model", settings.model, "--task", settings.task]
    command += ["--data", settings.data, "--mode", settings.mode, "--output", settings.output, "--processes", "2"]
    environment = os.environ | {"XLA_FLAGS": FAST_COMPILATION}
    return subprocess.Popen(
        [*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **given
    )


def test_processes_of_one_machine_give_what_one_gives(settings, tmp_path, cores):
    run = run_here(settings, "--memory", "6GB")
    said, errors = run.communicate(timeout=240)
    assert run.returncode == 0, errors
    assert "results in" in said
    assert "Gloo" not in said + errors
    summary = read_results(settings.directory).summary
    assert summary["command"].endswith("--processes 2 --memory 6GB")
    assert summary["settings"]["memory"] == "3000000000"
    assert summary["settings"]["distributed"]
    alone = run_job(replace(settings, output=str(tmp_path / "alone")))
    for name in ("base", "outputs"):
        assert np.abs(saved_outputs(settings)[name] - alone.outputs[name]).max() < 2e-6
    assert not settings.journal.exists()


def test_ctrl_c_ends_all_processes_of_a_machine_with_a_line(settings, cores):
    run = run_here(settings, start_new_session=True)
    for line in run.stdout:
        if "results go to" in line:
            break
    os.kill(run.pid, signal.SIGINT)
    _, errors = run.communicate(timeout=60)  # pipes are closed when all have ended
    assert run.returncode == 130
    assert len(errors.splitlines()) == 1
    assert re.fullmatch(r"bertjax: interrupted; .*(resumes there|saved stays)\n", errors)  # said by the first one


def tell(folder, who):
    """What each process of a machine sees of itself."""
    Path(folder, who[-1]).write_text(json.dumps([who, sorted(os.sched_getaffinity(0))]), encoding="utf-8")
    one_machine.use_all_cores()
    Path(folder, f"{who[-1]} at last").write_text(json.dumps(sorted(os.sched_getaffinity(0))), encoding="utf-8")
    return 0


def test_each_process_of_a_machine_has_cores_of_its_own(tmp_path, cores):
    assert one_machine.run_together(partial(tell, str(tmp_path)), 2) == 0
    (first, own), (second, other) = (json.loads((tmp_path / name).read_text()) for name in "01")
    assert first[:2] == ["--distributed", "--coordinator"]
    assert first[3:] == ["--processes", "2", "--process", "0"]
    assert second == [*first[:-1], "1"]
    assert sorted(own + other) == sorted(cores)
    assert own
    assert other
    assert json.loads((tmp_path / "0 at last").read_text()) == sorted(cores)
    assert os.sched_getaffinity(0) == cores


def fail(how, who):
    """The second process ends; the first one waits for it, as it does when they join."""
    if who[-1] == "0":
        time.sleep(600)
    if how == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    print("Traceback", "bertjax: error: no such file" if how == "says" else how, sep="\n", file=sys.stderr)
    return 2


@pytest.mark.parametrize(
    ("how", "told"), [("says", "no such file"), ("a reason", "a reason"), ("is killed", "SIGKILL")]
)
def test_what_a_process_of_a_machine_died_of_is_told(how, told, cores, monkeypatch, capsys):
    monkeypatch.setattr(one_machine, "PATIENCE", 0.5)
    assert one_machine.run_together(partial(fail, how), 2) == 2
    assert capsys.readouterr().err == f"bertjax: error: process 1 of 2 has ended, so all do: {told}\n"


class EndsWhenLookedAt(SpawnProcess):
    """A process that has ended, which its exit code tells only when it is asked for again; None: it goes on."""

    def __init__(self, code):
        super().__init__()
        self.code = code
        self.readable, self.end = os.pipe()
        self.asked = 0
        if code is not None:
            os.close(self.end)

    @property
    def sentinel(self):
        return self.readable

    @property
    def exitcode(self):
        self.asked += 1
        return None if self.asked == 1 else self.code

    def join(self, timeout=None):
        pass

    def close(self):
        os.close(self.readable)
        if self.code is None:
            os.close(self.end)


@pytest.mark.parametrize(
    ("codes", "told"), [([0, 0], 0), ([0, 0, 0, 0], 0), ([None, -9], 2), ([None, None, 3, 0], 2), ([None, 0, 2], 2)]
)
def test_a_process_that_ends_while_it_is_looked_at_is_not_missed(codes, told, tmp_path):
    started, found = [EndsWhenLookedAt(code) for code in codes], []
    waiting = threading.Thread(target=lambda: found.append(one_machine._wait(started, tmp_path)), daemon=True)
    waiting.start()
    waiting.join(20)
    assert found == [told]
    for process in started:
        process.close()


def die(who):
    """The first process is killed."""
    os.kill(os.getpid(), signal.SIGKILL) if who[-1] == "0" else time.sleep(600)


def test_the_first_process_of_a_machine_ends_all_of_them(cores, capsys):
    assert one_machine.run_together(die, 2) == 1
    assert capsys.readouterr().err == "bertjax: error: process 0 of 2 was killed (SIGKILL)\n"


@pytest.mark.parametrize(
    ("before", "during"),
    [
        ({}, None),
        ({"https_proxy": "http://p:1"}, "127.0.0.1"),
        ({"https_proxy": "http://p:1", "NO_PROXY": "hub.internal"}, "hub.internal,127.0.0.1"),
        ({"https_proxy": "http://p:1", "no_proxy": "*"}, "*"),
    ],
)
def test_no_proxy_is_asked_for_the_way_to_this_machine(before, during, monkeypatch):
    for name in [name for name in os.environ if "proxy" in name.lower()]:
        monkeypatch.delenv(name)
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    with one_machine._reached_without_proxy():
        assert os.environ.get("no_proxy") == during
    assert {name: value for name, value in os.environ.items() if "proxy" in name.lower()} == before


@pytest.mark.parametrize(
    ("host", "local"),
    [
        *[("localhost", True), ("localhost:12", True), ("127.0.0.1:9", True), ("::1", True), ("[::1]:9", True)],
        *[("localhost.example.org:12", False), ("10.0.0.1:1234", False), ("node1", False)],
    ],
)
def test_names_that_mean_this_machine(host, local):
    assert is_local(host) == local


def test_no_more_processes_than_cores(settings, capsys):
    assert main(["ablate", "--model", settings.model, "--output", settings.output, "--processes", "100000"]) == 2
    assert "--processes 100000, but this process may use" in capsys.readouterr().err


def test_processes_of_one_machine_are_for_cpus(monkeypatch):
    monkeypatch.setattr(one_machine.jax, "default_backend", lambda: "gpu")
    with pytest.raises(InputError, match="one process uses all devices here"):
        one_machine.run_together(die, 1)


def test_the_plain_form_is_of_one_process(settings):
    with pytest.raises(InputError, match="in one process: leave out --distributed, or --processes"):
        check_settings(replace(settings, distributed=True, engine="plain"))


def test_options_of_several_processes_need_the_word(settings, capsys):
    assert main(["ablate", "--model", settings.model, "--processes", "2", "--process", "1"]) == 2
    assert "give --distributed too" in capsys.readouterr().err
