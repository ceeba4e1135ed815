"""Adapters of peft: reading a directory as its base checkpoint with the adapter merged in, by `merge_and_unload`.

A model of peft in memory is merged in a copy.

The base is a PyTorch model of transformers, made of the tensors that bertjax reads. Nothing is written to disk, and no
code of a checkpoint is run.
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
from bertjax.checkpoints.location import BaseOptions, has_tokenizer, locate
from bertjax.checkpoints.tensor_names import canonical_name
from bertjax.checkpoints.torch_models import make_torch_model, read_torch_model
from bertjax.checkpoints.weight_files import (
    WEIGHT_FILES,
    CheckpointWarning,
    hash_weights,
    read_tensor_file,
    read_weights,
)
from bertjax.errors import CheckpointError, ConfigError, MissingDependencyError, library_errors, some_of
from bertjax.json_files import read_json, show
from bertjax.paths import is_directory, is_there, user_path

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""The names under which an adapter's tensors are looked for, in peft's order."""

# The task heads of peft's task types.
_TASKS = {"SEQ_CLS": SEQUENCE, "TOKEN_CLS": TOKENS, "QUESTION_ANS": ANSWERS, "FEATURE_EXTRACTION": BODY}


# XLORA loads further adapters, from places that its settings name, and mixes them for each input.
_NOT_MERGED = {"XLORA"}


def holds_adapter(directory: str | Path) -> bool:
    """Whether a directory is an adapter's: whether it holds an adapter_config.json.

    Raises:
        CheckpointError: it cannot be read.

    >>> holds_adapter(".")
    False
    """
    return is_there(user_path(directory, CheckpointError) / ADAPTER_CONFIG, CheckpointError)


def locate_base(adapter: Path, **hub: Unpack[BaseOptions]) -> Path:
    """Find the checkpoint that an adapter changes.

    A model in the adapter's directory comes first, as in transformers. Else adapter_config.json names the base
    (`base_model_name_or_path`): a directory, where a relative path starts at the adapter's or at the working directory;
    `package:NAME`; or a hub id, with the revision that is written there.

    Args:
        adapter: a directory for which `holds_adapter` is true.
        hub: `local_files_only`, `cache_dir`, `token`, as for `locate`.

    Raises:
        CheckpointError: no base is named or found, or it is an adapter itself.

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
                f"{adapter}: the adapter is merged into the weights beside it, although {ADAPTER_CONFIG} names the "
                f"base {name!r}; if they hold it already, delete {ADAPTER_CONFIG}"
            )
            warnings.warn(message, CheckpointWarning, stacklevel=3)
        return adapter
    if not isinstance(name, str) or not name:
        raise CheckpointError(f"{path}: names no base; write its path or hub id there (base_model_name_or_path)")
    if len(named) > 1:
        raise CheckpointError(f"{path}: the base {name!r} may be {named[0]} or {named[1]}; write its full path there")
    try:
        base = named[0] if named else locate(name, revision=revision, **hub)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: the base is not found (base_model_name_or_path): {error}") from None
    if holds_adapter(base):
        raise CheckpointError(f"{path}: the base {base} holds an adapter itself; merge that one first and save it")
    return base


def name_base(directory: Path) -> str | None:
    """The base of an adapter by the name in adapter_config.json: a path or hub id; None for other checkpoints."""
    if not holds_adapter(directory):
        return None
    if _holds_model(directory):
        return str(directory)
    return str(read_json(directory / ADAPTER_CONFIG, CheckpointError)["base_model_name_or_path"])


def _holds_model(directory: Path) -> bool:
    weights = any(is_there(directory / name, CheckpointError) for name in WEIGHT_FILES)
    return weights and is_there(directory / "config.json", CheckpointError)


def _directories(adapter: Path, name: str) -> list[Path]:
    """The directories that a base's name may mean; two spellings of one count once."""
    path = user_path(name, CheckpointError)
    found = [directory for directory in (adapter / path, path) if is_directory(directory, CheckpointError)]
    return list({directory.resolve(): directory for directory in found}.values())


def texts_directory(directory: Path, **hub: Unpack[BaseOptions]) -> Path:
    """The directory of a checkpoint's tokenizer and sentence-transformers files: an adapter may leave them to its base.

    Args:
        directory: as for `read_config`.
        hub: of the base, as for `locate_base`.

    Raises:
        CheckpointError: as `locate_base`.
    """
    beside = any(is_there(directory / name, CheckpointError) for name in ("tokenizer_config.json", "modules.json"))
    if beside or has_tokenizer(directory) or not holds_adapter(directory):
        return directory
    return locate_base(directory, **hub)


