"""The configuration of an encoder, read from HuggingFace's config.json and guarded.

A key of config.json that bertjax ignored could change what the model computes without a word. So each key is handled
(a field of `BertConfig`, or a setting of the family's own), or listed as harmless, here or in the family's file, or
refused by name with its value.
"""

import math
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from bertjax import arguments
from bertjax.checkpoints.architecture import ACTIVATIONS, Architecture
from bertjax.checkpoints.families import FAMILIES, Family, is_number, is_whole
from bertjax.checkpoints.pruned_heads import Pruned, check_shared_heads, read_heads, read_pruned
from bertjax.checkpoints.sentence_transformers import TORCH_ACTIVATIONS, activation_of, read_score_activation
from bertjax.errors import ConfigError, some_of
from bertjax.json_files import read_json
from bertjax.paths import is_directory, is_there, user_path

LARGEST_SIZE = 2**31 - 1  # of any axis: JAX counts in 32 bits
MOST_LABELS = 100_000  # a name is made for each, so a number that is nonsense must not fill the memory

K = TypeVar("K")
V = TypeVar("V")

PROBLEM_TYPES = (None, "regression", "single_label_classification", "multi_label_classification")

# Without a model_type, only these tell a BERT's config.json from any other JSON object.
_TELLING = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")

_RANGES = {
    "hidden_dropout_prob": (0.0, 1.0, "a number from 0 to 1"),
    "attention_probs_dropout_prob": (0.0, 1.0, "a number from 0 to 1"),
    "classifier_dropout": (0.0, 1.0, "a number from 0 to 1"),
    "initializer_range": (0.0, math.inf, "a number of at least 0"),
    "layer_norm_eps": (math.ulp(0.0), math.inf, "a positive number"),  # ulp: the smallest there is
}

# Keys that change nothing at the values given, and are refused at any other.
_HARMLESS_ONLY_AT: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "is_encoder_decoder": (False, None),
    "tie_encoder_decoder": (False, None),
    "cross_attention_hidden_size": (None,),
    "quantization_config": (None,),
    "per_layer_config": ({}, None),
    "auto_map": ({}, None),  # the model's own code, which may compute anything
}

# Keys that never change what an encoder computes, by what they are about.
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
    "tokens, for tokenisers and generation": """
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


# Where sentence-transformers keeps the activation of a cross-encoder's score: since version 4, and before.
_OF_SCORES = ("sentence_transformers", "sbert_ce_default_activation_function")
_KEYS_OF_SCORES = ("activation_fn", "version")


class FrozenDict(Mapping[K, V], Generic[K, V]):
    """A dict that cannot change, so that it has a hash.

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


LabelNames = FrozenDict[int, str]


def numbered_labels(count: int) -> LabelNames:
    """Name `count` labels as HuggingFace does where a config names none.

    >>> numbered_labels(2)
    {0: 'LABEL_0', 1: 'LABEL_1'}
    """
    return LabelNames({number: f"LABEL_{number}" for number in range(count)})


