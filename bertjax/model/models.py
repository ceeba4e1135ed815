"""The models: BERT itself, and with a head for a task.

`forward` is the pure computation, for use inside one's own `jax.jit`; calling a model checks its input and runs
`forward` compiled.
"""

from pathlib import Path
from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float

from bertjax import arguments
from bertjax.checkpoints import (
    BertConfig,
    TextSettings,
    is_sentence_directory,
    locate,
    read_pooling,
    write_sentence_files,
)
from bertjax.errors import ConfigError, OutputError
from bertjax.model import ops
from bertjax.model.encoder import Dense, Embeddings, Encoder, LayerNorm, Pooler
from bertjax.model.pretrained import PretrainedModel, check_config, check_numerics, split_key
from bertjax.model.types import EncoderRecord, Inputs, ModelOutput, Numerics, Overrides, SavedTokenizer
from bertjax.paths import user_path


class BertModel(PretrainedModel):
    """BERT's encoder with its pooler.

    Args:
        config: sizes and settings.
        key: `jax.random.key` for the initial weights, normal with `config.initializer_range`.
        numerics: dtype and matrix-product precision.
        add_pooling_layer: without it `pooler_output` is None.

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
        config, numerics, keys = check_config(config), check_numerics(numerics), split_key(key, 3)
        self.config, self.numerics = config, numerics
        self.embeddings = Embeddings(config, keys[0], numerics)
        self.encoder = Encoder(config, keys[1], numerics)
        self.pooler = Pooler(config, keys[2], numerics) if add_pooling_layer else None

    def forward(self, inputs: Inputs, overrides: Overrides | None = None) -> ModelOutput:
        """The whole computation on checked inputs; pure, for use inside `jax.jit`."""
        hidden, record = self.encoder(self.embeddings(inputs), inputs.keep, overrides)
        return self.finish(hidden, inputs.keep, record)

    @property
    def body(self) -> "BertModel":
        """The encoder itself; in a task model the encoder below the head."""
        return self

    def finish(
        self,
        hidden: Float[Array, "batch token embed"],
        keep: Float[Array, "batch #query key"],
        record: EncoderRecord | None = None,
    ) -> ModelOutput:
        """Add the pooler to the last hidden states."""
        pooled = None if self.pooler is None else self.pooler(hidden)
        return ModelOutput(hidden, record, pooler_output=pooled)


class TaskModel(PretrainedModel):
    """A `BertModel` under `bert` and, in the subclass, a head that `head` applies to its output."""

    def __init__(self, config: BertConfig, key: Array, numerics: Numerics | None, *, add_pooling_layer: bool):
        self.config, self.numerics = check_config(config), check_numerics(numerics)
        self.bert = BertModel(config, key, self.numerics, add_pooling_layer=add_pooling_layer)

    @property
    def body(self) -> BertModel:
        """The encoder below the head."""
        return self.bert

    def head(self, output: ModelOutput, keep: Float[Array, "batch #query key"]) -> dict[str, Array]:
        """The head's own fields of `ModelOutput`, from the encoder's output."""
        raise TypeError(f"{type(self).__name__} has no head: use one of its subclasses")

    def forward(self, inputs: Inputs, overrides: Overrides | None = None) -> ModelOutput:
        """The whole computation on checked inputs; pure, for use inside `jax.jit`."""
        return self._with_head(self.bert.forward(inputs, overrides), inputs.keep)

    def finish(
        self,
        hidden: Float[Array, "batch token embed"],
        keep: Float[Array, "batch #query key"],
        record: EncoderRecord | None = None,
    ) -> ModelOutput:
        """Pooler and head on the last hidden states."""
        return self._with_head(self.bert.finish(hidden, keep, record), keep)

    def _with_head(self, output: ModelOutput, keep: Float[Array, "batch #query key"]) -> ModelOutput:
        fields = {"pooler_output": output.pooler_output} | self.head(output, keep)
        return ModelOutput(output.last_hidden_state, output.record, **fields)


def _two_keys(key: Array | None) -> tuple[Array, Array]:
    first, second = split_key(key, 2)
    return first, second


def _linear_head(config: BertConfig, labels: int, key: Array, model: TaskModel) -> Dense:
    return Dense(key, (config.hidden_size, labels), (labels,), config.initializer_range, model.numerics)


def _apply(head: Dense, x: Array, numerics: Numerics) -> Array:
    return ops.dense(x, head.kernel[...], head.bias[...], numerics)


class BertForSequenceClassification(TaskModel):
    """A linear classifier on the pooled [CLS]; `logits` are `[batch, labels]` in wide floats.

    With one label it is a regression (STS-B).
    """

    def __init__(self, config: BertConfig, key: Array | None = None, numerics: Numerics | None = None):
        body, head = _two_keys(key)
        super().__init__(config, body, numerics, add_pooling_layer=True)
        self.classifier = _linear_head(config, config.num_labels, head, self)

    @property
    def fields_of_first_token(self) -> frozenset[str]:
        """Pooler and classifier."""
        return super().fields_of_first_token | {"logits"}

    def head(self, output: ModelOutput, keep: Float[Array, "batch #query key"]) -> dict[str, Array]:
        """Logits of each label."""
        assert output.pooler_output is not None
        return {"logits": _apply(self.classifier, output.pooler_output, self.numerics)}


class BertForTokenClassification(TaskModel):
    """A linear classifier on every token; `logits` are `[batch, token, labels]`."""

    def __init__(self, config: BertConfig, key: Array | None = None, numerics: Numerics | None = None):
        body, head = _two_keys(key)
        super().__init__(config, body, numerics, add_pooling_layer=False)
        self.classifier = _linear_head(config, config.num_labels, head, self)

    def head(self, output: ModelOutput, keep: Float[Array, "batch #query key"]) -> dict[str, Array]:
        """Logits of each label for each token."""
        return {"logits": _apply(self.classifier, output.last_hidden_state, self.numerics)}


class BertForQuestionAnswering(TaskModel):
    """Scores of each token as the answer's start and end: `start_logits` and `end_logits`, `[batch, token]`."""

    def __init__(self, config: BertConfig, key: Array | None = None, numerics: Numerics | None = None):
        body, head = _two_keys(key)
        super().__init__(config, body, numerics, add_pooling_layer=False)
        self.qa_outputs = _linear_head(config, 2, head, self)

    def head(self, output: ModelOutput, keep: Float[Array, "batch #query key"]) -> dict[str, Array]:
        """Start and end logits."""
        logits = _apply(self.qa_outputs, output.last_hidden_state, self.numerics)
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


