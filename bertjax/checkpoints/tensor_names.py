"""One table of names for each family: HuggingFace's tensors <-> bertjax's parameters, both ways.

`read_weights` gives tensors under HuggingFace's names; a model's parameters have paths such as
`bert.encoder.layers.3.attention.query.kernel`, the same in every family. Each entry of a family's table says which
belong together and how the array is laid out: PyTorch stores a linear map as `[outputs, inputs]` with the heads
merged into one axis, bertjax as `[inputs, outputs]` with the heads as an axis of their own.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
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
NUMBER = "(0|[1-9][0-9]{0,8})"  # as digits of a number that fits
_PLACES = re.compile(r"\{(?:layer|group|inner)\}")


def entry_of_parameter(path: str, config: BertConfig, head: str) -> TensorEntry:
    """The table's entry for a parameter's path, with its layer's number filled in.

    Args:
        head: what the model has on top of its encoder (`architecture.SEQUENCE` and so on).

    >>> from bertjax.checkpoints.architecture import BODY
    >>> entry_of_parameter("bert.encoder.layers.3.attention.query.kernel", BertConfig(), BODY).tensor
    'bert.encoder.layer.3.attention.self.query.weight'
    """
    table, number = _by_parameter(config.family, head), re.search(r"(?<=\.layers\.)\d+", path)
    if number is None:
        return table[path]
    entry = table[path.replace(f".layers.{number[0]}.", ".layers.{layer}.")]
    group, inner = divmod(int(number[0]), _inner_layers(config))
    return replace(entry, tensor=entry.tensor.format(layer=number[0], group=group, inner=inner), parameter=path)


def _inner_layers(config: BertConfig) -> int:
    """How many layers a group of layers has."""
    groups = config.family.groups
    return 1 if groups is None else int(config.own[groups[1]])


def _by_parameter(family: Family, head: str) -> dict[str, TensorEntry]:
    return {entry.parameter: entry for entry in (*family.body, *family.heads[head].entries)}


def is_known(tensor: str, family: Family = BERT) -> bool:
    """Whether any class of a family has this tensor.

    >>> is_known("classifier.weight"), is_known("lm_head.weight")
    (True, False)
    """
    return _pattern(tensor, family) in _known(family.model_type)


@cache
def _known(model_type: str) -> frozenset[str]:
    """The names of all tensors of a family, without layers' numbers."""
    family = FAMILIES[model_type]
    heads = (entry for head in family.heads.values() for entry in head.entries)
    return frozenset(_PLACES.sub("{}", entry.tensor) for entry in (*family.body, *heads))


def _pattern(tensor: str, family: Family) -> str:
    """A tensor's name without its layer's number."""
    return _numbered(family.model_type).sub(lambda found: re.sub(r"(?<=\.)\d+(?=\.)", "{}", found[0]), tensor)


@cache
def _numbered(model_type: str) -> re.Pattern[str]:
    """The beginning of a layer's tensors, with its numbers as groups."""
    layer = next(entry.tensor for entry in FAMILIES[model_type].body if _PLACES.search(entry.tensor))
    end = list(_PLACES.finditer(layer))[-1].end()
    return re.compile("^" + NUMBER.join(map(re.escape, _PLACES.split(layer[:end]))) + r"\.")


