"""The configuration of an encoder, read from HuggingFace's config.json.

A key of config.json that bertjax ignored could change the numbers silently. So each key is read into a field of
`BertConfig`, listed as harmless (here or in the family's file), or refused with an error that names it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from bertjax import arguments
from bertjax.checkpoints.architecture import ACTIVATIONS, Architecture, ConfigFields, FrozenDict, numbered_labels
from bertjax.checkpoints.families import FAMILIES, Family
from bertjax.checkpoints.pruned_heads import check_shared_heads, read_heads, read_pruned
from bertjax.checkpoints.rules import (
    FLAG,
    FRACTION,
    INTEGER,
    NOT_NEGATIVE,
    POSITIVE,
    Rule,
    integer,
    is_integer,
    one_of,
    optional,
)
from bertjax.checkpoints.sentence_transformers import TORCH_ACTIVATIONS, activation_of, read_score_activation
from bertjax.errors import ConfigError, error_prefix, some_of
from bertjax.json_files import read_json
from bertjax.paths import is_directory, is_there, user_path

# A label name is made for each, so a nonsensical number must not fill the memory.
LABEL_COUNT = integer(1, 100_000)

# Without a model_type, only these keys identify a BERT's config.json.
_IDENTIFYING = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")

# Allowed values of fields; `type_vocab_size` is checked by family.
_RULES: dict[str, Rule] = {
    **dict.fromkeys((*_IDENTIFYING, "intermediate_size", "max_position_embeddings", "embedding_size"), INTEGER),
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), FRACTION),
    "classifier_dropout": optional(FRACTION),
    "initializer_range": NOT_NEGATIVE,
    "layer_norm_eps": POSITIVE,
    "hidden_act": one_of(*ACTIVATIONS),
    "problem_type": one_of(None, "regression", "single_label_classification", "multi_label_classification"),
    "score_activation": one_of(None, *TORCH_ACTIVATIONS),
    "tie_word_embeddings": FLAG,
}
_FLOATS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "layer_norm_eps")

# Keys that change nothing at these values, and are refused at any other value.
_HARMLESS_ONLY_AT: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "is_encoder_decoder": (False, None),
    "tie_encoder_decoder": (False, None),
    "cross_attention_hidden_size": (None,),
    "quantization_config": (None,),
    "per_layer_config": ({}, None),
    "auto_map": ({}, None),  # Python code of the checkpoint, which may compute anything
}

# Keys that never change what an encoder computes, by subject.
_HARMLESS_BY_SUBJECT = {
    "where the file comes from": """
        _name_or_path name_or_path name _commit_hash transformers_version transformers.js_config language
        model_name finetuning_task task_specific_params total_flos base_model_prefix custom_pipelines
        is_composition""",
    "how PyTorch stores, runs or returns the same numbers": """
        torch_dtype dtype use_bfloat16 torchscript xla_device gradient_checkpointing chunk_size_feed_forward
        use_cache output_past output_attentions output_hidden_states return_dict tie_last_hidden_states
        attn_implementation _attn_implementation _attn_implementation_internal _attn_implementation_autoset
        _flash_attn_2_enabled experts_implementation _experts_implementation _experts_implementation_internal
        tf_legacy_loss loss_type _num_labels""",
    "tokens, for tokenizers and generation": """
        tokenizer_class do_lower_case prefix bos_token_id eos_token_id eos_token_ids sep_token_id cls_token_id
        mask_token_id unk_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id""",
    "generation, which an encoder does not do": """
        max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature
        top_k top_p min_p typical_p epsilon_cutoff eta_cutoff repetition_penalty encoder_repetition_penalty
        length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences
        output_scores return_dict_in_generate remove_invalid_values exponential_decay_length_penalty
        suppress_tokens begin_suppress_tokens num_assistant_tokens num_assistant_tokens_schedule
        assistant_confidence_threshold assistant_lookbehind target_lookbehind""",
}
_HARMLESS = frozenset(" ".join(_HARMLESS_BY_SUBJECT.values()).split())

# Where sentence-transformers stores the activation of a cross-encoder's score: since version 4, and before.
_SCORE_KEYS = ("sentence_transformers", "sbert_ce_default_activation_function")


@dataclass(frozen=True)
class BertConfig(ConfigFields):
    """Sizes and settings of an encoder, with HuggingFace's names and the defaults of BERT-base.

    Frozen and hashable, so that it can be a static argument of `jax.jit`; `id2label` is an immutable mapping. All
    families share these field names. Use `from_dict` for another family than BERT: it applies the family's names and
    defaults.

    Args:
        vocab_size: number of tokens in the vocabulary.
        hidden_size: width of the hidden states.
        model_type: HuggingFace's name of the family.
        embedding_size: width of the embedding tables; None for `hidden_size`.
        num_hidden_layers: number of layer applications, whether or not layers share parameters.
        num_attention_heads: number of heads in each layer; it divides `hidden_size`.
        intermediate_size: width of the feed-forward layers.
        hidden_act: activation of the feed-forward layers, such as 'gelu'.
        hidden_dropout_prob: dropout rate of hidden states in training.
        attention_probs_dropout_prob: dropout rate of attention weights in training.
        classifier_dropout: dropout rate before the task head; None for `hidden_dropout_prob`.
        max_position_embeddings: number of rows of the position table.
        type_vocab_size: number of token types (segments).
        initializer_range: standard deviation of initial weights.
        layer_norm_eps: epsilon of the layer norms.
        pad_token_id: token id of padding; None if the vocabulary has none.
        tie_word_embeddings: whether the decoder of masked words shares the word embeddings.
        id2label: name of each label, by its index.
        problem_type: loss of a classifier in `transformers`, such as 'regression'; None if the file names none.
        architectures: names of the model classes in the file.
        own: settings that only this family has, under HuggingFace's names; missing ones get the family's defaults.
        score_activation: activation that a cross-encoder of sentence-transformers applies to its logits, such as
            'identity' or 'sigmoid'; None if the files name none.
        pruned_heads: heads without weights, as pairs of a layer and its heads.

    Raises:
        ConfigError: a value has the wrong type or is out of range, or sizes do not fit together.

    >>> config = BertConfig(hidden_size=24, num_attention_heads=3)
    >>> config.head_dim, config.num_labels
    (8, 2)
    """

    def __post_init__(self) -> None:
        for name, value in _checked(vars(self)).items():
            object.__setattr__(self, name, value)
        self.family.check(self)
        if self.pruned_heads:
            check_shared_heads(self.architecture)

    @property
    def family(self) -> Family:
        """The family, with its names of keys and tensors."""
        return FAMILIES[self.model_type]

    @property
    def architecture(self) -> Architecture:
        """Description of what the encoder computes."""
        return _describe(self)

    def heads_of(self, layer: int) -> tuple[int, ...]:
        """Heads of a layer, by their indices in the model before any heads were removed.

        Args:
            layer: index of the layer, from 0.

        >>> BertConfig(num_attention_heads=3, hidden_size=6, pruned_heads=((1, (0,)),)).heads_of(1)
        (1, 2)
        """
        return self.architecture.layers[layer].heads

    def without_heads(self, heads: Iterable[str | tuple[int, int]]) -> "BertConfig":
        """Return the same config with more heads removed.

        Args:
            heads: names or (layer, head) pairs, such as ["3.0", (2, 7)].

        Raises:
            ConfigError: not a list of heads, a head does not exist, or layers that share weights would differ.

        >>> BertConfig().without_heads([(3, 0)]).heads_of(3)[0]
        1
        """
        removed = {layer: {*pruned} for layer, pruned in self.pruned_heads}
        for layer, head in read_heads(heads):
            removed.setdefault(layer, set()).add(head)
        pruned = tuple((layer, tuple(sorted(indices))) for layer, indices in sorted(removed.items()))
        return replace(self, pruned_heads=pruned)

    @property
    def parameter_sets(self) -> int:
        """Number of layers that have their own parameters."""
        groups = self.family.groups
        return self.num_hidden_layers if groups is None else self.own[groups[0]] * self.own[groups[1]]

    @property
    def max_tokens(self) -> int:
        """Longest input in tokens: 512 for RoBERTa's 514 positions."""
        return self.max_position_embeddings - self.architecture.embeddings.first_position

    @property
    def num_labels(self) -> int:
        """Number of labels of a classification head."""
        return len(self.id2label)

    @property
    def label2id(self) -> dict[str, int]:
        """Index of each label by its name."""
        return {name: index for index, name in self.id2label.items()}

    def with_dropout(self, rate: float) -> "BertConfig":
        """Return the same config with this dropout rate wherever the family applies dropout in training.

        Args:
            rate: dropout rate, from 0 to 1.

        Raises:
            ConfigError: not a number from 0 to 1.

        >>> BertConfig().with_dropout(0.3).hidden_dropout_prob
        0.3
        """
        names = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
        usual = _defaults(self.family)
        rates: dict[str, Any] = {
            name: rate for name in names if name not in self.family.absent and usual[name] is not None
        }
        own = {name: rate for name, setting in self.family.settings.items() if setting.is_rate}
        return replace(self, **({"classifier_dropout": None} | rates), own={**self.own, **own})

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> "BertConfig":
        """Make a config from the content of a config.json; keys that bertjax does not understand are refused.

        `id2label` takes precedence over `label2id`, as in HuggingFace. `num_labels` takes precedence over an `id2label`
        that holds only the two placeholders that transformers 2 wrote.

        Args:
            mapping: the JSON object, or `to_dict()` of a HuggingFace config.

        Returns:
            The config; missing keys get HuggingFace's defaults.

        Raises:
            ConfigError: a key or value is unknown, unsupported or invalid.

        >>> BertConfig.from_dict({"model_type": "bert", "hidden_size": 96}).head_dim
        8
        >>> BertConfig.from_dict({"model_type": "distilbert", "dim": 96, "n_layers": 2}).hidden_size
        96
        """
        arguments.check_instance(mapping, "a configuration", Mapping, "a dict like that of config.json", ConfigError)
        family = _family_of(mapping)
        values = _defaults(family)
        keyed = (name for name in values if name not in (*family.absent, "score_activation"))
        fields_by_key = {family.key_of(name): name for name in keyed}
        own = {}
        for key, value in family.read(dict(mapping)).items():
            if key in fields_by_key:
                values[fields_by_key[key]] = value
            elif key in family.settings:
                own[key] = value
            elif key not in ("model_type", "label2id", "num_labels", *_SCORE_KEYS):
                _check_harmless(family, key, value)
        values["id2label"] = _labels(mapping)
        values["score_activation"] = _score_activation(mapping)
        values["architectures"] = _architectures(mapping.get("architectures"))
        return cls(**_checked(values | {"model_type": family.model_type, "own": own}))

    @classmethod
    def from_directory(cls, directory: str | Path) -> "BertConfig":
        """`from_dict` of the config.json in a model directory, with the score activation of a cross-encoder.

        Args:
            directory: the directory with `config.json`.

        Raises:
            ConfigError: as `from_dict`, or config.json is missing, cannot be read, or holds no JSON object.
        """
        directory = user_path(directory, ConfigError)
        path = directory / "config.json"
        if not is_there(path, ConfigError) and is_directory(directory, ConfigError):
            raise ConfigError(f"{directory}: has no config.json; give the directory of a HuggingFace model")
        mapping = read_json(path, ConfigError)
        with error_prefix(f"{path}: "):
            config = cls.from_dict(mapping)
        activation = read_score_activation(directory)
        return config if activation is None else replace(config, score_activation=activation)

    def to_dict(self) -> dict[str, Any]:
        """The content of a config.json, which `from_dict` and transformers read as an equal config.

        >>> BertConfig.from_dict(BertConfig().to_dict()) == BertConfig()
        True
        """
        family = self.family
        elsewhere = ("model_type", "own", "score_activation", "pruned_heads")
        names = (field.name for field in fields(self) if field.name not in (*family.absent, *elsewhere))
        values = {family.key_of(name): getattr(self, name) for name in names} | dict(self.own)
        values["id2label"] = {str(index): name for index, name in self.id2label.items()}
        values["architectures"] = list(self.architectures) or None
        if self.pruned_heads:
            values["pruned_heads"] = {str(layer): list(heads) for layer, heads in self.pruned_heads}
        if self.score_activation is not None:
            values["sentence_transformers"] = {"activation_fn": TORCH_ACTIVATIONS[self.score_activation]}
        return {"model_type": self.model_type, **family.write(values), "label2id": self.label2id}


