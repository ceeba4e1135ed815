"""Intervals hold the true difference as often as they say, with few flips too."""

import numpy as np
import pytest
from scipy import stats

from bertjax.analyses import patching_metrics
from bertjax.analyses.gradients import gradient_metrics
from bertjax.analyses.interactions import interaction_metrics
from bertjax.analyses.shapley import shapley_metric
from bertjax.statistics import effects as ev
from bertjax.statistics import intervals
from bertjax.statistics.effects import compute_statistics
from bertjax.statistics.metrics import METRICS, make_scorer, score
from bertjax.statistics.resampling import bootstrap_counts, score_draws
from bertjax.statistics.sentence import summarise
from tests.random_outputs import DRAWS, draw_outputs, logits, paired
from tests.tiny_models import largest_difference


def coverage(rng, metric, examples, gain, loss, repeats, draws=DRAWS):
    """The share of intervals of `repeats` data sets that hold the true difference."""
    many = paired(np.random.default_rng(1), 2_000_000, gain, loss)
    truth = np.diff(score(metric, logits(np.stack(many[1:])), many[0]))[0]
    hits = 0
    for _ in range(repeats):
        labels, base, after = paired(rng, examples, gain, loss)
        both = logits(np.stack([base, after]))
        scores = score(metric, both, labels)
        scorer = make_scorer(metric, both, labels)
        resampled = np.diff(score_draws(scorer, bootstrap_counts(examples, draws, int(rng.integers(1 << 30)))))
        left_out = np.diff(scorer(1 - np.eye(examples, dtype=int)))
        ends = intervals.percentile(resampled), intervals.bca(np.diff(scores), resampled, left_out)
        low, high, _ = ev.choose_intervals(METRICS[metric], both, labels, 1, np.diff(scores), ends)
        hits += low[0] <= truth <= high[0]
    return hits / repeats


# From a handful of flips among 400 examples to fifty.
EFFECTS = [(0.01, 0.01), (0.015, 0.005), (0.05, 0.02), (0.1, 0.05)]


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["accuracy", "f1", "matthews"])
@pytest.mark.parametrize(("gain", "loss"), EFFECTS)
def test_intervals_hold_the_truth_95_times_of_100(rng, metric, gain, loss):
    assert 0.93 <= coverage(rng, metric, 400, gain, loss, 2000) <= 0.97


@pytest.mark.parametrize(
    ("metric", "gain", "loss"),
    [
        ("accuracy", 0.015, 0.005),
        pytest.param("f1", 0.01, 0.01, marks=pytest.mark.integration),
        pytest.param("f1", 0.05, 0.02, marks=pytest.mark.integration),
    ],
)
def test_intervals_hold_the_truth(metric, gain, loss):
    """So few flips have score intervals, which need no draws."""
    assert 0.93 <= coverage(np.random.default_rng(5), metric, 400, gain, loss, 300, draws=9) <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["pearson", "spearman", "roc_auc"])
def test_intervals_of_values_hold_the_truth_95_times_of_100(rng, metric):
    def draw(generator, count):
        labels = generator.normal(size=count)
        base = labels + generator.normal(size=count)
        after = base + 0.3 * generator.normal(size=count) - 0.1 * labels
        return np.stack([base, after]), labels if metric != "roc_auc" else (labels > 0).astype(int)

    outputs, labels = draw(np.random.default_rng(1), 1_000_000)
    truth = np.diff(score(metric, outputs, labels))[0]
    hits, repeats = 0, 1000
    for _ in range(repeats):
        outputs, labels = draw(rng, 300)
        found = compute_statistics(
            metric, outputs[0], outputs[1:], labels, resamples=DRAWS, draws=1, seed=int(rng.integers(1 << 30))
        )
        hits += found.low[0] <= truth <= found.high[0]
    assert 0.93 <= hits / repeats <= 0.97


def test_tango_and_flips_by_kind_agree_for_equal_weights(rng):
    """All flips of accuracy have the same weight, so both are Tango's interval, with Poisson in place of binomial."""
    labels, base, after = paired(rng, 2000, 0.004, 0.002)
    gains, losses = ((first == labels) & (second != labels) for first, second in ((after, base), (base, after)))
    tango = intervals.tango(np.array([gains.sum()]), np.array([losses.sum()]), 2000)
    observed = np.array([(gains.sum() - losses.sum()) / 2000])
    assert gains.sum() + losses.sum() > 0
    kinds = intervals.by_kinds_of_flips("accuracy", base, after[None], labels, 1, observed)
    assert largest_difference(kinds, tango) < 0.01 * float((tango[1] - tango[0])[0])


