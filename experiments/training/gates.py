"""Gates on heads, learned together with a model's weights or alone (Louizos et al. 2018; Voita et al. 2019).

`bertjax.analyses.GateLearner` learns gates of a fixed model. Here the model learns too. A step reduces the loss of its
batch, with gates drawn for each example, plus a price for each open gate. A closed gate sets a head's output to zero.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key, Shaped

from bertjax.analyses import AT_FIRST, HIGHEST, LOWEST, TEMPERATURE, probabilities_open
from bertjax.models import Overrides, PretrainedModel
from bertjax.tasks import EncodedDataset
from experiments.training.dropout import train_logits
from experiments.training.trainer import Batch, Parameters, Recipe, Skeleton, Trainer, loss_of, make_optimizer

GATES, PRICE = "gates", "price"


def hard_gates(
    log_a: Float[Array, "layers heads"], uniform: Float[Array, "layers heads batch"]
) -> Float[Array, "layers heads batch"]:
    """Gates drawn for each example, as `bertjax.analyses.draw_gates` draws them, with slopes by `jax.grad`.

    >>> hard_gates(jnp.array([[0.0, -9.0]]), jnp.full((1, 2, 1), 0.5)).round(3).tolist()
    [[[0.5], [0.0]]]
    """
    shares = jax.nn.sigmoid((jnp.log(uniform) - jnp.log1p(-uniform) + log_a[..., None]) / TEMPERATURE)
    return jnp.clip(shares * (HIGHEST - LOWEST) + LOWEST, 0, 1)


def gates_as_overrides(gates: Float[Array, "layers heads batch"]) -> Overrides:
    """Each head's output times its gate, which differs between examples."""
    ones = jnp.ones(gates.shape[:2], gates.dtype)
    return Overrides(ones, 0 * ones, 0 * ones, tokens=1 - gates[..., None])


def gated_loss(skeleton: Skeleton, parameters: Parameters, batch: Batch, key: Key[Array, ""]) -> Float[Array, ""]:
    """The loss of one batch, with dropout and drawn gates, plus the price of its open gates.

    Args:
        parameters: those of the model, and `GATES`: log a of each head.
        batch: as `make_batch` returns it, and `PRICE`, of one open gate, in each row.
    """
    model, log_a = skeleton.merge(parameters), parameters[GATES]
    key, own_key = jax.random.split(key)
    rows = batch["input_ids"].shape[0]
    tiny = jnp.finfo(log_a.dtype).eps
    uniform = jax.random.uniform(own_key, (*log_a.shape, rows), log_a.dtype, tiny, 1 - tiny)
    inputs = model.inputs(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
    logits = train_logits(model, inputs, key, gates_as_overrides(hard_gates(log_a, uniform)))
    is_open = jax.nn.sigmoid(log_a - TEMPERATURE * np.log(-LOWEST / HIGHEST))
    task = loss_of(logits, jnp.asarray(batch["labels"]), jnp.asarray(batch["share"]))
    return task + jnp.mean(jnp.asarray(batch[PRICE])) * jnp.sum(is_open)


@cache
def gate_optimizer(recipe: Recipe, gate_rate: float, frozen: bool) -> optax.GradientTransformation:
    """The recipe's optimizer for weights, or none where they are frozen, and Adam for gates.

    Args:
        gate_rate: how far gates' log a may go in a step where the learning rate is highest.
    """
    weights = optax.set_to_zero() if frozen else make_optimizer(recipe.weight_decay, recipe.largest_gradient)
    gates = optax.chain(optax.scale_by_adam(), optax.scale(-gate_rate / recipe.learning_rate))

    def kinds(parameters: Parameters) -> dict[str, str]:
        return {name: GATES if name == GATES else "weights" for name in parameters}

    return optax.partition({"weights": weights, GATES: gates}, kinds)


class GateTrainer(Trainer):
    """A classifier in training whose heads have gates.

    Args:
        model, encoded, labels, recipe: as `Trainer` takes them.
        price: of one open gate, in the units of the loss.
        gate_rate: how far gates' log a may go in a step where the learning rate is highest.
        frozen: whether the weights are fixed.
    """

    loss = staticmethod(gated_loss)

    def __init__(
        self,
        model: PretrainedModel,
        encoded: EncodedDataset,
        labels: Shaped[np.ndarray, "examples"],
        recipe: Recipe,
        *,
        price: float,
        gate_rate: float,
        frozen: bool,
    ):
        super().__init__(model, encoded, labels, recipe)
        self.price = price
        self.optimizer = gate_optimizer(recipe, gate_rate, frozen)
        shape = (model.config.num_hidden_layers, model.config.num_attention_heads)
        self.parameters[GATES] = jax.device_put(jnp.full(shape, AT_FIRST, jnp.float32), self.everywhere)
        self.memory = jax.device_put(self.optimizer.init(self.parameters), self.everywhere)

    def take_step(self, batch: Batch, number: int, rate: Shaped[np.ndarray, ""] | np.floating) -> float:
        """Take a step on a batch; return its loss before the step, including the price of open gates."""
        price = np.full(self.rows, self.price, np.float32)
        return super().take_step({**batch, PRICE: price}, number, rate)

    def probabilities(self, model: PretrainedModel) -> Float[np.ndarray, "layers heads"]:
        """The probability that each head's gate is open; 0 for heads that the model lacks."""
        found = probabilities_open(np.asarray(self.parameters[GATES], np.float64))
        there = np.zeros(found.shape)
        for layer in range(len(there)):
            there[layer, list(model.config.heads_of(layer))] = 1
        return np.asarray(found * there)


def mean_loss(logits: Float[np.ndarray, "examples labels"], labels: Shaped[np.ndarray, "examples"]) -> float:
    """The mean loss of logits."""
    return float(loss_of(jnp.asarray(logits), jnp.asarray(labels), jnp.ones(len(labels))))
