"""Heads taken out of a model's weights for good, so that whatever loads its checkpoint has them no more."""

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
    """Make heads give nothing, or their mean output, by the model's own weights: in place, and for good.

    The head's rows of the output projection become 0, which is what mode 'zero' does to its output; with means, the
    projection of its mean output is added to the bias, which is what mode 'mean' does. The shapes of all weights stay:
    `save_pretrained` writes a checkpoint that `transformers` reads.

    Args:
        model: changed in place.
        heads: such as ["3.0", "2.7"].
        means: the heads' mean outputs (`mean_head_outputs`); None for nothing in their place.

    Raises:
        OverrideError: a head that the model does not have.
        InputError: weights that other layers share, which keep the head, means of another shape, or no bias of the
            layer's own to hold them; nothing was changed.
    """
    config = model.config
    parsed = sorted({parse_head(head, config) for head in arguments.check_sequence(heads, "heads", "a list of heads")})
    shared = config.architecture.parameters_of
    for layer, head in parsed:
        others = [number for number, own in enumerate(shared) if own == shared[layer] and (number, head) not in parsed]
        if others:
            names = some_of([f"{number}.{head}" for number in others])
            raise InputError(f"head {layer}.{head} has its weights from {names} too: remove all of them, or none")
    if means is not None:
        wanted = (config.num_hidden_layers, config.num_attention_heads, config.head_dim)
        if np.shape(means) != wanted:
            raise InputError(f"means have shape {np.shape(means)}, expected [layers, heads, head_dim] {wanted}")
        if any(not config.architecture.layers[layer].attention_bias for layer, _ in parsed):
            raise InputError(f"{config.family.name} has no bias that could hold a head's mean output")
        if len(set(shared)) < len(shared):
            raise InputError("layers that share their weights have one bias, which cannot hold a mean output of each")
    done = set()
    for layer, head in parsed:
        if (shared[layer], head) in done:
            continue
        done.add((shared[layer], head))
        output, place = model.body.encoder.layers[shared[layer]].attention.output, config.heads_of(layer).index(head)
        if means is not None and output.bias is not None:
            mean = np.asarray(means[layer, head], np.float64) @ np.asarray(output.kernel[place], np.float64)
            output.bias[...] = output.bias[...] + mean.astype(output.bias[...].dtype)
        output.kernel[...] = output.kernel[...].at[place].set(0)
