"""The sites inside an encoder: what each is called wherever it is read, overridden or patched, and how it is replaced.

A site is a field of `EncoderRecord`, and its name is the field's. In every layer, in the order of computation:

    hidden_states         the residual stream before the layer; before layer 0 the embeddings
    queries, keys, values of each head; queries and keys rotated where positions are rotary
    weights               of each head: attention weights, after the softmax
    head_outputs          of each head, before the output projection
    attention_outputs     what attention adds to the residual stream
    feed_forward_inputs   what the feed-forward layer reads: in layers with norms before it, a norm of the stream
    feed_forward_outputs  what the feed-forward layer adds

A replacement acts on what reads the site, not on what the site was made from. Where norms come after the sums, as in
BERT, the residual stream between attention and feed-forward layer is `feed_forward_inputs` itself; replacing this site
changes what the feed-forward layer reads alone, and not the stream that goes on beside it.
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
    """A site that every layer has.

    Args:
        name: of the field of a record in which it is read.
        meaning: in a line.
        axes: of a layer's values there.
        of_heads: whether each head has its own.
        after_last: whether there is one after the last layer too.
    """

    name: str
    meaning: str
    axes: tuple[str, ...]
    of_heads: bool = False
    after_last: bool = False


_VECTOR, _STATE = ("batch", "token", "heads", "head_dim"), ("batch", "token", "embed")
# By name: where in a layer values can be read and replaced, in the order of computation.
SITES: Mapping[str, Site] = MappingProxyType(
    {
        site.name: site
        for site in (
            Site(
                "hidden_states",
                "the residual stream before the layer; before layer 0 the embeddings, after the last what it gives",
                _STATE,
                after_last=True,
            ),
            Site("queries", "of each head, rotated where positions are rotary", _VECTOR, of_heads=True),
            Site("keys", "of each head, rotated where positions are rotary", _VECTOR, of_heads=True),
            Site("values", "of each head", _VECTOR, of_heads=True),
            Site("weights", "of each head, after the softmax", ("batch", "heads", "query", "key"), of_heads=True),
            Site("head_outputs", "of each head, before the output projection", _VECTOR, of_heads=True),
            Site("attention_outputs", "what attention adds to the residual stream", _STATE),
            Site("feed_forward_inputs", "what the feed-forward layer reads", _STATE),
            Site("feed_forward_outputs", "what the feed-forward layer adds", _STATE),
        )
    }
)
# Numbers by which arrays name sites.
SITE_INDEX: Mapping[str, int] = MappingProxyType({name: number for number, name in enumerate(SITES)})


def replace_states(
    name: str, states: Float[Array, "batch token embed"], overrides: Overrides | None, layer: ArrayLike
) -> Float[Array, "batch token embed"]:
    """A layer's states at a site, some of them replaced token by token."""
    if overrides is None or overrides.states is None:
        return states
    for number in range(overrides.states.layer.shape[0]):
        share, values = _entry(overrides.states, number, name, layer, states)
        states = ops.blend(1 - share[..., None], states, values)
    return states


def replace_vectors(
    name: str, vectors: Float[Array, "batch token heads head_dim"], overrides: Overrides | None, layer: ArrayLike
) -> Float[Array, "batch token heads head_dim"]:
    """All heads' vectors at a place of a layer, those of some heads replaced token by token."""
    if overrides is None or overrides.vectors is None:
        return vectors
    for number in range(overrides.vectors.layer.shape[0]):
        head = overrides.vectors.head[number]
        share, values = _entry(overrides.vectors, number, name, layer, vectors)
        own = (jnp.arange(vectors.shape[2], dtype=head.dtype) == head).astype(vectors.dtype)
        of_head = share[:, :, None, None] * own[None, None, :, None]
        vectors = ops.blend(1 - of_head, vectors, values[:, :, None])
    return vectors


def _entry(
    entries: SiteValues, number: int, name: str, layer: ArrayLike, into: Array
) -> tuple[Float[Array, "#batch #token"], Float[Array, "#batch #token width"]]:
    """Share and values of an entry; share 0 where it is for another site or layer."""
    here = (entries.site[number] == SITE_INDEX[name]) & (entries.layer[number] == layer)
    share = jnp.where(here, entries.share[number], 0).astype(into.dtype)
    return share, entries.values[number].astype(into.dtype)
