"""Where tokens stand, as attention reads it: rotation, windows, and scores by distance.

Free functions on arrays; which of them a layer uses is said by its `LayerKind`. Distances are those of indices within
a row, which are those of positions within a text. Sources: Su et al. 2021 (rotary positions), Beltagy et al. 2020
(windows), Raffel et al. 2020 and HuggingFace's `modeling_mpnet.py` (a number for each bucket of distances), He et al.
2021 and HuggingFace's `modeling_deberta_v2.py` (disentangled attention).
"""

from functools import cache

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.checkpoints import RelativePositions
from bertjax.models import ops
from bertjax.models.types import Numerics, record


@record
class DistanceWeights:
    """What a layer's scores take from a table of distances; None where its form has no such term.

    Args:
        bias: a number for each bucket and head.
        keys: vectors of positions as keys, with which queries are multiplied.
        queries: vectors of positions as queries, with which keys are multiplied.
    """

    bias: Float[Array, "buckets heads"] | None
    keys: Float[Array, "buckets heads head_dim"] | None
    queries: Float[Array, "buckets heads head_dim"] | None


def rotate(
    x: Float[Array, "batch token heads head_dim"],
    positions: Int[Array, "batch token"],
    base: float,
    numerics: Numerics,
) -> Float[Array, "batch token heads head_dim"]:
    """Turn each pair `(x_i, x_{i + head_dim / 2})` by the angle `position * base^(-2 i / head_dim)`.

    Computed in wide floats, returned in x's dtype.
    """
    half, wide = x.shape[-1] // 2, numerics.wide
    angles = positions.astype(wide)[:, :, None] * jnp.asarray(frequencies(2 * half, base, wide.name))[None, None]
    cosine, sine = (function(angles)[:, :, None] for function in (jnp.cos, jnp.sin))
    first, second = x[..., :half].astype(wide), x[..., half:].astype(wide)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1).astype(x.dtype)


@cache
def frequencies(head_dim: int, base: float, dtype: str) -> np.ndarray:
    """`base^(-2 i / head_dim)` for each pair, rounded step by step as PyTorch does in that dtype.

    >>> frequencies(4, 100.0, "float64").tolist()
    [1.0, 0.1]
    """
    exponents = np.arange(0, head_dim, 2, dtype=dtype) / np.asarray(head_dim, dtype)
    return np.asarray(1.0 / (np.asarray(base, dtype) ** exponents), dtype)


def within_window(tokens: int, window: int, dtype: np.dtype) -> Float[Array, "1 query key"]:
    """1 where a key is at most `window` tokens from its query."""
    index = np.arange(tokens)
    return jnp.asarray((np.abs(index[:, None] - index[None]) <= window)[None].astype(dtype))


def rows_of_distances(relative: RelativePositions, farthest: int) -> np.ndarray:
    """The row of the table for each distance `query - key` from `-farthest` to `farthest`, as whole numbers.

    >>> from bertjax.checkpoints import RelativePositions
    >>> rows_of_distances(RelativePositions("bias", buckets=8, largest=16), 3).tolist()
    [6, 6, 5, 0, 1, 2, 2]
    """
    distances = np.arange(-farthest, farthest + 1)
    form = _rows_of_bias if relative.form == "bias" else _rows_of_vectors
    return form(relative, distances)


def _rows_of_bias(relative: RelativePositions, distances: np.ndarray) -> np.ndarray:
    """T5's buckets: half of them for keys behind the query; in each half the nearest apart, then by the logarithm."""
    half = relative.buckets // 2
    exact, far = half // 2, np.abs(distances)
    with np.errstate(divide="ignore"):
        log = np.log(far.astype(np.float32) / np.float32(exact)) / np.float32(np.log(relative.largest / exact))
    beyond = exact + np.where(far > 0, log * np.float32(half - exact), 0).astype(np.int64)
    return np.where(distances < 0, half, 0) + np.where(far < exact, far, np.minimum(beyond, half - 1))


def _rows_of_vectors(relative: RelativePositions, distances: np.ndarray) -> np.ndarray:
    """DeBERTa's buckets: distances below half of them apart, then by the logarithm, each way."""
    span, places = relative.buckets, distances
    if relative.largest > 0:
        middle = span // 2
        near = np.abs(distances) < middle
        far = np.where(near, middle - 1, np.abs(distances)).astype(np.float32)
        whole = np.log(np.asarray((relative.largest - 1) / middle, np.float32))
        log = np.ceil(np.log(far / np.float32(middle)) / whole * np.float32(middle - 1)) + middle
        places = np.where(far <= middle, distances, (log * np.sign(distances)).astype(np.int64))
    return np.clip(places + span, 0, 2 * span - 1)


