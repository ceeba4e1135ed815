"""ALBERT (Lan et al. 2020): narrow embeddings, and layers that share parameters by group.

Source: HuggingFace's `modeling_albert.py`. A layer of bertjax is one application: round `i` of HuggingFace's `n` rounds
applies all inner layers of group `int(i / (n / groups))`, each of which counts as a layer. A head (layer, head) thus
belongs to one application, and overriding it does not affect other applications of the same parameters.
"""

from typing import Any

from bertjax.checkpoints.architecture import (
    PRETRAINING,
    Architecture,
    ConfigFields,
    EmbeddingPlan,
    HeadPlan,
)
from bertjax.checkpoints.families.family import (
    Family,
    LayerTensors,
    Setting,
    common_heads,
    dropout_rates,
    embedding_entries,
    head_plans,
    layer_kind,
    linear,
    words_head,
)
from bertjax.checkpoints.rules import INTEGER, is_integer
from bertjax.errors import ConfigError


def _describe(config: ConfigFields) -> Architecture:
    inner, groups = config.own["inner_group_num"], config.own["num_hidden_groups"]
    rounds = config.num_hidden_layers // inner
    return Architecture(
        embeddings=EmbeddingPlan(norm_width="tables", projection="with bias"),
        layers=(layer_kind(config),) * config.num_hidden_layers,
        parameters_of=tuple(
            int(number / (rounds / groups)) * inner + place for number in range(rounds) for place in range(inner)
        ),
        pooler="tanh",
        heads=head_plans(HeadPlan("pooler"), config.hidden_act) | {PRETRAINING: HeadPlan("pooler")},
        dropout=dropout_rates(config, mlp=0.0),
    )


def _check(config: ConfigFields) -> None:
    inner, groups = config.own["inner_group_num"], config.own["num_hidden_groups"]
    if config.num_hidden_layers % inner or groups * inner > config.num_hidden_layers:
        raise ConfigError(
            f"{config.num_hidden_layers} layers cannot be those of num_hidden_groups {groups} with inner_group_num "
            f"{inner}"
        )


def _read(mapping: dict[str, Any]) -> dict[str, Any]:
    """Count applications of layers instead of rounds."""
    rounds, inner = mapping.get("num_hidden_layers", DEFAULTS["num_hidden_layers"]), mapping.get("inner_group_num", 1)
    if is_integer(rounds) and is_integer(inner) and inner > 0:
        return mapping | {"num_hidden_layers": rounds * inner}
    return mapping


def _write(mapping: dict[str, Any]) -> dict[str, Any]:
    return mapping | {"num_hidden_layers": mapping["num_hidden_layers"] // mapping["inner_group_num"]}


DEFAULTS = {
    "vocab_size": 30000,
    "embedding_size": 128,
    "hidden_size": 4096,
    "num_hidden_layers": 12,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout": 0.1,
}
_LAYER = LayerTensors(
    query="attention.query",
    key="attention.key",
    value="attention.value",
    output="attention.dense",
    attention_norm="attention.LayerNorm",
    intermediate="ffn",
    mlp="ffn_output",
    output_norm="full_layer_layer_norm",
)
_WORDS = ("predictions.dense", "predictions.LayerNorm", "predictions.decoder", "predictions.bias")

FAMILY = Family(
    model_type="albert",
    name="ALBERT",
    prefix="albert",
    describe=_describe,
    body=(
        *embedding_entries("albert"),
        *linear("albert.encoder.embedding_hidden_mapping_in", "bert.embeddings.projection"),
        *_LAYER.entries("albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}"),
        *linear("albert.pooler", "bert.pooler.dense"),
    ),
    heads=common_heads("Albert", _WORDS)
    | {
        PRETRAINING: words_head(
            "AlbertForPreTraining", *_WORDS, more=linear("sop_classifier.classifier", "seq_relationship")
        )
    },
    absent={},
    keys={"classifier_dropout": "classifier_dropout_prob"},
    defaults=DEFAULTS,
    settings={"inner_group_num": Setting(1, INTEGER), "num_hidden_groups": Setting(1, INTEGER)},
    # unused settings of the first release's TensorFlow program
    harmless=frozenset({"down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"}),
    read=_read,
    write=_write,
    groups=("num_hidden_groups", "inner_group_num"),
    check=_check,
)
