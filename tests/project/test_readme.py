"""The README has one page, and its snippet and commands run."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from bertjax.cli import main
from bertjax.jobs import parity
from bertjax.tasks import TASKS
from tests.factories import SENTENCES
from tests.markdown_pages import commands, parse_command, run_snippets, snippets

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = commands(README)
FAMILIES_PAGE = (ROOT / "docs" / "guides" / "families.md").read_text()


@pytest.mark.parametrize("line", re.findall(r"^bertjax (?:ablate|parity) .*", FAMILIES_PAGE, re.MULTILINE))
def test_the_commands_for_each_family_are_commands(line):
    """Their models are on the hub; here each is parsed, its task is one, and the task's data are named or shipped."""
    options, unknown = parse_command(line.partition(" ")[2])
    assert unknown == []
    if options.command == "ablate":
        assert options.task in TASKS
        assert options.data or options.task in ("qnli-sample", "mlm")
        assert options.task != "qnli-sample" or not options.data


@pytest.fixture(scope="module")
def readme_directory(tmp_path_factory):
    """A directory with the file of pairs that the README reads."""
    directory = tmp_path_factory.mktemp("readme_directory")
    pairs = [f"{SENTENCES[i]},{SENTENCES[-i]},{('no', 'yes')[i % 2]}" for i in range(1, 7)]
    (directory / "pairs.csv").write_text("\n".join(["first,second,label", *pairs]) + "\n")
    return directory


def test_it_has_one_page():
    assert len(README.splitlines()) <= 160
    assert len(README.split()) <= 1300


def test_the_python_runs_on_the_readers_file(readme_directory, monkeypatch, capsys):
    monkeypatch.chdir(readme_directory)
    assert len(snippets(README)) == 1
    names = run_snippets(README, "README.md")
    assert names["results"].sentence in capsys.readouterr().out
    assert (readme_directory / "heads.png").read_bytes().startswith(b"\x89PNG")
    header, *rows = (readme_directory / "heads.csv").read_text().splitlines()
    assert {"difference", "low", "high", "p", "q"} <= set(header.split(","))
    assert len(rows) == 72 * len(names["results"].summary["metrics"])


def test_the_commands_run_in_their_order(readme_directory, monkeypatch, capsys):
    monkeypatch.chdir(readme_directory)
    lines = [line for line in COMMANDS if line.startswith("bertjax ")]
    assert [line.split()[1] for line in lines] == ["ablate", "show", "report"]
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0, line
        if line.split()[1] in ("ablate", "show"):
            assert re.search(r"score +change +95 % CI +p +q\b", capsys.readouterr().out), line
    assert (readme_directory / "heads" / "report.html").is_file()


def test_each_question_names_a_command_and_its_page():
    table = README.partition("| question |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines()[2:]]
    assert len(rows) > 8
    for _, call, page in rows:
        command = call.strip().strip("`")
        assert not command.startswith("bertjax ") or f"{command} " in (ROOT / link_in(page)).read_text()


def link_in(cell):
    return re.search(r"\]\(([^)#]+)", cell)[1]


def test_the_make_targets_do_what_it_says():
    expected_of = {
        "demo": "bertjax ablate --output demo-output --overwrite",
        "test": "-m pytest",
        "test-all": "-m 'not slow'",
        "test-slow": "-m slow",
        "docs": "sphinx-build",
    }
    for target, expected in expected_of.items():
        assert f"make {target}" in README
        plan = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
        assert expected in plan.stdout


@pytest.mark.needs_torch
def test_the_parity_command_agrees_on_the_real_model_in_float32(capsys):
    page = (ROOT / "docs" / "explanation" / "parity.md").read_text()
    command = next(line for line in commands(page) if line.startswith("bertjax parity"))
    assert main([*shlex.split(command)[1:], "--examples", "2"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("pass") == 1 + 6 * 2 + 2  # embeddings, weights and output of 6 layers, two overrides
    assert set(parity.TOLERANCES["float32"].values()) == {2e-5, 5e-6}
