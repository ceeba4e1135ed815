"""Checkpoints: where a model's files are, what its config says, and which of its tensors is which parameter."""

from bertjax.checkpoints import architecture, tensor_names
from bertjax.checkpoints.adapters import (
    hash_checkpoint,
    holds_adapter,
    locate_base,
    name_base,
    read_checkpoint,
    read_config,
    texts_directory,
)
from bertjax.checkpoints.architecture import (
    Architecture,
    DropoutRates,
    EmbeddingPlan,
    HeadPlan,
    LayerKind,
    RelativePositions,
)
from bertjax.checkpoints.config import BertConfig
from bertjax.checkpoints.families import FAMILIES, Family
from bertjax.checkpoints.in_memory import InMemory, read_in_memory
from bertjax.checkpoints.location import DEFAULT_MODEL, BaseOptions, HubOptions, base_options, has_tokenizer, locate
from bertjax.checkpoints.saved_files import MODEL, MODEL_FILES, TOKENIZER, TOKENIZER_FILES, check_saving, saving
from bertjax.checkpoints.sentence_modules import (
    DensePlan,
    SentenceModules,
    read_dense_weights,
    read_pooling,
    sentence_file_names,
    write_sentence_files,
)
from bertjax.checkpoints.sentence_transformers import (
    TORCH_ACTIVATIONS,
    TextSettings,
    is_sentence_directory,
    read_text_settings,
)
from bertjax.checkpoints.weight_files import CheckpointWarning, hash_weights, read_weights, write_weights

__all__ = [
    "DEFAULT_MODEL",
    "FAMILIES",
    "MODEL",
    "MODEL_FILES",
    "TOKENIZER",
    "TOKENIZER_FILES",
    "TORCH_ACTIVATIONS",
    "Architecture",
    "BaseOptions",
    "BertConfig",
    "CheckpointWarning",
    "DensePlan",
    "DropoutRates",
    "EmbeddingPlan",
    "Family",
    "HeadPlan",
    "HubOptions",
    "InMemory",
    "LayerKind",
    "RelativePositions",
    "SentenceModules",
    "TextSettings",
    "architecture",
    "base_options",
    "check_saving",
    "has_tokenizer",
    "hash_checkpoint",
    "hash_weights",
    "holds_adapter",
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
    "read_weights",
    "saving",
    "sentence_file_names",
    "tensor_names",
    "texts_directory",
    "write_sentence_files",
    "write_weights",
]
