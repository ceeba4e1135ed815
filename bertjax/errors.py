"""Errors that a user of bertjax can cause, one class for each kind of mistake.

Each message is one line: what was wrong, what was found, what to do. The command line prints the line and exits with
code `EXIT_MISTAKE`.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from bertjax.formatting import visible

# Exit codes: a comparison failed; a user's mistake; Ctrl-C.
EXIT_FAILED, EXIT_MISTAKE, EXIT_INTERRUPTED = 1, 2, 130
LONGEST_NAME, LONGEST_REASON, LONGEST_MESSAGE = (
    200,
    200,
    900,
)  # characters of a file name, of a library's message, of a message


def some_of(names: Sequence[str], most: int = 6) -> str:
    """The first names of a list, and the number of the others.

    Args:
        names: all names.
        most: the largest number of names in the result.

    >>> some_of(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    shown = [name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..." for name in names[:most]]
    return visible(", ".join(shown)) + (f" and {len(names) - most} more" if len(names) > most else "")


def shorten(message: str) -> str:
    """A message whose middle is left out if it is very long; the advice is at its end.

    Args:
        message: the whole message.
    """
    beyond = len(message) - LONGEST_MESSAGE
    return message if beyond <= 0 else f"{message[: LONGEST_MESSAGE // 2]} ... {message[-LONGEST_MESSAGE // 2 + 5 :]}"


class BertjaxError(Exception):
    """Base class of all errors that bertjax raises. The message is always one line of visible characters."""

    def __init__(self, message: str = "", *rest: object):
        super().__init__(shorten(visible(message)) if isinstance(message, str) else message, *rest)


class ConfigError(BertjaxError):
    """A model configuration that bertjax does not understand or support."""


class CheckpointError(BertjaxError):
    """Weights that are missing, damaged, of a wrong shape, or of another model family."""


class InputError(BertjaxError):
    """Inputs or options that a function, an analysis or the model cannot take."""


class OverrideError(BertjaxError):
    """An override of a head that does not exist, or that does not fit the model or the input."""


class DataError(BertjaxError):
    """Examples that cannot be found or read, or are malformed."""


class OutputError(BertjaxError):
    """Results that cannot be read or written in a directory."""


class MissingDependencyError(BertjaxError):
    """An optional package that is needed and not installed."""


class Interrupted(KeyboardInterrupt):
    """Interrupted by Ctrl-C, and can be resumed. The message says what is saved."""


class SweepInterrupted(Interrupted):
    """A sweep with a journal, interrupted by Ctrl-C; `finished` of its `parts` are saved."""

    def __init__(self, finished: int, parts: int):
        super().__init__(f"{finished} of {parts} parts are saved")
        self.finished, self.parts = finished, parts


@contextlib.contextmanager
def library_errors(what: str, error: type[BertjaxError], advice: str = "") -> Iterator[None]:
    """Convert any exception of a library, except `MemoryError`, into one of bertjax's errors.

    The `tokenizers` library raises plain `Exception`, and a panic of its Rust code is a `BaseException` that cannot be
    imported.

    Args:
        what: the beginning of the message.
        error: the class of the new exception.
        advice: the end of the message.

    Raises:
        BertjaxError: an instance of `error` whose message begins with `what`.
    """
    try:
        yield
    except (BertjaxError, MemoryError):
        raise
    except BaseException as problem:
        if not is_failure(problem):
            raise  # Ctrl-C and the like
        raise error(f"{what} ({_reason(problem)}){advice}") from problem


def reading(path: str | Path, error: type[BertjaxError]) -> contextlib.AbstractContextManager[None]:
    """Convert any exception of a library that reads a file into one line with the path of the file.

    Readers therefore need no check for each kind of damage. `MemoryError`, Ctrl-C and bertjax's errors pass unchanged.

    Args:
        path: the file or directory that is read in the block.
        error: the class to raise.
    """
    return library_errors(f"{path}: cannot be read", error, "; check the path, or copy the file again")


@contextlib.contextmanager
def error_prefix(prefix: str) -> Iterator[None]:
    """Begin the messages of the project's errors with a prefix, such as the path of the file that is read.

    Args:
        prefix: the beginning of the messages.
    """
    try:
        yield
    except BertjaxError as error:
        raise type(error)(f"{prefix}{error}") from None


def is_failure(error: BaseException) -> bool:
    """Whether an exception is a failure, unlike Ctrl-C and `SystemExit`.

    Args:
        error: the exception.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _reason(problem: BaseException) -> str:
    """The message of an exception in one line, with its type if the message alone is unclear."""
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    text = " ".join(str(problem).split())
    reason = text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON].rsplit(' ', 1)[0]} ..."
    if not reason or isinstance(problem, (LookupError, TypeError, AttributeError, AssertionError, NameError)):
        reason = f"{type(problem).__name__}: {reason}".removesuffix(": ")
    # It may quote a damaged file, such as a byte order mark in a name.
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in reason)


def explain(error: BaseException) -> str:
    """Any exception as one line: what is wrong, in which file, what to do.

    Args:
        error: the exception.
    """
    if isinstance(error, BertjaxError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        return f"{where}{error.strerror} (--debug shows where)"
    if isinstance(error, MemoryError):
        return "not enough memory (--debug shows where)"
    kind, reason = type(error).__name__, _reason(error)
    reason = reason if reason.startswith(kind) else f"{kind}: {reason}"
    return f"internal error ({reason}): run again with --debug, and report what it shows"