def distance_scores(
    queries: Float[Array, "batch query heads head_dim"],
    keys: Float[Array, "batch key heads head_dim"],
    weights: DistanceWeights,
    relative: RelativePositions,
    numerics: Numerics,
) -> tuple[Float[Array, "#batch heads query key"] | None, Float[Array, "1 heads query key"] | None]:
    """What distances add to the products of queries and keys, before and after the scale.

    Each product is taken with the vectors of all distances, and its rows are then shifted so that they meet their keys.
    """
    tokens = queries.shape[1]
    rows = rows_of_distances(relative, tokens - 1)
    products = None
    if weights.keys is not None:
        products = shift(_products(queries, weights.keys, rows[::-1], numerics))
    if weights.queries is not None:
        of_keys = shift(_products(keys, weights.queries, rows, numerics)).swapaxes(-1, -2)
        products = of_keys if products is None else products + of_keys
    if weights.bias is None:
        return products, None
    by_distance = weights.bias.astype(numerics.wide)[rows[::-1]].T
    repeated = jnp.broadcast_to(by_distance[None, :, None], (1, by_distance.shape[0], tokens, by_distance.shape[1]))
    return products, shift(repeated)


def _products(
    x: Float[Array, "batch token heads head_dim"],
    vectors: Float[Array, "buckets heads head_dim"],
    rows: np.ndarray,
    numerics: Numerics,
) -> Float[Array, "batch heads token distances"]:
    """Products with the vector of each distance; of few buckets and many distances each bucket's once."""
    low, high = int(rows.min()), int(rows.max())
    used = vectors[low : high + 1]
    if high - low + 1 < len(rows):
        return jnp.take(ops.contract("bthd,rhd->bhtr", x, used, numerics), rows - low, axis=-1)
    return ops.contract("bthd,rhd->bhtr", x, used[rows - low], numerics)


def shift(x: Float[Array, "batch heads token distances"]) -> Float[Array, "batch heads token token"]:
    """From one column for each distance `j - i`, from `-(n - 1)` to `n - 1`, to one for each j, in row i.

    Row i is read from its column `n - 1 - i` on: in memory that is a step of one number less from row to row.
    """
    batch, heads, tokens, distances = x.shape
    flat = x.reshape(batch, heads, tokens * distances)[:, :, tokens - 1 :]
    width = max(distances - 1, 1)
    return flat[:, :, : tokens * width].reshape(batch, heads, tokens, width)[..., :tokens]


def _rows_from_first(relative: RelativePositions, positions: Int[Array, "batch token"]) -> Int[Array, "batch token"]:
    """Rows of the table for queries at a text's first token: a key's distance is minus its own position."""
    longest = positions.shape[1]
    of_position = rows_of_distances(relative, longest - 1)[:longest][::-1]
    return jnp.asarray(of_position.astype(np.int32))[positions]


def biases_from_first(
    positions: Int[Array, "batch token"], bias: Float[Array, "buckets heads"], relative: RelativePositions
) -> Float[Array, "batch heads 1 token"]:
    """What is added to the scores of queries at each text's first token."""
    return bias[_rows_from_first(relative, positions)].swapaxes(1, 2)[:, :, None]


def keys_from_first(
    keys: Float[Array, "batch token heads head_dim"],
    positions: Int[Array, "batch token"],
    weights: DistanceWeights,
    relative: RelativePositions,
    numerics: Numerics,
) -> tuple[Float[Array, "batch token heads head_dim"], Float[Array, "batch heads 1 token"]]:
    """Keys, and what is added to their products, for queries at each text's first token.

    From there a key has one distance, so that the vector of its position can be added to the key itself.
    """
    rows = _rows_from_first(relative, positions)
    products = jnp.zeros(keys.shape[:3], numerics.wide)
    if weights.queries is not None:
        vectors = weights.queries.astype(numerics.dtype)[rows]
        products = jnp.einsum(
            "bthd,bthd->bth", keys, vectors, precision=numerics.precision, preferred_element_type=numerics.wide
        )
    if weights.keys is not None:
        keys = keys + weights.keys.astype(keys.dtype)[rows]
    return keys, products.swapaxes(1, 2)[:, :, None]
