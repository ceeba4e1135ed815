"""Settings of sentence-transformers for texts and scores; `sentence_modules` reads those for vectors.

modules.json                           the modules and their order
sentence_bert_config.json              settings of the Transformer: longest text, lower-casing, its output
config_sentence_transformers.json      embedder or cross-encoder, prompts

As in `config.py`, each key is read, harmless, or refused by name: an ignored key could change vectors silently.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertjax.checkpoints.rules import FLAG, INTEGER, optional
from bertjax.errors import ConfigError, error_prefix, some_of
from bertjax.json_files import read_json, show
from bertjax.paths import is_there

MODULES, TRANSFORMER, PROMPTS = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
CROSS_ENCODER = "CrossEncoder"
# Names of the Transformer's file in the first versions, by family.
_OLDER = [f"sentence_{name}_config.json" for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta")]

# Packages of the modules: until version 5.3, and since 5.4.
_PACKAGES = ("models", "base.modules", "sentence_transformer.modules")
KINDS = ("Transformer", "Pooling", "Dense", "Normalize")
_TYPES = {
    f"sentence_transformers.{package}.{module}{kind}": kind
    for kind in KINDS
    for package in _PACKAGES
    for module in ("", f"{kind}.", f"{kind.lower()}.")
}

# PyTorch's activations by bertjax's names; `torch.nn.Tanh` and the like are accepted too.
TORCH_ACTIVATIONS = {
    "identity": "torch.nn.modules.linear.Identity",
    **{
        name.lower(): f"torch.nn.modules.activation.{name}"
        for name in ("Sigmoid", "Tanh", "ReLU", "GELU", "SiLU")  # GELU's default is the exact one
    },
}


TEXT_KEYS = ("max_seq_length", "do_lower_case")


def _output(name: str) -> dict[str, Any]:
    return {"text": {"method": "forward", "method_output_name": name}}


# Settings by which the Transformer states its output, with their allowed values, by what is read from it.
OUTPUT_SETTINGS: dict[str, dict[str, tuple[Any, ...]]] = {
    "tokens": {
        "transformer_task": ("feature-extraction", None),
        "modality_config": (_output("last_hidden_state"), {}, None),
        "module_output_name": ("token_embeddings", None),
    },
    "pooler": {
        "transformer_task": ("feature-extraction", None),
        "modality_config": (_output("pooler_output"),),
        "module_output_name": ("sentence_embedding",),
    },
    CROSS_ENCODER: {
        "transformer_task": ("sequence-classification",),
        "modality_config": (_output("logits"), {}, None),
        "module_output_name": ("scores", None),
        "max_seq_length": (None,),  # newer versions use the tokenizer's
    },
}

# Keys by file or module that change nothing at these values, and are refused at any other; at all values if None.
_HARMLESS: dict[str, dict[str, tuple[Any, ...] | None]] = {
    TRANSFORMER: {
        "unpad_inputs": None,
        "processing_kwargs": ({}, None),
        **dict.fromkeys(("query_length", "document_length", "query_expansion"), (None,)),
        **dict.fromkeys(("model_args", "tokenizer_args", "config_args"), ({}, None)),
        **dict.fromkeys(("model_kwargs", "processor_kwargs", "config_kwargs"), ({}, None)),
    },
    PROMPTS: {
        **dict.fromkeys(("__version__", "requirements", "keep_in_fp32_modules")),
        "model_type": ("SentenceTransformer", CROSS_ENCODER, None),
        "truncate_dim": (None,),
    },
    "Dense": {
        "module_input_name": ("sentence_embedding",),
        "module_output_name": ("sentence_embedding", None),
        "use_residual": (False,),
    },
    "Normalize": dict.fromkeys(("module_input_name", "module_output_name"), ("sentence_embedding", None)),
}


@dataclass(frozen=True)
class TextSettings:
    """Settings of sentence-transformers that act on a text before tokenization.

    Args:
        max_length: longest text in tokens, or None for the limit of tokenizer and model.
        do_lower_case: whether the text is lower-cased first.
        prompt: prefix of each text.
        prompts: other prompts by name.
    """

    max_length: int | None = None
    do_lower_case: bool = False
    prompt: str = ""
    prompts: Mapping[str, str] = field(default_factory=dict)


class SentenceSettingsWarning(UserWarning):
    """A setting of sentence-transformers that bertjax replaces by its own behaviour."""


def is_sentence_directory(directory: Path) -> bool:
    """Whether a directory holds an embedder of sentence-transformers. Raises `ConfigError` if it cannot be read.

    Args:
        directory: the directory of a checkpoint.
    """
    return is_there(directory / MODULES, ConfigError) and not is_cross_encoder(directory)


def is_cross_encoder(directory: Path) -> bool:
    """Whether a directory holds a cross-encoder written by sentence-transformers 5.4 or later."""
    if not is_there(directory / MODULES, ConfigError):
        return False
    return bool(read_file(directory / PROMPTS).get("model_type") == CROSS_ENCODER)


def transformer_file(directory: Path) -> Path:
    """Path of the Transformer's settings under their current or an older name; the file may be missing."""
    paths = [directory / name for name in (TRANSFORMER, *_OLDER)]
    return next((path for path in paths if is_there(path, ConfigError)), paths[0])


def read_text_settings(directory: Path) -> TextSettings:
    """Text settings of a directory; the defaults if it is not one of sentence-transformers.

    Args:
        directory: the directory of a checkpoint.

    Raises:
        ConfigError: a setting has the wrong type or is unknown.
    """
    if not is_there(directory / MODULES, ConfigError):
        return TextSettings()
    path = transformer_file(directory)
    return text_settings(path, read_file(path), directory / PROMPTS, read_file(directory / PROMPTS))


