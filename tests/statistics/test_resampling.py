"""Scores of drawn, left out and swapped examples are those of the examples as they are."""

import numpy as np
import pytest

from bertjax.errors import DataError
from bertjax.statistics.metrics import METRICS, make_scorer, score
from bertjax.statistics.resampling import Sums, bootstrap_counts, score_draws, swaps
from tests.random_outputs import draw_outputs
from tests.tiny_models import largest_difference


@pytest.mark.parametrize("metric", sorted(METRICS))
@pytest.mark.parametrize("classes", [2, 3])
def test_scores_of_drawn_examples_equal_repeated_examples(rng, metric, classes):
    for examples in (3, 40):
        outputs, labels = draw_outputs(rng, metric, 5, examples, classes)
        counts = np.concatenate(
            [rng.multinomial(examples, np.full(examples, 1 / examples), 20), np.eye(examples, dtype=int)]
        )
        found = make_scorer(metric, outputs, labels, 1)(counts)
        for draw, count in enumerate(counts):
            expected = score(metric, np.repeat(outputs, count, axis=1), np.repeat(labels, count), 1)
            np.testing.assert_allclose(found[draw], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("metric", ["roc_auc", "average_precision"])
def test_a_draw_without_one_of_the_classes_has_no_ranking_score(metric):
    """Three examples, and the target is the first: draws of all, of the first only, of the others only."""
    values, counts = np.array([[0.9, 0.5, 0.1], [0.1, 0.5, 0.5]]), np.array([[1, 1, 1], [3, 0, 0], [0, 2, 1]])
    found = make_scorer(metric, values, np.array([1, 0, 0]), 1)(counts)
    assert found[0].tolist() == [1, 0 if metric == "roc_auc" else 1 / 3]
    assert np.isnan(found[1:]).all()


def test_values_far_from_zero_lose_no_digits(rng):
    values, labels = rng.normal(size=(2, 50)) * 1e-3 + 1e3, rng.normal(size=50) + 1e6
    counts = rng.multinomial(50, np.full(50, 1 / 50), 10)
    found = make_scorer("pearson", values, labels)(counts)
    rows = [np.repeat(np.arange(50), count) for count in counts]
    expected = np.stack([score("pearson", values[:, row], labels[row]) for row in rows])
    assert largest_difference(found, expected) < 1e-9


def test_draws_in_chunks_are_scored_in_order(rng):
    outputs, labels = draw_outputs(rng, "spearman", 4, 30)
    counts = rng.multinomial(30, np.full(30, 1 / 30), 50)
    scorer = make_scorer("spearman", outputs, labels)
    assert (score_draws(scorer, np.array_split(counts, 9)) == scorer(counts)).all()


def test_draws_are_as_scipy_draws_them_and_each_has_all_examples():
    counts = np.concatenate(list(bootstrap_counts(37, 5000, 3)))
    drawn = np.random.default_rng(3).integers(0, 37, (5000, 37))
    assert (counts == np.stack([np.bincount(row, minlength=37) for row in drawn])).all()


def test_swaps_are_fair_and_those_of_their_seed():
    some, again, other = (np.concatenate(list(swaps(37, 5000, seed))) for seed in (3, 3, 4))
    assert some.shape == (5000, 37)
    assert (some == again).all()
    assert (some != other).any()
    parts = [np.concatenate(list(swaps(37, 5000, 3, runs))) for runs in (10_000, 200_000)]
    assert all((part == some).all() for part in parts)  # however they are cut into chunks
    assert np.abs(some.mean(0) - 0.5).max() < 5 * 0.5 / np.sqrt(5000)
    assert abs(np.corrcoef(some[:, 0], some[:, 1])[0, 1]) < 0.1


def test_other_metrics_are_refused():
    with pytest.raises(DataError, match="no metric is called 'bleu': choose one of accuracy"):
        make_scorer("bleu", np.ones((1, 2)), np.ones(2))


@pytest.mark.parametrize("largest", [2, 2**22])
def test_sums_of_whole_numbers_are_exact_however_large(largest):
    rng = np.random.default_rng(1)
    terms, counts = rng.integers(0, largest, (2, 50, 3)), rng.integers(0, 9, (4, 50)).astype(np.uint16)
    sums = Sums(lambda outputs, labels, positive: outputs, lambda totals: totals[..., 0], ("a", "b", "c"))
    found = sums.scorer(terms.astype(np.float64), np.zeros(50), 1, None)(counts)
    assert found.dtype == np.float64
    assert found.tolist() == (counts.astype(np.int64) @ terms[..., 0].T).tolist()
