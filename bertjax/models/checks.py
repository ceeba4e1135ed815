"""Checks of what a user hands to a model, before any of it is computed.

Shapes and dtypes are always checked; values only where there are values (inside `jax.jit` there are none).
JAX itself would clamp an id outside the vocabulary and broadcast a wrong shape without a word.
"""

import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from bertjax import arguments
from bertjax.arguments import is_traced
from bertjax.checkpoints import BertConfig
from bertjax.errors import InputError, OverrideError, some_of
from bertjax.models.types import Edges, HeadOutputs, HeadWeights, Inputs, Numerics, Overrides, SiteValues

OVERRIDES = "what the functions of bertjax.overrides make (of an Ablation, ablations.to_overrides)"
FIELDS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")


class _First:
    """The process in which bertjax first used JAX; a forked process inherits its number."""

    process: int | None = None


def check_process() -> None:
    """Raise `InputError` in a process forked from one that has used JAX: a computation there would never end."""
    _First.process = _First.process or os.getpid()
    if _First.process != os.getpid():
        raise InputError(
            "this process was forked from one that has used JAX, whose threads are not copied, so a computation would "
            "wait forever: start processes with multiprocessing.get_context('spawn')"
        )


def check_not_traced(name: str, parameters: Mapping[str, Any], examples: Any = None) -> None:
    """Raise `InputError` where a function that runs many compiled steps is itself traced by JAX, or cannot run at all.

    Args:
        name: of the function.
        parameters: of its model.
        examples: its inputs.
    """
    check_process()
    inputs = jax.tree.leaves(examples) if isinstance(examples, Mapping) or is_traced(examples) else []
    # Inside jit every operation is traced, whatever its arguments.
    if any(map(is_traced, [*parameters.values(), *inputs, jnp.zeros(())])):
        raise InputError(
            f"{name} is inside jax.jit, vmap or grad, but compiles its own steps and returns NumPy arrays: call it "
            "outside, or transform a call of the model (model(..., overrides=...))"
        )


def read_batch(given: Mapping[str, Any], tokenizer: Any = None) -> dict[str, Any]:
    """The arrays of a call, whatever holds them.

    Args:
        given: by the names of a model's arguments. In place of `input_ids` there may be a whole batch, as
            `bertjax.collate` and the tokenizers of `transformers` make it, or texts.
        tokenizer: makes a batch of texts.

    Raises:
        InputError: no ids, texts without a tokenizer, a batch with other arrays, or one array twice.
    """
    first = given.get("input_ids")
    if isinstance(first, str) or (isinstance(first, list | tuple) and first and isinstance(first[0], str)):
        if tokenizer is None:
            raise InputError("the model takes token ids, found texts: give tokenizer=bertjax.Tokenizer as well")
        first = arguments.check_function(tokenizer, "tokenizer", "a bertjax.Tokenizer")(
            [first] if isinstance(first, str) else first
        )
    if isinstance(first, Mapping):
        separate = [name for name in FIELDS[1:] if given.get(name) is not None]
        if separate:
            raise InputError(f"a batch was given, and {', '.join(separate)} besides it: put them into the batch")
        given = first
    unknown = [str(name) for name in given if name not in FIELDS]
    if unknown:
        raise InputError(f"a batch holds {some_of(unknown)}: the model takes {', '.join(FIELDS)}")
    if given.get("input_ids") is None:
        raise InputError("there are no input_ids: give integers [batch, token], a batch, or texts with tokenizer=")
    return dict(given)


