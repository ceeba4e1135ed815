"""Evidence: scores of saved outputs, and which differences between them are more than chance."""

from bertjax.evidence import ratios
from bertjax.evidence.grouping import Silhouette, coordinates_of, silhouette_of
from bertjax.evidence.intervals import FEWEST_PLACES, LEVEL, percentile, rank_correlation
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
    predictions_from_logits,
    score,
)
from bertjax.evidence.own_metrics import as_metric, seconds_to_weigh
from bertjax.evidence.resampling import Sums, bootstrap_counts, score_draws
from bertjax.evidence.sentence import describe_statistics, name_test, summarise
from bertjax.evidence.significance import benjamini_hochberg, fewest_flips
from bertjax.evidence.weighing import RESAMPLES, Evidence, Q, check_weighable, weigh

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
    "benjamini_hochberg",
    "bootstrap_counts",
    "check_labels",
    "check_weighable",
    "contributions",
    "coordinates_of",
    "describe_statistics",
    "fewest_flips",
    "find_metric",
    "labelled",
    "make_scorer",
    "name_test",
    "percentile",
    "predictions_from_logits",
    "rank_correlation",
    "ratios",
    "score",
    "score_draws",
    "seconds_to_weigh",
    "silhouette_of",
    "summarise",
    "weigh",
]
