"""`BertConfig` reads real config.json files, and refuses unsupported keys by name."""

import dataclasses
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers

from bertjax.checkpoints.architecture import ACTIVATIONS, numbered_labels
from bertjax.checkpoints.config import BertConfig
from bertjax.errors import ConfigError

SMALL: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 31,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 7,
    "max_position_embeddings": 11,
    "type_vocab_size": 5,
}
BASE_SIZES: dict[str, Any] = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
# Settings in config.json of well-known checkpoints, without the sizes.
REAL: dict[str, dict[str, Any]] = {
    "google-bert, 2019": {
        "architectures": ["BertForMaskedLM"],
        "gradient_checkpointing": False,
        "model_type": "bert",
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "transformers_version": "4.6.0.dev0",
        "use_cache": True,
    },
    "multilingual cased": {
        "architectures": ["BertForMaskedLM"],
        "directionality": "bidi",
        "model_type": "bert",
        "pad_token_id": 0,
        "pooler_fc_size": 768,
        "pooler_num_attention_heads": 12,
        "pooler_num_fc_layers": 3,
        "pooler_size_per_head": 128,
        "pooler_type": "first_token_transform",
    },
    "pytorch-transformers 1, without model_type": {
        "finetuning_task": None,
        "num_labels": 2,
        "output_attentions": False,
        "output_hidden_states": False,
        "pruned_heads": {},
        "torchscript": False,
    },
    "transformers 2, fine-tuned": {
        "_num_labels": 2,
        "architectures": ["BertForSequenceClassification"],
        "bad_words_ids": None,
        "do_sample": False,
        "eos_token_ids": 0,
        "finetuning_task": "sst-2",
        "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
        "is_decoder": False,
        "is_encoder_decoder": False,
        "label2id": {"LABEL_0": 0, "LABEL_1": 1},
        "length_penalty": 1.0,
        "max_length": 20,
        "model_type": "bert",
        "num_beams": 1,
        "num_return_sequences": 1,
        "output_past": True,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
        "total_flos": 12345,
        "use_bfloat16": False,
        "xla_device": None,
    },
    "transformers 4, everything": {
        "_name_or_path": "bert-base-uncased",
        "_attn_implementation_autoset": True,
        "add_cross_attention": False,
        "architectures": None,
        "begin_suppress_tokens": None,
        "bos_token_id": None,
        "chunk_size_feed_forward": 64,
        "classifier_dropout": None,
        "cross_attention_hidden_size": None,
        "exponential_decay_length_penalty": None,
        "model_type": "bert",
        "prefix": None,
        "problem_type": None,
        "return_dict": True,
        "task_specific_params": None,
        "tf_legacy_loss": False,
        "tie_encoder_decoder": False,
        "tie_word_embeddings": True,
        "tokenizer_class": None,
        "torch_dtype": "float16",
        "typical_p": 1.0,
    },
    "cross-encoder": {
        "model_type": "bert",
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
        "sentence_transformers": {"version": "4.0.1"},
    },
}


def read(**changes: Any) -> BertConfig:
    return BertConfig.from_dict(SMALL | changes)


