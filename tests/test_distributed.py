"""Several processes over loopback share a sweep; one of them dies; other numbers of processes go on with it."""

import os
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from bertjax import distributed
from bertjax.ablate import ablate
from bertjax.cli import main
from bertjax.errors import InputError
from bertjax.journal import count_parts
from bertjax.settings import Settings, check_settings
from tests.workshop import make_classifier, write_pairs

# Shares of few examples. A process that "dies" does so when the outputs of its third round are to come together
# (once before, processes tell each other where they are).
CHILD = """
import os, sys
from bertjax import distributed
distributed.EXAMPLES_OF_SHARE = {"cpu": 3, "other": 3}
if sys.argv[1] == "dies":
    gather, calls = distributed.gather, []
    def dying(values):
        calls.append(1)
        if len(calls) == 4:
            os.kill(os.getpid(), 9)
        return gather(values)
    distributed.gather = dying
from bertjax.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def settings(tmp_path):
    """All heads of a tiny classifier, disabled by their means, on 50 made-up pairs."""
    model = make_classifier(tmp_path / "model")
    data = write_pairs(tmp_path / "pairs.tsv", 50)
    return Settings(model=str(model), task="mrpc", data=str(data), output=str(tmp_path / "out"), mode="mean")


def run_processes(settings, count, dies=None):
    """Run the command in so many processes; gives how each ended and what it said."""
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
            [sys.executable, "-c", CHILD, "dies" if one == dies else "lives", *command, "--process", str(one)], **pipes
        )
        for one in range(count)
    ]
    said = [process.communicate(timeout=300) for process in several]
    return [process.returncode for process in several], said


def outputs_of(settings):
    return np.load(settings.directory / "outputs.npz")


def test_two_processes_give_what_one_gives(settings, tmp_path):
    codes, said = run_processes(settings, 2)
    assert codes == [0, 0], said
    assert "results in" in said[0][0]
    assert said[1][0] == "" or "results" not in said[1][0]
    found = outputs_of(settings)
    alone = ablate(Settings(**{**vars(settings), "output": str(tmp_path / "alone")}))
    for name in ("base", "outputs"):
        assert np.abs(found[name] - getattr(alone.swept, name)).max() < 2e-6
    assert np.ptp(found["outputs"], axis=0).max() > 1e-4
    assert not settings.journal.exists()


def test_one_of_four_dies_the_others_say_so_and_two_go_on(settings, tmp_path):
    started = time.monotonic()
    codes, said = run_processes(settings, 4, dies=2)
    assert time.monotonic() - started < 120
    assert codes[2] == -9
    assert all(code not in (0, None) for code in codes)
    assert "another process has ended" in said[0][1]
    assert "start all of them again with the same command" in said[0][1]
    assert not (settings.directory / "summary.json").exists()
    kept = count_parts(settings.journal)
    assert kept == 8  # of two rounds
    codes, said = run_processes(settings, 2)
    assert codes == [0, 0], said
    assert f"{kept} finished shares" in said[0][0]
    alone = ablate(Settings(**{**vars(settings), "output": str(tmp_path / "alone")}))
    assert np.abs(outputs_of(settings)["outputs"] - alone.swept.outputs).max() < 2e-6


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
