"""Scores that are functions of sums over an output's numbers: means, and ratios of counts.

Of a masked word the numbers are the true word's log-probability, in nats over the whole vocabulary, and its rank, 1
being the likeliest word; pseudo-perplexity is the exponential of the mean of negative log-probabilities, each word
masked by itself (Salazar et al. 2020). Of a minimal pair they are the log-likelihoods of the bad and the good form. Of
a sentence with tags they are the mean log-probability of its true tags, and counts: of words, and of entities, true
ones, found ones and those that are both. Of a question they are the score of the predicted answer, its exact match and
its F1 (Rajpurkar et al. 2016). Of a query they are its margin, how far the best relevant text is before the best other
one, and its scores as trec_eval computes them. Of a text with a set of labels they are the mean log-likelihood of what
is true of each label and whether all are right; then for each label whether it is a hit, found and true, 0 or 1. Of an
example whose gradients were taken they are its loss as predicted without a head, what that differs by, and the sum over
tokens of the absolute values of what each contributes. Of what an example contributes to a score (`jackknife`) they are
the interaction of two heads, the effect of both and the sum of each one's; or a head's Shapley value. Of a contrast
they are the scores of the patched run, of the run that is patched and of the source.

Errors of a regression are read from its values.
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


def _columns(places: tuple[int, ...], outputs: Outputs, labels: Num[np.ndarray, " rows"], positive: int) -> Terms:
    return outputs[..., list(places)]


def _errors(size: Callable[[Values], Values], values: Values, labels: Num[np.ndarray, " rows"], positive: int) -> Terms:
    """The size of what each value differs by from its label, and 1."""
    sizes = size(values - labels)
    return np.stack([sizes, np.ones(sizes.shape)], axis=-1)


def _over_labels(outputs: Outputs, labels: Num[np.ndarray, " rows"], positive: int) -> Terms:
    """Hits, found and true ones of all labels together."""
    return np.stack([outputs[..., 2 + place :: 3].sum(axis=-1) for place in range(3)], axis=-1)


def _by_label(outputs: Outputs, labels: Num[np.ndarray, " rows"], positive: int) -> Terms:
    """The hits of each label, then how many are found and true of each."""
    hits, found, true = (outputs[..., 2 + place :: 3] for place in range(3))
    return np.concatenate([hits, found + true], axis=-1)


def _mean(sums: Float[np.ndarray, "*draws 2"]) -> Float[np.ndarray, "*draws"]:
    with np.errstate(invalid="ignore", divide="ignore"):  # no word, or nothing to move
        mean: Float[np.ndarray, "*draws"] = sums[..., 0] / sums[..., 1]
    return mean


def _f1(sums: Float[np.ndarray, "*draws 3"]) -> Float[np.ndarray, "*draws"]:
    """F1 of what is hit among what is found and what is true; 0 where neither is there, as in seqeval."""
    return _share(sums[..., 0], sums[..., 1] + sums[..., 2])


def _share(hits: Float[np.ndarray, "*sums"], both: Float[np.ndarray, "*sums"]) -> Float[np.ndarray, "*sums"]:
    """F1 from hits, and what is found and what is true together."""
    return np.divide(2 * hits, both, out=np.zeros(both.shape), where=both > 0)


def _mean_f1(sums: Float[np.ndarray, "*draws terms"]) -> Float[np.ndarray, "*draws"]:
    """The mean over labels of their F1; 0 for a label that is neither found nor true."""
    hits, both = np.split(sums, 2, axis=-1)
    mean: Float[np.ndarray, "*draws"] = _share(hits, both).mean(axis=-1)
    return mean


def mean_of(numbers: tuple[str, ...], value: Callable[[Outputs], Float[np.ndarray, "runs rows"]]) -> Sums:
    """The mean of what a function makes of each output's numbers."""
    return Sums(partial(_one_and_value, value), _mean, numbers)


def mean_number(numbers: tuple[str, ...], name: str, of_each_label: tuple[str, ...] = ()) -> Sums:
    """The mean of one of each output's numbers."""
    return Sums(partial(_one_and_value, partial(_number, numbers.index(name))), _mean, numbers, of_each_label)


def ratio_of(numbers: tuple[str, ...], name: str, count: str) -> Sums:
    """The sum of one of the outputs' numbers over that of another."""
    return Sums(partial(_columns, (numbers.index(name), numbers.index(count))), _mean, numbers)


def _moved(outputs: Outputs, labels: Num[np.ndarray, " rows"], positive: int) -> Terms:
    """What a patch moved of a score, and what there was to move."""
    patched, own, sources = (outputs[..., number] for number in range(3))
    return np.stack([patched - own, sources - own], axis=-1)


def _errors_of_shares(terms: Float[np.ndarray, "runs units 2"]) -> Float[np.ndarray, " runs"]:
    """Standard errors of ratios of sums, to first order (the delta method; Cochran 1977, chapter 6).

    What there is to move can have either sign: where some draw's sum of it is near 0, that draw's share has any size.
    """
    moved, whole = terms[..., 0], terms[..., 1]
    units, total = whole.shape[1], whole.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        left = moved - (moved.sum(axis=1) / total)[:, None] * whole
        errors: Float[np.ndarray, " runs"] = np.sqrt(units / (units - 1) * (left**2).sum(axis=1)) / np.abs(total)
    return errors


def _number(place: int, outputs: Outputs) -> Float[np.ndarray, "runs rows"]:
    return outputs[..., place]


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
