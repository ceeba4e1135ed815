"""Structural probes: syntax trees in the geometry of a layer (Hewitt and Manning 2019).

A structural probe is a linear map B. The squared distance `|B (h_i - h_j)|^2` of two words is trained to equal the
number of edges between them in the sentence's dependency tree, or the squared norm `|B h_i|^2` to equal the depth of a
word.

The loss, the optimiser and the scores are those of the paper and of its authors' program: L1 loss, divided by the
square of the sentence's length for distances and by the length for depths; Adam, whose learning rate is divided by 10
after each epoch without a lower loss on the selection set.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Num
from scipy.sparse.csgraph import minimum_spanning_tree, shortest_path

from bertjax.errors import InputError

Target = Literal["distance", "depth"]
ADAM = optax.scale_by_adam()
LEARNING_RATE = 1e-3
INITIAL = 0.05  # entries of B are drawn between -INITIAL and INITIAL
PATIENCE = 5  # epochs without a lower loss on the selection set, after which training ends
LEAST_GAIN = 1e-4  # of the loss on the selection set
STEP = 16  # sentences are padded to multiples of this, so that few programs are compiled
LENGTHS = (5, 50)  # words of the sentences whose rank correlations count


def tree_distances(heads: Sequence[int]) -> Int[np.ndarray, "words words"]:
    """The number of edges between each two words of a dependency tree.

    Args:
        heads: the head of each word, counted from 1; 0 for the root.

    Raises:
        InputError: the heads are no tree.

    >>> tree_distances([2, 0, 2]).tolist()
    [[0, 1, 2], [1, 0, 1], [2, 1, 0]]
    """
    count = len(heads)
    graph = np.zeros((count, count))
    for word, head in enumerate(heads):
        if head:
            graph[word, head - 1] = 1
    found = shortest_path(graph, directed=False, unweighted=True)
    if np.count_nonzero(graph) != count - 1 or not np.isfinite(found).all():
        raise InputError(f"the heads {list(heads)} are no tree of {count} words with one root")
    return found.astype(np.int64)


def tree_depths(heads: Sequence[int]) -> Int[np.ndarray, " words"]:
    """The number of edges between each word and the root of a dependency tree.

    Args:
        heads: the head of each word, counted from 1; 0 for the root.

    Raises:
        InputError: the heads are no tree.

    >>> tree_depths([2, 0, 2]).tolist()
    [1, 0, 1]
    """
    distances = tree_distances(heads)
    return np.asarray(distances[list(heads).index(0)])


@dataclass(frozen=True)
class StructuralProbe:
    """A linear map of representations, whose distances or norms are those of trees.

    Args:
        projection: the transposed map, B'.
        epochs: the number of epochs of training.
        loss: the loss on the selection set.
    """

    projection: Float[np.ndarray, "embed rank"]
    epochs: int
    loss: float

    def distances(self, states: Float[np.ndarray, "words embed"]) -> Float[np.ndarray, "words words"]:
        """The squared distance of each two words of a sentence."""
        return np.asarray(_distances(jnp.asarray(states @ self.projection)))

    def depths(self, states: Float[np.ndarray, "words embed"]) -> Float[np.ndarray, " words"]:
        """The squared norm of each word of a sentence."""
        return np.asarray(((states @ self.projection) ** 2).sum(axis=-1))


def fit_structural_probe(
    states: Float[np.ndarray, "units embed"],
    sentences: Sequence[Int[np.ndarray, " _"]],
    trees: Sequence[Sequence[int]],
    train: Int[np.ndarray, " train"],
    select: Int[np.ndarray, " select"],
    *,
    target: Target = "distance",
    rank: int | None = None,
    epochs: int = 30,
    batch: int = 20,
    seed: int = 0,
) -> StructuralProbe:
    """Train a structural probe.

    Args:
        states: the representations of the words of all sentences.
        sentences: for each sentence, the rows of its words in `states`.
        trees: for each sentence, the head of each word, counted from 1; 0 for the root.
        train: indices of the sentences that train.
        select: indices of the sentences whose loss ends the training and selects the epoch.
        target: 'distance' or 'depth'.
        rank: the number of dimensions of the projection; by default all.
        epochs: the largest number of epochs.
        batch: the number of sentences of a step.
        seed: seed of the initial projection and of the order of sentences.

    Raises:
        InputError: no sentence trains or selects, or a tree does not fit its sentence.
    """
    if not len(train) or not len(select):
        raise InputError("a structural probe needs sentences to train on and sentences to select by")
    for index, (rows, heads) in enumerate(zip(sentences, trees, strict=True)):
        if len(rows) != len(heads):
            raise InputError(f"sentence {index} has {len(rows)} words, but {len(heads)} heads")
    generator = np.random.default_rng(seed)
    width = states.shape[1]
    projection = jnp.asarray(generator.uniform(-INITIAL, INITIAL, (width, rank or width)), states.dtype)
    make = partial(_batches, states, sentences, [_gold(target, heads) for heads in trees], target=target, size=batch)
    adam_state, rate = ADAM.init(projection), LEARNING_RATE
    best, lowest, best_epoch, last = projection, np.inf, -1, np.inf
    done = 0
    for epoch in range(epochs):
        for inputs in make(generator.permutation(train)):
            projection, adam_state = _step(projection, adam_state, inputs, jnp.asarray(rate, states.dtype), target)
        losses = [float(_loss(projection, *inputs, target)) for inputs in make(select)]
        loss, done = sum(losses) / len(select), epoch + 1
        rate, last = (rate, loss) if loss < last else (rate / 10, last)
        if loss < lowest - LEAST_GAIN:
            best, lowest, best_epoch = projection, loss, epoch
        elif best_epoch <= epoch - PATIENCE:
            break
    return StructuralProbe(np.asarray(best), done, float(lowest))


Batch = tuple[Float[Array, "batch words embed"], Float[Array, "batch ..."], Int[Array, " batch"]]


def _gold(target: Target, heads: Sequence[int]) -> np.ndarray:
    return tree_distances(heads) if target == "distance" else tree_depths(heads)


def _batches(
    states: np.ndarray,
    sentences: Sequence[np.ndarray],
    gold: Sequence[np.ndarray],
    chosen: np.ndarray,
    *,
    target: Target,
    size: int,
) -> list[Batch]:
    """Sentences in batches of one size, padded to few lengths; an empty sentence has length 0."""
    found = []
    for start in range(0, len(chosen), size):
        part = chosen[start : start + size]
        longest = -(-max(len(sentences[index]) for index in part) // STEP) * STEP
        shape = (longest, longest) if target == "distance" else (longest,)
        inputs = np.zeros((size, longest, states.shape[1]), states.dtype)
        true, lengths = np.zeros((size, *shape), states.dtype), np.zeros(size, np.int32)
        for place, index in enumerate(part.tolist()):
            count = len(sentences[index])
            inputs[place, :count], lengths[place] = states[sentences[index]], count
            true[place][tuple(slice(count) for _ in shape)] = gold[index]
        found.append((jnp.asarray(inputs), jnp.asarray(true), jnp.asarray(lengths)))
    return found


def _distances(projected: Float[Array, "*batch words rank"]) -> Float[Array, "*batch words words"]:
    """Squared distances. (Differences of norms would lose digits where distances are small.)"""
    differences = projected[..., :, None, :] - projected[..., None, :, :]
    return (differences**2).sum(axis=-1)


@partial(jax.jit, static_argnums=4)
def _loss(
    projection: Float[Array, "embed rank"],
    states: Float[Array, "batch words embed"],
    true: Float[Array, "batch ..."],
    lengths: Int[Array, " batch"],
    target: Target,
) -> Float[Array, ""]:
    """The sum over sentences of the mean absolute error of pairs of words, or of words."""
    projected = jnp.matmul(states, projection, precision="highest")
    inside = (jnp.arange(states.shape[1])[None] < lengths[:, None]).astype(states.dtype)
    if target == "distance":
        found, inside = _distances(projected), inside[:, :, None] * inside[:, None, :]
    else:
        found = (projected**2).sum(axis=-1)
    errors = (jnp.abs(found - true) * inside).reshape(len(states), -1).sum(axis=1)
    counts = jnp.maximum(inside.reshape(len(states), -1).sum(axis=1), 1)
    return (errors / counts).sum()


@partial(jax.jit, static_argnums=4)
def _step(
    projection: Float[Array, "embed rank"], adam_state: Any, inputs: Batch, rate: Float[Array, ""], target: Target
) -> tuple[Float[Array, "embed rank"], Any]:
    """A step of Adam on the mean loss of a batch's sentences."""
    sentences = jnp.maximum((inputs[2] > 0).sum(), 1).astype(projection.dtype)
    gradient = jax.grad(lambda value: _loss(value, *inputs, target) / sentences)(projection)
    with jax.numpy_dtype_promotion("standard"):  # optax counts steps as integers and multiplies by them
        updates, adam_state = ADAM.update(gradient, adam_state)
    return projection - rate * updates, adam_state


