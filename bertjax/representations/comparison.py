"""How alike two representations of the same words are: of two layers, checkpoints or seeds.

Both measures ignore rotations, shifts and the scale of a representation, and its number of dimensions may differ.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from bertjax.errors import InputError

PERMUTATIONS = 199


def linear_cka(one: Float[np.ndarray, "words first"], other: Float[np.ndarray, "words second"]) -> float:
    """Linear centred kernel alignment (Kornblith et al. 2019, section 3).

    It is `|Y'X|^2 / (|X'X| |Y'Y|)` for centred representations X and Y, in Frobenius norms.

    Args:
        one: a representation, X; a row for each word.
        other: another representation of the same words, Y.

    Returns: from 0 to 1; 1 for representations that differ by rotation, shift and scale. It is biased upwards if there
        are not many more words than dimensions, so compare with `compare_representations`.

    Raises:
        InputError: the numbers of words differ, or a representation is constant.
    """
    first, second = _centred(one, other)
    return float((np.linalg.norm(second.T @ first) / _scale(first, second)) ** 2)


def procrustes_distance(one: Float[np.ndarray, "words first"], other: Float[np.ndarray, "words second"]) -> float:
    """The orthogonal Procrustes distance of centred representations of Frobenius norm 1.

    It is the smallest squared distance between X and a rotation of Y, 2 minus twice the sum of the singular values of
    X'Y (Schoenemann 1966; Ding, Denain and Steinhardt 2021 compare it with others).

    Args:
        one: a representation, X; a row for each word.
        other: another representation of the same words, Y.

    Returns: from 0, for representations that differ by rotation, shift and scale, to 2.

    Raises:
        InputError: the numbers of words differ, or a representation is constant.
    """
    first, second = (part / np.linalg.norm(part) for part in _centred(one, other))
    return float(2 - 2 * np.linalg.svd(first.T @ second, compute_uv=False).sum())


@dataclass(frozen=True)
class Likeness:
    """How alike two representations are, and how alike they are by chance.

    Args:
        cka: linear centred kernel alignment.
        procrustes: the Procrustes distance.
        cka_by_chance: the mean alignment after permutations of the words of one representation.
        procrustes_by_chance: the mean distance after these permutations.
        p: the share of permutations with at least this alignment, counting the identity.
    """

    cka: float
    procrustes: float
    cka_by_chance: float
    procrustes_by_chance: float
    p: float


def compare_representations(
    one: Float[np.ndarray, "words first"],
    other: Float[np.ndarray, "words second"],
    *,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> Likeness:
    """Compare two representations of the same words, with a permutation test.

    The null hypothesis is that the words of one representation have nothing to do with those of the other.

    Args:
        one: a representation; a row for each word.
        other: another representation of the same words.
        permutations: the number of random permutations of the words.
        seed: seed of the permutations.

    Raises:
        InputError: the numbers of words differ, or a representation is constant.
    """
    generator = np.random.default_rng(seed)
    cka, distance = linear_cka(one, other), procrustes_distance(one, other)
    by_chance = []
    for _ in range(permutations):
        permuted = other[generator.permutation(len(other))]
        by_chance.append((linear_cka(one, permuted), procrustes_distance(one, permuted)))
    alignments, distances = np.array(by_chance).T
    as_large = 1 + int((alignments >= cka).sum())
    return Likeness(cka, distance, float(alignments.mean()), float(distances.mean()), as_large / (permutations + 1))


def _centred(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both representations with columns of mean 0, in float64."""
    if len(one) != len(other):
        raise InputError(
            f"representations of {len(one)} and {len(other)} words cannot be compared: give the same words"
        )
    wide = [np.asarray(part, np.float64) for part in (one, other)]
    first, second = (part - part.mean(axis=0) for part in wide)
    for part, centred in zip(wide, (first, second), strict=True):
        if np.abs(centred).max(initial=0.0) <= 1e-12 * np.abs(part).max(initial=0.0):
            raise InputError("a representation is constant: it cannot be compared")
    return first, second


def _scale(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.sqrt(np.linalg.norm(first.T @ first) * np.linalg.norm(second.T @ second)))
