"""Files that appear whole or not at all, whatever happens while they are written."""

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
    """Stage files under temporary names and move them into place, in order, once the block ends well.

    Args:
        paths: final names; their directories are made where they do not exist.

    Yields: a temporary path for each, in the same directory and with the same suffix (some writers, such as
        `numpy.savez`, go by it).

    Raises:
        OutputError: something cannot be written. No temporary file stays, and what was there before does.
    """
    temporaries = [path.with_name(f".{secrets.token_hex(4)}-{path.name}") for path in paths]
    with contextlib.ExitStack() as directories:
        try:
            for path in paths:
                directories.enter_context(made_directory(path.parent))
            modes = [_reserve(temporary, path) for temporary, path in zip(temporaries, paths, strict=True)]
            yield temporaries
            for temporary, mode in zip(temporaries, modes, strict=True):
                temporary.chmod(mode)  # some writers make files that only their owner may read
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
    """A directory and its parents, made where they do not exist; those that stay empty go when the block ends.

    Raises:
        OSError: one cannot be made.
    """
    made: list[Path] = []
    try:
        for path in (*reversed(directory.absolute().parents), directory.absolute()):
            if not path.exists():
                path.mkdir(exist_ok=True)  # another process may make it too
                made.append(path)
        yield
    finally:
        for path in reversed(made):
            with contextlib.suppress(OSError):  # something was written there
                path.rmdir()


def atomic_write(path: str | Path, content: bytes | Callable[[Path], object]) -> None:
    """Write one file atomically.

    Args:
        path: final name; its directory is made where it does not exist.
        content: the bytes, or a function that writes the file at the temporary path it is given.

    Raises:
        OutputError: the file cannot be written; what was there before stays.

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
    """Encode strict JSON (UTF-8, indented, a newline at the end); NaN and infinity are a ValueError."""
    return (to_json(value, indent=2) + "\n").encode()


def remove_leftovers(directory: Path, names: Iterable[str]) -> None:
    """Remove the temporary files of a process that was killed while it wrote into a directory.

    Args:
        names: of the files that are written there; what has another name is the user's.

    Raises:
        OutputError: one cannot be removed.
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
        OutputError: the file cannot be written, or `value` holds NaN or infinity, which JSON does not have.

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
        raise OutputError(f"cannot write {path}: {error} (NaN and infinity are no JSON)") from error
    atomic_write(path, content)


def _reserve(temporary: Path, path: Path) -> int:
    """Make an empty temporary file; give the permissions that a new file gets here."""
    if path.is_dir():  # found out before anything is moved, so that several files move together
        raise IsADirectoryError(None, f"{path.name} is a directory")
    with temporary.open("xb") as file:
        return os.fstat(file.fileno()).st_mode & 0o777


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
