"""Constructors of `Overrides`, the arrays that change heads in a forward pass.

A head is named `"3.0"` or `(3, 0)`: layer and head, both from 0. The first argument of every constructor is the model's
config; heads that are not named stay as learned. `combine` joins overrides of different heads or kinds, and `stack`
stacks several overrides for `jax.vmap`.

Sources: uniform weights, Kovaleva et al. 2019, section 4.6; zero and factor, Michel et al. 2019; patching,
Vig et al. 2020; forbidden edges, Geva et al. 2023.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import index
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertjax import arguments
from bertjax.arguments import HoldsArray, is_traced, parse_head_name
from bertjax.checkpoints import BertConfig
from bertjax.errors import OverrideError, some_of
from bertjax.interventions.joining import array_module, combine, stack, to_device
from bertjax.models import Edges, HeadOutputs, HeadWeights, ModelOutput, Overrides

__all__ = [
    "Head",
    "combine",
    "every_head",
    "factor",
    "fixed",
    "fixed_edges",
    "forbidden_edges",
    "heads_of_layer",
    "identity",
    "mean",
    "parse_head",
    "patched_outputs",
    "patched_weights",
    "stack",
    "uniform",
    "zero",
]

# A head's name: `"3.0"` or `(3, 0)`, layer and head from 0.
Head: TypeAlias = str | tuple[int, int]
# A number for all named heads, one for each of them, or a matrix `[layers, heads]`.
Gates: TypeAlias = float | HoldsArray | Sequence[Any]

LARGEST_INDEX = 2**31 - 1  # of a token, or of an example in a batch


def parse_head(head: Head, config: BertConfig) -> tuple[int, int]:
    """Layer and head of a name.

    Args:
        head: the name, such as '3.0', 'L3H0' or (3, 0).
        config: the config of the model.

    Raises:
        OverrideError: the name is malformed, or the model has no such head.

    >>> parse_head("3.0", BertConfig())
    (3, 0)
    """
    layers, heads = _sizes(config)
    if isinstance(head, str):
        parsed = parse_head_name(head)
        if parsed is None:
            raise OverrideError(f"{arguments.brief(head)} names no head: write LAYER.HEAD, e.g. 3.0 or L3H0")
        head = parsed
    layer, index_in_layer = _check_head(head, layers, heads)
    if index_in_layer not in config.heads_of(layer):
        raise OverrideError(
            f"there is no head {layer}.{index_in_layer}: it was pruned, the checkpoint has no weights for it"
        )
    return layer, index_in_layer


def _check_head(head: tuple[int, int], layers: int, heads: int) -> tuple[int, int]:
    """Raise `OverrideError` unless this is a pair of integers within these sizes."""
    try:
        pair = layer, head_index = tuple(map(index, head))
    except (TypeError, ValueError) as error:
        raise OverrideError(f"{arguments.brief(head)} names no head: give LAYER.HEAD or a pair of integers") from error
    if not (0 <= layer < layers and 0 <= head_index < heads):
        name = ".".join(map(arguments.describe, pair))
        raise OverrideError(f"there is no head {name}: the model has layers 0 to {layers - 1}, heads 0 to {heads - 1}")
    return layer, head_index


def heads_of_layer(config: BertConfig, layer: int) -> tuple[tuple[int, int], ...]:
    """All heads of a layer. Raises `OverrideError` if there is no such layer.

    Args:
        config: the config of the model.
        layer: the index of the layer, from 0.

    >>> heads_of_layer(BertConfig(hidden_size=6, num_attention_heads=2), 1)
    ((1, 0), (1, 1))
    """
    layers, heads = _sizes(config)
    layer = _check_head((layer, 0), layers, heads)[0]
    return tuple((layer, head) for head in config.heads_of(layer))


def every_head(config: BertConfig) -> tuple[tuple[int, int], ...]:
    """All heads of the model, layer by layer.

    Args:
        config: the config of the model.
    """
    return tuple(head for layer in range(_sizes(config)[0]) for head in heads_of_layer(config, layer))


def list_heads(heads: Iterable[Head] | None, config: BertConfig) -> list[tuple[int, int]]:
    """Layer and head of each named head, without repetitions; all heads if none are named.

    Raises:
        OverrideError: a head that does not exist.
    """
    return list(dict.fromkeys(parse_head(head, config) for head in heads)) if heads else [*every_head(config)]


def identity(config: BertConfig) -> Overrides:
    """The override that changes nothing.

    Args:
        config: the config of the model.
    """
    shape = _sizes(config)
    ones, zeros = jax.device_put(np.ones(shape)), jax.device_put(np.zeros(shape))
    return Overrides(ones, zeros, ones)


def uniform(config: BertConfig, heads: Iterable[Head], gate: Gates = 0.0) -> Overrides:
    """Disable heads: the attention weights of each query become 1/n on the n real tokens ([CLS] and [SEP] count).

    Args:
        config: the config of the model.
        heads: names of heads.
        gate: share of the learned weights that is kept, 0 to 1: for all, one for each, or `[layers, heads]`.

    >>> uniform(BertConfig(num_hidden_layers=2, hidden_size=6, num_attention_heads=3), ["1.0"]).weights_gate
    Array([[1., 1., 1.],
           [0., 1., 1.]], dtype=float32)
    """
    parsed = parse_heads(config, heads)
    base, gates = identity(config), _gates(config, parsed, gate, "gate")
    return replace(
        base, weights_gate=_changed(base.weights_gate, parsed, gates), uniform=_changed(base.uniform, parsed, 1.0)
    )


def factor(config: BertConfig, heads: Iterable[Head] | Gates, factor: Gates | None = None) -> Overrides:
    """Multiply the heads' outputs, before the output projection, by a factor. Differentiable in the factor.

    Args:
        config: the config of the model.
        heads: names of heads. `factor(config, factors)` is for all heads.
        factor: one for all of them, one for each, or a matrix `[layers, heads]`.

    >>> config = BertConfig(num_hidden_layers=2, hidden_size=6, num_attention_heads=3)
    >>> factor(config, [[1, 0.5, 0], [0, 1, 1]]).output_gate
    Array([[1. , 0.5, 0. ],
           [0. , 1. , 1. ]], dtype=float32)
    """
    if factor is None:
        heads, factor = every_head(config), heads
    parsed = parse_heads(config, heads)
    base, gates = identity(config), _gates(config, parsed, factor, "factor")
    return replace(base, output_gate=_changed(base.output_gate, parsed, gates))


def zero(config: BertConfig, heads: Iterable[Head]) -> Overrides:
    """Multiply the heads' outputs by 0.

    Args:
        config: the config of the model.
        heads: names of heads, such as '3.0' or (3, 0).
    """
    return factor(config, heads, 0.0)


def mean(
    config: BertConfig,
    heads: Iterable[Head],
    means: Float[Array, "layers heads head_dim"] | Float[np.ndarray, "layers heads head_dim"],
    gate: Gates = 0.0,
) -> Overrides:
    """Replace each head's output by a vector, the same at every token.

    Args:
        config: the config of the model.
        heads: names of heads.
        means: usually the mean outputs over the real tokens of all examples (`bertjax.mean_head_outputs`).
        gate: share of the heads' outputs that is kept, 0 to 1: for all, one for each, or `[layers, heads]`.
    """
    values = as_floats(means, "means")
    shape = (*_sizes(config), config.head_dim)
    if values.shape != shape:
        raise OverrideError(f"means have shape {values.shape}, expected [layers, heads, head_dim] {shape}")
    return _outputs(config, heads, [values[head][None, None] for head in parse_heads(config, heads)], gate=gate)


def fixed(config: BertConfig, weights: Mapping[Head, Any]) -> Overrides:
    """Replace the attention weights of heads.

    Args:
        config: the config of the model.
        weights: the weights of each head, `[query, key]` or `[batch, query, key]`. They are used as they are: rows need
            not sum to 1. Positions include padding.
    """
    arguments.check_instance(weights, "weights", Mapping, "a dict from heads to their weights", OverrideError)
    heads = parse_heads(config, list(weights))
    values = [as_floats(value, "fixed weights") for value in weights.values()]
    for value in values:
        if value.ndim not in (2, 3) or value.shape[-1] != value.shape[-2]:
            raise OverrideError(f"fixed weights have shape {value.shape}, expected [query, key] or [batch, query, key]")
    return _weights(config, heads, [value if value.ndim == 3 else value[None] for value in values])


def patched_weights(config: BertConfig, heads: Iterable[Head], source: ModelOutput) -> Overrides:
    """Patch the heads' attention weights from another run of the model.

    Each example needs as many tokens as its source; this is checked when the model is called.

    Args:
        config: the config of the model.
        heads: names of heads.
        source: the output of the model for the source texts.
    """
    heads = parse_heads(config, heads)
    check_source(config, source)
    return _weights(config, heads, [source.attentions[layer][:, head] for layer, head in heads], mask_of(source))


def patched_outputs(config: BertConfig, heads: Iterable[Head], source: ModelOutput, gate: Gates = 0.0) -> Overrides:
    """Patch the heads' outputs (before the output projection) from another run of the model.

    Args:
        config: the config of the model.
        heads: names of heads.
        source: the output of the model for the source texts.
        gate: share of the heads' outputs that is kept, 0 to 1: for all, one for each, or `[layers, heads]`.
    """
    heads = parse_heads(config, heads)
    check_source(config, source)
    values = [source.inside.head_outputs[layer][:, :, head] for layer, head in heads]
    return _outputs(config, heads, values, mask_of(source), gate)


def forbidden_edges(
    config: BertConfig, edges: Sequence[tuple[int, int, int, int]], example: int | None = None
) -> Overrides:
    """Forbid edges `(layer, head, query, key)`: their weights become 0, and the rest of the row is renormalised.

    Args:
        config: the config of the model.
        edges: layer, head, query position and key position of each edge.
        example: index of an example in the batch; None for all.
    """
    edges = arguments.check_sequence(edges, "edges", "a list of edges (layer, head, query, key)", error=OverrideError)
    return _edges(config, edges, example, keep=[0.0] * len(edges), gate=[1.0] * len(edges), value=[0.0] * len(edges))


def fixed_edges(
    config: BertConfig, edges: Mapping[tuple[int, int, int, int], float], example: int | None = None
) -> Overrides:
    """Replace the weights of edges `(layer, head, query, key)`; the rest of the row stays as learned.

    Args:
        config: the config of the model.
        edges: the weight of each edge: layer, head, query position and key position.
        example: index of an example in the batch; None for all.
    """
    arguments.check_instance(edges, "edges", Mapping, "a dict from (layer, head, query, key) to weights", OverrideError)
    return _edges(config, list(edges), example, [1.0] * len(edges), [0.0] * len(edges), list(edges.values()))


def _sizes(config: BertConfig) -> tuple[int, int]:
    """Number of layers, and of heads in each."""
    arguments.check_instance(config, "config", BertConfig, "a BertConfig (model.config)", OverrideError)
    return config.num_hidden_layers, config.num_attention_heads


def parse_heads(config: BertConfig, heads: Iterable[Head] | Gates) -> list[tuple[int, int]]:
    """Layer and head of each name. Raises `OverrideError` if a head is named twice."""
    names = arguments.check_sequence(heads, "heads", "a list of heads such as ['3.0', '4.1']", error=OverrideError)
    parsed = [parse_head(head, config) for head in names]
    twice = {head for head in parsed if parsed.count(head) > 1}
    if twice:
        raise OverrideError(f"head {'.'.join(map(str, min(twice)))} is named twice")
    return parsed


def _indices(heads: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(heads, dtype=np.int32).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _changed(gates: Float[Array, "layers heads"], heads: list[tuple[int, int]], values: Any) -> Array:
    """A copy of gates with new values for some heads."""
    if array_module(gates, values) is jnp:
        return gates.at[_indices(heads)].set(values)
    changed = np.array(gates)
    changed[_indices(heads)] = values
    return jax.device_put(changed)


def as_floats(values: Any, name: str) -> Float[Array, "..."]:
    """Convert to a JAX array of finite floats; integers become floats of JAX's default dtype."""
    array = arguments.as_array(values, name, OverrideError)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        arguments.refuse(name, "real numbers", values, OverrideError)
    # (Converted to floats before: without x64, JAX keeps only the lower 32 bits of an integer.)
    with np.errstate(over="ignore"):  # values beyond float32 become infinite, and are refused
        floats = array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)
        # (Copied, because on a CPU JAX may share the memory of a NumPy array.)
        floats = jax.device_put(np.array(floats)) if isinstance(floats, np.ndarray) else floats
    if not is_traced(floats) and not bool(array_module(floats).isfinite(floats).all()):
        raise OverrideError(f"{name} must be finite")
    return floats


