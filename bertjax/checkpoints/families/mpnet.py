"""MPNet (Song et al. 2020): BERT's layers with relative position biases that all layers share, and RoBERTa's positions.

Source: HuggingFace's `modeling_mpnet.py`. Distance buckets are T5's (Raffel et al. 2020): half of them for keys before
the query and half for keys after it; near distances have their own buckets, the rest are logarithmic up to 128. The
first position is 2 for any padding id.
"""

from dataclasses import replace

from bertjax.checkpoints.architecture import (
    Architecture,
    ConfigFields,
    EmbeddingPlan,
    HeadPlan,
    RelativePositions,
)
from bertjax.checkpoints.families.family import (
    ROBERTAS_WORDS,
    TWO_STEPS,
    Family,
    LayerTensors,
    Setting,
    TensorEntry,
    common_heads,
    dropout_rates,
    embedding_entries,
    head_plans,
    layer_kind,
    linear,
)
from bertjax.checkpoints.rules import one_of

PADDING = 1  # fixed in transformers' embeddings, whatever the config's pad_token_id
BUCKETS, LARGEST = 32, 128  # fixed in transformers; the config must agree


def _describe(config: ConfigFields) -> Architecture:
    layers, rates = config.num_hidden_layers, dropout_rates(config)
    relative = RelativePositions("bias", BUCKETS, LARGEST)
    return Architecture(
        embeddings=EmbeddingPlan(positions="tokens", first_position=1 + PADDING, token_types=False),
        layers=(layer_kind(config, relative=relative),) * layers,
        parameters_of=tuple(range(layers)),
        pooler="tanh",
        heads=head_plans(HeadPlan("cls", "tanh"), "gelu", choice=HeadPlan("pooler")),
        dropout=replace(rates, head_input=rates.head_output),
    )


_LAYER = LayerTensors(
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    output="attention.attn.o",
    attention_norm="attention.LayerNorm",
)

FAMILY = Family(
    model_type="mpnet",
    name="MPNet",
    prefix="mpnet",
    describe=_describe,
    body=(
        *embedding_entries("mpnet", token_types=False),
        TensorEntry("mpnet.encoder.relative_attention_bias.weight", "bert.encoder.relative.table"),
        *_LAYER.entries("mpnet.encoder.layer.{layer}"),
        *linear("mpnet.pooler.dense", "bert.pooler.dense"),
    ),
    heads=common_heads("MPNet", ROBERTAS_WORDS, sequence=TWO_STEPS),
    absent={"type_vocab_size": 0, "classifier_dropout": None, "embedding_size": None},
    defaults={"vocab_size": 30527, "pad_token_id": 1},
    settings={"relative_attention_num_buckets": Setting(BUCKETS, one_of(BUCKETS))},
)
