"""Config keys of each family: each changes the model, is harmless, or is refused."""

import contextlib
import dataclasses
import json
from typing import Any

import pytest

from bertjax import BertConfig
from bertjax.checkpoints import FAMILIES
from bertjax.checkpoints import config as keys_of_all
from bertjax.errors import ConfigError
from bertjax.models.task_models import CLASSES
from tests.family_models import SIZES, config_of


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_missing_head_names_those_of_the_family(family):
    config = config_of(family)
    for task, cls in CLASSES.items():
        if task not in FAMILIES[family].heads:
            with pytest.raises(ConfigError, match=f"no head for {task}, only for "):
                cls(config)


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("size", [0, 1])
def test_configs_round_trip(family, size):
    import transformers

    theirs = transformers.AutoConfig.for_model(family, **SIZES[family][size])
    ours = BertConfig.from_dict(theirs.to_dict())
    assert ours == config_of(family, size)
    assert BertConfig.from_dict(json.loads(json.dumps(ours.to_dict()))) == ours
    back = type(theirs).from_dict(ours.to_dict())
    assert BertConfig.from_dict(back.to_dict()) == ours
    assert hash(ours) == hash(config_of(family, size))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_missing_keys_have_transformers_defaults(family):
    """bertjax has separate tables of defaults, so that reading a config does not import transformers."""
    import transformers

    theirs = transformers.AutoConfig.for_model(family).to_dict()
    ours = BertConfig.from_dict({"model_type": family})
    assert ours == BertConfig.from_dict(theirs)
    assert {str(label): name for label, name in ours.id2label.items()} == {
        str(label): name for label, name in theirs["id2label"].items()
    }


NONSENSE = {"a": "value", "of": ["no", "kind"]}
HARMLESS = keys_of_all._HARMLESS | {"label2id"}  # which `id2label` outranks
ONLY_AT = keys_of_all._HARMLESS_ONLY_AT


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_each_key_of_a_config_is_followed_harmless_or_refused(family):
    """Every key that transformers writes for the family is known; any other is refused by name."""
    import transformers

    settings = transformers.AutoConfig.for_model(family, **SIZES[family][0]).to_dict()
    about, config = FAMILIES[family], BertConfig.from_dict(settings)
    for key in settings:
        changed = settings | {key: NONSENSE}
        if key in HARMLESS | about.harmless:
            assert BertConfig.from_dict(changed) == config
        elif key in {**ONLY_AT, **about.harmless_only_at}:
            with pytest.raises(ConfigError, match=f"{key} is .*supports only"):
                BertConfig.from_dict(changed)
        else:
            assert key in config.to_dict()
            with pytest.raises(ConfigError) as refusal:
                BertConfig.from_dict(changed)
            assert "does not know the key" not in str(refusal.value)
    with pytest.raises(ConfigError, match="does not know the key 'a_new_key'"):
        BertConfig.from_dict(settings | {"a_new_key": 1})


# What people's files may say and no model of bertjax computes.
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "bert": [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'; .* only 'absolute'"),
        ({"is_decoder": True}, "is_decoder is True; bertjax supports only False"),
        ({"embedding_size": 5}, "does not know the key 'embedding_size'"),
    ],
    "roberta": [
        ({"pad_token_id": None}, "pad_token_id is null, but positions are counted from it"),
        ({"position_embedding_type": "relative_key_query"}, "'relative_key_query'; bertjax supports only 'absolute'"),
    ],
    "xlm-roberta": [({"adapter_reduction_factor": 2}, "does not know the key 'adapter_reduction_factor'")],
    "camembert": [({"add_cross_attention": True}, "add_cross_attention is True; bertjax supports only False")],
    "distilbert": [
        ({"tie_weights_": False}, "tie_weights_ is False; bertjax supports only True"),
        ({"qa_dropout": 2}, "qa_dropout must be a number from 0 to 1, found 2"),
        ({"layer_norm_eps": 1e-5}, "does not know the key 'layer_norm_eps'"),
        ({"type_vocab_size": 2}, "does not know the key 'type_vocab_size'"),
    ],
    "electra": [
        ({"summary_type": "last"}, "summary_type is 'last'; bertjax supports only 'first'"),
        ({"summary_use_proj": False}, "summary_use_proj is False; bertjax supports only True"),
        ({"summary_activation": None}, "summary_activation is None; bertjax supports only 'gelu'"),
        ({"summary_proj_to_labels": True}, "summary_proj_to_labels is True; bertjax supports only False"),
    ],
    "mpnet": [
        ({"relative_attention_num_buckets": 64}, "relative_attention_num_buckets must be one of 32, found 64"),
        ({"type_vocab_size": 2}, "does not know the key 'type_vocab_size'"),
    ],
    "albert": [
        ({"num_hidden_groups": 4}, "3 layers cannot be those of num_hidden_groups 4 with inner_group_num 1"),
        ({"num_hidden_groups": 0}, "num_hidden_groups must be an integer from 1 to 2147483647, found 0"),
        ({"inner_group_num": 1.5}, "inner_group_num must be an integer from 1 to 2147483647, found 1.5"),
    ],
    "deberta-v2": [
        ({"conv_kernel_size": 3}, "conv_kernel_size is 3; bertjax supports only 0"),  # the first v2-xlarge
        ({"conv_groups": 2}, "conv_groups is 2; bertjax supports only 1"),
        ({"pos_att_type": "c2p|p2p"}, "pos_att_type must be a list of 'c2p' and 'p2c', found"),
        ({"norm_rel_ebd": "batch_norm"}, "norm_rel_ebd must be 'none' or 'layer_norm', found"),
        ({"attention_head_size": 8}, "attention_head_size is 8; bertjax supports only None"),
        ({"pooler_hidden_size": 6}, "pooler_hidden_size is 6; bertjax supports only None"),
    ],
    "modernbert": [
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling is .*; bertjax supports only None"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4}}},
            "rope_type of full_attention is 'yarn'; bertjax supports only 'default'",
        ),
        (
            {"rope_parameters": {"sliding_attention": {"rope_theta": 1e4, "factor": 2}}},
            "rope_parameters must hold rope_type and rope_theta for sliding_attention",
        ),
        ({"rope_parameters": {"rope_theta": 1e4}}, "must be a dict with full_attention and sliding_attention"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers, but num_hidden_layers is 4"),
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types must be a list of"),
        ({"hidden_size": 15}, "a head is 5 wide, but rotary positions need an even number"),
        ({"classifier_pooling": "max"}, "classifier_pooling must be one of 'cls', 'mean', found 'max'"),
        ({"hidden_act": "relu"}, "does not know the key 'hidden_act'"),
    ],
}
assert set(REFUSED) == set(FAMILIES)


