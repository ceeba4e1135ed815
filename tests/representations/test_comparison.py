"""Comparison of representations against kernels and rotations by other routes."""

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes

from bertjax.errors import InputError
from bertjax.representations import compare_representations, linear_cka, procrustes_distance


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