@lru_cache(maxsize=64)
def _describe(config: BertConfig) -> Architecture:
    plan = config.family.describe(config)
    indices, removed = range(config.num_attention_heads), dict(config.pruned_heads)
    heads = [tuple(head for head in indices if head not in removed.get(n, ())) for n in range(len(plan.layers))]
    layers = [replace(kind, heads=kept) for kind, kept in zip(plan.layers, heads, strict=True)]
    return replace(plan, layers=tuple(layers))


_DEFAULTS = {field.name: field.default for field in fields(ConfigFields)}


def _defaults(family: Family) -> dict[str, Any]:
    """Values of the fields that a family's config.json does not state."""
    return {**_DEFAULTS, **family.defaults, **family.absent}


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """The checked values of a config's fields, in the types of the fields."""
    if values["model_type"] not in FAMILIES:
        raise _unknown_family(values["model_type"])
    family = FAMILIES[values["model_type"]]
    values = values | _without_key(values, family)
    if values["classifier_dropout"] is None and _defaults(family)["classifier_dropout"] is not None:
        values["classifier_dropout"] = values["hidden_dropout_prob"]  # transformers accepts no null there
    if values["embedding_size"] is None:
        values["embedding_size"] = values["hidden_size"]
    values["own"] = _own_settings(family, values["own"])
    no_types = 0 in (family.absent.get("type_vocab_size"), family.defaults.get("type_vocab_size"))
    for name, rule in {**_RULES, "type_vocab_size": integer(0 if no_types else 1)}.items():
        rule.check(values[name], family.key_of(name))
    _check_sizes(values, family)
    sizes = values["num_hidden_layers"], values["num_attention_heads"]
    values["pruned_heads"] = read_pruned(values["pruned_heads"], *sizes)
    values["id2label"] = _check_labels(values["id2label"])
    names = values["architectures"]
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"architectures must be a tuple of class names, found {arguments.brief(names)}")
    rate = values["classifier_dropout"]
    floats = {name: float(values[name]) for name in _FLOATS}  # JSON writes 0 for 0.0
    return values | floats | {"classifier_dropout": None if rate is None else float(rate)}


