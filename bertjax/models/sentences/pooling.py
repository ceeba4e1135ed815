"""Poolings of the hidden states of a text into one vector, as free functions.

Source: the module `Pooling` of sentence-transformers 6.2, with its names. Real tokens are those that any query may
attend to; padding may be on either side. The vector of a text without real tokens is finite.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.models import ops
from bertjax.models.types import ModelOutput

FLOOR = 1e-9  # of a divisor, as in sentence-transformers

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "sigmoid": jax.nn.sigmoid,
    **{name: ops.ACTIVATIONS[name] for name in ("tanh", "relu", "gelu", "silu")},
}
"""Activations of dense layers on vectors, and of scores."""


def real_tokens(keep: Float[Array, "batch #query key"]) -> Float[Array, "batch key"]:
    """1 for tokens that any query may attend to, 0 for padding."""
    return jnp.max(keep, axis=1)


def mean_of_real_tokens(
    hidden: Float[Array, "batch token embed"], keep: Float[Array, "batch #query key"]
) -> Float[Array, "batch embed"]:
    """The mean over real tokens, in the dtype of the mask; 0 without real tokens."""
    return _mean(hidden, real_tokens(keep))


def _mean(hidden: Float[Array, "batch token embed"], real: Float[Array, "batch token"]) -> Float[Array, "batch embed"]:
    return _weighted_sum(hidden, real) / jnp.maximum(jnp.sum(real, axis=-1, keepdims=True), FLOOR)


def _mean_by_root(
    hidden: Float[Array, "batch token embed"], real: Float[Array, "batch token"]
) -> Float[Array, "batch embed"]:
    """The sum divided by the square root of the number of tokens."""
    return _weighted_sum(hidden, real) / jnp.sqrt(jnp.maximum(jnp.sum(real, axis=-1, keepdims=True), FLOOR))


def _weighted_mean(
    hidden: Float[Array, "batch token embed"], real: Float[Array, "batch token"]
) -> Float[Array, "batch embed"]:
    """The mean with weights 1, 2, 3 ... from the first real token on."""
    positions = jnp.arange(1, real.shape[1] + 1, dtype=real.dtype)
    weights = real * (positions[None] - _first(real).astype(real.dtype)[:, None])
    return _weighted_sum(hidden, weights) / jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), FLOOR)


def _maximum(
    hidden: Float[Array, "batch token embed"], real: Float[Array, "batch token"]
) -> Float[Array, "batch embed"]:
    """The elementwise maximum."""
    largest = jnp.max(jnp.where(real[:, :, None] > 0, hidden, -jnp.inf), axis=1)
    return jnp.where(jnp.max(real, axis=1)[:, None] > 0, largest, 0)


def _first_token(
    hidden: Float[Array, "batch token embed"], real: Float[Array, "batch token"]
) -> Float[Array, "batch embed"]:
    return _token(hidden, _first(real))


def _last_token(
    hidden: Float[Array, "batch token embed"], real: Float[Array, "batch token"]
) -> Float[Array, "batch embed"]:
    return _token(hidden, real.shape[1] - 1 - _first(real[:, ::-1]))


def _first(real: Float[Array, "batch token"]) -> Int[Array, " batch"]:
    """Index of the first real token."""
    return jnp.argmax(real > 0, axis=1)


def _token(hidden: Float[Array, "batch token embed"], index: Int[Array, " batch"]) -> Float[Array, "batch embed"]:
    """One token of each text, bit-identical: a gather would be fused with the last norm and recompute it."""
    return _weighted_sum(hidden, jax.nn.one_hot(index, hidden.shape[1], dtype=hidden.dtype))


def _weighted_sum(
    hidden: Float[Array, "batch token embed"], weights: Float[Array, "batch token"]
) -> Float[Array, "batch embed"]:
    return jnp.einsum("bt,bte->be", weights, hidden.astype(weights.dtype), precision="highest")


POOLER = "pooler"
_OF_TOKENS: dict[str, Callable[[Array, Array], Array]] = {
    "cls": _first_token,
    "max": _maximum,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_by_root,
    "weightedmean": _weighted_mean,
    "lasttoken": _last_token,
}
POOLINGS = (*_OF_TOKENS, POOLER)
"""Names of poolings; 'pooler' cannot be combined with others."""


def pool(
    output: ModelOutput, keep: Float[Array, "batch #query key"], poolings: Sequence[str]
) -> Float[Array, "batch width"]:
    """The joined vectors of several poolings, in the dtype of the mask.

    Args:
        output: output of the encoder.
        keep: mask; 0 for padding.
        poolings: names in `POOLINGS`.
    """
    if POOLER in poolings:
        assert output.pooler_output is not None
        return output.pooler_output.astype(keep.dtype)
    hidden, real = output.last_hidden_state.astype(keep.dtype), real_tokens(keep)
    return jnp.concatenate([_OF_TOKENS[name](hidden, real) for name in poolings], axis=-1)


def normalize(vectors: Float[Array, "batch width"]) -> Float[Array, "batch width"]:
    """Scale vectors to length 1, with the same lower bound of the length as sentence-transformers."""
    return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def read_vector(
    output: ModelOutput, keep: Float[Array, "batch #query key"], reads: str
) -> Float[Array, "batch *token embed"]:
    """The input of a task head: pooler output, [CLS], mean over real tokens, or all tokens.

    Args:
        output: output of the encoder.
        keep: attention mask, 1 for real tokens.
        reads: 'pooler', 'cls', 'mean' or 'tokens', as in `HeadPlan`.
    """
    hidden = output.last_hidden_state
    if reads == "pooler":
        assert output.pooler_output is not None
        return output.pooler_output
    if reads == "mean":
        return mean_of_real_tokens(hidden, keep)
    return hidden[:, 0] if reads == "cls" else hidden
