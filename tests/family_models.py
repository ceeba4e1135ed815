"""Small models of each family for tests: what their config.json says at two sizes, and checkpoints made by
transformers.

Sizes are odd and pairwise different; the second of each family changes what the first leaves as it is.
"""

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertjax import BertConfig
from bertjax.checkpoints import FAMILIES, architecture

SMALL: dict[str, Any] = {
    "vocab_size": 41,
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 7,
    "max_position_embeddings": 21,
    "initializer_range": 0.3,
}
WIDE: dict[str, Any] = SMALL | {
    "vocab_size": 53,
    "hidden_size": 30,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "intermediate_size": 17,
    "hidden_act": "relu",
    "layer_norm_eps": 1e-5,
    "initializer_range": 0.2,
}
_DISTILBERT = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
}
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
_DISENTANGLED = {
    "relative_attention": True,
    "pos_att_type": "p2c|c2p",
    "position_buckets": 4,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "type_vocab_size": 0,
}


def _distilbert(settings: dict[str, Any]) -> dict[str, Any]:
    return {_DISTILBERT.get(key, key): value for key, value in settings.items() if key != "layer_norm_eps"}


def _modernbert(settings: dict[str, Any], **changes: Any) -> dict[str, Any]:
    renamed = {"hidden_act": "hidden_activation", "layer_norm_eps": "norm_eps"}
    return {renamed.get(key, key): value for key, value in settings.items()} | _SPECIAL | changes


SIZES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bert": (SMALL | {"type_vocab_size": 2}, WIDE | {"type_vocab_size": 3}),
    "roberta": (SMALL | {"type_vocab_size": 1}, WIDE | {"type_vocab_size": 2}),
    "xlm-roberta": (SMALL | {"type_vocab_size": 1}, WIDE | {"type_vocab_size": 1}),
    "camembert": (SMALL | {"type_vocab_size": 1}, WIDE | {"type_vocab_size": 1}),
    "distilbert": (_distilbert(SMALL), _distilbert(WIDE)),
    "electra": (SMALL | {"embedding_size": 5}, WIDE | {"embedding_size": 30, "type_vocab_size": 3}),
    "mpnet": (SMALL, WIDE),
    "albert": (
        SMALL | {"embedding_size": 5, "num_hidden_groups": 2},
        WIDE | {"embedding_size": 9, "num_hidden_layers": 3, "num_hidden_groups": 1, "inner_group_num": 2},
    ),
    "deberta-v2": (
        SMALL | _DISENTANGLED,
        WIDE
        | _DISENTANGLED
        | {"share_att_key": False, "position_buckets": -1, "position_biased_input": True, "norm_rel_ebd": "none"}
        | {"embedding_size": 7, "type_vocab_size": 2, "pooler_hidden_act": "tanh"},
    ),
    "modernbert": (
        _modernbert(SMALL, hidden_size=18, num_hidden_layers=4, local_attention=4),
        _modernbert(
            WIDE | {"hidden_act": "silu"},
            **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True),
            decoder_bias=False,
            classifier_pooling="mean",
            local_attention=7,
            layer_types=["sliding_attention", "full_attention"],
        ),
    ),
}
# Each family with a different computation; XLM-R and CamemBERT are RoBERTa by another name.
DISTINCT = sorted(set(FAMILIES) - {"bert", "xlm-roberta", "camembert"})
HEADS = [(family, task) for family in FAMILIES for task in FAMILIES[family].heads]
# Cases of family, head and size that cover all of each.
# BERT's heads are those of test_parity.py; XLM-R and CamemBERT are RoBERTa's code under other names.
FEW = [
    ("bert", architecture.NEXT, 0),
    ("roberta", architecture.CHOICE, 0),
    ("roberta", architecture.SEQUENCE, 1),
    ("xlm-roberta", architecture.SEQUENCE, 0),
    ("camembert", architecture.WORDS, 1),
    ("distilbert", architecture.ANSWERS, 0),
    ("distilbert", architecture.SEQUENCE, 1),
    ("electra", architecture.REPLACED, 0),
    ("electra", architecture.CHOICE, 1),
    ("mpnet", architecture.WORDS, 0),
    ("mpnet", architecture.SEQUENCE, 1),
    ("albert", architecture.PRETRAINING, 0),
    ("albert", architecture.TOKENS, 1),
    ("deberta-v2", architecture.BODY, 0),
    ("deberta-v2", architecture.SEQUENCE, 1),
    ("modernbert", architecture.SEQUENCE, 0),
    ("modernbert", architecture.SEQUENCE, 1),
]
# Modules that an adapter changes, where they have other names than in BERT.
ADAPTED_MODULES = {
    "distilbert": ["q_lin", "lin1"],
    "mpnet": ["q", "o"],
    "deberta-v2": ["query_proj", "dense"],
    "modernbert": ["Wqkv", "Wi"],
}


def sometimes(families: Iterable[str], *always: str) -> list[Any]:
    """Families, or names of other cases, for a test: those always tried, and the others by `make test-slow`."""
    return [family if family in always else pytest.param(family, marks=pytest.mark.slow) for family in families]


@functools.cache
def config_of(family: str, size: int = 0, **changes: Any) -> BertConfig:
    """A small config of a family."""
    return BertConfig.from_dict({"model_type": family, **SIZES[family][size], **changes})


def saved_by_torch(family: str, task: str, directory: Path, size: int = 0, seed: int = 0, **changes: Any) -> Path:
    """A random checkpoint written by `transformers` itself; every parameter is random, biases and norms too."""
    import torch
    import transformers

    settings = SIZES[family][size] | changes
    if task in (architecture.SEQUENCE, architecture.TOKENS):
        settings = {"num_labels": 3} | settings
    config = transformers.AutoConfig.for_model(family, **settings)
    torch.manual_seed(seed)
    model = getattr(transformers, FAMILIES[family].heads[task].architecture)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(directory)
    return directory


def arguments(config: BertConfig, rng: np.random.Generator, *, left: bool = False, tokens: int = 11) -> dict[str, Any]:
    """Random ids with padding on one side; in the longest text a token within it has the padding's id."""
    lengths, places = np.array([tokens, 1, 7, 4]), np.arange(tokens)[None]
    mask = places >= tokens - lengths[:, None] if left else places < lengths[:, None]
    padding = config.pad_token_id or 0
    ids = np.where(mask, rng.integers(0, config.vocab_size, mask.shape), padding)
    ids[0, 4] = padding
    types = rng.integers(0, max(config.type_vocab_size, 1), mask.shape)
    return {"input_ids": ids, "attention_mask": mask.astype(np.int64), "token_type_ids": types}
