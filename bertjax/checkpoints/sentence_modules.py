"""How a sentence-transformers directory makes a vector of a text: its modules, read and written.

modules.json            the modules and their order: Transformer, Pooling, any number of Dense, perhaps Normalize
1_Pooling/config.json   how tokens become one vector; without it the Transformer gives its pooler's
2_Dense/                a dense layer's sizes and weights
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from bertjax.atomic_files import write_json
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
from bertjax.errors import CheckpointError, ConfigError, some_of
from bertjax.json_files import read_json, show

# Poolings by their flags in the files of older versions, in the order in which those join several.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ALWAYS_WRITTEN = ("pooling_mode_cls_token", "pooling_mode_mean_tokens")  # the mean is on where nothing is said
_POOLER: tuple[str, ...] = ("pooler",)
_ORDER = "Transformer, Pooling, then any number of Dense, and perhaps Normalize"


@dataclass(frozen=True)
class DensePlan:
    """A dense layer on sentence vectors.

    Args:
        inputs, outputs: widths of the vectors before and after it.
        bias: whether it has one.
        activation: what follows, by bertjax's name ('tanh', 'identity', 'sigmoid', 'relu', 'gelu', 'silu').
    """

    inputs: int
    outputs: int
    bias: bool = True
    activation: str = "tanh"


@dataclass(frozen=True)
class SentenceModules:
    """What makes a vector of hidden states.

    Args:
        width: of the hidden states.
        poolings: names, in the order in which their vectors are joined.
        dense: the layers after that.
        normalize: whether vectors get length 1.
        include_prompt: whether sentence-transformers counts a prompt's tokens in a pooling.
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
        source: begins messages about its settings.
        settings: as its file holds them.
        read: its tensors, read when they are needed.
    """

    kind: str
    source: str | Path
    settings: Mapping[str, Any]
    read: Callable[[], Mapping[str, np.ndarray]]


def read_pooling(directory: Path) -> dict[str, Any]:
    """`vector_options` from a sentence-transformers directory.

    Without `modules.json` there is nothing, and the vector is the normalised mean, the commonest form.

    Raises:
        ConfigError: as `vector_options` and `module_kinds`, or a Transformer in another directory.
    """
    if not is_sentence_directory(directory):
        return {}
    return vector_options(directory / MODULES, _read_modules(directory), read_text_settings(directory))


def vector_options(source: str | Path, modules: Sequence[Module], text: TextSettings) -> dict[str, Any]:
    """What makes the vectors: `pooling`, `normalize`, `dense`, `max_length` and `include_prompt`.

    Args:
        source: begins messages about the list of modules.
        modules: as `module_kinds` allows them.
        text: what is done to texts before.

    Raises:
        ConfigError: settings that bertjax does not know.
    """
    by_kind = {module.kind: module for module in modules}
    pooling, normalize = by_kind.get("Pooling"), by_kind.get("Normalize")
    _check_output(source, by_kind["Transformer"], "tokens" if pooling else "pooler")
    poolings, include_prompt = _POOLER, True
    if pooling:
        poolings, include_prompt = _poolings(pooling)
        _check_prompts(pooling.source, text, include_prompt)
    if normalize:
        check_settings(normalize.source, normalize.settings, "Normalize", ())
    return {
        "pooling": poolings[0] if len(poolings) == 1 else poolings,
        "normalize": normalize is not None,
        "dense": tuple(_dense_plan(module) for module in modules if module.kind == "Dense"),
        "max_length": text.max_length,
        "include_prompt": include_prompt,
    }


def counts_prompts(directory: Path) -> bool:
    """Whether a prompt's tokens count in the pooling, where a directory of sentence-transformers has one."""
    if not is_sentence_directory(directory):
        return True
    for module in read_json(directory / MODULES, ConfigError, list):
        place = module.get("path", "") if isinstance(module, dict) else None
        if isinstance(place, str) and _is_inside(place) and kind_of_module(module.get("type")) == "Pooling":
            path = directory / place / "config.json"
            return read_json(path, ConfigError).get("include_prompt", True) is not False
    return True


def _check_output(source: str | Path, transformer: Module, output: str) -> None:
    """Raise `ConfigError` where the Transformer gives something else than what follows reads."""
    place, settings = transformer.source, transformer.settings
    handled = (*TEXT_KEYS, *OUTPUT_SETTINGS[output])
    gives = check_settings(place, settings, TRANSFORMER, handled).get("module_output_name")
    if output == "pooler" and gives in OUTPUT_SETTINGS["tokens"]["module_output_name"]:
        raise ConfigError(
            f"{source}: the modules must be {_ORDER}, in this order; without Pooling the Transformer "
            f"must give its pooler's vector, but its module_output_name is {show(gives)}"
        )
    check_settings(place, settings, TRANSFORMER, TEXT_KEYS, output)


