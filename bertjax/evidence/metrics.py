"""The scores of a sweep, computed from its saved outputs: no model is needed.

A metric is a value in the table `METRICS`; `score` applies one to all ablations at once. Scores are
as the metric defines them (accuracy in [0, 1], correlations in [-1, 1]); reports print points, 100
times that. A score that is undefined is NaN: a correlation with outputs or labels that are all equal,
Matthews, ROC AUC and average precision with labels of one class only, F1 where the positive class is
neither among the labels nor predicted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int, Num, Shaped

from bertjax.errors import DataError
from bertjax.evidence.resampling import (
    Scorer,
    accuracy_scorer,
    average_precision_scorer,
    counting_scorer,
    f1_scorer,
    matthews_scorer,
    pearson_scorer,
    roc_auc_scorer,
    spearman_scorer,
)
from bertjax.formatting import count_of

UNLABELLED = -1
"""The class of an example that has none, as in GLUE's test sets; NaN means the same, and alone does so for numbers."""

Outputs = Int[np.ndarray, "ablations examples"] | Float[np.ndarray, "ablations examples"]
Labels = Int[np.ndarray, " examples"] | Float[np.ndarray, " examples"]
Scores = Float[np.ndarray, " ablations"]
Runs = Float[np.ndarray, " runs"]
Counts = Int[np.ndarray, " runs"]


@dataclass(frozen=True)
class EffectSize:
    """What makes effects of one metric comparable with those of other data.

    Attributes:
        text: what it is, for people.
        function: takes the base's score, the scores `[runs]`, the spread of one example's share in each difference,
            and how many predictions each run gains and loses (0 for values); gives `[runs]`.
    """

    text: str
    function: Callable[[float, Runs, Runs, Counts, Counts], Runs]


def _cohens_d(base: float, scores: Runs, spread: Runs, gains: Counts, losses: Counts) -> Runs:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(spread > 0, (scores - base) / spread, 0.0)


def _cohens_q(base: float, scores: Runs, spread: Runs, gains: Counts, losses: Counts) -> Runs:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.arctanh(scores) - np.arctanh(base)


def _cohens_g(base: float, scores: Runs, spread: Runs, gains: Counts, losses: Counts) -> Runs:
    return np.where(gains + losses > 0, gains / np.maximum(gains + losses, 1) - 0.5, 0.0)


COHENS_D = EffectSize(
    "Cohen's d: the difference over its standard error, over the root of the number of examples", _cohens_d
)
COHENS_G = EffectSize("Cohen's g: the share of flips that gain, less one half", _cohens_g)
COHENS_Q = EffectSize("Cohen's q: the difference of Fisher's z", _cohens_q)


@dataclass(frozen=True)
class Metric:
    """One way to score the outputs of a sweep, and all that intervals, tests, tables and pictures need to know of it.

    One of your own needs the first five; the others make it faster or its statistics sharper.

    Attributes:
        name: its key in `METRICS`, as written on the command line and in files.
        label: its name for people.
        reads: what it needs of each output: "predictions" (class ids, the argmax of logits) or
            "values" (one real number: a regression or a similarity).
        targets: what the labels are: "classes" (whole numbers from 0) or "numbers".
        function: takes outputs `[ablations, examples]`, labels `[examples]` and the positive class
            (ignored where none is singled out), and returns one score per ablation.
        lowest: the least that it can be; the most is 1.
        needs: what the labels must hold, or it is undefined (or always 0) whatever the outputs: two different labels,
            the positive one, or that and another one.
        scorer: the same as a function of how often each example counts: takes what `function` takes, and gives a
            `resampling.Scorer`. Without it `function` is called once for each draw.
        swap_weights: where a random swap of base and ablated outputs changes the difference by a sum over examples:
            takes base and ablated outputs `[runs, examples]` and which examples are positive, and gives that sum's
            weights `[examples, runs]`.
        effect_size: how effects are standardised.
        any_scale: whether outputs may be shifted and stretched without a change of the score.
        ranks: whether a draw is sorted, so that fewer of them are affordable.
        flips_alone: whether the difference is that of gained and lost predictions, so that McNemar's and Tango's
            exact forms hold.
    """

    name: str
    label: str
    reads: Literal["predictions", "values"]
    targets: Literal["classes", "numbers"]
    function: Callable[[Outputs, Labels, int], Scores]
    lowest: float = 0.0
    needs: Literal["nothing", "two", "positive", "both"] = "nothing"
    scorer: Callable[[Outputs, Labels, int], Scorer] | None = None
    swap_weights: Callable[[Outputs, Bool[np.ndarray, " examples"]], Float[np.ndarray, "examples runs"]] | None = None
    effect_size: EffectSize = COHENS_D
    any_scale: bool = False
    ranks: bool = False
    flips_alone: bool = False

    @property
    def of_one_label(self) -> bool:
        """Whether it is about the positive class alone."""
        return self.needs in ("positive", "both")

    def describe(self) -> dict[str, Any]:
        """What a summary says of it, for those who read it without this Metric."""
        return {"label": self.label, "reads": self.reads, "of_one_label": self.of_one_label}


