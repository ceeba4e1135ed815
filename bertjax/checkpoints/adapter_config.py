"""A LoRA adapter's directory: its adapter_config.json, read and guarded, and the base checkpoint that it changes.

A key that bertjax ignored could change what the merged model computes without a word. So each key is handled (a field
of `AdapterConfig`), or listed here as harmless, or refused by name with its value. The keys are those of peft's
LoraConfig, of all versions up to 0.21.
"""

import math
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Unpack

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from bertjax.checkpoints.location import BaseOptions, locate
from bertjax.checkpoints.weight_files import WEIGHT_FILES, CheckpointWarning
from bertjax.errors import CheckpointError, ConfigError
from bertjax.json_files import read_json, show
from bertjax.paths import is_directory, is_there, listing, user_path

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""The names under which an adapter's tensors are looked for, in this order."""

_BIASES = ("none", "all", "lora_only")
# The heads that peft saves for a task, whether or not `modules_to_save` says so (its old versions did not).
_HEADS_OF_TASKS = {
    "SEQ_CLS": ("classifier", "score"),
    "TOKEN_CLS": ("classifier", "score"),
    "QUESTION_ANS": ("qa_outputs",),
    "FEATURE_EXTRACTION": (),
}
_INSTEAD = "let peft merge it where it can (merge_and_unload, then save_pretrained) and load that model"

# Keys that change nothing at the values given, and are refused at any other.
_HARMLESS_ONLY_AT: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "use_qalora": (False, None),
    "use_bdlora": (None, False),
    "layer_replication": (None, []),
    "megatron_config": (None,),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None,),
    "velora_config": (None,),
    "monteclora_config": (None,),
    "arrow_config": (None,),
    "kasa_config": (None,),
    "enable_lora": (None,),  # peft 0.2: one adapter for fused queries, keys and values, in parts
    # The others ('pissa', 'olora', 'corda', 'loftq', 'lora_ga') take a part out of the base's weights.
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal", "mica"),
}

# The modules that peft changes in models of a type where `target_modules` is null; it refuses other types.
_DEFAULT_TARGETS = {
    **{name: ["query", "value"] for name in ("bert", "roberta", "xlm-roberta", "electra")},
    "deberta-v2": ["query_proj", "value_proj"],
}

# Keys that never change what the merged weights are, by what they are about.
_HARMLESS_BY_SUBJECT = {
    "where weights are stored [inputs, outputs]; peft sets it to false for nn.Linear, and encoders have no other": """
        fan_in_fan_out""",
    "settings of initialisations; `init_lora_weights` says whether one was used": """
        loftq_config eva_config corda_config lora_ga_config qalora_group_size""",
    "training, and how peft ran or saved it": """
        lora_dropout inference_mode merge_weights megatron_core runtime_config peft_version""",
    "biases of updates; they are in the file": "lora_bias",
    "tied tensors; they are as `merge_and_unload` leaves them": "ensure_weight_tying",
}
_HARMLESS = frozenset(" ".join(_HARMLESS_BY_SUBJECT.values()).split())


