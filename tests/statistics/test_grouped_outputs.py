"""Outputs that belong together (words of a sentence) are drawn, left out and swapped together."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from bertjax.errors import DataError
from bertjax.statistics import METRICS, Metric, bootstrap_counts, compute_statistics, make_scorer, percentile, score
from bertjax.statistics.significance import swap_test
from tests.random_outputs import draw_outputs
from tests.tiny_models import largest_difference

WORDS = ["cross_entropy", "word_accuracy", "pseudo_perplexity"]


@pytest.mark.parametrize("metric", METRICS)
def test_a_unit_counts_with_all_its_outputs(metric, rng):
    outputs, labels = draw_outputs(rng, metric, 3, 90)
    units = rng.integers(0, 12, 90)
    units[:12] = np.arange(12)
    counts = rng.multinomial(12, np.full(12, 1 / 12), size=20)
    found = make_scorer(metric, outputs, labels, units=units)(counts)
    for drawn, scores in zip(counts, found, strict=True):
        places = np.repeat(np.arange(90), drawn[units])
        assert largest_difference(scores, score(metric, outputs[:, places], labels[places])) < 1e-9


@pytest.mark.parametrize("metric", [*WORDS, "accuracy", "f1", "spearman"])
def test_intervals_are_of_drawn_units(metric, rng):
    outputs, labels = draw_outputs(rng, metric, 4, 120)
    units = rng.integers(0, 30, 120) * 7 - 5  # numbers of any kind
    found = compute_statistics(metric, outputs[0], outputs[1:], labels, units=units, resamples=99, draws=99)
    numbers = np.unique(units, return_inverse=True)[1]
    assert found.examples == numbers.max() + 1
    counts = np.concatenate(list(bootstrap_counts(found.examples, 99, 0)))
    drawn = np.stack(
        [
            score(metric, outputs[:, places], labels[places])
            for places in (np.repeat(np.arange(120), row[numbers]) for row in counts)
        ]
    )
    assert largest_difference(found.percentile, percentile(drawn[:, 1:] - drawn[:, :1])) < 1e-9
    assert set(found.method) == {"t"}
    assert not found.by_flips


@pytest.mark.parametrize("metric", [*WORDS, "accuracy", "roc_auc", "spearman"])
def test_all_outputs_of_a_unit_are_swapped_together(metric, rng):
    """All 2^6 swaps of six units, by hand."""
    outputs, labels = draw_outputs(rng, metric, 2, 60)
    units = np.repeat(np.arange(6), 10)
    observed = np.diff(score(metric, outputs, labels))
    found = swap_test(metric, outputs[0], outputs[1:], labels, 1, observed, draws=64, seed=0, units=units)
    assert found.exact
    swappable = replace_scale(metric, outputs)
    differences = []
    for number in range(64):
        swapped = ((number >> np.arange(6)) & 1)[units].astype(bool)
        both = swappable.copy()
        both[0, swapped], both[1, swapped] = swappable[1, swapped], swappable[0, swapped]
        differences.append(np.diff(score(metric, both, labels))[0])
    expected = np.mean(np.abs(differences) >= abs(observed[0]) - 1e-12)
    assert found.p[0] == pytest.approx(expected)


def replace_scale(metric, outputs):
    """Metrics that ignore the scale swap standardised values."""
    if not METRICS[metric].any_scale:
        return outputs
    return (outputs - outputs.mean(1, keepdims=True)) / outputs.std(1, keepdims=True)


@pytest.mark.parametrize("metric", ["accuracy", "f1", "pearson"])
def test_units_of_one_output_are_as_none(metric, rng):
    outputs, labels = draw_outputs(rng, metric, 3, 50)
    options = {"resamples": 99, "draws": 99}
    alone, plain = (
        compute_statistics(metric, outputs[0], outputs[1:], labels, units=units, **options)
        for units in (np.arange(50)[::-1], None)
    )
    for name in ("low", "high", "p", "q", "best", "detectable"):
        assert np.array_equal(getattr(alone, name), getattr(plain, name), equal_nan=True), name
    assert (alone.method, alone.examples, alone.by_flips) == (plain.method, 50, metric == "accuracy")


def test_a_custom_metric_takes_units(rng):
    """One that is called once per draw, on all outputs of the drawn units."""
    outputs, labels = draw_outputs(rng, "cross_entropy", 3, 60)
    worst = Metric("worst", "Worst", "outputs", "numbers", lambda o, labels, positive: o[..., 0].min(1), lowest=-np.inf)
    units = np.repeat(np.arange(20), 3)
    found = compute_statistics(worst, outputs[0], outputs[1:], labels, units=units, resamples=50, draws=20)
    assert found.examples == 20
    assert largest_difference(found.difference, np.diff(outputs[..., 0].min(1), axis=0)[0]) >= 0
    same = compute_statistics(
        replace(METRICS["cross_entropy"], sums=None),
        outputs[0],
        outputs[1:],
        labels,
        units=units,
        resamples=50,
        draws=20,
    )
    fast = compute_statistics("cross_entropy", outputs[0], outputs[1:], labels, units=units, resamples=50, draws=20)
    assert largest_difference(same.percentile, fast.percentile) < 1e-12
    assert same.p.tolist() == fast.p.tolist()


def test_units_that_do_not_fit_are_refused(rng):
    outputs, labels = draw_outputs(rng, "cross_entropy", 2, 10)
    with pytest.raises(DataError, match="there are units for 9 examples, but 10 examples"):
        compute_statistics("cross_entropy", outputs[0], outputs[1:], labels, units=np.arange(9))
    with pytest.raises(
        DataError, match=r"Cross-entropy reads each output's log-probability and rank, .*shape \[1, 10\]"
    ):
        score("cross_entropy", outputs[:1, :, 0], labels)
    with pytest.raises(DataError, match="1 example has a label"):
        compute_statistics("cross_entropy", outputs[0], outputs[1:], labels, units=np.zeros(10, int))


def correlated_words(rng, sentences, words):
    """Log-probabilities of words, base and ablated, whose changes a sentence shares; the true mean change is 0.1."""
    units = np.repeat(np.arange(sentences), rng.integers(1, 2 * words, sentences))
    base = -rng.exponential(size=len(units))
    change = 0.1 + 0.3 * rng.normal(size=sentences)[units] + 0.2 * rng.normal(size=len(units))
    outputs = np.stack([base, base - change])
    return np.stack([outputs, np.ones_like(outputs)], axis=-1), units


def coverage(rng, repeats, texts=200, draws=999):
    """How often 95 % intervals of units, and of words, hold the truth; and how often p < 0.05 where nothing changes."""
    hits, found = np.zeros(2), []
    for number in range(repeats):
        outputs, units = correlated_words(rng, texts, 8)
        labels = np.zeros(len(units))
        for way, several in enumerate((units, None)):
            options = {"units": several, "resamples": draws, "draws": 199, "seed": number}
            statistics = compute_statistics("cross_entropy", outputs[0], outputs[1:], labels, **options)
            hits[way] += statistics.low[0] <= 0.1 <= statistics.high[0]
        # Without the mean change, the words of a sentence still change together.
        null = outputs[1] + np.array([0.1, 0])
        pair = [
            compute_statistics("cross_entropy", outputs[0], null[None], labels, **options | {"units": several})
            for several in (units, None)
        ]
        found.append([one.p[0] <= 0.05 for one in pair])
    return hits / repeats, np.mean(found, axis=0)


def test_intervals_over_units_have_coverage_where_words_do_not():
    (of_units, of_words), (false_of_units, false_of_words) = coverage(np.random.default_rng(3), 80, 60, draws=99)
    assert of_units >= stats.binom.ppf(0.001, 80, 0.94) / 80
    assert of_words < 0.75
    assert false_of_units <= stats.binom.ppf(0.999, 80, 0.05) / 80
    assert false_of_words > 0.25


@pytest.mark.slow
def test_intervals_of_units_hold_the_truth_95_times_of_100(rng):
    (of_units, of_words), (false_of_units, false_of_words) = coverage(rng, 1000)
    assert 0.93 <= of_units <= 0.97
    assert of_words < 0.75
    assert false_of_units <= stats.binom.ppf(0.999, 1000, 0.05) / 1000
    assert false_of_words > 0.25
