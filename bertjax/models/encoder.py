"""The encoder as Flax modules: embeddings, attention, layer, pooler.

Modules hold parameters and call the functions of `ops`, `positions` and `layer`, as described by
`BertConfig.architecture`. Attention, layers and encoder return their output and a record of their activations; each
module can be called separately.
"""

from collections.abc import Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, PyTree

from bertjax.checkpoints import BertConfig, LayerKind, RelativePositions
from bertjax.models import ops, positions, sites
from bertjax.models.kernels import fused_attention
from bertjax.models.layer import (
    AfterAttention,
    Drop,
    Dropout,
    Norms,
    Recipe,
    after_attention,
    before_attention,
    keep_all,
)
from bertjax.models.positions import DistanceWeights
from bertjax.models.types import AttentionRecord, Context, EncoderRecord, FeedForwardRecord, Inputs, Numerics, Overrides


def value_of(parameter: nnx.Param | None) -> Array | None:
    """The array of a parameter, or None."""
    return None if parameter is None else parameter[...]


class Dense(nnx.Module):
    """A kernel and an optional bias of any shapes."""

    def __init__(
        self, key: Array, kernel: tuple[int, ...], bias: tuple[int, ...] | None, std: float, numerics: Numerics
    ):
        self.kernel = nnx.Param(std * jax.random.normal(key, kernel, numerics.wide))
        self.bias = None if bias is None else nnx.Param(jnp.zeros(bias, numerics.wide))
        self.numerics = numerics

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        """`x @ kernel + bias` in wide floats, for a matrix kernel."""
        return ops.dense(x, self.kernel[...], value_of(self.bias), self.numerics)

    def heads(self, x: Float[Array, "batch token embed"]) -> Float[Array, "batch token heads head_dim"]:
        """A vector for each head, for a kernel `[embed, heads, head_dim]`."""
        return ops.split_heads(x, self.kernel[...], value_of(self.bias), self.numerics)


class LayerNorm(nnx.Module):
    """Layer norm over the last axis, with a scale and an optional bias."""

    def __init__(self, width: int, epsilon: float, numerics: Numerics, *, bias: bool = True):
        self.scale = nnx.Param(jnp.ones(width, numerics.wide))
        self.bias = nnx.Param(jnp.zeros(width, numerics.wide)) if bias else None
        self.epsilon, self.numerics = epsilon, numerics

    def __call__(self, x: Float[Array, "*batch embed"]) -> Float[Array, "*batch embed"]:
        """Normalise; the shape is kept."""
        return ops.layer_norm(x, self.scale[...], value_of(self.bias), self.epsilon, self.numerics)


class Embeddings(nnx.Module):
    """The normalised sum of word, position and segment embeddings, optionally projected."""

    def __init__(self, config: BertConfig, key: Array, numerics: Numerics):
        plan, width, std = config.architecture.embeddings, config.embedding_size, config.initializer_range
        keys = jax.random.split(key, 4)

        def table(key: Array, rows: int) -> nnx.Param:
            return nnx.Param(std * jax.random.normal(key, (rows, width), numerics.wide))

        self.word = table(keys[0], config.vocab_size)
        self.position = None if plan.positions is None else table(keys[1], config.max_position_embeddings)
        self.token_type = table(keys[2], config.type_vocab_size) if plan.token_types else None
        norm_width = config.hidden_size if plan.norm_width == "hidden" else width
        self.norm = LayerNorm(norm_width, config.layer_norm_eps, numerics, bias=plan.norm_bias)
        bias = (config.hidden_size,) if plan.projection == "with bias" else None
        shape = (width, config.hidden_size)
        self.projection = None if plan.projection is None else Dense(keys[3], shape, bias, std, numerics)
        self.norm_first, self.numerics = plan.norm_width == "tables", numerics

    def __call__(self, inputs: Inputs, drop: Drop = keep_all) -> Float[Array, "batch token embed"]:
        """Hidden states before layer 0.

        Args:
            inputs: inputs of the model.
            drop: dropout on the output of the norm.
        """
        total = self.word[...][inputs.input_ids]
        if self.token_type is not None:
            total = total + self.token_type[...][inputs.token_type_ids]
        if self.position is not None:
            total = total + self.position[...][inputs.position_ids]
        if self.norm_first:
            return self._project(drop(self.norm(total)))
        return drop(self.norm(self._project(total)))

    def _project(self, x: Array) -> Array:
        return x if self.projection is None else self.projection(x).astype(self.numerics.dtype)


