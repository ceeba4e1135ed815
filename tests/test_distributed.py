"""Several processes over loopback share a sweep; one of them dies; other numbers of processes go on with it."""

import os
import socket
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from bertjax import distributed
from bertjax.ablate import ablate
from bertjax.cli import main
from bertjax.errors import InputError
from bertjax.journal import count_parts
from bertjax.settings import Settings, check_settings
from tests.workshop import make_classifier, write_pairs

# Shares of three examples (six heads and the base run). A process that "dies" does so when the outputs of its third
# round are to come together (twice before, processes tell each other where they are and what they were given).
CHILD = """
import os, signal, sys, time
from bertjax import distributed
distributed.RUNS_OF_SHARE = {"cpu": 21, "other": 21}
if sys.argv[1] in ("dies", "freezes"):
    gather, calls = distributed.gather, []
    def dying(values):
        calls.append(1)
        if len(calls) == 5:
            os.kill(os.getpid(), signal.SIGSTOP if sys.argv[1] == "freezes" else signal.SIGKILL)
        return gather(values)
    distributed.gather = dying
if sys.argv[1] == "late":
    start = distributed.start
    def late(*given):
        watch = start(*given)
        time.sleep(35)
        return watch
    distributed.start = late
from bertjax.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def settings(tmp_path):
    """All heads of a tiny classifier, disabled by their means, on 50 made-up pairs."""
    model = make_classifier(tmp_path / "model")
    data = write_pairs(tmp_path / "pairs.tsv", 50)
    return Settings(model=str(model), task="mrpc", data=str(data), output=str(tmp_path / "out"), mode="mean")


def run_processes(settings, count, kinds=(), more=(), wait=None):
    """Run the command in so many processes; gives how each ended and what it said.

    Args:
        kinds: what single processes do, by number.
        more: options that single ones are given besides.
        wait: only for the first so many of them; the others are ended then.
    """
    kinds, more = dict(kinds), dict(more)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = ["ablate", "--model", settings.model, "--task", "mrpc", "--data", settings.data, "--mode", "mean"]
    command += ["--output", settings.output, "--distributed", "--coordinator", f"localhost:{port}"]
    command += ["--processes", str(count)]
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    several = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, kinds.get(one, ""), *command, "--process", str(one), *more.get(one, [])],
            **pipes,
        )
        for one in range(count)
    ]
    try:
        said = [process.communicate(timeout=300) for process in several[:wait]]
    finally:
        for process in several:
            process.kill()
        for process in several if wait is None else several[wait:]:
            process.stdout.close()
            process.stderr.close()
            process.wait()
    return [process.returncode for process in several], said


def outputs_of(settings):
    return np.load(settings.directory / "outputs.npz")


def test_two_processes_give_what_one_gives(settings, tmp_path):
    codes, said = run_processes(settings, 2)
    assert codes == [0, 0], said
    assert "results in" in said[0][0]
    assert all(line.startswith("[Gloo]") for line in said[1][0].splitlines())
    found = outputs_of(settings)
    alone = ablate(Settings(**{**vars(settings), "output": str(tmp_path / "alone")}))
    for name in ("base", "outputs"):
        assert np.abs(found[name] - getattr(alone.swept, name)).max() < 2e-6
    assert np.ptp(found["outputs"], axis=0).max() > 1e-4
    assert not settings.journal.exists()


def test_one_of_four_dies_the_others_say_so_and_two_go_on(settings, tmp_path):
    codes, said = run_processes(settings, 4, {2: "dies"})
    assert codes == [2, 2, -9, 2], said
    for number in (0, 1, 3):
        assert "another process has ended" in said[number][1]
        assert "start all of them again with the same command" in said[number][1]
    assert not (settings.directory / "summary.json").exists()
    kept = count_parts(settings.journal)
    assert kept == 8  # of two rounds
    codes, said = run_processes(settings, 2)
    assert codes == [0, 0], said
    assert f"{kept} finished shares" in said[0][0]
    alone = ablate(Settings(**{**vars(settings), "output": str(tmp_path / "alone")}))
    assert np.abs(outputs_of(settings)["outputs"] - alone.swept.outputs).max() < 2e-6


def test_the_first_dies_and_the_others_say_so(settings):
    codes, said = run_processes(settings, 2, {0: "dies"})
    assert codes == [-9, 2], said
    assert said[1][1].strip().startswith("bertjax: error: another process has ended")
    assert len(said[1][1].strip().splitlines()) == 1


@pytest.mark.slow
def test_one_freezes_and_the_others_end(settings, monkeypatch):
    codes, said = run_processes(settings, 2, {1: "freezes"}, wait=1)
    assert codes[0] == 2, said
    assert "bertjax: error: another process has ended" in said[0][1]


def test_what_is_complete_is_said_to_be(settings):
    ablate(replace(settings, limit=6))
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
    assert "the first process says why" in said[1][1]
    assert (settings.directory / "summary.json").read_text() == "{}"


@pytest.mark.slow
def test_a_process_may_be_late(settings):
    """Connections are made within 30 seconds; where all have met once, a longer wait does no harm."""
    codes, said = run_processes(settings, 2, {0: "late"})
    assert codes == [0, 0], said


def test_numbers_come_together_as_they_are(rng):
    for dtype in (np.float64, np.int64, np.float32):
        values = rng.normal(size=(3, 4)).astype(dtype) * 7
        assert distributed.gather(values).dtype == dtype
        assert (distributed.gather(values) == values[None]).all()


@pytest.mark.parametrize("examples", [1, 5, 64, 1000])
@pytest.mark.parametrize("shares", [1, 3, 5])
def test_every_example_is_in_one_share(examples, shares):
    found = distributed.cut(examples, min(shares, examples))
    assert sorted(place for share in found for place in share) == list(range(examples))
    sizes = [len(share) for share in found]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) == len(found[0])


def test_the_plain_form_is_of_one_process(settings):
    with pytest.raises(InputError, match="leave --distributed out"):
        check_settings(Settings(**{**vars(settings), "distributed": True, "engine": "plain"}))


def test_options_of_several_processes_need_the_word(settings, capsys):
    assert main(["ablate", "--model", settings.model, "--processes", "2"]) == 2
    assert "give --distributed too" in capsys.readouterr().err
