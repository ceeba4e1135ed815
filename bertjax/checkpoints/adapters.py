"""Merging a LoRA adapter into the weights of its base checkpoint, as peft's `merge_and_unload` does.

Each changed weight becomes W + scale * B @ A (Hu et al. 2021, section 4.1), whatever the family of encoder: an adapter
names the modules of a PyTorch model, as the base's file does. Every tensor of the adapter is used or refused by name.
"""

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Unpack

import numpy as np
from jaxtyping import Float

from bertjax.checkpoints.adapter_config import ADAPTER_WEIGHTS, AdapterConfig, holds_adapter, locate_base
from bertjax.checkpoints.architecture import ANSWERS, BODY, SEQUENCE, TOKENS
from bertjax.checkpoints.config import BertConfig, numbered_labels
from bertjax.checkpoints.families import Family
from bertjax.checkpoints.location import BaseOptions, has_tokenizer
from bertjax.checkpoints.tensor_names import BERT, canonical_weights
from bertjax.checkpoints.weight_files import (
    DTYPES,
    CheckpointWarning,
    check_values,
    hash_weights,
    read_tensor_file,
    read_weights,
)
from bertjax.errors import CheckpointError, some_of
from bertjax.paths import is_there

Arrays = Mapping[str, np.ndarray]

# peft's tasks, as heads of a family.
_TASKS = {"SEQ_CLS": (SEQUENCE,), "TOKEN_CLS": (TOKENS,), "QUESTION_ANS": (ANSWERS,), "FEATURE_EXTRACTION": (BODY,)}

# `query.lora_A.weight`, or with an adapter's name `query.lora_A.default.weight`; embeddings have no `.weight`.
_FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<factor>[AB])(?:\.(?P<adapter>[^.]+))?\.(?P<kind>weight|bias)")
_EMBEDDING = re.compile(r"(?P<module>.+)\.lora_embedding_(?P<factor>[AB])(?:\.(?P<adapter>[^.]+))?")
# `classifier.modules_to_save.default.weight`; with bias='all' peft writes `classifier.modules_to_save.bias` too.
_SAVED = re.compile(r"(?P<module>.+)\.modules_to_save\.(?:(?P<adapter>[^.]+)\.)?(?P<rest>.+)")


@dataclass
class Update:
    """The factors that change one module's weight, under the names that they have in the file.

    Args:
        factors: 'A' `[rank, inputs]` and 'B' `[outputs, rank]`, for a table of embeddings `[rank, rows]` and
            `[width, rank]`; 'bias' `[outputs]` where B has one.
        is_table: whether the module is a table of embeddings, whose weight is stored transposed.
    """

    factors: dict[str, np.ndarray] = field(default_factory=dict)
    is_table: bool = False


@dataclass
class Adapter:
    """What an adapter's file holds: updates by module, and whole tensors by name."""

    updates: dict[str, Update] = field(default_factory=dict)
    whole: dict[str, np.ndarray] = field(default_factory=dict)


def merge_adapter(weights: Arrays, directory: Path, family: Family = BERT) -> dict[str, np.ndarray]:
    """Merge a LoRA adapter into the weights of its base.

    Merged are updates of linear maps and of tables of embeddings, computed in float32 (float64 for float64) and
    rounded where peft rounds them. Biases (`bias`) and whole modules (`modules_to_save`)
    replace the base's, or are added where it has none. A tensor that the base holds twice, as a decoder tied to the
    word embeddings, stays tied.

    Args:
        weights: the base's tensors under the names of its PyTorch file, with or without the encoder's prefix (`bert.`);
            not changed.
        directory: of the adapter.
        family: of the base.

    Returns: all tensors, under the base's names and in its dtypes.

    Raises:
        ConfigError: the adapter is not plain LoRA, or its settings are wrong.
        CheckpointError: its file is missing or damaged, or holds a tensor that is not plain LoRA's, that fits no weight
            of the base, or whose partner is missing; or the settings name other modules than it changes.
        MissingDependencyError: the file is PyTorch's and PyTorch is not installed.

    Warns:
        CheckpointWarning: tensors hold NaN or infinity, or word embeddings are replaced to which a decoder may be tied.
    """
    config = AdapterConfig.from_directory(directory)
    path = _find(directory)
    adapter = _read(path)
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is named below
            merged = _merge(weights, adapter, config, family.model_type)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    check_values(path, {name: array for name, array in merged.items() if array is not weights.get(name)})
    return merged


