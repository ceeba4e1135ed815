"""RoBERTa (Liu et al. 2019), XLM-RoBERTa (Conneau et al. 2020) and CamemBERT (Martin et al. 2020).

Layers are BERT's. Positions count only tokens that are not padding, starting after the padding id: the first token of a
text has position 2, and a table of 514 rows supports 512 tokens. Source: HuggingFace's `modeling_roberta.py`.
"""

from dataclasses import replace

from bertjax.checkpoints.architecture import (
    Architecture,
    ConfigFields,
    EmbeddingPlan,
    HeadPlan,
)
from bertjax.checkpoints.families.family import (
    ROBERTAS_WORDS,
    TWO_STEPS,
    Family,
    LayerTensors,
    common_heads,
    dropout_rates,
    embedding_entries,
    head_plans,
    layer_kind,
    linear,
)
from bertjax.errors import ConfigError


def _describe(config: ConfigFields) -> Architecture:
    layers, rates, padding = config.num_hidden_layers, dropout_rates(config), config.pad_token_id or 0
    return Architecture(
        embeddings=EmbeddingPlan(positions="tokens", first_position=1 + padding),
        layers=(layer_kind(config),) * layers,
        parameters_of=tuple(range(layers)),
        pooler="tanh",
        heads=head_plans(HeadPlan("cls", "tanh"), "gelu", choice=HeadPlan("pooler")),
        dropout=replace(rates, head_input=rates.head_output),
    )


def _check(config: ConfigFields) -> None:
    if config.pad_token_id is None:
        raise ConfigError("pad_token_id is null, but positions are counted from it")


def _family(model_type: str, name: str, classes: str, vocabulary: int = 30522) -> Family:
    return Family(
        model_type=model_type,
        name=name,
        prefix="roberta",
        describe=_describe,
        body=(
            *embedding_entries("roberta"),
            *LayerTensors().entries("roberta.encoder.layer.{layer}"),
            *linear("roberta.pooler.dense", "bert.pooler.dense"),
        ),
        heads=common_heads(classes, ROBERTAS_WORDS, sequence=TWO_STEPS),
        defaults={"vocab_size": vocabulary, "pad_token_id": 1},
        check=_check,
    )


FAMILY = _family("roberta", "RoBERTa", "Roberta", 50265)
XLM_ROBERTA = _family("xlm-roberta", "XLM-R", "XLMRoberta")
CAMEMBERT = _family("camembert", "CamemBERT", "Camembert")
