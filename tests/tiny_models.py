"""Tiny models for tests: sizes, random inputs, and the same weights in PyTorch."""

import functools
import os
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from bertjax import BertConfig, BertForSentenceEmbedding
from bertjax.checkpoints import FAMILIES
from bertjax.data.tokenizer import Encoding
from bertjax.models import task_models
from bertjax.models.pretrained import by_path, make_numerics

# The classes of BERT by transformers' names, and sentence embedding.
CLASSES = {head.architecture: task_models.CLASSES[task] for task, head in FAMILIES["bert"].heads.items()}
CLASSES["BertForSentenceEmbedding"] = BertForSentenceEmbedding

# Tiny models take longer to compile than to run: LLVM may leave out its expensive passes, and XLA may use its older
# emitters, which later versions do not have (and end at a flag that they do not know). A program in one part takes half
# the work of one in many, which are for threads: the cores have other tests to run.
FAST_COMPILATION = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
FAST_COMPILATION += " --xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (0, 11):
    FAST_COMPILATION += " --xla_cpu_use_fusion_emitters=false"


def comparable_environment(devices: int = 1) -> dict[str, str]:
    """The environment of a process that compiles as the tests do, for a CPU that plays so many devices."""
    flags = f"--xla_force_host_platform_device_count={devices} {os.environ.get('XLA_FLAGS', FAST_COMPILATION)}"
    return os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


# Weights of standard deviation 0.3 make attention and hidden states far from uniform, as in a trained model.
SIZES = {
    "three heads": {
        "vocab_size": 41,
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 7,
        "max_position_embeddings": 19,
        "type_vocab_size": 2,
        "initializer_range": 0.3,
    },
    "one head": {
        "vocab_size": 23,
        "hidden_size": 5,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 13,
        "max_position_embeddings": 11,
        "type_vocab_size": 1,
        "initializer_range": 0.3,
        "hidden_act": "gelu_new",
    },
    "five heads": {
        "vocab_size": 37,
        "hidden_size": 30,
        "num_hidden_layers": 3,
        "num_attention_heads": 5,
        "intermediate_size": 17,
        "max_position_embeddings": 16,
        "type_vocab_size": 3,
        "initializer_range": 0.2,
        "hidden_act": "silu",
        "layer_norm_eps": 1e-5,
    },
}


def arguments(
    config: BertConfig, rng: np.random.Generator, batch: int = 4, tokens: int = 9, left: bool = False
) -> dict:
    """Random ids with padding (on the right, or on the left), segments that change half way."""
    lengths = np.array([tokens, 1, *rng.integers(2, tokens, batch - 2)])
    places = np.arange(tokens)[None]
    mask = places >= tokens - lengths[:, None] if left else places < lengths[:, None]
    ids = rng.integers(0, config.vocab_size, (batch, tokens))
    types = rng.integers(0, max(config.type_vocab_size, 1), (batch, tokens))
    return {"input_ids": ids, "attention_mask": mask.astype(np.int64), "token_type_ids": types}


@functools.cache
def _blank(cls, config: BertConfig, numerics, options: tuple):
    """Structure, shapes and paths of a model; nothing is computed, so nothing is compiled."""
    graphdef, state = nnx.split(nnx.eval_shape(lambda: cls(config, None, numerics, **dict(options))))
    return graphdef, jax.tree.structure(state), by_path(state)


def random_model(cls, config: BertConfig, dtype="float32", seed: int = 0, attention: str = "explicit", **options):
    """A bertjax model with random values in every parameter: also biases and norms, which start as 0 and 1."""
    graphdef, structure, shapes = _blank(cls, config, make_numerics(dtype, None, attention), tuple(options.items()))
    rng = np.random.default_rng(seed)
    leaves = [
        path.endswith("norm.scale") + config.initializer_range * rng.normal(size=leaf.shape)
        for path, leaf in shapes.items()
    ]
    arrays = [jax.device_put(np.asarray(x, leaf.dtype)) for x, leaf in zip(leaves, shapes.values(), strict=True)]
    return nnx.merge(graphdef, jax.tree.unflatten(structure, arrays))


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a file of NumPy, which is closed then: one left open fails whichever test it is found in."""
    with np.load(path) as file:
        return dict(file)


def largest_difference(ours, theirs, real=None) -> float:
    """Maximum absolute difference, over the leading axes where `real` is true."""
    apart = np.abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64))
    return float((apart if real is None else apart[np.asarray(real).astype(bool)]).max())


def tree_equal(first, second) -> bool:
    """Whether two trees hold the same numbers, bit for bit (0 and -0 count as the same)."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


def fixed_lengths(low: int, high: int, count: int) -> np.ndarray:
    """Numbers of tokens, at least `low` and below `high`, the same in each run: each new shape compiles a program."""
    return np.random.default_rng(count).integers(low, high, count)


def encodings(config: BertConfig, rng: np.random.Generator, lengths) -> list[Encoding]:
    """Tokenised texts of random ids, with random segments."""
    return [
        Encoding(
            tuple(rng.integers(0, config.vocab_size, length).tolist()),
            tuple(rng.integers(0, max(config.type_vocab_size, 1), length).tolist()),
            ("",) * int(length),
            ((0, 0),) * int(length),
            False,
        )
        for length in lengths
    ]
