"""Models with a task head, and `load`, which selects the class of a checkpoint.

There is one class for each task, for all families; `BertConfig.architecture` describes the head.
"""

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, DTypeLike, Float

from bertjax import arguments
from bertjax.checkpoints import (
    BertConfig,
    CheckpointWarning,
    HeadPlan,
    HubOptions,
    InMemory,
    architecture,
    is_sentence_directory,
    locate,
    read_checkpoint,
    read_config,
    read_in_memory,
    tensor_names,
    texts_directory,
)
from bertjax.data import Tokenizer
from bertjax.errors import ConfigError, error_prefix
from bertjax.models import ops
from bertjax.models.body import BertModel, TaskModel
from bertjax.models.encoder import Dense, LayerNorm, value_of
from bertjax.models.layer import Drop, keep_all
from bertjax.models.origin import Origin
from bertjax.models.pretrained import (
    PretrainedModel,
    build,
    by_path,
    check_config,
    make_numerics,
    split_key,
    untie_if_different,
)
from bertjax.models.sentences.embedding import BertForSentenceEmbedding
from bertjax.models.sentences.pooling import ACTIVATIONS, read_vector
from bertjax.models.types import ModelOutput, Numerics, Overrides

DEFAULT_SCORE_ACTIVATION = "sigmoid"  # the default of sentence-transformers


def _plan(config: BertConfig, task: str) -> HeadPlan:
    """The plan of a head. Raises `ConfigError` if the family has no such head."""
    heads = check_config(config).architecture.heads
    if task not in heads:
        raise ConfigError(f"{config.family.name} has no head for {task}, only for {', '.join(heads)}")
    return heads[task]


def _linear_head(config: BertConfig, labels: int, key: Array, model: TaskModel) -> Dense:
    return Dense(key, (config.hidden_size, labels), (labels,), config.initializer_range, model.numerics)


def _transform(config: BertConfig, plan: HeadPlan, head: Array, numerics: Numerics) -> "Transform | None":
    """The transform before the output layer of a head, if its plan has one."""
    return None if plan.activation is None else Transform(config, plan, jax.random.split(head)[1], numerics)


class Transform(nnx.Module):
    """A dense layer with an activation and an optional norm, between the encoder and a head's output layer."""

    def __init__(self, config: BertConfig, plan: HeadPlan, key: Array, numerics: Numerics):
        width, activation = config.hidden_size, plan.activation
        assert activation is not None
        self.dense = Dense(key, (width, width), (width,) if plan.bias else None, config.initializer_range, numerics)
        epsilon = config.layer_norm_eps
        self.norm = LayerNorm(width, epsilon, numerics, bias=plan.norm_bias) if plan.norm else None
        self.activation, self.numerics = activation, numerics

    def __call__(self, x: Float[Array, "*batch embed"], drop: Drop = keep_all) -> Float[Array, "*batch embed"]:
        """Apply the transform; the width is kept.

        Args:
            x: input.
            drop: dropout on the input of the dense layer.
        """
        inner = ops.ACTIVATIONS[self.activation](self.dense(drop(x))).astype(self.numerics.dtype)
        return inner if self.norm is None else self.norm(inner)


class LinearTaskModel(TaskModel):
    """A model with a linear head on a vector of each text or on every token, optionally after a transform."""

    vector_fields = frozenset({"logits", "score"})

    def __init__(self, config: BertConfig, key: Array | None = None, numerics: Numerics | None = None):
        plan, (body, head) = _plan(config, self.task), split_key(key, 2)
        super().__init__(config, body, numerics, add_pooling_layer=plan.reads == "pooler")
        self.transform = _transform(config, plan, head, self.numerics)
        self.classifier = _linear_head(config, plan.labels or config.num_labels, head, self)

    @property
    def plan(self) -> HeadPlan:
        """The plan of the head."""
        return self.config.architecture.heads[self.task]

    def head(self, output: ModelOutput, keep: Float[Array, "batch #query key"]) -> dict[str, Array]:
        """Logits of each label."""
        return {"logits": self.logits_of(read_vector(output, keep, self.plan.reads))}

    def logits_of(
        self, vector: Float[Array, "*batch embed"], drop_input: Drop = keep_all, drop: Drop = keep_all
    ) -> Float[Array, "*batch labels"]:
        """Apply the transform, if there is one, and the output layer, in wide floats.

        Args:
            vector: input of the head.
            drop_input: dropout on the input of the transform.
            drop: dropout on the input of the output layer.
        """
        x = vector if self.transform is None else self.transform(vector, drop_input)
        return self.classifier(drop(x))


