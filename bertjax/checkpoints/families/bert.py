"""BERT (Devlin et al. 2019), after HuggingFace's `modeling_bert.py`."""

from bertjax.checkpoints.architecture import (
    ANSWERS,
    BODY,
    CHOICE,
    NEXT,
    PRETRAINING,
    SEQUENCE,
    TOKENS,
    WORDS,
    Architecture,
    EmbeddingPlan,
    HeadPlan,
)
from bertjax.checkpoints.families.family import (
    Config,
    Family,
    Head,
    LayerTensors,
    TensorEntry,
    dropout_rates,
    embedding_entries,
    head_plans,
    layer_kind,
    linear,
    norm,
)


def _describe(config: Config) -> Architecture:
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


_WORDS = (
    *linear("cls.predictions.transform.dense", "predictions.transform"),
    *norm("cls.predictions.transform.LayerNorm", "predictions.norm"),
    TensorEntry("cls.predictions.decoder.weight", "predictions.decoder"),
    TensorEntry("cls.predictions.bias", "predictions.bias"),
)
_NEXT = linear("cls.seq_relationship", "seq_relationship")
_DECODER, _DECODER_BIAS = "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"
_CLASSIFIER = linear("classifier", "classifier")

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
    heads={
        BODY: Head("BertModel"),
        SEQUENCE: Head("BertForSequenceClassification", _CLASSIFIER),
        WORDS: Head("BertForMaskedLM", _WORDS, decoder=_DECODER, decoder_bias=_DECODER_BIAS),
        NEXT: Head("BertForNextSentencePrediction", _NEXT),
        PRETRAINING: Head("BertForPreTraining", (*_WORDS, *_NEXT), decoder=_DECODER, decoder_bias=_DECODER_BIAS),
        TOKENS: Head("BertForTokenClassification", _CLASSIFIER),
        ANSWERS: Head("BertForQuestionAnswering", linear("qa_outputs", "qa_outputs")),
        CHOICE: Head("BertForMultipleChoice", _CLASSIFIER),
    },
    harmless=frozenset(
        # a pooler that Google's multilingual configs describe and no BERT has
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
