"""Intervals cover, tests hold their level, and both are SciPy's and statsmodels' where those have them."""

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as reference_mcnemar
from statsmodels.stats.multitest import multipletests

from bertjax import evidence as ev
from bertjax import intervals, significance
from bertjax.errors import DataError
from bertjax.evidence import weigh
from bertjax.findings import describe_statistics, tell
from bertjax.metrics import METRICS, score
from bertjax.resampling import bootstrap_counts, make_scorer, score_draws
from tests.test_resampling import draw_outputs
from tests.tiny import largest_difference

DRAWS = 999


def paired(rng, examples, gain, loss, positive=0.6, right=0.8):
    """Labels, and predictions before and after flips that gain or lose with these probabilities."""
    labels = (rng.random(examples) < positive).astype(int)
    base_right = rng.random(examples) < right
    base = np.where(base_right, labels, 1 - labels)
    flips = rng.random(examples) < np.where(base_right, loss / right, gain / (1 - right))
    return labels, base, np.where(flips, 1 - base, base)


def logits(predictions):
    return np.eye(2)[predictions]


def weighed(rng, metric="accuracy", runs=6, examples=60, **options):
    outputs, labels = draw_outputs(rng, metric, runs + 1, examples, 2)
    given = {"resamples": DRAWS, "draws": DRAWS, **options}
    return weigh(metric, outputs[0], outputs[1:], labels, **given), outputs, labels


@pytest.mark.parametrize("metric", sorted(METRICS))
@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_bootstrap_intervals_are_scipys(rng, metric, method):
    found, outputs, labels = weighed(rng, metric, runs=2, examples=40, resamples=300)
    for run in range(2):

        def difference(rows, run=run):
            some = score(metric, outputs[[0, run + 1]][:, rows], labels[rows])
            return round(some[1] - some[0], 13)  # what is equal but for rounding is equal

        expected = stats.bootstrap(
            (np.arange(len(labels)),),
            difference,
            n_resamples=300,
            vectorized=False,
            method=method,
            rng=np.random.default_rng(0),
        )
        ends = getattr(found, method)[:, run]
        assert largest_difference(ends, np.array(expected.confidence_interval)) < 1e-9
        assert abs(found.standard_error[run] - expected.standard_error) < 1e-9


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


@pytest.mark.parametrize("metric", ["pearson", "spearman", "roc_auc", "f1"])
def test_with_few_examples_all_swaps_are_tried_as_scipy_does(rng, metric):
    outputs, labels = draw_outputs(rng, metric, 3, 9, 2)
    labels[:2] = 0, 1
    observed = score(metric, outputs, labels)[1:] - score(metric, outputs, labels)[0]
    found = significance.swap_test(metric, outputs[0], outputs[1:], labels, 1, observed, 1000, 0)
    assert found.exact
    assert len(found.largest) == 2**9

    outputs = significance.comparable(metric, outputs)

    def difference(first, second, run):
        picked = np.stack([np.where(pick == 0, outputs[0].T, outputs[run].T).T for pick in (first, second)])
        some = score(metric, picked, labels)
        return some[1] - some[0]

    for run in (1, 2):
        expected = stats.permutation_test(
            (np.zeros(9), np.ones(9)),
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
    labels = rng.normal(size=80)
    base = labels + rng.normal(size=80)
    better = base + 0.5 * (labels - base)
    found = weigh("pearson", base, np.stack([base, better]), labels, resamples=99, draws=DRAWS)
    assert found.p.tolist() == [1, 1 / (1 + DRAWS)]
    assert found.best.tolist()[1] == 1 / (1 + DRAWS)
    assert found.best_raw.tolist()[1] == 1 / (1 + DRAWS)
    assert (found.draws, found.exact) == (DRAWS, False)
    assert found.found.tolist() == [False, True]


def coverage(rng, metric, examples, gain, loss, repeats):
    """The share of intervals of `repeats` data sets that hold the true difference."""
    many = paired(np.random.default_rng(1), 2_000_000, gain, loss)
    truth = np.diff(score(metric, logits(np.stack(many[1:])), many[0]))[0]
    hits = 0
    for _ in range(repeats):
        labels, base, after = paired(rng, examples, gain, loss)
        both = logits(np.stack([base, after]))
        scores = score(metric, both, labels)
        scorer = make_scorer(metric, both, labels)
        resampled = np.diff(score_draws(scorer, bootstrap_counts(examples, DRAWS, int(rng.integers(1 << 30)))))
        left_out = np.diff(scorer(1 - np.eye(examples, dtype=int)))
        ends = intervals.percentile(resampled), intervals.bca(np.diff(scores), resampled, left_out)
        low, high, _ = ev.choose_intervals(metric, both, labels, 1, np.diff(scores), ends, float(scores[0]))
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
    ("metric", "gain", "loss"), [("accuracy", 0.015, 0.005), ("f1", 0.01, 0.01), ("f1", 0.05, 0.02)]
)
def test_intervals_hold_the_truth(metric, gain, loss):
    assert 0.93 <= coverage(np.random.default_rng(5), metric, 400, gain, loss, 300) <= 0.97


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
        found = weigh(
            metric, outputs[0], outputs[1:], labels, resamples=DRAWS, draws=1, seed=int(rng.integers(1 << 30))
        )
        hits += found.low[0] <= truth <= found.high[0]
    assert 0.93 <= hits / repeats <= 0.97