@dataclass(frozen=True)
class BertConfig:
    """The sizes and settings of an encoder, with HuggingFace's names and defaults: those of BERT-base.

    Frozen and hashable, so that it can be a static argument of `jax.jit`. `id2label` is read as a dict is,
    but cannot be changed, for the same reason. Of another family it is best made by `from_dict`, which takes the
    family's own names and defaults; here all families have one set of names.

    Args:
        model_type: the family, by HuggingFace's name.
        embedding_size: width of the embeddings' tables; None for that of the hidden states.
        num_hidden_layers: applications of a layer, whether or not they share parameters.
        own: settings that only this family has, by HuggingFace's names; those left out have its defaults.
        score_activation: what a cross-encoder of sentence-transformers makes of its logits, such as 'identity' or
            'sigmoid'; None where the files do not say.
        pruned_heads: the heads that there are no weights for: pairs of a layer and its heads.

    Raises:
        ConfigError: a value of the wrong type or out of range, or sizes that do not fit each other.

    >>> config = BertConfig(hidden_size=24, num_attention_heads=3)
    >>> config.head_dim, config.num_labels
    (8, 2)
    """

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
    embedding_size: int = None  # type: ignore[assignment]  # the hidden states' width, once it is known
    own: Mapping[str, Any] = FrozenDict({})
    score_activation: str | None = None
    pruned_heads: Pruned = ()

    def __post_init__(self) -> None:
        for name, value in _checked({name: getattr(self, name) for name in _names()}).items():
            object.__setattr__(self, name, value)
        self.family.check(self)
        if self.pruned_heads:
            check_shared_heads(self.architecture)

    @property
    def family(self) -> Family:
        """The family: names of keys and tensors."""
        return FAMILIES[self.model_type]

    @property
    def architecture(self) -> Architecture:
        """What the encoder computes."""
        return _describe(self)

    @property
    def head_dim(self) -> int:
        """The width of one head's queries, keys and values."""
        return self.hidden_size // self.num_attention_heads

    def heads_of(self, layer: int) -> tuple[int, ...]:
        """The heads of a layer, by their indices in the model before any heads were removed.

        >>> BertConfig(num_attention_heads=3, hidden_size=6, pruned_heads=((1, (0,)),)).heads_of(1)
        (1, 2)
        """
        return self.architecture.layers[layer].heads

    def without_heads(self, heads: Iterable[str | tuple[int, int]]) -> "BertConfig":
        """The same config without some heads more.

        Args:
            heads: such as ["3.0", (2, 7)], layer and number of each.

        Raises:
            ConfigError: no list of heads, there is no such head, or layers share its weights that keep it.

        >>> BertConfig().without_heads([(3, 0)]).heads_of(3)[0]
        1
        """
        gone = {layer: {*own} for layer, own in self.pruned_heads}
        for layer, head in read_heads(heads):
            gone.setdefault(layer, set()).add(head)
        return replace(self, pruned_heads=tuple((layer, tuple(sorted(own))) for layer, own in sorted(gone.items())))

    @property
    def parameter_sets(self) -> int:
        """How many layers have parameters of their own."""
        groups = self.family.groups
        return self.num_hidden_layers if groups is None else self.own[groups[0]] * self.own[groups[1]]

    @property
    def max_tokens(self) -> int:
        """The longest text, in tokens: 512 of RoBERTa's 514 positions."""
        return self.max_position_embeddings - self.architecture.embeddings.first_position

    @property
    def num_labels(self) -> int:
        """How many labels a classifying head has."""
        return len(self.id2label)

    @property
    def label2id(self) -> dict[str, int]:
        """The number of each label, by its name."""
        return {name: number for number, name in self.id2label.items()}

    def with_dropout(self, rate: float) -> "BertConfig":
        """The same config with one rate of dropout wherever the family drops units in training.

        Raises:
            ConfigError: no number from 0 to 1.

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
        """Make a config of what a config.json holds, refusing what bertjax does not understand.

        Where `id2label` and `label2id` disagree, `id2label` counts, as in HuggingFace. `num_labels` alone
        numbers the labels; it also outranks an `id2label` that holds nothing but HuggingFace's two
        placeholders, which transformers 2 left behind.

        Args:
            mapping: the JSON object, or what `to_dict` of a HuggingFace config gives.

        Returns:
            The config, keys that are absent at HuggingFace's defaults.

        Raises:
            ConfigError: a key or value that bertjax does not know, does not support or finds wrong.

        >>> BertConfig.from_dict({"model_type": "bert", "hidden_size": 96}).head_dim
        8
        >>> BertConfig.from_dict({"model_type": "distilbert", "dim": 96, "n_layers": 2}).hidden_size
        96
        """
        arguments.check_instance(mapping, "a configuration", Mapping, "what a config.json holds, by key", ConfigError)
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
            elif key not in ("model_type", "label2id", "num_labels", *_OF_SCORES):
                _check_harmless(family, key, value)
        values["id2label"] = _labels(mapping)
        values["score_activation"] = _score_activation(mapping)
        values["architectures"] = _architectures(mapping.get("architectures"))
        return cls(**_checked(values | {"model_type": family.model_type, "own": own}))

    @classmethod
    def from_file(cls, path: str | Path) -> "BertConfig":
        """Read a config.json; arguments, returns and errors as in `from_dict`.

        Raises:
            ConfigError: also where the file cannot be read or holds no JSON object.
        """
        path = user_path(path, ConfigError)
        mapping = read_json(path, ConfigError)
        try:
            return cls.from_dict(mapping)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @classmethod
    def from_directory(cls, directory: str | Path) -> "BertConfig":
        """Read the config.json of a model's directory, as `from_file` does.

        A cross-encoder that sentence-transformers 5.4 or later has written names its activation in a file of its own.
        """
        directory = user_path(directory, ConfigError)
        path = directory / "config.json"
        if not is_there(path, ConfigError) and is_directory(directory, ConfigError):
            raise ConfigError(f"{directory}: has no config.json; give the directory of a HuggingFace model")
        config, activation = cls.from_file(path), read_score_activation(directory)
        return config if activation is None else replace(config, score_activation=activation)

    def to_dict(self) -> dict[str, Any]:
        """Give what a config.json holds; `from_dict` and transformers make an equal config of it.

        >>> BertConfig.from_dict(BertConfig().to_dict()) == BertConfig()
        True
        """
        family = self.family
        elsewhere = ("model_type", "own", "score_activation", "pruned_heads")
        names = (name for name in _names() if name not in (*family.absent, *elsewhere))
        values = {family.key_of(name): getattr(self, name) for name in names} | dict(self.own)
        values["id2label"] = {str(number): name for number, name in self.id2label.items()}
        values["architectures"] = list(self.architectures) or None
        if self.pruned_heads:
            values["pruned_heads"] = {str(layer): list(heads) for layer, heads in self.pruned_heads}
        if self.score_activation is not None:
            values["sentence_transformers"] = {"activation_fn": TORCH_ACTIVATIONS[self.score_activation]}
        return {"model_type": self.model_type, **family.write(values), "label2id": self.label2id}


@lru_cache(maxsize=64)
def _describe(config: BertConfig) -> Architecture:
    plan = config.family.describe(config)
    every, removed = range(config.num_attention_heads), dict(config.pruned_heads)
    heads = [tuple(head for head in every if head not in removed.get(n, ())) for n in range(len(plan.layers))]
    layers = [replace(kind, heads=own) for kind, own in zip(plan.layers, heads, strict=True)]
    return replace(plan, layers=tuple(layers))


def _names() -> list[str]:
    return [field.name for field in fields(BertConfig)]


_DEFAULTS = {field.name: field.default for field in fields(BertConfig)}


def _defaults(family: Family) -> dict[str, Any]:
    """What the fields are where a family's config.json does not say."""
    return {**_DEFAULTS, **family.defaults, **family.absent}


