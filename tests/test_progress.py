"""Progress is shown where somebody looks at it."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from rich.text import Text

from bertjax.cli import guarded
from bertjax.console import PlainTable
from bertjax.progress import ProgressBar, in_notebook, say


def test_short_work_says_nothing_without_a_terminal(capsys):
    with ProgressBar("sweep") as report:
        report(1.0, 2.0)
        report(2.0, 2.0)
    assert capsys.readouterr() == ("", "")


def test_long_work_prints_every_half_minute_without_terminal(capsys, monkeypatch):
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr("bertjax.progress.time.monotonic", lambda: float(next(clock)))
    with ProgressBar("ablating") as report:
        for done in range(0, 13):
            report(done / 12, 1.0)
        for done in range(4):  # the next part of the work, with a pace of its own
            report(float(done), 4.0, "weighing [effects]")
        for done in range(4):  # and one that is as long as the last one
            report(float(done), 4.0, "again")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "ablating 25 %, 0:40 gone, 2:00 left",
        "ablating 50 %, 1:10 gone, 1:10 left",
        "ablating 75 %, 1:40 gone, 0:33 left",
        "ablating 100 %, 2:10 gone",
        "weighing [effects] 75 %, 0:30 gone, 0:10 left",
        "again 75 %, 0:30 gone, 0:10 left",
    ]


def test_very_long_work_says_less(capsys, monkeypatch):
    clock = iter(range(0, 10_000_000, 60))
    monkeypatch.setattr("bertjax.progress.time.monotonic", lambda: float(next(clock)))
    with ProgressBar("ablating") as report:
        for done in range(60 * 24):
            report(float(done), 1e9)
    assert 24 * 6 <= len(capsys.readouterr().err.splitlines()) < 24 * 6 + 60


def test_a_line_is_printed_as_it_is(capsys):
    line = "qqp:train: 3 [examples] of /data/[bold]/x" + 200 * "y"
    say(line)
    assert capsys.readouterr().out == line + "\n"


def test_a_table_in_a_pipe_is_not_cut_off(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    cells = ["a" * 60, "b" * 60, "1234567"]
    table = PlainTable()
    for name in ("first", "second", "third"):
        table.add_column(name, no_wrap=True)
    table.add_row(*cells)
    say(table, wrap=True)
    say("a sentence " * 20, wrap=True)
    lines = capsys.readouterr().out.splitlines()
    assert any(all(cell in line for cell in cells) for line in lines)
    assert lines[-1].strip() == ("a sentence " * 20).strip()


def test_a_bar_leaves_standard_output_to_its_file(tmp_path, monkeypatch):
    # The bar is on a terminal, standard output is a file: what is printed meanwhile belongs into the file.
    monkeypatch.setenv("FORCE_COLOR", "1")
    with open(tmp_path / "out.txt", "w") as file:
        monkeypatch.setattr("sys.stdout", file)
        with ProgressBar("sweep") as report:
            report(1.0, 4.0)
            print("resuming there")
    assert (tmp_path / "out.txt").read_text() == "resuming there\n"


def test_a_message_after_a_bar_begins_a_line(capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")

    def program():
        with ProgressBar("sweep") as report:
            report(1.0, 4.0)
            raise KeyboardInterrupt

    assert guarded("bertjax", program, []) == 130
    err = capfd.readouterr().err
    end = err.index("bertjax: interrupted")
    assert "sweep" in err[:end]
    assert err[:end].endswith(("\n", "\x1b[2K"))


def test_a_bar_counts_each_part_of_the_work_by_its_own_total(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with ProgressBar("sweep") as report:
        shares, starts = [], []
        for done, total in [(3, 3), (10, 40), (40, 40), (1, 8), (6, 8), (2, 8)]:
            report(float(done), float(total))
            (task,) = report.__self__._bar.tasks
            shares.append(task.percentage)
            starts.append(task.start_time)
    assert shares == [100, 25, 100, 12.5, 75, 25]
    assert starts[3] == starts[4] < starts[5]  # the last part is as long as the one before it


def test_a_long_note_takes_no_room_from_the_times(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    with ProgressBar("finetune") as report:
        report(1.0, 4.0, "mrpc pretrained 3/3 loss 0.31 f1 85.0 accuracy 77.0 and more")
        report.__self__._bar.refresh()
    lines = [Text.from_ansi(line).plain for line in capsys.readouterr().err.splitlines()]
    assert any("25% 0:00:00 left -:--:--" in line for line in lines)
    assert "mrpc pretrained 3/3" in "".join(lines)
    assert "and more" in "".join(lines)
    assert max(map(len, lines)) <= 80


@pytest.fixture
def notebook(monkeypatch):
    """A stand-in for a notebook; gives the lines that it shows."""
    lines = []

    class ZMQInteractiveShell:
        pass

    def display(data, raw, display_id):
        lines.append(data["text/plain"])
        return SimpleNamespace(update=lambda data, raw: lines.append(data["text/plain"]))

    module, shown = ModuleType("IPython"), ModuleType("IPython.display")
    module.get_ipython, shown.display = ZMQInteractiveShell, display
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    return lines


def test_a_notebook_shows_one_line_that_changes(notebook, monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr("bertjax.progress.time.monotonic", lambda: float(next(clock)))
    assert in_notebook()
    with ProgressBar("sweep") as report:
        for done in (0.0, 5.0, 10.0):
            report(done, 10.0)
    assert notebook == ["sweep 0 %, 0:01 gone", "sweep 50 %, 0:02 gone, 0:02 left", "sweep 100 %, 0:03 gone"]
