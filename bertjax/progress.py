"""How far a long computation has come: a bar in terminals, a line in notebooks, elsewhere a line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, runtime_checkable

import rich.progress
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from bertjax import arguments, interrupts
from bertjax.console import PlainConsole, say

__all__ = ["Progress", "ProgressBar", "Report", "check_progress", "describe", "in_notebook", "say", "shown"]

# Called with the work done and the work in all, in whatever unit.
Progress = Callable[[float, float], None]


@runtime_checkable
class Report(Protocol):
    """A bar's `Progress`, which takes a note in place of its text as well: `report(30.0, 40.0, "loss 0.31")`."""

    def __call__(self, done: float, total: float, note: str = "") -> None:
        """Show how far the work is."""


# Seconds between two lines where there is no terminal: a twentieth of the time gone, within these.
LEAST_WAIT, MOST_WAIT = 30.0, 600.0


class ProgressBar:
    """A bar with the time left: `with ProgressBar("sweep") as report: report(done, total)`.

    On standard error: a bar where that is a terminal, else a line every half minute (of long work, every twentieth of
    the time gone). In a Jupyter notebook a line of output that is rewritten.
    """

    def __init__(self, text: str):
        console = PlainConsole(stderr=True)
        wrapped = TextColumn("{task.description}", markup=False, table_column=Column())  # no time is cut off for it
        columns = [wrapped, BarColumn(10 if console.width < 100 else 40), TaskProgressColumn()]
        columns += [TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()]
        self._bar = rich.progress.Progress(
            *columns,
            console=console,
            transient=True,
            disable=not console.is_terminal,
            redirect_stdout=sys.stdout.isatty(),
        )
        self._text = text
        self._line = _NotebookLine() if in_notebook() else None if console.is_terminal else _PlainLine()
        self._task: Any = None

    def __enter__(self) -> Report:
        return self._advance

    def _advance(self, done: float, total: float, note: str = "") -> None:
        interrupts.check()
        text = note or self._text
        if self._line is not None:
            self._line.report(text, done, total)
            return
        if self._task is None:
            self._bar.start()
            self._task = self._bar.add_task(text, total=total)
        last = self._bar.tasks[0]
        if total != last.total or done < last.completed:  # the next part of the work, with a pace of its own
            self._bar.reset(self._task, total=total)
        self._bar.update(self._task, completed=done, description=text)

    def __exit__(self, *error: Any) -> None:
        if self._task is not None:
            self._bar.stop()


class _Line:
    """How far the work is, as a line that is shown now and then; each part of the work has a pace of its own."""

    def __init__(self) -> None:
        self.started, self.shown, self.total, self.done = time.monotonic(), 0.0, 0.0, 0.0
        self.first: float | None = None

    def report(self, text: str, done: float, total: float) -> None:
        """Show the line where it is time."""
        now = time.monotonic()
        if self.first is None or total != self.total or done < self.done:  # what was there before took no time now
            self.started, self.shown = self.started if self.first is None else now, now
            self.first, self.total = done, total
            due = self.at_once
        else:
            due = now - self.shown >= self.wait(now - self.started) or (self.at_once and done >= total)
        self.done = done
        if due:
            self.shown = now
            self.show(describe(text, done - self.first, total - self.first, now - self.started))

    at_once = True

    def wait(self, gone: float) -> float:
        """Seconds between two lines, by the time gone."""
        return 0.5

    def show(self, line: str) -> None:
        """Put the line where it is seen."""
        raise NotImplementedError


class _NotebookLine(_Line):
    """A line of output that is replaced at most twice a second."""

    handle: Any = None

    def show(self, line: str) -> None:
        from IPython.display import display

        if self.handle is None:
            self.handle = display({"text/plain": line}, raw=True, display_id=True)
        else:
            self.handle.update({"text/plain": line}, raw=True)


class _PlainLine(_Line):
    """Lines on standard error where that is a file: none of what is soon done."""

    at_once = False

    def wait(self, gone: float) -> float:
        return min(max(LEAST_WAIT, gone / 20), MOST_WAIT)

    def show(self, line: str) -> None:
        PlainConsole(stderr=True).print(line, soft_wrap=True)


@contextmanager
def shown(progress: Progress | bool, text: str) -> Iterator[Report]:
    """What to call with the work done: a bar for True, nothing for False, or a function, which is told no note.

    In the block, Ctrl-C raises `KeyboardInterrupt` at the next call at the latest.

    Args:
        text: of the bar.

    Raises:
        InputError: `progress` is none of these.
    """
    check_progress(progress)
    with interrupts.heeded():
        if not isinstance(progress, bool):
            yield partial(_report, progress)
        elif progress:
            with ProgressBar(text) as report:
                yield report
        else:
            yield silent


def _report(progress: Progress, done: float, total: float, note: str = "") -> None:
    interrupts.check()
    progress(done, total)


def check_progress(progress: Progress | bool) -> None:
    """Raise `InputError` where an argument says neither whether nor how progress is shown."""
    if not isinstance(progress, bool):
        arguments.function(progress, "progress", "True, False, or a function of work done and work in all")


def silent(done: float, total: float, note: str = "") -> None:
    """Show no progress."""
    interrupts.check()


def describe(text: str, done: float, total: float, seconds: float) -> str:
    """A line of progress.

    >>> describe("sweep", 30.0, 40.0, 90.0)
    'sweep 75 %, 1:30 gone, 0:30 left'
    """
    share = done / total if total else 1.0
    left = f", {_clock(seconds * (1 - share) / share)} left" if 0 < share < 1 else ""
    return f"{text} {100 * share:.0f} %, {_clock(seconds)} gone{left}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def in_notebook() -> bool:
    """Whether this is a Jupyter notebook's process."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return type(shell).__name__ == "ZMQInteractiveShell"