def read_config(directory: Path, **hub: Unpack[BaseOptions]) -> BertConfig:
    """Read a checkpoint's config; an adapter's is its base's, with the class and the number of labels of the adapter.

    The class is the one that peft recorded, or that of its `task_type`; else the base's. A config.json in the adapter's
    directory replaces the base's.

    Args:
        directory: of a model of HuggingFace, or of an adapter of peft.
        hub: of the base, as for `locate_base`.

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
    """The number of labels of the classifier in an adapter; None if it has no classifier."""
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
    raise CheckpointError(f"{adapter}: has no adapter; looked for {', '.join(ADAPTER_WEIGHTS)}")


def read_checkpoint(
    directory: Path, config: BertConfig | None = None, **hub: Unpack[BaseOptions]
) -> tuple[BertConfig, dict[str, np.ndarray]]:
    """Read a checkpoint's config and tensors; an adapter's are those of its base with the adapter merged in.

    Args:
        directory: as for `read_config`.
        config: in place of the checkpoint's.
        hub: of the base, as for `locate_base`.

    Returns: the config, and arrays under canonical names in the file's dtype.

    Raises:
        ConfigError, CheckpointError, MissingDependencyError: as `read_config` and `read_weights`; the adapter is of a
            kind that cannot be merged, does not fit its base, or peft is not installed.

    Warns:
        CheckpointWarning: as `read_weights` and `locate_base`.
    """
    if holds_adapter(directory):
        found, weights = _merge(directory, locate_base(directory, **hub), read_config(directory, **hub))
        return config or found, weights
    config = config or BertConfig.from_directory(directory)
    return config, read_weights(directory, config.family)


def hash_checkpoint(directory: Path) -> str:
    """`hash_weights` of a directory's tensors, with an adapter merged in. Raises as `read_checkpoint`."""
    config, weights = read_checkpoint(directory)
    return hash_weights(weights, config.family)


def _merge(adapter: Path, base: Path, config: BertConfig) -> tuple[BertConfig, dict[str, np.ndarray]]:
    """The config and tensors of a base after peft merged an adapter; tensors that neither has are left out."""
    try:
        import torch
        from peft import PeftModel
    except ImportError as error:
        raise MissingDependencyError(
            f"{adapter}: an adapter is merged by peft ({error}): pip install 'bertjax[adapters]'"
        ) from None
    weights = read_weights(base, config.family)
    read_tensor_file(_find_weights(adapter))  # peft would look for a missing file on the hub
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
        model: a `PeftModel` or `PeftMixedModel`, or a model of transformers to which `add_adapter` added some.
        source: begins messages.

    Returns: the copy, as a model of transformers without adapters.

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
            raise ValueError("they are disabled: enable them, or give the model without them")
        _check_tied(copied)
        if hasattr(copied, "merge_and_unload"):
            return copied.merge_and_unload()
        for name, layer in layers.items():
            layer.merge()
            copied.set_submodule(name, layer.get_base_layer())
        return copied


def _check_kind(kind: Any, source: str | Path) -> None:
    """Raise `ConfigError` if adapters of a kind cannot be merged."""
    from peft import PEFT_TYPE_TO_TUNER_MAPPING

    tuners = PEFT_TYPE_TO_TUNER_MAPPING.items()
    merges = {str(name.value) for name, tuner in tuners if hasattr(tuner, "merge_and_unload")} - _NOT_MERGED
    if kind not in merges:
        raise ConfigError(f"{source}: peft_type is {show(kind)}, which cannot be merged into a model's weights")


def _read_settings(adapter: Path) -> Any:
    """Read an adapter_config.json with peft; refuse what cannot be merged, and what this peft does not know."""
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
        raise ConfigError(f"{path}: megatron_config asks to import other code, which is refused")
    return settings


def _check_tied(adapted: Any) -> None:
    """Refuse an update of weights that two modules share: merging changes both, training changed one."""
    places: dict[int, list[str]] = {}
    for name, weight in adapted.named_parameters(remove_duplicate=False):
        places.setdefault(weight.data_ptr(), []).append(name.removeprefix("base_model.model."))
    for names in places.values():
        shared = len({name.replace(".base_layer.", ".") for name in names}) > 1
        if shared and any(".base_layer." in name for name in names):
            raise ValueError(f"it changes a weight that {some_of(names)} share")


def _check_fit(unknown: Iterable[str], adapted: Iterable[str], missing: Iterable[str]) -> None:
    """Refuse tensors that fit no module of the base, and updates of a module that the base does not have.

    With bias='all' peft saves the bias of a whole module twice.
    """
    if unknown := [name for name in unknown if not name.endswith(".modules_to_save.bias")]:
        raise ValueError(f"its settings and the base have no place for {some_of(unknown, most=2)}")
    changed = (name.removeprefix("base_model.model.") for name in adapted if ".base_layer." in name)
    if lost := {name.replace(".base_layer.", ".") for name in changed}.intersection(missing):
        raise ValueError(f"the base does not have {some_of(sorted(lost), most=2)}, which the adapter changes")
