"""Broken weight files are refused in one line, and none runs code."""

import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax.serialization import msgpack_serialize
from safetensors.numpy import save_file

from bertjax.checkpoints.weight_files import WEIGHT_FILES, CheckpointWarning, read_weights
from bertjax.errors import CheckpointError, MissingDependencyError

WORDS, QUERY = "bert.embeddings.word_embeddings.weight", "bert.encoder.layer.0.attention.self.query.weight"
KEY_BIAS = "bert.encoder.layer.0.attention.self.key.bias"
SINGLE_FILES = [name for name in WEIGHT_FILES if not name.endswith(".index.json")]
SECOND_SHARD = "model-00002-of-00002.safetensors"
Arrays = dict[str, np.ndarray]


@pytest.fixture
def arrays() -> Arrays:
    rng = np.random.default_rng(5)
    shapes: dict[str, tuple[int, ...]] = {WORDS: (31, 12), QUERY: (12, 12), KEY_BIAS: (12,)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write(directory: Path, name: str, arrays: Arrays) -> Path:
    path = directory / name
    if name.endswith(".safetensors"):
        save_file(arrays, path)
    elif name.endswith(".bin"):
        import torch

        torch.save({name: torch.tensor(array) for name, array in arrays.items()}, path)
    else:
        attention = {"query": {"kernel": arrays[QUERY].T.copy()}, "key": {"bias": arrays[KEY_BIAS]}}
        encoder = {"layer": {"0": {"attention": {"self": attention}}}}
        embeddings = {"word_embeddings": {"embedding": arrays[WORDS]}}
        path.write_bytes(msgpack_serialize({"bert": {"embeddings": embeddings, "encoder": encoder}}))
    return path


def refusal(directory: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_weights(directory)
    message = str(caught.value)
    assert "\n" not in message
    assert str(directory) in message
    return message


class Attack:
    """An object that makes a directory when it is unpickled unsafely."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.needs_torch
@pytest.mark.parametrize("form", ["zip", "legacy", "plain pickle"])
def test_a_pickle_with_code_is_refused_and_does_not_run(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    path, target = tmp_path / "pytorch_model.bin", tmp_path / "made by the attack"
    if form == "plain pickle":
        path.write_bytes(pickle.dumps({WORDS: Attack(target)}, protocol=2))
    else:
        torch.save({WORDS: Attack(target)}, path, _use_new_zipfile_serialization=form == "zip")
    message = refusal(tmp_path)
    assert not target.exists()
    assert "refused: it would run or build" in message
    assert "mkdir" in message


@pytest.mark.needs_torch
@pytest.mark.parametrize("content", [["a list"], {"epoch": 3}, {"state_dict": {}}, {5: None}])
def test_pytorch_files_without_tensors_are_refused(tmp_path: Path, content: Any) -> None:
    import torch

    torch.save(content, tmp_path / "pytorch_model.bin")
    assert "found a" in refusal(tmp_path)


@pytest.mark.needs_torch
def test_tensors_that_are_not_plain_arrays_are_refused(tmp_path: Path) -> None:
    import torch

    for tensor in (torch.eye(3).to_sparse(), torch.ones(3, dtype=torch.float8_e4m3fn)):
        torch.save({WORDS: tensor}, tmp_path / "pytorch_model.bin")
        assert f"{WORDS} is not a plain array" in refusal(tmp_path)


def test_without_pytorch_its_format_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r"pip install bertjax\[torch\]"):
        read_weights(tmp_path)


def test_missing_weights_list_the_supported_names(tmp_path: Path) -> None:
    message = refusal(tmp_path)
    assert all(name in message for name in WEIGHT_FILES)
    assert "no such directory" in refusal(tmp_path / "nowhere")


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", SINGLE_FILES)
@pytest.mark.parametrize("keep", [0.0, 0.001, 0.03, 0.5, 0.999])
def test_truncated_files_are_refused(tmp_path: Path, name: str, keep: float, arrays: Arrays) -> None:
    path = write(tmp_path, name, arrays)
    assert read_weights(tmp_path).keys() == arrays.keys()
    content = path.read_bytes()
    path.unlink()  # not overwritten in place: arrays may still be views of it
    path.write_bytes(content[: int(keep * len(content))])
    assert "cannot be read (" in refusal(tmp_path)


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", SINGLE_FILES)
def test_a_corrupt_beginning_is_refused(tmp_path: Path, name: str, arrays: Arrays) -> None:
    path = write(tmp_path, name, arrays)
    content = path.read_bytes()
    path.write_bytes(b"\xff" * 40 + content[40:])
    assert "cannot be read (" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("places", "says"),
    [
        ({WORDS: SECOND_SHARD}, f"lacks the tensor {WORDS}"),
        ({QUERY: None}, f"holds the tensor {QUERY}"),
        ({"bert.more": SECOND_SHARD}, "lacks the tensor bert.more"),
        ({WORDS: "model-00003-of-00002.safetensors"}, "No such file"),
        ({WORDS: "../stolen.safetensors"}, "file of this directory"),
        ({WORDS: "sub/stolen.safetensors"}, "file of this directory"),
        ({WORDS: "/etc/passwd"}, "file of this directory"),
        ({WORDS: ".."}, "file of this directory"),
        ({WORDS: 3}, "file of this directory"),
        (None, "weight_map"),
        ({}, "weight_map"),
        ([WORDS], "weight_map"),
    ],
)
def test_an_index_that_does_not_fit_its_shards_is_refused(
    tmp_path: Path, places: Any, says: str, arrays: Arrays
) -> None:
    save_file(arrays, tmp_path / "stolen.safetensors")
    directory = tmp_path / "model"
    directory.mkdir()
    right = {WORDS: "model-00001-of-00002.safetensors", QUERY: SECOND_SHARD, KEY_BIAS: SECOND_SHARD}
    for shard in right.values():
        save_file({name: arrays[name] for name in arrays if right[name] == shard}, directory / shard)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": right}))
    assert read_weights(directory).keys() == arrays.keys()
    if isinstance(places, dict) and places:
        places = {name: place for name, place in (right | places).items() if place is not None}
    index.write_text(json.dumps({"weight_map": places}))
    assert says in refusal(directory)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not valid JSON"),
        (b"[]", "must hold a JSON object, found []"),
        (b"{", "not valid JSON"),
        (b"\xff", "can't decode byte"),
        (b"{}", "not an index of shards"),
        (b'{"weight_map": {"a": "' + b"x" * 300 + b'.safetensors"}}', "check the path"),
        (b'{"weight_map":' * 100_000, "recursion"),
    ],
)
def test_a_broken_index_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(content)
    assert says in refusal(tmp_path)


@pytest.mark.parametrize(
    ("rename", "found"),
    [
        (lambda name: name.replace("bert.", "roberta."), "roberta."),
        (lambda name: name.replace("bert.", "distilbert."), "distilbert."),
        (lambda name: name.replace("bert.", "module.auto_model."), "auto_model."),
        (lambda name: name.replace("bert.encoder.layer", "transformer.layer"), "transformer."),
        (lambda name: name.replace("bert.encoder.layer", "encoder.albert_layer_groups"), "encoder."),
    ],
)
def test_another_familys_weights_are_refused_by_their_prefix(
    tmp_path: Path, rename: Callable[[str], str], found: str, arrays: Arrays
) -> None:
    save_file({rename(name): array for name, array in arrays.items()}, tmp_path / "model.safetensors")
    message = refusal(tmp_path)
    assert "not weights of BERT" in message
    assert found in message


def test_two_tensors_with_one_canonical_name_are_refused(tmp_path: Path, arrays: Arrays) -> None:
    save_file(arrays | {WORDS.removeprefix("bert."): arrays[WORDS]}, tmp_path / "model.safetensors")
    assert f"both mean {WORDS}" in refusal(tmp_path)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.bool_, np.complex64])
def test_weights_that_are_not_floats_are_refused_by_name(tmp_path: Path, dtype: Any, arrays: Arrays) -> None:
    save_file(arrays | {QUERY: arrays[QUERY].astype(dtype)}, tmp_path / "model.safetensors")
    assert f"{QUERY} is of dtype {np.dtype(dtype).name}" in refusal(tmp_path)


@pytest.mark.parametrize("tree", [{"bert": 3}, {"bert": [1.0]}, {1: np.ones(3)}, [np.ones(3)], "text"])
def test_msgpack_without_a_tree_of_arrays_is_refused(tmp_path: Path, tree: Any) -> None:
    (tmp_path / "flax_model.msgpack").write_bytes(msgpack_serialize(tree))
    assert refusal(tmp_path)


def test_the_first_flax_layout_is_refused(tmp_path: Path) -> None:
    kernel = np.ones((12, 3, 4), np.float32)
    tree = {"encoder": {"layer": {"0": {"attention": {"self": {"query": {"kernel": kernel}}}}}}}
    (tmp_path / "flax_model.msgpack").write_bytes(msgpack_serialize(tree))
    assert "must be a matrix, found shape (12, 3, 4)" in refusal(tmp_path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_cause_a_warning_by_name(tmp_path: Path, value: float, arrays: Arrays) -> None:
    arrays[QUERY][2, 3] = value
    save_file({name: array.astype(np.float16) for name, array in arrays.items()}, tmp_path / "model.safetensors")
    with pytest.warns(CheckpointWarning, match=QUERY) as caught:
        read_weights(tmp_path)
    assert WORDS not in str(caught[0].message)