def _without_key(values: dict[str, Any], family: Family) -> dict[str, Any]:
    """The fixed values of fields for which a family's config.json has no key.

    BERT's default counts as unset. So does any embedding width, which follows that of the hidden states.
    """
    for name, value in family.absent.items():
        if name != "embedding_size" and values[name] not in (None, value, _DEFAULTS[name]):
            raise ConfigError(f"{family.name} has no {name}, found {arguments.brief(values[name])}")
    return dict(family.absent)


def _own_settings(family: Family, settings: Any) -> FrozenDict[str, Any]:
    """All settings that only this family has, checked and completed."""
    if not isinstance(settings, Mapping) or (unknown := [name for name in settings if name not in family.settings]):
        found = (
            arguments.brief(settings) if not isinstance(settings, Mapping) else some_of([str(name) for name in unknown])
        )
        raise ConfigError(f"own must hold only {', '.join(family.settings) or 'nothing'} for {family.name}: {found}")
    values = {name: settings.get(name, setting.default) for name, setting in family.settings.items()}
    for name, setting in family.settings.items():
        setting.rule.check(values[name], name)
    return FrozenDict(values)


def _check_sizes(values: dict[str, Any], family: Family) -> None:
    width, heads = values["hidden_size"], values["num_attention_heads"]
    if width % heads:
        names = [family.key_of(name) for name in ("hidden_size", "num_attention_heads")]
        raise ConfigError(f"{names[0]} {width} is not divisible by {names[1]} {heads}")
    pad, limit = values["pad_token_id"], values["vocab_size"]
    if pad is not None and not (is_integer(pad) and 0 <= pad < limit):
        raise ConfigError(f"pad_token_id must be a token id below vocab_size {limit}, found {arguments.brief(pad)}")


