"""Ctrl-C ends a program even where Python ignores `KeyboardInterrupt`.

Python calls the handler of SIGINT between two bytecodes of the main thread. In `__del__`, in the callback of a weak
reference, or in a callback of the garbage collector (JAX registers one), Python prints the `KeyboardInterrupt` and
continues. Inside `heeded` the exception is raised again in the interrupted code.
"""

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

AGAIN = 0.02  # seconds until a dropped exception is raised again


class _State:
    """State shared by `heeded` and the handler of SIGINT."""

    active = False  # a block of `heeded` is active
    pressed = False  # Ctrl-C was pressed in the block
    dropped = False  # the exception was dropped and not raised again yet
    repeated = False  # the next call of the handler is for the dropped exception
    lock = threading.Lock()


def pressed() -> bool:
    """Whether Ctrl-C was pressed in the active block of `heeded`."""
    return _State.active and _State.pressed


def check() -> None:
    """Raise `KeyboardInterrupt` if Ctrl-C was pressed and the exception was caught elsewhere.

    Loops call it between steps. It does nothing outside the main thread.
    """
    if pressed() and threading.current_thread() is threading.main_thread():
        _State.dropped = False
        raise KeyboardInterrupt


@contextmanager
def heeded() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for Ctrl-C in this block, and raise it again if Python drops it.

    Outside the main thread, or if SIGINT has a handler other than Python's default, nothing changes.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if _State.active or not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    hook = sys.unraisablehook

    def look(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            hook(unraisable)
            return
        _State.dropped = True
        timer = threading.Timer(AGAIN, _repeat)
        timer.daemon = True
        timer.start()

    signal.signal(signal.SIGINT, _interrupt)
    sys.unraisablehook = look
    _State.active, _State.pressed = True, False
    try:
        yield
    finally:
        with _State.lock:
            _State.active = _State.pressed = _State.dropped = False
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _repeat() -> None:
    """Call the handler once more in the main thread, unless the exception was raised meanwhile."""
    with _State.lock:
        if _State.dropped:
            _State.repeated = True
            _thread.interrupt_main()


def _interrupt(number: int, frame: FrameType | None) -> None:
    repeated, _State.repeated = _State.repeated, False
    if repeated and not _State.dropped:
        return  # `check` was faster
    _State.dropped = False
    _State.pressed = True
    raise KeyboardInterrupt
