"""The class of each head's map on each example, by the network and by a classifier that reads five numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from experiments.patterns.maps import NAMES, sizes_of
from experiments.patterns.network import SIZE, PatternNetwork, class_shares, five_numbers, resize_maps
from experiments.shared.attention import stream_attention
from experiments.shared.data import Sample
from experiments.shared.run import Run


@dataclass(frozen=True)
class Patterns:
    """The results for one task, by seed of the fine-tuned models (a single seed for the untuned model)."""

    sample: Sample
    classes: Int[np.ndarray, "seeds examples layers heads"]
    rival: Int[np.ndarray, "seeds examples layers heads"]

    @property
    def by_example(self) -> Float[np.ndarray, "examples classes"]:
        """Shares of the classes among the heads of each example, mean over seeds."""
        return np.mean([shares_of(classes) for classes in self.classes], axis=0)

    @property
    def shares(self) -> Float[np.ndarray, " classes"]:
        """Shares of the classes among all maps."""
        return self.by_example.mean(0)

    @property
    def by_head(self) -> Float[np.ndarray, "layers heads classes"]:
        """Shares of the classes among the maps of each head, mean over seeds."""
        return (self.classes[..., None] == np.arange(len(NAMES))).mean((0, 1))


def shares_of(classes: Int[np.ndarray, "examples layers heads"]) -> Float[np.ndarray, "examples classes"]:
    """Shares of the classes among the heads of each example.

    >>> shares_of(np.array([[[0, 0], [2, 4]]])).tolist()
    [[0.5, 0.0, 0.25, 0.0, 0.25]]
    """
    return (classes[..., None] == np.arange(len(NAMES))).mean((1, 2))


@cache
def _graph() -> Any:
    return nnx.split(nnx.eval_shape(lambda: PatternNetwork(nnx.Rngs(0))))


def classify(
    weights: Sequence[Array],
    attentions: Float[Array, "layers batch heads query key"],
    keep: Int[Array, "batch token"],
    first: Int[Array, " batch"],
) -> Float[Array, "batch layers heads 10"]:
    """Class probabilities of each map, followed by its five numbers.

    Args:
        weights: the network's weights, in the order of its tree.
        first: number of tokens of each first text.
    """
    graph, state = _graph()
    network = nnx.merge(graph, jax.tree.unflatten(jax.tree.structure(state), weights))
    probabilities = class_shares(network, resize_maps(attentions, keep, first))
    return jnp.concatenate([jnp.moveaxis(probabilities, 0, 1), five_numbers(attentions, keep, first)], axis=-1)


def find_patterns(run: Run, model: Any, sample: Sample, classifier: Any, rival: Any) -> Any:
    """The class of every head on every example, by the network (`classify` with its weights) and by its rival."""
    first = np.array([sizes_of(text)[0] for text in sample.texts], np.int32)
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    values = np.zeros((len(sample), layers, heads, 10), np.float32)
    options: dict[str, Any] = {"example_bytes": 3 * layers * heads * SIZE**2 * 16 * 4, "norms": run.norms}
    for indices, found in stream_attention(
        model, sample.texts, classifier, lambda indices: [first[indices]], **options
    ):
        values[indices] = found
    numbers = values[..., len(NAMES) :]
    rival_classes = rival.predict(numbers.reshape(-1, numbers.shape[-1])).reshape(numbers.shape[:-1])
    return values[..., : len(NAMES)].argmax(-1).astype(np.int8), rival_classes.astype(np.int8)