class DistanceTable(nnx.Module):
    """Distance table that all layers share: a bias for each head, or vectors of the width of the hidden states."""

    def __init__(self, config: BertConfig, relative: RelativePositions, key: Array, numerics: Numerics):
        vectors = relative.form == "disentangled"
        shape = (
            (2 * relative.buckets, config.hidden_size) if vectors else (relative.buckets, config.num_attention_heads)
        )
        self.table = nnx.Param(config.initializer_range * jax.random.normal(key, shape, numerics.wide))
        self.norm = LayerNorm(config.hidden_size, config.layer_norm_eps, numerics) if relative.norm else None

    def __call__(self) -> Float[Array, "buckets width"]:
        """The table, normalised if the architecture requires it."""
        return self.table[...] if self.norm is None else self.norm(self.table[...])


class Attention(nnx.Module):
    """Multi-head self-attention with weights and head outputs that can be read and overridden."""

    def __init__(self, config: BertConfig, kind: LayerKind, key: Array, numerics: Numerics):
        embed, head_dim = config.hidden_size, config.head_dim
        heads = len(kind.heads)
        std, keys = config.initializer_range, jax.random.split(key, 6)
        into, bias = (embed, heads, head_dim), (heads, head_dim) if kind.attention_bias else None
        self.query, self.key, self.value = (Dense(keys[part], into, bias, std, numerics) for part in range(3))
        out_bias = (embed,) if kind.attention_bias else None
        self.output = Dense(keys[3], (heads, head_dim, embed), out_bias, std, numerics)
        relative = kind.relative
        separate = relative is not None and relative.own_projections
        as_keys = separate and relative is not None and relative.content_to_position
        as_queries = separate and relative is not None and relative.position_to_content
        self.position_key = Dense(keys[4], into, (heads, head_dim), std, numerics) if as_keys else None
        self.position_query = Dense(keys[5], into, (heads, head_dim), std, numerics) if as_queries else None
        self.all_heads, self.kind, self.numerics = config.num_attention_heads, kind, numerics

    def __call__(
        self,
        hidden: Float[Array, "batch token embed"],
        context: Context,
        overrides: Overrides | None = None,
        layer: ArrayLike = 0,
        dropout: Dropout | None = None,
    ) -> tuple[Float[Array, "batch token embed"], AttentionRecord]:
        """The sum of all head outputs in wide floats, and the record.

        Overrides and record use the original indices of heads; removed heads are 0 in the record.
        """
        heads = self.kind.heads
        if len(heads) == self.all_heads:
            return self.attend(hidden, context, overrides, layer, dropout=dropout)
        kept = None if overrides is None else ops.pick_heads(overrides, heads, self.all_heads)
        merged, record = self.attend(hidden, context, kept, layer, dropout=dropout)
        return merged, ops.spread_record(record, heads, self.all_heads)

    def attend(
        self,
        hidden: Float[Array, "batch token embed"],
        context: Context,
        overrides: Overrides | None,
        layer: ArrayLike,
        *,
        dropout: Dropout | None,
    ) -> tuple[Float[Array, "batch token embed"], AttentionRecord]:
        """Attention of the heads that the layer has, with overrides by position in the layer."""
        queries, keys, values = (
            sites.replace_vectors(name, part, overrides, layer)
            for name, part in zip(("queries", "keys", "values"), self.project(hidden, context), strict=True)
        )
        keep = self.keep(context, hidden.shape[1])
        if self.numerics.attention != "explicit" and dropout is None and not self.kind.heads:
            return self.merge(values), AttentionRecord(queries, keys, values, None, values)  # kernels need a head
        if self.numerics.attention != "explicit" and dropout is None:
            before, after = self.distance_scores(queries, keys, context)
            bias, scale = (before if after is None else after), ops.other_scale(self.kind.scale, queries.shape[-1])
            outputs = fused_attention.attend(
                queries, keys, values, keep, overrides, layer, numerics=self.numerics, scale=scale, bias=bias
            )
            outputs = sites.replace_vectors("head_outputs", outputs, overrides, layer)
            return self.merge(outputs), AttentionRecord(queries, keys, values, None, outputs)
        edges = None if overrides is None else overrides.edges
        share = ops.override_keep(keep, edges, layer, len(self.kind.heads), hidden.shape[1])
        weights = ops.attention_weights(self.scores(queries, keys, context, dropout), share)
        if overrides is not None:
            weights = ops.override_weights(weights, keep, overrides, layer)
        if dropout is not None:
            weights = dropout.weights(weights)
        outputs = ops.mix(weights, values, self.numerics)
        if overrides is not None:
            outputs = ops.override_outputs(outputs, overrides, layer)
            outputs = sites.replace_vectors("head_outputs", outputs, overrides, layer)
        return self.merge(outputs), AttentionRecord(queries, keys, values, weights, outputs)

    def project(
        self, hidden: Float[Array, "batch token embed"], context: Context
    ) -> tuple[Float[Array, "batch token heads head_dim"], ...]:
        """Queries, keys and values of all heads; queries and keys are rotated if positions are rotary."""
        queries, keys, values = (part.heads(hidden) for part in (self.query, self.key, self.value))
        if self.kind.rotation is not None:
            queries, keys = (
                positions.rotate(part, context.position_ids, self.kind.rotation, self.numerics)
                for part in (queries, keys)
            )
        return queries, keys, values

    def keep(self, context: Context, tokens: int) -> Float[Array, "batch #query key"]:
        """The keys that a query may attend to: the mask and the window around the query."""
        if self.kind.window is None:
            return context.keep
        return context.keep * positions.within_window(tokens, self.kind.window, self.numerics.wide)

    def scores(
        self, queries: Array, keys: Array, context: Context, dropout: Dropout | None = None
    ) -> Float[Array, "batch heads query key"]:
        """Attention scores before the softmax."""
        scores = ops.attention_scores(queries, keys, self.numerics, self.kind.scale)
        for added in self.distance_scores(queries, keys, context, dropout):
            scores = scores if added is None else scores + added
        return scores

    def distance_scores(
        self, queries: Array, keys: Array, context: Context, dropout: Dropout | None = None
    ) -> tuple[Array | None, Array | None]:
        """Terms of distances in the scores: scaled products and biases."""
        if self.kind.relative is None:
            return None, None
        weights = self.distance_weights(context.distances, keep_all if dropout is None else dropout.distances)
        products, biases = positions.distance_scores(queries, keys, weights, self.kind.relative, self.numerics)
        return None if products is None else products * self.kind.scale, biases

    def distance_weights(self, table: Float[Array, "buckets width"] | None, drop: Drop = keep_all) -> DistanceWeights:
        """Terms of this layer's scores from the distance table."""
        relative = self.kind.relative
        assert relative is not None
        assert table is not None
        if relative.form == "bias":
            heads = self.kind.heads
            bias = table if len(heads) == self.all_heads else table[:, jnp.array(heads, jnp.int32)]
            return DistanceWeights(bias, None, None)
        vectors = drop(table)[None]
        key = self.key if self.position_key is None else self.position_key
        query = self.query if self.position_query is None else self.position_query
        return DistanceWeights(
            None,
            key.heads(vectors)[0] if relative.content_to_position else None,
            query.heads(vectors)[0] if relative.position_to_content else None,
        )

    def merge(self, head_outputs: Float[Array, "batch query heads head_dim"]) -> Float[Array, "batch query embed"]:
        """The output projection, in wide floats."""
        return ops.merge_heads(head_outputs, self.output.kernel[...], value_of(self.output.bias), self.numerics)


