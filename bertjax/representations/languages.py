"""Language neutrality of sentence vectors (Libovický, Rosa and Fraser 2019).

The vectors of sentences and their translations have a component of the language, estimated by the mean of the language
(its centroid), and a component of the meaning. Translations are retrieved by the cosine similarity, without and with
the centroids subtracted. Estimate the centroids on sentences that are not tested: a centroid that includes
the tested sentences moves them towards their translations.
"""

from itertools import permutations

import numpy as np
from jaxtyping import Bool, Float, Int

from bertjax.errors import InputError

Vectors = Float[np.ndarray, "languages sentences embed"]
Centroids = Float[np.ndarray, "languages embed"]


def language_centroids(vectors: Vectors) -> Centroids:
    """The mean vector of each language.

    Args:
        vectors: vectors of the same sentences in each language.
    """
    return np.asarray(vectors.mean(axis=1, dtype=np.float64))


def retrieval_hits(
    vectors: Vectors, centroids: Centroids | None = None
) -> Bool[np.ndarray, "languages languages sentences"]:
    """Whether the nearest sentence of another language is the translation, by cosine similarity.

    Of equally similar sentences the first one is the nearest. The entries of a language with itself are False.

    Args:
        vectors: vectors of sentences in each language; equal indices are translations of each other.
        centroids: the centroids to subtract, of other sentences; None for none.

    Returns: an entry for each language of the query, language of the candidates, and sentence.

    >>> vectors = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.9, 0.1], [0.8, 0.2]]])
    >>> retrieval_hits(vectors)[0, 1].tolist(), retrieval_hits(vectors)[1, 0].tolist()
    ([True, True], [True, False])
    """
    inside = vectors.astype(np.float64) - (0.0 if centroids is None else centroids[:, None])
    norms = np.linalg.norm(inside, axis=-1, keepdims=True)
    unit = inside / np.where(norms > 0, norms, 1.0)
    languages, sentences, _ = vectors.shape
    hits = np.zeros((languages, languages, sentences), bool)
    for query, other in permutations(range(languages), 2):
        hits[query, other] = (unit[query] @ unit[other].T).argmax(axis=1) == np.arange(sentences)
    return hits


def retrieval_accuracy(hits: Bool[np.ndarray, "languages languages sentences"]) -> Float[np.ndarray, " sentences"]:
    """The share of the ordered pairs of languages in which each sentence's translation is the nearest.

    Args:
        hits: the result of `retrieval_hits`.

    Raises:
        InputError: fewer than two languages.
    """
    languages = len(hits)
    if languages < 2:
        raise InputError(f"translations are retrieved between languages: give 2 or more, found {languages}")
    return np.asarray(hits.sum(axis=(0, 1)) / (languages * (languages - 1)))


def nearest_centroids(vectors: Vectors, centroids: Centroids) -> Int[np.ndarray, "languages sentences"]:
    """The language whose centroid is nearest to each vector, by Euclidean distance.

    Args:
        vectors: vectors of sentences in each language.
        centroids: the centroids of the languages, of other sentences.
    """
    inside = vectors.astype(np.float64)
    distances = ((inside[:, :, None] - centroids) ** 2).sum(axis=-1)
    return np.asarray(distances.argmin(axis=-1))


def language_distances(vectors: Vectors) -> tuple[float, float]:
    """The distance between languages, and the spread within a language.

    Args:
        vectors: vectors of the same sentences in each language.

    Returns: the mean Euclidean distance between the centroids of two languages, and the root mean square distance of a
        vector from the centroid of its language.

    >>> language_distances(np.array([[[0.0, 1.0], [0.0, -1.0]], [[3.0, 1.0], [3.0, -1.0]]]))
    (3.0, 1.0)
    """
    centroids = language_centroids(vectors)
    first, second = np.triu_indices(len(centroids), 1)
    between = np.linalg.norm(centroids[first] - centroids[second], axis=-1).mean()
    within = np.sqrt(((vectors - centroids[:, None]) ** 2).sum(axis=-1).mean())
    return float(between), float(within)
