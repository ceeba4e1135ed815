"""Weight files: reading every format that HuggingFace BERTs come in, writing safetensors.

All formats give the same canonical names and layouts, described in `tensor_names.py`, and keep the
dtype of the file. Broken files are refused with a `CheckpointError`, never read in part.

Sizes come before values: tensors that ask for much more room than their file has (PyTorch's format can say that one
number is a matrix of 10^12, or be a compressed archive) are refused before anything is computed with them.
"""

import hashlib
import os
import pickle
import re
import reprlib
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bertjax.atomic_files import atomic_write, encode_json, staged, write_json
from bertjax.checkpoints.families import FAMILIES, Family
from bertjax.checkpoints.tensor_names import (
    BERT,
    bias_of,
    canonical_weights,
    from_flax,
    word_embeddings,
)
from bertjax.errors import CheckpointError, MissingDependencyError, OutputError, some_of
from bertjax.json_files import read_json
from bertjax.paths import is_directory, is_file, is_there, open_file

__all__ = [
    "WEIGHT_FILES",
    "CheckpointWarning",
    "atomic_write",
    "find_weights",
    "hash_weights",
    "read_weights",
    "write_json",
    "write_weights",
]

DTYPES = ("float32", "float16", "bfloat16", "float64")
MOST_ROOM = 4  # bytes of all tensors for each byte of their file: tied tensors may be named twice or three times

# What PyTorch's loader and Flax's were seen to raise on damaged files.
_TORCH_ERRORS = (
    pickle.UnpicklingError,
    RuntimeError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    MemoryError,
    struct.error,
    zipfile.BadZipFile,
    OSError,
)
_FLAX_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    MemoryError,
    RecursionError,
    OSError,
)


class CheckpointWarning(UserWarning):
    """Weights that were read but may not be what the user wants, such as NaN."""


def find_weights(directory: str | Path) -> Path:
    """Find the file that `read_weights` reads: the first of `WEIGHT_FILES` in the directory.

    Raises:
        CheckpointError: there is none, or the directory cannot be looked at.
    """
    directory = Path(directory)
    for name in WEIGHT_FILES:
        if is_there(directory / name, CheckpointError):
            return directory / name
    if not is_directory(directory, CheckpointError):
        raise CheckpointError(f"{directory}: no such directory")
    raise CheckpointError(f"{directory}: has no weights; looked for {', '.join(WEIGHT_FILES)}")


def read_weights(directory: str | Path, family: Family = BERT) -> dict[str, np.ndarray]:
    """Read a checkpoint's tensors under canonical names (see `tensor_names.py`).

    Args:
        directory: of a HuggingFace model; the first of `WEIGHT_FILES` that it holds is read.
        family: whose names its tensors have.

    Returns: arrays in the file's dtype, views of the file where its format allows.

    Raises:
        CheckpointError: no weights, damaged ones, ones that would run code, that ask for more room than `MOST_ROOM`
            times their file's, that are not floats, or that are not the family's.
        MissingDependencyError: the file is PyTorch's and PyTorch is not installed.

    Warns:
        CheckpointWarning: tensors hold NaN or infinity; they are named.
    """
    path = find_weights(directory)
    extension = _extension(path)
    weights = _read_file(path)
    try:
        weights = canonical_weights(from_flax(weights) if extension == ".msgpack" else weights, family)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    check_values(path, weights)
    return weights


def read_tensors(directory: str | Path) -> dict[str, np.ndarray]:
    """Read the tensors of a part that lies in a directory of its own, under the names that its file has.

    Raises and warns: as `read_weights`.
    """
    path = find_weights(directory)
    weights = _read_file(path)
    check_values(path, weights)
    return weights


def _extension(path: Path) -> str:
    """Which format a file, or the files that an index lists, has."""
    return Path(path.name.removesuffix(".index.json")).suffix


def _read_file(path: Path) -> dict[str, np.ndarray]:
    extension = _extension(path)
    read = _READERS[extension]
    return _read_checked(path, read) if path.suffix == extension else _read_shards(path, read)


