"""The encoder with its pooler and final norm, and the base class of models with a task head.

`forward` is the pure computation, for use inside `jax.jit`; calling a model checks its input and runs `forward`
compiled.
"""

from dataclasses import replace
from typing import ClassVar

from jaxtyping import Array, Float

from bertjax.checkpoints import BertConfig
from bertjax.models.checks import check_process
from bertjax.models.encoder import Embeddings, Encoder, LayerNorm, Pooler
from bertjax.models.pretrained import PretrainedModel, check_attention, check_config, check_numerics, split_key
from bertjax.models.types import EncoderRecord, Inputs, ModelOutput, Numerics, Overrides


class BertModel(PretrainedModel):
    """An encoder without a task head.

    Args:
        config: sizes and settings; use `BertConfig.from_dict` for another family than BERT.
        key: `jax.random.key` for the initial weights, normal with `config.initializer_range`.
        numerics: dtypes, precision and attention implementation.
        add_pooling_layer: whether to add the pooler, if the family has one; otherwise `pooler_output` is None.

    >>> import jax
    >>> from bertjax import BertConfig
    >>> config = BertConfig(vocab_size=50, hidden_size=12, num_hidden_layers=2, num_attention_heads=3,
    ...                     intermediate_size=7)
    >>> output = BertModel(config, jax.random.key(0))([[2, 5, 7, 3]])
    >>> output.attentions.shape
    (2, 1, 3, 4, 4)
    """

    def __init__(
        self,
        config: BertConfig,
        key: Array | None = None,
        numerics: Numerics | None = None,
        *,
        add_pooling_layer: bool = True,
    ):
        check_process()
        config, numerics, keys = check_config(config), check_numerics(numerics), split_key(key, 3)
        check_attention(config, numerics.attention)
        self.config, self.numerics = config, numerics
        self.embeddings = Embeddings(config, keys[0], numerics)
        self.encoder = Encoder(config, keys[1], numerics)
        pooled, final, width = config.architecture.pooler, config.architecture.final_norm, config.hidden_size
        self.pooler = Pooler(config, keys[2], numerics) if add_pooling_layer and pooled is not None else None
        norm_bias = config.architecture.layers[0].norm_bias
        self.final_norm = LayerNorm(width, config.layer_norm_eps, numerics, bias=norm_bias) if final else None

    def forward(self, inputs: Inputs, overrides: Overrides | None = None) -> ModelOutput:
        """The pure computation on checked inputs, for use inside `jax.jit`."""
        hidden, record = self.encoder(self.embeddings(inputs), self.encoder.context(inputs), overrides)
        return self.finish(hidden, inputs.keep, record)

    @property
    def body(self) -> "BertModel":
        """The encoder; in a task model the encoder below the head."""
        return self

    def finish(
        self,
        hidden: Float[Array, "batch token embed"],
        keep: Float[Array, "batch #query key"],
        record: EncoderRecord | None = None,
    ) -> ModelOutput:
        """Apply the final norm, also to the last hidden states in the record, and the pooler."""
        if self.final_norm is not None:
            hidden = self.final_norm(hidden)
            if record is not None:
                record = replace(record, hidden_states=record.hidden_states.at[-1].set(hidden))
        pooled = None if self.pooler is None else self.pooler(hidden)
        return ModelOutput(hidden, record, pooler_output=pooled)


class TaskModel(PretrainedModel):
    """A `BertModel` as `bert`, with a task head that subclasses define in `head`."""

    vector_fields: ClassVar[frozenset[str]] = frozenset()  # fields that a head on one vector of each text computes

    def __init__(self, config: BertConfig, key: Array, numerics: Numerics | None, *, add_pooling_layer: bool):
        self.config, self.numerics = check_config(config), check_numerics(numerics)
        self.bert = BertModel(config, key, self.numerics, add_pooling_layer=add_pooling_layer)

    @property
    def body(self) -> BertModel:
        """The encoder below the head."""
        return self.bert

    @property
    def fields_of_first_token(self) -> frozenset[str]:
        """Also the fields of the head, if it reads only [CLS]."""
        plan = self.config.architecture.heads.get(self.task)
        reads_cls = plan is not None and plan.reads in ("pooler", "cls")
        return super().fields_of_first_token | (self.vector_fields if reads_cls else frozenset())

    def head(self, output: ModelOutput, keep: Float[Array, "batch #query key"]) -> dict[str, Array]:
        """Fields of `ModelOutput` that the head computes from the encoder's output."""
        raise TypeError(f"{type(self).__name__} has no head: use one of its subclasses")

    def forward(self, inputs: Inputs, overrides: Overrides | None = None) -> ModelOutput:
        """The pure computation on checked inputs, for use inside `jax.jit`."""
        return self._with_head(self.bert.forward(inputs, overrides), inputs.keep)

    def finish(
        self,
        hidden: Float[Array, "batch token embed"],
        keep: Float[Array, "batch #query key"],
        record: EncoderRecord | None = None,
    ) -> ModelOutput:
        """Apply the final norm, pooler and head to the last hidden states."""
        return self._with_head(self.bert.finish(hidden, keep, record), keep)

    def _with_head(self, output: ModelOutput, keep: Float[Array, "batch #query key"]) -> ModelOutput:
        fields = {"pooler_output": output.pooler_output} | self.head(output, keep)
        return ModelOutput(output.last_hidden_state, output.record, **fields)
