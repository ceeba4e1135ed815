"""Joining overrides: of different heads and kinds in one call (`combine`), and along a new axis (`stack`)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bertjax import arguments
from bertjax.arguments import is_traced
from bertjax.errors import OverrideError
from bertjax.models import SITES, Edges, HeadOutputs, HeadWeights, Overrides, SiteValues

E = TypeVar("E", HeadWeights, HeadOutputs, Edges, SiteValues)

ENTRIES = ("weights", "outputs", "edges", "vectors", "states")  # the fields of `Overrides` that are lists of entries


def array_module(*trees: Any) -> Any:
    """`numpy` if all arrays are in CPU memory, otherwise `jax.numpy`.

    JAX compiles a program for each operation and shape, which takes longer than the operations here.
    """
    arrays = jax.tree.leaves(trees)
    if any(map(is_traced, arrays)):
        return jnp
    devices = [device for array in arrays if isinstance(array, jax.Array) for device in array.devices()]
    return np if all(device.platform == "cpu" for device in devices) else jnp


def to_device(tree: Any) -> Any:
    """Convert NumPy arrays to JAX arrays."""
    return jax.tree.map(lambda array: jax.device_put(array) if isinstance(array, np.ndarray) else array, tree)


def combine(*overrides: Overrides) -> Overrides:
    """Join overrides of different heads, or of weights and outputs of one head.

    Args:
        overrides: overrides of one model.

    Raises:
        OverrideError: two of them override the same weights or the same output.
    """
    _check_together(overrides, "combine")
    first, *rest = overrides
    for other in rest:
        first = _combine_two(first, other)
    return first


def stack(overrides: Sequence[Overrides]) -> Overrides:
    """Stack overrides along a new first axis, for `jax.vmap`.

    Shorter lists of entries are padded with entries that have no effect (layer -1).

    Args:
        overrides: overrides of one model, at least one.
    """
    overrides = _check_together(overrides, "stack")
    entries: dict[str, list[Any]] = {
        name: _align([getattr(override, name) for override in overrides]) for name in ENTRIES
    }
    tokens = _align_tokens([override.tokens for override in overrides])
    aligned = [
        replace(override, tokens=tokens[index], **{name: lists[index] for name, lists in entries.items()})
        for index, override in enumerate(overrides)
    ]
    stacked: Overrides = to_device(jax.tree.map(lambda *arrays: array_module(arrays).stack(arrays), *aligned))
    return stacked


def _check_together(overrides: Sequence[Overrides], name: str) -> tuple[Overrides, ...]:
    """Raise `OverrideError` unless these are overrides of one model."""
    expected = "a sequence of Overrides"
    checked = arguments.check_sequence(overrides, f"the arguments of {name}", expected, Overrides, OverrideError)
    if not checked:
        raise OverrideError(f"{name} needs at least one override")
    sizes = sorted({np.shape(override.weights_gate) for override in checked})
    if len(sizes) > 1:
        raise OverrideError(f"{name} takes overrides of one model, found heads {sizes[0]} and {sizes[-1]}")
    return checked


def _combine_two(first: Overrides, second: Overrides) -> Overrides:
    if not any(is_traced(leaf) for leaf in jax.tree.leaves((first, second))):
        _refuse_clash(first, second)
    xp = array_module(first, second)
    return Overrides(
        to_device(xp.multiply(first.weights_gate, second.weights_gate)),
        to_device(xp.add(first.uniform, second.uniform)),
        to_device(xp.multiply(first.output_gate, second.output_gate)),
        tokens=_join_tokens(first.tokens, second.tokens),
        **{name: _join(getattr(first, name), getattr(second, name)) for name in ENTRIES},
    )


def _join_tokens(first: Array | None, second: Array | None) -> Array | None:
    """The product of two masks of tokens; None acts at all tokens."""
    if first is None or second is None:
        return second if first is None else first
    return first * second


def _heads_changed(override: Overrides) -> tuple[np.ndarray, np.ndarray]:
    """Masks of the heads whose weights, and whose outputs, an override may change, whatever its gates are."""
    weights = (np.asarray(override.weights_gate) != 1) | (np.asarray(override.uniform) != 0)
    outputs = np.asarray(override.output_gate) != 1
    for taken, entries in ((weights, override.weights), (outputs, override.outputs)):
        if entries is not None:
            used = np.asarray(entries.layer) >= 0
            taken[np.asarray(entries.layer)[used], np.asarray(entries.head)[used]] = True
    return weights, outputs


def heads_changed(override: Overrides) -> np.ndarray:
    """Mask `[layers, heads]` of the heads that an override may change."""
    weights, outputs = _heads_changed(override)
    return weights | outputs


def _refuse_clash(first: Overrides, second: Overrides) -> None:
    """Raise `OverrideError` if two overrides change the same weights, output, edge or site."""
    for first_heads, second_heads, what in zip(
        _heads_changed(first), _heads_changed(second), ("weights", "output"), strict=True
    ):
        if (first_heads & second_heads).any():
            layer, head = np.argwhere(first_heads & second_heads)[0]
            raise OverrideError(f"two overrides change the {what} of head {layer}.{head}")
    _refuse_same_sites(first, second)
    edges = [() if override.edges is None else _list_edges(override.edges) for override in (first, second)]
    for *edge, example in edges[0]:
        for *other_edge, other_example in edges[1]:
            if other_edge == edge and (example == other_example or -1 in (example, other_example)):
                raise OverrideError(f"two overrides change the edge ({', '.join(map(str, edge))})")
    for override, other in ((first, second), (second, first)):
        if override.edges is not None:
            for layer, head, *_ in _list_edges(override.edges, np.asarray(override.edges.keep) != 1):
                if _heads_changed(other)[0][layer, head]:
                    raise OverrideError(
                        f"an edge of head {layer}.{head} is forbidden, but its weights are replaced as well: "
                        "a forbidden edge acts on learned weights only"
                    )


def _refuse_same_sites(first: Overrides, second: Overrides) -> None:
    """Raise `OverrideError` if two overrides replace the same vector at the same token."""
    for name in ("vectors", "states"):
        if getattr(first, name) is None or getattr(second, name) is None:
            continue
        entries = [
            [
                (*(int(getattr(values, field)[row]) for field in ("site", "layer", "head")), values.share[row])
                for row in np.flatnonzero(np.asarray(values.layer) >= 0).tolist()
            ]
            for values in (getattr(first, name), getattr(second, name))
        ]
        for *key, share in entries[0]:
            for *other_key, other_share in entries[1]:
                if key == other_key and bool(((np.asarray(share) != 0) & (np.asarray(other_share) != 0)).any()):
                    where = f"layer {key[1]}" if name == "states" else f"head {key[1]}.{key[2]}"
                    raise OverrideError(f"two overrides replace the {[*SITES][key[0]]} of {where} at the same tokens")


def _list_edges(edges: Edges, where: np.ndarray | None = None) -> list[tuple[int, ...]]:
    """Layer, head, query, key and example of each edge."""
    columns = np.stack([np.asarray(x) for x in (edges.layer, edges.head, edges.query, edges.key, edges.example)], 1)
    used = columns[:, 0] >= 0
    return [tuple(row) for row in columns[used if where is None else used & where].tolist()]


def _join(first: E | None, second: E | None) -> E | None:
    """Concatenate entries; values for all examples are repeated if others are for each example."""
    if first is None or second is None:
        return second if first is None else first
    both = _broadcast([first, second])
    joined: E = to_device(jax.tree.map(lambda *arrays: array_module(arrays).concatenate(arrays), *both))
    return joined


def _broadcast(lists: list[E]) -> list[E]:
    """Broadcast values, masks and shares of several lists of entries to one shape; edges have none of these."""
    if isinstance(lists[0], Edges):
        return lists
    names = ("values", "source_mask", *(("share",) if isinstance(lists[0], SiteValues) else ()))
    shapes: dict[str, tuple[int, ...]] = {
        name: jnp.broadcast_shapes(*(getattr(entries, name).shape[1:] for entries in lists)) for name in names
    }

    def widen(entries: E, name: str) -> Array:
        array = getattr(entries, name)
        repeated: Array = to_device(array_module(array).broadcast_to(array, (array.shape[0], *shapes[name])))
        return repeated

    return [replace(entries, **{name: widen(entries, name) for name in shapes}) for entries in lists]


def _align(lists: list[E | None]) -> list[E | None]:
    """Pad lists of entries to equal shapes; None becomes a list of entries without effect, unless all are None."""
    present = [entries for entries in lists if entries is not None]
    if not present:
        return lists
    present = _broadcast(present)
    count = max(entries.layer.shape[0] for entries in present)
    padded = iter([_pad(entries, count) for entries in present])
    empty = _pad(to_device(jax.tree.map(lambda x: np.zeros((0, *x.shape[1:]), x.dtype), present[0])), count)
    return [empty if entries is None else next(padded) for entries in lists]


def _align_tokens(masks: list[Array | None]) -> list[Array | None]:
    """Broadcast masks of tokens to one shape; None becomes a mask of all tokens, unless all are None."""
    present = [mask for mask in masks if mask is not None]
    if not present:
        return masks
    shape = jnp.broadcast_shapes(*(mask.shape for mask in present))
    everywhere = np.ones((1, 1, 1, 1), present[0].dtype)
    filled = [everywhere if mask is None else mask for mask in masks]
    return [to_device(array_module(mask).broadcast_to(mask, shape)) for mask in filled]


def _pad(entries: E, count: int) -> E:
    """Add entries without effect until there are `count`."""
    missing = count - entries.layer.shape[0]
    if missing == 0:
        return entries

    def pad(array: Array, value: int = 0) -> Array:
        widths = [(0, missing)] + [(0, 0)] * (array.ndim - 1)
        padded: Array = to_device(array_module(array).pad(array, widths, constant_values=value))
        return padded

    return replace(jax.tree.map(pad, entries), layer=pad(entries.layer, -1))
