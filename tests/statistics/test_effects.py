"""All that the outputs say of an effect, and the sentence about it."""

import numpy as np
import pytest
from scipy import stats

from bertjax.analyses import patching_metrics
from bertjax.errors import DataError
from bertjax.statistics import effects as ev
from bertjax.statistics.effects import compute_statistics
from bertjax.statistics.metrics import METRICS, score
from bertjax.statistics.sentence import describe_statistics, summarise
from tests.random_outputs import DRAWS, draw_outputs, logits, paired
from tests.tiny_models import largest_difference


def statistics_of(rng, metric="accuracy", runs=6, examples=60, **options):
    outputs, labels = draw_outputs(rng, metric, runs + 1, examples, 2)
    settings = {"resamples": DRAWS, "draws": DRAWS, **options}
    return compute_statistics(metric, outputs[0], outputs[1:], labels, **settings), outputs, labels


@pytest.mark.parametrize("metric", sorted(METRICS))
def test_bootstrap_intervals_are_scipys(rng, metric):
    found, outputs, labels = statistics_of(rng, metric, runs=2, examples=40, resamples=99)
    for run in range(2):

        def difference(rows, run=run):
            some = score(metric, outputs[[0, run + 1]][:, rows], labels[rows])
            return round(some[1] - some[0], 13)  # equal except for rounding

        expected, more = None, {"n_resamples": 99, "random_state": np.random.default_rng(0)}
        for method in ("percentile", "bca"):  # of the same 99
            expected = stats.bootstrap(
                (np.arange(len(labels)),),
                difference,
                vectorized=False,
                method=method,
                bootstrap_result=expected,
                **more,
            )
            more = {"n_resamples": 0}
            ends = getattr(found, method)[:, run]
            assert largest_difference(ends, np.array(expected.confidence_interval)) < 1e-9
            assert abs(found.standard_error[run] - expected.standard_error) < 1e-9
        if metric == "pearson":  # of scores that go in steps both may end on the same ones
            assert largest_difference(found.percentile[:, run], found.bca[:, run]) > 1e-9


def test_effect_sizes(rng):
    accuracy, outputs, labels = statistics_of(rng)
    share = accuracy.gains / (accuracy.gains + accuracy.losses)
    assert largest_difference(accuracy.effect_size, share - 0.5) < 1e-12
    pearson, outputs, labels = statistics_of(rng, "pearson")
    r = [stats.pearsonr(run, labels).statistic for run in outputs]
    assert largest_difference(pearson.effect_size, np.arctanh(r[1:]) - np.arctanh(r[0])) < 1e-12
    f1 = statistics_of(rng, "f1")[0]
    assert largest_difference(f1.effect_size, f1.difference / f1.standard_error / np.sqrt(60)) < 1e-12


def test_errors_of_shares_are_those_of_many_samples(rng):
    """For contrasts with a positive sum, draws agree too; if the sum can be 0, draws can have any size."""
    restored = patching_metrics("score")[0]

    def contrasts(count, least):
        whole = rng.uniform(least, 3, (count, 1))
        moved = 0.4 * whole + rng.normal(0, 0.3, (count, 1))
        return np.stack([0 * whole, moved], 0).squeeze(-1), whole.squeeze(-1)

    def statistics_of_one(count, least):
        moved, whole = contrasts(count, least)
        numbers = np.stack([moved, np.zeros_like(moved), np.broadcast_to(whole, moved.shape)], -1)
        return compute_statistics(restored, numbers[0], numbers[1:], np.zeros(count), resamples=2000)

    many = [contrasts(30, 1.0) for _ in range(4000)]
    spread = np.std([moved[1].sum() / whole.sum() for moved, whole in many])
    found = [statistics_of_one(30, 1.0).standard_error[0] for _ in range(20)]
    assert abs(np.mean(found) / spread - 1) < 0.1
    moved, whole = contrasts(9, -2.0)
    moved, numbers = moved[1], np.stack([moved, np.zeros_like(moved), np.broadcast_to(whole, moved.shape)], -1)
    steps = 1 + 1e-6 * np.eye(9)  # each contrast counts a little more
    slopes = ((steps @ moved) / (steps @ whole) - moved.sum() / whole.sum()) / 1e-6
    found = compute_statistics(restored, numbers[0], numbers[1:], np.zeros(9), resamples=2000)
    assert found.standard_error[0] == pytest.approx(np.sqrt(9 / 8 * (slopes**2).sum()), rel=1e-3)


