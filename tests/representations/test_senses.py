"""Senses of word pairs against scikit-learn, and against numeric derivatives by the weights of pairs."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from sklearn.metrics.pairwise import paired_cosine_distances

from bertjax.errors import InputError
from bertjax.representations import auc_contributions, pair_cosines, separation_contributions, threshold_hits

PAIRS = 41


@pytest.fixture
def pairs():
    """Cosines with ties, and labels of unequal number."""
    rng = np.random.default_rng(5)
    same = rng.random(PAIRS) < 0.4
    return (rng.normal(size=PAIRS) * 0.3 + 0.2 * same).round(1), same


def separation(cosines, same, weights):
    return np.average(cosines[same], weights=weights[same]) - np.average(cosines[~same], weights=weights[~same])


def area(cosines, same, weights):
    return roc_auc_score(same, cosines, sample_weight=weights)


@pytest.mark.parametrize(
    ("contributions", "measure"), [(auc_contributions, area), (separation_contributions, separation)]
)
def test_contributions_are_derivatives_by_weights(pairs, contributions, measure):
    found, step = contributions(*pairs), 1e-5
    value = measure(*pairs, np.ones(PAIRS))
    assert found.mean() == pytest.approx(value)
    for pair in range(PAIRS):
        ends = [measure(*pairs, 1 + sign * step * (np.arange(PAIRS) == pair)) for sign in (1, -1)]
        assert found[pair] == pytest.approx(value + PAIRS * (ends[0] - ends[1]) / (2 * step), abs=1e-6)


def test_equal_cosines_have_an_auc_of_one_half():
    same = np.arange(7) % 2 == 0
    np.testing.assert_allclose(auc_contributions(np.ones(7), same), 0.5)


def test_cosines_are_those_of_scikit_learn(rng):
    first, second = rng.normal(size=(2, 6, 5)).astype(np.float32)
    expected = 1 - paired_cosine_distances(first.astype(np.float64), second.astype(np.float64))
    np.testing.assert_allclose(pair_cosines(first, second), expected, atol=1e-9)


def test_vectors_that_differ_by_rounding_are_ties(rng):
    vectors = rng.normal(size=(50, 384)).astype(np.float32)
    moved = vectors * (1 + 1e-7 * rng.choice([-1, 0, 1], size=vectors.shape)).astype(np.float32)
    assert (moved != vectors).any()
    assert set(pair_cosines(vectors, moved)) == {1.0}


def test_the_threshold_of_a_pair_is_best_for_other_folds(pairs):
    cosines, same = pairs
    hits = threshold_hits(cosines, same, seed=3)
    generator, folds = np.random.default_rng(3), np.zeros(PAIRS, int)
    for label in (True, False):
        for place, row in enumerate(generator.permutation(np.flatnonzero(same == label))):
            folds[row] = place % 10
    values = np.unique(cosines)
    for pair in range(PAIRS):
        others = folds != folds[pair]
        thresholds = np.concatenate([[-9], (values[1:] + values[:-1]) / 2, [9]])
        right = [((cosines[others] > threshold) == same[others]).mean() for threshold in thresholds]
        best = thresholds[np.flatnonzero(right == np.max(right))]
        assert hits[pair] in {(cosines[pair] > threshold) == same[pair] for threshold in best}


def test_accuracy_is_perfect_or_of_the_majority():
    same = np.arange(60) % 3 > 0
    assert threshold_hits(same * 1.0, same).all()
    assert threshold_hits(np.zeros(60), same).mean() == pytest.approx(2 / 3)
    balanced = np.arange(60) % 2 > 0
    assert threshold_hits(np.zeros(60), balanced).mean() == 0.5


@pytest.mark.parametrize("contributions", [auc_contributions, separation_contributions])
def test_pairs_of_one_label_are_refused(contributions):
    with pytest.raises(InputError, match="give both"):
        contributions(np.arange(3.0), np.ones(3, bool))
