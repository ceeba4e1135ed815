"""Paths and files that a user names: whatever is wrong with one ends in one of the project's errors, in one line.

A file is opened first and looked at then, so that nothing can change between the look and the reading. Only regular
files are read: a FIFO or a terminal would wait for ever, `/dev/zero` would fill the memory.
"""

import errno
import gzip
import hashlib
import io
import os
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bertjax import arguments
from bertjax.errors import BertjaxError, DataError, OutputError

ABSENT = (errno.ENOENT, errno.ENOTDIR)
MOST_TEXT = 1 << 28  # bytes of a file that is read at once, such as JSON: 256 MiB
# Texts shrink to a third or a tenth; what was made to fill memories, to a thousandth. 64 MiB do no harm.
MOST_EXPANSION, FREE_EXPANSION = 100, 1 << 26
KINDS: Mapping[int, str] = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# A FIFO without a writer must not block, a terminal not become ours, a child process not inherit the file.
_FLAGS = os.O_RDONLY | sum(getattr(os, f"O_{name}", 0) for name in ("NONBLOCK", "NOCTTY", "CLOEXEC", "BINARY"))


def user_path(given: Any, error: type[BertjaxError] = DataError) -> Path:
    """The path that a user's text means, `~` being a home directory.

    Args:
        given: as it was typed.
        error: the class to raise.

    Raises:
        BertjaxError: of the class `error`: the text is empty, holds a NUL character or half of another one, or
            names an unknown user.

    >>> user_path("data/dev.tsv").name
    'dev.tsv'
    """
    try:
        text = os.fsdecode(given)
    except TypeError:
        raise error(f"a path must be a text or a pathlib.Path, found {arguments.describe(given)}") from None
    if not text:
        raise error("a path is empty: give the name of a file or directory")
    if "\0" in text:
        raise error(f"the path {text[:80]!r} holds a NUL character, which no file's name can")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise error(f"the path {text[:80]!r} holds half a character, which no file's name can") from None
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise error(f"{text}: there is no home directory of that user; write the path in full") from None


def open_file(path: Path, error: type[BertjaxError] = DataError, most: int | None = None) -> io.BufferedReader:
    """Open a regular file for reading, in binary; use it in a `with`.

    Args:
        path: of the file.
        error: the class to raise.
        most: bytes that it may have; None for any number.

    Raises:
        BertjaxError: of the class `error`: there is no such file, it is not a regular file, it may not be read, or is
            too large.
    """
    with _system_errors(path, error):
        descriptor = os.open(path, _FLAGS)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise error(_other_kind(path, status.st_mode))
    if most is not None and status.st_size > most:
        os.close(descriptor)
        raise error(f"{path}: has {status.st_size:,} bytes, more than the {most:,} that such a file may have")
    return io.BufferedReader(io.FileIO(descriptor))


def read_file(path: Path, error: type[BertjaxError] = DataError, most: int = MOST_TEXT) -> bytes:
    """All bytes of a regular file.

    Args:
        path: of the file.
        error: the class to raise.
        most: bytes that it may have.

    Raises:
        BertjaxError: of the class `error`: as for `open_file`.
    """
    with open_file(path, error, most) as file, _system_errors(path, error):
        content = file.read(most + 1)  # some files of the system say that they are empty, and a file may grow
    if len(content) > most:
        raise error(f"{path}: has more than the {most:,} bytes that such a file may have")
    return content


def hash_file(path: Path, error: type[BertjaxError] = DataError) -> str:
    """sha256 of a regular file of any size.

    Args:
        path: of the file.
        error: the class to raise.

    Raises:
        BertjaxError: of the class `error`: as for `open_file`.
    """
    with open_file(path, error) as file, _system_errors(path, error):
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_text(path: Path, error: type[BertjaxError] = DataError, most: int = MOST_TEXT) -> str:
    """The text of a regular file in UTF-8.

    Args:
        path: of the file.
        error: the class to raise.
        most: bytes that it may have.

    Raises:
        BertjaxError: of the class `error`: as for `open_file`, or it is not UTF-8.
    """
    try:
        return read_file(path, error, most).decode()
    except UnicodeDecodeError as problem:
        line = problem.object[: problem.start].count(b"\n") + 1
        raise error(f"{path}, line {line}: not UTF-8 ({problem.reason}); save the file as UTF-8") from problem


