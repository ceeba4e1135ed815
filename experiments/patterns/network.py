"""A small convolutional network that classifies attention patterns, and the inputs of the network and its rivals.

The network has 8 convolutions with ReLU between them, as in the paper. The paper does not specify them; these are 3x3
to 16 and 16 channels, pool, 32 and 32, pool, 64 and 64, then 1x1 to 16, mean over the map, 1x1 to the classes.

Its input is a map resized to a fixed size, with two channels: the square root of the weights, averaged over the area of
each pixel, and the share of that area within one text. Its rivals, such as logistic regression, read five numbers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int
from safetensors.numpy import load_file, save_file

from experiments.patterns.maps import NAMES, MapRow, weights_of

SIZE = 32  # pixels per side
# Mean and spread of each channel over the labelled maps.
CENTRE, SPREAD = (np.array(pair, np.float32).reshape(1, 1, 1, 2) for pair in ((0.11, 0.62), (0.11, 0.48)))
NUMBERS = ("special tokens", "neighbours", "same text", "entropy", "column concentration")


class PatternNetwork(nnx.Module):
    """8 convolutions with ReLU between them."""

    def __init__(self, rngs: nnx.Rngs):
        widths = [(2, 16), (16, 16), (16, 32), (32, 32), (32, 64), (64, 64), (64, 16), (16, len(NAMES))]
        sides = [3] * 6 + [1] * 2
        initial = nnx.initializers.he_normal()
        self.convolutions = nnx.List(
            [
                nnx.Conv(*width, (side, side), kernel_init=initial, rngs=rngs)
                for width, side in zip(widths, sides, strict=True)
            ]
        )

    def __call__(self, images: Float[Array, "batch row column channel"]) -> Float[Array, "batch classes"]:
        """Logits of the classes."""
        *first, last = self.convolutions
        features = (images - CENTRE) / SPREAD
        for number, convolution in enumerate(first):
            features = nnx.relu(convolution(features))
            if number in (1, 3):
                features = nnx.max_pool(features, (2, 2), strides=(2, 2))
        features = features.mean((1, 2), keepdims=True)
        return last(features)[:, 0, 0]


def resize_maps(
    attentions: Float[Array, "layers batch heads query key"],
    keep: Int[Array, "batch token"],
    first: Int[Array, "batch"],
    size: int = SIZE,
) -> Float[Array, "layers batch heads row column channel"]:
    """Maps of the real tokens as images of one size, independent of padding.

    Args:
        keep: 1 for real tokens, which come first.
        first: tokens of the first text.

    Returns: the square root of the weights, averaged over the area of each pixel, and the share of that area where
    query and key belong to the same text.
    """
    ratio = keep.sum(-1).astype(attentions.dtype)[:, None, None] / size
    pixel = jnp.arange(size, dtype=attentions.dtype)[None, :, None]
    token = jnp.arange(keep.shape[1], dtype=attentions.dtype)[None, None, :]
    covered = jnp.minimum((pixel + 1.0) * ratio, token + 1.0) - jnp.maximum(pixel * ratio, token)
    share = jnp.clip(covered, 0.0) / ratio  # [batch, row, token]: share of a pixel's side covered by a token
    images = jnp.einsum("brq,lbhqk,bck->lbhrc", share, jnp.sqrt(attentions), share, optimize=True)
    first_share = (share * (jnp.arange(keep.shape[1])[None] < first[:, None]).astype(share.dtype)[:, None]).sum(-1)
    same_text = (
        first_share[:, :, None] * first_share[:, None, :]
        + (1.0 - first_share)[:, :, None] * (1.0 - first_share)[:, None, :]
    )
    return jnp.stack([images, jnp.broadcast_to(same_text[None, :, None], images.shape)], axis=-1)


def five_numbers(
    attentions: Float[Array, "layers batch heads query key"],
    keep: Int[Array, "batch token"],
    first: Int[Array, "batch"],
) -> Float[Array, "batch layers heads 5"]:
    """Five numbers that describe a map, each a mean over the real queries.

    Returns: the weight on [CLS] and [SEP]; on the token itself and its two neighbours; on tokens of the same text; the
    entropy as a share of its maximum; and the sum over keys of the squared mean weight.
    """
    real = keep.astype(attentions.dtype)
    tokens = keep.sum(-1)
    place = jnp.arange(keep.shape[1])
    ends = jnp.stack([jnp.zeros_like(first), first - 1, tokens - 1], axis=-1)
    special = (place[None, :, None] == ends[:, None]).any(-1).astype(real.dtype)
    neighbours = (jnp.abs(place[:, None] - place[None]) <= 1).astype(real.dtype)
    text = place[None] < first[:, None]
    same_text = (text[:, :, None] == text[:, None]).astype(real.dtype)
    query = real / tokens.astype(real.dtype)[:, None]
    surprise = -attentions * jnp.log(jnp.where(attentions > 0, attentions, 1.0))
    largest_entropy = jnp.log(jnp.maximum(tokens, 2).astype(real.dtype))
    columns = jnp.einsum("lbhqk,bq->lbhk", attentions, query)
    numbers = [
        jnp.einsum("lbhk,bk->blh", columns, special),
        jnp.einsum("lbhqk,bq,qk->blh", attentions, query, neighbours, optimize=True),
        jnp.einsum("lbhqk,bq,bqk->blh", attentions, query, same_text, optimize=True),
        jnp.einsum("lbhqk,bq->blh", surprise, query) / largest_entropy[:, None, None],
        jnp.einsum("lbhk,lbhk->blh", columns, columns),
    ]
    return jnp.stack(numbers, axis=-1)


def stack_maps(
    rows: Sequence[MapRow], maps: Sequence[np.ndarray]
) -> tuple[Float[np.ndarray, "1 batch 1 token token"], Int[np.ndarray, "batch token"], Int[np.ndarray, "batch"]]:
    """Maps of different sizes as one batch of single-head attention, with `keep` and `first`."""
    longest = max(row.tokens for row in rows)
    weights = np.zeros((1, len(rows), 1, longest, longest), np.float32)
    for number, (row, quantised) in enumerate(zip(rows, maps, strict=True)):
        weights[0, number, 0, : row.tokens, : row.tokens] = weights_of(quantised)
    tokens = np.array([row.tokens for row in rows])
    keep = (np.arange(longest)[None] < tokens[:, None]).astype(np.int32)
    return weights, keep, np.array([row.first for row in rows], np.int32)


@jax.jit
def read_maps_as(
    weights: Float[Array, "layers batch heads query key"], keep: Int[Array, "batch token"], first: Int[Array, "batch"]
) -> tuple[Float[Array, "batch row column channel"], Float[Array, "batch 5"]]:
    """The inputs of the network and its rivals for maps of one head each."""
    return resize_maps(weights, keep, first)[0, :, 0], five_numbers(weights, keep, first)[:, 0, 0]


def class_shares(network: Any, images: Float[Array, "*maps row column channel"]) -> Float[Array, "*maps classes"]:
    """Class probabilities for maps with any leading dimensions."""
    flat = images.reshape(-1, *images.shape[-3:])
    return nnx.softmax(network(flat)).reshape(*images.shape[:-3], len(NAMES))


def save_networks(path: Path, networks: Mapping[str, Any]) -> None:
    """Write the weights of networks to one file, in half precision."""
    arrays = {
        f"{name}.{number}": np.asarray(leaf, np.float16)
        for name, network in networks.items()
        for number, leaf in enumerate(jax.tree.leaves(nnx.state(network, nnx.Param)))
    }
    save_file(arrays, path)


def load_network(path: Path, name: str) -> PatternNetwork:
    """Load one network from a file written by `save_networks`."""
    network = nnx.eval_shape(lambda: PatternNetwork(nnx.Rngs(0)))
    graph, state = nnx.split(network, nnx.Param)
    leaves, structure = jax.tree.flatten(state)
    arrays = load_file(path)
    weights = [jnp.asarray(arrays[f"{name}.{number}"], jnp.float32) for number in range(len(leaves))]
    return nnx.merge(graph, jax.tree.unflatten(structure, weights))
