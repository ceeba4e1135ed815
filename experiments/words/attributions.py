"""Attributions to the words of a text, and the change of the model's output when a word is masked."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float
from scipy.stats import rankdata

from bertjax.attention import attention_flow, attention_rollout
from bertjax.data import Encoding, collate
from bertjax.models import BertForSentenceEmbedding, Inputs

ATTRIBUTIONS = ("weights", "all layers", "norms", "norms, all", "rollout", "flow", "gradients", "words", "random")
STEP = 8  # texts are padded to multiples


@dataclass(frozen=True)
class Text:
    """What was found of one text, at its tokens that are not special.

    Args:
        changes: of the output where a token is masked.
        attributions: by name.
    """

    changes: Float[np.ndarray, " token"]
    attributions: Mapping[str, Float[np.ndarray, " token"]]

    def correlations(self) -> list[float]:
        """Rank correlations of each attribution with the changes; 0 where an attribution says nothing."""
        return [_rank_correlation(self.attributions[name], self.changes) for name in ATTRIBUTIONS]


def _rank_correlation(first: Float[np.ndarray, " token"], second: Float[np.ndarray, " token"]) -> float:
    ranks = [rankdata(values) - (len(values) + 1) / 2 for values in (first, second)]
    sizes = np.prod([np.linalg.norm(one) for one in ranks])
    return float(ranks[0] @ ranks[1] / sizes) if sizes > 0 else 0.0


def read_output(model: Any, output: Any) -> Float[Array, "batch numbers"]:
    """A sentence's vector, or the log-probabilities of a classifier's labels."""
    if isinstance(model, BertForSentenceEmbedding):
        vectors: Array = output.sentence_embedding
        return vectors
    return jax.nn.log_softmax(output.logits)


def changes_of(outputs: Float[np.ndarray, "variants numbers"], embeds: bool) -> Float[np.ndarray, " token"]:
    """How far each masked text's output, from the second row on, is from that of the text itself, the first."""
    unmasked, masked = outputs[0].astype(np.float64), outputs[1:].astype(np.float64)
    if not embeds:
        label = int(unmasked.argmax())
        return np.asarray(np.abs(masked[:, label] - unmasked[label]))
    lengths = np.linalg.norm(masked, axis=1) * np.linalg.norm(unmasked)
    return np.asarray(1 - masked @ unmasked / lengths)


def reads_first(model: Any) -> bool:
    """Whether the model reads the first token of the last layer, and not the mean of all."""
    if isinstance(model, BertForSentenceEmbedding):
        return "cls" in model.poolings
    plan = model.config.architecture.heads.get(model.task)
    return plan is None or plan.reads in ("cls", "pooler")


@partial(jax.jit, static_argnums=0)
def _outputs(graph: Any, state: Any, inputs: Inputs) -> Float[Array, "batch numbers"]:
    model = nnx.merge(graph, state)
    return read_output(model, model.forward(inputs))


@partial(jax.jit, static_argnums=0)
def _inside(
    graph: Any, state: Any, inputs: Inputs, masked: Inputs
) -> tuple[Float[Array, "layers heads query key"], Float[Array, "layers query key"], Float[Array, "token numbers"]]:
    """Weights, norms of what all heads add up together, and the first-order change with each token masked."""
    model = nnx.merge(graph, state)
    encoder, embeddings = model.body.encoder, model.body.embeddings
    context, before = encoder.context(inputs), embeddings(inputs)
    record = encoder(before, context)[1]
    norms = []
    for number, layer in enumerate(encoder.applications()):
        kept = jnp.array(model.config.heads_of(number), jnp.int32)  # a checkpoint may lack some
        kernel = layer.attention.output.kernel[...]
        values = jnp.einsum("khd,hde->hke", record.values[number, 0][:, kept], kernel, precision="highest")
        added = jnp.einsum("hqk,hke->qke", record.weights[number, 0][kept], values, precision="highest")
        norms.append(jnp.linalg.norm(added, axis=-1))

    def read(hidden: Array) -> Array:
        last = encoder(hidden, context)[0]
        return read_output(model, model.finish(last, inputs.keep))[0]

    towards = embeddings(masked) - before  # [1, token, embed]
    tokens = jnp.eye(before.shape[1], dtype=before.dtype)

    def slope(token: Array) -> Array:
        return jax.jvp(read, (before,), (token[None, :, None] * towards,))[1]

    return record.weights[:, 0], jnp.stack(norms), jax.vmap(slope)(tokens)


def study_text(
    model: Any, encoding: Encoding, plain: np.ndarray, is_mark: np.ndarray, mask_id: int, rng: np.random.Generator
) -> Text:
    """The changes and attributions of one text.

    Args:
        plain: its tokens that are not special.
        is_mark: which of all are punctuation.
        rng: draws the random attribution.
    """
    length, pad_id = len(encoding), model.config.pad_token_id or 0
    width = min(-(-length // STEP) * STEP, model.config.max_tokens)
    batch = collate([encoding] * (1 + width), width, pad_id)
    ids = np.array(batch["input_ids"])
    rows = np.arange(1, 1 + length)
    ids[rows, rows - 1] = mask_id
    graph, state = nnx.split(model)
    embeds = isinstance(model, BertForSentenceEmbedding)
    outputs = np.asarray(_outputs(graph, state, model.inputs(**{**batch, "input_ids": ids})))[: 1 + length]
    one = {name: array[:1] for name, array in batch.items()}
    everything_masked = {**one, "input_ids": np.where(one["attention_mask"] > 0, mask_id, one["input_ids"])}
    weights, norms, slopes = map(
        np.asarray, _inside(graph, state, model.inputs(**one), model.inputs(**everything_masked))
    )
    weights, norms, slopes = weights[..., :length, :length], norms[:, :length, :length], slopes[:length]
    readers = np.eye(length)[0] if reads_first(model) else np.full(length, 1 / length)
    mean_weights = weights.mean(axis=1, dtype=np.float64)
    predicted = np.linalg.norm(slopes, axis=1) if embeds else np.abs(slopes[:, int(outputs[0].argmax())])
    found = {
        "weights": readers @ mean_weights[-1],
        "all layers": readers @ mean_weights.mean(axis=0),
        "norms": readers @ norms[-1],
        "norms, all": readers @ norms.mean(axis=0),
        "rollout": readers @ attention_rollout(weights),
        "flow": attention_flow(weights, readers),
        "gradients": predicted,
        "words": (~is_mark).astype(np.float64),
        "random": rng.uniform(size=length),
    }
    return Text(changes_of(outputs, embeds)[plain], {name: np.asarray(values)[plain] for name, values in found.items()})
