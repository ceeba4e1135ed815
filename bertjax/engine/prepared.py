"""A model's weights as compiled steps read them: made once, and kept for as long as the model has these weights.

Making them is hundreds of small operations. A host takes up to a tenth of a second for them: on a fast accelerator
that is a tenth of a sweep.
"""

import weakref
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh
from jaxtyping import Array

from bertjax.engine.compiled_steps import Structure, take_apart
from bertjax.engine.distributed.sharding import place_on_mesh
from bertjax.model import LayerWeights, PretrainedModel, packed_layer


@dataclass(frozen=True)
class Prepared:
    """The weights of all steps of a sweep, on its devices.

    Args:
        layers: of each application of a layer; those that are applied several times are there once.
        embeddings, head: what is below the layers, and the whole model, whose head reads what they give: a structure
            and its parameters each.
    """

    layers: list[LayerWeights]
    embeddings: tuple[Structure, list[Array]]
    head: tuple[Structure, list[Array]]


@dataclass(frozen=True)
class _Kept:
    """What was prepared of a model, and what tells whether the model is still the same."""

    parameters: list[Any]
    settings: tuple[Any, ...]
    prepared: Prepared

    def is_of(self, parameters: list[Any], settings: tuple[Any, ...]) -> bool:
        """Whether it was made of these very arrays."""
        alike = len(parameters) == len(self.parameters) and settings == self.settings
        return alike and all(own is given for own, given in zip(self.parameters, parameters, strict=True))


_KEPT: weakref.WeakKeyDictionary[PretrainedModel, _Kept] = weakref.WeakKeyDictionary()


def prepare(model: PretrainedModel, mesh: Mesh | None) -> Prepared:
    """The weights of a model on the devices of a mesh.

    They are kept for the sweeps to come, until the model is gone or is prepared with other parameters, settings or
    devices. What can be written into, as an array of NumPy's, is read anew each time.
    """
    parameters, tree = jax.tree.flatten(model)
    settings = tree, mesh
    kept = _KEPT.get(model)
    if kept is not None and kept.is_of(parameters, settings):
        return kept.prepared
    prepared = _prepare(model, mesh)
    _KEPT.pop(model, None)
    if all(isinstance(parameter, jax.Array) for parameter in parameters):
        _KEPT[model] = _Kept(parameters, settings, prepared)
    return prepared


def _prepare(model: PretrainedModel, mesh: Mesh | None) -> Prepared:
    encoder = model.body.encoder
    table = None if encoder.relative is None else encoder.relative()
    sets = [packed_layer.layer_weights(layer, model.numerics, table) for layer in encoder.layers]
    placed: list[LayerWeights] = place_on_mesh(sets, mesh)
    (below, own), (whole, every) = map(take_apart, (model.body.embeddings, model))
    layers = [placed[number] for number in model.config.architecture.parameters_of]
    return Prepared(layers, (below, place_on_mesh(own, mesh)), (whole, place_on_mesh(every, mesh)))
