"""Train a classifier of sentences or pairs: batches, loss, optimizer and step, on all devices at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Key, Shaped
from tqdm import tqdm

from bertjax import collate
from bertjax.data import Encoding
from bertjax.models import Graph, PretrainedModel, State
from bertjax.tasks import EncodedDataset, batch_encodings
from experiments.training.dropout import train_logits

# Batches hold texts of similar length, sorted within groups of this many batches.
BATCHES_SORTED = 16
# Padded lengths: fewer than for inference, since a training step takes longer to compile.
WIDTHS = (16, 32, 48, 64, 80, 96, 128, 192, 256, 384, 512)

Parameters = dict[str, Array]
Batch = dict[str, Any]  # NumPy or JAX arrays, as `make_batch` returns them


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; the defaults are those of Kovaleva et al. 2019.

    Args:
        learning_rate: the peak, reached after the warm-up; then the rate falls linearly to 0.
        warmup: share of all steps during which the learning rate rises linearly from 0.
        weight_decay: for kernels and embeddings, not for biases and norms (Devlin et al. 2019).
        largest_gradient: gradients are scaled down to this norm, over all parameters or, if `published`, over each one.
        seed: for the new head, the order of the examples and dropout.
        published: train as the authors' program does: BertAdam instead of AdamW, batches not sorted by length, and
            a schedule that counts only full batches.
    """

    learning_rate: float = 5e-5
    warmup: float = 0.1
    epochs: int = 3
    batch_size: int = 32
    weight_decay: float = 0.01
    largest_gradient: float = 1.0
    seed: int = 0
    published: bool = False


@dataclass(frozen=True)
class Skeleton:
    """A hashable model without its parameters; `merge` adds them."""

    graphdef: Any
    structure: Any
    names: tuple[str, ...]

    @classmethod
    def of(cls, model: PretrainedModel) -> "Skeleton":
        """The skeleton of a model."""
        graphdef, state = nnx.split(model)
        return cls(graphdef, jax.tree.structure(state), tuple(model.parameters()))

    def merge(self, parameters: Parameters) -> Any:
        """The model with these parameters."""
        return nnx.merge(self.graphdef, jax.tree.unflatten(self.structure, [parameters[name] for name in self.names]))


@cache
def make_optimizer(
    weight_decay: float, largest_gradient: float, published: bool = False
) -> optax.GradientTransformation:
    """AdamW (Loshchilov and Hutter 2019) with PyTorch's constants, or BertAdam if `published`; at a learning rate of 1.

    BertAdam (Devlin et al. 2019, as in its PyTorch port) does not correct the bias of the moments, adds 1e-6 instead of
    1e-8, and clips the gradient of each parameter separately. The rate is an argument of each step, so that runs of any
    length and seed share the compiled step.
    """
    if not published:
        adam = optax.adamw(1.0, b1=0.9, b2=0.999, eps=1e-8, weight_decay=weight_decay, mask=_decayed)
        return optax.chain(optax.clip_by_global_norm(largest_gradient), adam)
    decay = optax.add_decayed_weights(weight_decay, mask=_decayed)
    return optax.chain(_clip_each(largest_gradient), _uncorrected_adam(0.9, 0.999, 1e-6), decay, optax.scale(-1.0))


def _clip_each(largest: float) -> optax.GradientTransformation:
    """Scale the gradient of each parameter down to a largest norm."""

    def clip(gradient: Array) -> Array:
        return gradient * jnp.minimum(1.0, largest / (jnp.linalg.norm(gradient.ravel()) + 1e-6))

    return optax.stateless(lambda gradients, parameters: jax.tree.map(clip, gradients))


class Moments(NamedTuple):
    """Running means of the gradients and of their squares."""

    first: Any
    second: Any


