"""Permanent removal of heads from the weights of a model."""

from collections.abc import Iterable

from bertjax import arguments
from bertjax.errors import InputError, some_of
from bertjax.interventions.overrides import Head, parse_head
from bertjax.models import PretrainedModel


def remove_heads(model: PretrainedModel, heads: Iterable[Head]) -> None:
    """Set heads to zero by changing the weights of the model in place.

    A head's rows of the output projection become 0, which has the effect of mode 'zero'. Weights keep their shapes, so
    `save_pretrained` writes a checkpoint that `transformers` can load.

    Args:
        model: changed in place.
        heads: names of heads, such as ["3.0", "2.7"].

    Raises:
        OverrideError: a head that the model does not have.
        InputError: weights shared with layers that keep the head. Nothing was changed.
    """
    config = model.config
    parsed = sorted({parse_head(head, config) for head in arguments.check_sequence(heads, "heads", "a list of heads")})
    shared = config.architecture.parameters_of
    for layer, head in parsed:
        others = [other for other, index in enumerate(shared) if index == shared[layer] and (other, head) not in parsed]
        if others:
            names = some_of([f"{other}.{head}" for other in others])
            raise InputError(f"head {layer}.{head} shares its weights with {names}: remove all of them, or none")
    for layer, head in parsed:
        kernel = model.body.encoder.layers[shared[layer]].attention.output.kernel
        kernel[...] = kernel[...].at[config.heads_of(layer).index(head)].set(0)