class BertForSequenceClassification(LinearTaskModel):
    """A classifier of texts and pairs: `logits`, `[batch, labels]` in wide floats.

    It reads the pooler's output in BERT, [CLS] or the mean over tokens in other families. With one label it is a
    regression (STS-B) or a cross-encoder; `score` is its logit after an activation.

    Args:
        config: sizes and settings, with the names of the labels.
        key: `jax.random.key` for the initial weights.
        numerics: dtypes, precision and attention implementation.
    """

    task = architecture.SEQUENCE

    def head(self, output: ModelOutput, keep: Float[Array, "batch #query key"]) -> dict[str, Array]:
        """Logits of each label, and the score if there is only one.

        Args:
            output: output of the encoder.
            keep: attention mask, 1 for real tokens, `[batch, query or 1, key]`.
        """
        fields = super().head(output, keep)
        if self.config.num_labels > 1:
            return fields
        activation = ACTIVATIONS[self.config.score_activation or DEFAULT_SCORE_ACTIVATION]
        return fields | {"score": activation(fields["logits"][:, 0])}


class BertForTokenClassification(LinearTaskModel):
    """A classifier of every token: `logits`, `[batch, token, labels]`.

    Args:
        config: sizes and settings, with the names of the tags.
        key: `jax.random.key` for the initial weights.
        numerics: dtypes, precision and attention implementation.
    """

    task = architecture.TOKENS


class BertForQuestionAnswering(TaskModel):
    """Logits of each token as the first and last of an answer: `start_logits` and `end_logits`, `[batch, token]`.

    Args:
        config: sizes and settings.
        key: `jax.random.key` for the initial weights.
        numerics: dtypes, precision and attention implementation.
    """

    task = architecture.ANSWERS

    def __init__(self, config: BertConfig, key: Array | None = None, numerics: Numerics | None = None):
        plan, (body, head) = _plan(config, self.task), split_key(key, 2)
        super().__init__(config, body, numerics, add_pooling_layer=False)
        self.transform = _transform(config, plan, head, self.numerics)
        self.qa_outputs = _linear_head(config, 2, head, self)

    def head(self, output: ModelOutput, keep: Float[Array, "batch #query key"]) -> dict[str, Array]:
        """Start and end logits."""
        hidden = output.last_hidden_state
        logits = self.qa_outputs(hidden if self.transform is None else self.transform(hidden))
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


class BertForMultipleChoice(LinearTaskModel):
    """A logit for each of several texts that belong together.

    For inputs `[batch, choice, token]`, `logits` are `[batch, choice]`; all other fields have one row for each text.
    For inputs `[batch, token]`, as in a sweep, each text is separate and `logits` are `[batch, 1]`.

    Args:
        config: sizes and settings.
        key: `jax.random.key` for the initial weights.
        numerics: dtypes, precision and attention implementation.
    """

    task = architecture.CHOICE

    def _read_batch(self, arrays: Sequence[Any], tokenizer: Any) -> dict[str, Any]:
        """The arrays of a call, with one row for each text."""
        batch = super()._read_batch(arrays, tokenizer)
        return {name: _one_row_per_text(array, name) for name, array in batch.items()}

    def __call__(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        position_ids: Any = None,
        overrides: Overrides | None = None,
        *,
        tokenizer: Any = None,
    ) -> ModelOutput:
        """Run the model; arguments are as in `PretrainedModel.__call__`, or have an axis of choices."""
        batch = super()._read_batch((input_ids, attention_mask, token_type_ids, position_ids), tokenizer)
        output = super().__call__(**batch, overrides=overrides)
        shape = np.shape(batch["input_ids"])
        if len(shape) < 3:
            return output
        assert output.logits is not None
        changed = replace(output, logits=output.logits.reshape(shape[:2]))
        return changed.from_call(np.asarray(batch["input_ids"]), self.origin)


