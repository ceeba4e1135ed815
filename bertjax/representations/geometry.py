"""The geometry of contextual word representations in one layer (Ethayarajh 2019).

Representations of a layer may lie in a narrow cone, so that any two words have a high cosine. Ethayarajh (2019, section
3.4) therefore subtracts from each similarity its expected value for unrelated words, the anisotropy baseline:

- self-similarity of a word: the mean cosine between its occurrences (definition 1), minus the mean cosine between words
  of different sentences;
- intra-sentence similarity: the mean cosine between the words of a sentence and their mean (definition 2), minus the
  mean cosine between words of different sentences;
- maximum explainable variance of a word: the share of the first singular value in the squares of all singular values of
  its occurrences (definition 3), minus the same for a random choice of words.

Ethayarajh estimates the baselines from 1,000 random pairs; here the mean is over all pairs of words of different
sentences, which has a closed form: the sum over pairs of u_i . u_j is `(|sum_i u_i|^2 - sum_i |u_i|^2) / 2`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from bertjax.errors import InputError

FEWEST_SENTENCES = 5  # of a word that counts (Ethayarajh 2019, section 3.2)


def unit_vectors(vectors: Float[np.ndarray, "words embed"]) -> Float[np.ndarray, "words embed"]:
    """Vectors divided by their length, in float64; zero vectors stay zero."""
    wide = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0)


def mean_cosine(vectors: Float[np.ndarray, "words embed"], sentences: Int[np.ndarray, " words"]) -> float:
    """The mean cosine between words of different sentences: the anisotropy of a layer.

    Args:
        vectors: the representations of words.
        sentences: the sentence of each word.

    Raises:
        InputError: all words are of one sentence.

    >>> mean_cosine(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), np.array([0, 0, 1]))
    0.5
    """
    return float(dimension_shares(vectors, sentences)[0])


def dimension_shares(
    vectors: Float[np.ndarray, "words embed"], sentences: Int[np.ndarray, " words"]
) -> tuple[float, Float[np.ndarray, " embed"]]:
    """The mean cosine between words of different sentences, and each dimension's share of it.

    A cosine is a sum over dimensions of u_d v_d; a dimension's share is the mean of its summands over the mean cosine
    (Timkey and van Schijndel 2021, section 3). A dimension with a large share is a rogue dimension.

    Args:
        vectors: the representations of words.
        sentences: the sentence of each word.

    Returns: the mean cosine; and the shares, which sum to 1 (NaN if the mean cosine is 0).

    Raises:
        InputError: all words are of one sentence.
    """
    units = unit_vectors(vectors)
    _, index, counts = np.unique(sentences, return_inverse=True, return_counts=True)
    pairs = (len(units) ** 2 - (counts**2).sum()) / 2
    if not pairs:
        raise InputError("the words are of one sentence: geometry compares words of different sentences")
    sums = np.zeros((len(counts), units.shape[1]))
    np.add.at(sums, index, units)
    summands = (units.sum(axis=0) ** 2 - (sums**2).sum(axis=0)) / (2 * pairs)
    total = float(summands.sum())
    with np.errstate(invalid="ignore", divide="ignore"):
        return total, summands / total


def self_similarity(vectors: Float[np.ndarray, "occurrences embed"]) -> float:
    """The mean cosine between different occurrences of one word (Ethayarajh 2019, definition 1); NaN for one.

    Args:
        vectors: the representations of the word's occurrences.
    """
    units, count = unit_vectors(vectors), len(vectors)
    if count < 2:
        return float("nan")
    return float(((units.sum(axis=0) ** 2).sum() - (units**2).sum()) / (count * (count - 1)))


def intra_sentence_similarity(vectors: Float[np.ndarray, "words embed"]) -> float:
    """The mean cosine between the words of a sentence and their mean (Ethayarajh 2019, definition 2).

    Args:
        vectors: the representations of the words.
    """
    mean = unit_vectors(np.asarray(vectors, np.float64).mean(axis=0)[None])[0]
    return float((unit_vectors(vectors) @ mean).mean())


def explainable_variance(vectors: Float[np.ndarray, "occurrences embed"]) -> float:
    """The maximum explainable variance s_1^2 / sum_i s_i^2 of singular values s (Ethayarajh 2019, definition 3).

    The definition does not centre the vectors. (The program of the author does, for words but not for the baseline.)

    Args:
        vectors: the representations of a word's occurrences.
    """
    wide = np.asarray(vectors, np.float64)
    gram = wide @ wide.T if len(wide) <= wide.shape[1] else wide.T @ wide
    total = np.trace(gram)
    return float(np.linalg.eigvalsh(gram)[-1] / total) if total > 0 else float("nan")


def effective_dimension(vectors: Float[np.ndarray, "words embed"]) -> float:
    """The participation ratio (sum_i l_i)^2 / sum_i l_i^2 of the eigenvalues l of the covariance.

    It is the number of dimensions if all have the same variance, and 1 if all variance is in one direction.

    Args:
        vectors: the representations of words.
    """
    wide = np.asarray(vectors, np.float64)
    covariance = np.cov(wide, rowvar=False)
    return float(np.trace(covariance) ** 2 / (covariance**2).sum())


@dataclass(frozen=True)
class Geometry:
    """The geometry of one layer.

    Args:
        anisotropy: the mean cosine between words of different sentences.
        self_similarity: mean over words that occur in at least five sentences, minus the anisotropy; NaN, as for
            `explainable_variance`, if there is no such word.
        intra_sentence_similarity: mean over sentences, minus the anisotropy.
        explainable_variance: mean over words that occur in at least five sentences, minus the baseline.
        random_variance: the baseline of explainable variance: the mean over the same words, each replaced by as
            many random words as it has occurrences.
        effective_dimension: the participation ratio of the covariance's eigenvalues.
        rogue_share: the largest share of one dimension in the anisotropy.
    """

    anisotropy: float
    self_similarity: float
    intra_sentence_similarity: float
    explainable_variance: float
    random_variance: float
    effective_dimension: float
    rogue_share: float


def measure_geometry(
    vectors: Float[np.ndarray, "units embed"], words: Sequence[str], sentences: Int[np.ndarray, " units"], seed: int = 0
) -> Geometry:
    """Measure the geometry of a layer.

    Args:
        vectors: the representations of words.
        words: the str of each word; upper and lower case count as equal.
        sentences: the sentence of each word.
        seed: seed of the random words of the baseline of explainable variance.

    Raises:
        InputError: all words are of one sentence.
    """
    anisotropy, shares = dimension_shares(vectors, sentences)
    generator = np.random.default_rng(seed)
    occurrences = frequent_words(words, sentences)
    similarities, variances, baselines = [], [], []
    for rows in occurrences:
        similarities.append(self_similarity(vectors[rows]))
        variances.append(explainable_variance(vectors[rows]))
        random = generator.choice(len(vectors), len(rows), replace=False)
        baselines.append(explainable_variance(vectors[random]))
    inside = [intra_sentence_similarity(vectors[sentences == sentence]) for sentence in np.unique(sentences)]
    by_word = np.array([similarities, variances, baselines]) if occurrences else np.full((3, 1), np.nan)
    similarity, variance, baseline = by_word.mean(axis=1).tolist()
    return Geometry(
        anisotropy=anisotropy,
        self_similarity=similarity - anisotropy,
        intra_sentence_similarity=float(np.mean(inside)) - anisotropy,
        explainable_variance=variance - baseline,
        random_variance=baseline,
        effective_dimension=effective_dimension(vectors),
        rogue_share=float(np.max(shares)),
    )


def frequent_words(
    words: Sequence[str], sentences: Int[np.ndarray, " units"], fewest: int = FEWEST_SENTENCES
) -> list[Int[np.ndarray, " occurrences"]]:
    """The occurrences of each word that occurs in enough sentences, in alphabetical order of the words.

    Args:
        words: the str of each word; upper and lower case count as equal.
        sentences: the sentence of each word.
        fewest: the smallest number of sentences.
    """
    _, types = np.unique([word.lower() for word in words], return_inverse=True)
    order = np.argsort(types, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(types[order])) + 1)
    return [rows for rows in groups if len(np.unique(sentences[rows])) >= fewest]