def _uncorrected_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Adam's step (Kingma and Ba 2015) without the correction of the moments' bias towards 0."""

    def init(parameters: Parameters) -> Moments:
        return Moments(*(jax.tree.map(jnp.zeros_like, parameters) for _ in range(2)))

    def update(gradients: Any, memory: Moments, parameters: Any = None) -> tuple[Any, Moments]:
        first = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, memory.first, gradients)
        second = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, memory.second, gradients)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), first, second), Moments(first, second)

    return optax.GradientTransformation(init, update)


def learning_rates(recipe: Recipe, steps: int) -> Float[np.ndarray, "steps"]:
    """The learning rate of each step."""
    warm = int(recipe.warmup * steps)
    rise = optax.linear_schedule(0.0, recipe.learning_rate, max(warm, 1))
    fall = optax.linear_schedule(recipe.learning_rate, 0.0, max(steps - warm, 1))
    with jax.numpy_dtype_promotion("standard"):
        return np.asarray(optax.join_schedules([rise, fall], [warm])(jnp.arange(steps)), np.float32)


def published_rates(recipe: Recipe, examples: int) -> Float[np.ndarray, "steps"]:
    """The learning rate of each step in the authors' program.

    It counts `floor(examples / batch_size) * epochs` steps, though every epoch has one more if examples are left over,
    so the last steps have rate 0.

    >>> published_rates(Recipe(learning_rate=1.0, warmup=0.5, batch_size=2, epochs=2), 5).round(2).tolist()
    [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]
    """
    steps = -(-examples // recipe.batch_size) * recipe.epochs
    share = np.arange(steps) / max(examples // recipe.batch_size * recipe.epochs, 1)
    fall = np.maximum(1 - share, 0) / (1 - recipe.warmup)
    rising = share < recipe.warmup
    return (recipe.learning_rate * np.where(rising, share / (recipe.warmup or 1.0), fall)).astype(np.float32)


def _decayed(parameters: Parameters) -> dict[str, bool]:
    return {name: not name.endswith((".bias", "norm.scale")) for name in parameters}


def order_batches(lengths: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch: shuffled examples, each once, grouped by similar length, and the batches shuffled again.

    >>> order_batches([5, 9, 5, 9, 5], 2, seed=0, epoch=0) == order_batches([5, 9, 5, 9, 5], 2, seed=0, epoch=0)
    True
    """
    rng = np.random.default_rng((seed, epoch))
    indices, group = rng.permutation(len(lengths)).tolist(), BATCHES_SORTED * batch_size
    batches = []
    for start in range(0, len(indices), group):
        group_indices = sorted(indices[start : start + group], key=lambda index: lengths[index])
        batches += [group_indices[first : first + batch_size] for first in range(0, len(group_indices), batch_size)]
    return [batches[number] for number in rng.permutation(len(batches)).tolist()]


