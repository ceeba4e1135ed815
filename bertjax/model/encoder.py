"""The BERT encoder as Flax modules: embeddings, attention, layer, pooler.

Modules hold parameters and call the functions of `ops` and `layer`. Each returns its value and a record of its inside,
and can be called alone.
"""

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float

from bertjax.checkpoints import BertConfig
from bertjax.model import fused_attention, ops
from bertjax.model.layer import AfterAttention, Recipe, after_attention
from bertjax.model.types import AttentionRecord, EncoderRecord, Inputs, Numerics, Overrides


@runtime_checkable
class Dropout(Protocol):
    """What training does inside a layer: units set to 0 at random, the rest scaled."""

    def weights(self, weights: Array) -> Array:
        """Attention weights `[batch, heads, query, key]` with some of them dropped."""

    def hidden(self, outputs: Array) -> Array:
        """What attention or the feed-forward layer is about to add to the hidden states, some units dropped."""


class Dense(nnx.Module):
    """A kernel and a bias of any shapes; which axes they contract is their user's to say."""

    def __init__(self, key: Array, kernel: tuple[int, ...], bias: tuple[int, ...], std: float, numerics: Numerics):
        self.kernel = nnx.Param(std * jax.random.normal(key, kernel, numerics.wide))
        self.bias = nnx.Param(jnp.zeros(bias, numerics.wide))


class LayerNorm(nnx.Module):
    """Scale and bias of a layer norm over the last axis."""

    def __init__(self, width: int, epsilon: float, numerics: Numerics):
        self.scale = nnx.Param(jnp.ones(width, numerics.wide))
        self.bias = nnx.Param(jnp.zeros(width, numerics.wide))
        self.epsilon, self.numerics = epsilon, numerics

    def __call__(self, x: Float[Array, "*batch embed"]) -> Float[Array, "*batch embed"]:
        """Normalise; shape kept."""
        return ops.layer_norm(x, self.scale[...], self.bias[...], self.epsilon, self.numerics)


class Embeddings(nnx.Module):
    """The sum of word, position and segment embeddings, normalised."""

    def __init__(self, config: BertConfig, key: Array, numerics: Numerics):
        width, std = config.hidden_size, config.initializer_range
        rows = (config.vocab_size, config.max_position_embeddings, config.type_vocab_size)
        word, position, segment = (
            std * jax.random.normal(k, (n, width), numerics.wide)
            for k, n in zip(jax.random.split(key, 3), rows, strict=True)
        )
        self.word = nnx.Param(word)
        self.position = nnx.Param(position)
        self.token_type = nnx.Param(segment)
        self.norm = LayerNorm(width, config.layer_norm_eps, numerics)

    def __call__(self, inputs: Inputs) -> Float[Array, "batch token embed"]:
        """Hidden states before layer 0."""
        words = self.word[...][inputs.input_ids]
        segments = self.token_type[...][inputs.token_type_ids]
        return self.norm(words + segments + self.position[...][inputs.position_ids])


class Attention(nnx.Module):
    """Multi-head self-attention whose weights and head outputs are values that can be read and overridden."""

    def __init__(self, config: BertConfig, key: Array, numerics: Numerics):
        embed, heads, head_dim = config.hidden_size, config.num_attention_heads, config.head_dim
        std, keys = config.initializer_range, jax.random.split(key, 4)
        into = ((embed, heads, head_dim), (heads, head_dim), std, numerics)
        self.query, self.key, self.value = Dense(keys[0], *into), Dense(keys[1], *into), Dense(keys[2], *into)
        self.output = Dense(keys[3], (heads, head_dim, embed), (embed,), std, numerics)
        self.heads, self.numerics = heads, numerics

    def __call__(
        self,
        hidden: Float[Array, "batch token embed"],
        keep: Float[Array, "batch #query key"],
        overrides: Overrides | None = None,
        layer: ArrayLike = 0,
        dropout: Dropout | None = None,
    ) -> tuple[Float[Array, "batch token embed"], AttentionRecord]:
        """The sum of all heads' outputs in wide floats, and all that happened inside."""
        queries, keys, values = self.project(hidden)
        if self.numerics.attention != "explicit" and dropout is None:
            outputs = fused_attention.attend(queries, keys, values, keep, overrides, layer, numerics=self.numerics)
            return self.merge(outputs), AttentionRecord(queries, keys, values, None, outputs)
        edges = None if overrides is None else overrides.edges
        share = ops.override_keep(keep, edges, layer, self.heads, hidden.shape[1])
        weights = ops.attention_weights(ops.attention_scores(queries, keys, self.numerics), share)
        if overrides is not None:
            weights = ops.override_weights(weights, keep, overrides, layer)
        if dropout is not None:
            weights = dropout.weights(weights)
        outputs = ops.mix(weights, values, self.numerics)
        if overrides is not None:
            outputs = ops.override_outputs(outputs, overrides, layer)
        return self.merge(outputs), AttentionRecord(queries, keys, values, weights, outputs)

    def project(
        self, hidden: Float[Array, "batch token embed"]
    ) -> tuple[Float[Array, "batch token heads head_dim"], ...]:
        """Queries, keys and values of all heads."""
        return tuple(
            ops.split_heads(hidden, part.kernel[...], part.bias[...], self.numerics)
            for part in (self.query, self.key, self.value)
        )

    def merge(self, head_outputs: Float[Array, "batch query heads head_dim"]) -> Float[Array, "batch query embed"]:
        """The output projection of all heads, in wide floats."""
        return ops.merge_heads(head_outputs, self.output.kernel[...], self.output.bias[...], self.numerics)


