"""What a sentence-transformers directory says beside the model: pooling, maximum length, lower-casing, prompt.

modules.json                           the modules and their order: Transformer, Pooling, perhaps Normalize
sentence_bert_config.json              of the Transformer: longest text, lower-casing
1_Pooling/config.json                  how tokens become one vector
config_sentence_transformers.json      prompts that are put before each text

As in `config.py`, a key is handled, harmless, or refused by name: one that bertjax ignored could change vectors
without a word.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from bertjax.atomic_files import write_json
from bertjax.errors import ConfigError, some_of
from bertjax.json_files import read_json, show
from bertjax.paths import is_there

MODULES, TRANSFORMER, PROMPTS = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"

# Where the library has had its modules: until 5.3, and since 5.4 in parts.
_PACKAGES = ("models", "base.modules", "sentence_transformer.modules")
_KINDS = ("Transformer", "Pooling", "Normalize")
_TYPES = {
    f"sentence_transformers.{package}.{place}{kind}": kind
    for kind in _KINDS
    for package in _PACKAGES
    for place in ("", f"{kind}.", f"{kind.lower()}.")
}
_ORDERS = (_KINDS[:2], _KINDS)
_POOLING = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}

# Keys that change nothing at these values, and are refused at any other.
_HARMLESS_ONLY_AT: dict[str, dict[str, tuple[Any, ...]]] = {
    TRANSFORMER: {
        "transformer_task": ("feature-extraction", None),
        "modality_config": ({"text": {"method": "forward", "method_output_name": "last_hidden_state"}}, {}, None),
        "module_output_name": ("token_embeddings", None),
        "processing_kwargs": ({}, None),
        **dict.fromkeys(("query_length", "document_length", "query_expansion"), (None,)),
        **dict.fromkeys(("model_args", "tokenizer_args", "config_args"), ({}, None)),
        **dict.fromkeys(("model_kwargs", "processor_kwargs", "config_kwargs"), ({}, None)),
    },
    PROMPTS: {"model_type": ("SentenceTransformer", None), "truncate_dim": (None,)},
    "Normalize": {
        "module_input_name": ("sentence_embedding", None),
        "module_output_name": ("sentence_embedding", None),
    },
}
_HARMLESS = {TRANSFORMER: {"unpad_inputs"}, PROMPTS: {"__version__"}, "Normalize": set()}


@dataclass(frozen=True)
class TextSettings:
    """What is done to a text before its tokens are numbered.

    Args:
        max_length: tokens after which a text is cut, or None for as many as the tokenizer and the model take.
        do_lower_case: whether letters become small before all else.
        prompt: what is put before each text.
    """

    max_length: int | None = None
    do_lower_case: bool = False
    prompt: str = ""


class SentenceSettingsWarning(UserWarning):
    """Something that a sentence-transformers directory says and bertjax does otherwise."""


def is_sentence_directory(directory: Path) -> bool:
    """Whether a directory is one of sentence-transformers. Raises `ConfigError` if that cannot be determined."""
    return is_there(directory / MODULES, ConfigError)


def read_pooling(directory: Path) -> dict[str, Any]:
    """`pooling`, `normalize` and `max_length` from a sentence-transformers directory.

    Without `modules.json` the vector is the normalised mean, the commonest form.

    Raises:
        ConfigError: modules other than Transformer, Pooling and perhaps Normalize, in this order; a Transformer in
            another directory; a pooling other than mean and CLS; settings that bertjax does not know.
    """
    if not is_sentence_directory(directory):
        return {}
    paths = _read_modules(directory / MODULES)
    text = read_text_settings(directory)
    pooling, include_prompt = _read_pooling(directory / paths["Pooling"] / "config.json")
    if text.prompt and not include_prompt:
        raise ConfigError(
            f"{directory / paths['Pooling'] / 'config.json'}: include_prompt is false, so that the prompt "
            f"{show(text.prompt, 40)} would be left out of the mean, which bertjax does not do"
        )
    if "Normalize" in paths:
        _read_settings(directory / paths["Normalize"] / "config.json", "Normalize", ())
    return {"pooling": pooling, "normalize": "Normalize" in paths, "max_length": text.max_length}


def read_text_settings(directory: Path) -> TextSettings:
    """What a sentence-transformers directory says of texts; the defaults where it is none.

    Raises:
        ConfigError: a setting of the wrong type, or one that bertjax does not know.
    """
    if not is_sentence_directory(directory):
        return TextSettings()
    path = directory / TRANSFORMER
    settings = _read_settings(path, TRANSFORMER, ("max_seq_length", "do_lower_case"))
    longest, lower = settings.get("max_seq_length"), settings.get("do_lower_case") or False
    if longest is not None and (not isinstance(longest, int) or isinstance(longest, bool) or longest < 1):
        raise ConfigError(f"{path}: max_seq_length must be a positive integer or null, found {show(longest)}")
    if not isinstance(lower, bool):
        raise ConfigError(f"{path}: do_lower_case must be true or false, found {show(lower)}")
    return TextSettings(longest, lower, _read_prompt(directory / PROMPTS))


def write_sentence_files(
    directory: Path, *, hidden_size: int, pooling: str, normalize: bool, text: TextSettings
) -> None:
    """Write what makes a sentence-transformers directory of one that holds an encoder.

    Args:
        directory: the encoder's.
        hidden_size: width of the vectors.
        pooling: 'mean' or 'cls'.
        normalize: whether vectors get length 1.
        text: what is done to texts.

    Raises:
        OutputError: something cannot be written.
    """
    modes = {name: mode == pooling for name, mode in _POOLING.items()}
    write_json(directory / "1_Pooling" / "config.json", {"word_embedding_dimension": hidden_size} | modes)
    write_json(directory / TRANSFORMER, {"max_seq_length": text.max_length, "do_lower_case": text.do_lower_case})
    prompts = {"prompts": {"default": text.prompt}, "default_prompt_name": "default"} if text.prompt else {}
    write_json(directory / PROMPTS, prompts)
    parts = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")][: 2 + normalize]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(parts)
    ]
    write_json(directory / MODULES, modules)


def _read_prompt(path: Path) -> str:
    """The prompt that is put before every text for which no other is asked."""
    settings = _read_settings(path, PROMPTS, ("prompts", "default_prompt_name", "similarity_fn_name"))
    prompts, name = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str | None) for prompt in prompts.values()):
        raise ConfigError(f"{path}: prompts must be a table of texts, found {show(prompts)}")
    if name is not None and name not in (known := ("query", "document", *prompts)):
        raise ConfigError(f"{path}: default_prompt_name is {show(name)}, but the prompts are {some_of(known)}")
    similarity = settings.get("similarity_fn_name")
    if similarity not in (None, "cosine"):
        message = f"{path}: similarity_fn_name is {show(similarity)}; bertjax compares vectors by their cosine"
        warnings.warn(message, SentenceSettingsWarning, stacklevel=3)
    return (prompts.get(name) or "") if name is not None else ""


def _read_modules(path: Path) -> dict[str, str]:
    """Where each module lies, by its kind, in order."""
    modules = read_json(path, ConfigError, list)
    if not all(isinstance(module, dict) and isinstance(module.get("type"), str) for module in modules):
        raise ConfigError(f"{path}: not a list of modules with a type each")
    unknown = [module["type"] for module in modules if module["type"] not in _TYPES]
    if unknown:
        raise ConfigError(
            f"{path}: bertjax knows {', '.join(_KINDS)} of sentence_transformers; found {some_of(unknown)}"
        )
    kinds = tuple(_TYPES[module["type"]] for module in modules)
    if kinds not in _ORDERS:
        orders = " or ".join(", ".join(order) for order in _ORDERS)
        raise ConfigError(f"{path}: the modules must be {orders}, in this order; found {some_of(kinds) or 'none'}")
    paths = {kind: module.get("path", "") for kind, module in zip(kinds, modules, strict=True)}
    for kind, place in paths.items():
        if not isinstance(place, str) or not _is_inside(place):
            raise ConfigError(f"{path}: the path of {kind} must be a directory in this one, found {show(place)}")
    if PurePosixPath(paths["Transformer"]) != PurePosixPath():
        raise ConfigError(
            f"{path}: the Transformer lies in {show(paths['Transformer'])}, but bertjax reads the model beside "
            f"{MODULES}: move its files there, and set its path to ''"
        )
    return paths


def _is_inside(place: str) -> bool:
    parts = PurePosixPath(place)
    return not parts.is_absolute() and ".." not in parts.parts and not set(place) & set("\\:\0")


def _read_pooling(path: Path) -> tuple[str, bool]:
    """The pooling's name, and whether a prompt's tokens count in it."""
    settings = read_json(path, ConfigError)
    flags = {name: value for name, value in settings.items() if name.startswith("pooling_mode_")}
    rest = settings.keys() - flags.keys() - {"pooling_mode", "include_prompt", "word_embedding_dimension"}
    if unknown := sorted(rest - {"embedding_dimension"}):
        raise ConfigError(f"{path}: bertjax does not know the key {show(unknown[0])}, which may change the vectors")
    wrong = [name for name, value in flags.items() if not isinstance(value, bool)]
    include_prompt = settings.get("include_prompt", True)
    if wrong or not isinstance(include_prompt, bool):
        name = wrong[0] if wrong else "include_prompt"
        raise ConfigError(f"{path}: {name} must be true or false, found {show(settings[name])}")
    modes = _as_list(settings["pooling_mode"]) if "pooling_mode" in settings else _chosen(flags)
    if len(modes) != 1 or modes[0] not in _POOLING.values():
        raise ConfigError(f"{path}: pooling {show(modes)} is not supported, only mean or CLS")
    return modes[0], include_prompt


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _chosen(flags: Mapping[str, bool]) -> list[str]:
    """The poolings that are switched on; where none is, the mean, as in sentence-transformers."""
    chosen = [_POOLING.get(name, name.removeprefix("pooling_mode_")) for name, value in flags.items() if value]
    return chosen or ["mean"]


def _read_settings(path: Path, file: str, handled: Sequence[str]) -> dict[str, Any]:
    """The settings in a file, each handled or without effect; none where there is no file."""
    if not is_there(path, ConfigError):
        return {}
    settings: dict[str, Any] = read_json(path, ConfigError)
    for key, value in settings.items():
        if key in handled or key in _HARMLESS[file]:
            continue
        if key not in _HARMLESS_ONLY_AT[file]:
            raise ConfigError(
                f"{path}: bertjax does not know the key {show(key)} (value {show(value)}), which may change the "
                "vectors; remove it if it does not"
            )
        if value not in _HARMLESS_ONLY_AT[file][key]:
            allowed = _HARMLESS_ONLY_AT[file][key][0]
            raise ConfigError(f"{path}: {key} is {show(value)}; bertjax supports only {allowed!r}")
    return settings