def read_merged_weights(
    directory: str | Path, family: Family = BERT, **hub: Unpack[BaseOptions]
) -> dict[str, np.ndarray]:
    """Read a checkpoint's tensors as `read_weights` does; an adapter's are those of its base with it merged in.

    Args:
        directory: of a HuggingFace model, or of a LoRA adapter, whose base `locate_base` finds.
        family: whose names its tensors have.
        hub: of the base, as for `locate_base`.

    Returns: arrays under canonical names, in the file's dtype.

    Raises:
        ConfigError, CheckpointError, MissingDependencyError: as `read_weights`, `locate_base` and `merge_adapter`.

    Warns:
        CheckpointWarning: as these.
    """
    directory = Path(directory)
    if not holds_adapter(directory):
        return read_weights(directory, family)
    merged = merge_adapter(read_weights(locate_base(directory, **hub), family), directory, family)
    return canonical_weights(merged, family)  # again, for names that only the adapter has


def read_merged_config(directory: str | Path, **hub: Unpack[BaseOptions]) -> BertConfig:
    """Read a checkpoint's config as `BertConfig.from_directory` does; an adapter's is its base's, for its own task.

    A config.json in the adapter's directory is taken as it is. Else it is the base's with what the adapter changes: the
    class that peft names, or that of its `task_type`, and labels numbered anew where its classifier has more or fewer.

    Args:
        directory: of a HuggingFace model, or of a LoRA adapter, whose base `locate_base` finds.
        hub: of the base, as for `locate_base`.

    Raises:
        ConfigError, CheckpointError, MissingDependencyError: as `BertConfig.from_directory` and `read_merged_weights`.
    """
    directory = Path(directory)
    if not holds_adapter(directory):
        return BertConfig.from_directory(directory)
    base, settings = locate_base(directory, **hub), AdapterConfig.from_directory(directory)
    if is_there(directory / "config.json", CheckpointError) and not directory.samefile(base):
        return BertConfig.from_directory(directory)
    config = BertConfig.from_directory(base)
    heads = config.family.heads
    classes = [settings.model_class, *(heads[task].architecture for task in _TASKS.get(settings.task_type or "", ()))]
    known = [name for name in classes if name in {head.architecture for head in heads.values()}]
    if known:
        config = replace(config, architectures=tuple(known[:1]))
    labels = _labels(_read(_find(directory)), config) if known else None
    return config if labels in (None, config.num_labels) else replace(config, id2label=numbered_labels(labels))


def hash_checkpoint(directory: str | Path) -> str:
    """`hash_weights` of a directory's tensors, an adapter's merged into its base's.

    Raises:
        ConfigError, CheckpointError, MissingDependencyError: as `read_merged_config` and `read_merged_weights`.
    """
    family = read_merged_config(directory).family
    return hash_weights(read_merged_weights(directory, family), family)


def texts_directory(directory: Path, **hub: Unpack[BaseOptions]) -> Path:
    """Where a checkpoint's tokenizer and sentence-transformers files are: an adapter may leave them with its base.

    Args:
        directory: as for `read_merged_config`.
        hub: of the base, as for `locate_base`.

    Raises:
        ConfigError, CheckpointError: as `locate_base`.
    """
    beside = any(is_there(directory / name, CheckpointError) for name in ("tokenizer_config.json", "modules.json"))
    if beside or has_tokenizer(directory) or not holds_adapter(directory):
        return directory
    return locate_base(directory, **hub)


