"""The errors that a user of bertjax can cause, one class for each kind of mistake.

Each message says in one line what was wrong, what was found and what to do. The command line prints
that line and exits with code `EXIT_MISTAKE`.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from bertjax.formatting import visible

# Exit codes: a comparison failed; a user's mistake; Ctrl-C.
EXIT_FAILED, EXIT_MISTAKE, EXIT_INTERRUPTED = 1, 2, 130
LONGEST_NAME, LONGEST_REASON, LONGEST_MESSAGE = 200, 200, 900  # letters: of a file's name, a library's words, a message


def some_of(names: Sequence[str], most: int = 6) -> str:
    """The first of some names, and how many more there are.

    >>> some_of(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    shown = [name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..." for name in names[:most]]
    return visible(", ".join(shown)) + (f" and {len(names) - most} more" if len(names) > most else "")


def shorten(message: str) -> str:
    """A message without its middle, where it is longer than anyone reads: what to do stands at its end."""
    beyond = len(message) - LONGEST_MESSAGE
    return message if beyond <= 0 else f"{message[: LONGEST_MESSAGE // 2]} ... {message[-LONGEST_MESSAGE // 2 + 5 :]}"


class BertjaxError(Exception):
    """Base of all errors that bertjax raises on purpose; the message is one line, whatever names it quotes."""

    def __init__(self, message: str = "", *rest: object):
        super().__init__(shorten(visible(message)) if isinstance(message, str) else message, *rest)


class ConfigError(BertjaxError):
    """A model's configuration that bertjax does not understand or does not support."""


class CheckpointError(BertjaxError):
    """Weights that are missing, damaged, of another shape or of another model family."""


class InputError(BertjaxError):
    """Token ids, masks or positions that the model cannot take."""


class OverrideError(BertjaxError):
    """An override that names no existing head or does not fit the model or the input."""


class DataError(BertjaxError):
    """Examples that cannot be found, read or understood."""


class OutputError(BertjaxError):
    """Results that cannot be written where they were asked for."""


class MissingDependencyError(BertjaxError):
    """An optional package that is needed for what was asked and is not installed."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in something that can be gone on with; the text says what is saved."""


class SweepInterrupted(Interrupted):
    """Ctrl-C in a sweep that keeps a journal: `finished` of its `parts` are saved in it."""

    def __init__(self, finished: int, parts: int):
        super().__init__(f"{finished} of {parts} parts are saved")
        self.finished, self.parts = finished, parts


@contextlib.contextmanager
def library_errors(what: str, error: type[BertjaxError], advice: str = "") -> Iterator[None]:
    """Turn whatever a library raises into one of the project's errors, except `MemoryError`.

    The `tokenizers` library raises plain `Exception`, and where its Rust code panics a `BaseException` that cannot be
    imported.

    Raises:
        BertjaxError: of the class `error`, beginning with `what`.
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
    """Turn whatever a library raises while it reads a file into one line with the file's path.

    Readers therefore need no check for each way in which a file can be damaged. `MemoryError`, Ctrl-C and the project's
    errors pass unchanged.

    Args:
        path: of the file or directory that is read in the block.
        error: the class to raise.
    """
    return library_errors(f"{path}: cannot be read", error, "; check the path, or copy the file again")


@contextlib.contextmanager
def error_prefix(prefix: str) -> Iterator[None]:
    """Begin the messages of the project's errors with a prefix, such as the path of the file that is read."""
    try:
        yield
    except BertjaxError as error:
        raise type(error)(f"{prefix}{error}") from None


def is_failure(error: BaseException) -> bool:
    """Whether an exception says that something failed; Ctrl-C and `SystemExit` do not."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _reason(problem: BaseException) -> str:
    """What an exception says, in one line; with its type, if the message alone says too little."""
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    text = " ".join(str(problem).split())
    reason = text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON].rsplit(' ', 1)[0]} ..."
    if not reason or isinstance(problem, (LookupError, TypeError, AttributeError, AssertionError, NameError)):
        reason = f"{type(problem).__name__}: {reason}".removesuffix(": ")
    # It may quote what a damaged file holds, such as a byte order mark in a name.
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in reason)


def explain(error: BaseException) -> str:
    """Any exception as one line: what is wrong, in which file, and what to do."""
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
