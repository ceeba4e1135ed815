"""ModernBERT (Warner et al. 2024): pre-norm, no biases, rotary positions, local attention, gated feed-forward layers.

Source: HuggingFace's `modeling_modernbert.py`. Attention of layer 0 reads the embeddings without a norm. Every third
layer attends to all tokens, the others to `local_attention / 2` tokens on either side; each kind has its rotary base.
The feed-forward layer is `W2 (activation(a) * b)` with `[a, b] = W1 h`. A norm follows the last layer.
"""

from typing import Any

from bertjax.checkpoints.architecture import (
    ACTIVATIONS,
    ANSWERS,
    CHOICE,
    SEQUENCE,
    TOKENS,
    WORDS,
    Architecture,
    ConfigFields,
    DropoutRates,
    EmbeddingPlan,
    HeadPlan,
    LayerKind,
)
from bertjax.checkpoints.families.family import (
    CLASSIFIER,
    HEAD_BIAS,
    INTO_HEADS,
    OUT_OF_HEADS,
    Family,
    Setting,
    TensorEntry,
    common_heads,
    layer_kind,
    linear,
    norm,
)
from bertjax.checkpoints.rules import FLAG, FRACTION, POSITIVE, Rule, integer, is_integer, one_of
from bertjax.errors import ConfigError

GLOBAL, LOCAL = "full_attention", "sliding_attention"
MOST_LAYERS = 10_000  # of which the kinds are listed
EVERY, BASES = 3, {GLOBAL: 160_000.0, LOCAL: 10_000.0}
_BASE_KEYS = {GLOBAL: "global_rope_theta", LOCAL: "local_rope_theta"}


def _describe(config: ConfigFields) -> Architecture:
    own, kinds = config.own, config.own["layer_types"] or _kinds(config.num_hidden_layers, EVERY)
    return Architecture(
        embeddings=EmbeddingPlan(positions=None, token_types=False, norm_bias=own["norm_bias"]),
        layers=tuple(_layer(config, kind, number) for number, kind in enumerate(kinds)),
        parameters_of=tuple(range(config.num_hidden_layers)),
        pooler=None,
        final_norm=True,
        heads=_heads(config),
        dropout=DropoutRates(
            embeddings=own["embedding_dropout"],
            weights=config.attention_probs_dropout_prob,
            attended=config.attention_probs_dropout_prob,
            mlp=0.0,
            inner=own["mlp_dropout"],
            head_output=config.classifier_dropout or 0.0,
        ),
    )


def _check(config: ConfigFields) -> None:
    kinds = config.own["layer_types"]
    if kinds is not None and len(kinds) != config.num_hidden_layers:
        raise ConfigError(f"layer_types names {len(kinds)} layers, but num_hidden_layers is {config.num_hidden_layers}")
    if config.head_dim % 2:
        raise ConfigError(f"a head is {config.head_dim} wide, but rotary positions need an even number")


def _layer(config: ConfigFields, kind: str, number: int) -> LayerKind:
    own = config.own
    return layer_kind(
        config,
        norms="before",
        norm_of_input=number > 0,
        gated=True,
        attention_bias=own["attention_bias"],
        mlp_bias=own["mlp_bias"],
        norm_bias=own["norm_bias"],
        rotation=float(own[_BASE_KEYS[kind]]),
        window=own["local_attention"] // 2 if kind == LOCAL else None,
    )


def _heads(config: ConfigFields) -> dict[str, HeadPlan]:
    own = config.own

    def plan(reads: Any, activation: str = own["classifier_activation"], **options: Any) -> HeadPlan:
        biases = {"bias": own["classifier_bias"], "norm_bias": own["norm_bias"]}
        return HeadPlan(reads, activation, norm=True, **biases, **options)

    return {
        SEQUENCE: plan(own["classifier_pooling"]),
        TOKENS: plan("tokens"),
        ANSWERS: plan("tokens", labels=2),
        WORDS: plan("tokens", output_bias=own["decoder_bias"]),
        CHOICE: plan(own["classifier_pooling"], labels=1),
    }


def _kinds(layers: int, every: int) -> tuple[str, ...]:
    """Kinds of layers if every n-th layer, starting with the first, is global."""
    return tuple(LOCAL if number % every else GLOBAL for number in range(layers))


def _read(mapping: dict[str, Any]) -> dict[str, Any]:
    """Read kinds of layers and rotary bases in the forms of transformers 4 and 5."""
    mapping = dict(mapping)
    every, layers = mapping.pop("global_attn_every_n_layers", EVERY), mapping.get("num_hidden_layers", 22)
    if mapping.get("layer_types") is None:
        if not is_integer(every) or every < 1:
            raise ConfigError(f"global_attn_every_n_layers must be a positive integer, found {every!r:.80}")
        usual = every == EVERY or not is_integer(layers)  # an invalid number of layers is refused later
        mapping["layer_types"] = None if usual else _kinds(min(layers, MOST_LAYERS), every)
    elif isinstance(mapping["layer_types"], list):
        kinds = tuple(mapping["layer_types"])
        usual = is_integer(layers) and len(kinds) == layers and kinds == _kinds(layers, EVERY)
        mapping["layer_types"] = None if usual else kinds
    rotations = mapping.pop("rope_parameters", None) or {}
    if not isinstance(rotations, dict) or set(rotations) - set(BASES):
        raise ConfigError(f"rope_parameters must be a dict with {GLOBAL} and {LOCAL}, found {rotations!r:.80}")
    for kind, key in _BASE_KEYS.items():
        rotation = rotations.get(kind) or {}
        if not isinstance(rotation, dict) or set(rotation) - {"rope_type", "rope_theta"}:
            raise ConfigError(f"rope_parameters must hold rope_type and rope_theta for {kind}, found {rotation!r:.80}")
        if rotation.get("rope_type", "default") != "default":
            raise ConfigError(f"rope_type of {kind} is {rotation['rope_type']!r:.80}; bertjax supports only 'default'")
        mapping[key] = rotation.get("rope_theta", mapping.get(key, BASES[kind]))
    return mapping