@dataclass(frozen=True)
class AdapterConfig:
    """The settings of a LoRA adapter that its merging follows, with peft's names and defaults.

    >>> config = AdapterConfig(r=4, lora_alpha=6, rank_pattern={"query": 9}, use_rslora=True)
    >>> config.scale("bert.encoder.layer.0.attention.self.query"), config.scale("bert.pooler.dense")
    (2.0, 3.0)
    """

    r: int = 8
    lora_alpha: int | float = 8
    use_rslora: bool = False
    rank_pattern: Mapping[str, int] | None = None
    alpha_pattern: Mapping[str, int | float] | None = None
    bias: str = "none"
    modules_to_save: list[str] | None = None
    task_type: str | None = None
    auto_mapping: Mapping[str, Any] | None = None
    base_model_name_or_path: str | None = None
    revision: str | None = None
    target_modules: list[str] | str | None = None
    exclude_modules: list[str] | str | None = None
    layers_to_transform: list[int] | int | None = None
    layers_pattern: list[str] | str | None = None

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> "AdapterConfig":
        """Make a config of what an adapter_config.json holds, refusing what is not plain LoRA.

        Raises:
            ConfigError: a key or value that bertjax does not know, does not support or finds wrong.

        >>> AdapterConfig.from_dict({"peft_type": "LORA", "r": 4, "use_dora": False}).r
        4
        """
        kind = mapping.get("peft_type")
        if kind != "LORA":
            raise ConfigError(f"peft_type is {show(kind)}; bertjax supports only 'LORA': {_INSTEAD}")
        known = {field.name for field in fields(cls)}
        for key, value in mapping.items():
            if key not in known and key != "peft_type":
                _check_harmless(key, value)
        values = {key: value for key, value in mapping.items() if key in known}
        _check_settings(cls().__dict__ | values)
        return cls(**values)

    @classmethod
    def from_directory(cls, adapter: Path) -> "AdapterConfig":
        """Read an adapter's adapter_config.json; errors as in `from_dict`, and where it cannot be read."""
        path = adapter / ADAPTER_CONFIG
        mapping = read_json(path, ConfigError)
        try:
            return cls.from_dict(mapping)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @property
    def model_class(self) -> str | None:
        """transformers' class of the model that the adapter was trained on, where peft wrote it: without a task."""
        name = (self.auto_mapping or {}).get("base_model_class")
        return name if isinstance(name, str) else None

    @property
    def may_have_decoder(self) -> bool:
        """Whether the adapter may be for a model whose output layer is tied to the word embeddings."""
        return self.task_type not in _HEADS_OF_TASKS

    def is_saved(self, tensor: str) -> bool:
        """Whether a tensor is of a module that the adapter brings whole: one of `modules_to_save`, or its task's head.

        peft compares the ends of modules' names, so that 'classifier' means DistilBERT's `pre_classifier` too.
        """
        saved = (*(self.modules_to_save or ()), *_HEADS_OF_TASKS.get(self.task_type or "", ()))
        return any(f"{module}." in tensor for module in saved)

    def changes(self, module: str, model_type: str = "bert") -> bool:
        """Whether these settings say that a module is changed, by the rules of peft's `check_target_module_exists`.

        Args:
            module: its name in the model that the adapter was trained on.
            model_type: of that model, which decides where `target_modules` is null.

        >>> config = AdapterConfig(target_modules=["query"], layers_to_transform=[1])
        >>> [config.changes(f"encoder.layer.{layer}.attention.self.query") for layer in (0, 1)]
        [False, True]
        """
        saved = (*(self.modules_to_save or ()), *_HEADS_OF_TASKS.get(self.task_type or "", ()))
        if _is_named(self.exclude_modules or [], module) or any(
            re.match(rf"(^|.*\.){name}($|\..*)", module) for name in saved
        ):
            return False
        targets = _DEFAULT_TARGETS.get(model_type, []) if self.target_modules is None else self.target_modules
        if isinstance(targets, str) and targets.lower() == "all-linear":
            return "embed" not in module and module.split(".")[-1] != "decoder"
        if not _is_named(targets, module):
            return False
        layers = self.layers_to_transform
        if isinstance(targets, str) or module in targets or layers in (None, []):
            return True
        index = _layer_of(module, self.layers_pattern)
        return index is not None and index in (layers if isinstance(layers, list) else [layers])

    def rank(self, module: str) -> int:
        """The rank of a module's update; of several patterns that fit, the first counts, as in peft."""
        return _fitting(self.rank_pattern, module, self.r)

    def scale(self, module: str) -> float:
        """What a module's B @ A is multiplied by: alpha / r, or with `use_rslora` alpha / sqrt(r).

        Source: Hu et al. 2021, section 4.1; Kalajdzievski 2023, section 3.
        """
        rank = self.rank(module)
        return _fitting(self.alpha_pattern, module, self.lora_alpha) / (math.sqrt(rank) if self.use_rslora else rank)


def holds_adapter(directory: str | Path) -> bool:
    """Whether a directory is an adapter's: whether it holds an adapter_config.json.

    Raises:
        CheckpointError: it holds an adapter's tensors without that file, or cannot be looked at.

    >>> holds_adapter(".")
    False
    """
    directory = user_path(directory, CheckpointError)
    if is_there(directory / ADAPTER_CONFIG, CheckpointError):
        return True
    for name in ADAPTER_WEIGHTS:
        if is_there(directory / name, CheckpointError):
            raise CheckpointError(f"{directory}: has {name}, but no {ADAPTER_CONFIG}; copy both")
    return False


