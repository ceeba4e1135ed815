"""Checks of the arguments of a model, before anything is computed.

Shapes and dtypes are always checked, values only outside `jax.jit`. JAX itself would clamp an id outside the vocabulary
and broadcast a wrong shape silently.
"""

import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Bool

from bertjax import arguments
from bertjax.arguments import is_traced
from bertjax.checkpoints import BertConfig
from bertjax.errors import InputError, OverrideError, some_of
from bertjax.models.types import Edges, HeadOutputs, HeadWeights, Inputs, Numerics, Overrides, SiteValues

OVERRIDES = "a result of bertjax.overrides (for an Ablation: ablations.to_overrides)"
FIELDS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")


class _First:
    """The process in which bertjax first used JAX; a forked process inherits its id."""

    process: int | None = None


def check_process() -> None:
    """Raise `InputError` in a process forked from one that has used JAX: a computation there would never end."""
    _First.process = _First.process or os.getpid()
    if _First.process != os.getpid():
        raise InputError(
            "this process was forked from one that has used JAX; JAX's threads are not copied, so a computation would "
            "wait forever: start processes with multiprocessing.get_context('spawn')"
        )


def check_not_traced(name: str, parameters: Mapping[str, Any], examples: Any = None) -> None:
    """Raise `InputError` if a function that runs many compiled steps is traced by JAX, or in a forked process.

    Args:
        name: name of the function.
        parameters: parameters of its model.
        examples: the inputs of the sweep.
    """
    check_process()
    inputs = jax.tree.leaves(examples) if isinstance(examples, Mapping) or is_traced(examples) else []
    # Inside jit every operation is traced, whatever its arguments.
    if any(map(is_traced, [*parameters.values(), *inputs, jnp.zeros(())])):
        raise InputError(
            f"{name} is inside jax.jit, vmap or grad, but compiles its own steps and returns NumPy arrays: call it "
            "outside, or transform a call of the model (model(..., overrides=...))"
        )


def read_batch(batch: Mapping[str, Any], tokenizer: Any = None) -> dict[str, Any]:
    """The arrays of a call as a dict.

    Args:
        batch: arguments by name. `input_ids` may also be a whole batch, such as that of `bertjax.collate` or of a
            tokenizer of `transformers`, or texts.
        tokenizer: makes a batch from texts.

    Raises:
        InputError: no ids, texts without a tokenizer, a batch with other arrays, or arrays next to a batch.
    """
    first = batch.get("input_ids")
    if isinstance(first, str) or (isinstance(first, list | tuple) and first and isinstance(first[0], str)):
        if tokenizer is None:
            raise InputError("input_ids are texts: pass tokenizer=bertjax.Tokenizer as well, or token ids")
        first = arguments.check_function(tokenizer, "tokenizer", "a bertjax.Tokenizer")(
            [first] if isinstance(first, str) else first
        )
    if isinstance(first, Mapping):
        separate = [name for name in FIELDS[1:] if batch.get(name) is not None]
        if separate:
            raise InputError(
                f"input_ids is a batch, and there is {', '.join(separate)} besides it: put it in the batch"
            )
        batch = first
    unknown = [str(name) for name in batch if name not in FIELDS]
    if unknown:
        raise InputError(f"a batch holds {some_of(unknown)}: the model takes {', '.join(FIELDS)}")
    if batch.get("input_ids") is None:
        raise InputError("there are no input_ids: pass integers [batch, token], a batch, or texts with tokenizer=")
    return dict(batch)


