"""Types that the packages of bertjax exchange, and the glossary of their axes.

Axes, with their letters in an einsum:

    b batch       examples that are computed together
    t token       tokens of an example (q query: the token that attends; k key: the token attended to)
    h heads       attention heads of one layer, from 0
    d head_dim    width of one head: embed / heads
    e embed       width of the hidden states
    m mlp         width of the feed-forward layer
    width         width of a sentence vector
    layers        layers, from 0; `layers_plus_1` if the output of the embeddings comes first
    vocab, labels, examples, ablations
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax import arguments
from bertjax.errors import InputError
from bertjax.web import AttentionView, make_view

T = TypeVar("T")


def _repr_of_shapes(record: Any) -> str:
    """Names of all fields that are not None, with dtype and shape of arrays."""
    lines = []
    for name in (field.name for field in dataclasses.fields(record)):
        value = vars(record)[name]
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            value = f"{value.dtype}[{', '.join(map(str, value.shape))}]"
        if value is not None:
            lines.append(f"{name}={value!s}".replace("\n", "\n  "))
    return "\n  ".join([f"{type(record).__name__}(", *lines]) + "\n)"


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass that JAX sees as a tree of its fields.

    `jax.tree_util.register_dataclass` would rebuild it through `__init__`; JAX also rebuilds trees with
    objects that are not arrays (in `vmap`'s axis specifications, say), which the shape checks of the tests
    would refuse. So it is rebuilt without. Its repr has the shapes of arrays, not their values.
    """
    cls = dataclass(frozen=True, repr=False)(cls)
    cls.__repr__ = _repr_of_shapes  # type: ignore[method-assign]
    names = tuple(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]

    def flatten_with_keys(value: Any) -> tuple[tuple[tuple[Any, Any], ...], None]:
        return tuple((jax.tree_util.GetAttrKey(name), getattr(value, name)) for name in names), None

    def flatten(value: Any) -> tuple[tuple[Any, ...], None]:
        return tuple(getattr(value, name) for name in names), None

    def unflatten(_: None, children: Any) -> Any:
        value = object.__new__(cls)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(value, name, child)
        return value

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


@dataclass(frozen=True)
class Numerics:
    """Dtypes, precision and attention implementation of a model.

    Softmax, norms, activations and the sums inside matrix products use `wide`: float64 if `dtype` is float64, else
    float32.

    Args:
        dtype: dtype of the inputs of matrix products and of hidden states: 'float32', 'bfloat16', 'float16' or
            'float64' (which requires `jax_enable_x64`).
        precision: precision of matrix products, as in `jax.lax.Precision`. 'highest' keeps float32 products in float32
            on GPU (no TF32) and TPU (no bfloat16 passes).
        attention: 'explicit', with attention weights in the record; or without them 'fused'
            (`jax.nn.dot_product_attention`: XLA's, with a float32 softmax, or cuDNN's in half precision on an NVIDIA
            GPU) or 'pallas' (a TPU kernel whose memory grows linearly with the length; on a GPU one block of queries at
            a time; interpreted, and slow, elsewhere).
        narrow: whether the result of a product that feeds another product is rounded to `dtype` before its bias and
            activation, which halves an accelerator's memory traffic. Sums inside products stay wide.

    Raises:
        InputError: an unknown dtype, precision or attention, or float64 without `jax_enable_x64`.

    >>> Numerics("bfloat16").wide.name
    'float32'
    """

    dtype: str = "float32"
    precision: str = "highest"
    attention: str = "explicit"
    narrow: bool = False

    def __post_init__(self) -> None:
        arguments.check_choice(self.dtype, "dtype", ("float32", "bfloat16", "float16", "float64"))
        arguments.check_choice(self.precision, "precision", ("default", "high", "highest"))
        arguments.check_choice(self.attention, "attention", ("explicit", "fused", "pallas"))
        if self.dtype == "float64" and not jax.config.read("jax_enable_x64"):
            raise InputError("dtype float64 needs jax.config.update('jax_enable_x64', True) before any array is made")

    @property
    def wide(self) -> np.dtype:
        """Dtype of softmax, norms, accumulation and stored parameters."""
        return np.dtype("float64") if self.dtype == "float64" else np.dtype("float32")


@record
class Inputs:
    """Checked and complete inputs of a model.

    Args:
        input_ids: token ids, `[batch, token]`.
        keep: 1 where the query may attend to the key, else 0 (padding); the query axis has length 1 if all queries
            share the mask.
        token_type_ids: segment of each token.
        position_ids: position of each token, from 0.
    """

    input_ids: Int[Array, "batch token"]
    keep: Float[Array, "batch #query key"]
    token_type_ids: Int[Array, "batch token"]
    position_ids: Int[Array, "batch token"]


