"""Interventions of a sweep's runs in one layer, as arrays: for each run, head and token how much is replaced by what.

`packed_layer` applies them. `ops` and `sites` define the same interventions as overrides of a single model.
"""

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.models.types import record


@record
class Replacement:
    """Replacement at a site other than the head outputs: `(1 - removed) * learned + patched * sources`.

    Args:
        removed: fraction that is removed, `[runs, (spans,) (heads)]`: with an axis of spans if interventions act at
            single tokens, with an axis of heads at sites that each head has.
        patched: fraction of the source, with the same shape.
    """

    removed: Float[Array, "runs ..."]
    patched: Float[Array, "runs ..."]


@record
class LayerInterventions:
    """Interventions of several runs in one layer; a field is None if no run of the sweep needs it.

    A head's output becomes
    `(1 - uniform - removed) * learned + uniform * (output of uniform weights) + mean * means + patched * sources`.

    Args:
        uniform: fraction of uniform attention, for each run and head, and for each span (`Rows.spans`) if interventions
            act at single tokens.
        removed: fraction of the learned output that is removed, with the same shape.
        mean: fraction of the mean output, with the same shape.
        patched: fraction of the source's output, with the same shape.
        means: mean outputs of the layer's heads.
        sources: source activations by site, at every token, or at [CLS] in a last layer that is computed there only.
        sites: replacements at other sites, by the site's name.
    """

    uniform: Float[Array, "runs *spans heads"] | None
    removed: Float[Array, "runs *spans heads"] | None
    mean: Float[Array, "runs *spans heads"] | None
    patched: Float[Array, "runs *spans heads"] | None
    means: Float[Array, "heads head_dim"] | None
    sources: dict[str, Float[Array, "batch place ..."]] | None
    sites: dict[str, Replacement] | None = None

    @property
    def source_outputs(self) -> Float[Array, "batch place heads head_dim"] | None:
        """Head outputs of the sources."""
        return None if self.sources is None else self.sources.get("head_outputs")


class TokenInterventions:
    """Interventions of several runs, with the fractions of spans expanded to tokens.

    Args:
        interventions: interventions of the runs.
        spans: span of each computed token; None if interventions act at every token.
        shared: whether all runs start from the same rows: fractions then have axes `[runs, rows]`, else `[rows]`, each
            row of one run.
    """

    def __init__(
        self, interventions: LayerInterventions, spans: Int[Array, "batch place"] | None, *, shared: bool = False
    ):
        self.spans, self.shared = spans, shared
        uniform, removed, mean, patched = (
            None if fractions is None else self._expand(fractions)
            for fractions in (interventions.uniform, interventions.removed, interventions.mean, interventions.patched)
        )
        self.layer = replace(interventions, uniform=uniform, removed=removed, mean=mean, patched=patched)

    def _expand(self, fractions: Float[Array, "runs ..."]) -> Array:
        """Fractions of tokens from those of spans."""
        if self.spans is None:
            return fractions
        if self.shared:
            return fractions[:, self.spans]
        index = self.spans.reshape(*self.spans.shape, *[1] * (fractions.ndim - 2))
        return jnp.take_along_axis(fractions, index, axis=1)

    def replaces(self, site: str) -> bool:
        """Whether any run replaces activations at a site other than the head outputs."""
        return self.layer.sites is not None and site in self.layer.sites

    def replace(self, site: str, learned: Array) -> Array:
        """Activations at a site after the replacements of the runs."""
        if self.layer.sites is None or site not in self.layer.sites:
            return learned
        replacement = self.layer.sites[site]
        removed, patched = (self._per_token(part, learned) for part in (replacement.removed, replacement.patched))
        kept = (1 - removed) * learned
        sources = None if self.layer.sources is None else self.layer.sources.get(site)
        if sources is None:
            return kept
        sources = sources.reshape(*[1] * (learned.ndim - sources.ndim), *sources.shape)
        return kept + patched * sources.astype(learned.dtype)

    def _per_token(self, fractions: Float[Array, "runs ..."], learned: Array) -> Array:
        """Fractions with the axes of the activations."""
        expanded = self._expand(fractions)
        if self.spans is None:  # [runs] or [runs, heads]
            middle = learned.ndim - 1 - expanded.ndim
            expanded = expanded.reshape(expanded.shape[0], *[1] * middle, *expanded.shape[1:])
        return expanded[..., None].astype(learned.dtype)


def _per_head(fractions: Float[Array, "runs *tokens heads"], outputs: Array) -> Array:
    """Fractions with axes of length 1 where head outputs `[runs, ..., heads, head_dim]` have more."""
    if fractions.ndim > 2:  # at each token
        return fractions[..., None].astype(outputs.dtype)
    runs, heads = fractions.shape
    return fractions.reshape(runs, *[1] * (outputs.ndim - 3), heads, 1).astype(outputs.dtype)


def intervene_on_outputs(learned: Array, uniform: Array, interventions: LayerInterventions) -> Array:
    """Head outputs after the interventions; the first axis of all arrays is `runs`, or 1."""
    kept: Array | float = 1.0
    added: list[Array] = []
    if interventions.uniform is not None:
        fractions = _per_head(interventions.uniform, learned)
        kept = kept - fractions
        added.append(fractions * uniform)
    if interventions.removed is not None:
        kept = kept - _per_head(interventions.removed, learned)
    if interventions.mean is not None and interventions.means is not None:
        means = interventions.means
        means = means.reshape(*[1] * (learned.ndim - 2), *means.shape).astype(learned.dtype)
        added.append(_per_head(interventions.mean, learned) * means)
    sources = interventions.source_outputs
    if interventions.patched is not None and sources is not None:
        sources = sources.reshape(*[1] * (learned.ndim - 4), *sources.shape).astype(learned.dtype)
        added.append(_per_head(interventions.patched, learned) * sources)
    return sum(added, start=kept * learned)


def output_differences(learned: Array, uniform: Array, interventions: LayerInterventions) -> list[tuple[Array, Array]]:
    """`intervene_on_outputs` minus the learned outputs, as a sum of products: pairs of fractions and differences."""
    pairs = []
    if interventions.uniform is not None:
        pairs.append((interventions.uniform, uniform - learned))
    if interventions.removed is not None:
        pairs.append((interventions.removed, -learned))
    if interventions.mean is not None and interventions.means is not None:
        means = interventions.means[None, None].astype(learned.dtype)
        pairs.append((interventions.mean, jnp.broadcast_to(means, learned.shape)))
    sources = interventions.source_outputs
    if interventions.patched is not None and sources is not None:
        pairs.append((interventions.patched, sources.astype(learned.dtype)))
    return pairs
