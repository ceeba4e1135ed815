"""Data: examples of a task, from GLUE or data of your own, and their tokens."""

from bertjax.data.arrow_tables import is_saved_dataset
from bertjax.data.formats.contrasts import CONTRASTS, Contrasts, read_contrasts
from bertjax.data.formats.pairs import MARKS, fill_place
from bertjax.data.formats.tag_schemes import Entity, strict_entities
from bertjax.data.loading import load_examples
from bertjax.data.local_files import glue_file
from bertjax.data.tasks import (
    CUSTOM,
    MASKED,
    SAMPLE,
    TASKS,
    Answers,
    Asks,
    Beside,
    Candidates,
    Choices,
    Examples,
    LabelSet,
    Pool,
    Tagged,
    Task,
    draw,
    plain_label,
    split_named,
    task_named,
)
from bertjax.data.tfds_glue import prepare
from bertjax.data.tokenizer import Encoding, Tokenizer, batches_by_length, collate

__all__ = [
    "CONTRASTS",
    "CUSTOM",
    "MARKS",
    "MASKED",
    "SAMPLE",
    "TASKS",
    "Answers",
    "Asks",
    "Beside",
    "Candidates",
    "Choices",
    "Contrasts",
    "Encoding",
    "Entity",
    "Examples",
    "LabelSet",
    "Pool",
    "Tagged",
    "Task",
    "Tokenizer",
    "batches_by_length",
    "collate",
    "draw",
    "fill_place",
    "glue_file",
    "is_saved_dataset",
    "load_examples",
    "plain_label",
    "prepare",
    "read_contrasts",
    "split_named",
    "strict_entities",
    "task_named",
]
