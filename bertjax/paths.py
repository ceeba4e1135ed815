"""Paths and files of the user. Any failure raises one of bertjax's errors in one line.

The argument `error` is the class to raise.
"""

import gzip
import hashlib
import io
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bertjax import arguments
from bertjax.errors import BertjaxError, DataError, OutputError, reading


def user_path(value: Any, error: type[BertjaxError] = DataError) -> Path:
    """The path that a user passes; `~` is expanded to the home directory.

    Raises:
        BertjaxError: not a str or path, empty, not a possible name of a file, or the home of an unknown user.

    >>> user_path("data/dev.tsv").name
    'dev.tsv'
    """
    try:
        text = os.fsdecode(value)
    except TypeError:
        raise error(f"a path must be a str or a pathlib.Path, found {arguments.describe(value)}") from None
    if not text:
        raise error("a path is empty: give the name of a file or directory")
    try:
        if b"\0" in os.fsencode(text):
            raise ValueError("it contains a NUL character")
        return Path(text).expanduser()
    except (ValueError, RuntimeError) as problem:  # a lone surrogate, or an unknown user
        raise error(f"the path {text[:80]!r} cannot be used ({problem}): write another one in full") from None


def open_data(path: Path, error: type[BertjaxError] = DataError) -> io.BufferedReader | gzip.GzipFile:
    """Open a file for reading in binary mode; a file whose name ends in `.gz` is decompressed."""
    with reading(path, error):
        return gzip.GzipFile(path) if path.suffix == ".gz" else path.open("rb")


def hash_file(path: Path, error: type[BertjaxError] = DataError) -> str:
    """The SHA-256 of a file."""
    with reading(path, error), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_text(path: Path, error: type[BertjaxError] = DataError) -> str:
    """The text of a file in UTF-8. Line ends are not changed."""
    with reading(path, error):
        return path.read_bytes().decode()


def is_file(path: Path, error: type[BertjaxError] = DataError) -> bool:
    """Whether the path is a regular file."""
    with reading(path, error):
        return path.is_file()


def is_directory(path: Path, error: type[BertjaxError] = DataError) -> bool:
    """Whether the path is a directory."""
    with reading(path, error):
        return path.is_dir()


def is_there(path: Path, error: type[BertjaxError] = DataError) -> bool:
    """Whether the path exists."""
    with reading(path, error):
        return path.exists()


def listing(directory: Path, error: type[BertjaxError] = DataError) -> list[Path]:
    """The paths in a directory, sorted by name."""
    with reading(directory, error):
        return sorted(directory.iterdir())


def refuse_inputs_in(directory: Path, inputs: Iterable[str | Path]) -> None:
    """Refuse an output directory that contains an input, so that no input is replaced.

    Args:
        directory: the output directory; it may not exist yet.
        inputs: files and directories. Names that do not exist on this machine, such as hub ids, are ignored.

    Raises:
        OutputError: an input is in the directory or is the directory itself, also through a link.
    """
    for one in inputs:
        with suppress(OSError, RuntimeError, OutputError):  # invalid paths are reported when they are read
            path, output = user_path(one, OutputError), directory.resolve()
            places = (path.resolve(), path.parent.resolve() / path.name)
            if os.path.lexists(path) and any(place.is_relative_to(output) for place in places):
                break
    else:
        return
    raise OutputError(f"{directory} contains {one}, which is an input: give another --output")
