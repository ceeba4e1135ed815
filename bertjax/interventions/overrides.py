"""Constructors of `Overrides`: what to change in which heads.

A head is named `"3.0"` or `(3, 0)`: layer and head, both from 0. Every constructor takes the model's config
first, refuses a head that does not exist, and leaves all other heads as learned. `combine` joins overrides of
different heads or kinds into one; `stack` puts several beside each other for `jax.vmap`.

Sources: uniform weights, Kovaleva et al. 2019, section 4.6; zero and factor, Michel et al. 2019; patching,
Vig et al. 2020; forbidden edges, Geva et al. 2023.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import index
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertjax import arguments
from bertjax.arguments import HoldsArray, is_traced, parse_head_name
from bertjax.checkpoints import BertConfig
from bertjax.errors import OverrideError, some_of
from bertjax.models import SITES, Edges, HeadOutputs, HeadWeights, ModelOutput, Overrides, SiteValues

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
E = TypeVar("E", HeadWeights, HeadOutputs, Edges, SiteValues)
# A number for all heads that are named, one for each of them, or a matrix `[layers, heads]` of all heads.
Gates: TypeAlias = float | HoldsArray | Sequence[Any]

ENTRIES = ("weights", "outputs", "edges", "vectors", "states")  # of `Overrides`: lists of what is replaced
LARGEST_PLACE = 2**31 - 1  # of a token, or of an example in a batch


def parse_head(head: Head, config: BertConfig) -> tuple[int, int]:
    """Layer and number of a head that exists.

    Raises:
        OverrideError: no such head, or not a head's name.

    >>> parse_head("3.0", BertConfig())
    (3, 0)
    """
    layers, heads = _sizes(config)
    if isinstance(head, str):
        parsed = parse_head_name(head)
        if parsed is None:
            raise OverrideError(f"{arguments.brief(head)} names no head: write LAYER.HEAD, e.g. 3.0 or L3H0")
        head = parsed
    layer, number = _exists(head, layers, heads)
    if number not in config.heads_of(layer):
        raise OverrideError(f"there is no head {layer}.{number}: it was pruned, the checkpoint has no weights for it")
    return layer, number


def _exists(head: tuple[int, int], layers: int, heads: int) -> tuple[int, int]:
    """A pair of whole numbers within these sizes. Raises `OverrideError` for anything else."""
    try:
        layer, number = (index(part) for part in head)
    except (TypeError, ValueError) as error:
        raise OverrideError(
            f"{arguments.brief(head)} names no head: give LAYER.HEAD or a pair of whole numbers"
        ) from error
    if not (0 <= layer < layers and 0 <= number < heads):
        called = ".".join(map(arguments.describe, (layer, number)))
        raise OverrideError(
            f"there is no head {called}: the model has layers 0 to {layers - 1}, heads 0 to {heads - 1}"
        )
    return layer, number


def heads_of_layer(config: BertConfig, layer: int) -> tuple[tuple[int, int], ...]:
    """All heads of one layer. Raises `OverrideError` if there is no such layer.

    >>> heads_of_layer(BertConfig(hidden_size=6, num_attention_heads=2), 1)
    ((1, 0), (1, 1))
    """
    layers, heads = _sizes(config)
    number = _exists((layer, 0), layers, heads)[0]
    return tuple((number, head) for head in config.heads_of(number))


def every_head(config: BertConfig) -> tuple[tuple[int, int], ...]:
    """All heads that the model has, layer by layer."""
    return tuple(head for layer in range(_sizes(config)[0]) for head in heads_of_layer(config, layer))


def list_heads(heads: Iterable[Head] | None, config: BertConfig) -> list[tuple[int, int]]:
    """Layer and number of each of some heads, each once; of all heads for None or none.

    Raises:
        OverrideError: a head that does not exist.
    """
    return list(dict.fromkeys(parse_head(head, config) for head in heads)) if heads else [*every_head(config)]


def identity(config: BertConfig) -> Overrides:
    """The override that changes nothing."""
    shape = _sizes(config)
    ones, zeros = jax.device_put(np.ones(shape)), jax.device_put(np.zeros(shape))
    return Overrides(ones, zeros, ones)


def uniform(config: BertConfig, heads: Iterable[Head], gate: Gates = 0.0) -> Overrides:
    """Disable heads: each query's weights become 1/n on the n real tokens ([CLS] and [SEP] count).

    Args:
        heads: which.
        gate: share of the learned weights that is left, 0 to 1: for all, one for each, or `[layers, heads]`.

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
    """Multiply the heads' outputs, before the output projection, by a factor; differentiable in it.

    Args:
        heads: which; left out where there is a factor for every head: `factor(config, factors)`.
        factor: for all of them, one for each, or a matrix `[layers, heads]` of all heads' factors.

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
    """Multiply the heads' outputs by 0."""
    return factor(config, heads, 0.0)


