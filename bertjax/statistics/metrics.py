"""Metrics, and the scores of a sweep from its saved outputs.

A metric is a value in the table `METRICS`; `score` applies one to all ablations at once. Scores are as the metric
defines them (accuracy in [0, 1], correlations in [-1, 1]); reports print points, 100 times that, or the metric's unit.
An undefined score is NaN: a correlation whose outputs or labels are all equal; Matthews, ROC AUC and average precision
if all labels are of one class; F1 if the positive class is neither among the labels nor predicted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float, Int, Num, Shaped

from bertjax import arguments
from bertjax.errors import DataError
from bertjax.formatting import count_of
from bertjax.statistics import ratios
from bertjax.statistics.measure import COHENS_D, COHENS_G, COHENS_Q, POINTS, EffectSize, Measure
from bertjax.statistics.outputs import as_numbers, check_finite, check_shapes, predictions_from_logits, values_of
from bertjax.statistics.ranked import average_precision_scorer, roc_auc_scorer, spearman_scorer
from bertjax.statistics.resampling import (
    Scorer,
    Sums,
    Units,
    accuracy_scorer,
    by_units,
    counting_scorer,
    f1_scorer,
    matthews_scorer,
    pearson_scorer,
)

UNLABELLED = -1
"""The class of an unlabelled example, as in GLUE's test sets. NaN means the same; of numbers, only NaN does."""

Reads = Literal["predictions", "values", "outputs"]
Targets = Literal["classes", "numbers"]
Needs = Literal["nothing", "two", "positive", "both"]
READS, TARGETS, NEEDS = get_args(Reads), get_args(Targets), get_args(Needs)

Outputs = (
    Int[np.ndarray, "ablations examples"]
    | Float[np.ndarray, "ablations examples"]
    | Float[np.ndarray, "ablations examples numbers"]
)
Labels = Int[np.ndarray, " examples"] | Float[np.ndarray, " examples"]
Scores = Float[np.ndarray, " ablations"]
Runs = Float[np.ndarray, " runs"]
Counts = Int[np.ndarray, " runs"]


