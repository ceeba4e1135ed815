"""Permanent removal of heads from the weights of a model."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float

from bertjax import arguments
from bertjax.errors import InputError, some_of
from bertjax.interventions.overrides import Head, parse_head
from bertjax.models import PretrainedModel


def remove_heads(
    model: PretrainedModel,
    heads: Iterable[Head],
    means: Float[np.ndarray, "layers heads head_dim"] | None = None,
) -> None:
    """Set heads to zero, or to their mean output, by changing the weights of the model in place.

    A head's rows of the output projection become 0, which has the effect of mode 'zero'. With means, the projection of
    its mean output is added to the bias, which has the effect of mode 'mean'. Weights keep their shapes, so
    `save_pretrained` writes a checkpoint that `transformers` can load.

    Args:
        model: changed in place.
        heads: names of heads, such as ["3.0", "2.7"].
        means: the heads' mean outputs (`mean_head_outputs`); None for mode 'zero'.

    Raises:
        OverrideError: a head that the model does not have.
        InputError: weights shared with layers that keep the head, means of another shape, or no bias that could hold
            the mean output. Nothing was changed.
    """
    config = model.config
    parsed = sorted({parse_head(head, config) for head in arguments.check_sequence(heads, "heads", "a list of heads")})
    shared = config.architecture.parameters_of
    for layer, head in parsed:
        others = [other for other, index in enumerate(shared) if index == shared[layer] and (other, head) not in parsed]
        if others:
            names = some_of([f"{other}.{head}" for other in others])
            raise InputError(f"head {layer}.{head} shares its weights with {names}: remove all of them, or none")
    if means is not None:
        expected = (config.num_hidden_layers, config.num_attention_heads, config.head_dim)
        if np.shape(means) != expected:
            raise InputError(f"means have shape {np.shape(means)}, expected [layers, heads, head_dim] {expected}")
        if any(not config.architecture.layers[layer].attention_bias for layer, _ in parsed):
            raise InputError(f"{config.family.name} has no bias that could hold a head's mean output")
        if len(set(shared)) < len(shared):
            raise InputError("layers that share their weights have one bias, which cannot hold a mean output of each")
    for layer, head in parsed:
        output, index = model.body.encoder.layers[shared[layer]].attention.output, config.heads_of(layer).index(head)
        if means is not None and output.bias is not None:
            mean = np.asarray(means[layer, head], np.float64) @ np.asarray(output.kernel[index], np.float64)
            output.bias[...] = output.bias[...] + mean.astype(output.bias[...].dtype)
        output.kernel[...] = output.kernel[...].at[index].set(0)
