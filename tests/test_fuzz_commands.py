"""Command lines with odd values end in one line and leave nothing, or do all that they say."""

import sys
from pathlib import Path

import pytest

from bertjax.cli import main
from bertjax.data.loading import load_examples
from bertjax.errors import InputError, OutputError
from bertjax.plots.canvas import save_page
from bertjax.results.directory import read_results
from bertjax.study.settings import Settings, check_settings
from tests import campaign, fuzz_commands
from tests.command_fixtures import make_command_fixtures
from tests.fuzz_commands import Case, Ran, judge, line_of, place, run

pytestmark = pytest.mark.integration

LARGE = 10**30


@pytest.fixture(scope="module")
def fixtures():
    return make_command_fixtures()


def check(seed, count):
    counts, broken = campaign.run("commands", seed, count)
    assert broken == []
    assert counts.total() == count
    assert min(counts[kind] for kind in ("done", "refused in one line")) > count / 30


def test_command_lines_of_all_kinds():
    check(seed=0, count=fuzz_commands.SWEEPS - 1)  # none of them sweeps, which would compile for long


@pytest.mark.slow
def test_thousands_of_command_lines():
    check(seed=1, count=4000)


def test_a_seed_gives_the_same_command_lines():
    drawn = list(fuzz_commands.cases(3, 60))
    assert drawn == list(fuzz_commands.cases(3, 60)) != list(fuzz_commands.cases(4, 60))
    assert [line_of(case) for case in drawn] == [line_of(case) for case in drawn]


@pytest.mark.parametrize(
    ("ran", "wrong"),
    [
        (Ran(1, "", ""), "another exit code"),
        (Ran(0, "a\x1b[31mb", ""), "control characters"),
        (Ran(0, "", "bertjax: warning: \u202e\n"), "control characters"),
        (Ran(2, "", "bertjax: error: one\nand two\n"), "a message of more than a line"),
        (Ran(2, "", "Traceback\n"), "a message of more than a line"),
        (Ran(2, "", "bertjax: error: " + "9" * 5000), "a message of more than a line"),
        (Ran(2, "", "bertjax: warning: one\nbertjax: error: two\n"), ""),
        (Ran(0, "all\n", ""), ""),
    ],
)
def test_what_no_command_may_print_is_seen(ran, wrong):
    assert judge(ran).split(":")[0] == wrong


@pytest.mark.parametrize(
    ("leave", "wrong"),
    [
        (lambda: Path("new").touch(), "half-written"),
        (lambda: Path(".0123abcd-report.html").touch(), "half-written"),
        (lambda: Path("taken/summary.json").write_text(""), "half-written"),
        (lambda: (make_command_fixtures().root / "more").touch(), "given files changed"),
        (lambda: {}["key"], "traceback"),
    ],
)
def test_what_no_command_may_leave_is_seen(monkeypatch, fixtures, leave, wrong):
    def fail(arguments):
        leave()
        print("bertjax: error: something", file=sys.stderr)
        return 2

    monkeypatch.setattr(fuzz_commands, "main", fail)
    assert fuzz_commands.outcome(Case("show", 0)).startswith(wrong)
    (fixtures.root / "more").unlink(missing_ok=True)


# ---- what it found --------------------------------------------------------------------------------------------------
def test_numbers_too_large_for_the_summary_are_refused_early(capsys):
    """Results of such a seed could not be read again."""
    for option in ("--seed", "--limit"):
        with pytest.raises(SystemExit):
            main(["ablate", "--model", "nowhere", option, str(LARGE)])
        assert "and at most 9223372036854775807 (see" in capsys.readouterr().err
        with pytest.raises(InputError, match=f"{option[2:]} must be at most 9223372036854775807"):
            check_settings(Settings(**{option[2:]: LARGE}))


@pytest.mark.parametrize(
    "arguments", [["show", "x", "--top", "9" * 5000], ["plot", "x", "-o", "x", "--text", "9" * 5000]]
)
def test_error_messages_about_options_are_short(arguments, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert len(capsys.readouterr().err) < 1100


def test_a_head_of_too_many_digits(fixtures, tmp_path, capsys):
    """Python makes no number of more than 4,300 digits of a text."""
    head = f"{'9' * 5000}.0"
    made = ["plot", fixtures.results["mrpc"], "-o", str(tmp_path / "x.svg"), "--figure", "attention", "--head", head]
    assert main(made) == 2
    assert "there is no head '99" in capsys.readouterr().err


def test_a_directory_for_an_unwritable_file_is_removed_again(fixtures, tmp_path):
    saved = read_results(fixtures.results["mrpc"])
    with pytest.raises(OutputError, match="File name too long"):
        save_page(saved.plot(), tmp_path / "new" / "deeper" / f"{'n' * 300}.svg")
    assert list(tmp_path.iterdir()) == []
    save_page(saved.plot(), tmp_path / "new" / "deeper" / "n.svg")
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "deeper", "n.svg"]


@pytest.mark.parametrize("name", ["nul\0.html", "~nosuchuser/x.html", "", "\ud800.html"])
def test_a_page_or_picture_whose_name_is_none(fixtures, name):
    words = {
        "nul\0.html": "NUL",
        "~nosuchuser/x.html": "no home directory",
        "": "a path is empty",
        "\ud800.html": "half a char",
    }[name]
    for command in ("report", "plot"):
        with place(fixtures, make_command_fixtures().root.parent / f"{command}{len(name)}"):
            ran = run(
                [command, fixtures.results["mrpc"], "-o", name.replace("html", "svg" if command == "plot" else "html")]
            )
        assert ran.code == 2
        assert words in ran.err


def test_an_empty_output_is_none(capsys):
    with pytest.raises(OutputError, match="a path is empty"):
        Settings(output="").directory  # noqa: B018


@pytest.mark.parametrize("quote", ["", '"'])
def test_whole_numbers_beyond_a_float_are_classes_of_their_own(tmp_path, quote):
    path = tmp_path / "own.jsonl"
    numbers = [2**53, 2**53 + 1, LARGE]
    path.write_text("".join(f'{{"text": "a", "label": {quote}{number}{quote}}}\n' for number in numbers))
    examples = load_examples("custom", data=path, text_columns=["text"])
    assert examples.task.label_names == tuple(map(str, numbers))
    assert examples.labels.tolist() == [0, 1, 2]