class Layer(nnx.Module):
    """One encoder layer: attention, then feed-forward, each added to its input and normalised."""

    def __init__(self, config: BertConfig, key: Array, numerics: Numerics):
        embed, mlp, std = config.hidden_size, config.intermediate_size, config.initializer_range
        keys = jax.random.split(key, 3)
        self.attention = Attention(config, keys[0], numerics)
        self.attention_norm = LayerNorm(embed, config.layer_norm_eps, numerics)
        self.intermediate = Dense(keys[1], (embed, mlp), (mlp,), std, numerics)
        self.output = Dense(keys[2], (mlp, embed), (embed,), std, numerics)
        self.output_norm = LayerNorm(embed, config.layer_norm_eps, numerics)
        self.recipe = Recipe(config.hidden_act, config.layer_norm_eps, numerics)

    def __call__(
        self,
        hidden: Float[Array, "batch token embed"],
        keep: Float[Array, "batch #query key"],
        overrides: Overrides | None = None,
        layer: ArrayLike = 0,
        dropout: Dropout | None = None,
    ) -> tuple[Float[Array, "batch token embed"], AttentionRecord]:
        """The layer's output, and its attention's record.

        Args:
            layer: which row of the overrides is meant.
            dropout: what training does; None outside of it.
        """
        attended, inside = self.attention(hidden, keep, overrides, layer, dropout)
        drop = _nothing_dropped if dropout is None else dropout.hidden
        total = drop(attended) + hidden.astype(attended.dtype)
        return after_attention(total, self.weights_after_attention(), self.recipe, drop), inside

    def weights_after_attention(self) -> AfterAttention:
        """The parameters of norms and feed-forward layer, in wide floats."""
        return AfterAttention(
            norm_scale=self.attention_norm.scale[...],
            norm_bias=self.attention_norm.bias[...],
            inner_kernel=self.intermediate.kernel[...],
            inner_bias=self.intermediate.bias[...],
            outer_kernel=self.output.kernel[...],
            outer_bias=self.output.bias[...],
            outer_norm_scale=self.output_norm.scale[...],
            outer_norm_bias=self.output_norm.bias[...],
        )


def _nothing_dropped(outputs: Array) -> Array:
    return outputs


class Encoder(nnx.Module):
    """The stack of layers."""

    def __init__(self, config: BertConfig, key: Array, numerics: Numerics):
        keys = jax.random.split(key, config.num_hidden_layers)
        self.layers = nnx.List([Layer(config, k, numerics) for k in keys])

    def __call__(
        self,
        hidden: Float[Array, "batch token embed"],
        keep: Float[Array, "batch #query key"],
        overrides: Overrides | None = None,
    ) -> tuple[Float[Array, "batch token embed"], EncoderRecord]:
        """Run all layers; the record holds what happened inside."""
        hidden_states, inside = [hidden], []
        for number, layer in enumerate(self.layers):
            hidden, record = layer(hidden, keep, overrides, number)
            hidden_states.append(hidden)
            inside.append(record)
        stacked: AttentionRecord = jax.tree.map(lambda *parts: jnp.stack(parts), *inside)
        return hidden, _encoder_record(stacked, jnp.stack(hidden_states), keep)


def _encoder_record(
    layers: AttentionRecord, hidden_states: Float[Array, "layers_plus_1 batch token embed"], keep: Array
) -> EncoderRecord:
    """Put the stacked records of some layers beside their hidden states."""
    return EncoderRecord(
        queries=layers.queries,
        keys=layers.keys,
        values=layers.values,
        weights=layers.weights,
        head_outputs=layers.head_outputs,
        hidden_states=hidden_states,
        keep=keep,
    )


class Pooler(nnx.Module):
    """`tanh(W x + b)` of the first token's hidden state."""

    def __init__(self, config: BertConfig, key: Array, numerics: Numerics):
        embed = config.hidden_size
        self.dense = Dense(key, (embed, embed), (embed,), config.initializer_range, numerics)
        self.numerics = numerics

    def __call__(self, hidden: Float[Array, "batch token embed"]) -> Float[Array, "batch embed"]:
        """One vector per example."""
        pooled = ops.dense(hidden[:, 0], self.dense.kernel[...], self.dense.bias[...], self.numerics)
        return jnp.tanh(pooled).astype(self.numerics.dtype)


@runtime_checkable
class Body(Protocol):
    """An encoder as others run it part by part: `BertModel` is one."""

    embeddings: Embeddings
    encoder: Encoder
    pooler: Pooler | None