def prepare_inputs(
    config: BertConfig,
    numerics: Numerics,
    input_ids: ArrayLike | Any,
    attention_mask: ArrayLike | Any | None = None,
    token_type_ids: ArrayLike | Any | None = None,
    position_ids: ArrayLike | Any | None = None,
) -> Inputs:
    """Check the arguments of a model and fill in the missing ones, as HuggingFace does.

    Args:
        config: config of the model.
        numerics: numerics of the model.
        input_ids: integers `[batch, token]`.
        attention_mask: 1 or True for real tokens, `[batch, token]` or `[batch, query, key]`; default: all real.
        token_type_ids: integers `[batch, token]`; default 0. Models without token types ignore them.
        position_ids: integers `[batch, token]`; default 0, 1, 2 ..., or `count_positions` in families that count
            positions by tokens.

    Raises:
        InputError: a wrong shape or dtype, a sequence longer than the position embeddings, an id out of range,
            a mask with other values than 0 and 1.
    """
    ids = _integers(input_ids, "input_ids", None, config.vocab_size, "vocab_size")
    batch, tokens = ids.shape
    rows = config.max_position_embeddings
    if position_ids is None and tokens > config.max_tokens:
        raise InputError(f"input_ids has {tokens} tokens, but the model {describe_limit(config)}")
    if position_ids is not None:
        positions: Any = _integers(position_ids, "position_ids", ids.shape, rows, "max_position_embeddings")
    elif config.architecture.embeddings.positions == "tokens":
        positions = count_positions(config, ids)
    else:
        positions = np.broadcast_to(np.arange(tokens, dtype=np.int32), ids.shape)
    types: Any = np.zeros(ids.shape, np.int32)
    if token_type_ids is not None and config.architecture.embeddings.token_types:
        types = _integers(token_type_ids, "token_type_ids", ids.shape, config.type_vocab_size, "type_vocab_size")
    keep = np.ones(ids.shape, np.int32) if attention_mask is None else attention_mask
    return Inputs(*map(_on_device, (ids, _mask(keep, batch, tokens, numerics), types, positions)))


def describe_limit(config: BertConfig) -> str:
    """The longest input and how to truncate to it, for error messages."""
    rows, most = config.max_position_embeddings, config.max_tokens
    limit = f"has max_position_embeddings {rows}" + (f", which are {most} tokens" if most < rows else "")
    return f"{limit}: truncate texts with --max-length {most}, or max_length={most} of the tokenizer"


def count_positions(config: BertConfig, ids: Any, segments: Any = None) -> Any:
    """Positions that count only tokens whose id is not padding, from `first_position` on, as in RoBERTa.

    Padding has the position before the first, whatever the mask says.

    Args:
        config: config of the model.
        ids: token ids, `[batch, token]`.
        segments: example of each token in packed rows, which are counted separately; None for one example per row.
    """
    first = config.architecture.embeddings.first_position
    padding = first - 1
    xp = jnp if is_traced(ids) else np
    real = (ids != padding).astype(np.int32)
    counted = xp.cumsum(real, axis=1, dtype=np.int32)
    if segments is not None:
        begins = np.diff(segments, axis=1, prepend=0) != 0
        before = np.where(begins, counted - real, 0)
        counted = counted - np.maximum.accumulate(before, axis=1)
        real = real * (segments > 0)
    return counted * real + (first - 1)


def _integers(values: Any, name: str, shape: tuple[int, ...] | None, limit: int, limit_name: str) -> Any:
    array = arguments.as_array(values, name)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise InputError(f"{name} must be integers, found {array.dtype}")
    if array.ndim != 2 or array.size == 0:
        hint = " (one text is a batch of one: tokenizer([text]), or [ids])" if array.ndim == 1 and array.size else ""
        raise InputError(f"{name} must have shape [batch, token] and not be empty, found {array.shape}{hint}")
    if shape is not None and array.shape != shape:
        raise InputError(f"{name} has shape {array.shape}, but input_ids has {shape}")
    if not is_traced(array):
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= limit:
            wrong = low if low < 0 else high
            raise InputError(f"{name} holds {wrong}, outside 0 to {limit - 1} ({limit_name} is {limit})")
    return array.astype(np.int32)


def _mask(values: Any, batch: int, tokens: int, numerics: Numerics) -> Any:
    array = arguments.as_array(values, "attention_mask")
    if array.shape not in ((batch, tokens), (batch, tokens, tokens)):
        raise InputError(
            f"attention_mask has shape {array.shape}, expected {(batch, tokens)} or {(batch, tokens, tokens)}"
        )
    if not is_traced(array) and not bool(((array == 0) | (array == 1)).all()):
        raise InputError(
            "attention_mask must hold 1 for real tokens and 0 for padding (no additive mask such as -10000)"
        )
    wide = array.astype(numerics.wide)
    return wide[:, None] if wide.ndim == 2 else wide


def _on_device(array: Any) -> jax.Array:
    """An array of JAX, without the copy that `jnp.asarray` compiles for each shape."""
    return array if isinstance(array, jax.Array) else jax.device_put(array)


