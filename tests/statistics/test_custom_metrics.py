"""A metric that is any function of labels and outputs: in Python, and as `module:function` on the command line."""

import numpy as np
import pytest

import bertjax
from bertjax.cli import main
from bertjax.errors import DataError, InputError
from bertjax.results import read_results
from bertjax.statistics import Metric, as_metric, compute_statistics, seconds_of_statistics
from tests.factories import make_classifier, make_masked, write_lines, write_pairs

MODULE = """
import numpy as np

def brier(labels, outputs):
    '''The mean squared error of probabilities.'''
    shares = np.exp(outputs) / np.exp(outputs).sum(-1, keepdims=True)
    return ((np.eye(2)[labels] - shares) ** 2).sum(-1).mean()

brier.label, brier.unit, brier.greater_is_better = "Brier score", "", False

def fails(labels, outputs):
    raise RuntimeError("no such thing")

def no_number(labels, outputs):
    return "a lot"

value = 3
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A classifier, pairs, and a module in the working directory of the command."""
    make_classifier(tmp_path / "model")
    write_pairs(tmp_path / "pairs.tsv", 24)
    (tmp_path / "own_scores_of_a_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def brier(labels, outputs):
    shares = np.exp(outputs) / np.exp(outputs).sum(-1, keepdims=True)
    return ((np.eye(2)[labels] - shares) ** 2).sum(-1).mean()


def test_a_function_by_name_is_a_metric_with_an_estimate(files, capsys, monkeypatch):
    monkeypatch.setattr("bertjax.statistics.effects.RESAMPLES", 200)
    options = ["--model", "model", "--task", "mrpc", "--data", "pairs.tsv", "--heads", "0.0", "1.1", "--output", "out"]
    assert main(["ablate", *options, "--metric", "own_scores_of_a_test:brier"]) == 0
    printed = capsys.readouterr().out
    assert "intervals and tests of own_scores_of_a_test:brier call it once for each draw: about" in printed
    assert printed.index("call it once") < printed.index("computing statistics")
    results = read_results(files / "out")
    assert results.summary["metrics"] == ["own_scores_of_a_test:brier", "f1", "accuracy"]
    measure = results.measure()
    assert (measure.label, measure.unit, measure.greater_is_better) == ("Brier score", "", False)
    arrays = results.outputs
    expected = [brier(arrays["labels"], outputs.astype(float)) for outputs in arrays["outputs"]]
    assert [row.score for row in results.rows_of()] == pytest.approx(expected, abs=1e-12)
    assert all(row.low < row.difference < row.high for row in results.rows_of())
    for command in (["show", "out"], ["report", "out"], ["plot", "out", "-o", "map.png"]):
        assert main(command) == 0
    assert "Brier score" in capsys.readouterr().out


def test_a_function_has_the_statistics_of_a_metric(rng):
    """The same draws and swaps as those of a metric that knows what it is."""
    labels = rng.integers(0, 2, 40)
    base = rng.normal(size=(40, 2))
    outputs = base + 0.5 * rng.normal(size=(3, 40, 2))

    def accuracy(labels, outputs):
        return (outputs.argmax(-1) == labels).mean()

    custom = compute_statistics(as_metric(accuracy, "classes"), base, outputs, labels, resamples=300, draws=999)
    builtin = compute_statistics("accuracy", base, outputs, labels, resamples=300, draws=999)
    assert np.allclose(custom.score, builtin.score)
    assert np.allclose(custom.percentile, builtin.percentile)
    assert np.allclose(custom.bca, builtin.bca, equal_nan=True)
    assert np.abs(custom.p - builtin.p).max() < 0.1  # swaps against McNemar's exact test


def test_a_function_takes_outputs_of_any_task(tmp_path, monkeypatch):
    monkeypatch.setattr("bertjax.statistics.effects.RESAMPLES", 100)
    make_masked(tmp_path)
    lines = write_lines(tmp_path / "lines.txt")

    def in_five(labels, outputs):
        """The share of words among the five likeliest."""
        assert outputs.shape == (len(labels), 2)
        return (outputs[:, 1] <= 5).mean()

    results = bertjax.ablate(tmp_path, "mlm", data=lines, heads=["0.0"], metric=in_five, progress=False)
    assert results.metric == "in_five"
    assert results.base == pytest.approx((results.outputs["base"][:, 1] <= 5).mean())
    assert results.rows_of()[0].examples == 30  # texts are drawn


def test_what_it_takes_is_estimated_from_a_call():
    def slow(labels, outputs):
        import time

        time.sleep(0.002)
        return outputs.mean()

    metric, outputs, labels = as_metric(slow), np.zeros((20, 2)), np.zeros(20)
    # the least of five: other work on the machine only ever adds to a call
    few, many = (min(seconds_of_statistics(metric, outputs, labels, runs) for _ in range(5)) for runs in (1, 9))
    assert 0.002 * 10_000 * 2 < few < 0.02 * 60_000
    assert 2 < many / few < 10


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing_of_this_name:brier", "cannot be imported .ModuleNotFoundError"),
        ("own_scores_of_a_test:nothing", "own_scores_of_a_test has no nothing"),
        ("own_scores_of_a_test:value", "must be a name, a Metric, or a function of labels and outputs"),
        ("own_scores_of_a_test:fails", "metric own_scores_of_a_test:fails failed .RuntimeError: no such thing"),
        ("own_scores_of_a_test:no_number", "must be a number, found"),
        ("nonsense", "no metric is called 'nonsense'"),
    ],
)
def test_what_is_no_metric_is_refused_in_a_line(files, name, message):
    with pytest.raises((DataError, InputError), match=message):
        bertjax.ablate("model", "mrpc", data="pairs.tsv", metric=name, progress=False)


def test_a_metric_stays_itself(unchecked):
    metric = Metric("own", "Own", "values", "numbers", lambda outputs, labels, positive: outputs.mean(1))
    assert as_metric(metric) is metric
    assert as_metric("accuracy").flips_alone
    with pytest.raises(DataError, match="metric must be a name, a Metric, or a function"):
        as_metric(3)