def _show(value: Any) -> str:
    try:
        return reprlib.repr(value)  # shortened: some values are whole tables
    except ValueError:  # Python writes no integer of more than 4300 digits
        return "a number of thousands of digits"


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """Check a config's fields; give them with each number that may be a fraction as a float, and labels by number."""
    if values["model_type"] not in FAMILIES:
        raise ConfigError(f"model_type is {_show(values['model_type'])}; bertjax loads only {_known_families()}")
    family = FAMILIES[values["model_type"]]
    values = values | _without_key(values, family)
    if values["classifier_dropout"] is None and _defaults(family)["classifier_dropout"] is not None:
        values["classifier_dropout"] = values["hidden_dropout_prob"]  # transformers takes no null there
    width = values["embedding_size"]
    values = values | {
        "id2label": _as_labels(values["id2label"]),
        "embedding_size": values["hidden_size"] if width is None else width,
        "own": _own_settings(family, values["own"]),
    }
    _check_sizes(values, family)
    sizes = values["num_hidden_layers"], values["num_attention_heads"]
    values["pruned_heads"] = read_pruned(values["pruned_heads"], *sizes, _show)
    _check_choices(values, family)
    _check_names(values)
    return values | _floats(values, family)


def _without_key(values: dict[str, Any], family: Family) -> dict[str, Any]:
    """Fields that a family's config.json has no key for, as they then are.

    BERT's default stands for no value, and so does any width of embeddings, which follows the hidden states'.
    """
    for name, value in family.absent.items():
        if name != "embedding_size" and values[name] not in (None, value, _DEFAULTS[name]):
            raise ConfigError(f"{family.name} has no {name}, found {_show(values[name])}")
    return dict(family.absent)


