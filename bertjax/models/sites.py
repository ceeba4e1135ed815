"""Sites inside an encoder that can be read, overridden and patched.

A site is a field of `EncoderRecord`. In every layer, in the order of computation:

    hidden_states         residual stream before the layer; before layer 0 the embeddings
    queries, keys, values vectors of each head; queries and keys are rotated if positions are rotary
    weights               attention weights of each head, after the softmax
    head_outputs          output of each head, before the output projection
    attention_outputs     output of attention, which is added to the residual stream
    feed_forward_inputs   input of the feed-forward layer; in pre-norm layers a norm of the residual stream
    feed_forward_outputs  output of the feed-forward layer, which is added to the residual stream

A replacement affects the computations that read the site. In post-norm layers, as in BERT, `feed_forward_inputs` is
also the residual stream between attention and feed-forward layer; a replacement at this site changes only the input of
the feed-forward layer, not the residual stream.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from bertjax.models import ops
from bertjax.models.types import Overrides, SiteValues


@dataclass(frozen=True)
class Site:
    """A site of every layer.

    Args:
        name: field of the record.
        meaning: description in one line.
        axes: axes of the activations in one layer.
        of_heads: whether each head has separate activations.
        after_last: whether the site also exists after the last layer.
    """

    name: str
    meaning: str
    axes: tuple[str, ...]
    of_heads: bool = False
    after_last: bool = False


_VECTOR, _STATE = ("batch", "token", "heads", "head_dim"), ("batch", "token", "embed")
# Sites by name, in the order of computation.
SITES: Mapping[str, Site] = MappingProxyType(
    {
        site.name: site
        for site in (
            Site(
                "hidden_states",
                "residual stream before the layer; before layer 0 the embeddings, after the last layer its output",
                _STATE,
                after_last=True,
            ),
            Site("queries", "queries of each head, rotated if positions are rotary", _VECTOR, of_heads=True),
            Site("keys", "keys of each head, rotated if positions are rotary", _VECTOR, of_heads=True),
            Site("values", "values of each head", _VECTOR, of_heads=True),
            Site("weights", "attention weights of each head", ("batch", "heads", "query", "key"), of_heads=True),
            Site("head_outputs", "output of each head before the projection", _VECTOR, of_heads=True),
            Site("attention_outputs", "output of attention", _STATE),
            Site("feed_forward_inputs", "input of the feed-forward layer", _STATE),
            Site("feed_forward_outputs", "output of the feed-forward layer", _STATE),
        )
    }
)
# Indices of sites in arrays.
SITE_INDEX: Mapping[str, int] = MappingProxyType({name: index for index, name in enumerate(SITES)})


def replace_states(
    name: str, states: Float[Array, "batch token embed"], overrides: Overrides | None, layer: ArrayLike
) -> Float[Array, "batch token embed"]:
    """States of a layer at a site, after the replacements at single tokens."""
    if overrides is None or overrides.states is None:
        return states
    for entry in range(overrides.states.layer.shape[0]):
        share, values = _entry(overrides.states, entry, name, layer, states)
        states = ops.blend(1 - share[..., None], states, values)
    return states


def replace_vectors(
    name: str, vectors: Float[Array, "batch token heads head_dim"], overrides: Overrides | None, layer: ArrayLike
) -> Float[Array, "batch token heads head_dim"]:
    """Vectors of all heads of a layer at a site, after the replacements at single tokens."""
    if overrides is None or overrides.vectors is None:
        return vectors
    for entry in range(overrides.vectors.layer.shape[0]):
        head = overrides.vectors.head[entry]
        share, values = _entry(overrides.vectors, entry, name, layer, vectors)
        selected = (jnp.arange(vectors.shape[2], dtype=head.dtype) == head).astype(vectors.dtype)
        of_head = share[:, :, None, None] * selected[None, None, :, None]
        vectors = ops.blend(1 - of_head, vectors, values[:, :, None])
    return vectors


def _entry(
    entries: SiteValues, index: int, name: str, layer: ArrayLike, into: Array
) -> tuple[Float[Array, "#batch #token"], Float[Array, "#batch #token width"]]:
    """Share and values of an entry; share 0 if it is for another site or layer."""
    here = (entries.site[index] == SITE_INDEX[name]) & (entries.layer[index] == layer)
    share = jnp.where(here, entries.share[index], 0).astype(into.dtype)
    return share, entries.values[index].astype(into.dtype)
