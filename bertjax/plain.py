"""The sweep in its simplest form: one function of an override, `jax.vmap`ped over a stack of overrides.

It is the oracle for faster engines. One exact economy is built in and can be switched off: an override
changes nothing below its first layer, so ablations are grouped by that layer and start from the hidden
states that the unablated run has there (`share_prefix`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Shaped

from bertjax.errors import InputError
from bertjax.overrides import stack
from bertjax.pretrained import PretrainedModel
from bertjax.types import EncoderRecord, Inputs, ModelOutput, Overrides

Readout = Callable[[ModelOutput], Array]


def logits(output: ModelOutput) -> Float[Array, "batch *labels"]:
    """Readout of a task head's logits."""
    if output.logits is None:
        raise InputError("this model has no logits: it has no task head")
    return output.logits


def sentence_embedding(output: ModelOutput) -> Float[Array, "batch embed"]:
    """Readout of the sentence vector."""
    if output.sentence_embedding is None:
        raise InputError("this model has no sentence embedding: load it as BertForSentenceEmbedding")
    return output.sentence_embedding


@dataclass(frozen=True)
class Swept:
    """What a sweep gives: outputs without any override, and for each override, in the order of the examples."""

    base: Shaped[np.ndarray, "examples *readout"]
    outputs: Shaped[np.ndarray, "ablations examples *readout"]


def run(model: Any, inputs: Inputs, overrides: Overrides, readout: Readout) -> Shaped[Array, "ablations batch *readout"]:
    """The experiment itself: every override of a stack on one batch, each as a full forward pass.

    Args:
        model: any model of bertjax.
        inputs: `model.inputs(...)`.
        overrides: with a leading axis `ablations` (`overrides.stack`).
        readout: what to keep of each run; a function defined once, since each new one is compiled anew.

    Returns: the readouts.
    """
    graphdef, state = nnx.split(model)
    return _chunk_from(graphdef, state, _embed(graphdef, state, inputs), inputs.keep, overrides, readout, 0)


def sweep(
    model: PretrainedModel,
    batches: Sequence[tuple[Sequence[int], Mapping[str, np.ndarray]]],
    overrides: Sequence[Overrides],
    readout: Readout,
    *,
    chunk_size: int = 16,
    share_prefix: bool = True,
    progress: Callable[[float], None] = lambda part: None,
) -> Swept:
    """Run every override on every example.

    Args:
        model: any model of bertjax.
        batches: pairs of example indices and the arguments of a call (`input_ids`, `attention_mask` ...); the
            indices of all batches together are 0 to examples - 1, an index may come twice (filling).
        overrides: one for each ablation.
        readout: what to keep of each run.
        chunk_size: at most so many ablations are computed at once.
        share_prefix: start each ablation from the base run's hidden states at its first overridden layer.
            Without it each ablation is a full forward pass.
        progress: called with the finished part of the work, in runs of one layer on one example.

    Returns: base and ablated outputs, float32 (float64 for a float64 model).
    """
    graphdef, state = nnx.split(model)
    layers = model.config.num_hidden_layers
    chunks = list(_chunks(overrides, layers if share_prefix else 0, chunk_size))
    examples = 1 + max(max(indices) for indices, _ in batches)
    base: Any = None
    outputs: Any = None
    for indices, arguments in batches:
        inputs = model.inputs(**arguments)
        hidden_states, first = _base(graphdef, state, inputs, readout)
        if base is None:
            base = np.zeros((examples, *first.shape[1:]), first.dtype)
            outputs = np.zeros((len(overrides), *base.shape), first.dtype)
        base[np.asarray(indices)] = first
        for members, layer, stacked in chunks:
            found = _chunk_from(graphdef, state, hidden_states[layer], inputs.keep, stacked, readout, layer)
            outputs[np.asarray(members)[:, None], np.asarray(indices)[None]] = np.asarray(found)[: len(members)]
            progress(len(members) * (layers - layer) * len(indices))
    return Swept(base, outputs)


