"""Language neutrality against loops by hand and scikit-learn, on random vectors."""

import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.neighbors import NearestCentroid, NearestNeighbors

from bertjax.errors import InputError
from bertjax.representations import (
    language_centroids,
    language_distances,
    nearest_centroids,
    retrieval_accuracy,
    retrieval_hits,
)

LANGUAGES, SENTENCES, EMBED = 3, 19, 5


@pytest.fixture
def vectors():
    """A meaning that the languages share, a component of each language, and noise."""
    rng = np.random.default_rng(3)
    meaning, language = rng.normal(size=(SENTENCES, EMBED)), 4 * rng.normal(size=(LANGUAGES, 1, EMBED))
    return (meaning + language + 0.4 * rng.normal(size=(LANGUAGES, SENTENCES, EMBED))).astype(np.float32)


@pytest.mark.parametrize("centred", [False, True])
def test_retrieval_is_that_of_scikit_learn(vectors, centred):
    train, test = vectors[:, :11], vectors[:, 11:]
    centroids = language_centroids(train)
    hits = retrieval_hits(test, centroids if centred else None)
    moved = [of.astype(np.float64) - (train[index].mean(axis=0) if centred else 0) for index, of in enumerate(test)]
    right = []
    for query in range(LANGUAGES):
        for other in range(LANGUAGES):
            neighbours = NearestNeighbors(n_neighbors=1, metric="cosine").fit(moved[other])
            nearest = neighbours.kneighbors(moved[query], return_distance=False)[:, 0]
            expected = (nearest == np.arange(len(nearest))) & (query != other)
            np.testing.assert_array_equal(hits[query, other], expected)
            right += [] if query == other else [expected]
    assert 0 < np.mean(right) < 1
    np.testing.assert_allclose(retrieval_accuracy(hits), np.mean(right, axis=0))


def test_a_shift_of_each_language_matters_only_without_centring(vectors):
    shift = 9 * np.random.default_rng(4).normal(size=(LANGUAGES, 1, EMBED)).astype(np.float32)
    moved = vectors + shift
    first, second = (retrieval_hits(one, language_centroids(one)) for one in (vectors, moved))
    np.testing.assert_array_equal(first, second)
    assert (retrieval_hits(vectors) != retrieval_hits(moved)).any()


def test_the_most_similar_sentence_is_found_in_both_directions(vectors):
    similar = cosine_similarity(vectors[0], vectors[1])
    hits = retrieval_hits(vectors)
    np.testing.assert_array_equal(hits[0, 1], similar.argmax(axis=1) == np.arange(SENTENCES))
    np.testing.assert_array_equal(hits[1, 0], similar.argmax(axis=0) == np.arange(SENTENCES))
    assert (hits[0, 1] != hits[1, 0]).any()


def test_the_nearest_centroid_is_that_of_scikit_learn(vectors):
    centroids = language_centroids(vectors[:, :11])
    known = np.repeat(np.arange(LANGUAGES), 11)
    model = NearestCentroid().fit(vectors[:, :11].reshape(-1, EMBED), known)
    np.testing.assert_allclose(centroids, model.centroids_, rtol=1e-6)
    expected = model.predict(vectors[:, 11:].reshape(-1, EMBED)).reshape(LANGUAGES, -1)
    np.testing.assert_array_equal(nearest_centroids(vectors[:, 11:], centroids), expected)


def test_distances_are_those_of_loops(vectors):
    means = [np.mean(of, axis=0, dtype=np.float64) for of in vectors]
    pairs = [np.linalg.norm(means[one] - means[other]) for one in range(LANGUAGES) for other in range(one)]
    squares = [np.sum((vector - mean) ** 2) for of, mean in zip(vectors, means, strict=True) for vector in of]
    np.testing.assert_allclose(language_distances(vectors), (np.mean(pairs), np.sqrt(np.mean(squares))), rtol=1e-6)


def test_one_language_is_refused(vectors):
    with pytest.raises(InputError, match="2 or more, found 1"):
        retrieval_accuracy(retrieval_hits(vectors[:1]))