def _check_labels(labels: Any) -> FrozenDict[int, str]:
    if not isinstance(labels, Mapping):
        raise ConfigError(f"id2label must be a dict of names by index, found {arguments.brief(labels)}")
    if not labels or not all(map(is_integer, labels)) or list(labels) != list(range(len(labels))):
        raise ConfigError(f"id2label must have the keys 0, 1, 2 ..., found {arguments.brief(labels)}")
    if not all(isinstance(name, str) for name in labels.values()):
        raise ConfigError(f"id2label must map each index to a string, found {arguments.brief(labels)}")
    return FrozenDict(labels)


def _family_of(mapping: Mapping[str, Any]) -> Family:
    """The family that a config.json names; old files of BERT name none."""
    model_type = mapping.get("model_type")
    if model_type is None:
        missing = [key for key in _IDENTIFYING if key not in mapping]
        if missing:
            raise ConfigError(f"has neither model_type nor {missing[0]}: this is not the configuration of a BERT")
        return FAMILIES["bert"]
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise _unknown_family(model_type)
    return FAMILIES[model_type]


def _unknown_family(model_type: Any) -> ConfigError:
    return ConfigError(f"model_type is {arguments.brief(model_type)}; bertjax loads only {', '.join(FAMILIES)}")


def _check_harmless(family: Family, key: str, value: Any) -> None:
    harmless_only_at = {**_HARMLESS_ONLY_AT, **family.harmless_only_at}
    if key in harmless_only_at:
        allowed = harmless_only_at[key]
        if value not in allowed:
            raise ConfigError(f"{key} is {arguments.brief(value)}; bertjax supports only {allowed[0]!r}")
    elif key not in _HARMLESS | family.harmless:
        raise ConfigError(
            f"bertjax does not know the key {key!r} (value {arguments.brief(value)}), which may change the model; "
            "remove it from config.json if it does not"
        )


