"""One table of names: HuggingFace's tensors <-> bertjax's parameters, both ways.

`read_weights` gives tensors under HuggingFace's names; a model's parameters have paths such as
`bert.encoder.layers.3.attention.query.kernel`. Each row of `TABLE` says which belong together and how the
array is laid out: PyTorch stores a linear map as `[outputs, inputs]` with the heads merged into one axis,
bertjax as `[inputs, outputs]` with the heads as an axis of their own.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bertjax.checkpoints.config import BertConfig
from bertjax.errors import CheckpointError, some_of

AS_IS, TRANSPOSED, INTO_HEADS, HEAD_BIAS, OUT_OF_HEADS = (
    "as is",
    "transposed",
    "into heads",
    "head bias",
    "out of heads",
)


@dataclass(frozen=True)
class Row:
    """A tensor's name in HuggingFace's files, the path of its parameter, and its layout in the file."""

    tensor: str
    parameter: str
    layout: str = AS_IS


def _linear(tensor: str, parameter: str, kernel: str = TRANSPOSED, bias: str = AS_IS) -> tuple[Row, Row]:
    return Row(f"{tensor}.weight", f"{parameter}.kernel", kernel), Row(f"{tensor}.bias", f"{parameter}.bias", bias)


def _norm(tensor: str, parameter: str) -> tuple[Row, Row]:
    return Row(f"{tensor}.weight", f"{parameter}.scale"), Row(f"{tensor}.bias", f"{parameter}.bias")


_LAYER, _OURS = "bert.encoder.layer.{layer}", "bert.encoder.layers.{layer}"

TABLE: tuple[Row, ...] = (
    Row("bert.embeddings.word_embeddings.weight", "bert.embeddings.word"),
    Row("bert.embeddings.position_embeddings.weight", "bert.embeddings.position"),
    Row("bert.embeddings.token_type_embeddings.weight", "bert.embeddings.token_type"),
    *_norm("bert.embeddings.LayerNorm", "bert.embeddings.norm"),
    *_linear(f"{_LAYER}.attention.self.query", f"{_OURS}.attention.query", INTO_HEADS, HEAD_BIAS),
    *_linear(f"{_LAYER}.attention.self.key", f"{_OURS}.attention.key", INTO_HEADS, HEAD_BIAS),
    *_linear(f"{_LAYER}.attention.self.value", f"{_OURS}.attention.value", INTO_HEADS, HEAD_BIAS),
    *_linear(f"{_LAYER}.attention.output.dense", f"{_OURS}.attention.output", OUT_OF_HEADS),
    *_norm(f"{_LAYER}.attention.output.LayerNorm", f"{_OURS}.attention_norm"),
    *_linear(f"{_LAYER}.intermediate.dense", f"{_OURS}.intermediate"),
    *_linear(f"{_LAYER}.output.dense", f"{_OURS}.output"),
    *_norm(f"{_LAYER}.output.LayerNorm", f"{_OURS}.output_norm"),
    *_linear("bert.pooler.dense", "bert.pooler.dense"),
    *_linear("cls.predictions.transform.dense", "predictions.transform"),
    *_norm("cls.predictions.transform.LayerNorm", "predictions.norm"),
    Row("cls.predictions.decoder.weight", "predictions.decoder"),
    Row("cls.predictions.bias", "predictions.bias"),
    *_linear("cls.seq_relationship", "seq_relationship"),
    *_linear("classifier", "classifier"),
    *_linear("qa_outputs", "qa_outputs"),
)

_LAYER_NUMBER = re.compile(r"(?<=^bert\.encoder\.layer\.)(0|[1-9][0-9]{0,8})(?=\.)")  # as digits of a number that fits

_BY_PARAMETER = {row.parameter: row for row in TABLE}
_BY_TENSOR = {row.tensor: row for row in TABLE}


def row_of_parameter(path: str) -> Row:
    """The table's row for a parameter's path, with its layer number filled in.

    >>> row_of_parameter("bert.encoder.layers.3.attention.query.kernel").tensor
    'bert.encoder.layer.3.attention.self.query.weight'
    """
    number = re.search(r"(?<=\.layers\.)\d+", path)
    if number is None:
        return _BY_PARAMETER[path]
    row = _BY_PARAMETER[path.replace(f".layers.{number[0]}.", ".layers.{layer}.")]
    return Row(row.tensor.replace("{layer}", number[0]), path, row.layout)


def is_known(tensor: str) -> bool:
    """Whether any BERT class of bertjax has this tensor.

    >>> is_known("classifier.weight"), is_known("lm_head.weight")
    (True, False)
    """
    return _LAYER_NUMBER.sub("{layer}", tensor) in _BY_TENSOR


def to_parameter(array: np.ndarray, layout: str, config: BertConfig) -> np.ndarray:
    """A tensor of the file in bertjax's layout (a view where NumPy can)."""
    heads, head_dim = config.num_attention_heads, config.head_dim
    if layout == TRANSPOSED:
        return array.T
    if layout == INTO_HEADS:
        return array.T.reshape(array.shape[1], heads, head_dim)
    if layout == OUT_OF_HEADS:
        return array.T.reshape(heads, head_dim, array.shape[0])
    return array.reshape(heads, head_dim) if layout == HEAD_BIAS else array


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