def score(
    metric: Metric | str,
    outputs: Float[np.ndarray, "ablations ..."],
    labels: Num[np.ndarray, "..."],
    positive: int = 1,
) -> Scores:
    """Scores every ablation of a sweep; NaN where the score is undefined (see the module's text).

    Examples without a label (NaN, or -1 for a class) are left out. All sums are in float64.

    Args:
        metric: a name in `METRICS`, or a Metric of your own.
        outputs: logits `[ablations, examples, labels]`, or one value for each example,
            `[ablations, examples]` or `[ablations, examples, 1]`. Of equal logits the first counts.
        labels: `[examples]`, class ids or real numbers.
        positive: the label that counts as "yes" for f1, roc_auc and average_precision: high values
            should go with it. 1 for MRPC and QQP (paraphrase); 0 for QNLI, RTE and MNLI (entailment)
            where pairs are scored by similarity. The other metrics ignore it.

    Returns:
        `[ablations]`, as the metric defines it: not in points.

    Raises:
        DataError: the metric is unknown, the shapes don't fit together or to the metric, an output
            is not finite, a label is none that the metric takes, or no example has a label.

    >>> outputs = np.array([[0.1, 0.7, 0.9], [0.9, 0.2, 0.4]])  # two ablations, three pairs
    >>> score("spearman", outputs, np.array([0.0, 2.5, 5.0])).round(6).tolist()
    [1.0, -0.5]
    """
    metric = find_metric(metric)
    _check_shapes(outputs, labels)
    _check_finite(outputs)
    read = predictions_from_logits if metric.reads == "predictions" else _values
    readings = read(outputs)
    numbers, known = np.asarray(labels, dtype=np.float64), labelled(metric, labels)
    if not known.any():
        raise DataError(f"none of the {len(numbers)} examples has a label: {metric.label} needs labelled examples")
    if metric.targets == "classes":
        numbers = _classes(metric, numbers, known, outputs)
    elif not np.isfinite(numbers[known]).all():
        place = np.flatnonzero(np.isinf(numbers))[0]
        raise DataError(f"the label of example {place} is {numbers[place]}: give a number, or NaN for none")
    return metric.function(readings[:, known], numbers[known], positive)


def labelled(metric: Metric | str, labels: Num[np.ndarray, " examples"]) -> Bool[np.ndarray, " examples"]:
    """Which examples have a label that the metric takes."""
    numbers = np.asarray(labels, dtype=np.float64)
    known = ~np.isnan(numbers)
    return known & (numbers != UNLABELLED) if find_metric(metric).targets == "classes" else known  # -1 may be a number


def check_labels(
    metric: Metric | str, labels: Num[np.ndarray, " examples"], positive: int = 1, names: Sequence[str] = ()
) -> None:
    """See before there are outputs that a metric can judge them by these labels.

    Args:
        positive: as in `score`.
        names: of the classes.

    Raises:
        DataError: no example has a label, or the labels leave the metric undefined.

    >>> check_labels("roc_auc", np.array([1, 1, 1]), names=["no", "yes"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    bertjax.errors.DataError: ROC AUC cannot be computed: of 3 labelled examples all have the label 'yes'...
    """
    metric = find_metric(metric)
    known = np.asarray(labels)[labelled(metric, labels)]
    if not len(known):
        raise DataError(f"none of the {len(labels)} examples has a label: {metric.label} needs labelled examples")

    def called(label: Any) -> str:
        return repr(str(names[int(label)])) if 0 <= label < len(names) else f"{label:g}"

    counted = f"{metric.label} cannot be computed: of {count_of(len(known), 'labelled example')}"
    if metric.needs in ("two", "both") and _constant(known):
        raise DataError(f"{counted} all have the label {called(known[0])}; give examples of other labels too")
    if metric.needs in ("positive", "both") and not (known == positive).any():
        raise DataError(f"{counted} none has the label {called(positive)}; give examples of that too")


def find_metric(metric: Metric | str) -> Metric:
    """The metric of that name in `METRICS`; a Metric is returned as it is.

    Raises:
        DataError: there is none of that name.

    >>> find_metric("f1").label
    'F1'
    """
    if isinstance(metric, Metric):
        return metric
    if metric not in METRICS:
        raise DataError(f"no metric is called {metric!r}: choose one of {', '.join(METRICS)}")
    return METRICS[metric]


