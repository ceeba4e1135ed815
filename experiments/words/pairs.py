"""The [CLS] row and the words shared by both texts, measured in one pass."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.data import Encoding
from bertjax.models import PretrainedModel
from experiments.shared.attention import WIDTHS, stream_attention
from experiments.shared.run import Run
from experiments.words.annotated import AnnotatedSample
from experiments.words.cls_row import Row, row_of
from experiments.words.features import FEATURES, Masks
from experiments.words.shared_words import CONTROLS, KINDS, Shared, link_shares, shared_weights

MEASURES = 1 + len(CONTROLS)


def row_and_shared(
    maps: Float[Array, "layers batch heads query key"],
    keep: Int[Array, "batch token"],
    masks: Bool[Array, "batch features width"],
    shares: Float[Array, "batch kinds measures size size"],
) -> Float[Array, "batch statistics layers heads"]:
    """The row of [CLS], then the weights of words shared by both texts, and their controls."""
    row, shared = row_of(maps, keep, masks), shared_weights(maps, shares)
    parts = [values.reshape(len(values), -1, *values.shape[3:]) for values in (row, shared)]
    return jnp.concatenate(parts, axis=1)


def measure_pairs(run: Run, model: PretrainedModel, sample: AnnotatedSample, masks: Masks) -> tuple[Row, Shared]:
    """Both measures for every example."""
    config, texts, paired = model.config, sample.texts, len(sample.annotations[0]) > 1
    counts = np.zeros((len(texts), len(KINDS)), int)

    def extras(places: np.ndarray) -> Sequence[np.ndarray]:
        shares = [link_shares(texts[example], sample.annotations[example]) for example in places] if paired else []
        size = fit([texts[example] for example in places]) if paired else 1
        padded = np.zeros((len(places), len(KINDS), MEASURES, size, size), np.float32)
        for index, (share, links) in enumerate(shares):
            padded[index, :, :, : share.shape[-1], : share.shape[-1]] = share
            counts[places[index]] = links
        return [masks[places], padded]

    statistics = np.zeros(
        (len(texts), 2 * len(FEATURES) + len(KINDS) * MEASURES, config.num_hidden_layers, config.num_attention_heads),
        np.float32,
    )
    bytes_each = 4 * statistics[0].size + 4 * len(KINDS) * MEASURES * max(len(text) for text in texts) ** 2 * paired
    for places, values in stream_attention(
        model, texts, row_and_shared, extras, example_bytes=bytes_each, norms=run.norms
    ):
        statistics[places] = values
    row, shared = np.split(statistics, [2 * len(FEATURES)], axis=1)
    largest, mean = np.split(row[:, :, -1], 2, axis=1)
    return Row(largest, mean), Shared(shared.reshape(len(texts), len(KINDS), MEASURES, *statistics.shape[2:]), counts)


def fit(texts: Sequence[Encoding]) -> int:
    """The number of tokens to which a batch is padded, chosen so that few shapes are compiled."""
    longest = max(len(text) for text in texts)
    return next((width for width in WIDTHS if width >= longest), longest)