def mean(
    config: BertConfig,
    heads: Iterable[Head],
    means: Float[Array, "layers heads head_dim"] | Float[np.ndarray, "layers heads head_dim"],
    gate: Gates = 0.0,
) -> Overrides:
    """Replace the heads' outputs by one vector for each head, the same at every token.

    Args:
        means: usually the mean output over the real tokens of all examples (`bertjax.mean_head_outputs`).
        gate: share of the heads' own outputs that is left, 0 to 1: for all, one for each, or `[layers, heads]`.
    """
    values = as_floats(means, "means")
    shape = (*_sizes(config), config.head_dim)
    if values.shape != shape:
        raise OverrideError(f"means have shape {values.shape}, expected [layers, heads, head_dim] {shape}")
    return _outputs(config, heads, [values[head][None, None] for head in parse_heads(config, heads)], gate=gate)


def fixed(config: BertConfig, weights: Mapping[Head, Any]) -> Overrides:
    """Give heads the attention weights `[query, key]`, or `[batch, query, key]` for each example its own.

    The numbers are used as they are: rows need not sum to 1. Tokens count as in the example, padding included.
    """
    arguments.check_instance(weights, "weights", Mapping, "a dict from heads to their weights", OverrideError)
    heads = parse_heads(config, list(weights))
    values = [as_floats(value, "fixed weights") for value in weights.values()]
    for value in values:
        if value.ndim not in (2, 3) or value.shape[-1] != value.shape[-2]:
            raise OverrideError(f"fixed weights have shape {value.shape}, expected [query, key] or [batch, query, key]")
    return _weights(config, heads, [value if value.ndim == 3 else value[None] for value in values])


def patched_weights(config: BertConfig, heads: Iterable[Head], source: ModelOutput) -> Overrides:
    """Take the heads' attention weights from another run of the model, example by example.

    Donor and receiver need the same number of tokens, example by example; that is checked when the model is called.
    """
    heads = parse_heads(config, heads)
    check_source(config, source)
    return _weights(config, heads, [source.attentions[layer][:, head] for layer, head in heads], mask_of(source))


def patched_outputs(config: BertConfig, heads: Iterable[Head], source: ModelOutput, gate: Gates = 0.0) -> Overrides:
    """Take the heads' outputs (before the output projection) from another run of the model.

    Args:
        gate: share of the heads' own outputs that is left, 0 to 1: for all, one for each, or `[layers, heads]`.
    """
    heads = parse_heads(config, heads)
    check_source(config, source)
    values = [source.inside.head_outputs[layer][:, :, head] for layer, head in heads]
    return _outputs(config, heads, values, mask_of(source), gate)


def forbidden_edges(
    config: BertConfig, edges: Sequence[tuple[int, int, int, int]], example: int | None = None
) -> Overrides:
    """Forbid single edges `(layer, head, query, key)`: weight 0, the rest of the row shares what it had.

    Args:
        example: row of the batch that is meant; None for every row.
    """
    edges = arguments.check_sequence(edges, "edges", "a list of edges (layer, head, query, key)", error=OverrideError)
    return _edges(config, edges, example, keep=[0.0] * len(edges), gate=[1.0] * len(edges), value=[0.0] * len(edges))


def fixed_edges(
    config: BertConfig, edges: Mapping[tuple[int, int, int, int], float], example: int | None = None
) -> Overrides:
    """Give single edges `(layer, head, query, key)` a weight; the rest of the row stays as learned."""
    arguments.check_instance(edges, "edges", Mapping, "a dict from (layer, head, query, key) to weights", OverrideError)
    return _edges(config, list(edges), example, [1.0] * len(edges), [0.0] * len(edges), list(edges.values()))


def _sizes(config: BertConfig) -> tuple[int, int]:
    """Layers, and heads of each."""
    arguments.check_instance(config, "config", BertConfig, "a BertConfig (model.config)", OverrideError)
    return config.num_hidden_layers, config.num_attention_heads