def text_settings(
    source: str | Path, transformer: Mapping[str, Any], prompts_source: str | Path, model: Mapping[str, Any]
) -> TextSettings:
    """Text settings of an embedder or cross-encoder.

    Args:
        source: name of the source of the settings in error messages.
        prompts_source: name of the source of the prompts in error messages.
        transformer: settings of the Transformer, as in `sentence_bert_config.json`.
        model: settings of the model, as in `config_sentence_transformers.json`.

    Raises:
        ConfigError: as `read_text_settings`.
    """
    settings = check_settings(source, transformer, TRANSFORMER, (*TEXT_KEYS, *OUTPUT_SETTINGS["tokens"]))
    longest, lower = settings.get("max_seq_length"), settings.get("do_lower_case") or False
    optional(INTEGER).check(longest, f"{source}: max_seq_length")
    FLAG.check(lower, f"{source}: do_lower_case")
    handled = ("prompts", "default_prompt_name", "similarity_fn_name", "activation_fn")
    settings = check_settings(prompts_source, model, PROMPTS, handled)
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str | None) for prompt in prompts.values()):
        raise ConfigError(f"{prompts_source}: prompts must be a dict of strings, found {show(prompts)}")
    if default is not None and default not in (known := ("query", "document", *prompts)):
        found = f"default_prompt_name is {show(default)}, but the prompts are {some_of(known)}"
        raise ConfigError(f"{prompts_source}: {found}")
    similarity = settings.get("similarity_fn_name")
    if similarity not in (None, "cosine"):
        message = f"similarity_fn_name is {show(similarity)}; bertjax compares vectors by their cosine"
        warnings.warn(f"{prompts_source}: {message}", SentenceSettingsWarning, stacklevel=3)
    prompts = {name: prompt or "" for name, prompt in prompts.items()}
    return TextSettings(longest, lower, "" if default is None else prompts.get(default, ""), prompts)


def read_score_activation(directory: Path) -> str | None:
    """bertjax's name of the activation of a cross-encoder's score; None if the directory names none.

    Raises:
        ConfigError: other modules than a Transformer, or unknown settings.
    """
    if not is_cross_encoder(directory):
        return None
    path = directory / MODULES
    listed = read_json(path, ConfigError, list)
    check_cross_encoder(path, [module.get("type") for module in listed if isinstance(module, dict)])
    path = transformer_file(directory)
    check_settings(path, read_file(path), TRANSFORMER, ("do_lower_case",), CROSS_ENCODER)
    return score_activation(directory / PROMPTS, read_file(directory / PROMPTS).get("activation_fn"))


def check_cross_encoder(source: str | Path, types: Sequence[Any]) -> None:
    """Raise `ConfigError` if a cross-encoder has other modules than a Transformer."""
    if [kind_of_module(kind) for kind in types] != ["Transformer"]:
        found = some_of([str(kind) for kind in types]) if types else "none"
        raise ConfigError(f"{source}: bertjax supports cross-encoders with a single Transformer; found {found}")


def score_activation(source: str | Path, activation: Any) -> str | None:
    """`activation_of` a cross-encoder's activation_fn; `source` begins error messages."""
    with error_prefix(f"{source}: activation_fn "):
        return activation_of(activation)


def activation_of(activation: Any) -> str | None:
    """bertjax's name of an activation of PyTorch, None for None. Raises `ConfigError` for an unknown one.

    >>> activation_of("torch.nn.modules.activation.Tanh"), activation_of("torch.nn.Identity")
    ('tanh', 'identity')
    """
    if activation is None:
        return None
    for name, full in TORCH_ACTIVATIONS.items():
        if activation in (full, f"torch.nn.{full.rsplit('.', 1)[1]}"):
            return name
    raise ConfigError(f"is {show(activation)}; bertjax knows {', '.join(TORCH_ACTIVATIONS.values())}")


def kind_of_module(kind: Any) -> str | None:
    """The kind of a module from its type in modules.json; None for an unknown one."""
    return _TYPES.get(kind) if isinstance(kind, str) else None


def read_file(path: Path) -> dict[str, Any]:
    """Settings in a file; none if there is no file."""
    settings: dict[str, Any] = read_json(path, ConfigError) if is_there(path, ConfigError) else {}
    return settings


def check_settings(
    source: str | Path, settings: Mapping[str, Any], file: str, handled: Sequence[str], output: str | None = None
) -> dict[str, Any]:
    """Check that each setting of a file, or of a module in memory, is handled by the caller or has no effect.

    Args:
        source: name of the source in error messages.
        settings: settings by key.
        file: table of harmless keys that applies.
        handled: keys that the caller reads.
        output: output that the Transformer must have, a key of `OUTPUT_SETTINGS`.

    Raises:
        ConfigError: an unknown key or value.
    """
    outputs = OUTPUT_SETTINGS.get(output or "", {})
    harmless = _HARMLESS[file] | outputs
    checked = {**dict.fromkeys(outputs), **settings}  # a missing output setting means its default, None
    for key, value in checked.items():
        if key in handled:
            continue
        if key not in harmless:
            raise ConfigError(
                f"{source}: bertjax does not know the key {show(key)} (value {show(value)}), which may change the "
                "vectors; remove it if it does not"
            )
        allowed = harmless[key]
        if allowed is not None and value not in allowed:
            raise ConfigError(f"{source}: {key} is {show(value)}; bertjax supports only {allowed[0]!r}")
    return checked
