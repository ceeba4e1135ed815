"""The metrics: equal to one library call per ablation, undefined where they should be, loud when misused."""

import statistics
import time
from warnings import catch_warnings, simplefilter

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from bertjax.errors import DataError
from bertjax.statistics.metrics import METRICS, Metric, find_metric, score
from bertjax.statistics.outputs import predictions_from_logits
from tests.random_outputs import draw_outputs

ABLATIONS, EXAMPLES, CLASSES = 5, 41, 3


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def one_by_one(name: str, output: np.ndarray, labels: np.ndarray) -> float:
    """The plain library call for one ablation: what `score` must equal."""
    calls = {
        "accuracy": lambda: sklearn.metrics.accuracy_score(labels, output.argmax(-1)),
        "f1": lambda: sklearn.metrics.f1_score(labels, output.argmax(-1)),
        "matthews": lambda: sklearn.metrics.matthews_corrcoef(labels, output.argmax(-1)),
        "pearson": lambda: scipy.stats.pearsonr(output, labels).statistic,
        "spearman": lambda: scipy.stats.spearmanr(output, labels).statistic,
        "roc_auc": lambda: sklearn.metrics.roc_auc_score(labels, output),
        "average_precision": lambda: sklearn.metrics.average_precision_score(labels, output),
        "cross_entropy": lambda: -statistics.fmean(output[:, 0]),
        "pseudo_perplexity": lambda: statistics.geometric_mean(np.exp(-output[:, 0])),
        "word_accuracy": lambda: sklearn.metrics.accuracy_score(np.ones(len(output)), output[:, 1]),
        "margin": lambda: statistics.fmean(output[:, 1] - output[:, 0]),
        "exact_match": lambda: sklearn.metrics.accuracy_score(np.ones(len(output)), output[:, 1]),
        "answer_f1": lambda: statistics.fmean(output[:, 2]),
        "ndcg_10": lambda: statistics.fmean(output[:, 1]),
        "mrr_10": lambda: statistics.fmean(output[:, 2]),
        "recall_1": lambda: statistics.fmean(output[:, 3]),
        "recall_10": lambda: statistics.fmean(output[:, 4]),
        "recall_100": lambda: statistics.fmean(output[:, 5]),
        "tag_accuracy": lambda: sklearn.metrics.accuracy_score(*right_or_not(*output[:, 1:3].T)),
        "strict_entity_f1": lambda: sklearn.metrics.f1_score(*one_by_each(*output[:, 3:6].T)),
        "micro_f1": lambda: sklearn.metrics.f1_score(*sets_of_labels(output), average="micro", zero_division=0),
        "macro_f1": lambda: sklearn.metrics.f1_score(*sets_of_labels(output), average="macro", zero_division=0),
        "subset_accuracy": lambda: sklearn.metrics.accuracy_score(*sets_of_labels(output)),
        "mean_squared_error": lambda: sklearn.metrics.mean_squared_error(labels, output),
        "mean_absolute_error": lambda: sklearn.metrics.mean_absolute_error(labels, output),
        "entity_f1": lambda: sklearn.metrics.f1_score(*one_by_each(*output[:, 6:9].T)),
    }
    return float(calls[name]())


def sets_of_labels(output):
    """The true and the predicted value of each label, `[examples, labels]`."""
    return output[:, 4::3].astype(int), output[:, 3::3].astype(int)


def right_or_not(right, count):
    """So many words, so many of them right."""
    words = int(count.sum())
    return np.ones(words), np.arange(words) < int(right.sum())


def one_by_each(hits, found, true):
    """True and predicted values, one by one, for this number of examples."""
    hits, found, true = (int(counts.sum()) for counts in (hits, found, true))
    pairs = [(1, 1)] * hits + [(0, 1)] * (found - hits) + [(1, 0)] * (true - hits)
    return zip(*pairs, strict=True)


def random_outputs(metric: Metric, rng: np.random.Generator, ablations: int, examples: int):
    """Outputs with ties and labels of the kind that a metric reads."""
    if metric.reads == "outputs":
        return draw_outputs(rng, metric.name, ablations, examples)
    shape = (ablations, examples, 2) if metric.reads == "predictions" else (ablations, examples)
    outputs = rng.normal(size=shape).round(1)
    labels = rng.integers(0, 2, examples) if metric.targets == "classes" else rng.uniform(0, 5, examples)
    return outputs, labels


