"""Attention of a text as a picture to explore: in a notebook, or as a page."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from bertjax import arguments
from bertjax.attention.norms import norm_shares, output_products
from bertjax.data import Tokenizer, collate
from bertjax.errors import InputError
from bertjax.interventions import Head, parse_head
from bertjax.models import ModelOutput, Overrides, PretrainedModel
from bertjax.web import AttentionView, make_view

QUANTITIES = {"attention": "weight", "norms": "share of norms"}
NAMED = 6  # heads in the caption


def view(
    model: PretrainedModel,
    text: str | Sequence[str],
    second: str | Sequence[str] | None = None,
    *,
    overrides: Overrides | None = None,
    tokenizer: Tokenizer | None = None,
    max_length: int | None = None,
    head: Head | None = None,
    show: str = "head",
    weights: str = "attention",
) -> AttentionView:
    """Show the attention of a text: lines between tokens, a matrix, and thumbnails of all heads.

    A notebook shows the result below the cell and saves it; `save` writes it as a page. It needs no network.

    Args:
        model: the model, with `attention='explicit'`.
        text: a text, or several texts, among which the page has a choice.
        second: the second text of each pair.
        overrides: interventions (`bertjax.overrides`); the attention with them is shown beside the one without.
        tokenizer: the tokenizer; by default the model's.
        max_length: truncate to this many tokens, special tokens included; by default nothing is truncated.
        head: the head that is selected first; by default the first that `overrides` change, or else 0.0.
        show: what is shown first: 'head' (lines), 'matrix', or 'model' (all heads).
        weights: 'attention'; or 'norms', the share of each key in the norms of a head's weighted values
            (`bertjax.attention.norm_shares`).

    Raises:
        InputError: the model has no tokenizer, or a text has more tokens than the model takes; attention is not
            explicit; unknown names; weights that take more than 64 MB.
        OverrideError: overrides that do not fit the model or the text, or a head that the model lacks.

    >>> import bertjax
    >>> model = bertjax.load("sentence-transformers/all-MiniLM-L6-v2")
    >>> bertjax.view(model, "A man is playing a guitar.")
    AttentionView(9 tokens, 6 layers of 12 heads; .save('attention.html') writes a page)
    """
    arguments.check_instance(model, "model", PretrainedModel, "a model of bertjax (bertjax.load, bertjax.from_torch)")
    arguments.check_choice(weights, "weights", [*QUANTITIES])
    tokenizer = model.tokenizer if tokenizer is None else tokenizer
    if tokenizer is None:
        raise InputError("the model has no tokenizer: pass tokenizer=bertjax.Tokenizer.from_pretrained(name)")
    arguments.check_instance(tokenizer, "tokenizer", Tokenizer, "a bertjax.Tokenizer (Tokenizer.from_pretrained)")
    first = [text] if isinstance(text, str) else text
    encodings = tokenizer.encode(first, [second] if isinstance(second, str) else second, max_length)
    if not encodings:
        raise InputError("there is no text to show: give a text, or a list of texts")
    batch = collate(encodings, pad_id=tokenizer.pad_id)
    ablated = None if overrides is None else _weights_of(model, model(batch, overrides=overrides), weights)
    changed = [] if overrides is None else _changed_heads(overrides)
    return make_view(
        [encoding.tokens for encoding in encodings],
        _weights_of(model, model(batch), weights),
        batch["attention_mask"],
        ablated,
        caption=describe_ablation(changed),
        off=changed,
        head=None if head is None else parse_head(head, model.config),
        show=show,
        quantity=QUANTITIES[weights],
    )


def _weights_of(
    model: PretrainedModel, output: ModelOutput, weights: str
) -> Float[np.ndarray, "layers texts heads query key"]:
    attentions = output.attentions
    if weights == "attention":
        return np.asarray(attentions, np.float32)
    return np.asarray(norm_shares(attentions, output.inside.values, output_products(model)), np.float32)


def _changed_heads(overrides: Overrides) -> list[str]:
    """Names of the heads whose gates are not 1, or that have a replacement of their own."""
    gates = np.asarray(overrides.weights_gate), np.asarray(overrides.output_gate)
    changed = (gates[0] != 1) | (gates[1] != 1)
    for entries in (overrides.weights, overrides.outputs, overrides.edges, overrides.vectors):
        if entries is not None:
            layers, heads = np.asarray(entries.layer), np.asarray(entries.head)
            changed[layers[layers >= 0], heads[layers >= 0]] = True
    return [f"{layer}.{head}" for layer, head in np.argwhere(changed).tolist()]


def describe_ablation(changed: Sequence[str]) -> str:
    """The caption of the weights with overrides.

    Args:
        changed: names of the changed heads.
    """
    if not changed:
        return "With overrides"
    more = len(changed) - NAMED
    return f"With {', '.join(changed[:NAMED])}{f' and {more} more' if more > 0 else ''} ablated"