def tensor_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """The shape in the file of a parameter of this shape."""
    if layout == TRANSPOSED:
        return shape[::-1]
    if layout == INTO_HEADS:
        return (shape[1] * shape[2], shape[0])
    if layout == OUT_OF_HEADS:
        return (shape[2], shape[0] * shape[1])
    return (shape[0] * shape[1],) if layout == HEAD_BIAS else shape


def read_parameters(
    weights: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], config: BertConfig
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The parameters that a model asks for, from the tensors of a checkpoint.

    Args:
        weights: tensors under canonical names (`read_weights`).
        shapes: shape of each parameter wanted, by its path.
        config: the model's configuration.

    Returns: the parameters found, in bertjax's layout and the file's dtype; and the names of the tensors that
        are missing although a model can do without (pooler and task heads).

    Raises:
        CheckpointError: a tensor of the encoder is missing, or one has another shape than the config asks for.
    """
    rows = {path: row_of_parameter(path) for path in shapes}
    missing = [row.tensor for row in rows.values() if row.tensor not in weights]
    vital = [name for name in missing if name.startswith(("bert.embeddings.", "bert.encoder."))]
    if vital:
        raise CheckpointError(
            f"the checkpoint has no tensor {some_of(vital, most=1)}: it is incomplete or another architecture"
        )
    for path, row in rows.items():
        if row.tensor in weights and weights[row.tensor].shape != tensor_shape(shapes[path], row.layout):
            raise CheckpointError(
                f"tensor {row.tensor} has shape {weights[row.tensor].shape}, but the config asks for "
                f"{tensor_shape(shapes[path], row.layout)}"
            )
    parameters = {
        path: to_parameter(weights[row.tensor], row.layout, config)
        for path, row in rows.items()
        if row.tensor in weights
    }
    return parameters, missing


def check_layers(weights: Mapping[str, np.ndarray], config: BertConfig) -> None:
    """Compare the number of layers with the file's, before a model of that size is made.

    More layers in the file than in the config would load as a wrong model without a word.

    Raises:
        CheckpointError: the file has more or fewer layers than the config.
    """
    layers = {int(matched[0]) for name in weights if (matched := _LAYER_NUMBER.search(name))}
    wanted = config.num_hidden_layers
    if len(layers) != wanted or max(layers) >= wanted:
        held = max(layers, default=-1) + 1
        has = f"has {held} layers" if held != wanted else f"has only {len(layers)} of its layers"
        raise CheckpointError(f"the checkpoint {has}, but num_hidden_layers is {wanted}")


def write_parameters(parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors, under canonical names and in HuggingFace's layout, of a model's parameters."""
    rows = {path: row_of_parameter(path) for path in parameters}
    return {row.tensor: to_tensor(np.asarray(parameters[path]), row.layout) for path, row in rows.items()}


WORD_EMBEDDINGS = "bert.embeddings.word_embeddings.weight"
DECODER_WEIGHT = "cls.predictions.decoder.weight"
DECODER_BIAS = "cls.predictions.decoder.bias"
MLM_BIAS = "cls.predictions.bias"

_ENCODER_PARTS = ("embeddings.", "encoder.", "pooler.")
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # 0, 1, 2 ... and 0, 0, 0 ...
_OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}
_FLAX_LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}


def canonical_name(name: str) -> str:
    """Give a tensor's canonical name.

    >>> canonical_name("embeddings.LayerNorm.gamma")
    'bert.embeddings.LayerNorm.weight'
    >>> canonical_name("module.bert.pooler.dense.bias")
    'bert.pooler.dense.bias'
    """
    name = name.removeprefix("module.")  # from PyTorch's DataParallel
    if name.startswith(_ENCODER_PARTS):
        name = f"bert.{name}"
    for old, new in _OLD_ENDINGS.items():
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return name


def canonical_weights(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rename a PyTorch model's tensors canonically.

    Left out are the buffers `position_ids` and `token_type_ids`, which are not learned, and
    `cls.predictions.decoder.bias`, which becomes `cls.predictions.bias`. Files often hold both, equal; where
    they differ, the decoder's is the one that PyTorch adds to the logits. A decoder weight in the file stays,
    tied to the word embeddings or not.

    Args:
        weights: tensors under the names of a PyTorch file, with or without the `bert.` prefix.

    Raises:
        CheckpointError: two tensors would get one name, or the names are not those of a BERT.
    """
    named: dict[str, np.ndarray] = {}
    for old_name, array in weights.items():
        name = canonical_name(old_name)
        if name.endswith(_BUFFERS):
            continue
        if name in named:
            raise CheckpointError(f"two tensors both mean {name}; one of them is {old_name}")
        named[name] = array
    _check_family(named, weights)
    if DECODER_BIAS in named:
        named[MLM_BIAS] = named.pop(DECODER_BIAS)
    return named


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


def _check_family(named: Mapping[str, np.ndarray], parameters: Mapping[str, np.ndarray]) -> None:
    """Another family's weights may share enough names to look like a BERT with parts missing."""
    for start in ("bert.embeddings.", "bert.encoder.layer."):
        if not any(name.startswith(start) for name in named):
            tops = Counter(name.removeprefix("module.").split(".")[0] for name in parameters)
            listed = ", ".join(f"{top}." for top, _ in tops.most_common(4)) or "no tensors at all"
            raise CheckpointError(f"these are not the weights of a BERT: no {start}*, found {listed}")
