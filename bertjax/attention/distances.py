"""Distances between heads: the Jensen-Shannon divergence of their weights, averaged over tokens.

Clark et al. 2019 (section 6) compare heads by the sum over tokens of JS(a_i(t), a_j(t)). Here it is the mean over
tokens in nats, which lies between 0 and ln 2 for any number of texts. Its square root is a metric.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertjax.data import Encoding, batches_by_length, collate
from bertjax.interventions import every_head
from bertjax.models import ModelOutput, PretrainedModel, compute
from bertjax.progress import Progress, silent

TOKENS = 4096
"""The approximate number of tokens to compare; the work grows with the square of the number of heads."""
BATCH_BYTES = 8 * 2**20  # for the differences between one head and all others


def texts_to_compare(lengths: Sequence[int], tokens: int = TOKENS) -> list[int]:
    """Choose texts at equal intervals with about this total number of tokens; at least one text.

    >>> texts_to_compare([10, 10, 10, 10], 20)
    [0, 2]
    """
    count = min(len(lengths), max(1, round(tokens / (sum(lengths) / len(lengths)))))
    return [index * len(lengths) // count for index in range(count)]


def read_distances(
    model: PretrainedModel, encodings: Sequence[Encoding], pad_id: int, *, progress: Progress = silent
) -> Float[np.ndarray, "all_heads all_heads"]:
    """The mean divergence of the weights of each two heads; heads in the order of `every_head`.

    Args:
        model: the model.
        encodings: the tokenised texts or pairs.
        pad_id: the token id of padding.
        progress: called with the number of texts done and in total.
    """
    config = model.config
    lengths = [len(encoding) for encoding in encodings]
    heads = config.num_hidden_layers * config.num_attention_heads
    size = int(np.clip(BATCH_BYTES // (4 * heads * max(lengths) ** 2), 1, len(encodings)))
    total, done = np.zeros((heads, heads)), 0
    for places, width in batches_by_length(lengths, size, max_length=config.max_tokens):
        first = np.array([places.index(place) == number for number, place in enumerate(places)])
        inputs = model.inputs(**collate([encodings[place] for place in places], width, pad_id))
        counted = jnp.asarray(first, model.numerics.wide)  # a batch may be filled with repeats
        total += np.asarray(compute(_sum_of_divergences, model, inputs, counted), np.float64)
        done += int(first.sum())
        progress(float(done), float(len(encodings)))
    layers, numbers = np.array(every_head(config)).T
    present = layers * config.num_attention_heads + numbers
    both = (total + total.T) / 2  # equal but for rounding
    return both[np.ix_(present, present)] / sum(lengths)


def _sum_of_divergences(output: ModelOutput, counted: Float[Array, " batch"]) -> Float[Array, "all_heads all_heads"]:
    """Sums of divergences over the real tokens of the counted texts."""
    inside, weights = output.inside, output.attentions
    layers, batch, heads, query, key = weights.shape
    maps = jnp.moveaxis(weights, 1, 2).reshape(layers * heads, batch, query, key)
    real = jnp.max(inside.keep, axis=1) * counted[:, None]
    own = jnp.einsum("nbq,bq->n", _entropies(maps), real, precision="highest")

    def entropies_with(one: Float[Array, "batch query key"]) -> Float[Array, " all_heads"]:
        return jnp.einsum("nbq,bq->n", _entropies((maps + one[None]) / 2), real, precision="highest")

    both = jax.lax.map(entropies_with, maps)
    return jnp.maximum(both - (own[:, None] + own[None]) / 2, 0.0)


def _entropies(weights: Float[Array, "*rows key"]) -> Float[Array, "*rows"]:
    """-sum a ln a of each row."""
    safe = jnp.where(weights > 0, weights, 1.0)
    return -(weights * jnp.log(safe)).sum(axis=-1)