@pytest.mark.parametrize("examples", [5, 6, 8, 10, 14])
def test_few_examples_show_so_many_effects_together(examples):
    """Each example of some runs moves the same way, in others nothing moves: the smallest p that there is, and 1."""
    runs, restored = 60, patching_metrics("score")[0]
    for changed in range(1, runs + 1):
        moved = np.zeros((runs, examples))
        moved[:changed] = np.linspace(1, 2, examples)
        numbers = np.stack([moved, 0 * moved, 0 * moved + 3], -1)
        base, options = [0, 0, 1] * numbers[-1], {"resamples": 20, "draws": 2**examples}
        found = compute_statistics(restored, base, numbers, np.zeros(examples), **options)
        if found.significant.any():
            break
    assert found.fewest_together == (changed if found.significant.any() else None)
    if not found.significant.any():
        assert "can show none" in summarise(found, [str(run) for run in range(runs)], "set")


def test_a_change_without_spread_has_no_effect_size():
    restored = patching_metrics("score")[0]
    whole = np.array([1.0, 2.0, 3.0, 4.0])
    runs = np.array([whole, 0 * whole, 0.5 * whole + [0, 0.1, 0, 0]])
    numbers = np.stack([runs, 0 * runs, np.broadcast_to(whole, runs.shape)], -1)
    found = compute_statistics(restored, 0 * numbers[0] + [0, 0, 1] * numbers[0], numbers, np.zeros(4))
    assert np.isnan(found.effect_size[0])  # all of it, in each contrast
    assert found.effect_size[1] == 0
    assert found.effect_size[2] > 1


def test_groups_of_ablations_change_no_statistics(rng, monkeypatch):
    outputs, labels = draw_outputs(rng, "spearman", 8, 50)
    whole = compute_statistics("spearman", outputs[0], outputs[1:], labels, resamples=DRAWS, draws=DRAWS)
    monkeypatch.setattr(ev, "GROUP", 3)
    reports = []
    parts = compute_statistics(
        "spearman",
        outputs[0],
        outputs[1:],
        labels,
        resamples=DRAWS,
        draws=DRAWS,
        progress=lambda *now: reports.append(now),
    )
    for name, value in vars(whole).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_allclose(getattr(parts, name), value, rtol=1e-9, err_msg=name)
        else:
            assert getattr(parts, name) == value, name
    done, totals = zip(*reports, strict=True)
    assert len(set(totals)) == 1
    assert list(done) == sorted(done)
    assert len(set(done)) > 3 * 3  # draws, parts left out and swaps of each group, and the halves
    assert done[-1] == totals[0]


def test_examples_without_a_label_do_not_count(rng):
    outputs, labels = draw_outputs(rng, "accuracy", 4, 60, 2)
    some = np.where(np.arange(60) < 50, labels, -1)
    found = compute_statistics("accuracy", outputs[0], outputs[1:], some, resamples=99)
    expected = compute_statistics("accuracy", outputs[0, :50], outputs[1:, :50], labels[:50], resamples=99)
    assert found.examples == 50
    assert (found.p == expected.p).all()
    assert (found.low == expected.low).all()


def test_an_undefined_score_is_nothing_that_could_be_found(rng):
    labels = rng.normal(size=40)
    base = labels + rng.normal(size=40)
    outputs = np.stack([np.ones(40), base + rng.normal(size=40)])
    found = compute_statistics("pearson", base, outputs, labels, resamples=99, draws=99)
    for array in (found.difference, found.low, found.p, found.q, found.holm, found.best):
        assert np.isnan(array[0])
        assert np.isfinite(array[1])
    assert not found.significant[0]
    flat = compute_statistics("pearson", np.ones(40), outputs, labels, resamples=99, draws=99)
    assert np.isnan(flat.p).all()
    sentence = "Pearson correlation is undefined: no head's effect can be estimated."
    assert summarise(flat, ["0.0", "0.1"], "head") == sentence


def test_outputs_without_statistics_are_refused(rng):
    outputs, labels = draw_outputs(rng, "accuracy", 3, 5, 2)
    with pytest.raises(DataError, match="1 example has a label"):
        compute_statistics("accuracy", outputs[0], outputs[1:], np.where(np.arange(5) == 2, labels, -1))
    with pytest.raises(DataError, match="no ablation"):
        compute_statistics("accuracy", outputs[0], outputs[:0], labels)


