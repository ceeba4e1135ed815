"""Data: examples from GLUE or from files and objects of the user, and the tokenizer."""

from bertjax.data.arrow_tables import is_saved_dataset
from bertjax.data.contrasts import CommonTexts, Contrasts, read_contrasts
from bertjax.data.examples import (
    CUSTOM,
    GLUE,
    SPELLINGS,
    Content,
    DatasetSpec,
    Examples,
    draw,
    look_up,
    plain_label,
    split_named,
)
from bertjax.data.glue_by_name import read_by_name
from bertjax.data.local_files import (
    GENERIC,
    as_int,
    glue_file,
    guess_label,
    guess_texts,
    is_missing,
    missing_labels,
    read_examples,
    read_table,
)
from bertjax.data.memory import LABEL, is_path, table_of, table_of_texts
from bertjax.data.rankings import (
    Candidates,
    Queries,
    exclude_own_documents,
    is_collection,
    read_collection,
    read_queries,
)
from bertjax.data.source import READABLE, Source, file_and_split, read_sample
from bertjax.data.tables import SUFFIXES, Table, available, brief, numbered_lines, problem_of
from bertjax.data.tfds_glue import prepare
from bertjax.data.tokenizer import Encoding, Tokenizer, batches_by_length, collate

__all__ = [
    "CUSTOM",
    "GENERIC",
    "GLUE",
    "LABEL",
    "READABLE",
    "SPELLINGS",
    "SUFFIXES",
    "Candidates",
    "CommonTexts",
    "Content",
    "Contrasts",
    "DatasetSpec",
    "Encoding",
    "Examples",
    "Queries",
    "Source",
    "Table",
    "Tokenizer",
    "as_int",
    "available",
    "batches_by_length",
    "brief",
    "collate",
    "draw",
    "exclude_own_documents",
    "file_and_split",
    "glue_file",
    "guess_label",
    "guess_texts",
    "is_collection",
    "is_missing",
    "is_path",
    "is_saved_dataset",
    "look_up",
    "missing_labels",
    "numbered_lines",
    "plain_label",
    "prepare",
    "problem_of",
    "read_by_name",
    "read_collection",
    "read_contrasts",
    "read_examples",
    "read_queries",
    "read_sample",
    "read_table",
    "split_named",
    "table_of",
    "table_of_texts",
]