def _own_settings(family: Family, given: Any) -> FrozenDict[str, Any]:
    """All settings of the family's own, each checked."""
    if not isinstance(given, Mapping) or (unknown := [name for name in given if name not in family.settings]):
        found = _show(given) if not isinstance(given, Mapping) else some_of([str(name) for name in unknown])
        raise ConfigError(f"{family.name} has no settings of its own but {', '.join(family.settings)}, found {found}")
    values = {name: given.get(name, setting.default) for name, setting in family.settings.items()}
    for name, setting in family.settings.items():
        if not setting.fits(values[name]):
            raise ConfigError(f"{name} must be {setting.expected}, found {_show(values[name])}")
    return FrozenDict(values)


def _check_sizes(values: dict[str, Any], family: Family) -> None:
    may_lack_types = 0 in (family.absent.get("type_vocab_size"), family.defaults.get("type_vocab_size"))
    for name in (*_TELLING, "intermediate_size", "max_position_embeddings", "type_vocab_size", "embedding_size"):
        least, key = int(not (name == "type_vocab_size" and may_lack_types)), family.key_of(name)
        if not is_whole(values[name]) or values[name] < least:
            expected = "a positive integer" if least else "an integer of at least 0"
            raise ConfigError(f"{key} must be {expected}, found {_show(values[name])}")
        if values[name] > LARGEST_SIZE:
            raise ConfigError(f"{key} must be at most {LARGEST_SIZE}, found {_show(values[name])}")
    width, heads = values["hidden_size"], values["num_attention_heads"]
    if width % heads:
        names = [family.key_of(name) for name in ("hidden_size", "num_attention_heads")]
        raise ConfigError(f"{names[0]} {width} cannot be divided into {names[1]} {heads} equal parts")
    pad, limit = values["pad_token_id"], values["vocab_size"]
    if pad is not None and not (is_whole(pad) and 0 <= pad < limit):
        raise ConfigError(f"pad_token_id must be a token id below vocab_size {limit}, found {_show(pad)}")


def _check_choices(values: dict[str, Any], family: Family) -> None:
    scores = (None, *TORCH_ACTIVATIONS)
    for name, allowed in (
        ("hidden_act", ACTIVATIONS),
        ("problem_type", PROBLEM_TYPES),
        ("score_activation", scores),
    ):
        if values[name] not in allowed:
            raise ConfigError(f"{family.key_of(name)} is {_show(values[name])}; bertjax supports only {allowed}")
    if not isinstance(values["tie_word_embeddings"], bool):
        raise ConfigError(f"tie_word_embeddings must be true or false, found {_show(values['tie_word_embeddings'])}")


def _check_names(values: dict[str, Any]) -> None:
    labels = values["id2label"]
    if not labels or not all(map(is_whole, labels)) or list(labels) != list(range(len(labels))):
        raise ConfigError(f"id2label must number its labels 0, 1, 2 ..., found {_show(labels)}")
    if not all(isinstance(name, str) for name in labels.values()):
        raise ConfigError(f"id2label must name each label with a string, found {_show(labels)}")
    names = values["architectures"]
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"architectures must be a tuple of classes' names, found {_show(names)}")


def _as_labels(given: Any) -> FrozenDict[Any, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"id2label must be a dict of names by number, found {_show(given)}")
    return FrozenDict(given)


def _by_number(pairs: list[tuple[int, Any]]) -> FrozenDict[int, Any]:
    """A table of pairs, whose names are checked later; a `ValueError` where two have one number."""
    if len({number for number, _ in pairs}) < len(pairs):
        raise ValueError
    return FrozenDict(dict(pairs))


def _floats(values: dict[str, Any], family: Family) -> dict[str, float]:
    floats = {}
    for name, (low, high, range_in_words) in _RANGES.items():
        value = values[name]
        if value is None and name == "classifier_dropout":
            continue
        if not is_number(value) or not low <= value <= high:
            raise ConfigError(f"{family.key_of(name)} must be {range_in_words}, found {_show(value)}")
        floats[name] = float(value)  # JSON writes 0 for 0.0
    return floats


