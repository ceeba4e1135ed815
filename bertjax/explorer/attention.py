"""Attention weights of texts, and the share of each key in the norms of a head's weighted values."""

from functools import cache
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from bertjax.attention import norm_shares, output_products
from bertjax.data import collate
from bertjax.errors import InputError
from bertjax.explorer.compute import Check, Query
from bertjax.explorer.kinds import Kind
from bertjax.explorer.subject import bucket
from bertjax.interventions import Ablation, overrides, to_overrides
from bertjax.models import Overrides, PretrainedModel
from bertjax.web import pack_attention

MOST_WEIGHTS = 8_000_000  # weights of one text, about 16 MB for the page


def most_tokens(kind: Kind) -> int:
    """The largest number of tokens of a text for attention weights."""
    config = kind.subject.model.config
    return int((MOST_WEIGHTS / (config.num_hidden_layers * config.num_attention_heads)) ** 0.5)


def compute_attention(kind: Kind, query: Query, weights: str, check: Check) -> dict[str, Any]:
    """Attention weights without ablation, and with the heads of a query ablated.

    Args:
        kind: the kind of the model's answer.
        query: the texts, and the heads to ablate.
        weights: the quantity: 'attention', or 'norms' for the share of each key in the norms of a head's weighted
            values.
        check: a function that is called between the runs; its exception ends the computation.

    Returns:
        `texts`: for each text, the packed weights of both runs by the names `base` and `ablated`; `ablated` is None if
        the query has no head.

    Raises:
        InputError: a text has more tokens than `most_tokens`.
    """
    most = most_tokens(kind)
    if (longest := max(map(len, query.encodings))) > most:
        raise InputError(f"the text has {longest} tokens; attention is shown for at most {most}")
    base, ablated = (
        _weights(kind, query, heads, weights, check) if heads is not None else None
        for heads in (frozenset[tuple[int, int]](), query.off or None)
    )
    assert base is not None
    texts = []
    for index, encoding in enumerate(query.encodings):
        count = len(encoding)
        packed = [
            None if array is None else pack_attention(encoding.tokens, array[:, index, :, :count, :count])
            for array in (base, ablated)
        ]
        texts.append({"base": packed[0], "ablated": packed[1]})
    check()
    return {"texts": texts}


def _weights(
    kind: Kind, query: Query, heads: frozenset[tuple[int, int]], weights: str, check: Check
) -> Float[np.ndarray, "layers texts heads query key"]:
    """Weights of one run in which some heads are ablated."""
    check()
    subject, encodings = kind.subject, query.encodings
    length = bucket(max(map(len, encodings)), subject.longest)
    batch = collate(encodings, length, subject.tokenizer.pad_id)
    changes = _overrides(kind, heads, query.mode)
    record = subject.model(**batch, overrides=changes).record
    assert record is not None
    assert record.weights is not None
    if weights == "attention":
        return np.asarray(record.weights)
    return np.asarray(_shares(record.weights, record.values, _products(subject.model)))


def _overrides(kind: Kind, heads: frozenset[tuple[int, int]], mode: str) -> Overrides:
    """The overrides of an ablation, in arrays whose shapes do not depend on the number of heads."""
    subject = kind.subject
    means = subject.means_for(mode, kind.encode)
    if means is None:
        return to_overrides(subject.model.config, Ablation("off", subject.changes(heads, mode)))
    gates = [float(head not in heads) for head in subject.heads]
    return overrides.mean(subject.model.config, subject.heads, means, gates)


_shares = jax.jit(norm_shares)


@cache
def _products(model: PretrainedModel) -> Float[Array, "layers heads head_dim head_dim"]:
    return jax.device_put(output_products(model).astype(model.numerics.wide))
