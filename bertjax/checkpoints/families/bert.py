"""BERT (Devlin et al. 2019), after HuggingFace's `modeling_bert.py`."""

from bertjax.checkpoints.architecture import (
    NEXT,
    PRETRAINING,
    Architecture,
    ConfigFields,
    EmbeddingPlan,
    HeadPlan,
)
from bertjax.checkpoints.families.family import (
    BERTS_WORDS,
    Family,
    Head,
    LayerTensors,
    common_heads,
    dropout_rates,
    embedding_entries,
    head_plans,
    layer_kind,
    linear,
    words_head,
)


def _describe(config: ConfigFields) -> Architecture:
    layers = config.num_hidden_layers
    next_sentence = HeadPlan("pooler", labels=2)
    return Architecture(
        embeddings=EmbeddingPlan(),
        layers=(layer_kind(config),) * layers,
        parameters_of=tuple(range(layers)),
        pooler="tanh",
        heads=head_plans(HeadPlan("pooler"), config.hidden_act) | {NEXT: next_sentence, PRETRAINING: next_sentence},
        dropout=dropout_rates(config),
    )


_NEXT = linear("cls.seq_relationship", "seq_relationship")

FAMILY = Family(
    model_type="bert",
    name="BERT",
    prefix="bert",
    describe=_describe,
    body=(
        *embedding_entries("bert"),
        *LayerTensors().entries("bert.encoder.layer.{layer}"),
        *linear("bert.pooler.dense", "bert.pooler.dense"),
    ),
    heads=common_heads("Bert", BERTS_WORDS)
    | {
        NEXT: Head("BertForNextSentencePrediction", _NEXT),
        PRETRAINING: words_head("BertForPreTraining", *BERTS_WORDS, more=_NEXT),
    },
    harmless=frozenset(
        # a pooler in Google's multilingual configs that no BERT has
        [
            "directionality",
            "pooler_fc_size",
            "pooler_num_attention_heads",
            "pooler_num_fc_layers",
            "pooler_size_per_head",
            "pooler_type",
        ]
    ),
)
