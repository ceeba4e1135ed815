"""The sentence embedder: an encoder, a pooling, dense layers and normalization."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from bertjax import arguments
from bertjax.checkpoints import (
    BertConfig,
    DensePlan,
    SentenceModules,
    TextSettings,
    read_dense_weights,
    read_pooling,
    sentence_file_names,
    write_sentence_files,
)
from bertjax.data import Tokenizer
from bertjax.errors import ConfigError
from bertjax.models.body import TaskModel
from bertjax.models.encoder import Dense
from bertjax.models.pretrained import check_config, split_key
from bertjax.models.sentences.pooling import ACTIVATIONS, POOLER, POOLINGS, normalize, pool
from bertjax.models.types import ModelOutput, Numerics

DENSE = "dense."  # prefix of the parameters of dense layers


class BertForSentenceEmbedding(TaskModel):
    """Sentence vectors as in sentence-transformers: `sentence_embedding`, `[batch, width]`.

    Args:
        config: sizes and settings of the encoder.
        key: `jax.random.key` for the initial weights.
        numerics: dtypes, precision and attention implementation.
        pooling: 'mean' over the real tokens, 'cls' (the first token), 'lasttoken', 'max', 'weightedmean' (weights 1, 2,
            3 ...), 'mean_sqrt_len_tokens' (the sum over the square root of the length), or several, whose vectors are
            joined in this order; or 'pooler', the output of the encoder's pooler.
        normalize: whether to scale the vector to length 1.
        max_length: longest text in tokens; longer ones are truncated. None for the limit of the model.
        dense: layers between pooling and normalization, in order.
        include_prompt: whether sentence-transformers includes the tokens of a prompt in the pooling. bertjax always
            does, so if False the tokenizer of the checkpoint refuses prompts.

    Raises:
        ConfigError: an unknown pooling, a pooler that the family lacks, or dense layers that do not fit.
    """

    def __init__(
        self,
        config: BertConfig,
        key: Array | None = None,
        numerics: Numerics | None = None,
        *,
        pooling: str | Sequence[str] = "mean",
        normalize: bool = True,
        max_length: int | None = None,
        dense: Sequence[DensePlan] = (),
        include_prompt: bool = True,
    ):
        poolings = _check_poolings(check_config(config), pooling)
        plans = arguments.check_sequence(dense, "dense", "a list of dense layers", DensePlan, ConfigError)
        _check_widths(len(poolings) * config.hidden_size, plans)
        if max_length is not None:
            arguments.check_int(max_length, "max_length", 1, ConfigError)
        body, head = split_key(key, 2)
        super().__init__(config, body, numerics, add_pooling_layer=POOLER in poolings)
        self.pooling = poolings[0] if len(poolings) == 1 else poolings
        self.normalize, self.max_length, self.plans = normalize, max_length, plans
        self.include_prompt = arguments.check_bool(include_prompt, "include_prompt", ConfigError)
        self.dense = nnx.List(
            [
                Dense(
                    layer_key,
                    (plan.inputs, plan.outputs),
                    (plan.outputs,) if plan.bias else None,
                    config.initializer_range,
                    self.numerics,
                )
                for plan, layer_key in zip(plans, jax.random.split(head, len(plans)), strict=True)
            ]
        )

    @property
    def poolings(self) -> tuple[str, ...]:
        """The poolings whose vectors are joined, in order."""
        return (self.pooling,) if isinstance(self.pooling, str) else self.pooling

    @property
    def fields_of_first_token(self) -> frozenset[str]:
        """Also the sentence vector, if it is that of [CLS] or the pooler."""
        first = self.poolings in (("cls",), (POOLER,))
        return super().fields_of_first_token | ({"sentence_embedding"} if first else set())

    def _tokenize(self, texts: Sequence[str]) -> dict[str, Any]:
        """A batch of texts, truncated as in sentence-transformers."""
        tokenizer = self._own_tokenizer()
        return tokenizer(texts, max_length=self.max_length or tokenizer.max_length)

    def head(self, output: ModelOutput, keep: Float[Array, "batch #query key"]) -> dict[str, Array]:
        """The sentence vector, in wide floats.

        Args:
            output: output of the encoder.
            keep: attention mask, 1 for real tokens, `[batch, query or 1, key]`.
        """
        vectors = pool(output, keep.astype(self.numerics.wide), self.poolings)
        for plan, layer in zip(self.plans, self.dense, strict=True):
            vectors = ACTIVATIONS[plan.activation](layer(vectors))
        return {"sentence_embedding": normalize(vectors) if self.normalize else vectors}

    def _file_parameters(self) -> dict[str, Array]:
        """Parameters of the encoder; those of dense layers are in other files."""
        return {name: value for name, value in self.parameters().items() if not name.startswith(DENSE)}

    @classmethod
    def _read_options(cls, directory: Path) -> dict[str, Any]:
        return read_pooling(directory)

    @classmethod
    def _read_extra_parameters(cls, directory: Path, options: dict[str, Any]) -> dict[str, np.ndarray]:
        return read_dense_weights(directory, options.get("dense", ()))

    @property
    def _modules(self) -> SentenceModules:
        """The modules after the encoder."""
        return SentenceModules(
            self.config.hidden_size, self.poolings, self.plans, self.normalize, include_prompt=self.include_prompt
        )

    def _extra_files(self) -> list[str]:
        return sentence_file_names(self._modules)

    def _write_extra_files(self, directory: Path, tokenizer: Tokenizer | None) -> None:
        """Write the files of sentence-transformers, with the prompts of the tokenizer."""
        prompt, prompts = ("", {}) if tokenizer is None else (tokenizer.prompt, tokenizer.prompts)
        parameters = {name: np.asarray(value) for name, value in self.parameters().items() if name.startswith(DENSE)}
        text = TextSettings(self.max_length, prompt=prompt, prompts=prompts)
        write_sentence_files(directory, self._modules, parameters, text)


def _check_poolings(config: BertConfig, pooling: Any) -> tuple[str, ...]:
    """Checked names of poolings."""
    expected = f"one or several of {', '.join(POOLINGS)}"
    poolings = (
        (pooling,)
        if isinstance(pooling, str)
        else arguments.check_sequence(pooling, "pooling", expected, str, ConfigError)
    )
    for name in poolings:
        arguments.check_choice(name, "pooling", POOLINGS, ConfigError)
    if not poolings or len(set(poolings)) < len(poolings):
        arguments.refuse("pooling", f"{expected}, each once", pooling, ConfigError)
    if POOLER in poolings and len(poolings) > 1:
        raise ConfigError(f"pooling '{POOLER}' cannot be combined: found {', '.join(poolings)}")
    if POOLER in poolings and config.architecture.pooler is None:
        raise ConfigError(f"{config.family.name} has no pooler: choose another pooling, such as 'mean'")
    return poolings


def _check_widths(width: int, plans: Sequence[DensePlan]) -> None:
    """Raise `ConfigError` if the widths of the dense layers do not match."""
    for index, plan in enumerate(plans):
        arguments.check_choice(plan.activation, "activation of a dense layer", ACTIVATIONS, ConfigError)
        if plan.inputs != width:
            raise ConfigError(f"dense layer {index} has input width {plan.inputs}, but its input has width {width}")
        width = plan.outputs