def locate_base(adapter: Path, **hub: Unpack[BaseOptions]) -> Path:
    """Find the checkpoint that an adapter changes, in this order.

    1. The adapter's own directory, where a whole model (config.json and weights) lies in it, as transformers does.
    2. What adapter_config.json names: a directory, absolute or seen from the adapter's or from the working directory;
       else a hub id, with the revision that stands there.
    3. Where nothing is named, the one whole model in the directory above the adapter's or in those directly below it.

    Sub-directories of a base checkpoint are never searched for adapters: to load one of them, give its own path.

    Args:
        adapter: a directory for which `holds_adapter` is true.
        hub: `local_files_only`, `cache_dir`, `token`, as for `locate`.

    Raises:
        ConfigError: the adapter is not plain LoRA.
        CheckpointError: no base can be found, or several; or it is an adapter itself.

    Warns:
        CheckpointWarning: the adapter's own directory holds the base, but its adapter_config.json names another.
    """
    config = AdapterConfig.from_directory(adapter)
    name = config.base_model_name_or_path
    if _is_model(adapter):
        _warn_of_other_base(adapter, name)
        return adapter
    if not name:
        return _check_base(adapter, _base_nearby(adapter))
    places = _places(adapter, name)
    if len(places) > 1:
        raise CheckpointError(
            f"{adapter / ADAPTER_CONFIG}: the base {name!r} may be {places[0]} or {places[1]}; write its full path"
        )
    if places:
        return _check_base(adapter, places[0])
    try:
        if not name.startswith("package:"):
            validate_repo_id(name)
        base = locate(name, revision=config.revision, **hub)
    except HFValidationError:
        hint = "write there where the base is (base_model_name_or_path)"
        raise CheckpointError(f"{adapter / ADAPTER_CONFIG}: the base {name!r} is no directory here; {hint}") from None
    except CheckpointError as error:
        raise CheckpointError(f"{adapter / ADAPTER_CONFIG}: the base is not found: {error}") from None
    return _check_base(adapter, base)


def _is_model(directory: Path) -> bool:
    """Whether a directory holds a whole model."""
    names = [name for name in WEIGHT_FILES if is_there(directory / name, CheckpointError)]
    return bool(names) and is_there(directory / "config.json", CheckpointError)


def _places(adapter: Path, name: str) -> list[Path]:
    """The directories that a base's name means: one, or two where it is relative, or none."""
    path = user_path(name, CheckpointError)
    found: dict[str, Path] = {}
    for place in (adapter / path, path):  # of an absolute path the first is the path itself
        if is_directory(place, CheckpointError):
            found.setdefault(os.path.realpath(place), place)
    return list(found.values())


def _warn_of_other_base(adapter: Path, name: str | None) -> None:
    """A model beside an adapter may be its base, or what came of merging the two: only its user knows."""
    if name and not any(os.path.samefile(place, adapter) for place in _places(adapter, name)):
        message = (
            f"{adapter}: the adapter is merged into the weights beside it, although {ADAPTER_CONFIG} names the base "
            f"{name!r}; if they hold it already, delete {ADAPTER_CONFIG}"
        )
        warnings.warn(message, CheckpointWarning, stacklevel=3)


def _base_nearby(adapter: Path) -> Path:
    """The only whole model above an adapter's directory or directly below it."""
    above = Path(os.path.abspath(adapter)).parent
    below = [path for path in listing(adapter, CheckpointError) if is_directory(path, CheckpointError)]
    found = [place for place in (above, *below) if _is_model(place)]
    if len(found) == 1:
        return found[0]
    says = f"{adapter / ADAPTER_CONFIG} names no base (base_model_name_or_path)"
    if not found:
        raise CheckpointError(f"{says}, and there is none in, above or directly below {adapter}; write its path there")
    raise CheckpointError(f"{says}, and it may be {found[0]} or {found[1]}; write the path of one there")


def _check_base(adapter: Path, base: Path) -> Path:
    """Refuse a base that is an adapter again: peft stacks none either."""
    if holds_adapter(base):
        raise CheckpointError(
            f"{adapter / ADAPTER_CONFIG}: the base {base} holds an adapter itself; merge that one first and save it"
        )
    return base


def _check_harmless(key: str, value: Any) -> None:
    if key in _HARMLESS_ONLY_AT:
        if value not in _HARMLESS_ONLY_AT[key]:
            supported = show(_HARMLESS_ONLY_AT[key][0])
            raise ConfigError(f"{key} is {show(value)}; bertjax supports only {supported}: {_INSTEAD}")
    elif key not in _HARMLESS:
        raise ConfigError(
            f"bertjax does not know the key {key!r} (value {show(value)}), which may change the weights; remove it "
            f"from {ADAPTER_CONFIG} if it does not"
        )


