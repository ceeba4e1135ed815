"""Tiny models for tests: sizes, random inputs, and the same weights in PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import BertConfig
from bertjax.pretrained import make_numerics

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
        "num_hidden_layers": 4,
        "num_attention_heads": 5,
        "intermediate_size": 17,
        "max_position_embeddings": 16,
        "type_vocab_size": 3,
        "initializer_range": 0.2,
        "hidden_act": "silu",
        "layer_norm_eps": 1e-5,
    },
}


def arguments(config: BertConfig, rng: np.random.Generator, batch: int = 4, tokens: int = 9, left: bool = False) -> dict:
    """Random ids with padding (on the right, or on the left), segments that change half way."""
    lengths = np.array([tokens, 1, *rng.integers(2, tokens, batch - 2)])
    places = np.arange(tokens)[None]
    mask = places >= tokens - lengths[:, None] if left else places < lengths[:, None]
    ids = rng.integers(0, config.vocab_size, (batch, tokens))
    types = rng.integers(0, config.type_vocab_size, (batch, tokens))
    return {"input_ids": ids, "attention_mask": mask.astype(np.int64), "token_type_ids": types}


def random_model(cls, config: BertConfig, dtype="float32", seed: int = 0, **options):
    """A bertjax model whose every parameter is random: biases and norms too, which start as 0 and 1."""
    model = cls(config, jax.random.key(seed), make_numerics(dtype), **options)
    keys = jax.random.split(jax.random.key(seed + 1), len(jax.tree.leaves(model)))
    leaves, structure = jax.tree.flatten(model)
    noisy = [x + 0.2 * jax.random.normal(k, x.shape, x.dtype) for x, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, noisy)


def largest_difference(ours, theirs, real=None) -> float:
    """Maximum absolute difference, over the leading axes where `real` is true."""
    apart = np.abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64))
    return float((apart if real is None else apart[np.asarray(real).astype(bool)]).max())


def tree_equal(first, second) -> bool:
    """Whether two trees hold the same numbers, bit for bit (0 and -0 count as the same)."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(bool(jnp.array_equal(a, b)) for a, b in pairs)
