"""DeBERTa-v2 and -v3 (He et al. 2021, 2023): disentangled attention by content and by distance.

Source: HuggingFace's `modeling_deberta_v2.py`. With query `q`, key `k` and position vectors for each distance bucket,
projected as keys `K` and as queries `Q`, the score of query i and key j is

    (q_i . k_j + q_i . K[d(i - j)] + k_j . Q[d(i - j)]) / sqrt(3 head_dim)

Buckets are exact near the query and logarithmic beyond. v3 adds no positions to the embeddings. The first release of
v2-xlarge has a convolution, which is not supported.

Microsoft's files name the masked-LM head `lm_predictions.lm_head`, which transformers reads only with `legacy: false`.
It is always read here: both classes of transformers compute the same function.
"""

from typing import Any

from bertjax.checkpoints.architecture import (
    ACTIVATIONS,
    Architecture,
    ConfigFields,
    EmbeddingPlan,
    HeadPlan,
    RelativePositions,
)
from bertjax.checkpoints.families.family import (
    BERTS_WORDS,
    CLASSIFIER,
    HEAD_BIAS,
    INTO_HEADS,
    TRANSPOSED,
    Family,
    LayerTensors,
    Setting,
    TensorEntry,
    common_heads,
    dropout_rates,
    embedding_entries,
    head_plans,
    layer_kind,
    linear,
    norm,
)
from bertjax.checkpoints.rules import FLAG, FRACTION, Rule, is_integer, one_of

C2P, P2C = "c2p", "p2c"


def _describe(config: ConfigFields) -> Architecture:
    layers, own = config.num_hidden_layers, config.own
    relative = _relative(config) if own["relative_attention"] else None
    # The scale counts the kinds in pos_att_type even without relative positions.
    scale = float((config.head_dim * (1 + len(set(own["pos_att_type"])))) ** -0.5)
    projected = config.embedding_size != config.hidden_size
    return Architecture(
        embeddings=EmbeddingPlan(
            positions="index" if own["position_biased_input"] else None,
            token_types=config.type_vocab_size > 0,
            projection="without bias" if projected else None,
        ),
        layers=(layer_kind(config, relative=relative, scale=scale),) * layers,
        parameters_of=tuple(range(layers)),
        pooler=None,
        heads=head_plans(HeadPlan("cls", own["pooler_hidden_act"]), config.hidden_act),
        dropout=dropout_rates(
            config, positions=config.hidden_dropout_prob if relative else 0.0, head_input=own["pooler_dropout"]
        ),
    )


def _relative(config: ConfigFields) -> RelativePositions:
    own, kinds = config.own, config.own["pos_att_type"]
    farthest = own["max_relative_positions"] if own["max_relative_positions"] > 0 else config.max_position_embeddings
    bucketed = own["position_buckets"] > 0
    return RelativePositions(
        "disentangled",
        buckets=own["position_buckets"] if bucketed else farthest,
        largest=farthest if bucketed else 0,
        content_to_position=C2P in kinds,
        position_to_content=P2C in kinds,
        own_projections=not own["share_att_key"] and bool(kinds),
        norm="layer_norm" in own["norm_rel_ebd"],
    )


def _read(mapping: dict[str, Any]) -> dict[str, Any]:
    """Read kinds of attention and norms, which are lists or strings such as 'p2c|c2p'."""
    kinds, norms = mapping.get("pos_att_type"), mapping.get("norm_rel_ebd")
    mapping = dict(mapping)
    width, heads = mapping.get("hidden_size", 1536), mapping.get("num_attention_heads", 24)
    for key, usual in zip(_USUAL, (_quotient(width, heads), width), strict=True):
        if key in mapping and mapping[key] == usual:
            del mapping[key]
    if "pos_att_type" in mapping:
        mapping["pos_att_type"] = _parts(kinds)
    if isinstance(norms, str):
        mapping["norm_rel_ebd"] = _parts(norms)
    return mapping


