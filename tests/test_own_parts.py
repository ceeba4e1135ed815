"""A part of one's own: a metric given to the main job has all that bertjax's own have."""

import numpy as np
import pytest
from scipy import stats

import bertjax
from bertjax.errors import DataError, InputError
from bertjax.evidence.weighing import weigh
from bertjax.results import show_table, show_text
from tests.drawn import DRAWS, draw_outputs
from tests.tiny import largest_difference
from tests.workshop import make_classifier, write_pairs


def balanced_accuracy(predictions, labels, positive):
    """The mean of the accuracies on each class."""
    classes = np.unique(labels)
    return np.stack([(predictions[:, labels == one] == one).mean(1) for one in classes]).mean(0)


BALANCED = bertjax.Metric("balanced", "Balanced accuracy", "predictions", "classes", balanced_accuracy, needs="two")


def mean_error(values, labels, positive):
    """One less the mean absolute error: it changes with the scale of the outputs."""
    return 1 - np.abs(values - labels).mean(1)


ERROR = bertjax.Metric("error", "One less the mean error", "values", "numbers", mean_error, lowest=-np.inf)


@pytest.mark.parametrize(("own", "like"), [(BALANCED, "accuracy"), (ERROR, "pearson")])
def test_a_metric_of_ones_own_is_weighed(rng, own, like):
    outputs, labels = draw_outputs(rng, like, 4, 40, 2)
    found = weigh(own, outputs[0], outputs[1:], labels, resamples=300, draws=DRAWS)
    readings = outputs.argmax(-1) if own is BALANCED else outputs.reshape(outputs.shape[:2]).astype(float)
    scores = own.function(readings, labels, 1)
    assert largest_difference(found.difference, scores[1:] - scores[0]) < 1e-12

    def difference(places):
        some = own.function(readings[:2][:, places], labels[places], 1)
        return some[1] - some[0]

    expected = stats.bootstrap(
        (np.arange(len(labels)),),
        difference,
        n_resamples=300,
        vectorized=False,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    assert largest_difference(found.percentile[:, 0], np.array(expected.confidence_interval)) < 1e-9
    same = weigh(own, outputs[0], outputs[:1], labels, resamples=99, draws=99)
    assert same.p.tolist() == [1.0]
    assert ((found.p > 0) & (found.p <= 1)).all()
    assert found.metric.effect_size.text.startswith("Cohen's d")


def test_swaps_of_a_metric_that_sees_the_scale_are_of_the_outputs_themselves(rng):
    """Outputs that are all shifted are worse by the shift; a metric of correlations would not see it."""
    labels = rng.normal(size=60)
    base = labels + 0.1 * rng.normal(size=60)
    found = weigh(ERROR, base, np.stack([base + 1, base]), labels, resamples=99, draws=999)
    assert found.p[0] <= 0.002
    assert found.difference[0] < -0.8


def test_the_main_job_takes_it(tmp_path, capsys):
    model, pairs = make_classifier(tmp_path / "model"), write_pairs(tmp_path / "pairs.tsv", 40)
    given = {"model": model, "task": "mrpc", "data": pairs, "metric": BALANCED, "progress": False}
    results = bertjax.ablate(**given, output=tmp_path / "results")
    again = bertjax.read_results(tmp_path / "results")
    assert (again.metric, again.summary["metrics"][0]) == ("balanced", "balanced")
    assert again.rows == results.rows
    assert "(Balanced accuracy)" in results.sentence
    predictions = results.outputs["outputs"].argmax(-1)
    expected = balanced_accuracy(predictions, results.outputs["labels"], 1)
    assert largest_difference(results.points("score") / 100, expected) < 1e-12
    assert results.frame[results.frame.main].metric.unique().tolist() == ["balanced"]
    assert "Balanced accuracy" in show_text(again, "md")
    assert "Balanced accuracy" in str(show_table(again).renderables[1])
    again.plot().savefig(tmp_path / "map.png")
    again.plot("ranking")
    assert "Balanced accuracy" in again.report().read_text()
    assert again.compare(results).pairs[0].common == len(again.names)


def test_one_that_does_not_fit_is_refused_before_the_sweep(tmp_path):
    model, pairs = make_classifier(tmp_path / "model"), write_pairs(tmp_path / "pairs.tsv", 40)
    with pytest.raises(InputError, match="error does not judge predicted classes of mrpc: choose accuracy"):
        bertjax.ablate(model, "mrpc", data=pairs, metric=ERROR, progress=False)
    with pytest.raises(DataError, match="no metric is called 'nonsense'"):
        bertjax.ablate(model, "mrpc", data=pairs, metric="nonsense", progress=False)
