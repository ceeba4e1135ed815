"""Interventions on parameters: parts of layers whose parameters come from another model, the source model.

A `Change` at a site of `PARAMETER_SITES` belongs to the layer whose parameters it changes. A sweep computes that layer
with other weights and the same program; later layers have their own weights again.

Sources: Zhang et al. 2022 (re-initialization and re-randomization of layers), Hao et al. 2019 (fine-tuned BERT).
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from bertjax import arguments
from bertjax.checkpoints import hash_weights
from bertjax.errors import InputError, OverrideError
from bertjax.models import LayerWeights, PretrainedModel, Site, check_parameters

# Parts of a layer whose parameters can be taken from another model, by name.
PARAMETER_SITES: Mapping[str, Site] = MappingProxyType(
    {
        site.name: site
        for site in (
            Site("layer_parameters", "all parameters of the layer", ()),
            Site("attention_parameters", "projections and norm of attention", ()),
            Site("feed_forward_parameters", "feed-forward layer and its norm", ()),
            Site("head_parameters", "queries, keys, values and output projection of a head", (), of_heads=True),
        )
    }
)


def check_source_model(model: PretrainedModel, source: Any) -> PretrainedModel:
    """Check that the parameters of layers can be taken from another model.

    Args:
        model: the model whose parameters are replaced.
        source: the model that they come from.

    Returns: the source model.

    Raises:
        OverrideError: there is no source model.
        InputError: the source model is of another family or shape, or has layers of another kind; or layers share
            parameters.
    """
    if source is None:
        raise OverrideError("modes 'restored' and 'redrawn' take parameters from another model: give source_model=")
    arguments.check_instance(source, "source_model", PretrainedModel, "a model of bertjax (bertjax.load)")
    check_parameters(source)
    config, other = model.config, source.config
    shared = config.architecture.parameters_of
    if len(set(shared)) < len(shared):
        raise InputError(f"layers of this {config.family.name} share parameters: no layer can be restored by itself")
    if config.family.name != other.family.name:
        raise InputError(
            f"the base model is of family {other.family.name}, the model of {config.family.name}: give another"
        )
    if len(config.architecture.layers) != len(other.architecture.layers):
        raise InputError(
            f"the base model has {len(other.architecture.layers)} layers, the model {len(config.architecture.layers)}: "
            "give one of the same shape"
        )
    own, theirs = layer_parameters(model), layer_parameters(source)
    for path in {**own, **theirs}:
        found, expected = (_describe(paths.get(path)) for paths in (theirs, own))
        if found != expected:
            raise InputError(
                f"{path} of the base model is {found}, expected {expected}: give one of the same shape and dtype"
            )
    kinds = zip(config.architecture.layers, other.architecture.layers, strict=True)
    for layer, (kind, other_kind) in enumerate(kinds):
        if kind != other_kind:
            names = [name for name, value in vars(kind).items() if value != getattr(other_kind, name)]
            raise InputError(
                f"layer {layer} of the base model differs in {', '.join(names)}: give one with the same config"
            )
    missing = [path for path in source.new_parameters if path in theirs]
    if missing:
        raise InputError(f"the base model has no {missing[0]}: its checkpoint lacks parameters of layers")
    return source


def _describe(array: Array | None) -> str:
    return "missing" if array is None else f"{array.dtype.name} {list(array.shape)}"


def layer_parameters(model: PretrainedModel) -> dict[str, Array]:
    """The parameters of all layers, by path."""
    return {path: array for path, array in model.parameters().items() if path.startswith("bert.encoder.layers.")}


def hash_layers(model: PretrainedModel) -> str:
    """SHA-256 of the parameters of all layers."""
    return hash_weights({path: np.asarray(array) for path, array in layer_parameters(model).items()})


def take_parameters(
    weights: LayerWeights, source: LayerWeights, sites: Collection[str], heads: Bool[np.ndarray, "heads"] | None
) -> LayerWeights:
    """The weights of a layer, with parts from another layer of the same kind.

    The biases of queries, keys and values belong to the heads; the bias of the output projection and the norm belong to
    attention as a whole.

    Args:
        weights: parameters of the layer.
        source: parameters of the other layer.
        sites: the parts from the other layer, of `PARAMETER_SITES`.
        heads: whether each head is from the other layer; None for no head.
    """
    after, norms = weights.after, weights.after.norms
    if heads is not None:
        weights = _take_heads(weights, source, jnp.asarray(heads))
    if not {"layer_parameters", "attention_parameters"}.isdisjoint(sites):
        weights, norms = source, source.after.norms
    if not {"layer_parameters", "feed_forward_parameters"}.isdisjoint(sites):
        after, last = source.after, source.after.norms
    else:
        last = after.norms
    norms = replace(last, attention_scale=norms.attention_scale, attention_bias=norms.attention_bias)
    return replace(weights, after=replace(after, norms=norms))


@jax.jit
def _take_heads(weights: LayerWeights, source: LayerWeights, heads: Bool[Array, "heads"]) -> LayerWeights:
    """The weights of a layer with some heads from another layer."""

    def choose(own: Array, other: Array, trailing: int = 1) -> Array:
        chosen = heads.reshape(*[1] * (own.ndim - trailing - 1), -1, *[1] * trailing)
        return jnp.where(chosen, other, own)

    def choose_if(own: Array | None, other: Array | None) -> Array | None:
        return own if own is None or other is None else choose(own, other)

    distances, others = weights.distances, source.distances
    if distances is not None and others is not None:  # biases by distance belong to all layers
        keys, queries = choose_if(distances.keys, others.keys), choose_if(distances.queries, others.queries)
        distances = replace(distances, keys=keys, queries=queries)
    return replace(
        weights,
        qkv_kernel=choose(weights.qkv_kernel, source.qkv_kernel),
        qkv_bias=choose_if(weights.qkv_bias, source.qkv_bias),
        output_kernel=choose(weights.output_kernel, source.output_kernel, 2),
        distances=distances,
    )
