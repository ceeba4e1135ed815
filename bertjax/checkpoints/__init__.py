"""Checkpoints: files, configs, weights and names of tensors."""

from bertjax.checkpoints import architecture, tensor_names
from bertjax.checkpoints.adapters import (
    holds_adapter,
    locate_base,
    name_base,
    read_checkpoint,
    read_config,
    texts_directory,
)
from bertjax.checkpoints.architecture import (
    HeadPlan,
    LayerKind,
    RelativePositions,
)
from bertjax.checkpoints.config import BertConfig
from bertjax.checkpoints.families import FAMILIES
from bertjax.checkpoints.in_memory import InMemory, read_in_memory
from bertjax.checkpoints.location import DEFAULT_MODEL, HubOptions, has_tokenizer, locate
from bertjax.checkpoints.saved_files import MODEL, MODEL_FILES, TOKENIZER, TOKENIZER_FILES, check_saving, saving
from bertjax.checkpoints.sentence_modules import (
    DensePlan,
    SentenceModules,
    includes_prompts,
    read_dense_weights,
    read_pooling,
    sentence_file_names,
    write_sentence_files,
)
from bertjax.checkpoints.sentence_transformers import (
    TextSettings,
    is_sentence_directory,
    read_text_settings,
)
from bertjax.checkpoints.weight_files import CheckpointWarning, hash_weights, write_weights

__all__ = [
    "DEFAULT_MODEL",
    "FAMILIES",
    "MODEL",
    "MODEL_FILES",
    "TOKENIZER",
    "TOKENIZER_FILES",
    "BertConfig",
    "CheckpointWarning",
    "DensePlan",
    "HeadPlan",
    "HubOptions",
    "InMemory",
    "LayerKind",
    "RelativePositions",
    "SentenceModules",
    "TextSettings",
    "architecture",
    "check_saving",
    "has_tokenizer",
    "hash_weights",
    "holds_adapter",
    "includes_prompts",
    "is_sentence_directory",
    "locate",
    "locate_base",
    "name_base",
    "read_checkpoint",
    "read_config",
    "read_dense_weights",
    "read_in_memory",
    "read_pooling",
    "read_text_settings",
    "saving",
    "sentence_file_names",
    "tensor_names",
    "texts_directory",
    "write_sentence_files",
    "write_weights",
]