def parse_heads(config: BertConfig, heads: Iterable[Head] | Gates) -> list[tuple[int, int]]:
    """Heads that exist, each once."""
    named = arguments.check_sequence(heads, "heads", "a list of heads such as ['3.0', '4.1']", error=OverrideError)
    parsed = [parse_head(head, config) for head in named]
    twice = {head for head in parsed if parsed.count(head) > 1}
    if twice:
        raise OverrideError(f"head {'.'.join(map(str, min(twice)))} is named twice")
    return parsed


def _indices(heads: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(heads, dtype=np.int32).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _array_module(*trees: Any) -> Any:
    """`numpy` if all arrays are in the CPU's memory, otherwise `jax.numpy`.

    JAX compiles a program for each operation and shape, which takes longer than these operations.
    """
    arrays = jax.tree.leaves(trees)
    if any(map(is_traced, arrays)):
        return jnp
    devices = [device for array in arrays if isinstance(array, jax.Array) for device in array.devices()]
    return np if all(device.platform == "cpu" for device in devices) else jnp


def _to_device(tree: Any) -> Any:
    """The same arrays as arrays of JAX."""
    return jax.tree.map(lambda array: jax.device_put(array) if isinstance(array, np.ndarray) else array, tree)


def _changed(gates: Float[Array, "layers heads"], heads: list[tuple[int, int]], values: Any) -> Array:
    """A copy of gates in which these heads have other values."""
    if _array_module(gates, values) is jnp:
        return gates.at[_indices(heads)].set(values)
    changed = np.array(gates)
    changed[_indices(heads)] = values
    return jax.device_put(changed)


def as_floats(values: Any, name: str) -> Float[Array, "..."]:
    """Finite floats, of JAX's default dtype unless they have one already."""
    given = arguments.as_array(values, name, OverrideError)
    if jnp.issubdtype(given.dtype, jnp.complexfloating):
        arguments.refuse(name, "real numbers", values, OverrideError)
    # As floats first: without x64, JAX keeps of an integer the lower 32 bits.
    with np.errstate(over="ignore"):  # what float32 has not is infinite, and refused
        floats = given if jnp.issubdtype(given.dtype, jnp.floating) else given.astype(float)
        # A copy: on a CPU, JAX may use the memory of the array that it is given.
        floats = jax.device_put(np.array(floats)) if isinstance(floats, np.ndarray) else floats
    _require_finite(floats, name)
    return floats


def _gates(config: BertConfig, heads: list[tuple[int, int]], values: Any, name: str) -> Float[Array, "..."]:
    """A gate for all the heads that are named, or one for each of them."""
    gates = as_floats(values, name).astype(float)
    if gates.shape == _sizes(config):
        return gates[_indices(heads)]
    if gates.shape not in ((), (len(heads),)):
        raise OverrideError(
            f"{name} has shape {gates.shape}, expected one number, one for each of the {len(heads)} heads that are "
            f"named, or [layers, heads] {_sizes(config)}"
        )
    return gates


def _require_finite(value: Array, what: str) -> None:
    if not is_traced(value) and not bool(_array_module(value).isfinite(value).all()):
        raise OverrideError(f"{what} must be finite")


def mask_of(source: ModelOutput) -> Array:
    keep = source.inside.keep
    return _to_device(_array_module(keep).max(keep, axis=1).astype(np.int32))


def check_source(config: BertConfig, source: ModelOutput) -> None:
    arguments.check_instance(source, "source", ModelOutput, "what a model returned for another text", OverrideError)
    outputs = source.inside.head_outputs
    sizes, expected = (outputs.shape[0], *outputs.shape[3:]), (*_sizes(config), config.head_dim)
    if sizes != expected:
        raise OverrideError(f"the source has [layers, heads, head_dim] {sizes}, the model {expected}")


def entry_indices(
    heads: list[tuple[int, int]], values: list[Array], source_mask: Array | None
) -> tuple[Array, Array, Array, Array]:
    """Layer, head, values and source's mask of entries whose values are broadcast to one shape."""
    if not heads:
        raise OverrideError("no head was named")
    try:
        shape = jnp.broadcast_shapes(*(value.shape for value in values))
    except ValueError:
        shapes = some_of([str(value.shape) for value in values])
        raise OverrideError(
            f"the replacements of the heads are of sizes that do not fit each other: {shapes}"
        ) from None
    xp = _array_module(values, source_mask)
    together = xp.stack([xp.broadcast_to(value, shape) for value in values])
    mask = np.full((1, 1), -1, np.int32) if source_mask is None else source_mask
    return _to_device((*_indices(heads), together, xp.broadcast_to(mask, (len(heads), *mask.shape))))


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
        layer, head, query, key = (index(part) for part in edge)
    except (TypeError, ValueError) as error:
        raise OverrideError(
            f"{arguments.brief(edge)} is not an edge: give (layer, head, query, key) as whole numbers"
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
        if not 0 <= min(query, key) <= max(query, key) <= LARGEST_PLACE:
            called = ", ".join(map(arguments.describe, (layer, head, query, key)))
            raise OverrideError(f"edge ({called}) has a position that is negative or beyond {LARGEST_PLACE}")
    if example is not None and arguments.check_int(example, "example", 0, OverrideError) > LARGEST_PLACE:
        raise OverrideError(f"example {example} of edges is beyond {LARGEST_PLACE}")
    weights = as_floats(value, "the weight of an edge").astype(float)
    if weights.shape != (len(edges),):
        raise OverrideError("the weight of an edge must be one number")
    layers, heads, queries, keys = np.array(edges, dtype=np.int32).reshape(-1, 4).T
    rows = np.full(len(edges), -1 if example is None else example, np.int32)
    places = [jax.device_put(column) for column in (layers, rows, heads, queries, keys)]
    gates = [jax.device_put(np.array(values, weights.dtype)) for values in (keep, gate)]
    return replace(identity(config), edges=Edges(*[*places, *gates, weights]))


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
    entries: dict[str, list[Any]] = {
        name: _align([getattr(override, name) for override in overrides]) for name in ENTRIES
    }
    tokens = _align_tokens([override.tokens for override in overrides])
    aligned = [
        replace(override, tokens=tokens[number], **{name: parts[number] for name, parts in entries.items()})
        for number, override in enumerate(overrides)
    ]
    stacked: Overrides = _to_device(jax.tree.map(lambda *arrays: _array_module(arrays).stack(arrays), *aligned))
    return stacked


def _check_together(overrides: Sequence[Overrides], name: str) -> tuple[Overrides, ...]:
    """Several overrides, all of one model. Raises `OverrideError` where they are not."""
    given = arguments.check_sequence(overrides, f"what {name} takes", "several Overrides", Overrides, OverrideError)
    if not given:
        raise OverrideError(f"{name} needs at least one override")
    sizes = sorted({np.shape(override.weights_gate) for override in given})
    if len(sizes) > 1:
        raise OverrideError(f"{name} takes overrides of one model, found heads {sizes[0]} and {sizes[-1]}")
    return given


def _combine_two(first: Overrides, second: Overrides) -> Overrides:
    if not any(is_traced(leaf) for leaf in jax.tree.leaves((first, second))):
        _refuse_clash(first, second)
    xp = _array_module(first, second)
    return Overrides(
        _to_device(xp.multiply(first.weights_gate, second.weights_gate)),
        _to_device(xp.add(first.uniform, second.uniform)),
        _to_device(xp.multiply(first.output_gate, second.output_gate)),
        tokens=_join_tokens(first.tokens, second.tokens),
        **{name: _join(getattr(first, name), getattr(second, name)) for name in ENTRIES},
    )


def _join_tokens(first: Array | None, second: Array | None) -> Array | None:
    """Tokens at which the heads of both act; heads of which one says nothing act everywhere."""
    if first is None or second is None:
        return second if first is None else first
    return first * second


def _heads_changed(override: Overrides) -> tuple[np.ndarray, np.ndarray]:
    """Which heads' weights, and which heads' outputs, an override takes for itself, whatever its gates are."""
    weights = (np.asarray(override.weights_gate) != 1) | (np.asarray(override.uniform) != 0)
    outputs = np.asarray(override.output_gate) != 1
    for taken, entries in ((weights, override.weights), (outputs, override.outputs)):
        if entries is not None:
            used = np.asarray(entries.layer) >= 0
            taken[np.asarray(entries.layer)[used], np.asarray(entries.head)[used]] = True
    return weights, outputs


def heads_changed(override: Overrides) -> np.ndarray:
    """Which heads an override takes for itself, `[layers, heads]`, whatever it changes of them."""
    weights, outputs = _heads_changed(override)
    return weights | outputs


def _refuse_clash(first: Overrides, second: Overrides) -> None:
    """Two overrides may not change the same weights, the same output or the same edge."""
    for first_heads, second_heads, what in zip(
        _heads_changed(first), _heads_changed(second), ("weights", "output"), strict=True
    ):
        if (first_heads & second_heads).any():
            layer, head = np.argwhere(first_heads & second_heads)[0]
            raise OverrideError(f"two overrides change the {what} of head {layer}.{head}")
    _refuse_same_sites(first, second)
    places = [() if override.edges is None else _places(override.edges) for override in (first, second)]
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


def _refuse_same_sites(first: Overrides, second: Overrides) -> None:
    """Two overrides may not replace the same vector at the same token."""
    for name in ("vectors", "states"):
        parts = [part for part in (getattr(first, name), getattr(second, name)) if part is not None]
        if len(parts) < 2:
            continue
        for number in np.flatnonzero(np.asarray(parts[0].layer) >= 0).tolist():
            key = [int(getattr(parts[0], field)[number]) for field in ("site", "layer", "head")]
            for rival in np.flatnonzero(np.asarray(parts[1].layer) >= 0).tolist():
                if key != [int(getattr(parts[1], field)[rival]) for field in ("site", "layer", "head")]:
                    continue
                if bool(((np.asarray(parts[0].share[number]) != 0) & (np.asarray(parts[1].share[rival]) != 0)).any()):
                    where = f"layer {key[1]}" if name == "states" else f"head {key[1]}.{key[2]}"
                    raise OverrideError(f"two overrides replace the {[*SITES][key[0]]} of {where} at the same tokens")


def _places(edges: Edges, where: np.ndarray | None = None) -> list[tuple[int, ...]]:
    """Layer, head, query, key and example of each edge."""
    columns = np.stack([np.asarray(x) for x in (edges.layer, edges.head, edges.query, edges.key, edges.example)], 1)
    used = columns[:, 0] >= 0
    return [tuple(row) for row in columns[used if where is None else used & where].tolist()]


def _join(first: E | None, second: E | None) -> E | None:
    """Entries of both; values for all examples are repeated beside values for each."""
    if first is None or second is None:
        return second if first is None else first
    both = _same_shape([first, second])
    joined: E = _to_device(jax.tree.map(lambda *arrays: _array_module(arrays).concatenate(arrays), *both))
    return joined


def _same_shape(parts: list[E]) -> list[E]:
    """Broadcast the values (and source's masks) of several lists of entries to one shape; edges have none."""
    if isinstance(parts[0], Edges):
        return parts
    named = ("values", "source_mask", *(("share",) if isinstance(parts[0], SiteValues) else ()))
    shapes: dict[str, tuple[int, ...]] = {
        name: jnp.broadcast_shapes(*(getattr(part, name).shape[1:] for part in parts)) for name in named
    }

    def widen(part: E, name: str) -> Array:
        array = getattr(part, name)
        repeated: Array = _to_device(_array_module(array).broadcast_to(array, (array.shape[0], *shapes[name])))
        return repeated

    return [replace(part, **{name: widen(part, name) for name in shapes}) for part in parts]


def _align(parts: list[E | None]) -> list[E | None]:
    """Give several lists of entries, None among them, equal shapes."""
    present = [part for part in parts if part is not None]
    if not present:
        return parts
    present = _same_shape(present)
    count = max(part.layer.shape[0] for part in present)
    filled = iter([_fill(part, count) for part in present])
    nothing = _fill(_to_device(jax.tree.map(lambda x: np.zeros((0, *x.shape[1:]), x.dtype), present[0])), count)
    return [nothing if part is None else next(filled) for part in parts]


def _align_tokens(parts: list[Array | None]) -> list[Array | None]:
    """Give several arrays of tokens, None among them, equal shapes."""
    present = [part for part in parts if part is not None]
    if not present:
        return parts
    shape = jnp.broadcast_shapes(*(part.shape for part in present))
    everywhere = np.ones((1, 1, 1, 1), present[0].dtype)
    wide = [everywhere if part is None else part for part in parts]
    return [_to_device(_array_module(part).broadcast_to(part, shape)) for part in wide]


def _fill(part: E, count: int) -> E:
    """Add entries that do nothing until there are `count`."""
    missing = count - part.layer.shape[0]
    if missing == 0:
        return part

    def pad(array: Array, value: int = 0) -> Array:
        widths = [(0, missing)] + [(0, 0)] * (array.ndim - 1)
        filled: Array = _to_device(_array_module(array).pad(array, widths, constant_values=value))
        return filled

    return replace(jax.tree.map(pad, part), layer=pad(part.layer, -1))