@record
class Context:
    """Inputs of attention that are the same in all layers (`Encoder.context`).

    Args:
        keep: 1 where the query may attend to the key, else 0; layers add their windows.
        position_ids: position of each token.
        distances: normalised distance table that all layers share, or None.
    """

    keep: Float[Array, "batch #query key"]
    position_ids: Int[Array, "batch token"]
    distances: Float[Array, "buckets width"] | None = None


@record
class HeadWeights:
    """Replacement attention weights for single heads.

    Entry i replaces the weights of head `head[i]` in layer `layer[i]`; an entry with layer -1 does nothing (padding of
    shorter lists in a stack). `source_mask` is the attention mask of the run that the weights come from, or -1 if they
    come from no run.

    Args:
        layer: layer of each entry; -1 for an entry without effect.
        head: head of each entry, in its layer.
        values: replacement weights, `[entries, batch or 1, query, key]`.
        source_mask: attention mask of the source run; -1 for values without a source run.
    """

    layer: Int[Array, "entries"]
    head: Int[Array, "entries"]
    values: Float[Array, "entries #batch query key"]
    source_mask: Int[Array, "entries #batch #token"]


@record
class HeadOutputs:
    """Replacement outputs (before the output projection) for single heads; entries as in `HeadWeights`.

    Args:
        layer: layer of each entry; -1 for an entry without effect.
        head: head of each entry, in its layer.
        values: replacement outputs, `[entries, batch or 1, query or 1, head_dim]`.
        source_mask: attention mask of the source run; -1 for values without a source run.
    """

    layer: Int[Array, "entries"]
    head: Int[Array, "entries"]
    values: Float[Array, "entries #batch #query head_dim"]
    source_mask: Int[Array, "entries #batch #token"]


@record
class Edges:
    """Overrides of single weights at (layer, head, query, key).

    `example` is the row of the batch, -1 for all rows. The exponential of the score is multiplied by `keep` before the
    softmax normalises (0 forbids the edge); the weight then becomes `gate * weight + (1 - gate) * value`. An entry with
    layer -1 does nothing.

    Args:
        layer: layer of each edge; -1 for an entry without effect.
        example: row of the batch of each edge; -1 for all rows.
        head: head of each edge, in its layer.
        query: position of the query of each edge.
        key: position of the key of each edge.
        keep: factor on the exponential of each score.
        gate: share of each learned weight that is kept.
        value: replacement of each weight.
    """

    layer: Int[Array, "edges"]
    example: Int[Array, "edges"]
    head: Int[Array, "edges"]
    query: Int[Array, "edges"]
    key: Int[Array, "edges"]
    keep: Float[Array, "edges"]
    gate: Float[Array, "edges"]
    value: Float[Array, "edges"]


@record
class SiteValues:
    """Replacements at single tokens of sites inside layers, by their index in `sites.SITE_INDEX`.

    Entry i acts on site `site[i]` of layer `layer[i]`, and on head `head[i]` at sites that each head has. Activations
    become `(1 - share) * learned + share * values`. An entry with layer -1 does nothing.

    Args:
        site: index of the site of each entry, in `sites.SITE_INDEX`.
        layer: layer of each entry; -1 for an entry without effect.
        head: head of each entry, at sites that each head has.
        values: replacement activations, `[entries, batch or 1, token or 1, width]`.
        share: share of each activation that is replaced, `[entries, batch or 1, token or 1]`.
        source_mask: attention mask of the source run; -1 for values without a source run.
    """

    site: Int[Array, "entries"]
    layer: Int[Array, "entries"]
    head: Int[Array, "entries"]
    values: Float[Array, "entries #batch #token width"]
    share: Float[Array, "entries #batch #token"]
    source_mask: Int[Array, "entries #batch #token"]


@record
class Overrides:
    """Interventions on a model, as data: a tree of arrays that can be stacked and differentiated.

    For each head, with `n` the number of keys that the query may attend to:

        weights = weights_gate * learned + (1 - weights_gate) * (uniform / n + replacement)
        output  = output_gate * (weights @ values) + (1 - output_gate) * replacement

    Gates of 1 leave the head unchanged. With `tokens` a gate is `1 - tokens * (1 - gate)` for each query. Use the
    constructors in `bertjax.overrides`, which check their arguments.

    Args:
        weights_gate: fraction of the learned attention weights.
        uniform: fraction of uniform weights in the replacement: 1 or 0.
        output_gate: fraction of the learned output; without an entry in `outputs` a factor on the output.
        weights: replacement weights of single heads, or None.
        outputs: replacement outputs of single heads (a mean, or another run's), or None.
        edges: overrides of single weights, or None.
        tokens: fraction, from 0 to 1, with which a head's gates act at each query; None for 1.
        vectors: replacements of queries, keys, values or outputs of single heads, or None.
        states: replacements of states of whole layers (residual stream, inputs and outputs of sublayers), or None.
    """

    weights_gate: Float[Array, "layers heads"]
    uniform: Float[Array, "layers heads"]
    output_gate: Float[Array, "layers heads"]
    weights: HeadWeights | None = None
    outputs: HeadOutputs | None = None
    edges: Edges | None = None
    tokens: Float[Array, "layers heads #batch #query"] | None = None
    vectors: SiteValues | None = None
    states: SiteValues | None = None