@pytest.mark.parametrize("metric", ["accuracy", "f1", "pearson"])
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
        swapped = significance.swap_test(
            metric, outputs[0], outputs[1:], labels, 1, observed, 1999, int(rng.integers(99))
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


def test_tango_and_flips_by_kind_agree_where_kinds_weigh_alike(rng):
    """Of accuracy all flips weigh the same, so both are Tango's interval, but for Poisson in place of binomial."""
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
        found = weigh(metric, logits(base), logits(outputs), labels, resamples=DRAWS, draws=99)
        assert found.method == ("score", "score", "score", "bca"), metric
        assert found.gains.tolist() == [0, 1, 49, 50]
        assert found.losses.tolist() == [0] * 4
        assert (found.low[:2] < 0).all()
        assert (found.high[:2] > found.difference[:2]).all()
        assert (found.low[2:] > 0).all()
        # The bootstrap is sure that nothing changes where nothing was seen to.
        assert found.percentile[:, 0].tolist() == [0, 0]


def test_fewer_flips_than_that_show_nothing():
    fewest = significance.fewest_flips(144)
    assert significance.mcnemar(np.array([fewest]), np.array([0]))[0] * 144 <= 0.05
    assert significance.mcnemar(np.array([fewest - 1]), np.array([0]))[0] * 144 > 0.05


def test_power_is_as_said(rng):
    """A statistic with this spread and a mean of what is detectable passes the corrected level 80 times of 100."""
    least = significance.detectable(np.array([2.0]), 144)[0]
    drawn = rng.normal(least, 2.0, 100_000)
    assert abs((drawn > 2.0 * stats.norm.ppf(1 - 0.025 / 144)).mean() - 0.8) < 0.01


def test_choosing_on_one_half_shows_on_the_other(rng):
    labels = rng.integers(0, 2, 400)
    noise = logits(labels) + rng.normal(size=(40, 400, 2))
    luck = weigh("accuracy", noise[0], noise[1:], labels, resamples=99)
    assert luck.halves["on_chosen"] > luck.halves["on_other"] + 0.02  # the best of 40 is so by luck
    real = noise.copy()
    real[7] += 1.5 * logits(labels)
    sure = weigh("accuracy", real[0], real[1:], labels, resamples=99)
    assert sure.halves["chosen"][0] == (6, 1.0)
    assert sure.halves["interval"][0] > 0.1
    assert sure.halves["halves"] == significance.HALVES


def test_effect_sizes(rng):
    accuracy, outputs, labels = weighed(rng)
    share = accuracy.gains / (accuracy.gains + accuracy.losses)
    assert largest_difference(accuracy.effect_size, share - 0.5) < 1e-12
    pearson, outputs, labels = weighed(rng, "pearson")
    r = [stats.pearsonr(run, labels).statistic for run in outputs]
    assert largest_difference(pearson.effect_size, np.arctanh(r[1:]) - np.arctanh(r[0])) < 1e-12
    f1 = weighed(rng, "f1")[0]
    assert largest_difference(f1.effect_size, f1.difference / f1.standard_error) < 1e-12


def test_ablations_in_groups_are_weighed_as_all_at_once(rng, monkeypatch):
    outputs, labels = draw_outputs(rng, "spearman", 8, 50)
    whole = weigh("spearman", outputs[0], outputs[1:], labels, resamples=DRAWS, draws=DRAWS)
    monkeypatch.setattr(ev, "GROUP", 3)
    told = []
    parts = weigh(
        "spearman",
        outputs[0],
        outputs[1:],
        labels,
        resamples=DRAWS,
        draws=DRAWS,
        progress=lambda *now: told.append(now),
    )
    for name, value in vars(whole).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_allclose(getattr(parts, name), value, rtol=1e-9, err_msg=name)
        else:
            assert getattr(parts, name) == value, name
    assert told == [(1, 4), (2, 4), (3, 4), (1, 1)]


def test_examples_without_a_label_do_not_count(rng):
    outputs, labels = draw_outputs(rng, "accuracy", 4, 60, 2)
    some = np.where(np.arange(60) < 50, labels, -1)
    found = weigh("accuracy", outputs[0], outputs[1:], some, resamples=99)
    expected = weigh("accuracy", outputs[0, :50], outputs[1:, :50], labels[:50], resamples=99)
    assert found.examples == 50
    assert (found.p == expected.p).all()
    assert (found.low == expected.low).all()


def test_an_undefined_score_is_nothing_that_could_be_found(rng):
    labels = rng.normal(size=40)
    base = labels + rng.normal(size=40)
    outputs = np.stack([np.ones(40), base + rng.normal(size=40)])
    found = weigh("pearson", base, outputs, labels, resamples=99, draws=99)
    for array in (found.difference, found.low, found.p, found.q, found.holm, found.best):
        assert np.isnan(array[0])
        assert np.isfinite(array[1])
    assert not found.found[0]
    flat = weigh("pearson", np.ones(40), outputs, labels, resamples=99, draws=99)
    assert np.isnan(flat.p).all()
    assert tell(flat, ["0.0", "0.1"], "head") == "Pearson correlation is undefined: no head's effect can be told."


def test_what_cannot_be_weighed_is_refused(rng):
    outputs, labels = draw_outputs(rng, "accuracy", 3, 5, 2)
    with pytest.raises(DataError, match="1 example has a label"):
        weigh("accuracy", outputs[0], outputs[1:], np.where(np.arange(5) == 2, labels, -1))
    with pytest.raises(DataError, match="no ablation"):
        weigh("accuracy", outputs[0], outputs[:0], labels)


def test_the_sentence():
    """100 examples of which the base has 60 right; one ablation gains 30, one loses 5, one does nothing."""
    labels = np.ones(100, int)
    base = (np.arange(100) < 60).astype(int)
    outputs = np.stack([base, (np.arange(100) < 90).astype(int), (np.arange(100) < 55).astype(int)])
    found = weigh("accuracy", logits(base), logits(outputs), labels, resamples=DRAWS)
    text = tell(found, ["0.0", "0.1", "1.0"], "head")
    assert text.startswith(
        "1 of 3 heads help when disabled and 0 hurt, at q < 0.05 (Accuracy); the largest gain is +30.0 "
    )
    assert "for 0.1; by chance the best of 3 would gain as much with p = " in text
    assert "the largest loss is −5.00 points (95 % CI −11.2 to " in text
    assert "2 cannot be told from zero with 100 examples" in text
    assert describe_statistics(found, ["0.0", "0.1", "1.0"])["test"] == "McNemar, exact"
    none = weigh("accuracy", logits(base), logits(outputs[2:]), labels, resamples=99)
    assert "no layer gains" in tell(none, ["0"], "layer")
    assert tell(none, ["0"], "layer").startswith("0 of 1 layer help when disabled")


def test_draws_grow_with_ablations_and_stay_payable():
    assert significance.count_draws("f1", 10, 400) == 9_999
    assert significance.count_draws("f1", 144, 400) == 14_399
    assert significance.count_draws("f1", 10_296, 9_815) < 10_000
    assert significance.count_draws("spearman", 144, 1_000) == 14_399
    assert 9_999 < significance.count_draws("spearman", 144, 1_500) < 14_399
    assert significance.count_draws("spearman", 10_296, 400_000) == 999


@pytest.mark.parametrize("metric", ["pearson", "spearman", "roc_auc", "average_precision"])
def test_a_run_that_shifts_or_stretches_all_outputs_is_none_the_less_sure(rng, metric):
    outputs, labels = rng.normal(size=(3, 80)), rng.normal(size=80)
    labels = labels if METRICS[metric].targets == "numbers" else (labels > 0).astype(int)
    moved = outputs.copy()
    moved[1] = 5 + 3 * outputs[1]
    plain, shifted = (weigh(metric, some[0], some[1:], labels, resamples=99, draws=DRAWS) for some in (outputs, moved))
    assert largest_difference(plain.p, shifted.p) < 1e-12
    assert largest_difference(plain.detectable, shifted.detectable) < 1e-9


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("metric", ["accuracy", "f1", "matthews"])
def test_examples_of_one_class_are_weighed_too(metric, label):
    labels = np.full(8, label)
    outputs = logits(np.full((3, 8), label))
    found = weigh(metric, outputs[0], outputs[1:], labels, resamples=99)
    assert not found.found.any()
    tell(found, ["0.0", "0.1"], "head")


@pytest.mark.parametrize("metric", ["f1", "matthews"])
def test_what_would_be_found_is_never_less_than_flips_that_could_show_it(rng, metric):
    labels, base, _ = paired(rng, 408, 0, 0)
    found = weigh(metric, logits(base), logits(np.stack([base] * 144)), labels, resamples=99, draws=99)
    assert (found.detectable > 0.02).all()
    assert "would show changes of about 0.0" not in tell(found, [str(one) for one in range(144)], "head")
    few = weigh(metric, logits(base[:3]), logits(np.stack([base[:3]] * 144)), labels[:3], resamples=99, draws=99)
    assert np.isnan(few.base) or "can show none" in tell(few, [str(one) for one in range(144)], "head")


def test_intervals_stay_where_scores_can_be(rng):
    labels, base, after = paired(rng, 100, 0.0, 0.3, positive=0.1)
    for metric in ("f1", "matthews", "accuracy"):
        found = weigh(metric, logits(base), logits(np.stack([after, 1 - labels])), labels, resamples=99)
        low, high = ev.RANGES[metric]
        assert (found.base + found.low >= low - 1e-12).all()
        assert (found.base + found.high <= high + 1e-12).all()


def test_wrong_predictions_that_become_other_wrong_ones_are_no_flips_of_accuracy(rng):
    labels = rng.integers(0, 3, 400)
    base = np.where(np.arange(400) < 100, (labels + 1) % 3, labels)
    after = np.where(np.arange(400) < 60, (labels + 2) % 3, base)
    found = weigh("accuracy", np.eye(3)[base], np.eye(3)[after][None], labels, resamples=99)
    assert found.method == ("score",)
    assert found.low[0] < 0 < found.high[0]