def write_weights(directory: str | Path, weights: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> None:
    """Write `model.safetensors` and `config.json`, which `transformers` (PyTorch) reads; both or neither.

    Where there is a decoder weight of its own (not tied to the word embeddings), its bias is written too, as
    PyTorch then keeps it apart from that of the head.

    Args:
        directory: made where it does not exist.
        weights: tensors under HuggingFace's names and in its layouts.
        config: what `BertConfig.to_dict` gives.

    Raises:
        OutputError: the directory cannot be written; what was there before stays.
    """
    directory, settings_json = Path(directory), encode_json(dict(config))
    arrays = {name: np.require(array, requirements="C") for name, array in weights.items()}
    for head in FAMILIES.get(config.get("model_type", "bert"), BERT).heads.values():
        if head.decoder_bias is not None and head.decoder in arrays and bias_of(head) in arrays:
            arrays.setdefault(head.decoder_bias, arrays[bias_of(head)])
    with staged(directory / "model.safetensors", directory / "config.json") as (tensors, settings):
        settings.write_bytes(settings_json)
        try:
            save_file(arrays, tensors, metadata={"format": "pt"})
        except SafetensorError as error:  # also for a full disk
            raise OutputError(f"cannot write model.safetensors in {directory}: {_one_line(error)}") from error


def hash_weights(weights: Mapping[str, np.ndarray], family: Family = BERT) -> str:
    """Hash names, dtypes, shapes and bytes with sha256: the same for the same weights in any file format.

    A decoder weight equal to the word embeddings is left out: it is tied, and formats differ in whether they
    store a tied tensor twice.

    Args:
        weights: tensors under canonical names, in any order.
        family: whose names they are.

    >>> hash_weights({"classifier.bias": np.zeros(3, np.float32)})[:8]
    '5902de5f'
    """
    digest, decoders = hashlib.sha256(), {head.decoder for head in family.heads.values()}
    words = weights.get(word_embeddings(family))
    for name, array in sorted(weights.items()):
        if name in decoders and _same(array, words):
            continue
        digest.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
        digest.update(_bytes(array).data)
    return digest.hexdigest()


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _same(first: np.ndarray, second: np.ndarray | None) -> bool:
    if second is None or first.dtype != second.dtype or first.shape != second.shape:
        return False
    return np.array_equal(_bytes(first), _bytes(second))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def check_values(path: str | Path, weights: Mapping[str, np.ndarray]) -> None:
    """Refuse tensors that are not floats; warn of values that are not finite."""
    broken = []
    for name, array in weights.items():
        if array.dtype.name not in DTYPES:
            raise CheckpointError(f"{path}: {name} is of dtype {array.dtype}, must be one of {', '.join(DTYPES)}")
        if not np.isfinite(array).all():
            broken.append(name)
    if broken:
        message = f"{path}: NaN or infinity in {some_of(broken, most=4)}; outputs will not be finite"
        warnings.warn(message, CheckpointWarning, stacklevel=3)


def _read_checked(path: Path, read: Callable[[Path], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The tensors of a regular file, none larger than it."""
    with open_file(path, CheckpointError) as file:
        room = os.fstat(file.fileno()).st_size
    weights = read(path)
    for name, array in weights.items():
        if array.nbytes > room:
            raise CheckpointError(
                f"{path}: {some_of([name])} has shape {array.shape}, which takes {array.nbytes:,} bytes, but the file "
                f"has only {room:,}"
            )
    total = sum(array.nbytes for array in weights.values())
    if total > MOST_ROOM * room:
        raise CheckpointError(
            f"{path}: its tensors take {total:,} bytes, more than {MOST_ROOM} times the file's {room:,}"
        )
    return weights


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    try:
        return load_file(path)
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, AttributeError, MemoryError) as error:
        raise CheckpointError(f"{path}: damaged, or no safetensors file ({_one_line(error)})") from error


def _read_torch(path: Path) -> dict[str, np.ndarray]:
    """Read tensors only: a pickle that asks for anything else is refused before it runs."""
    try:
        import torch
    except ImportError:
        hint = "is PyTorch's format; install it with `pip install bertjax[torch]`, or convert to safetensors"
        raise MissingDependencyError(f"{path}: {hint}") from None
    try:  # files of PyTorch before 1.6 are not zip archives and cannot be mapped into memory
        is_archive = zipfile.is_zipfile(path)
        if is_archive:
            _refuse_compressed(path)
        state = torch.load(str(path), map_location="cpu", weights_only=True, mmap=is_archive)
    except _TORCH_ERRORS as error:
        raise CheckpointError(f"{path}: {_torch_reason(error)}") from error
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{path}: must hold a table of tensors, found a {type(state).__name__}")
    return torch_arrays(path, state)


def _refuse_compressed(path: Path) -> None:
    """PyTorch stores the parts of its archives as they are; a compressed one may be a thousand times its file."""
    with zipfile.ZipFile(path) as archive:
        compressed = [part.filename for part in archive.infolist() if part.compress_type != zipfile.ZIP_STORED]
    if compressed:
        raise CheckpointError(f"{path}: {some_of(compressed, most=1)} compressed, which PyTorch never writes: refused")


def _torch_reason(error: BaseException) -> str:
    """Tell code in a pickle from damage; PyTorch's own message spans many lines and advises to run it."""
    asked = re.search(
        r"(?:GLOBAL|[Uu]nsupported (?:global|class|operand|reduce)\S*:?) (?:GLOBAL )?([A-Za-z_][\w.]*)", str(error)
    )
    if asked is not None and isinstance(error, pickle.UnpicklingError):
        return f"refused: it asks to run or build {asked[1]}, and only tensors are read from a pickle"
    return f"damaged, or no PyTorch weights ({_one_line(error)})"


def torch_arrays(source: str | Path, state: Mapping[Any, Any]) -> dict[str, np.ndarray]:
    """The tensors of PyTorch in a table as NumPy arrays that share their memory.

    Raises:
        CheckpointError: something in the table is not a plain tensor.
    """
    return {name: _torch_array(source, name, tensor) for name, tensor in state.items()}


def torch_tensor(array: np.ndarray) -> Any:
    """A copy of an array as a tensor of PyTorch."""
    import torch

    if array.dtype == ml_dtypes.bfloat16:
        return torch.tensor(array.view(np.int16)).view(torch.bfloat16)
    return torch.tensor(array)


def _torch_array(source: str | Path, name: Any, tensor: Any) -> np.ndarray:
    import torch

    if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
        raise CheckpointError(f"{source}: {reprlib.repr(name)} must name a tensor, found a {type(tensor).__name__}")
    tensor = tensor.detach()
    try:
        name.encode()  # half a surrogate pair is not a character
        if tensor.dtype == torch.bfloat16:  # NumPy has no such dtype of its own
            return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return tensor.numpy()
    except (TypeError, ValueError, RuntimeError, MemoryError) as error:  # sparse, quantised, 8 bits ...
        raise CheckpointError(f"{source}: {some_of([name])} is not a plain array ({_one_line(error)})") from error


def _read_flax(path: Path) -> dict[str, np.ndarray]:
    """Read the tree of an old FlaxBert, as arrays by their path joined with slashes."""
    from flax.serialization import msgpack_restore
    from flax.traverse_util import flatten_dict

    try:
        tree = msgpack_restore(path.read_bytes())
        if not isinstance(tree, dict):
            raise ValueError(f"holds a {type(tree).__name__}, not a tree")
        flat = flatten_dict(tree, sep="/")
    except _FLAX_ERRORS as error:
        raise CheckpointError(f"{path}: damaged, or no Flax weights ({_one_line(error)})") from error
    for name, array in flat.items():
        if not isinstance(array, np.ndarray):
            raise CheckpointError(f"{path}: {name} must be an array, found a {type(array).__name__}")
    return flat


def read_tensor_file(path: Path) -> dict[str, np.ndarray]:
    """The tensors of one file under its own names. Raises `CheckpointError` if it is damaged."""
    return _read_checked(path, _READERS[path.suffix])


_READERS: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {
    ".safetensors": _read_safetensors,
    ".bin": _read_torch,
    ".msgpack": _read_flax,
}
WEIGHT_FILES: tuple[str, ...] = tuple(
    name + index
    for name in ("model.safetensors", "pytorch_model.bin", "flax_model.msgpack")
    for index in ("", ".index.json")
)
"""The names under which weights are looked for, in this order; an index lists a large model's shards."""


def _read_shards(index: Path, read: Callable[[Path], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Read the shards that an index lists; each must hold exactly the tensors that the index says."""
    places = _read_index(index)
    shards = sorted(set(places.values()))
    absent = [shard for shard in shards if not is_file(index.parent / shard, CheckpointError)]
    if absent:
        raise CheckpointError(f"{index.parent / absent[0]}: missing, although {index.name} lists it")
    weights: dict[str, np.ndarray] = {}
    for shard in shards:
        tensors = _read_checked(index.parent / shard, read)
        wrong = {name for name, place in places.items() if place == shard} ^ tensors.keys()
        if wrong:
            does = "holds" if min(wrong) in tensors else "lacks"
            raise CheckpointError(
                f"{index.parent / shard}: {does} the tensor {min(wrong)}, against what {index.name} says"
            )
        weights |= tensors
    return weights


def _read_index(index: Path) -> dict[str, str]:
    """Read which tensor lies in which shard; shards lie beside the index and nowhere else."""
    places = read_json(index, CheckpointError).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{index}: is not an index of shards: weight_map must name the file of each tensor")
    for name, shard in places.items():
        if not isinstance(shard, str) or shard in ("", ".", "..") or re.search(r"[/\\\0]", shard):
            raise CheckpointError(
                f"{index}: {some_of([name])} is said to lie in {reprlib.repr(shard)}, not in a file of this directory"
            )
    return places
