"""What a user types wrong gives one clear line and exit code 2."""

import copy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bertjax.cli import guarded, main
from tests.factories import make_classifier, write_pairs

PROGRAMS = sorted(
    path for folder in ("experiments", "benchmarks", "tests") for path in Path(folder).glob("**/[!t]*.py")
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a model, a data file and invalid files."""
    directory = tmp_path_factory.mktemp("place")
    make_classifier(directory / "model")
    write_pairs(directory / "pairs.tsv", 4)
    (directory / "latin.tsv").write_bytes("Quality\t#1 String\t#2 String\n1\tcaf\xe9\tb\n".encode("latin-1"))
    (directory / "file").write_text("no directory")
    return directory


WRONG = {
    "no such task": ("ablate --task nonsense", "no task is called 'nonsense'"),
    "no such model": ("ablate --model ./nowhere", "nowhere"),
    "no such head": ("ablate --model model --task mrpc --data pairs.tsv --heads 99.0", "no head 99.0"),
    "no head at all": ("ablate --model model --task mrpc --data pairs.tsv --heads 99", "LAYER.HEAD"),
    "unreadable file": ("ablate --model model --task mrpc --data latin.tsv", "latin.tsv"),
    "no such file": ("ablate --model model --task mrpc --data nowhere.tsv", "nowhere.tsv"),
    "output is a file": ("ablate --output file", "cannot write to file"),
    "output below a file": ("ablate --output file/below", "cannot write to file/below"),
    "no such mode": ("ablate --mode remove", "--mode"),
    "limit of nothing": ("ablate --limit 0", "at least 1"),
    "no such option": ("ablate --head-mask 1", "--head-mask"),
    "an option of another command": ("roles --mode zero", "arguments: --mode zero; did you mean --model?"),
    "a shard of what has none": ("prune --shard 1/3", "this analysis cannot be sharded"),
    "an abbreviated option": ("ablate --lim 4", "arguments: --lim 4; did you mean --limit?"),
    "an abbreviated option with =": ("ablate --lim=4", "arguments: --lim=4; did you mean --limit?"),
    "an abbreviated option of show": ("show DIR --form csv", "arguments: --form csv; did you mean --format?"),
    "an abbreviated option of data": (
        "data prepare --from x --over",
        "--over; did you mean --overwrite? (see bertjax da",
    ),
    "no command": ("", "COMMAND"),
    "data not prepared": ("ablate --model model --task rte --data-dir empty", "bertjax data prepare"),
    "nothing to prepare": ("data prepare --from nowhere --data-dir tfds", "nowhere"),
    "no such model for parity": ("parity --model ./nowhere", "nowhere"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_gives_one_line_and_exit_code_2(place, monkeypatch, capsys, name):
    monkeypatch.chdir(place)
    arguments, message = WRONG[name]
    try:
        code = main(arguments.split())
    except SystemExit as end:
        code = end.code
    complaint = capsys.readouterr().err.strip()
    assert code == 2
    assert message in complaint
    assert len(complaint.splitlines()) == 1


def test_a_directory_that_may_not_be_written(tmp_path, capsys, monkeypatch):
    # As root every directory can be written, so the system's answer is put in its mouth.
    def refuse(path, *arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.touch", refuse)
    assert main(["ablate", "--output", str(tmp_path)]) == 2
    assert f"cannot write to {tmp_path}: Permission denied" in capsys.readouterr().err


def fails_to_read(path):
    """A library that raises what no code expects, in a function without a path."""
    return {}[len(path.name)]


UNEXPECTED = {
    "key": (lambda: fails_to_read(Path("data/x.bin")), "internal error (KeyError: 5): run again with"),
    "assertion": (lambda: fails_to_read(None), "internal error (AttributeError: 'NoneType' object has no attribute"),
    "system": (lambda: Path("/nowhere/x").read_text(), "/nowhere/x: No such file or directory (--debug shows where)"),
    "memory": (lambda: np.zeros(2**60, np.int8), "not enough memory"),
    "recursion": (lambda: copy.deepcopy(nested(10_000)), "internal error (RecursionError: maximum recursion depth"),
}


def nested(depth):
    """A list in a list in a list."""
    whole = []
    for _ in range(depth):
        whole = [whole]
    return whole


@pytest.mark.parametrize("name", UNEXPECTED)
def test_whatever_is_raised_is_one_line(name, monkeypatch, capsys):
    program, message = UNEXPECTED[name]
    assert guarded("bertjax", program, []) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("bertjax: error: ")
    assert message in complaint
    assert complaint.count("\n") == 1


def test_debug_shows_the_traceback(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    assert main(["ablate", "--task", "nonsense", "--debug"]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("Traceback (most recent call last)")
    assert complaint.splitlines()[-1].startswith("bertjax: error: no task is called 'nonsense'")


@pytest.mark.parametrize("path", [path for path in PROGRAMS if "ArgumentParser(" in path.read_text()], ids=str)
def test_programs_do_not_abbreviate_options(path):
    source = path.read_text()
    assert source.count("ArgumentParser(") == source.count("allow_abbrev=False")


def test_interrupting_writes_nothing(place, monkeypatch, capsys):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("bertjax.jobs.analysis.sweep_examples", interrupt)
    monkeypatch.chdir(place)
    arguments = ["--model", "model", "--task", "mrpc", "--data", "pairs.tsv", "--output", "interrupted"]
    assert main(["ablate", *arguments]) == 130
    assert "no unfinished file" in capsys.readouterr().err
    assert not (place / "interrupted").exists()


@pytest.mark.parametrize("command", ["", "ablate", "parity", "data", "data prepare"])
def test_help_exists_and_exits_0(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--help"])
    assert end.value.code == 0
    assert "usage: bertjax" in capsys.readouterr().out


def test_importing_bertjax_leaves_heavy_packages_alone():
    heavy = ["torch", "tensorflow", "tensorflow_datasets", "matplotlib", "transformers", "sklearn"]
    code = f"import sys, bertjax; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.integration
def test_a_mistake_in_a_real_process_prints_no_traceback(place):
    command = [sys.executable, "-m", "bertjax", "ablate", "--task", "nonsense"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=place)
    assert found.returncode == 2
    assert found.stderr.startswith("bertjax: error: no task is called 'nonsense'")
    assert len(found.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("option", ["--seed", "--limit"])
def test_numbers_too_large_for_the_summary_are_refused_early(option, capsys):
    """Results of such a seed could not be read again."""
    with pytest.raises(SystemExit):
        main(["ablate", "--model", "nowhere", option, str(10**30)])
    assert "and at most 9223372036854775807 (see" in capsys.readouterr().err