class BertForNextSentencePrediction(TaskModel):
    """Does the second segment follow the first? `logits` are `[batch, 2]`: follows, is random."""

    def __init__(self, config: BertConfig, key: Array | None = None, numerics: Numerics | None = None):
        body, head = _two_keys(key)
        super().__init__(config, body, numerics, add_pooling_layer=True)
        self.seq_relationship = _linear_head(config, 2, head, self)

    @property
    def fields_of_first_token(self) -> frozenset[str]:
        """Pooler and classifier."""
        return super().fields_of_first_token | {"logits"}

    def head(self, output: ModelOutput, keep: Float[Array, "batch #query key"]) -> dict[str, Array]:
        """Logits of 'follows' and 'is random'."""
        assert output.pooler_output is not None
        return {"logits": _apply(self.seq_relationship, output.pooler_output, self.numerics)}


class MaskedLMHead(nnx.Module):
    """Dense, activation, norm, then a product with the word embeddings (tied) or with a decoder of its own."""

    def __init__(self, config: BertConfig, key: Array, numerics: Numerics):
        width, std = config.hidden_size, config.initializer_range
        first, second = jax.random.split(key)
        self.transform = Dense(first, (width, width), (width,), std, numerics)
        self.norm = LayerNorm(width, config.layer_norm_eps, numerics)
        self.bias = nnx.Param(jnp.zeros(config.vocab_size, numerics.wide))
        shape = (config.vocab_size, width)
        tied = config.tie_word_embeddings
        self.decoder = None if tied else nnx.Param(std * jax.random.normal(second, shape, numerics.wide))
        self.activation, self.numerics = config.hidden_act, numerics

    def __call__(
        self, hidden: Float[Array, "batch token embed"], words: Float[Array, "vocab embed"]
    ) -> Float[Array, "batch token vocab"]:
        """Logits of each word; `words` are the word embeddings."""
        x = self.norm(ops.ACTIVATIONS[self.activation](_apply(self.transform, hidden, self.numerics)))
        decoder = words if self.decoder is None else self.decoder[...]
        return ops.contract("bte,ve->btv", x, decoder, self.numerics) + self.bias[...][None, None]


