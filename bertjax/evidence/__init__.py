"""Evidence: scores of saved outputs, and which differences between them are more than chance."""

from bertjax.evidence import ratios
from bertjax.evidence.grouping import Silhouette, coordinates_of, silhouette_of
from bertjax.evidence.intervals import FEWEST_PLACES, LEVEL, bca, of_few_units, percentile, rank_correlation, student
from bertjax.evidence.jackknife import contributions
from bertjax.evidence.measure import POINTS, SCORE, Measure
from bertjax.evidence.metrics import (
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
from bertjax.evidence.outputs import predictions_from_logits
from bertjax.evidence.own_metrics import as_metric, seconds_to_weigh
from bertjax.evidence.resampling import Sums, bootstrap_counts, score_draws
from bertjax.evidence.sentence import describe_statistics, name_test, summarise
from bertjax.evidence.significance import benjamini_hochberg, fewest_flips, mcnemar, swap_test
from bertjax.evidence.weighing import RESAMPLES, Evidence, Q, check_weighable, choose_intervals, weigh

__all__ = [
    "BUILT_IN",
    "FEWEST_PLACES",
    "LEVEL",
    "METRICS",
    "POINTS",
    "RESAMPLES",
    "SCORE",
    "UNLABELLED",
    "Evidence",
    "Measure",
    "Metric",
    "Q",
    "Silhouette",
    "Sums",
    "as_metric",
    "bca",
    "benjamini_hochberg",
    "bootstrap_counts",
    "check_labels",
    "check_weighable",
    "choose_intervals",
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
    "seconds_to_weigh",
    "silhouette_of",
    "student",
    "summarise",
    "swap_test",
    "weigh",
]