def open_data(path: Path, error: type[BertjaxError] = DataError) -> io.BufferedReader:
    """Open a regular file of any size for reading as a stream, in binary; what ends in `.gz` is decompressed.

    Args:
        path: of the file.
        error: the class to raise.

    Raises:
        BertjaxError: of the class `error`: as for `open_file`; and while it is read, if it is not a complete gzip file
            or expands like one that was made to fill memories.
    """
    file = open_file(path, error)
    return io.BufferedReader(_Unpacked(path, file, error), 1 << 16) if path.suffix == ".gz" else file


class _Unpacked(io.RawIOBase):
    """The content of a gzip file, as a stream."""

    def __init__(self, path: Path, file: io.BufferedReader, error: type[BertjaxError]):
        self._path, self._file, self._error = path, file, error
        self._gzip, self._size, self._read = gzip.GzipFile(fileobj=file), os.fstat(file.fileno()).st_size, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            count = self._gzip.readinto(buffer)
        except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
            raise self._error(f"{self._path}: not a complete gzip file ({problem}); copy it again") from problem
        except OSError as problem:
            raise self._error(_reason(self._path, problem)) from problem
        self._read += count
        if self._read > max(FREE_EXPANSION, MOST_EXPANSION * self._size):
            raise self._error(
                f"{self._path}: {self._size:,} bytes expand to more than {self._read:,}, as no text does; if that is "
                "meant, decompress it with gunzip"
            )
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def is_file(path: Path, error: type[BertjaxError] = DataError) -> bool:
    """Whether there is a regular file.

    Raises:
        BertjaxError: of the class `error`: the path cannot be looked at.
    """
    return stat.S_ISREG(_mode(path, error))


def is_directory(path: Path, error: type[BertjaxError] = DataError) -> bool:
    """Whether there is a directory.

    Raises:
        BertjaxError: of the class `error`: the path cannot be looked at.
    """
    return stat.S_ISDIR(_mode(path, error))


def is_there(path: Path, error: type[BertjaxError] = DataError) -> bool:
    """Whether there is anything of that name.

    Raises:
        BertjaxError: of the class `error`: the path cannot be looked at.
    """
    return _mode(path, error) != 0


def refuse_inputs_in(directory: Path, inputs: Iterable[str | Path]) -> None:
    """Refuse a directory for output that contains something that is read, so that no input is ever replaced.

    Args:
        directory: for the output; it need not exist.
        inputs: files and directories; names of nothing on this machine, such as ids of a hub, are ignored.

    Raises:
        OutputError: an input is in the directory, or is the directory itself, by its name or by a link.
    """
    for given in inputs:
        with suppress(OSError, RuntimeError, OutputError):  # invalid paths are reported when they are read
            path, output = user_path(given, OutputError), directory.resolve()
            places = (path.resolve(), path.parent.resolve() / path.name)
            if os.path.lexists(path) and any(place.is_relative_to(output) for place in places):
                break
    else:
        return
    raise OutputError(f"{directory} contains {given}, which is an input: give another --output")


def listing(directory: Path, error: type[BertjaxError] = DataError) -> list[Path]:
    """What is in a directory, in order of names.

    Raises:
        BertjaxError: of the class `error`: it cannot be listed.
    """
    try:
        return sorted(directory.iterdir())
    except (OSError, ValueError) as problem:
        raise error(f"{directory}: cannot be listed ({_words(problem)}); check the path") from problem


def _mode(path: Path, error: type[BertjaxError]) -> int:
    """The kind and permissions of what a path names; 0 where there is nothing."""
    with _system_errors(path, error):
        try:
            return os.stat(path).st_mode
        except OSError as problem:
            if problem.errno in ABSENT:
                return 0
            raise


@contextmanager
def _system_errors(path: Path, error: type[BertjaxError]) -> Iterator[None]:
    """What the system refuses while a path is looked at or read, as an error of the class in one line."""
    try:
        yield
    except (OSError, ValueError) as problem:
        raise error(_reason(path, problem)) from problem


def _reason(path: Path, problem: OSError | ValueError) -> str:
    if isinstance(problem, OSError) and problem.errno in ABSENT:
        return f"{path}: no such file or directory; check the path"
    if isinstance(problem, OSError) and problem.errno == errno.ENXIO:
        return _other_kind(path, stat.S_IFSOCK)
    if isinstance(problem, PermissionError):
        return f"{path}: cannot be read ({_words(problem)}); ask its owner, or give a copy of your own"
    return f"{path}: cannot be read ({_words(problem)}); check the path"


def _other_kind(path: Path, mode: int) -> str:
    kind = KINDS.get(stat.S_IFMT(mode), "something else")
    return f"{path}: is {kind}, not a regular file; give a file"


def _words(problem: OSError | ValueError) -> str:
    """What the system says, without the path, which the message has already."""
    return getattr(problem, "strerror", None) or str(problem)