def _quotient(width: Any, heads: Any) -> int | None:
    return width // heads if is_integer(width) and is_integer(heads) and heads > 0 else None


def _parts(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.lower().split("|"))
    return () if value is None else tuple(value) if isinstance(value, list) else value


def _are(value: Any, *names: str) -> bool:
    return isinstance(value, tuple) and all(isinstance(part, str) and part in names for part in value)


def _write(mapping: dict[str, Any]) -> dict[str, Any]:
    kinds, norms = list(mapping["pos_att_type"]), "|".join(mapping["norm_rel_ebd"])
    return mapping | {"pos_att_type": kinds, "norm_rel_ebd": norms}


_USUAL = ("attention_head_size", "pooler_hidden_size")  # widths that other sizes determine
_KINDS = Rule("a list of 'c2p' and 'p2c'", lambda value: _are(value, C2P, P2C))
_NORMS = Rule("'none' or 'layer_norm'", lambda value: _are(value, "none", "layer_norm"))
# transformers divides by the logarithm of half of them
_BUCKETS = Rule("an integer other than 1", lambda value: is_integer(value) and value != 1)
_LAYER = LayerTensors(
    query="attention.self.query_proj", key="attention.self.key_proj", value="attention.self.value_proj"
)
_BEGINNING, _OURS = "deberta.encoder.layer.{layer}", "bert.encoder.layers.{layer}"
_POOLED = (*linear("pooler.dense", "transform.dense"), *CLASSIFIER)

FAMILY = Family(
    model_type="deberta-v2",
    name="DeBERTa-v2 or -v3",
    prefix="deberta",
    describe=_describe,
    body=(
        *embedding_entries("deberta"),
        TensorEntry("deberta.embeddings.embed_proj.weight", "bert.embeddings.projection.kernel", TRANSPOSED),
        TensorEntry("deberta.encoder.rel_embeddings.weight", "bert.encoder.relative.table"),
        *norm("deberta.encoder.LayerNorm", "bert.encoder.relative.norm"),
        *_LAYER.entries(_BEGINNING),
        *linear(f"{_BEGINNING}.attention.self.pos_key_proj", f"{_OURS}.attention.position_key", INTO_HEADS, HEAD_BIAS),
        *linear(
            f"{_BEGINNING}.attention.self.pos_query_proj", f"{_OURS}.attention.position_query", INTO_HEADS, HEAD_BIAS
        ),
    ),
    heads=common_heads(
        "DebertaV2",
        BERTS_WORDS,
        sequence=_POOLED,
        choice=_POOLED,
        renamed={
            "lm_predictions.lm_head.dense": "cls.predictions.transform.dense",
            "lm_predictions.lm_head.LayerNorm": "cls.predictions.transform.LayerNorm",
            "lm_predictions.lm_head.bias": "cls.predictions.bias",
        },
    ),
    absent={},
    keys={"classifier_dropout": "cls_dropout"},
    defaults={
        "vocab_size": 128100,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
    },
    settings={
        "relative_attention": Setting(False, FLAG),
        "position_biased_input": Setting(True, FLAG),
        "max_relative_positions": Setting(-1, Rule("an integer", is_integer)),
        "position_buckets": Setting(-1, _BUCKETS),
        "share_att_key": Setting(False, FLAG),
        "pos_att_type": Setting((), _KINDS),
        "norm_rel_ebd": Setting(("none",), _NORMS),
        "pooler_dropout": Setting(0.0, FRACTION, is_rate=True),
        "pooler_hidden_act": Setting("gelu", one_of(*ACTIVATIONS)),
    },
    harmless=frozenset({"legacy", "conv_act"}),
    harmless_only_at={"conv_kernel_size": (0, None), "conv_groups": (1, None), **dict.fromkeys(_USUAL, (None,))},
    read=_read,
    write=_write,
    leftovers=(r"mask_predictions\..*",),  # in Microsoft's files: the head for replaced tokens
)
