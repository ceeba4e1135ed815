"""Names of tensors: HuggingFace's tensors <-> bertjax's parameters, by one table for each family.

`read_weights` returns tensors under HuggingFace's names. A model's parameters have paths such as
`bert.encoder.layers.3.attention.query.kernel`, the same in every family. An entry of a family's table maps one to the
other and states the layout: PyTorch stores a linear map as `[outputs, inputs]` with all heads in one axis, bertjax as
`[inputs, outputs]` with an axis of heads.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from bertjax.checkpoints.config import BertConfig
from bertjax.checkpoints.families import (
    FAMILIES,
    HEAD_BIAS,
    INTO_HEADS,
    OUT_OF_HEADS,
    TRANSPOSED,
    Family,
    Head,
    TensorEntry,
)
from bertjax.errors import CheckpointError, some_of

BERT = FAMILIES["bert"]
INDEX = "(0|[1-9][0-9]{0,8})"  # an index of a layer
_PLACEHOLDERS = re.compile(r"\{(?:layer|group|inner)\}")


def entry_of_parameter(path: str, config: BertConfig, head: str) -> TensorEntry:
    """The table's entry for a parameter, with the index of its layer.

    Args:
        path: path of the parameter.
        config: config of the model.
        head: task head of the model (`architecture.SEQUENCE` and so on).

    >>> from bertjax.checkpoints.architecture import BODY
    >>> entry_of_parameter("bert.encoder.layers.3.attention.query.kernel", BertConfig(), BODY).tensor
    'bert.encoder.layer.3.attention.self.query.weight'
    """
    table, index = _by_parameter(config.family, head), re.search(r"(?<=\.layers\.)\d+", path)
    if index is None:
        return table[path]
    entry = table[path.replace(f".layers.{index[0]}.", ".layers.{layer}.")]
    group, inner = divmod(int(index[0]), _layers_of_group(config))
    return replace(entry, tensor=entry.tensor.format(layer=index[0], group=group, inner=inner), parameter=path)


def _layers_of_group(config: BertConfig) -> int:
    groups = config.family.groups
    return 1 if groups is None else int(config.own[groups[1]])


def _by_parameter(family: Family, head: str) -> dict[str, TensorEntry]:
    return {entry.parameter: entry for entry in (*family.body, *family.heads[head].entries)}


def is_known(tensor: str, family: Family = BERT) -> bool:
    """Whether any class of a family has this tensor.

    >>> is_known("classifier.weight"), is_known("lm_head.weight")
    (True, False)
    """
    return _known(family.model_type).fullmatch(tensor) is not None


@cache
def _known(model_type: str) -> re.Pattern[str]:
    """All tensors of a family."""
    family = FAMILIES[model_type]
    heads = (entry for head in family.heads.values() for entry in head.entries)
    return re.compile("|".join({_with_indices(entry.tensor) for entry in (*family.body, *heads)}))


@cache
def _layer_prefix(model_type: str) -> re.Pattern[str]:
    """The prefix of a layer's tensors, with its indices as groups."""
    layer = next(entry.tensor for entry in FAMILIES[model_type].body if _PLACEHOLDERS.search(entry.tensor))
    end = list(_PLACEHOLDERS.finditer(layer))[-1].end()
    return re.compile(_with_indices(layer[:end]) + r"\.")


def _with_indices(tensor: str) -> str:
    """A pattern in which an index stands for each placeholder."""
    return INDEX.join(map(re.escape, _PLACEHOLDERS.split(tensor)))