def _labels(adapter: Adapter, config: BertConfig) -> int | None:
    """How many labels an adapter's own classifier has; None where it brings none."""
    for task in (SEQUENCE, TOKENS):
        head = config.family.heads.get(task)
        if head is not None and (head.architecture,) == config.architectures:
            tensors = [adapter.whole[entry.tensor] for entry in head.entries if entry.tensor in adapter.whole]
            matrices = [tensor for tensor in tensors if tensor.ndim == 2]
            return matrices[-1].shape[0] if matrices else None
    return None


def _read(path: Path) -> Adapter:
    tensors = read_tensor_file(path)
    try:
        return _sort(tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _find(directory: Path) -> Path:
    for name in ADAPTER_WEIGHTS:
        if is_there(directory / name, CheckpointError):
            return directory / name
    raise CheckpointError(f"{directory}: has no adapter; looked for {', '.join(ADAPTER_WEIGHTS)}")


def _sort(tensors: Arrays) -> Adapter:
    """Sort an adapter's tensors by what they are for, under the names that modules have in the base."""
    adapter, copies, names = Adapter(), {}, set[str]()
    for full_name, array in tensors.items():
        if array.dtype.name not in DTYPES:
            raise CheckpointError(
                f"{some_of([full_name])} is of dtype {array.dtype}, must be one of {', '.join(DTYPES)}"
            )
        name = full_name.removeprefix("base_model.model.")
        if matched := _FACTOR.fullmatch(name) or _EMBEDDING.fullmatch(name):
            _add_factor(adapter, matched, array)
        elif matched := _SAVED.fullmatch(name):
            copies[f"{matched['module']}.{matched['rest']}"] = array
        elif ".lora_" in name:
            raise CheckpointError(f"{some_of([full_name])} is not plain LoRA's: only lora_A and lora_B are merged")
        elif ".original_module." not in name:  # what the base had in place of a module of `modules_to_save`
            name = name.replace(".base_layer.", ".")
            if name in adapter.whole:
                raise CheckpointError(f"two tensors both mean {some_of([name])}; one of them is {some_of([full_name])}")
            adapter.whole[name] = array
        if matched and matched["adapter"]:
            names.add(matched["adapter"])
    if len(names) > 1:
        raise CheckpointError(f"holds several adapters ({some_of(sorted(names))}); save one alone")
    if not adapter.updates:
        raise CheckpointError("holds no tensor of LoRA (lora_A, lora_B); copy the adapter again")
    adapter.whole = copies | adapter.whole
    return adapter


def _add_factor(adapter: Adapter, matched: re.Match[str], array: np.ndarray) -> None:
    is_table = matched.re is _EMBEDDING
    update = adapter.updates.setdefault(matched["module"], Update(is_table=is_table))
    factor = "bias" if not is_table and matched["kind"] == "bias" else matched["factor"]
    if update.is_table != is_table or factor in update.factors or (factor == "bias" and matched["factor"] == "A"):
        raise CheckpointError(
            f"{some_of([matched[0]])} does not fit the other factors of {some_of([matched['module']])}"
        )
    update.factors[factor] = array


def _merge(weights: Arrays, adapter: Adapter, config: AdapterConfig, model_type: str) -> dict[str, np.ndarray]:
    names = _names_in_base(weights, [f"{module}.weight" for module in adapter.updates], list(adapter.whole))
    merged = dict(weights)
    if config.modules_to_save and not any(map(config.is_saved, adapter.whole)):
        raise CheckpointError(
            f"holds none of modules_to_save ({some_of(config.modules_to_save)}); copy the adapter again"
        )
    _check_targets(weights, adapter, config, model_type)
    _check_saved(weights, adapter, config)
    for name, array in adapter.whole.items():
        merged[names[name]] = _replaced(name, merged.get(names[name]), array, config)
    for module, update in adapter.updates.items():
        name = names[f"{module}.weight"]
        weight = _target(merged, name, module)
        a, b = _factors(module, update, weight, config.rank(module))
        change = _change(a, b, config.scale(module))
        # In half precision peft rounds the sum, but of a table the update first and then the sum.
        change = change.T.astype(weight.dtype) if update.is_table else change
        merged[name] = (weight.astype(change.dtype) + change).astype(weight.dtype)
        merged |= dict.fromkeys(_tied(weights, name), merged[name])
        if "bias" in update.factors:
            name = name.removesuffix("weight") + "bias"
            merged[name] = _with_bias(module, merged.get(name), update.factors["bias"], config.scale(module))
    _check_complete(weights, adapter, config, model_type)
    return merged


def _check_targets(weights: Arrays, adapter: Adapter, config: AdapterConfig, model_type: str) -> None:
    """Refuse an adapter whose settings name other modules than its tensors change: peft would merge another model."""
    beyond = [module for module in adapter.updates if not config.changes(module, model_type)]
    if beyond:
        raise CheckpointError(
            f"changes {some_of(beyond, most=2)}, but its settings (target_modules, exclude_modules, "
            "layers_to_transform, layers_pattern, modules_to_save) do not name that: peft would not merge it; copy "
            "settings and tensors of one adapter"
        )


def _check_complete(weights: Arrays, adapter: Adapter, config: AdapterConfig, model_type: str) -> None:
    """Refuse an adapter that lacks the update of a linear map in a layer of the base that its settings name."""
    without, before = _prefixes(weights, [f"{module}.weight" for module in adapter.updates])
    linear = [name for name, array in weights.items() if array.ndim == 2 and re.search(r"\.\d+\.", name)]
    own = [_spelling(name).removesuffix(".weight") for name in linear if _spelling(name).startswith(before)]
    missing = [module for name in own if config.changes(module := without + name.removeprefix(before), model_type)]
    stacks = {_before_number(module) for module in adapter.updates}
    missing = [name for name in missing if name not in adapter.updates and _before_number(name) in stacks]
    if missing:
        raise CheckpointError(
            f"has no tensors of {some_of(missing, most=2)}, which its settings name (target_modules): copy the adapter "
            "again"
        )


def _before_number(module: str) -> str:
    """A module's name up to the first number in it, such as 'bert.encoder.layer'."""
    return re.split(r"\.\d+\.", module)[0]


def _check_saved(weights: Arrays, adapter: Adapter, config: AdapterConfig) -> None:
    """Refuse an adapter that lacks a module of the base that it says to replace as a whole."""

    def has(tensors: Arrays, module: str) -> bool:
        return any(f".{module}." in f".{name}" for name in tensors)

    lost = [name for name in config.modules_to_save or () if has(weights, name) and not has(adapter.whole, name)]
    if lost:
        raise CheckpointError(f"holds no tensors of {some_of(lost)}, named in modules_to_save; copy the adapter again")


def _replaced(name: str, old: np.ndarray | None, new: np.ndarray, config: AdapterConfig) -> np.ndarray:
    """A whole tensor of the adapter, in the dtype of the one that it replaces."""
    is_saved = config.is_saved(name)
    if not is_saved and old is None and not (config.bias == "all" and name.endswith(".bias")):
        raise CheckpointError(
            f"{some_of([name])} is neither in the base nor in modules_to_save: the adapter belongs to another base"
        )
    if not is_saved and old is not None and old.shape != new.shape:
        raise CheckpointError(f"{some_of([name])} has shape {new.shape}, but the base's has {old.shape}")
    if not is_saved and "embed" not in name and not (name.endswith(".bias") and config.bias != "none"):
        raise CheckpointError(
            f"replaces {some_of([name])}, which is not in modules_to_save, and bias is '{config.bias}': settings and "
            "tensors are not of one adapter"
        )
    if is_saved and "embed" in name and new.ndim == 2 and config.may_have_decoder:
        message = (
            f"the adapter replaces {some_of([name])}: a decoder that is tied to it takes the adapter's too, where peft "
            "keeps the base's"
        )
        warnings.warn(message, CheckpointWarning, stacklevel=4)
    return new if old is None else new.astype(old.dtype, copy=False)


def _target(weights: Arrays, name: str, module: str) -> np.ndarray:
    if name not in weights:
        raise CheckpointError(
            f"changes {some_of([module])}, but the base has no tensor {some_of([name])}: it is another base, or "
            "the module was made at random or tied when the adapter was trained; merge with peft and save the model"
        )
    return weights[name]


def _factors(module: str, update: Update, weight: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """A and B in the dtype in which their product is computed, once they fit the weight and the rank."""
    kind = "lora_embedding_" if update.is_table else "lora_"
    missing = [f"{module}.{kind}{factor}" for factor in "AB" if factor not in update.factors]
    if missing:
        raise CheckpointError(f"has no tensor {some_of(missing)}; copy the adapter again")
    a, b = update.factors["A"], update.factors["B"]
    outputs, inputs = (weight.shape[::-1] if update.is_table else weight.shape) if weight.ndim == 2 else (None, None)
    if (a.shape, b.shape) != ((rank, inputs), (outputs, rank)):
        raise CheckpointError(
            f"{some_of([module])}: {kind}A and {kind}B have shapes {a.shape} and {b.shape}, which do not fit rank "
            f"{rank} and the base's weight {weight.shape}"
        )
    dtype = np.float64 if weight.dtype == np.float64 else np.float32
    return a.astype(dtype), b.astype(dtype)


def _change(
    a: Float[np.ndarray, "rank inputs"], b: Float[np.ndarray, "outputs rank"], scale: float
) -> Float[np.ndarray, "outputs inputs"]:
    """What is added to a linear map's weight: scale * B @ A."""
    change: np.ndarray = b @ a * b.dtype.type(scale)
    return change


def _with_bias(module: str, bias: np.ndarray | None, change: np.ndarray, scale: float) -> np.ndarray:
    """A module's bias with that of B, scaled as B is."""
    if bias is None or bias.shape != change.shape:
        found = "none" if bias is None else f"one of shape {bias.shape}"
        raise CheckpointError(
            f"{some_of([module])}.lora_B has a bias of shape {change.shape}, but the base has {found}: wrong base"
        )
    return (bias + change.astype(np.float64) * scale).astype(bias.dtype)


def _tied(weights: Arrays, name: str) -> Iterator[str]:
    """Other names of the base for the same table: the decoder's for the word embeddings, or the other way round."""
    for other, array in weights.items():
        is_table = "embed" in name or "embed" in other
        if other != name and is_table and array.shape == weights[name].shape and np.array_equal(array, weights[name]):
            yield other


def _names_in_base(weights: Arrays, changed: list[str], whole: list[str]) -> dict[str, str]:
    """Each of an adapter's names as the base has it.

    The base may have a prefix before all of them (`bert.`) or lack theirs (`bert.`, `0.auto_model.`), as an adapter may
    be trained on the bare encoder and merged into a task model, and the other way round. One prefix holds for all that
    is changed: the one under which most of it is found. Heads have none, whatever the encoder has.
    """
    spellings = {_spelling(name): name for name in weights}
    without, before = _prefixes(weights, changed)
    names = {}
    for name in (*changed, *whole):
        prefixed = before + name.removeprefix(without)
        names[name] = spellings.get(prefixed) or spellings.get(name, prefixed)
    return names


def _prefixes(weights: Arrays, changed: list[str]) -> tuple[str, str]:
    """What an adapter's names have before those of the base, and what these have before the adapter's."""
    spellings = {_spelling(name) for name in weights}
    heads = {name.partition(".")[2]: name.partition(".")[0] + "." for name in spellings}
    found: Counter[tuple[str, str]] = Counter()
    for name in changed:
        parts = name.split(".")
        if name in heads:
            found["", heads[name]] += 1
        for cut in range(len(parts)):
            if ".".join(parts[cut:]) in spellings:
                found["".join(f"{part}." for part in parts[:cut]), ""] += 1
    return max(found, key=lambda prefixes: (found[prefixes], prefixes == ("", "")), default=("", ""))


def _spelling(name: str) -> str:
    """A tensor's name as PyTorch writes it today, without DataParallel's prefix."""
    name = name.removeprefix("module.")
    return re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