def _architectures(value: Any) -> tuple[Any, ...]:
    if value is not None and not isinstance(value, list | tuple):
        raise ConfigError(f"architectures must be a list of names, found {arguments.brief(value)}")
    return tuple(value or ())


def _score_activation(mapping: Mapping[str, Any]) -> str | None:
    """bertjax's name of the activation of a cross-encoder's score; the newer key takes precedence."""
    newer, older = _SCORE_KEYS
    settings = mapping.get(newer) if mapping.get(newer) is not None else {}
    if not isinstance(settings, Mapping) or settings.keys() - {"activation_fn", "version"}:
        raise ConfigError(f"{newer} must be a dict of activation_fn and version, found {arguments.brief(settings)}")
    key = newer if "activation_fn" in settings else older
    with error_prefix(f"{key} "):
        return activation_of(settings.get("activation_fn", mapping.get(older)))


def _labels(mapping: Mapping[str, Any]) -> Mapping[int, Any]:
    """Names of labels from `id2label`, `label2id`, `num_labels` and its old private form."""
    names, count = _label_names(mapping, "id2label"), mapping.get("num_labels")
    if names is None and count is None:
        names = _label_names(mapping, "label2id")
        count = mapping.get("_num_labels") if names is None else None
    if count is None:
        return numbered_labels(2) if names is None else names
    LABEL_COUNT.check(count, "num_labels")
    if names is None or names == numbered_labels(2):
        return numbered_labels(count)
    if len(names) != count:
        raise ConfigError(f"num_labels is {count}, but id2label has {len(names)} labels")
    return names


def _label_names(mapping: Mapping[str, Any], key: str) -> Mapping[int, Any] | None:
    """Names by index, in order; None if the key is missing. JSON's keys are strings, so indices may be strings."""
    table = mapping.get(key)
    if table is None:
        return None
    if not isinstance(table, Mapping):
        raise ConfigError(f"{key} must be a dict of labels, found {arguments.brief(table)}")
    pairs = table.items() if key == "id2label" else [(index, name) for name, index in table.items()]
    try:
        names = dict(sorted((_label_index(index), name) for index, name in pairs))
        if len(names) < len(table):
            raise ValueError  # two labels have one index
        return names
    except (TypeError, ValueError):
        raise ConfigError(f"{key} must number its labels 0, 1, 2 ..., found {arguments.brief(table)}") from None


def _label_index(index: Any) -> int:
    """The index that 3 or "3" stands for; not a fraction, true or "3_0"."""
    if is_integer(index) or (isinstance(index, str) and index.isascii() and index.isdigit()):
        return int(index)
    raise ValueError