def test_the_sentence():
    """100 examples; the base has 60 right, one ablation gains 30, one loses 5, one changes nothing."""
    labels = np.ones(100, int)
    base = (np.arange(100) < 60).astype(int)
    outputs = np.stack([base, (np.arange(100) < 90).astype(int), (np.arange(100) < 55).astype(int)])
    found = compute_statistics("accuracy", logits(base), logits(outputs), labels, resamples=DRAWS, draws=9_999)
    text = summarise(found, ["0.0", "0.1", "1.0"], "head")
    assert text.startswith(
        "Ablating one head raises the score for 1 of 3 heads and lowers it for 0, at q < 0.05 (Accuracy); "
        "the largest gain is +30.0 "
    )
    assert "for 0.1; by chance the best of 3 would stand out as much with p ≤ 0.0001" in text
    assert "the largest loss is −5.00 points (95 % CI −11.2 to " in text
    assert "2 cannot be distinguished from zero with 100 examples" in text
    assert describe_statistics(found, ["0.0", "0.1", "1.0"], "head")["test"] == "McNemar, exact"
    none = compute_statistics("accuracy", logits(base), logits(outputs[2:]), labels, resamples=99)
    assert "there is no gain" in summarise(none, ["0"], "layer")
    assert summarise(none, ["0"], "layer").startswith("Ablating one layer raises the score for 0 of 1 layer and")


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("metric", ["accuracy", "f1", "matthews"])
def test_examples_of_one_class_have_statistics(metric, label):
    labels = np.full(8, label)
    outputs = logits(np.full((3, 8), label))
    found = compute_statistics(metric, outputs[0], outputs[1:], labels, resamples=99)
    assert not found.significant.any()
    assert "can show none" in summarise(found, ["0.0", "0.1"], "head") or np.isnan(found.base)


def test_with_too_few_examples_no_swaps_could_show_anything(rng):
    """Of 3 examples there are 8 swaps: p is 2/8 at least, whatever the outputs."""
    labels = np.arange(3.0)
    outputs = labels + 0.1 * rng.normal(size=(3, 3))
    found = compute_statistics("pearson", outputs[0], outputs[1:], labels, resamples=99)
    assert (found.p >= 0.25).all()
    assert np.isnan(found.detectable).all()
    assert "with 3 examples, which can show none." in summarise(found, ["0.0", "0.1"], "head")


def test_no_doubt_is_mentioned_if_all_effects_are_found():
    labels = np.ones(100, int)
    outputs = logits(np.stack([(np.arange(100) < right).astype(int) for right in (50, 90, 10)]))
    found = compute_statistics("accuracy", outputs[0], outputs[1:], labels, resamples=99)
    assert found.significant.all()
    text = summarise(found, ["0.0", "0.1"], "head")
    assert text.startswith("Ablating one head raises the score for 1 of 2 heads and lowers it for 1,")
    assert "cannot be told" not in text
    assert "can show none" not in text


def test_f1_without_a_positive_label_could_show_nothing():
    """However predictions flip, it stays 0; a threshold of 0 points would be a promise."""
    outputs = logits(np.array([[1, 0, 0, 0], [0, 0, 0, 1], [1, 1, 0, 0]]))
    found = compute_statistics("f1", outputs[0], outputs[1:], np.zeros(4, int), resamples=99)
    assert found.base == 0
    assert np.isnan(found.detectable).all()
    assert "with 4 examples, which can show none." in summarise(found, ["0.0", "0.1"], "head")


@pytest.mark.parametrize("metric", ["f1", "matthews"])
def test_the_detectable_effect_is_not_below_the_fewest_flips(rng, metric):
    labels, base, _ = paired(rng, 408, 0, 0)
    found = compute_statistics(metric, logits(base), logits(np.stack([base] * 144)), labels, resamples=99, draws=99)
    assert (found.detectable > 0.02).all()
    assert "would show changes of about 0.0" not in summarise(found, [str(one) for one in range(144)], "head")
    few = compute_statistics(
        metric, logits(base[:3]), logits(np.stack([base[:3]] * 144)), labels[:3], resamples=99, draws=99
    )
    assert np.isnan(few.base) or "can show none" in summarise(few, [str(one) for one in range(144)], "head")