@pytest.mark.parametrize("name", METRICS)
def test_all_ablations_at_once_score_as_one_library_call_each(name, rng):
    outputs, labels = random_outputs(METRICS[name], rng, ABLATIONS, EXAMPLES)
    expected = [one_by_one(name, output, labels) for output in outputs]
    found = score(name, outputs, labels)
    assert found.shape == (ABLATIONS,)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", METRICS)
def test_a_sweep_of_mnli_size_takes_seconds(name, rng):
    """A quarter of 144 heads."""
    outputs, labels = random_outputs(METRICS[name], rng, 36, 9815)
    begin = time.process_time()
    score(name, outputs.astype(np.float32), labels)
    assert time.process_time() - begin < 2


@pytest.mark.parametrize("name", ["accuracy", "matthews"])
def test_three_classes_are_fine(name, rng):
    logits = rng.normal(size=(ABLATIONS, EXAMPLES, CLASSES))
    labels = rng.integers(0, CLASSES, EXAMPLES)
    expected = [one_by_one(name, output, labels) for output in logits]
    np.testing.assert_allclose(score(name, logits, labels), expected, rtol=0, atol=1e-12)


def test_known_numbers():
    logits = np.array([[[1, 0], [0, 1], [0, 1], [1, 0]], [[0, 1], [0, 1], [0, 1], [0, 1]]], dtype=np.float32)
    labels = np.array([0, 1, 0, 1])
    assert score("accuracy", logits, labels).tolist() == [0.5, 0.5]
    np.testing.assert_allclose(score("f1", logits, labels), [1 / 2, 2 / 3])
    assert score("matthews", logits, labels).tolist() == [0, 0]  # all of one class: 0, as GLUE counts it


def test_the_positive_class_can_be_chosen(rng):
    values, labels = rng.normal(size=(ABLATIONS, EXAMPLES)), rng.integers(0, CLASSES, EXAMPLES)
    for name in ("roc_auc", "average_precision"):
        expected = [one_by_one(name, value, labels == 0) for value in values]
        np.testing.assert_allclose(score(name, values, labels, positive=0), expected, rtol=0, atol=1e-12)
    logits, labels = rng.normal(size=(ABLATIONS, EXAMPLES, 2)), rng.integers(0, 2, EXAMPLES)
    expected = [sklearn.metrics.f1_score(labels, row.argmax(-1), pos_label=0) for row in logits]
    np.testing.assert_allclose(score("f1", logits, labels, positive=0), expected, rtol=0, atol=1e-12)


def test_one_column_of_values_is_the_same_as_none(rng):
    values, labels = rng.normal(size=(ABLATIONS, EXAMPLES)), rng.uniform(0, 5, EXAMPLES)
    np.testing.assert_array_equal(score("pearson", values, labels), score("pearson", values[..., None], labels))


def test_sums_are_in_float64_whatever_the_outputs_are(rng):
    mean = Metric("mean", "Mean", "values", "numbers", lambda values, labels, positive: values.mean(axis=1))
    values = rng.normal(size=(ABLATIONS, EXAMPLES)).astype(np.float16)
    expected = values.astype(np.float64).mean(axis=1)
    np.testing.assert_allclose(score(mean, values, np.zeros(EXAMPLES)), expected, rtol=0, atol=1e-12)


def test_examples_without_a_label_are_left_out(rng):
    values, labels = rng.normal(size=(ABLATIONS, EXAMPLES)), rng.uniform(0, 5, EXAMPLES)
    labels[[2, 11]] = np.nan, -1  # a real number may well be -1: only NaN says that there is none
    kept = np.delete(np.arange(EXAMPLES), [2])
    np.testing.assert_array_equal(score("pearson", values, labels), score("pearson", values[:, kept], labels[kept]))
    logits, classes = rng.normal(size=(ABLATIONS, EXAMPLES, 2)), rng.integers(0, 2, EXAMPLES)
    classes[[0, 5]] = -1
    kept = np.delete(np.arange(EXAMPLES), [0, 5])
    np.testing.assert_array_equal(score("accuracy", logits, classes), score("accuracy", logits[:, kept], classes[kept]))


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_a_correlation_with_a_constant_is_nan_without_a_warning(name, rng):
    values, labels = rng.normal(size=(3, 6)), np.arange(6.0)
    values[1] = 0.25
    with catch_warnings():
        simplefilter("error")
        assert np.isnan(score(name, values, labels)).tolist() == [False, True, False]
        assert np.isnan(score(name, values, np.full(6, 2.5))).all()
        assert np.isnan(score(name, values[:, :1], labels[:1])).all()  # one example varies with nothing


