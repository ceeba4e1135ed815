"""The forward pass for training: the model's computation with dropout, kept separate from the one used elsewhere.

Dropout is applied where BERT has it (Devlin et al. 2019 and HuggingFace's `modeling_bert.py`): after the embeddings, on
the attention weights, before each residual sum, and before the classifier. With all rates 0 the logits are those of the
model itself.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from bertjax.checkpoints import BertConfig
from bertjax.model import BertForSequenceClassification, Inputs, ops

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
    """Dropout inside a layer at the rates of a config: `bertjax.model.encoder.Dropout`."""

    config: BertConfig
    drop: Drop

    def weights(self, weights: Array) -> Array:
        """Attention weights after dropout."""
        return self.drop(weights, self.config.attention_probs_dropout_prob)

    def hidden(self, outputs: Array) -> Array:
        """The output of a sublayer after dropout, before the residual sum."""
        return self.drop(outputs, self.config.hidden_dropout_prob)


def train_logits(
    model: BertForSequenceClassification, inputs: Inputs, key: Key[Array, ""]
) -> Float[Array, "batch labels"]:
    """Logits with dropout at the rates of the model's config.

    Args:
        key: for the random numbers that choose the dropped units.
    """
    config, drop = model.config, dropper(key)
    rates = Rates(config, drop)
    hidden = rates.hidden(model.bert.embeddings(inputs))
    for layer in model.bert.encoder.layers:
        hidden, _ = layer(hidden, inputs.keep, dropout=rates)
    assert model.bert.pooler is not None
    pooled = drop(model.bert.pooler(hidden), classifier_rate(config))
    head = model.classifier
    return ops.dense(pooled, head.kernel[...], head.bias[...], model.numerics)


def classifier_rate(config: BertConfig) -> float:
    """The dropout rate before the classifier: its own if set, otherwise that of the hidden states."""
    return config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