def _gates(config: BertConfig, heads: list[tuple[int, int]], values: Any, name: str) -> Float[Array, "..."]:
    """One gate for all named heads, or one for each of them."""
    gates = as_floats(values, name).astype(float)
    if gates.shape == _sizes(config):
        return gates[_indices(heads)]
    if gates.shape not in ((), (len(heads),)):
        raise OverrideError(
            f"{name} has shape {gates.shape}, expected one number, one for each of the {len(heads)} named heads, or "
            f"[layers, heads] {_sizes(config)}"
        )
    return gates


def mask_of(source: ModelOutput) -> Array:
    keep = source.inside.keep
    return to_device(array_module(keep).max(keep, axis=1).astype(np.int32))


def check_source(config: BertConfig, source: ModelOutput) -> None:
    arguments.check_instance(source, "source", ModelOutput, "the output of a model for another text", OverrideError)
    outputs = source.inside.head_outputs
    sizes, expected = (outputs.shape[0], *outputs.shape[3:]), (*_sizes(config), config.head_dim)
    if sizes != expected:
        raise OverrideError(f"the source has [layers, heads, head_dim] {sizes}, the model {expected}")


def entry_indices(
    heads: list[tuple[int, int]], values: list[Array], source_mask: Array | None
) -> tuple[Array, Array, Array, Array]:
    """Layers, heads, values and masks of the source, with values broadcast to one shape."""
    if not heads:
        raise OverrideError("no head was named")
    try:
        shape = jnp.broadcast_shapes(*(value.shape for value in values))
    except ValueError:
        shapes = some_of([str(value.shape) for value in values])
        raise OverrideError(f"the replacements of the heads have incompatible shapes: {shapes}") from None
    xp = array_module(values, source_mask)
    stacked = xp.stack([xp.broadcast_to(value, shape) for value in values])
    mask = np.full((1, 1), -1, np.int32) if source_mask is None else source_mask
    return to_device((*_indices(heads), stacked, xp.broadcast_to(mask, (len(heads), *mask.shape))))