def tree_edges(
    distances: Num[np.ndarray, "words words"], keep: Bool[np.ndarray, " words"] | None = None
) -> set[tuple[int, int]]:
    """The edges of the minimum spanning tree of distances, as pairs of words in ascending order.

    Args:
        distances: between words; above 0 for different words.
        keep: the words that belong to the tree, such as all words but punctuation; by default all.
    """
    words = np.arange(len(distances)) if keep is None else np.flatnonzero(keep)
    part = np.maximum(np.asarray(distances, np.float64)[np.ix_(words, words)], np.finfo(np.float64).tiny)
    rows, columns = minimum_spanning_tree(np.triu(part, 1)).nonzero()
    pairs = zip(words[rows].tolist(), words[columns].tolist(), strict=True)
    return {(min(pair), max(pair)) for pair in pairs}


def attachment_counts(
    distances: Num[np.ndarray, "words words"], heads: Sequence[int], keep: Bool[np.ndarray, " words"] | None = None
) -> tuple[int, int]:
    """The number of right edges of a sentence, and of true edges: their ratio of sums is the UUAS.

    UUAS is the undirected unlabelled attachment score: the share of edges of the true tree that are in the minimum
    spanning tree of the distances. Both trees are those of the words in `keep`.

    Args:
        distances: predicted distances between words.
        heads: the head of each word, counted from 1; 0 for the root.
        keep: the words that count; the paper leaves out punctuation.
    """
    true = tree_edges(tree_distances(heads), keep)
    return len(true & tree_edges(distances, keep)), len(true)