def random_batches(count: int, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch as published: shuffled examples, each once; the last batch may be smaller.

    >>> sorted(sum(random_batches(5, 2, seed=0, epoch=0), [])), [len(one) for one in random_batches(5, 2, 0, 0)]
    ([0, 1, 2, 3, 4], [2, 2, 1])
    """
    indices = np.random.default_rng((seed, epoch)).permutation(count).tolist()
    return [indices[start : start + batch_size] for start in range(0, count, batch_size)]


def make_batch(
    texts: Sequence[Encoding], labels: Shaped[np.ndarray, "examples"], rows: int, pad_id: int, positions: int
) -> dict[str, np.ndarray]:
    """A batch of at least `rows` rows: the examples, then repeats of the last with weight 0 (`share`).

    Returns: `input_ids`, `attention_mask` and `token_type_ids` `[batch, token]`; `labels` and `share` `[batch]`.
    """
    longest = max(len(text) for text in texts)
    width = min(next((width for width in WIDTHS if width >= longest), longest), positions)
    padded_texts = [*texts, *[texts[-1]] * (rows - len(texts))]
    share = (np.arange(rows) < len(texts)).astype(np.float32)
    padded_labels = np.pad(labels, (0, rows - len(texts)), mode="edge")
    return {**collate(padded_texts, width, pad_id), "labels": padded_labels, "share": share}


def loss_of(
    logits: Float[Array, "batch labels"], labels: Shaped[Array, "batch"], share: Float[Array, "batch"]
) -> Float[Array, ""]:
    """The mean loss of the examples that count: cross-entropy for classes, squared error for numbers.

    Args:
        labels: integers are classes; floats are regression targets (with a single logit).
        share: 1 for examples that count, 0 for others.
    """
    if jnp.issubdtype(labels.dtype, jnp.floating):
        losses = (logits[:, 0] - labels.astype(logits.dtype)) ** 2
    else:
        losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)[:, 0]
    counts = share.astype(losses.dtype)
    return jnp.sum(counts * losses) / jnp.sum(counts)


def batch_loss(skeleton: Skeleton, parameters: Parameters, batch: Batch, key: Key[Array, ""]) -> Float[Array, ""]:
    """The loss of one batch, with dropout."""
    model = skeleton.merge(parameters)
    inputs = model.inputs(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
    return loss_of(train_logits(model, inputs, key), jnp.asarray(batch["labels"]), jnp.asarray(batch["share"]))


# The loss of a batch, of the skeleton, the parameters, the batch and a key for dropout.
Loss: TypeAlias = Callable[[Skeleton, Parameters, Batch, Key[Array, ""]], Float[Array, ""]]


@partial(jax.jit, static_argnums=(0, 1), static_argnames="loss_of_batch", donate_argnums=(2, 3))
def train_step(
    skeleton: Skeleton,
    optimizer: optax.GradientTransformation,
    parameters: Parameters,
    memory: Any,
    batch: Batch,
    key: Key[Array, ""],
    *,
    rate: Float[Array, ""],
    loss_of_batch: Loss = batch_loss,
) -> tuple[Parameters, Any, Float[Array, ""]]:
    """Take one step at a learning rate: new parameters, the optimizer's new memory, and the loss before the step."""
    loss, gradients = jax.value_and_grad(partial(loss_of_batch, skeleton))(parameters, batch, key)
    with jax.numpy_dtype_promotion("standard"):  # optax counts steps as integers and multiplies by them
        updates, memory = optimizer.update(gradients, memory, parameters)
        updates = jax.tree.map(lambda update: rate * update, updates)
        return optax.apply_updates(parameters, updates), memory, loss


def dropout_key(seed: int, platform: str | None = None) -> Key[Array, ""]:
    """The key of the random numbers for dropout.

    On TPUs they come from the hardware generator, which is faster than JAX's default and compiles in a third of the
    time, but depends on the number of chips.

    Args:
        platform: defaults to the one in use.
    """
    return jax.random.key(seed, impl="rbg" if (platform or jax.default_backend()) == "tpu" else None)


class Trainer:
    """A classifier in training: parameters and optimizer are on all devices, and each batch is split among them.

    Args:
        model: a `BertForSequenceClassification`; training starts from its parameters.
        encoded: the training examples.
        labels: class numbers (int32) or targets (float32), in the task's order.
    """

    loss: Loss = staticmethod(batch_loss)

    def __init__(
        self, model: PretrainedModel, encoded: EncodedDataset, labels: Shaped[np.ndarray, "examples"], recipe: Recipe
    ):
        self.skeleton, self.recipe, self.encoded, self.labels = Skeleton.of(model), recipe, encoded, labels
        self.optimizer = make_optimizer(recipe.weight_decay, recipe.largest_gradient, recipe.published)
        devices = jax.devices()
        mesh = Mesh(np.array(devices), ("data",))  # its axes are Auto: XLA inserts the reductions
        self.rows = -(-recipe.batch_size // len(devices)) * len(devices)
        self.split, self.everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
        copies = {name: jnp.array(value) for name, value in model.parameters().items()}  # since they are donated
        self.parameters = jax.device_put(copies, self.everywhere)
        self.memory = jax.device_put(self.optimizer.init(self.parameters), self.everywhere)
        self.positions, self.lengths = model.config.max_tokens, [len(row) for row in encoded.encodings]
        self.steps = -(-len(labels) // recipe.batch_size)
        total = self.steps * recipe.epochs
        self.rates = published_rates(recipe, len(labels)) if recipe.published else learning_rates(recipe, total)

    @property
    def model(self) -> Any:
        """The model with its current parameters."""
        return self.skeleton.merge(self.parameters)

    def take_step(self, batch: Batch, number: int, rate: Shaped[np.ndarray, ""] | np.floating) -> float:
        """Learn from a batch of `rows` rows; the loss before that.

        Args:
            number: of the step, from 0: dropout is drawn by it.
            rate: the learning rate.
        """
        self.parameters, self.memory, loss = train_step(
            self.skeleton,
            self.optimizer,
            self.parameters,
            self.memory,
            jax.device_put(batch, self.split),
            jax.random.fold_in(dropout_key(self.recipe.seed), number),
            rate=jnp.asarray(rate),
            loss_of_batch=self.loss,
        )
        return float(loss)

    def run_epoch(self, epoch: int) -> list[float]:
        """Train on every example once; the loss of each step."""
        size, seed, losses = self.recipe.batch_size, self.recipe.seed, []
        if self.recipe.published:
            batches = random_batches(len(self.lengths), size, seed, epoch)
        else:
            batches = order_batches(self.lengths, size, seed, epoch)
        for number, indices in enumerate(tqdm(batches, f"epoch {epoch}", disable=None, leave=False)):
            rows = [self.encoded.encodings[index] for index in indices]
            batch = make_batch(rows, self.labels[indices], self.rows, self.encoded.pad_id, self.positions)
            step = epoch * self.steps + number
            losses.append(self.take_step(batch, step, self.rates[step]))
        return losses


def predict(
    model: PretrainedModel, encoded: EncodedDataset, batch_size: int = 32
) -> Float[np.ndarray, "examples labels"]:
    """Logits of every example without dropout, in the task's order of labels."""
    graphdef, state = nnx.split(model)
    all_logits: Any = None
    batches = batch_encodings(encoded, range(encoded.examples), batch_size, model.config.max_tokens)
    for indices, batch in batches:
        logits = np.asarray(_logits(graphdef, state, batch))
        all_logits = np.zeros((encoded.examples, logits.shape[1]), logits.dtype) if all_logits is None else all_logits
        all_logits[list(indices)] = logits
    return encoded.collect(all_logits[None]).outputs[0]


@partial(jax.jit, static_argnums=0)
def _logits(graphdef: Graph, state: State, batch: dict[str, Int[Array, "batch token"]]) -> Float[Array, "batch labels"]:
    model = nnx.merge(graphdef, state)
    return model.forward(model.inputs(**batch)).logits