def check_overrides(config: BertConfig, overrides: Overrides, inputs: Inputs) -> None:
    """Refuse overrides that do not fit the model or the input.

    Raises:
        OverrideError: a wrong shape or dtype, a head, layer, example or token that does not exist, values that are not
            finite, weights on padding or beyond a window, a source with another number of tokens.
    """
    arguments.check_instance(overrides, "overrides", Overrides, OVERRIDES, OverrideError)
    heads = (config.num_hidden_layers, config.num_attention_heads)
    for name in ("weights_gate", "uniform", "output_gate"):
        array = getattr(overrides, name)
        _check_array(array, name)
        if array.shape != heads:
            hint = " (apply a stack of overrides by jax.vmap)" if array.shape[-2:] == heads else ""
            raise OverrideError(f"overrides.{name} has shape {array.shape}, but the model has {heads} heads{hint}")
    batch, tokens = inputs.input_ids.shape
    if overrides.tokens is not None:
        _check_array(overrides.tokens, "tokens")
        _check_shape(overrides.tokens.shape, "tokens", (*heads, batch, tokens), shared=(2, 3))
    if overrides.weights is not None:
        _check_entries(overrides.weights, "weights", heads, inputs, (tokens, tokens), shared=(0,))
        _check_weights(config, overrides.weights, inputs)
    if overrides.outputs is not None:
        _check_entries(overrides.outputs, "outputs", heads, inputs, (tokens, config.head_dim))
    if overrides.vectors is not None:
        _check_entries(overrides.vectors, "vectors", heads, inputs, (tokens, config.head_dim))
    if overrides.states is not None:  # also after the last layer
        _check_entries(overrides.states, "states", (heads[0] + 1, heads[1]), inputs, (tokens, config.hidden_size))
    if overrides.edges is not None:
        _check_edges(config, overrides.edges, inputs)


def _check_array(array: Any, name: str) -> None:
    if not isinstance(array, jax.Array | np.ndarray):
        arguments.refuse(f"overrides.{name}", "an array", array, OverrideError)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise OverrideError(f"overrides.{name} must be floats, found {array.dtype}")
    if not is_traced(array) and not bool(np.isfinite(np.asarray(array, np.float64)).all()):
        raise OverrideError(f"overrides.{name} holds values that are not finite")


def _check_shape(shape: tuple[int, ...], name: str, expected: tuple[int, ...], shared: tuple[int, ...]) -> None:
    """The shape is as expected; axes in `shared` may have length 1 instead."""
    fits = len(shape) == len(expected) and all(
        size == full or (size == 1 and axis in shared)
        for axis, (size, full) in enumerate(zip(shape, expected, strict=True))
    )
    if not fits:
        raise OverrideError(
            f"overrides.{name} have shape {shape}, but the input needs {expected}: use inputs with the same number of "
            "tokens"
        )


def _check_indices(indices: Any, name: str, size: int, unused: int = 0) -> None:
    """Indices are below the size; -`unused` (0 or 1) is the lowest."""
    if is_traced(indices) or indices.size == 0:
        return
    low, high = int(indices.min()), int(indices.max())
    if low < -unused or high >= size:
        raise OverrideError(f"overrides name {name} {low if low < -unused else high}, but there are {size} (from 0)")


def _check_entries(
    entries: HeadWeights | HeadOutputs | SiteValues,
    name: str,
    sizes: tuple[int, int],
    inputs: Inputs,
    axes: tuple[int, int],
    *,
    shared: tuple[int, ...] = (0, 1),
) -> None:
    """Replacements fit the layers and heads of the model, and the examples and tokens of the input.

    Args:
        entries: replacements of single heads or sites.
        name: field of `Overrides` that holds them.
        sizes: numbers of layers and heads.
        inputs: inputs of the model.
        axes: sizes of the values' axes after that of examples.
        shared: axes of the values that may have length 1.
    """
    kind = {"weights": HeadWeights, "outputs": HeadOutputs}.get(name, SiteValues)
    arguments.check_instance(entries, f"overrides.{name}", kind, OVERRIDES, OverrideError)
    batch, tokens = inputs.input_ids.shape
    _check_array(entries.values, f"{name}.values")
    _check_indices(entries.layer, "layer", sizes[0], unused=1)
    _check_indices(entries.head, "head", sizes[1])
    _check_shape(entries.values.shape[1:], f"{name}.values", (batch, *axes), shared)
    if isinstance(entries, SiteValues):
        _check_array(entries.share, f"{name}.share")
        _check_shape(entries.share.shape[1:], f"{name}.share", (batch, tokens), shared)
    if is_traced(entries.source_mask) or is_traced(inputs.keep):
        return
    source, receiver = np.asarray(entries.source_mask), np.asarray(inputs.keep).max(axis=1).astype(int)
    differ = ((source >= 0) & (source != receiver[None])).any(axis=-1) & (np.asarray(entries.layer) >= 0)[:, None]
    if differ.any():
        entry, example = np.argwhere(differ)[0]
        count = np.broadcast_to(source, (source.shape[0], *receiver.shape))[entry, example].sum()
        raise OverrideError(
            f"overrides.{name} patch example {example} of {receiver[example].sum()} tokens from a source of {count}: "
            "both need the same number of tokens, in the same places"
        )


