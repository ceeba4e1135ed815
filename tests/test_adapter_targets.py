"""An adapter's settings must name the modules that its tensors change: bertjax merges as peft does, or refuses."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bertjax.checkpoints.adapters import merge_adapter
from bertjax.checkpoints.families import FAMILIES
from bertjax.errors import BertjaxError, ConfigError
from tests.adapter_factories import AdapterCase, edit_json, make_adapter_case, make_torch_model, to_numpy

pytestmark = pytest.mark.needs_torch

# What adapter_config.json says instead of the settings that the adapter was trained with: queries and values.
FOLLOWED: dict[str, dict[str, Any]] = {
    "the same": {},
    "a longer end of the name": {"target_modules": ["self.query", "self.value"]},
    "an expression": {"target_modules": r".*\.(query|value)"},
    "an expression in full": {"target_modules": r"bert\.encoder\.layer\.[01]\.attention\.self\.(query|value)"},
    "null: the type's own": {"target_modules": None},
    "an exclusion of others": {"exclude_modules": ["key", "dense"]},
    "both layers": {"layers_to_transform": [0, 1]},
    "layers by their pattern": {"layers_to_transform": [0, 1], "layers_pattern": "layer"},
    "layers by one of two patterns": {"layers_to_transform": [0, 1], "layers_pattern": ["blocks", "layer"]},
    "no layers": {"layers_to_transform": []},
}
REFUSED: dict[str, dict[str, Any]] = {
    "one layer": {"layers_to_transform": [0]},
    "one layer, a number": {"layers_to_transform": 1},
    "another module": {"target_modules": ["key"]},
    "one of the modules": {"target_modules": ["query"]},
    "one more module": {"target_modules": ["query", "key", "value"]},
    "part of a name": {"target_modules": ["uery", "value"]},
    "no module": {"target_modules": []},
    "an exclusion": {"exclude_modules": ["query"]},
    "an exclusion by expression": {"exclude_modules": r".*\.1\..*"},
    "an expression that fits a part": {"target_modules": "query|value"},
    "no expression": {"target_modules": "*.query"},
    "no expression to exclude": {"exclude_modules": "(query"},
    "no expression of layers": {"layers_to_transform": [0, 1], "layers_pattern": "(layer"},
    "another pattern of layers": {"layers_to_transform": [0, 1], "layers_pattern": "blocks"},
    "a pattern without layers": {"layers_pattern": "layer"},
    "an expression with layers": {"target_modules": r".*\.(query|value)", "layers_to_transform": [0, 1]},
    "a rank of its own": {"rank_pattern": {"query": 5}},
    "a saved module that is not there": {"modules_to_save": ["pooler"]},
    "a saved module around": {"modules_to_save": ["attention"]},
    "layers as texts": {"layers_to_transform": ["0"]},
    "a table of targets": {"target_modules": {"query": 1}},
    "every linear map": {"target_modules": "all-linear"},
}


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> AdapterCase:
    return make_adapter_case(tmp_path_factory.mktemp("targets"), target_modules=["query", "value"])


def merged_by_peft(case: AdapterCase) -> dict[str, np.ndarray] | None:
    """peft's merged weights; None where it refuses."""
    import peft
    import transformers

    base = transformers.BertForSequenceClassification.from_pretrained(case.base)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            merged = peft.PeftModel.from_pretrained(base, case.adapter).merge_and_unload()
    except Exception:
        return None
    return {name: to_numpy(tensor) for name, tensor in merged.state_dict().items()}


def edited(case: AdapterCase, tmp_path: Path, edit: dict[str, Any]) -> AdapterCase:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (adapter / name).write_bytes((case.adapter / name).read_bytes())
    edit_json(adapter / "adapter_config.json", **edit)
    return AdapterCase(case.base, adapter, case.expected)


@pytest.mark.parametrize("edit", FOLLOWED.values(), ids=FOLLOWED.keys())
def test_settings_that_name_the_changed_modules(case: AdapterCase, tmp_path: Path, edit: dict[str, Any]) -> None:
    other = edited(case, tmp_path, edit)
    expected, found = merged_by_peft(other), merge_adapter(case.weights, other.adapter)
    assert expected is not None
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("edit", REFUSED.values(), ids=REFUSED.keys())
def test_settings_that_do_not_are_refused_in_one_line(case: AdapterCase, tmp_path: Path, edit: dict[str, Any]) -> None:
    other = edited(case, tmp_path, edit)
    with pytest.raises(BertjaxError) as refused:
        merge_adapter(case.weights, other.adapter)
    assert str(other.adapter) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("edit", [REFUSED["one layer"], REFUSED["another module"], REFUSED["an exclusion"]])
def test_peft_would_have_merged_something_else(case: AdapterCase, tmp_path: Path, edit: dict[str, Any]) -> None:
    """So that merging all tensors, whatever the settings say, is a wrong model."""
    expected = merged_by_peft(edited(case, tmp_path, edit))
    assert expected is not None
    assert any(np.abs(expected[name] - array).max() > 0.1 for name, array in case.expected.items())


def test_modules_are_not_guessed_where_peft_does_not(tmp_path: Path) -> None:
    case = make_adapter_case(tmp_path, make_torch_model("MPNetForSequenceClassification"), target_modules=["q", "v"])
    edit_json(case.adapter / "adapter_config.json", target_modules=None)
    with pytest.raises(BertjaxError, match="its settings"):
        merge_adapter(case.weights, case.adapter, FAMILIES["mpnet"])


def test_a_bias_that_the_settings_do_not_save_is_refused(case: AdapterCase, tmp_path: Path) -> None:
    other, name = edited(case, tmp_path, {}), "bert.encoder.layer.0.output.dense.bias"
    path = other.adapter / "adapter_model.safetensors"
    save_file(load_file(path) | {f"base_model.model.{name}": np.ones(12, np.float32)}, path)
    with pytest.raises(BertjaxError, match=f"replaces {name}, which is not in modules_to_save, and bias is 'none'"):
        merge_adapter(case.weights, other.adapter)
    edit_json(other.adapter / "adapter_config.json", bias="all")
    expected = merged_by_peft(other)
    assert expected is not None
    np.testing.assert_array_equal(merge_adapter(case.weights, other.adapter)[name], expected[name])


def test_an_expression_that_is_none_is_named(case: AdapterCase, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"target_modules: .*\*\.query.* is no regular expression"):
        merge_adapter(case.weights, edited(case, tmp_path, REFUSED["no expression"]).adapter)