def _check_settings(values: Mapping[str, Any]) -> None:
    _check_rank("r", values["r"])
    _check_alpha("lora_alpha", values["lora_alpha"])
    _check_pattern("rank_pattern", values["rank_pattern"], _check_rank)
    _check_pattern("alpha_pattern", values["alpha_pattern"], _check_alpha)
    if not isinstance(values["use_rslora"], bool):
        raise ConfigError(f"use_rslora must be true or false, found {show(values['use_rslora'])}")
    if values["bias"] not in _BIASES:
        raise ConfigError(f"bias is {show(values['bias'])}; bertjax supports only {', '.join(_BIASES)}")
    saved = values["modules_to_save"]
    if saved is not None and not (isinstance(saved, list) and all(isinstance(name, str) for name in saved)):
        raise ConfigError(f"modules_to_save must be a list of modules' names, found {show(saved)}")
    _check_targets(values)
    if not isinstance(values["auto_mapping"], Mapping | None):
        raise ConfigError(f"auto_mapping must be a table or null, found {show(values['auto_mapping'])}")
    for name in ("task_type", "base_model_name_or_path", "revision"):
        if not isinstance(values[name], str | None):
            raise ConfigError(f"{name} must be a text or null, found {show(values[name])}")


def _check_targets(values: Mapping[str, Any]) -> None:
    """Check the settings that say which modules are changed, and that peft takes them together."""
    for name in ("target_modules", "exclude_modules", "layers_pattern"):
        value = values[name]
        if isinstance(value, str):
            _check_expression(name, value)
        elif value is not None and not (isinstance(value, list) and all(isinstance(part, str) for part in value)):
            raise ConfigError(f"{name} must be a text, a list of texts or null, found {show(value)}")
    for name in ("layers_pattern", "modules_to_save"):
        for part in values[name] if isinstance(values[name], list) else []:
            _check_expression(name, part)
    layers = values["layers_to_transform"]
    numbers = layers if isinstance(layers, list) else [] if layers is None else [layers]
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise ConfigError(f"layers_to_transform must be whole numbers or null, found {show(layers)}")
    has_layers = layers is not None
    if isinstance(values["target_modules"], str) and (has_layers or values["layers_pattern"] is not None):
        raise ConfigError(
            "target_modules is a text, and layers_to_transform or layers_pattern is given as well: peft refuses both"
        )
    if values["layers_pattern"] and not has_layers:
        raise ConfigError("layers_pattern is given without layers_to_transform, which peft refuses")


def _check_expression(name: str, value: str) -> None:
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"{name}: {show(value)} is no regular expression ({error})") from None


def _is_named(names: list[str] | str, module: str) -> bool:
    """Whether a module is one of these names or ends in one; a single string is a regular expression of all of it."""
    if isinstance(names, str):
        return re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def _layer_of(module: str, pattern: list[str] | str | None) -> int | None:
    """The layer of a module, by the name before its number where a pattern says that."""
    if not pattern:
        expressions = [r".*?\.[^.]*\.(?P<idx>\d+)\."]
    else:
        names = [pattern] if isinstance(pattern, str) else pattern
        expressions = [rf"(?:^|.*?\.){name}\.(?P<idx>\d+)\." for name in names]
    found = next((match for expression in expressions if (match := re.match(expression, module))), None)
    return None if found is None else int(found["idx"])


def _check_rank(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} must be a positive integer, found {show(value)}")


def _check_alpha(name: str, value: Any) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ConfigError(f"{name} must be a number, found {show(value)}")


def _check_pattern(name: str, table: Any, check: Callable[[str, Any], None]) -> None:
    if table is None:
        return
    if not isinstance(table, Mapping):
        raise ConfigError(f"{name} must be a table of numbers by modules' names, found {show(table)}")
    for key, value in table.items():
        check(f"{name} of {key!r}", value)
        try:
            _pattern(key)
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(f"{name}: {key!r} is no regular expression ({error})") from None


def _pattern(key: str) -> re.Pattern[str]:
    return re.compile(rf"(.*\.)?({key})$")


def _fitting(table: Mapping[str, Any] | None, module: str, default: Any) -> Any:
    return next((value for key, value in (table or {}).items() if _pattern(key).match(module)), default)