def to_parameter(array: np.ndarray, layout: str, config: BertConfig) -> np.ndarray:
    """A tensor of the file in bertjax's layout (a view where NumPy can).

    Args:
        array: the tensor in the file.
        layout: the layout of the tensor in the file.
        config: the config of the model.
    """
    head_dim = config.head_dim
    if layout == TRANSPOSED:
        return array.T
    if layout == INTO_HEADS:
        return array.T.reshape(array.shape[1], array.shape[0] // head_dim, head_dim)
    if layout == OUT_OF_HEADS:
        return array.T.reshape(array.shape[1] // head_dim, head_dim, array.shape[0])
    return array.reshape(len(array) // head_dim, head_dim) if layout == HEAD_BIAS else array


def to_tensor(array: np.ndarray, layout: str) -> np.ndarray:
    """A parameter in the file's layout: the inverse of `to_parameter`.

    Args:
        array: the parameter of the model.
        layout: the layout of the tensor in the file.
    """
    if layout == TRANSPOSED:
        return array.T
    if layout == INTO_HEADS:
        return array.reshape(array.shape[0], -1).T
    if layout == OUT_OF_HEADS:
        return array.reshape(-1, array.shape[-1]).T
    return array.reshape(-1) if layout == HEAD_BIAS else array


def tensor_shape(shape: tuple[int, ...], layout: str, part: tuple[int, int] | None = None) -> tuple[int, ...]:
    """The shape in the file of a parameter of this shape.

    Args:
        shape: the shape of the parameter.
        layout: the layout of the tensor in the file.
        part: index of the part of the tensor that the parameter is, and the number of equal parts.
    """
    first, *rest = to_tensor(np.broadcast_to(np.uint8(0), shape), layout).shape
    return (first if part is None else first * part[1], *rest)


def read_parameters(
    weights: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], config: BertConfig, head: str
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read a model's parameters from the tensors of a checkpoint.

    Args:
        weights: tensors under canonical names (`read_weights`).
        shapes: shape of each parameter by path.
        config: config of the model.
        head: task head of the model.

    Returns:
        The parameters that the checkpoint has, in bertjax's layout and the file's dtype; and the names of the missing
        tensors of poolers and heads, by the paths of their parameters.

    Raises:
        CheckpointError: a tensor of the encoder is missing, or a tensor has another shape than the config requires.
    """
    entries = {path: entry_of_parameter(path, config, head) for path in shapes}
    missing = {path: entry.tensor for path, entry in entries.items() if entry.tensor not in weights}
    vital = [tensor for path, tensor in missing.items() if path.startswith("bert.") and ".pooler." not in path]
    if vital:
        raise CheckpointError(
            f"the checkpoint has no tensor {some_of([*dict.fromkeys(vital)], most=1)}: it is incomplete or has another "
            "architecture"
        )
    parameters = {}
    for path, entry in entries.items():
        if path in missing:
            continue
        tensor, expected = weights[entry.tensor], tensor_shape(shapes[path], entry.layout, entry.part)
        if tensor.shape != expected:
            raise CheckpointError(f"tensor {entry.tensor} has shape {tensor.shape}, but the config requires {expected}")
        index, parts = entry.part or (0, 1)
        rows = len(tensor) // parts
        parameters[path] = to_parameter(tensor[index * rows : (index + 1) * rows], entry.layout, config)
    return parameters, missing


# The axis of heads in a parameter, by its layout in the file.
_HEAD_AXES = {INTO_HEADS: 1, OUT_OF_HEADS: 0, HEAD_BIAS: 0}


def keep_heads(
    parameters: Mapping[str, np.ndarray], before: BertConfig, after: BertConfig, head: str
) -> dict[str, np.ndarray]:
    """Parameters of the heads that a config with fewer heads keeps.

    Args:
        parameters: arrays by path.
        before: config of the parameters.
        after: the same config with fewer heads.
        head: task head of the model.
    """
    kept = dict(parameters)
    for path, array in parameters.items():
        axis = _HEAD_AXES.get(entry_of_parameter(path, after, head).layout)
        if axis is not None:
            layer = after.architecture.parameters_of.index(int(path.split(".layers.")[1].split(".")[0]))
            kept[path] = np.take(array, [before.heads_of(layer).index(index) for index in after.heads_of(layer)], axis)
    return kept


def check_layers(weights: Mapping[str, np.ndarray], config: BertConfig) -> None:
    """Check the number of layers before a model of that size is made.

    Surplus layers in the file would otherwise be ignored, and the model would be wrong.

    Args:
        weights: tensors by canonical name.
        config: the config of the model.

    Raises:
        CheckpointError: the file has more or fewer layers than the config.
    """
    inner = _layers_of_group(config)
    found = (_layer_prefix(config.model_type).match(name) for name in weights)
    indices = {tuple(map(int, matched.groups())) for matched in found if matched}
    layers = {index[0] * inner + index[1] if len(index) > 1 else index[0] for index in indices}
    expected = config.parameter_sets
    if len(layers) != expected or max(layers) >= expected:
        count = max(layers, default=-1) + 1
        has = f"has {count} layers" if count != expected else f"has only {len(layers)} of its layers"
        names = config.family.groups or (config.family.key_of("num_hidden_layers"),)
        raise CheckpointError(f"the checkpoint {has}, but {' times '.join(names)} is {expected}")


def write_parameters(parameters: Mapping[str, np.ndarray], config: BertConfig, head: str) -> dict[str, np.ndarray]:
    """Tensors of a model's parameters, under canonical names and in HuggingFace's layout.

    Args:
        parameters: parameters by name.
        config: the config of the model.
        head: the name of the task head.
    """
    tensors: dict[str, np.ndarray] = {}
    parts: dict[str, dict[int, np.ndarray]] = {}
    for path, value in parameters.items():
        entry = entry_of_parameter(path, config, head)
        tensor = np.ascontiguousarray(to_tensor(np.asarray(value), entry.layout))
        if entry.part is None:
            tensors[entry.tensor] = tensor
        else:
            parts.setdefault(entry.tensor, {})[entry.part[0]] = tensor
    joined = {name: np.concatenate([rows[n] for n in sorted(rows)]) for name, rows in parts.items()}
    return tensors | joined


def word_embeddings(family: Family = BERT) -> str:
    """The tensor of the word embeddings, to which a decoder may be tied.

    Args:
        family: the family of the checkpoint.
    """
    return next(entry.tensor for entry in family.body if entry.parameter == "bert.embeddings.word")


def has_pooler(weights: Collection[str], family: Family = BERT) -> bool:
    """Whether an encoder's tensors include those of a pooler.

    >>> has_pooler(["bert.pooler.dense.weight"]), has_pooler(["bert.embeddings.word_embeddings.weight"])
    (True, False)
    """
    return any(entry.tensor in weights for entry in family.body if ".pooler." in entry.parameter)


_OLD_SUFFIXES = {".gamma": ".weight", ".beta": ".bias"}
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # 0, 1, 2 ... and 0, 0, 0 ...
_FLAX_LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}


def canonical_name(name: str, family: Family = BERT) -> str:
    """The canonical name of a tensor.

    >>> canonical_name("embeddings.LayerNorm.gamma")
    'bert.embeddings.LayerNorm.weight'
    >>> canonical_name("module.bert.pooler.dense.bias")
    'bert.pooler.dense.bias'
    """
    name = name.removeprefix("module.")  # from PyTorch's DataParallel
    for old, new in _OLD_SUFFIXES.items():
        if name.endswith(old):
            name = name.removesuffix(old) + new
    for head in family.heads.values():
        for old, new in head.renamed.items():
            if name.startswith(old):
                name = new + name.removeprefix(old)
    body = {entry.tensor.removeprefix(f"{family.prefix}.").split(".")[0] for entry in family.body}
    of_head = name.split(".")[0] not in body or is_known(name, family)
    return name if of_head else f"{family.prefix}.{name}"


def canonical_weights(weights: Mapping[str, np.ndarray], family: Family = BERT) -> dict[str, np.ndarray]:
    """Rename the tensors of a PyTorch model canonically.

    Buffers (`position_ids`, `token_type_ids`) and the family's unused tensors are left out. The bias of the masked-LM
    decoder replaces that of the head: many files hold both, and PyTorch adds the decoder's to the logits. A decoder
    weight is kept, whether or not it is tied to the word embeddings.

    Args:
        weights: tensors under the names of a PyTorch file, with or without the family's prefix.
        family: family of the tensors.

    Raises:
        CheckpointError: two tensors would get one name, or the names are not those of the family.
    """
    named: dict[str, np.ndarray] = {}
    for old_name, array in weights.items():
        name = canonical_name(old_name, family)
        if name.endswith(_BUFFERS) or any(re.fullmatch(pattern, name) for pattern in family.leftovers):
            continue
        if name in named:
            raise CheckpointError(f"two tensors both mean {name}; one of them is {old_name}")
        named[name] = array
    _check_family(named, weights, family)
    for head in family.heads.values():
        if head.decoder_bias in named:
            named[bias_of(head)] = named.pop(head.decoder_bias)
    return named


def bias_of(head: Head) -> str:
    """The tensor of the bias that a masked-LM head adds to its logits.

    Args:
        head: a masked-LM head.
    """
    return next(entry.tensor for entry in head.entries if entry.parameter == "predictions.bias")


def from_flax(tree: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Weights of an old FlaxBert under the names and in the layouts of PyTorch.

    Args:
        tree: arrays by their path in the tree, joined by slashes.

    Raises:
        CheckpointError: a kernel is not a matrix, as in the first FlaxBert.

    >>> tree = {"encoder/layer/0/output/dense/kernel": np.zeros((7, 4))}
    >>> [(name, array.shape) for name, array in from_flax(tree).items()]
    [('encoder.layer.0.output.dense.weight', (4, 7))]
    """
    named = {}
    for path, array in tree.items():
        *parts, leaf = path.split("/")
        if leaf == "kernel":
            if array.ndim != 2:
                raise CheckpointError(f"{path} must be a matrix, found shape {array.shape}")
            array = array.T  # Flax stores [inputs, outputs]
        named[".".join([*parts, _FLAX_LEAVES.get(leaf, leaf)])] = array
    return named


def _check_family(named: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray], family: Family) -> None:
    """Refuse another family's weights, which may share enough names to look like incomplete ones of this family."""
    layers = next(entry.tensor for entry in family.body if _PLACEHOLDERS.search(entry.tensor))
    for start in (word_embeddings(family).rsplit(".", 2)[0] + ".", _PLACEHOLDERS.split(layers)[0]):
        if not any(name.startswith(start) for name in named):
            tops = Counter(name.removeprefix("module.").split(".")[0] for name in weights)
            listed = ", ".join(f"{top}." for top, _ in tops.most_common(4)) or "no tensors at all"
            raise CheckpointError(f"these are not weights of {family.name}: no {start}*, found {listed}")