def _one_row_per_text(values: Any, name: str) -> Any:
    """Reshape `[batch, choice, token]` to one row for each text."""
    array = None if values is None else arguments.as_array(values, name)
    return array.reshape(-1, array.shape[-1]) if array is not None and array.ndim == 3 else values


class BertForReplacedTokenDetection(LinearTaskModel):
    """ELECTRA's discriminator of replaced tokens: `logits`, `[batch, token]`, positive for replaced tokens.

    Args:
        config: sizes and settings.
        key: `jax.random.key` for the initial weights.
        numerics: dtypes, precision and attention implementation.
    """

    task = architecture.REPLACED

    def head(self, output: ModelOutput, keep: Float[Array, "batch #query key"]) -> dict[str, Array]:
        """A logit for each token."""
        return {"logits": self.logits_of(output.last_hidden_state)[..., 0]}


class BertForNextSentencePrediction(TaskModel):
    """A classifier of pairs: `logits`, `[batch, 2]`, of 'the second segment follows' and 'it is random'.

    Args:
        config: sizes and settings.
        key: `jax.random.key` for the initial weights.
        numerics: dtypes, precision and attention implementation.
    """

    task = architecture.NEXT
    vector_fields = frozenset({"logits"})

    def __init__(self, config: BertConfig, key: Array | None = None, numerics: Numerics | None = None):
        _plan(config, self.task)
        body, head = split_key(key, 2)
        super().__init__(config, body, numerics, add_pooling_layer=True)
        self.seq_relationship = _linear_head(config, 2, head, self)

    def head(self, output: ModelOutput, keep: Float[Array, "batch #query key"]) -> dict[str, Array]:
        """Logits of 'follows' and 'is random'."""
        assert output.pooler_output is not None
        return {"logits": self.seq_relationship(output.pooler_output)}


class MaskedLMHead(nnx.Module):
    """Dense layer, activation, norm, and a product with the word embeddings (tied) or a separate decoder."""

    def __init__(self, config: BertConfig, key: Array, numerics: Numerics):
        plan, width, std = (
            config.architecture.heads[architecture.WORDS],
            config.embedding_size,
            config.initializer_range,
        )
        assert plan.activation is not None
        first, second = jax.random.split(key)
        shape = (config.hidden_size, width)
        self.transform = Dense(first, shape, (width,) if plan.bias else None, std, numerics)
        self.norm = LayerNorm(width, config.layer_norm_eps, numerics, bias=plan.norm_bias)
        self.bias = nnx.Param(jnp.zeros(config.vocab_size, numerics.wide)) if plan.output_bias else None
        shape = (config.vocab_size, width)
        tied = config.tie_word_embeddings
        self.decoder = None if tied else nnx.Param(std * jax.random.normal(second, shape, numerics.wide))
        self.activation, self.numerics = plan.activation, numerics

    def __call__(
        self, hidden: Float[Array, "batch token embed"], words: Float[Array, "vocab width"]
    ) -> Float[Array, "batch token vocab"]:
        """Logits of each word; `words` are the word embeddings."""
        x = self.norm(ops.ACTIVATIONS[self.activation](self.transform(hidden)))
        decoder = words if self.decoder is None else self.decoder[...]
        return ops.add_bias(ops.contract("bte,ve->btv", x, decoder, self.numerics), value_of(self.bias))


class BertForMaskedLM(TaskModel):
    """A masked language model: `logits`, `[batch, token, vocab]`.

    Args:
        config: sizes and settings.
        key: `jax.random.key` for the initial weights.
        numerics: dtypes, precision and attention implementation.
    """

    task = architecture.WORDS

    def __init__(self, config: BertConfig, key: Array | None = None, numerics: Numerics | None = None):
        _plan(config, self.task)
        body, head = split_key(key, 2)
        super().__init__(config, body, numerics, add_pooling_layer=False)
        self.predictions = MaskedLMHead(config, head, self.numerics)

    def head(self, output: ModelOutput, keep: Float[Array, "batch #query key"]) -> dict[str, Array]:
        """Logits of each word."""
        return {"logits": self.predictions(output.last_hidden_state, self.bert.embeddings.word[...])}


