"""bertjax: BERT in JAX/Flax for people who study what attention heads do."""

from bertjax import errors
from bertjax.checkpoints.config import BertConfig
from bertjax.data.tokenizer import Tokenizer, collate
from bertjax.engine import plain
from bertjax.engine.estimation import Estimate, estimate
from bertjax.engine.run import SweepResult, sweep
from bertjax.interventions import ablations, overrides, readouts
from bertjax.model.encoder import BertModel
from bertjax.model.task_models import (
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSentenceEmbedding,
    BertForSequenceClassification,
    BertForTokenClassification,
    load,
)
from bertjax.model.types import ModelOutput, Numerics, Overrides
from bertjax.results.directory import SavedResults, read_results

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
