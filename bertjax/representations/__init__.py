"""Representations: activations of texts at every layer, and measurements of them."""

from bertjax.representations.activations import Activations, compute_activations, words_of_pieces

__all__ = ["Activations", "compute_activations", "words_of_pieces"]
