"""Arrays of an `.npz` file; their names, kinds and shapes are checked before any value is read.

So a small file that unpacks to more than the free memory is refused, and nothing in it is ever executed.
"""

import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import Shaped

from bertjax.errors import InputError
from bertjax.formatting import format_bytes
from bertjax.machine import free_memory

# Errors that zipfile and NumPy have been seen to raise on damaged files.
_DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    SyntaxError,
    RuntimeError,  # unknown compression, encryption, or a header nested too deeply
    AttributeError,
    struct.error,
    tokenize.TokenError,
    UserWarning,
    zipfile.BadZipFile,
    zlib.error,
)
_KINDS = "biufU"  # booleans, numbers and texts
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True)
class Header:
    """The shape and type of an array, known before its values are read.

    Args:
        shape: the sizes of its axes.
        dtype: the type of its values.
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """The size of its values in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def is_like(self, kinds: str, *shape: int) -> bool:
        """Whether it has this shape and one of these kinds (letters of `numpy.dtype.kind`)."""
        return self.dtype.kind in kinds and self.shape == shape


def read_arrays(
    file: BinaryIO, path: Path, problem: Callable[[Mapping[str, Header]], str | None]
) -> dict[str, Shaped[np.ndarray, "..."]]:
    """All arrays of an `.npz` file, by name.

    Args:
        file: open for reading.
        path: its name, for messages.
        problem: called with the headers before any value is read; returns a phrase saying what is wrong with them,
            or None.

    Raises:
        InputError: the file is damaged, holds the wrong arrays, or unpacks to more than the free memory.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            headers = {name: _header(archive, member) for name, member in members.items()}
            fault = problem(headers) or _too_large(headers)
            if fault is None:
                return {name: _values(archive, member) for name, member in members.items()}
    except _DAMAGED as error:  # NumPy's message would advise loading pickles, which these are not
        raise InputError(f"{path} cannot be read, it is damaged: run the ablation again") from error
    raise InputError(f"{path} cannot be read, {fault}: run the ablation again")


def _header(archive: zipfile.ZipFile, member: str) -> Header:
    """Shape and kind of an array; raises `ValueError` where its size in bytes does not match them."""
    entry = archive.getinfo(member)
    if entry.compress_type not in _METHODS:
        raise ValueError(f"{member} is compressed in a way that NumPy does not use")
    with archive.open(entry) as stream:
        version = np.lib.format.read_magic(stream)
        reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        with warnings.catch_warnings(category=UserWarning, action="error"):  # for a header written by Python 2
            shape, _, dtype = reader(stream)
        header = Header(shape, dtype)
        if dtype.kind not in _KINDS or min(shape, default=1) < 0 or stream.tell() + header.nbytes != entry.file_size:
            raise ValueError(f"{member} is not an array of numbers or texts, or is cut off")
    return header


def _too_large(headers: Mapping[str, Header]) -> str | None:
    needed, free = sum(header.nbytes for header in headers.values()), free_memory()
    return f"it unpacks to {format_bytes(needed)}, and {format_bytes(free)} are free" if needed > free else None


def _values(archive: zipfile.ZipFile, member: str) -> Shaped[np.ndarray, "..."]:
    with archive.open(member) as stream:
        values: Shaped[np.ndarray, "..."] = np.lib.format.read_array(stream, allow_pickle=False)
    if values.dtype.kind == "U":
        "".join(values.ravel().tolist()).encode("utf-8", "surrogatepass")  # raises for invalid Unicode
    return values
