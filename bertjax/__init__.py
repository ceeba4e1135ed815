"""bertjax: BERT in JAX/Flax for people who study what attention heads do."""

from bertjax import overrides
from bertjax.config import BertConfig
from bertjax.model import BertModel
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
from bertjax.types import Numerics, Overrides

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
    "Numerics",
    "Overrides",
    "Tokenizer",
    "collate",
    "load",
    "overrides",
]
