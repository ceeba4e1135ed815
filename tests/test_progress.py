"""Progress is shown where somebody looks at it."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from rich.text import Text

from bertjax.progress import ProgressBar, in_notebook, say


def test_nothing_is_written_where_nobody_looks(capsys):
    with ProgressBar("sweep") as report:
        report(1.0, 2.0)
    assert capsys.readouterr() == ("", "")


def test_a_line_is_printed_as_it_is(capsys):
    line = "qqp:train: 3 [examples] of /data/[bold]/x" + 200 * "y"
    say(line)
    assert capsys.readouterr().out == line + "\n"


def test_a_bar_counts_each_part_of_the_work_by_its_own_total(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with ProgressBar("sweep") as report:
        shares = []
        for done, total in [(3, 3), (10, 40), (40, 40), (1, 8)]:
            report(float(done), float(total))
            (task,) = report.__self__._bar.tasks
            shares.append(task.percentage)
    assert shares == [100, 25, 100, 12.5]


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
