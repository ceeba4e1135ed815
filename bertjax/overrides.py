"""Constructors of `Overrides`: what to change in which heads.

A head is named `"3.0"` or `(3, 0)`: layer and head, both from 0. Every constructor takes the model's config
first, refuses a head that does not exist, and leaves all other heads as learned. `combine` joins overrides of
different heads or kinds into one; `stack` puts several beside each other for `jax.vmap`.

Sources: uniform weights, Kovaleva et al. 2019, section 4.6; zero and factor, Michel et al. 2019; patching,
Vig et al. 2020; forbidden edges, Geva et al. 2023.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertjax.checks import is_traced
from bertjax.config import BertConfig
from bertjax.errors import OverrideError
from bertjax.types import Edges, HeadOutputs, HeadWeights, ModelOutput, Overrides, float_array

Head: TypeAlias = str | tuple[int, int]
Entries: TypeAlias = HeadWeights | HeadOutputs


def parse_head(head: Head, config: BertConfig) -> tuple[int, int]:
    """Layer and number of a head that exists.

    Raises:
        OverrideError: no such head, or not a head's name.

    >>> parse_head("3.0", BertConfig())
    (3, 0)
    """
    if isinstance(head, str):
        found = re.fullmatch(r"(\d+)\.(\d+)", head.strip())
        if found is None:
            raise OverrideError(f"{head!r} names no head: write LAYER.HEAD, e.g. 3.0")
        head = (int(found[1]), int(found[2]))
    layer, number = int(head[0]), int(head[1])
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    if not (0 <= layer < layers and 0 <= number < heads):
        raise OverrideError(
            f"there is no head {layer}.{number}: the model has layers 0 to {layers - 1}, heads 0 to {heads - 1}"
        )
    return layer, number


def heads_of_layer(config: BertConfig, layer: int) -> tuple[tuple[int, int], ...]:
    """All heads of one layer. Raises `OverrideError` if there is no such layer.

    >>> heads_of_layer(BertConfig(hidden_size=6, num_attention_heads=2), 1)
    ((1, 0), (1, 1))
    """
    return tuple(parse_head((layer, head), config) for head in range(config.num_attention_heads))


def every_head(config: BertConfig) -> tuple[tuple[int, int], ...]:
    """All heads, layer by layer."""
    return tuple(head for layer in range(config.num_hidden_layers) for head in heads_of_layer(config, layer))


def identity(config: BertConfig) -> Overrides:
    """The override that changes nothing."""
    shape = (config.num_hidden_layers, config.num_attention_heads)
    return Overrides(jnp.ones(shape, float), jnp.zeros(shape, float), jnp.ones(shape, float))


def uniform(config: BertConfig, heads: Iterable[Head], gate: float | Array = 0.0) -> Overrides:
    """Disable heads: each query's weights become 1/n on the n real tokens ([CLS] and [SEP] count).

    Args:
        heads: which.
        gate: share of the learned weights that is left, 0 to 1.

    >>> uniform(BertConfig(num_hidden_layers=2, hidden_size=6, num_attention_heads=3), ["1.0"]).weights_gate
    Array([[1., 1., 1.],
           [0., 1., 1.]], dtype=float32)
    """
    base, where = identity(config), _indices(config, heads)
    return _replace(base, weights_gate=base.weights_gate.at[where].set(gate), uniform=base.uniform.at[where].set(1))


def factor(config: BertConfig, heads: Iterable[Head], factor: float | Array) -> Overrides:
    """Multiply the heads' outputs, before the output projection, by a factor."""
    base, where = identity(config), _indices(config, heads)
    _require_finite(factor, "a factor")
    return _replace(base, output_gate=base.output_gate.at[where].set(factor))


def zero(config: BertConfig, heads: Iterable[Head]) -> Overrides:
    """Multiply the heads' outputs by 0."""
    return factor(config, heads, 0.0)


def mean(config: BertConfig, heads: Iterable[Head], means: Float[Array, "layers heads head_dim"]) -> Overrides:
    """Replace the heads' outputs by one vector for each head, the same at every token.

    Args:
        means: usually the mean output over the real tokens of all examples (`plain.mean_head_outputs`).
    """
    values = float_array(means)
    shape = (config.num_hidden_layers, config.num_attention_heads, config.head_dim)
    if values.shape != shape:
        raise OverrideError(f"means have shape {values.shape}, expected [layers, heads, head_dim] {shape}")
    return _outputs(config, heads, [values[head][None, None] for head in _parse(config, heads)])


