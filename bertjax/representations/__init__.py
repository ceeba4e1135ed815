"""Representations: activations of texts at every layer, and measurements of them."""

from bertjax.representations.activations import Activations, compute_activations, words_of_pieces
from bertjax.representations.comparison import (
    Likeness,
    compare_representations,
    linear_cka,
    procrustes_distance,
)
from bertjax.representations.geometry import (
    Geometry,
    dimension_shares,
    effective_dimension,
    explainable_variance,
    intra_sentence_similarity,
    mean_cosine,
    measure_geometry,
    self_similarity,
)
from bertjax.representations.languages import (
    language_centroids,
    language_distances,
    nearest_centroids,
    retrieval_accuracy,
    retrieval_hits,
)
from bertjax.representations.probes import (
    Description,
    LinearProbe,
    Split,
    control_labels,
    description_length,
    fit_probe,
    split_texts,
)
from bertjax.representations.structural import (
    StructuralProbe,
    attachment_counts,
    fit_structural_probe,
    mean_rank_correlation,
    rank_correlations,
    tree_depths,
    tree_distances,
    tree_edges,
)

__all__ = [
    "Activations",
    "Description",
    "Geometry",
    "Likeness",
    "LinearProbe",
    "Split",
    "StructuralProbe",
    "attachment_counts",
    "compare_representations",
    "compute_activations",
    "control_labels",
    "description_length",
    "dimension_shares",
    "effective_dimension",
    "explainable_variance",
    "fit_probe",
    "fit_structural_probe",
    "intra_sentence_similarity",
    "language_centroids",
    "language_distances",
    "linear_cka",
    "mean_cosine",
    "mean_rank_correlation",
    "measure_geometry",
    "nearest_centroids",
    "procrustes_distance",
    "rank_correlations",
    "retrieval_accuracy",
    "retrieval_hits",
    "self_similarity",
    "split_texts",
    "tree_depths",
    "tree_distances",
    "tree_edges",
    "words_of_pieces",
]