@dataclass(frozen=True)
class Metric:
    """A score of a sweep's outputs, with all that intervals, tests, tables and figures need.

    Your own metric needs the first five attributes. The others make it faster or its statistics more precise.

    Attributes:
        name: key in `METRICS`, as written on the command line and in files.
        label: name in tables and figures.
        reads: input from each output: "predictions" (class ids, the argmax of logits), "values" (one real number: a
            regression or a similarity), or "outputs" (all numbers, `[ablations, examples, numbers]`).
        targets: type of the labels: "classes" (integers from 0) or "numbers".
        function: takes outputs `[ablations, examples]`, labels `[examples]` and the positive class (most metrics ignore
            it), and returns a score for each ablation.
        lowest: lower bound of scores; may be -infinity.
        highest: upper bound of scores; may be infinity.
        unit: 'points' prints scores times 100; any other unit prints them unchanged.
        greater_is_better: False for losses and errors, of which a decrease is a gain.
        of_effects: whether scores are effects, as in `Measure`.
        compared_with: what effects are compared with, as in `Measure`.
        tested: whether differences are tested for significance, as in `Measure`.
        by: what changes the score, as in `Measure`.
        needs: labels without which the score is undefined (or always 0): "two" different labels, the "positive" label,
            or "both" the positive and another label.
        scorer: the metric as a function of the count of each example: takes the arguments of `function` and
            returns a `resampling.Scorer`. If None, `function` is called for each draw.
        sums: replaces `scorer` if the metric is a function of sums over examples.
        swap_weights: needed if the difference after random swaps of base and ablated outputs is a weighted sum over
            examples: takes base and ablated outputs `[runs, examples]` and a mask of the positive examples, and
            returns the weights `[examples, runs]`.
        effect_size: a standardised effect size.
        any_scale: whether shifting and scaling the outputs leaves the score unchanged.
        scale_of_labels: whether values must have the scale of the labels, as for errors. Similarities do not have it.
        ranks: whether each draw is ranked again, so that fewer draws are affordable.
        flips_alone: whether the difference depends only on gained and lost predictions, so that McNemar's and Tango's
            exact forms apply.

    Raises:
        DataError: an invalid attribute.
    """

    name: str
    label: str
    reads: Reads
    targets: Targets
    function: Callable[[Outputs, Labels, int], Scores]
    lowest: float = 0.0
    highest: float = 1.0
    unit: str = POINTS
    greater_is_better: bool = True
    of_effects: bool = False
    compared_with: str = ""
    tested: bool = True
    by: str = "ablation"
    needs: Needs = "nothing"
    scorer: Callable[[Outputs, Labels, int], Scorer] | None = None
    sums: Sums | None = None
    swap_weights: Callable[[Outputs, Bool[np.ndarray, " examples"]], Float[np.ndarray, "examples runs"]] | None = None
    effect_size: EffectSize = COHENS_D
    any_scale: bool = False
    scale_of_labels: bool = False
    ranks: bool = False
    flips_alone: bool = False

    def __post_init__(self) -> None:
        for name in ("name", "label"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name).strip():
                arguments.refuse(f"a metric's {name}", "a text", getattr(self, name), DataError)
        arguments.check_instance(self.unit, f"unit of metric {self.name}", str, "a text, such as 'points'", DataError)
        for name in ("greater_is_better", "tested"):
            arguments.check_bool(getattr(self, name), f"{name} of metric {self.name}", DataError)
        for name in ("lowest", "highest"):
            if not isinstance(getattr(self, name), int | float):
                arguments.refuse(f"{name} score of metric {self.name}", "a number", getattr(self, name), DataError)
        if not self.lowest < self.highest:
            raise DataError(f"metric {self.name} has scores from {self.lowest} to {self.highest}: this range is empty")
        for name, choices in (("reads", READS), ("targets", TARGETS), ("needs", NEEDS)):
            arguments.check_choice(getattr(self, name), f"{name} of metric {self.name}", choices, DataError)
        expected = "a function of outputs, labels and the positive class"
        arguments.check_function(self.function, f"function of metric {self.name}", expected, DataError)

    @classmethod
    def of_sums(cls, name: str, label: str, sums: Sums, **rest: Any) -> "Metric":
        """Make a metric that is a function of sums over the numbers of each output.

        Args:
            name: key in `METRICS`, as written on the command line and in files.
            label: name in tables and figures.
            sums: the function of sums.
            rest: other attributes; `reads` is "outputs" by default.
        """
        reads, targets = rest.pop("reads", "outputs"), rest.pop("targets", "numbers")
        return cls(name, label, reads, targets, sums.of_all, sums=sums, **rest)

    @property
    def measure(self) -> Measure:
        """The name, unit and direction of its scores, and how they are printed."""
        return Measure(**{field.name: getattr(self, field.name) for field in fields(Measure)})

    @property
    def of_one_label(self) -> bool:
        """Whether it concerns only the positive class."""
        return self.needs in ("positive", "both")

    def describe(self) -> dict[str, Any]:
        """Its description in `summary.json`, for readers without this Metric."""
        return {**asdict(self.measure), "reads": self.reads, "of_one_label": self.of_one_label}


def score(
    metric: Metric | str,
    outputs: Float[np.ndarray, "ablations ..."],
    labels: Num[np.ndarray, "..."],
    positive: int = 1,
) -> Scores:
    """Score every ablation of a sweep; NaN if the score is undefined (see the module's docstring).

    Examples without a label (NaN, or -1 for a class) are left out. All sums are computed in float64.

    Args:
        metric: a name in `METRICS`, or a Metric of your own.
        outputs: logits `[ablations, examples, labels]`, or one value for each example,
            `[ablations, examples]` or `[ablations, examples, 1]`. Among equal logits the first wins.
        labels: `[examples]`, class ids or real numbers.
        positive: the positive class of f1, roc_auc and average_precision, indicated by high values: 1 for MRPC and QQP
            (paraphrase); 0 for QNLI, RTE and MNLI (entailment) if pairs are scored by similarity. Other metrics ignore
            it.

    Returns:
        `[ablations]`, as the metric defines it, not in points.

    Raises:
        DataError: the metric is unknown, the shapes don't fit each other or the metric, an output
            is not finite, the metric does not accept a label, or no example has a label.

    >>> outputs = np.array([[0.1, 0.7, 0.9], [0.9, 0.2, 0.4]])  # two ablations, three pairs
    >>> score("spearman", outputs, np.array([0.0, 2.5, 5.0])).round(6).tolist()
    [1.0, -0.5]
    """
    metric, outputs, labels = find_metric(metric), as_numbers(outputs, "outputs"), as_numbers(labels, "labels")
    positive = arguments.check_int(positive, "positive", 0, DataError)
    check_shapes(outputs, labels)
    check_finite(outputs)
    readings = _read(metric, outputs)
    numbers, has_label = np.asarray(labels, dtype=np.float64), labelled(metric, labels)
    if not has_label.any():
        raise DataError(f"none of the {len(numbers)} examples has a label: {metric.label} needs labelled examples")
    if metric.targets == "classes":
        numbers = _classes(metric, numbers, has_label, outputs)
    elif not np.isfinite(numbers[has_label]).all():
        index = np.flatnonzero(np.isinf(numbers))[0]
        raise DataError(f"the label of example {index} is {numbers[index]}: give a number, or NaN for none")
    return _scores(metric, readings[:, has_label], numbers[has_label], positive)


