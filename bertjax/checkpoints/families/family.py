"""A family of encoders: keys of its config.json, names of its tensors, and its architecture.

Each family is one file in this package, which holds everything that bertjax knows about the family.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bertjax.checkpoints.architecture import (
    ANSWERS,
    BODY,
    CHOICE,
    SEQUENCE,
    TOKENS,
    WORDS,
    Architecture,
    ConfigFields,
    DropoutRates,
    HeadPlan,
    LayerKind,
)
from bertjax.checkpoints.rules import Rule

AS_IS, TRANSPOSED, INTO_HEADS, HEAD_BIAS, OUT_OF_HEADS = (
    "as is",
    "transposed",
    "into heads",
    "head bias",
    "out of heads",
)


@dataclass(frozen=True)
class TensorEntry:
    """A tensor in HuggingFace's files and the parameter that it holds.

    Args:
        tensor: name of the tensor, with `{layer}` for the layer's index, or `{group}` and `{inner}` for layer groups.
        parameter: path of the parameter, with `{layer}` for the index of the parameter set.
        layout: layout of the tensor.
        part: rows of the tensor, as (index, number of equal parts); None for all rows.
    """

    tensor: str
    parameter: str
    layout: str = AS_IS
    part: tuple[int, int] | None = None


def linear(
    tensor: str, parameter: str, kernel: str = TRANSPOSED, bias: str = AS_IS, *, part: tuple[int, int] | None = None
) -> tuple[TensorEntry, TensorEntry]:
    """Entries of a kernel and a bias."""
    return (
        TensorEntry(f"{tensor}.weight", f"{parameter}.kernel", kernel, part),
        TensorEntry(f"{tensor}.bias", f"{parameter}.bias", bias, part),
    )


def norm(tensor: str, parameter: str) -> tuple[TensorEntry, TensorEntry]:
    """Entries of the scale and bias of a norm."""
    return TensorEntry(f"{tensor}.weight", f"{parameter}.scale"), TensorEntry(f"{tensor}.bias", f"{parameter}.bias")


@dataclass(frozen=True)
class LayerTensors:
    """Names of the tensors of a post-norm layer, without the layer's prefix; the defaults are BERT's."""

    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    intermediate: str = "intermediate.dense"
    mlp: str = "output.dense"
    output_norm: str = "output.LayerNorm"

    def entries(self, prefix: str) -> tuple[TensorEntry, ...]:
        """Entries of all tensors of a layer.

        Args:
            prefix: prefix of the layer's tensors, such as 'bert.encoder.layer.{layer}'.
        """
        ours = "bert.encoder.layers.{layer}"
        projections = (("query", self.query), ("key", self.key), ("value", self.value))
        return (
            *(
                entry
                for name, tensor in projections
                for entry in linear(f"{prefix}.{tensor}", f"{ours}.attention.{name}", INTO_HEADS, HEAD_BIAS)
            ),
            *linear(f"{prefix}.{self.output}", f"{ours}.attention.output", OUT_OF_HEADS),
            *norm(f"{prefix}.{self.attention_norm}", f"{ours}.attention_norm"),
            *linear(f"{prefix}.{self.intermediate}", f"{ours}.intermediate"),
            *linear(f"{prefix}.{self.mlp}", f"{ours}.output"),
            *norm(f"{prefix}.{self.output_norm}", f"{ours}.output_norm"),
        )


def embedding_entries(prefix: str, *, token_types: bool = True) -> tuple[TensorEntry, ...]:
    """Entries of the embedding tables and norm, under the names that most families use."""
    tables = {"word_embeddings": "word", "position_embeddings": "position"}
    tables |= {"token_type_embeddings": "token_type"} if token_types else {}
    rows = (
        TensorEntry(f"{prefix}.embeddings.{theirs}.weight", f"bert.embeddings.{ours}")
        for theirs, ours in tables.items()
    )
    return (*rows, *norm(f"{prefix}.embeddings.LayerNorm", "bert.embeddings.norm"))


@dataclass(frozen=True)
class Head:
    """A task head in the files of a family.

    Args:
        architecture: class of transformers, as in `architectures` of config.json.
        entries: tensors of the head.
        decoder: tensor of the decoder that may be tied to the word embeddings, or None.
        decoder_bias: second name under which files hold the bias of the logits.
        renamed: prefixes of tensor names that other programs use, with the prefixes used here.
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
        default: value if the key is missing, as in transformers.
        rule: allowed values.
        is_rate: whether it is a dropout rate.
    """

    default: Any
    rule: Rule
    is_rate: bool = False


@dataclass(frozen=True)
class Family:
    """A family of encoders.

    Args:
        model_type: HuggingFace's name in config.json.
        name: name for error messages.
        prefix: prefix of the encoder's tensors in files with a head.
        describe: makes the architecture of a config.
        body: tensors of the encoder.
        heads: task heads, and the encoder without a head under `BODY`.
        keys: keys in config.json of `BertConfig`'s fields, if they have other names there.
        absent: fixed values of the fields for which config.json has no key.
        defaults: defaults of fields that differ from BERT's.
        settings: keys that only this family has.
        harmless: keys that change nothing.
        harmless_only_at: keys that change nothing at these values, and are refused at any other value.
        read: converts an older or newer form of config.json to the keys above.
        write: the inverse of `read`.
        leftovers: patterns of unused tensors in files.
        groups: if layers share parameters by group: the settings with the number of groups and of layers in a group.
        check: raises `ConfigError` if the values of a config do not fit together.
    """

    model_type: str
    name: str
    prefix: str
    describe: Callable[[ConfigFields], Architecture]
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
    check: Callable[[ConfigFields], None] = lambda config: None

    def key_of(self, name: str) -> str:
        """The key in config.json of a field of `BertConfig`."""
        return self.keys.get(name, name)


def layer_kind(config: ConfigFields, **changes: Any) -> LayerKind:
    """BERT's kind of layer, with changes."""
    scale = float(config.head_dim**-0.5)
    return replace(LayerKind(config.hidden_act, config.layer_norm_eps, scale), **changes)


