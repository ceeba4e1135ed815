"""Geometry of representations against loops over pairs and singular values."""

from itertools import combinations

import numpy as np
import pytest

from bertjax.errors import InputError
from bertjax.representations import (
    dimension_shares,
    effective_dimension,
    explainable_variance,
    geometry_contributions,
    intra_sentence_similarity,
    mean_cosine,
    measure_geometry,
    self_similarity,
    sense_contributions,
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


def weighted(vectors, words, sentences, weights, seed=0):
    """The measurements with each sentence counted `weights` times, by loops and singular values."""
    weight = weights[sentences]
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs = weight[:, None] * weight * (sentences[:, None] != sentences)
    by_dimension = np.einsum("ij,id,jd->d", pairs, units, units) / pairs.sum()
    anisotropy = by_dimension.sum()
    lower = np.array([word.lower() for word in words])
    groups = [rows for word in np.unique(lower) if len(set(sentences[rows := np.flatnonzero(lower == word)])) > 4]
    generator = np.random.default_rng(seed)
    random = [generator.choice(len(words), len(rows), replace=False) for rows in groups]

    def similarity(rows):
        cosines, others = units[rows] @ units[rows].T, ~np.eye(len(rows), dtype=bool)
        mass = weight[rows][:, None] * weight[rows] * others
        change = (mass * cosines).sum() / mass.sum() - cosines[others].mean()
        return cosines[others].mean() + change * len(rows) / (len(rows) - 1)

    def variance(rows):
        values = np.linalg.svd(np.sqrt(weight[rows])[:, None] * vectors[rows], compute_uv=False) ** 2
        return values[0] / values.sum()

    inside = [intra_sentence_similarity(vectors[sentences == one]) for one in range(len(weights))]
    eigenvalues = np.linalg.eigvalsh(np.cov(vectors.T, aweights=weight, ddof=0))
    baseline = np.mean([variance(rows) for rows in random])
    return np.array(
        [
            anisotropy,
            np.mean([similarity(rows) for rows in groups]) - anisotropy,
            np.average(inside, weights=weights) - anisotropy,
            np.mean([variance(rows) for rows in groups]) - baseline,
            baseline,
            eigenvalues.sum() ** 2 / (eigenvalues**2).sum(),
            by_dimension.max() / anisotropy,
        ]
    )


def test_contributions_are_derivatives_by_weights(layer):
    vectors, words, sentences = layer
    count, step = sentences.max() + 1, 1e-5
    found, value = geometry_contributions(vectors, words, sentences), weighted(*layer, np.ones(count))
    np.testing.assert_allclose(found.mean(axis=1), value)
    for sentence in range(count):
        ends = [weighted(*layer, 1 + sign * step * (np.arange(count) == sentence)) for sign in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(found[:, sentence], value + count * slope, rtol=1e-6, atol=1e-7)


def test_standard_error_of_self_similarity_of_rare_words():
    """The standard error is that of many samples of 40 words with six occurrences each."""
    rng = np.random.default_rng(0)
    words, sentences = [f"w{word}" for word in range(40) for _ in range(6)], np.arange(240)
    means, found = np.repeat(rng.normal(size=(40, 8)), 6, axis=0), []
    for _ in range(400):
        self_similarity = geometry_contributions(means + rng.normal(size=means.shape), words, sentences)[:2].sum(axis=0)
        found.append((self_similarity.mean(), self_similarity.std() / np.sqrt(240)))
    values, errors = np.transpose(found)
    assert 0.95 < errors.mean() / values.std() < 1.15


def test_measurements_without_frequent_words_are_undefined(rng):
    found = geometry_contributions(rng.normal(size=(6, 3)), [*"abcdef"], np.array([0, 0, 1, 1, 2, 2]))
    assert np.isnan(found).all(axis=1).tolist() == [False, True, False, True, True, False, False]


def test_equal_words_have_no_effective_dimension():
    found = geometry_contributions(np.ones((6, 3)), [*"abcdef"], np.array([0, 0, 1, 1, 2, 2]))
    assert np.isnan(found[5]).all()
    np.testing.assert_allclose(found[0], 1)


def test_senses_are_separated_by_pairs_of_occurrences(layer):
    vectors, words, sentences = layer
    senses = ["VERB" if index % 3 else "NOUN" for index in range(len(words))]
    senses = ["X" if word == "w0" else sense for word, sense in zip(words, senses, strict=True)]

    def separation(weights):
        weight, found = weights[sentences], []
        lower = [word.lower() for word in words]
        for word in sorted({*lower}):
            rows = [index for index in range(len(words)) if lower[index] == word]
            of_sense = [{sentences[index] for index in rows if senses[index] == sense} for sense in ("NOUN", "VERB")]
            if min(map(len, of_sense)) < 5:
                continue
            means = []
            for same in (True, False):
                pairs = [(i, j) for i, j in combinations(rows, 2) if (senses[i] == senses[j]) == same]
                mass = [weight[i] * weight[j] for i, j in pairs]
                means.append(np.average([cosine(vectors[i], vectors[j]) for i, j in pairs], weights=mass))
            found.append(means[0] - means[1])
        return np.mean(found)

    count, step = sentences.max() + 1, 1e-5
    found = sense_contributions(vectors, words, senses, sentences)
    value = separation(np.ones(count))
    assert found.mean() == pytest.approx(value)
    for sentence in (0, 3, count - 1):
        ends = [separation(1 + sign * step * (np.arange(count) == sentence)) for sign in (1, -1)]
        assert found[sentence] == pytest.approx(value + count * (ends[0] - ends[1]) / (2 * step), rel=1e-6, abs=1e-7)
