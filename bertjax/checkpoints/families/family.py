"""What a family of encoders is: its config's keys, its tensors' names both ways, and its description.

A family is one file beside this one, and all that bertjax knows of it stands there.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from bertjax.checkpoints.architecture import (
    ANSWERS,
    CHOICE,
    SEQUENCE,
    TOKENS,
    WORDS,
    Architecture,
    DropoutRates,
    HeadPlan,
    LayerKind,
)

AS_IS, TRANSPOSED, INTO_HEADS, HEAD_BIAS, OUT_OF_HEADS = (
    "as is",
    "transposed",
    "into heads",
    "head bias",
    "out of heads",
)


@runtime_checkable
class Config(Protocol):
    """What a description is made of: `BertConfig` is one."""

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states."""

    @property
    def embedding_size(self) -> int:
        """Width of the embeddings' tables."""

    @property
    def head_dim(self) -> int:
        """Width of a head."""

    @property
    def num_hidden_layers(self) -> int:
        """Applications of a layer."""

    @property
    def hidden_act(self) -> str:
        """The feed-forward layer's activation."""

    @property
    def layer_norm_eps(self) -> float:
        """Of the norms."""

    @property
    def type_vocab_size(self) -> int:
        """Segments."""

    @property
    def max_position_embeddings(self) -> int:
        """Rows of the position table, or the longest text."""

    @property
    def pad_token_id(self) -> int | None:
        """The padding's token."""

    @property
    def hidden_dropout_prob(self) -> float:
        """Of hidden states."""

    @property
    def attention_probs_dropout_prob(self) -> float:
        """Of attention weights."""

    @property
    def classifier_dropout(self) -> float | None:
        """Before the classifier; None for that of hidden states."""

    @property
    def own(self) -> Mapping[str, Any]:
        """The family's own settings."""


@dataclass(frozen=True)
class TensorEntry:
    """A tensor's name in HuggingFace's files, the path of its parameter, and its layout in the file.

    Args:
        tensor: name, with `{layer}` where a layer's number stands, or `{group}` and `{inner}` for groups of layers.
        parameter: path, with `{layer}` for the number of the set of parameters.
        layout: how the file has it.
        part: which rows of the tensor, as (number, of how many equal parts); None for all.
    """

    tensor: str
    parameter: str
    layout: str = AS_IS
    part: tuple[int, int] | None = None


def linear(
    tensor: str, parameter: str, kernel: str = TRANSPOSED, bias: str = AS_IS, *, part: tuple[int, int] | None = None
) -> tuple[TensorEntry, TensorEntry]:
    """A kernel and a bias."""
    return (
        TensorEntry(f"{tensor}.weight", f"{parameter}.kernel", kernel, part),
        TensorEntry(f"{tensor}.bias", f"{parameter}.bias", bias, part),
    )


def norm(tensor: str, parameter: str) -> tuple[TensorEntry, TensorEntry]:
    """Scale and bias of a norm."""
    return TensorEntry(f"{tensor}.weight", f"{parameter}.scale"), TensorEntry(f"{tensor}.bias", f"{parameter}.bias")


@dataclass(frozen=True)
class LayerTensors:
    """The names of a layer's tensors, each without its layer's own beginning, as post-norm families have them."""

    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    intermediate: str = "intermediate.dense"
    mlp: str = "output.dense"
    output_norm: str = "output.LayerNorm"

    def entries(self, beginning: str) -> tuple[TensorEntry, ...]:
        """Rows of the table.

        Args:
            beginning: of a layer's tensors, such as 'bert.encoder.layer.{layer}'.
        """
        ours = "bert.encoder.layers.{layer}"
        projections = (("query", self.query), ("key", self.key), ("value", self.value))
        return (
            *(
                entry
                for name, tensor in projections
                for entry in linear(f"{beginning}.{tensor}", f"{ours}.attention.{name}", INTO_HEADS, HEAD_BIAS)
            ),
            *linear(f"{beginning}.{self.output}", f"{ours}.attention.output", OUT_OF_HEADS),
            *norm(f"{beginning}.{self.attention_norm}", f"{ours}.attention_norm"),
            *linear(f"{beginning}.{self.intermediate}", f"{ours}.intermediate"),
            *linear(f"{beginning}.{self.mlp}", f"{ours}.output"),
            *norm(f"{beginning}.{self.output_norm}", f"{ours}.output_norm"),
        )