def make_scorer(
    metric: Metric | str,
    outputs: Float[np.ndarray, "runs examples *labels"],
    labels: Num[np.ndarray, " examples"],
    positive: int = 1,
) -> Scorer:
    """A function from counts `[draws, examples]` to scores `[draws, runs]`, NaN where the metric is undefined.

    Args:
        metric: a name in `METRICS`, or a Metric of your own.
        outputs: of each run, logits or one value for each example, finite.
        labels: of each example; every example must have one.
        positive: the label that counts as yes, where the metric has one.

    Raises:
        DataError: there is no such metric, or there are too many examples for it.

    >>> outputs, labels = np.array([[[0.0, 1.0], [1.0, 0.0]]]), np.array([1, 1])
    >>> make_scorer("accuracy", outputs, labels)(np.array([[2, 0], [1, 1]])).tolist()
    [[1.0], [0.5]]
    """
    metric = find_metric(metric)
    readings = predictions_from_logits(outputs) if metric.reads == "predictions" else _values(outputs)
    if metric.scorer is not None:
        return metric.scorer(readings, labels, positive)
    function = metric.function
    return counting_scorer(lambda places: function(readings[:, places], labels[places], positive))


def predictions_from_logits(logits: Float[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
    """The predicted class ids: the place of the largest logit, the first of equal ones.

    Args:
        logits: `[ablations, examples, labels]`, two labels or more.

    Returns:
        `[ablations, examples]`.

    Raises:
        DataError: these are no logits.

    >>> predictions_from_logits(np.array([[[0.2, 1.5], [3.0, -1.0]]])).tolist()
    [[1, 0]]
    """
    if logits.ndim != 3 or logits.shape[-1] < 2:
        raise DataError(
            f"class predictions need logits [ablations, examples, labels] of two labels or more,"
            f" found outputs of shape {list(logits.shape)}: choose a metric that reads real values"
        )
    return np.argmax(logits, axis=-1)


def _values(outputs: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    if outputs.ndim == 3 and outputs.shape[-1] != 1:
        raise DataError(
            f"this metric reads one real value per example, found outputs of shape {list(outputs.shape)}:"
            " choose a metric that reads class predictions, or pass one column of the logits"
        )
    return np.asarray(outputs, dtype=np.float64).reshape(outputs.shape[:2])


def _check_shapes(outputs: Shaped[np.ndarray, "..."], labels: Shaped[np.ndarray, "..."]) -> None:
    fits = outputs.ndim in (2, 3) and labels.ndim == 1 and outputs.shape[1] == len(labels)
    if not fits:
        raise DataError(
            f"outputs of shape {list(outputs.shape)} and labels of shape {list(labels.shape)} don't fit:"
            " give outputs [ablations, examples] or [ablations, examples, labels] and labels [examples]"
        )


def _check_finite(outputs: Float[np.ndarray, "..."]) -> None:
    finite = np.isfinite(outputs)
    if not finite.all():
        first = tuple(np.argwhere(~finite)[0])
        raise DataError(
            f"the output of ablation {first[0]} for example {first[1]} is {outputs[first]} ({(~finite).sum()}"
            " such values in all): scores need finite outputs, so look at that ablation's replacement"
        )


def _classes(
    metric: Metric,
    labels: Float[np.ndarray, " examples"],
    labelled: Bool[np.ndarray, " examples"],
    outputs: Float[np.ndarray, "ablations ..."],
) -> Int[np.ndarray, " examples"]:
    """The labels as class ids, once each that counts is known to be one."""
    whole = np.isfinite(labels) & (labels == np.floor(labels)) & (labels >= 0)
    wrong = np.flatnonzero(labelled & ~whole)
    if wrong.size:
        raise DataError(
            f"{metric.label} needs class ids 0, 1, ... as labels (-1 for none), found {labels[wrong[0]]}"
            f" at example {wrong[0]}: for real-valued labels choose pearson or spearman"
        )
    classes = np.where(labelled, labels, UNLABELLED).astype(np.int64)
    if metric.reads == "predictions" and classes.max() >= outputs.shape[-1]:
        raise DataError(
            f"label {classes.max()} at example {classes.argmax()} is beyond the {outputs.shape[-1]} labels"
            f" of the outputs {list(outputs.shape)}: model and task don't belong together"
        )
    return classes


def _undefined(outputs: Shaped[np.ndarray, "ablations examples"]) -> Scores:
    return np.full(len(outputs), np.nan)


def _constant(labels: Shaped[np.ndarray, " examples"]) -> bool:
    return bool((labels == labels[0]).all())


def _each(
    name: str,
    outputs: Shaped[np.ndarray, "ablations examples"],
    labels: Shaped[np.ndarray, " examples"],
    **options: float,
) -> Scores:
    """One call of scikit-learn's metric of that name per ablation (about 1 to 7 ms on 9,815 examples)."""
    import sklearn.metrics

    function = getattr(sklearn.metrics, name)
    return np.array([function(labels, output, **options) for output in outputs], dtype=np.float64)


def _accuracy(predictions: Outputs, labels: Labels, positive: int) -> Scores:
    return _each("accuracy_score", predictions, labels)


def _f1(predictions: Outputs, labels: Labels, positive: int) -> Scores:
    return _each("f1_score", predictions == positive, labels == positive, zero_division=np.nan)


def _matthews(predictions: Outputs, labels: Labels, positive: int) -> Scores:
    """0 by convention where the predictions, but not the labels, are all of one class."""
    return _undefined(predictions) if _constant(labels) else _each("matthews_corrcoef", predictions, labels)


def _pearson(values: Outputs, labels: Labels, positive: int) -> Scores:
    from scipy.stats import pearsonr

    found, varied = _undefined(values), np.ptp(values, axis=1) > 0
    if varied.any() and not _constant(labels):
        found[varied] = pearsonr(values[varied], labels[None], axis=1).statistic
    return found


def _spearman(values: Outputs, labels: Labels, positive: int) -> Scores:
    """Pearson's correlation of the ranks: spearmanr itself would correlate all ablations pairwise."""
    from scipy.stats import rankdata

    return _pearson(rankdata(values, axis=1), rankdata(labels), positive)


def _ranking(name: str, values: Outputs, labels: Labels, positive: int) -> Scores:
    """A metric of how well high values single out the positive class."""
    wanted = labels == positive
    return _undefined(values) if _constant(wanted) else _each(name, values, wanted)


def _area_of_swaps(
    given: Float[np.ndarray, "runs examples"], wanted: Bool[np.ndarray, " examples"]
) -> Float[np.ndarray, "examples _"]:
    """What swapping each example weighs in a difference of ROC AUC.

    An area is a mean over pairs of a positive and a negative example (Mann and Whitney 1947). With t = 1 where an
    example is as it was and -1 where it is swapped, a pair's share is c0 + c1 t + c2 t' + c3 t t' in the second run,
    and the same with both signs turned in the first: in the difference only c1 and c2 are left.
    """
    weights = np.zeros((given.shape[1], len(given) - 1))
    for run, after in enumerate(given[1:]):
        for one, other, sign in ((wanted, ~wanted, 1), (~wanted, wanted, -1)):
            among = np.sort(np.concatenate([given[0, other], after[other]]))
            above = sum(
                np.searchsorted(among, after[one], side) - np.searchsorted(among, given[0, one], side)
                for side in ("left", "right")
            )
            weights[one, run] = sign * above / (4 * max(wanted.sum() * (~wanted).sum(), 1))
    return weights


METRICS = {
    metric.name: metric
    for metric in (
        Metric(
            "accuracy",
            "Accuracy",
            "predictions",
            "classes",
            _accuracy,
            scorer=accuracy_scorer,
            effect_size=COHENS_G,
            flips_alone=True,
        ),
        Metric("f1", "F1", "predictions", "classes", _f1, needs="positive", scorer=f1_scorer),
        Metric(
            "matthews",
            "Matthews correlation",
            "predictions",
            "classes",
            _matthews,
            lowest=-1.0,
            needs="two",
            scorer=matthews_scorer,
        ),
        Metric(
            "pearson",
            "Pearson correlation",
            "values",
            "numbers",
            _pearson,
            lowest=-1.0,
            needs="two",
            scorer=pearson_scorer,
            effect_size=COHENS_Q,
            any_scale=True,
        ),
        Metric(
            "spearman",
            "Spearman correlation",
            "values",
            "numbers",
            _spearman,
            lowest=-1.0,
            needs="two",
            scorer=spearman_scorer,
            effect_size=COHENS_Q,
            any_scale=True,
            ranks=True,
        ),
        Metric(
            "roc_auc",
            "ROC AUC",
            "values",
            "classes",
            partial(_ranking, "roc_auc_score"),
            needs="both",
            scorer=roc_auc_scorer,
            swap_weights=_area_of_swaps,
            any_scale=True,
        ),
        Metric(
            "average_precision",
            "Average precision",
            "values",
            "classes",
            partial(_ranking, "average_precision_score"),
            needs="both",
            scorer=average_precision_scorer,
            any_scale=True,
            ranks=True,
        ),
    )
}
"""The metrics by name."""