def _allowed_keys(config: BertConfig, inputs: Inputs, layer: int) -> Bool[np.ndarray, "batch query key"]:
    """The keys that may have a weight: real tokens within the layer's window. A traced mask is not checked."""
    batch, tokens = inputs.input_ids.shape
    keep = np.ones((batch, 1, tokens), np.bool_) if is_traced(inputs.keep) else np.asarray(inputs.keep) > 0
    index = np.arange(tokens)
    window = config.architecture.layers[layer].window
    distances = np.abs(index[:, None] - index)[None]
    return np.broadcast_to(keep & (window is None or distances <= window), (len(keep), len(index), len(index)))


def _refuse_weight(config: BertConfig, layer: int, example: int, query: int, key: int) -> None:
    window = config.architecture.layers[layer].window
    if window is not None and abs(query - key) > window:
        why = f"is beyond the window of {window} tokens"
    else:
        why = f"is padding in example {example}, or masked for this query, which keeps weight 0"
    raise OverrideError(f"overrides set the weight of query {query} and key {key} in layer {layer}, but the key {why}")


def _check_weights(config: BertConfig, entries: HeadWeights, inputs: Inputs) -> None:
    """Weights at padding or beyond a window would be dropped silently."""
    if is_traced(entries.values) or is_traced(entries.layer):
        return
    layers = np.asarray(entries.layer).tolist()
    allowed = {layer: _allowed_keys(config, inputs, layer) for layer in {*layers} - {-1}}
    for layer, values in zip(layers, np.asarray(entries.values), strict=True):
        wrong = np.argwhere((values != 0) & ~allowed[layer]) if layer >= 0 else np.empty((0, 3), int)
        if wrong.size:
            example, query, key = map(int, wrong[0])
            _refuse_weight(config, layer, example, query, key)


def _check_edges(config: BertConfig, edges: Edges, inputs: Inputs) -> None:
    arguments.check_instance(edges, "overrides.edges", Edges, OVERRIDES, OverrideError)
    for name in ("keep", "gate", "value"):
        _check_array(getattr(edges, name), f"edges.{name}")
    batch, tokens = inputs.input_ids.shape
    _check_indices(edges.layer, "layer", config.num_hidden_layers, unused=1)
    _check_indices(edges.example, "example", batch, unused=1)
    for name, size in (("head", config.num_attention_heads), ("query", tokens), ("key", tokens)):
        _check_indices(getattr(edges, name), name, size)
    if any(map(is_traced, (edges.value, edges.gate, edges.layer))):
        return
    fixed = (np.asarray(edges.layer) >= 0) & ((1 - np.asarray(edges.gate)) * np.asarray(edges.value) != 0)
    allowed = {layer: _allowed_keys(config, inputs, layer) for layer in {*np.asarray(edges.layer)[fixed].tolist()}}
    for index in np.flatnonzero(fixed):
        layer, example, query, key = (int(part[index]) for part in (edges.layer, edges.example, edges.query, edges.key))
        wrong = np.flatnonzero(~allowed[layer][:, query, key])
        wrong = wrong if example < 0 else wrong[wrong == example]
        if wrong.size:
            _refuse_weight(config, layer, int(wrong[0]), query, key)


def check_stack(config: BertConfig, overrides: Overrides, inputs: Inputs) -> None:
    """`check_overrides` for each override of a stack; inside `jax.jit` only that it is a stack."""
    arguments.check_instance(overrides, "overrides", Overrides, "a result of overrides.stack", OverrideError)
    if np.ndim(overrides.weights_gate) != 3:
        raise OverrideError("overrides must be a stack, found one override: pass overrides.stack([override])")
    if not any(is_traced(leaf) for leaf in jax.tree.leaves(overrides)):
        overrides = jax.tree.map(np.asarray, overrides)
        for index in range(overrides.weights_gate.shape[0]):
            check_overrides(config, jax.tree.map(lambda leaf, n=index: leaf[n], overrides), inputs)
