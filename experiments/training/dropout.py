"""The encoder as it is trained: the same computation with dropout, apart from the one that everything else uses.

Dropout is where BERT has it (Devlin et al. 2019 and HuggingFace's `modeling_bert.py`): after the embeddings, on the
attention weights, before each residual sum, and before the classifier. With all rates 0 the logits are those of the
model itself.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from bertjax.checkpoints import BertConfig
from bertjax.model import Attention, Inputs, Layer, ops

Drop = Callable[[Float[Array, "*shape"], float], Float[Array, "*shape"]]


def dropper(key: Key[Array, ""]) -> Drop:
    """A function `drop(x, rate)` that sets a share of x to 0 and scales the rest, anew in each call.

    Source: Srivastava et al. 2014, in the form that leaves the expectation unchanged.
    """
    calls = 0

    def drop(x: Float[Array, "*shape"], rate: float) -> Float[Array, "*shape"]:
        nonlocal calls
        calls += 1
        if rate == 0:
            return x
        kept = jax.random.bernoulli(jax.random.fold_in(key, calls), 1 - rate, x.shape)
        return jnp.where(kept, x / (1 - rate), 0)

    return drop


def train_logits(model: Any, inputs: Inputs, key: Key[Array, ""]) -> Float[Array, "batch labels"]:
    """Logits of a `BertForSequenceClassification` under the dropout rates of its config.

    Args:
        key: of the random numbers; another key, other units dropped.
    """
    config, drop = model.config, dropper(key)
    hidden = drop(model.bert.embeddings(inputs), config.hidden_dropout_prob)
    for layer in model.bert.encoder.layers:
        hidden = _run_layer(layer, hidden, inputs.keep, config, drop)
    pooled = drop(model.bert.pooler(hidden), classifier_rate(config))
    head = model.classifier
    return ops.dense(pooled, head.kernel[...], head.bias[...], model.numerics)


def classifier_rate(config: BertConfig) -> float:
    """The rate before the classifier: its own, or that of the hidden states."""
    return config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout


def _run_layer(
    layer: Layer,
    hidden: Float[Array, "batch token embed"],
    keep: Float[Array, "batch #query key"],
    config: BertConfig,
    drop: Drop,
) -> Float[Array, "batch token embed"]:
    rate = config.hidden_dropout_prob
    attended = drop(_attend(layer.attention, hidden, keep, config.attention_probs_dropout_prob, drop), rate)
    hidden = layer.attention_norm(attended + hidden.astype(attended.dtype))
    outer = drop(layer.mlp(hidden), rate)
    return layer.output_norm(outer + hidden.astype(outer.dtype))


def _attend(
    attention: Attention,
    hidden: Float[Array, "batch token embed"],
    keep: Float[Array, "batch #query key"],
    rate: float,
    drop: Drop,
) -> Float[Array, "batch token embed"]:
    numerics = attention.numerics
    queries, keys, values = attention.project(hidden)
    weights = ops.attention_weights(ops.attention_scores(queries, keys, numerics), keep[:, None])
    return attention.merge(ops.mix(drop(weights, rate), values, numerics))
