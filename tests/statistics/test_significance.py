"""Tests hold their level, and are SciPy's and statsmodels' where those have them."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as reference_mcnemar
from statsmodels.stats.multitest import multipletests

from bertjax.statistics import ranked, significance
from bertjax.statistics.effects import compute_statistics
from bertjax.statistics.metrics import METRICS, make_scorer, score
from tests.random_outputs import DRAWS, draw_outputs, logits
from tests.tiny_models import largest_difference


def test_mcnemar_is_statsmodels(rng):
    gains, losses = rng.integers(0, 30, 50), rng.integers(0, 30, 50)
    expected = [reference_mcnemar([[5, b], [c, 5]], exact=True).pvalue for b, c in zip(gains, losses, strict=True)]
    assert largest_difference(significance.mcnemar(gains, losses), np.array(expected)) < 1e-9


@pytest.mark.parametrize(("name", "adjust"), [("fdr_bh", significance.benjamini_hochberg), ("holm", significance.holm)])
def test_corrections_are_statsmodels(rng, name, adjust):
    p = rng.uniform(size=40) ** 3
    p[5] = p[7]
    assert largest_difference(adjust(p), multipletests(p, method=name)[1]) < 1e-9
    holes = np.insert(p, 3, np.nan)
    assert np.isnan(adjust(holes)[3])
    assert (np.delete(adjust(holes), 3) == adjust(p)).all()
    assert np.isnan(adjust(np.full(2, np.nan))).all()


@pytest.mark.parametrize("metric", ["pearson", "spearman", "roc_auc", "average_precision", "f1"])
def test_with_few_examples_all_swaps_are_tried_as_scipy_does(rng, metric):
    outputs, labels = draw_outputs(rng, metric, 3, 7, 2)
    labels[:2] = 0, 1
    observed = score(metric, outputs, labels)[1:] - score(metric, outputs, labels)[0]
    found = significance.swap_test(metric, outputs[0], outputs[1:], labels, 1, observed, draws=1000, seed=0)
    assert found.exact
    assert len(found.largest) == 2**7

    if METRICS[metric].reads == "values":
        outputs = stats.zscore(outputs, axis=1)

    def difference(first, second, run):
        picked = np.stack([np.where(pick == 0, outputs[0].T, outputs[run].T).T for pick in (first, second)])
        some = score(metric, picked, labels)
        return some[1] - some[0]

    for run in (1, 2):
        expected = stats.permutation_test(
            (np.zeros(7), np.ones(7)),
            lambda first, second, run=run: difference(first, second, run),
            permutation_type="samples",
            n_resamples=np.inf,
            vectorized=False,
            alternative="two-sided",
        )
        size = np.abs(expected.null_distribution)
        hits = np.mean(size[np.isfinite(size)] >= abs(observed[run - 1]) - 1e-12) if np.isfinite(size).all() else None
        if hits is not None:
            assert abs(found.p[run - 1] - hits) < 1e-9


def test_random_swaps_are_counted_with_the_one_that_was_seen(rng):
    labels = rng.normal(size=400)
    base = labels + rng.normal(size=400)
    better = base + 0.5 * (labels - base)
    found = compute_statistics("pearson", base, np.stack([base, better]), labels, resamples=99, draws=DRAWS)
    assert found.p.tolist() == [1, 1 / (1 + DRAWS)]
    assert found.best.tolist()[1] == 1 / (1 + DRAWS)
    assert found.best_raw.tolist()[1] == 1 / (1 + DRAWS)
    assert (found.draws, found.exact) == (DRAWS, False)
    assert found.significant.tolist() == [False, True]


@pytest.mark.parametrize("metric", ["accuracy", "pearson", pytest.param("f1", marks=pytest.mark.integration)])
def test_without_effects_false_discoveries_hold_their_level(metric):
    """Where outputs differ by noise alone, hardly ever one of 40 ablations is found: in 5 data sets of 100."""
    rng, repeats = np.random.default_rng(7), 100
    any_found, any_holm, any_best = 0, 0, 0
    for _ in range(repeats):
        labels = rng.integers(0, 2, 120) if metric != "pearson" else rng.normal(size=120)
        signal = logits(labels) if metric != "pearson" else labels
        outputs = signal + rng.normal(size=(41, *signal.shape))
        scores = score(metric, outputs, labels)
        observed = scores[1:] - scores[0]
        draws = 199 if metric == "accuracy" else 999  # accuracy needs no draws for its p-values
        swapped = significance.swap_test(
            metric, outputs[0], outputs[1:], labels, 1, observed, draws=draws, seed=int(rng.integers(99))
        )
        if metric == "accuracy":
            right = outputs.argmax(-1) == labels
            p = significance.mcnemar((right[1:] & ~right[0]).sum(1), (~right[1:] & right[0]).sum(1))
        else:
            p = swapped.p
        any_found += (significance.benjamini_hochberg(p) < 0.05).any()
        any_holm += (significance.holm(p) < 0.05).any()
        any_best += (swapped.best(observed) < 0.05).any()
    most = stats.binom.ppf(0.999, repeats, 0.05)
    assert any_found <= most
    assert any_holm <= most
    assert any_best <= most


def test_fewer_flips_than_that_show_nothing():
    fewest = significance.fewest_flips(144)
    assert significance.mcnemar(np.array([fewest]), np.array([0]))[0] * 144 <= 0.05
    assert significance.mcnemar(np.array([fewest - 1]), np.array([0]))[0] * 144 > 0.05


def test_power_is_as_documented(rng):
    """A statistic with this spread and the detectable mean passes the corrected level 80 times of 100."""
    least = significance.detectable(np.array([2.0]), 144)[0]
    drawn = rng.normal(least, 2.0, 100_000)
    assert abs((drawn > 2.0 * stats.norm.ppf(1 - 0.025 / 144)).mean() - 0.8) < 0.01


def test_choosing_on_one_half_shows_on_the_other():
    rng = np.random.default_rng(3)  # of 600 seeds 4 have a luckier half than this says
    labels = rng.integers(0, 2, 400)
    noise = logits(labels) + rng.normal(size=(40, 400, 2))
    luck = compute_statistics("accuracy", noise[0], noise[1:], labels, resamples=99)
    assert luck.halves["on_chosen"] > luck.halves["on_other"] + 0.02  # the best of 40 is so by luck
    real = noise.copy()
    real[7] += 1.5 * logits(labels)
    sure = compute_statistics("accuracy", real[0], real[1:], labels, resamples=99)
    assert sure.halves["chosen"][0] == (6, 1.0)
    assert sure.halves["interval"][0] > 0.1
    assert sure.halves["halves"] == significance.HALVES


@pytest.mark.usefixtures("as_users")
def test_draws_grow_with_ablations_and_stay_payable():
    few = compute_statistics("pearson", np.arange(20.0), np.arange(20.0)[None] ** 2, np.arange(20) % 7)
    assert (few.resamples, few.draws) == (10_000, 9_999)
    assert significance.count_draws("f1", 10, 400) == 9_999
    assert significance.count_draws("f1", 144, 400) == 14_399
    assert significance.count_draws("f1", 10_296, 9_815) < 10_000
    assert significance.count_draws("spearman", 144, 1_500) == 14_399
    assert significance.count_draws("roc_auc", 144, 9_815) == 14_399
    assert 9_999 < significance.count_draws("spearman", 144, 4_000) < 14_399
    assert 9_999 < significance.count_draws("average_precision", 144, 4_000) < 14_399
    assert significance.count_draws("average_precision", 10_296, 400_000) == 999


@pytest.mark.parametrize("metric", ["pearson", "spearman", "roc_auc", "average_precision"])
def test_shifted_or_scaled_outputs_keep_their_significance(rng, metric):
    outputs, labels = rng.normal(size=(3, 80)), rng.normal(size=80)
    labels = labels if METRICS[metric].targets == "numbers" else (labels > 0).astype(int)
    moved = outputs.copy()
    moved[1] = 5 + 3 * outputs[1]
    plain, shifted = (
        compute_statistics(metric, some[0], some[1:], labels, resamples=99, draws=DRAWS) for some in (outputs, moved)
    )
    assert largest_difference(plain.p, shifted.p) < 1e-12
    assert largest_difference(plain.detectable, shifted.detectable) < 1e-9


def test_swapped_areas_are_those_of_swapped_outputs(rng):
    """The sum over examples against the scores of what each swap makes, ties among them."""
    outputs, positive = rng.normal(size=(4, 60)).round(1), rng.random(60) < 0.4
    swapped = rng.integers(0, 2, (50, 60))
    area = METRICS["roc_auc"]
    by_sums, by_scores = (
        significance._swapped_scores(metric, outputs, positive.astype(int), 1)(swapped)
        for metric in (area, replace(area, swap_weights=None))
    )
    assert np.ptp(by_scores) > 0.01
    assert largest_difference(by_sums, by_scores) < 1e-12


@pytest.mark.parametrize("metric", ["spearman", "average_precision"])
@pytest.mark.parametrize("digits", [8, 3, 1, 0])
def test_swapped_ranks_are_those_of_swapped_outputs(metric, digits, rng, monkeypatch):
    """Both scores from one set of counts against ranking each anew, with few and with many equal outputs."""
    runs = rng.normal(size=(4, 150)).round(digits)
    runs[2, :100] = runs[0, :100]  # swaps of these change nothing
    labels = rng.normal(size=150).round(1) if metric == "spearman" else (rng.random(150) < 0.4).astype(int)
    swapped = rng.integers(0, 2, (300, 150))
    monkeypatch.setattr(ranked, "MOST_GROUPS", 30)
    calls = []
    by_groups = ranked.swapped_differences

    def ask(*runs):
        calls.append(by_groups(*runs))
        return calls[-1]

    monkeypatch.setattr(significance, "swapped_differences", ask)
    here, anew = (
        significance._swapped_scores(one, runs, labels, 1)(swapped)
        for one in (METRICS[metric], replace(METRICS[metric], scorer=partial(METRICS[metric].scorer)))
    )
    assert len(calls) == 1
    assert (calls[0] is None) == (metric == "spearman" and digits == 1)  # where there are too many groups
    assert np.ptp(anew) > 0.01
    assert largest_difference(here, anew) < 1e-12


def test_few_equal_outputs_change_no_p_value(rng):
    """Their changes are excluded from differences, but not from those near the observed difference."""
    labels, seed = rng.normal(size=600), int(rng.integers(1000))
    outputs = np.stack([labels + rng.normal(size=600)] * 3)
    outputs[1] += rng.normal(size=600) / 4
    outputs[2, :5] += 1 + rng.normal(size=5)  # one draw in 16 swaps all of them or none
    outputs[:2, 7], outputs[0, 9] = outputs[:2, 8], outputs[0, 10]
    scores, metric = score("spearman", outputs, labels), METRICS["spearman"]
    inputs = outputs[0], outputs[1:], labels, 1, scores[1:] - scores[0]
    by_sums, anew = (
        significance.swap_test(one, *inputs, draws=999, seed=seed)
        for one in (metric, replace(metric, scorer=partial(metric.scorer)))
    )
    assert 0.01 < anew.p[1] < 1
    assert by_sums.p.tolist() == anew.p.tolist()
    for ratio in (True, False):
        assert by_sums.best(inputs[-1], ratio).tolist() == anew.best(inputs[-1], ratio).tolist()
    assert 0 < largest_difference(by_sums.largest, anew.largest) < 1e-10


def test_differences_like_the_observed_one_are_equal_to_it(rng):
    """Also where outputs of several examples are equal, in other scores from draw to draw."""
    labels, changed = rng.normal(size=600), rng.choice(600, 8, replace=False)
    outputs = np.stack([labels + rng.normal(size=600)] * 2)
    outputs[1, changed] += 1 + rng.normal(size=8)
    outputs[0, changed[0]] = outputs[0, changed[1]]  # of the base alone: one score has both, or each has one
    swapped = rng.integers(0, 2, (400, 600))
    swapped[:200, changed] = swapped[:200, changed[:1]]
    found = significance._swapped_scores(METRICS["spearman"], outputs, labels, 1)(swapped)[:, 0]
    scores = score("spearman", outputs, labels)
    expected = (scores[1] - scores[0]) * (1 - 2 * swapped[:200, changed[0]])
    assert largest_difference(found[:200], expected) < 1e-14
    anew = significance._swapped_scores(
        replace(METRICS["spearman"], scorer=partial(METRICS["spearman"].scorer)), outputs, labels, 1
    )(swapped)[:, 0]
    assert 1e-14 < largest_difference(found[200:], anew[200:]) < 1e-10


@pytest.mark.parametrize("metric", ["spearman", "average_precision", "roc_auc"])
def test_scores_of_many_examples_are_those_of_few(metric, rng, monkeypatch):
    """However many draws are computed together."""
    values, counts = rng.normal(size=(3, 50)).round(1), rng.integers(0, 4, (40, 50))
    labels = rng.normal(size=50) if metric == "spearman" else (rng.random(50) < 0.4).astype(int)
    scores = []
    for size in (4 << 20, 1000):
        monkeypatch.setattr(ranked, "ROWS_BYTES", size)
        scores.append(make_scorer(METRICS[metric], values, labels)(counts))
    assert largest_difference(*scores) == 0


def p_of_noise(metric, noise, repeats):
    """p-values of runs that differ by noise alone, of so many data sets."""
    rng, found = np.random.default_rng(11), []
    for number in range(repeats):
        signal = rng.normal(size=(2, 120))
        labels = signal[0] if METRICS[metric].targets == "numbers" else (signal[0] > 0).astype(int)
        outputs = signal.sum(0) + noise * rng.normal(size=(2, 120))
        observed = np.diff(score(metric, outputs, labels))
        found += significance.swap_test(
            metric, outputs[0], outputs[1:], labels, 1, observed, draws=199, seed=number
        ).p.tolist()
    return np.array(found)


@pytest.mark.parametrize(
    "metric",
    [
        "pearson",
        "roc_auc",
        pytest.param("spearman", marks=pytest.mark.slow),
        pytest.param("average_precision", marks=pytest.mark.slow),
    ],
)
def test_where_outputs_hardly_change_swaps_hold_their_level_too(metric):
    """With ranks in place of outputs p of ROC AUC would be below 0.05 in 10 of 100 data sets."""
    assert (p_of_noise(metric, 0.01, 150) <= 0.05).sum() <= stats.binom.ppf(0.999, 150, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["pearson", "spearman", "roc_auc", "average_precision"])
@pytest.mark.parametrize("noise", [0.01, 0.3])
def test_swaps_hold_their_level(metric, noise):
    """Not above it; where scores are few different numbers, below."""
    share = (p_of_noise(metric, noise, 2000) <= 0.05).mean()
    assert share <= stats.binom.ppf(0.999, 2000, 0.05) / 2000
    assert noise == 0.01 or share >= stats.binom.ppf(0.001, 2000, 0.05) / 2000
