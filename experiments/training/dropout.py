"""The forward pass for training: the model's computation with dropout, kept separate from the one used elsewhere.

Dropout is applied where each family has it, by its description: in BERT (Devlin et al. 2019 and HuggingFace's
`modeling_bert.py`) after the embeddings, on the attention weights, before each residual sum, and before the classifier.
With all rates 0 the logits are those of the model itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from bertjax.models import (
    BertForMaskedLM,
    BertForSequenceClassification,
    Inputs,
    ModelOutput,
    Overrides,
    keep_all,
    read_vector,
)

Drop = Callable[[Float[Array, "*shape"], float], Float[Array, "*shape"]]


def dropper(key: Key[Array, ""]) -> Drop:
    """A function `drop(x, rate)` that sets a random share of x to 0 and scales the rest, with a new draw in each call.

    Source: Srivastava et al. 2014, in the form that preserves the expectation.
    """
    calls = 0

    def drop(x: Float[Array, "*shape"], rate: float) -> Float[Array, "*shape"]:
        nonlocal calls
        calls += 1
        if rate == 0:
            return x
        mask = jax.random.bernoulli(jax.random.fold_in(key, calls), 1 - rate, x.shape)
        return jnp.where(mask, x / (1 - rate), 0)

    return drop


@dataclass(frozen=True)
class Rates:
    """Dropout inside a layer at the rates of a description: `bertjax.models.layer.Dropout`.

    Where a family has none, nothing is drawn: another draw would change all that follow it.
    """

    rates: Any
    drop: Drop

    def weights(self, weights: Array) -> Array:
        """Attention weights after dropout."""
        return self.drop(weights, self.rates.weights)

    def attended(self, outputs: Array) -> Array:
        """The output of attention after dropout, before the residual sum."""
        return self.drop(outputs, self.rates.attended)

    def inner(self, activations: Array) -> Array:
        """The feed-forward layer's activations after dropout."""
        return self.drop(activations, self.rates.inner) if self.rates.inner else activations

    def mlp(self, outputs: Array) -> Array:
        """The output of the feed-forward layer after dropout, before the residual sum."""
        return self.drop(outputs, self.rates.mlp)

    def distances(self, table: Array) -> Array:
        """Vectors of positions after dropout."""
        return self.drop(table, self.rates.positions) if self.rates.positions else table


def train_body(
    model: BertForSequenceClassification | BertForMaskedLM,
    inputs: Inputs,
    drop: Drop,
    overrides: Overrides | None = None,
) -> ModelOutput:
    """The output of the encoder below a head, with dropout at the rates of the model's description."""
    rates, body = model.config.architecture.dropout, model.bert
    hidden = body.embeddings(inputs, lambda x: drop(x, rates.embeddings))
    context = body.encoder.context(inputs)
    for number, layer in enumerate(body.encoder.applications()):
        hidden, *_ = layer(hidden, context, overrides, number, dropout=Rates(rates, drop))
    return body.finish(hidden, inputs.keep)


def train_logits(
    model: BertForSequenceClassification,
    inputs: Inputs,
    key: Key[Array, ""],
    overrides: Overrides | None = None,
) -> Float[Array, "batch labels"]:
    """Logits with dropout at the rates of the model's description.

    Args:
        key: for the random numbers that choose the dropped units.
        overrides: interventions on heads; None for none.
    """
    rates, drop = model.config.architecture.dropout, dropper(key)
    vector = read_vector(train_body(model, inputs, drop, overrides), inputs.keep, model.plan.reads)
    drop_input = (lambda x: drop(x, rates.head_input)) if rates.head_input else keep_all
    return model.logits_of(vector, drop_input, lambda x: drop(x, rates.head_output))
