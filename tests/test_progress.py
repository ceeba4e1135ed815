"""Progress is shown where somebody looks at it."""

import io

import pytest

from bertjax.cli import guarded
from bertjax.console import PlainTable, say
from bertjax.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def make_terminal(monkeypatch):
    """Standard error as a terminal of 80 columns; not a fixture, as pytest replaces standard error after those."""
    monkeypatch.setattr("sys.stderr", stream := Terminal())
    monkeypatch.setattr("tqdm.std._screen_shape_wrapper", lambda: lambda stream: (80, 24))
    return stream


@pytest.fixture
def clock(monkeypatch):
    """The clock that tqdm reads; `clock.append(30)` lets half a minute pass."""
    passed = [1000.0]
    monkeypatch.setattr("tqdm.std.time", lambda: float(sum(passed)))
    return passed


def test_short_work_says_nothing_without_a_terminal(capsys):
    with ProgressBar("sweep") as report:
        report(1.0, 2.0)
        report(2.0, 2.0)
    assert capsys.readouterr() == ("", "")


def test_long_work_prints_a_line_a_minute_without_terminal(capsys, clock):
    with ProgressBar("ablating") as report:
        for done in range(0, 13):
            report(done / 12, 1.0)
            clock.append(20)
        for done in range(4):  # the next part of the work, at another rate; it resumes at 2 of 6
            report(float(done + 2), 6.0, "weighing [effects]\x1b[31m")
            clock.append(30)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "ablating 25 %, 01:00 elapsed, 03:00 left",
        "ablating 50 %, 02:00 elapsed, 02:00 left",
        "ablating 75 %, 03:00 elapsed, 01:00 left",
        "ablating 100 %, 04:00 elapsed, 00:00 left",
        r"weighing [effects]\x1b[31m 67 %, 01:00 elapsed, 01:00 left",
    ]
    assert err.endswith("\n")


def test_a_bar_in_a_terminal_says_the_time_left(monkeypatch, clock):
    terminal = make_terminal(monkeypatch)
    with ProgressBar("mrpc pretrained 3/3 loss 0.31 f1 85.0 accuracy 77.0 and more than fits in") as report:
        report(0.0, 4.0)
        clock.append(30)
        report(1.0, 4.0)
    states = terminal.getvalue().split("\r")
    line = "| 00:30 elapsed, 01:30 left: mrpc pretrained 3/3 loss"
    assert any(" 25%|" in state and line in state for state in states)
    assert max(map(len, states)) <= 80
    assert states[-1] == ""  # the bar is erased, and the next output begins a line
    assert states[-2].strip() == ""


def test_a_message_after_a_bar_begins_a_line(monkeypatch):
    terminal = make_terminal(monkeypatch)

    def program():
        with ProgressBar("sweep") as report:
            report(1.0, 4.0)
            report(2.0, 4.0)
            raise KeyboardInterrupt

    assert guarded("bertjax", program, []) == 130
    shown, message = terminal.getvalue().rsplit("\r", 1)
    assert "sweep" in shown
    assert message.startswith("bertjax: interrupted")


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