def embedding_entries(prefix: str, *, positions: bool = True, token_types: bool = True) -> tuple[TensorEntry, ...]:
    """The embeddings' tables and norm, as most families name them."""
    tables = {"word_embeddings": "word"}
    tables |= {"position_embeddings": "position"} if positions else {}
    tables |= {"token_type_embeddings": "token_type"} if token_types else {}
    rows = (
        TensorEntry(f"{prefix}.embeddings.{theirs}.weight", f"bert.embeddings.{ours}")
        for theirs, ours in tables.items()
    )
    return (*rows, *norm(f"{prefix}.embeddings.LayerNorm", "bert.embeddings.norm"))


@dataclass(frozen=True)
class Head:
    """A task's head in a family's files.

    Args:
        architecture: transformers' class, as `architectures` in config.json names it.
        entries: its tensors.
        decoder: tensor of the decoder that may be tied to the word embeddings, or None.
        decoder_bias: a second name under which files hold the bias that is added to the logits.
        renamed: beginnings of names that other programs give these tensors, with ours.
    """

    architecture: str
    entries: tuple[TensorEntry, ...] = ()
    decoder: str | None = None
    decoder_bias: str | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """A key of config.json that only one family has.

    Args:
        default: where the file says nothing, as in transformers.
        fits: whether a value is one.
        expected: what it must be, in words.
        is_rate: whether it is a share of units dropped in training.
    """

    default: Any
    fits: Callable[[Any], bool]
    expected: str
    is_rate: bool = False


def whole(default: int, least: int = 1) -> Setting:
    """A whole number."""
    return Setting(default, lambda value: is_whole(value) and value >= least, f"a whole number of at least {least}")


def switch(default: bool) -> Setting:
    """True or false."""
    return Setting(default, lambda value: isinstance(value, bool), "true or false")


def rate(default: float | None) -> Setting:
    """A share of dropped units; null where the default is."""
    expected = "a number from 0 to 1" + (" or null" if default is None else "")
    return Setting(default, lambda value: (value is None and default is None) or _is_share(value), expected, True)


def positive(default: float) -> Setting:
    """A positive number."""
    return Setting(default, lambda value: is_number(value) and 0 < value < math.inf, "a positive number")


def one_of(default: Any, *choices: Any) -> Setting:
    """One of some values, the default among them."""
    allowed = (default, *(choice for choice in choices if choice != default))
    words = f"one of {', '.join(map(repr, allowed))}"
    return Setting(default, lambda value: any(value is item or value == item for item in allowed), words)


