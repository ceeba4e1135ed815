"""Ctrl-C ends a program in the main thread, also where Python ignores the exception.

Python calls the handler of SIGINT between two bytecodes of the main thread, wherever that is. In `__del__`, in the
callback of a weak reference, or in a callback of the garbage collector (JAX has one) the `KeyboardInterrupt` is printed
and dropped, and the program goes on. In `heeded` it is raised again, in the code that was interrupted.
"""

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

AGAIN = 0.02  # seconds until an interruption that was dropped is raised again


class _State:
    """What `heeded` and the handler of SIGINT know."""

    active = False  # in a block of `heeded`
    pressed = False  # Ctrl-C, since the block began
    dropped = False  # its exception, and it was not raised again since
    repeated = False  # the next call of the handler is for the exception that was dropped
    lock = threading.Lock()


def pressed() -> bool:
    """Whether Ctrl-C was pressed in the block of `heeded` that is active."""
    return _State.active and _State.pressed


def check() -> None:
    """Raise `KeyboardInterrupt` if Ctrl-C was pressed and something has caught the exception.

    Loops call it between steps. In other threads than the main one it does nothing.
    """
    if pressed() and threading.current_thread() is threading.main_thread():
        _State.dropped = False
        raise KeyboardInterrupt


@contextmanager
def heeded() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for Ctrl-C in this block, and again where it is dropped.

    In other threads than the main one, and where SIGINT has another handler than Python's own, nothing changes.
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
    """Let the main thread call the handler once more, unless the exception was raised meanwhile."""
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
