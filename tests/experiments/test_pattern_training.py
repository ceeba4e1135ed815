"""Training on labelled maps: it learns, its folds hold examples together, its scores are what one counts by hand."""

import hashlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import confusion_matrix

from experiments.patterns import training
from experiments.patterns.maps import DATA, NAMES, MapRow, MapSet
from experiments.patterns.network import PatternNetwork
from experiments.patterns.scores import bootstrap, compare_classes, f1_of, score_accuracy
from experiments.patterns.training import FOLDS, LABELS, classes_of, main, read_labels, score_held_out, split_folds
from tests.pattern_files import write_maps

pytestmark = pytest.mark.integration


def make_labels(examples, each, classes=5, seed=0):
    """Random maps of four tokens: `each` of every example, whose heads and labels are random."""
    rng = np.random.default_rng(seed)
    rows = tuple(
        MapRow("mrpc", str(example), int(rng.integers(2)), int(rng.integers(3)), 2, 2, NAMES[rng.integers(classes)])
        for example in range(examples)
        for _ in range(each)
    )
    return MapSet(rows, tuple(rng.integers(1, 256, (4, 4), np.uint8) for _ in rows))


def lines_and_bands(rng, count):
    """Images of columns (class 0), of diagonals (2), of nothing (4)."""
    images = rng.random((count, 8, 8, 2)).astype(np.float32) * 0.1
    classes = np.arange(count) % 3 * 2
    for image, kind in zip(images, classes, strict=True):
        if kind == 0:
            image[:, rng.integers(8), 0] = 0.9
        elif kind == 2:
            image[np.arange(8), np.arange(8), 0] = 0.9
    return images, classes


def loss_of(network, images, classes):
    """Mean cross-entropy."""
    with jax.numpy_dtype_promotion("standard"):
        return float(optax.softmax_cross_entropy_with_integer_labels(network(jnp.asarray(images)), classes).mean())


def bytes_of(network):
    """All parameters as bytes."""
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(nnx.state(network, nnx.Param)))


def test_training_fits_separable_data_and_repeats():
    images, classes = lines_and_bands(np.random.default_rng(0), 60)
    network = training.train_network(images, classes, seed=3, epochs=25)
    assert loss_of(network, images, classes) < 0.5 * loss_of(PatternNetwork(nnx.Rngs(3)), images, classes)
    others, expected = lines_and_bands(np.random.default_rng(1), 30)
    assert (training.predict_classes(network, others) == expected).mean() > 0.9
    assert bytes_of(network) == bytes_of(training.train_network(images, classes, seed=3, epochs=25))


def test_folds_keep_the_maps_of_an_example_together():
    several = [make_labels(14, 6), make_labels(17, 2, seed=1)]  # the second adds maps of the same examples, and three
    folds = split_folds(several)
    _, groups = classes_of(several)
    assert len(folds) == FOLDS
    assert sorted(place for _, test in folds for place in test) == list(range(14 * 6 + 17 * 2))
    for train, test in folds:
        assert sorted([*train, *test]) == list(range(len(groups)))
        assert not {groups[place] for place in train} & {groups[place] for place in test}


class Witness(ClassifierMixin, BaseEstimator):
    """A rival that says of a map how many maps it was trained on, and fails where it saw one of the same example."""

    def fit(self, numbers, classes):
        self.classes_ = np.unique(classes)
        self.examples_ = set(numbers[:, 1])
        return self

    def predict(self, numbers):
        assert not self.examples_ & set(numbers[:, 1])
        return np.full(len(numbers), len(self.examples_))


def test_nothing_is_judged_by_what_was_trained_on_its_example(monkeypatch):
    several = [make_labels(15, 4), make_labels(3, 2, seed=1)]
    classes, groups = classes_of(several)
    marks = np.stack([np.arange(len(groups)), [int(name.split()[1]) for name in groups]], axis=-1).astype(np.float32)
    seen = []

    def learn(images, labels, seed, epochs):
        assert np.array_equal(labels, classes[images[:, 0].astype(int)])
        seen.append(set(images[:, 1]))
        return set(images[:, 1])

    def fake_classes(known, images):
        assert not known & set(images[:, 1])
        return images[:, 0].astype(int)

    monkeypatch.setattr(training, "images_of", lambda several: (marks, marks))
    monkeypatch.setattr(training, "train_network", learn)
    monkeypatch.setattr(training, "predict_classes", fake_classes)
    monkeypatch.setattr(training, "rivals", lambda: {"witness": Witness()})
    found = training.hold_out(several, 1)
    assert set(found) == {"network", "witness", "head"}
    assert found["network"].tolist() == list(range(len(groups)))
    assert len(seen) == FOLDS
    assert set(found["witness"]) == {12}


