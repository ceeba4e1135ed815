"""The model: the mathematics of a BERT, the modules that hold its parameters, and what goes in and comes out."""

from bertjax.model import fused_attention, ops, packed_layer, pallas_attention
from bertjax.model.checks import check_overrides, check_stack, prepare_inputs, read_batch
from bertjax.model.encoder import Attention, Dropout, Layer
from bertjax.model.layer import Recipe
from bertjax.model.models import (
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSentenceEmbedding,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    load,
)
from bertjax.model.packed_layer import Changes, LayerWeights, Rows, layer_weights
from bertjax.model.pallas_statistics import measure
from bertjax.model.pretrained import Graph, PretrainedModel, State, compute, make_numerics
from bertjax.model.types import (
    Edges,
    EncoderRecord,
    HeadOutputs,
    HeadWeights,
    Inputs,
    ModelOutput,
    Numerics,
    Overrides,
    record,
)

__all__ = [
    "Attention",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSentenceEmbedding",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertModel",
    "Changes",
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
    "PretrainedModel",
    "Recipe",
    "Rows",
    "State",
    "check_overrides",
    "check_stack",
    "compute",
    "fused_attention",
    "layer_weights",
    "load",
    "make_numerics",
    "measure",
    "ops",
    "packed_layer",
    "pallas_attention",
    "prepare_inputs",
    "read_batch",
    "record",
]