def to_parameter(array: np.ndarray, layout: str, config: BertConfig) -> np.ndarray:
    """A tensor of the file in bertjax's layout (a view where NumPy can)."""
    head_dim = config.head_dim
    if layout == TRANSPOSED:
        return array.T
    if layout == INTO_HEADS:
        return array.T.reshape(array.shape[1], array.shape[0] // head_dim, head_dim)
    if layout == OUT_OF_HEADS:
        return array.T.reshape(array.shape[1] // head_dim, head_dim, array.shape[0])
    return array.reshape(len(array) // head_dim, head_dim) if layout == HEAD_BIAS else array


def to_tensor(array: np.ndarray, layout: str) -> np.ndarray:
    """A parameter in the file's layout: the inverse of `to_parameter`."""
    if layout == TRANSPOSED:
        array = array.T
    elif layout == INTO_HEADS:
        array = array.reshape(array.shape[0], -1).T
    elif layout == OUT_OF_HEADS:
        array = array.reshape(-1, array.shape[-1]).T
    elif layout == HEAD_BIAS:
        array = array.reshape(-1)
    return np.ascontiguousarray(array)


def tensor_shape(shape: tuple[int, ...], layout: str, part: tuple[int, int] | None = None) -> tuple[int, ...]:
    """The shape in the file of a parameter of this shape.

    Args:
        part: which of how many equal parts of the tensor the parameter is.
    """
    if layout == TRANSPOSED:
        shape = shape[::-1]
    elif layout == INTO_HEADS:
        shape = (shape[1] * shape[2], shape[0])
    elif layout == OUT_OF_HEADS:
        shape = (shape[2], shape[0] * shape[1])
    elif layout == HEAD_BIAS:
        shape = (shape[0] * shape[1],)
    return shape if part is None else (part[1] * shape[0], *shape[1:])


def read_parameters(
    weights: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], config: BertConfig, head: str
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The parameters that a model asks for, from the tensors of a checkpoint.

    Args:
        weights: tensors under canonical names (`read_weights`).
        shapes: shape of each parameter wanted, by its path.
        config: the model's configuration.
        head: what the model has on top of its encoder.

    Returns: the parameters found, in bertjax's layout and the file's dtype; and the tensors that are missing although
        a model can do without (pooler and task heads), by the paths of their parameters.

    Raises:
        CheckpointError: a tensor of the encoder is missing, or one has another shape than the config asks for.
    """
    entries = {path: entry_of_parameter(path, config, head) for path in shapes}
    missing = {path: entry.tensor for path, entry in entries.items() if entry.tensor not in weights}
    vital = [tensor for path, tensor in missing.items() if path.startswith("bert.") and ".pooler." not in path]
    if vital:
        raise CheckpointError(
            f"the checkpoint has no tensor {some_of([*dict.fromkeys(vital)], most=1)}: it is incomplete or another "
            "architecture"
        )
    parameters = {}
    for path, entry in entries.items():
        if path in missing:
            continue
        tensor, wanted = weights[entry.tensor], tensor_shape(shapes[path], entry.layout, entry.part)
        if tensor.shape != wanted:
            raise CheckpointError(f"tensor {entry.tensor} has shape {tensor.shape}, but the config asks for {wanted}")
        parameters[path] = to_parameter(_part(tensor, entry.part), entry.layout, config)
    return parameters, missing


# The axis of heads in a parameter, by its layout in the file.
_HEAD_AXES = {INTO_HEADS: 1, OUT_OF_HEADS: 0, HEAD_BIAS: 0}


def keep_heads(
    parameters: Mapping[str, np.ndarray], before: BertConfig, after: BertConfig, head: str
) -> dict[str, np.ndarray]:
    """The parameters of the heads that another config keeps, by path.

    Args:
        parameters: by path.
        before: the config of the parameters.
        after: the same config with fewer heads.
        head: what the model has on top of its encoder.
    """
    kept = dict(parameters)
    for path, array in parameters.items():
        axis = _HEAD_AXES.get(entry_of_parameter(path, after, head).layout)
        if axis is not None:
            layer = after.architecture.parameters_of.index(int(path.split(".layers.")[1].split(".")[0]))
            kept[path] = np.take(array, [before.heads_of(layer).index(own) for own in after.heads_of(layer)], axis)
    return kept


def _part(tensor: np.ndarray, part: tuple[int, int] | None) -> np.ndarray:
    if part is None:
        return tensor
    number, parts = part
    rows = tensor.shape[0] // parts
    return tensor[number * rows : (number + 1) * rows]


def check_layers(weights: Mapping[str, np.ndarray], config: BertConfig) -> None:
    """Compare the number of layers with the file's, before a model of that size is made.

    More layers in the file than in the config would load as a wrong model without a word.

    Raises:
        CheckpointError: the file has more or fewer layers than the config.
    """
    numbered, inner = _numbered(config.model_type), _inner_layers(config)
    found = (numbered.search(name) for name in weights)
    numbers = {tuple(map(int, matched.groups())) for matched in found if matched}
    layers = {number[0] * inner + number[1] if len(number) > 1 else number[0] for number in numbers}
    wanted = config.parameter_sets
    if len(layers) != wanted or max(layers) >= wanted:
        held = max(layers, default=-1) + 1
        has = f"has {held} layers" if held != wanted else f"has only {len(layers)} of its layers"
        names = config.family.groups or (config.family.key_of("num_hidden_layers"),)
        raise CheckpointError(f"the checkpoint {has}, but {' times '.join(names)} is {wanted}")


def write_parameters(parameters: Mapping[str, np.ndarray], config: BertConfig, head: str) -> dict[str, np.ndarray]:
    """The tensors, under canonical names and in HuggingFace's layout, of a model's parameters."""
    tensors: dict[str, np.ndarray] = {}
    parts: dict[str, dict[int, np.ndarray]] = {}
    for path, value in parameters.items():
        entry = entry_of_parameter(path, config, head)
        tensor = to_tensor(np.asarray(value), entry.layout)
        if entry.part is None:
            tensors[entry.tensor] = tensor
        else:
            parts.setdefault(entry.tensor, {})[entry.part[0]] = tensor
    joined = {name: np.concatenate([rows[n] for n in sorted(rows)]) for name, rows in parts.items()}
    return tensors | joined


def word_embeddings(family: Family = BERT) -> str:
    """The tensor of the word embeddings, to which a decoder may be tied."""
    return next(entry.tensor for entry in family.body if entry.parameter == "bert.embeddings.word")


def has_pooler(weights: Collection[str], family: Family = BERT) -> bool:
    """Whether an encoder's tensors include a pooler's.

    >>> has_pooler(["bert.pooler.dense.weight"]), has_pooler(["bert.embeddings.word_embeddings.weight"])
    (True, False)
    """
    return any(entry.tensor in weights for entry in family.body if ".pooler." in entry.parameter)


_OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # 0, 1, 2 ... and 0, 0, 0 ...
_FLAX_LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}


def canonical_name(name: str, family: Family = BERT) -> str:
    """Give a tensor's canonical name.

    >>> canonical_name("embeddings.LayerNorm.gamma")
    'bert.embeddings.LayerNorm.weight'
    >>> canonical_name("module.bert.pooler.dense.bias")
    'bert.pooler.dense.bias'
    """
    name = name.removeprefix("module.")  # from PyTorch's DataParallel
    for old, new in _OLD_ENDINGS.items():
        if name.endswith(old):
            name = name.removesuffix(old) + new
    for head in family.heads.values():
        for old, new in head.renamed.items():
            if name.startswith(old):
                name = new + name.removeprefix(old)
    beginnings = {entry.tensor.removeprefix(f"{family.prefix}.").split(".")[0] for entry in family.body}
    of_head = name.split(".")[0] not in beginnings or is_known(name, family)
    return name if of_head else f"{family.prefix}.{name}"


def canonical_weights(weights: Mapping[str, np.ndarray], family: Family = BERT) -> dict[str, np.ndarray]:
    """Rename a PyTorch model's tensors canonically.

    Left out are the buffers `position_ids` and `token_type_ids`, which are not learned, what the family's files hold
    and nobody reads, and the masked-LM decoder's own bias, which becomes that of the head. Files often hold both,
    equal; where they differ, the decoder's is the one that PyTorch adds to the logits. A decoder weight in the file
    stays, tied to the word embeddings or not.

    Args:
        weights: tensors under the names of a PyTorch file, with or without the family's prefix.
        family: whose names they are.

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
    for decoder_bias, bias in second_biases(family):
        if decoder_bias in named:
            named[bias] = named.pop(decoder_bias)
    return named


def second_biases(family: Family) -> Iterator[tuple[str, str]]:
    """The second name of a masked-LM head's bias, with the first."""
    for head in family.heads.values():
        if head.decoder_bias is not None:
            yield head.decoder_bias, bias_of(head)


def bias_of(head: Head) -> str:
    """The tensor of the bias that a masked-LM head adds to its logits."""
    return next(entry.tensor for entry in head.entries if entry.parameter == "predictions.bias")


def from_flax(tree: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Give the weights of an old FlaxBert the names and layouts of PyTorch.

    Args:
        tree: arrays by their path in the tree, joined by slashes.

    Raises:
        CheckpointError: a kernel that is not a matrix, as the first FlaxBert had.

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


def _check_family(named: Mapping[str, np.ndarray], parameters: Mapping[str, np.ndarray], family: Family) -> None:
    """Another family's weights may share enough names to look like this one's with parts missing."""
    layers = next(entry.tensor for entry in family.body if _PLACES.search(entry.tensor))
    for start in (word_embeddings(family).rsplit(".", 2)[0] + ".", _PLACES.split(layers)[0]):
        if not any(name.startswith(start) for name in named):
            tops = Counter(name.removeprefix("module.").split(".")[0] for name in parameters)
            listed = ", ".join(f"{top}." for top, _ in tops.most_common(4)) or "no tensors at all"
            raise CheckpointError(f"these are not weights of {family.name}: no {start}*, found {listed}")
