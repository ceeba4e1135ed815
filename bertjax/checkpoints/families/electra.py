"""ELECTRA (Clark et al. 2020): BERT's layers, optionally narrower embeddings, and a head that detects replaced tokens.

Source: HuggingFace's `modeling_electra.py`. The norm of the embeddings has the width of the tables; there is no pooler.
"""

from dataclasses import replace

from bertjax.checkpoints.architecture import (
    REPLACED,
    Architecture,
    ConfigFields,
    EmbeddingPlan,
    HeadPlan,
)
from bertjax.checkpoints.families.family import (
    CLASSIFIER,
    TWO_STEPS,
    Family,
    Head,
    LayerTensors,
    common_heads,
    dropout_rates,
    embedding_entries,
    head_plans,
    layer_kind,
    linear,
)


def _describe(config: ConfigFields) -> Architecture:
    layers, rates = config.num_hidden_layers, dropout_rates(config)
    projected = config.embedding_size != config.hidden_size
    heads = head_plans(HeadPlan("cls", "gelu"), "gelu")
    heads[REPLACED] = HeadPlan("tokens", config.hidden_act, labels=1)
    return Architecture(
        embeddings=EmbeddingPlan(norm_width="tables", projection="with bias" if projected else None),
        layers=(layer_kind(config),) * layers,
        parameters_of=tuple(range(layers)),
        pooler=None,
        heads=heads,
        dropout=replace(rates, head_input=rates.head_output),
    )


FAMILY = Family(
    model_type="electra",
    name="ELECTRA",
    prefix="electra",
    describe=_describe,
    body=(
        *embedding_entries("electra"),
        *linear("electra.embeddings_project", "bert.embeddings.projection"),
        *LayerTensors().entries("electra.encoder.layer.{layer}"),
    ),
    heads=common_heads(
        "Electra",
        ("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head"),
        sequence=TWO_STEPS,
        choice=(*linear("sequence_summary.summary", "transform.dense"), *CLASSIFIER),
    )
    | {
        REPLACED: Head(
            "ElectraForPreTraining",
            (
                *linear("discriminator_predictions.dense", "transform.dense"),
                *linear("discriminator_predictions.dense_prediction", "classifier"),
            ),
        )
    },
    absent={},
    defaults={"embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
    harmless=frozenset({"summary_last_dropout", "summary_first_dropout"}),
    harmless_only_at={
        "summary_type": ("first",),
        "summary_use_proj": (True,),
        "summary_activation": ("gelu",),
        "summary_proj_to_labels": (False, None),
    },
)
