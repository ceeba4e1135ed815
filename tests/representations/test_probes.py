"""Linear probes and online coding against scikit-learn and NumPy by hand."""

import itertools

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from bertjax.errors import InputError
from bertjax.representations import control_labels, description_length, fit_probe, split_texts
from bertjax.representations.probes import PORTIONS


def clusters(rng, count=400, classes=4, width=6, spread=1.2):
    """Points around a centre of each class; one dimension is constant."""
    centres = 3 * np.eye(classes, width, 1)
    labels = rng.integers(0, classes, count)
    features = centres[labels] + spread * rng.normal(size=(count, width))
    features[:, 0] = 3.0
    return features, labels


def test_probe_is_the_best_of_three_logistic_regressions(rng):
    features, labels = clusters(rng)
    train, select, test = np.arange(200), np.arange(200, 300), np.arange(300, 400)
    probe = fit_probe(features, labels, train, select)
    scaler = StandardScaler().fit(features[train])
    scaled = scaler.transform(features)
    models = [
        LogisticRegression(C=strength, tol=1e-3).fit(scaled[train], labels[train]) for strength in (0.001, 0.01, 0.1)
    ]
    hits = [(model.predict(scaled[select]) == labels[select]).sum() for model in models]
    best = models[int(np.argmax(hits))]  # the first of equal ones is the most regularised one
    np.testing.assert_array_equal(probe.predict(features[test]), best.predict(scaled[test]))
    np.testing.assert_allclose(probe.model.coef_, best.coef_, rtol=1e-3, atol=1e-4)


def test_texts_are_split_without_overlap_by_the_seed():
    split, again, other = split_texts(57, 3), split_texts(57, 3), split_texts(57, 4)
    parts = [*vars(split).values()]
    assert [len(part) for part in parts] == [34, 12, 11]
    assert sorted(np.concatenate(parts).tolist()) == list(range(57))
    assert all(np.array_equal(one, two) for one, two in zip(parts, vars(again).values(), strict=True))
    assert not np.array_equal(split.train, other.train)
    with pytest.raises(InputError, match="found 4"):
        split_texts(4)


def test_control_labels_are_of_words_and_follow_the_distribution(rng):
    words = [f"w{index}" for index in rng.integers(0, 3000, 20_000)]
    labels = rng.choice(3, 20_000, p=[0.6, 0.3, 0.1])
    control = control_labels(words, labels, seed=5)
    by_word: dict[str, set[int]] = {}
    for word, label in zip(words, control.tolist(), strict=True):
        by_word.setdefault(word, set()).add(label)
    assert all(len(found) == 1 for found in by_word.values())
    types = np.array([next(iter(found)) for found in by_word.values()])
    np.testing.assert_allclose(np.bincount(types) / len(types), [0.6, 0.3, 0.1], atol=0.03)
    assert not np.array_equal(control, control_labels(words, labels, seed=6))


def test_code_lengths_are_a_code(rng):
    """Probabilities of all classes sum to 1, also of a class that training did not have."""
    features, labels = clusters(rng)
    seen = np.flatnonzero(labels != 2)[:50]
    probe = fit_probe(features, labels, seen, np.arange(300, 400), classes=5)
    bits = [probe.code_lengths(features[:7], np.full(7, label)) for label in range(5)]
    np.testing.assert_allclose(np.exp2(-np.array(bits)).sum(axis=0), 1.0)
    assert np.isfinite(bits).all()
    assert (bits[2] > np.log2(5)).all()


def test_description_length_is_that_of_online_coding(rng):
    features, labels = clusters(rng, spread=0.3)
    order = [np.arange(start, start + 3) for start in range(0, 300, 3)]
    select = np.arange(300, 400)
    found = description_length(features, labels, order, select, classes=4)
    ends = sorted({max(1, round(share * 100)) for share in PORTIONS})
    expected = [3 * ends[0] * 2.0]
    for before, after in itertools.pairwise(ends):
        probe = fit_probe(features, labels, np.arange(3 * before), select, classes=4, shortest=True)
        between = np.arange(3 * before, 3 * after)
        expected.append(probe.code_lengths(features[between], labels[between]).sum())
    np.testing.assert_allclose(found.bits_of_portions, expected)
    assert found.bits == pytest.approx(sum(expected))
    assert found.uniform_bits == 300 * 2.0
    assert found.portions == tuple(3 * end for end in ends)
    noise = description_length(rng.normal(size=features.shape), labels, order, select, classes=4)
    assert found.compression > 2 * noise.compression
    assert noise.compression < 1.2


def test_training_words_of_one_class_make_a_constant_probe(rng):
    features, labels = clusters(rng)
    same = np.flatnonzero(labels == 1)[:10]
    probe = fit_probe(features, labels, same, np.arange(300, 400))
    assert (probe.predict(features[:5]) == 1).all()
    assert np.isfinite(probe.code_lengths(features, labels)).all()
    with pytest.raises(InputError, match="at least one word"):
        fit_probe(features, labels, same[:0], same)