def prepare_inputs(
    config: BertConfig,
    numerics: Numerics,
    input_ids: ArrayLike | Any,
    attention_mask: ArrayLike | Any | None = None,
    token_type_ids: ArrayLike | Any | None = None,
    position_ids: ArrayLike | Any | None = None,
) -> Inputs:
    """Check a model's arguments and fill in what was left out, as HuggingFace does.

    Args:
        input_ids: integers `[batch, token]`.
        attention_mask: 1 or True for real tokens, `[batch, token]`, or `[batch, query, key]`; default all real.
        token_type_ids: integers `[batch, token]`; default 0. Models without token types take them and do not read them.
        position_ids: integers `[batch, token]`; default 0, 1, 2 ... whatever the padding, or where the family counts
            positions by its tokens, as `count_positions` does.

    Raises:
        InputError: wrong shape or dtype, a sequence longer than the position embeddings, an id out of range,
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
    """How long a text may be and how to truncate it, for messages."""
    rows, most = config.max_position_embeddings, config.max_tokens
    limit = f"has max_position_embeddings {rows}" + (f", which are {most} tokens" if most < rows else "")
    return f"{limit}: truncate texts with --max-length {most}, or max_length={most} of the tokenizer"


def count_positions(config: BertConfig, ids: Any, segments: Any = None) -> Any:
    """Positions that count a text's tokens, but not its padding, from `first_position` on, as RoBERTa's do.

    Padding is told by its id, whatever the mask says, and has the position before the first.

    Args:
        ids: `[batch, token]`.
        segments: of packed rows: which text a token belongs to, so that each counts its own; None for one text a row.
    """
    first = config.architecture.embeddings.first_position
    padding = first - 1
    numbers = jnp if is_traced(ids) else np
    real = (ids != padding).astype(np.int32)
    counted = numbers.cumsum(real, axis=1, dtype=np.int32)
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
            "attention_mask must hold 1 for real tokens and 0 for padding only (no additive mask such as -10000)"
        )
    wide = array.astype(numerics.wide)
    return wide[:, None] if wide.ndim == 2 else wide


def _on_device(array: Any) -> jax.Array:
    """NumPy's array as JAX's, without the copy that `jnp.asarray` compiles for each shape; JAX's own as it is."""
    return array if isinstance(array, jax.Array) else jax.device_put(array)


def check_overrides(config: BertConfig, overrides: Overrides, inputs: Inputs) -> None:
    """Refuse overrides that do not fit the model or the input.

    Raises:
        OverrideError: wrong shape or dtype, a head, layer, example or token that does not exist, values that
            are not finite, weights on padding, a source with another number of tokens.
    """
    arguments.check_instance(overrides, "overrides", Overrides, OVERRIDES, OverrideError)
    heads = (config.num_hidden_layers, config.num_attention_heads)
    for name in ("weights_gate", "uniform", "output_gate"):
        array = getattr(overrides, name)
        _check_array(array, name)
        if array.shape != heads:
            hint = " (a stack of overrides goes through jax.vmap)" if array.shape[-2:] == heads else ""
            raise OverrideError(f"overrides.{name} has shape {array.shape}, but the model has {heads} heads{hint}")
    batch, tokens = inputs.input_ids.shape
    if overrides.weights is not None:
        _check_entries(overrides.weights, "weights", heads, (batch, tokens, tokens), inputs)
        _check_padding(overrides.weights, inputs)
        _check_windows(config, overrides.weights)
    if overrides.outputs is not None:
        _check_entries(overrides.outputs, "outputs", heads, (batch, tokens, config.head_dim), inputs)
    _check_tokens(overrides, heads, (batch, tokens))
    _check_sites(config, overrides, inputs)
    if overrides.edges is not None:
        _check_edges(
            inputs,
            overrides.edges,
            {"layer": heads[0], "head": heads[1], "example": batch, "query": tokens, "key": tokens},
        )
        _check_windows_of_edges(config, overrides.edges)


def _check_array(array: Any, name: str) -> None:
    if not isinstance(array, jax.Array | np.ndarray):
        arguments.refuse(f"overrides.{name}", "an array", array, OverrideError)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise OverrideError(f"overrides.{name} must be floats, found {array.dtype}")
    if not is_traced(array) and not bool(np.isfinite(np.asarray(array, np.float64)).all()):
        raise OverrideError(f"overrides.{name} holds values that are not finite")


