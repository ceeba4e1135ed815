"""How much attention the tokens of a feature get: the paper's measure, and one that grows with neither their number
nor the length of the input (section 4.4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from bertjax.data import Encoding
from bertjax.models import PretrainedModel
from experiments.shared.attention import reduce_attention
from experiments.shared.run import Run
from experiments.words.estimates import Estimate, estimate, listed
from experiments.words.features import FEATURES, SPECIAL, TEXT, Masks, columns_of


@dataclass(frozen=True)
class Columns:
    """What the features of each example get from a token, averaged over the queries.

    Args:
        largest: what the feature's most attended token gets (the paper's measure); 0 without the feature.
        relative: what its tokens get on average, times the number of tokens in the input: uniform attention gives 1.
    """

    largest: Float[np.ndarray, "examples features layers heads"]
    relative: Float[np.ndarray, "examples features layers heads"]


def measure_columns(run: Run, model: PretrainedModel, texts: Sequence[Encoding], masks: Masks) -> Columns:
    """Both measures for every example."""
    config = model.config
    size = 12 * masks.shape[-1] * config.num_hidden_layers * config.num_attention_heads
    values = reduce_attention(model, texts, columns_of, [masks], example_bytes=size, norms=run.norms)
    lengths = np.array([len(text) for text in texts], np.float32)
    return Columns(values[:, 0], values[:, 1] * lengths[:, None, None, None])


def beyond_text(
    relative: Float[np.ndarray, "examples features layers heads"], masks: Masks, feature: str
) -> Float[np.ndarray, "some layers heads"]:
    """How much more a feature's tokens get than the text's other tokens, relative to uniform attention.

    Only examples with both kinds of tokens count. [CLS] and [SEP] take most of some heads' attention, so all words can
    get less than uniform attention gives while nouns still get more than other words.
    """
    index, text_index = FEATURES.index(feature), FEATURES.index(TEXT)
    feature_tokens = (masks[:, index] & masks[:, text_index]).sum(-1)
    other_tokens = masks[:, text_index].sum(-1) - feature_tokens
    counted = (other_tokens > 0) & masks[:, index].any(-1)
    other_count, feature_tokens = (values[counted, None, None] for values in (other_tokens, feature_tokens))
    total = relative[counted, text_index] * (other_count + feature_tokens) - relative[counted, index] * feature_tokens
    return relative[counted, index] - total / other_count


def report_base(columns: Columns, masks: Masks, feature: str) -> dict[str, Any]:
    """The estimates of a feature, by head and by layer."""
    index = FEATURES.index(feature)
    present = masks[:, index].any(-1)
    relative = columns.relative[present, index]
    report = {"largest": estimate(columns.largest[present, index]).to_dict(), "relative": estimate(relative).to_dict()}
    report["layers"] = estimate(relative.mean(-1)).to_dict()
    report["layers_largest"] = estimate(columns.largest[present, index].mean(-1)).to_dict()
    if feature != TEXT and len(beyond := beyond_text(columns.relative, masks, feature)):
        report["beyond_text"] = estimate(beyond).to_dict()
        report["layers_beyond_text"] = estimate(beyond.mean(-1)).to_dict()
    return report


def report_tuned(base: Columns, tuned: Sequence[Columns], masks: Masks, feature: str) -> dict[str, Any]:
    """What fine-tuning changed: the mean over seeds with its interval over examples, and the means of each seed."""
    index = FEATURES.index(feature)
    present = masks[:, index].any(-1)
    seeds = np.stack([columns.relative[present, index] for columns in tuned]).astype(np.float64)
    change = seeds - base.relative[present, index]
    largest = np.stack([columns.largest[present, index] for columns in tuned]).astype(np.float64)
    report = {"change": estimate(change.mean(0)).to_dict(), "layers_change": estimate(change.mean((0, -1))).to_dict()}
    report["relative_by_seed"] = listed(seeds.mean(1))
    report["largest_by_seed"] = listed(largest.mean(1))
    beyond = (
        [beyond_text(columns.relative, masks, feature) for columns in tuned] if feature not in (TEXT, *SPECIAL) else []
    )
    if beyond and len(beyond[0]):
        report["layers_beyond_text"] = estimate(np.mean(beyond, axis=0).mean(-1)).to_dict()
    return report


def largest_means(
    columns: Columns, counted: Bool[np.ndarray, "examples features"], features: Sequence[str]
) -> dict[str, Estimate]:
    """The mean of each feature's largest weight over the examples that count for it."""
    means = {}
    for feature in features:
        index = FEATURES.index(feature)
        if counted[:, index].any():
            means[feature] = estimate(columns.largest[counted[:, index], index])
    return means
