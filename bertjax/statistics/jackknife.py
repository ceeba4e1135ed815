"""What each example contributes to a score, so that whatever is made of scores can be resampled like a mean.

Of a metric that is a mean over examples, such as accuracy, an example contributes its own value. Of any other one it
contributes what the score loses without it: the jackknife's pseudo-value (Tukey 1958; Efron and Tibshirani 1993,
chapter 11), moved so that the mean of all is the score itself. Sums and differences of scores of several runs are then
means over examples too: their intervals and tests are those of any mean.
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
    """What each example, or each unit of several outputs, contributes to the score of each run.

    Args:
        outputs, labels, positive: as in `score`.
        units: the example of each output, where these are several: words of a sentence, say.

    Returns: which examples (or units) have a label, and what each contributes; the mean over them is the score.

    Raises:
        DataError: as `score` does, or the score is undefined without some example: then nobody knows what that
            example contributes.

    >>> from bertjax.statistics import METRICS
    >>> logits, labels = np.array([[[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]]]), np.array([0, 1, 1])
    >>> kept, found = contributions(METRICS["accuracy"], logits, labels)
    >>> kept.tolist(), (found.round(9) + 0).tolist()
    ([0, 1, 2], [[1.0, 1.0, 0.0]])
    """
    has_label = labelled(metric, labels)
    if units is None:
        kept, own_units = np.flatnonzero(has_label), None
    else:
        kept, own_units = np.unique(np.asarray(units)[has_label], return_inverse=True)
    if len(kept) < 2:
        raise DataError("what examples contribute to a score can be told of two at least that have a label")
    found = []
    for start in range(0, len(outputs), GROUP):
        group = outputs[start : start + GROUP]
        scores = score(metric, group, labels, positive)
        if not np.isfinite(scores).all():
            run = start + int(np.flatnonzero(~np.isfinite(scores))[0])
            raise DataError(f"{metric.label} is undefined in run {run}: what examples contribute to it cannot be told")
        scorer = make_scorer(metric, group[:, has_label], np.asarray(labels)[has_label], positive, own_units)
        left_out = score_draws(scorer, _leave_one_out(len(kept), len(group), own_units)).T
        if not np.isfinite(left_out).all():
            place = kept[np.argwhere(~np.isfinite(left_out))[0, 1]]
            raise DataError(
                f"{metric.label} is undefined without example {place}: what that contributes cannot be told; choose "
                "another metric or more examples"
            )
        found.append(scores[:, None] + (len(kept) - 1) * (left_out.mean(axis=1, keepdims=True) - left_out))
    return kept.astype(np.int64), np.concatenate(found)


def _leave_one_out(examples: int, runs: int, units: Units | None) -> Iterator[Num[np.ndarray, "some examples"]]:
    """Counts that each leave out one, in chunks."""
    size = chunk_size(examples if units is None else max(examples, len(units)), runs)
    for start in range(0, examples, size):
        numbers = np.arange(start, min(start + size, examples))
        yield (np.arange(examples) != numbers[:, None]).astype(np.uint16)
