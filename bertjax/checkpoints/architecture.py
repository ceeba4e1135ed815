"""What distinguishes one encoder from another, as data: a family describes itself, and the model reads the description.

The encoder, the packed layer of a sweep and the dropout pass of training read the same values, and nothing in them asks
which family a model is of. Values here say what is computed; sizes stand in `BertConfig`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

BODY, SEQUENCE, TOKENS, ANSWERS, WORDS, CHOICE = (
    "encoder",
    "sequence classification",
    "token classification",
    "question answering",
    "masked LM",
    "multiple choice",
)
NEXT, PRETRAINING, REPLACED = "next sentence", "pretraining", "replaced tokens"
"""What a model has on top of its encoder: the keys of `Architecture.heads` and of a family's heads."""


ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "tanh")
"""The activations that bertjax computes, by HuggingFace's names."""


@dataclass(frozen=True)
class EmbeddingPlan:
    """How tokens become the hidden states before layer 0.

    Args:
        positions: 'index' (0, 1, 2 ... whatever the tokens are), 'tokens' (counted over tokens that are not padding, by
            their ids), or None where no position is added.
        first_position: row of the position table that the first token takes.
        token_types: whether segments are added.
        norm_width: whether the norm is over the tables' width ('tables') or the hidden states' ('hidden').
        norm_bias: whether the norm has a bias.
        projection: whether a matrix takes the tables' width to the hidden states', with a bias or without one.
    """

    positions: Literal["index", "tokens"] | None = "index"
    first_position: int = 0
    token_types: bool = True
    norm_width: Literal["tables", "hidden"] = "hidden"
    norm_bias: bool = True
    projection: Literal["with bias", "without bias"] | None = None


@dataclass(frozen=True)
class RelativePositions:
    """Scores that depend on how far a key is from its query.

    Args:
        form: 'bias', a number for each head and bucket that all layers share (Raffel et al. 2020), or 'disentangled',
            products of queries and keys with vectors of positions (He et al. 2021).
        buckets: of distances: rows of the table, or half of its rows in the disentangled form.
        largest: distance from which on all share a bucket; 0 where each distance has a bucket of its own.
        content_to_position, position_to_content: which of the disentangled products there are.
        own_projections: whether vectors of positions have projections of their own, not those of queries and keys.
        norm: whether the table of vectors is normalised.
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
    """What one application of a layer computes.

    Args:
        activation: of the feed-forward layer: a name in `ops.ACTIVATIONS`.
        epsilon: of the norms.
        scale: what the products of queries and keys are multiplied by.
        norms: 'after' each sum (BERT), or 'before' attention and feed-forward layer.
        norm_of_input: with norms before, whether attention reads normalised hidden states (the first layer may not).
        gated: whether the feed-forward layer's activation is multiplied by a second projection.
        attention_bias, mlp_bias, norm_bias: which biases there are.
        rotation: base of the rotary positions' angles (Su et al. 2021), or None.
        window: how many tokens to either side a query may attend to, or None for all.
        relative: scores by distance, or None.
        heads: the index of each head in the model before any heads were removed; names of heads use it.
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
    """What a task's head computes.

    Args:
        reads: 'pooler' (the encoder's own), 'cls' or 'mean' (one vector for each text), or 'tokens'.
        activation: of a dense layer before the output, or None where there is no such layer.
        norm: whether a norm follows that activation.
        bias, norm_bias, output_bias: which biases there are, of dense layer, norm and output.
        labels: how many outputs there are; None for as many as the config has labels.
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
    """Shares of units that training drops, by place.

    Args:
        embeddings: hidden states before layer 0.
        weights: attention weights.
        attended: what attention is about to add.
        inner: the feed-forward layer's activations.
        mlp: what the feed-forward layer is about to add.
        positions: the disentangled form's vectors of positions.
        head_input: what the head's dense layer reads.
        head_output: what the head's output layer reads.
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
    """The description of an encoder.

    Args:
        embeddings: how tokens become hidden states.
        layers: what each application of a layer computes, in their order.
        parameters_of: which set of parameters each application uses: 0, 1, 2 ..., or the same several times.
        pooler: activation of the encoder's pooler, or None where it has none.
        final_norm: whether a norm follows the last layer.
        heads: what each task's head computes, for the tasks that the family has.
        dropout: rates of training.
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
        """Scores by distance, which all layers have or none."""
        return self.layers[0].relative
