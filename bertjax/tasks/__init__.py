"""Tasks: one file for each kind, from its data to the outputs that metrics read. `TASKS` lists all by name."""

from bertjax.tasks.classification import (
    SAMPLE,
    TextClassification,
    cosine,
    is_regression,
    label_order,
    positive_label,
)
from bertjax.tasks.encoded import (
    EncodedDataset,
    SharedEncodings,
    TargetPositions,
    TaskResult,
    TextEncodings,
    TokenEncodings,
    batch_encodings,
)
from bertjax.tasks.entities import Annotation, Edge, Tagged
from bertjax.tasks.masked_words import MASKED, UNKNOWN, MaskedWordsOptions, hide
from bertjax.tasks.minimal_pairs import MARKS, MinimalPairsOptions, differing_piece, fill_template
from bertjax.tasks.outputs import Form, Objective, OutputSpec
from bertjax.tasks.question_answering import QuestionAnsweringOptions
from bertjax.tasks.ranking import RankingOptions
from bertjax.tasks.registry import TASKS, encode_examples, form_named, load_examples, task_named
from bertjax.tasks.task import Chosen, EncodeArguments, Task, TaskOptions, as_task, metrics_of
from bertjax.tasks.token_classification import ENTITY as TAG_OF_SCHEME
from bertjax.tasks.token_classification import TAGGING, TagOptions, spans_of

__all__ = [
    "MARKS",
    "MASKED",
    "SAMPLE",
    "TAGGING",
    "TAG_OF_SCHEME",
    "TASKS",
    "UNKNOWN",
    "Annotation",
    "Chosen",
    "Edge",
    "EncodeArguments",
    "EncodedDataset",
    "Form",
    "MaskedWordsOptions",
    "MinimalPairsOptions",
    "Objective",
    "OutputSpec",
    "QuestionAnsweringOptions",
    "RankingOptions",
    "SharedEncodings",
    "TagOptions",
    "Tagged",
    "TargetPositions",
    "Task",
    "TaskOptions",
    "TaskResult",
    "TextClassification",
    "TextEncodings",
    "TokenEncodings",
    "as_task",
    "batch_encodings",
    "cosine",
    "differing_piece",
    "encode_examples",
    "fill_template",
    "form_named",
    "hide",
    "is_regression",
    "label_order",
    "load_examples",
    "metrics_of",
    "positive_label",
    "spans_of",
    "task_named",
]