class Layer(nnx.Module):
    """One encoder layer: attention and feed-forward layer with residual sums, post-norm or pre-norm."""

    def __init__(self, config: BertConfig, kind: LayerKind, key: Array, numerics: Numerics):
        embed, mlp, std = config.hidden_size, config.intermediate_size, config.initializer_range
        keys, inner = jax.random.split(key, 3), mlp * (2 if kind.gated else 1)

        def norm() -> LayerNorm:
            return LayerNorm(embed, kind.epsilon, numerics, bias=kind.norm_bias)

        self.attention = Attention(config, kind, keys[0], numerics)
        self.attention_norm = norm() if kind.norms == "after" or kind.norm_of_input else None
        self.intermediate = Dense(keys[1], (embed, inner), (inner,) if kind.mlp_bias else None, std, numerics)
        self.output = Dense(keys[2], (mlp, embed), (embed,) if kind.mlp_bias else None, std, numerics)
        self.output_norm = norm()
        self.recipe = Recipe(kind, numerics)

    def __call__(
        self,
        hidden: Float[Array, "batch token embed"],
        context: Context,
        overrides: Overrides | None = None,
        layer: ArrayLike = 0,
        dropout: Dropout | None = None,
    ) -> tuple[Float[Array, "batch token embed"], AttentionRecord, FeedForwardRecord]:
        """The output of the layer, and records of its attention and the rest.

        Args:
            hidden: hidden states.
            context: mask, positions and distance table (`Encoder.context`).
            overrides: overrides of all layers.
            layer: index of the layer in the overrides.
            dropout: dropout in training, or None.
        """
        weights = self.weights_after_attention()
        seen: dict[str, Array] = {}

        def visit(name: str, states: Array) -> Array:
            seen[name] = sites.replace_states(name, states, overrides, layer)
            return seen[name]

        read = before_attention(hidden, weights, self.recipe)
        attended, inside = self.attention(read, context, overrides, layer, dropout)
        added = visit("attention_outputs", attended if dropout is None else dropout.attended(attended))
        after = after_attention(added + hidden.astype(added.dtype), weights, self.recipe, dropout, visit)
        return after, inside, FeedForwardRecord(**seen)

    def weights_after_attention(self) -> AfterAttention:
        """Parameters of norms and feed-forward layer, in wide floats."""
        first = self.attention_norm
        return AfterAttention(
            norms=Norms(
                attention_scale=None if first is None else first.scale[...],
                attention_bias=None if first is None else value_of(first.bias),
                output_scale=self.output_norm.scale[...],
                output_bias=value_of(self.output_norm.bias),
            ),
            inner_kernel=self.intermediate.kernel[...],
            inner_bias=value_of(self.intermediate.bias),
            outer_kernel=self.output.kernel[...],
            outer_bias=value_of(self.output.bias),
        )