@record
class AttentionRecord:
    """Activations of one layer's attention, after overrides; weights are None if attention is not explicit.

    Queries and keys are rotated if positions are rotary.

    Args:
        queries: query vectors, `[batch, query, heads, head_dim]`.
        keys: key vectors, `[batch, key, heads, head_dim]`.
        values: value vectors, `[batch, key, heads, head_dim]`.
        weights: attention weights, `[batch, heads, query, key]`; None if attention is not explicit.
        head_outputs: outputs of the heads before the output projection, `[batch, query, heads, head_dim]`.
    """

    queries: Float[Array, "batch query heads head_dim"]
    keys: Float[Array, "batch key heads head_dim"]
    values: Float[Array, "batch key heads head_dim"]
    weights: Float[Array, "batch heads query key"] | None
    head_outputs: Float[Array, "batch query heads head_dim"]


@record
class FeedForwardRecord:
    """Activations of one layer after its attention heads."""

    attention_outputs: Float[Array, "batch token embed"]
    feed_forward_inputs: Float[Array, "batch token embed"]
    feed_forward_outputs: Float[Array, "batch token embed"]


@record
class EncoderRecord:
    """Activations of all layers, after overrides: the stacked records of the layers, and the residual stream.

    `sites.SITES` describes the fields.
    """

    queries: Float[Array, "layers batch query heads head_dim"]
    keys: Float[Array, "layers batch key heads head_dim"]
    values: Float[Array, "layers batch key heads head_dim"]
    weights: Float[Array, "layers batch heads query key"] | None
    head_outputs: Float[Array, "layers batch query heads head_dim"]
    attention_outputs: Float[Array, "layers batch token embed"]
    feed_forward_inputs: Float[Array, "layers batch token embed"]
    feed_forward_outputs: Float[Array, "layers batch token embed"]
    hidden_states: Float[Array, "layers_plus_1 batch token embed"]
    keep: Float[Array, "batch #query key"]


# Fields of an output in HuggingFace's order.
HEADS = ("logits", "seq_relationship_logits", "start_logits", "end_logits")
_BELOW_HEADS = ("last_hidden_state", "pooler_output", "sentence_embedding", "score")
NAMES = (*HEADS, *_BELOW_HEADS, "hidden_states", "attentions")
_KEPT_IN = {"hidden_states": "record", "attentions": "record"}