def _write(mapping: dict[str, Any]) -> dict[str, Any]:
    kinds = mapping["layer_types"] or _kinds(mapping["num_hidden_layers"], EVERY)
    bases = {kind: mapping.pop(key) for kind, key in _BASE_KEYS.items()}
    rotations = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()}
    return mapping | {"layer_types": list(kinds), "rope_parameters": rotations}


def _is_kinds(value: Any) -> bool:
    return value is None or (
        isinstance(value, tuple) and all(isinstance(kind, str) and kind in BASES for kind in value)
    )


_THEIRS, _OURS = "model.layers.{layer}", "bert.encoder.layers.{layer}"


def _projection(number: int, name: str) -> tuple[TensorEntry, ...]:
    """One third of the matrix that holds queries, keys and values."""
    return linear(f"{_THEIRS}.attn.Wqkv", f"{_OURS}.attention.{name}", INTO_HEADS, HEAD_BIAS, part=(number, 3))


_HEAD = (*linear("head.dense", "transform.dense"), *norm("head.norm", "transform.norm"))
_CLASSIFIER = (*_HEAD, *CLASSIFIER)

FAMILY = Family(
    model_type="modernbert",
    name="ModernBERT",
    prefix="model",
    describe=_describe,
    body=(
        TensorEntry("model.embeddings.tok_embeddings.weight", "bert.embeddings.word"),
        *norm("model.embeddings.norm", "bert.embeddings.norm"),
        *(entry for number, name in enumerate(("query", "key", "value")) for entry in _projection(number, name)),
        *linear(f"{_THEIRS}.attn.Wo", f"{_OURS}.attention.output", OUT_OF_HEADS),
        *norm(f"{_THEIRS}.attn_norm", f"{_OURS}.attention_norm"),
        *linear(f"{_THEIRS}.mlp.Wi", f"{_OURS}.intermediate"),
        *linear(f"{_THEIRS}.mlp.Wo", f"{_OURS}.output"),
        *norm(f"{_THEIRS}.mlp_norm", f"{_OURS}.output_norm"),
        *norm("model.final_norm", "bert.final_norm"),
    ),
    heads=common_heads(
        "ModernBert",
        ("head.dense", "head.norm", "decoder"),
        sequence=_CLASSIFIER,
        tokens=_CLASSIFIER,
        answers=(*_HEAD, *linear("classifier", "qa_outputs")),
        choice=_CLASSIFIER,
    ),
    keys={
        "hidden_act": "hidden_activation",
        "layer_norm_eps": "norm_eps",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    absent={"type_vocab_size": 0, "hidden_dropout_prob": 0.0, "embedding_size": None},
    defaults={
        "vocab_size": 50368,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "max_position_embeddings": 8192,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 50283,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout": 0.0,
    },
    settings={
        "layer_types": Setting(None, Rule(f"a list of {GLOBAL!r} and {LOCAL!r}", _is_kinds)),
        "local_attention": Setting(128, integer(2)),
        "global_rope_theta": Setting(BASES[GLOBAL], POSITIVE),
        "local_rope_theta": Setting(BASES[LOCAL], POSITIVE),
        "attention_bias": Setting(False, FLAG),
        "mlp_bias": Setting(False, FLAG),
        "norm_bias": Setting(False, FLAG),
        "decoder_bias": Setting(True, FLAG),
        "classifier_bias": Setting(False, FLAG),
        "classifier_activation": Setting("gelu", one_of(*ACTIVATIONS)),
        "classifier_pooling": Setting("cls", one_of("cls", "mean")),
        "embedding_dropout": Setting(0.0, FRACTION, is_rate=True),
        "mlp_dropout": Setting(0.0, FRACTION, is_rate=True),
    },
    # initialization, PyTorch's implementation, and an unused key of BERT
    harmless=frozenset(
        [
            "initializer_cutoff_factor",
            "deterministic_flash_attn",
            "reference_compile",
            "repad_logits_with_grad",
            "sparse_prediction",
            "sparse_pred_ignore_index",
            "layer_norm_eps",
        ]
    ),
    harmless_only_at={
        "rope_scaling": (None,),
        "position_embedding_type": ("absolute", "sans_pos", None),  # transformers ignores it
    },
    read=_read,
    write=_write,
    check=_check,
)