class Encoder(nnx.Module):
    """The stack of layers; a parameter set may be applied several times."""

    def __init__(self, config: BertConfig, key: Array, numerics: Numerics):
        plan, count = config.architecture, config.parameter_sets
        *keys, last = jax.random.split(key, count + 1)
        kinds = dict(zip(plan.parameters_of, plan.layers, strict=True))
        self.layers = nnx.List([Layer(config, kinds[index], keys[index], numerics) for index in range(count)])
        self.relative = None if plan.relative is None else DistanceTable(config, plan.relative, last, numerics)
        self.config = config

    def applications(self) -> tuple[Layer, ...]:
        """The layers in the order of their application, which is the index in head names."""
        return tuple(self.layers[index] for index in self.config.architecture.parameters_of)

    def context(self, inputs: Inputs) -> Context:
        """Inputs of attention that all layers share."""
        return Context(inputs.keep, inputs.position_ids, None if self.relative is None else self.relative())

    def __call__(
        self,
        hidden: Float[Array, "batch token embed"],
        context: Context,
        overrides: Overrides | None = None,
    ) -> tuple[Float[Array, "batch token embed"], EncoderRecord]:
        """Apply all layers, and record their activations."""
        hidden_states: list[Array] = []
        inside: list[tuple[AttentionRecord, FeedForwardRecord]] = []
        for index, layer in enumerate(self.applications()):
            hidden_states.append(sites.replace_states("hidden_states", hidden, overrides, index))
            hidden, attention, rest = _apply(*nnx.split(layer), hidden_states[-1], context, overrides, index)
            inside.append((attention, rest))
        hidden = sites.replace_states("hidden_states", hidden, overrides, len(inside))
        return hidden, _encoder_record(inside, jnp.stack([*hidden_states, hidden]), context.keep)


@partial(jax.jit, static_argnums=0)
def _apply(
    graphdef: nnx.GraphDef[Layer],
    parameters: PyTree[Array],
    hidden: Float[Array, "batch token embed"],
    context: Context,
    overrides: Overrides | None,
    layer: ArrayLike,
) -> tuple[Float[Array, "batch token embed"], AttentionRecord, FeedForwardRecord]:
    """Apply a layer. JAX traces it once for all layers of a kind; XLA still compiles the model as one program."""
    return nnx.merge(graphdef, parameters)(hidden, context, overrides, layer)


def _encoder_record(
    inside: Sequence[tuple[AttentionRecord, FeedForwardRecord]],
    hidden_states: Float[Array, "layers_plus_1 batch token embed"],
    keep: Array,
) -> EncoderRecord:
    """Stack the records of the layers."""
    attention, rest = jax.tree.map(lambda *parts: jnp.stack(parts), *inside)
    return EncoderRecord(**vars(attention), **vars(rest), hidden_states=hidden_states, keep=keep)


class Pooler(nnx.Module):
    """`activation(W x + b)` of the first token's hidden state; the activation is tanh in BERT."""

    def __init__(self, config: BertConfig, key: Array, numerics: Numerics):
        embed, activation = config.hidden_size, config.architecture.pooler
        assert activation is not None
        self.dense = Dense(key, (embed, embed), (embed,), config.initializer_range, numerics)
        self.activation, self.numerics = activation, numerics

    def __call__(self, hidden: Float[Array, "batch token embed"]) -> Float[Array, "batch embed"]:
        """A vector for each example."""
        return ops.ACTIVATIONS[self.activation](self.dense(hidden[:, 0])).astype(self.numerics.dtype)


@runtime_checkable
class Body(Protocol):
    """Parts of an encoder, such as those of `BertModel`, that the engine runs separately."""

    embeddings: Embeddings
    encoder: Encoder
    final_norm: LayerNorm | None
    pooler: Pooler | None
