"""Representations: activations of texts at every layer, and measurements of them."""

from bertjax.representations.activations import Activations, compute_activations, words_of_pieces
from bertjax.representations.probes import (
    Description,
    LinearProbe,
    Split,
    control_labels,
    description_length,
    fit_probe,
    split_texts,
)

__all__ = [
    "Activations",
    "Description",
    "LinearProbe",
    "Split",
    "compute_activations",
    "control_labels",
    "description_length",
    "fit_probe",
    "split_texts",
    "words_of_pieces",
]