def mean_rank_correlation(
    predicted: Sequence[Float[np.ndarray, "_ ..."]], true: Sequence[Int[np.ndarray, "_ ..."]]
) -> float:
    """The mean Spearman correlation, over sentences of each length and then over the lengths from 5 to 50 words.

    For distances the correlations are those of each word's distances, for depths those of a sentence's depths. An
    undefined correlation is left out.

    Args:
        predicted: distances or depths of each sentence.
        true: distances or depths in each sentence's tree.
    """
    by_length: dict[int, list[float]] = {}
    for found, gold in zip(predicted, true, strict=True):
        if LENGTHS[0] <= len(gold) <= LENGTHS[1]:
            by_length.setdefault(len(gold), []).extend(rank_correlations(found, gold))
    means = [np.mean(values) for values in by_length.values() if values]
    return float(np.mean(means)) if means else float("nan")


def rank_correlations(predicted: Float[np.ndarray, "words ..."], true: Int[np.ndarray, "words ..."]) -> list[float]:
    """The defined Spearman correlations of a sentence: of each word's distances, or the one of its depths.

    Args:
        predicted: distances or depths.
        true: distances or depths in the tree.
    """
    from scipy.stats import spearmanr  # takes a second to import

    rows = zip(predicted, true, strict=True) if np.ndim(true) == 2 else [(predicted, true)]
    return [float(spearmanr(one, other).statistic) for one, other in rows if np.ptp(one) and np.ptp(other)]
