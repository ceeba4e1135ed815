"""Adapters of peft, merged into their base by `merge_and_unload`.

The base of an adapter directory is a PyTorch model of transformers made from the tensors that bertjax reads; a model of
peft in memory is copied. Nothing is written to disk, and no code of a checkpoint runs.
"""

import copy
import json
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from bertjax.checkpoints.architecture import ANSWERS, BODY, SEQUENCE, TOKENS, numbered_labels
from bertjax.checkpoints.config import BertConfig
from bertjax.checkpoints.location import HubOptions, has_tokenizer, locate
from bertjax.checkpoints.tensor_names import canonical_name
from bertjax.checkpoints.torch_models import make_torch_model, read_torch_model
from bertjax.checkpoints.weight_files import (
    WEIGHT_FILES,
    CheckpointWarning,
    read_tensor_file,
    read_weights,
)
from bertjax.errors import CheckpointError, ConfigError, MissingDependencyError, library_errors, some_of
from bertjax.json_files import read_json, show
from bertjax.paths import is_directory, is_there, user_path

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""File names of an adapter's tensors, in peft's order."""

# Task heads by peft's task types.
_TASKS = {"SEQ_CLS": SEQUENCE, "TOKEN_CLS": TOKENS, "QUESTION_ANS": ANSWERS, "FEATURE_EXTRACTION": BODY}

# XLORA loads further adapters from paths in its settings, and mixes them for each input.
_NOT_MERGED = {"XLORA"}


def holds_adapter(directory: str | Path) -> bool:
    """Whether a directory holds an adapter_config.json. Raises `CheckpointError` if it cannot be read.

    Args:
        directory: a path that may not exist.

    >>> holds_adapter(".")
    False
    """
    return is_there(user_path(directory, CheckpointError) / ADAPTER_CONFIG, CheckpointError)


def locate_base(adapter: Path, **hub: Unpack[HubOptions]) -> Path:
    """Find the base of an adapter.

    A model in the adapter's directory takes precedence, as in transformers. Otherwise adapter_config.json names the
    base (`base_model_name_or_path`): a directory, absolute or relative to the adapter's or the working directory;
    `package:NAME`; or a hub id with a revision.

    Args:
        adapter: directory of the adapter.
        hub: options of `locate`; the revision is that in adapter_config.json.

    Raises:
        CheckpointError: no base is named or found, or the base is an adapter.

    Warns:
        CheckpointWarning: the adapter's directory holds a model, but adapter_config.json names another base.
    """
    path = adapter / ADAPTER_CONFIG
    settings = read_json(path, CheckpointError)
    name, revision = settings.get("base_model_name_or_path"), settings.get("revision")
    named = _directories(adapter, name) if isinstance(name, str) and name else []
    if _holds_model(adapter):
        if name and not any(directory.samefile(adapter) for directory in named):
            message = (
                f"{adapter}: the adapter is merged into the weights in its directory, although {ADAPTER_CONFIG} names "
                f"the base {name!r}; if they include the adapter already, delete {ADAPTER_CONFIG}"
            )
            warnings.warn(message, CheckpointWarning, stacklevel=3)
        return adapter
    if not isinstance(name, str) or not name:
        raise CheckpointError(f"{path}: names no base; write its path or hub id there (base_model_name_or_path)")
    if len(named) > 1:
        raise CheckpointError(f"{path}: the base {name!r} may be {named[0]} or {named[1]}; write its full path there")
    try:
        base = named[0] if named else locate(name, **{**hub, "revision": revision})
    except CheckpointError as error:
        raise CheckpointError(f"{path}: the base is not found (base_model_name_or_path): {error}") from None
    if holds_adapter(base):
        raise CheckpointError(f"{path}: the base {base} is an adapter too; merge that one first and save it")
    return base


def name_base(directory: Path) -> str | None:
    """The path or hub id of an adapter's base as in adapter_config.json; None for other checkpoints.

    Args:
        directory: the directory of a checkpoint.
    """
    if not holds_adapter(directory):
        return None
    if _holds_model(directory):
        return str(directory)
    return str(read_json(directory / ADAPTER_CONFIG, CheckpointError)["base_model_name_or_path"])


def _holds_model(directory: Path) -> bool:
    weights = any(is_there(directory / name, CheckpointError) for name in WEIGHT_FILES)
    return weights and is_there(directory / "config.json", CheckpointError)


def _directories(adapter: Path, name: str) -> list[Path]:
    """The distinct directories that the name of a base may mean."""
    path = user_path(name, CheckpointError)
    found = [directory for directory in (adapter / path, path) if is_directory(directory, CheckpointError)]
    return list({directory.resolve(): directory for directory in found}.values())


def texts_directory(directory: Path, **hub: Unpack[HubOptions]) -> Path:
    """The directory with the tokenizer and sentence-transformers files: that of the base if the adapter's has none.

    Args:
        directory: the directory of a checkpoint, or the id of a repository, as in `read_config`.
        hub: options of a download, as in `read_config`.

    Raises:
        CheckpointError: as `locate_base`.
    """
    has_files = any(is_there(directory / name, CheckpointError) for name in ("tokenizer_config.json", "modules.json"))
    if has_files or has_tokenizer(directory) or not holds_adapter(directory):
        return directory
    return locate_base(directory, **hub)


def read_config(directory: Path, **hub: Unpack[HubOptions]) -> BertConfig:
    """Read the config of a checkpoint; for an adapter that of its base, with the adapter's class and number of labels.

    The class is the one that peft recorded, or that of its `task_type`, or that of the base. A config.json in the
    adapter's directory replaces the base's.

    Args:
        directory: directory of a HuggingFace model or of an adapter.
        hub: options of `locate` for the base.

    Raises:
        ConfigError, CheckpointError, MissingDependencyError: as `BertConfig.from_directory`, `locate_base` and
            `read_weights`.
    """
    if not holds_adapter(directory):
        return BertConfig.from_directory(directory)
    base = locate_base(directory, **hub)
    if is_there(directory / "config.json", CheckpointError):
        return BertConfig.from_directory(directory)
    config, settings = BertConfig.from_directory(base), read_json(directory / ADAPTER_CONFIG, ConfigError)
    heads, recorded = config.family.heads, settings.get("auto_mapping")
    recorded = recorded.get("base_model_class") if isinstance(recorded, Mapping) else None
    head = heads.get(_TASKS.get(str(settings.get("task_type")), ""))
    for name in (recorded, head and head.architecture):
        if name in {head.architecture for head in heads.values()}:
            config = replace(config, architectures=(name,))
            break
    labels = _count_labels(directory, config)
    return config if labels in (None, config.num_labels) else replace(config, id2label=numbered_labels(labels))


def _count_labels(adapter: Path, config: BertConfig) -> int | None:
    """Number of labels of the classifier in an adapter; None if it has no classifier."""
    shapes = {
        re.sub(r"^base_model\.model\.|\bmodules_to_save\.(\w+\.(?=weight))?", "", name): array.shape
        for name, array in read_tensor_file(_find_weights(adapter)).items()
    }
    for task in (SEQUENCE, TOKENS):
        head = config.family.heads.get(task)
        if head is not None and config.architectures == (head.architecture,):
            found = [shapes[entry.tensor] for entry in head.entries if len(shapes.get(entry.tensor, ())) == 2]
            return found[-1][0] if found else None
    return None


def _find_weights(adapter: Path) -> Path:
    for name in ADAPTER_WEIGHTS:
        if is_there(adapter / name, CheckpointError):
            return adapter / name
    raise CheckpointError(f"{adapter}: has no adapter weights; looked for {', '.join(ADAPTER_WEIGHTS)}")


def read_checkpoint(
    directory: Path, config: BertConfig | None = None, **hub: Unpack[HubOptions]
) -> tuple[BertConfig, dict[str, np.ndarray]]:
    """Read the config and tensors of a checkpoint; an adapter is merged into its base.

    Args:
        directory: the directory of a checkpoint, or the id of a repository, as in `read_config`.
        hub: options of a download, as in `read_config`.
        config: replaces the checkpoint's config.

    Returns: the config, and arrays under canonical names in the file's dtype.

    Raises:
        ConfigError, CheckpointError, MissingDependencyError: as `read_config` and `read_weights`; or the adapter is of
            a kind that cannot be merged, does not fit its base, or peft is not installed.

    Warns:
        CheckpointWarning: as `read_weights` and `locate_base`.
    """
    if holds_adapter(directory):
        found, weights = _merge(directory, locate_base(directory, **hub), read_config(directory, **hub))
        return config or found, weights
    config = config or BertConfig.from_directory(directory)
    return config, read_weights(directory, config.family)


def _merge(adapter: Path, base: Path, config: BertConfig) -> tuple[BertConfig, dict[str, np.ndarray]]:
    """The config and tensors of a base with an adapter merged in; tensors that neither has are left out."""
    try:
        import torch
        from peft import PeftModel
    except ImportError as error:
        raise MissingDependencyError(
            f"{adapter}: adapters need peft ({error}): pip install 'bertjax[adapters]'"
        ) from None
    weights = read_weights(base, config.family)
    read_tensor_file(_find_weights(adapter))  # peft would search the hub for a missing file
    with library_errors(f"{adapter}: cannot be merged into {base}", CheckpointError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", "Found missing adapter keys")
        settings = _read_settings(adapter)
        model, missing = make_torch_model(config, weights)
        names = model.state_dict().keys()
        adapted = PeftModel.from_pretrained(model, str(adapter), config=settings, torch_device="cpu")
        unknown = adapted.load_adapter(str(adapter), "default", torch_device="cpu").unexpected_keys
        _check_fit(unknown, adapted.state_dict(), missing)
        _check_tied(adapted)
        merged = adapted.merge_and_unload()
        state = merged.state_dict()
        if changed := sorted(names ^ state.keys()):
            raise ValueError(f"peft does not merge {some_of(changed, most=2)}")
    absent = {name for name in missing if bool(torch.isnan(state[name]).all())}
    if wrong := [name for name in absent if canonical_name(name, config.family) in weights]:
        raise CheckpointError(f"{base}: {some_of(wrong)} does not have the shape that {adapter} needs")
    present = {name: tensor for name, tensor in state.items() if name not in absent}
    described = json.loads(merged.config.to_json_string(use_diff=False)) | {"architectures": [type(merged).__name__]}
    return read_torch_model(described, present, adapter)


def merge(model: Any, source: str) -> Any:
    """Merge the active adapters of a model in memory into a copy of it.

    Args:
        model: `PeftModel` or `PeftMixedModel`, or a model of transformers after `add_adapter`.
        source: name of the model in error messages.

    Returns: the copy, a model of transformers without adapters.

    Raises:
        ConfigError: an adapter is of a kind that cannot be merged.
        CheckpointError: peft cannot merge it, or adapters are disabled.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    for settings in model.peft_config.values():
        _check_kind(settings.peft_type.value, source)
    with library_errors(f"{source}: its adapters cannot be merged", CheckpointError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copied = copy.deepcopy(model)
        layers = {name: layer for name, layer in copied.named_modules() if isinstance(layer, BaseTunerLayer)}
        if any(layer.disable_adapters for layer in layers.values()):
            raise ValueError("they are disabled: enable them, or remove them from the model")
        _check_tied(copied)
        if hasattr(copied, "merge_and_unload"):
            return copied.merge_and_unload()
        for name, layer in layers.items():
            layer.merge()
            copied.set_submodule(name, layer.get_base_layer())
        return copied


def _check_kind(kind: Any, source: str | Path) -> None:
    """Raise `ConfigError` if adapters of this kind cannot be merged."""
    from peft import PEFT_TYPE_TO_TUNER_MAPPING

    tuners = PEFT_TYPE_TO_TUNER_MAPPING.items()
    merges = {str(name.value) for name, tuner in tuners if hasattr(tuner, "merge_and_unload")} - _NOT_MERGED
    if kind not in merges:
        raise ConfigError(f"{source}: peft_type is {show(kind)}, which cannot be merged into a model's weights")


def _read_settings(adapter: Path) -> Any:
    """Read adapter_config.json with peft; refuse kinds that cannot be merged and keys that this peft does not know."""
    from peft import PEFT_TYPE_TO_CONFIG_MAPPING

    path = adapter / ADAPTER_CONFIG
    written = read_json(path, ConfigError)
    kind = written.get("peft_type")
    _check_kind(kind, path)
    settings = PEFT_TYPE_TO_CONFIG_MAPPING[kind].from_pretrained(str(adapter))
    if unknown := sorted(written.keys() - settings.to_dict().keys() - {"runtime_config"}):
        raise ConfigError(
            f"{path}: this version of peft does not know {some_of(unknown)}; install a newer one, or remove the key if "
            "it does not change the weights"
        )
    if str(written.get("init_lora_weights")).startswith("pissa_niter"):
        raise ConfigError(f"{path}: init_lora_weights is {show(written['init_lora_weights'])}, which is random")
    if written.get("megatron_config"):
        raise ConfigError(f"{path}: megatron_config would import other code, which is refused")
    return settings


def _check_tied(adapted: Any) -> None:
    """Refuse an update of weights that two modules share: merging changes both, training changed one."""
    modules: dict[int, list[str]] = {}
    for name, weight in adapted.named_parameters(remove_duplicate=False):
        modules.setdefault(weight.data_ptr(), []).append(name.removeprefix("base_model.model."))
    for names in modules.values():
        shared = len({name.replace(".base_layer.", ".") for name in names}) > 1
        if shared and any(".base_layer." in name for name in names):
            raise ValueError(f"it changes a weight that {some_of(names)} share")


def _check_fit(unknown: Iterable[str], adapted: Iterable[str], missing: Iterable[str]) -> None:
    """Refuse tensors that fit no module of the base, and updates of modules that the base lacks."""
    # With bias='all' peft saves the bias of a module twice.
    if unknown := [name for name in unknown if not name.endswith(".modules_to_save.bias")]:
        raise ValueError(f"its settings and the base have no module for {some_of(unknown, most=2)}")
    changed = (name.removeprefix("base_model.model.") for name in adapted if ".base_layer." in name)
    if lost := {name.replace(".base_layer.", ".") for name in changed}.intersection(missing):
        raise ValueError(f"the base does not have {some_of(sorted(lost), most=2)}, which the adapter changes")
