"""The values that cross a border between bertjax's parts, and the glossary of their axes.

Axes, always by these names and in this order of letters in an einsum:

    b batch       examples that are computed together
    t token       positions of an example (q query: the one that attends; k key: the one attended to)
    h heads       attention heads of one layer, counted from 0
    d head_dim    width of one head: embed / heads
    e embed       width of the hidden states
    m mlp         width of the feed-forward layer
    width         of a vector that a pooling or a dense layer gives
    layers        counted from 0; `layers_plus_1` where the embeddings' output stands before layer 0's
    vocab, labels, examples, ablations    as the words say
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax import arguments
from bertjax.errors import InputError

T = TypeVar("T")


def _repr_of_shapes(record: Any) -> str:
    """Names of all fields that are not None, with dtype and shape of arrays."""
    lines = []
    for name, value in vars(record).items():
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
    """In which number formats a model computes.

    Args:
        dtype: name of the dtype of matrix products' inputs and of hidden states: 'float32', 'bfloat16',
            'float16' or 'float64' (the last under `jax_enable_x64` alone).
        precision: matrix-product precision as `jax.lax.Precision` names it. 'highest' keeps float32
            products float32 on GPU (no TF32) and TPU (no bfloat16 passes); a CPU always does.
        attention: 'explicit', with all weights in the record; without them 'fused' (`jax.nn.dot_product_attention` as
            XLA compiles it, which still makes them, and whose softmax is float32 always; in half precision on an NVIDIA
            GPU cuDNN's, which does not) or 'pallas' (our kernel for TPU, whose memory grows as the length, not as its
            square; on a GPU a block of queries at a time; elsewhere the kernel is interpreted: slow).
        narrow: whether what one product gives for the next is rounded to `dtype` as it leaves, not after its bias or
            activation: half of what an accelerator writes and reads. Sums inside are wide all the same.

    Softmax, norms, activations and the sums inside matrix products use `wide`: float32, or float64 where
    dtype is.

    Raises:
        InputError: a dtype, precision or form of attention that does not exist, or float64 while JAX has it
            switched off.

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
        """The dtype of softmax, norms and accumulation, and of stored parameters."""
        return np.dtype("float64") if self.dtype == "float64" else np.dtype("float32")


@record
class Inputs:
    """What a model reads, complete and checked.

    Args:
        input_ids: word-piece ids.
        keep: 1 where the query may attend to the key, 0 where not (padding); query axis 1 where all
            queries share it.
        token_type_ids: segment of each token.
        position_ids: position of each token, from 0.
    """

    input_ids: Int[Array, "batch token"]
    keep: Float[Array, "batch #query key"]
    token_type_ids: Int[Array, "batch token"]
    position_ids: Int[Array, "batch token"]


@record
class Context:
    """What attention reads beside the hidden states, the same in all layers (`Encoder.context`).

    Args:
        keep: 1 where the query may attend to the key, 0 where not; windows come on top.
        position_ids: position of each token.
        distances: the table of distances that all layers share, normalised; None where there is none.
    """

    keep: Float[Array, "batch #query key"]
    position_ids: Int[Array, "batch token"]
    distances: Float[Array, "buckets width"] | None = None


@record
class HeadWeights:
    """Replacement attention weights for single heads.

    Entry i replaces the weights of head `head[i]` in layer `layer[i]`; layer -1 is an entry that does
    nothing (it fills up shorter lists in a stack). `source_mask` is the attention mask of the run that the
    weights were taken from, -1 where they come from no other run.
    """

    layer: Int[Array, "entries"]
    head: Int[Array, "entries"]
    values: Float[Array, "entries #batch query key"]
    source_mask: Int[Array, "entries #batch #token"]


@record
class HeadOutputs:
    """Replacement outputs (before the output projection) for single heads; entries as in `HeadWeights`."""

    layer: Int[Array, "entries"]
    head: Int[Array, "entries"]
    values: Float[Array, "entries #batch #query head_dim"]
    source_mask: Int[Array, "entries #batch #token"]


@record
class Edges:
    """Overrides of single weights at (layer, head, query, key).

    `example` is the row of the batch, -1 for every row. A weight's share before the softmax is multiplied by
    `keep` (0 forbids the edge, and the rest of the row takes its share); after it the weight becomes
    `gate * weight + (1 - gate) * value`. Layer -1 is an entry that does nothing.
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

    Entry i acts on site `site[i]` of layer `layer[i]`, and of head `head[i]` where each head has its own. What is
    there becomes `(1 - share) * own + share * values`. Layer -1 is an entry that does nothing.
    """

    site: Int[Array, "entries"]
    layer: Int[Array, "entries"]
    head: Int[Array, "entries"]
    values: Float[Array, "entries #batch #token width"]
    share: Float[Array, "entries #batch #token"]
    source_mask: Int[Array, "entries #batch #token"]


