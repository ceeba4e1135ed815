"""Dropout rates, missing fields, and names in error messages of each family's config."""

import re
from dataclasses import replace

import numpy as np
import pytest

from bertjax import BertConfig, BertModel
from bertjax.checkpoints import FAMILIES, architecture, hash_weights, tensor_names
from bertjax.errors import ConfigError, InputError
from tests.family_models import SIZES, arguments
from tests.tiny_models import largest_difference, random_model


def config_of(family, **changes):
    return BertConfig.from_dict({"model_type": family, **SIZES[family][0], **changes})


@pytest.mark.needs_torch
@pytest.mark.parametrize("family", FAMILIES)
def test_one_dropout_rate_applies_everywhere_and_can_be_saved(family):
    """At all dropout sites of the family, in a config.json that transformers reads too."""
    import transformers

    before = config_of(family)
    config = before.with_dropout(0.25)
    rates = vars(config.architecture.dropout)
    assert {name: rate for name, rate in rates.items() if rate not in (0, 0.25)} == {}
    usual = {name for name, rate in vars(before.with_dropout(0.5).architecture.dropout).items() if rate == 0.5}
    assert usual == {name for name, rate in rates.items() if rate == 0.25} >= {"embeddings", "weights"}
    assert BertConfig.from_dict(config.to_dict()) == config
    theirs = transformers.AutoConfig.for_model(**config.to_dict())
    assert BertConfig.from_dict(theirs.to_dict()).architecture == config.architecture


def test_a_missing_classifier_rate_is_the_hidden_rate():
    config = replace(config_of("distilbert", dropout=0.3), classifier_dropout=None)
    assert config.classifier_dropout == 0.3
    assert config_of("bert").classifier_dropout is None


def test_embedding_size_defaults_to_the_hidden_size():
    assert replace(config_of("roberta"), hidden_size=24).embedding_size == 24
    assert replace(config_of("albert"), hidden_size=24).embedding_size == 5


def test_a_field_without_a_key_in_the_family_is_refused():
    assert replace(config_of("modernbert"), hidden_dropout_prob=0.1).hidden_dropout_prob == 0.0  # BERT's default
    with pytest.raises(ConfigError, match=r"ModernBERT has no hidden_dropout_prob, found 0\.3"):
        replace(config_of("modernbert"), hidden_dropout_prob=0.3)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("distilbert", {"dim": 13}, "dim 13 is not divisible by n_heads 3"),
        ("distilbert", {"dropout": 2}, "dropout must be a number from 0 to 1, found 2"),
        ("distilbert", {"activation": "swish"}, "activation must be one of 'gelu', 'gelu_new'"),
        ("distilbert", {"seq_classif_dropout": -1}, "seq_classif_dropout must be a number from 0 to 1"),
        ("modernbert", {"hidden_activation": "swish"}, "hidden_activation must be one of 'gelu', 'gelu_new'"),
        ("modernbert", {"norm_eps": 0}, "norm_eps must be a positive number, found 0"),
        ("deberta-v2", {"type_vocab_size": -1}, "type_vocab_size must be an integer from 0 to 2147483647, found -1"),
        ("deberta-v2", {"position_buckets": 1}, "position_buckets must be an integer other than 1, found 1"),
        ("modernbert", {"global_rope_theta": 10**400}, "global_rope_theta must be a positive number"),
    ],
)
def test_a_message_names_the_key_that_the_file_has(family, changes, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        config_of(family, **changes)


def test_modernbert_accepts_only_its_position_embedding_type():
    assert config_of("modernbert", position_embedding_type="sans_pos") == config_of("modernbert")
    with pytest.raises(ConfigError, match="position_embedding_type is 'relative_key'"):
        config_of("modernbert", position_embedding_type="relative_key")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_hash_of_weights_ignores_the_tied_decoder(family, rng):
    """Formats differ in whether they store a tied tensor twice."""
    config = config_of(family)
    head, words = config.family.heads[architecture.WORDS], tensor_names.word_embeddings(config.family)
    table = rng.standard_normal((5, 3)).astype(np.float32)
    alone = {words: table}
    assert hash_weights(alone | {head.decoder: table}, config.family) == hash_weights(alone, config.family)
    assert hash_weights(alone | {head.decoder: table + 1}, config.family) != hash_weights(alone, config.family)


def test_a_different_scale_is_used_in_all_implementations(rng):
    """DeBERTa without relative positions still scales by the kinds in pos_att_type, as in transformers."""
    config = config_of("deberta-v2", relative_attention=False, pos_att_type=["c2p", "p2c"])
    call = arguments(config, rng)
    explicit, fused = (random_model(BertModel, config, attention=form)(**call) for form in ("explicit", "fused"))
    assert largest_difference(explicit.last_hidden_state, fused.last_hidden_state) < 2e-5
    with pytest.raises(InputError, match="'pallas' does not support the scale of scores of DeBERTa"):
        random_model(BertModel, config, attention="pallas")
