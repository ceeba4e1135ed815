"""The sentence embedder: an encoder, a pooling, dense layers on its vector, and perhaps a length of 1."""

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

DENSE = "dense."  # how paths of the dense layers' parameters begin


class BertForSentenceEmbedding(TaskModel):
    """One vector for each text, as sentence-transformers makes it: `sentence_embedding`, `[batch, width]`.

    Args:
        pooling: 'mean' over the real tokens, 'cls' (the first one), 'lasttoken', 'max', 'weightedmean' (weights 1, 2,
            3 ...), 'mean_sqrt_len_tokens' (the sum over the root of their number), or several, whose vectors are joined
            in this order; or 'pooler', the encoder's own.
        normalize: scale the vector to length 1.
        max_length: tokens after which a text is cut, or None for all that the model takes.
        dense: layers between pooling and normalisation, in their order.
        include_prompt: whether sentence-transformers counts a prompt's tokens in the pooling, as bertjax always does:
            where it does not, the checkpoint's tokenizer refuses prompts.

    Raises:
        ConfigError: an unknown pooling, a pooler where the family has none, or dense layers that do not fit.
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
                    own,
                    (plan.inputs, plan.outputs),
                    (plan.outputs,) if plan.bias else None,
                    config.initializer_range,
                    self.numerics,
                )
                for plan, own in zip(plans, jax.random.split(head, len(plans)), strict=True)
            ]
        )

    @property
    def poolings(self) -> tuple[str, ...]:
        """What is joined, in this order."""
        return (self.pooling,) if isinstance(self.pooling, str) else self.pooling

    @property
    def fields_of_first_token(self) -> frozenset[str]:
        """The sentence vector, where it is [CLS]'s or the pooler's."""
        first = self.poolings in (("cls",), (POOLER,))
        return super().fields_of_first_token | ({"sentence_embedding"} if first else set())

    def _tokenize(self, texts: Sequence[str]) -> dict[str, Any]:
        """Texts as a batch, cut where sentence-transformers cuts them."""
        tokenizer = self._own_tokenizer()
        return tokenizer(texts, max_length=self.max_length or tokenizer.max_length)

    def head(self, output: ModelOutput, keep: Float[Array, "batch #query key"]) -> dict[str, Array]:
        """The sentence vector, in wide floats."""
        vectors = pool(output, keep.astype(self.numerics.wide), self.poolings)
        for plan, layer in zip(self.plans, self.dense, strict=True):
            vectors = ACTIVATIONS[plan.activation](layer(vectors))
        return {"sentence_embedding": normalize(vectors) if self.normalize else vectors}

    def _of_file(self) -> dict[str, Array]:
        """The encoder's parameters; those of dense layers lie in files of their own."""
        return {name: value for name, value in self.parameters().items() if not name.startswith(DENSE)}

    @classmethod
    def _read_options(cls, directory: Path) -> dict[str, Any]:
        return read_pooling(directory)

    @classmethod
    def _read_own(cls, directory: Path, options: dict[str, Any]) -> dict[str, np.ndarray]:
        return read_dense_weights(directory, options.get("dense", ()))

    @property
    def _modules(self) -> SentenceModules:
        """What makes its vectors, besides the encoder."""
        return SentenceModules(
            self.config.hidden_size, self.poolings, self.plans, self.normalize, include_prompt=self.include_prompt
        )

    def _names_of_more_files(self) -> list[str]:
        return sentence_file_names(self._modules)

    def _write_more_files(self, directory: Path, tokenizer: Tokenizer | None) -> None:
        """Write what makes its vectors for sentence-transformers, with the tokenizer's prompts."""
        prompt, prompts = ("", {}) if tokenizer is None else (tokenizer.prompt, tokenizer.prompts)
        parameters = {name: np.asarray(value) for name, value in self.parameters().items() if name.startswith(DENSE)}
        text = TextSettings(self.max_length, prompt=prompt, prompts=prompts)
        write_sentence_files(directory, self._modules, parameters, text)


def _check_poolings(config: BertConfig, given: Any) -> tuple[str, ...]:
    """Names of poolings, from one or several."""
    expected = f"one or several of {', '.join(POOLINGS)}"
    poolings = (
        (given,) if isinstance(given, str) else arguments.check_sequence(given, "pooling", expected, str, ConfigError)
    )
    for name in poolings:
        arguments.check_choice(name, "pooling", POOLINGS, ConfigError)
    if not poolings or len(set(poolings)) < len(poolings):
        arguments.refuse("pooling", f"{expected}, each once", given, ConfigError)
    if POOLER in poolings and len(poolings) > 1:
        raise ConfigError(f"pooling '{POOLER}' stands alone: found {', '.join(poolings)}")
    if POOLER in poolings and config.architecture.pooler is None:
        raise ConfigError(f"{config.family.name} has no pooler: choose another pooling, such as 'mean'")
    return poolings


def _check_widths(width: int, plans: Sequence[DensePlan]) -> None:
    """Raise `ConfigError` where a dense layer does not take what comes before it."""
    for number, plan in enumerate(plans):
        arguments.check_choice(plan.activation, "activation of a dense layer", ACTIVATIONS, ConfigError)
        if plan.inputs != width:
            raise ConfigError(f"dense layer {number} takes vectors of {plan.inputs} numbers, but they have {width}")
        width = plan.outputs