class BertForPreTraining(TaskModel):
    """Both heads of BERT's or ALBERT's pre-training: `logits` (`prediction_logits`) and `seq_relationship_logits`.

    Args:
        config: sizes and settings.
        key: `jax.random.key` for the initial weights.
        numerics: dtypes, precision and attention implementation.
    """

    task = architecture.PRETRAINING
    vector_fields = frozenset({"seq_relationship_logits"})

    def __init__(self, config: BertConfig, key: Array | None = None, numerics: Numerics | None = None):
        plan, (body, head) = _plan(config, self.task), split_key(key, 2)
        words, sentences = jax.random.split(head)
        super().__init__(config, body, numerics, add_pooling_layer=True)
        self.predictions = MaskedLMHead(config, words, self.numerics)
        self.seq_relationship = _linear_head(config, plan.labels or config.num_labels, sentences, self)

    def head(self, output: ModelOutput, keep: Float[Array, "batch #query key"]) -> dict[str, Array]:
        """Logits of both heads."""
        assert output.pooler_output is not None
        return {
            "logits": self.predictions(output.last_hidden_state, self.bert.embeddings.word[...]),
            "seq_relationship_logits": self.seq_relationship(output.pooler_output),
        }


CLASSES: dict[str, type[PretrainedModel]] = {
    cls.task: cls
    for cls in (
        BertModel,
        BertForSequenceClassification,
        BertForMaskedLM,
        BertForNextSentencePrediction,
        BertForPreTraining,
        BertForReplacedTokenDetection,
        BertForTokenClassification,
        BertForQuestionAnswering,
        BertForMultipleChoice,
    )
}
"""The class for each task."""


class LoadOptions(HubOptions, total=False):
    """Options of `load`, as in `BertModel.from_pretrained`."""

    dtype: DTypeLike
    precision: str | None
    attention: str
    config: BertConfig | None
    seed: int


def load(name_or_path: str | Path, **options: Unpack[LoadOptions]) -> PretrainedModel:
    """Load a checkpoint as the class in its config; an embedder of sentence-transformers as a sentence embedding.

    Args:
        name_or_path: directory, hub id or 'package:NAME'.
        options: options of `BertModel.from_pretrained`: `dtype`, `precision`, `attention`, `config`, `revision`,
            `local_files_only`, `cache_dir`, `token`, `seed`.

    Returns: a model of the class for the task, such as `BertForMaskedLM` for `RobertaForMaskedLM`. Use
        `BertForSequenceClassification.from_pretrained` and the like for a particular class.

    Raises:
        ConfigError: the config names no class that bertjax has, or an unsupported setting.
        CheckpointError: the checkpoint does not exist, or its weights are missing, damaged or do not fit.
        InputError: an unknown option.
    """
    hub: Any = {name: value for name, value in options.items() if name in HubOptions.__annotations__}
    directory = locate(name_or_path, **hub)
    rest: Any = {name: value for name, value in options.items() if name != "revision"}
    config = read_config(directory, **hub)
    texts = texts_directory(directory, **hub)
    if is_sentence_directory(texts) and (texts == directory or _is_body(config)):
        cls: type[PretrainedModel] = BertForSentenceEmbedding
    else:
        cls = _class_of(config, directory)
    model = cls.from_pretrained(directory, **rest)
    model.origin.name = os.fsdecode(name_or_path)
    return model


def _class_of(config: BertConfig, source: str | Path) -> type[PretrainedModel]:
    """The class in a config; `source` names it in the error message."""
    tasks = {head.architecture: task for task, head in config.family.heads.items()}
    names = config.architectures or (config.family.heads[architecture.BODY].architecture,)
    for name in names:
        if name in tasks:
            return CLASSES[tasks[name]]
    raise ConfigError(f"architectures {list(names)} in {source} are not supported, only {', '.join(tasks)}")


