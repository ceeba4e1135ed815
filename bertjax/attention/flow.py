"""From weights of single layers to what reaches the output: attention rollout and attention flow.

Both take a layer's weights, the mean over heads, half and half with the residual connection (Abnar and Zuidema 2020):
A = 0.5 W + 0.5 I. Rollout multiplies these matrices from the first layer on; flow is the largest flow from an output to
each input through a network whose edges carry no more than A.
"""

import numpy as np
from jaxtyping import Float

from bertjax.errors import InputError

CAPACITY = 2**20
"""What an edge with all of the attention carries: flows are computed in whole numbers."""


def with_residual(weights: Float[np.ndarray, "layers heads query key"]) -> Float[np.ndarray, "layers query key"]:
    """0.5 W + 0.5 I of each layer, W the mean over heads.

    Args:
        weights: of one text, at its real tokens.

    Raises:
        InputError: weights that are not square in queries and keys.
    """
    if weights.ndim != 4 or weights.shape[2] != weights.shape[3]:
        raise InputError(f"weights must be [layers, heads, query, key] of one text, found {weights.shape}")
    mixed: Float[np.ndarray, "layers query key"] = 0.5 * weights.mean(axis=1, dtype=np.float64)
    return mixed + 0.5 * np.eye(weights.shape[2])[None]


def attention_rollout(weights: Float[np.ndarray, "layers heads query key"]) -> Float[np.ndarray, "token input"]:
    """How much of each input is in each token of the last layer, if values are what they were; rows sum to 1.

    Args:
        weights: of one text, at its real tokens.

    Raises:
        InputError: weights that are not square in queries and keys.

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
    """The largest flow from what reads the last layer to each input, each by itself, so that they do not sum to 1.

    Args:
        weights: of one text, at its real tokens.
        readers: the share of each token of the last layer in what is read: 1 at the first for [CLS], 1/n for a mean.

    Raises:
        InputError: weights that are not square in queries and keys, or readers of another number of tokens.

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