def _scores(metric: Metric, readings: Outputs, labels: Labels, positive: int) -> Scores:
    """Call a metric's function. Raises `DataError` unless it returns one number for each ablation."""
    scores = np.asarray(metric.function(readings, labels, positive))
    if scores.shape != readings.shape[:1] or scores.dtype.kind not in "biuf":
        found = f"an array of shape {scores.shape} and dtype {scores.dtype}"
        raise DataError(
            f"the function of metric {metric.name} must return one number for each of the {len(readings)} ablations, "
            f"found {found}"
        )
    return scores


def labelled(metric: Metric | str, labels: Num[np.ndarray, " examples"]) -> Bool[np.ndarray, " examples"]:
    """Mask of the examples that have a label for this metric.

    Args:
        metric: a metric, or its name in `METRICS`.
        labels: labels of the examples.
    """
    numbers = np.asarray(labels, dtype=np.float64)
    if find_metric(metric).targets == "classes":
        return ~np.isnan(numbers) & (numbers != UNLABELLED)
    return ~np.isnan(numbers)  # -1 may be a value


def check_labels(
    metric: Metric | str, labels: Num[np.ndarray, " examples"], positive: int = 1, names: Sequence[str] = ()
) -> None:
    """Check, before outputs exist, that a metric can score them with these labels.

    Args:
        metric: a metric, or its name in `METRICS`.
        labels: the labels of the examples.
        positive: the positive class, as in `score`.
        names: names of the classes.

    Raises:
        DataError: no example has a label, or the labels leave the metric undefined.

    >>> check_labels("roc_auc", np.array([1, 1, 1]), names=["no", "yes"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    bertjax.errors.DataError: ROC AUC cannot be computed: of 3 labelled examples all have the label 'yes'...
    """
    metric = find_metric(metric)
    valid_labels = np.asarray(labels)[labelled(metric, labels)]
    if not len(valid_labels):
        raise DataError(f"none of the {len(labels)} examples has a label: {metric.label} needs labelled examples")

    def name_of(label: Any) -> str:
        return repr(str(names[int(label)])) if 0 <= label < len(names) else f"{label:g}"

    problem = f"{metric.label} cannot be computed: of {count_of(len(valid_labels), 'labelled example')}"
    if metric.needs in ("two", "both") and _constant(valid_labels):
        raise DataError(f"{problem} all have the label {name_of(valid_labels[0])}; give examples of other labels too")
    if metric.needs in ("positive", "both") and not (valid_labels == positive).any():
        raise DataError(f"{problem} none has the label {name_of(positive)}; give examples of that too")


def find_metric(metric: Metric | str) -> Metric:
    """Find a metric by its name in `METRICS`; a Metric is returned unchanged.

    Args:
        metric: a metric, or its name in `METRICS`.

    Raises:
        DataError: no metric has this name.

    >>> find_metric("f1").label
    'F1'
    """
    if isinstance(metric, Metric):
        return metric
    if not isinstance(metric, str) or metric not in METRICS:
        raise DataError(f"no metric is called {arguments.brief(metric)}: choose one of {', '.join(METRICS)}")
    return METRICS[metric]


