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
    return Geometry(*geometry_contributions(vectors, words, sentences, seed).mean(axis=1).tolist())


def geometry_contributions(
    vectors: Float[np.ndarray, "units embed"], words: Sequence[str], sentences: Int[np.ndarray, " units"], seed: int = 0
) -> Float[np.ndarray, "measurements sentences"]:
    """The contribution of each sentence to each measurement of `Geometry`, by the infinitesimal jackknife.

    Let t(w) be a measurement with sentence k counted w_k times. The contribution of the sentence is t plus n times the
    derivative of t by w_k at w = 1, for n sentences (Efron 1982, chapter 6). No measurement depends on the sum of
    weights, so the mean of all contributions is t. Their variance over n estimates the variance of t. Which words are
    frequent, and which dimension has the largest share, does not change with the weights. The derivative of the
    self-similarity of a word with m occurrences is multiplied by m / (m - 1), since few occurrences vary too little.

    Args:
        vectors: the representations of words.
        words: the str of each word; upper and lower case count as equal.
        sentences: the sentence of each word.
        seed: seed of the random words of the baseline of explainable variance.

    Returns: contributions in the order of the fields of `Geometry`, for the sentences in ascending order.

    Raises:
        InputError: all words are of one sentence.
    """
    wide, (_, index) = np.asarray(vectors, np.float64), np.unique(sentences, return_inverse=True)
    units, count = unit_vectors(wide), int(index.max()) + 1
    anisotropy, shares = _cosines(units, index)
    generator, frequent = np.random.default_rng(seed), frequent_words(words, sentences)
    random = [generator.choice(len(wide), len(rows), replace=False) for rows in frequent]
    similarity = _mean_over_words([(rows, _self_similarity(units[rows])) for rows in frequent], index)
    variance, baseline = (
        _mean_over_words([(rows, _explainable_variance(wide[rows])) for rows in groups], index)
        for groups in (frequent, random)
    )
    inside = [intra_sentence_similarity(wide[index == sentence]) for sentence in range(count)]
    return np.stack(
        [
            anisotropy,
            similarity - anisotropy,
            np.array(inside) - anisotropy,
            variance - baseline,
            baseline,
            _effective_dimension(wide, index),
            shares,
        ]
    )


def _over_sentences(
    value: float, influences: Float[np.ndarray, " words"], index: Int[np.ndarray, " words"], count: int
) -> Float[np.ndarray, " sentences"]:
    """Contributions from the derivative of a measurement by the weight of each word."""
    return value + count * np.bincount(index, influences, count)


def _cosines(
    units: Float[np.ndarray, "words embed"], index: Int[np.ndarray, " words"]
) -> tuple[Float[np.ndarray, " sentences"], Float[np.ndarray, " sentences"]]:
    """Contributions to the mean cosine between sentences, and to the largest share of a dimension in it."""
    anisotropy, shares = dimension_shares(units, index)
    counts = np.bincount(index)
    sums = np.zeros((len(counts), units.shape[1]))
    np.add.at(sums, index, units)
    left = (counts * (len(units) - counts))[:, None]  # twice the derivative of the number of pairs
    derivatives = 2 * (sums * (units.sum(axis=0) - sums) - anisotropy * shares * left) / left.sum()
    total, largest = derivatives.sum(axis=1), int(np.argmax(shares))
    of_share = (derivatives[:, largest] - shares[largest] * total) / anisotropy
    return anisotropy + len(counts) * total, shares[largest] + len(counts) * of_share


def _mean_over_words(
    found: Sequence[tuple[Int[np.ndarray, " _"], tuple[float, Float[np.ndarray, " _"]]]],
    index: Int[np.ndarray, " words"],
) -> Float[np.ndarray, " sentences"]:
    """Contributions to the mean of a measurement over words; NaN without words.

    Args:
        found: the rows of each word; its measurement, and the derivative by the weight of each row.
    """
    count = int(index.max()) + 1
    if not found:
        return np.full(count, np.nan)
    rows = np.concatenate([places for places, _ in found])
    influences = np.concatenate([influence for _, (_, influence) in found]) / len(found)
    return _over_sentences(float(np.mean([value for _, (value, _) in found])), influences, index[rows], count)