def from_torch(
    model: Any,
    tokenizer: Any = None,
    *,
    dtype: DTypeLike = "float32",
    precision: str | None = None,
    attention: str = "explicit",
) -> PretrainedModel:
    """Convert a PyTorch model in memory. Nothing is written to disk, and the PyTorch model is not changed.

    Args:
        model: a model of transformers; a `SentenceTransformer` or `CrossEncoder` of sentence-transformers; or a
            `PeftModel`, whose active adapters are merged in a copy. Weights may have any dtype and be on any device.
        tokenizer: a `bertjax.Tokenizer`, or a fast tokenizer of transformers, which is copied; default: the tokenizer
            of a model of sentence-transformers, with its prompts and limit.
        dtype: dtype of the parameters, as in `BertModel.from_pretrained`.
        precision: precision of matrix products, as in `BertModel.from_pretrained`.
        attention: form of attention, as in `BertModel.from_pretrained`.

    Returns: a model of the class that `load` would use for the same model in a directory.

    Raises:
        InputError: another type of model or tokenizer.
        ConfigError: an unsupported class or setting.
        CheckpointError: the tensors do not belong to the model's class, or an adapter cannot be merged.
        DataError: the tokenizer is not a fast one.

    Warns:
        CheckpointWarning: tensors hold NaN or infinity.
    """
    numerics = make_numerics(dtype, precision, attention)
    found = read_in_memory(model)
    options: dict[str, Any] = dict(found.vectors or {})
    cls = BertForSentenceEmbedding if found.vectors is not None else _class_of(found.config, found.name)
    if cls is BertModel:  # transformers may omit the pooler
        options["add_pooling_layer"] = tensor_names.has_pooler(found.weights, found.config.family)
    config = untie_if_different(found.config, found.weights, cls.task)

    def create(key: Array) -> PretrainedModel:
        return cls(config, key, numerics, **options)  # type: ignore[call-arg]

    with error_prefix(f"{found.name}: "):
        converted = build(create, found.weights, config, cls.task, None, found.dense)
    converted.origin = Origin(found.name, _tokenizer_of(found, tokenizer))
    return converted


def _tokenizer_of(found: InMemory, tokenizer: Any) -> Tokenizer | None:
    """The tokenizer in a call of `from_torch`, or the model's, with the model's prompts and limit."""
    tokenizer = found.tokenizer if tokenizer is None else tokenizer
    if tokenizer is None or isinstance(tokenizer, Tokenizer):
        return tokenizer
    counted = (found.vectors or {}).get("include_prompt", True)
    return Tokenizer.from_transformers(tokenizer, found.text, counts_prompts=counted)


def load_for(
    classes: Sequence[type[PretrainedModel]], directory: Path, **options: Unpack[LoadOptions]
) -> PretrainedModel:
    """`load` for a task: if the config names no class with a head, use the first suitable head in the file.

    Many old checkpoints have no `architectures` in their config.json, such as SciBERT, whose file has a masked-LM head.

    Args:
        classes: classes for the task, in order of preference.
        directory: directory of a checkpoint.
        options: options of `load`.
    """
    config = read_config(directory)
    embeds = is_sentence_directory(texts_directory(directory)) and BertForSentenceEmbedding in classes
    if _is_body(config) and not embeds:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckpointWarning)  # they are repeated when the model is built
            tensors = frozenset(read_checkpoint(directory)[1])
        for cls in classes:
            if _has_head(cls, config, tensors):
                return cls.from_pretrained(directory, **options)
    return load(directory, **options)


def _has_head(cls: type[PretrainedModel], config: BertConfig, tensors: frozenset[str]) -> bool:
    """Whether a file has all tensors of a class's head, not as a part of a larger head of another task."""
    if cls.task == architecture.BODY or cls.task not in config.architecture.heads:
        return False
    paths = by_path(nnx.split(nnx.eval_shape(lambda key: cls(config, key), jax.random.key(0)))[1])  # type: ignore[call-arg]
    head = {
        tensor_names.entry_of_parameter(path, config, cls.task).tensor for path in paths if not path.startswith("bert.")
    }
    others = (other for task, other in config.family.heads.items() if task != architecture.PRETRAINING)
    larger = ({entry.tensor for entry in other.entries} for other in others)
    return head <= tensors and not any(head < names <= tensors for names in larger)


def _is_body(config: BertConfig) -> bool:
    """Whether a checkpoint is an encoder without a task head."""
    return config.architectures in ((), (config.family.heads[architecture.BODY].architecture,))