def test_tangos_interval_is_where_his_statistic_is_critical():
    """At both ends |b - c - n d| is 1.96 times the standard error, by the likelihood maximised under d."""
    b, c, n = 7, 2, 150
    for end in intervals.tango(np.array([b]), np.array([c]), n).ravel():
        shares = np.linspace(1e-9, 1, 2_000_001)
        shares = shares[(shares + end > 1e-9) & (2 * shares + end < 1)]
        likelihood = b * np.log(shares + end) + c * np.log(shares) + (n - b - c) * np.log(1 - 2 * shares - end)
        share = shares[likelihood.argmax()]
        error = np.sqrt(n * (2 * share + end - end**2))
        assert abs(abs(b - c - n * end) / error - stats.norm.ppf(0.975)) < 1e-3


def test_few_flips_take_a_score_interval(rng):
    labels, base, _ = paired(rng, 600, 0, 0)
    outputs = np.stack([base] * 4)
    wrong = np.flatnonzero(base != labels)
    outputs[1, wrong[:1]] ^= 1
    outputs[2, wrong[:49]] ^= 1
    outputs[3, wrong[:50]] ^= 1
    for metric in ("accuracy", "f1", "matthews"):
        found = compute_statistics(metric, logits(base), logits(outputs), labels, resamples=DRAWS, draws=99)
        assert found.method == ("score", "score", "score", "bca"), metric
        assert found.gains.tolist() == [0, 1, 49, 50]
        assert found.losses.tolist() == [0] * 4
        assert (found.low[:2] < 0).all()
        assert (found.high[:2] > found.difference[:2]).all()
        assert (found.low[2:] > 0).all()
        # The bootstrap is sure that nothing changes where nothing was seen to.
        assert found.percentile[:, 0].tolist() == [0, 0]


def test_intervals_stay_where_differences_can_be(rng):
    labels, base, after = paired(rng, 100, 0.0, 0.3, positive=0.1)
    for metric in ("f1", "matthews", "accuracy"):
        found = compute_statistics(metric, logits(base), logits(np.stack([after, 1 - labels])), labels, resamples=99)
        most = METRICS[metric].highest - METRICS[metric].lowest
        assert (found.low >= -most).all()
        assert (found.high <= most).all()


@pytest.mark.parametrize(("metric", "runs"), [("roc_auc", [0, 1]), ("mean_squared_error", [1, 0])])
def test_t_intervals_end_where_a_metric_is_bounded(metric, runs, rng):
    """Positive examples are below the negative ones in one run, and nearly all above them in the other."""
    labels = np.arange(8) % 2
    outputs = np.stack([-9 * labels, 9 * labels]) + rng.normal(size=(2, 8))
    outputs[1, 1] = outputs[1, 0] - 1
    outputs = outputs[runs]
    found = compute_statistics(metric, outputs[0], outputs[1:], labels, resamples=999, draws=99)
    left_out = make_scorer(metric, outputs, labels)(1 - np.eye(8))
    high = intervals.student(found.difference, left_out[:, 1:] - left_out[:, :1])[1, 0]
    assert found.method == ("t",)
    assert high > 1
    assert found.high[0] == 1 if metric == "roc_auc" else found.high[0] >= high


def test_t_intervals_of_effects_end_where_effects_do():
    """An effect on a score from 0 to 1 is at most 1, an interaction of two at most 2; an absolute value at least 0."""
    auc, loss = METRICS["roc_auc"], METRICS["cross_entropy"]
    values = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7.0])
    outputs = np.broadcast_to(values[None, :, None], (1, 8, 3))
    ends = {}
    for metric in (*interaction_metrics(auc), *interaction_metrics(loss)[:1], gradient_metrics("nats")[1]):
        found = compute_statistics(metric, 0 * outputs[0], outputs, np.zeros(8), resamples=999, draws=99)
        ends[metric.label] = found.low[0], found.high[0]
    shapley = compute_statistics(
        shapley_metric(auc), np.zeros((8, 1)), values[None, :, None], np.zeros(8), resamples=999, draws=99
    )
    limits = stats.t.interval(0.95, 7, values.mean(), stats.sem(values))
    assert limits[0] < 0
    assert limits[1] > 2
    assert shapley.high[0] == ends["Effect of both (ROC AUC)"][1] == 1
    assert ends["Interaction (ROC AUC)"][1] == ends["Sum of the effects of each (ROC AUC)"][1] == 2
    assert ends["Interaction (Cross-entropy)"][0] < 0
    assert ends["Interaction (Cross-entropy)"][1] > 2
    assert ends["Gradient importance"][0] == 0


