"""Claims about an adapter's files, made by hand: names, heads, and refusals by name of what is not plain LoRA."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bertjax.checkpoints.adapter_config import holds_adapter
from bertjax.checkpoints.adapters import merge_adapter
from bertjax.checkpoints.weight_files import CheckpointWarning
from bertjax.errors import BertjaxError, CheckpointError, ConfigError

Arrays = dict[str, np.ndarray]
WORDS, QUERY = "bert.embeddings.word_embeddings.weight", "bert.encoder.layer.0.attention.self.query"
RANK, SIZE, ROWS = 2, 5, 7
PREFIX = "base_model.model."


def small_weights() -> Arrays:
    rng = np.random.default_rng(3)
    shapes = {
        WORDS: (ROWS, SIZE),
        f"{QUERY}.weight": (SIZE, SIZE),
        f"{QUERY}.bias": (SIZE,),
        "bert.encoder.layer.0.output.LayerNorm.bias": (SIZE,),
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@cache
def factors(module: str = QUERY) -> Arrays:
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=(RANK, SIZE)).astype(np.float32), rng.normal(size=(SIZE, RANK)).astype(np.float32)
    return {f"{PREFIX}{module}.lora_A.weight": a, f"{PREFIX}{module}.lora_B.weight": b}


def shaped(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


def write_adapter(directory: Path, tensors: Arrays | None = None, **config: Any) -> Path:
    directory.mkdir(exist_ok=True)
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": 6, "task_type": "SEQ_CLS"}
    settings |= {"target_modules": ["query", "key", "pooler.dense", "word_embeddings"]} | config
    (directory / "adapter_config.json").write_text(json.dumps(settings))
    save_file(factors() if tensors is None else tensors, directory / "adapter_model.safetensors")
    return directory


def refusal(directory: Path, *, weights: Arrays | None = None, error: type[BertjaxError] = CheckpointError) -> str:
    with pytest.raises(error) as caught:
        merge_adapter(small_weights() if weights is None else weights, directory)
    assert "\n" not in str(caught.value)
    assert str(directory) in str(caught.value)
    return str(caught.value)


def test_the_update_is_the_scaled_product(tmp_path: Path) -> None:
    a, b = factors().values()
    weights = small_weights()
    merged = merge_adapter(weights, write_adapter(tmp_path))
    np.testing.assert_allclose(merged[f"{QUERY}.weight"], weights[f"{QUERY}.weight"] + 3 * b @ a, rtol=2e-6)
    assert [name for name in weights if merged[name] is not weights[name]] == [f"{QUERY}.weight"]


def renamed(tensors: Arrays, old: str, new: str) -> Arrays:
    return {name.replace(old, new): array for name, array in tensors.items()}


SPELLINGS: dict[str, tuple[Callable[[Arrays], Arrays], Callable[[Arrays], Arrays]]] = {
    "an adapter of the bare encoder": (lambda base: base, lambda own: renamed(own, "model.bert.", "model.")),
    "a bare base": (lambda base: renamed(base, "bert.", ""), lambda own: own),
    "both bare": (lambda base: renamed(base, "bert.", ""), lambda own: renamed(own, "model.bert.", "model.")),
    "sentence-transformers": (
        lambda base: renamed(base, "bert.", ""),
        lambda own: renamed(own, "model.bert.", "model.0.auto_model."),
    ),
    "DataParallel": (lambda base: {f"module.{name}": array for name, array in base.items()}, lambda own: own),
    "DataParallel of a bare encoder": (
        lambda base: {f"module.{name.removeprefix('bert.')}": array for name, array in base.items()},
        lambda own: own,
    ),
    "gamma and beta": (lambda base: renamed(base, "Norm.bias", "Norm.beta"), lambda own: own),
    "an adapter's name": (lambda base: base, lambda own: renamed(own, ".weight", ".default.weight")),
    "no prefix of peft's": (lambda base: base, lambda own: renamed(own, PREFIX, "")),
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_names_are_found_however_base_and_adapter_spell_them(tmp_path: Path, spelling: Any) -> None:
    norm = "bert.encoder.layer.0.output.LayerNorm.bias"
    own = factors() | {f"{PREFIX}{QUERY}.base_layer.bias": np.full(SIZE, 4.0, np.float32)}
    own |= {f"{PREFIX}{norm}": np.full(SIZE, 8.0, np.float32)}
    expected = merge_adapter(small_weights(), write_adapter(tmp_path / "plain", own, bias="all"))
    assert (expected[norm] == 8).all()
    assert (expected[f"{QUERY}.bias"] == 4).all()
    spell_base, spell_adapter = spelling
    adapter = write_adapter(tmp_path / "other", spell_adapter(own), bias="all")
    found = merge_adapter(spell_base(small_weights()), adapter)
    assert found.keys() == spell_base(small_weights()).keys()
    for name, array in spell_base(expected).items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_a_head_is_found_whatever_prefix_the_encoder_has(tmp_path: Path) -> None:
    head = {"classifier.weight": np.ones((3, SIZE), np.float32)}
    adapter = write_adapter(tmp_path, factors() | {PREFIX + name: array for name, array in head.items()})
    weights = small_weights() | {"classifier.weight": np.zeros((3, SIZE), np.float32)}
    expected = merge_adapter(weights, adapter)
    for old, new in (("bert.", ""), ("bert.", "encoder."), ("bert.", "module.")):
        if new == "encoder.":  # a bare encoder's adapter, but with a head
            adapter = write_adapter(tmp_path, renamed(load_file(tmp_path / "adapter_model.safetensors"), "bert.", ""))
        merged = merge_adapter(renamed(weights, old, new), adapter)
        assert merged.keys() == renamed(weights, old, new).keys()
        for name, array in renamed(expected, old, new).items():
            np.testing.assert_array_equal(merged[name], array, err_msg=f"{new}{name}")


def test_one_prefix_holds_for_all(tmp_path: Path) -> None:
    """Of two that fit some name, the one that fits most: a module of the same name elsewhere is another module."""
    key = QUERY.replace("query", "key")
    weights = small_weights() | {f"{key}.weight": shaped(SIZE, SIZE), f"other.{QUERY}.weight": shaped(SIZE, SIZE)}
    merged = merge_adapter(weights, write_adapter(tmp_path, factors() | factors(key)))
    assert [name for name in weights if merged[name] is not weights[name]] == [f"{QUERY}.weight", f"{key}.weight"]
    bare = renamed(factors() | factors(key), "bert.", "")
    weights = small_weights() | {f"{key}.weight": shaped(SIZE, SIZE), f"{QUERY[5:]}.weight": shaped(SIZE, SIZE)}
    merged = merge_adapter(weights, write_adapter(tmp_path, bare))
    assert [name for name in weights if merged[name] is not weights[name]] == [f"{QUERY}.weight", f"{key}.weight"]


def test_adapter_heads_are_added_or_replace_those_of_the_base(tmp_path: Path) -> None:
    head = {"classifier.weight": np.ones((3, SIZE), np.float32), "classifier.bias": np.ones(3, np.float32)}
    head["pre_classifier.weight"] = np.ones((SIZE, SIZE), np.float32)  # peft compares the ends of names
    adapter = write_adapter(tmp_path, factors() | {PREFIX + name: array for name, array in head.items()})
    other = {"classifier.weight": np.zeros((2, SIZE), np.float32), "classifier.bias": np.zeros(2, np.float32)}
    for weights in (small_weights(), small_weights() | other):
        merged = merge_adapter(weights, adapter)
        for name, array in head.items():
            np.testing.assert_array_equal(merged[name], array)


def test_the_bases_precision_is_kept(tmp_path: Path) -> None:
    own = factors() | {f"{PREFIX}{QUERY}.bias": shaped(SIZE)}
    weights = {name: array.astype(np.float16) for name, array in small_weights().items()}
    merged = merge_adapter(weights, write_adapter(tmp_path, own, bias="lora_only"))
    assert {array.dtype.name for array in merged.values()} == {"float16"}
    assert (merged[f"{QUERY}.bias"] == 1).all()


@pytest.mark.parametrize("name", ["classifier.modules_to_save.bias", "classifier.modules_to_save.default.bias"])
def test_copies_of_a_head_saved_by_peft_are_ignored(tmp_path: Path, name: str) -> None:
    bias = np.ones(3, np.float32)
    copies = {PREFIX + name: bias, f"{PREFIX}classifier.original_module.bias": bias * 0}
    for tensors in (copies, copies | {f"{PREFIX}classifier.bias": bias, PREFIX + name: bias * 5}):
        merged = merge_adapter(small_weights(), write_adapter(tmp_path, factors() | tensors))
        assert merged.keys() - small_weights().keys() == {"classifier.bias"}
        np.testing.assert_array_equal(merged["classifier.bias"], bias)


@pytest.mark.needs_torch
def test_pytorchs_format_is_read_too(tmp_path: Path) -> None:
    import torch

    expected = merge_adapter(small_weights(), write_adapter(tmp_path))
    (tmp_path / "adapter_model.safetensors").unlink()
    torch.save({name: torch.tensor(array) for name, array in factors().items()}, tmp_path / "adapter_model.bin")
    found = merge_adapter(small_weights(), tmp_path)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


REFUSED = {
    "use_dora": True,
    "use_qalora": True,
    "use_bdlora": {"nblocks": 2},
    "layer_replication": [[0, 1], [0, 2]],
    "megatron_config": {"hidden": 3},
    "trainable_token_indices": [1, 2],
    "target_parameters": ["experts"],
    "alora_invocation_tokens": [5],
    "velora_config": {"scale": 1.0},
    "monteclora_config": {"num_samples": 8},
    "arrow_config": {"top_k": 3},
    "kasa_config": {"beta": 1e-4},
    "enable_lora": [True, False, True],
    "bias": "some",
}


@pytest.mark.parametrize("key", REFUSED)
def test_unsupported_lora_settings_are_refused_with_their_value(tmp_path: Path, key: str) -> None:
    message = refusal(write_adapter(tmp_path, **{key: REFUSED[key]}), error=ConfigError)
    assert f"{key} is {json.dumps(REFUSED[key])}; bertjax supports only" in message


@pytest.mark.parametrize("value", ["pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga"])
def test_an_initialisation_that_changes_the_base_is_refused(tmp_path: Path, value: str) -> None:
    message = refusal(write_adapter(tmp_path, init_lora_weights=value), error=ConfigError)
    assert f'init_lora_weights is "{value}"' in message
    assert "merge_and_unload" in message


WRONG: dict[str, dict[str, Any]] = {
    "peft_type is null": {"peft_type": None},
    "does not know the key 'new_switch'": {"new_switch": 3},
    "r must be a positive integer, found 0": {"r": 0},
    "r must be a positive integer, found true": {"r": True},
    "lora_alpha must be a number, found null": {"lora_alpha": None},
    "use_rslora must be true or false, found 1": {"use_rslora": 1},
    "rank_pattern of 'query' must be a positive integer": {"rank_pattern": {"query": 2.5}},
    "alpha_pattern of 'query' must be a number": {"alpha_pattern": {"query": "8"}},
    "alpha_pattern: '(query' is no regular expression": {"alpha_pattern": {"(query": 8}},
    "rank_pattern must be a table": {"rank_pattern": ["query"]},
    "modules_to_save must be a list": {"modules_to_save": "classifier"},
    "task_type must be a text": {"task_type": 3},
    "revision must be a text": {"revision": 3},
    "auto_mapping must be a table": {"auto_mapping": ["BertModel"]},
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_or_unknown_setting_is_refused_by_name(tmp_path: Path, words: str) -> None:
    assert words in refusal(write_adapter(tmp_path, **WRONG[words]), error=ConfigError)


A, B = factors()
MISFITS: dict[str, Arrays] = {
    f"has no tensor {QUERY}.lora_B": {A: shaped(RANK, SIZE)},
    f"has no tensor {QUERY}.lora_A": {B: shaped(SIZE, RANK)},
    "do not fit rank 2 and the base's weight (5, 5)": {A: shaped(3, SIZE), B: shaped(SIZE, 3)},
    "have shapes (2, 4) and (5, 2), which do not fit": {A: shaped(RANK, 4), B: shaped(SIZE, RANK)},
    "the base has no tensor bert.pooler.dense.weight": factors() | factors("bert.pooler.dense"),
    "bert.pooler.dense.weight is neither in the base nor": factors()
    | {f"{PREFIX}bert.pooler.dense.weight": shaped(5, 5)},
    f"{QUERY}.bias has shape (4,), but the base's has (5,)": factors() | {f"{PREFIX}{QUERY}.bias": shaped(4)},
    "lora_magnitude_vector is not plain LoRA's": factors() | {f"{PREFIX}{QUERY}.lora_magnitude_vector": shaped(SIZE)},
    "lora_E is not plain LoRA's": factors() | {f"{PREFIX}{QUERY}.lora_E": shaped(RANK, 1)},
    "token_adapter.trainable_tokens_delta is neither": factors()
    | {f"{PREFIX}bert.embeddings.word_embeddings.token_adapter.trainable_tokens_delta": shaped(1, SIZE)},
    "lora_A.bias does not fit": factors() | {A.replace("weight", "bias"): shaped(RANK)},
    "lora_B has a bias of shape (4,), but the base has one of shape (5,)": factors()
    | {B.replace("weight", "bias"): shaped(4)},
    "several adapters (a, b)": {
        A.replace(".weight", ".a.weight"): shaped(RANK, SIZE),
        B.replace(".weight", ".b.weight"): shaped(SIZE, RANK),
    },
    "does not fit the other factors": factors() | {f"{PREFIX}{QUERY}.lora_embedding_A": shaped(RANK, SIZE)},
    "lora_embedding_B does not fit the other factors": {
        A: shaped(RANK, SIZE),
        f"{PREFIX}{QUERY}.lora_embedding_B": shaped(SIZE, RANK),
    },
    "holds no tensor of LoRA": {f"{PREFIX}classifier.bias": shaped(3)},
    f"two tensors both mean {QUERY}.bias": factors()
    | {f"{PREFIX}{QUERY}.bias": shaped(SIZE), f"{PREFIX}{QUERY}.base_layer.bias": shaped(SIZE)},
    "is of dtype int64": factors() | {A: shaped(RANK, SIZE, dtype=np.int64)},
}


@pytest.mark.parametrize("words", MISFITS)
def test_a_tensor_that_fits_nothing_is_refused_by_name(tmp_path: Path, words: str) -> None:
    assert words in refusal(write_adapter(tmp_path, MISFITS[words]))


def test_a_head_that_is_promised_and_not_there_is_refused(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path, modules_to_save=["classifier", "score"])
    assert "holds none of modules_to_save (classifier, score); copy the adapter again" in refusal(adapter)


def test_another_familys_adapter_is_refused(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path, renamed(factors(), "bert.", "roberta."))
    assert "the base has no tensor roberta.encoder.layer.0.attention.self.query.weight" in refusal(adapter)


def test_a_weight_that_is_no_matrix_is_refused(tmp_path: Path) -> None:
    message = refusal(write_adapter(tmp_path), weights=small_weights() | {f"{QUERY}.weight": shaped(SIZE, SIZE, 3)})
    assert "the base's weight (5, 5, 3)" in message


def test_damaged_and_missing_files_are_refused(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path)
    path = adapter / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    assert "damaged" in refusal(adapter)
    path.unlink()
    assert "looked for adapter_model.safetensors, adapter_model.bin" in refusal(adapter)
    (adapter / "adapter_config.json").write_text("[1]")
    assert "must hold a JSON object" in refusal(adapter, error=ConfigError)
    (adapter / "adapter_config.json").unlink()
    assert "no such file" in refusal(adapter, error=ConfigError)
    assert not holds_adapter(adapter)
    path.touch()
    with pytest.raises(CheckpointError, match=r"has adapter_model\.safetensors, but no adapter_config"):
        holds_adapter(adapter)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    (write_adapter(tmp_path) / "adapter_model.safetensors").unlink()
    (tmp_path / "adapter_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    assert "refused: it asks to run or build os.system" in refusal(tmp_path)


@pytest.mark.parametrize(("alpha", "filled"), [(6, np.nan), (1e300, 1.0)])
def test_weights_that_are_not_finite_are_named(tmp_path: Path, alpha: float, filled: float) -> None:
    adapter = write_adapter(tmp_path, {A: np.full((RANK, SIZE), filled, np.float32), B: factors()[B]}, lora_alpha=alpha)
    with pytest.warns(CheckpointWarning, match=rf"NaN or infinity in {QUERY}.weight; outputs will not be finite"):
        merge_adapter(small_weights(), adapter)