def is_whole(value: Any) -> bool:
    """Whether something is a whole number, and not true or false."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether something is a number that floats can hold, and not true or false."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_share(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1


@dataclass(frozen=True)
class Family:
    """A family of encoders.

    Args:
        model_type: HuggingFace's name in config.json.
        name: as people write it, for messages.
        prefix: of the encoder's tensors where a head is beside them.
        describe: makes the description of a config.
        body: the encoder's tensors.
        heads: the tasks' heads, and the encoder alone under `BODY`.
        keys: keys in config.json of `BertConfig`'s fields, where they are called otherwise.
        absent: fields that this family's config has no key for, with what they are.
        defaults: of fields, where they are not BERT's.
        settings: keys of the family's own.
        harmless: keys that change nothing.
        harmless_only_at: keys that change nothing at these values, and are refused at any other.
        read: makes a config.json of an older or newer form one with the keys above.
        write: the other way.
        leftovers: tensors that files may hold and nobody reads, as patterns.
        groups: names of the settings that say how many groups of layers there are, and how many layers each has, where
            layers share parameters by group.
        check: raises `ConfigError` where a config's values do not fit together.
    """

    model_type: str
    name: str
    prefix: str
    describe: Callable[[Config], Architecture]
    body: tuple[TensorEntry, ...]
    heads: Mapping[str, Head]
    keys: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, Any] = field(default_factory=lambda: {"embedding_size": None})
    defaults: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Setting] = field(default_factory=dict)
    harmless: frozenset[str] = frozenset()
    harmless_only_at: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    read: Callable[[dict[str, Any]], dict[str, Any]] = lambda mapping: mapping
    write: Callable[[dict[str, Any]], dict[str, Any]] = lambda mapping: mapping
    leftovers: tuple[str, ...] = ()
    groups: tuple[str, str] | None = None
    check: Callable[[Config], None] = lambda config: None

    def key_of(self, name: str) -> str:
        """The key in config.json of a field of `BertConfig`."""
        return self.keys.get(name, name)


def layer_kind(config: Config, **changes: Any) -> LayerKind:
    """A layer of BERT's form with what a family changes."""
    scale = float(config.head_dim**-0.5)
    return replace(LayerKind(config.hidden_act, config.layer_norm_eps, scale), **changes)


def dropout_rates(config: Config, **changes: int | float) -> DropoutRates:
    """Dropout where BERT has it, with what a family changes."""
    hidden, before_classifier = config.hidden_dropout_prob, config.classifier_dropout
    rates = DropoutRates(
        embeddings=hidden,
        weights=config.attention_probs_dropout_prob,
        attended=hidden,
        mlp=hidden,
        head_output=hidden if before_classifier is None else before_classifier,
    )
    return replace(rates, **{name: float(rate) for name, rate in changes.items()})


def head_plans(sequence: HeadPlan, words: str, *, choice: HeadPlan | None = None) -> dict[str, HeadPlan]:
    """The heads that every family has.

    Args:
        sequence: of sequence classification.
        words: activation of the masked-LM head.
        choice: of multiple choice, where it is not that of sequence classification.
    """
    return {
        SEQUENCE: sequence,
        TOKENS: HeadPlan("tokens"),
        ANSWERS: HeadPlan("tokens", labels=2),
        WORDS: HeadPlan("tokens", words, norm=True),
        CHOICE: replace(choice or sequence, labels=1),
    }


CLASSIFIER = linear("classifier", "classifier")
"""A head of one linear map."""
TWO_STEPS = (*linear("classifier.dense", "transform.dense"), *linear("classifier.out_proj", "classifier"))
"""A head of two, as RoBERTa's."""
# The masked-LM head's tensors, as `words_head` takes them, under BERT's names and under RoBERTa's.
BERTS_WORDS = (
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.decoder",
    "cls.predictions.bias",
)
ROBERTAS_WORDS = ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias")


def words_head(
    architecture: str,
    dense: str,
    layer_norm: str,
    decoder: str,
    bias: str | None = None,
    *,
    more: tuple[TensorEntry, ...] = (),
    renamed: Mapping[str, str] | None = None,
) -> Head:
    """A masked-LM head: dense, norm, and a decoder that may be tied to the word embeddings.

    Args:
        architecture: transformers' class.
        dense, layer_norm, decoder: beginnings of their tensors' names.
        bias: tensor that is added to the logits, where it is not the decoder's own.
        more: tensors of a further head beside it.
        renamed: as for `Head`.
    """
    own = f"{decoder}.bias"
    entries = (
        *linear(dense, "predictions.transform"),
        *norm(layer_norm, "predictions.norm"),
        TensorEntry(f"{decoder}.weight", "predictions.decoder"),
        TensorEntry(bias or own, "predictions.bias"),
    )
    second_name = None if bias is None else own
    return Head(architecture, (*entries, *more), f"{decoder}.weight", second_name, renamed or {})
