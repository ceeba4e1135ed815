"""How much attention the tokens of a feature get: the paper's measure, and one that neither their number nor the
length of the input makes larger (section 4.4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.data import Encoding
from bertjax.model import PretrainedModel
from experiments.shared.attention import reduce_attention
from experiments.shared.program import Run
from experiments.words.estimates import Estimate, estimate, listed
from experiments.words.features import FEATURES, SPECIAL, TEXT, Masks, columns_of


@dataclass(frozen=True)
class Columns:
    """What the features of each example get from a token, on average over the queries.

    Args:
        largest: what the feature's most attended token gets (the paper's measure); 0 without the feature.
        relative: what its tokens get on average, times the tokens of the input: 1 is what uniform attention gives.
    """

    largest: Float[np.ndarray, "examples features layers heads"]
    relative: Float[np.ndarray, "examples features layers heads"]


def feature_columns(
    maps: Float[Array, "layers batch heads query key"],
    keep: Int[Array, "batch token"],
    masks: Bool[Array, "batch features own"],
) -> Float[Array, "batch 2 features layers heads"]:
    """Column means: of each feature's tokens the largest, then the mean."""
    return columns_of(maps, keep, masks)


def measure_columns(run: Run, model: PretrainedModel, texts: Sequence[Encoding], masks: Masks) -> Columns:
    """Both measures of every example."""
    config = model.config
    size = 12 * masks.shape[-1] * config.num_hidden_layers * config.num_attention_heads
    values = reduce_attention(model, texts, feature_columns, [masks], example_bytes=size, report=run.report)
    lengths = np.array([len(text) for text in texts], np.float32)
    return Columns(values[:, 0], values[:, 1] * lengths[:, None, None, None])


def beyond_text(
    relative: Float[np.ndarray, "examples features layers heads"], masks: Masks, feature: str
) -> Float[np.ndarray, "some layers heads"]:
    """What a feature's tokens get more than the text's other tokens, relative to uniform attention.

    Of the examples that have both. [CLS] and [SEP] take most of some heads' attention, so that all words can get less
    than uniform attention gives and nouns still more than other words.
    """
    number, text = FEATURES.index(feature), FEATURES.index(TEXT)
    own = (masks[:, number] & masks[:, text]).sum(-1)
    others = masks[:, text].sum(-1) - own
    some = (others > 0) & masks[:, number].any(-1)
    count, own = (values[some, None, None] for values in (others, own))
    total = relative[some, text] * (count + own) - relative[some, number] * own
    return relative[some, number] - total / count


def report_base(columns: Columns, masks: Masks, feature: str) -> dict[str, Any]:
    """The estimates of a feature, and of its layers."""
    number = FEATURES.index(feature)
    some = masks[:, number].any(-1)
    relative = columns.relative[some, number]
    found = {"largest": estimate(columns.largest[some, number]).told(), "relative": estimate(relative).told()}
    found["layers"] = estimate(relative.mean(-1)).told()
    found["layers_largest"] = estimate(columns.largest[some, number].mean(-1)).told()
    if feature != TEXT and len(beyond := beyond_text(columns.relative, masks, feature)):
        found["beyond_text"] = estimate(beyond).told()
        found["layers_beyond_text"] = estimate(beyond.mean(-1)).told()
    return found


def report_tuned(base: Columns, tuned: Sequence[Columns], masks: Masks, feature: str) -> dict[str, Any]:
    """What fine-tuning changed: the mean over seeds with its interval over examples, and each seed's own means."""
    number = FEATURES.index(feature)
    some = masks[:, number].any(-1)
    seeds = np.stack([one.relative[some, number] for one in tuned]).astype(np.float64)
    change = seeds - base.relative[some, number]
    largest = np.stack([one.largest[some, number] for one in tuned]).astype(np.float64)
    found = {"change": estimate(change.mean(0)).told(), "layers_change": estimate(change.mean((0, -1))).told()}
    found["relative_by_seed"] = listed(seeds.mean(1))
    found["largest_by_seed"] = listed(largest.mean(1))
    beyond = [beyond_text(one.relative, masks, feature) for one in tuned] if feature not in (TEXT, *SPECIAL) else []
    if beyond and len(beyond[0]):
        found["layers_beyond_text"] = estimate(np.mean(beyond, axis=0).mean(-1)).told()
    return found


def largest_means(
    columns: Columns, counted: Bool[np.ndarray, "examples features"], features: Sequence[str]
) -> dict[str, Estimate]:
    """The largest of each feature, averaged over the examples that count for it."""
    found = {}
    for feature in features:
        number = FEATURES.index(feature)
        if counted[:, number].any():
            found[feature] = estimate(columns.largest[counted[:, number], number])
    return found
