"""Several overrides into one, or beside each other; used through `bertjax.overrides`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bertjax import arguments
from bertjax.arguments import is_traced
from bertjax.errors import OverrideError
from bertjax.model import Edges, Overrides


def combine(*overrides: Overrides) -> Overrides:
    """Join overrides of different heads, or of weights and outputs of one head.

    Raises:
        OverrideError: two of them override the same weights or the same output.
    """
    _check_together(overrides, "combine")
    first, *rest = overrides
    for other in rest:
        first = _combine_two(first, other)
    return first


def stack(overrides: Sequence[Overrides]) -> Overrides:
    """Put overrides beside each other along a new first axis, for `jax.vmap`.

    Shorter lists of entries are filled up with entries that do nothing (layer -1).
    """
    overrides = _check_together(overrides, "stack")
    columns = {name: _align([getattr(one, name) for one in overrides]) for name in ("weights", "outputs", "edges")}
    aligned = [replace(one, **{name: column[i] for name, column in columns.items()}) for i, one in enumerate(overrides)]
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *aligned)


def _check_together(overrides: Sequence[Overrides], name: str) -> tuple[Overrides, ...]:
    """Several overrides, all of one model. Raises `OverrideError` where they are not."""
    given = arguments.several(overrides, f"what {name} takes", "several Overrides", Overrides, OverrideError)
    if not given:
        raise OverrideError(f"{name} needs at least one override")
    sizes = sorted({np.shape(one.weights_gate) for one in given})
    if len(sizes) > 1:
        raise OverrideError(f"{name} takes overrides of one model, found heads {sizes[0]} and {sizes[-1]}")
    return given


def _combine_two(first: Overrides, second: Overrides) -> Overrides:
    if not any(is_traced(leaf) for leaf in jax.tree.leaves((first, second))):
        _refuse_clash(first, second)
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


def _heads_changed(one: Overrides) -> tuple[np.ndarray, np.ndarray]:
    """Which heads' weights, and which heads' outputs, an override takes for itself, whatever its gates are."""
    weights = (np.asarray(one.weights_gate) != 1) | (np.asarray(one.uniform) != 0)
    outputs = np.asarray(one.output_gate) != 1
    for taken, entries in ((weights, one.weights), (outputs, one.outputs)):
        if entries is not None:
            used = np.asarray(entries.layer) >= 0
            taken[np.asarray(entries.layer)[used], np.asarray(entries.head)[used]] = True
    return weights, outputs


def _refuse_clash(first: Overrides, second: Overrides) -> None:
    """Two overrides may not change the same weights, the same output or the same edge."""
    for mine, other, what in zip(_heads_changed(first), _heads_changed(second), ("weights", "output"), strict=True):
        if (mine & other).any():
            layer, head = np.argwhere(mine & other)[0]
            raise OverrideError(f"two overrides change the {what} of head {layer}.{head}")
    places = [() if one.edges is None else _places(one.edges) for one in (first, second)]
    for layer, head, query, key, example in places[0]:
        for rival in places[1]:
            if rival[:4] == (layer, head, query, key) and (example == rival[4] or -1 in (example, rival[4])):
                raise OverrideError(f"two overrides change the edge ({layer}, {head}, {query}, {key})")
    for edges, rest in ((first.edges, second), (second.edges, first)):
        if edges is not None:
            for layer, head, *_ in _places(edges, np.asarray(edges.keep) != 1):
                if _heads_changed(rest)[0][layer, head]:
                    raise OverrideError(
                        f"an edge of head {layer}.{head} is forbidden, but its weights are replaced as well: "
                        "a forbidden edge acts on learned weights only"
                    )


def _places(edges: Edges, where: np.ndarray | None = None) -> list[tuple[int, ...]]:
    """Layer, head, query, key and example of each edge."""
    columns = np.stack([np.asarray(x) for x in (edges.layer, edges.head, edges.query, edges.key, edges.example)], 1)
    used = columns[:, 0] >= 0
    return [tuple(row) for row in columns[used if where is None else used & where].tolist()]


def _concatenate(parts: list[Any]) -> Any:
    """Join two lists of entries; values for all examples are repeated beside values for each."""
    if not isinstance(parts[0], Edges):
        parts = _same_shape(parts)
    return jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts)


def _same_shape(parts: list[Any]) -> list[Any]:
    """Broadcast the values (and donor's masks) of several lists of entries to one shape, entries apart."""
    shapes = {
        name: jnp.broadcast_shapes(*(getattr(part, name).shape[1:] for part in parts))
        for name in ("values", "donor_mask")
    }

    def widen(part: Any, name: str) -> Array:
        array = getattr(part, name)
        return jnp.broadcast_to(array, (array.shape[0], *shapes[name]))

    return [replace(part, **{name: widen(part, name) for name in shapes}) for part in parts]


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
    return replace(padded, layer=jnp.where(jnp.arange(count) < part.layer.shape[0], padded.layer, -1))