class BertForMaskedLM(TaskModel):
    """Scores of every vocabulary entry for every token; `logits` are `[batch, token, vocab]`."""

    has_decoder = True

    def __init__(self, config: BertConfig, key: Array | None = None, numerics: Numerics | None = None):
        body, head = _two_keys(key)
        super().__init__(config, body, numerics, add_pooling_layer=False)
        self.predictions = MaskedLMHead(config, head, self.numerics)

    def head(self, output: ModelOutput, keep: Float[Array, "batch #query key"]) -> dict[str, Array]:
        """Logits of each word."""
        return {"logits": self.predictions(output.last_hidden_state, self.bert.embeddings.word[...])}


class BertForPreTraining(TaskModel):
    """Both heads of pre-training: `logits` (or `prediction_logits`) and `seq_relationship_logits`."""

    has_decoder = True

    def __init__(self, config: BertConfig, key: Array | None = None, numerics: Numerics | None = None):
        body, head = _two_keys(key)
        words, sentences = jax.random.split(head)
        super().__init__(config, body, numerics, add_pooling_layer=True)
        self.predictions = MaskedLMHead(config, words, self.numerics)
        self.seq_relationship = _linear_head(config, 2, sentences, self)

    @property
    def fields_of_first_token(self) -> frozenset[str]:
        """Pooler and next-sentence classifier."""
        return super().fields_of_first_token | {"seq_relationship_logits"}

    def head(self, output: ModelOutput, keep: Float[Array, "batch #query key"]) -> dict[str, Array]:
        """Logits of both heads."""
        assert output.pooler_output is not None
        return {
            "logits": self.predictions(output.last_hidden_state, self.bert.embeddings.word[...]),
            "seq_relationship_logits": _apply(self.seq_relationship, output.pooler_output, self.numerics),
        }


