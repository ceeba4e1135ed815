"""The journal of a sweep: what is finished stays, whatever happens to the process.

    journal.json   what the sweep is of (`facts`), and the sizes of its pieces
    part-00000     outputs of a finished part: sha256 of its number and content (32 bytes), then a NumPy array

Every file appears whole or not at all. A part whose digest does not match is computed again. The sizes come from the
journal when a sweep goes on, not from the memory that happens to be free: the same steps give the same bytes.
"""

import contextlib
import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertjax.atomic import atomic_write, write_json
from bertjax.errors import OutputError

DIGEST_BYTES = 32


@dataclass(frozen=True)
class Journal:
    """The finished parts of one sweep; `sizes` are those of its pieces."""

    directory: Path
    sizes: Mapping[str, int]

    def read(self, number: int) -> np.ndarray | None:
        """The outputs of a part; None where it is not there or damaged."""
        try:
            content = self._path(number).read_bytes()
            if _digest(number, content[DIGEST_BYTES:]) != content[:DIGEST_BYTES]:
                return None
            return np.load(io.BytesIO(content[DIGEST_BYTES:]), allow_pickle=False)
        except (OSError, ValueError):
            return None

    def write(self, number: int, outputs: np.ndarray) -> None:
        """Keep the outputs of a part.

        Raises:
            OutputError: it cannot be written; what was finished before stays.
        """
        stream = io.BytesIO()
        np.save(stream, outputs, allow_pickle=False)
        content = stream.getvalue()
        atomic_write(self._path(number), _digest(number, content) + content)

    def _path(self, number: int) -> Path:
        return self.directory / f"part-{number:05d}"


def _digest(number: int, content: bytes) -> bytes:
    """Of a part's content and number: a part under another's name is none."""
    return hashlib.sha256(number.to_bytes(8, "big") + content).digest()


def open_journal(
    directory: Path, facts: Mapping[str, str], sizes: Mapping[str, int], *, replace: bool = False
) -> Journal:
    """The journal in a directory: the one that is there, or a new one.

    Args:
        directory: of the journal alone.
        facts: all that the outputs depend on, by names that tell a user what differs.
        sizes: of the pieces, for a new journal.
        replace: discard a journal of another sweep.

    Raises:
        OutputError: it is of another sweep, or damaged, and `replace` is false; or it cannot be written.
    """
    path = directory / "journal.json"
    if path.exists():
        try:
            found = _read(path)
            _compare(directory, found["facts"], dict(facts))
            return Journal(directory, found["sizes"])
        except OutputError:
            if not replace:
                raise
    discard_journal(directory)
    write_json(path, {"facts": dict(facts), "sizes": dict(sizes)})
    return Journal(directory, sizes)


def count_parts(directory: Path) -> int:
    """How many parts of an unfinished sweep are there."""
    return sum(1 for _ in directory.glob("part-*")) if (directory / "journal.json").exists() else 0


def is_unfinished(directory: Path) -> bool:
    """Whether a directory holds the journal of a sweep."""
    return (directory / "journal.json").exists()


def discard_journal(directory: Path) -> None:
    """Remove a journal, if there is one.

    Raises:
        OutputError: it cannot be removed.
    """
    try:
        (directory / "journal.json").unlink(missing_ok=True)  # first: parts without it are no journal
        for path in [
            *directory.glob("part-[0-9]*"),
            *directory.glob(".*-part-[0-9]*"),
            *directory.glob(".*-journal.json"),
        ]:
            path.unlink()
        with contextlib.suppress(OSError):
            directory.rmdir()  # unless something of the user's is in it
    except OSError as error:
        raise OutputError(f"cannot remove what is in {directory}: {error.strerror or error}") from error


def _read(path: Path) -> dict[str, dict]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {"facts": dict(found["facts"]), "sizes": {name: int(size) for name, size in found["sizes"].items()}}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OutputError(f"{path} is damaged: --overwrite discards what was finished") from error


def _compare(directory: Path, there: dict[str, str], here: dict[str, str]) -> None:
    """Raise `OutputError` with all that differs."""
    differing = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    if differing:
        what = "; ".join(
            f"{name} ({there.get(name, 'none')} there, {here.get(name, 'none')} here)" for name in differing
        )
        raise OutputError(
            f"{directory.parent} holds an unfinished sweep with other settings: {what}. "
            "Give those to go on, another --output, or --overwrite to discard it"
        )
