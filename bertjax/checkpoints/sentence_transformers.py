"""What a sentence-transformers directory says of texts and scores; of vectors `sentence_modules` says more.

modules.json                           the modules and their order
sentence_bert_config.json              of the Transformer: longest text, lower-casing, which output it gives
config_sentence_transformers.json      embedder or cross-encoder, prompts that are put before each text

As in `config.py`, a key is handled, harmless, or refused by name: one that bertjax ignored could change vectors
without a word.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertjax.errors import ConfigError, some_of
from bertjax.json_files import read_json, show
from bertjax.paths import is_there

MODULES, TRANSFORMER, PROMPTS = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
CROSS_ENCODER = "CrossEncoder"
# How the Transformer's file was called by the first versions, by family.
_OLDER = [f"sentence_{name}_config.json" for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta")]

# Where the library has had its modules: until 5.3, and since 5.4 in parts.
_PACKAGES = ("models", "base.modules", "sentence_transformer.modules")
KINDS = ("Transformer", "Pooling", "Dense", "Normalize")
_TYPES = {
    f"sentence_transformers.{package}.{place}{kind}": kind
    for kind in KINDS
    for package in _PACKAGES
    for place in ("", f"{kind}.", f"{kind.lower()}.")
}

# PyTorch's activations, by the names that bertjax has for them; each also as `torch.nn.Tanh` and the like.
TORCH_ACTIVATIONS = {
    "identity": "torch.nn.modules.linear.Identity",
    **{
        name.lower(): f"torch.nn.modules.activation.{name}"
        for name in ("Sigmoid", "Tanh", "ReLU", "GELU", "SiLU")  # GELU's default is the exact one
    },
}


TEXT_KEYS = ("max_seq_length", "do_lower_case")


def _gives(output: str) -> dict[str, Any]:
    return {"text": {"method": "forward", "method_output_name": output}}


# What the Transformer gives to what follows, by how its vector is made; of each key the values that say so.
OUTPUT_SETTINGS: dict[str, dict[str, tuple[Any, ...]]] = {
    "tokens": {
        "transformer_task": ("feature-extraction", None),
        "modality_config": (_gives("last_hidden_state"), {}, None),
        "module_output_name": ("token_embeddings", None),
    },
    "pooler": {
        "transformer_task": ("feature-extraction", None),
        "modality_config": (_gives("pooler_output"),),
        "module_output_name": ("sentence_embedding",),
    },
    CROSS_ENCODER: {
        "transformer_task": ("sequence-classification",),
        "modality_config": (_gives("logits"), {}, None),
        "module_output_name": ("scores", None),
        "max_seq_length": (None,),  # of newer versions the tokenizer's own
    },
}

# Keys that change nothing at these values, and are refused at any other.
_HARMLESS_ONLY_AT: dict[str, dict[str, tuple[Any, ...]]] = {
    TRANSFORMER: {
        "processing_kwargs": ({}, None),
        **dict.fromkeys(("query_length", "document_length", "query_expansion"), (None,)),
        **dict.fromkeys(("model_args", "tokenizer_args", "config_args"), ({}, None)),
        **dict.fromkeys(("model_kwargs", "processor_kwargs", "config_kwargs"), ({}, None)),
    },
    PROMPTS: {"model_type": ("SentenceTransformer", CROSS_ENCODER, None), "truncate_dim": (None,)},
    "Dense": {
        "module_input_name": ("sentence_embedding",),
        "module_output_name": ("sentence_embedding", None),
        "use_residual": (False,),
    },
    "Normalize": {
        "module_input_name": ("sentence_embedding", None),
        "module_output_name": ("sentence_embedding", None),
    },
}
_HARMLESS = {
    TRANSFORMER: {"unpad_inputs"},
    PROMPTS: {"__version__", "requirements", "keep_in_fp32_modules"},
    "Dense": set(),
    "Normalize": set(),
}


@dataclass(frozen=True)
class TextSettings:
    """What is done to a text before its tokens are numbered.

    Args:
        max_length: tokens after which a text is cut, or None for as many as the tokenizer and the model take.
        do_lower_case: whether letters become small before all else.
        prompt: what is put before each text.
        prompts: what may be put there instead, by name.
    """

    max_length: int | None = None
    do_lower_case: bool = False
    prompt: str = ""
    prompts: Mapping[str, str] = field(default_factory=dict)


class SentenceSettingsWarning(UserWarning):
    """Something that a sentence-transformers directory says and bertjax does otherwise."""


def is_sentence_directory(directory: Path) -> bool:
    """Whether a directory is an embedder of sentence-transformers. Raises `ConfigError` if it cannot be determined."""
    return is_there(directory / MODULES, ConfigError) and not is_cross_encoder(directory)


def is_cross_encoder(directory: Path) -> bool:
    """Whether a directory is a cross-encoder that sentence-transformers 5.4 or a later version has written."""
    if not is_there(directory / MODULES, ConfigError) or not is_there(directory / PROMPTS, ConfigError):
        return False
    return bool(read_json(directory / PROMPTS, ConfigError).get("model_type") == CROSS_ENCODER)


def transformer_file(directory: Path) -> Path:
    """Where the Transformer's settings are, under this or an older name; they need not be there."""
    paths = [directory / name for name in (TRANSFORMER, *_OLDER)]
    return next((path for path in paths if is_there(path, ConfigError)), paths[0])