@record
class ModelOutput:
    """Output of a model; fields that a model does not compute are None.

    Names and access are those of HuggingFace's outputs. All computed fields can be read by name
    (`output["attentions"]`, `in`, `keys()`, `items()`, `dict(output)`). By index (`output[0]`, `output[-1]`,
    `output[:2]`, `to_tuple()`) there are the fields of HuggingFace's output, in its order: those of the task head, or
    without a head `last_hidden_state` and `pooler_output`; then `hidden_states` and `attentions`.

    Args:
        last_hidden_state: output of the last layer.
        record: activations of all layers; None in a readout of a sweep, which keeps only the last hidden state.
        pooler_output: output of the pooler, if the model has one.
        logits: logits of the task head; of the masked-LM head in pre-training; one for each choice in multiple choice.
        seq_relationship_logits: next-sentence logits of `BertForPreTraining`.
        start_logits: logits of an answer's first token.
        end_logits: logits of an answer's last token.
        sentence_embedding: sentence vector after pooling, dense layers and normalization.
        score: logit of a classifier with one label after the activation in the config, or after a sigmoid, as in
            cross-encoders of sentence-transformers.
    """

    last_hidden_state: Float[Array, "batch token embed"]
    record: EncoderRecord | None
    pooler_output: Float[Array, "batch embed"] | None = None
    logits: Float[Array, "texts *labels"] | None = None
    seq_relationship_logits: Float[Array, "batch 2"] | None = None
    start_logits: Float[Array, "batch token"] | None = None
    end_logits: Float[Array, "batch token"] | None = None
    sentence_embedding: Float[Array, "batch width"] | None = None
    score: Float[Array, " batch"] | None = None

    def keys(self) -> tuple[str, ...]:
        """Names of the fields that are not None."""
        fields = vars(self)  # not by attributes: a sweep records attribute access
        return tuple(name for name in NAMES if fields.get(_KEPT_IN.get(name, name)) is not None and self._keeps(name))

    def _keeps(self, name: str) -> bool:
        return name != "attentions" or vars(vars(self)["record"])["weights"] is not None

    def values(self) -> tuple[Any, ...]:
        """Values in the order of `keys`."""
        return tuple(getattr(self, name) for name in self.keys())

    def items(self) -> tuple[tuple[str, Any], ...]:
        """Names and values."""
        return tuple(zip(self.keys(), self.values(), strict=True))

    def to_tuple(self) -> tuple[Any, ...]:
        """The fields of HuggingFace's output of this class, in its order."""
        return self[:]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __getitem__(self, key: Any) -> Any:
        keys = self.keys()
        if isinstance(key, str) and ("logits" if key == "prediction_logits" else key) in keys:
            return getattr(self, key)
        head = any(name in HEADS for name in keys)
        numbered = [name for name in keys if not (head and name in _BELOW_HEADS)]
        if isinstance(key, slice):
            return tuple(getattr(self, name) for name in numbered[key])
        if isinstance(key, int | np.integer) and -len(numbered) <= key < len(numbered):
            return getattr(self, numbered[key])
        raise InputError(f"this output has no {key!r}: it has {', '.join(keys)}, and 0 to {len(numbered) - 1}")

    @property
    def inside(self) -> EncoderRecord:
        """The record. Raises `InputError` if there is none."""
        if self.record is None:
            raise InputError(
                "readouts of a sweep have no attentions, hidden_states or head outputs: call the model instead, or "
                "reference.run for a stack of overrides"
            )
        return self.record

    @property
    def attentions(self) -> Float[Array, "layers batch heads query key"]:
        """Attention weights of all layers, after overrides. Raises `InputError` if attention is not explicit."""
        if self.inside.weights is None:
            raise InputError("fused attention keeps no weights: load the model with attention='explicit'")
        return self.inside.weights

    @property
    def hidden_states(self) -> Float[Array, "layers_plus_1 batch token embed"]:
        """Outputs of the embeddings and of each layer."""
        return self.inside.hidden_states

    def view(
        self,
        tokens: Sequence[str] | Sequence[Sequence[str]] | None = None,
        *,
        head: tuple[int, int] | None = None,
        show: str = "head",
    ) -> AttentionView:
        """Show the attention weights, as `bertjax.view` does.

        Args:
            tokens: the tokens of the text, or of each text of the batch, without padding; by default those of the call,
                by the model's tokenizer.
            head: layer and head that are selected first; by default 0.0.
            show: what is shown first: 'head' (lines), 'matrix', or 'model' (all heads).

        Raises:
            InputError: the output does not come from a call of a model with a tokenizer, and there are no tokens;
                tokens that do not fit the batch; attention that is not explicit; weights that take more than 64 MB.
        """
        attentions, keep = np.asarray(self.attentions, np.float32), np.asarray(self.inside.keep)
        if tokens is None:
            tokens = self._tokens_of_call()
        elif not tokens or isinstance(tokens[0], str):
            tokens = [tokens]  # type: ignore[list-item]
        return make_view(tokens, attentions, keep, head=head, show=show)

    def from_call(self, ids: Int[Array | np.ndarray, "*texts token"], source: Any) -> "ModelOutput":
        """The output, which from now on knows the token ids of its call and their tokenizer; for `view`.

        They are not fields: transformations by JAX drop them.

        Args:
            ids: the token ids of the call.
            source: the origin of the model, whose `tokenizer` may be None.
        """
        object.__setattr__(self, "_call", (ids, source))
        return self

    def _tokens_of_call(self) -> list[list[str]]:
        """The tokens of each text of the call, without padding."""
        ids, source = vars(self).get("_call", (None, None))
        if source is None or source.tokenizer is None:
            raise InputError("this output has no tokenizer: pass the tokens of each text, without padding")
        keep = np.asarray(self.inside.keep).max(axis=1) > 0
        rows = np.asarray(ids).reshape(keep.shape)
        return [source.tokenizer.pieces(row[real].tolist()) for row, real in zip(rows, keep, strict=True)]

    @property
    def prediction_logits(self) -> Float[Array, "batch *labels"] | None:
        """HuggingFace's name for the masked-LM logits of `BertForPreTraining`."""
        return self.logits
