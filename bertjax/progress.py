"""Progress of long computations: a bar of tqdm in terminals and notebooks, elsewhere one line per minute."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from bertjax import arguments, interrupts
from bertjax.formatting import visible

# Called with the work done and the total work, in any unit.
Progress = Callable[[float, float], None]
# A `Progress` that also takes a note, which replaces the bar's text: `report(30.0, 40.0, "loss 0.31")`.
Report = Callable[..., None]
BETWEEN_LINES = 60.0  # seconds, without a terminal
BAR = "{percentage:3.0f}%|{bar:20}| {elapsed} elapsed, {remaining} left: {desc}"
LINE = "{desc} {percentage:.0f} %, {elapsed} elapsed, {remaining} left"


class _Lines:
    """A file for tqdm that prints each state of a bar as a line on standard error."""

    def write(self, text: str) -> None:
        """Print text that is not blank."""
        if text.strip():
            print(text.strip(), file=sys.stderr, flush=True)

    def flush(self) -> None:
        """Each line is flushed when it is printed."""


class ProgressBar:
    """A bar on standard error: `with ProgressBar("sweep") as report: report(done, total)`.

    If standard error is not a terminal, it prints a line per minute. A new total, or less work done than before, starts
    a new bar.
    """

    def __init__(self, text: str):
        self._text = text
        self._bar: Any = None

    def __enter__(self) -> Report:
        return self._advance

    def _advance(self, done: float, total: float, note: str = "") -> None:
        interrupts.check()
        if self._bar is None or total != self._bar.total or done < self._bar.n:
            self.__exit__()
            self._bar = _make_bar(visible(note or self._text), done, total)
        self._bar.set_description_str(visible(note or self._text), refresh=False)
        self._bar.update(done - self._bar.n)

    def __exit__(self, *error: Any) -> None:
        if self._bar is not None:
            self._bar.close()


def _make_bar(text: str, done: float, total: float) -> Any:
    from tqdm import tqdm

    class Bar(tqdm):
        monitor_interval = 0  # no thread

    Bar.set_lock(threading.RLock())  # no semaphore of the system
    options: dict[str, Any] = {
        "desc": text,
        "total": total,
        "initial": done,
        "miniters": 0,
        "smoothing": 0,
        "leave": False,
    }
    if sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel"):
        return Bar(**options, bar_format=BAR, dynamic_ncols=True)
    return Bar(**options, bar_format=LINE, mininterval=BETWEEN_LINES, delay=BETWEEN_LINES, file=_Lines())


@contextmanager
def shown(progress: Progress | bool, text: str) -> Iterator[Report]:
    """A context manager that yields a `Report`: a bar for True, no display for False, or the caller's function.

    In the block, Ctrl-C raises `KeyboardInterrupt` at the next report at the latest.

    Args:
        progress: True, False, or a function, which is called without notes.
        text: description of the bar.

    Raises:
        InputError: `progress` has another type.
    """
    check_progress(progress)
    with interrupts.heeded():
        if progress is True:
            with ProgressBar(text) as report:
                yield report
        else:
            yield partial(silent, then=progress or None)


def check_progress(progress: Progress | bool) -> None:
    """Raise `InputError` unless `progress` is a bool or a function."""
    if not isinstance(progress, bool):
        arguments.check_function(progress, "progress", "True, False, or a function of work done and work in all")


def part_of(progress: Progress, start: int | float, size: int | float, total: float) -> Progress:
    """Progress of one part of the work.

    Args:
        progress: called with the work done, counted from the beginning, and `total`.
        start: the work that is done when the part begins.
        size: the work of the part.
        total: all work.
    """
    return lambda done, of_part: progress(start + size * done / of_part, total)


def silent(done: float, total: float, note: str = "", then: Progress | None = None) -> None:
    """Display nothing; call `then` if there is one."""
    interrupts.check()
    if then is not None:
        then(done, total)