def dropout_rates(config: ConfigFields, **changes: int | float) -> DropoutRates:
    """BERT's dropout rates, with changes."""
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
    """Plans of the heads that all families have.

    Args:
        sequence: plan of sequence classification.
        words: activation of the masked-LM head.
        choice: plan of multiple choice, if it differs from that of sequence classification.
    """
    return {
        SEQUENCE: sequence,
        TOKENS: HeadPlan("tokens"),
        ANSWERS: HeadPlan("tokens", labels=2),
        WORDS: HeadPlan("tokens", words, norm=True),
        CHOICE: replace(choice or sequence, labels=1),
    }


CLASSIFIER = linear("classifier", "classifier")
"""A linear classifier."""
TWO_STEPS = (*linear("classifier.dense", "transform.dense"), *linear("classifier.out_proj", "classifier"))
"""A classifier with a dense layer before it, as in RoBERTa."""
# Tensors of the masked-LM head, as arguments of `words_head`: BERT's names and RoBERTa's.
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
        architecture: class of transformers.
        dense: prefix of the tensors of the dense layer.
        layer_norm: prefix of the tensors of the norm.
        decoder: prefix of the tensors of the decoder.
        bias: tensor of the bias of the logits, if it is not `decoder.bias`.
        more: tensors of a further head in the same class.
        renamed: new names of tensors, as in `Head`.
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


def common_heads(
    classes: str,
    words: Sequence[str],
    *,
    sequence: tuple[TensorEntry, ...] = CLASSIFIER,
    tokens: tuple[TensorEntry, ...] = CLASSIFIER,
    answers: tuple[TensorEntry, ...] = linear("qa_outputs", "qa_outputs"),
    choice: tuple[TensorEntry, ...] = CLASSIFIER,
    renamed: Mapping[str, str] | None = None,
) -> dict[str, Head]:
    """The encoder without a head and the heads that all families have.

    Args:
        classes: prefix of transformers' classes, such as 'Bert'.
        words: tensors of the masked-LM head, as arguments of `words_head`.
        sequence: tensors of the head for sequence classification.
        tokens: tensors of the head for token classification.
        answers: tensors of the head for question answering.
        choice: tensors of the head for multiple choice.
        renamed: renamed tensors of the masked-LM head.
    """
    return {
        BODY: Head(f"{classes}Model"),
        SEQUENCE: Head(f"{classes}ForSequenceClassification", sequence),
        WORDS: words_head(f"{classes}ForMaskedLM", *words, renamed=renamed),
        TOKENS: Head(f"{classes}ForTokenClassification", tokens),
        ANSWERS: Head(f"{classes}ForQuestionAnswering", answers),
        CHOICE: Head(f"{classes}ForMultipleChoice", choice),
    }
