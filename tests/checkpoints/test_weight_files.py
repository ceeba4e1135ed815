"""Every weight format is read as the same tensors under the same names."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers
from flax.serialization import msgpack_serialize
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors.numpy import save_file

from bertjax.checkpoints.weight_files import WEIGHT_FILES, hash_weights, read_weights

pytestmark = pytest.mark.needs_torch

CONFIG = transformers.BertConfig(
    vocab_size=31,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=7,
    max_position_embeddings=11,
    type_vocab_size=5,
)
BUFFER, GAMMA = "bert.embeddings.position_ids", "bert.embeddings.LayerNorm.gamma"
WORDS, QUERY = "bert.embeddings.word_embeddings.weight", "bert.encoder.layer.0.attention.self.query.weight"
DECODER, DECODER_BIAS = "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"
MLM_BIAS = "cls.predictions.bias"
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="session")
def model() -> transformers.BertForPreTraining:
    torch.manual_seed(3)
    model = transformers.BertForPreTraining(CONFIG)
    for parameter in model.parameters():
        parameter.data.normal_()
    return model.eval()


@pytest.fixture(scope="session")
def state(model: transformers.BertForPreTraining) -> dict[str, torch.Tensor]:
    """What PyTorch saves, with the decoder that is tied to the word embeddings and its bias."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@pytest.fixture(scope="session")
def expected(state: dict[str, torch.Tensor]) -> Arrays:
    """The canonical tensors: no decoder bias, and no decoder where a format leaves tied tensors out."""
    return {name: tensor.numpy() for name, tensor in state.items() if name not in (DECODER, DECODER_BIAS)}


def flax_tree(arrays: Arrays) -> dict[str, Any]:
    """The tree of FlaxBertForPreTraining, by its rules written down independently of bertjax."""
    leaves = {}
    for name, array in arrays.items():
        *parts, leaf = name.split(".")
        if leaf == "weight" and parts[-1].endswith("_embeddings"):
            leaf = "embedding"
        elif leaf == "weight" and parts[-1] == "LayerNorm":
            leaf = "scale"
        elif leaf == "weight":
            leaf, array = "kernel", np.ascontiguousarray(array.T)
        leaves[(*parts, leaf)] = array
    return unflatten_dict(leaves)


def write_shards(directory: Path, name: str, write: Callable[[Path, Any], object], parts: list[Any]) -> None:
    """Two shards and their index; `parts` are flat tables of names."""
    stem, extension = name.split(".")
    places: dict[str, str] = {}
    for number, part in enumerate(parts, start=1):
        shard = f"{stem}-{number:05d}-of-00002.{extension}"
        write(directory / shard, part)
        places |= dict.fromkeys(part, shard)
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (directory / f"{name}.index.json").write_text(json.dumps(index))


def write_format(directory: Path, name: str, state: dict[str, torch.Tensor], arrays: Arrays) -> None:
    def halves(table: dict[Any, Any]) -> list[Any]:
        items = list(table.items())
        return [dict(items[:9]), dict(items[9:])]

    def write_flax(path: Path, flat: Any) -> None:
        path.write_bytes(msgpack_serialize(unflatten_dict(flat, sep="/")))

    flat = flatten_dict(flax_tree(arrays), sep="/")
    writers: dict[str, tuple[Callable[[Path, Any], object], Any]] = {
        "model.safetensors": (lambda path, part: save_file(part, path), arrays),
        "pytorch_model.bin": (lambda path, part: torch.save(part, path), state),
        "flax_model.msgpack": (write_flax, flat),
    }
    write, table = writers[name.removesuffix(".index.json")]
    if name.endswith(".index.json"):
        write_shards(directory, name.removesuffix(".index.json"), write, halves(table))
    else:
        write(directory / name, table)


