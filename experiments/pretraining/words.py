"""The loss of hidden words, for training and on held-out rows, and that of a model that knows no context."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32, Key

from bertjax import BertForMaskedLM, readouts
from experiments.pretraining.masking import Rows
from experiments.training.dropout import Drop, dropper, train_words
from experiments.training.trainer import Batch, Parameters, Skeleton


def read_words(model: BertForMaskedLM, batch: Batch, drop: Drop) -> Float[Array, "batch wanted 2"]:
    """Log-probability (nats) and rank of each word that is asked for.

    Args:
        batch: as `Rows.hide` returns it.
    """
    segments = jnp.asarray(batch["segments"])
    sees = (segments[:, :, None] == segments[:, None, :]).astype(jnp.int32)
    inputs = model.inputs(batch["input_ids"], sees, batch["token_type_ids"], batch["position_ids"])
    output = train_words(model, inputs, jnp.asarray(batch["at"]), drop)
    return readouts.words(output, jnp.asarray(batch["targets"]))


def word_loss(skeleton: Skeleton, parameters: Parameters, batch: Batch, key: Key[Array, ""]) -> Float[Array, ""]:
    """The mean cross-entropy (nats) of the words of a batch, with dropout."""
    share = jnp.asarray(batch["share"])
    words = read_words(skeleton.merge(parameters), batch, dropper(key))
    return -jnp.sum(share * words[..., 0]) / jnp.maximum(jnp.sum(share), 1.0)


@partial(jax.jit, static_argnums=0)
def _words(skeleton: Skeleton, parameters: Parameters, batch: Batch) -> Float[Array, "batch wanted 2"]:
    return read_words(skeleton.merge(parameters), batch, lambda x, rate: x)


def score_rows(
    skeleton: Skeleton, parameters: Parameters, rows: Rows, batch_size: int
) -> tuple[dict[str, float], Int32[np.ndarray, " words"]]:
    """Mean cross-entropy (nats) and accuracy of words hidden in all rows, and those words; always the same draw."""
    words, targets = [], []
    for start in range(0, len(rows), batch_size):
        numbers = range(start, min(start + batch_size, len(rows)))
        batch = rows.hide(numbers, batch_size, (start,))
        real = batch["share"] > 0
        words.append(np.asarray(_words(skeleton, parameters, batch))[real])
        targets.append(batch["targets"][real])
    read = np.concatenate(words).astype(np.float64)
    return {"loss": float(-read[:, 0].mean()), "accuracy": float((read[:, 1] == 1).mean())}, np.concatenate(targets)


def score_frequencies(train: Rows, targets: Int32[np.ndarray, " words"]) -> dict[str, float]:
    """The same numbers of a model that gives each word its frequency in training (add-one), whatever the context."""
    counts = np.bincount(train.words, minlength=train.vocab) + 1.0
    counts[list(train.special)] = 0
    share = counts / counts.sum()
    return {"loss": float(-np.log(share[targets]).mean()), "accuracy": float((targets == counts.argmax()).mean())}