def test_a_head_is_what_its_maps_of_other_folds_mostly_are():
    several = [make_labels(12, 7, classes=3), make_labels(9, 1, seed=2)]
    rows = [row for one in several for row in one.rows]
    folds = split_folds(several)
    found = training.most_common_of_heads(several, folds)
    for train, test in folds:
        for place in test:
            labels = [rows[one].label for one in train if (rows[one].layer, rows[one].head) == head_of(rows[place])]
            most = max(labels.count(name) for name in NAMES)
            assert labels.count(NAMES[found[place]]) == most


def head_of(row):
    """Layer and head."""
    return row.layer, row.head


def test_a_head_without_other_maps_is_what_most_maps_are():
    labels = make_labels(10, 4)
    rows = [MapRow("mrpc", row.example, number, 0, 2, 2, row.label) for number, row in enumerate(labels.rows)]
    several = [MapSet(tuple(rows), labels.maps)]
    folds, (classes, _) = split_folds(several), classes_of(several)
    found = training.most_common_of_heads(several, folds)
    for train, test in folds:
        assert set(found[test]) == {np.bincount(classes[train]).argmax()}


def test_scores_off_the_heads_commonest_label_are_counts():
    several = [make_labels(15, 4), make_labels(5, 2, seed=1)]
    classes = classes_of(several)[0]
    rng = np.random.default_rng(5)
    held = {name: np.where(rng.random(70) < 0.6, classes, rng.integers(0, 5, 70)) for name in ("network", "head", "x")}
    scores = score_held_out(several, held)
    for part, count in (("drawn_at_random", 60), ("all", 70)):
        off = [place for place in range(count) if held["head"][place] != classes[place]]
        assert 5 < len(off) < count
        for name in held:
            one = scores[name][part]
            right = sum(held[name][place] == classes[place] for place in off)
            assert (one["off_head"]["maps"], one["off_head"]["right"]) == (len(off), right)
            assert one["off_head"]["accuracy"] == pytest.approx(right / len(off))
        low, high = scores["x"][part]["off_head"]["interval"]
        assert low < scores["x"][part]["off_head"]["accuracy"] < high
        apart = scores["network"][part]["macro_f1"] - scores["x"][part]["macro_f1"]
        assert scores["x"][part]["network_ahead_by"]["macro_f1"] == pytest.approx(apart)
    assert "network_ahead_by" not in scores["network"]["all"]
    assert score_accuracy(classes[:0], classes[:0], [])["accuracy"] is None


