"""Read PyTorch models of transformers, sentence-transformers and peft that are in memory.

Nothing is written to disk, and the models are not changed. The libraries are not imported: a program with such a model
has imported them.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from bertjax import arguments
from bertjax.checkpoints.adapters import merge
from bertjax.checkpoints.config import BertConfig
from bertjax.checkpoints.sentence_modules import Module, dense_weights, module_kinds, vector_options
from bertjax.checkpoints.sentence_transformers import (
    CROSS_ENCODER,
    TRANSFORMER,
    TextSettings,
    check_cross_encoder,
    check_settings,
    score_activation,
    text_settings,
)
from bertjax.checkpoints.tensor_names import is_known
from bertjax.checkpoints.torch_models import read_torch_model
from bertjax.checkpoints.weight_files import torch_arrays
from bertjax.errors import CheckpointError, ConfigError, some_of

EXPECTED = (
    "a PyTorch model: one of transformers, a SentenceTransformer or CrossEncoder of sentence-transformers, or a "
    "PeftModel of peft"
)


@dataclass(frozen=True)
class InMemory:
    """Content of a PyTorch model in memory.

    Args:
        name: name such as 'BertModel in memory'.
        config: config of encoder and head.
        weights: tensors under canonical names.
        tokenizer: tokenizer of transformers that belongs to the model, or None.
        text: text settings of sentence-transformers.
        vectors: `vector_options` of a sentence embedder; None for other models.
        dense: parameters of the dense layers of a sentence embedder, by path.
    """

    name: str
    config: BertConfig
    weights: Mapping[str, np.ndarray]
    tokenizer: Any = None
    text: TextSettings = field(default_factory=TextSettings)
    vectors: Mapping[str, Any] | None = None
    dense: Mapping[str, np.ndarray] = field(default_factory=dict)


def read_in_memory(model: Any) -> InMemory:
    """Read a PyTorch model in memory.

    Args:
        model: a model of transformers, sentence-transformers or peft.

    Raises:
        InputError: not such a model.
        ConfigError: an unsupported class, setting or module.
        CheckpointError: its tensors are not those of its class, or an adapter cannot be merged.
    """
    name = f"{type(model).__name__} in memory"
    if _is_a(model, "sentence_transformers", "SentenceTransformer"):
        return _read_embedder(model, name)
    if _is_a(model, "sentence_transformers", CROSS_ENCODER):
        return _read_cross_encoder(model, name)
    return InMemory(name, *_read_encoder(model, name))


def _is_a(model: Any, library: str, *names: str) -> bool:
    """Whether a model is an instance of a class of a library, which may not be imported."""
    module = sys.modules.get(library)
    return module is not None and isinstance(model, tuple(getattr(module, name) for name in names))


def _read_encoder(
    model: Any, source: str, settings: Mapping[str, Any] | None = None
) -> tuple[BertConfig, dict[str, np.ndarray]]:
    """The config and tensors of a model of transformers or peft; adapters are merged in a copy.

    Args:
        settings: further keys of its config.json.
    """
    if _is_a(model, "peft", "PeftModel", "PeftMixedModel") or getattr(model, "_hf_peft_config_loaded", False):
        model = merge(model, source)
    if not _is_a(model, "transformers", "PreTrainedModel"):
        arguments.refuse("model", EXPECTED, model)
    name = type(model).__name__
    if type(model) is not getattr(sys.modules["transformers"], name, None):
        raise ConfigError(f"{source}: {name} is not a class of transformers, so its computation is unknown")
    described = json.loads(model.config.to_json_string(use_diff=False)) | {"architectures": [name], **(settings or {})}
    config, weights = read_torch_model(described, model.state_dict(), source)
    if unknown := sorted(tensor for tensor in weights if not is_known(tensor, config.family)):
        raise CheckpointError(
            f"{source}: {name} of transformers has no tensor {some_of(unknown, most=2)}; undo what replaced its modules"
        )
    return config, weights


def _read_embedder(model: Any, source: str) -> InMemory:
    """Read a `SentenceTransformer`, with the same checks as a directory."""
    kinds = module_kinds(source, _types(model))
    modules = [
        Module(kind, f"{source}: {kind}", _settings(module), partial(_tensors, module, source))
        for kind, module in zip(kinds, model, strict=True)
    ]
    text = _read_text(model, source, similarity_fn_name=model.similarity_fn_name, truncate_dim=model.truncate_dim)
    vectors = vector_options(source, modules, text)
    dense = dense_weights(modules, vectors["dense"])
    config, weights = _read_encoder(model[0].auto_model, source)
    return InMemory(source, config, weights, model.tokenizer, text, vectors, dense)


def _read_cross_encoder(model: Any, source: str) -> InMemory:
    """Read a `CrossEncoder`: a classifier and the activation of its score."""
    check_cross_encoder(source, _types(model))
    check_settings(f"{source}: Transformer", _settings(model[0]), TRANSFORMER, ("do_lower_case",), CROSS_ENCODER)
    activation = _type_of(model.activation_fn)
    score_activation(source, activation)
    settings = {"sentence_transformers": {"activation_fn": activation}}
    config, weights = _read_encoder(model[0].auto_model, source, settings)
    return InMemory(source, config, weights, model.tokenizer, _read_text(model, source))


def _types(model: Any) -> list[str]:
    """Types of its modules, as in modules.json."""
    return [_type_of(module) for module in model]


def _type_of(module: Any) -> str:
    """The class of a module, as in modules.json, which cannot express that a GELU is approximate."""
    kind, approximate = type(module), getattr(module, "approximate", "none")
    return f"{kind.__module__}.{kind.__name__}" + (f"({approximate})" if approximate != "none" else "")


def _settings(module: Any) -> dict[str, Any]:
    """Settings of a module, as in its file."""
    settings: dict[str, Any] = json.loads(json.dumps(module.get_config_dict()))
    if "activation_function" in settings:
        settings["activation_function"] = _type_of(module.activation_function)
    return settings


def _tensors(module: Any, source: str) -> dict[str, np.ndarray]:
    return torch_arrays(source, module.state_dict())


def _read_text(model: Any, source: str, **settings: Any) -> TextSettings:
    """Text settings of a model of sentence-transformers."""
    settings |= {"prompts": dict(model.prompts), "default_prompt_name": model.default_prompt_name}
    return text_settings(source, _settings(model[0]), source, settings)
