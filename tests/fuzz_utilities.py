"""What the fuzzers share: how an attempt on damaged input ends, and where a JSON value can be damaged."""

import copy
import random
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from bertjax.errors import BertjaxError

LONGEST = 10  # seconds of an attempt
LONGEST_MESSAGE = 1000  # characters
REFUSED = "refused in one line"
BROKEN = ("traceback", "a message of more than a line", "hang")


def attempt(read: Callable[[], str], ignored: type[Warning] | None = None) -> str:
    """What `read` gives; or how it ended instead: `REFUSED`, or one of `BROKEN` with what happened.

    Args:
        ignored: a kind of warnings that it may give; others are errors where tests run.
    """
    try:
        with time_limit(LONGEST), warnings.catch_warnings():
            if ignored is not None:
                warnings.simplefilter("ignore", ignored)
            return read()
    except BertjaxError as error:
        long = len(str(error)) > LONGEST_MESSAGE or not str(error).isprintable()
        return f"{BROKEN[1]}: {str(error)[:2000]!r}" if long else REFUSED
    except TimeoutError as error:
        return f"hang: {error}"
    except BaseException as error:  # whatever comes is what is looked for
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"traceback: {type(error).__name__}: {error}"[:500]


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """End what hangs by a `TimeoutError`."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def places(value: Any) -> list[tuple[Any, Any]]:
    """All places in nested lists and objects: what holds each, with its key or index."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, one in inside for place in ((value, key), *places(one))]


def draw(rng: random.Random, values: Sequence[Any]) -> Any:
    """One of the values, as a copy: what is damaged further must not change the next case."""
    return copy.deepcopy(rng.choice(values))


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="bertjax-fuzz-")


def scratch() -> Path:
    """A directory of this process for what is damaged, which goes when the process ends."""
    return Path(_scratch().name)
