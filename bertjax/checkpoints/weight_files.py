"""Weight files: read every format in which HuggingFace publishes BERTs, write safetensors.

All formats are read as the same canonical names and layouts (`tensor_names.py`), in the dtype of the file. A damaged
file is refused as a whole with a `CheckpointError`.
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

from bertjax.atomic_files import encode_json, staged
from bertjax.checkpoints.families import FAMILIES, Family
from bertjax.checkpoints.tensor_names import BERT, bias_of, canonical_weights, from_flax, word_embeddings
from bertjax.errors import (
    CheckpointError,
    MissingDependencyError,
    OutputError,
    error_prefix,
    library_errors,
    reading,
    some_of,
)
from bertjax.json_files import read_json
from bertjax.paths import is_directory, is_there

DTYPES = ("float32", "float16", "bfloat16", "float64")


class CheckpointWarning(UserWarning):
    """Weights were read but may not be what the user wants, such as NaN."""


def _find_weights(directory: Path) -> Path:
    """The first of `WEIGHT_FILES` in a directory. Raises `CheckpointError` if there is none."""
    for name in WEIGHT_FILES:
        if is_there(directory / name, CheckpointError):
            return directory / name
    if not is_directory(directory, CheckpointError):
        raise CheckpointError(f"{directory}: no such directory")
    raise CheckpointError(f"{directory}: has no weights; looked for {', '.join(WEIGHT_FILES)}")


def read_weights(directory: str | Path, family: Family = BERT) -> dict[str, np.ndarray]:
    """Read the tensors of a checkpoint under canonical names (see `tensor_names.py`).

    Args:
        directory: directory of a HuggingFace model; the first of `WEIGHT_FILES` in it is read.
        family: family of the tensors.

    Returns: arrays in the file's dtype, views of the file where its format allows.

    Raises:
        CheckpointError: no weights, or weights that are damaged, would run code, are not floats, or belong to another
            family.
        MissingDependencyError: the file is PyTorch's and PyTorch is not installed.

    Warns:
        CheckpointWarning: tensors hold NaN or infinity; they are named.
    """
    path = _find_weights(Path(directory))
    weights = _read_file(path)
    with error_prefix(f"{path}: "):
        weights = canonical_weights(from_flax(weights) if _extension(path) == ".msgpack" else weights, family)
    check_values(path, weights)
    return weights


def read_tensors(directory: Path) -> dict[str, np.ndarray]:
    """Read the tensors in a directory under the names in its file. Raises and warns as `read_weights`."""
    path = _find_weights(directory)
    weights = _read_file(path)
    check_values(path, weights)
    return weights


def _extension(path: Path) -> str:
    """The format of a file, or of the files that an index lists."""
    return Path(path.name.removesuffix(".index.json")).suffix


def _read_file(path: Path) -> dict[str, np.ndarray]:
    return _read_shards(path) if path.suffix == ".json" else read_tensor_file(path)


def write_weights(directory: str | Path, weights: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> None:
    """Write `model.safetensors` and `config.json`, which `transformers` (PyTorch) reads; both or neither.

    If the decoder has a separate weight (not tied to the word embeddings), its bias is written too: PyTorch then keeps
    it separate from that of the head.

    Args:
        directory: directory to write, made if it does not exist.
        weights: tensors under HuggingFace's names and in its layouts.
        config: result of `BertConfig.to_dict`.

    Raises:
        OutputError: the directory cannot be written; its content is unchanged.
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
    """SHA-256 of names, dtypes, shapes and bytes: the same for the same weights in any file format.

    A decoder weight equal to the word embeddings is left out: formats differ in whether they store a tied tensor twice.

    Args:
        weights: tensors under canonical names, in any order.
        family: family of the tensors.

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
    """Refuse tensors that are not floats; warn about values that are not finite."""
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
    """The tensors of one file under the names in it. Raises `CheckpointError` if it is damaged."""
    with reading(path, CheckpointError):
        return _READERS[path.suffix](path)


def _read_torch(path: Path) -> dict[str, np.ndarray]:
    """Read a file of PyTorch; a pickle that builds anything but tensors is refused before it runs."""
    try:
        import torch
    except ImportError:
        hint = "pip install bertjax[torch], or convert the file to safetensors"
        raise MissingDependencyError(f"{path}: needs PyTorch: {hint}") from None
    try:  # files of PyTorch before 1.6 are not zip archives, so they cannot be memory-mapped
        state = torch.load(str(path), map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:  # PyTorch's message spans many lines and advises to run the file
        name = r"(?:GLOBAL|[Uu]nsupported (?:global|class|operand|reduce)\S*:?) (?:GLOBAL )?([A-Za-z_][\w.]*)"
        requested = re.search(name, str(error))
        reason = "is damaged" if requested is None else f"refused: it would run or build {requested[1]}"
        raise CheckpointError(f"{path}: {reason}; only tensors are read from a pickle") from error
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{path}: must hold a dict of tensors, found a {type(state).__name__}")
    return torch_arrays(path, state)


def torch_arrays(source: str | Path, state: Mapping[Any, Any]) -> dict[str, np.ndarray]:
    """PyTorch's tensors as NumPy arrays, which share their memory on a CPU.

    Raises:
        CheckpointError: a value is not a plain tensor.
    """
    return {name: _torch_array(source, name, tensor) for name, tensor in state.items()}


def torch_tensor(array: np.ndarray) -> Any:
    """A copy of an array as a PyTorch tensor."""
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
        if tensor.dtype == torch.bfloat16:  # a dtype that NumPy lacks
            return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return tensor.numpy()


def _read_flax(path: Path) -> dict[str, np.ndarray]:
    """Read the tree of an old FlaxBert: arrays by their path, joined by slashes."""
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
"""File names of weights, in order of preference; an index lists the shards of a large model."""


def _read_shards(index: Path) -> dict[str, np.ndarray]:
    """Read the shards that an index lists; each must hold exactly the tensors in the index."""
    shard_of = _read_index(index)
    weights: dict[str, np.ndarray] = {}
    for shard in sorted(set(shard_of.values())):
        tensors = read_tensor_file(index.parent / shard)
        wrong = {name for name, listed in shard_of.items() if listed == shard} ^ tensors.keys()
        if wrong:
            does = "holds" if min(wrong) in tensors else "lacks"
            raise CheckpointError(f"{index.parent / shard}: {does} the tensor {min(wrong)}, contrary to {index.name}")
        weights |= tensors
    return weights


def _read_index(index: Path) -> dict[str, str]:
    """The shard of each tensor; shards must be files in the directory of the index."""
    shard_of = read_json(index, CheckpointError).get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise CheckpointError(f"{index}: is not an index of shards: weight_map must name the file of each tensor")
    for name, shard in shard_of.items():
        if not isinstance(shard, str) or Path(shard).suffix != _extension(index) or re.search(r"[/\\\0]", shard):
            raise CheckpointError(
                f"{index}: the shard of {some_of([name])} is {reprlib.repr(shard)}, not a {_extension(index)} file of "
                "this directory"
            )
    return shard_of
