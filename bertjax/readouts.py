"""What to keep of a run: functions of a model's output. Any other function of it will do as well.

A sweep finds out which fields a readout asks for: where all of them are computed from [CLS] alone, the last layer is
computed at [CLS] alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.errors import InputError
from bertjax.pretrained import PretrainedModel
from bertjax.types import ModelOutput

Readout = Callable[[ModelOutput], Array]


def logits(output: ModelOutput) -> Float[Array, "batch *labels"]:
    """The task head's logits; of a masked-LM head those of every token and word."""
    if output.logits is None:
        raise InputError("this model has no logits: it has no task head")
    return output.logits


def pooled(output: ModelOutput) -> Float[Array, "batch embed"]:
    """The pooler's vector."""
    if output.pooler_output is None:
        raise InputError("this model has no pooler")
    return output.pooler_output


def sentence_embedding(output: ModelOutput) -> Float[Array, "batch embed"]:
    """The sentence vector."""
    if output.sentence_embedding is None:
        raise InputError("this model has no sentence embedding: load it as BertForSentenceEmbedding")
    return output.sentence_embedding


def hidden_state(output: ModelOutput) -> Float[Array, "batch token embed"]:
    """The last layer's output at every token; what lies beyond an example's own tokens is of no meaning."""
    return output.last_hidden_state


class _Recording(ModelOutput):
    """A model's output that writes down which of its fields are asked for."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            object.__getattribute__(self, "asked").add(name)
        return object.__getattribute__(self, name)


@dataclass(frozen=True)
class Inspected:
    """What a readout asks for and gives.

    Args:
        fields: of `ModelOutput` that it asks for.
        first_only: whether the model computes all of them from [CLS].
        given: what it gives for a single text, `[1, *readout]`.
        read_bytes: of the fields that it asks for, for a single text.
    """

    fields: frozenset[str]
    first_only: bool
    given: jax.ShapeDtypeStruct
    read_bytes: int


def inspect_readout(model: PretrainedModel, readout: Readout, tokens: int) -> Inspected:
    """What a readout asks for and gives, without running it.

    Args:
        tokens: of the hidden states that it reads.
    """
    asked: set[str] = set()
    sizes: dict[str, int] = {}
    hidden = jax.ShapeDtypeStruct((1, tokens, model.config.hidden_size), model.numerics.dtype)

    def probe(hidden: Array) -> Array:
        output = model.finish(hidden, jnp.ones((1, 1, tokens), model.numerics.wide))
        watched = object.__new__(_Recording)
        object.__setattr__(watched, "asked", asked)
        for name, value in vars(output).items():
            object.__setattr__(watched, name, value)
            sizes[name] = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(value))
        return readout(watched)

    given = jax.eval_shape(probe, hidden)
    fields = frozenset(asked - {"asked"})
    read_bytes = sum(sizes.get(name, 0) for name in fields)
    return Inspected(fields, fields <= model.fields_of_first_token, given, read_bytes)


def check_at_positions(model: PretrainedModel, inspected: Inspected) -> None:
    """Raise `InputError` where a readout at chosen tokens asks for what is not computed token by token."""
    other = inspected.fields & (model.fields_of_first_token | {"sentence_embedding"})
    if other:
        raise InputError(f"the readout asks for {', '.join(sorted(other))}, which no single token has: leave out `at`")