@pytest.mark.parametrize(
    ("family", "changes", "message"), [(family, *case) for family, cases in REFUSED.items() for case in cases]
)
def test_unsupported_settings_are_refused_by_name(family, changes, message):
    BertConfig.from_dict({"model_type": family, **SIZES[family][0]})
    with pytest.raises(ConfigError, match=message):
        BertConfig.from_dict({"model_type": family, **SIZES[family][0], **changes})


# Another value for each setting of the families, with the first of the two sizes.
OTHERS: dict[str, dict[str, Any]] = {
    "albert": {"inner_group_num": 2, "num_hidden_groups": 3},
    "distilbert": {"qa_dropout": 0.25},
    "mpnet": {"relative_attention_num_buckets": None},
    "deberta-v2": {
        "relative_attention": False,
        "position_biased_input": True,
        "max_relative_positions": 9,
        "position_buckets": 6,
        "share_att_key": False,
        "pos_att_type": ["c2p"],
        "norm_rel_ebd": "none",
        "pooler_dropout": 0.25,
        "pooler_hidden_act": "tanh",
    },
    "modernbert": {
        "layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"],
        "local_attention": 8,
        "global_rope_theta": 500.0,
        "local_rope_theta": 500.0,
        **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True),
        "decoder_bias": False,
        "classifier_activation": "tanh",
        "classifier_pooling": "mean",
        "embedding_dropout": 0.25,
        "mlp_dropout": 0.25,
    },
}
FIXED = ("relative_attention_num_buckets",)  # transformers computes only one of these values
KEPT = ("qa_dropout",)  # written back, and read by no model here


@pytest.mark.parametrize(
    ("family", "name"), [(family, name) for family in FAMILIES for name in FAMILIES[family].settings]
)
def test_each_setting_that_is_followed_changes_the_model(family, name):
    value, settings = OTHERS[family][name], {"model_type": family} | SIZES[family][0]
    plain = BertConfig.from_dict(settings)
    if name in FIXED:
        return
    changed = BertConfig.from_dict(settings | {name: value})
    assert changed.own[name] != plain.own[name]
    assert BertConfig.from_dict(changed.to_dict()) == changed != plain
    assert (changed.architecture != plain.architecture) == (name not in KEPT)
    if name != "inner_group_num":  # which also says how many layers there are
        assert dataclasses.replace(changed, own=plain.own) == plain


LENGTHS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_size_that_is_a_float_is_refused_by_its_key(family):
    """As in transformers: 2.0 is not a number of layers."""
    settings = {"model_type": family} | SIZES[family][0]
    keys = [FAMILIES[family].key_of(name) for name in (*LENGTHS, "max_position_embeddings")]
    for key in keys:
        for value in (float(settings[key]), str(settings[key]), None, True, [settings[key]]):
            with pytest.raises(ConfigError, match=rf"{key} must be an integer from 1 to 2147483647, found"):
                BertConfig.from_dict(settings | {key: value})
    with pytest.raises(ConfigError, match=r"num_labels must be an integer from 1 to 100000, found 2\.0"):
        BertConfig.from_dict(settings | {"num_labels": 2.0})


WRONG = (2.0, 0.5, float("nan"), float("inf"), "3", "", None, [], [1], [[1]], [None], {}, {"a": 1}, True, False)
WRONG += (10**30, -1, 0, 2**31, 1e300)


@pytest.mark.parametrize("family", FAMILIES)
def test_values_of_any_type_are_read_or_refused_in_one_line(family):
    settings = BertConfig.from_dict({"model_type": family} | SIZES[family][0]).to_dict()
    older = ("global_attn_every_n_layers", "num_labels", "pruned_heads", "sentence_transformers", "quantization_config")
    for key in (*settings, *older):
        for value in WRONG:
            options = {**settings, key: value}
            if key == "num_hidden_layers" and family == "modernbert":
                options.pop("layer_types")  # missing in older files
            with contextlib.suppress(ConfigError):  # with a message of one line
                hash(BertConfig.from_dict(options))