def refusal(mapping: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        BertConfig.from_dict(mapping)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", REAL)
def test_real_config_files_are_read_as_transformers_reads_them(name: str) -> None:
    ours = BertConfig.from_dict(BASE_SIZES | REAL[name])
    theirs = transformers.BertConfig.from_dict(BASE_SIZES | REAL[name])
    assert theirs.id2label is not None
    assert ours.id2label == theirs.id2label
    assert ours.architectures == tuple(theirs.architectures or ())
    assert ours.head_dim == 64
    for field in (
        "hidden_size",
        "layer_norm_eps",
        "pad_token_id",
        "classifier_dropout",
        "tie_word_embeddings",
    ):
        assert getattr(ours, field) == getattr(theirs, field)


def test_defaults_are_those_of_transformers() -> None:
    theirs = transformers.BertConfig().to_dict()
    assert BertConfig.from_dict(theirs) == BertConfig()
    assert transformers.BertConfig.from_dict(BertConfig().to_dict()).to_dict() == theirs


def test_transformers_reads_back_an_equal_config(tmp_path: Path) -> None:
    theirs = transformers.BertConfig(
        **{name: value for name, value in SMALL.items() if name != "model_type"},
        hidden_act="silu",
        layer_norm_eps=1e-5,
        classifier_dropout=0.25,
        pad_token_id=3,
        tie_word_embeddings=False,
        id2label={0: "no", 1: "maybe", 2: "yes"},
        label2id={"no": 0, "maybe": 1, "yes": 2},
        problem_type="single_label_classification",
        architectures=["BertForSequenceClassification"],
    )
    ours = BertConfig.from_dict(theirs.to_dict())
    (tmp_path / "config.json").write_text(json.dumps(ours.to_dict()))
    back = transformers.AutoConfig.from_pretrained(tmp_path)
    assert isinstance(back, transformers.BertConfig)
    same = {name: value for name, value in back.to_dict().items() if name != "_name_or_path"}
    assert same == {name: value for name, value in theirs.to_dict().items() if name != "_name_or_path"}
    assert BertConfig.from_directory(tmp_path) == ours == BertConfig.from_dict(ours.to_dict())


def test_labels_are_read_as_a_dict_is() -> None:
    config = read(id2label={"0": "no", "1": "yes"})
    assert config.id2label[1] == "yes"
    assert dict(config.id2label) == {0: "no", 1: "yes"}
    assert list(config.id2label.items()) == [(0, "no"), (1, "yes")]
    assert pickle.loads(pickle.dumps(config)) == config
    from_dict = dataclasses.replace(config, id2label={0: "no", 1: "yes"})
    assert (from_dict, hash(from_dict)) == (config, hash(config))
    assert dataclasses.replace(config, id2label={0: "no", 1: "maybe"}) != config
    with pytest.raises(TypeError):
        config.id2label[0] = "other"  # type: ignore[index]
    for wrong in ({1: "a", 0: "b"}, {1: "a"}, {}):
        with pytest.raises(ConfigError, match="id2label must"):
            dataclasses.replace(config, id2label=wrong)
    with pytest.raises(ConfigError, match="label2id must"):
        read(label2id={"a": 0, "b": 0})


def test_config_is_hashable_and_equal_by_value() -> None:
    assert hash(read()) == hash(read())
    assert read(id2label={"0": "a", "1": "b"}) != read()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("position_embedding_type", "relative_key_query"),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("is_encoder_decoder", True),
        ("tie_encoder_decoder", True),
        ("cross_attention_hidden_size", 12),
        ("quantization_config", {"load_in_8bit": True}),
        ("per_layer_config", {"0": {"hidden_size": 3}}),
        ("auto_map", {"AutoModel": "code.Model"}),
        ("model_type", "gpt2"),
        ("hidden_act", "gelu_fast"),
        ("hidden_act", None),
        ("problem_type", "ranking"),
        ("hidden_size", "768"),
        ("hidden_size", 12.0),
        ("hidden_size", 0),
        ("num_hidden_layers", True),
        ("num_attention_heads", -3),
        ("vocab_size", None),
        ("layer_norm_eps", 0),
        ("layer_norm_eps", -1e-12),
        ("layer_norm_eps", float("nan")),
        ("hidden_dropout_prob", 1.5),
        ("attention_probs_dropout_prob", None),
        ("classifier_dropout", "0.1"),
        ("initializer_range", float("inf")),
        ("pad_token_id", 31),
        ("tie_word_embeddings", "yes"),
        ("architectures", "BertModel"),
        ("id2label", {"1": "a", "2": "b"}),
        ("id2label", {"zero": "a"}),
        ("id2label", {"0": 0}),
        ("id2label", ["a", "b"]),
        ("num_labels", 0),
        ("num_labels", 10**9),
        ("_num_labels", 10**9),
        ("num_labels", 10**400),
        pytest.param("hidden_size", 10**5000, id="thousands of digits"),
        ("vocab_size", 2**31),
        ("num_hidden_layers", 10**12),
        ("layer_norm_eps", 10**400),
        ("initializer_range", 10**400),
        ("id2label", {"0": "a", "1.5": "b"}),
        ("label2id", {"a": 0, "b": 1.5}),
        ("label2id", {"a": False, "b": True}),
        ("id2label", {"0": "a", "1" * 5000: "b"}),
    ],
)
def test_settings_that_change_the_model_are_refused_by_name(key: str, value: Any) -> None:
    message = refusal(SMALL | {key: value})
    assert key.removeprefix("_") in message
    assert isinstance(value, dict | list) or _short(value) in message


