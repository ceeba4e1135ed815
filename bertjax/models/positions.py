"""Positions in attention: rotation, windows, and scores by distance.

Free functions on arrays; `LayerKind` states which of them a layer uses. Distances are differences of indices in a row.
Sources: Su et al. 2021 (rotary positions), Beltagy et al. 2020 (windows), Raffel et al. 2020 and HuggingFace's
`modeling_mpnet.py` (a bias for each distance bucket), He et al. 2021 and HuggingFace's `modeling_deberta_v2.py`
(disentangled attention).
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
    """Terms of a layer's scores that depend on distances; None for terms that its form lacks.

    Args:
        bias: a scalar for each bucket and head.
        keys: position vectors projected as keys, to be multiplied with queries.
        queries: position vectors projected as queries, to be multiplied with keys.
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
    """Rotate each pair `(x_i, x_{i + head_dim / 2})` by the angle `position * base^(-2 i / head_dim)`.

    Computed in wide floats, returned in x's dtype.
    """
    half, wide = x.shape[-1] // 2, numerics.wide
    angles = positions.astype(wide)[:, :, None] * jnp.asarray(frequencies(2 * half, base, wide.name))[None, None]
    cosine, sine = (function(angles)[:, :, None] for function in (jnp.cos, jnp.sin))
    first, second = x[..., :half].astype(wide), x[..., half:].astype(wide)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1).astype(x.dtype)


@cache
def frequencies(head_dim: int, base: float, dtype: str) -> np.ndarray:
    """`base^(-2 i / head_dim)` for each pair, with PyTorch's rounding in that dtype.

    >>> frequencies(4, 100.0, "float64").tolist()
    [1.0, 0.1]
    """
    exponents = np.arange(0, head_dim, 2, dtype=dtype) / np.asarray(head_dim, dtype)
    return np.asarray(1.0 / (np.asarray(base, dtype) ** exponents), dtype)


def within_window(tokens: int, window: int, dtype: np.dtype) -> Float[Array, "1 query key"]:
    """1 where a key is at most `window` tokens from the query, else 0."""
    index = np.arange(tokens)
    return jnp.asarray((np.abs(index[:, None] - index[None]) <= window)[None].astype(dtype))


def rows_of_distances(relative: RelativePositions, farthest: int) -> np.ndarray:
    """The row of the distance table for each distance `query - key` from `-farthest` to `farthest`.

    >>> from bertjax.checkpoints import RelativePositions
    >>> rows_of_distances(RelativePositions("bias", buckets=8, largest=16), 3).tolist()
    [6, 6, 5, 0, 1, 2, 2]
    """
    distances = np.arange(-farthest, farthest + 1)
    form = _rows_of_bias if relative.form == "bias" else _rows_of_vectors
    return form(relative, distances)


def _rows_of_bias(relative: RelativePositions, distances: np.ndarray) -> np.ndarray:
    """T5's buckets: half of them for keys after the query; in each half exact near the query, then logarithmic."""
    half = relative.buckets // 2
    exact, far = half // 2, np.abs(distances)
    with np.errstate(divide="ignore"):
        log = np.log(far.astype(np.float32) / np.float32(exact)) / np.float32(np.log(relative.largest / exact))
    beyond = exact + np.where(far > 0, log * np.float32(half - exact), 0).astype(np.int64)
    return np.where(distances < 0, half, 0) + np.where(far < exact, far, np.minimum(beyond, half - 1))


def _rows_of_vectors(relative: RelativePositions, distances: np.ndarray) -> np.ndarray:
    """DeBERTa's buckets: exact up to half of their number, then logarithmic, in each direction."""
    span, rows = relative.buckets, distances
    if relative.largest > 0:
        middle = span // 2
        near = np.abs(distances) < middle
        far = np.where(near, middle - 1, np.abs(distances)).astype(np.float32)
        whole = np.log(np.asarray((relative.largest - 1) / middle, np.float32))
        log = np.ceil(np.log(far / np.float32(middle)) / whole * np.float32(middle - 1)) + middle
        rows = np.where(far <= middle, distances, (log * np.sign(distances)).astype(np.int64))
    return np.clip(rows + span, 0, 2 * span - 1)


def distance_scores(
    queries: Float[Array, "batch query heads head_dim"],
    keys: Float[Array, "batch key heads head_dim"],
    weights: DistanceWeights,
    relative: RelativePositions,
    numerics: Numerics,
) -> tuple[Float[Array, "#batch heads query key"] | None, Float[Array, "1 heads query key"] | None]:
    """Terms of distances in the scores, to be added before and after the scale.

    Products are computed with the vectors of all distances; `shift` then aligns each row with its keys.
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
    """Products with the vector of each distance, computed once for each bucket if there are fewer buckets."""
    low, high = int(rows.min()), int(rows.max())
    used = vectors[low : high + 1]
    if high - low + 1 < len(rows):
        return jnp.take(ops.contract("bthd,rhd->bhtr", x, used, numerics), rows - low, axis=-1)
    return ops.contract("bthd,rhd->bhtr", x, used[rows - low], numerics)


def shift(x: Float[Array, "batch heads token distances"]) -> Float[Array, "batch heads token token"]:
    """Convert columns of distances `j - i`, from `-(n - 1)` to `n - 1`, to columns of keys j, for each row i.

    Row i is read from column `n - 1 - i` on, which in memory is a constant stride.
    """
    batch, heads, tokens, distances = x.shape
    flat = x.reshape(batch, heads, tokens * distances)[:, :, tokens - 1 :]
    width = max(distances - 1, 1)
    return flat[:, :, : tokens * width].reshape(batch, heads, tokens, width)[..., :tokens]


def _rows_from_first(relative: RelativePositions, positions: Int[Array, "batch token"]) -> Int[Array, "batch token"]:
    """Rows of the table for queries at the first token of an example: the distance is minus the key's position."""
    longest = positions.shape[1]
    of_position = rows_of_distances(relative, longest - 1)[:longest][::-1]
    return jnp.asarray(of_position.astype(np.int32))[positions]


def biases_from_first(
    positions: Int[Array, "batch token"], bias: Float[Array, "buckets heads"], relative: RelativePositions
) -> Float[Array, "batch heads 1 token"]:
    """Bias of the scores of queries at the first token of each example."""
    return bias[_rows_from_first(relative, positions)].swapaxes(1, 2)[:, :, None]


def keys_from_first(
    keys: Float[Array, "batch token heads head_dim"],
    positions: Int[Array, "batch token"],
    weights: DistanceWeights,
    relative: RelativePositions,
    numerics: Numerics,
) -> tuple[Float[Array, "batch token heads head_dim"], Float[Array, "batch heads 1 token"]]:
    """Keys and a bias of their products, for queries at the first token of each example.

    Each key has a single distance then, so that the vector of its position can be added to the key.
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