@pytest.mark.parametrize("name", ["roc_auc", "average_precision", "matthews"])
@pytest.mark.parametrize("label", [0, 1])
def test_labels_of_one_class_leave_the_score_undefined(name, label, rng):
    outputs, _ = random_outputs(METRICS[name], rng, 3, 6)
    with catch_warnings():
        simplefilter("error")
        assert np.isnan(score(name, outputs, np.full(6, label))).all()


def test_f1_is_0_without_hits_and_nan_without_positives():
    never = np.array([[[1.0, 0.0]] * 4])
    with catch_warnings():
        simplefilter("error")
        assert score("f1", never, np.array([0, 1, 1, 0])).tolist() == [0.0]
        assert np.isnan(score("f1", never, np.zeros(4, int))).all()


def test_constant_similarities_rank_no_better_than_chance():
    assert score("roc_auc", np.full((1, 4), 0.5), np.array([0, 1, 1, 0])).tolist() == [0.5]


def test_predictions_are_the_first_of_the_largest_logits():
    assert predictions_from_logits(np.array([[[0.0, 3.0, 3.0], [2.0, -1.0, 2.0]]])).tolist() == [[1, 0]]


def test_every_metric_is_under_its_name():
    assert all(find_metric(name).name == name for name in METRICS)


LOGITS, VALUES, CLASS_IDS = np.zeros((2, 3, 4)), np.zeros((2, 3)), np.array([0, 1, 3])


@pytest.mark.parametrize(
    ("name", "outputs", "labels", "words"),
    [
        ("f2", VALUES, CLASS_IDS, ["'f2'", "spearman"]),
        ("pearson", VALUES, np.zeros(5), ["[2, 3]", "[5]"]),
        ("accuracy", LOGITS, np.zeros((3, 1), int), ["[2, 3, 4]", "[3, 1]"]),
        ("pearson", VALUES[0], np.zeros(3), ["[3]"]),
        ("accuracy", VALUES, CLASS_IDS, ["logits", "[2, 3]"]),
        ("accuracy", VALUES[..., None], CLASS_IDS, ["logits", "[2, 3, 1]"]),
        ("spearman", LOGITS, np.zeros(3), ["one real value", "[2, 3, 4]"]),
        ("roc_auc", LOGITS, CLASS_IDS, ["one real value", "[2, 3, 4]"]),
        ("pearson", VALUES, np.array([np.nan] * 3), ["none of the 3 examples"]),
        ("accuracy", LOGITS, np.array([-1, -1, -1]), ["none of the 3 examples"]),
        ("accuracy", LOGITS, np.array([0.0, 2.5, 1.0]), ["2.5", "example 1", "spearman"]),
        ("f1", LOGITS, np.array([0, 1, -100]), ["-100", "example 2"]),
        ("matthews", LOGITS, np.array([0, 4, 1]), ["label 4", "example 1", "4 labels"]),
        ("pearson", VALUES, np.array([0.0, np.inf, 1.0]), ["inf"]),
    ],
)
def test_misuse_is_one_clear_line(name, outputs, labels, words):
    with pytest.raises(DataError) as caught:
        score(name, outputs, labels)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("shape", [(3, 7), (3, 7, 2)])
def test_outputs_that_are_not_finite_are_named(bad, shape):
    outputs = np.zeros(shape, np.float32)
    outputs[2, 5] = bad
    with pytest.raises(DataError, match=f"ablation 2 for example 5 is {bad}"):
        score("accuracy" if len(shape) == 3 else "pearson", outputs, np.arange(7) % 2)