def _family_of(mapping: Mapping[str, Any]) -> Family:
    """The family that a config.json names; old files of BERT name none."""
    model_type = mapping.get("model_type")
    if model_type is None:
        absent = [key for key in _TELLING if key not in mapping]
        if absent:
            raise ConfigError(f"has neither model_type nor {absent[0]}: this is not the configuration of a BERT")
        return FAMILIES["bert"]
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ConfigError(f"model_type is {_show(model_type)}; bertjax loads only {_known_families()}")
    return FAMILIES[model_type]


def _known_families() -> str:
    return ", ".join(repr(name) for name in FAMILIES)


def _check_harmless(family: Family, key: str, value: Any) -> None:
    harmless_only_at = {**_HARMLESS_ONLY_AT, **family.harmless_only_at}
    if key in harmless_only_at:
        allowed = harmless_only_at[key]
        if value not in allowed:
            raise ConfigError(f"{key} is {_show(value)}; bertjax supports only {allowed[0]!r}")
    elif key not in _HARMLESS | family.harmless:
        raise ConfigError(
            f"bertjax does not know the key {key!r} (value {_show(value)}), which may change the model; "
            "remove it from config.json if it does not"
        )


def _architectures(value: Any) -> tuple[Any, ...]:
    if value is not None and not isinstance(value, list | tuple):
        raise ConfigError(f"architectures must be a list of names, found {_show(value)}")
    return tuple(value or ())


def _score_activation(mapping: Mapping[str, Any]) -> str | None:
    """bertjax's name of the activation of a cross-encoder's score; the newer key counts."""
    newer, older = _OF_SCORES
    settings = mapping.get(newer)
    settings = {} if settings is None else settings
    if not isinstance(settings, Mapping) or (unknown := [key for key in settings if key not in _KEYS_OF_SCORES]):
        found = _show(settings) if not isinstance(settings, Mapping) else some_of([str(key) for key in unknown])
        raise ConfigError(f"{newer} must be a table of {' and '.join(_KEYS_OF_SCORES)}, found {found}")
    key = newer if "activation_fn" in settings else older
    given = settings["activation_fn"] if key == newer else mapping.get(older)
    try:
        return activation_of(given)
    except ConfigError as error:
        raise ConfigError(f"{key} {error}") from None


def _labels(mapping: Mapping[str, Any]) -> Mapping[int, Any]:
    """Put together what `id2label`, `label2id`, `num_labels` and its old private form say."""
    pairs = _numbered(mapping, "id2label", number_first=True)
    count = mapping.get("num_labels")
    if pairs is None and count is None:
        pairs = _numbered(mapping, "label2id", number_first=False)
        count = mapping.get("_num_labels") if pairs is None else None
    if count is None:
        return numbered_labels(2) if pairs is None else pairs
    if not is_whole(count) or count < 1:
        raise ConfigError(f"num_labels must be a positive integer, found {_show(count)}")
    if count > MOST_LABELS:
        raise ConfigError(f"num_labels must be at most {MOST_LABELS}, found {_show(count)}")
    if pairs is None or pairs == numbered_labels(2):
        return numbered_labels(count)
    if len(pairs) != count:
        raise ConfigError(f"num_labels is {count}, but id2label names {len(pairs)} labels")
    return pairs


def _numbered(mapping: Mapping[str, Any], key: str, number_first: bool) -> Mapping[int, Any] | None:
    """Sort a table of labels by number; JSON's keys are strings, so numbers may be too."""
    table = mapping.get(key)
    if table is None:
        return None
    if not isinstance(table, Mapping):
        raise ConfigError(f"{key} must be a table of labels, found {_show(table)}")
    items = table.items() if number_first else ((number, name) for name, number in table.items())
    try:
        return _by_number(sorted((_label_number(number), name) for number, name in items))
    except (TypeError, ValueError):
        raise ConfigError(f"{key} must number its labels 0, 1, 2 ..., found {_show(table)}") from None


def _label_number(number: Any) -> int:
    """The number that 3 or "3" stands for; not a fraction, true or "3_0"."""
    if is_whole(number) or (isinstance(number, str) and number.isascii() and number.isdigit()):
        return int(number)
    raise ValueError