def read_text_settings(directory: Path) -> TextSettings:
    """What a sentence-transformers directory says of texts; the defaults where it is none.

    Raises:
        ConfigError: a setting of the wrong type, or one that bertjax does not know.
    """
    if not is_there(directory / MODULES, ConfigError):
        return TextSettings()
    path = transformer_file(directory)
    return text_settings(path, read_file(path), directory / PROMPTS, read_file(directory / PROMPTS))


def text_settings(
    source: str | Path, transformer: Mapping[str, Any], source_of_prompts: str | Path, prompts: Mapping[str, Any]
) -> TextSettings:
    """What is done to texts.

    Args:
        source, source_of_prompts: begin messages about the settings.
        transformer: the Transformer's settings, as its file holds them.
        prompts: the model's settings, as `config_sentence_transformers.json` holds them.

    Raises:
        ConfigError: as `read_text_settings`.
    """
    settings = check_settings(source, transformer, TRANSFORMER, (*TEXT_KEYS, *OUTPUT_SETTINGS["tokens"]))
    longest, lower = settings.get("max_seq_length"), settings.get("do_lower_case") or False
    if longest is not None and (not isinstance(longest, int) or isinstance(longest, bool) or longest < 1):
        raise ConfigError(f"{source}: max_seq_length must be a positive integer or null, found {show(longest)}")
    if not isinstance(lower, bool):
        raise ConfigError(f"{source}: do_lower_case must be true or false, found {show(lower)}")
    texts = {name: prompt or "" for name, prompt in _prompts(source_of_prompts, prompts).items()}
    return TextSettings(longest, lower, _default_prompt(source_of_prompts, prompts), texts)


def _default_prompt(source: str | Path, given: Mapping[str, Any]) -> str:
    """The prompt that is put before every text for which no other is asked."""
    handled = ("prompts", "default_prompt_name", "similarity_fn_name", "activation_fn")
    settings = check_settings(source, given, PROMPTS, handled)
    prompts, name = _prompts(source, settings), settings.get("default_prompt_name")
    if name is not None and name not in (known := ("query", "document", *prompts)):
        raise ConfigError(f"{source}: default_prompt_name is {show(name)}, but the prompts are {some_of(known)}")
    similarity = settings.get("similarity_fn_name")
    if similarity not in (None, "cosine"):
        message = f"{source}: similarity_fn_name is {show(similarity)}; bertjax compares vectors by their cosine"
        warnings.warn(message, SentenceSettingsWarning, stacklevel=4)
    return (prompts.get(name) or "") if name is not None else ""


