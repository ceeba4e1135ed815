"""Norms of the vectors that a head adds to the hidden states: weights times transformed values.

Attention's output at a query q is a sum over heads and keys, and a bias: sum_h sum_k a_hqk f_h(x_k) + b, with
f_h(x) = (x W_V + b_V) W_O of the head's columns of W_V and rows of W_O (Kobayashi et al. 2020). A key with a large
weight and a small norm of f_h(x) contributes little.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertjax.models import PretrainedModel


def output_products(model: PretrainedModel) -> Float[np.ndarray, "layers heads head_dim head_dim"]:
    """W_O W_O^T of each head's rows of the output projection, from which norms of transformed values are computed.

    Removed heads are 0.
    """
    config = model.config
    products = np.zeros((config.num_hidden_layers, config.num_attention_heads, config.head_dim, config.head_dim))
    for number, layer in enumerate(model.body.encoder.applications()):
        kernel = np.asarray(layer.attention.output.kernel[...], np.float64)  # heads, head_dim, embed
        products[number, list(config.heads_of(number))] = np.einsum("hde,hce->hdc", kernel, kernel)
    return products


def value_lengths(
    values: Float[Array | np.ndarray, "layers batch key heads head_dim"],
    products: Float[Array | np.ndarray, "layers heads head_dim head_dim"],
) -> Float[Array, "layers batch heads key"]:
    """||f_h(x_k)|| of each head and key.

    Args:
        values: the values of each head, with bias.
        products: the result of `output_products`.
    """
    squares = jnp.einsum("lbkhd,lhdc,lbkhc->lbhk", values, products, values, precision="highest")
    return jnp.sqrt(jnp.maximum(squares, 0.0))


def norm_shares(
    weights: Float[Array, "layers batch heads query key"],
    values: Float[Array, "layers batch key heads head_dim"],
    products: Float[Array | np.ndarray, "layers heads head_dim head_dim"],
) -> Float[Array, "layers batch heads query key"]:
    """The share of each key in the norms of a head's weighted values: ||a f_h(x_k)|| over its sum; 0 for removed heads.

    Args:
        weights: attention weights, `[layers, batch, heads, query, key]`.
        values: the values of each head, with bias.
        products: the result of `output_products`.
    """
    added = weights * value_lengths(values, products)[..., None, :]
    return added / jnp.maximum(added.sum(axis=-1, keepdims=True), jnp.finfo(added.dtype).tiny)