def work(overrides: Sequence[Overrides], layers: int, examples: int, share_prefix: bool = True) -> int:
    """All of the work that `sweep` reports to `progress`: ablations x layers to run x examples."""
    return examples * sum(layers - (first_layer(one, layers) if share_prefix else 0) for one in overrides)


def first_layer(overrides: Overrides, layers: int) -> int:
    """The first layer in which an override may change anything (the last one for the identity)."""
    changed = [np.asarray(overrides.weights_gate) != 1, np.asarray(overrides.output_gate) != 1]
    found = [int(layer) for layer in np.nonzero(np.any(changed, axis=(0, 2)))[0]]
    for part in (overrides.weights, overrides.outputs, overrides.edges):
        if part is not None:
            found += [int(layer) for layer in np.asarray(part.layer) if layer >= 0]
    return min([*found, layers - 1])


def _chunks(
    overrides: Sequence[Overrides], layers: int, chunk_size: int
) -> Iterator[tuple[list[int], int, Overrides]]:
    """Groups of overrides with the same first layer: their numbers, that layer, and the stack of them.

    Within a group all stacks are equally large, so that each layer compiles once; the last is filled up.
    """
    if chunk_size < 1:
        raise InputError(f"chunk_size must be at least 1, found {chunk_size}")
    groups: dict[int, list[int]] = {}
    for number, one in enumerate(overrides):
        groups.setdefault(first_layer(one, layers) if layers else 0, []).append(number)
    for layer, members in sorted(groups.items()):
        size = -(-len(members) // -(-len(members) // chunk_size))
        for start in range(0, len(members), size):
            some = members[start : start + size]
            filled = [overrides[number] for number in some + some[-1:] * (size - len(some))]
            yield some, layer, stack(filled)


@partial(jax.jit, static_argnums=0)
def _embed(graphdef: Any, state: Any, inputs: Inputs) -> Float[Array, "batch token embed"]:
    return nnx.merge(graphdef, state).body.embeddings(inputs)


@partial(jax.jit, static_argnums=(0, 3))
def _base(graphdef: Any, state: Any, inputs: Inputs, readout: Readout) -> tuple[Array, Array]:
    output = nnx.merge(graphdef, state).forward(inputs)
    return output.hidden_states, readout(output)


@partial(jax.jit, static_argnums=(0, 5, 6))
def _chunk_from(
    graphdef: Any,
    state: Any,
    hidden: Float[Array, "batch token embed"],
    keep: Float[Array, "batch #query key"],
    overrides: Overrides,
    readout: Readout,
    layer: int,
) -> Shaped[Array, "ablations batch *readout"]:
    model = nnx.merge(graphdef, state)

    def experiment(override: Overrides) -> Array:
        return readout(model.forward_from(hidden, keep, layer, override))

    return jax.vmap(experiment)(overrides)


def mean_head_outputs(
    model: PretrainedModel, batches: Sequence[Mapping[str, np.ndarray]]
) -> Float[np.ndarray, "layers heads head_dim"]:
    """Mean output of each head over the real tokens of all examples: the reference of `overrides.mean`.

    Sums are kept in float64.
    """
    total, count = None, 0.0
    for arguments in batches:
        inputs = model.inputs(**arguments)
        part, tokens = _sum_head_outputs(*nnx.split(model), inputs)
        total = np.asarray(part, np.float64) + (0 if total is None else total)
        count += float(tokens)
    if total is None or count == 0:
        raise InputError("the mean of the heads' outputs needs at least one real token")
    return total / count


@partial(jax.jit, static_argnums=0)
def _sum_head_outputs(graphdef: Any, state: Any, inputs: Inputs) -> tuple[Array, Array]:
    inside: EncoderRecord = nnx.merge(graphdef, state).forward(inputs).record
    real = jnp.max(inside.keep, axis=1)
    return jnp.einsum("lbqhd,bq->lhd", inside.head_outputs, real, precision="highest"), jnp.sum(real)