def _short(value: Any) -> str:
    """The beginning of a value in messages; Python does not print ints of more than 4300 digits."""
    return str(value)[:15] if not isinstance(value, int) or value < 10**4000 else "a very large number"


def test_unknown_key_is_refused_with_its_value() -> None:
    message = refusal(SMALL | {"num_hidden_groups": 4})
    assert "does not know the key 'num_hidden_groups' (value 4)" in message


def test_heads_that_do_not_divide_the_hidden_size_are_refused() -> None:
    message = refusal(SMALL | {"num_attention_heads": 5})
    assert "12" in message
    assert "5" in message
    with pytest.raises(ConfigError):
        BertConfig(hidden_size=12, num_attention_heads=5)


def test_an_empty_config_is_no_bert_base() -> None:
    assert "model_type" in refusal({})
    sizes = {name: value for name, value in SMALL.items() if name != "model_type"}
    assert BertConfig.from_dict(sizes) == read()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_supported_activations_are_known_to_transformers(activation: str) -> None:
    assert read(hidden_act=activation).hidden_act == activation
    assert transformers.BertConfig(hidden_act=activation).hidden_act == activation


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, numbered_labels(2)),
        ({"num_labels": 3}, numbered_labels(3)),
        ({"num_labels": 3, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, numbered_labels(3)),
        ({"_num_labels": 5}, numbered_labels(5)),
        ({"_num_labels": 2, "id2label": {"0": "a", "1": "b", "2": "c"}}, {0: "a", 1: "b", 2: "c"}),
        ({"id2label": {1: "b", 0: "a"}}, {0: "a", 1: "b"}),
        ({"label2id": {"a": 1, "b": "0"}}, {0: "b", 1: "a"}),
        ({"id2label": {"0": "x"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}, {0: "x"}),
    ],
)
def test_labels_are_read_from_all_their_keys(keys: dict[str, Any], expected: Mapping[int, str]) -> None:
    config = read(**keys)
    assert config.id2label == expected
    assert config.num_labels == len(expected)
    assert config.label2id == {name: number for number, name in expected.items()}


def test_labels_that_contradict_each_other_are_refused() -> None:
    assert "num_labels is 4" in refusal(SMALL | {"num_labels": 4, "id2label": {"0": "a", "1": "b"}})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"hidden_size": ',
        b"[1, 2]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"model_type": "bert", "layer_norm_eps": 1e400}',
        b'{"model_type": "bert", "layer_norm_eps": 1' + b"0" * 400 + b"}",
    ],
)
def test_broken_files_are_refused_in_one_line_with_their_path(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        BertConfig.from_directory(tmp_path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_missing_config_and_wrong_value_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        BertConfig.from_directory(tmp_path)
    with pytest.raises(ConfigError, match="nowhere"):
        BertConfig.from_directory(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text(json.dumps(SMALL | {"is_decoder": True}))
    with pytest.raises(ConfigError, match=r"config\.json: is_decoder is True"):
        BertConfig.from_directory(tmp_path)