def fixed(config: BertConfig, weights: Mapping[Head, Any]) -> Overrides:
    """Give heads the attention weights `[query, key]`, or `[batch, query, key]` for each example its own.

    The numbers are used as they are: rows need not sum to 1. Tokens count as in the example, padding included.
    """
    heads = _parse(config, weights)
    values = [float_array(value) for value in weights.values()]
    for value in values:
        if value.ndim not in (2, 3) or value.shape[-1] != value.shape[-2]:
            raise OverrideError(f"fixed weights have shape {value.shape}, expected [query, key] or [batch, query, key]")
    return _weights(config, heads, [value if value.ndim == 3 else value[None] for value in values])


def patched_weights(config: BertConfig, heads: Iterable[Head], donor: ModelOutput) -> Overrides:
    """Take the heads' attention weights from another run of the model, example by example.

    Donor and receiver need equally many tokens, example by example; that is checked when the model is called.
    """
    heads = _parse(config, heads)
    values = [_of_donor(donor.record.weights, head, config)[:, head[1]] for head in heads]
    return _weights(config, heads, values, _real_tokens(donor))


def patched_outputs(config: BertConfig, heads: Iterable[Head], donor: ModelOutput) -> Overrides:
    """Take the heads' outputs (before the output projection) from another run of the model."""
    heads = _parse(config, heads)
    values = [_of_donor(donor.record.head_outputs, head, config)[:, :, head[1]] for head in heads]
    return _outputs(config, heads, values, _real_tokens(donor))


def forbidden_edges(
    config: BertConfig, edges: Sequence[tuple[int, int, int, int]], example: int | None = None
) -> Overrides:
    """Forbid single edges `(layer, head, query, key)`: weight 0, the rest of the row shares what it had.

    Args:
        example: row of the batch that is meant; None for every row.
    """
    return _edges(config, edges, example, keep=[0.0] * len(edges), gate=[1.0] * len(edges), value=[0.0] * len(edges))


def fixed_edges(
    config: BertConfig, edges: Mapping[tuple[int, int, int, int], float], example: int | None = None
) -> Overrides:
    """Give single edges `(layer, head, query, key)` a weight; the rest of the row stays as learned."""
    return _edges(config, list(edges), example, [1.0] * len(edges), [0.0] * len(edges), list(edges.values()))


def combine(*overrides: Overrides) -> Overrides:
    """Join overrides of different heads, or of weights and outputs of one head.

    Raises:
        OverrideError: two of them override the same weights or the same output.
    """
    if not overrides:
        raise OverrideError("combine needs at least one override")
    first, *rest = overrides
    for other in rest:
        first = _combine_two(first, other)
    return first


def stack(overrides: Sequence[Overrides]) -> Overrides:
    """Put overrides beside each other along a new first axis, for `jax.vmap`.

    Shorter lists of entries are filled up with entries that do nothing (layer -1).
    """
    if not overrides:
        raise OverrideError("stack needs at least one override")
    columns = {name: _align([getattr(one, name) for one in overrides]) for name in ("weights", "outputs", "edges")}
    aligned = [
        _replace(one, **{name: column[i] for name, column in columns.items()}) for i, one in enumerate(overrides)
    ]
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *aligned)


def _replace(overrides: Overrides, **changes: Any) -> Overrides:
    fields = {name: getattr(overrides, name) for name in overrides.__dataclass_fields__}
    return Overrides(**(fields | changes))


def _parse(config: BertConfig, heads: Iterable[Head]) -> list[tuple[int, int]]:
    """Heads that exist, each once."""
    if isinstance(heads, str):
        raise OverrideError(f"heads must be a list, found the string {heads!r}")
    parsed = [parse_head(head, config) for head in heads]
    twice = {head for head in parsed if parsed.count(head) > 1}
    if twice:
        raise OverrideError(f"head {'.'.join(map(str, min(twice)))} is named twice")
    return parsed