def test_the_base_of_a_sample_does_not_bound_a_gain():
    """All six are right by chance: on other examples an ablation may gain. Tango's interval for no flip: +-0.39."""
    labels = np.array([0, 1, 0, 1, 0, 1])
    found = compute_statistics("accuracy", logits(labels), logits(labels)[None], labels, resamples=99, draws=99)
    end = 1.959964**2 / (6 + 1.959964**2)
    np.testing.assert_allclose([found.low[0], found.high[0]], [-end, end], atol=1e-5)


def margins(values):
    """Outputs whose mean margins are the means of these values, and a base whose margin is 0; no labels count."""
    outputs = np.stack([np.zeros_like(values), values], axis=-1)
    return np.zeros(outputs.shape[1:]), outputs, np.zeros(values.shape[1])


def test_intervals_of_few_symmetric_values_are_students():
    values = np.array([[-3.0, -1.0, 0.0, 0.0, 1.0, 3.0], [-2.0, -2.0, -1.0, 1.0, 2.0, 2.0]]) + 0.5
    found = intervals.student(values.mean(1), ((values.sum(1, keepdims=True) - values) / 5).T)
    expected = [stats.t.interval(0.95, 5, run.mean(), stats.sem(run)) for run in values]
    np.testing.assert_allclose(found.T, expected, rtol=1e-12)
    statistics = compute_statistics("margin", *margins(values), resamples=DRAWS, draws=DRAWS)
    assert statistics.method == ("t", "t")
    assert (statistics.low <= np.array(expected)[:, 0] + 1e-12).all()
    assert (statistics.high >= np.array(expected)[:, 1] - 1e-12).all()


def test_skewness_is_removed_as_hall_does():
    """T + 2 a T^2 + 4/3 a^2 T^3 + a, with a the skewness over six roots of n, is Student's percentile at one end."""
    values = np.array([0.0, 0.0, 0.1, 0.2, 0.3, 0.9, 4.0])
    n, middle, error = len(values), values.mean(), stats.sem(values)
    low, high = intervals.student(values[None].mean(1), ((values.sum() - values) / (n - 1))[:, None]).ravel()
    third = n**2 / ((n - 1) * (n - 2)) * ((values - middle) ** 3).mean()
    a, ratio = third / values.std() ** 3 / (6 * n**0.5), (middle - high) / error
    np.testing.assert_allclose(ratio + 2 * a * ratio**2 + 4 / 3 * a**2 * ratio**3 + a, stats.t.ppf(0.025, n - 1))
    np.testing.assert_allclose((middle - low) / error, stats.t.ppf(0.975, n - 1))


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("examples", [10, 30])
def test_intervals_of_few_values_hold_the_truth(examples, skewed):
    """BCa held in 88 to 92 of 100 of these."""
    draw = np.random.default_rng(examples)
    values = draw.exponential(size=(1000, examples)) - 1 if skewed else draw.normal(size=(1000, examples))
    found = compute_statistics("margin", *margins(values), resamples=DRAWS, draws=9)
    assert 0.94 <= ((found.low <= 0) & (found.high >= 0)).mean() <= 0.975


def test_intervals_of_few_contrasts_hold_the_truth():
    """Of the share that patches restore; BCa held in 86 to 91 of 100 of these."""
    for contrasts in (6, 13):
        draw = np.random.default_rng(contrasts)
        whole = 2 + draw.normal(size=contrasts) / 2
        patched = draw.normal(size=(1000, contrasts))
        outputs = np.stack([patched, np.zeros_like(patched), np.broadcast_to(whole, patched.shape)], axis=-1)
        base = np.stack([np.zeros(contrasts), np.zeros(contrasts), whole], axis=-1)
        labels = np.zeros(contrasts)
        found = compute_statistics(patching_metrics("score")[0], base, outputs, labels, resamples=DRAWS, draws=9)
        assert 0.94 <= ((found.low <= 0) & (found.high >= 0)).mean() <= 0.98


def test_intervals_of_many_values_are_bca(rng):
    found = compute_statistics("margin", *margins(rng.exponential(size=(2, 200))), resamples=DRAWS, draws=9)
    assert found.method == ("bca", "bca")
    assert np.array_equal(np.stack([found.low, found.high]), found.bca)


def test_the_sentence_says_that_few_examples_are_too_few(rng):
    for metric, fewest in (("margin", 10), ("pearson", 10), ("f1", 13), ("roc_auc", 20), ("entity_f1", 30)):
        for examples in (fewest - 1, fewest):
            outputs, labels = draw_outputs(rng, metric, 2, examples, 2)
            labels[:2] = 0, 1
            found = compute_statistics(metric, outputs[0], outputs[1:], labels, resamples=99, draws=99)
            sentence = f" Intervals from {examples} examples hold the true value less often than 95 %."
            assert summarise(found, ["0.0"], "head").endswith(sentence) == (examples < fewest), metric
