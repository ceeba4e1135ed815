"""Attention rollout and attention flow: from the weights of layers to the contribution of input tokens.

Both average a layer's weights over heads, and mix them with the residual connection (Abnar and Zuidema 2020):
A = 0.5 W + 0.5 I. Rollout multiplies these matrices, starting at the first layer. Flow is the maximum flow from an
output to each input in a network whose edges have the capacities A.
"""

import numpy as np
from jaxtyping import Float

from bertjax.errors import InputError

CAPACITY = 2**20
"""The capacity of an edge with all attention; flows are computed with integers."""


def with_residual(weights: Float[np.ndarray, "layers heads query key"]) -> Float[np.ndarray, "layers query key"]:
    """0.5 W + 0.5 I of each layer, where W is the mean over heads.

    Args:
        weights: the weights of one text without padding.

    Raises:
        InputError: the numbers of queries and keys differ.
    """
    if weights.ndim != 4 or weights.shape[2] != weights.shape[3]:
        raise InputError(f"weights must be [layers, heads, query, key] of one text, found {weights.shape}")
    mixed: Float[np.ndarray, "layers query key"] = 0.5 * weights.mean(axis=1, dtype=np.float64)
    return mixed + 0.5 * np.eye(weights.shape[2])[None]


def attention_rollout(weights: Float[np.ndarray, "layers heads query key"]) -> Float[np.ndarray, "token input"]:
    """The share of each input token in each token of the last layer; rows sum to 1.

    Args:
        weights: the weights of one text without padding.

    Raises:
        InputError: the numbers of queries and keys differ.

    >>> uniform = np.full((1, 2, 3, 3), 1 / 3)
    >>> attention_rollout(uniform)[0].round(3).tolist()
    [0.667, 0.167, 0.167]
    """
    first, *rest = with_residual(weights)
    total = np.asarray(first)
    for layer in rest:
        total = layer @ total
    return total


def attention_flow(
    weights: Float[np.ndarray, "layers heads query key"], readers: Float[np.ndarray, " token"]
) -> Float[np.ndarray, " input"]:
    """The maximum flow from the output to each input token. The flows are separate and do not sum to 1.

    Args:
        weights: the weights of one text without padding.
        readers: the weight of each token of the last layer in the output: 1 for [CLS], or 1/n for the mean of n tokens.

    Raises:
        InputError: the numbers of queries and keys differ, or that of readers differs.

    >>> chain = np.zeros((1, 1, 2, 2))
    >>> chain[0, 0, :, 1] = 1  # both tokens attend to the second
    >>> attention_flow(chain, np.array([1.0, 0.0])).round(3).tolist()
    [0.5, 0.5]
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import maximum_flow

    mixed = with_residual(weights)
    layers, tokens, _ = mixed.shape
    if readers.shape != (tokens,):
        raise InputError(f"there are {len(readers)} readers for {tokens} tokens: give one for each")
    # Nodes: the tokens before layer 0, after layer 0 and so on; then the source.
    source = (layers + 1) * tokens
    layer, query, key = np.nonzero(mixed > 0)
    starts = np.concatenate([(layer + 1) * tokens + query, np.full(tokens, source)])
    ends = np.concatenate([layer * tokens + key, layers * tokens + np.arange(tokens)])
    shares = np.concatenate([mixed[layer, query, key], readers])
    capacities = np.rint(CAPACITY * shares).astype(np.int32)
    network = coo_matrix((capacities, (starts, ends)), shape=(source + 1, source + 1)).tocsr()
    return np.array([maximum_flow(network, source, sink).flow_value / CAPACITY for sink in range(tokens)])
