"""Edge probes: how well a small network reads the label of a span, or of a pair of spans, from activations.

The network is that of Tenney et al. 2019 ("What do you learn from context?") as in the program of its authors (jiant):
for each span of a target a projection of the activations, `p_i = A h_i + b`, and attentive pooling over the span,
`sum_i softmax(w . p_i) p_i`; then a layer with tanh, layer normalisation and dropout, and a linear layer. Three things
differ: units are words, not word pieces; a target has one label, so that the loss is the cross-entropy of a softmax;
and the learning rate, the size of batches and the rule that ends the training are those for small data sets.

A probe of several layers reads their scalar mix (Tenney et al. 2019, "BERT Rediscovers the Classical NLP Pipeline",
equation 1): `gamma sum_l s_l h_l` with `s = softmax(a)`. Layers with large activations have a larger share of a mix
than their weights say (Fayyaz et al. 2021).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from bertjax.errors import InputError

WIDTH = 256  # of projections and of the hidden layer
DROPOUT = 0.3
EPSILON = 1e-5  # of layer normalisation, as in PyTorch
LEARNING_RATE = 1e-3
BATCH = 64  # targets in a step of training
ROUNDS = 40  # at most
STEPS = 20  # of a round at least; a round is one pass through the training set or several
PATIENCE = 3  # rounds without more right targets of the selection set, after which training ends
AT_ONCE = 2048  # targets in a step of prediction
ADAM = optax.adam(LEARNING_RATE)

Parameters = Mapping[str, Array]


@dataclass(frozen=True)
class EdgeClassifier:
    """A trained edge probe.

    Args:
        parameters: the parameters of the network by name.
        rounds: the number of rounds of training.
    """

    parameters: Parameters
    rounds: int

    @property
    def mix_weights(self) -> Float[np.ndarray, " layers"]:
        """The weight `s_l` of each layer in the scalar mix."""
        return np.asarray(jax.nn.softmax(self.parameters["mix"]))

    def predict(
        self, states: Float[np.ndarray, "layers units embed"], spans: Int[np.ndarray, "targets slots 2"]
    ) -> Int[np.ndarray, " targets"]:
        """The most likely class of each target.

        Args:
            states: the activations of all units in the layers of the probe.
            spans: the first unit of each span, and one past its last.
        """
        return _predict(self.parameters, jnp.asarray(states), spans)


def fit_edge_probe(
    states: Float[np.ndarray, "layers units embed"],
    spans: Int[np.ndarray, "targets slots 2"],
    labels: Int[np.ndarray, " targets"],
    train: Int[np.ndarray, " train"],
    select: Int[np.ndarray, " select"],
    *,
    classes: int | None = None,
    mixed: int | None = None,
    linear: bool = False,
    seed: int = 0,
) -> EdgeClassifier:
    """Train an edge probe, and keep the parameters after the round that is best on the selection set.

    A round is a pass through the training set, or several passes if it is small. The activations of the layers must fit
    into the memory of the device.

    Args:
        states: the activations of all units in one layer, or in the layers of a scalar mix.
        spans: the first unit of each span of each target, and one past its last.
        labels: class ids of all targets.
        train: indices of the targets that train.
        select: indices of the targets that select.
        classes: the number of classes; by default the largest label plus 1.
        mixed: the number of layers in the mix, from the first one; by default all.
        linear: whether a linear classifier reads the pooled spans, without a hidden layer.
        seed: seed of the initial parameters, the order of targets and dropout.

    Raises:
        InputError: nothing to train on, or an empty span.
    """
    if not len(train):
        raise InputError("an edge probe needs at least one target to train on")
    if (spans[..., 0] >= spans[..., 1]).any():
        raise InputError(f"target {int((spans[..., 0] >= spans[..., 1]).any(axis=1).argmax())} has an empty span")
    rng = np.random.default_rng(seed)
    count = int(labels.max()) + 1 if classes is None else classes
    parameters = _initial(rng, states, spans.shape[1], count, linear, mixed)
    on_device, adam = jnp.asarray(states), ADAM.init(dict(parameters))
    size = min(BATCH, len(train))
    passes = -(-STEPS * size // len(train))
    best, best_hits, best_round, done = parameters, -1, 0, 0
    for done in range(1, ROUNDS + 1):
        inputs = _batches(spans, labels, np.concatenate([rng.permutation(train) for _ in range(passes)]), size)
        parameters, adam = _round(parameters, adam, on_device, inputs, jax.random.key(int(rng.integers(2**31))))
        hits = int((_predict(parameters, on_device, spans[select]) == labels[select]).sum())
        if hits > best_hits:
            best, best_hits, best_round = parameters, hits, done
        elif done >= best_round + PATIENCE:
            break
    return EdgeClassifier(best, done)


def centre_of_gravity(weights: Float[np.ndarray, " layers"]) -> float:
    """The mean layer of a scalar mix, `sum_l l s_l` (Tenney et al. 2019, equation 2); layer 0 are the embeddings.

    Args:
        weights: the weight of each layer.

    >>> centre_of_gravity(np.array([0.25, 0.25, 0.5]))
    1.25
    """
    return float(np.arange(len(weights)) @ weights)


def expected_layer(scores: Float[np.ndarray, " layers"]) -> float | None:
    """The layer at which targets are labelled correctly, on average (Tenney et al. 2019, equations 3 and 4).

    `sum_l l d_l / sum_l d_l` for l from 1, where `d_l` is the score of the mix of layers 0 to l minus that of the mix
    of layers 0 to l - 1.

    Args:
        scores: the score of each mix; that of layer 0 first.

    Returns: the layer; None if the layers add nothing to the score of the embeddings.

    >>> expected_layer(np.array([0.5, 0.75, 0.75, 0.875]))
    1.6666666666666667
    """
    gains = np.diff(scores)
    return float(np.arange(1, len(scores)) @ gains / gains.sum()) if gains.sum() > 0 else None


@dataclass(frozen=True)
class _Batch:
    """Targets of one step or of several."""

    places: Int[Array, "*steps batch slots length"]
    inside: Bool[Array, "*steps batch slots length"]
    labels: Int[Array, "*steps batch"]
    weights: Float[Array, "*steps batch"]


jax.tree_util.register_dataclass(_Batch, ["places", "inside", "labels", "weights"], [])


def _batches(
    spans: Int[np.ndarray, "targets slots 2"],
    labels: Int[np.ndarray, " targets"],
    chosen: Int[np.ndarray, " chosen"],
    size: int,
) -> _Batch:
    """Targets in batches. Padding of the last batch has weight 0. Spans are padded to the length of the longest."""
    steps = -(-len(chosen) // size)
    filled = np.resize(chosen, steps * size)
    longest = int((spans[..., 1] - spans[..., 0]).max())
    places = spans[filled, :, :1] + np.arange(longest)
    inside = places < spans[filled, :, 1:]
    weights = (np.arange(len(filled)) < len(chosen)).astype(np.float32)
    arrays = (np.where(inside, places, 0).astype(np.int32), inside, labels[filled].astype(np.int32), weights)
    return _Batch(*(jnp.asarray(array.reshape(steps, size, *array.shape[1:])) for array in arrays))


def _initial(
    rng: np.random.Generator, states: np.ndarray, slots: int, classes: int, linear: bool, mixed: int | None
) -> dict[str, Array]:
    """Initial parameters: uniform in +-1 / sqrt(inputs), as in PyTorch; equal weights of the first `mixed` layers."""
    layers, _, embed = states.shape

    def draw(inputs: int, *shape: int) -> np.ndarray:
        return rng.uniform(-1, 1, shape) / np.sqrt(inputs)

    hidden = WIDTH * slots if linear else WIDTH
    values: dict[str, np.ndarray] = {
        "mix": np.where(np.arange(layers) < (mixed or layers), 0.0, -np.inf),
        "scale": np.ones(()),
        "projection": draw(embed, slots, embed, WIDTH),
        "projection_bias": draw(embed, slots, WIDTH),
        "attention": draw(WIDTH, slots, WIDTH),
        "output": draw(hidden, hidden, classes),
        "output_bias": draw(hidden, classes),
    }
    if not linear:
        values |= {
            "hidden": draw(WIDTH * slots, WIDTH * slots, WIDTH),
            "hidden_bias": draw(WIDTH * slots, WIDTH),
            "norm": np.ones(WIDTH),
            "norm_bias": np.zeros(WIDTH),
        }
    return {name: jnp.asarray(value, states.dtype) for name, value in values.items()}


def _multiply(subscripts: str, *arrays: Array) -> Array:
    return jnp.einsum(subscripts, *arrays, precision="highest")


def _read(
    parameters: Parameters,
    states: Float[Array, "layers units embed"],
    places: Int[Array, "slots length"],
    inside: Bool[Array, "slots length"],
) -> Float[Array, " hidden"]:
    """The features of one target, which the last layer classifies."""
    words = states[:, places]
    mixed = words[0]
    if len(states) > 1:
        mixed = parameters["scale"] * _multiply("l,lsne->sne", jax.nn.softmax(parameters["mix"]), words)
    projected = _multiply("sne,sep->snp", mixed, parameters["projection"]) + parameters["projection_bias"][:, None]
    scores = jnp.where(inside, _multiply("snp,sp->sn", projected, parameters["attention"]), -jnp.inf)
    pooled = _multiply("sn,snp->sp", jax.nn.softmax(scores), projected).reshape(-1)
    if "hidden" not in parameters:
        return pooled
    hidden = jnp.tanh(_multiply("i,ih->h", pooled, parameters["hidden"]) + parameters["hidden_bias"])
    centred = hidden - hidden.mean()
    return centred * jax.lax.rsqrt((centred**2).mean() + EPSILON) * parameters["norm"] + parameters["norm_bias"]


def _logits(
    parameters: Parameters, states: Float[Array, "layers units embed"], batch: _Batch, key: Array | None = None
) -> Float[Array, "batch classes"]:
    """The logits of the targets of a batch; with a key for dropout, those of training."""
    features = jax.vmap(partial(_read, parameters, states))(batch.places, batch.inside)
    if key is not None:
        kept = jax.random.bernoulli(key, 1 - DROPOUT, features.shape)
        features = jnp.where(kept, features / (1 - DROPOUT), 0.0)
    return _multiply("bh,hc->bc", features, parameters["output"]) + parameters["output_bias"][None]


def _loss(
    parameters: Parameters, states: Float[Array, "layers units embed"], batch: _Batch, key: Array | None = None
) -> Float[Array, ""]:
    """The mean cross-entropy of the targets of a batch."""
    logits = _logits(parameters, states, batch, key)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
    weights = batch.weights.astype(losses.dtype)
    return (losses * weights).sum() / weights.sum()


@jax.jit
def _round(
    parameters: Parameters, adam: Any, states: Float[Array, "layers units embed"], batches: _Batch, key: Array
) -> tuple[Parameters, Any]:
    """A step of Adam for each batch."""

    def step(before: tuple[Parameters, Any], inputs: tuple[_Batch, Array]) -> tuple[tuple[Parameters, Any], None]:
        parameters, adam = before
        gradients = jax.grad(_loss)(parameters, states, *inputs)
        with jax.numpy_dtype_promotion("standard"):  # optax counts steps as integers and multiplies by them
            updates, adam = ADAM.update(gradients, adam)
        return (optax.apply_updates(parameters, updates), adam), None

    keys = jax.random.split(key, len(batches.labels))
    after, _ = jax.lax.scan(step, (parameters, adam), (batches, keys))
    return after


@jax.jit
def _most_likely(
    parameters: Parameters, states: Float[Array, "layers units embed"], batches: _Batch
) -> Int[Array, "steps batch"]:
    return jax.lax.map(lambda batch: _logits(parameters, states, batch).argmax(axis=-1), batches)


def _predict(
    parameters: Parameters, states: Float[Array, "layers units embed"], spans: Int[np.ndarray, "targets slots 2"]
) -> Int[np.ndarray, " targets"]:
    """The most likely class of each target."""
    batches = _batches(spans, np.zeros(len(spans), np.int32), np.arange(len(spans)), min(AT_ONCE, max(1, len(spans))))
    return np.asarray(_most_likely(parameters, states, batches)).reshape(-1)[: len(spans)]
