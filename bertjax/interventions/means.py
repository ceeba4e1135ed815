"""Mean outputs of heads, which mode 'mean' uses as replacements."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertjax import arguments
from bertjax.errors import InputError
from bertjax.models import ModelOutput, PretrainedModel, check_parameters, compute


def mean_head_outputs(
    model: PretrainedModel, batches: Mapping[str, Any] | Sequence[Mapping[str, Any]]
) -> Float[np.ndarray, "layers heads head_dim"]:
    """Mean output of each head over the real tokens of all examples: the reference of `overrides.mean`.

    Args:
        model: the model.
        batches: one batch of a tokenizer, or several.

    Raises:
        InputError: there is no real token.
    """
    check_parameters(model)
    batches = arguments.check_sequence(
        [batches] if isinstance(batches, Mapping) else batches, "batches", "a list of batches"
    )
    config, count = model.config, 0.0
    total = np.zeros((config.num_hidden_layers, config.num_attention_heads, config.head_dim))
    for batch in batches:
        part, tokens = compute(_sum_over_tokens, model, model.inputs(batch))
        total += np.asarray(part, np.float64)
        count += float(tokens)
    if count == 0:
        raise InputError("the mean of the heads' outputs needs at least one real token")
    return total / count


def _sum_over_tokens(output: ModelOutput) -> tuple[Float[Array, "layers heads head_dim"], Float[Array, ""]]:
    inside = output.inside
    real = jnp.max(inside.keep, axis=1)
    return jnp.einsum("lbqhd,bq->lhd", inside.head_outputs, real, precision="highest"), jnp.sum(real)
