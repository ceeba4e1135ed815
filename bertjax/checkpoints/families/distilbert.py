"""DistilBERT (Sanh et al. 2019): BERT without token types and pooler, with half the layers and other names.

Source: HuggingFace's `modeling_distilbert.py`. The epsilon of the norms is fixed, and attention has no output dropout.
"""

from bertjax.checkpoints.architecture import (
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
)
from bertjax.checkpoints.rules import FRACTION


def _describe(config: ConfigFields) -> Architecture:
    layers = config.num_hidden_layers
    return Architecture(
        embeddings=EmbeddingPlan(token_types=False),
        layers=(layer_kind(config),) * layers,
        parameters_of=tuple(range(layers)),
        pooler=None,
        heads=head_plans(HeadPlan("cls", "relu"), config.hidden_act),
        dropout=dropout_rates(config, attended=0.0),
    )


_LAYER = LayerTensors(
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    output="attention.out_lin",
    attention_norm="sa_layer_norm",
    intermediate="ffn.lin1",
    mlp="ffn.lin2",
    output_norm="output_layer_norm",
)
_TWO_STEPS = (*linear("pre_classifier", "transform.dense"), *linear("classifier", "classifier"))

FAMILY = Family(
    model_type="distilbert",
    name="DistilBERT",
    prefix="distilbert",
    describe=_describe,
    body=(
        *embedding_entries("distilbert", token_types=False),
        *_LAYER.entries("distilbert.transformer.layer.{layer}"),
    ),
    heads=common_heads(
        "DistilBert",
        ("vocab_transform", "vocab_layer_norm", "vocab_projector"),
        sequence=_TWO_STEPS,
        choice=_TWO_STEPS,
    ),
    keys={
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "classifier_dropout": "seq_classif_dropout",
    },
    absent={"type_vocab_size": 0, "layer_norm_eps": 1e-12, "embedding_size": None},
    defaults={"num_hidden_layers": 6, "classifier_dropout": 0.2},
    settings={"qa_dropout": Setting(0.1, FRACTION, is_rate=True)},
    # Positions are in the file in any case; the setting only describes their initial values.
    harmless=frozenset({"sinusoidal_pos_embds"}),
    harmless_only_at={"tie_weights_": (True, None)},
)
