"""How alike two representations of the same words are: of two layers, checkpoints or seeds.

Both measures ignore rotations, shifts and the scale of a representation, and its number of dimensions may differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from bertjax.errors import InputError

PERMUTATIONS = 199
ROUNDING = 1e-9  # alignments that differ by less than this share count as equal


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
    as_large = 1 + int((alignments >= (1 - ROUNDING) * cka).sum())
    return Likeness(cka, distance, float(alignments.mean()), float(distances.mean()), as_large / (permutations + 1))


@dataclass(frozen=True)
class Centred:
    """A representation with columns of mean 0, and what its comparisons with others share.

    Args:
        values: the centred representation X.
        norm: the Frobenius norm of X'X.
        sizes: the squared norm of each word, x'x.
        forms: x'X'X x of each word.
    """

    values: Float[np.ndarray, "words embed"]
    norm: float
    sizes: Float[np.ndarray, " words"]
    forms: Float[np.ndarray, " words"]

    @classmethod
    def of(cls, states: Float[np.ndarray, "words embed"]) -> "Centred":
        """Centre a representation.

        Args:
            states: the representation; a row for each word.

        Raises:
            InputError: the representation is constant.
        """
        values, _ = _centred(states, states)
        gram = values.T @ values
        return cls(values, float(np.linalg.norm(gram)), (values**2).sum(1), ((values @ gram) * values).sum(1))


def likeness_contributions(
    one: Centred, other: Centred, sentences: Int[np.ndarray, " words"], count: int
) -> Float[np.ndarray, "measures sentences"]:
    """The contribution of each sentence to `linear_cka` and to `procrustes_distance`, by the infinitesimal jackknife.

    As in `geometry_contributions`, a contribution is the measure plus `count` times its derivative by the weight of the
    sentence; the mean of all contributions is the measure.

    Args:
        one: a representation.
        other: another representation of the same words.
        sentences: the sentence of each word.
        count: the number of sentences.
    """
    product = one.values.T @ other.values
    cka = (np.linalg.norm(product) / np.sqrt(one.norm * other.norm)) ** 2
    forms = ((one.values @ product) * other.values).sum(axis=1)
    of_cka = 2 * forms / (one.norm * other.norm) - cka * (one.forms / one.norm**2 + other.forms / other.norm**2)
    left, singular, right = np.linalg.svd(product, full_matrices=False)
    scale = np.sqrt(one.sizes.sum() * other.sizes.sum())
    turned = ((one.values @ (left @ right)) * other.values).sum(axis=1)
    sizes = one.sizes / one.sizes.sum() + other.sizes / other.sizes.sum()
    of_distance = -2 * turned / scale + singular.sum() / scale * sizes
    measures = ((cka, of_cka), (2 - 2 * singular.sum() / scale, of_distance))
    return np.stack([value + count * np.bincount(sentences, slopes, count) for value, slopes in measures])


def alignment_by_chance(one: Centred, other: Centred) -> float:
    """The mean of `linear_cka` over all permutations of the words of one representation.

    For n words it is `tr(X'X) tr(Y'Y) / ((n - 1) |X'X| |Y'Y|)`, so it is large if there are few words and many
    dimensions.

    Args:
        one: a representation.
        other: another representation of the same words.
    """
    return float(one.sizes.sum() * other.sizes.sum() / ((len(one.sizes) - 1) * one.norm * other.norm))


def permutation_tests(
    ones: Sequence[Centred], others: Sequence[Centred], permutations: int = PERMUTATIONS, seed: int = 0
) -> Float[np.ndarray, "ones others"]:
    """The share of permutations with at least the alignment of each pair, counting the identity.

    The memory is that of a kernel matrix, words by words, for each representation.

    Args:
        ones: representations of words.
        others: other representations of the same words.
        permutations: the number of random permutations of the words, which are the same for all pairs.
        seed: seed of the permutations.
    """
    first, second = ([part.values @ part.values.T / part.norm for part in parts] for parts in (ones, others))
    kernels, generator = np.stack(first).reshape(len(first), -1), np.random.default_rng(seed)
    found = kernels @ np.stack(second).reshape(len(second), -1).T
    least, as_large = (1 - ROUNDING) * found, np.ones(found.shape)
    for _ in range(permutations):
        order = generator.permutation(len(first[0]))
        permuted = np.stack([kernel[np.ix_(order, order)].ravel() for kernel in second])
        as_large += kernels @ permuted.T >= least
    return as_large / (permutations + 1)


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