@record
class Overrides:
    """What to change inside a model's attention, as data: a tree of arrays that can be stacked and differentiated.

    For each head, with `n` the number of keys that the query may attend to:

        weights = weights_gate * learned + (1 - weights_gate) * (uniform / n + replacement)
        output  = output_gate * (weights @ values) + (1 - output_gate) * replacement

    Gates of 1 leave the learned head. With `tokens` a gate is `1 - tokens * (1 - gate)`, query by query. Make them with
    the constructors in `bertjax.overrides`, which check.

    Args:
        weights_gate: share of the learned attention weights.
        uniform: share of uniform weights in what replaces them: 1 or 0.
        output_gate: share of the head's own output; with no entry in `outputs` a factor on the output.
        weights: given weights, or None.
        outputs: given outputs (a mean, another run's), or None.
        edges: single edges, or None.
        tokens: share of each query, of 0 to 1, at which a head's gates act; None for all.
        vectors: replaced queries, keys, values or outputs of single heads, or None.
        states: replaced states of whole layers (the residual stream, what a layer's parts read or add), or None.
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
    """The inside of one layer's attention, after overrides; weights are None where attention is not explicit.

    Queries and keys are what scores are made of: rotated, where positions are rotary.
    """

    queries: Float[Array, "batch query heads head_dim"]
    keys: Float[Array, "batch key heads head_dim"]
    values: Float[Array, "batch key heads head_dim"]
    weights: Float[Array, "batch heads query key"] | None
    head_outputs: Float[Array, "batch query heads head_dim"]


@record
class FeedForwardRecord:
    """The rest of one layer: what its parts read and add."""

    attention_outputs: Float[Array, "batch token embed"]
    feed_forward_inputs: Float[Array, "batch token embed"]
    feed_forward_outputs: Float[Array, "batch token embed"]


@record
class EncoderRecord:
    """The inside of all layers, after overrides: the fields of their records stacked, and what they passed on.

    `sites.SITES` says what each field is.
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


# What an output can hold, by name, in HuggingFace's order.
HEADS = ("logits", "seq_relationship_logits", "start_logits", "end_logits")
_BELOW_HEADS = ("last_hidden_state", "pooler_output", "sentence_embedding", "score")
NAMES = (*HEADS, *_BELOW_HEADS, "hidden_states", "attentions")
_KEPT_IN = {"hidden_states": "record", "attentions": "record"}


@record
class ModelOutput:
    """What a model returns; each class of model fills the fields that it has, the others are None.

    Names and meanings are HuggingFace's where it has them, and so are the ways to read it. By name
    (`output["attentions"]`, `in`, `keys()`, `items()`, `dict(output)`) there is all that the model computed. By number
    (`output[0]`, `output[-1]`, `output[:2]`, `to_tuple()`) there is what HuggingFace's output of this class holds, in
    its order: what the task's head gives, or without a head `last_hidden_state` and `pooler_output`; then
    `hidden_states`, and `attentions` last.

    Args:
        last_hidden_state: output of the last layer.
        record: queries, keys, values, weights, head outputs and hidden states of all layers; None in a readout of
            `reference.sweep`, which keeps the last hidden state alone.
        pooler_output: tanh projection of the last [CLS], if the model has a pooler.
        logits: of the task head; for pre-training those of the masked-LM head; of multiple choice a number for each
            choice, where choices were given together.
        seq_relationship_logits: next-sentence logits of `BertForPreTraining`.
        start_logits: of question answering.
        end_logits: of question answering.
        sentence_embedding: sentence vector, pooled, through dense layers and normalised as its model says.
        score: of a classifier with one label: its logit after the activation that its config names, else after a
            sigmoid, as sentence-transformers' cross-encoders give it.
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
        """Names of all that this output holds."""
        fields = vars(self)  # not by attributes, which a sweep takes down
        return tuple(name for name in NAMES if fields.get(_KEPT_IN.get(name, name)) is not None and self._keeps(name))

    def _keeps(self, name: str) -> bool:
        return name != "attentions" or vars(vars(self)["record"])["weights"] is not None

    def values(self) -> tuple[Any, ...]:
        """All that this output holds, in the order of `keys`."""
        return tuple(getattr(self, name) for name in self.keys())

    def items(self) -> tuple[tuple[str, Any], ...]:
        """Names and values."""
        return tuple(zip(self.keys(), self.values(), strict=True))

    def to_tuple(self) -> tuple[Any, ...]:
        """What HuggingFace's output of this class holds, in its order."""
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
        """The record, where there is one. Raises `InputError` where there is none."""
        if self.record is None:
            raise InputError(
                "a sweep keeps no attentions, hidden_states or head outputs for its readouts: call the model itself, "
                "or for a stack of overrides reference.run"
            )
        return self.record

    @property
    def attentions(self) -> Float[Array, "layers batch heads query key"]:
        """Attention weights of all layers, after overrides. Raises `InputError` where the model keeps none."""
        if self.inside.weights is None:
            raise InputError("fused attention keeps no weights: load the model with attention='explicit'")
        return self.inside.weights

    @property
    def hidden_states(self) -> Float[Array, "layers_plus_1 batch token embed"]:
        """Output of the embeddings, then of each layer."""
        return self.inside.hidden_states

    @property
    def prediction_logits(self) -> Float[Array, "batch *labels"] | None:
        """HuggingFace's name for the masked-LM logits of `BertForPreTraining`."""
        return self.logits