def _prompts(path: str | Path, settings: Mapping[str, Any]) -> dict[str, str | None]:
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str | None) for prompt in prompts.values()):
        raise ConfigError(f"{path}: prompts must be a table of texts, found {show(prompts)}")
    return prompts


def read_score_activation(directory: Path) -> str | None:
    """The activation of a cross-encoder's score, by bertjax's name; None where no such file says.

    Raises:
        ConfigError: modules besides a Transformer, or settings that bertjax does not know.
    """
    if not is_cross_encoder(directory):
        return None
    path = directory / MODULES
    types = [module.get("type") for module in read_json(path, ConfigError, list) if isinstance(module, dict)]
    check_cross_encoder(path, types)
    read_settings(transformer_file(directory), TRANSFORMER, ("do_lower_case",), CROSS_ENCODER)
    return score_activation(directory / PROMPTS, read_json(directory / PROMPTS, ConfigError).get("activation_fn"))


def check_cross_encoder(source: str | Path, types: Sequence[Any]) -> None:
    """Raise `ConfigError` where a cross-encoder has modules besides a Transformer."""
    if [kind_of_module(kind) for kind in types] != ["Transformer"]:
        found = some_of([str(kind) for kind in types]) if types else "none"
        raise ConfigError(f"{source}: bertjax knows a cross-encoder of a Transformer alone; found {found}")


def score_activation(source: str | Path, given: Any) -> str | None:
    """`activation_of` a cross-encoder's activation_fn; `source` begins the message."""
    try:
        return activation_of(given)
    except ConfigError as error:
        raise ConfigError(f"{source}: activation_fn {error}") from None


def activation_of(given: Any) -> str | None:
    """bertjax's name of an activation of PyTorch, None for none. Raises `ConfigError` for one that it does not know.

    >>> activation_of("torch.nn.modules.activation.Tanh"), activation_of("torch.nn.Identity")
    ('tanh', 'identity')
    """
    if given is None:
        return None
    for name, full in TORCH_ACTIVATIONS.items():
        if given in (full, f"torch.nn.{full.rsplit('.', 1)[1]}"):
            return name
    raise ConfigError(f"is {show(given)}; bertjax knows {', '.join(TORCH_ACTIVATIONS.values())}")


def kind_of_module(given: Any) -> str | None:
    """What a type in modules.json is; None for one that bertjax does not know."""
    return _TYPES.get(given) if isinstance(given, str) else None


def read_settings(path: Path, file: str, handled: Sequence[str], output: str | None = None) -> dict[str, Any]:
    """`check_settings` of a file; none where there is no file."""
    return check_settings(path, read_file(path), file, handled, output)


def read_file(path: Path) -> dict[str, Any]:
    """What a file holds; nothing where there is no file."""
    settings: dict[str, Any] = read_json(path, ConfigError) if is_there(path, ConfigError) else {}
    return settings


def check_settings(
    source: str | Path, settings: Mapping[str, Any], file: str, handled: Sequence[str], output: str | None = None
) -> dict[str, Any]:
    """The settings in a file, or of a module in memory, each handled or without effect.

    Args:
        source: begins messages.
        file: which tables of keys apply.
        handled: keys that the caller reads.
        output: for the Transformer: what it must give, a key of `OUTPUT_SETTINGS`.

    Raises:
        ConfigError: a key or value that bertjax does not know.
    """
    only_at = _HARMLESS_ONLY_AT[file] | OUTPUT_SETTINGS.get(output or "", {})
    # What an absent key stands for must be meant too.
    checked = {**(dict.fromkeys(OUTPUT_SETTINGS[output]) if output is not None else {}), **settings}
    for key, value in checked.items():
        if key in handled or key in _HARMLESS[file]:
            continue
        if key not in only_at:
            raise ConfigError(
                f"{source}: bertjax does not know the key {show(key)} (value {show(value)}), which may change the "
                "vectors; remove it if it does not"
            )
        if value not in only_at[key]:
            raise ConfigError(f"{source}: {key} is {show(value)}; bertjax supports only {only_at[key][0]!r}")
    return checked