def test_differences_compare_classifiers_on_the_same_examples(rng):
    true, found, other = (rng.integers(0, 5, 60) for _ in range(3))
    groups = [str(number // 4) for number in range(60)]

    def macro(predicted, rows):
        confusion = np.zeros((5, 5), int)
        np.add.at(confusion, (true[rows], predicted[rows]), 1)
        return float(np.nanmean(f1_of(confusion)))

    interval = bootstrap(lambda rows: macro(found, rows) - macro(other, rows), groups)
    compared = compare_classes(true, found, other, groups)
    assert compared["interval"] == pytest.approx(interval)
    assert interval[0] < compared["macro_f1"] < interval[1]
    assert compare_classes(true, found, found, groups) == {"macro_f1": 0.0, "interval": [0.0, 0.0]}


def test_as_published_80_of_400_maps_are_held_out(monkeypatch):
    labels = make_labels(75, 6)
    marks = np.arange(450, dtype=np.float32).reshape(450, 1, 1, 1)
    sides = []
    monkeypatch.setattr(training, "images_of", lambda several: (marks, None))

    def learn(images, *rest):
        sides.append(images.ravel().astype(int))
        return PatternNetwork(nnx.Rngs(0))

    def fake_classes(network, images):
        sides.append(images.ravel().astype(int))
        return np.zeros(len(images), int)

    monkeypatch.setattr(training, "train_network", learn)
    monkeypatch.setattr(training, "predict_classes", fake_classes)
    _, scores = training.as_published(labels, 1)
    train, test = sides
    assert (len(train), len(test)) == (320, 80)
    assert len({*train, *test}) == 400
    assert np.sum(scores["confusion"]) == 80
    classes, _ = classes_of([labels])
    assert scores["confusion"] == confusion_matrix(classes[test], np.zeros(80, int), labels=range(5)).tolist()
    examples = [{labels.rows[place].example for place in side} for side in sides]
    assert len(examples[0] & examples[1]) > 40


def test_the_command_trains_and_says_what_it_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training, "train_network", lambda images, classes, seed, *rest: PatternNetwork(nnx.Rngs(seed)))
    write_maps(tmp_path / "mine", make_labels(6, 6, classes=3))
    assert main(["--labels", str(tmp_path / "mine"), "--output", str(tmp_path / "out"), "--epochs", "2"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "macro F1" in line]
    kinds = ["network", "logistic", "boosting", "head", "as_published"]
    assert [line.split(":")[0] for line in lines] == kinds
    scores = json.loads((tmp_path / "out" / "pattern_scores.json").read_text())
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "pattern_network.safetensors",
        "pattern_scores.json",
    }
    assert (scores["maps"], scores["examples"], scores["made_of"]["epochs"]) == (36, 6, 2)
    assert all(len(scores["held_out"][name]) == 36 for name in ("network", "logistic", "boosting", "head"))
    for name in ("mine.npz", "mine.tsv"):
        assert scores["made_of"]["sha256"][name] == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    assert scores["made_of"]["versions"]["jax"] == jax.__version__


def same(one, other):
    """Whether two values as of JSON are the same, up to rounding."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == pytest.approx(other)


def test_shipped_scores_match_shipped_labels_and_predictions():
    scores, several = json.loads((DATA / "pattern_scores.json").read_text()), read_labels(LABELS)
    assert training.count_maps(several) == {name: scores[name] for name in ("maps", "drawn_at_random", "examples")}
    assert (scores["maps"], scores["drawn_at_random"]) == (660, 540)
    held = {name: np.array(found) for name, found in scores["held_out"].items()}
    assert set(held) == {"network", "logistic", "boosting", "head"}
    assert np.array_equal(held["head"], training.most_common_of_heads(several, split_folds(several)))
    for name, parts in score_held_out(several, held).items():
        for part, one in parts.items():
            assert same(one, scores[name][part]), (name, part)
    for path in LABELS:
        for file in (path.with_suffix(".npz"), path.with_suffix(".tsv")):
            assert scores["made_of"]["sha256"][file.name] == hashlib.sha256(file.read_bytes()).hexdigest()


def test_results_state_the_shipped_scores():
    """RESULTS.md has the macro F1 of each classifier with its interval, and what follows from them."""
    scores = json.loads((DATA / "pattern_scores.json").read_text())
    text = " ".join((DATA.parent / "RESULTS.md").read_text().replace("**", "").split())
    named = {
        "the network": scores["network"]["drawn_at_random"],
        "the most common label of the map's head, without the map,": scores["head"]["drawn_at_random"],
        "gradient boosting on five numbers of a map": scores["boosting"]["drawn_at_random"],
        "logistic regression": scores["logistic"]["drawn_at_random"],
        "the network trained as published": scores["as_published"],
    }
    for name, one in named.items():
        low, high = one["interval"]
        assert f"{name} {one['macro_f1']:.2f} ({low:.2f} to {high:.2f})" in text
    off = [scores[kind]["drawn_at_random"]["off_head"] for kind in ("network", "boosting", "logistic", "head")]
    assert [one["right"] for one in off] == [28, 21, 15, 0]
    assert "of 56, the network has 28 right (50 %, 37 to 64), gradient boosting 21, logistic regression 15" in text
