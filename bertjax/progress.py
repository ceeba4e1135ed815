"""How far a long computation has come, in terminals and notebooks; nowhere else."""

import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

# What is done, of how much, and where it is a bar's, a note in place of its text: `report(30.0, 40.0, "loss 0.31")`.
Report = Callable[..., None]


def say(line: Any) -> None:
    """Print a line or a table as it is: nothing in it is taken for markup or for a picture's name (`qqp:train:`)."""
    Console(markup=False, emoji=False).print(line, highlight=False, soft_wrap=True)


class ProgressBar:
    """A bar with the time left: `with ProgressBar("sweep") as report: report(done, total)`.

    On standard error where that is a terminal; in a Jupyter notebook a line that is written anew.
    """

    def __init__(self, text: str):
        console = Console(stderr=True)
        wrapped = TextColumn("{task.description}", markup=False, table_column=Column())  # no time is cut off for it
        columns = [wrapped, BarColumn(10 if console.width < 100 else 40), TaskProgressColumn()]
        columns += [TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()]
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._text, self._line = text, _NotebookLine() if in_notebook() else None
        self._task: Any = None

    def __enter__(self) -> Report:
        return self._advance

    def _advance(self, done: float, total: float, note: str = "") -> None:
        text = note or self._text
        if self._line is not None:
            self._line.show(text, done, total)
            return
        if self._task is None:
            self._bar.start()
            self._task = self._bar.add_task(text, total=total)
        if total != self._bar.tasks[0].total:  # the next part of the work, with a pace of its own
            self._bar.reset(self._task, total=total)
        self._bar.update(self._task, completed=done, description=text)

    def __exit__(self, *error: Any) -> None:
        if self._task is not None:
            self._bar.stop()


class _NotebookLine:
    """A line of output that is replaced at most twice a second."""

    def __init__(self) -> None:
        self.started, self.shown, self.handle = time.monotonic(), 0.0, None
        self.first: float | None = None

    def show(self, text: str, done: float, total: float) -> None:
        from IPython.display import display

        now = time.monotonic()
        self.first = done if self.first is None else self.first  # what was there before took no time now
        if now - self.shown < 0.5 and done < total:
            return
        self.shown = now
        line = {"text/plain": describe(text, done - self.first, total - self.first, now - self.started)}
        if self.handle is None:
            self.handle = display(line, raw=True, display_id=True)
        else:
            self.handle.update(line, raw=True)


def describe(text: str, done: float, total: float, seconds: float) -> str:
    """A line of progress.

    >>> describe("sweep", 30.0, 40.0, 90.0)
    'sweep 75 %, 1:30 gone, 0:30 left'
    """
    share = done / total if total else 1.0
    left = f", {_clock(seconds * (1 - share) / share)} left" if 0 < share < 1 else ""
    return f"{text} {100 * share:.0f} %, {_clock(seconds)} gone{left}"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def in_notebook() -> bool:
    """Whether this is a Jupyter notebook's process."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return type(shell).__name__ == "ZMQInteractiveShell"
