"""Claims about merging LoRA adapters: every family, setting and precision as peft merges it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from bertjax.checkpoints.adapter_config import AdapterConfig
from bertjax.checkpoints.adapters import merge_adapter, read_merged_config, read_merged_weights
from bertjax.checkpoints.config import BertConfig
from bertjax.checkpoints.families import FAMILIES as FAMILIES_BY_TYPE
from bertjax.checkpoints.tensor_names import canonical_weights
from bertjax.checkpoints.weight_files import CheckpointWarning, read_weights
from bertjax.errors import ConfigError
from tests.adapter_factories import (
    CLASSES,
    FAMILIES,
    AdapterCase,
    Arrays,
    edit_json,
    make_adapter_case,
    make_torch_model,
    randomised,
)

pytestmark = pytest.mark.needs_torch

WORDS, DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
QUERY = "bert.encoder.layer.0.attention.self.query"


def assert_merged(case: AdapterCase, weights: Arrays | None = None, tied: dict[str, str] | None = None) -> Arrays:
    """Our merge equals peft's; `tied` names what a PyTorch model has twice and its file once."""
    weights = case.weights if weights is None else weights
    before = {name: array.copy() for name, array in weights.items()}
    merged = merge_adapter(weights, case.adapter)
    assert merged.keys() | (tied or {}).keys() == case.expected.keys()
    for name, array in case.expected.items():
        found = merged[name if name in merged else (tied or {})[name]]
        np.testing.assert_allclose(found.astype(array.dtype), array, rtol=0, atol=1e-6, err_msg=name)
    for name, array in before.items():
        np.testing.assert_array_equal(weights[name], array, err_msg=f"{name} was changed in place")
        assert merged[name].dtype == array.dtype, name
    assert any(not np.allclose(merged[name], array) for name, array in before.items()), "nothing was merged"
    return merged


@pytest.mark.parametrize("family", FAMILIES)
def test_every_familys_adapter_is_merged_as_peft_does(tmp_path: Path, family: str) -> None:
    # peft cannot load what it saves of all of DistilBERT's: its `pre_classifier` would be changed and saved whole.
    targets = ["q_lin", "out_lin", "lin1"] if family == "DistilBert" else "all-linear"
    case = make_adapter_case(tmp_path, family + CLASSES, target_modules=targets, task_type="SEQ_CLS", bias="all")
    assert_merged(case)