def make_scorer(
    metric: Metric | str,
    outputs: Float[np.ndarray, "runs examples *labels"],
    labels: Num[np.ndarray, " examples"],
    positive: int = 1,
    units: Units | None = None,
) -> Scorer:
    """Make a function from counts `[draws, examples]` to scores `[draws, runs]`, NaN if the metric is undefined.

    Args:
        metric: a name in `METRICS`, or a Metric of your own.
        outputs: each run's logits, or its value for each example; all finite.
        labels: one for each example; none may be missing.
        positive: the positive class, for metrics that have one.
        units: the unit of each example, from 0, if several belong together. Counts are then `[draws, units]`.

    Raises:
        DataError: the metric is unknown, or there are too many examples for it.

    >>> outputs, labels = np.array([[[0.0, 1.0], [1.0, 0.0]]]), np.array([1, 1])
    >>> make_scorer("accuracy", outputs, labels)(np.array([[2, 0], [1, 1]])).tolist()
    [[1.0], [0.5]]
    """
    metric = find_metric(metric)
    readings = _read(metric, outputs)
    if metric.sums is not None:
        return metric.sums.scorer(readings, labels, positive, units)
    if metric.scorer is not None:
        scorer = metric.scorer(readings, labels, positive)
    else:
        scorer = counting_scorer(lambda places: _scores(metric, readings[:, places], labels[places], positive))
    return scorer if units is None else by_units(scorer, units)


def _read(metric: Metric, outputs: Float[np.ndarray, "runs examples *numbers"]) -> Shaped[np.ndarray, "..."]:
    """The input of a metric from outputs. Raises `DataError` for outputs of another kind."""
    if metric.reads == "outputs":
        sums = metric.sums
        if outputs.ndim == 2 and not (sums and sums.fewest):
            outputs = outputs[..., None]
        if outputs.ndim != 3 or (sums is not None and not sums.takes(outputs.shape[-1])):
            what = f"each output's {_names_of_numbers(sums)}" if sums else "outputs of several numbers"
            raise DataError(
                f"{metric.label} reads {what}, [ablations, examples, numbers], found outputs of shape "
                f"{list(outputs.shape)}"
            )
        return np.asarray(outputs, np.float64)
    return predictions_from_logits(outputs) if metric.reads == "predictions" else values_of(outputs)


def _names_of_numbers(sums: Sums) -> str:
    names = " and ".join(sums.numbers)
    return f"{names}, and for each label {' and '.join(sums.of_each_label)}" if sums.of_each_label else names


def _classes(
    metric: Metric,
    labels: Float[np.ndarray, " examples"],
    has_label: Bool[np.ndarray, " examples"],
    outputs: Float[np.ndarray, "ablations ..."],
) -> Int[np.ndarray, " examples"]:
    """The labels as class ids; raises `DataError` unless each label that counts is one."""
    whole = np.isfinite(labels) & (labels == np.floor(labels)) & (labels >= 0)
    wrong = np.flatnonzero(has_label & ~whole)
    if wrong.size:
        raise DataError(
            f"{metric.label} needs class ids 0, 1, ... as labels (-1 for none), found {labels[wrong[0]]}"
            f" at example {wrong[0]}: for real-valued labels choose pearson or spearman"
        )
    classes = np.where(has_label, labels, UNLABELLED).astype(np.int64)
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
    """One call of scikit-learn's metric of this name per ablation (about 1 to 7 ms on 9,815 examples)."""
    import sklearn.metrics

    function = getattr(sklearn.metrics, name)
    return np.array([function(labels, output, **options) for output in outputs], dtype=np.float64)


def _accuracy(predictions: Outputs, labels: Labels, positive: int) -> Scores:
    return _each("accuracy_score", predictions, labels)


def _f1(predictions: Outputs, labels: Labels, positive: int) -> Scores:
    return _each("f1_score", predictions == positive, labels == positive, zero_division=np.nan)


def _matthews(predictions: Outputs, labels: Labels, positive: int) -> Scores:
    """0 by convention where all predictions, but not all labels, are of one class."""
    return _undefined(predictions) if _constant(labels) else _each("matthews_corrcoef", predictions, labels)


def _pearson(values: Outputs, labels: Labels, positive: int) -> Scores:
    from scipy.stats import pearsonr

    correlations, varied = _undefined(values), np.ptp(values, axis=1) > 0
    if varied.any() and not _constant(labels):
        correlations[varied] = pearsonr(values[varied], labels[None], axis=1).statistic
    return correlations


