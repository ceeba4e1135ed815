"""Canonical names: one name for each tensor of a BERT, whatever file it came from.

Canonical are the names and layouts of today's PyTorch models in HuggingFace's `transformers`, with the
`bert.` prefix on every part of the encoder: `bert.embeddings.word_embeddings.weight`,
`bert.encoder.layer.0.attention.self.query.weight` (`[outputs, inputs]`), `bert.pooler.dense.bias`,
`cls.predictions.bias`, `classifier.weight` and so on.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from bertjax.errors import CheckpointError

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
        CheckpointError: a kernel that is no matrix, as the first FlaxBert had.

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


def _check_family(named: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> None:
    """Another family's weights may share enough names to look like a BERT with parts missing."""
    for start in ("bert.embeddings.", "bert.encoder.layer."):
        if not any(name.startswith(start) for name in named):
            tops = Counter(name.removeprefix("module.").split(".")[0] for name in found)
            listed = ", ".join(f"{top}." for top, _ in tops.most_common(4)) or "no tensors at all"
            raise CheckpointError(f"these are not the weights of a BERT: no {start}*, found {listed}")
