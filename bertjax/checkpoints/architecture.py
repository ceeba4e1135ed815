"""Description of an encoder as data: a family fills it in, and the model reads it.

The encoder, the packed layer of a sweep and the dropout pass of training read the same description; none of them
branches on the family. `Architecture` says what is computed, `ConfigFields` holds the sizes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

K = TypeVar("K")
V = TypeVar("V")

BODY, SEQUENCE, TOKENS, ANSWERS, WORDS, CHOICE = (
    "encoder",
    "sequence classification",
    "token classification",
    "question answering",
    "masked LM",
    "multiple choice",
)
NEXT, PRETRAINING, REPLACED = "next sentence", "pretraining", "replaced tokens"
"""Task heads: the keys of `Architecture.heads` and of `Family.heads`."""


ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "tanh")
"""Supported activations, by HuggingFace's names."""


class FrozenDict(Mapping[K, V], Generic[K, V]):
    """An immutable dict, which therefore has a hash.

    Args:
        items: the keys and values.

    >>> names = FrozenDict({0: "no", 1: "yes"})
    >>> names[1], list(names), names == {0: "no", 1: "yes"}
    ('yes', [0, 1], True)
    """

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[K, V]):
        self._items = dict(items)

    def __getitem__(self, key: K) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


def numbered_labels(count: int) -> FrozenDict[int, str]:
    """Names of labels where a config states none, as in HuggingFace.

    Args:
        count: the number of labels.

    >>> numbered_labels(2)
    {0: 'LABEL_0', 1: 'LABEL_1'}
    """
    return FrozenDict({index: f"LABEL_{index}" for index in range(count)})


Pruned: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Removed heads by layer, both in ascending order; layers that keep all heads are left out."""


@dataclass(frozen=True)
class ConfigFields:
    """The fields of `BertConfig`, without its checks; a family describes its architecture from them."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    classifier_dropout: float | None = None
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = True
    id2label: Mapping[int, str] = numbered_labels(2)
    problem_type: str | None = None
    architectures: tuple[str, ...] = ()
    model_type: str = "bert"
    embedding_size: int = None  # type: ignore[assignment]  # `hidden_size`, once that is known
    own: Mapping[str, Any] = FrozenDict({})
    score_activation: str | None = None
    pruned_heads: Pruned = ()

    @property
    def head_dim(self) -> int:
        """Width of the queries, keys and values of one head."""
        return self.hidden_size // self.num_attention_heads


@dataclass(frozen=True)
class EmbeddingPlan:
    """The embedding layer.

    Args:
        positions: 'index' (0, 1, 2 ... for all tokens), 'tokens' (count only tokens whose id is not padding), or None
            for no position embeddings.
        first_position: row of the position table for the first token.
        token_types: whether segment embeddings are added.
        norm_width: width of the norm: of the tables ('tables') or of the hidden states ('hidden').
        norm_bias: whether the norm has a bias.
        projection: projection from the tables' width to that of the hidden states, with or without a bias, or None.
    """

    positions: Literal["index", "tokens"] | None = "index"
    first_position: int = 0
    token_types: bool = True
    norm_width: Literal["tables", "hidden"] = "hidden"
    norm_bias: bool = True
    projection: Literal["with bias", "without bias"] | None = None


@dataclass(frozen=True)
class RelativePositions:
    """Attention scores that depend on the distance between query and key.

    Args:
        form: 'bias', a scalar for each head and bucket that all layers share (Raffel et al. 2020), or 'disentangled',
            products of queries and keys with position vectors (He et al. 2021).
        buckets: number of distance buckets: rows of the table, or half of its rows in the disentangled form.
        largest: distances from here on share a bucket; 0 if each distance has its own bucket.
        content_to_position: whether products of queries and position keys are added.
        position_to_content: whether products of keys and position queries are added.
        own_projections: whether position vectors have separate projections, instead of those of queries and keys.
        norm: whether the table of position vectors is normalised.
    """

    form: Literal["bias", "disentangled"]
    buckets: int
    largest: int
    content_to_position: bool = False
    position_to_content: bool = False
    own_projections: bool = False
    norm: bool = False


@dataclass(frozen=True)
class LayerKind:
    """One application of a layer.

    Args:
        activation: activation of the feed-forward layer, a name in `ops.ACTIVATIONS`.
        epsilon: epsilon of the norms.
        scale: factor on the products of queries and keys.
        norms: 'after' each sum (post-norm, BERT), or 'before' attention and feed-forward layer (pre-norm).
        norm_of_input: whether attention of a pre-norm layer reads normalised hidden states (the first layer may not).
        gated: whether a second projection multiplies the activation of the feed-forward layer.
        attention_bias: whether the projections of attention have biases.
        mlp_bias: whether the feed-forward layer has biases.
        norm_bias: whether the norms have biases.
        rotation: base of the rotary angles (Su et al. 2021), or None.
        window: number of tokens on either side that a query may attend to, or None for all.
        relative: scores by distance, or None.
        heads: index of each head in the model before any heads were removed; head names use it.
    """

    activation: str
    epsilon: float
    scale: float
    norms: Literal["after", "before"] = "after"
    norm_of_input: bool = True
    gated: bool = False
    attention_bias: bool = True
    mlp_bias: bool = True
    norm_bias: bool = True
    rotation: float | None = None
    window: int | None = None
    relative: RelativePositions | None = None
    heads: tuple[int, ...] = ()


@dataclass(frozen=True)
class HeadPlan:
    """A task head.

    Args:
        reads: input of the head: 'pooler' (the encoder's), 'cls' or 'mean' (one vector for each text), or 'tokens'.
        activation: activation of a dense layer before the output, or None for no such layer.
        norm: whether a norm follows that activation.
        bias: whether the dense layer has a bias.
        norm_bias: whether the norm has a bias.
        output_bias: whether the output layer has a bias.
        labels: number of outputs; None for the number of labels in the config.
    """

    reads: Literal["pooler", "cls", "mean", "tokens"]
    activation: str | None = None
    norm: bool = False
    bias: bool = True
    norm_bias: bool = True
    output_bias: bool = True
    labels: int | None = None


@dataclass(frozen=True)
class DropoutRates:
    """Dropout rates of training.

    Args:
        embeddings: hidden states before layer 0.
        weights: rate for attention weights.
        attended: output of attention, before the residual sum.
        inner: activations of the feed-forward layer.
        mlp: output of the feed-forward layer, before the residual sum.
        positions: position vectors of the disentangled form.
        head_input: input of the head's dense layer.
        head_output: input of the head's output layer.
    """

    embeddings: float
    weights: float
    attended: float
    mlp: float
    head_output: float
    inner: float = 0.0
    positions: float = 0.0
    head_input: float = 0.0


@dataclass(frozen=True)
class Architecture:
    """Description of an encoder.

    Args:
        embeddings: the embedding layer.
        layers: applications of a layer, in order.
        parameters_of: parameter set that each application uses: 0, 1, 2 ..., or repeated where layers share parameters.
        pooler: activation of the encoder's pooler, or None for no pooler.
        final_norm: whether a norm follows the last layer.
        heads: head of each task that the family supports.
        dropout: dropout rates of training.
    """

    embeddings: EmbeddingPlan
    layers: tuple[LayerKind, ...]
    parameters_of: tuple[int, ...]
    pooler: str | None
    dropout: DropoutRates
    final_norm: bool = False
    heads: Mapping[str, HeadPlan] = field(default_factory=dict)

    @property
    def relative(self) -> RelativePositions | None:
        """Scores by distance, the same in all layers."""
        return self.layers[0].relative
