"""Modules of sentence-transformers: how an embedder makes the vector of a text, read and written.

modules.json            the modules in order: Transformer, Pooling, any number of Dense, optionally Normalize
1_Pooling/config.json   pooling of the tokens' vectors; without it the vector is that of the Transformer's pooler
2_Dense/                sizes and weights of a dense layer
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from bertjax.atomic_files import write_json
from bertjax.checkpoints.rules import FLAG, INTEGER
from bertjax.checkpoints.sentence_transformers import (
    KINDS,
    MODULES,
    OUTPUT_SETTINGS,
    PROMPTS,
    TEXT_KEYS,
    TORCH_ACTIVATIONS,
    TRANSFORMER,
    TextSettings,
    activation_of,
    check_settings,
    is_sentence_directory,
    kind_of_module,
    read_file,
    read_text_settings,
    transformer_file,
)
from bertjax.checkpoints.weight_files import read_tensors, write_weights
from bertjax.errors import CheckpointError, ConfigError, error_prefix, some_of
from bertjax.json_files import read_json, show

# Poolings by their flags in older files, in the order in which several are joined.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ALWAYS_WRITTEN = ("pooling_mode_cls_token", "pooling_mode_mean_tokens")  # the mean is the default
_POOLER: tuple[str, ...] = ("pooler",)
_ORDER = re.compile("Transformer( Pooling)?( Dense)*( Normalize)?")
_ORDER_IN_WORDS = "Transformer, Pooling, any number of Dense, and optionally Normalize"


@dataclass(frozen=True)
class DensePlan:
    """A dense layer on sentence vectors.

    Args:
        inputs: width of its input.
        outputs: width of its output.
        bias: whether it has a bias.
        activation: 'tanh', 'identity', 'sigmoid', 'relu', 'gelu' or 'silu'.
    """

    inputs: int
    outputs: int
    bias: bool = True
    activation: str = "tanh"


@dataclass(frozen=True)
class SentenceModules:
    """Modules that make a sentence vector from hidden states.

    Args:
        width: width of the hidden states.
        poolings: names of the poolings, in the order in which their vectors are joined.
        dense: dense layers, in order.
        normalize: whether vectors are scaled to length 1.
        include_prompt: whether sentence-transformers includes the tokens of a prompt in the pooling.
    """

    width: int
    poolings: tuple[str, ...]
    dense: tuple[DensePlan, ...]
    normalize: bool
    include_prompt: bool = True


@dataclass(frozen=True)
class Module:
    """A module of sentence-transformers, in a directory or in memory.

    Args:
        kind: 'Transformer', 'Pooling', 'Dense' or 'Normalize'.
        source: name of the source of its settings in error messages.
        settings: settings as in its file.
        read: reads its tensors.
    """

    kind: str
    source: str | Path
    settings: Mapping[str, Any]
    read: Callable[[], Mapping[str, np.ndarray]]


def read_pooling(directory: Path) -> dict[str, Any]:
    """`vector_options` of a directory; empty without `modules.json`, which stands for the normalised mean.

    Args:
        directory: the directory of a checkpoint.

    Raises:
        ConfigError: as `vector_options` and `module_kinds`, or the Transformer is in another directory.
    """
    if not is_sentence_directory(directory):
        return {}
    return vector_options(directory / MODULES, _read_modules(directory), read_text_settings(directory))


def includes_prompts(directory: Path) -> bool:
    """Whether the pooling of a directory includes the tokens of a prompt; nothing else is checked.

    Args:
        directory: the directory of a checkpoint.
    """
    if not is_sentence_directory(directory):
        return True
    for module in read_json(directory / MODULES, ConfigError, list):
        folder = module.get("path", "") if isinstance(module, dict) else None
        if isinstance(folder, str) and _is_inside(folder) and kind_of_module(module.get("type")) == "Pooling":
            settings = read_json(directory / folder / "config.json", ConfigError)
            return settings.get("include_prompt", True) is not False
    return True


def vector_options(source: str | Path, modules: Sequence[Module], text: TextSettings) -> dict[str, Any]:
    """Options of `BertForSentenceEmbedding`: `pooling`, `normalize`, `dense`, `max_length` and `include_prompt`.

    Args:
        source: name of the list of modules in error messages.
        modules: modules in an order that `module_kinds` allows.
        text: text settings of the model.

    Raises:
        ConfigError: unknown settings.
    """
    by_kind = {module.kind: module for module in modules}
    pooling, normalize = by_kind.get("Pooling"), by_kind.get("Normalize")
    _check_output(source, by_kind["Transformer"], "tokens" if pooling else "pooler")
    poolings, include_prompt = _POOLER, True
    if pooling:
        poolings, include_prompt = _poolings(pooling)
        if text.prompt and not include_prompt:
            raise ConfigError(
                f"{pooling.source}: include_prompt is false, which would exclude the prompt {show(text.prompt, 40)} "
                "from the pooling; bertjax does not support that"
            )
    if normalize:
        check_settings(normalize.source, normalize.settings, "Normalize", ())
    return {
        "pooling": poolings[0] if len(poolings) == 1 else poolings,
        "normalize": normalize is not None,
        "dense": tuple(_dense_plan(module) for module in modules if module.kind == "Dense"),
        "max_length": text.max_length,
        "include_prompt": include_prompt,
    }


def _check_output(source: str | Path, transformer: Module, output: str) -> None:
    """Raise `ConfigError` if the output of the Transformer is not what the next module reads."""
    settings = transformer.settings
    handled = (*TEXT_KEYS, *OUTPUT_SETTINGS[output])
    name = check_settings(transformer.source, settings, TRANSFORMER, handled).get("module_output_name")
    if output == "pooler" and name in OUTPUT_SETTINGS["tokens"]["module_output_name"]:
        raise ConfigError(
            f"{source}: the modules must be {_ORDER_IN_WORDS}, in this order; without Pooling the Transformer must "
            f"return the vector of its pooler, but its module_output_name is {show(name)}"
        )
    check_settings(transformer.source, settings, TRANSFORMER, TEXT_KEYS, output)


def read_dense_weights(directory: Path, plans: Sequence[DensePlan]) -> dict[str, np.ndarray]:
    """`dense_weights` of a directory.

    Args:
        directory: the directory of a checkpoint.
        plans: the dense layers, in their order.
    """
    if not plans or not is_sentence_directory(directory):
        return {}
    return dense_weights(_read_modules(directory), plans)


def dense_weights(modules: Sequence[Module], plans: Sequence[DensePlan]) -> dict[str, np.ndarray]:
    """Kernels and biases of the dense layers by the paths of their parameters.

    Raises:
        CheckpointError: weights are missing, damaged, or of other sizes than in the settings.
    """
    parameters = {}
    dense = [module for module in modules if module.kind == "Dense"]
    for index, (plan, module) in enumerate(zip(plans, dense, strict=True)):
        tensors = module.read()
        bias = {"linear.bias": (plan.outputs,)} if plan.bias else {}
        expected = {"linear.weight": (plan.outputs, plan.inputs)} | bias
        found = {name: tensor.shape for name, tensor in tensors.items()}
        if found != expected:
            raise CheckpointError(f"{module.source}: the tensors must be {expected}, found {found}")
        parameters[f"dense.{index}.kernel"] = tensors["linear.weight"].T
        if plan.bias:
            parameters[f"dense.{index}.bias"] = tensors["linear.bias"]
    return parameters


def write_sentence_files(
    directory: Path, modules: SentenceModules, parameters: Mapping[str, np.ndarray], text: TextSettings
) -> None:
    """Write the files of sentence-transformers into the directory of an encoder.

    Args:
        directory: directory of the encoder.
        modules: modules to write.
        parameters: parameters of the dense layers by path.
        text: text settings of the model.

    Raises:
        OutputError: a file cannot be written.
    """
    parts, uses_pooler = _parts(modules), modules.poolings == _POOLER
    if not uses_pooler:
        write_json(directory / "1_Pooling" / "config.json", _pooling_settings(modules))
    paths = [path for path, kind in parts if kind == "Dense"]
    for index, (plan, path) in enumerate(zip(modules.dense, paths, strict=True)):
        _write_dense(directory / path, plan, index, parameters)
    pooler = {key: allowed[0] for key, allowed in OUTPUT_SETTINGS["pooler"].items()}
    settings = {"max_seq_length": text.max_length, "do_lower_case": text.do_lower_case}
    write_json(directory / TRANSFORMER, settings | (pooler if uses_pooler else {}))
    write_json(directory / PROMPTS, _prompt_settings(text))
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(parts)
    ]
    write_json(directory / MODULES, listed)


def sentence_file_names(modules: SentenceModules) -> list[str]:
    """Paths of the files that `write_sentence_files` writes, relative to the directory.

    Args:
        modules: the modules of the sentence embedder.
    """
    of_kind = {"Pooling": ("config.json",), "Dense": ("config.json", "model.safetensors")}
    files = [f"{path}/{name}" for path, kind in _parts(modules) for name in of_kind.get(kind, ())]
    return [MODULES, TRANSFORMER, PROMPTS, *files]


def _parts(modules: SentenceModules) -> list[tuple[str, str]]:
    """Directory and kind of each module, in order."""
    kinds = ["Transformer", *([] if modules.poolings == _POOLER else ["Pooling"]), *["Dense"] * len(modules.dense)]
    kinds += ["Normalize"] * modules.normalize
    return [(f"{index}_{kind}" if index else "", kind) for index, kind in enumerate(kinds)]


def _pooling_settings(modules: SentenceModules) -> dict[str, Any]:
    """Flags, which all versions read, unless they cannot express the order of the poolings."""
    settings: dict[str, Any] = {"word_embedding_dimension": modules.width}
    settings |= {} if modules.include_prompt else {"include_prompt": False}
    if modules.poolings != tuple(name for name in _FLAGS.values() if name in modules.poolings):
        return settings | {"pooling_mode": list(modules.poolings)}
    flags = {flag: name in modules.poolings for flag, name in _FLAGS.items()}
    return settings | {flag: on for flag, on in flags.items() if on or flag in _ALWAYS_WRITTEN}


def _write_dense(directory: Path, plan: DensePlan, index: int, parameters: Mapping[str, np.ndarray]) -> None:
    settings = {
        "in_features": plan.inputs,
        "out_features": plan.outputs,
        "bias": plan.bias,
        "activation_function": TORCH_ACTIVATIONS[plan.activation],
    }
    tensors = {"linear.weight": np.ascontiguousarray(parameters[f"dense.{index}.kernel"].T)}
    if plan.bias:
        tensors["linear.bias"] = parameters[f"dense.{index}.bias"]
    write_weights(directory, tensors, settings)


def _prompt_settings(text: TextSettings) -> dict[str, Any]:
    """The prompts and the name of the default one, which gets a new name if it has none."""
    prompts = dict(text.prompts)
    if not text.prompt:
        return {"prompts": prompts} if prompts else {}
    names = [name for name, prompt in prompts.items() if prompt == text.prompt]
    new = (name for index in count(1) if (name := f"default {index}".removesuffix(" 1")) not in prompts)
    name = names[0] if names else next(new)
    return {"prompts": prompts | {name: text.prompt}, "default_prompt_name": name}


def _read_modules(directory: Path) -> list[Module]:
    """The modules of a directory, in order."""
    path = directory / MODULES
    listed = read_json(path, ConfigError, list)
    if not all(isinstance(module, dict) and isinstance(module.get("type"), str) for module in listed):
        raise ConfigError(f"{path}: must be a list of modules, each with a type")
    kinds = module_kinds(path, [module["type"] for module in listed])
    folders = [module.get("path", "") for module in listed]
    for kind, folder in zip(kinds, folders, strict=True):
        if not isinstance(folder, str) or not _is_inside(folder):
            raise ConfigError(f"{path}: the path of {kind} must be a directory in this one, found {show(folder)}")
    if PurePosixPath(folders[0]) != PurePosixPath():
        raise ConfigError(
            f"{path}: the Transformer is in {show(folders[0])}, but bertjax reads the model from the directory of "
            f"{MODULES}: move its files there, and set its path to ''"
        )
    files = [transformer_file(directory), *(directory / folder / "config.json" for folder in folders[1:])]
    return [
        Module(kind, file, read_file(file), partial(read_tensors, file.parent))
        for kind, file in zip(kinds, files, strict=True)
    ]


def module_kinds(source: str | Path, types: Sequence[str]) -> list[str]:
    """Kinds of modules from their types in modules.json.

    Args:
        source: name of the source in error messages.
        types: types of the modules.

    Raises:
        ConfigError: other kinds than Transformer, Pooling, Dense and Normalize, or another order.
    """
    if unknown := [name for name in types if kind_of_module(name) is None]:
        raise ConfigError(
            f"{source}: bertjax knows {', '.join(KINDS)} of sentence_transformers; found {some_of(unknown)}"
        )
    kinds = [str(kind_of_module(name)) for name in types]
    if _ORDER.fullmatch(" ".join(kinds)) is None:
        found = some_of(kinds) or "none"
        raise ConfigError(f"{source}: the modules must be {_ORDER_IN_WORDS}, in this order; found {found}")
    return kinds


def _is_inside(folder: str) -> bool:
    """Whether a path is below its directory on every operating system."""
    path = PurePosixPath(folder)
    return not path.is_absolute() and ".." not in path.parts and not set(folder) & set("\\:\0")


def _poolings(module: Module) -> tuple[tuple[str, ...], bool]:
    """Names of the poolings in the order in which they are joined, and whether they include the tokens of a prompt."""
    path, settings = module.source, module.settings
    flags = {name: value for name, value in settings.items() if name.startswith("pooling_mode_")}
    known = {"pooling_mode", "include_prompt", "word_embedding_dimension", "embedding_dimension"}
    if unknown := sorted(settings.keys() - flags.keys() - known):
        raise ConfigError(f"{path}: bertjax does not know the key {show(unknown[0])}, which may change the vectors")
    include_prompt = settings.get("include_prompt", True)
    for name, value in (flags | {"include_prompt": include_prompt}).items():
        FLAG.check(value, f"{path}: {name}")
    unsupported = [name for name, value in flags.items() if value and name not in _FLAGS]
    flagged = [name for flag, name in _FLAGS.items() if flags.get(flag)] + unsupported or ["mean"]
    modes = settings.get("pooling_mode", flagged)
    modes = modes if isinstance(modes, list) else [modes]
    names = tuple(_FLAGS.values())
    if not modes or any(mode not in names for mode in modes) or len(set(modes)) < len(modes):
        raise ConfigError(f"{path}: pooling {show(modes)} is not supported, only {', '.join(names)}, each once")
    return tuple(modes), include_prompt


def _dense_plan(module: Module) -> DensePlan:
    """Settings of a dense layer."""
    path, keys = module.source, ("in_features", "out_features", "bias", "activation_function")
    settings = check_settings(path, module.settings, "Dense", keys)
    inputs, outputs, bias = settings.get("in_features"), settings.get("out_features"), settings.get("bias", True)
    INTEGER.check(inputs, f"{path}: in_features")
    INTEGER.check(outputs, f"{path}: out_features")
    FLAG.check(bias, f"{path}: bias")
    with error_prefix(f"{path}: activation_function "):
        activation = activation_of(settings.get("activation_function", TORCH_ACTIVATIONS["tanh"]))
    return DensePlan(inputs, outputs, bias, activation or "identity")  # type: ignore[arg-type]
