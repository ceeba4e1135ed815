"""Overrides at single tokens, and of any site inside a layer (`bertjax.models.SITES`).

`patched` uses activations of another run of the model, the source; `replaced` uses any values; `at_tokens` restricts an
override of heads to some queries. `overrides.combine` joins them with other overrides.

Sources: activation patching at positions, Vig et al. 2020, Meng et al. 2022; of queries, keys and values, Wang et al.
2023 (path patching).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertjax import arguments
from bertjax.arguments import HoldsArray
from bertjax.checkpoints import BertConfig
from bertjax.errors import OverrideError
from bertjax.interventions import overrides as ov
from bertjax.interventions.joining import heads_changed
from bertjax.models import SITE_INDEX, SITES, ModelOutput, Overrides, Site, SiteValues

__all__ = ["at_tokens", "patched", "replaced", "token_mask"]

LARGEST_SIZE = 2**20  # of a mask's axes

# Positions for all examples, a list of positions for each example, or a mask of floats.
Tokens: TypeAlias = Sequence[Any] | HoldsArray


def patched(
    config: BertConfig,
    site: str,
    where: Iterable[Any],
    source: ModelOutput,
    *,
    tokens: Tokens | None = None,
    share: float = 1.0,
) -> Overrides:
    """Patch a site from another run of the model, token by token.

    Args:
        config: the config of the model.
        site: one of `SITES`: 'hidden_states', 'queries', 'head_outputs' ...
        where: heads, such as ['3.0'], for a site of heads; else layers, such as [3]. The residual stream after the last
            layer has the index of one more layer.
        source: the model's output for other texts, each of the same length as its example.
        tokens: positions at which it acts, from 0: a list for all examples, a list of lists with one for each example,
            or a mask of floats `[batch, token]`; None for all. For 'weights', positions of queries.
        share: share of the activation that is replaced.

    Raises:
        OverrideError: no such site, head or layer, or a source of another model.

    >>> import jax
    >>> from bertjax import BertModel
    >>> config = BertConfig(vocab_size=50, hidden_size=12, num_hidden_layers=2, num_attention_heads=3)
    >>> model = BertModel(config, jax.random.key(0))
    >>> source = model([[2, 9, 7, 3]])
    >>> patch = patched(config, "hidden_states", [1], source, tokens=[1])
    >>> same = model([[2, 5, 7, 3]], overrides=patch).hidden_states[1] == source.hidden_states[1]
    >>> same.all(axis=-1).tolist()
    [[False, True, False, False]]
    """
    known = _find(site)
    arguments.check_instance(config, "config", BertConfig, "a BertConfig (model.config)", OverrideError)
    ov.check_source(config, source)
    part = ov.as_floats(share, "share").astype(float)
    if part.ndim:
        raise OverrideError(f"share must be one number, found {arguments.describe(share)}")
    inside = source.inside
    batch, length = inside.hidden_states.shape[1:3]
    if site == "weights":
        taken = ov.patched_weights(config, where, source)
        taken = replace(taken, weights_gate=1 - part * (1 - taken.weights_gate))
        return taken if tokens is None else at_tokens(taken, token_mask(tokens, batch, length))
    parsed = _parse(config, known, where)
    values = [
        getattr(inside, site)[layer][:, :, head] if known.of_heads else getattr(inside, site)[layer]
        for layer, head in parsed
    ]
    mask = jnp.ones((1, 1)) if tokens is None else token_mask(tokens, batch, length)
    return _override(config, known, parsed, values, part * mask, ov.mask_of(source))


def replaced(
    config: BertConfig,
    site: str,
    values: Mapping[Any, Any],
    *,
    tokens: Float[Array, "..."] | Float[np.ndarray, "..."] | None = None,
) -> Overrides:
    """Replace a site by values.

    Args:
        config: the config of the model.
        site: one of `SITES` except 'weights', for which there is `overrides.fixed`.
        values: a vector for each head or layer, or `[token, width]`, or `[batch, token, width]`.
        tokens: mask `[batch, token]` (`token_mask`) of the tokens at which it acts; None for all.

    Raises:
        OverrideError: no such site, head or layer, or values of other shapes.
    """
    known = _find(site)
    arguments.check_instance(config, "config", BertConfig, "a BertConfig (model.config)", OverrideError)
    if site == "weights":
        raise OverrideError("replaced has no site 'weights': use overrides.fixed")
    arguments.check_instance(values, "values", Mapping, "a dict from heads, or layers, to their vectors", OverrideError)
    width = config.head_dim if known.of_heads else config.hidden_size
    arrays = [ov.as_floats(value, site) for value in values.values()]
    for array in arrays:
        if not 1 <= array.ndim <= 3 or array.shape[-1] != width:
            raise OverrideError(f"{site} have shape {array.shape}, expected [batch, token, {width}]")
    arrays = [array.reshape(*[1] * (3 - array.ndim), *array.shape) for array in arrays]
    mask = jnp.ones((1, 1)) if tokens is None else _shares(tokens)
    return _override(config, known, _parse(config, known, list(values)), arrays, mask, jnp.full((1, 1), -1, jnp.int32))


def at_tokens(override: Overrides, tokens: Float[Array, "..."] | Float[np.ndarray, "..."]) -> Overrides:
    """Restrict an override of heads to some queries.

    Args:
        override: an override such as `overrides.zero`, without edges or replaced sites, which have their own tokens.
        tokens: mask `[batch, token]` (`token_mask`), 1 where it acts.

    Raises:
        OverrideError: a mask of another shape, or an override with edges or replaced sites.
    """
    arguments.check_instance(override, "override", Overrides, "an Overrides", OverrideError)
    if any(getattr(override, name) is not None for name in ("edges", "vectors", "states")):
        raise OverrideError("at_tokens takes overrides of heads: edges and replaced sites have their own tokens")
    mask = _shares(tokens)
    changed = heads_changed(override)
    acts = jnp.where(jnp.asarray(changed)[:, :, None, None], mask[None, None], 1.0)
    return replace(override, tokens=acts if override.tokens is None else override.tokens * acts)


def token_mask(tokens: Tokens, batch: int, length: int) -> Float[Array, "batch token"]:
    """A mask of the tokens at which an override acts.

    Args:
        tokens: positions for all examples, such as [3, 4]; a list of positions for each example; or a mask of floats.
        batch: number of examples.
        length: number of tokens of an example, with padding.

    Raises:
        OverrideError: a position that no example has.

    >>> token_mask([[1], [0, 2]], 2, 3).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    """
    batch = arguments.check_int(batch, "batch", 1, OverrideError)
    length = arguments.check_int(length, "length", 1, OverrideError)
    if max(batch, length) > LARGEST_SIZE:
        raise OverrideError(f"batch {batch} and length {length} must be at most {LARGEST_SIZE}")
    tokens = arguments.as_array(tokens, "tokens", OverrideError) if hasattr(tokens, "dtype") else tokens
    if hasattr(tokens, "dtype") and jnp.issubdtype(tokens.dtype, jnp.floating):
        shares = _shares(tokens)
        if any(axis not in (1, size) for axis, size in zip(shares.shape, (batch, length), strict=True)):
            raise OverrideError(
                f"the mask of tokens has shape {np.shape(tokens)}, but there are {batch} examples of {length} tokens"
            )
        return jnp.broadcast_to(shares, (batch, length))
    expected = "positions, or for each example a list of them"
    rows = arguments.check_sequence(tokens, "tokens", expected, error=OverrideError)
    nested = any(np.ndim(row) for row in rows)
    if nested and len(rows) != batch:
        raise OverrideError(f"there are tokens for {len(rows)} examples, but there are {batch} examples")
    mask = np.zeros((batch, length))
    for example in range(batch):
        for position in rows[example] if nested else rows:
            token = arguments.check_int(position, "a position of tokens", 0, OverrideError)
            if token >= length:
                raise OverrideError(f"tokens have position {token}, but there are {length} (from 0)")
            mask[example, token] = 1
    return jnp.asarray(mask, float)


def _find(site: str) -> Site:
    if not isinstance(site, str) or site not in SITES:
        raise OverrideError(f"{arguments.brief(site)} is not a site: there are {', '.join(SITES)}")
    return SITES[site]


def _shares(tokens: Any) -> Float[Array, "#batch #token"]:
    mask = ov.as_floats(tokens, "tokens").astype(float)
    if mask.ndim not in (1, 2):
        raise OverrideError(f"a mask of tokens has shape {mask.shape}, expected [batch, token]")
    return mask if mask.ndim == 2 else mask[None]


def _parse(config: BertConfig, site: Site, where: Iterable[Any]) -> list[tuple[int, int]]:
    """Layer and head of each name; the head is 0 for sites of whole layers."""
    if site.of_heads:
        return ov.parse_heads(config, where)
    layers = config.num_hidden_layers + site.after_last
    parsed = []
    for layer in arguments.check_sequence(where, "where", "a list of layers such as [3, 4]", error=OverrideError):
        index = arguments.check_int(layer, "a layer", 0, OverrideError)
        if index >= layers:
            raise OverrideError(f"there is no layer {index} of {site.name}: the model has 0 to {layers - 1}")
        parsed.append((index, 0))
    if len(set(parsed)) < len(parsed):
        raise OverrideError("a layer is named twice")
    return parsed


def _override(
    config: BertConfig,
    site: Site,
    parsed: Sequence[tuple[int, int]],
    values: Sequence[Array],
    share: Array,
    source_mask: Array,
) -> Overrides:
    """An override with an entry for each head, or layer."""
    layer, head, stacked, masks = ov.entry_indices(list(parsed), list(values), source_mask)
    entries = SiteValues(
        jnp.full(layer.shape, SITE_INDEX[site.name], jnp.int32),
        layer,
        head,
        stacked,
        jnp.broadcast_to(share[None], (len(parsed), *share.shape)),
        masks,
    )
    base = ov.identity(config)
    return replace(base, vectors=entries) if site.of_heads else replace(base, states=entries)
