"""Atomic writes: a file appears completely or not at all."""

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bertjax.errors import OutputError
from bertjax.formatting import to_json


@contextlib.contextmanager
def staged(*paths: Path) -> Iterator[list[Path]]:
    """Write files under temporary names, and rename them in order if the block raises nothing.

    Args:
        paths: final names. Missing directories are created.

    Yields: a temporary path for each, in the same directory and with the same suffix (writers such as `numpy.savez`
        need it).

    Raises:
        OutputError: a file cannot be written. Temporary files are removed, and existing files are unchanged.
    """
    temporaries = [path.with_name(f".{secrets.token_hex(4)}-{path.name}") for path in paths]
    with contextlib.ExitStack() as directories:
        try:
            for path in paths:
                directories.enter_context(made_directory(path.parent))
            modes = [_reserve(temporary, path) for temporary, path in zip(temporaries, paths, strict=True)]
            yield temporaries
            for temporary, mode in zip(temporaries, modes, strict=True):
                temporary.chmod(mode)  # some writers create files that only their owner may read
                _flush(temporary)
            for temporary, path in zip(temporaries, paths, strict=True):
                os.replace(temporary, path)
        except OSError as error:
            names = " and ".join(path.name for path in paths)
            reason = error.strerror or error
            raise OutputError(f"cannot write {names} in {paths[0].parent}: {reason}") from error
        finally:
            for temporary in temporaries:
                with contextlib.suppress(OSError):
                    temporary.unlink()


@contextlib.contextmanager
def made_directory(directory: Path) -> Iterator[None]:
    """Create a directory and its parents; new directories that are empty after the block are removed.

    Raises:
        OSError: a directory cannot be created.
    """
    made: list[Path] = []
    try:
        for path in (*reversed(directory.absolute().parents), directory.absolute()):
            if not path.exists():
                path.mkdir(exist_ok=True)  # another process may create it too
                made.append(path)
        yield
    finally:
        for path in reversed(made):
            with contextlib.suppress(OSError):  # not empty
                path.rmdir()


def atomic_write(path: str | Path, content: bytes | Callable[[Path], object]) -> None:
    """Write one file atomically.

    Args:
        path: final name. Missing directories are created.
        content: bytes, or a function that writes the file at the path it is called with.

    Raises:
        OutputError: the file cannot be written. An existing file is unchanged.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "figure.txt"
    >>> atomic_write(path, b"144 heads")
    >>> path.read_text()
    '144 heads'
    """
    with staged(Path(path)) as (temporary,):
        if callable(content):
            content(temporary)
        else:
            temporary.write_bytes(content)


def encode_json(value: Any) -> bytes:
    """Strict JSON in UTF-8, indented, with a final newline. NaN and infinity raise ValueError."""
    return (to_json(value, indent=2) + "\n").encode()


def remove_leftovers(directory: Path, names: Iterable[str]) -> None:
    """Remove temporary files of a process that was killed while it wrote into a directory.

    Args:
        names: final names of the files. Files with other names belong to the user.

    Raises:
        OutputError: a file cannot be removed.
    """
    ours = re.compile(rf"\.[0-9a-f]{{8}}-({'|'.join(map(re.escape, names))})")
    try:
        for path in directory.iterdir() if directory.is_dir() else ():
            if ours.fullmatch(path.name):
                path.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"cannot remove {error.filename}: {error.strerror or error}") from error


def write_json(path: str | Path, value: Any) -> None:
    """Write strict JSON atomically.

    Raises:
        OutputError: the file cannot be written, or `value` contains NaN or infinity, which are not JSON.

    >>> import tempfile
    >>> import json
    >>> path = Path(tempfile.mkdtemp()) / "summary.json"
    >>> write_json(path, {"score": 0.5})
    >>> json.loads(path.read_text())
    {'score': 0.5}
    """
    try:
        content = encode_json(value)
    except ValueError as error:
        raise OutputError(f"cannot write {path}: {error} (NaN and infinity are not JSON)") from error
    atomic_write(path, content)


def _reserve(temporary: Path, path: Path) -> int:
    """Create an empty temporary file, and return the permissions of a new file."""
    if path.is_dir():  # checked before any file is renamed
        raise IsADirectoryError(None, f"{path.name} is a directory")
    with temporary.open("xb") as file:
        return os.fstat(file.fileno()).st_mode & 0o777


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