def read_dense_weights(directory: Path, plans: Sequence[DensePlan]) -> dict[str, np.ndarray]:
    """`dense_weights` of a sentence-transformers directory."""
    if not plans or not is_sentence_directory(directory):
        return {}
    return dense_weights(_read_modules(directory), plans)


def dense_weights(modules: Sequence[Module], plans: Sequence[DensePlan]) -> dict[str, np.ndarray]:
    """Kernels and biases of the dense layers, by the paths of their parameters.

    Raises:
        CheckpointError: no weights, damaged ones, or other sizes than the layer's settings say.
    """
    parameters = {}
    dense = [module for module in modules if module.kind == "Dense"]
    for number, (plan, module) in enumerate(zip(plans, dense, strict=True)):
        tensors = module.read()
        wanted = {"linear.weight": (plan.outputs, plan.inputs)} | (
            {"linear.bias": (plan.outputs,)} if plan.bias else {}
        )
        found = {name: tensor.shape for name, tensor in tensors.items()}
        if found != wanted:
            raise CheckpointError(f"{module.source}: the tensors must be {wanted}, found {found}")
        parameters[f"dense.{number}.kernel"] = tensors["linear.weight"].T
        if plan.bias:
            parameters[f"dense.{number}.bias"] = tensors["linear.bias"]
    return parameters


def write_sentence_files(
    directory: Path, modules: SentenceModules, parameters: Mapping[str, np.ndarray], text: TextSettings
) -> None:
    """Write what makes a sentence-transformers directory of one that holds an encoder.

    Args:
        directory: the encoder's.
        modules: what makes its vectors.
        parameters: of the dense layers, by path.
        text: what is done to texts.

    Raises:
        OutputError: something cannot be written.
    """
    parts = _parts(modules)
    if modules.poolings != _POOLER:
        write_json(directory / "1_Pooling" / "config.json", _pooling_settings(modules))
    places = [path for path, kind in parts if kind == "Dense"]
    for number, (plan, place) in enumerate(zip(modules.dense, places, strict=True)):
        _write_dense(directory / place, plan, number, parameters)
    pooler = {key: allowed[0] for key, allowed in OUTPUT_SETTINGS["pooler"].items()}
    settings = {"max_seq_length": text.max_length, "do_lower_case": text.do_lower_case}
    write_json(directory / TRANSFORMER, settings | (pooler if modules.poolings == _POOLER else {}))
    write_json(directory / PROMPTS, _prompt_settings(text))
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(parts)
    ]
    write_json(directory / MODULES, listed)


def sentence_file_names(modules: SentenceModules) -> list[str]:
    """The files that `write_sentence_files` writes, from the directory."""
    of_kind = {"Pooling": ("config.json",), "Dense": ("config.json", "model.safetensors")}
    files = [f"{path}/{name}" for path, kind in _parts(modules) for name in of_kind.get(kind, ())]
    return [MODULES, TRANSFORMER, PROMPTS, *files]


def _parts(modules: SentenceModules) -> list[tuple[str, str]]:
    """Directory and kind of each module, in order."""
    kinds = ["Transformer", *([] if modules.poolings == _POOLER else ["Pooling"]), *["Dense"] * len(modules.dense)]
    kinds += ["Normalize"] * modules.normalize
    return [(f"{number}_{kind}" if number else "", kind) for number, kind in enumerate(kinds)]


def _pooling_settings(modules: SentenceModules) -> dict[str, Any]:
    """In the form that all versions read, where it can say the order."""
    settings: dict[str, Any] = {"word_embedding_dimension": modules.width}
    settings |= {} if modules.include_prompt else {"include_prompt": False}
    if modules.poolings != tuple(name for name in _FLAGS.values() if name in modules.poolings):
        return settings | {"pooling_mode": list(modules.poolings)}
    flags = {flag: name in modules.poolings for flag, name in _FLAGS.items()}
    return settings | {flag: on for flag, on in flags.items() if on or flag in _ALWAYS_WRITTEN}


def _write_dense(directory: Path, plan: DensePlan, number: int, parameters: Mapping[str, np.ndarray]) -> None:
    settings = {
        "in_features": plan.inputs,
        "out_features": plan.outputs,
        "bias": plan.bias,
        "activation_function": TORCH_ACTIVATIONS[plan.activation],
    }
    tensors = {"linear.weight": np.ascontiguousarray(parameters[f"dense.{number}.kernel"].T)}
    if plan.bias:
        tensors["linear.bias"] = parameters[f"dense.{number}.bias"]
    write_weights(directory, tensors, settings)


def _prompt_settings(text: TextSettings) -> dict[str, Any]:
    """The prompts, and the name of the default one, under which it is found again."""
    prompts = dict(text.prompts)
    if not text.prompt:
        return {"prompts": prompts} if prompts else {}
    names = [name for name, prompt in prompts.items() if prompt == text.prompt]
    name = names[0] if names else _free_name("default", prompts)
    return {"prompts": prompts | {name: text.prompt}, "default_prompt_name": name}


