"""Contributions of examples to a score, so that sums and differences of scores can be resampled like a mean.

If a metric is a mean over examples, such as accuracy, the contribution of an example is its value. For all other
metrics it is the jackknife's pseudo-value (Tukey 1958; Efron and Tibshirani 1993, chapter 11), shifted so that the mean
of all contributions is the score. Sums and differences of scores of several runs are then means over examples, with the
intervals and tests of any mean.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int, Num

from bertjax.errors import DataError
from bertjax.statistics.metrics import Metric, labelled, make_scorer, score
from bertjax.statistics.resampling import Units, chunk_size, score_draws

GROUP = 256  # runs that are scored together


def contributions(
    metric: Metric,
    outputs: Float[np.ndarray, "runs examples *labels"],
    labels: Num[np.ndarray, " examples"],
    positive: int = 1,
    *,
    units: Int[np.ndarray, "..."] | None = None,
) -> tuple[Int[np.ndarray, " kept"], Float[np.ndarray, "runs kept"]]:
    """The contribution of each example, or unit of several outputs, to the score of each run.

    Args:
        metric: the metric of the score.
        outputs: outputs of each run, as in `score`.
        labels: labels of the examples, as in `score`.
        positive: the positive class, as in `score`.
        units: the unit of each output if several belong together, such as the words of a sentence.

    Returns: the examples (or units) that have a label, and their contributions, whose mean is the score.

    Raises:
        DataError: as in `score`; or the score is undefined without some example, so its contribution is too.

    >>> from bertjax.statistics import METRICS
    >>> logits, labels = np.array([[[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]]]), np.array([0, 1, 1])
    >>> kept, found = contributions(METRICS["accuracy"], logits, labels)
    >>> kept.tolist(), (found.round(9) + 0).tolist()
    ([0, 1, 2], [[1.0, 1.0, 0.0]])
    """
    has_label = labelled(metric, labels)
    if units is None:
        kept, kept_units = np.flatnonzero(has_label), None
    else:
        kept, kept_units = np.unique(np.asarray(units)[has_label], return_inverse=True)
    if len(kept) < 2:
        raise DataError("contributions to a score need at least two examples with a label")
    found = []
    for start in range(0, len(outputs), GROUP):
        group = outputs[start : start + GROUP]
        scores = score(metric, group, labels, positive)
        if not np.isfinite(scores).all():
            run = start + int(np.flatnonzero(~np.isfinite(scores))[0])
            raise DataError(f"{metric.label} is undefined in run {run}, so contributions of examples are undefined")
        scorer = make_scorer(metric, group[:, has_label], np.asarray(labels)[has_label], positive, kept_units)
        left_out = score_draws(scorer, _leave_one_out(len(kept), len(group), kept_units)).T
        if not np.isfinite(left_out).all():
            example = kept[np.argwhere(~np.isfinite(left_out))[0, 1]]
            raise DataError(
                f"{metric.label} is undefined without example {example}, so its contribution is undefined: choose "
                "another metric or more examples"
            )
        found.append(scores[:, None] + (len(kept) - 1) * (left_out.mean(axis=1, keepdims=True) - left_out))
    return kept.astype(np.int64), np.concatenate(found)


def _leave_one_out(examples: int, runs: int, units: Units | None) -> Iterator[Num[np.ndarray, "some examples"]]:
    """Counts of draws that leave out one example each, in chunks."""
    size = chunk_size(examples if units is None else max(examples, len(units)), runs)
    for start in range(0, examples, size):
        left_out = np.arange(start, min(start + size, examples))
        yield (np.arange(examples) != left_out[:, None]).astype(np.uint16)
