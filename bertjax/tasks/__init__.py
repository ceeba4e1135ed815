"""Tasks: what a model is asked of each example, and what of its answer is kept for the metrics."""

from bertjax.tasks.encoded import Asked, Encoded, TaskResult, batch_encodings
from bertjax.tasks.encoding import encode_examples, is_regression, models_of
from bertjax.tasks.forms import FORMS, Chosen, Form, cosine, label_order, metrics_of, positive_label
from bertjax.tasks.masked_words import UNKNOWN, hide, name_unknown
from bertjax.tasks.minimal_pairs import differing_piece
from bertjax.tasks.options import PLL, Options

__all__ = [
    "FORMS",
    "PLL",
    "UNKNOWN",
    "Asked",
    "Chosen",
    "Encoded",
    "Form",
    "Options",
    "TaskResult",
    "batch_encodings",
    "cosine",
    "differing_piece",
    "encode_examples",
    "hide",
    "is_regression",
    "label_order",
    "metrics_of",
    "models_of",
    "name_unknown",
    "positive_label",
]
