"""What the attention kernels share: whole blocks, a product, scores of a block, and how a platform compiles them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import triton
from jaxtyping import Array

from bertjax.model.types import Numerics

BLOCK = 128  # tokens; a TPU's lanes
GPU_BLOCK = 64
LEAST = 16  # of each side of a GPU's matrix product
MASKED = -1e30  # a score of no key


def by_platform(call: Callable[..., Any], *arrays: Array) -> Any:
    """Run a kernel as the platform at hand compiles it."""
    tokens = arrays[0].shape[2]
    block, small = min(BLOCK, tokens), min(GPU_BLOCK, tokens)
    gpu = triton.CompilerParams(num_warps=4, num_stages=2)
    return jax.lax.platform_dependent(
        *arrays,
        tpu=partial(call, block=block),
        cuda=partial(call, block=small, compiler_params=gpu),
        default=partial(call, block=block, interpret=True),
    )


def by_head(part: Array) -> Array:
    """`[batch, heads, token, head_dim]`, padded to whole blocks."""
    return widen(pad(part, 1).swapaxes(1, 2), 3)


def block_size(tokens: int) -> int:
    """Tokens of a block, for texts of so many."""
    return min(BLOCK, max(LEAST, 1 << (tokens - 1).bit_length()))


def pad(part: Array, axis: int) -> Array:
    """Zeros after an axis of tokens, to whole blocks."""
    return extend(part, axis, -part.shape[axis] % block_size(part.shape[axis]))


def widen(part: Array, axis: int) -> Array:
    """Zeros after an axis, to a power of two that a GPU's matrix product takes."""
    size = part.shape[axis]
    return extend(part, axis, max(LEAST, 1 << (size - 1).bit_length()) - size)


def extend(part: Array, axis: int, count: int) -> Array:
    """So many zeros after an axis."""
    return jnp.pad(part, [(0, count if place == axis else 0) for place in range(part.ndim)])


def cut(part: Array, size: int) -> Array:
    """Blocks of the second axis first: `[blocks, batch, size, ...]`."""
    batch, tokens, *rest = part.shape
    return part.reshape(batch, tokens // size, size, *rest).swapaxes(0, 1)


def running(rows: int, numerics: Numerics) -> tuple[Array, Array]:
    """The highest score and the sum, before any key."""
    return jnp.full((rows, 1), MASKED, numerics.wide), jnp.zeros((rows, 1), numerics.wide)


def score_block(
    query: Array, key: Array, asking: Array, asked: Array, scale: float, numerics: Numerics
) -> tuple[Array, Array]:
    """Scores of a block, and which of them are of a key that the query may attend to."""
    allowed = (asking == asked) & (asked > 0)
    return jnp.where(allowed, product(query, key, 1, numerics) * scale, MASKED), allowed


def product(left: Array, right: Array, axis: int, numerics: Numerics, precision: Any = None) -> Array:
    """A matrix product over the left's last axis and the right's `axis`, summed in wide floats."""
    return jax.lax.dot_general(
        left,
        right,
        (((1,), (axis,)), ((), ())),
        precision=precision or numerics.precision,
        preferred_element_type=numerics.wide,
    )