def _spearman(values: Outputs, labels: Labels, positive: int) -> Scores:
    """Pearson's correlation of the ranks: spearmanr itself would correlate all ablations pairwise."""
    from scipy.stats import rankdata

    return _pearson(rankdata(values, axis=1), rankdata(labels), positive)


def _ranking(name: str, values: Outputs, labels: Labels, positive: int) -> Scores:
    """A metric of how well high values indicate the positive class."""
    is_positive = labels == positive
    return _undefined(values) if _constant(is_positive) else _each(name, values, is_positive)


def _area_of_swaps(
    outputs: Float[np.ndarray, "runs examples"], positive: Bool[np.ndarray, " examples"]
) -> Float[np.ndarray, "examples _"]:
    """The weight of swapping each example in a difference of ROC AUC.

    The area is a mean over pairs of a positive and a negative example (Mann and Whitney 1947). Let t be 1 where an
    example keeps its outputs and -1 where they are swapped. A pair contributes c0 + c1 t + c2 t' + c3 t t' to the
    second run, and the same with the signs of t and t' reversed to the first, so only c1 and c2 remain in the
    difference.
    """
    weights = np.zeros((outputs.shape[1], len(outputs) - 1))
    for run, after in enumerate(outputs[1:]):
        for group, opposite, sign in ((positive, ~positive, 1), (~positive, positive, -1)):
            ordered = np.sort(np.concatenate([outputs[0, opposite], after[opposite]]))
            above = sum(
                np.searchsorted(ordered, after[group], side) - np.searchsorted(ordered, outputs[0, group], side)
                for side in ("left", "right")
            )
            weights[group, run] = sign * above / (4 * max(positive.sum() * (~positive).sum(), 1))
    return weights


# By name; add your own.
METRICS: dict[str, Metric] = {
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
        Metric.of_sums(
            "cross_entropy", "Cross-entropy", ratios.CROSS_ENTROPY, highest=np.inf, unit="nats", greater_is_better=False
        ),
        Metric.of_sums("word_accuracy", "Accuracy of words", ratios.WORD_ACCURACY),
        Metric.of_sums(
            "pseudo_perplexity",
            "Pseudo-perplexity",
            ratios.PSEUDO_PERPLEXITY,
            lowest=1.0,
            highest=np.inf,
            unit="",
            greater_is_better=False,
        ),
        Metric.of_sums("margin", "Mean margin", ratios.MARGIN, lowest=-np.inf, highest=np.inf, unit="nats"),
        Metric.of_sums("entity_f1", "F1 of entities", ratios.ENTITIES),
        Metric.of_sums("strict_entity_f1", "F1 of entities, strict", ratios.STRICT_ENTITIES),
        Metric.of_sums("tag_accuracy", "Accuracy of tags", ratios.TAG_ACCURACY),
        Metric.of_sums("exact_match", "Exact match", ratios.EXACT_MATCH),
        Metric.of_sums("answer_f1", "F1 of answers", ratios.ANSWER_F1),
        Metric.of_sums("micro_f1", "Micro F1", ratios.MICRO_F1),
        Metric.of_sums("macro_f1", "Macro F1", ratios.MACRO_F1),
        Metric.of_sums("subset_accuracy", "Subset accuracy", ratios.SUBSET_ACCURACY),
        Metric.of_sums("ndcg_10", "nDCG@10", ratios.NDCG_10),
        Metric.of_sums("mrr_10", "MRR@10", ratios.MRR_10),
        Metric.of_sums("recall_1", "Recall@1", ratios.RECALL_1),
        Metric.of_sums("recall_10", "Recall@10", ratios.RECALL_10),
        Metric.of_sums("recall_100", "Recall@100", ratios.RECALL_100),
        *(
            Metric.of_sums(
                name,
                label,
                sums,
                reads="values",
                highest=np.inf,
                unit="",
                greater_is_better=False,
                scale_of_labels=True,
            )
            for name, label, sums in (
                ("mean_squared_error", "Mean squared error", ratios.SQUARED_ERROR),
                ("mean_absolute_error", "Mean absolute error", ratios.ABSOLUTE_ERROR),
            )
        ),
    )
}

# The metrics of the library: results store the names of these, and descriptions of all others.
BUILT_IN: Mapping[str, Metric] = MappingProxyType(dict(METRICS))
"""The metrics of the library, by name."""