def _free_name(name: str, taken: Container[str]) -> str:
    """A name, with a number behind it where it is taken."""
    return next(new for number in count(1) if (new := name if number == 1 else f"{name} {number}") not in taken)


def _check_prompts(source: str | Path, text: TextSettings, include_prompt: bool) -> None:
    """Raise `ConfigError` where a prompt would be left out of the pooling."""
    if text.prompt and not include_prompt:
        raise ConfigError(
            f"{source}: include_prompt is false, so that the prompt {show(text.prompt, 40)} would be left out of the "
            "mean, which bertjax does not do"
        )


def _read_modules(directory: Path) -> list[Module]:
    """The modules of a directory, in their order."""
    path = directory / MODULES
    listed = read_json(path, ConfigError, list)
    if not all(isinstance(module, dict) and isinstance(module.get("type"), str) for module in listed):
        raise ConfigError(f"{path}: not a list of modules with a type each")
    kinds = module_kinds(path, [module["type"] for module in listed])
    places = [(kind, module.get("path", "")) for kind, module in zip(kinds, listed, strict=True)]
    for kind, place in places:
        if not isinstance(place, str) or not _is_inside(place):
            raise ConfigError(f"{path}: the path of {kind} must be a directory in this one, found {show(place)}")
    if PurePosixPath(places[0][1]) != PurePosixPath():
        raise ConfigError(
            f"{path}: the Transformer lies in {show(places[0][1])}, but bertjax reads the model beside {MODULES}: "
            "move its files there, and set its path to ''"
        )
    files = [transformer_file(directory), *(directory / place / "config.json" for _, place in places[1:])]
    return [
        Module(kind, file, read_file(file), partial(read_tensors, file.parent))
        for (kind, _), file in zip(places, files, strict=True)
    ]


def module_kinds(source: str | Path, types: Sequence[str]) -> list[str]:
    """What modules are, by their types as modules.json has them.

    Args:
        source: begins messages.

    Raises:
        ConfigError: others than Transformer, Pooling, Dense and Normalize, or in another order.
    """
    if unknown := [name for name in types if kind_of_module(name) is None]:
        raise ConfigError(
            f"{source}: bertjax knows {', '.join(KINDS)} of sentence_transformers; found {some_of(unknown)}"
        )
    kinds = [str(kind_of_module(name)) for name in types]
    rest = list(kinds)
    for kind, most in (("Transformer", 1), ("Pooling", 1), ("Dense", len(kinds)), ("Normalize", 1)):
        for _ in range(most):
            if rest[:1] == [kind]:
                rest.pop(0)
    if rest or kinds[:1] != ["Transformer"]:
        raise ConfigError(f"{source}: the modules must be {_ORDER}, in this order; found {some_of(kinds) or 'none'}")
    return kinds


def _is_inside(place: str) -> bool:
    """Whether a place is below its directory on every system."""
    path = PurePosixPath(place)
    return not path.is_absolute() and ".." not in path.parts and not set(place) & set("\\:\0")


def _poolings(module: Module) -> tuple[tuple[str, ...], bool]:
    """The poolings' names in the order in which they are joined, and whether a prompt's tokens count in them."""
    path, settings = module.source, module.settings
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
    names = tuple(_FLAGS.values())
    if not modes or any(mode not in names for mode in modes) or len(set(modes)) < len(modes):
        raise ConfigError(f"{path}: pooling {show(modes)} is not supported, only {', '.join(names)}, each once")
    return tuple(modes), include_prompt


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _chosen(flags: Mapping[str, bool]) -> list[str]:
    """The poolings that are switched on; where none is, the mean, as in sentence-transformers."""
    unknown = [name for name, value in flags.items() if value and name not in _FLAGS]
    return [name for flag, name in _FLAGS.items() if flags.get(flag)] + unknown or ["mean"]


def _dense_plan(module: Module) -> DensePlan:
    """A dense layer's settings."""
    path, keys = module.source, ("in_features", "out_features", "bias", "activation_function")
    settings = check_settings(path, module.settings, "Dense", keys)
    sizes = [settings.get(name) for name in ("in_features", "out_features")]
    for name, size in zip(("in_features", "out_features"), sizes, strict=True):
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(f"{path}: {name} must be a positive integer, found {show(size)}")
    bias = settings.get("bias", True)
    if not isinstance(bias, bool):
        raise ConfigError(f"{path}: bias must be true or false, found {show(bias)}")
    try:
        activation = activation_of(settings.get("activation_function", TORCH_ACTIVATIONS["tanh"]))
    except ConfigError as error:
        raise ConfigError(f"{path}: activation_function {error}") from None
    assert isinstance(sizes[0], int)
    assert isinstance(sizes[1], int)
    return DensePlan(sizes[0], sizes[1], bias, activation or "identity")
