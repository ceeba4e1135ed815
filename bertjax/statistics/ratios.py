"""Scores that are functions of sums over the numbers of outputs: means, and ratios of counts.

The numbers of an output, by task or analysis::

    masked word    log-probability of the true word, in nats over the whole vocabulary, and its rank (1 is the most
                   likely word). Pseudo-perplexity is the exponential of the mean of negative log-probabilities, with
                   each word masked by itself (Salazar et al. 2020).
    minimal pair   log-likelihoods of the bad and the good form
    tags           mean log-probability of the true tags of a sentence; counts of words, and of true and predicted
                   entities and those that agree
    question       score of the predicted answer, its exact match and its F1 (Rajpurkar et al. 2016)
    query          margin between the best relevant and the best other text, and the scores of trec_eval
    label set      mean log-likelihood over labels, and whether all labels are right; then for each label whether it is
                   a hit, predicted and true (0 or 1)
    gradients      predicted loss without a head, its change, and the sum over tokens of absolute contributions
    interactions   contributions (`jackknife`) to the interaction of two heads, to the effect of both and to the sum of
                   single effects
    Shapley        contributions to a head's Shapley value
    patching       scores of the patched run, of the run that is patched, and of the source
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from jaxtyping import Float, Num

from bertjax.statistics.resampling import Sums

Outputs = Float[np.ndarray, "runs rows numbers"]
Values = Float[np.ndarray, "runs rows"]
Terms = Float[np.ndarray, "runs rows terms"]

WORDS = ("log-probability", "rank")
LIKELIHOODS = ("bad", "good")
TAGS = (
    "log-probability",
    *("correct words", "words"),
    *("strict hits", "strictly found", "strictly true"),
    *("hits", "found", "true"),
)
ANSWERS = ("score", "exact match", "F1")
RANKINGS = ("margin", "nDCG@10", "MRR@10", "recall@1", "recall@10", "recall@100")
GRADIENTS = ("loss", "change", "change at tokens")
INTERACTIONS = ("interaction", "both", "sum")
SHAPLEY = ("value",)
PATCHING = ("patched", "own", "source's")
LABEL_SETS, OF_EACH_LABEL = ("log-likelihood", "exact match"), ("hit", "found", "true")


def _one_and_value(
    value: Callable[[Outputs], Float[np.ndarray, "runs rows"]],
    outputs: Outputs,
    labels: Num[np.ndarray, " rows"],
    positive: int,
) -> Terms:
    values = value(outputs)
    return np.stack([values, np.ones(values.shape)], axis=-1)


def _columns(columns: tuple[int, ...], outputs: Outputs, labels: Num[np.ndarray, " rows"], positive: int) -> Terms:
    return outputs[..., list(columns)]


def _errors(size: Callable[[Values], Values], values: Values, labels: Num[np.ndarray, " rows"], positive: int) -> Terms:
    """The size of each error of a regression, and 1."""
    sizes = size(values - labels)
    return np.stack([sizes, np.ones(sizes.shape)], axis=-1)


def _over_labels(outputs: Outputs, labels: Num[np.ndarray, " rows"], positive: int) -> Terms:
    """The numbers of hits, of predicted and of true labels."""
    return np.stack([outputs[..., 2 + column :: 3].sum(axis=-1) for column in range(3)], axis=-1)


def _by_label(outputs: Outputs, labels: Num[np.ndarray, " rows"], positive: int) -> Terms:
    """The hits of each label, then the sum of predicted and true ones of each label."""
    hits, found, true = (outputs[..., 2 + column :: 3] for column in range(3))
    return np.concatenate([hits, found + true], axis=-1)


def _mean(sums: Float[np.ndarray, "*draws 2"]) -> Float[np.ndarray, "*draws"]:
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Float[np.ndarray, "*draws"] = sums[..., 0] / sums[..., 1]
    return mean


def _f1(sums: Float[np.ndarray, "*draws 3"]) -> Float[np.ndarray, "*draws"]:
    """F1 from the numbers of hits, of predictions and of true ones; 0 if there are no predictions and no true ones."""
    return _f1_of_sums(sums[..., 0], sums[..., 1] + sums[..., 2])


def _f1_of_sums(hits: Float[np.ndarray, "*sums"], both: Float[np.ndarray, "*sums"]) -> Float[np.ndarray, "*sums"]:
    """F1 from hits, and the sum of predictions and true ones; 0 without any, as in seqeval."""
    return np.divide(2 * hits, both, out=np.zeros(both.shape), where=both > 0)


def _mean_f1(sums: Float[np.ndarray, "*draws terms"]) -> Float[np.ndarray, "*draws"]:
    """The mean over labels of their F1; 0 for a label that is neither predicted nor true."""
    hits, both = np.split(sums, 2, axis=-1)
    mean: Float[np.ndarray, "*draws"] = _f1_of_sums(hits, both).mean(axis=-1)
    return mean


def mean_of(numbers: tuple[str, ...], value: Callable[[Outputs], Float[np.ndarray, "runs rows"]]) -> Sums:
    """The mean of a function of each output's numbers.

    Args:
        numbers: names of each output's numbers.
        value: computes the value of each output from its numbers.
    """
    return Sums(partial(_one_and_value, value), _mean, numbers)


def mean_number(numbers: tuple[str, ...], name: str, of_each_label: tuple[str, ...] = ()) -> Sums:
    """The mean of one number of each output.

    Args:
        numbers: names of each output's numbers.
        name: name of the number whose mean is the score.
        of_each_label: names of further numbers for each label.
    """
    return Sums(partial(_one_and_value, partial(_number, numbers.index(name))), _mean, numbers, of_each_label)


def ratio_of(numbers: tuple[str, ...], name: str, count: str) -> Sums:
    """The sum of one number of the outputs over the sum of another.

    Args:
        numbers: names of each output's numbers.
        name: name of the number in the numerator.
        count: name of the number in the denominator.
    """
    return Sums(partial(_columns, (numbers.index(name), numbers.index(count))), _mean, numbers)


def _moved(outputs: Outputs, labels: Num[np.ndarray, " rows"], positive: int) -> Terms:
    """The change of a score by a patch, and the difference between the source and the run that is patched."""
    patched, base, source = (outputs[..., column] for column in range(3))
    return np.stack([patched - base, source - base], axis=-1)


def _errors_of_shares(terms: Float[np.ndarray, "runs units 2"]) -> Float[np.ndarray, " runs"]:
    """Standard errors of ratios of sums, to first order (the delta method; Cochran 1977, chapter 6).

    Differences between sources and runs can have either sign. If their sum in a draw is near 0, the ratio is unbounded.
    """
    moved, whole = terms[..., 0], terms[..., 1]
    units, total = whole.shape[1], whole.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        left = moved - (moved.sum(axis=1) / total)[:, None] * whole
        errors: Float[np.ndarray, " runs"] = np.sqrt(units / (units - 1) * (left**2).sum(axis=1)) / np.abs(total)
    return errors


def _number(column: int, outputs: Outputs) -> Float[np.ndarray, "runs rows"]:
    return outputs[..., column]


CROSS_ENTROPY = mean_of(WORDS, lambda outputs: -outputs[..., 0])
PSEUDO_PERPLEXITY = Sums(partial(_one_and_value, partial(_number, 0)), lambda sums: np.exp(-_mean(sums)), WORDS)
WORD_ACCURACY = mean_of(WORDS, lambda outputs: (outputs[..., 1] == 1).astype(np.float64))
MARGIN = mean_of(LIKELIHOODS, lambda outputs: outputs[..., 1] - outputs[..., 0])
TAG_ACCURACY = ratio_of(TAGS, "correct words", "words")
STRICT_ENTITIES = Sums(partial(_columns, (3, 4, 5)), _f1, TAGS)
ENTITIES = Sums(partial(_columns, (6, 7, 8)), _f1, TAGS)
EXACT_MATCH = mean_number(ANSWERS, "exact match")
ANSWER_F1 = mean_number(ANSWERS, "F1")
NDCG_10 = mean_number(RANKINGS, "nDCG@10")
MRR_10 = mean_number(RANKINGS, "MRR@10")
RECALL_1 = mean_number(RANKINGS, "recall@1")
RECALL_10 = mean_number(RANKINGS, "recall@10")
RECALL_100 = mean_number(RANKINGS, "recall@100")
MICRO_F1 = Sums(_over_labels, _f1, LABEL_SETS, OF_EACH_LABEL)
MACRO_F1 = Sums(_by_label, _mean_f1, LABEL_SETS, OF_EACH_LABEL)
SUBSET_ACCURACY = mean_number(LABEL_SETS, "exact match", OF_EACH_LABEL)
RESTORED = Sums(_moved, _mean, PATCHING, errors=_errors_of_shares)
SQUARED_ERROR = Sums(partial(_errors, np.square), _mean, ())
ABSOLUTE_ERROR = Sums(partial(_errors, np.abs), _mean, ())
