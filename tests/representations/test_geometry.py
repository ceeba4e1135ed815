"""Geometry of representations against loops over pairs and singular values."""

from itertools import combinations

import numpy as np
import pytest

from bertjax.errors import InputError
from bertjax.representations import (
    dimension_shares,
    effective_dimension,
    explainable_variance,
    intra_sentence_similarity,
    mean_cosine,
    measure_geometry,
    self_similarity,
)
from bertjax.representations.geometry import frequent_words


def cosine(one, two):
    return one @ two / np.linalg.norm(one) / np.linalg.norm(two)


@pytest.fixture
def layer(rng):
    """Vectors around a common direction, 14 sentences, and words of which some are frequent."""
    sentences = np.sort(rng.integers(0, 14, 90))
    words = [("the", "The", "cat", "dog", f"w{index}")[rng.integers(5)] for index in range(90)]
    return rng.normal(size=(90, 7)) + np.array([3, 0, 0, 0, 0, 0, 1]), words, sentences


def test_anisotropy_is_the_mean_over_pairs_of_sentences(layer):
    vectors, _, sentences = layer
    pairs = [(i, j) for i, j in combinations(range(90), 2) if sentences[i] != sentences[j]]
    assert mean_cosine(vectors, sentences) == pytest.approx(np.mean([cosine(vectors[i], vectors[j]) for i, j in pairs]))
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    summands = np.mean([units[i] * units[j] for i, j in pairs], axis=0)
    total, shares = dimension_shares(vectors, sentences)
    np.testing.assert_allclose(shares * total, summands)
    assert shares.sum() == pytest.approx(1)


def test_similarities_are_means_of_cosines(layer):
    vectors = layer[0][:9]
    pairs = [cosine(vectors[i], vectors[j]) for i, j in combinations(range(9), 2)]
    assert self_similarity(vectors) == pytest.approx(np.mean(pairs))
    assert np.isnan(self_similarity(vectors[:1]))
    mean = vectors.mean(axis=0)
    assert intra_sentence_similarity(vectors) == pytest.approx(np.mean([cosine(one, mean) for one in vectors]))


@pytest.mark.parametrize("count", [3, 20])
def test_explainable_variance_is_that_of_singular_values(count, rng):
    vectors = rng.normal(size=(count, 8)) + 1
    values = np.linalg.svd(vectors, compute_uv=False)
    assert explainable_variance(vectors) == pytest.approx(values[0] ** 2 / (values**2).sum())


def test_effective_dimension_is_the_participation_ratio(rng):
    vectors = rng.normal(size=(60, 5)) * np.array([4, 1, 1, 0.1, 0.1])
    values = np.linalg.eigvalsh(np.cov(vectors.T))
    assert effective_dimension(vectors) == pytest.approx(values.sum() ** 2 / (values**2).sum())
    assert effective_dimension(np.outer(rng.normal(size=60), np.ones(5))) == pytest.approx(1)


def test_a_layer_is_measured_with_its_baselines(layer):
    vectors, words, sentences = layer
    found, lower = measure_geometry(vectors, words, sentences), np.array([word.lower() for word in words])
    frequent = [
        rows for word in np.unique(lower) if len(np.unique(sentences[rows := np.flatnonzero(lower == word)])) > 4
    ]
    assert len(frequent) == 3
    base = mean_cosine(vectors, sentences)
    assert found.anisotropy == pytest.approx(base)
    assert found.self_similarity == pytest.approx(np.mean([self_similarity(vectors[rows]) for rows in frequent]) - base)
    inside = [intra_sentence_similarity(vectors[sentences == one]) for one in np.unique(sentences)]
    assert found.intra_sentence_similarity == pytest.approx(np.mean(inside) - base)
    variances = np.mean([explainable_variance(vectors[rows]) for rows in frequent])
    assert found.explainable_variance == pytest.approx(variances - found.random_variance)
    assert found.rogue_share == pytest.approx(dimension_shares(vectors, sentences)[1].max())
    assert found.random_variance == pytest.approx(variances, abs=0.1)  # words do not differ here


def test_words_of_one_sentence_have_no_anisotropy(rng):
    with pytest.raises(InputError, match="different sentences"):
        mean_cosine(rng.normal(size=(4, 3)), np.zeros(4, int))


def test_a_word_counts_from_five_sentences_on():
    words = ["a"] * 5 + ["b"] * 4 + ["c"] * 6
    sentences = np.array([0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1, 2, 3, 3, 3])
    assert [rows.tolist() for rows in frequent_words(words, sentences)] == [[0, 1, 2, 3, 4]]
