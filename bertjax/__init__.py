"""bertjax: BERT in JAX/Flax for people who study what attention heads do."""

from bertjax import errors
from bertjax.checkpoints import BertConfig
from bertjax.data import Tokenizer, collate
from bertjax.engine import Estimate, SweepResult, estimate, plain, sweep
from bertjax.interventions import ablations, overrides, readouts
from bertjax.model import (
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSentenceEmbedding,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    ModelOutput,
    Numerics,
    Overrides,
    load,
)
from bertjax.results import SavedResults, read_results

__version__ = "0.1.0"

__all__ = [
    "BertConfig",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSentenceEmbedding",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertModel",
    "Estimate",
    "ModelOutput",
    "Numerics",
    "Overrides",
    "SavedResults",
    "SweepResult",
    "Tokenizer",
    "ablations",
    "collate",
    "errors",
    "estimate",
    "load",
    "overrides",
    "plain",
    "read_results",
    "readouts",
    "sweep",
]