def assert_equal(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("name", WEIGHT_FILES)
def test_every_format_gives_the_same_tensors_and_the_same_hash(
    tmp_path: Path, name: str, state: dict[str, torch.Tensor], expected: Arrays
) -> None:
    write_format(tmp_path, name, state, expected)
    found = read_weights(tmp_path)
    assert hash_weights(found) == hash_weights(expected)
    if ".bin" in name:  # PyTorch's format stores the tied decoder too
        np.testing.assert_array_equal(found.pop(DECODER), expected[WORDS])
    assert_equal(found, expected)


def test_formats_are_tried_in_the_stated_order(
    tmp_path: Path, state: dict[str, torch.Tensor], expected: Arrays
) -> None:
    order = [
        "model.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "flax_model.msgpack",
        "flax_model.msgpack.index.json",
    ]
    for number, name in enumerate(reversed(order)):
        marked = expected | {MLM_BIAS: np.full(31, number, np.float32)}
        write_format(tmp_path, name, {key: torch.tensor(value) for key, value in marked.items()}, marked)
        assert read_weights(tmp_path)[MLM_BIAS][0] == number


def test_files_that_transformers_saves_are_read(
    tmp_path: Path, model: transformers.BertForPreTraining, expected: Arrays
) -> None:
    model.save_pretrained(tmp_path)
    assert_equal(read_weights(tmp_path), expected)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="3KB")
    assert not (tmp_path / "sharded" / "model.safetensors").exists()
    assert_equal(read_weights(tmp_path / "sharded"), expected)


def test_an_archive_of_pytorch_before_1_6_is_read(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert hash_weights(read_weights(tmp_path))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, ml_dtypes.bfloat16])
def test_the_files_dtype_is_kept_by_safetensors_and_msgpack(tmp_path: Path, dtype: Any, expected: Arrays) -> None:
    arrays = {name: array.astype(dtype) for name, array in expected.items()}
    for name in ("model.safetensors", "flax_model.msgpack"):
        directory = tmp_path / name
        directory.mkdir()
        write_format(directory, name, {}, arrays)
        assert_equal(read_weights(directory), arrays)


def test_the_files_dtype_is_kept_by_pytorchs_format(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        torch.save({name: tensor.to(dtype) for name, tensor in state.items()}, tmp_path / "pytorch_model.bin")
        found = read_weights(tmp_path)[QUERY]
        assert found.dtype.name == str(dtype).removeprefix("torch.")
        np.testing.assert_array_equal(found.astype(np.float64), state[QUERY].to(dtype).double().numpy())


def renamed(arrays: Arrays, rename: Callable[[str], str]) -> Arrays:
    return {rename(name): array for name, array in arrays.items()}


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: f"module.{name}",
        lambda name: name.removeprefix("bert."),
        lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"),
    ],
)
def test_other_spellings_become_canonical(tmp_path: Path, rename: Callable[[str], str], expected: Arrays) -> None:
    write_format(tmp_path, "model.safetensors", {}, renamed(expected, rename))
    assert_equal(read_weights(tmp_path), expected)


def test_a_bare_flax_model_is_read(tmp_path: Path, expected: Arrays) -> None:
    encoder = {name: array for name, array in expected.items() if name.startswith("bert.")}
    write_format(tmp_path, "flax_model.msgpack", {}, renamed(encoder, lambda name: name.removeprefix("bert.")))
    assert_equal(read_weights(tmp_path), encoder)


def test_buffers_are_dropped_and_an_untied_decoder_stays(tmp_path: Path, expected: Arrays) -> None:
    decoder = expected[WORDS] + 1
    save_file(expected | {BUFFER: np.arange(11), DECODER: decoder}, tmp_path / "model.safetensors")
    assert_equal(read_weights(tmp_path), expected | {DECODER: decoder})
    assert hash_weights(expected | {DECODER: decoder}) != hash_weights(expected)


def test_the_decoders_bias_is_the_one_that_counts(tmp_path: Path, expected: Arrays) -> None:
    """As in transformers 5, where the other one is then not used."""
    arrays = expected | {DECODER_BIAS: expected[MLM_BIAS] + 1}
    save_file(arrays, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(read_weights(tmp_path)[MLM_BIAS], expected[MLM_BIAS] + 1)
    del arrays[MLM_BIAS]
    save_file(arrays, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(read_weights(tmp_path)[MLM_BIAS], expected[MLM_BIAS] + 1)