def _check_indices(indices: Any, name: str, size: int, unused: int = 0) -> None:
    """Indices below size; -`unused` (0 or 1) is the lowest allowed."""
    if is_traced(indices) or indices.size == 0:
        return
    low, high = int(indices.min()), int(indices.max())
    if low < -unused or high >= size:
        raise OverrideError(f"overrides name {name} {low if low < -unused else high}, but there are {size} (from 0)")


def _check_entries(
    entries: HeadWeights | HeadOutputs,
    name: str,
    heads: tuple[int, int],
    shape: tuple[int, int, int],
    inputs: Inputs,
) -> None:
    """Replacement entries fit the model's heads and the input's examples and tokens."""
    kind = HeadWeights if name == "weights" else HeadOutputs
    arguments.check_instance(entries, f"overrides.{name}", kind, OVERRIDES, OverrideError)
    _check_array(entries.values, f"{name}.values")
    _check_indices(entries.layer, "layer", heads[0], unused=1)
    _check_indices(entries.head, "head", heads[1])
    entry_shape = entries.values.shape[1:]
    free = 1 if name == "weights" else 2  # how many leading axes may be 1 and shared
    fits = len(entry_shape) == 3 and all(
        have == want or (have == 1 and axis < free)
        for axis, (have, want) in enumerate(zip(entry_shape, shape, strict=True))
    )
    if not fits:
        raise OverrideError(
            f"overrides.{name} were given for [batch, query, {'key' if free == 1 else 'head_dim'}] {entry_shape}, "
            f"but the input asks for {shape}: source and receiver need the same number of tokens"
        )
    _check_source_masks(entries, name, inputs)


def _check_source_masks(entries: HeadWeights | HeadOutputs | SiteValues, name: str, inputs: Inputs) -> None:
    """Donors have as many tokens as those that take from them."""
    if not (is_traced(entries.source_mask) or is_traced(inputs.keep)):
        have, want = np.asarray(entries.source_mask), np.asarray(inputs.keep).max(axis=1).astype(int)
        differ = ((have >= 0) & (have != want[None])).any(axis=-1) & (np.asarray(entries.layer) >= 0)[:, None]
        if differ.any():
            entry, example = np.argwhere(differ)[0]
            source = np.broadcast_to(have, (have.shape[0], *want.shape))[entry, example].sum()
            raise OverrideError(
                f"overrides.{name} patch example {example} of {want[example].sum()} tokens from a source of {source}: "
                "both need the same number of tokens, in the same places"
            )


def _check_tokens(overrides: Overrides, heads: tuple[int, int], batch: tuple[int, int]) -> None:
    """Where gates act fits the model's heads and the input's tokens."""
    if overrides.tokens is None:
        return
    _check_array(overrides.tokens, "tokens")
    shape = overrides.tokens.shape
    if shape[:2] != heads or len(shape) != 4 or any(n not in (1, m) for n, m in zip(shape[2:], batch, strict=True)):
        raise OverrideError(f"overrides.tokens has shape {shape}, but the input asks for {(*heads, *batch)}")


def _check_sites(config: BertConfig, overrides: Overrides, inputs: Inputs) -> None:
    """Replacements at sites fit the model's layers, heads and widths, and the input's tokens."""
    layers, heads, (batch, tokens) = config.num_hidden_layers, config.num_attention_heads, inputs.input_ids.shape
    for name, width in (("vectors", config.head_dim), ("states", config.hidden_size)):
        entries = getattr(overrides, name)
        if entries is None:
            continue
        arguments.check_instance(entries, f"overrides.{name}", SiteValues, OVERRIDES, OverrideError)
        for part in ("values", "share"):
            _check_array(getattr(entries, part), f"{name}.{part}")
        _check_indices(entries.layer, "layer", layers + (name == "states"), unused=1)
        _check_indices(entries.head, "head", heads)
        for part, wanted in (("values", (batch, tokens, width)), ("share", (batch, tokens))):
            shape = getattr(entries, part).shape[1:]
            fits = len(shape) == len(wanted) and shape[2:] == wanted[2:]
            if not fits or any(n not in (1, m) for n, m in zip(shape[:2], wanted[:2], strict=True)):
                raise OverrideError(
                    f"overrides.{name}.{part} were given for {shape}, but the input asks for {wanted}: source and "
                    "receiver need the same number of tokens"
                )
        _check_source_masks(entries, name, inputs)


