"""The model: the mathematics of a BERT, the modules that hold its parameters, and what goes in and comes out."""

from bertjax.model import ops, packed_layer
from bertjax.model.body import BertModel
from bertjax.model.changes import Changes, Replaced
from bertjax.model.checks import (
    check_not_traced,
    check_overrides,
    check_stack,
    count_positions,
    describe_limit,
    prepare_inputs,
    read_batch,
)
from bertjax.model.encoder import Attention, Layer
from bertjax.model.kernels import fused_attention, pallas_attention
from bertjax.model.kernels.pallas_statistics import measure
from bertjax.model.layer import Dropout, Recipe, keep_all
from bertjax.model.models import (
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForReplacedTokenDetection,
    BertForSequenceClassification,
    BertForTokenClassification,
    load,
    read_vector,
)
from bertjax.model.packed_layer import LayerWeights, Rows, layer_weights
from bertjax.model.places import NUMBERS, PLACES, Place
from bertjax.model.pretrained import (
    Graph,
    PretrainedModel,
    State,
    check_attention,
    compute,
    make_numerics,
    what_form_lacks,
)
from bertjax.model.sentences.embedding import BertForSentenceEmbedding
from bertjax.model.types import (
    AttentionRecord,
    Context,
    Edges,
    EncoderRecord,
    HeadOutputs,
    HeadWeights,
    Inputs,
    ModelOutput,
    Numerics,
    Overrides,
    PlaceValues,
    record,
)

__all__ = [
    "NUMBERS",
    "PLACES",
    "Attention",
    "AttentionRecord",
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForReplacedTokenDetection",
    "BertForSentenceEmbedding",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertModel",
    "Changes",
    "Context",
    "Dropout",
    "Edges",
    "EncoderRecord",
    "Graph",
    "HeadOutputs",
    "HeadWeights",
    "Inputs",
    "Layer",
    "LayerWeights",
    "ModelOutput",
    "Numerics",
    "Overrides",
    "Place",
    "PlaceValues",
    "PretrainedModel",
    "Recipe",
    "Replaced",
    "Rows",
    "State",
    "check_attention",
    "check_not_traced",
    "check_overrides",
    "check_stack",
    "compute",
    "count_positions",
    "describe_limit",
    "fused_attention",
    "keep_all",
    "layer_weights",
    "load",
    "make_numerics",
    "measure",
    "ops",
    "packed_layer",
    "pallas_attention",
    "prepare_inputs",
    "read_batch",
    "read_vector",
    "record",
    "what_form_lacks",
]