def _weights(
    config: BertConfig, heads: list[tuple[int, int]], values: list[Array], source_mask: Array | None = None
) -> Overrides:
    base, entries = identity(config), HeadWeights(*entry_indices(heads, values, source_mask))
    return replace(base, weights_gate=_changed(base.weights_gate, heads, 0.0), weights=entries)


def _outputs(
    config: BertConfig,
    heads: Iterable[Head],
    values: list[Array],
    source_mask: Array | None = None,
    gate: Gates = 0.0,
) -> Overrides:
    parsed = parse_heads(config, heads)
    base, entries = identity(config), HeadOutputs(*entry_indices(parsed, values, source_mask))
    gates = _changed(base.output_gate, parsed, _gates(config, parsed, gate, "gate"))
    return replace(base, output_gate=gates, outputs=entries)


def _parse_edge(edge: Sequence[int]) -> tuple[int, int, int, int]:
    try:
        layer, head, query, key = map(index, edge)
    except (TypeError, ValueError) as error:
        raise OverrideError(
            f"{arguments.brief(edge)} is not an edge: give (layer, head, query, key) as integers"
        ) from error
    return layer, head, query, key


def _edges(
    config: BertConfig,
    edges: Sequence[tuple[int, int, int, int]],
    example: int | None,
    keep: list[float],
    gate: list[float],
    value: Sequence[Any],
) -> Overrides:
    edges = [_parse_edge(edge) for edge in edges]
    if len(set(edges)) < len(edges):
        raise OverrideError("an edge is named twice")
    for layer, head, query, key in edges:
        parse_head((layer, head), config)
        if not 0 <= min(query, key) <= max(query, key) <= LARGEST_INDEX:
            name = ", ".join(map(arguments.describe, (layer, head, query, key)))
            raise OverrideError(f"edge ({name}) has a position that is negative or beyond {LARGEST_INDEX}")
    if example is not None and arguments.check_int(example, "example", 0, OverrideError) > LARGEST_INDEX:
        raise OverrideError(f"example {example} of edges is beyond {LARGEST_INDEX}")
    weights = as_floats(value, "the weight of an edge").astype(float)
    if weights.shape != (len(edges),):
        raise OverrideError("the weight of an edge must be one number")
    layers, heads, queries, keys = np.array(edges, dtype=np.int32).reshape(-1, 4).T
    rows = np.full(len(edges), -1 if example is None else example, np.int32)
    indices = [jax.device_put(column) for column in (layers, rows, heads, queries, keys)]
    gates = [jax.device_put(np.array(values, weights.dtype)) for values in (keep, gate)]
    return replace(identity(config), edges=Edges(*[*indices, *gates, weights]))
