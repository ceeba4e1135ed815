"""Comparison of representations against kernels and rotations by other routes."""

from itertools import permutations

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes

from bertjax.errors import InputError
from bertjax.representations import (
    Centred,
    alignment_by_chance,
    compare_representations,
    likeness_contributions,
    linear_cka,
    permutation_tests,
    procrustes_distance,
)


def rotation(rng, size):
    return np.linalg.qr(rng.normal(size=(size, size)))[0]


def test_cka_is_the_alignment_of_centred_kernels(rng):
    one, other = rng.normal(size=(40, 5)) + 3, rng.normal(size=(40, 8))
    centre = np.eye(40) - 1 / 40
    kernels = [centre @ part @ part.T @ centre for part in (one, other)]
    expected = np.trace(kernels[0] @ kernels[1]) / np.prod([np.linalg.norm(kernel) for kernel in kernels])
    assert linear_cka(one, other) == pytest.approx(expected)


def test_procrustes_distance_is_that_after_the_best_rotation(rng):
    one, other = rng.normal(size=(40, 6)), rng.normal(size=(40, 6)) + 1
    first, second = (part - part.mean(axis=0) for part in (one, other))
    first, second = first / np.linalg.norm(first), second / np.linalg.norm(second)
    turn, _ = orthogonal_procrustes(second, first)
    expected = np.linalg.norm(first - second @ turn) ** 2
    assert procrustes_distance(one, other) == pytest.approx(expected)


def test_rotation_shift_and_scale_change_nothing(rng):
    one = rng.normal(size=(50, 6))
    turned = 3 * one @ rotation(rng, 6) + rng.normal(size=6)
    assert linear_cka(one, turned) == pytest.approx(1)
    assert procrustes_distance(one, turned) == pytest.approx(0, abs=1e-12)


def test_unrelated_words_agree_only_by_chance(rng):
    one, other = rng.normal(size=(2, 60, 5))
    related = one + 0.5 * other
    found, chance = compare_representations(one, related), compare_representations(one, other)
    assert found.p == 1 / 200
    assert found.cka > 2 * found.cka_by_chance
    assert found.procrustes < found.procrustes_by_chance
    assert chance.p > 0.01
    assert chance.cka == pytest.approx(chance.cka_by_chance, abs=0.1)


def test_representations_that_cannot_be_compared_are_refused(rng, unchecked):
    one = rng.normal(size=(10, 3))
    with pytest.raises(InputError, match="10 and 9 words"):
        linear_cka(one, one[:9])
    with pytest.raises(InputError, match="constant"):
        procrustes_distance(one, np.full((10, 2), 0.3))


def weighted(one, other, weights):
    """Alignment and distance of words with weights, from kernels and nuclear norms."""
    centred = [part - np.average(part, axis=0, weights=weights) for part in (one, other)]
    first, second = (np.sqrt(weights)[:, None] * part for part in centred)
    kernels = [part @ part.T for part in (first, second)]
    alignment = np.trace(kernels[0] @ kernels[1]) / np.prod([np.linalg.norm(kernel) for kernel in kernels])
    first, second = first / np.linalg.norm(first), second / np.linalg.norm(second)
    return np.array([alignment, 2 - 2 * np.linalg.svd(first.T @ second, compute_uv=False).sum()])


def test_contributions_are_derivatives_by_weights(rng):
    one, other, sentences = rng.normal(size=(40, 5)) + 3, rng.normal(size=(40, 8)), np.sort(rng.integers(0, 9, 40))
    found, step = likeness_contributions(Centred.of(one), Centred.of(other), sentences, 9), 1e-5
    value = np.array([linear_cka(one, other), procrustes_distance(one, other)])
    np.testing.assert_allclose(found.mean(axis=1), value)
    for sentence in range(9):
        ends = [weighted(one, other, 1 + sign * step * (sentences == sentence)) for sign in (1, -1)]
        np.testing.assert_allclose(found[:, sentence], value + 9 * (ends[0] - ends[1]) / (2 * step), atol=1e-7)


def test_chance_is_the_mean_over_all_permutations(rng):
    one, other = rng.normal(size=(5, 3)), rng.normal(size=(5, 4))
    every = [linear_cka(one, other[list(order)]) for order in permutations(range(5))]
    assert alignment_by_chance(Centred.of(one), Centred.of(other)) == pytest.approx(np.mean(every))


def test_permutation_tests_count_alignments(rng):
    ones, others = rng.normal(size=(2, 30, 3)), rng.normal(size=(3, 30, 4))
    others[1, :, :3] += 2 * ones[0]
    found = permutation_tests([*map(Centred.of, ones)], [*map(Centred.of, others)], 19, seed=4)
    generator = np.random.default_rng(4)
    orders = [generator.permutation(30) for _ in range(19)]
    for row, one in enumerate(ones):
        for column, other in enumerate(others):
            larger = sum(linear_cka(one, other[order]) >= linear_cka(one, other) for order in orders)
            assert found[row, column] == pytest.approx((1 + larger) / 20)
    assert found[0, 1] == 1 / 20


def test_equal_alignments_count_in_spite_of_rounding(rng):
    """Permutations of equal words do not change the alignment, but its last digits."""
    one, other = (np.repeat(part, 4, axis=0) for part in rng.normal(size=(2, 2, 8)))
    equal = 2 * 24**2 / 40320  # the share of permutations of 8 words that keep both groups of 4 equal words
    both = [Centred.of(one), Centred.of(other)]
    found = permutation_tests(both, both, 999)
    assert np.ptp(found) == 0
    assert found[0, 0] == pytest.approx(equal, abs=0.02)
    assert compare_representations(one, other, permutations=999).p == found[0, 0]
