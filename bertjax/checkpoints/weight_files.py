"""Weight files: reading every format that HuggingFace BERTs come in, writing safetensors.

All formats give the same canonical names and layouts, described in `tensor_names.py`, and keep the
dtype of the file. Broken files are refused with a `CheckpointError`, never read in part.
"""

import hashlib
import pickle
import re
import reprlib
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
from bertjax.errors import CheckpointError, MissingDependencyError, OutputError, library_errors, reading, some_of
from bertjax.json_files import read_json
from bertjax.paths import is_directory, is_there

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
        CheckpointError: no weights, damaged ones, ones that would run code, that are not floats, or that are not the
            family's.
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
    return read_tensor_file(path) if path.suffix == _extension(path) else _read_shards(path)


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
            raise OutputError(f"cannot write model.safetensors in {directory}: {error}") from error


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


def read_tensor_file(path: Path) -> dict[str, np.ndarray]:
    """The tensors of one file under its own names. Raises `CheckpointError` if it is damaged."""
    return _read_as(path.suffix, path)


def _read_as(extension: str, path: Path) -> dict[str, np.ndarray]:
    with reading(path, CheckpointError):
        return _READERS[extension](path)


def _read_torch(path: Path) -> dict[str, np.ndarray]:
    """Read tensors only: a pickle that asks for anything else is refused before it runs."""
    try:
        import torch
    except ImportError:
        hint = "is PyTorch's format; install it with `pip install bertjax[torch]`, or convert to safetensors"
        raise MissingDependencyError(f"{path}: {hint}") from None
    try:  # files of PyTorch before 1.6 are not zip archives and cannot be mapped into memory
        state = torch.load(str(path), map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:  # PyTorch's own message spans many lines and advises to run the file
        name = r"(?:GLOBAL|[Uu]nsupported (?:global|class|operand|reduce)\S*:?) (?:GLOBAL )?([A-Za-z_][\w.]*)"
        requested = re.search(name, str(error))
        reason = "is damaged" if requested is None else f"refused: it asks to run or build {requested[1]}"
        raise CheckpointError(f"{path}: {reason}; only tensors are read from a pickle") from error
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{path}: must hold a table of tensors, found a {type(state).__name__}")
    return torch_arrays(path, state)


def torch_arrays(source: str | Path, state: Mapping[Any, Any]) -> dict[str, np.ndarray]:
    """The tensors of PyTorch in a table as NumPy arrays, which share their memory where that is the CPU's.

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
    with library_errors(f"{source}: {some_of([name])} is not a plain array", CheckpointError):  # sparse, quantised ...
        tensor = tensor.detach().cpu()
        if tensor.dtype == torch.bfloat16:  # which NumPy does not have
            return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return tensor.numpy()


def _read_flax(path: Path) -> dict[str, np.ndarray]:
    """Read the tree of an old FlaxBert, as arrays by their path joined with slashes."""
    from flax.serialization import msgpack_restore
    from flax.traverse_util import flatten_dict

    flat = flatten_dict(msgpack_restore(path.read_bytes()), sep="/")
    for name, array in flat.items():
        if not isinstance(array, np.ndarray):
            raise CheckpointError(f"{path}: {name} must be an array, found a {type(array).__name__}")
    return flat


_READERS: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {
    ".safetensors": load_file,
    ".bin": _read_torch,
    ".msgpack": _read_flax,
}
WEIGHT_FILES: tuple[str, ...] = tuple(
    name + index
    for name in ("model.safetensors", "pytorch_model.bin", "flax_model.msgpack")
    for index in ("", ".index.json")
)
"""The names under which weights are looked for, in this order; an index lists a large model's shards."""


def _read_shards(index: Path) -> dict[str, np.ndarray]:
    """Read the shards that an index lists; each must hold exactly the tensors that the index says."""
    places = _read_index(index)
    weights: dict[str, np.ndarray] = {}
    for shard in sorted(set(places.values())):
        tensors = _read_as(_extension(index), index.parent / shard)
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
