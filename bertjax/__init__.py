"""bertjax: BERT in JAX/Flax for people who study what attention heads do."""

from bertjax import ablations, errors, overrides, plain, readouts
from bertjax.config import BertConfig
from bertjax.engine import SweepResult, sweep
from bertjax.estimation import Estimate, estimate
from bertjax.model import BertModel
from bertjax.saved import SavedResults, read_results
from bertjax.task_heads import (
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSentenceEmbedding,
    BertForSequenceClassification,
    BertForTokenClassification,
    load,
)
from bertjax.tokenizer import Tokenizer, collate
from bertjax.types import ModelOutput, Numerics, Overrides

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