class BertForSentenceEmbedding(TaskModel):
    """One vector for each text, as sentence-transformers makes it: `sentence_embedding`, `[batch, embed]`.

    Args:
        pooling: 'mean' over the real tokens, or 'cls'.
        normalize: scale the vector to length 1.
        max_length: tokens after which a text is cut, or None for all that the model takes.
    """

    def __init__(
        self,
        config: BertConfig,
        key: Array | None = None,
        numerics: Numerics | None = None,
        *,
        pooling: str = "mean",
        normalize: bool = True,
        max_length: int | None = None,
    ):
        arguments.one_of(pooling, "pooling", ("mean", "cls"), ConfigError)
        if max_length is not None:
            arguments.whole_number(max_length, "max_length", 1, ConfigError)
        super().__init__(config, _two_keys(key)[0], numerics, add_pooling_layer=False)
        self.pooling, self.normalize, self.max_length = pooling, normalize, max_length

    @property
    def fields_of_first_token(self) -> frozenset[str]:
        """The sentence vector, where it is [CLS]'s."""
        return super().fields_of_first_token | ({"sentence_embedding"} if self.pooling == "cls" else set())

    def head(self, output: ModelOutput, keep: Float[Array, "batch #query key"]) -> dict[str, Array]:
        """The pooled vector, in wide floats."""
        hidden = output.last_hidden_state.astype(self.numerics.wide)
        if self.pooling == "cls":
            vector = hidden[:, 0]
        else:
            real = jnp.max(keep, axis=1)
            total = jnp.einsum("bt,bte->be", real, hidden, precision="highest")
            vector = total / jnp.maximum(jnp.sum(real, axis=-1, keepdims=True), 1e-9)
        if self.normalize:  # sentence-transformers divides by the same floored length
            vector = vector / jnp.maximum(jnp.linalg.norm(vector, axis=-1, keepdims=True), 1e-12)
        return {"sentence_embedding": vector}

    @classmethod
    def _read_options(cls, directory: Path) -> dict[str, Any]:
        return read_pooling(directory)

    def _architecture(self) -> str:
        return "BertModel"

    def save_pretrained(self, directory: str | Path, tokenizer: SavedTokenizer | None = None) -> None:
        """Write the encoder for `transformers`, and pooling, maximum length and prompt for sentence-transformers.

        Args:
            directory: made where it does not exist.
            tokenizer: as for other models; its prompt is written too.

        Raises:
            OutputError: the directory cannot be written.
        """
        super().save_pretrained(directory, tokenizer)
        prompt = "" if tokenizer is None else tokenizer.prompt
        write_sentence_files(
            user_path(directory, OutputError),
            hidden_size=self.config.hidden_size,
            pooling=self.pooling,
            normalize=self.normalize,
            text=TextSettings(self.max_length, prompt=prompt),
        )


CLASSES: dict[str, type[PretrainedModel]] = {
    cls.__name__: cls
    for cls in (
        BertModel,
        BertForSequenceClassification,
        BertForMaskedLM,
        BertForNextSentencePrediction,
        BertForPreTraining,
        BertForTokenClassification,
        BertForQuestionAnswering,
        BertForSentenceEmbedding,
    )
}


class HubOptions(TypedDict, total=False):
    """How files are found on the hub: as for `BertModel.from_pretrained`."""

    revision: str | None
    local_files_only: bool
    cache_dir: str | Path | None
    token: str | bool | None


class LoadOptions(HubOptions, total=False):
    """The options of `load`: as for `BertModel.from_pretrained`."""

    dtype: DTypeLike
    precision: str | None
    attention: str
    config: BertConfig | None
    seed: int


def load(name_or_path: str | Path, **options: Unpack[LoadOptions]) -> PretrainedModel:
    """Load a checkpoint as the class that its config names; a sentence-transformers one as sentence embedding.

    Args:
        name_or_path: directory, hub id or 'package:NAME'.
        options: as for `BertModel.from_pretrained`: `dtype`, `precision`, `attention`, `config`, `revision`,
            `local_files_only`, `cache_dir`, `token`, `seed`.

    Returns: a model of that class; `BertForSequenceClassification.from_pretrained` and the like ask for one class.

    Raises:
        ConfigError: the config names no class of bertjax's, or says what bertjax does not support.
        CheckpointError: no such checkpoint, or missing, damaged or unfitting weights.
        InputError: an unknown option.
    """
    hub: Any = {name: value for name, value in options.items() if name in HubOptions.__annotations__}
    directory = locate(name_or_path, **hub)
    rest: Any = {name: value for name, value in options.items() if name not in hub}
    if is_sentence_directory(directory):
        return BertForSentenceEmbedding.from_pretrained(directory, **rest)
    names = BertConfig.from_directory(directory).architectures or ("BertModel",)
    for name in names:
        if name in CLASSES:
            return CLASSES[name].from_pretrained(directory, **rest)
    raise ConfigError(f"architectures {list(names)} in {directory}: none is one of {', '.join(CLASSES)}")
