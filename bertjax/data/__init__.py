"""Data: examples from GLUE or from data of your own, and their tokens."""

from bertjax.data.arrow_tables import is_saved_dataset
from bertjax.data.contrasts import CONTRASTS, Contrasts, read_contrasts
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
    glue_file,
    guess_label,
    guess_texts,
    ids_of,
    is_missing,
    missing_labels,
    read_examples,
    read_table,
    whole_number,
)
from bertjax.data.memory import LABEL, is_path, table_of, table_of_texts
from bertjax.data.rankings import (
    Candidates,
    Pool,
    Queries,
    excluding_own,
    is_collection,
    read_collection,
    read_queries,
)
from bertjax.data.source import READABLE, Source, file_and_split, read_sample
from bertjax.data.tables import SUFFIXES, Table, available, brief, numbered_lines, problem_of
from bertjax.data.tfds_glue import prepare
from bertjax.data.tokenizer import Encoding, Tokenizer, batches_by_length, collate

__all__ = [
    "CONTRASTS",
    "CUSTOM",
    "GENERIC",
    "GLUE",
    "LABEL",
    "READABLE",
    "SPELLINGS",
    "SUFFIXES",
    "Candidates",
    "Content",
    "Contrasts",
    "DatasetSpec",
    "Encoding",
    "Examples",
    "Pool",
    "Queries",
    "Source",
    "Table",
    "Tokenizer",
    "available",
    "batches_by_length",
    "brief",
    "collate",
    "draw",
    "excluding_own",
    "file_and_split",
    "glue_file",
    "guess_label",
    "guess_texts",
    "ids_of",
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
    "whole_number",
]
