"""Statistics: scores of saved outputs, and intervals and tests of their differences."""

from bertjax.statistics import ratios
from bertjax.statistics.custom_metrics import as_metric, seconds_of_statistics
from bertjax.statistics.effects import (
    RESAMPLES,
    Q,
    Statistics,
    check_metric_applies,
    choose_intervals,
    compute_statistics,
)
from bertjax.statistics.grouping import Silhouette, coordinates_of, silhouette_of
from bertjax.statistics.intervals import FEWEST_PLACES, LEVEL, bca, of_few_units, percentile, rank_correlation, student
from bertjax.statistics.jackknife import contributions
from bertjax.statistics.measure import POINTS, SCORE, Measure
from bertjax.statistics.metrics import (
    BUILT_IN,
    METRICS,
    UNLABELLED,
    Metric,
    check_labels,
    find_metric,
    labelled,
    make_scorer,
    score,
)
from bertjax.statistics.outputs import predictions_from_logits
from bertjax.statistics.resampling import Sums, bootstrap_counts, score_draws
from bertjax.statistics.sentence import describe_statistics, name_test, summarise
from bertjax.statistics.significance import benjamini_hochberg, fewest_flips, mcnemar, swap_test

__all__ = [
    "BUILT_IN",
    "FEWEST_PLACES",
    "LEVEL",
    "METRICS",
    "POINTS",
    "RESAMPLES",
    "SCORE",
    "UNLABELLED",
    "Measure",
    "Metric",
    "Q",
    "Silhouette",
    "Statistics",
    "Sums",
    "as_metric",
    "bca",
    "benjamini_hochberg",
    "bootstrap_counts",
    "check_labels",
    "check_metric_applies",
    "choose_intervals",
    "compute_statistics",
    "contributions",
    "coordinates_of",
    "describe_statistics",
    "fewest_flips",
    "find_metric",
    "labelled",
    "make_scorer",
    "mcnemar",
    "name_test",
    "of_few_units",
    "percentile",
    "predictions_from_logits",
    "rank_correlation",
    "ratios",
    "score",
    "score_draws",
    "seconds_of_statistics",
    "silhouette_of",
    "student",
    "summarise",
    "swap_test",
]