def _self_similarity(units: Float[np.ndarray, "occurrences embed"]) -> tuple[float, Float[np.ndarray, " occurrences"]]:
    """The mean cosine between m occurrences, and its derivative by the weight of each, times m / (m - 1).

    Without the factor the variance of a word with five occurrences would be a third too small.
    """
    value, count = self_similarity(units), len(units)
    cosines = (units * (units.sum(axis=0) - units)).sum(axis=1)
    return value, 2 * (cosines / (count - 1) - value) / (count - 1)


def _explainable_variance(
    wide: Float[np.ndarray, "occurrences embed"],
) -> tuple[float, Float[np.ndarray, " occurrences"]]:
    """The maximum explainable variance, and its derivative by the weight of each occurrence.

    With weights, the eigenvalues are those of sum_i w_i x_i x_i'. The derivative of the largest one is (v . x_i)^2, for
    its eigenvector v.
    """
    few = len(wide) <= wide.shape[1]
    values, vectors = np.linalg.eigh(wide @ wide.T if few else wide.T @ wide)
    squares = values[-1] * vectors[:, -1] ** 2 if few else (wide @ vectors[:, -1]) ** 2
    sizes = (wide**2).sum(axis=1)
    value = values[-1] / sizes.sum()
    return float(value), (squares - value * sizes) / sizes.sum()


def sense_contributions(
    vectors: Float[np.ndarray, "units embed"],
    words: Sequence[str],
    senses: Sequence[str],
    sentences: Int[np.ndarray, " units"],
) -> Float[np.ndarray, " sentences"]:
    """The contribution of each sentence to the separation of senses, as in `geometry_contributions`.

    The separation of a word is the mean cosine between occurrences with the same sense, minus that between occurrences
    with different senses; the mean is over words with two or more senses that occur in at least five sentences each.

    Args:
        vectors: the representations of words.
        words: the str of each word; upper and lower case count as equal.
        senses: the sense of each word, such as its part of speech.
        sentences: the sentence of each word.

    Returns: contributions for the sentences in ascending order; NaN if there is no such word.
    """
    units, (_, index) = unit_vectors(vectors), np.unique(sentences, return_inverse=True)
    groups: dict[str, list[Int[np.ndarray, " _"]]] = {}
    for rows in frequent_words([f"{word}\0{sense}" for word, sense in zip(words, senses, strict=True)], sentences):
        groups.setdefault(words[rows[0]].lower(), []).append(rows)
    found = [
        (np.concatenate(group), _separation([units[rows] for rows in group])) for group in groups.values() if group[1:]
    ]
    return _mean_over_words(found, index)


def _separation(senses: Sequence[Float[np.ndarray, "_ embed"]]) -> tuple[float, Float[np.ndarray, " occurrences"]]:
    """The separation of a word's senses, and its derivative by the weight of each occurrence."""
    counts, total = np.array([*map(len, senses)]), sum(part.sum(axis=0) for part in senses)
    within = [(part * (part.sum(axis=0) - part)).sum(axis=1) for part in senses]  # sums of cosines of each occurrence
    across = [(part * (total - part.sum(axis=0))).sum(axis=1) for part in senses]
    value, slopes = 0.0, np.zeros(counts.sum())
    for sign, sums, others in ((1, within, counts - 1), (-1, across, counts.sum() - counts)):
        pairs = (counts * others).sum()
        mean = sum(part.sum() for part in sums) / pairs
        value += sign * float(mean)
        slopes += sign * 2 * (np.concatenate(sums) - mean * np.repeat(others, counts)) / pairs
    return value, slopes


def _effective_dimension(
    wide: Float[np.ndarray, "words embed"], index: Int[np.ndarray, " words"]
) -> Float[np.ndarray, " sentences"]:
    """Contributions to the participation ratio t^2 / s, for the trace t of the covariance C and s = |C|^2.

    They are NaN if all words are equal.
    """
    centred = wide - wide.mean(axis=0)
    covariance = centred.T @ centred / len(wide)
    trace, squares = np.trace(covariance), (covariance**2).sum()
    of_trace, of_squares = (centred**2).sum(axis=1), ((centred @ covariance) * centred).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = trace**2 / squares
        influences = 2 * value * (of_trace / trace - of_squares / squares) / len(wide)
    return _over_sentences(float(value), influences, index, int(index.max()) + 1)


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
