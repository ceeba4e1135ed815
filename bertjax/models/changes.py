"""What runs of a sweep change in a layer: for each run, head and token how much of what is put where.

`packed_layer` computes with them; an ablation's meaning is that of its overrides (`ops`, `sites`).
"""

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.models.types import record


@record
class Replaced:
    """What several runs replace at a site other than heads' outputs: `(1 - removed) * own + patched * sources`.

    Args:
        removed, patched: for each run, with `spans` for each of these too, and where it is one of heads for each head.
    """

    removed: Float[Array, "runs ..."]
    patched: Float[Array, "runs ..."]


@record
class Changes:
    """What several runs change in one layer; None where no run of the whole sweep does such a thing.

    A head's output becomes
    `(1 - uniform - removed) * own + uniform * (output of uniform weights) + mean * means + patched * sources`.

    Args:
        uniform, removed, mean, patched: for each run and head; where some act at spans of tokens alone, for each span
            between them (`Rows.spans`).
        means: the heads' mean outputs in this layer.
        sources: activations on the sources of these rows, by site: at every token, or at [CLS] in a short last layer.
        sites: what is replaced at other sites, by name.
    """

    uniform: Float[Array, "runs *spans heads"] | None
    removed: Float[Array, "runs *spans heads"] | None
    mean: Float[Array, "runs *spans heads"] | None
    patched: Float[Array, "runs *spans heads"] | None
    means: Float[Array, "heads head_dim"] | None
    sources: dict[str, Float[Array, "batch place ..."]] | None
    sites: dict[str, Replaced] | None = None

    @property
    def source_outputs(self) -> Float[Array, "batch place heads head_dim"] | None:
        """What sources give heads' outputs."""
        return None if self.sources is None else self.sources.get("head_outputs")


class TokenShares:
    """What several runs change in a layer, with shares at each token where they act at some alone.

    Args:
        changes: of the runs.
        spans: of the tokens, or slots, that are computed; None where changes act at all.
        shared: whether all runs start from the same rows: shares then have axes of runs and rows, else of rows, each of
            a run of its own.
    """

    def __init__(self, changes: Changes, spans: Int[Array, "batch place"] | None, *, shared: bool = False):
        self.spans, self.shared = spans, shared
        uniform, removed, mean, patched = (
            None if share is None else self._spread(share)
            for share in (changes.uniform, changes.removed, changes.mean, changes.patched)
        )
        self.changes = replace(changes, uniform=uniform, removed=removed, mean=mean, patched=patched)

    def _spread(self, share: Float[Array, "runs ..."]) -> Array:
        """Shares of spans as shares of tokens."""
        if self.spans is None:
            return share
        if self.shared:
            return share[:, self.spans]
        index = self.spans.reshape(*self.spans.shape, *[1] * (share.ndim - 2))
        return jnp.take_along_axis(share, index, axis=1)

    def replaces(self, name: str) -> bool:
        """Whether any run replaces what is at a site other than heads' outputs."""
        return self.changes.sites is not None and name in self.changes.sites

    def replace(self, name: str, own: Array) -> Array:
        """Activations at a site, after the replacements of runs."""
        if self.changes.sites is None or name not in self.changes.sites:
            return own
        replaced = self.changes.sites[name]
        removed, patched = (self._per_token(share, own) for share in (replaced.removed, replaced.patched))
        changed = (1 - removed) * own
        sources = None if self.changes.sources is None else self.changes.sources.get(name)
        if sources is None:
            return changed
        return changed + patched * sources.reshape(*[1] * (own.ndim - sources.ndim), *sources.shape).astype(own.dtype)

    def _per_token(self, share: Float[Array, "runs ..."], own: Array) -> Array:
        """Shares with the axes of what they are shares of."""
        spread = self._spread(share)
        if self.spans is None:  # [runs] or [runs, heads]
            middle = own.ndim - 1 - spread.ndim
            spread = spread.reshape(spread.shape[0], *[1] * middle, *spread.shape[1:])
        return spread[..., None].astype(own.dtype)


def _per_head(share: Float[Array, "runs *tokens heads"], outputs: Array) -> Array:
    """Shares with axes of length 1 where head outputs `[runs, ..., heads, head_dim]` have more."""
    if share.ndim > 2:  # at each token
        return share[..., None].astype(outputs.dtype)
    runs, heads = share.shape
    return share.reshape(runs, *[1] * (outputs.ndim - 3), heads, 1).astype(outputs.dtype)


def change_outputs(own: Array, uniform: Array, changes: Changes) -> Array:
    """Head outputs after the changes; the first axis of all is `runs`, or 1."""
    kept: Array | float = 1.0
    added: list[Array] = []
    if changes.uniform is not None:
        share = _per_head(changes.uniform, own)
        kept = kept - share
        added.append(share * uniform)
    if changes.removed is not None:
        kept = kept - _per_head(changes.removed, own)
    if changes.mean is not None and changes.means is not None:
        means = changes.means.reshape(*[1] * (own.ndim - 2), *changes.means.shape).astype(own.dtype)
        added.append(_per_head(changes.mean, own) * means)
    given = changes.source_outputs
    if changes.patched is not None and given is not None:
        sources = given.reshape(*[1] * (own.ndim - 4), *given.shape).astype(own.dtype)
        added.append(_per_head(changes.patched, own) * sources)
    return sum(added, start=kept * own)


def differences_of_outputs(own: Array, uniform: Array, changes: Changes) -> list[tuple[Array, Array]]:
    """What `change_outputs` adds to the heads' own outputs: pairs of shares, and what they are shares of."""
    pairs = []
    if changes.uniform is not None:
        pairs.append((changes.uniform, uniform - own))
    if changes.removed is not None:
        pairs.append((changes.removed, -own))
    if changes.mean is not None and changes.means is not None:
        pairs.append((changes.mean, jnp.broadcast_to(changes.means[None, None].astype(own.dtype), own.shape)))
    given = changes.source_outputs
    if changes.patched is not None and given is not None:
        pairs.append((changes.patched, given.astype(own.dtype)))
    return pairs