def _check_padding(entries: HeadWeights, inputs: Inputs) -> None:
    """Weights on padding would be dropped without a word."""
    if is_traced(entries.values) or is_traced(inputs.keep):
        return
    if bool(((np.asarray(entries.values) != 0) & (np.asarray(inputs.keep) == 0)[None]).any()):
        raise OverrideError("overrides.weights put weight on a padding token: padding keeps weight 0")


def _check_windows(config: BertConfig, entries: HeadWeights) -> None:
    """So would weights beyond the window of a local layer."""
    if is_traced(entries.values) or is_traced(entries.layer):
        return
    index = np.arange(entries.values.shape[-1])
    apart = np.abs(index[:, None] - index[None])
    for number, layer in enumerate(np.asarray(entries.layer).tolist()):
        window = config.architecture.layers[layer].window if layer >= 0 else None
        if window is not None and bool((np.asarray(entries.values[number])[:, apart > window] != 0).any()):
            raise OverrideError(
                f"overrides.weights put weight on a key beyond {window} tokens from its query, but layer {layer} sees "
                "no farther"
            )


def _check_windows_of_edges(config: BertConfig, edges: Edges) -> None:
    """As `_check_windows`, for edges with a value of their own."""
    if any(is_traced(leaf) for leaf in (edges.value, edges.gate, edges.layer)):
        return
    given = (np.asarray(edges.layer) >= 0) & ((1 - np.asarray(edges.gate)) * np.asarray(edges.value) != 0)
    for number in np.flatnonzero(given):
        layer, query, key = (int(part[number]) for part in (edges.layer, edges.query, edges.key))
        window = config.architecture.layers[layer].window
        if window is not None and abs(query - key) > window:
            raise OverrideError(
                f"edge from query {query} to key {key} is beyond the {window} tokens that layer {layer} sees"
            )


def _check_edges(inputs: Inputs, edges: Edges, sizes: dict[str, int]) -> None:
    arguments.check_instance(edges, "overrides.edges", Edges, OVERRIDES, OverrideError)
    for name in ("keep", "gate", "value"):
        _check_array(getattr(edges, name), f"edges.{name}")
    for name, size in sizes.items():
        _check_indices(getattr(edges, name), name, size, unused=1 if name in ("layer", "example") else 0)
    if any(is_traced(leaf) for leaf in (edges.value, edges.gate, edges.layer, inputs.keep)):
        return
    given = (np.asarray(edges.layer) >= 0) & ((1 - np.asarray(edges.gate)) * np.asarray(edges.value) != 0)
    keep = np.broadcast_to(np.asarray(inputs.keep), (sizes["example"], sizes["query"], sizes["key"]))
    for number in np.flatnonzero(given):
        example, query, key = (int(part[number]) for part in (edges.example, edges.query, edges.key))
        rows = range(sizes["example"]) if example < 0 else [example]
        padding = [row for row in rows if keep[row, query, key] == 0]
        if padding:
            raise OverrideError(
                f"edge to key {key} is padding in example {padding[0]}, which keeps weight 0: name the examples "
                "that it is meant for"
            )


def check_stack(config: BertConfig, overrides: Overrides, inputs: Inputs) -> None:
    """`check_overrides` for each override of a stack (for its shapes alone inside `jax.jit`)."""
    arguments.check_instance(overrides, "overrides", Overrides, "a stack of them (overrides.stack)", OverrideError)
    if np.ndim(overrides.weights_gate) != 3:
        raise OverrideError("overrides must be a stack of them, found one override: give overrides.stack([override])")
    if not any(is_traced(leaf) for leaf in jax.tree.leaves(overrides)):
        overrides = jax.tree.map(np.asarray, overrides)
        for number in range(overrides.weights_gate.shape[0]):
            check_overrides(config, jax.tree.map(lambda leaf, n=number: leaf[n], overrides), inputs)
