"""Scores on examples drawn with replacement, for every run at once: each draw only says how often an example counts."""

import numpy as np
from jaxtyping import Bool, Float, Int, Num

from bertjax.metrics import predictions_from_logits, score

RANKINGS = ("roc_auc", "average_precision")


def bootstrap(
    metric: str,
    outputs: Float[np.ndarray, "runs examples *labels"],
    labels: Num[np.ndarray, " examples"],
    positive: int,
    counts: Int[np.ndarray, "draws examples"],
) -> Float[np.ndarray, "draws runs"]:
    """Scores on examples drawn with replacement.

    Accuracy and F1 are products of matrices and rankings are sorted once for all draws, which is much faster than
    one call of the metric for each; correlations, whose ranks differ from draw to draw, take all runs in one call.

    Args:
        outputs: of each run: logits, or one value for each example.
        positive: the label that counts as yes.
        counts: how often each example is drawn.

    Returns:
        `[draws, runs]`; NaN where the metric is undefined.

    >>> outputs, labels = np.array([[[0.0, 1.0], [1.0, 0.0]]]), np.array([1, 1])
    >>> bootstrap("accuracy", outputs, labels, 1, np.array([[2, 0], [1, 1]])).tolist()
    [[1.0], [0.5]]
    """
    if metric in RANKINGS:
        return _rankings(metric, outputs.reshape(outputs.shape[:2]), labels == positive, counts)
    if metric not in ("accuracy", "f1"):
        drawn = [np.repeat(np.arange(len(labels)), count) for count in counts]
        return np.stack([score(metric, outputs[:, rows], labels[rows], positive) for rows in drawn])
    predictions, weights = predictions_from_logits(outputs), counts.astype(np.float64)
    if metric == "accuracy":
        return weights @ (predictions == labels).T.astype(np.float64) / weights.sum(1, keepdims=True)
    said, true = (predictions == positive).astype(np.float64), (labels == positive).astype(np.float64)
    with np.errstate(invalid="ignore"):  # no example is or is called positive: undefined
        return 2 * (weights @ (said * true).T) / (weights @ said.T + (weights @ true)[:, None])


def _rankings(
    metric: str,
    values: Float[np.ndarray, "runs examples"],
    wanted: Bool[np.ndarray, " examples"],
    counts: Int[np.ndarray, "draws examples"],
) -> Float[np.ndarray, "draws runs"]:
    """ROC AUC or average precision from how many wanted and other examples stand at or above each value."""
    order = np.argsort(-values, axis=1)
    falls = np.diff(np.take_along_axis(values, order, axis=1), axis=1) != 0
    last = np.pad(falls, ((0, 0), (0, 1)), constant_values=True)  # of the examples that share a value
    # Where each example's next higher value ends: 0 before the highest, as in sums that begin with a zero.
    places = np.where(last, np.arange(1, values.shape[1] + 1), 0)
    above = np.pad(np.maximum.accumulate(places, axis=1), ((0, 0), (1, 0)))[:, :-1]
    found = np.empty((len(counts), len(values)))
    for draw, count in enumerate(counts):
        hits, misses = (np.pad((count * kind)[order].cumsum(1), ((0, 0), (1, 0))) for kind in (wanted, ~wanted))
        more, before = (each[:, 1:] - np.take_along_axis(each, above, axis=1) for each in (hits, misses))
        up_to = hits[:, 1:]
        with np.errstate(invalid="ignore", divide="ignore"):  # none is wanted, or every one: undefined
            if metric == "roc_auc":
                found[draw] = (before * (up_to - more / 2) * last).sum(1) / (hits[:, -1] * misses[:, -1])
            else:
                precision = up_to / np.maximum(up_to + misses[:, 1:], 1)
                found[draw] = (more * precision * last).sum(1) / hits[:, -1]
        found[draw, (hits[:, -1] == 0) | (misses[:, -1] == 0)] = np.nan
    return found