def _indices(config: BertConfig, heads: Iterable[Head]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(_parse(config, heads), dtype=np.int32).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _require_finite(value: Any, what: str) -> None:
    if not is_traced(value) and not bool(jnp.isfinite(jnp.asarray(value)).all()):
        raise OverrideError(f"{what} must be finite")


def _real_tokens(donor: ModelOutput) -> Array:
    return jnp.sum(jnp.max(donor.record.keep, axis=1), axis=-1).astype(jnp.int32)


def _of_donor(stacked: Array, head: tuple[int, int], config: BertConfig) -> Array:
    if stacked.shape[0] != config.num_hidden_layers:
        raise OverrideError(f"the donor has {stacked.shape[0]} layers, the model {config.num_hidden_layers}")
    return stacked[head[0]]


def _entry_indices(
    heads: list[tuple[int, int]], values: list[Array], donor_tokens: Array | None
) -> tuple[Array, Array, Array, Array]:
    """Layer, head, values and donor's tokens of entries whose values are broadcast to one shape."""
    if not heads:
        raise OverrideError("no head was named")
    for value in values:
        _require_finite(value, "replacement values")
    shape = jnp.broadcast_shapes(*(value.shape for value in values))
    together = jnp.stack([jnp.broadcast_to(value, shape) for value in values])
    tokens = jnp.full((1,), -1, jnp.int32) if donor_tokens is None else donor_tokens
    layer, number = (jnp.array([head[axis] for head in heads], jnp.int32) for axis in (0, 1))
    return layer, number, together, jnp.broadcast_to(tokens[None], (len(heads), tokens.shape[0]))


def _weights(
    config: BertConfig, heads: list[tuple[int, int]], values: list[Array], donor_tokens: Array | None = None
) -> Overrides:
    base, entries = identity(config), HeadWeights(*_entry_indices(heads, values, donor_tokens))
    return _replace(base, weights_gate=base.weights_gate.at[_indices(config, heads)].set(0), weights=entries)


def _outputs(
    config: BertConfig, heads: Iterable[Head], values: list[Array], donor_tokens: Array | None = None
) -> Overrides:
    parsed = _parse(config, heads)
    base, entries = identity(config), HeadOutputs(*_entry_indices(parsed, values, donor_tokens))
    return _replace(base, output_gate=base.output_gate.at[_indices(config, parsed)].set(0), outputs=entries)


def _edges(
    config: BertConfig,
    edges: Sequence[tuple[int, int, int, int]],
    example: int | None,
    keep: list[float],
    gate: list[float],
    value: list[float],
) -> Overrides:
    if len(set(edges)) < len(edges):
        raise OverrideError("an edge is named twice")
    for layer, head, query, key in edges:
        parse_head((layer, head), config)
        if min(query, key) < 0:
            raise OverrideError(f"edge ({layer}, {head}, {query}, {key}) has a negative position")
    if example is not None and example < 0:
        raise OverrideError(f"example {example} is negative")
    _require_finite(np.asarray(value), "the weight of an edge")
    layers, heads, queries, keys = np.array(edges, dtype=np.int32).reshape(-1, 4).T
    rows = np.full(len(edges), -1 if example is None else example, np.int32)
    places = [jnp.asarray(array) for array in (layers, rows, heads, queries, keys)]
    return _replace(identity(config), edges=Edges(*places, *(jnp.array(x, float) for x in (keep, gate, value))))


def _combine_two(first: Overrides, second: Overrides) -> Overrides:
    changed = [(one.weights_gate != 1, one.output_gate != 1) for one in (first, second)]
    for mine, other, what in zip(*changed, ("weights", "output"), strict=True):
        clash = mine & other
        if not is_traced(clash) and bool(clash.any()):
            layer, head = np.argwhere(np.asarray(clash))[0]
            raise OverrideError(f"two overrides change the {what} of head {layer}.{head}")
    parts = {}
    for name in ("weights", "outputs", "edges"):
        both = [part for part in (getattr(first, name), getattr(second, name)) if part is not None]
        parts[name] = _concatenate(both) if len(both) == 2 else (both or [None])[0]
    return Overrides(
        first.weights_gate * second.weights_gate,
        first.uniform + second.uniform,
        first.output_gate * second.output_gate,
        **parts,
    )


def _concatenate(parts: list[Any]) -> Any:
    """Join two lists of entries; values for all examples are repeated beside values for each."""
    if not isinstance(parts[0], Edges):
        parts = _same_shape(parts)
    return jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts)


def _same_shape(parts: list[Any]) -> list[Any]:
    """Broadcast the values (and donor's tokens) of several lists of entries to one shape, entries apart."""
    shape = jnp.broadcast_shapes(*(part.values.shape[1:] for part in parts))
    batch = max(part.donor_tokens.shape[1] for part in parts)
    return [
        type(part)(
            part.layer,
            part.head,
            jnp.broadcast_to(part.values, (part.values.shape[0], *shape)),
            jnp.broadcast_to(part.donor_tokens, (part.donor_tokens.shape[0], batch)),
        )
        for part in parts
    ]


def _align(parts: list[Any]) -> list[Any]:
    """Give several lists of entries, None among them, equal shapes."""
    present = [part for part in parts if part is not None]
    if not present:
        return parts
    if not isinstance(present[0], Edges):
        present = _same_shape(present)
    count = max(part.layer.shape[0] for part in present)
    filled = iter([_fill(part, count) for part in present])
    nothing = _fill(jax.tree.map(lambda x: x[:0], present[0]), count)
    return [nothing if part is None else next(filled) for part in parts]


def _fill(part: Any, count: int) -> Any:
    """Add entries that do nothing until there are `count`."""
    missing = count - part.layer.shape[0]
    padded = jax.tree.map(lambda x: jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)), part)
    fields = {name: getattr(padded, name) for name in padded.__dataclass_fields__}
    fields["layer"] = jnp.where(jnp.arange(count) < part.layer.shape[0], padded.layer, -1)
    return type(part)(**fields)
