"""The contribution of each example to a score: its mean is the score, and the jackknife leaves the example out."""

import numpy as np
import pytest

from bertjax.errors import DataError
from bertjax.statistics import METRICS, contributions, score
from tests.random_outputs import draw_outputs

EXAMPLES, RUNS = 24, 5


@pytest.mark.parametrize("metric", METRICS)
def test_contributions_equal_the_loss_without_each_example(rng, metric):
    outputs, labels = draw_outputs(rng, metric, RUNS, EXAMPLES)
    kept, found = contributions(METRICS[metric], outputs, labels)
    assert kept.tolist() == list(range(EXAMPLES))
    whole = score(metric, outputs, labels)
    np.testing.assert_allclose(found.mean(axis=1), whole, atol=1e-9)
    rest = [np.arange(EXAMPLES) != example for example in range(EXAMPLES)]
    without = np.stack([score(metric, outputs[:, others], labels[others]) for others in rest], axis=1)
    expected = EXAMPLES * whole[:, None] - (EXAMPLES - 1) * without  # Tukey's pseudo-values
    moved = expected - expected.mean(axis=1, keepdims=True) + whole[:, None]
    np.testing.assert_allclose(found, moved, atol=1e-7 * max(1.0, np.abs(moved).max()))


def test_an_example_contributes_to_accuracy_whether_it_is_right(rng):
    outputs, labels = draw_outputs(rng, "accuracy", RUNS, EXAMPLES)
    labels[3] = -1
    kept, found = contributions(METRICS["accuracy"], outputs, labels)
    assert kept.tolist() == [place for place in range(EXAMPLES) if place != 3]
    np.testing.assert_allclose(found, (outputs.argmax(axis=-1) == labels)[:, kept], atol=1e-9)


@pytest.mark.parametrize("metric", ["pseudo_perplexity", "word_accuracy"])
def test_the_words_of_a_sentence_contribute_together(rng, metric):
    outputs, labels = draw_outputs(rng, metric, RUNS, EXAMPLES)
    units = np.sort(rng.integers(0, 7, EXAMPLES)) * 2
    kept, found = contributions(METRICS[metric], outputs, labels, units=units)
    assert kept.tolist() == np.unique(units).tolist()
    whole = score(metric, outputs, labels)
    np.testing.assert_allclose(found.mean(axis=1), whole)
    without = np.stack([score(metric, outputs[:, units != unit], labels[units != unit]) for unit in kept], axis=1)
    np.testing.assert_allclose(np.diff(found), -(len(kept) - 1) * np.diff(without), atol=1e-9)


def test_undefined_contributions_are_an_error(rng):
    outputs, labels = rng.normal(size=(RUNS, 6)), np.array([0, 0, 0, 1, 0, 0])
    with pytest.raises(DataError, match="undefined without example 3"):
        contributions(METRICS["roc_auc"], outputs, labels)
    with pytest.raises(DataError, match="at least two examples with a label"):
        contributions(METRICS["accuracy"], rng.normal(size=(RUNS, 2, 2)), np.array([1, -1]))


def test_groups_of_runs_change_nothing(rng, monkeypatch):
    outputs, labels = draw_outputs(rng, "spearman", 7, EXAMPLES)
    _, whole = contributions(METRICS["spearman"], outputs, labels)
    monkeypatch.setattr("bertjax.statistics.jackknife.GROUP", 3)
    _, found = contributions(METRICS["spearman"], outputs, labels)
    np.testing.assert_allclose(found, whole)