@pytest.mark.parametrize("head", [CLASSES, "ForMaskedLM"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapters_directory_is_read_as_its_base_merged(tmp_path: Path, family: str, head: str) -> None:
    targets = {"DistilBert": ["q_lin", "lin1"], "Albert": ["query", "ffn"], "ModernBert": ["Wqkv", "Wi"]}
    chosen = targets.get(family, ["query", "intermediate.dense"])
    case = make_adapter_case(
        tmp_path, family + head, target_modules=chosen, bias="all" if head == "ForMaskedLM" else "none"
    )
    edit_json(case.adapter / "adapter_config.json", base_model_name_or_path="../base")
    described = FAMILIES_BY_TYPE[json.loads((case.base / "config.json").read_text())["model_type"]]
    found, expected = read_merged_weights(case.adapter, described), canonical_weights(case.expected, described)
    assert found.keys() == expected.keys() - {entry.decoder for entry in described.heads.values()}  # tied
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-6, err_msg=name)
    plain = read_weights(case.base, described)
    for name, array in read_merged_weights(case.base, described).items():
        np.testing.assert_array_equal(array, plain[name])


TASKS = {
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
    "FEATURE_EXTRACTION": "Model",
}


ALWAYS = [("Bert", "SEQ_CLS"), ("Bert", "QUESTION_ANS"), ("Bert", None), ("Roberta", "TOKEN_CLS")]


@pytest.mark.parametrize(
    ("family", "task"),
    [
        case if case in ALWAYS else pytest.param(*case, marks=pytest.mark.slow)
        for case in [(family, task) for family in ("Bert", "Roberta") for task in (*TASKS, None)]
    ],
)
def test_the_configuration_is_the_bases_for_the_adapters_task(tmp_path: Path, family: str, task: str | None) -> None:
    """As a rule a base is a masked LM with two labels that mean nothing."""
    name = family + TASKS.get(task or "", "ForMaskedLM")
    model = make_torch_model(name, num_labels=4)
    case = make_adapter_case(tmp_path, model, target_modules=["query"], task_type=task)
    adapter, base = case.adapter / "adapter_config.json", case.base / "config.json"
    plain = BertConfig.from_directory(case.base)
    edit_json(
        base, architectures=[f"{family}ForMultipleChoice"], id2label={"0": "LABEL_0", "1": "LABEL_1"}, label2id=None
    )
    edit_json(adapter, base_model_name_or_path="../base")
    config = read_merged_config(case.adapter)
    labels = 4 if task in ("SEQ_CLS", "TOKEN_CLS") else 2
    assert (config.architectures, config.num_labels) == ((name,), labels)
    assert dataclasses.replace(config, id2label=plain.id2label) == plain
    assert read_merged_config(case.base) == BertConfig.from_directory(case.base)
    edit_json(base, id2label={str(number): f"name {number}" for number in range(labels)})
    assert read_merged_config(case.adapter).id2label[1] == "name 1"
    again = read_merged_config(case.adapter)
    (case.base / "adapter_config.json").write_text(adapter.read_text().replace("../base", "."))
    (case.base / "adapter_model.safetensors").write_bytes((case.adapter / "adapter_model.safetensors").read_bytes())
    assert read_merged_config(case.base) == again
    (case.base / "adapter_config.json").unlink()
    (case.base / "adapter_model.safetensors").unlink()
    (case.adapter / "config.json").write_text(base.read_text())  # the adapter's own, as it is
    assert read_merged_config(case.adapter) == BertConfig.from_directory(case.base)


SETTINGS: dict[str, dict[str, Any]] = {
    "queries and values": {},
    "every linear map": {"target_modules": "all-linear"},
    "alpha / sqrt(r)": {"use_rslora": True, "r": 5},
    "a fraction as alpha": {"lora_alpha": 0.75},
    "ranks by pattern": {"rank_pattern": {"query": 4, r"layer\.1.*value": 5}, "lora_alpha": 7},
    "ranks and alphas by pattern": {
        "rank_pattern": {"bert.encoder.layer.0.attention.self.value": 4},
        "alpha_pattern": {"value": 11, r"layer\.0\.attention\.self\.query": 0.5},
        "use_rslora": True,
    },
    "the first of two patterns": {"edit": {"alpha_pattern": {"query": 9, "1.attention.self.query": 30}}},
    "a pattern for a part of a name": {"alpha_pattern": {"uery": 30, "self": 30}},
    "stored transposed": {"edit": {"fan_in_fan_out": True}},
    "all biases": {"bias": "all"},
    "biases of what is changed": {"bias": "lora_only"},
    "biases of updates": {"lora_bias": True, "use_rslora": True},
    "the classifier": {"modules_to_save": ["classifier"]},
    "the pooler, and a task's head": {"modules_to_save": ["pooler"], "task_type": "SEQ_CLS"},
    "a head and all biases": {"task_type": "SEQ_CLS", "bias": "all"},
    "some layers": {"layers_to_transform": [1]},
    "tables of embeddings": {"target_modules": ["query", "word_embeddings", "position_embeddings"]},
    "an initialisation that leaves the base": {"init_lora_weights": "orthogonal"},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_every_setting_is_followed_as_peft_does(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert_merged(make_adapter_case(tmp_path, **{"target_modules": ["query", "value"]} | settings))


def test_fan_in_fan_out_does_not_change_the_merge(tmp_path: Path) -> None:
    """peft itself sets `fan_in_fan_out` to false for nn.Linear, and an encoder has no other linear maps."""
    case = make_adapter_case(tmp_path, target_modules=["query", "intermediate.dense"])
    plain = merge_adapter(case.weights, case.adapter)
    edit_json(case.adapter / "adapter_config.json", fan_in_fan_out=True)
    for name, array in merge_adapter(case.weights, case.adapter).items():
        np.testing.assert_array_equal(array, plain[name])


@pytest.mark.parametrize("settings", [{}, {"bias": "all"}, {"modules_to_save": ["transform"]}])
def test_a_decoder_tied_to_the_embeddings_stays_tied(tmp_path: Path, settings: dict[str, Any]) -> None:
    case = make_adapter_case(tmp_path, "BertForMaskedLM", target_modules=["query", "word_embeddings"], **settings)
    np.testing.assert_array_equal(case.expected[DECODER], case.expected[WORDS])
    bias = {"cls.predictions.decoder.bias": "cls.predictions.bias"}
    assert_merged(case, tied={DECODER: WORDS} | bias)
    assert_merged(case, case.weights | {DECODER: case.weights[WORDS]}, tied=bias)


def test_a_decoder_of_its_own_is_not_changed_with_the_embeddings(tmp_path: Path) -> None:
    case = make_adapter_case(tmp_path, "BertForMaskedLM", target_modules=["query", "word_embeddings"])
    own = case.weights[WORDS] + 1
    np.testing.assert_array_equal(merge_adapter(case.weights | {DECODER: own}, case.adapter)[DECODER], own)


def test_replaced_embeddings_warn_about_the_tied_decoder(tmp_path: Path) -> None:
    case = make_adapter_case(tmp_path, "BertForMaskedLM", target_modules=["query"], modules_to_save=["word_embeddings"])
    with pytest.warns(CheckpointWarning, match="replaces bert.embeddings.word_embeddings.weight: a decoder"):
        merged = merge_adapter(case.weights, case.adapter)
    np.testing.assert_array_equal(merged[WORDS], case.expected[WORDS])
    assert not np.array_equal(merged[WORDS], case.expected[DECODER])
    edit_json(case.adapter / "adapter_config.json", task_type="TOKEN_CLS")  # which has no decoder
    merge_adapter(case.weights, case.adapter)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float64"])
def test_weights_of_every_precision_are_rounded_as_peft_does(tmp_path: Path, name: str) -> None:
    import torch

    model = make_torch_model(f"Bert{CLASSES}").to(getattr(torch, name))
    case = make_adapter_case(
        tmp_path, model, target_modules=["query", "word_embeddings"], task_type="SEQ_CLS", bias="all"
    )
    merged = merge_adapter(case.weights, case.adapter)
    for key, array in case.expected.items():
        assert merged[key].dtype.name == name
        tolerance = 1e-14 if name == "float64" else 1e-6
        np.testing.assert_allclose(merged[key].astype(array.dtype), array, rtol=0, atol=tolerance, err_msg=key)


def test_an_adapter_that_transformers_saved_is_merged(tmp_path: Path) -> None:
    import peft

    model = make_torch_model(f"Bert{CLASSES}")
    model.save_pretrained(tmp_path / "base")
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["key"], modules_to_save=["classifier"]), "mine")
    randomised(model, lambda parameter: parameter.requires_grad).save_pretrained(tmp_path / "adapter")
    a, b = (model.get_parameter(f"{QUERY[:-5]}key.lora_{factor}.mine.weight").detach().numpy() for factor in "AB")
    weights = load_file(tmp_path / "base" / "model.safetensors")
    merged, key = merge_adapter(weights, tmp_path / "adapter"), f"{QUERY[:-5]}key.weight"
    np.testing.assert_allclose(merged[key], weights[key] + 4 * b @ a, rtol=0, atol=1e-6)
    classifier = model.get_parameter("classifier.modules_to_save.mine.weight").detach().numpy()
    np.testing.assert_array_equal(merged["classifier.weight"], classifier)


def test_every_key_of_pefts_configuration_is_known(tmp_path: Path) -> None:
    import peft

    settings = peft.LoraConfig(target_modules=["query"]).to_dict()
    written = json.loads(json.dumps(settings, default=list))
    assert AdapterConfig.from_dict(written) == AdapterConfig(
        rank_pattern={}, alpha_pattern={}, target_modules=["query"]
    )
    assert {"use_dora", "kasa_config", "ensure_weight_tying"} <= written.keys()
    for field in dataclasses.fields(AdapterConfig):
        assert (written[field.name] or None) == (field.default or None) or field.name == "target_modules"


def test_every_other_method_of_peft_is_refused_by_name() -> None:
    import peft

    others = [kind.value for kind in peft.PeftType if kind.value != "LORA"]
    assert {"IA3", "ADALORA", "PREFIX_TUNING", "PROMPT_TUNING", "LOHA"} <= set(others)
    for kind in others:
        with pytest.raises(ConfigError, match=f'peft_type is "{kind}"; bertjax supports only .LORA.'):
            AdapterConfig.from_dict({"peft_type": kind, "r": 4})
