"""Shared by all programs of bertjax and `experiments/`: a parser of options, and one-line errors."""

import argparse
import difflib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from bertjax import interrupts
from bertjax.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_MISTAKE, Interrupted, explain, is_failure, shorten
from bertjax.formatting import one_line

__all__ = ["Parser", "end_at_once", "guarded"]

INTERRUPTED = "{}: interrupted; no unfinished file was left"


class Parser(argparse.ArgumentParser):
    """An argument parser with one-line errors and without abbreviated options.

    It has the option `--debug`, which `guarded` reads.
    """

    def __init__(self, **options: Any):
        super().__init__(**{"allow_abbrev": False, **options})
        self.add_argument(
            "--debug", action=_Debug, nargs=0, default=argparse.SUPPRESS, help="show the traceback of an error"
        )

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in argparse; the error for an unknown option suggests the closest one."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.refuse(unknown, options)
        return options

    def refuse(self, unknown: Sequence[str], options: argparse.Namespace) -> NoReturn:
        """Exit with one line about unknown arguments of the command."""
        parser: argparse.ArgumentParser = self
        while commands := [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]:
            parser = commands[0].choices[getattr(options, commands[0].dest)]
        message = f"unrecognized arguments: {' '.join(unknown)}"
        first = next((word.partition("=")[0] for word in unknown if word.startswith("-")), "")
        shown = [name for name, one in parser._option_string_actions.items() if one.help != argparse.SUPPRESS]
        near = difflib.get_close_matches(first, shown, n=1) if first.startswith("--") else []
        parser.error(f"{message}; did you mean {near[0]}?" if near else message)

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with code 2."""
        self.exit(EXIT_MISTAKE, f"{self.prog}: error: {shorten(one_line(message))} (see {self.prog} --help)\n")


class _Debug(argparse.Action):
    """An option that is accepted but not stored, so that results cannot depend on it."""

    def __call__(self, *arguments: Any, **options: Any) -> None:
        """Do nothing."""


def guarded(name: str, program: Callable[[], int], arguments: Sequence[str] | None = None) -> int:
    """Run a program, print any exception as one line, and return the exit code.

    Args:
        name: the name of the program.
        program: a function that returns its exit code.
        arguments: arguments of the command line; by default those of the process. With `--debug`, the traceback of an
            exception is printed before its line.
    """
    debug = "--debug" in (sys.argv[1:] if arguments is None else arguments)
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters that the terminal cannot print are replaced
            stream.reconfigure(errors="replace")
    try:
        with interrupts.heeded():
            return _flushed(program)
    except Interrupted as interruption:
        print(f"{name}: interrupted; {interruption}: the same command resumes there", file=sys.stderr)
        return EXIT_INTERRUPTED
    except KeyboardInterrupt:
        print(INTERRUPTED.format(name), file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of the pipe has ended
        return EXIT_FAILED
    except BaseException as error:
        if not is_failure(error):
            raise
        if debug:
            traceback.print_exception(error)
        problem = explain(error)
        if isinstance(error, OSError) and _output_is_stuck():
            problem = f"cannot print ({error.strerror or error}); files that were written before are complete"
        print(f"{name}: error: {one_line(problem)}", file=sys.stderr)
        return EXIT_MISTAKE


def end_at_once(name: str) -> NoReturn:
    """End the process after Ctrl-C without waiting for other threads."""
    print(INTERRUPTED.format(name), file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(EXIT_INTERRUPTED)


def _flushed(program: Callable[[], int]) -> int:
    """Run a program and flush its output.

    Any exception after Ctrl-C becomes `KeyboardInterrupt`, because libraries convert it into other errors.
    """
    try:
        return program()
    except Exception as error:
        if interrupts.pressed():
            raise KeyboardInterrupt from error
        raise
    finally:
        sys.stdout.flush()


def _output_is_stuck() -> bool:
    """Whether standard output cannot be written, as on a full disk; it is then redirected to the null device."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):
        return False  # not a file
    try:
        sys.stdout.flush()
        os.write(output, b"\n")  # detects the error also if the buffer is empty
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        return True
    return False


def _show_warning(message: Any, category: type[Warning], *rest: Any, **options: Any) -> None:
    print(f"bertjax: warning: {one_line(message)}", file=sys.stderr)
